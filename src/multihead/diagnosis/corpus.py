"""Aligned text read to be judged: what is refused elsewhere is written down here, and reading goes on behind it.

Two files are read line by line next to each other, however many lines each has and whatever is in them; a file of
pairs by its own reader (`readers`), which leaves out what is no pair. What can be used comes in `Chunk`s, without the
white space around it; what cannot goes to `FaultReport`, by file and reason, with the first lines where it stands.

What `doctor_text` keeps of a corpus for the checks of tokens: characters, counted, and pairs from all over it.

Sentences that come again: within a corpus, and from one corpus in another; by 64-bit hashes, so no text is kept.

A hash is Python's own, whose seed is another one in each process; two of a million different pairs have the same one
once in some ten million looks. What a repetition means is for the workflows to say.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from multihead.data.corpus import EMPTY, EMPTY_BOTH, Languages, Report
from multihead.data.order import Array
from multihead.data.readers import scan_corpus
from multihead.data.text_files import NOT_UTF8, open_text, place_in_line, split_lines

MAX_LINES = 10
"""Lines that are remembered of each fault."""
NUL = "holds a NUL"

_CHUNK = 8192


class Chunk(NamedTuple):
    """Usable pairs in the order of the file."""

    lines: Array
    """Where each stands, counted from 1."""
    sources: list[str]
    targets: list[str]


@dataclass
class FaultLines:
    """Where a fault is found: how often, and the first lines."""

    count: int = 0
    lines: list[int] = field(default_factory=list)
    detail: str = ""
    """Of the first."""

    def add(self, line: int, detail: str = "") -> None:
        """One more."""
        self.count += 1
        self.detail = self.detail or detail
        if len(self.lines) < MAX_LINES:
            self.lines.append(line)

    def add_all(self, lines: Array) -> None:
        """Some more, in the order of the file."""
        self.count += len(lines)
        self.lines += lines[: MAX_LINES - len(self.lines)].tolist()


class FaultReport(Report):
    """A report that keeps every file's faults apart."""

    def __init__(self) -> None:
        super().__init__(limit=0)
        self.spots: dict[tuple[Path, str], FaultLines] = {}

    def add(self, path: str | Path, line: int, reason: str, detail: str = "") -> None:
        """As in `Report`."""
        super().add(path, line, reason, detail)
        self.spots.setdefault((Path(path), reason), FaultLines()).add(line, detail)


