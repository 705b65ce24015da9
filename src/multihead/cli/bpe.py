"""``multihead bpe learn | apply | undo``: byte-pair encoding.

Two formats: tokenizer.json, which every model has (`text.tokenizer`), and the codes of subword-nmt
(`text.subword_nmt`). The content of a file decides which one it is.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from multihead.cli.help import ExampleGroup, tell
from multihead.errors import ConfigurationError, DataError, FormatError, InputError
from multihead.files import check_new_file

if TYPE_CHECKING:
    from multihead.text.subword_nmt.codes import Codes
    from multihead.text.tokenizer import Tokenizer

Change = Callable[[list[str], int], list[str]]
"""A change of lines, as `streams.filter_lines` takes it."""

_FORMATS = click.Choice(["multihead", "subword-nmt"])
_PATH = click.Path(path_type=Path)
_TOKENIZER_JSON, _CODES = "tokenizer.json", "codes of subword-nmt"


@click.group(
    cls=ExampleGroup,
    examples=(
        "multihead bpe learn train.de train.en --output tokenizer.json",
        "multihead bpe apply tokenizer.json < train.de > pieces.de",
        "multihead bpe undo < pieces.de > train.again.de",
    ),
)
def bpe() -> None:
    """Byte-pair encoding: learn it from text, apply it, undo it.

    TOKENIZER is a tokenizer.json, a model or run folder, or a codes file of subword-nmt. Text is read from standard
    input and written to standard output: as many lines come out as go in.
    """


@bpe.command(
    short_help="Learn subwords from text.",
    examples=(
        "multihead bpe learn train.de train.en --output tokenizer.json",
        "multihead bpe learn train.en --format subword-nmt --symbols 8000 -o codes",
    ),
)
@click.argument("files", nargs=-1, type=_PATH, metavar="[FILE]...")
@click.option("-o", "--output", required=True, type=_PATH, metavar="FILE", help="The file to write; a new name.")
@click.option("--format", "kind", type=_FORMATS, default="multihead", show_default=True, help="What to write.")
@click.option("--vocab-size", type=int, metavar="NUMBER", help="Number of entries, for multihead. [8000]")
@click.option(
    "-s",
    "--symbols",
    "--merges",
    "merges",
    type=int,
    metavar="NUMBER",
    help="Number of merges, for subword-nmt. [10000]",
)
@click.option(
    "--min-frequency",
    type=int,
    default=2,
    show_default=True,
    metavar="NUMBER",
    help="Do not merge pairs rarer than this.",
)
@click.option(
    "--coverage", type=float, metavar="SHARE", help="Share of the text whose characters have an entry. [0.9999]"
)
@click.option(
    "--user-symbols",
    metavar="TEXT",
    help="Texts that are always one entry, never cut or merged, with spaces between them. (multihead)",
)
@click.option("--pad", metavar="TEXT", help="Name of the padding symbol. [<blank>]")
@click.option("--unk", metavar="TEXT", help="Name of the unknown symbol. [<unk>]")
@click.option("--bos", metavar="TEXT", help="Name of the begin symbol. [<s>]")
@click.option("--eos", metavar="TEXT", help="Name of the end symbol. [</s>]")
def learn(
    files: tuple[Path, ...],
    output: Path,
    kind: str,
    vocab_size: int | None,
    merges: int | None,
    min_frequency: int,
    coverage: float | None,
    user_symbols: str | None,
    **specials: str | None,
) -> None:
    """Learn from FILEs, or from standard input; several languages share one vocabulary."""
    check_new_file(output)
    if kind == "multihead":
        _reject_options(_CODES, symbols=merges)
        own = () if user_symbols is None else tuple(user_symbols.split())
        _learn_tokenizer(files, output, vocab_size, coverage, min_frequency, own, specials)
    else:
        _reject_options(
            _TOKENIZER_JSON, vocab_size=vocab_size, coverage=coverage, user_symbols=user_symbols, **specials
        )
        _learn_codes(files, output, merges, min_frequency)


def _learn_tokenizer(
    files: tuple[Path, ...],
    output: Path,
    vocab_size: int | None,
    coverage: float | None,
    min_frequency: int,
    own: tuple[str, ...],
    names: dict[str, str | None],
) -> None:
    from multihead.text.user_symbols import learn_with_symbols
    from multihead.text.vocabulary import Specials

    specials = Specials(**{name: text for name, text in names.items() if text is not None})
    options: dict[str, Any] = {} if coverage is None else {"coverage": coverage}
    size = 8000 if vocab_size is None else vocab_size
    text = _read_text(files)
    learned = learn_with_symbols(text, size, own, specials=specials, min_frequency=min_frequency, **options)
    learned.save(output)
    fewer = "" if len(learned) == size else f" of {size:,} asked for: the text gives no more"
    tell(f"{output}: {len(learned):,} entries{fewer}")


def _learn_codes(files: tuple[Path, ...], output: Path, merges: int | None, min_frequency: int) -> None:
    from multihead.text.subword_nmt.learning import learn as learn_codes

    wanted = 10_000 if merges is None else merges
    codes = learn_codes(_read_text(files), wanted, min_frequency)
    codes.save(output)
    found = len(codes.merges)
    fewer = "" if found == wanted else f" of {wanted:,} asked for: no other pair occurs {min_frequency} times"
    tell(f"{output}: {found:,} merges{fewer}")


def _read_text(files: tuple[Path, ...]) -> Iterator[str]:
    """All lines of the files, or of standard input."""
    from multihead.cli.streams import STDIN_NAME
    from multihead.data.text_files import decode_line, read_lines, split_lines

    if files:
        yield from chain.from_iterable(read_lines(path) for path in files)
    else:
        for number, raw in enumerate(split_lines(sys.stdin.buffer), 1):
            yield decode_line(raw, STDIN_NAME, number)


@bpe.command(
    short_help="Split text into subwords.",
    examples=(
        "multihead bpe apply tokenizer.json < train.de > pieces.de",
        "multihead bpe apply run --ids < train.de > ids.de",
    ),
)
@click.argument("tokenizer", type=_PATH)
@click.option("--ids", is_flag=True, help="Write ids, not pieces. (tokenizer.json)")
@click.option("--side", type=click.Choice(["source", "target"]), help="Which tokenizer of a model with two. [source]")
@click.option("--dropout", type=float, default=0.0, metavar="P", help="BPE-dropout: probability of skipping a merge.")
@click.option("--seed", type=int, default=1, show_default=True, metavar="NUMBER", help="Seed of the dropout.")
@click.option("-m", "--merges", type=int, metavar="NUMBER", help="Use only the first NUMBER merges. (codes)")
@click.option("--separator", metavar="TEXT", help="Suffix of units inside a word. [@@] (codes)")
@click.option("--vocabulary", type=_PATH, metavar="FILE", help="Units and counts; split other units. (codes)")
@click.option("--vocabulary-threshold", type=int, metavar="NUMBER", help="Ignore its units rarer than this. (codes)")
@click.option("--glossaries", multiple=True, metavar="REGEX", help="Keep matches whole; may be repeated. (codes)")
def apply(
    tokenizer: Path,
    ids: bool,
    side: str | None,
    dropout: float,
    seed: int,
    merges: int | None,
    separator: str | None,
    vocabulary: Path | None,
    vocabulary_threshold: int | None,
    glossaries: tuple[str, ...],
) -> None:
    """Split standard input into subwords with TOKENIZER.

    `undo` restores the text; exactly, if TOKENIZER is a tokenizer.json.
    """
    from multihead.cli.streams import filter_lines
    from multihead.text.subword_nmt.codes import Codes

    loaded = _load(tokenizer, side, merges)
    if isinstance(loaded, Codes):
        _reject_options(_TOKENIZER_JSON, ids=ids or None)
        options = {} if separator is None else {"separator": separator}
        units = _load_vocabulary(vocabulary, vocabulary_threshold)
        filter_lines(_codes_filter(loaded, dropout, seed, vocabulary=units, glossaries=glossaries, **options))
    else:
        of_codes = {"vocabulary": vocabulary, "vocabulary_threshold": vocabulary_threshold, "separator": separator}
        _reject_options(_CODES, merges=merges, glossaries=glossaries or None, **of_codes)
        filter_lines(_tokenizer_filter(loaded, dropout, seed, ids))


def _tokenizer_filter(tokenizer: Tokenizer, dropout: float, seed: int, as_ids: bool) -> Change:
    from multihead.text.segment import Segmenter

    segmenter = Segmenter(tokenizer, dropout, seed)

    def change(lines: list[str], first: int) -> list[str]:
        rows = tokenizer.encode_batch(lines)
        if dropout:
            rows = segmenter.segment(rows, range(first, first + len(lines)), epoch=0, side=0)
        return [" ".join(map(str, row)) if as_ids else tokenizer.spell(row) for row in rows]

    return change


def _codes_filter(codes: Codes, dropout: float, seed: int, **options: Any) -> Change:
    from multihead.text.subword_nmt.segmenting import SubwordNMT

    segmenter = SubwordNMT(codes, **options)

    def change(lines: list[str], first: int) -> list[str]:
        if not dropout:
            return [segmenter.apply(line) for line in lines]
        # One generator per line: the result must not depend on which lines arrived together.
        generators = (random.Random(f"{seed} {number}").random for number in range(first, first + len(lines)))
        return [segmenter.apply(line, dropout, one) for line, one in zip(lines, generators, strict=True)]

    return change


def _load_vocabulary(path: Path | None, threshold: int | None) -> Iterable[str] | None:
    from multihead.data.text_files import read_lines
    from multihead.text.subword_nmt.segmenting import read_vocabulary

    if path is None:
        if threshold is not None:
            raise ConfigurationError("--vocabulary-threshold: expected --vocabulary FILE too, whose counts it is for")
        return None
    return read_vocabulary(read_lines(path), threshold, str(path))


@bpe.command(
    short_help="Turn subwords back into text.",
    examples=(
        "multihead bpe undo < pieces.de > train.again.de",
        "multihead bpe undo tokenizer.json --ids < ids.de > train.again.de",
    ),
)
@click.argument("tokenizer", type=_PATH, required=False)
@click.option("--format", "kind", type=_FORMATS, help="Format of the input, without TOKENIZER. [multihead]")
@click.option("--ids", is_flag=True, help="Read ids, not pieces. (tokenizer.json; needs TOKENIZER)")
@click.option("--side", type=click.Choice(["source", "target"]), help="Which tokenizer of a model with two. [source]")
@click.option("--separator", metavar="TEXT", help="Suffix of units inside a word. [@@] (codes)")
def undo(tokenizer: Path | None, kind: str | None, ids: bool, side: str | None, separator: str | None) -> None:
    """Turn subwords on standard input back into text.

    TOKENIZER is needed only for --ids; pieces contain their text.
    """
    from multihead.cli.streams import filter_lines
    from multihead.text.subword_nmt import segmenting as subword_nmt
    from multihead.text.subword_nmt.codes import Codes
    from multihead.text.vocabulary import read_spelled

    loaded = None if tokenizer is None else _load(tokenizer, side, None)
    if loaded is None and side is not None:
        raise ConfigurationError("--side: expected TOKENIZER too: the folder of a model or run with two tokenizers")
    if loaded is not None and kind is not None:
        raise ConfigurationError("--format: TOKENIZER already determines the format; leave out one of them")
    if isinstance(loaded, Codes) or kind == "subword-nmt":
        _reject_options(_TOKENIZER_JSON, ids=ids or None)
        mark = subword_nmt.SEPARATOR if separator is None else separator
        if not mark:
            raise ConfigurationError("--separator: expected some characters, got none")
        filter_lines(lambda lines, _: [subword_nmt.undo(line, mark) for line in lines])
        return
    _reject_options(_CODES, separator=separator)
    if ids and loaded is None:
        raise ConfigurationError("--ids: expected TOKENIZER too: an id says nothing without its vocabulary")
    filter_lines(_ids_filter(loaded) if ids and loaded is not None else _pieces_filter(read_spelled))


def _pieces_filter(read: Callable[[str], str]) -> Change:
    """Replaces LF by a space: an output line cannot contain it, and `apply` never wrote it."""
    return lambda lines, _: [read(line).replace("\n", " ") for line in lines]


def _ids_filter(tokenizer: Tokenizer) -> Change:
    from multihead.cli.streams import STDIN_NAME

    def change(lines: list[str], first: int) -> list[str]:
        texts = []
        for number, line in enumerate(lines, first):
            try:
                row = [int(word) for word in line.split()]
            except ValueError:
                raise DataError(
                    f"expected ids with spaces between them, got {line[:80]!r}", STDIN_NAME, number
                ) from None
            try:
                texts.append(tokenizer.decode(row).replace("\n", " "))
            except InputError as error:
                raise DataError(str(error), STDIN_NAME, number) from None
        return texts

    return change


def _load(path: Path, side: str | None, merges: int | None) -> Tokenizer | Codes:
    """Load a tokenizer or codes; the first line of the file decides which."""
    from multihead.text.subword_nmt.codes import Codes
    from multihead.text.tokenizer import Tokenizer

    if path.is_dir():
        return _load_from_folder(path, side or "source")
    try:
        with path.open("rb") as file:
            first = file.readline(1 << 16)
    except OSError as error:
        raise FormatError(f"{path}: cannot be opened ({error.strerror}); expected a TOKENIZER: {_WHAT}") from None
    if side is not None:
        raise ConfigurationError(
            f"--side: {path} is a file, with one tokenizer; give a model or run folder, or no --side"
        )
    is_json = first.startswith(b'{"')
    if first.startswith(b"#version:") or (len(first.split(b" ")) == 2 and not is_json):
        return Codes.load(path, merges)
    if is_json or first.lstrip().startswith(b"{"):
        return Tokenizer.load(path)
    raise FormatError(f"{path}: neither a tokenizer.json nor codes of subword-nmt; expected {_WHAT}")


_WHAT = "a tokenizer.json, a model or run folder, or a codes file of subword-nmt"


def _load_from_folder(folder: Path, side: str) -> Tokenizer:
    """The tokenizer of a run or a model, as `bundle` and `preparing.prepare` lay them out."""
    from multihead.sealed import find_folder
    from multihead.text.tokenizer import Tokenizer

    names = ("tokenizer.json", f"{side}.tokenizer.json")
    for home, inner in ((folder / "best", ""), (folder, ""), (folder, "data/")):
        found = find_folder(home, "copy the whole folder again")
        if found is None:
            continue
        with found:
            for name in (inner + name for name in names):
                if name in found:
                    return Tokenizer.read(found, name)
    raise FormatError(f"{folder}: there is no {' or '.join(names)} in it, nor in a folder best or data in it")


def _reject_options(file_format: str, **options: object) -> None:
    """Raise an error for given options that only the other file format has."""
    for name, value in options.items():
        if value is not None:
            raise ConfigurationError(f"--{name.replace('_', '-')}: applies to {file_format} only; leave it out")
