"""What is asked of a translator: texts, constraints, search or sampling.

Nothing here imports torch, so that a command can reject an impossible request before it loads a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from pydantic import Field

from multihead.configuration import MOST_ENTRIES, MOST_FACTOR, MOST_SAMPLES, Settings, build
from multihead.decoding.search import Search
from multihead.errors import ConfigurationError, InputError
from multihead.text.terms import Terms

T = TypeVar("T")

Metric = Literal["chrf", "bleu"]
"""Utility of minimum Bayes risk (`translating.consensus`)."""

Phrases = Sequence[str | Sequence[str]]
"""What must appear in a translation: words or phrases, each in one spelling or as alternatives."""


class Sampling(Settings):
    """How translations are drawn instead of searched (`decoding.sampling`)."""

    sample: int = Field(default=1, ge=1, le=MOST_SAMPLES)
    """Draw this many translations of each line from the model's distribution, instead of searching for the best."""
    temperature: float = Field(default=1.0, gt=0, le=MOST_FACTOR)
    """Draw from p^(1/T): below 1 sharper, above 1 flatter than the model's distribution."""
    top_k: int | None = Field(default=None, ge=1, le=MOST_ENTRIES)
    """Draw from this many of the most probable tokens."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Draw from the smallest set of most probable tokens whose probabilities add up to this."""
    min_p: float | None = Field(default=None, gt=0, le=1)
    """Draw from tokens whose probability is at least this share of the most probable one's."""
    epsilon: float | None = Field(default=None, gt=0, le=1)
    """Draw from tokens of at least this probability."""
    seed: int = 0
    """Seed of the random numbers, any integer; equal lines draw equal numbers."""

    @property
    def limits(self) -> dict[str, Any]:
        """The fields of a `decoding.sampling.Sharpening`."""
        return self.model_dump(exclude={"sample", "seed"})


class Weights(Settings):
    """Weights of the features by which a candidate is chosen (`translating.choosing`); only their ratios matter."""

    forward: float = Field(default=0.0, ge=0, le=MOST_FACTOR)
    """Of log p(y | x) / penalty(|y|), by which a search ranks."""
    reverse: float = Field(default=0.0, ge=0, le=MOST_FACTOR)
    """Of log p(x | y) / |x| by the reverse model."""
    agreement: float = Field(default=0.0, ge=0, le=MOST_FACTOR)
    """Of the expected utility, from 0 to 1."""
    length: float = Field(default=0.0, ge=-MOST_FACTOR, le=MOST_FACTOR)
    """Of |y| / |x|."""
    judge: float = Field(default=0.0, ge=0, le=MOST_FACTOR)
    """Of log p(y | x) / |y| by the judge."""

    @classmethod
    def parse(cls, text: str) -> Weights:
        """Parse "forward=0.5,reverse=0.3"; weights that are not named are 0.

        Raises:
            ConfigurationError: another text, an unknown name, one that is named twice, or an impossible number.
        """
        pairs = [part.partition("=") for part in text.split(",")]
        values = {name.strip(): value.strip() for name, _, value in pairs}
        if not all(sign for _, sign, _ in pairs) or len(values) < len(pairs):
            raise ConfigurationError(
                f"--weights: expected text like forward=0.5,reverse=0.3, each name once, got {text!r}"
            )
        return build(cls, values, "--weights")

    def __str__(self) -> str:
        return ",".join(f"{name}={value:.5g}" for name, value in self.model_dump().items() if value)


USUAL = Weights(forward=1.0, reverse=0.2, agreement=1.0, judge=0.2)
"""Weights that were not tuned (docs/lab-notes.md, "A judge from right to left")."""


def usual_weights(reverse: bool, judge: bool) -> Weights | None:
    """`USUAL`, if there is a reverse model, a judge or both, without the weight of what there is not; or None."""
    kept = {"reverse": USUAL.reverse * reverse, "judge": USUAL.judge * judge}
    return USUAL.model_copy(update=kept) if reverse or judge else None


