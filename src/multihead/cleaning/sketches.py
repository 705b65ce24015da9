"""MinHash sketches: how similar two pairs are, from 160 bytes of each.

A pair is the set of the four characters in a row of both of its sides, normalized (`measures.normalize`), and the
similarity of two pairs is J = |A and B| / |A or B| (Jaccard). A sketch has a byte of the smallest hash of the set under
each of `SKETCH` hash functions (Broder 1997, "On the resemblance and containment of documents"; bytes: Li and König
2010, "b-bit minwise hashing"). Two sketches agree in a byte with the probability J + (1 - J) / 256, which estimates J
with a standard deviation of at most 0.04.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

SKETCH = 160
"""Bytes of a sketch."""
GRAM = 4
"""Characters of an element."""
_CHANCE = 1 / 256
"""Of two different hashes to have equal bytes."""
_PART = 512
"""Pairs whose elements are hashed at a time: they stay in the caches."""

Sketches = npt.NDArray[np.uint8]

_draw = np.random.default_rng(20260722)
_FACTORS = _draw.integers(0, 1 << 32, SKETCH, np.uint32) | np.uint32(1)
_SUMMANDS = _draw.integers(0, 1 << 32, SKETCH, np.uint32)
_POWERS = _draw.integers(0, 1 << 63, GRAM, np.uint64) * np.uint64(2) + np.uint64(1)
_SIDES = _draw.integers(0, 1 << 63, 2, np.uint64)


def sketches(pairs: Sequence[tuple[str, str]]) -> Sketches:
    """The sketches [pair, byte] of normalized pairs; each is a function of its pair alone, in every process."""
    found = np.empty((len(pairs), SKETCH), np.uint8)
    for start in range(0, len(pairs), _PART):
        part = pairs[start : start + _PART]
        sides = [_elements([pair[side] for pair in part], _SIDES[side]) for side in (0, 1)]
        for number in range(SKETCH):
            source, target = (
                np.minimum.reduceat(hashes * _FACTORS[number] + _SUMMANDS[number], starts) for hashes, starts in sides
            )
            found[start : start + len(part), number] = np.minimum(source, target).astype(np.uint8)  # the lowest byte
    return found


def estimate(one: Sketches, other: Sketches) -> npt.NDArray[np.float64]:
    """The estimated similarities of sketches [..., byte], between 0 and 1."""
    agreeing = (one == other).mean(-1)
    found: npt.NDArray[np.float64] = np.maximum((agreeing - _CHANCE) / (1 - _CHANCE), 0.0)
    return found


def _elements(texts: Sequence[str], side: np.uint64) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """A hash of every element of texts, one after the other, and where those of each text begin."""
    padded = [text.ljust(GRAM, "\0") for text in texts]
    codes = np.frombuffer("".join(padded).encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
    sizes = np.array([len(text) for text in padded], np.int64)
    ends = np.cumsum(sizes)
    mixed = np.full(len(codes) - GRAM + 1, side, np.uint64)
    for place, power in enumerate(_POWERS):
        mixed += codes[place : len(codes) - GRAM + 1 + place] * power
    mixed ^= mixed >> np.uint64(32)
    mixed *= _POWERS[0]
    inside = np.ones(len(mixed), bool)
    for place in range(1, GRAM):  # those that would begin in one text and end in the next
        inside[ends[:-1] - place] = False
    hashes = (mixed[inside] >> np.uint64(32)).astype(np.uint32)
    counts = sizes - GRAM + 1
    return hashes, np.cumsum(counts) - counts
