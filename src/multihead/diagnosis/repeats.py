"""Sentences that come again: within a corpus, and from one corpus in another; by 64-bit hashes, so no text is kept.

A hash is Python's own, whose seed is another one in each process; two of a million different pairs have the same one
once in some ten million looks. What a repetition means is for the workflows to say.
"""

from __future__ import annotations

import unicodedata
from typing import NamedTuple

import numpy as np

from multihead.data.order import Array
from multihead.diagnosis.pairs import Chunk

_ODD = -7046029254386353131  # 2^64 over the golden ratio


class _Kept(dict[int, int | None]):
    """What `str.translate` does with a character: white space, punctuation and control characters go."""

    def __missing__(self, code: int) -> int | None:
        found = self[code] = None if unicodedata.category(chr(code))[0] in "PZC" else code
        return found


_KEPT = _Kept()


def normal_form(text: str) -> str:
    """The text without regard to case, white space and punctuation; itself, if there is nothing else in it."""
    return text.casefold().translate(_KEPT) or text


def hashes(texts: list[str]) -> Array:
    """One for each."""
    return np.array(list(map(hash, texts)), np.int64)


def joined(source: Array, target: Array) -> Array:
    """A hash for each pair from those of its sides."""
    return source * np.int64(_ODD) + target


def repeated(keys: Array) -> Array:
    """Places, in order, whose key stands at an earlier place, too."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    return np.sort(order[1:][ordered[1:] == ordered[:-1]])


class Several(NamedTuple):
    """Sources that have more than one translation."""

    places: Array
    """The first of each source."""
    targets: Array
    """How many different translations it has."""
    sources: int
    """Different sources in all."""


def several_targets(source: Array, target: Array) -> Several:
    """From the hashes of both sides."""
    order = np.lexsort((target, source))
    a, b = source[order], target[order]
    new_source = np.concatenate(([True], a[1:] != a[:-1]))[: len(a)]
    new_pair = new_source | np.concatenate(([True], b[1:] != b[:-1]))[: len(a)]
    starts = np.flatnonzero(new_source)
    if not len(starts):
        return Several(starts, starts, 0)
    counts = np.add.reduceat(new_pair.astype(np.int64), starts)
    first = np.minimum.reduceat(order, starts)
    many = counts > 1
    places, by_place = first[many], np.argsort(first[many])
    return Several(places[by_place], counts[many][by_place], len(starts))


class Leaked(NamedTuple):
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
        sources, targets = (hashes(list(map(normal_form, side))) for side in (chunk.sources, chunk.targets))
        pair = joined(hashes(chunk.sources), hashes(chunk.targets))
        return {"pair": pair, "normal": joined(sources, targets), "source": sources}

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

    def leaked(self) -> dict[str, list[Leaked]]:
        """By kind, in order of the lines."""
        found: dict[str, list[Leaked]] = {kind: [] for kind in self.KINDS}
        if not len(self):
            return found
        keys = {kind: np.concatenate(parts).tolist() for kind, parts in self._keys.items()}
        for place, line in enumerate(np.concatenate(self._lines).tolist()):
            for kind in self.KINDS:
                if (there := self._seen[kind].get(keys[kind][place])) is not None:
                    found[kind].append(Leaked(line, *there))
                    break
        return found
