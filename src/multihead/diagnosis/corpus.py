"""Read parallel text for diagnosis, and find repeated or leaked pairs.

Unlike the readers used for training (`data.readers`), `ParallelReader` records faulty lines and continues. Two text
files are read line by line whatever their lengths and contents; a file of pairs is read by its own reader, which skips
invalid records. With a limit, nothing behind it is read. Usable pairs arrive in `Chunk`s, stripped of surrounding white
space. `FaultReport` collects the others by file and reason. `Sample` and `Characters` keep what the tokenizer checks
need.

Duplicates and held-out pairs (`HeldOut`) are found by 64-bit hashes, so no text is kept. The hash is Python's own and
seeded anew in each process; two given pairs collide with a probability of about 2^-64.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from multihead.data.corpus import EMPTY, EMPTY_BOTH, Languages, Pair, Report
from multihead.data.entries import Columns, Unusable
from multihead.data.order import Array
from multihead.data.readers import read_entries, scan_corpus
from multihead.data.text_files import NOT_UTF8, open_text, place_in_line, split_lines
from multihead.errors import DataError

MAX_LINES = 100_000
"""Maximum number of line numbers recorded per fault; `Finding.headline` shows fewer."""
NUL = "holds a NUL"

_CHUNK = 8192


class Chunk(NamedTuple):
    """Usable pairs in file order."""

    lines: Array
    """Line number of each pair, counted from 1."""
    sources: list[str]
    targets: list[str]


@dataclass
class FaultLines:
    """How often a fault occurs, and the first lines with it."""

    count: int = 0
    lines: list[int] = field(default_factory=list)
    detail: str = ""
    """Detail of the first occurrence."""

    def add(self, line: int, detail: str = "") -> None:
        """Record one occurrence."""
        self.count += 1
        self.detail = self.detail or detail
        if len(self.lines) < MAX_LINES:
            self.lines.append(line)

    def add_all(self, lines: Array) -> None:
        """Record several occurrences, in file order."""
        self.count += len(lines)
        self.lines += lines[: MAX_LINES - len(self.lines)].tolist()


class FaultReport(Report):
    """A report that counts faults separately for each file and reason."""

    def __init__(self) -> None:
        super().__init__(limit=0)
        self.locations: dict[tuple[Path, str], FaultLines] = {}

    def add(self, path: str | Path, line: int, reason: str, detail: str = "") -> None:
        """See `Report.add`."""
        super().add(path, line, reason, detail)
        self.locations.setdefault((Path(path), reason), FaultLines()).add(line, detail)


class ParallelReader:
    """Reads the usable pairs of a corpus and records the faults of the others.

    Args:
        source: a file with one sentence per line; without ``target``, a file of pairs.
        target: the translations, line by line.
        languages: codes of both sides, for files of pairs that need them.
        limit: maximum number of candidate pairs to read; None reads all.
        columns: names of the columns of both sides, for files of pairs that have others than the usual ones.
    """

    def __init__(
        self,
        source: Path,
        target: Path | None,
        languages: Languages = (None, None),
        limit: int | None = None,
        columns: Columns | None = None,
    ) -> None:
        self.source, self.target, self.languages, self.limit = source, target, languages, limit
        self._columns = columns
        self.faults = FaultReport()
        self.lines = (0, 0)
        """Number of lines, or candidate pairs, of each side that were read; known after reading."""
        self.complete = True
        """Whether the whole corpus fits within the limit; known after reading."""

    def path(self, side: int) -> Path:
        """The file of side 0 (source) or side 1 (target)."""
        return self.source if side == 0 or self.target is None else self.target

    @property
    def name(self) -> str:
        """The file names, as shown in findings."""
        return str(self.source) if self.target is None else f"{self.source} + {self.target}"

    def chunks(self) -> Iterator[Chunk]:
        """Yield the usable pairs; can be called once.

        Raises:
            DataError: a file cannot be opened, is truncated, or is an unreadable file of pairs.
        """
        if self.target is not None:
            return self._read_two_files(self.target)
        return self._read_pairs() if self.limit is None else self._read_beginning(self.limit)

    def _read_pairs(self) -> Iterator[Chunk]:
        scan = scan_corpus(self.source, None, *self.languages, self._columns)
        pairs = scan.read(self.faults)
        self.lines = scan.lines, scan.lines
        while part := list(islice(pairs, _CHUNK)):
            yield self._stripped(part)

    def _read_beginning(self, limit: int) -> Iterator[Chunk]:
        entries = read_entries(self.source, *self.languages, self._columns, first=limit)
        number = 0
        while part := list(islice(entries, min(_CHUNK, limit - number))):
            number += len(part)
            pairs: list[Pair] = []
            for line, sides in part:
                if isinstance(sides, Unusable):
                    self.faults.add(self.source, line, *sides)
                else:
                    pairs.append(Pair(line, *sides))
            if pairs:
                yield self._stripped(pairs)
        if not number:
            raise DataError("has nothing that could be a pair; expected a sentence and its translation", self.source)
        self.lines = number, number
        self.complete = next(entries, None) is None

    def _stripped(self, pairs: list[Pair]) -> Chunk:
        for pair in pairs:
            if "\0" in pair.source or "\0" in pair.target:
                self.faults.add(self.source, pair.line, NUL)
        numbers = np.array([pair.line for pair in pairs], np.int64)
        return Chunk(numbers, [pair.source.strip() for pair in pairs], [pair.target.strip() for pair in pairs])

    def _read_two_files(self, target: Path) -> Iterator[Chunk]:
        with open_text(self.source) as first, open_text(target) as second:
            sides = split_lines(first, self.source), split_lines(second, target)
            number = 0
            while wanted := min(_CHUNK, self._left(number)):
                raw = tuple(list(islice(side, wanted)) for side in sides)
                common = min(map(len, raw))
                if chunk := self._usable(number, raw[0][:common], raw[1][:common]):
                    yield chunk
                number += common
                if common < wanted:  # one side has ended: count the remaining lines of the other
                    self.lines = tuple(
                        number + len(r) - common + sum(1 for _ in s) for r, s in zip(raw, sides, strict=True)
                    )  # type: ignore[assignment]
                    return
            self.lines = number, number
            self.complete = all(next(side, None) is None for side in sides)

    def _left(self, done: int) -> int:
        return _CHUNK if self.limit is None else self.limit - done

    def _usable(self, before: int, sources: list[bytes], targets: list[bytes]) -> Chunk | None:
        """The faultless pairs among the lines that follow line ``before``; None if there are none."""
        decoded = self._decode(0, before, sources), self._decode(1, before, targets)
        good: list[int] = []
        texts: tuple[list[str], list[str]] = [], []
        for line, (source, target) in enumerate(zip(*decoded, strict=True), start=before + 1):
            if source and target:
                good.append(line)
                texts[0].append(source)
                texts[1].append(target)
            elif source is not None and target is not None:
                both = not source and not target
                self.faults.add(self.path(0 if not source else 1), line, EMPTY_BOTH if both else EMPTY)
        return Chunk(np.array(good, np.int64), *texts) if good else None

    def _decode(self, side: int, before: int, raws: list[bytes]) -> list[str | None]:
        """Decode lines of one side; a line that is not UTF-8 is reported and becomes None."""
        texts: list[str | None]
        try:
            texts = [raw.decode().strip() for raw in raws]
        except UnicodeDecodeError:
            texts = [self._decode_line(side, line, raw) for line, raw in enumerate(raws, start=before + 1)]
        if b"\0" in b"".join(raws):
            for line, raw in enumerate(raws, start=before + 1):
                if b"\0" in raw:
                    self.faults.add(self.path(side), line, NUL)
        return texts

    def _decode_line(self, side: int, line: int, raw: bytes) -> str | None:
        try:
            return raw.decode().strip()
        except UnicodeDecodeError as error:
            self.faults.add(self.path(side), line, NOT_UTF8, place_in_line(error))
            return None


SAMPLE_SIZE = 40_000
"""Maximum number of pairs in a sample."""
MAX_CHARACTERS = 10_000
"""Maximum length of each side of a sampled pair: a book on a single line would exhaust memory when tokenized."""


class Sample:
    """Evenly spread pairs of a corpus: every n-th pair, n doubling whenever the sample is full.

    Args:
        most: maximum number of pairs; at least half as many are kept if the corpus has them.
    """

    def __init__(self, most: int = SAMPLE_SIZE) -> None:
        self.lines: list[int] = []
        self.sources: list[str] = []
        self.targets: list[str] = []
        self._most, self._every, self._seen = most, 1, 0

    def __len__(self) -> int:
        return len(self.lines)

    def add(self, chunk: Chunk) -> None:
        """Sample from the next pairs of the corpus."""
        lines = chunk.lines.tolist()
        due = range(-self._seen % self._every, len(lines), self._every)
        self._seen += len(lines)
        self.lines += [lines[place] for place in due]
        self.sources += [_shorten(chunk.sources[place]) for place in due]
        self.targets += [_shorten(chunk.targets[place]) for place in due]
        while len(self) > self._most:  # keep the multiples of the doubled step
            self._every *= 2
            for kept in (self.lines, self.sources, self.targets):
                del kept[1::2]

    def side(self, side: int) -> list[str]:
        """The sources (0) or the targets (1)."""
        return self.targets if side else self.sources


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS].strip()


class Characters:
    """Counts each character per side, with the line of its first occurrence."""

    def __init__(self) -> None:
        self.counts = np.zeros((2, 0), np.int64)  # [side, code point], up to the highest one so far
        self.first: tuple[dict[int, int], dict[int, int]] = {}, {}  # per side: code point -> line

    def add(self, chunk: Chunk) -> None:
        """Count the characters of the next pairs."""
        for side, texts in enumerate((chunk.sources, chunk.targets)):
            codes = np.frombuffer("".join(texts).encode("utf-32-le", "replace"), np.uint32)
            counts = np.bincount(codes)
            there = np.flatnonzero(counts)
            new = [code for code in there.tolist() if code not in self.first[side]]
            if (more := len(counts) - self.counts.shape[1]) > 0:
                self.counts = np.pad(self.counts, ((0, 0), (0, more)))
            self.counts[side, : len(counts)] += counts
            if new:  # locate the line of each new character's first occurrence
                ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
                wanted = np.isin(codes, np.array(new, np.uint32))
                places = np.flatnonzero(wanted)
                found, first = np.unique(codes[places], return_index=True)
                rows = np.searchsorted(ends, places[first], side="right")
                self.first[side].update(zip(found.tolist(), chunk.lines[rows].tolist(), strict=True))


_ODD = -7046029254386353131  # 2^64 over the golden ratio


class _CharacterTable(dict[int, int | None]):
    """Translation table for `str.translate` that deletes white space, punctuation and control characters."""

    def __missing__(self, code: int) -> int | None:
        kept = self[code] = None if unicodedata.category(chr(code))[0] in "PZC" else code
        return kept


_CHARACTER_TABLE = _CharacterTable()


def normalize_text(text: str) -> str:
    """The text without case, white space and punctuation; unchanged if nothing else is in it."""
    return text.casefold().translate(_CHARACTER_TABLE) or text


def hash_texts(texts: list[str]) -> Array:
    """One hash per text."""
    return np.array(list(map(hash, texts)), np.int64)


def hash_pairs(source: Array, target: Array) -> Array:
    """One hash per pair, from the hashes of both sides."""
    return source * np.int64(_ODD) + target


def find_repeated(keys: Array) -> Array:
    """Positions, in order, of keys that also occur at an earlier position."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    return np.sort(order[1:][ordered[1:] == ordered[:-1]])


