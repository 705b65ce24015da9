r"""Log-partition functions of structures, with two derivatives.

A structure z (a path through states, a tree) has the score theta . z, the sum of the potentials of its parts. Then

    p(z) = exp(theta . z) / Z,    log Z = log sum_z exp(theta . z),    d log Z / d theta_i = p(part i is in z)

(Wainwright & Jordan 2008, section 3.4.1; Kim et al. 2017, section 3, use the marginals as attention weights). A family
of structures defines log Z readably (`Family.plain`), and log Z with all marginals fast (`Family.sums`). Training
through marginals needs their gradient, which is the Hessian of log Z times a vector v. The Hessian is symmetric, so the
same product is the change of the marginals when theta moves along v: one more run of the recursions, with tangents
(`Family.tangent`). Higher derivatives are computed by autograd through `plain`.

All computations are in log space, so scores of any magnitude are safe. `chain`, `eisner` and `matrix_tree` define the
families. The batch is the last axis here, so that the innermost loop of every operation runs over sentences.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from multihead.attention.backends.call import at_least_float32
from multihead.kernels.native.tensors import without_autocast

IMPOSSIBLE = -1e30
"""Replaces -inf: sums and differences stay finite, so no NaN arises, and its exp is exactly 0."""

Trace = tuple[Tensor, ...]


class Family(ABC):
    """A kind of structure, and the recursions that sum over all its structures. Potentials are [..., batch]."""

    @abstractmethod
    def plain(self, potentials: Tensor) -> Tensor:
        """log Z [batch], from operations that autograd can differentiate any number of times."""

    @abstractmethod
    def sums(self, potentials: Tensor) -> tuple[Tensor, Tensor, Trace]:
        """log Z [batch], the marginals (shaped like the potentials), and the tensors that `tangent` needs."""

    @abstractmethod
    def tangent(self, trace: Trace, direction: Tensor) -> Tensor:
        """The change of the marginals when the potentials move along ``direction``: the Hessian of log Z times it."""


def log_partition(family: Family, potentials: Tensor) -> tuple[Tensor, Tensor]:
    """log Z [batch] and the marginals; both can be differentiated any number of times.

    Half-precision potentials are computed in float32; the results have their type.
    """
    work = at_least_float32(potentials)
    with without_autocast(potentials.device.type):
        log_z, marginals = _LogPartition.apply(work, family)  # type: ignore[no-untyped-call]
    return log_z.to(potentials.dtype), marginals.to(potentials.dtype)


class _LogPartition(torch.autograd.Function):
    """`Family.sums` as one autograd operation with two outputs."""

    @staticmethod
    def forward(ctx: Any, potentials: Tensor, family: Family) -> tuple[Tensor, Tensor]:
        log_z, marginals, trace = family.sums(potentials)
        ctx.family = family
        ctx.set_materialize_grads(False)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(potentials, marginals, *trace)
        return log_z, marginals

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        for_log_z, for_marginals = gradients
        potentials, marginals, *trace = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: this gradient will be differentiated too
            return _differentiable_gradient(ctx.family, potentials, for_log_z, for_marginals), None
        total = None if for_log_z is None else marginals * for_log_z
        if for_marginals is not None:
            change = ctx.family.tangent(tuple(trace), for_marginals.contiguous())
            total = change if total is None else total.add_(change)
        return total, None


def _differentiable_gradient(
    family: Family, potentials: Tensor, for_log_z: Tensor | None, for_marginals: Tensor | None
) -> Tensor:
    """The same gradient as a graph, by differentiating the plain recursion twice."""
    log_z = family.plain(potentials)
    (marginals,) = torch.autograd.grad(log_z.sum(), potentials, create_graph=True)
    total = torch.zeros_like(potentials) if for_log_z is None else marginals * for_log_z
    if for_marginals is None:
        return total
    (change,) = torch.autograd.grad((marginals * for_marginals).sum(), potentials, create_graph=True)
    return total + change


def log_sum(terms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """log sum exp over an axis, which it removes, and each term's share of the sum, which keeps the axis.

    The largest share is exp(largest term - log sum), so the log of the sum needs no second pass of exponentials.
    """
    shares = terms.softmax(dim)
    return terms.amax(dim) - shares.amax(dim).log_(), shares
