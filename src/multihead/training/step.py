"""When an update is refused, and when so many were that the run stops: functions of the run's state alone.

An update explodes where the norm of its gradient is more than ``skip_above`` times the median of the last 64 that were
made, once the warm-up is over. Its batches are skipped, and so are those of one whose loss or gradient is no finite
number: weights, Adam's means and the average stay what they were, the update counts (the schedule and the end of the
run stay where they are), and the log names the lines of the corpora. The run stops once more than ``skip_limit`` of
the last 100 updates were skipped, or as soon as weights are no finite numbers themselves: no other batch would help.

All of that is kept in the `RunState`, so that a run that goes on refuses what it would have refused.

One update: forwards, backwards, clip, optimiser. Everything random in it is a function of (seed, step, batch).

An update happens whole or not at all. Loss and gradient are looked at before the optimiser moves; what is no finite
number, or larger than it may be, is `RejectedUpdateError`: weights and the optimiser's means are what they were,
nothing has to be undone. What is let through cannot break them: the squares of a gradient with a finite norm are
finite, and Adam moves a
weight by no more than the rate times max(1, (1 - beta1) / sqrt(1 - beta2)) (Kingma & Ba 2015, 2.1), and by its decay;
`muon` makes a step that is as long whatever the gradient's length.

Where several processes train together, each is given the same batches, takes its rows of them and makes the same
update: what is looked at are the sums over all (`training.parallel`).
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from multihead.errors import DivergenceError
from multihead.kernels import random
from multihead.training.checkpoint import RunState
from multihead.training.config import TrainingConfig
from multihead.training.loss import Examples, Trainable, sequence_loss, split_to_fit
from multihead.training.parallel import SINGLE_PROCESS, Processes

_NORMS = 64
"""Updates whose norms the median is of: a middle that some odd ones do not move."""
_RECENT = 100
"""Updates among which skipped ones are counted."""


def norm_limit(config: TrainingConfig, state: RunState) -> float:
    """The largest norm of a gradient with which the next update is made."""
    if not config.skip_above or len(state.norms) < _NORMS or state.step < config.warmup:
        return math.inf
    return config.skip_above * statistics.median(state.norms) or math.inf


def append_norm(norms: tuple[float, ...], norm: float) -> tuple[float, ...]:
    """The norms to remember after an update."""
    return (*norms[1 - _NORMS :], norm)


def append_skipped(skipped: tuple[int, ...], step: int) -> tuple[int, ...]:
    """The skipped updates to remember after another one."""
    return (*(other for other in skipped if other > step - _RECENT), step)


def too_many_skipped(config: TrainingConfig, state: RunState) -> bool:
    """Whether so many updates were skipped that the fault cannot be a batch's."""
    return len(state.skipped) > config.skip_limit


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether every number in some tensors is finite."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


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


class RejectedUpdateError(DivergenceError):
    """An update that was not made: its loss or gradient is no finite number, or too large.

    Args:
        message: the sentence of the error, with advice.
        reason: what was wrong, in words.
        loss: a token's, the mean.
        norm: of the gradient.
        parts: which of the batches are to blame, where their own loss says so; otherwise all.
    """

    def __init__(self, message: str, reason: str, loss: float, norm: float, parts: tuple[int, ...]) -> None:
        super().__init__(message)
        self.reason, self.loss, self.norm, self.parts = reason, loss, norm, parts


