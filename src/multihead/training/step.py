"""One update: forwards, backwards, clip, Adam. Everything random in it is a function of (seed, step, batch)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch

from multihead.data.batching import Batch
from multihead.errors import DivergenceError
from multihead.training.config import TrainingConfig
from multihead.training.loss import Trainable, sequence_loss


class StepSums(NamedTuple):
    """What one update saw; sums, so that windows of updates can be added up."""

    tokens: int
    """Real target tokens."""
    source_tokens: int
    """Real source tokens."""
    loss: float
    """Sum of the smoothed loss, in nats."""
    nll: float
    """Sum of the loss without smoothing, in nats."""
    correct: int
    """Tokens that the model would have guessed."""
    gradient_norm: float
    """Norm of the gradient before clipping."""


def step_seed(seed: int, step: int, part: int) -> int:
    """A 63-bit seed that depends on all three and on nothing else."""
    digest = hashlib.blake2b(f"{seed}/{step}/{part}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def train_step(
    model: Trainable,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    config: TrainingConfig,
    step: int,
    rate: float,
    padding_id: int,
) -> StepSums:
    """Update number ``step`` from ``batches``, whose gradients are summed and divided by their tokens.

    Args:
        model: what is trained.
        optimizer: steps over the model's parameters.
        batches: one, or several that together make the update (gradient accumulation).
        config: precision, smoothing and clip are read.
        step: counted from 1; seeds dropout.
        rate: the learning rate of this update.
        padding_id: what is not a token.

    Raises:
        DivergenceError: the loss or the gradient is not a finite number.
    """
    model.train()
    optimizer.zero_grad(set_to_none=True)
    for group in optimizer.param_groups:
        group["lr"] = rate
    tokens = sum(batch.target_tokens for batch in batches)
    loss = nll = 0.0
    correct = 0
    for part, batch in enumerate(batches):
        torch.manual_seed(step_seed(config.seed, step, part))
        low = config.precision == "bfloat16"
        with torch.autocast(batch.source.device.type, dtype=torch.bfloat16, enabled=low):
            sums = sequence_loss(model, batch, padding_id, config.smoothing)
        (sums.total / tokens).backward()  # type: ignore[no-untyped-call]
        loss, nll, correct = (
            loss + sums.total.item(),
            nll + sums.nll.item(),
            correct + int(sums.correct.item()),
        )
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip or float("inf")).item()
    if not (abs(loss) < float("inf") and norm < float("inf")):
        raise DivergenceError(
            f"update {step}: the loss is {loss / tokens:.4g} a token and the norm of its gradient {norm:.4g}. "
            f"Try a lower learning rate than {config.learning_rate:g} or a longer warm-up than {config.warmup}; "
            "the checkpoints so far are kept"
        )
    optimizer.step()
    source_tokens = sum(int(batch.source_lengths.sum()) for batch in batches)
    return StepSums(tokens, source_tokens, loss, nll, correct, norm)
