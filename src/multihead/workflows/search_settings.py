"""How translations are searched when somebody asks for them: the model's own settings, and what is asked on top.

Torch-free, so that a command can refuse what cannot be before a model is loaded. What becomes of it is
`workflows.translate`'s.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from multihead.models.config import GenerationConfig


class SearchSettings(GenerationConfig):
    """The settings of a model folder, and those which a single request can add."""

    length_penalty: Literal["power", "wu"] = "power"
    """What the log-probability is divided by: |y|^alpha, or ((5 + |y|) / 6)^alpha of Wu et al. 2016."""
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

    @model_validator(mode="after")
    def _beams_fit(self) -> SearchSettings:
        if self.beam % self.groups:
            raise ValueError(f"groups must divide the beam, got {self.groups} groups and a beam of {self.beam}")
        if not all(word.strip() for word in self.without):
            raise ValueError("without: a forbidden word has no characters; leave it out")
        return self
