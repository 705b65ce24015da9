"""The lines on which a certificate compares two programs.

They are, in this order: the user's file; the validation text of the run that the model belongs to; lines spelled with
random entries of the model's vocabulary, which are not language, but reach every part of the network. Lines with a
literal U+2581 are left out: it is the word mark of most formats, and only our own tokenizers keep it. Reference
translations come with them where there are some, for the BLEU of both programs.
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
) -> Lines:
    """The first ``count`` usable lines of the best place there is.

    Args:
        model: the model or run folder; None if the model is from elsewhere.
        tokenizer: of the source; random lines are spelled with its entries.
        file: the user's lines, plain or compressed.
        count: maximum number.
        seed: of the random lines.
        references: the reference translation of each line of ``file``.

    Raises:
        InputError: the file has no lines, or the references are fewer or more.
        ConfigurationError: references without a file.
        DataError: the file cannot be read as text.
    """
    if file is not None:
        found, translated = _first(file, references, count)
        if not found:
            raise InputError(f"{file}: no line has text; a certificate needs some in the model's source language")
        return Lines(found, f"the first {len(found)} lines of {file.name}", translated)
    if references is not None:
        raise ConfigurationError(f"the references {references} have no lines: give their source text, too (--lines)")
    for folder in () if model is None else (model, model.resolve().parent):
        path, other = folder / _VALIDATION, folder / _REFERENCES
        if path.is_file():
            found, translated = _first(path, other if other.is_file() else None, count)
            if found:
                return Lines(found, f"the first {len(found)} lines of the run's validation text", translated)
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


def _first(path: Path, references: Path | None, count: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The first usable lines, and the reference of each."""
    if references is None:
        return tuple(islice(filter(_usable, read_lines(path)), count)), ()
    found: list[tuple[str, str]] = []
    for number, (line, reference) in enumerate(zip_longest(read_lines(path), read_lines(references)), start=1):
        if line is None or reference is None:
            short = path if line is None else references
            raise InputError(
                f"{short}: ends before line {number}; {path} and {references} must have equally many lines"
            )
        if len(found) < count and _usable(line):
            found.append((line, reference))
    return tuple(line for line, _ in found), tuple(reference for _, reference in found)


def _usable(line: str) -> bool:
    return bool(line.strip()) and MARK not in line
