"""One update: forward, backward, clip, optimizer step; rejected updates.

All randomness of an update is a function of (seed, step, batch).

An update is applied completely or not at all. Loss and gradient are checked before the optimizer steps; if they are
not finite, or the gradient is too large, `RejectedUpdateError` is raised, and weights and optimizer state are
unchanged. An accepted update cannot break them: the squares of a gradient with a finite norm are finite, and Adam moves
a weight by at most the rate times max(1, (1 - beta1) / sqrt(1 - beta2)) (Kingma & Ba 2015, 2.1), plus weight decay. A
step of Muon has the same length whatever the length of the gradient.

A gradient is too large if its norm exceeds ``skip_above`` times the median of the last 64 norms, once the warm-up is
over, and as many times ``clip`` (or 1, if nothing is clipped). The norms of a model that has learned its corpus fall to
thousandths, and an ordinary pair that it gets wrong has hundreds of times as much, more than ``clip`` if it has few
neighbors in its batch. It is learned like any other: if it were skipped, the model would go on getting it wrong.

The trainer skips the batches of a rejected update: weights, optimizer state and average stay, the update counts (so the
schedule and the end of the run stay where they are), and the log names the lines of the corpora. The run stops if more
than ``skip_limit`` of the last 100 updates were skipped, or if the weights themselves are not finite, because then no
other batch would help. All of this depends on the `RunState`, so a resumed run rejects the same updates.

With several processes, each computes its rows of the same batches and makes the same update; loss and gradient are the
sums over all processes (`training.parallel`).
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from multihead.errors import DivergenceError
from multihead.kernels import random
from multihead.training.adam import Optimizer
from multihead.training.checkpoint import RunState
from multihead.training.config import TrainingConfig
from multihead.training.splitting import (
    SINGLE_PROCESS,
    Examples,
    FollowsLoss,
    Given,
    Pass,
    Processes,
    Trainable,
    sequence_loss,
)

T = TypeVar("T")

_MEDIAN_WINDOW = 64
"""Number of norms that the median is taken of."""
_SKIP_WINDOW = 100
"""Number of updates among which skipped ones are counted."""
_SMALL_NORM = 1.0
"""Stands for ``clip`` where no gradient is clipped: its default."""
_NORM_TOLERANCE = 1e-3
"""Maximum relative difference between the gradient norms of the processes; equal processors give equal norms."""


def norm_limit(config: TrainingConfig, state: RunState) -> float:
    """The largest gradient norm that the next update accepts."""
    if not config.skip_above or len(state.norms) < _MEDIAN_WINDOW or state.step < config.warmup:
        return math.inf
    usual = statistics.median(state.norms)
    return config.skip_above * max(usual, config.clip or _SMALL_NORM) if usual else math.inf


def append_norm(norms: tuple[float, ...], norm: float) -> tuple[float, ...]:
    """The last `_MEDIAN_WINDOW` norms, including this one."""
    return (*norms[1 - _MEDIAN_WINDOW :], norm)


def append_skipped(skipped: tuple[int, ...], step: int) -> tuple[int, ...]:
    """The skipped updates among the last `_SKIP_WINDOW`, including this one."""
    return (*(other for other in skipped if other > step - _SKIP_WINDOW), step)


def too_many_skipped(config: TrainingConfig, state: RunState) -> bool:
    """Whether more updates were skipped than single bad batches explain."""
    return len(state.skipped) > config.skip_limit


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether every number in the tensors is finite."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


class StepSums(NamedTuple):
    """Statistics of one update; sums, so that they can be added over updates."""

    tokens: int
    """Real target tokens."""
    source_tokens: int
    """Real source tokens."""
    loss: float
    """Sum of the smoothed loss of the labels, in nats."""
    nll: float
    """Sum of the loss without smoothing, in nats."""
    correct: int
    """Tokens whose prediction by arg-max is correct."""
    gradient_norm: float
    """Norm of the gradient before clipping."""
    soft: float = 0.0
    """Sum of the cross-entropy with the teachers' distributions, in nats; 0 without teachers."""
    guided: float = 0.0
    """Sum of the cross-entropy of alignments with a head's weights, in nats; 0 if no head is guided."""