class ParallelReader:
    """The usable pairs of a corpus, and what is wrong with the others.

    Args:
        source: a file with a sentence a line; or, without ``target``, a file of pairs.
        target: the translations.
        languages: codes of both, for files of pairs that need them.
        limit: candidates that are looked at; None for all.
    """

    def __init__(
        self, source: Path, target: Path | None, languages: Languages = (None, None), limit: int | None = None
    ) -> None:
        self.source, self.target, self.languages, self.limit = source, target, languages, limit
        self.faults = FaultReport()
        self.lines = (0, 0)
        """How many lines, or candidates for pairs, each side has; known once all was read."""
        self.whole = True
        """Whether nothing stands behind the limit."""

    def path(self, side: int) -> Path:
        """The file of side 0, the source, or 1, the target."""
        return self.source if side == 0 or self.target is None else self.target

    @property
    def name(self) -> str:
        """The files, for people."""
        return str(self.source) if self.target is None else f"{self.source} + {self.target}"

    def chunks(self) -> Iterator[Chunk]:
        """Usable pairs; may be asked for once.

        Raises:
            DataError: a file cannot be opened, is cut off, or, as a file of pairs, cannot be read at all.
        """
        return self._of_pairs() if self.target is None else self._of_two(self.target)

    def _of_pairs(self) -> Iterator[Chunk]:
        scan = scan_corpus(self.source, None, *self.languages)
        pairs = scan.read(self.faults)
        self.lines, kept = (scan.lines, scan.lines), 0
        while chunk := list(islice(pairs, min(_CHUNK, self._left(kept)))):
            kept += len(chunk)
            numbers = np.array([pair.line for pair in chunk], np.int64)
            yield Chunk(numbers, [pair.source.strip() for pair in chunk], [pair.target.strip() for pair in chunk])
        self.whole = self._left(kept) > 0 or next(pairs, None) is None

    def _of_two(self, target: Path) -> Iterator[Chunk]:
        with open_text(self.source) as first, open_text(target) as second:
            sides = split_lines(first, self.source), split_lines(second, target)
            number = 0
            while wanted := min(_CHUNK, self._left(number)):
                raw = tuple(list(islice(side, wanted)) for side in sides)
                common = min(map(len, raw))
                if chunk := self._usable(number, raw[0][:common], raw[1][:common]):
                    yield chunk
                number += common
                if common < wanted:
                    self.lines = tuple(
                        number + len(r) - common + sum(1 for _ in s) for r, s in zip(raw, sides, strict=True)
                    )  # type: ignore[assignment]
                    return
            self.lines = number, number
            self.whole = all(next(side, None) is None for side in sides)

    def _left(self, done: int) -> int:
        return _CHUNK if self.limit is None else self.limit - done

    def _usable(self, before: int, sources: list[bytes], targets: list[bytes]) -> Chunk | None:
        """Pairs without a fault of the lines after ``before``."""
        decoded = self._decoded(0, before, sources), self._decoded(1, before, targets)
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

    def _decoded(self, side: int, before: int, raws: list[bytes]) -> list[str | None]:
        """The lines of one side; None, told to the report, where one is not UTF-8."""
        texts: list[str | None]
        try:
            texts = [raw.decode().strip() for raw in raws]
        except UnicodeDecodeError:
            texts = [self._one(side, line, raw) for line, raw in enumerate(raws, start=before + 1)]
        if b"\0" in b"".join(raws):
            for line, raw in enumerate(raws, start=before + 1):
                if b"\0" in raw:
                    self.faults.add(self.path(side), line, NUL)
        return texts

    def _one(self, side: int, line: int, raw: bytes) -> str | None:
        try:
            return raw.decode().strip()
        except UnicodeDecodeError as error:
            self.faults.add(self.path(side), line, NOT_UTF8, place_in_line(error))
            return None


SAMPLE_SIZE = 40_000
"""Pairs that are kept,"""
MAX_CHARACTERS = 10_000
"""and characters of each side: of a book on one line its subwords would fill the memory."""


class Sample:
    """Every n-th pair, n doubling as the corpus goes on: from half of `most` to `most` pairs, evenly spread.

    Args:
        most: pairs that are kept.
    """

    def __init__(self, most: int = SAMPLE_SIZE) -> None:
        self.lines: list[int] = []
        self.sources: list[str] = []
        self.targets: list[str] = []
        self._most, self._every, self._seen = most, 1, 0

    def __len__(self) -> int:
        return len(self.lines)

    def add(self, chunk: Chunk) -> None:
        """Takes what is due of some more pairs."""
        lines = chunk.lines.tolist()
        due = range(-self._seen % self._every, len(lines), self._every)
        self._seen += len(lines)
        self.lines += [lines[place] for place in due]
        self.sources += [_beginning(chunk.sources[place]) for place in due]
        self.targets += [_beginning(chunk.targets[place]) for place in due]
        while len(self) > self._most:  # what is left are multiples of the doubled step, as what comes will be
            self._every *= 2
            for kept in (self.lines, self.sources, self.targets):
                del kept[1::2]

    def side(self, side: int) -> list[str]:
        """Sources or targets."""
        return self.targets if side else self.sources


def _beginning(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS].strip()


