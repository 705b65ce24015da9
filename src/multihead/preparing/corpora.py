"""A user's files, looked through before anything is made from them: the corpora, their weights, what validates.

Where there are no validation files, some pairs of the corpora are held out: of each corpus as many as the share of it
in an epoch (pairs times weight), so that validation looks like training. Which ones depends on the seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from multihead.data.corpus import Report
from multihead.data.readers import CorpusScan, scan_corpus
from multihead.errors import ConfigurationError, DataError
from multihead.metrics.scores import language_of
from multihead.planning.sections import CorpusSettings
from multihead.planning.settings import Choices, PrepareSettings, TextFile, holds_pairs


@dataclass(frozen=True)
class WeightedCorpus:
    """A corpus that was looked through, and how often its pairs are seen in an epoch."""

    scan: CorpusScan
    weight: float

    @property
    def name(self) -> str:
        """Its files, for people."""
        return " + ".join(str(file.path) for file in self.scan.files)


@dataclass(frozen=True)
class TextFiles:
    """The files, looked through: they exist, are text, and have equally many lines on both sides."""

    train: tuple[WeightedCorpus, ...]
    valid: CorpusScan | None

    @property
    def lines(self) -> int:
        """Candidates for training pairs."""
        return sum(corpus.scan.lines for corpus in self.train)

    def language(self, side: int) -> str | None:
        """Of side 0, the source, or 1: the first that a file itself or its name says."""
        for corpus in self.train:
            found = corpus.scan.languages[side] or language_of(corpus.scan.path(side))
            if found:
                return found
        return None


def file_records(scan: CorpusScan) -> tuple[TextFile, ...]:
    """What run.json says of the files of a corpus."""
    return tuple(TextFile(path=str(file.path), sha256=file.sha256, lines=file.lines) for file in scan.files)


def scan_files(settings: PrepareSettings) -> TextFiles:
    """Reads the files that ``settings`` name once, before anything is made from them.

    Raises:
        ConfigurationError: a file is not named.
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
    """Which pairs of each corpus validate: places among its usable pairs, from 0; none where there are files for it.

    Raises:
        DataError: nothing would be left to train on.
    """
    if files.valid is not None:
        choices.reasons["held_out"] = "there are validation files"
        return [frozenset() for _ in files.train]
    # The valid pairs alone are candidates: an empty line validates nothing.
    usable = [sum(1 for _ in corpus.scan.read(Report())) for corpus in files.train]
    total, size = sum(usable), min(max(sum(usable) // 50, 1), 1000)
    wanted = choices.take(
        "held_out", lambda: (size, f"no validation files: {size:,} of {total:,} pairs are kept apart")
    )
    limits = [count - 1 for count in usable]
    if wanted > sum(limits):
        many = "1 pair can be used" if total == 1 else f"{total:,} pairs can be used"
        raise DataError(
            f"{many}, and {wanted:,} would be held out for validation: nothing would be left to train on. "
            "Give more text, validation files, or a smaller held_out",
            files.train[0].scan.path(0),
        )
    shares = [count * corpus.weight for count, corpus in zip(usable, files.train, strict=True)]
    parts = apportion(wanted, shares, limits)
    seed = seed_of(choices)
    return [
        frozenset(random.Random(seed + place).sample(range(count), part))
        for place, (count, part) in enumerate(zip(usable, parts, strict=True))
    ]


def seed_of(choices: Choices) -> int:
    """The seed of a run before its configuration is complete."""
    return 1 if choices.requested("seed") is None else choices.requested("seed")


def apportion(total: int, shares: Sequence[float | int], limits: Sequence[int]) -> list[int]:
    """Divides ``total`` in proportion to ``shares``, none getting more than its limit; the parts add up to it.

    Whose due is above its limit gets the limit, and the others divide what is left. Their dues are rounded by largest
    remainders: each gets the whole part of its due, and those with the largest rest one more.

    Args:
        total: at most the sum of the limits.
        shares: how much is due to each; positive.
        limits: the most that each can get.
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
