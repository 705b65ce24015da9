"""Data parallelism by DDP: gradients are summed in the backward pass.

PyTorch's `DistributedDataParallel` sums a bucket of gradients while those of earlier layers are computed, which hides
the time of the network behind that of the GPU. A communication hook replaces its mean by a sum, because a loss here is
divided by the target tokens of all processes. Passes before the last one add to the gradients of the process
(`no_sync`); the last one sums. A process without rows computes a row of another one, whose gradient counts zero times.

With NCCL between GPUs this has not been run; the tests run it with gloo between CPUs.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from multihead.errors import ConfigurationError
from multihead.kernels.linear import Loss
from multihead.training.parallel import InGroup
from multihead.training.splitting import Examples, Pass, Processes, Trainable

_BUFFERS = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel.__init__).parameters
)
"""The argument that says whether buffers are sent before each pass: ours are equal constants. Its name has changed."""


class _LossOf(nn.Module):
    """A module whose forward pass is the loss of a model, for wrappers that know forward passes only."""

    def __init__(self, model: Trainable) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any, smoothing: float) -> Loss:
        return self.model.loss(*inputs, smoothing=smoothing)


class _Wrapped(DistributedDataParallel):
    """DDP as a `Trainable`."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, **options)
        # Freed after the reducer. If the reducer were the last to hold the group, it would wait for gloo's thread while
        # it keeps Python's lock, which that thread may need to free its last tensors.
        self.kept_group = dist.group.WORLD

    def loss(self, *inputs: Any, smoothing: float) -> Loss:
        return cast(Loss, self(*inputs, smoothing=smoothing))


class Replicated(InGroup):
    """Processes with a copy of the model each.

    Args:
        group: the connected processes.
        model: the model to train, with equal weights in each process.
    """

    def __init__(self, group: Processes, model: Trainable) -> None:
        super().__init__(group)
        self._wrapped = _Wrapped(_LossOf(model), gradient_as_bucket_view=True, **{_BUFFERS: False})
        self._wrapped.register_comm_hook(None, lambda _, bucket: _sum(bucket))

    def entry(self, model: Trainable) -> Trainable:
        del model
        return cast(Trainable, self._wrapped)

    def complete(self, passes: list[Pass], filler: Examples) -> list[Pass]:
        return passes or [Pass(0, filler, 0, counts=False)]

    def synchronizing(self, last: bool) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if last else self._wrapped.no_sync()

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Check that the backward pass has summed every gradient: DDP waits for all of them.

        Raises:
            ConfigurationError: it has not, because the loss does not depend on some parameter.
        """
        if any(parameter.grad is None for parameter in parameters if parameter.requires_grad):
            raise ConfigurationError(
                "the loss does not depend on every parameter, and --parallel replicated waits for the gradient of "
                "each; go on with --parallel sum"
            )


def _sum(bucket: Any) -> Future[Tensor]:
    """The sum of a bucket over all processes."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    summed: Future[list[Tensor]] = work.get_future()
    return cast("Future[Tensor]", summed.then(_first))


def _first(done: Future[list[Tensor]]) -> Tensor:
    return done.value()[0]