class RejectedUpdateError(DivergenceError):
    """An update that was not applied: its loss or gradient is not finite, or its gradient is too large.

    Args:
        message: the complete error message, with advice.
        reason: what is wrong.
        loss: mean loss per token.
        norm: norm of the gradient.
        parts: indices of the batches whose own loss is not finite; all batches if there are none.
    """

    def __init__(self, message: str, reason: str, loss: float, norm: float, parts: tuple[int, ...]) -> None:
        super().__init__(message)
        self.reason, self.loss, self.norm, self.parts = reason, loss, norm, parts


def step_seed(seed: int, *place: int) -> int:
    """A 63-bit seed that depends on (seed, step, part, ...) and nothing else."""
    digest = hashlib.blake2b("/".join(map(str, (seed, *place))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def train_step(
    model: Trainable,
    optimizer: Optimizer,
    batches: Sequence[Given],
    config: TrainingConfig,
    step: int,
    rate: float,
    *,
    max_norm: float = math.inf,
    max_cells: int | None = None,
    processes: Processes = SINGLE_PROCESS,
) -> StepSums:
    """Make one update with the gradient of ``batches``, summed and divided by their number of target tokens.

    With weights, the loss is sum_i w_i L_i / sum_i w_i n_i over the pairs i of n_i tokens: a pair of weight 2 counts
    like the same pair twice, and one of weight 0 as if it were not there.

    Args:
        model: the model to train.
        optimizer: steps over the model's parameters.
        batches: one, or several for gradient accumulation.
        config: precision, smoothing, clip and seed are read.
        step: number of the update, counted from 1; part of the random seed.
        rate: learning rate of this update.
        max_norm: an update with a larger gradient norm, before clipping, is rejected.
        max_cells: larger batches are split (`splitting.split_to_fit`), which gives the same gradient; None = no limit.
        processes: the processes that share the batches.

    Raises:
        RejectedUpdateError: loss or gradient is not finite, or the gradient is too large; nothing was changed.
        PeerEnded: another process has ended; nothing was changed.
    """
    model.train()
    optimizer.zero_grad(set_to_none=True)
    for group in optimizer.param_groups:
        group["lr"] = rate
    tokens, source_tokens, divisor = processes.count_tokens(batches)

    def share_of(share: int) -> list[_Sums]:
        passes = processes.passes(batches, share, max_cells)
        return _backward(model, passes, config, (step, divisor or 1.0, len(batches)), processes)

    # sums_of_shares[share][part]: the sums of that share of the rows of that batch
    sums_of_processes = processes.attempt(lambda: _in_turn(share_of, processes.own_shares, model))
    sums_of_shares = [sums for own in sums_of_processes for sums in own]
    parts = [_add(shares) for shares in zip(*sums_of_shares, strict=True)]
    losses = [part.loss for part in parts]
    processes.sum_gradients(model.parameters())
    norm = processes.clip_gradient(model.parameters(), config.clip or math.inf)
    _check(losses, norm, max_norm, tokens, config, step)
    optimizer.step()
    found = _add(parts)
    if isinstance(model, FollowsLoss) and tokens:
        model.follow_loss(found.loss / tokens)
    return StepSums(tokens, source_tokens, found.loss, found.nll, found.hits, norm, found.soft, found.guided)


def try_batch(
    model: Trainable,
    batch: Examples,
    config: TrainingConfig,
    max_cells: int | None,
    processes: Processes = SINGLE_PROCESS,
) -> None:
    """Run a batch forward and backward to see whether it fits into memory; changes no weight."""
    model.train()

    def share_of(share: int) -> list[_Sums]:
        passes = processes.passes([batch], share, max_cells)
        return _backward(model, passes, config, (0, float(batch.target_tokens), 1), processes, update=False)

    processes.attempt(lambda: _in_turn(share_of, processes.own_shares, model))


def _in_turn(compute: Callable[[int], T], shares: Sequence[int], model: Trainable) -> list[T]:
    """Compute shares one after the other; their gradients are added as `Processes.sum_gradients` adds them."""
    found = [compute(shares[0])]
    for share in shares[1:]:
        parameters = [parameter for _, parameter in model.named_parameters()]
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        found.append(compute(share))
        for parameter, gradient in zip(parameters, before, strict=True):
            if gradient is not None or parameter.grad is not None:
                one, other = (torch.zeros_like(parameter) if g is None else g for g in (gradient, parameter.grad))
                parameter.grad = one.add_(other)
    return found


def _seed(device: str, seed: int) -> None:
    """`torch.manual_seed` for what computes on one device.

    The generators of all devices take longer than a small layer: PyTorch keeps the stack of the call, as text, for
    each kind that nobody has used yet.
    """
    if device == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _backward(
    model: Trainable,
    passes: Sequence[Pass],
    config: TrainingConfig,
    place: tuple[int, float, int],
    processes: Processes,
    *,
    update: bool = True,
) -> list[_Sums]:
    """Add the gradient of some rows of an update's batches; return the sums over these rows, a batch at a time.

    Args:
        model: accumulates the gradient in its parameters.
        passes: the rows.
        config: precision, smoothing and seed are read.
        place: the update, for the random seed; what the gradient is divided by, its target tokens in all processes;
            its batches.
        processes: those that share the update.
        update: whether the gradient is needed.
    """
    step, divisor, parts = place
    found = [_Sums()] * parts
    for number, (part, piece, first_row, counts) in enumerate(passes, 1):
        seed = step_seed(config.seed, step, part)
        # Two sources of randomness: our kernels derive each mask from the seed and the row's number in the whole
        # batch; whatever draws from PyTorch's generator gets a seed of its own for each piece.
        _seed(piece.inputs[0].device.type, step_seed(seed, first_row) if first_row else seed)
        with processes.synchronizing(update and number == len(passes)):
            with (
                random.step(seed, first_row=first_row),
                torch.autocast(
                    piece.inputs[0].device.type, dtype=torch.bfloat16, enabled=config.precision == "bfloat16"
                ),
            ):
                sums = sequence_loss(processes.entry(model), piece, config.smoothing)
            (sums.total / divisor if counts else sums.total * 0).backward()  # type: ignore[no-untyped-call]
        if counts:
            labels = sums.total if sums.labels is None else sums.labels
            soft = 0.0 if sums.soft is None else sums.soft.item()
            guided = 0.0 if sums.guided is None else sums.guided.item()
            own = _Sums(labels.item(), sums.nll.item(), int(sums.correct.item()), soft, guided)
            found[part] = _add((found[part], own))
    return found


class _Sums(NamedTuple):
    """Sums over rows, as in `StepSums`."""

    loss: float = 0.0
    nll: float = 0.0
    hits: int = 0
    soft: float = 0.0
    guided: float = 0.0


def _add(parts: Sequence[_Sums]) -> _Sums:
    """Add sums over pieces, processes or batches."""
    return _Sums(*map(sum, zip(*parts, strict=True)))


def _check(
    losses: Sequence[float], norm: float, max_norm: float, tokens: int, config: TrainingConfig, step: int
) -> None:
    """Raise `RejectedUpdateError` if loss or gradient is not finite, or the gradient is too large."""
    if math.isfinite(sum(losses)) and norm <= max_norm and math.isfinite(norm):
        return
    loss = sum(losses) / tokens
    parts = tuple(part for part, own in enumerate(losses) if not math.isfinite(own)) or tuple(range(len(losses)))
    if math.isfinite(loss) and math.isfinite(norm):
        reason = f"the norm of its gradient is {norm:.4g}, and may be {max_norm:.4g}"
    else:
        reason = f"the loss is {loss:.4g} a token and the norm of its gradient {norm:.4g}"
    advice = f"Try a lower learning rate than {config.learning_rate:g} or a longer warm-up than {config.warmup}"
    message = f"update {step}: {reason}. {advice}; the checkpoints so far are kept"
    raise RejectedUpdateError(message, reason, loss, norm, parts)


def check_same_update(step: int, norms: Sequence[float]) -> None:
    """Check that all processes make the same updates.

    Args:
        step: the last update.
        norms: the norm of its gradient in each process.

    Raises:
        DivergenceError: the norms differ by more than rounding.
    """
    if max(norms) - min(norms) > _NORM_TOLERANCE * max(norms):
        found = ", ".join(f"{norm:.4g}" for norm in norms)
        raise DivergenceError(
            f"update {step}: the processes no longer have the same weights (norms of the gradient: {found}); the "
            "checkpoints so far are kept. Use equal processors or GPUs, and equal versions, in all processes"
        )
