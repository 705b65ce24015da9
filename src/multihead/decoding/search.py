"""How to search: one frozen value with everything that decides a search.

`Search` is read by the command line, the settings of a run and model folders, so nothing here imports torch. What only
the running program knows (the model's symbols, limits of single sentences, restrictions) is a `SearchTask` (`task.py`).

A hypothesis y of a source x is ranked by

    score(y) = log p(y | x) / penalty(|y|),    |y| counts the end symbol

where `power` is the plain power of the length and `wu` the form of Wu et al. 2016 ("Google's neural machine translation
system", equation 14). An alpha found for one form is not the best for the other. With alpha 0 both are 1: hypotheses
are compared by probability, which favors short ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from multihead.configuration import MOST_BEAM, MOST_FACTOR, MOST_TOKENS, Settings, nearest
from multihead.errors import ConfigurationError

Mean = Literal["probabilities", "log-probabilities"]
"""What an ensemble averages (`decoding.ensemble`)."""

MEANS: tuple[Mean, ...] = get_args(Mean)
"""By number, as ``decoding_search`` takes them."""


def scaled(weights: Sequence[float] | None, models: int) -> list[float]:
    """A weight for each model, with the sum 1; by default all are equal.

    Raises:
        ConfigurationError: no model, or not one positive weight per model.
    """
    if not models:
        raise ConfigurationError("an ensemble needs at least one model")
    weights = [1.0] * models if weights is None else weights
    if len(weights) != models or not all(0 < weight < float("inf") for weight in weights):
        raise ConfigurationError(f"an ensemble of {models} models needs as many positive weights, got {list(weights)}")
    return [weight / sum(weights) for weight in weights]


LengthPenalty = Callable[[int, float], float]
"""(length, alpha) -> divisor. It must be positive and must not decrease with length: `ranking.Exact` relies on that."""


def power(length: int, alpha: float) -> float:
    """|y| ** alpha. With alpha 1 the score is the mean log-probability of a symbol."""
    return float(length**alpha)


def wu(length: int, alpha: float) -> float:
    """((5 + |y|) / 6) ** alpha: Wu et al. 2016, equation 14. It varies less than `power` among short hypotheses."""
    return float(((5 + length) / 6) ** alpha)


def divisor(penalty: LengthPenalty, length: int, alpha: float) -> float:
    """What the log-probability of a hypothesis of this length is divided by.

    Raises:
        ConfigurationError: alpha is too large for it.
    """
    try:
        return penalty(length, alpha)
    except OverflowError:
        raise ConfigurationError(
            f"an alpha of {alpha} is too large for hypotheses of {length} symbols: give a smaller one; 0 to 2 is usual"
        ) from None


def patience_count(patience: float, beam: int) -> int:
    """The finished hypotheses that patience waits for: 11 with 1.1 and a beam of 10, though 1.1 * 10 rounds to more."""
    return math.ceil(patience * beam - 1e-9)


_MOST_GROWTH = 100.0
"""Tokens of a translation per token of its source: a word spelled in bytes has fewer."""
_MOST_MARGIN = 1 << 14
"""Tokens that every translation may or must have: a model that does not end searches each sentence so far."""


class Search(Settings):
    """How translations are searched."""

    stored: ClassVar[tuple[str, ...]] = (
        "beam",
        "alpha",
        "length_factor",
        "length_margin",
        "min_length",
        "max_length",
        "length_penalty",
    )
    """The fields that a model folder and a run keep; all others belong to a single request."""
    rare: ClassVar[frozenset[str]] = frozenset(("length_penalty",))
    """Stored fields that are written only if they differ from their defaults, so that older code reads all other
    models. It refuses these, instead of ranking otherwise."""

    beam: int = Field(default=5, ge=1, le=MOST_BEAM)
    """Hypotheses per sentence; 1 is greedy search."""
    alpha: float = Field(default=1.0, ge=0, le=MOST_FACTOR)
    """Length penalty: a hypothesis y is ranked by log p(y | x) / |y|^alpha, or as ``length_penalty`` says."""
    length_factor: float = Field(default=3.0, gt=0, le=_MOST_GROWTH)
    """A translation has at most ``length_factor * source tokens + length_margin`` tokens."""
    length_margin: int = Field(default=20, ge=1, le=_MOST_MARGIN)
    """See ``length_factor``."""
    min_length: int = Field(default=0, ge=0, le=_MOST_MARGIN)
    """Minimum number of tokens of a translation, excluding the end symbol."""
    max_length: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """Maximum number of tokens of a translation, including the end symbol, however long the source is."""
    length_penalty: Literal["power", "wu"] = "power"
    """What the log-probability is divided by: |y|^alpha, or ((5 + |y|) / 6)^alpha (Wu et al. 2016)."""
    coverage: float = Field(default=0.0, ge=0)
    """Weight of the penalty for parts of the source that are not covered (Wu et al. 2016, who use 0.2)."""
    stopping: Literal["exact", "ahead", "patience"] = "exact"
    """Stop when the result can no longer change, when the best finished ones are ahead, or when enough are finished."""
    patience: float = Field(default=1.0, gt=0, le=MOST_FACTOR)
    """With ``stopping`` "patience": stop when this many times the beam are finished (Kasai et al. 2022)."""
    no_repeat: int = Field(default=0, ge=0, le=MOST_TOKENS)
    """No sequence of this many tokens occurs twice in a translation; 0: no limit."""
    without: tuple[str, ...] = ()
    """Words or phrases that no translation contains, as the tokenizer spells them."""
    groups: int = Field(default=1, ge=1, le=MOST_BEAM)
    """Diverse beam search (Vijayakumar et al. 2018): number of groups that avoid each other's tokens."""
    diversity: float = Field(default=0.5, ge=0)
    """With ``groups``: cost of a token for each earlier group that chose it, as a log-probability."""
    precision: Literal["float32", "bfloat16", "int8"] = "float32"
    """Precision of the matrix products; the compiled search alone has bfloat16 and int8."""
    shortlist: bool = False
    """Choose among the target tokens that `multihead shortlist` found for the source: faster, nearly the same text."""
    min_factor: float = Field(default=0.0, ge=0, le=_MOST_GROWTH)
    """Minimum number of tokens of a translation, as a multiple of the source's; it always leaves room for the end."""

    @model_validator(mode="after")
    def _fits(self) -> Search:
        if self.max_length is not None and self.max_length <= self.min_length:
            raise ValueError(
                f"max_length counts the end symbol too, so it must be above min_length, got max_length "
                f"{self.max_length} and min_length {self.min_length}"
            )
        if self.beam % self.groups:
            raise ValueError(f"groups must divide the beam, got {self.groups} groups and a beam of {self.beam}")
        if not all(word.strip() for word in self.without):
            raise ValueError("without: a forbidden word has no characters; leave it out")
        return self

    def limit(self, source_tokens: int) -> int:
        """Maximum number of tokens, including the end symbol, of the translation of a source of this many tokens.

        It is min(length_factor * source_tokens + length_margin, max_length), but leaves room for ``min_length``; and at
        most `MOST_TOKENS`.
        """
        limit = min(int(self.length_factor * source_tokens) + self.length_margin, MOST_TOKENS)
        limit = limit if self.max_length is None else min(limit, self.max_length)
        return max(limit, self.min_length + 1)

    def least(self, source_tokens: int) -> int:
        """Minimum number of tokens, excluding the end symbol, of the translation of a source of this many tokens.

        It is max(min_factor * source_tokens, min_length), but leaves room for the end symbol within the limit.
        """
        return min(max(int(self.min_factor * source_tokens), self.min_length), self.limit(source_tokens) - 1)

    @property
    def penalty(self) -> LengthPenalty:
        """The function that ``length_penalty`` names."""
        return {"power": power, "wu": wu}[self.length_penalty]

    @property
    def divides_by_power(self) -> bool:
        """Whether the divisor is |y|^alpha, the form that other programs have; with alpha 0 every form is 1."""
        return self.length_penalty == "power" or self.alpha == 0

    def stored_values(self) -> dict[str, Any]:
        """The fields that are ``stored``, as JSON has them, without ``rare`` ones that have their defaults."""
        return self.without_defaults(self.model_dump(mode="json", include=set(self.stored)), self.rare)


