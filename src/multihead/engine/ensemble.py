"""Several Transformers as one in the compiled search.

It finds what the search of `decoding.beam` finds in an `Ensemble` (`decoding.ensemble` has the equations) of the same
models, except for rounding. Each model has its own sizes, layers and positions; all read the same ids and share one
search. Of each model a step needs what it needs alone; a mean of log-probabilities needs one normalizer instead of
one for each model. With a shortlist, each model's probabilities are normalized within it, before they are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from multihead.decoding.search import Mean, scaled
from multihead.engine.search import CompiledSearch, Engine, Together, same_shortlist
from multihead.errors import ConfigurationError

MOST_MODELS = 64
"""The largest ensemble."""


class EngineEnsemble(CompiledSearch):
    """Several engines that search together.

    Args:
        members: engines of the same precision and vocabularies, and of one shortlist or of none.
        mean: what is averaged.
        weights: a positive weight per model; they are scaled to sum to 1. By default all are equal.

    Raises:
        ConfigurationError: the engines do not fit together; too many; not one positive weight per model.
    """

    def __init__(
        self, members: Sequence[Engine], mean: Mean = "probabilities", weights: Sequence[float] | None = None
    ) -> None:
        shares = scaled(weights, len(members))
        if len(members) > MOST_MODELS:
            raise ConfigurationError(f"a compiled ensemble has up to {MOST_MODELS} models, got {len(members)}")
        facts: dict[str, list[Any]] = {
            "source vocabulary": [engine.config.source_vocab for engine in members],
            "target vocabulary": [engine.config.target_vocab for engine in members],
            "precision": [engine.precision for engine in members],
        }
        for name, of in facts.items():
            if len(set(of)) > 1:
                raise ConfigurationError(f"the models of an ensemble need one {name}, got {of}")
        if not all(same_shortlist(engine.shortlist, members[0].shortlist) for engine in members):
            raise ConfigurationError("the models of an ensemble need the same shortlist, or none")
        self._together = Together(tuple(members), shares, mean)

    @property
    def together(self) -> Together:
        """The engines, their weights and what is averaged."""
        return self._together
