"""Data parallelism by FSDP2: each process keeps a part of the model.

PyTorch's `fully_shard` divides the rows of every parameter among the processes. The weights of a layer are gathered
before it computes, and dropped afterwards; its gradients are summed during the backward pass, each process receiving
its part. So a process keeps 1/N of weights, gradients, optimizer state and moving average, and the whole of one layer
at a time (the embeddings and the output projection, which may share their weights, count as one).

    one group a layer     each element of an `nn.ModuleList`, and the rest of the model
    other entry points    `loss` of the model and `project_memory` of a layer gather weights as `forward` does
    sums, not means       set in every group: what is set for the model alone does not hold for its layers
    equal work            processes wait for each other in every pass, so all make as many as the one with most pieces

Precision bfloat16 is autocast's, as without sharding, and weights are gathered in float32. FSDP2's mixed precision
would gather half of the bytes, but it rounds embeddings and the gains of norms, too, and with them every sum of
residuals: other updates than those of one process.

With NCCL this has not been run; the tests run it with gloo between CPUs. Checkpoints are in
`training.sharded_checkpoint`, the loop is `training.sharded_trainer`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from multihead.training.config import TrainingConfig
from multihead.training.optimizer import MOMENTUM, Muon
from multihead.training.parallel import InGroup
from multihead.training.splitting import Examples, Model, Pass, Processes, Trainable

_ENTRY_POINTS = ("loss", "project_memory")
"""Methods besides ``forward`` by which a group is entered in training."""


class Sharded(InGroup):
    """Processes with a part of the model each; the constructor divides it.

    Args:
        group: the connected processes.
        model: the model to train, with equal weights in each process.
        training: its device is read.
    """

    def __init__(self, group: Processes, model: Trainable, training: TrainingConfig) -> None:
        super().__init__(group)
        self._zero_rows: Callable[[], Sequence[tuple[Tensor, int]]] = getattr(model, "zero_rows", tuple)
        shard(cast(nn.Module, model), self.size, training)

    def complete(self, passes: list[Pass], filler: Examples) -> list[Pass]:
        most = max(self.all_gather(len(passes)))
        return passes + [Pass(0, filler, 0, counts=False)] * (max(most, 1) - len(passes))

    @contextmanager
    def synchronizing(self, last: bool) -> Iterator[None]:
        """Every pass sums, so that no process ever has a whole gradient."""
        del last
        with warnings.catch_warnings():  # our layers return views, and nothing changes these in place
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
            yield

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Drop the gradients of rows that stay zero; the passes have summed the others."""
        del parameters
        for weight, row in self._zero_rows():
            if weight.grad is not None:
                own_rows(weight.grad)[_own_place(weight, row)] = 0

    def clip_gradient(self, parameters: Iterable[nn.Parameter], most: float) -> float:
        """The norm is that of the whole gradient, equal in each process."""
        norm = torch.nn.utils.clip_grad_norm_(parameters, most)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def shard(model: nn.Module, size: int, training: TrainingConfig) -> None:
    """Divide the parameters of a model among ``size`` processes, a group a layer."""
    device = torch.device(training.device).type
    mesh = init_device_mesh(device, (size,))
    for module in (*layers_of(model), model):
        fully_shard(module, mesh=mesh)
        group = cast(FSDPModule, module)
        group.set_gradient_divide_factor(1.0)
        group.set_force_sum_reduction_for_comms(True)
        for name in _ENTRY_POINTS:
            if hasattr(module, name):
                register_fsdp_forward_method(module, name)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The elements of the module lists of a model, without lists inside them."""
    found: list[nn.Module] = []
    for child in model.children():
        found += child if isinstance(child, nn.ModuleList) else layers_of(child)
    return [module for module in found if any(True for _ in module.parameters())]


def own_rows(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process has; writing to it changes the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All rows of a tensor; every process has to call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_part(full: Tensor, like: Tensor) -> Tensor:
    """The rows of a whole tensor that this process has of ``like``."""
    if not isinstance(like, DTensor):
        return full
    start, stop = _own_range(like)
    return full[start:stop]


def _own_range(tensor: DTensor) -> tuple[int, int]:
    """Which rows this process has: as many as `torch.chunk` gives it."""
    mesh = tensor.device_mesh
    rows = -(-len(tensor) // mesh.size())
    start = min(mesh.get_local_rank() * rows, len(tensor))
    return start, min(start + rows, len(tensor))


def _own_place(weight: Tensor, row: int) -> slice:
    """Where a row is among the own ones; empty if it is not."""
    if not isinstance(weight, DTensor):
        return slice(row, row + 1)
    start, stop = _own_range(weight)
    return slice(row - start, row - start + 1) if start <= row < stop else slice(0, 0)


class ShardedMuon(Muon):
    """Muon whose weights and momenta are divided among processes.

    A step is orthogonalized as a whole, so each process gathers the rows of a matrix, computes the whole step as it
    would without the others, and applies its rows of it: one matrix at a time.
    """

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters that have a gradient."""
        self._adam.step()
        group = self.param_groups[0]
        for weight, rows in self._maps.items():
            if weight.grad is None:
                continue
            if not self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
            momentum = own_rows(self.state[weight]["momentum"])
            momentum.lerp_(own_rows(weight.grad), 1 - MOMENTUM)
            step = whole(_like(torch.lerp(own_rows(weight.grad), momentum, MOMENTUM), weight))
            movement = torch.zeros_like(step)
            self._apply_steps([rows], [movement], [step], group["lr"])
            own = own_rows(weight.detach())
            if group["weight_decay"]:
                own.mul_(1 - group["lr"] * group["weight_decay"])
            own.add_(own_part(movement, weight))