def step_seed(seed: int, *place: int) -> int:
    """A 63-bit seed that depends on all of (seed, step, part, ...) and on nothing else."""
    digest = hashlib.blake2b("/".join(map(str, (seed, *place))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def train_step(
    model: Trainable,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Examples],
    config: TrainingConfig,
    step: int,
    rate: float,
    *,
    norm_limit: float = math.inf,
    room: int | None = None,
    processes: Processes = SINGLE_PROCESS,
) -> StepSums:
    """Update number ``step`` from ``batches``, whose gradients are summed and divided by their tokens.

    Args:
        model: what is trained.
        optimizer: steps over the model's parameters.
        batches: one, or several that together make the update (gradient accumulation).
        config: precision, smoothing and clip are read.
        step: counted from 1; seeds dropout.
        rate: the learning rate of this update.
        norm_limit: a gradient with a larger norm, before clipping, is refused.
        room: batches of more cells are taken in pieces (`memory.pieces`), to the same gradient; None for no limit.
        processes: those that share the batches.

    Raises:
        Refused: the loss or the gradient is not a finite number, or the gradient is too large; nothing was changed.
        PeerEnded: another process has ended; nothing was changed.
    """
    model.train()
    optimizer.zero_grad(set_to_none=True)
    for group in optimizer.param_groups:
        group["lr"] = rate
    tokens = sum(batch.target_tokens for batch in batches)
    shares = processes.attempt(
        lambda: [
            _backwards(model, batch, config, (step, part), tokens, room, processes)
            for part, batch in enumerate(batches)
        ]
    )
    parts = [_added(*of_batch) for of_batch in zip(*shares, strict=True)]
    losses = [loss for loss, _, _ in parts]
    processes.sum_gradients(model.parameters())
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip or math.inf).item()
    _check(losses, norm, norm_limit, tokens, config, step)
    optimizer.step()
    source_tokens = sum(batch.source_tokens for batch in batches)
    return StepSums(
        tokens, source_tokens, sum(losses), sum(nll for _, nll, _ in parts), sum(right for *_, right in parts), norm
    )


def try_batch(
    model: Trainable, batch: Examples, config: TrainingConfig, room: int | None, processes: Processes = SINGLE_PROCESS
) -> None:
    """Runs a batch, in its pieces, forwards and backwards, to see whether it fits into memory; changes no weight."""
    model.train()
    processes.attempt(lambda: _backwards(model, batch, config, (0, 0), batch.target_tokens, room, processes))


def _backwards(
    model: Trainable,
    batch: Examples,
    config: TrainingConfig,
    place: tuple[int, int],
    tokens: int,
    room: int | None,
    processes: Processes,
) -> tuple[float, float, int]:
    """Adds a batch's share to the gradient; its loss, loss without smoothing, and tokens guessed right.

    All three are of the rows that this process takes.
    """
    loss = nll = 0.0
    correct = 0
    own, row = processes.own_rows(batch)
    seed = step_seed(config.seed, *place)
    for piece in split_to_fit(own, room) if own is not None else ():
        torch.manual_seed(step_seed(seed, row) if row else seed)  # for what draws from PyTorch's generator
        low = config.precision == "bfloat16"
        with (
            random.step(seed, first_row=row),
            torch.autocast(piece.inputs[0].device.type, dtype=torch.bfloat16, enabled=low),
        ):
            sums = sequence_loss(model, piece, config.smoothing)
        (sums.total / tokens).backward()  # type: ignore[no-untyped-call]
        loss, nll, correct = (
            loss + sums.total.item(),
            nll + sums.nll.item(),
            correct + int(sums.correct.item()),
        )
        row += len(piece)
    return loss, nll, correct


def _added(*shares: tuple[float, float, int]) -> tuple[float, float, int]:
    """What `_backwards` gives for all rows of a batch."""
    losses, nlls, counts = zip(*shares, strict=True)
    return sum(losses), sum(nlls), sum(counts)


def _check(
    losses: Sequence[float], norm: float, norm_limit: float, tokens: int, config: TrainingConfig, step: int
) -> None:
    if math.isfinite(sum(losses)) and norm <= norm_limit and math.isfinite(norm):
        return
    loss = sum(losses) / tokens
    blamed = tuple(part for part, own in enumerate(losses) if not math.isfinite(own)) or tuple(range(len(losses)))
    if math.isfinite(loss) and math.isfinite(norm):
        reason = f"the norm of its gradient is {norm:.4g}, and may be {norm_limit:.4g}"
    else:
        reason = f"the loss is {loss:.4g} a token and the norm of its gradient {norm:.4g}"
    advice = f"Try a lower learning rate than {config.learning_rate:g} or a longer warm-up than {config.warmup}"
    raise RejectedUpdateError(
        f"update {step}: {reason}. {advice}; the checkpoints so far are kept", reason, loss, norm, blamed
    )