class Characters:
    """How often each character stands on each side, and on which line first."""

    def __init__(self) -> None:
        self.counts = np.zeros((2, 0x110000), np.int64)
        self.first: tuple[dict[int, int], dict[int, int]] = {}, {}

    def add(self, chunk: Chunk) -> None:
        """Some more pairs."""
        for side, texts in enumerate((chunk.sources, chunk.targets)):
            codes = np.frombuffer("".join(texts).encode("utf-32-le", "replace"), np.uint32)
            counts = np.bincount(codes)
            there = np.flatnonzero(counts)
            new = [code for code in there.tolist() if code not in self.first[side]]
            self.counts[side, : len(counts)] += counts
            if new:
                ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
                wanted = np.isin(codes, np.array(new, np.uint32))
                places = np.flatnonzero(wanted)
                found, first = np.unique(codes[places], return_index=True)
                rows = np.searchsorted(ends, places[first], side="right")
                self.first[side].update(zip(found.tolist(), chunk.lines[rows].tolist(), strict=True))


_ODD = -7046029254386353131  # 2^64 over the golden ratio


class _Kept(dict[int, int | None]):
    """What `str.translate` does with a character: white space, punctuation and control characters go."""

    def __missing__(self, code: int) -> int | None:
        found = self[code] = None if unicodedata.category(chr(code))[0] in "PZC" else code
        return found


_KEPT = _Kept()


def normalize_text(text: str) -> str:
    """The text without regard to case, white space and punctuation; itself, if there is nothing else in it."""
    return text.casefold().translate(_KEPT) or text


def hash_texts(texts: list[str]) -> Array:
    """One for each."""
    return np.array(list(map(hash, texts)), np.int64)


def hash_pairs(source: Array, target: Array) -> Array:
    """A hash for each pair from those of its sides."""
    return source * np.int64(_ODD) + target


def find_repeated(keys: Array) -> Array:
    """Places, in order, whose key stands at an earlier place, too."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    return np.sort(order[1:][ordered[1:] == ordered[:-1]])


class MultipleTargets(NamedTuple):
    """Sources that have more than one translation."""

    places: Array
    """The first of each source."""
    targets: Array
    """How many different translations it has."""
    sources: int
    """Different sources in all."""


def multiple_targets(source: Array, target: Array) -> MultipleTargets:
    """From the hashes of both sides."""
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
    """A pair that is held out and stands in another corpus."""

    line: int
    """Of the pair that is held out."""
    there: int
    """The first line in the other corpus,"""
    corpus: str
    """and which one that is."""


class HeldOut:
    """Pairs that nothing may be learned from, and which of them were seen in a corpus.

    A pair counts once, under the first that is true of it: the "pair" stands there; it does but for case, white space
    and punctuation ("normal"); its "source" alone does, again but for those.
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
        """Some more that are held out; all have to be known before the first `look`."""
        self._lines.append(chunk.lines)
        for kind, keys in self.keys(chunk).items():
            self._keys[kind].append(keys)

    @staticmethod
    def keys(chunk: Chunk) -> dict[str, Array]:
        """By kind."""
        sources, targets = (hash_texts(list(map(normalize_text, side))) for side in (chunk.sources, chunk.targets))
        pair = hash_pairs(hash_texts(chunk.sources), hash_texts(chunk.targets))
        return {"pair": pair, "normal": hash_pairs(sources, targets), "source": sources}

    def look(self, lines: Array, keys: dict[str, Array], corpus: str) -> None:
        """Some pairs of another corpus, by their lines and `keys`."""
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
        """By kind, in order of the lines."""
        found: dict[str, list[LeakedPair]] = {kind: [] for kind in self.KINDS}
        if not len(self):
            return found
        keys = {kind: np.concatenate(parts).tolist() for kind, parts in self._keys.items()}
        for place, line in enumerate(np.concatenate(self._lines).tolist()):
            for kind in self.KINDS:
                if (there := self._seen[kind].get(keys[kind][place])) is not None:
                    found[kind].append(LeakedPair(line, *there))
                    break
        return found
