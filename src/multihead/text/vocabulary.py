"""The parts of a tokenizer, and its file: special symbols, bytes, pieces.

A text is prepared in two steps: spaces become the word mark U+2581, with one mark in front (Kudo and Richardson 2018,
"SentencePiece"); a pattern then cuts the text into pieces, which merges do not cross. Both, and the way back, are built
from components of the ``tokenizers`` library, so that a saved file means the same wherever it is read.

The library's Metaspace is not used because it maps runs of spaces, leading spaces and U+2581 itself onto each other.
The special symbols and byte tokens are plain entries of the vocabulary, because the library would search texts for
"special" ones, and a user's ``</s>`` or ``<0x41>`` would become an end symbol or an ``A``.

The file is the ``tokenizer.json`` of the ecosystem. The library reads any tokenizer, but this package guarantees more
(exact round trips, no text that becomes a control symbol), which holds only for files with these parts. So a file is
compared with the one that multihead would have written, and refused with the name of the first part that differs.

Vocabularies are learned in `learning` and applied in `tokenizer`.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, TypeVar

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from multihead.errors import ConfigurationError, DataError, FormatError, InputError, SurroundingsError, shortened
from multihead.files import force, replace

Built = TypeVar("Built")

MARK = "\u2581"
"""The word mark: represents a space, and is put in front of every text."""

BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
"""The entries that spell characters without an entry."""

_BYTES = {token: bytes([byte]) for byte, token in enumerate(BYTE_TOKENS)}

WORD = r"\p{L}[\p{L}\p{M}]*"

PATTERN = "|".join(
    [
        # A word: letters with their combining marks, including zero-width (non-)joiners between letters, as used in
        # Persian and the scripts of India. One word mark in front belongs to the word.
        rf"{MARK}?{WORD}(?:[\u200C\u200D]{WORD})*",
        # Single digits, so that numbers are spelled, not memorized.
        r"\p{N}",
        # A run of anything else (punctuation, symbols, emoji), with one word mark in front.
        rf"{MARK}?[^{MARK}\p{{L}}\p{{N}}]+",
        # A run of word marks, except the last one, which belongs to what follows.
        rf"{MARK}+(?={MARK})",
        # The split keeps all other text, so a mark in front of a digit or at the end is a piece, too.
    ]
)
"""Matches the pieces of a text (syntax of the Oniguruma library)."""

OUR_PATTERNS = (PATTERN, PATTERN.replace(MARK, " "))
"""The pattern of our own files, and of those that we write for other programs. A repetition in it begins with a
character that does not occur inside, so that a search for it takes as long as the text."""


@dataclass(frozen=True, slots=True)
class Specials:
    """The strings of the four special symbols, which have the ids 0 to 3 in this order.

    They are for display only: no text can produce them, whatever it contains.

    Args:
        pad: fills the end of short rows.
        unk: required by the file format; never produced, since unknown characters are spelled in bytes.
        bos: begins a target.
        eos: ends a source or target.

    Raises:
        ConfigurationError: two are equal, one has fewer than two characters (a single one would be found in texts), or
            one is the name of a byte token.
        DataError: one has a lone surrogate.
    """

    pad: str = "<blank>"
    unk: str = "<unk>"
    bos: str = "<s>"
    eos: str = "</s>"

    def __post_init__(self) -> None:
        strings = self.strings
        for string in strings:
            check_unicode(string, "a special symbol")
            if len(string) < 2 or string in BYTE_TOKENS:
                raise ConfigurationError(
                    f"the special symbol {string!r} cannot be told from text: give it at least two "
                    "characters, and not the name of a byte token"
                )
        if len(set(strings)) < len(strings):
            raise ConfigurationError(f"the special symbols {strings} are not all different")

    @property
    def strings(self) -> tuple[str, ...]:
        """The four strings in the order of their ids."""
        return astuple(self)


FIRST_BYTE = 4
"""The id of byte 0, after the special symbols."""

FIRST_CHARACTER = FIRST_BYTE + len(BYTE_TOKENS)
"""The id of the first character; pieces of text are made of characters and merges."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that defines a tokenizer.

    Args:
        vocabulary: the entries by id: special symbols, byte tokens, characters, results of merges.
        merges: the pairs to join, in the order they were learned.
        pattern: matches the pieces of a text.
    """

    vocabulary: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]
    pattern: str = PATTERN


def assemble(parts: Parts) -> tokenizers.Tokenizer:
    """The library's tokenizer with these parts.

    Raises:
        Exception: raised by the library if the parts are inconsistent.
    """
    model = models.BPE(
        vocab={token: index for index, token in enumerate(parts.vocabulary)},
        merges=list(parts.merges),
        byte_fallback=True,
        unk_token=parts.vocabulary[1],
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = spaces_to_marks()
    backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(parts.pattern), "isolated")
    backend.decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def spaces_to_marks() -> normalizers.Normalizer:
    """Put one mark in front of a non-empty text, and replace every space by a mark."""
    return normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])


def check_unicode(text: str, name: str) -> None:
    """Check that a text is valid Unicode.

    Raises:
        DataError: the text has a lone surrogate, half of a character, which cannot be encoded in UTF-8.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{name} has a lone surrogate ({text[error.start]!r}) at position {error.start}, which is not "
            "valid Unicode: decode the text as UTF-8, or remove it"
        ) from error