def _like(own: Tensor, weight: Tensor) -> Tensor:
    """A tensor divided as ``weight`` is, of which this process has the rows ``own``."""
    if not isinstance(weight, DTensor):
        return own
    return DTensor.from_local(
        own, weight.device_mesh, weight.placements, run_check=False, shape=weight.shape, stride=weight.stride()
    )


class ShardedAverage(Generic[Model]):
    """The moving average of a model's weights (`optimizer.Average`), divided as they are.

    Args:
        model: a model that is not divided yet; `follow` names the divided one.
        decay: maximum of d; 0 disables averaging: the average is the model itself.
    """

    def __init__(self, model: Model, decay: float) -> None:
        self.decay = decay
        empty = {id(p): nn.Parameter(p.detach().new_empty(0), p.requires_grad) for p in model.parameters()}
        self._empty: Model = copy.deepcopy(model, cast("dict[int, Any]", empty))
        self._weights: dict[str, Tensor] = {}
        self.tensors: dict[str, Tensor] = {}
        """The averages by the names of the parameters; the parameters themselves without averaging."""

    def follow(self, parameters: Mapping[str, Tensor]) -> None:
        """Begin with the values of these parameters."""
        self._weights = {name: parameter.detach() for name, parameter in parameters.items()}
        self.tensors = {n: w.clone() for n, w in self._weights.items()} if self.decay else self._weights

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average after update ``step``, counted from 1."""
        if self.decay:
            decay = min(self.decay, (1 + step) / (10 + step))
            own = [own_rows(average) for average in self.tensors.values()]
            torch._foreach_lerp_(own, [own_rows(weight) for weight in self._weights.values()], 1 - decay)

    @contextmanager
    def gathered(self) -> Iterator[Model]:
        """A model with the whole averaged weights, in every process, which takes their memory for the time."""
        parameters = dict(self._empty.named_parameters())
        for name, average in self.tensors.items():
            parameters[name].data = whole(average)
        try:
            yield self._empty
        finally:
            for parameter in parameters.values():
                parameter.data = parameter.data.new_empty(0)
