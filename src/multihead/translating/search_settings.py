"""How translations are searched when somebody asks for them: the model's own settings, and what is asked on top.

Torch-free, so that a command can refuse what cannot be before a model is loaded. What becomes of it is
`translating.translator`'s.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from multihead.configuration import Settings
from multihead.models.config import GenerationConfig

Mean = Literal["probabilities", "log-probabilities"]
"""What an ensemble averages (`decoding.ensemble`)."""

Metric = Literal["chrf", "bleu"]
"""By which translations are compared with each other (`translating.consensus`)."""


class SearchSettings(GenerationConfig):
    """The settings of a model folder, and those which a single request can add."""

    length_penalty: Literal["power", "wu"] = "power"
    """What the log-probability is divided by: |y|^alpha, or ((5 + |y|) / 6)^alpha of Wu et al. 2016."""
    coverage: float = Field(default=0.0, ge=0)
    """Coverage penalty (Wu et al. 2016): what it costs not to look at a part of the source; theirs is 0.2."""
    stopping: Literal["exact", "ahead", "patience"] = "exact"
    """When the search of a sentence stops: when nothing can change, when the best finished are ahead, or at a count."""
    patience: float = Field(default=1.0, gt=0)
    """With ``stopping`` "patience": stop when so many times the beam are finished (Kasai et al. 2022)."""
    no_repeat: int = Field(default=0, ge=0)
    """No sequence of so many tokens twice in a translation; 0 allows all."""
    without: tuple[str, ...] = ()
    """Words or phrases that no translation contains, in the tokenizer's spelling of them."""
    groups: int = Field(default=1, ge=1)
    """Diverse beam search (Vijayakumar et al. 2018): so many groups of hypotheses that keep away from each other."""
    diversity: float = Field(default=0.5, ge=0)
    """With ``groups``: how much a token costs for each earlier group that chose it, as a log-probability."""
    precision: Literal["float32", "bfloat16", "int8"] = "float32"
    """Of the matrix products; below float32 only where the search is compiled (`multihead.engine`)."""
    shortlist: bool = False
    """Choose among the target tokens that `multihead shortlist` found for the source's: faster, nearly the same."""
    min_factor: float = Field(default=0.0, ge=0)
    """A translation has at least so many times the source's tokens, but never more than leave room for its end."""

    @model_validator(mode="after")
    def _beams_fit(self) -> SearchSettings:
        if self.beam % self.groups:
            raise ValueError(f"groups must divide the beam, got {self.groups} groups and a beam of {self.beam}")
        if not all(word.strip() for word in self.without):
            raise ValueError("without: a forbidden word has no characters; leave it out")
        return self

    def least(self, source_tokens: int) -> int:
        """The least tokens before the end symbol of a translation of so many.

        It is max(min_factor * source_tokens, min_length), but never too many for the limit.
        """
        return min(max(int(self.min_factor * source_tokens), self.min_length), self.limit(source_tokens) - 1)


def completed(settings: GenerationConfig) -> SearchSettings:
    """The same with all that a single request can add, at its defaults where it was not there."""
    return settings if isinstance(settings, SearchSettings) else SearchSettings(**settings.model_dump())


class Sampling(Settings):
    """How translations are drawn instead of searched (`decoding.sampling`, `decoding.sampling`)."""

    sample: int = Field(default=1, ge=1)
    """Draw so many translations of each line from the model's distribution, instead of searching the best."""
    temperature: float = Field(default=1.0, gt=0)
    """Draw from p^(1/T): below 1 sharper, above 1 flatter than the model's distribution."""
    top_k: int | None = Field(default=None, ge=1)
    """Draw from so many of the most probable tokens."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Draw from the fewest most probable tokens that have this probability together."""
    min_p: float | None = Field(default=None, gt=0, le=1)
    """Draw from tokens at least this share as probable as the most probable one."""
    epsilon: float | None = Field(default=None, gt=0, le=1)
    """Draw from tokens at least this probable."""
    seed: int = 0
    """Of the random numbers: any whole number; equal lines draw equal ones."""

    @property
    def limits(self) -> dict[str, Any]:
        """The fields that make a `multihead.decoding.sampling.Sharpening`."""
        return self.model_dump(exclude={"sample", "seed"})
