"""Judge a chunk of pairs by itself: the filters, and a verdict per pair.

    rules = Rules(settings, ...)                 # what all chunks share; `cleaning.rules` makes it from a corpus
    verdicts = judge(rules, candidates)          # an array with a verdict for each candidate, in order

`judge` is a pure function of its two arguments: it reads no file but the model's, keeps no state and knows no other
chunk, so chunks may be judged in any order, in any process, on any machine, and their verdicts joined in order. Both
arguments can be pickled, and the result is a NumPy array of 77 bytes per pair. `cleaning.clean` hands the chunks to an
engine of `workers`. What needs the whole corpus are the
duplicates alone: `cleaning.copies` finds them from the hashes in the verdicts, `cleaning.similar` from the sketches.

Filters are applied in the order of `settings.FILTERS` to the pairs that earlier ones kept. A pair is removed if its
value is greater than the threshold; a value that is not a number (no digits, too short to tell) never is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from multihead.cleaning import measures
from multihead.cleaning.languages import detected, foreign, foreign_sides, relatives
from multihead.cleaning.leaks import HeldOutIndex
from multihead.cleaning.settings import FILTERS, REASONS, UNUSABLE, CleanSettings, FilterName
from multihead.cleaning.sketches import SKETCH, sketches
from multihead.data.corpus import Languages
from multihead.diagnosis.heuristics import LengthModel, SideClassifier

if TYPE_CHECKING:
    from multihead.translating.translator import Translator

VERDICT = np.dtype(
    [
        ("line", np.int64),  # of the candidate, from 1
        ("reason", np.uint8),  # index in `REASONS`; 0 if kept
        ("values", np.float32, len(FILTERS)),  # what each filter measured; NaN if it did not
        ("exact", np.uint64),  # hash of the pair
        ("near", np.uint64),  # hash of the normalized pair
    ]
)
"""The verdict on a candidate, as stored on disk."""
SKETCHED = np.dtype([*((name, VERDICT[name]) for name in VERDICT.names or ()), ("sketch", np.uint8, SKETCH)])
"""The same with the sketch of the pair, where similar pairs are sought."""

Verdicts = npt.NDArray[Any]
"""Verdicts, an array of `VERDICT`."""
Values = Sequence[float] | npt.NDArray[Any]

_SHORT = 8
"""Characters of the shorter side below which its language cannot be told."""


class Candidates(NamedTuple):
    """Pairs in file order, with those that cannot be used."""

    lines: list[int]
    """Line of each, from 1."""
    sources: list[str]
    targets: list[str]
    faults: list[str]
    """Why a candidate cannot be used; "" for a pair. The sides of such a candidate are empty."""


@dataclass(frozen=True)
class Rules:
    """What decides about a pair, besides its texts."""

    settings: CleanSettings
    languages: Languages = (None, None)
    """Of the sides whose language is checked; None for the others."""
    lengths: LengthModel | None = None
    """The usual lengths of the corpus."""
    sides: SideClassifier | None = None
    """Tells the languages of the two sides apart; it has learned from the corpus."""
    held_out: HeldOutIndex | None = None
    """Pairs that must not be in the corpus."""
    model: Path | None = None
    """A translator that scores pairs; loaded once in each process."""
    batch_tokens: int = 4096
    """Of a batch that the model scores."""

    def active(self, name: FilterName) -> bool:
        """Whether a filter is applied."""
        needed = {
            "ratio": self.lengths is not None,
            "swapped": self.sides is not None,
            "leak": self.held_out is not None,
            "language": any(self.languages),
            "alignment": self.model is not None,
            "similar": self.settings.max_similar < 1,
        }
        return needed.get(name, True) and name not in self.settings.skip

    def idle(self) -> dict[str, str]:
        """The filters that cannot be applied, though they are not switched off, and why."""
        reasons: dict[FilterName, str] = {
            "ratio": "fewer than 100 pairs",
            "swapped": "fewer than 100 pairs",
            "leak": "no held-out pairs are given",
            "language": "the languages are not known, or cannot be detected",
            "alignment": "no model is given",
        }
        unasked = {name: why for name, why in reasons.items() if name not in self.settings.skip}
        return {name: why for name, why in unasked.items() if not self.active(name)}


def verdict_type(rules: Rules) -> np.dtype[Any]:
    """Of the verdicts by these rules."""
    return SKETCHED if rules.active("similar") else VERDICT


class Texts:
    """The pairs of a chunk that are still kept."""

    def __init__(self, sources: list[str], targets: list[str]) -> None:
        self.sources, self.targets = sources, targets

    def __len__(self) -> int:
        return len(self.sources)

    @cached_property
    def normal(self) -> list[tuple[str, str]]:
        """Both sides, normalized."""
        pairs = zip(self.sources, self.targets, strict=True)
        return [(measures.normalize(source), measures.normalize(target)) for source, target in pairs]

    @cached_property
    def lengths(self) -> npt.NDArray[np.float64]:
        """Characters of both sides [2, pairs]."""
        return np.array([list(map(len, self.sources)), list(map(len, self.targets))], np.float64).reshape(2, -1)

    def select(self, places: Sequence[int]) -> Texts:
        """Some of the pairs."""
        chosen = Texts([self.sources[place] for place in places], [self.targets[place] for place in places])
        if "normal" in vars(self):
            chosen.normal = [self.normal[place] for place in places]
        return chosen


def judge(rules: Rules, candidates: Candidates) -> Verdicts:
    """The verdicts on some candidates, duplicates not yet considered.

    Args:
        rules: what decides.
        candidates: any part of a corpus.

    Returns:
        An array of `verdict_type`, in the order of the candidates.
    """
    found = np.zeros(len(candidates.lines), verdict_type(rules))
    found["line"], found["values"] = candidates.lines, math.nan
    found["reason"] = [REASONS.index(UNUSABLE) if fault else 0 for fault in candidates.faults]
    places = np.flatnonzero(found["reason"] == 0)
    texts = Texts(candidates.sources, candidates.targets).select(places.tolist())
    for number, name in enumerate(FILTERS):
        if name not in _MEASURES or not rules.active(name) or not len(texts):
            continue
        values = np.asarray(_MEASURES[name](rules, texts), np.float32)
        found["values"][places, number] = values
        bad = values > np.float32(rules.settings.threshold(name))
        if bad.any():
            found["reason"][places[bad]] = REASONS.index(name)
            kept = np.flatnonzero(~bad)
            places, texts = places[kept], texts.select(kept.tolist())
    found["exact"][places] = [hash_pair(*pair) for pair in zip(texts.sources, texts.targets, strict=True)]
    found["near"][places] = [hash_pair(*pair) for pair in texts.normal]
    if rules.active("similar"):
        found["sketch"][places] = sketches(texts.normal)
    return found


def hash_pair(source: str, target: str) -> int:
    """64 bits of BLAKE2: two given pairs collide with a probability of 2^-64; the same in every process."""
    raw = f"{source}\0{target}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


# --------------------------------------------------------------------------- what each filter measures


def _broken(_: Rules, texts: Texts) -> Values:
    return [measures.broken(*pair) for pair in zip(texts.sources, texts.targets, strict=True)]


def _length(_: Rules, texts: Texts) -> Values:
    longest: Values = np.maximum(*texts.lengths)
    return longest


def _ratio(rules: Rules, texts: Texts) -> Values:
    """How many times as long as expected; at most the threshold where the deviation is ordinary."""
    assert rules.lengths is not None
    times = rules.lengths.times(*texts.lengths)
    ordinary = rules.lengths.deviations(*texts.lengths) <= rules.settings.max_deviation
    return np.where(ordinary, np.minimum(times, rules.settings.max_ratio), times)


def _copy(_: Rules, texts: Texts) -> Values:
    rows = zip(texts.sources, texts.targets, texts.normal, strict=True)
    return [measures.copied(source, target, normal[0] == normal[1]) for source, target, normal in rows]


def _numbers(_: Rules, texts: Texts) -> Values:
    return [measures.differing_numbers(*pair) for pair in zip(texts.sources, texts.targets, strict=True)]


def _urls(_: Rules, texts: Texts) -> Values:
    return [measures.differing_urls(*pair) for pair in zip(texts.sources, texts.targets, strict=True)]


def _swapped(rules: Rules, texts: Texts) -> Values:
    """The smaller of how much the source resembles the targets and the target the sources."""
    assert rules.sides is not None
    away = np.minimum(-rules.sides.score(texts.sources), rules.sides.score(texts.targets))
    return np.where(texts.lengths.min(0) < _SHORT, math.nan, away)


def _leak(rules: Rules, texts: Texts) -> Values:
    assert rules.held_out is not None
    rows = zip(texts.sources, texts.targets, texts.normal, strict=True)
    return [rules.held_out.find(source, target, normal)[0] for source, target, normal in rows]


def _language(rules: Rules, texts: Texts) -> Values:
    return foreign_sides(texts.sources, texts.targets, rules.languages)


def _alignment(rules: Rules, texts: Texts) -> Values:
    """-log p(target | source) / tokens of the target."""
    from multihead.judging.score import score

    assert rules.model is not None
    pairs = score(_translator(rules.model), texts.sources, texts.targets, batch_tokens=rules.batch_tokens)
    return [-sum(pair.log_probabilities) / max(len(pair.log_probabilities), 1) for pair in pairs]


@lru_cache(maxsize=1)
def _translator(folder: Path) -> Translator:
    from multihead.translating.translator import Translator

    return Translator.load(folder)


_MEASURES: dict[FilterName, Callable[[Rules, Texts], Values]] = {
    "broken": _broken,
    "length": _length,
    "ratio": _ratio,
    "copy": _copy,
    "numbers": _numbers,
    "urls": _urls,
    "swapped": _swapped,
    "leak": _leak,
    "language": _language,
    "alignment": _alignment,
}
"""All but the duplicates."""


def explain(rules: Rules, reason: str, source: str, target: str) -> str:
    """What exactly a filter found in a pair that it removed; "" if the value says it all."""
    if reason == "numbers":
        first, second = measures.numbers(source), measures.numbers(target)
        return f"{_listed((first - second).elements())} against {_listed((second - first).elements())}"
    if reason == "urls":
        one, other = measures.urls(source), measures.urls(target)
        return f"{_listed(one - other)} against {_listed(other - one)}"
    if reason == "leak" and rules.held_out is not None:
        _, number = rules.held_out.find(source, target)
        return "" if number is None else rules.held_out.lines[number].where
    if reason == "language":
        sides = zip(("source", "target"), (source, target), rules.languages, reversed(rules.languages), strict=True)
        wrong = [
            f"the {side} seems to be {detected(text)}"
            for side, text, code, other in sides
            if code and foreign(text, code, relatives(code, other)) > rules.settings.max_foreign
        ]
        return "; ".join(wrong)
    return ""


def _listed(items: Any) -> str:
    return ", ".join(sorted(items)) or "nothing"
