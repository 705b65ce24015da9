"""Scan the user's text: corpora, weights, validation pairs.

Without validation files, some pairs of the corpora are held out, from each corpus in proportion to its share of an
epoch (pairs times weight), so that validation resembles training. Which pairs these are depends on the seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from multihead.data.corpus import Report, language_of
from multihead.data.readers import CorpusScan, scan_corpus
from multihead.data.text_files import TextScan
from multihead.errors import ConfigurationError, DataError
from multihead.planning.sections import CorpusSettings
from multihead.planning.settings import Choices, PrepareSettings, TextFile, holds_pairs


@dataclass(frozen=True)
class WeightedCorpus:
    """A scanned corpus, and how often its pairs are seen in an epoch."""

    scan: CorpusScan
    weight: float

    @property
    def name(self) -> str:
        """The names of its files, for messages."""
        return " + ".join(str(file.path) for file in self.scan.files)


@dataclass(frozen=True)
class TextFiles:
    """Scanned files: they exist, contain text, and have equally many lines on both sides."""

    train: tuple[WeightedCorpus, ...]
    valid: CorpusScan | None

    @property
    def lines(self) -> int:
        """The number of lines, each a candidate for a training pair."""
        return sum(corpus.scan.lines for corpus in self.train)

    def language(self, side: int) -> str | None:
        """The first language that a file or its name gives for side 0 (source) or 1 (target)."""
        for corpus in self.train:
            found = corpus.scan.languages[side] or language_of(corpus.scan.path(side))
            if found:
                return found
        return None


def file_records(scan: CorpusScan) -> tuple[TextFile, ...]:
    """What run.json records of the files of a corpus."""
    return tuple(map(file_record, scan.files))


def file_record(scan: TextScan) -> TextFile:
    """What run.json records of a file."""
    return TextFile(path=str(scan.path), sha256=scan.sha256, lines=scan.lines)


def scan_files(settings: PrepareSettings) -> TextFiles:
    """Read the files named in ``settings`` once, to check and hash them.

    Raises:
        ConfigurationError: no file is named.
        DataError: a file cannot be read as aligned text.
    """
    codes = (settings.source_language, settings.target_language)
    train = tuple(
        WeightedCorpus(scan_corpus(corpus.source, corpus.target, *codes), corpus.weight)
        for corpus in _named_corpora(settings)
    )
    if settings.valid_source is None:
        return TextFiles(train, None)
    return TextFiles(train, scan_corpus(settings.valid_source, settings.valid_target, *codes))


def _named_corpora(settings: PrepareSettings) -> tuple[CorpusSettings, ...]:
    if settings.corpus is not None:
        return settings.corpus
    if settings.source is None or (settings.target is None and not holds_pairs(settings.source)):
        missing = " and ".join(name for name in ("source", "target") if getattr(settings, name) is None)
        raise ConfigurationError(
            f"the training text is not named: {missing} missing (--source FILE --target FILE, or a file of pairs: "
            "--source FILE.tsv)"
        )
    return (CorpusSettings(source=settings.source, target=settings.target),)


def choose_held_out(choices: Choices, files: TextFiles) -> list[frozenset[int]]:
    """Choose the validation pairs: for each corpus, indices among its usable pairs; none if there are validation files.

    Raises:
        DataError: nothing would be left to train on.
    """
    if files.valid is not None:
        choices.reasons["held_out"] = "there are validation files"
        return [frozenset() for _ in files.train]
    # Only usable pairs are candidates; an empty line cannot validate.
    usable = [sum(1 for _ in corpus.scan.read(Report())) for corpus in files.train]
    total, size = sum(usable), min(max(sum(usable) // 50, 1), 1000)
    count = choices.take("held_out", lambda: (size, f"no validation files: {size:,} of {total:,} pairs are kept apart"))
    limits = [pairs - 1 for pairs in usable]
    if count > sum(limits):
        many = "1 pair can be used" if total == 1 else f"{total:,} pairs can be used"
        raise DataError(
            f"{many}, and {count:,} would be held out for validation: nothing would be left to train on. "
            "Give more text, validation files, or a smaller held_out",
            files.train[0].scan.path(0),
        )
    shares = [pairs * corpus.weight for pairs, corpus in zip(usable, files.train, strict=True)]
    parts = apportion(count, shares, limits)
    seed = _seed(choices)
    return [
        frozenset(random.Random(seed + index).sample(range(pairs), part))
        for index, (pairs, part) in enumerate(zip(usable, parts, strict=True))
    ]


def _seed(choices: Choices) -> int:
    """The seed of a run whose configuration is not complete yet."""
    return 1 if choices.requested("seed") is None else choices.requested("seed")


def apportion(total: int, shares: Sequence[float | int], limits: Sequence[int]) -> list[int]:
    """Divide ``total`` into integers in proportion to ``shares``, none above its limit.

    A part whose proportional value exceeds its limit is set to the limit, and the rest is divided among the others.
    Rounding is by largest remainders: each part gets the integer part of its value, and those with the largest
    fractions get one more.

    Args:
        total: at most the sum of the limits.
        shares: positive weights.
        limits: the maximum of each part.
    """
    parts: dict[int, int] = {}
    while True:
        rest = [i for i in range(len(shares)) if i not in parts]
        left = total - sum(parts.values())
        due = {i: left * shares[i] / sum(shares[j] for j in rest) for i in rest}
        full = {i: limits[i] for i in rest if due[i] >= limits[i]}
        if not full:
            break
        parts |= full
    parts |= {i: int(due[i]) for i in rest}
    for i in sorted(rest, key=lambda i: int(due[i]) - due[i])[: total - sum(parts.values())]:
        parts[i] += 1
    return [parts[i] for i in range(len(shares))]
