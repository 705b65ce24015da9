"""How long translations usually are, and the longest source a model has learnt from: what its run folder knows.

With |x| and |y| the tokens of the two sides of a training pair, end symbols counted,

    rho = sum |y| / sum |x|        sigma = deviation of ln((|y| + 3) / (rho |x| + 3)), 0.1 at least

A model folder that was taken out of its run does not know them. Then rho = 1 and sigma = 0.35: with a vocabulary for
each language, or one for both, a sentence has about as many subwords as its translation, whatever the languages. The
longest source is then the longest that `multihead train` keeps unless told otherwise, and half of it is usual.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from multihead.data.store import Int32, ParallelStore
from multihead.errors import FormatError

_PAIRS = 100_000
"""Pairs that are looked at, evenly spread; more would say the same."""
_LEAST_SPREAD = 0.1
_USUAL = 0.99


@dataclass(frozen=True)
class Lengths:
    """What is usual of a model's sentences."""

    ratio: float = 1.0
    """rho: tokens of a translation for each of its source."""
    spread: float = 0.35
    """sigma."""
    usual: int = 128
    """Tokens that 99 in 100 sources of its training do not exceed, end symbols counted."""
    longest: int = 256
    """Tokens of the longest of them."""
    known: bool = False
    """Whether they were counted, or are what holds where nothing is known."""


def lengths_of(folder: Path | None) -> Lengths:
    """Of the run that a folder is, or whose best model it is."""
    for place in () if folder is None else (folder, folder.resolve().parent):
        if not (place / "run.json").is_file():
            continue
        try:
            store = ParallelStore.open(place / "data" / "train")
        except FormatError:  # it trains from a folder of prepared text, or that was removed
            continue
        if len(store):
            return counted(store.source.lengths + 1, store.target.lengths + 1)
    return Lengths()


def counted(source: Int32, target: Int32) -> Lengths:
    """The lengths of pairs, end symbols counted."""
    step = -(-len(source) // _PAIRS)
    x, y = source[::step].astype(np.float64), target[::step].astype(np.float64)
    ratio = float(y.sum() / x.sum())
    spread = float(np.log((y + 3) / (ratio * x + 3)).std())
    usual = int(np.quantile(x, _USUAL, method="higher"))
    return Lengths(ratio, max(spread, _LEAST_SPREAD), usual, int(source.max()), known=True)
