"""Cross-entropy with distributions, given by their most probable symbols.

    p(v) = sum_j p_j 1[v = i_j]  +  (1 - sum_j p_j) / V          symbols i_1 ... i_k with probabilities p_1 ... p_k
    soft = sum_v p(v) (-log q(v)),    q = softmax(z)              what the k symbols leave is spread over all V
    loss = (1 - w) labels  +  w soft                              labels: the label-smoothed cross-entropy
    dz   = q  -  (1 - w) ((1 - s) 1[y] + s / V)  -  w p

(Hinton et al. 2015, "Distilling the knowledge in a neural network"; for translation, Kim and Rush 2016, section 3.1.)
With k = V this is the cross-entropy with the whole distribution. `kernels.linear` projects pieces of a batch and calls
`piece` for their loss; `plain_soft_cross_entropy` is the definition.
"""

from __future__ import annotations

from ctypes import CDLL
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from multihead.errors import ShapeError
from multihead.kernels.native import check, thread_count
from multihead.kernels.native.tensors import TYPES, pointer


class SoftTargets(NamedTuple):
    """What a student learns besides the label of each row, and how much that counts."""

    ids: Int64[Tensor, "rows symbols"]
    """Symbols of each row; all differ."""
    probabilities: Float32[Tensor, "rows symbols"]
    """Their probabilities, whose sum is at most 1."""
    weight: float
    """w: the share of the soft targets in the loss, from 0 to 1; the rest is that of the labels."""

    def rows(self, start: int, stop: int) -> SoftTargets:
        """The soft targets of some rows."""
        return SoftTargets(self.ids[start:stop], self.probabilities[start:stop], self.weight)

    def check(self, rows: int, vocabulary: int) -> None:
        """Check that there is a distribution over the vocabulary for each row.

        Raises:
            ShapeError: there are more or fewer, or not a probability for each symbol.
            IndexError: a symbol is not in the vocabulary.
        """
        if len(self.ids) != rows or self.ids.shape != self.probabilities.shape:
            shapes = f"{list(self.ids.shape)} symbols and {list(self.probabilities.shape)} probabilities"
            raise ShapeError(f"soft targets are needed for each of {rows} rows, got {shapes}")
        if self.ids.numel() and not 0 <= int(self.ids.min()) <= int(self.ids.max()) < vocabulary:
            raise IndexError(f"soft targets must be from 0 to {vocabulary - 1}")


def plain_soft_cross_entropy(logits: Float[Tensor, "rows vocab"], soft: SoftTargets) -> Float[Tensor, " rows"]:
    """sum_v p(v) (-log q(v)) of each row: the definition, with PyTorch's operations."""
    probabilities = soft.probabilities.to(logits.dtype)
    rest = (1 - probabilities.sum(-1, keepdim=True)) / logits.shape[-1]
    dense = rest.expand_as(logits).scatter_add(-1, soft.ids, probabilities)
    return -(dense * F.log_softmax(logits, -1)).sum(-1)


def piece(
    logits: Tensor, target: Tensor, smoothing: float, soft: SoftTargets, library: CDLL | None, needs_grad: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of some rows.

    Args:
        logits: z [rows, vocab], at least float32 without ``library``; overwritten.
        target: the label of each row.
        smoothing: label smoothing s.
        soft: the soft targets of these rows.
        library: the compiled kernels, if they support the logits; they sum in float64.
        needs_grad: whether dz is needed.

    Returns:
        For each row [4, rows]: loss, cross-entropy with the label without smoothing, labels, soft; dz [rows, vocab];
        and in how many rows no logit is larger than the label's.

    Raises:
        ShapeError: there are not as many labels and soft targets as rows.
        IndexError: a label or a symbol is not in the vocabulary.
    """
    rows, vocabulary = logits.shape
    soft.check(rows, vocabulary)
    if library is None:
        nll, labels, own, hits = _plain_piece(logits, target, smoothing, soft, needs_grad)
    else:
        nll, labels, own, hits = _compiled_piece(library, logits, target, smoothing, soft, needs_grad)
    return torch.stack(((1 - soft.weight) * labels + soft.weight * own, nll, labels, own)), logits, hits


def _plain_piece(
    logits: Tensor, target: Tensor, smoothing: float, soft: SoftTargets, needs_grad: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Nll, labels, soft and hits."""
    vocabulary, w = logits.shape[-1], soft.weight
    probabilities = soft.probabilities.to(logits.dtype)
    rest = 1 - probabilities.sum(-1)
    largest, sums = logits.amax(-1), logits.sum(-1)
    at_target = logits.gather(-1, target[:, None]).squeeze(-1)
    at_soft = (probabilities * logits.gather(-1, soft.ids)).sum(-1)
    hits = (at_target == largest).sum()
    exponentials = logits.sub_(largest[:, None]).exp_()
    partition = exponentials.sum(-1)
    log_partition = largest + partition.log()
    nll = log_partition - at_target
    labels = log_partition - (1 - smoothing) * at_target - smoothing / vocabulary * sums
    own = log_partition - at_soft - rest / vocabulary * sums
    if needs_grad:
        exponentials.div_(partition[:, None])  # softmax(z), which becomes dz in place
        exponentials.sub_(((1 - w) * smoothing + w * rest)[:, None] / vocabulary)
        minus = torch.full_like(at_target, (1 - w) * (smoothing - 1.0))
        exponentials.scatter_add_(-1, target[:, None], minus[:, None])
        exponentials.scatter_add_(-1, soft.ids, -w * probabilities)
    return nll, labels, own, hits


def _compiled_piece(
    library: CDLL, logits: Tensor, target: Tensor, smoothing: float, soft: SoftTargets, needs_grad: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, vocabulary = logits.shape
    count = soft.ids.shape[1]
    ids, probabilities = soft.ids.contiguous(), soft.probabilities.contiguous()
    sums = torch.empty(3, rows, dtype=torch.float64)  # labels, nll and soft of each row
    hits = torch.empty(rows, dtype=torch.int64)
    labels, nll, own = (pointer(part, rows, torch.float64) for part in sums)
    status = library.soft_cross_entropy(
        *(pointer(logits, rows * vocabulary, logits.dtype), TYPES[logits.dtype]),
        *(pointer(target, rows, torch.int64), rows, vocabulary, smoothing, needs_grad),
        *(labels, nll, pointer(hits, rows, torch.int64)),
        *(pointer(ids, rows * count, torch.int64), pointer(probabilities, rows * count, torch.float32)),
        *(count, soft.weight, own, thread_count()),
    )
    check(status)
    label_loss, plain_loss, soft_loss = sums.unbind()
    return plain_loss, label_loss, soft_loss, hits.sum()
