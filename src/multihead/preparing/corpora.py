"""Scan the user's text: corpora, shards, weights, validation pairs.

Without validation files, some pairs of the corpora are held out, from each corpus in proportion to its share of an
epoch (pairs times weight), so that validation resembles training. Which pairs these are depends on the seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

from multihead.configuration import Settings
from multihead.data.corpus import Languages, Report, language_of, normalize_code
from multihead.data.readers import CorpusScan, ReversedScan, scan_corpus, shards
from multihead.data.text_files import TextScan
from multihead.errors import ConfigurationError, DataError
from multihead.planning.corpus_settings import CorpusSettings
from multihead.planning.settings import Choices, CorpusRecord, PrepareSettings, TextFile, holds_pairs
from multihead.preparing.mixing import tempered
from multihead.urls import url_of


@dataclass(frozen=True)
class WeightedCorpus:
    """A scanned corpus or shard of one, and how often its pairs are seen in an epoch."""

    scan: CorpusScan
    weight: float
    languages: Languages = (None, None)
    """Of source and target, as the settings, the file or its name say."""
    part_of: int = 0
    """Number of the corpus in the settings."""
    asked: CorpusSettings | None = None
    """Its settings."""
    twin: int | None = None
    """Of a corpus that is read backwards, too: the number of the same files read forwards."""

    @property
    def name(self) -> str:
        """The names of its files, for messages."""
        return " + ".join(str(file.path) for file in self.scan.files)


@dataclass(frozen=True)
class TextFiles:
    """Scanned files: they exist, contain text, and have equally many lines on both sides."""

    train: tuple[WeightedCorpus, ...]
    valid: CorpusScan | None
    valid_parts: tuple[WeightedCorpus, ...] = ()
    """The validation files, if there are any: each pair of files, or direction of it."""

    @property
    def lines(self) -> int:
        """The number of lines, each a candidate for a training pair."""
        return sum(corpus.scan.lines for corpus in self.train)

    def language(self, side: int) -> str | None:
        """The language of side 0 (source) or 1 (target); None if it is not known, or there are several."""
        found = {normalize_code(language): language for corpus in self.train if (language := corpus.languages[side])}
        return next(iter(found.values())) if len(found) == 1 else None


def file_records(scan: CorpusScan) -> tuple[TextFile, ...]:
    """What run.json records of the files of a corpus."""
    return tuple(map(file_record, scan.files))


def corpus_record(
    corpus: WeightedCorpus, pairs: int, held_out: int, left_out: int, *, directed: bool = False
) -> CorpusRecord:
    """What run.json records of a corpus, of which so many pairs are used; ``directed``: with its languages."""
    asked = corpus.asked
    named = {} if asked is None else asked.model_dump(include={"source_language", "target_language", "columns"})
    if directed or corpus.twin is not None:
        named |= {"source_language": corpus.languages[0], "target_language": corpus.languages[1]}
        named["reversed"] = corpus.twin is not None
    return CorpusRecord(
        files=file_records(corpus.scan),
        weight=corpus.weight,
        pairs=pairs,
        held_out=held_out,
        left_out=left_out,
        **named,
    )


def file_record(scan: TextScan) -> TextFile:
    """What run.json records of a file."""
    return TextFile(path=url_of(scan.path) or str(scan.path), sha256=scan.sha256, lines=scan.lines)


def scan_files(settings: PrepareSettings) -> TextFiles:
    """Read the files named in ``settings`` once, to check and hash them.

    Raises:
        ConfigurationError: no file is named.
        DataError: a file cannot be read as aligned text.
    """
    spellings: dict[str, str] = {}
    train = _spelled_alike(_scan_all(_named_corpora(settings), settings), spellings)
    weights = mixed(settings, train, [corpus.scan.lines for corpus in train])
    train = [replace(corpus, weight=weight) for corpus, weight in zip(train, weights, strict=True)]
    valid = _spelled_alike(_scan_all(_named_valid(settings), settings), spellings)
    return TextFiles(tuple(train), valid[0].scan if valid else None, tuple(valid))


def local_files(settings: PrepareSettings) -> list[str]:
    """The files on this machine that ``settings`` name, as `file_record` writes them.

    Patterns and folders stand for the files that they match now.
    """
    corpora = (*_named_corpora(settings), *_named_valid(settings))
    sides = chain.from_iterable((one.source, one.target) for one in corpora)
    found: list[str] = []
    for path in chain.from_iterable(side if isinstance(side, tuple) else (side,) for side in sides):
        if path is None or url_of(path) is not None:
            continue
        with suppress(DataError):  # no file has such a name any more
            found += [str(file) for file, _ in shards(path) if file.is_file()]
    return found


def mixed(settings: PrepareSettings, corpora: Sequence[WeightedCorpus], pairs: Sequence[int]) -> list[float]:
    """The weights of corpora with so many pairs: as given, or for the temperature."""
    given = [corpus.weight if corpus.asked is None else corpus.asked.weight for corpus in corpora]
    if settings.temperature is None:
        return given
    directions = [corpus.languages for corpus in corpora]
    over = settings.temperature_over or ("directions" if len(set(directions)) > 1 else "corpora")
    groups = directions if over == "directions" else [corpus.part_of for corpus in corpora]
    return tempered(pairs, given, groups, settings.temperature)


def mix_again(
    settings: Settings, corpora: Sequence[WeightedCorpus], records: Sequence[CorpusRecord]
) -> tuple[CorpusRecord, ...]:
    """The records with the weights for the pairs that can be used, where a temperature makes weights depend on them."""
    if not isinstance(settings, PrepareSettings) or settings.temperature is None:
        return tuple(records)
    weights = mixed(settings, corpora, [record.pairs for record in records])
    return tuple(record.model_copy(update={"weight": w}) for record, w in zip(records, weights, strict=True))


def _scan_all(named: Sequence[CorpusSettings], settings: PrepareSettings) -> list[WeightedCorpus]:
    """The files of corpora, one after the other; a corpus that is read both ways comes twice."""
    found: list[WeightedCorpus] = []
    for number, one in enumerate(named):
        forward = _scan_shards(one, settings, number)
        first = len(found)
        found += forward
        if one.both_ways:
            found += [_backward(corpus, first + place) for place, corpus in enumerate(forward)]
    return found


def _spelled_alike(corpora: Sequence[WeightedCorpus], spellings: dict[str, str]) -> list[WeightedCorpus]:
    """Corpora with each language spelled as where it is named first: "en" and "EN" are one, with one symbol.

    Args:
        corpora: in the order in which they are named.
        spellings: of the languages so far, by `normalize_code`; those of these corpora are added.
    """

    def spelled(code: str | None) -> str | None:
        return code and spellings.setdefault(normalize_code(code), code)

    return [replace(one, languages=(spelled(one.languages[0]), spelled(one.languages[1]))) for one in corpora]


def _backward(corpus: WeightedCorpus, twin: int) -> WeightedCorpus:
    """A corpus read backwards.

    Raises:
        ConfigurationError: its languages are not known, or the same.
    """
    source, target = corpus.languages
    if source is None or target is None or normalize_code(source) == normalize_code(target):
        raise ConfigurationError(
            f"{corpus.name}: to read it in both directions, its two languages have to be known, but they are "
            f"{source or 'unknown'} and {target or 'unknown'}; set source_language and target_language"
        )
    return replace(corpus, scan=ReversedScan(corpus.scan), languages=(target, source), twin=twin)


def _scan_shards(named: CorpusSettings, settings: PrepareSettings, number: int) -> list[WeightedCorpus]:
    asked = (named.source_language or settings.source_language, named.target_language or settings.target_language)
    found = []
    for source, target in shards(named.source, named.target):
        scan = scan_corpus(source, target, *asked, named.columns)
        known = [asked[side] or scan.languages[side] or language_of(scan.path(side)) for side in (0, 1)]
        found.append(WeightedCorpus(scan, named.weight, (known[0], known[1]), number, named))
    return found


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


def _named_valid(settings: PrepareSettings) -> tuple[CorpusSettings, ...]:
    if settings.valid_source is not None:
        return (CorpusSettings(source=settings.valid_source, target=settings.valid_target),)
    return settings.valid or ()


def choose_held_out(choices: Choices, files: TextFiles) -> list[frozenset[int]]:
    """Choose the validation pairs: for each corpus, indices among its usable pairs; none if there are validation files.

    Raises:
        DataError: nothing would be left to train on.
    """
    if files.valid is not None:
        choices.reasons["held_out"] = "there are validation files"
        return [frozenset() for _ in files.train]
    # Only usable pairs are candidates; an empty line cannot validate.
    forward = [place for place, corpus in enumerate(files.train) if corpus.twin is None]
    usable = [sum(1 for _ in files.train[place].scan.read(Report())) for place in forward]
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
    shares = [pairs * files.train[place].weight for pairs, place in zip(usable, forward, strict=True)]
    parts = apportion(count, shares, limits)
    seed = _seed(choices)
    held_out = {
        place: frozenset(random.Random(seed + place).sample(range(pairs), part))
        for place, pairs, part in zip(forward, usable, parts, strict=True)
    }
    # What is read backwards, too, is held out in both directions: a model has seen no half of a validation pair.
    return [held_out[place if corpus.twin is None else corpus.twin] for place, corpus in enumerate(files.train)]


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
        left, whole = total - sum(parts.values()), sum(shares[i] for i in rest)
        due = {i: left * shares[i] / whole for i in rest}
        full = {i: limits[i] for i in rest if due[i] >= limits[i]}
        if not full:
            break
        parts |= full
    parts |= {i: int(due[i]) for i in rest}
    for i in sorted(rest, key=lambda i: int(due[i]) - due[i])[: total - sum(parts.values())]:
        parts[i] += 1
    return [parts[i] for i in range(len(shares))]
