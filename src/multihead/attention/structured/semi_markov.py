r"""Semi-Markov chains: a sequence cut into labelled segments, and the probability of each segment.

    p(segments) = exp(sum of segment(start, width, label) + sum of transition(label, next label)) / Z

over all ways to cut positions 1..N into consecutive segments of at most K positions and to label them (Sarawagi & Cohen
2004). Width 1 alone is a linear chain (`chain`). With A_j(c) for all cuts of the first j positions that end in label c,

    B_i(c) = log sum_a exp(A_i(a) + transition(a, c)),    B_0 = 0
    A_j(c) = log sum_{k=1..K} exp(B_{j-k}(c) + segment(j - k, k, c))

and the marginals are the gradient of log Z = log sum_c exp A_N(c), by autograd.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from multihead.attention.backends import HALF_TYPES
from multihead.attention.structured.partition import IMPOSSIBLE
from multihead.errors import ShapeError


def semi_markov_marginals(
    segment: Float[Tensor, "batch length width labels"],
    transition: Float[Tensor, "labels labels"],
    lengths: Int[Tensor, " batch"] | None = None,
) -> Float[Tensor, "batch length width labels"]:
    r"""The probability that a segment starts at a position, with a width and a label.

    Args:
        segment: the score of a segment that starts at a position, is 1, 2, ... wide and has a label; -inf forbids it.
        transition: the score of a label (row) being followed by another (column) in the next segment.
        lengths: how many positions each sentence has (default: all).

    Returns:
        Marginals: the sum over the segments that cover a position is 1. 0 for segments that reach beyond the length,
        and where no cut is possible. They can be differentiated any number of times.

    Raises:
        ShapeError: the tensors do not fit together.
    """
    training = torch.is_grad_enabled() and (segment.requires_grad or transition.requires_grad)
    with torch.inference_mode(False), torch.enable_grad():
        if not training:
            segment, transition = segment.clone().detach(), transition.clone().detach()
        scores = segment if segment.requires_grad else segment.detach().requires_grad_()
        log_z = _log_partition(scores, transition, lengths)
        possible = log_z.masked_fill(log_z < IMPOSSIBLE / 2, 0)
        (marginals,) = torch.autograd.grad(possible.sum(), scores, create_graph=training)
    return marginals


def semi_markov_log_partition(
    segment: Float[Tensor, "batch length width labels"],
    transition: Float[Tensor, "labels labels"],
    lengths: Int[Tensor, " batch"] | None = None,
) -> Float[Tensor, " batch"]:
    """log Z of the same cuts: the score of one minus this is its log-probability.

    0 for a sentence of length 0, -inf where no cut is possible. Its gradient are the marginals.

    Raises:
        ShapeError: the tensors do not fit together.
    """
    log_z = _log_partition(segment, transition, lengths)
    return log_z.masked_fill(log_z < IMPOSSIBLE / 2, -torch.inf)


def _log_partition(segment: Tensor, transition: Tensor, lengths: Tensor | None) -> Tensor:
    if segment.dim() != 4 or transition.shape != (segment.shape[3], segment.shape[3]):
        raise ShapeError(
            f"segment has shape {list(segment.shape)} and transition {list(transition.shape)}, but they must be "
            "[batch, length, width, labels] and [labels, labels]"
        )
    batch, length, width, labels = segment.shape
    if lengths is None:
        lengths = torch.full((batch,), length, device=segment.device)
    if lengths.shape != (batch,):
        raise ShapeError(f"lengths has shape {list(lengths.shape)}, but there are {batch} sentences: one length each")
    work = torch.float32 if segment.dtype in HALF_TYPES else segment.dtype
    ending = _by_end(segment.to(work).clamp(min=IMPOSSIBLE))
    moves = transition.to(work).clamp(min=IMPOSSIBLE).unsqueeze(0)
    nothing = segment.new_full((batch, labels), IMPOSSIBLE, dtype=work)
    before = [nothing] * (width - 1) + [torch.zeros_like(nothing)]
    ended = []
    for end in range(length):
        ended.append((torch.stack(before[-1 : -width - 1 : -1], 1) + ending[:, end]).logsumexp(1))
        before.append((ended[-1].unsqueeze(2) + moves).logsumexp(1))
    totals = [torch.zeros_like(nothing[:, 0]), *(alpha.logsumexp(1) for alpha in ended)]
    return torch.stack(totals, 1).gather(1, lengths.to(segment.device).unsqueeze(1)).squeeze(1).to(segment.dtype)


def _by_end(segment: Tensor) -> Tensor:
    """[batch, start, width, labels] -> [batch, last position, width, labels]; impossible what would start before 0."""
    length = segment.shape[1]
    columns = [
        F.pad(segment[:, : max(0, length - k), k], (0, 0, min(k, length), 0), value=IMPOSSIBLE)
        for k in range(segment.shape[2])
    ]
    return torch.stack(columns, 2)
