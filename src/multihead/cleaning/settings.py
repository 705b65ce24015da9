"""The filters of `multihead clean`: their names and thresholds.

Each filter measures one value per pair, and a pair whose value is greater than the threshold is removed. The defaults
were chosen on Multi30k with planted faults (`benchmarks/cleaning.py`): they remove less than 1% of clean pairs.
docs/cleaning.md gives the reason of each. No torch and no numpy here: ``--help`` reads this file.
"""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from multihead.configuration import MOST_FACTOR, Settings

FilterName = Literal[
    "broken",
    "length",
    "ratio",
    "copy",
    "urls",
    "numbers",
    "swapped",
    "leak",
    "language",
    "alignment",
    "duplicate",
    "near-duplicate",
    "similar",
]

FILTERS: tuple[FilterName, ...] = get_args(FilterName)
"""In the order in which they are applied; a pair is removed for the first one that it fails."""

UNUSABLE = "unusable"
"""The reason of a candidate that its reader cannot use: not UTF-8, an empty side, a damaged record."""

REASONS: tuple[str, ...] = ("", UNUSABLE, *FILTERS)
"""Every reason; its index is the number that verdicts store. The first is that of kept pairs."""


class CleanSettings(Settings):
    """Thresholds of the filters."""

    skip: tuple[FilterName, ...] = ()
    """A filter to switch off: broken, length, ratio, copy, urls, numbers, swapped, leak, language, alignment,
    duplicate, near-duplicate or similar. May be repeated."""
    max_broken: float = Field(default=0.0, ge=0, le=1)
    """broken: share of control characters and of characters that were lost in decoding (U+FFFD). [0]"""
    max_length: int = Field(default=1000, ge=1)
    """length: characters of the longer side. [1000, about 200 words]"""
    max_ratio: float = Field(default=1.6, ge=1, le=MOST_FACTOR)
    """ratio: factor by which a target is longer or shorter than its source suggests. [1.6]"""
    max_deviation: float = Field(default=3.5, ge=0, le=MOST_FACTOR)
    """ratio: deviations of this many standard deviations are kept, whatever the ratio. [3.5]"""
    max_copied: float = Field(default=0.7, ge=0, le=1)
    """copy: share of the words of the target that also occur in the source. [0.7]"""
    max_urls: float = Field(default=0.0, ge=0, le=1)
    """urls: share of the URLs and mail addresses that the other side lacks. [0]"""
    max_numbers: float = Field(default=0.0, ge=0, le=1)
    """numbers: share of the numbers that the other side lacks. [0]"""
    max_swapped: float = Field(default=0.3, ge=0, le=MOST_FACTOR)
    """swapped: how much each side resembles the other one's language, in nats per trigram. [0.3]"""
    max_leak: float = Field(default=0.65, ge=0, le=1)
    """leak: share of the word pairs of a held-out pair that occur in the pair, on both sides. [0.65]"""
    max_foreign: float = Field(default=0.8, ge=0, le=1)
    """language: probability that a side is in another language than its code says. [0.8]"""
    max_surprise: float = Field(default=5.0, ge=0, le=MOST_FACTOR)
    """alignment: negative log-probability of the target by --model, in nats per token. [5]"""
    max_copies: int = Field(default=1, ge=1)
    """duplicate: equal pairs that are kept. [1]"""
    max_near_copies: int = Field(default=1, ge=1)
    """near-duplicate: pairs that are kept of those that differ only in case, white space, punctuation and forms of
    characters. [1]"""
    max_similar: float = Field(default=1.0, ge=0.3, le=1)
    """similar: share of the sequences of four characters that the pair has in common with an earlier one; 0.8 finds
    long sentences that differ in a word. [1: none is removed]"""

    def threshold(self, name: FilterName) -> float:
        """The threshold of a filter: a pair with a greater value is removed."""
        return float(getattr(self, _THRESHOLDS[name]))


_THRESHOLDS: dict[FilterName, str] = {
    "broken": "max_broken",
    "length": "max_length",
    "ratio": "max_ratio",
    "copy": "max_copied",
    "urls": "max_urls",
    "numbers": "max_numbers",
    "swapped": "max_swapped",
    "leak": "max_leak",
    "language": "max_foreign",
    "alignment": "max_surprise",
    "duplicate": "max_copies",
    "near-duplicate": "max_near_copies",
    "similar": "max_similar",
}
