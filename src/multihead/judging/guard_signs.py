"""What the guard of translations is told: when to mark, whether to look closer, what to do about it. No torch here.

Signs that a translation is wrong, seen from outside: each a number, what is ordinary of it, and one score of all.

With v_i what sign i measures, it counts from what ordinary translations have, a_i, in full from b_i on, and alone as
much as its weight w_i:

    d_i = clip((v_i - a_i) / (b_i - a_i), 0, 1)          how much the sign is there
    suspicion = 1 - prod_i (1 - w_i d_i)                 from 0 to 1

which is the probability that one of the signs is right, if sign i is so with probability w_i d_i and they are
independent (the "noisy or" of Pearl 1988, "Probabilistic reasoning in intelligent systems", section 4.3.2). A sign more
never lowers it; two weak ones together can be enough. `SIGNS` has a, b and w of each.

    loop         words said again at once: the longest run of words equal to those n places before, n = 1 ... 12, less
                 what the source has of it
    repetition   share of the three-word sequences that occurred before, less what the source has of it
    length       |ln((|y| + 3) / (rho |x| + 3))| / sigma: how many times the usual deviation sigma the number of tokens
                 is away from what |x| source tokens usually become; the 3 forgives short sentences
    copy         share of the words that stand in the source, too; out of 6 at least, so that names may be copied
    doubt        - log p(y | x) / |y|: mean surprise of a token, in nats
    coverage     share of the source's words that were never looked at: attention to them less than 0.1 tokens in all
    surprise     the least probable token's: - min_t log p(y_t | y_<t, x)

The last two need a pass through the model (`judging.guard` says when), the others only the two texts and the
translation's probability. A word is a run of letters or digits or, where scripts write no spaces, one character; a
punctuation mark is none. Torch is not needed here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from multihead.configuration import Settings

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
    """Also run each translation through the model: what was never looked at, and its least probable token."""
    beam: int = Field(default=10, ge=1)
    """Of the second search."""
    no_repeat: int = Field(default=3, ge=0)
    """Of the second search, and of the samples."""
    samples: int = Field(default=16, ge=2)
    """Drawn where the second search did not help."""
    epsilon: float = Field(default=0.02, gt=0, le=1)
    """Samples are drawn from tokens at least this probable."""
    seed: int = 0
    """Of the samples."""


_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]|[^\W_]+")
"""Kana, Han, Thai, Lao, Burmese and Khmer one by one."""

_LONGEST_UNIT = 12
_SEQUENCE = 3
_FORGIVEN = 3
_FEWEST = 6
MIN_ATTENTION = 0.1
"""Attention, summed over the tokens of a translation, below which a word of the source was never looked at."""


@dataclass(frozen=True)
class Sign:
    """How a measure counts."""

    ordinary: float
    """a: up to here it says nothing."""
    certain: float
    """b: from here on it counts in full."""
    weight: float
    """w: the suspicion that it is worth alone."""
    words: str
    """What it says to people, with a place for the number."""

    def degree(self, value: float) -> float:
        """d: from 0 to 1."""
        return min(max((value - self.ordinary) / (self.certain - self.ordinary), 0.0), 1.0)


SIGNS = {
    "loop": Sign(1.0, 4.0, 0.9, "{:.0f} words are said again at once"),
    "repetition": Sign(0.1, 0.4, 0.8, "{:.0%} of its sequences of three words occurred before"),
    "length": Sign(2.5, 5.0, 0.9, "its length is {:.1f} times the usual deviation off"),
    "copy": Sign(0.4, 0.8, 0.9, "{:.0%} of its words are the source's"),
    "doubt": Sign(1.0, 2.5, 0.9, "the model gives it {:.1f} nats a token"),
    "coverage": Sign(0.2, 0.6, 0.8, "{:.0%} of the source's words were never looked at"),
    "surprise": Sign(6.0, 10.0, 0.8, "one token costs {:.1f} nats"),
}
"""Measured on Multi30k; see docs/guard.md for what of ordinary and of damaged translations they find."""


def split_words(text: str) -> list[str]:
    """The words of a text, without case."""
    return _WORD.findall(text.casefold())


def loop(words: Sequence[str]) -> int:
    """The longest run of words that are those n places before, at least n of them; n = 1 ... 12."""
    longest = 0
    for unit in range(1, min(_LONGEST_UNIT, len(words) // 2) + 1):
        run = 0
        for place in range(unit, len(words)):
            run = run + 1 if words[place] == words[place - unit] else 0
            if run >= unit:
                longest = max(longest, run)
    return longest


def repetition(words: Sequence[str]) -> float:
    """The share of sequences of three words that occurred before."""
    sequences = [tuple(words[place : place + _SEQUENCE]) for place in range(len(words) - _SEQUENCE + 1)]
    return 1 - len(set(sequences)) / len(sequences) if sequences else 0.0


def length(source_tokens: int, tokens: int, usual: Lengths) -> float:
    """How many times the usual deviation a length is off; end symbols counted on both sides."""
    ratio = (tokens + _FORGIVEN) / (usual.ratio * source_tokens + _FORGIVEN)
    return abs(math.log(ratio)) / usual.spread


def copy(source: Sequence[str], words: Sequence[str]) -> float:
    """The share of words with letters that are the source's too, out of 6 at least."""
    known, own = set(source), [word for word in words if not word.isdecimal()]
    return sum(word in known for word in own) / max(len(own), _FEWEST)


def text_signs(source: str, text: str) -> dict[str, float]:
    """What the two texts alone tell: loop, repetition and copy."""
    read, written = split_words(source), split_words(text)
    return {
        "loop": float(max(loop(written) - loop(read), 0)),
        "repetition": max(repetition(written) - repetition(read), 0.0),
        "copy": copy(read, written),
    }


def suspicion(values: Mapping[str, float]) -> float:
    """1 - prod_i (1 - w_i d_i) over the signs that were measured."""
    return 1 - prod((1 - SIGNS[name].weight * SIGNS[name].degree(value) for name, value in values.items()), start=1.0)


def reasons(values: Mapping[str, float]) -> tuple[str, ...]:
    """The signs that are there in words, the weightiest first."""
    counts = {name: SIGNS[name].weight * SIGNS[name].degree(value) for name, value in values.items()}
    order = sorted((name for name in counts if counts[name] > 0), key=lambda name: -counts[name])
    return tuple(f"{name}: {SIGNS[name].words.format(values[name])}" for name in order)