@dataclass(frozen=True)
class TranslationRequest:
    """Sentences, and everything that decides their translations.

    Args:
        search: how to search; lengths and length penalty of samples are taken from it, too.
        texts: the sentences; an empty one has one translation, empty.
        prefixes: how each translation begins; one per sentence, "" for nothing.
        phrases: what each translation contains; one list per sentence.
        n_best: number of translations of each sentence; None for one.
        sampling: draw instead of searching.
        keys: with ``sampling``, a number for each sentence; equal keys draw equal numbers. By default made of the text.
        metric: return only the translation that agrees best, by this metric, with all that were drawn or, without
            sampling, with all in the beam.
        weights: return only the candidate with the highest weighted sum of features; its agreement is by ``metric``,
            or by default chrF.
        both: with ``sampling`` and one of these two: the hypotheses of the beam are candidates, too.
        terms: wanted translations, which are written into the sources (`text.terms`).
        scores: False if only texts are needed, as `decoding.task.SearchTask` has it.
        batch_tokens: padded source tokens times the hypotheses per sentence in a batch: memory against speed. The
            compiled search, which has no padding, ignores it.

    Raises:
        InputError: one string instead of a list of them; not one key for each text.
        ConfigurationError: ``n_best`` exceeds the beam; fields that exclude each other.
    """

    search: Search
    texts: Sequence[str] = ()
    prefixes: Sequence[str] | None = None
    phrases: Sequence[Phrases] | None = None
    n_best: int | None = None
    sampling: Sampling | None = None
    keys: Sequence[int] | None = None
    metric: Metric | None = None
    weights: Weights | None = None
    both: bool = False
    terms: Terms | None = None
    scores: bool = True
    batch_tokens: int = 4096

    def __post_init__(self) -> None:
        if isinstance(self.texts, str):
            raise InputError("expected a list of sentences, got one string; write translate([text])")
        if self.n_best is not None and (self.sampling or self.chooses):
            raise ConfigurationError(
                "n_best applies to a search: leave it out, or sampling, the metric (mbr) and weights"
            )
        check_n_best(1 if self.n_best is None else self.n_best, self.search.beam)
        if self.keys is not None and len(self.keys) != len(self.texts):
            raise InputError(f"keys: expected one for each of {len(self.texts)} texts, got {len(self.keys)}")
        if self.sampling is not None and self.phrases is not None:
            raise ConfigurationError("phrases that must appear cannot be combined with samples: leave one of them out")
        if self.both and not (self.sampling and self.chooses):
            raise ConfigurationError(
                "both: a beam beside samples needs a choice among them: give the metric (mbr) or weights"
            )
        if self.chooses and self.candidates + self.both < 2:
            what = "the metric (mbr) chooses" if self.weights is None else "the weights choose"
            raise ConfigurationError(f"{what} among several: draw more samples, or widen the beam")
        if self.batch_tokens < 1:
            raise ConfigurationError(f"batch_tokens must be a number of at least 1, got {self.batch_tokens}")

    @property
    def chooses(self) -> bool:
        """Whether one of the candidates is chosen."""
        return self.metric is not None or self.weights is not None

    @property
    def candidates(self) -> int:
        """Number of translations of each sentence before any is chosen; with ``both`` those that are drawn."""
        if self.sampling is not None:
            return self.sampling.sample
        return self.n_best or (self.search.beam if self.chooses else 1)

    @property
    def several(self) -> bool:
        """Whether several translations of a sentence are returned."""
        return not self.chooses and self.candidates > 1

    def with_texts(self, texts: Sequence[str], weights: Weights | None) -> TranslationRequest:
        """The same request for other texts, without constraints, and other weights."""
        return replace(self, texts=texts, prefixes=None, phrases=None, keys=None, n_best=None, weights=weights)

    def select(self, places: Sequence[int]) -> TranslationRequest:
        """The same request for some of the texts."""

        def pick(values: Sequence[T] | None) -> list[T] | None:
            return None if values is None else [values[place] for place in places]

        return replace(
            self,
            texts=[self.texts[place] for place in places],
            prefixes=pick(self.prefixes),
            phrases=pick(self.phrases),
            keys=pick(self.keys),
        )


def check_n_best(n: int, beam: int) -> None:
    """Raise ConfigurationError if ``n`` is below 1 or exceeds the beam."""
    if not 1 <= n <= beam:
        remedy = "; widen the beam" if n > beam else ""
        raise ConfigurationError(f"n_best: expected 1 to the beam, which is {beam}, got {n}{remedy}")
