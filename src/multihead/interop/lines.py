"""The lines on which a certificate compares two programs.

They are, in this order: the user's file; the validation text of the run that the model belongs to; lines spelled with
random entries of the model's vocabulary, which are not language, but reach every part of the network. Lines with a
literal U+2581 are left out: it is the word mark of most formats, and only our own tokenizers keep it. So are lines of
more tokens than the other program has positions. Reference translations come with them where there are some, for the
BLEU of both programs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path

from multihead.data.text_files import read_lines
from multihead.errors import ConfigurationError, InputError
from multihead.text.tokenizer import Tokenizer
from multihead.text.vocabulary import MARK

_VALIDATION = Path("data") / "valid.source.txt"
_REFERENCES = Path("data") / "valid.target.txt"


@dataclass(frozen=True)
class Lines:
    """Source lines, without empty ones."""

    texts: tuple[str, ...]
    origin: str
    """Where they are from, in words."""
    references: tuple[str, ...] = ()
    """The reference translation of each line; empty if there are none."""

    def part(self, places: slice) -> Lines:
        """Some of the lines; the first one if these are none."""
        return replace(self, texts=self.texts[places] or self.texts[:1], references=self.references[places])


def certificate_lines(
    model: Path | None,
    tokenizer: Tokenizer,
    file: Path | None = None,
    count: int = 200,
    seed: int = 1,
    references: Path | None = None,
    longest: int | None = None,
) -> Lines:
    """The first ``count`` usable lines of the best place there is.

    Args:
        model: the model or run folder; None if the model is from elsewhere.
        tokenizer: of the source; random lines are spelled with its entries.
        file: the user's lines, plain or compressed.
        count: maximum number.
        seed: of the random lines.
        references: the reference translation of each line of ``file``.
        longest: the most tokens of a line, with the end symbol; None = any number. Random lines have few.

    Raises:
        InputError: the file has no usable lines, or the references are fewer or more.
        ConfigurationError: references without a file.
        DataError: the file cannot be read as text.
    """
    if file is not None:
        usable = _Usable(tokenizer, longest)
        found, translated = _first(file, references, count, usable)
        if not found:
            limit = f" of at most {longest:,} tokens, the positions of the other program" if usable.too_long else ""
            raise InputError(
                f"{file}: no line has text{limit}; a certificate needs some in the model's source language"
            )
        return Lines(found, f"the first {len(found)} lines of {file.name}{usable.left_out}", translated)
    if references is not None:
        raise ConfigurationError(
            f"{references}: references need their source lines; name the file of these, too (--lines)"
        )
    for folder in () if model is None else (model, model.resolve().parent):
        path, other = folder / _VALIDATION, folder / _REFERENCES
        if path.is_file():
            usable = _Usable(tokenizer, longest)
            found, translated = _first(path, other if other.is_file() else None, count, usable)
            if found:
                origin = f"the first {len(found)} lines of the run's validation text{usable.left_out}"
                return Lines(found, origin, translated)
    return Lines(random_lines(tokenizer, count, seed), f"{count} lines of random vocabulary entries (seed {seed})")


def random_lines(tokenizer: Tokenizer, count: int, seed: int) -> tuple[str, ...]:
    """Lines of 3 to 20 entries; entry i is drawn with a probability proportional to 1 / (i + 1), as words are used."""
    draw, entries = random.Random(seed), tokenizer.entries
    usable = [i for i, raw in enumerate(entries) if _is_text(raw) and i not in tokenizer.forbidden_in_output]
    weights = [1 / (rank + 1) for rank in range(len(usable))]
    lines: list[str] = []
    for _ in range(count):
        ids = draw.choices(usable, weights, k=draw.randint(3, 20))
        text = b"".join(entries[i] for i in ids).decode().strip()
        lines.append(text or entries[usable[0]].decode())
    return tuple(lines)


def _is_text(raw: bytes) -> bool:
    """Whether an entry is printable text with more than spaces."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return False
    return bool(text.strip()) and text.isprintable()


class _Usable:
    """Says which lines can be compared, and counts those that only have too many tokens.

    Args:
        tokenizer: of the source.
        longest: the most tokens of a line, with the end symbol; None = any number.
    """

    def __init__(self, tokenizer: Tokenizer, longest: int | None) -> None:
        self._tokenizer, self._longest, self.too_long = tokenizer, longest, 0

    def __call__(self, line: str) -> bool:
        if not line.strip() or MARK in line:
            return False
        if self._longest is not None and len(self._tokenizer.encode(line)) + 1 > self._longest:
            self.too_long += 1
            return False
        return True

    @property
    def left_out(self) -> str:
        """What was too long, for the origin of the lines."""
        return f", without {self.too_long} of more than {self._longest:,} tokens" if self.too_long else ""


def _first(path: Path, references: Path | None, count: int, usable: _Usable) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The first usable lines, and the reference of each."""
    if references is None:
        return tuple(islice(filter(usable, read_lines(path)), count)), ()
    found: list[tuple[str, str]] = []
    for number, (line, reference) in enumerate(zip_longest(read_lines(path), read_lines(references)), start=1):
        if line is None or reference is None:
            short = path if line is None else references
            raise InputError(
                f"{short}: ends before line {number}; {path} and {references} must have equally many lines"
            )
        if len(found) < count and usable(line):
            found.append((line, reference))
    return tuple(line for line, _ in found), tuple(reference for _, reference in found)