def refuse_unstored(values: Any) -> Any:
    """The values as they are.

    Raises:
        ValueError: one of them is no field that is stored.
    """
    for name in values if isinstance(values, dict) else ():
        if name not in Search.stored:
            raise ValueError(f"there is no setting '{name}'{nearest(name, list(Search.stored))}")
    return values


StoredSearch = Annotated[Search, BeforeValidator(refuse_unstored), PlainSerializer(Search.stored_values)]
"""A `Search` as a field of settings on disk: only the fields that are stored are read and written."""


@dataclass(frozen=True)
class Symbols:
    """The symbols of a model that a search must know.

    Args:
        begin: first symbol of every target.
        end: last symbol of every finished target.
        forbidden: symbols that are never chosen: padding, begin, unknown, newline bytes. The probabilities of the
            others are not renormalized, so that scores remain the model's own.
        forced: symbols that every target begins with after ``begin``, such as the token of a language. They are part
            of a hypothesis and of its length, and cost nothing: log p counts as 0.

    Raises:
        ConfigurationError: the end symbol is forbidden, or a symbol is negative.
    """

    begin: int
    end: int
    forbidden: tuple[int, ...]
    forced: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.end in self.forbidden:
            raise ConfigurationError(
                f"the end symbol {self.end} is among the forbidden ones {self.forbidden}, so no hypothesis "
                "could finish: take it out"
            )
        if min(self.begin, self.end, *self.forbidden, *self.forced) < 0:
            raise ConfigurationError(f"symbols are ids counted from 0, got {self}")


def check_forced(forced: Sequence[int], limits: Sequence[int]) -> None:
    """Raise ConfigurationError if a length limit leaves no room for the end symbol after the forced symbols."""
    if forced and limits and min(limits) <= len(forced):
        raise ConfigurationError(
            f"every translation of this model begins with {len(forced)} fixed symbols, which do not fit with the end "
            f"symbol into a length limit of {min(limits)}: raise the limit to {len(forced) + 1}"
        )
