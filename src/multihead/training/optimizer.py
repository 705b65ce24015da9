"""Optimizers (Adam, Muon), learning-rate schedules, moving average.

Muon orthogonalizes the momentum of a matrix before the matrix moves by it (Jordan et al. 2024). For the weight W [m, n]
of a linear map inside a network, with the gradient G_t:

    B_t = mu B_(t-1) + (1 - mu) G_t
    U_t = mu B_t + (1 - mu) G_t                                             (Nesterov momentum)
    W_t = (1 - eta lambda) W_(t-1) - eta s sqrt(max(m, n)) orthogonal(U_t)

where orthogonal(P S Q^T) = P Q^T for the singular value decomposition of U: all directions of a step get the same
length, including rare ones. With s = 0.2 a step is about as large as Adam's (Liu et al. 2025, section 2.2). There is no
decomposition; matrix products bring the singular values close to 1, except for the smallest. For the same number of
updates Muon needs fewer sentences than Adam (docs/lab-notes.md), at the cost of a few products per matrix, independent
of the batch. It is not meant for embeddings (whose rows are words, not directions), the projection to the vocabulary,
or vectors: Adam moves those. Nor is it meant for fine-tuning weights that Adam has trained.

The learning rate is a function of the step alone, so a resumed run needs no scheduler state. With t the step (from 1),
W the warm-up, T the number of updates, D the model width, and eta the setting ``learning_rate``:

    linear          eta * min(t / W, (T + 1 - t) / (T + 1 - W))
    cosine          eta * t / W                                             for t < W
                    eta * (1 + cos(pi (t - W) / (T + 1 - W))) / 2           for t >= W
                    (Loshchilov & Hutter 2017, eq. 5, one period without a restart)
    inverse_sqrt    eta * min(t / W, sqrt(W / t))
    constant        eta * min(t / W, 1)
    trapezoid       eta * min(t / W, 1, 4 (T + 1 - t) / T)                  (constant with a cool-down in the last
                    quarter: Haegele et al. 2024)
    noam            eta * D^-0.5 * min(t^-0.5, t * W^-1.5)                  (Vaswani et al. 2017, 5.3; eta is lr_mul)

All rise linearly until t = W and are continuous there; linear, cosine and trapezoid reach 0 at T + 1, right after the
last update. Noam is inverse_sqrt with the peak eta / sqrt(D W).

The moving average of the weights (Polyak & Juditsky 1992) is what is validated and kept:

    theta' <- d theta' + (1 - d) theta,    d = min(decay, (1 + t) / (10 + t))

The decay is small at the beginning, so that the initial values are soon forgotten.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, Generic

import torch
from jaxtyping import Float
from torch import Tensor, nn

from multihead.attention.multihead import PackedLinear
from multihead.kernels.native import check, multiplies_half, thread_count
from multihead.kernels.native.tensors import TYPES, library_for, pointer
from multihead.training.adam import AdamW, Groups, Optimizer
from multihead.training.config import TrainingConfig
from multihead.training.splitting import Model, Trainable

MOMENTUM = 0.95
"""mu."""

_COEFFICIENTS = (
    (7.7110, -22.1138, 16.2487),
    (3.2153, -2.4112, 0.5013),
    (2.2183, -1.5940, 0.4107),
)
"""a, b and c of each iteration: optimal odd polynomials of degree 5, in a sequence as that of Amsel et al. (2025): the
first is the one nearest to 1 on [0.02, 1], each further one on the interval that those before it map to. More of them
would bring smaller singular values closer to 1, which gains nothing (docs/lab-notes.md, "Three passes of Muon")."""

_SAFE = 1.01
"""All iterations but the last scale their matrix down by this: rounding may have moved a singular value above 1, where
the polynomials diverge."""


def linear_maps(model: Trainable) -> dict[nn.Parameter, tuple[int, ...]]:
    """The weights of a model's linear maps, except for embeddings and the output projection.

    The value of a weight is the number of rows of each map in it: queries, keys and values are three maps in one matrix
    (`PackedLinear`).
    """
    excluded = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    output = getattr(model, "output", None)
    excluded |= {id(weight) for weight in output.parameters()} if isinstance(output, nn.Module) else set()
    maps: dict[nn.Parameter, tuple[int, ...]] = {}
    for module in model.modules():
        if isinstance(module, (nn.Linear, PackedLinear)) and id(module.weight) not in excluded:
            weight: Any = module.weight
            maps[weight] = module.sizes if isinstance(module, PackedLinear) else (len(weight),)
    return maps


@torch.no_grad()
def orthogonal(
    matrices: Float[Tensor, "maps rows columns"], dtype: torch.dtype = torch.float32
) -> Float[Tensor, "maps rows columns"]:
    """Approximately P Q^T for each matrix P S Q^T: large singular values come out near 1, the smallest ones smaller.

        X_0     = U / |U|                                    (Frobenius norm: no singular value is above 1)
        X_(k+1) = a_k X_k + (b_k A + c_k A A) X_k,           A = X_k X_k^T

    This is the Newton-Schulz iteration with different coefficients in each of its three steps. A singular value of at
    least a fiftieth of the norm comes out within 0.12 of 1; a smaller one is multiplied by at most 54, so noise stays
    small, and a matrix of zeros stays zero.

    Args:
        matrices: a stack of matrices U.
        dtype: type of the products.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices  # wide, so that A = X X^T is the smaller of the two products
    compiled = matrices.dtype == torch.float32 and (dtype == torch.float32 or (dtype in TYPES and multiplies_half()))
    library = library_for(matrices) if compiled else None
    if library is not None and matrices.numel():
        x = x.clone(memory_format=torch.contiguous_format)
        steps = torch.tensor(_coefficients())
        status = library.orthogonal(
            *(pointer(x, matrices.numel(), torch.float32), *x.shape),
            *(pointer(steps, steps.numel(), torch.float32), len(steps), _SAFE, TYPES[dtype], thread_count()),
        )
        check(status)
        return x.mT if tall else x
    largest = x.abs().amax(dim=(1, 2), keepdim=True).clamp_min(1e-30)  # squares of x itself may underflow
    norm = (x / largest).norm(dim=(1, 2), keepdim=True) * largest
    x = (x / (norm * _SAFE).clamp_min(1e-30)).to(dtype)
    for a, b, c in _coefficients():
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


