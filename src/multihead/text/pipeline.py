"""The fixed parts of every tokenizer: special symbols, byte tokens, word mark, splitting pattern, decoder.

A text is prepared in two steps: spaces become the word mark U+2581 and one mark is put in front (Kudo and
Richardson 2018, "SentencePiece"); a pattern then cuts it into pieces, and merges never cross a cut. Both, and
the way back, are written with parts of the ``tokenizers`` library, so that a saved file means the same
wherever it is read.

Why not the ready-made Metaspace: it maps runs of spaces, leading spaces and U+2581 itself onto each other.
Why the special symbols and byte tokens are plain entries of the vocabulary: registered as "special", they
would be looked for in the text, and a user's ``</s>`` or ``<0x41>`` would become an end symbol or an ``A``.

Learning a vocabulary is left to ``learning``, files to ``tokenizer_file``, use to ``tokenizer``.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from multihead.errors import ConfigurationError, DataError

MARK = "\u2581"
"""The word mark: stands for a space, and stands in front of every line."""

BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
"""The entries that spell what the vocabulary has no character for."""

WORD = r"\p{L}[\p{L}\p{M}]*"

PATTERN = "|".join(
    [
        # A word: letters with their combining marks; a zero-width (non-)joiner between two letters belongs to
        # it, as Persian and the scripts of India write it. One word mark in front belongs to the word.
        rf"{MARK}?{WORD}(?:[\u200C\u200D]{WORD})*",
        # Every digit for itself, so that numbers are spelt and not memorised.
        r"\p{N}",
        # A run of anything else (punctuation, symbols, emoji), with one word mark in front.
        rf"{MARK}?[^{MARK}\p{{L}}\p{{N}}]+",
        # A run of word marks leaves the last one to what follows.
        rf"{MARK}+(?={MARK})",
        # What is left, a mark in front of a digit or at the end, is a piece too: the split keeps everything.
    ]
)
"""How a text is cut into pieces (syntax of the Oniguruma library)."""


@dataclass(frozen=True, slots=True)
class Specials:
    """The strings of the four special symbols, which have the ids 0 to 3 in this order.

    They are names for display only: no text can produce them, whatever it contains.

    Args:
        pad: fills the end of short rows.
        unk: required by the file format; never produced, as unknown characters are spelt in bytes.
        bos: begins a target.
        eos: ends a source or target.

    Raises:
        ConfigurationError: two are the same, one has fewer than two characters (a single one would be found
            in texts), or one is the name of a byte token.
        DataError: a lone surrogate.
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
"""The id of the token of byte 0; the special symbols stand before it."""

FIRST_CHARACTER = FIRST_BYTE + len(BYTE_TOKENS)
"""The id of the first character; characters and merges are what the pieces of a text are looked up in."""


@dataclass(frozen=True, slots=True)
class Parts:
    """All that tells one tokenizer from another.

    Args:
        vocabulary: the entries, by id: special symbols, byte tokens, characters, results of merges.
        merges: the pairs to join, the first learned first.
        pattern: how texts are cut into pieces.
    """

    vocabulary: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]
    pattern: str = PATTERN


def assemble(parts: Parts) -> tokenizers.Tokenizer:
    """The library's tokenizer of these parts.

    Raises:
        Exception: by the library, where the parts contradict each other.
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
    """One mark in front of a text that is not empty, and one for every space."""
    return normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])


def check_unicode(text: str, name: str) -> None:
    """Say where a text is not valid Unicode.

    Raises:
        DataError: it holds a lone surrogate, half of a character, which has no bytes in UTF-8.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{name} has a lone surrogate ({text[error.start]!r}) at position {error.start}, which is not "
            "valid Unicode: decode the text as UTF-8, or remove it"
        ) from error