def read(text: str) -> Parts:
    """The parts of a tokenizer from the content of its file.

    Raises:
        FormatError: the text is not JSON, not a byte-pair encoding, or has other special symbols, byte tokens,
            normalizer, pattern or decoder than multihead writes; the message names what is missing.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"this is not a tokenizer.json, as it is not JSON ({error})") from error
    vocabulary = read_vocabulary(content)
    if not _has_our_pattern(content):
        from multihead.text.components import check_content

        check_content(content, OUR_PATTERNS)
    try:
        # The library normalizes files written by its older and newer versions.
        content = json.loads(tokenizers.Tokenizer.from_str(text).to_str())
    except BaseException as error:
        raise refusal(f"the tokenizers library cannot read it ({library_error(error)})") from error
    splitting = content["pre_tokenizer"] or {}
    if "Regex" not in splitting.get("pattern", {}):
        raise refusal(f"its pre_tokenizer is {shown(splitting)}, expected a Split by a regular expression")
    merges = tuple((left, right) for left, right in content["model"]["merges"])
    parts = Parts(vocabulary, merges, splitting["pattern"]["Regex"])
    check_merges(parts)
    check_rest(content, json.loads(assemble(parts).to_str()))
    return parts


def _has_our_pattern(content: Mapping[str, Any]) -> bool:
    """Whether all that the library would search for is `PATTERN`, without a table of characters or a prefix."""
    try:
        rest = json.dumps({part: value for part, value in content.items() if part != "model"})
    except RecursionError:
        raise refusal("its parts are nested too deeply") from None
    ours = json.dumps({"Regex": PATTERN})[1:-1]
    plain = '"Precompiled"' not in rest and not content["model"].get("continuing_subword_prefix")
    return plain and rest.count('"Regex"') == rest.count(ours)


def library_error(error: BaseException) -> str:
    """What an exception of the library says; an exception that is not its own is raised again.

    The library raises `Exception` itself, or ``PanicException``, which no ``except Exception`` catches.
    """
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error
    return shortened((str(error).splitlines() or [type(error).__name__])[0], 200)


def read_vocabulary(content: object) -> tuple[str, ...]:
    """The entries by id, with checks of the required ones."""
    match content:
        case {"model": {"type": "BPE", "vocab": dict(ids)}}:
            tokens = {index: token for token, index in ids.items() if isinstance(index, int)}
        case _:
            raise refusal("it has no model of the type BPE with a vocabulary")
    if tokens.keys() != set(range(len(ids))):
        raise refusal("the ids of its vocabulary are not 0, 1, 2, ... without gaps")
    vocabulary = tuple(tokens[index] for index in range(len(ids)))
    if vocabulary[FIRST_BYTE:FIRST_CHARACTER] != BYTE_TOKENS:
        raise refusal(
            f"it has no byte tokens {BYTE_TOKENS[0]} to {BYTE_TOKENS[-1]} with the ids {FIRST_BYTE} to "
            f"{FIRST_CHARACTER - 1}"
        )
    if MARK not in vocabulary[FIRST_CHARACTER:]:
        raise refusal(f"its vocabulary has no word mark {MARK!r} (U+2581)")
    try:
        Specials(*vocabulary[:FIRST_BYTE])
    except InputError as error:
        raise refusal(f"it has no special symbols with the ids 0 to 3 ({error})") from error
    return vocabulary


def check_merges(parts: Parts) -> None:
    """Check that no merge uses or spells a special symbol or byte token, which would let text turn into one."""
    reserved = frozenset(parts.vocabulary[:FIRST_CHARACTER])
    for left, right in parts.merges:
        if not reserved.isdisjoint((left, right, left + right)):
            raise refusal(f"its merge of {left!r} and {right!r} touches a special symbol or byte token")


def check_rest(content: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Check that everything else is as multihead writes it."""
    for part in ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if content[part] != expected[part]:
            raise refusal(f"its {part} is {shown(content[part])}, expected {shown(expected[part])}")
    for part in ("truncation", "padding"):
        if content[part] is not None:
            raise refusal(f"it has {part} ({shown(content[part])}), which cuts or fills texts silently")
    for setting in expected["model"].keys() - {"vocab", "merges"}:
        got, wanted = content["model"][setting], expected["model"][setting]
        if got != wanted:
            raise refusal(f"its setting {setting} is {got!r}, expected {wanted!r}")