def _coefficients() -> list[tuple[float, float, float]]:
    """a, b and c of each iteration; of all but the last those of the same polynomial of x / _SAFE."""
    *first, last = _COEFFICIENTS
    return [*((a / _SAFE, b / _SAFE**3, c / _SAFE**5) for a, b, c in first), last]


class Muon(Groups):
    """Muon for linear maps, and Adam for all other parameters.

    Args:
        maps: weights with the number of rows of each map in them (`linear_maps`).
        adam: the optimizer of all other parameters; its state and parameter groups become part of this optimizer's.
        weight_decay: lambda.
        scale: s; with 0.2 the root mean square of a step is about that of Adam's.
        dtype: type of the products that orthogonalize a step.
    """

    def __init__(
        self,
        maps: Mapping[nn.Parameter, tuple[int, ...]],
        adam: Optimizer,
        *,
        weight_decay: float = 0.0,
        scale: float = 0.2,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        own = {"params": list(maps), "lr": 0.0, "weight_decay": weight_decay}
        super().__init__([own, *adam.param_groups], adam.state)
        self._maps, self._adam, self._scale, self._dtype = dict(maps), adam, scale, dtype

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters that have a gradient."""
        self._adam.step()
        group = self.param_groups[0]
        weights: list[Any] = [weight for weight in self._maps if weight.grad is not None]
        if not weights:
            return
        gradients: list[Any] = [weight.grad for weight in weights]
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        momenta = [self.state[weight]["momentum"] for weight in weights]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        steps = torch._foreach_lerp(gradients, momenta, MOMENTUM)
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        self._apply_steps([self._maps[weight] for weight in weights], weights, steps, group["lr"])

    def _apply_steps(
        self, maps: Sequence[tuple[int, ...]], weights: Sequence[Tensor], steps: Sequence[Tensor], rate: float
    ) -> None:
        """Orthogonalize the steps, maps of one shape in one batched call, and subtract them from the weights."""
        # shape -> (view of the weight, step) of each map; tall maps are transposed, so that they share stacks with wide
        stacks: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
        for sizes, weight, step in zip(maps, weights, steps, strict=True):
            rows = list(sizes)
            for part, part_step in zip(weight.split_with_sizes(rows), step.split_with_sizes(rows), strict=True):
                wide = (part.mT, part_step.mT) if part.shape[0] > part.shape[1] else (part, part_step)
                stacks.setdefault(tuple(wide[0].shape), []).append(wide)
        for shape, stack in stacks.items():
            directions = orthogonal(torch.stack([step for _, step in stack]), self._dtype)
            length = rate * self._scale * math.sqrt(max(shape))
            torch._foreach_add_([part for part, _ in stack], list(directions.unbind()), alpha=-length)


_COOLDOWN = 4
"""The rate of 'trapezoid' falls in the last 1 / _COOLDOWN of the run."""


def learning_rate(config: TrainingConfig, step: int | float, width: int) -> float:
    """The learning rate of update ``step``.

    Args:
        config: schedule, learning_rate, warmup and updates are read.
        step: the update, counted from 1; between two updates in a stretched schedule (`training.plan`).
        width: the model width D; only 'noam' uses it.
    """
    warmup = max(config.warmup, 1)
    if config.schedule == "noam":
        return float(config.learning_rate * width**-0.5 * min(step**-0.5, step * warmup**-1.5))
    return config.learning_rate * max(min(step / warmup, _decay(config, step, warmup)), 0.0)


def _decay(config: TrainingConfig, step: int | float, warmup: int) -> float:
    """Share of the peak rate after the warm-up; during the warm-up at least ``step / warmup``."""
    falling = max(config.updates + 1 - config.warmup, 1)
    match config.schedule:
        case "linear":
            return (config.updates + 1 - step) / falling
        case "cosine":
            return 1.0 if step < warmup else (1 + math.cos(math.pi * min((step - warmup) / falling, 1.0))) / 2
        case "trapezoid":
            return min(1.0, _COOLDOWN * (config.updates + 1 - step) / config.updates)
        case "inverse_sqrt":
            return math.sqrt(warmup / step)
        case _:
            return 1.0


def build_optimizer(model: Trainable, config: TrainingConfig, muon: type[Muon] = Muon) -> Optimizer:
    """AdamW (Loshchilov & Hutter 2019), or ``muon`` and AdamW; vectors (biases, norms) do not decay."""
    maps = linear_maps(model) if config.optimizer == "muon" else {}
    parameters = [p for p in model.parameters() if p.requires_grad and p not in maps]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    adam = AdamW([group for group in groups if group["params"]], betas=(config.beta1, config.beta2), eps=1e-9)
    if not maps:
        return adam
    products = torch.bfloat16 if config.precision == "bfloat16" else torch.float32
    return muon(maps, adam, weight_decay=config.weight_decay, scale=config.muon_scale, dtype=products)


def optimizer_tensors(model: Trainable, optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as named tensors: ``<parameter>/<exp_avg|exp_avg_sq|step|momentum>``."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{name}/{key}"] = value
    return tensors


def restore_optimizer(model: Trainable, optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore the state that `optimizer_tensors` returned, moving each tensor to its parameter's device."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, _, field = key.rpartition("/")
        parameter = parameters[name]
        optimizer.state[parameter][field] = value.to(parameter.device, copy=True)


class Average(Generic[Model]):
    """A copy of the model whose weights are a moving average of the model's.

    Args:
        model: the model in training.
        decay: maximum of d; 0 disables averaging: the average is the model itself.
        frozen: whether weights that need no gradient never change: both models share them.
    """

    def __init__(self, model: Model, decay: float, *, frozen: bool = False) -> None:
        self.decay = decay
        shared: dict[int, Any] = {id(p): p for p in model.parameters() if frozen and not p.requires_grad}
        self.is_copy = decay > 0
        self.model: Model = copy.deepcopy(model, {**shared}) if self.is_copy else model
        self._names = [name for name, p in model.named_parameters() if id(p) not in shared]
        own, averaged = dict(model.named_parameters()), dict(self.model.named_parameters())
        self._averages: list[Tensor] = [averaged[name] for name in self._names]
        self._weights: list[Tensor] = [own[name] for name in self._names]

    def tensors(self) -> dict[str, Tensor]:
        """The averages by name, without weights that both models share; none if averaging is disabled."""
        return dict(zip(self._names, self._averages, strict=True)) if self.is_copy else {}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average after update ``step``, counted from 1."""
        if self.decay:
            decay = min(self.decay, (1 + step) / (10 + step))
            torch._foreach_lerp_(self._averages, self._weights, 1 - decay)
