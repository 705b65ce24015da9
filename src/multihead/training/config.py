"""Settings of training: every decision besides the data and the model.

Does not import torch. The network's settings are in `models.config`; the settings that a user may give are in
`planning.settings`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from multihead.configuration import (
    LAST_SEED,
    MOST_BATCH,
    MOST_ENTRIES,
    MOST_FACTOR,
    MOST_THREADS,
    MOST_UPDATES,
    Settings,
)

Combination = Literal["sum", "replicated", "sharded"]
"""How several processes combine their gradients (`training.parallel`)."""


class TrainingConfig(Settings):
    """Decided once at the start of a run and frozen in its run.json."""

    seed: int = Field(default=1, ge=0, le=LAST_SEED)
    """Seed of every random number: initial values, order of the data, dropout."""
    updates: int = Field(ge=1, le=MOST_UPDATES)
    """Optimizer steps in the whole run; the learning-rate schedule depends on it. With a budget: the first estimate."""
    budget: float | None = Field(default=None, gt=0, le=MOST_UPDATES)
    """Seconds of the whole run, in which the number of updates is decided anew from time to time: see
    `training.budget`."""
    replanned: tuple[Literal["validate_every", "average", "sentences"], ...] = ()
    """What is decided anew besides updates: settings that the user left open, and how many sentences a validation
    translates."""
    batch_tokens: int = Field(default=4096, ge=1, le=MOST_BATCH)
    """Padded tokens per side in a batch: rows times the longer of the two widths."""
    accumulate: int = Field(default=1, ge=1, le=MOST_BATCH)
    """Batches whose gradients are summed for one update."""
    schedule: Literal["linear", "cosine", "trapezoid", "inverse_sqrt", "noam", "constant"] = "linear"
    """Shape of the learning-rate schedule after the warm-up: see `training.optimizer`."""
    learning_rate: float = Field(default=1e-3, gt=0, le=MOST_FACTOR)
    """Peak learning rate; for 'noam' the factor lr_mul instead."""
    warmup: int = Field(default=400, ge=0, le=MOST_UPDATES)
    """Updates over which the learning rate rises linearly from 0."""
    smoothing: float = Field(default=0.1, ge=0, lt=1)
    """Label smoothing: share of the target's probability that is spread over the vocabulary."""
    teacher_weight: float = Field(default=0.0, ge=0, le=1)
    """Share of the teachers' distributions in the loss (`kernels.soft_targets`); 0 without teachers."""
    alignment_weight: float = Field(default=0.0, ge=0, le=MOST_FACTOR)
    """Factor of the loss of the head that learns word alignments (`kernels.guided`); 0 without alignments."""
    lora: int = Field(default=0, ge=0, le=MOST_ENTRIES)
    """Rank of the low-rank adapters that alone are trained (`models.adapters`); 0 trains every weight."""
    lora_alpha: float = Field(default=0.0, ge=0, le=2 * MOST_ENTRIES)
    """Their factor alpha; 0 without adapters."""
    clip: float = Field(default=1.0, ge=0)
    """Maximum norm of the gradient; 0 disables clipping."""
    skip_above: float = Field(default=100.0, ge=0)
    """Skip an update whose gradient norm exceeds this many times ``clip`` and the median of the last 64 updates, and
    log its lines; with 0 only updates that are not finite are skipped. See `training.step`."""
    skip_limit: int = Field(default=10, ge=0, le=MOST_UPDATES)
    """Maximum number of skipped updates among the last 100; the run stops when there are more."""
    optimizer: Literal["adam", "muon"] = "adam"
    """The optimizer; 'muon' moves linear maps by Muon and all other parameters by Adam (`training.optimizer`)."""
    muon_scale: float = Field(default=0.2, gt=0, le=MOST_FACTOR)
    """Length of Muon's steps relative to the learning rate: s in `training.optimizer`."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Adam's decay of the mean of gradients."""
    beta2: float = Field(default=0.98, ge=0, lt=1)
    """Adam's decay of the mean of squared gradients."""
    weight_decay: float = Field(default=0.0, ge=0, le=MOST_FACTOR)
    """Decoupled weight decay of matrices."""
    average: float = Field(default=0.0, ge=0, lt=1)
    """Decay of the moving average of the weights, which is validated and kept; 0 keeps the last weights."""
    validate_every: int = Field(default=500, ge=1, le=MOST_UPDATES)
    """Updates between validations; a checkpoint is written after each."""
    patience: int = Field(default=0, ge=0, le=MOST_UPDATES)
    """Validations without a better score before training ends; 0 disables early stopping."""
    best_by: Literal["bleu", "chrf", "loss", "comet"] = "bleu"
    """What the best model of a translator's run has most of, of all validated ones; of the loss, least."""
    comet: str = ""
    """The COMET model that scores each validation (`metrics.comet`); none if empty."""
    log_every: int = Field(default=50, ge=1, le=MOST_UPDATES)
    """Updates between lines of the log."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of the matrix products in training; weights, sums and the loss stay float32."""
    threads: int = Field(default=1, ge=1, le=MOST_THREADS)
    """Processor threads of PyTorch; two runs are equal only with the same number."""
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d{1,3})?|mps)$")
    """Device that trains the model: cpu, cuda, or mps on a Mac."""
    compile: bool = False
    """Compute a Transformer's states with code compiled by torch.compile (`models.transformer`)."""
    gradient_checkpointing: bool = False
    """Compute the layers of a Transformer again in the backward pass instead of keeping their states."""
    bpe_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability of skipping a merge when a sentence is segmented anew in each epoch; 0 disables BPE-dropout."""
    keep_checkpoints: int = Field(default=2, ge=1, le=MOST_UPDATES)
    """Number of checkpoints to keep, newest first."""
    tensorboard: bool = False
    """Also write the records of the log for TensorBoard."""
