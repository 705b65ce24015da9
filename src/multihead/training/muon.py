"""Muon: momentum that is made orthogonal before a matrix moves by it; Adam for whatever is no map between states.

For the weight W [m, n] of a linear map inside a network, with the gradient G_t (Jordan et al. 2024; the factor that
makes a step as large as Adam's is that of Liu et al. 2025, section 2.2):

    B_t = mu B_(t-1) + (1 - mu) G_t
    U_t = mu B_t + (1 - mu) G_t                                             (Nesterov's form of the momentum)
    W_t = (1 - eta lambda) W_(t-1) - eta s sqrt(max(m, n)) orthogonal(U_t)

where orthogonal(P S Q^T) = P Q^T for the singular value decomposition of U: all directions of a step have the same
length, the rare ones included. Nothing is decomposed: products of matrices alone bring the singular values near to 1.

Why it is here: for the same number of updates it needs fewer sentences than Adam (docs/lab-notes.md has how many), at a
cost that is a few products a matrix, whatever the batch. What it is not for: embeddings, whose rows are words and not
directions, the projection to the vocabulary, vectors, and a network's start from weights that Adam has found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from multihead.attention.multihead import PackedLinear
from multihead.training.loss import Trainable

MOMENTUM = 0.95
"""mu."""

SCALE = 0.2
"""s."""

_COEFFICIENTS = (
    (8.2872, -23.5959, 17.3004),
    (4.1071, -2.9478, 0.5448),
    (3.9487, -2.9089, 0.5518),
    (3.3184, -2.4885, 0.5100),
    (2.3007, -1.6689, 0.4188),
)
"""a, b and c of each pass: the best odd polynomials of degree 5, one after the other (Amsel et al. 2025, table of
section 4)."""

_SAFE = 1.01
"""Every pass but the last works as if its matrix were smaller by this: rounding may have brought a singular value above
1, where these polynomials no longer bring it back."""


def linear_maps(model: Trainable) -> dict[nn.Parameter, tuple[int, ...]]:
    """The weights of a model's linear maps, with the rows of each map that is in it; without its vocabulary's.

    Queries, keys and values lie in one matrix (`PackedLinear`) and are three maps.
    """
    others = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    output = getattr(model, "output", None)
    others |= {id(weight) for weight in output.parameters()} if isinstance(output, nn.Module) else set()
    found: dict[nn.Parameter, tuple[int, ...]] = {}
    for module in model.modules():
        if isinstance(module, (nn.Linear, PackedLinear)) and id(module.weight) not in others:
            weight: Any = module.weight
            found[weight] = module.sizes if isinstance(module, PackedLinear) else (len(weight),)
    return found


@torch.no_grad()
def orthogonal(
    matrices: Float[Tensor, "maps rows columns"], dtype: torch.dtype = torch.float32
) -> Float[Tensor, "maps rows columns"]:
    """P Q^T of each matrix P S Q^T, nearly: its singular values come out within a few per cent of 1.

        X_0     = U / |U|                                    (Frobenius: no singular value is above 1)
        X_(k+1) = a_k X_k + (b_k A + c_k A A) X_k,           A = X_k X_k^T

    (the Newton-Schulz iteration with coefficients of its own for each of its five passes). A singular value below
    about a thousandth of the norm stays below 1; a matrix of zeros stays zero.

    Args:
        matrices: of one shape.
        dtype: of the products.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = (x / (x.norm(dim=(1, 2), keepdim=True) * _SAFE).clamp_min(1e-30)).to(dtype)
    for number, (a, b, c) in enumerate(_COEFFICIENTS, 1):
        if number < len(_COEFFICIENTS):
            a, b, c = a / _SAFE, b / _SAFE**3, c / _SAFE**5
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """The update above for linear maps, and Adam's for the rest.

    Args:
        maps: weights, and the rows of each map in them: as `linear_maps` gives them.
        adam: steps over all other parameters; its state and its groups of parameters become part of this one's.
        weight_decay: lambda.
        dtype: of the products that make a step orthogonal.
    """

    def __init__(
        self,
        maps: Mapping[nn.Parameter, tuple[int, ...]],
        adam: torch.optim.Optimizer,
        *,
        weight_decay: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(list(maps), {"lr": 0.0, "weight_decay": weight_decay})
        self._maps, self._adam, self._dtype = dict(maps), adam, dtype
        adam.state = self.state
        self.param_groups += adam.param_groups

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update of all parameters that have a gradient."""
        assert closure is None, "the gradient is there already"
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
        self._move(weights, steps, group["lr"])

    def _move(self, weights: Sequence[nn.Parameter], steps: Sequence[Tensor], rate: float) -> None:
        """Maps of one shape are made orthogonal together; one that is taller than wide lies on its side."""
        stacks: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
        for weight, step in zip(weights, steps, strict=True):
            sizes = list(self._maps[weight])
            for part, of_step in zip(weight.split_with_sizes(sizes), step.split_with_sizes(sizes), strict=True):
                lying = (part.mT, of_step.mT) if part.shape[0] > part.shape[1] else (part, of_step)
                stacks.setdefault(tuple(lying[0].shape), []).append(lying)
        for shape, stack in stacks.items():
            moved = orthogonal(torch.stack([step for _, step in stack]), self._dtype)
            size = rate * SCALE * math.sqrt(max(shape))
            torch._foreach_add_([part for part, _ in stack], list(moved.unbind()), alpha=-size)
