"""The settings of training: everything that decides, with the data and the model, what comes out. No torch here.

Which of how many processes this is, as ``torchrun`` says in the environment; asked before PyTorch is imported.

What processes do together is in `training.parallel`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from multihead.configuration import Settings


class TrainingConfig(Settings):
    """Decided once, at the start of a run, and frozen in it."""

    seed: int = Field(default=1, ge=0)
    """Of every random number: initial values, order of the data, dropout."""
    updates: int = Field(ge=1)
    """Optimiser steps in the whole run; the schedule is a function of the step and of this."""
    batch_tokens: int = Field(default=4096, ge=1)
    """Padded tokens a side in a batch: rows times the longer of the two widths."""
    accumulate: int = Field(default=1, ge=1)
    """Batches whose gradients are summed for one update."""
    schedule: Literal["linear", "cosine", "trapezoid", "inverse_sqrt", "noam", "constant"] = "linear"
    """How the learning rate goes on after the warm-up: see `training.optimizer`."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """The highest learning rate; for 'noam' the factor lr_mul instead."""
    warmup: int = Field(default=400, ge=0)
    """Updates over which the learning rate rises linearly from 0."""
    smoothing: float = Field(default=0.1, ge=0, lt=1)
    """Label smoothing: this share of the target's probability is spread over the vocabulary."""
    clip: float = Field(default=1.0, ge=0)
    """Largest norm of the gradient; 0 clips nothing."""
    skip_above: float = Field(default=100.0, ge=0)
    """An update is skipped, and its lines named, whose gradient norm is this many times the median of the last 64
    updates; 0 skips only those that are no finite numbers. See `training.step`."""
    skip_limit: int = Field(default=10, ge=0)
    """Updates of the last 100 that may have been skipped before the run stops."""
    optimizer: Literal["adam", "muon"] = "adam"
    """What moves the weights; 'muon': linear maps by `training.optimizer`, all else by Adam."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Adam's decay of the mean of gradients."""
    beta2: float = Field(default=0.98, ge=0, lt=1)
    """Adam's decay of the mean of their squares."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay of matrices."""
    average: float = Field(default=0.0, ge=0, lt=1)
    """Decay of the moving average of the weights that is validated and kept; 0 keeps the last weights."""
    validate_every: int = Field(default=500, ge=1)
    """Updates between validations; a checkpoint is written after each."""
    patience: int = Field(default=0, ge=0)
    """Validations without a better score before training ends; 0 never ends early."""
    log_every: int = Field(default=50, ge=1)
    """Updates between lines of the log."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of the matrix products in training (weights, sums and the loss stay float32)."""
    threads: int = Field(default=1, ge=1)
    """Processor threads of PyTorch; part of what makes two runs equal."""
    device: str = "cpu"
    """Where the model is trained: cpu or cuda."""
    compile: bool = False
    """Whether a Transformer's states are computed by code that PyTorch compiles for it (`models.transformer`)."""
    bpe_dropout: float = Field(default=0.0, ge=0, lt=1)
    """How often a merge is passed over when a sentence is cut into subwords anew in each epoch; 0 never."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Checkpoints kept, newest first."""
    tensorboard: bool = False
    """The records of the log are written for TensorBoard, too."""