class MultipleTargets(NamedTuple):
    """Sources that have more than one translation."""

    places: Array
    """Position of the first pair of each such source."""
    targets: Array
    """Number of different translations of each."""
    sources: int
    """Number of different sources in the whole corpus."""


def multiple_targets(source: Array, target: Array) -> MultipleTargets:
    """Find sources with several translations, from the hashes of both sides."""
    order = np.lexsort((target, source))
    a, b = source[order], target[order]
    new_source = np.concatenate(([True], a[1:] != a[:-1]))[: len(a)]
    new_pair = new_source | np.concatenate(([True], b[1:] != b[:-1]))[: len(a)]
    starts = np.flatnonzero(new_source)
    if not len(starts):
        return MultipleTargets(starts, starts, 0)
    counts = np.add.reduceat(new_pair.astype(np.int64), starts)
    first = np.minimum.reduceat(order, starts)
    many = counts > 1
    places, by_place = first[many], np.argsort(first[many])
    return MultipleTargets(places[by_place], counts[many][by_place], len(starts))


class LeakedPair(NamedTuple):
    """A held-out pair that also occurs in another corpus."""

    line: int
    """Line of the held-out pair."""
    found_line: int
    """First line in the other corpus."""
    corpus: str
    """Name of that corpus."""


class HeldOut:
    """Held-out pairs, matched against the corpora a model learns from.

    Each pair is reported once, as the first kind that applies: "pair" (source and target occur), "normal" (they occur
    up to case, white space and punctuation), or "source" (the source alone occurs, with the same tolerance).
    """

    KINDS = ("pair", "normal", "source")

    def __init__(self) -> None:
        self._lines: list[Array] = []
        self._keys: dict[str, list[Array]] = {kind: [] for kind in self.KINDS}
        self._sorted: dict[str, Array] = {}
        self._seen: dict[str, dict[int, tuple[int, str]]] = {kind: {} for kind in self.KINDS}

    def __len__(self) -> int:
        return sum(map(len, self._lines))

    def add(self, chunk: Chunk) -> None:
        """Add held-out pairs; all must be added before the first `match`."""
        self._lines.append(chunk.lines)
        for kind, keys in self.keys(chunk).items():
            self._keys[kind].append(keys)

    @staticmethod
    def keys(chunk: Chunk) -> dict[str, Array]:
        """Hashes of the pairs, by kind."""
        sources, targets = (hash_texts(list(map(normalize_text, side))) for side in (chunk.sources, chunk.targets))
        pair = hash_pairs(hash_texts(chunk.sources), hash_texts(chunk.targets))
        return {"pair": pair, "normal": hash_pairs(sources, targets), "source": sources}

    def match(self, lines: Array, keys: dict[str, Array], corpus: str) -> None:
        """Match pairs of another corpus, given by their lines and `keys`."""
        if not len(self):
            return
        for kind, own in keys.items():
            if kind not in self._sorted:
                self._sorted[kind] = np.unique(np.concatenate(self._keys[kind]))
            there, seen = self._sorted[kind], self._seen[kind]
            places = np.minimum(np.searchsorted(there, own), len(there) - 1)
            for place in np.flatnonzero(there[places] == own).tolist():
                seen.setdefault(int(own[place]), (int(lines[place]), corpus))

    def leaked(self) -> dict[str, list[LeakedPair]]:
        """The leaked pairs by kind, in line order."""
        found: dict[str, list[LeakedPair]] = {kind: [] for kind in self.KINDS}
        if not len(self):
            return found
        keys = {kind: np.concatenate(parts).tolist() for kind, parts in self._keys.items()}
        for place, line in enumerate(np.concatenate(self._lines).tolist()):
            for kind in self.KINDS:
                if (match := self._seen[kind].get(keys[kind][place])) is not None:
                    found[kind].append(LeakedPair(line, *match))
                    break
        return found