def refusal(reason: str) -> FormatError:
    """The error for a file written by another program."""
    return FormatError(f"this tokenizer.json was not written by multihead: {reason}; learn one with Tokenizer.learn")


def shown(part: object) -> str:
    """A part of the file, shortened for a message."""
    return shortened(json.dumps(part, ensure_ascii=False), 200)


def foreign_kind(text: str) -> str | None:
    """The kind that a file of another program's tokenizer names in its first field; None for a file of ours."""
    found = re.match(r'\s*\{\s*"multihead_tokenizer"\s*:\s*"([a-z-]+)"', text)
    return found and found.group(1)


def load(path: Path, build: Callable[[str], Built]) -> Built:
    """The tokenizer that ``build`` makes of the content of a file.

    Raises:
        FormatError: raised by ``build``, with the name of the file; or there is no such file.
        SurroundingsError: the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: this is not a tokenizer.json, as it is not UTF-8 text") from error
    except OSError as error:
        if not path.is_file():
            raise FormatError(f"{path}: there is no such tokenizer file; give the path of a tokenizer.json") from error
        raise SurroundingsError(f"{path}: the tokenizer cannot be read ({error.strerror})") from error
    return parse(text, path, build)


def parse(text: str, path: Path, build: Callable[[str], Built]) -> Built:
    """The tokenizer that ``build`` makes of the content of a file; its errors get the name of the file."""
    try:
        return build(text)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error


def save(text: str, path: Path) -> None:
    """Write the file atomically: into a temporary file, which is then renamed.

    Raises:
        InputError: the folder does not exist, or the path is a folder.
        SurroundingsError: no space left, no permission.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder: give the path of the file to write, such as {path / 'tokenizer.json'}")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}; create it first")
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            force(file.fileno())
        replace(part, path)
    except OSError as error:
        raise SurroundingsError(f"{path}: the tokenizer cannot be written ({error.strerror})") from error
    finally:
        part.unlink(missing_ok=True)


def bytes_of_entries(vocabulary: Sequence[str]) -> Iterable[bytes]:
    """The bytes that each entry adds to a decoded text: none for a special symbol, a space for a word mark."""
    for index, token in enumerate(vocabulary):
        if index < FIRST_BYTE:
            yield b""
        elif index < FIRST_CHARACTER:
            yield bytes([index - FIRST_BYTE])
        else:
            yield token.replace(MARK, " ").encode()


def starts_with_space(entries: Sequence[bytes]) -> Iterator[bool]:
    """Whether each entry begins with white space and so ends the word before it."""
    spaces = tuple(chr(number).encode() for number in range(0x3001) if chr(number).isspace())
    return (entry.startswith(spaces) for entry in entries)


def ends_word(entry: bytes) -> bool:
    """Whether an entry has the end of a word with white space after it; white space alone only begins the next word."""
    text = entry.decode(errors="replace")
    return text[-1:].isspace() and not text.isspace()


def visible(token: str) -> str:
    """The token with unprintable characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in token)


def read_spelled(line: str) -> str:
    """The text of a line written by `Tokenizer.spell`.

    Unknown pieces are taken as text; bytes that are not valid UTF-8 become U+FFFD. One leading space, from the mark in
    front of every line, is dropped.
    """
    pieces = (_BYTES.get(piece) or piece.replace(MARK, " ").encode() for piece in line.split(" "))
    return b"".join(pieces).removeprefix(b" ").decode("utf-8", errors="replace")


def spelled_entries(vocabulary: Iterable[str]) -> Iterator[str]:
    """Each entry as a piece: itself, or its bytes if it has a character that would cut or end a line.

    Learned vocabularies have no such entries; files made by other programs may.
    """
    for index, token in enumerate(vocabulary):
        if index >= FIRST_CHARACTER and any(character in token for character in " \r\n"):
            yield " ".join(BYTE_TOKENS[byte] for byte in token.replace(MARK, " ").encode())
        else:
            yield token
