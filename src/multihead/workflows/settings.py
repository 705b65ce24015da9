"""What a user may say about a training run, and what is written down about it. No torch here: `--help` reads this file.

`TrainSettings` are wishes: everything may be left open. `workflows.planning` turns them into a `RunConfig`, in which
nothing is open, with the reason of each choice.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from multihead.configuration import Settings
from multihead.models.config import GenerationConfig, TransformerConfig
from multihead.training.config import TrainingConfig

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _seconds(value: object) -> object:
    """Reads "25m", "1h30m", "90s" or plain seconds."""
    if not isinstance(value, str) or re.fullmatch(r"\d+(?:\.\d+)?", value):
        return value
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", value)
    if not parts or "".join(number + unit for number, unit in parts) != value:
        raise ValueError("expected a duration such as 25m, 1h30m or 90s")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


Duration = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]


class TrainSettings(Settings):
    """Wishes for a run; every field is a flag of ``multihead train`` and a key of its TOML file."""

    source: Path | None = None
    """Text in the source language, a sentence a line; plain or gzip."""
    target: Path | None = None
    """Its translation, line by line."""
    valid_source: Path | None = None
    """Source sentences to validate on; without them a part of the training pairs is held out."""
    valid_target: Path | None = None
    """Their translations."""
    output: Path | None = None
    """The run folder: new, empty, or a run that was stopped, which then goes on."""
    source_language: str | None = None
    """Code of the source language (de); read from the file name's ending where it has one."""
    target_language: str | None = None
    """Code of the target language; decides how BLEU is tokenised."""
    preset: str | None = None
    """Model size: tiny, small, base or big."""
    vocab_size: int | None = Field(default=None, ge=1)
    """Entries of the subword vocabulary."""
    shared_vocabulary: bool | None = None
    """One vocabulary for both languages (the default), or one each."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Training pairs with more subwords on a side are left out, and named."""
    held_out: int | None = Field(default=None, ge=1)
    """Pairs to hold out for validation where there are no validation files."""
    width: int | None = None
    """Model width D."""
    heads: int | None = None
    """Attention heads."""
    inner: int | None = None
    """Width of the feed-forward network's hidden layer."""
    encoder_layers: int | None = None
    """Layers of the encoder."""
    decoder_layers: int | None = None
    """Layers of the decoder."""
    dropout: float | None = None
    """Dropout of residual branches, embeddings and feed-forward networks."""
    attention_dropout: float | None = None
    """Dropout of attention weights."""
    norm: Literal["post", "pre"] | None = None
    """Layer norm after each residual sum (the paper) or before each sub-layer."""
    tie_embeddings: bool | None = None
    """Source and target share one embedding."""
    tie_output: bool | None = None
    """The output projection is the target embedding."""
    updates: int | None = None
    """Updates in all."""
    budget: Duration | None = None
    """Time to train for (25m, 1h30m): the number of updates is set by a measurement at the start."""
    batch_tokens: int | None = None
    """Padded tokens a side in a batch."""
    accumulate: int | None = None
    """Batches to an update."""
    schedule: Literal["linear", "noam", "inverse_sqrt"] | None = None
    """How the learning rate falls after the warm-up."""
    learning_rate: float | None = None
    """The highest learning rate; lr_mul for 'noam'."""
    warmup: int | None = None
    """Updates of rising learning rate."""
    smoothing: float | None = None
    """Label smoothing."""
    clip: float | None = None
    """Largest gradient norm; 0 for no clipping."""
    weight_decay: float | None = None
    """Decoupled weight decay of matrices."""
    average: float | None = None
    """Decay of the moving average of the weights; 0 for none."""
    validate_every: int | None = None
    """Updates between validations."""
    patience: int | None = None
    """Validations without gain before training ends; 0 for never."""
    log_every: int | None = None
    """Updates between lines of the log."""
    precision: Literal["float32", "bfloat16"] | None = None
    """Type of the matrix products in training."""
    threads: int | None = None
    """Processor threads."""
    device: Literal["cpu", "cuda"] | None = None
    """Where to train."""
    keep_checkpoints: int | None = None
    """Checkpoints to keep."""
    beam: int | None = None
    """Hypotheses of the beam search that the finished model uses."""
    alpha: float | None = None
    """Length penalty of that search."""
    seed: int | None = None
    """Of every random number."""

    @model_validator(mode="after")
    def _agree(self) -> TrainSettings:
        """Refuses pairs of wishes of which one would have to be ignored."""
        if (self.valid_source is None) != (self.valid_target is None):
            given, missing = ("valid_source", "valid_target") if self.valid_source else ("valid_target", "valid_source")
            raise ValueError(f"{given} is given without {missing}: validation needs both sides")
        if self.held_out is not None and self.valid_source is not None:
            raise ValueError("held_out is given together with validation files: leave out the one or the other")
        if self.updates is not None and self.budget is not None:
            raise ValueError("updates and budget both say how long to train: leave out the one or the other")
        if self.tie_embeddings and self.shared_vocabulary is False:
            raise ValueError("tie_embeddings needs one vocabulary: leave out no-shared-vocabulary or tie-embeddings")
        return self


class TextFile(Settings):
    """A file that a run was made from."""

    path: str
    sha256: str
    lines: int


class DataConfig(Settings):
    """What became of the files."""

    files: dict[str, TextFile]
    """source, target and, where they were given, valid_source and valid_target."""
    source_language: str | None
    target_language: str | None
    vocab_size: int
    """As asked for; the tokenizer says how many there are."""
    shared_vocabulary: bool
    max_tokens: int
    held_out: int
    """Pairs taken from the training files for validation; 0 where there are validation files."""
    pairs: int
    """Training pairs."""
    left_out: int
    """Pairs that could not be used; each is named in left-out.tsv."""


class RunConfig(Settings):
    """Everything decided about a run: run.json."""

    format_version: int = 1
    versions: dict[str, str]
    """What it was started with."""
    asked: dict[str, object]
    """The settings that were given, rather than chosen."""
    data: DataConfig
    model: TransformerConfig
    training: TrainingConfig
    generation: GenerationConfig
    reasons: dict[str, str]
    """Why each choice was made."""
