"""Signs of a wrong translation, and the settings of the guard (no torch).

Each sign i measures a value v_i. It counts from a_i, up to which values are ordinary, in full from b_i on, and alone
raises the suspicion to its weight w_i:

    d_i = clip((v_i - a_i) / (b_i - a_i), 0, 1)          degree of the sign
    suspicion = 1 - prod_i (1 - w_i d_i)                 from 0 to 1

This is the probability that at least one sign is right, if sign i is right with probability w_i d_i, independently (the
"noisy or" of Pearl 1988, "Probabilistic reasoning in intelligent systems", section 4.3.2). Another sign never lowers
it, and two weak signs can suffice. `SIGNS` has a, b and w of each.

    loop         immediate repetition: the longest run of words equal to those n places before, n = 1 ... 12, minus that
                 of the source
    stutter      how often one word is said again in a row, minus that of the source; numbers (1,000,000,000), single
                 letters and scripts without spaces do not count
    repetition   share of three-word sequences that occurred before, minus that of the source
    length       |ln((|y| + 3) / (rho |x| + 3))| / sigma: deviation of the number of tokens from what |x| source tokens
                 usually give, in units of its standard deviation sigma; the 3 is lenient with short sentences
    copy         share of words that also occur in the source; out of at least 6, so that names may be copied
    doubt        - log p(y | x) / |y|: mean surprise per token, in nats
    coverage     share of source words that were never attended to: less than 0.1 tokens' worth of attention in total
    surprise     that of the least probable token: - min_t log p(y_t | y_<t, x)

The last two need a pass through the model (`GuardSettings.closer`), the others only the two texts and the translation's
probability. A word is a run of letters or digits or, in scripts without spaces, a single character; punctuation is not
a word.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from multihead.configuration import MOST_BEAM, MOST_SAMPLES, MOST_TOKENS, Settings

if TYPE_CHECKING:
    from multihead.translating.lengths import Lengths

GuardMode = Literal["mark", "retry"]


class GuardSettings(Settings):
    """How translations are guarded (`judging.guard`)."""

    mode: GuardMode = "mark"
    """Mark a suspicious translation, or search it again more safely, keep the better one and mark it."""
    threshold: float = Field(default=0.5, gt=0, le=1)
    """A translation is suspicious from this score on (`guard_signs.suspicion`)."""
    closer: bool = False
    """Also run each translation through the model: source words never attended to, and the least probable token."""
    beam: int = Field(default=10, ge=1, le=MOST_BEAM)
    """Beam of the second search."""
    no_repeat: int = Field(default=3, ge=0, le=MOST_TOKENS)
    """Length of token sequences that may not repeat in the second search and in samples; 0 allows all."""
    samples: int = Field(default=16, ge=2, le=MOST_SAMPLES)
    """Number of samples drawn if the second search does not help."""
    epsilon: float = Field(default=0.02, gt=0, le=1)
    """Samples are drawn from tokens at least this probable."""
    seed: int = 0
    """Seed of the samples."""


WORD = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]|[^\W_]+")
"""Kana, Han, Thai, Lao, Burmese and Khmer characters are words of their own."""

_LONGEST_UNIT = 12  # words repeated as a unit
_SEQUENCE = 3  # words in a sequence
_SMOOTHING = 3  # added to lengths
_MIN_WORDS = 6  # words counted at least, so that names may be copied
MIN_ATTENTION = 0.1
"""Attention, summed over the tokens of a translation, below which a source word was never attended to."""


@dataclass(frozen=True)
class Sign:
    """How a measured value counts."""

    ordinary: float
    """a: up to this value it says nothing."""
    certain: float
    """b: from this value on it counts in full."""
    weight: float
    """w: the suspicion it raises by itself."""
    words: str
    """Description for users, with a placeholder for the value."""

    def degree(self, value: float) -> float:
        """d: the degree of the sign, from 0 to 1."""
        return min(max((value - self.ordinary) / (self.certain - self.ordinary), 0.0), 1.0)


SIGNS = {
    "loop": Sign(1.0, 4.0, 0.9, "{:.0f} words are repeated at once"),
    "stutter": Sign(1.0, 2.0, 0.9, "one word is repeated {:.0f} times in a row"),
    "repetition": Sign(0.1, 0.4, 0.8, "{:.0%} of its sequences of three words occurred before"),
    "length": Sign(2.5, 5.0, 0.9, "its length is off by {:.1f} standard deviations"),
    "copy": Sign(0.4, 0.8, 0.9, "{:.0%} of its words are copied from the source"),
    "doubt": Sign(1.0, 2.5, 0.9, "the model finds it improbable: {:.1f} nats per token"),
    "coverage": Sign(0.2, 0.6, 0.8, "{:.0%} of the source words were not attended to"),
    "surprise": Sign(6.0, 10.0, 0.8, "its least probable token costs {:.1f} nats"),
}
"""Tuned on Multi30k; docs/guard.md has their results on ordinary and damaged translations."""


def split_words(text: str) -> list[str]:
    """The words of a text, case-folded."""
    return WORD.findall(text.casefold())


def loop(words: Sequence[str]) -> int:
    """The longest immediate repetition: a run of at least n words equal to those n places before; n = 1 ... 12."""
    longest = 0
    for unit in range(1, min(_LONGEST_UNIT, len(words) // 2) + 1):
        run = 0
        for place in range(unit, len(words)):
            run = run + 1 if words[place] == words[place - unit] else 0
            if run >= unit:
                longest = max(longest, run)
    return longest


def stutter(words: Sequence[str]) -> int:
    """How often one word is said again in a row, at most; words of one letter and numbers do not count."""
    longest = run = 0
    for before, word in pairwise(words):
        run = run + 1 if word == before and len(word) > 1 and not word.isdecimal() else 0
        longest = max(longest, run)
    return longest


def repetition(words: Sequence[str]) -> float:
    """The share of three-word sequences that occurred before."""
    sequences = [tuple(words[place : place + _SEQUENCE]) for place in range(len(words) - _SEQUENCE + 1)]
    return 1 - len(set(sequences)) / len(sequences) if sequences else 0.0


def length(source_tokens: int, tokens: int, usual: Lengths) -> float:
    """The deviation of a length in standard deviations; both counts include end symbols."""
    ratio = (tokens + _SMOOTHING) / (usual.ratio * source_tokens + _SMOOTHING)
    return abs(math.log(ratio)) / usual.spread


def copy(source: Sequence[str], words: Sequence[str]) -> float:
    """The share of words (not numbers) that also occur in the source, out of at least 6."""
    known, own = set(source), [word for word in words if not word.isdecimal()]
    return sum(word in known for word in own) / max(len(own), _MIN_WORDS)


def text_signs(source: str, text: str) -> dict[str, float]:
    """The signs measured on the two texts alone: loop, stutter, repetition and copy."""
    read, written = split_words(source), split_words(text)
    return {
        "loop": float(max(loop(written) - loop(read), 0)),
        "stutter": float(max(stutter(written) - stutter(read), 0)),
        "repetition": max(repetition(written) - repetition(read), 0.0),
        "copy": copy(read, written),
    }


def suspicion(values: Mapping[str, float]) -> float:
    """1 - prod_i (1 - w_i d_i) over the measured signs."""
    return 1 - prod((1 - SIGNS[name].weight * SIGNS[name].degree(value) for name, value in values.items()), start=1.0)


def reasons(values: Mapping[str, float]) -> tuple[str, ...]:
    """The signs that are present, in words, most important first."""
    counts = {name: SIGNS[name].weight * SIGNS[name].degree(value) for name, value in values.items()}
    order = sorted((name for name in counts if counts[name] > 0), key=lambda name: -counts[name])
    return tuple(f"{name}: {SIGNS[name].words.format(values[name])}" for name in order)
