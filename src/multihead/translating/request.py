"""What is asked of a translator: texts, constraints, search or sampling.

Nothing here imports torch, so that a command can reject an impossible request before it loads a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from pydantic import Field

from multihead.configuration import MOST_ENTRIES, MOST_FACTOR, Settings
from multihead.decoding.search import Search
from multihead.errors import ConfigurationError, InputError

T = TypeVar("T")

Metric = Literal["chrf", "bleu"]
"""Utility of minimum Bayes risk (`translating.consensus`)."""

Phrases = Sequence[str | Sequence[str]]
"""What must appear in a translation: words or phrases, each in one spelling or as alternatives."""


_MOST_SAMPLES = 1 << 16
"""Samples of a sentence, each with a row of logits; the literature on minimum Bayes risk draws up to 4,096."""


class Sampling(Settings):
    """How translations are drawn instead of searched (`decoding.sampling`)."""

    sample: int = Field(default=1, ge=1, le=_MOST_SAMPLES)
    """Draw this many translations of each line from the model's distribution, instead of searching the best."""
    temperature: float = Field(default=1.0, gt=0, le=MOST_FACTOR)
    """Draw from p^(1/T): below 1 sharper, above 1 flatter than the model's distribution."""
    top_k: int | None = Field(default=None, ge=1, le=MOST_ENTRIES)
    """Draw from this many of the most probable tokens."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Draw from the fewest most probable tokens that have this probability together."""
    min_p: float | None = Field(default=None, gt=0, le=1)
    """Draw from tokens at least this share as probable as the most probable one."""
    epsilon: float | None = Field(default=None, gt=0, le=1)
    """Draw from tokens at least this probable."""
    seed: int = 0
    """Seed of the random numbers, any integer; equal lines draw equal ones."""

    @property
    def limits(self) -> dict[str, Any]:
        """The fields of a `decoding.sampling.Sharpening`."""
        return self.model_dump(exclude={"sample", "seed"})


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
    batch_tokens: int = 4096

    def __post_init__(self) -> None:
        if isinstance(self.texts, str):
            raise InputError("expected a list of sentences, got one string; write translate([text])")
        if self.n_best is not None and (self.sampling or self.metric):
            raise ConfigurationError("n_best is of a search: leave it out, or sampling and the metric (mbr)")
        check_n_best(1 if self.n_best is None else self.n_best, self.search.beam)
        if self.keys is not None and len(self.keys) != len(self.texts):
            raise InputError(f"keys: expected one for each of {len(self.texts)} texts, got {len(self.keys)}")
        if self.sampling is not None and self.phrases is not None:
            raise ConfigurationError("phrases that must appear cannot be had with samples: leave one of them out")
        if self.metric is not None and self.candidates < 2:
            raise ConfigurationError("the metric (mbr) chooses among several: draw more samples, or widen the beam")
        if self.batch_tokens < 1:
            raise ConfigurationError(f"batch_tokens must be a number of at least 1, got {self.batch_tokens}")

    @property
    def candidates(self) -> int:
        """Number of translations of each sentence before any is chosen."""
        if self.sampling is not None:
            return self.sampling.sample
        return self.n_best or (1 if self.metric is None else self.search.beam)

    @property
    def several(self) -> bool:
        """Whether several translations of a sentence are returned."""
        return self.metric is None and self.candidates > 1

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
