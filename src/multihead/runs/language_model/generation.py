"""How a language model continues a prompt: by search, or by drawing.

Does not import torch, so that a command can reject impossible settings before it loads a model.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from multihead.configuration import MOST_BEAM, MOST_TOKENS, Settings
from multihead.decoding.search import Search
from multihead.errors import ConfigurationError
from multihead.translating.request import Sampling

DRAWING = frozenset(("temperature", "top_k", "top_p", "min_p", "epsilon", "seed"))
"""Settings of samples alone."""


def _as_for_samples(name: str) -> Any:
    """A field of `Sampling`."""
    return Sampling.model_fields[name]


class Generation(Settings):
    """Settings of a continuation; each is a flag of ``multihead generate``."""

    max_length: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """Maximum number of tokens after the prompt, including the end symbol. [half of what the model reads at once]"""
    min_length: int = Field(default=0, ge=0, le=MOST_TOKENS)
    """Minimum number of tokens after the prompt, excluding the end symbol. [0]"""
    beam: int = Field(default=1, ge=1, le=MOST_BEAM)
    """Hypotheses per prompt in the search for the most probable continuation; 1 is greedy search. [1]"""
    no_repeat: int = Field(default=0, ge=0, le=MOST_TOKENS)
    """No sequence of this many tokens occurs twice in a continuation; 0 allows all. [0]"""
    sample: bool = False
    """Draw the continuation from the model's distribution, instead of searching for the most probable one."""
    temperature: float = _as_for_samples("temperature")
    top_k: int | None = _as_for_samples("top_k")
    top_p: float | None = _as_for_samples("top_p")
    min_p: float | None = _as_for_samples("min_p")
    epsilon: float | None = _as_for_samples("epsilon")
    seed: int = 0
    """Seed of the random numbers, any integer; each line draws its own. [0]"""

    @property
    def sharpening(self) -> dict[str, Any]:
        """The fields of a `decoding.sharpening.Sharpening`."""
        return self.model_dump(include=set(DRAWING - {"seed"}))

    def search(self, max_tokens: int) -> Search:
        """The search for a model that reads so many tokens at once; it has the lengths.

        Raises:
            ConfigurationError: there is no room for a token of the prompt.
        """
        limit = max(max_tokens // 2, self.min_length + 1) if self.max_length is None else self.max_length
        if limit >= max_tokens:
            raise ConfigurationError(
                f"this model reads {max_tokens} tokens at once, so at most {max_tokens - 1} can follow a prompt, but "
                f"{limit} were requested: make max_length and min_length smaller"
            )
        return Search(beam=self.beam, no_repeat=self.no_repeat, max_length=limit, min_length=self.min_length)
