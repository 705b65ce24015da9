"""A small model guesses what a large one then checks, in greedy search.

    a draft q guesses y'_1, ..., y'_k after a prefix y, each the most probable symbol after those before it
    the model p reads all of them in one step: p(. | y), p(. | y y'_1), ..., p(. | y y'_1 ... y'_k)
    y'_i counts as long as it is what p chooses, argmax p(. | y y'_1 ... y'_{i-1}); then p's own choice follows

So the translation is that of the model alone, to the last bit, whatever the draft guesses: a row of a product does not
depend on the others. A step that reads k + 1 symbols reads the weights once instead of k + 1 times, which pays where
reading them is the bottleneck: a large model that translates one sentence, or few. With many sentences at a time, which
share the weights as well, and in beam search, the draft rests.

It guesses on as long as the product of its probabilities is at least ``least``: about the time of its step in relation
to the model's, since that product is the chance that one more guess saves a step.

Source: Leviathan, Kalman, Matias 2023, "Fast inference from transformers via speculative decoding", for a temperature
of 0. A draft is a small model that was trained with the predictions of the large one (``train --teacher``).
"""

from __future__ import annotations

from multihead.decoding.search import Search
from multihead.decoding.task import SearchTask
from multihead.engine.search import CompiledSearch, Draft, Engine, RunningSearch, Together
from multihead.errors import ConfigurationError

MOST, LEAST = 8, 0.2
"""Guesses in a row, and the probability of all of them that one more needs."""


class DraftedSearch(CompiledSearch):
    """The greedy search of a model, or of an ensemble, with guesses of a draft.

    Args:
        search: the search of the models.
        draft: a model of the same vocabularies; its precision can be another one.
        most: guesses in a row.
        least: probability of all guesses in a row, by the draft, from which on one more is made.

    Raises:
        ConfigurationError: other vocabularies, a shortlist of the draft, or impossible numbers.
    """

    def __init__(self, search: CompiledSearch, draft: Engine, most: int = MOST, least: float = LEAST) -> None:
        together = search.together
        for side in ("source", "target"):
            own, other = (getattr(one.config, f"{side}_vocab") for one in (together.engines[0], draft))
            if own != other:
                raise ConfigurationError(f"a draft has the model's {side} vocabulary of {own} entries, got {other}")
        if draft.shortlist is not None:
            raise ConfigurationError("a draft has no shortlist: make its Engine without one")
        if most < 1 or not 0 <= least <= 1:
            raise ConfigurationError(f"expected at least 1 guess and a probability, got {most} and {least}")
        self._search, self._together = search, together._replace(draft=Draft(draft, most, least))

    @property
    def together(self) -> Together:
        """The models, and the draft."""
        return self._together

    @property
    def undrafted(self) -> CompiledSearch:
        """The search without the draft."""
        return self._search

    def open(self, task: SearchTask, search: Search, longest: int, workers: int | None = None) -> RunningSearch:
        """As `CompiledSearch.open`. With a beam of more than 1 the draft rests."""
        if search.beam > 1:
            return self._search.open(task, search, longest, workers)
        return super().open(task, search, longest, workers)
