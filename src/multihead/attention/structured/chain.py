r"""Linear chains and semi-Markov chains: marginals of states and segments.

    chain          p(z_1 .. z_N) = exp(sum_i u_i(z_i) + sum_i t_i(z_i, z_{i+1})) / Z
    semi-Markov    p(segments)   = exp(sum of segment(start, width, label) + sum of transition(label, next label)) / Z

**Chains** (Lafferty et al. 2001; as attention: Kim et al. 2017, section 3.2). log Z is a product of N matrices in the
semiring (logsumexp, +), which can be computed pair by pair: log2 N rounds of independent products instead of N
sequential steps. `_PairwiseProduct` does this for few states. With many states, where a product of two matrices costs
as much as ``states`` steps, `_ForwardRecursion` is faster; the tests compare the two.

**Semi-Markov chains** (Sarawagi & Cohen 2004) sum over all ways to cut positions 1..N into labeled segments of at most
K positions; with K = 1 this is a linear chain. With A_j(c) for all cuts of the first j positions that end in label c,

    B_i(c) = log sum_a exp(A_i(a) + transition(a, c)),    B_0 = 0
    A_j(c) = log sum_{k=1..K} exp(B_{j-k}(c) + segment(j - k, k, c))

and the marginals are the gradient of log Z = log sum_c exp A_N(c), by autograd.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.attention.backends.call import HALF_TYPES, at_least_float32
from multihead.attention.masks import sequence_mask
from multihead.attention.structured.partition import IMPOSSIBLE, Family, Trace, log_partition, log_sum
from multihead.errors import ShapeError

FEW_STATES = 6
"""Up to this number of states the pairwise product is faster (measured on a CPU, 32 sentences of length 40)."""


def chain_marginals(
    unary: Float[Tensor, "batch length states"],
    transition: Float[Tensor, "*places states states"],
    lengths: Int[Tensor, " batch"] | None = None,
) -> Float[Tensor, "batch length states"]:
    r"""The probability of each state at each position of a linear chain.

    .. math::
        p(z_i = c), \quad p(z) \propto \exp\Big(\sum_i u_i(z_i) + \sum_i t_i(z_i, z_{i+1})\Big)

    Args:
        unary: the score of each state at each position; -inf forbids a state.
        transition: the score of the transition from a state (row) to the next state (column): [states, states], or
            [batch, length - 1, states, states] with one matrix per position. -inf forbids a transition.
        lengths: number of positions of each sentence (default: all); later positions are padding. More than there are
            is all of them.

    Returns:
        Marginals that sum to 1 over the states; 0 in the padding and for a sentence without a possible path. They can
        be differentiated any number of times.

    Raises:
        ShapeError: the shapes of the tensors do not match.
    """
    return _solve(unary, transition, _present(unary, lengths))[1]


def chain_log_partition(
    unary: Float[Tensor, "batch length states"],
    transition: Float[Tensor, "*places states states"],
    lengths: Int[Tensor, " batch"] | None = None,
) -> Float[Tensor, " batch"]:
    """log Z of a linear chain: the log-probability of a path is its score minus log Z.

    0 for a sentence of length 0, -inf for a sentence without a possible path. Its gradient is the marginals.

    Raises:
        ShapeError: the shapes of the tensors do not match.
    """
    return _solve(unary, transition, _present(unary, lengths))[0]


def marginals_of_present(
    unary: Float[Tensor, "batch length states"],
    transition: Float[Tensor, "states states"],
    present: Bool[Tensor, "batch length"],
) -> Float[Tensor, "batch length states"]:
    """Marginals of chains in which any position may be missing; its neighbors are then adjacent."""
    return _solve(unary, transition, present)[1]


def _present(unary: Tensor, lengths: Tensor | None) -> Tensor | None:
    if unary.dim() != 3:
        raise ShapeError(f"unary has shape {list(unary.shape)}, expected [batch, length, states]")
    batch, length, _ = unary.shape
    if lengths is None:
        return None
    if lengths.shape != (batch,):
        raise ShapeError(f"lengths has shape {list(lengths.shape)}, expected one length for each of {batch} sentences")
    return sequence_mask(lengths.to(unary.device), length)


def _solve(unary: Tensor, transition: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor]:
    batch, length, states = unary.shape
    places = (batch, length - 1, states, states)
    if transition.shape not in ((states, states), places):
        raise ShapeError(
            f"transition has shape {list(transition.shape)}; with unary {list(unary.shape)} it must be "
            f"{[states, states]} or {list(places)}"
        )
    if batch == 0 or length == 0:
        return unary.sum((1, 2)), unary
    dtype = torch.promote_types(unary.dtype, transition.dtype)
    unary, transition = at_least_float32(unary), at_least_float32(transition)  # float16 has no IMPOSSIBLE
    scores = unary.permute(1, 2, 0).clamp(min=IMPOSSIBLE).contiguous()
    # Subtracting a constant from all states of a position changes no marginal and keeps more digits of float32.
    largest = scores.detach().amax(1, keepdim=True)
    largest = largest.masked_fill(largest < IMPOSSIBLE / 2, 0)
    factors = _factors(scores - largest, transition.clamp(min=IMPOSSIBLE), None if present is None else present.T)
    log_z, edges = log_partition(_PairwiseProduct() if states <= FEW_STATES else _ForwardRecursion(), factors)
    possible = log_z > IMPOSSIBLE / 2
    marginals = edges.sum(1) * possible
    if present is not None:
        largest, marginals = (tensor.masked_fill(~present.T[:, None], 0) for tensor in (largest, marginals))
    log_z = torch.where(possible, log_z + largest.sum((0, 1)), -torch.inf)
    if present is not None:
        log_z = torch.where(present.any(1), log_z, 0)
    return log_z.to(dtype), marginals.permute(2, 0, 1).to(dtype)


def _factors(arrivals: Tensor, transition: Tensor, present: Tensor | None) -> Tensor:
    """The N matrices [length, from, to, batch] whose product sums over all paths.

    The first position has no predecessor, so only row 0 of its matrix is possible. A missing position is the identity.
    """
    moves = transition.permute(1, 2, 3, 0) if transition.dim() == 4 else transition[None, :, :, None]
    states = moves.shape[1]
    begin = moves.new_full((1, states, states, moves.shape[3]), IMPOSSIBLE)
    begin[:, 0] = 0
    before = torch.cat((begin, moves.expand(len(arrivals) - 1, -1, -1, -1)))
    if present is None:
        return arrivals[:, None] + before
    first = present & (present.cumsum(0) == 1)
    identity = torch.full_like(begin, IMPOSSIBLE)
    identity.diagonal(dim1=1, dim2=2).zero_()
    factors = arrivals[:, None] + torch.where(first[:, None, None], begin, before)
    return torch.where(present[:, None, None], factors, identity)


class _ForwardRecursion(Family):
    """The forward recursion over positions, with marginals by autograd."""

    def plain(self, potentials: Tensor) -> Tensor:
        """alpha_i(b) = log sum_a exp(alpha_{i-1}(a) + factor_i(a, b))."""
        return _forward(potentials)

    def sums(self, potentials: Tensor) -> tuple[Tensor, Tensor, Trace]:
        """log Z by the recursion, and its gradient."""
        with torch.inference_mode(False), torch.enable_grad():
            leaf = potentials.clone().detach().requires_grad_()
            log_z = _forward(leaf)
            (marginals,) = torch.autograd.grad(log_z.sum(), leaf)
        return log_z.detach(), marginals, (potentials,)

    def tangent(self, trace: Trace, direction: Tensor) -> Tensor:
        """The gradient of (marginals . direction)."""
        with torch.enable_grad():
            leaf = trace[0].detach().requires_grad_()
            (marginals,) = torch.autograd.grad(_forward(leaf).sum(), leaf, create_graph=True)
            (change,) = torch.autograd.grad((marginals * direction).sum(), leaf)
        return change


def _forward(factors: Tensor) -> Tensor:
    alpha = factors[0].logsumexp(0)
    for factor in factors[1:]:
        alpha = (alpha[:, None] + factor).logsumexp(0)
    return alpha.logsumexp(0)


class _PairwiseProduct(Family):
    """The product of matrices in log2 N rounds; each round keeps the shares of the middle states."""

    def plain(self, potentials: Tensor) -> Tensor:
        """log Z by the forward recursion."""
        return _forward(potentials)

    def sums(self, potentials: Tensor) -> tuple[Tensor, Tensor, Trace]:
        """Up through the rounds for log Z, then down for the marginals."""
        rounds = []
        matrices = potentials
        while len(matrices) > 1:
            matrices, shares = _multiply_pairs(matrices, None)
            rounds.append(shares)
        log_z, top = log_sum(matrices[0].flatten(0, 1), 0)
        marginals = top.view_as(matrices)
        for shares in reversed(rounds):
            marginals = _push_down(shares, marginals)
        return log_z, marginals, (*rounds, top)

    def tangent(self, trace: Trace, direction: Tensor) -> Tensor:
        """The same two passes for the derivatives of their intermediate results."""
        *rounds, top = trace
        changes = []
        matrices = direction
        for shares in rounds:
            matrices, change = _multiply_pairs(matrices, shares)
            changes.append(change)
        moved = matrices[0].flatten(0, 1)
        marginals = top.view_as(matrices)
        change_of_marginals = (top * (moved - (top * moved).sum(0))).view_as(matrices)
        for shares, change in zip(reversed(rounds), reversed(changes), strict=True):
            change_of_marginals = _push_down(shares, change_of_marginals, change, marginals)
            marginals = _push_down(shares, marginals)
        return change_of_marginals


def _multiply_pairs(matrices: Tensor, shares: Tensor | None) -> tuple[Tensor, Tensor]:
    """Products of neighboring matrices, and the shares of their middle states.

    With ``shares``, ``matrices`` are tangents and so are the results: of the products, and relative ones of the shares.
    """
    pairs = len(matrices) // 2
    left, right = matrices[0 : 2 * pairs : 2], matrices[1 : 2 * pairs : 2]
    terms = left.unsqueeze(3) + right.unsqueeze(1)  # [pairs, from, middle, to, batch]
    if shares is None:
        products, kept = log_sum(terms, 2)
    else:
        products = (shares * terms).sum(2)
        kept = terms.sub_(products.unsqueeze(2))
    return (torch.cat((products, matrices[-1:])) if len(matrices) % 2 else products), kept


def _push_down(shares: Tensor, above: Tensor, change: Tensor | None = None, marginals: Tensor | None = None) -> Tensor:
    """The marginals of the factors of each product, from the marginals of the products.

    With ``change``, the relative change of the shares, ``above`` is the tangent of the ``marginals`` of the products.
    """
    pairs = len(shares)
    terms = above[:pairs].unsqueeze(2)
    if change is not None and marginals is not None:
        terms = terms + change * marginals[:pairs].unsqueeze(2)
    terms = terms * shares
    below = above.new_empty(2 * pairs + len(above) - pairs, *above.shape[1:])
    torch.sum(terms, 3, out=below[0 : 2 * pairs : 2])
    torch.sum(terms, 1, out=below[1 : 2 * pairs : 2])
    below[2 * pairs :] = above[pairs:]
    return below


def semi_markov_marginals(
    segment: Float[Tensor, "batch length width labels"],
    transition: Float[Tensor, "labels labels"],
    lengths: Int[Tensor, " batch"] | None = None,
) -> Float[Tensor, "batch length width labels"]:
    r"""The probability of each segment: start position, width and label.

    Args:
        segment: the score of a segment by start position, width (1, 2, ...) and label; -inf forbids it.
        transition: the score of a label (row) followed by another (column) in the next segment.
        lengths: number of positions of each sentence (default: all); more than there are is all of them.

    Returns:
        Marginals: the segments that cover a position sum to 1. 0 for segments that extend beyond the length, and for a
        sentence without a possible segmentation. They can be differentiated any number of times.

    Raises:
        ShapeError: the shapes of the tensors do not match.
    """
    training = torch.is_grad_enabled() and (segment.requires_grad or transition.requires_grad)
    with torch.inference_mode(False), torch.enable_grad():
        if not training:
            segment, transition = segment.clone().detach(), transition.clone().detach()
        scores = segment if segment.requires_grad else segment.detach().requires_grad_()
        log_z = _semi_markov_log_z(scores, transition, lengths)
        possible = log_z.masked_fill(log_z < IMPOSSIBLE / 2, 0)
        (marginals,) = torch.autograd.grad(possible.sum(), scores, create_graph=training)
    return marginals


def semi_markov_log_partition(
    segment: Float[Tensor, "batch length width labels"],
    transition: Float[Tensor, "labels labels"],
    lengths: Int[Tensor, " batch"] | None = None,
) -> Float[Tensor, " batch"]:
    """log Z of a semi-Markov chain: the log-probability of a segmentation is its score minus log Z.

    0 for a sentence of length 0, -inf for a sentence without a possible segmentation. Its gradient is the marginals.

    Raises:
        ShapeError: the shapes of the tensors do not match.
    """
    log_z = _semi_markov_log_z(segment, transition, lengths)
    return log_z.masked_fill(log_z < IMPOSSIBLE / 2, -torch.inf).to(segment.dtype)


def _semi_markov_log_z(segment: Tensor, transition: Tensor, lengths: Tensor | None) -> Tensor:
    """At least in float32; `IMPOSSIBLE` for a sentence without a segmentation."""
    if segment.dim() != 4 or transition.shape != (segment.shape[3], segment.shape[3]):
        raise ShapeError(
            f"segment has shape {list(segment.shape)} and transition {list(transition.shape)}, expected "
            "[batch, length, width, labels] and [labels, labels]"
        )
    batch, length, width, labels = segment.shape
    if lengths is None:
        lengths = torch.full((batch,), length, device=segment.device)
    if lengths.shape != (batch,):
        raise ShapeError(f"lengths has shape {list(lengths.shape)}, expected one length for each of {batch} sentences")
    work = torch.float32 if segment.dtype in HALF_TYPES else segment.dtype
    ending = _index_by_end(segment.to(work).clamp(min=IMPOSSIBLE))
    moves = transition.to(work).clamp(min=IMPOSSIBLE).unsqueeze(0)
    impossible = segment.new_full((batch, labels), IMPOSSIBLE, dtype=work)
    starts = [impossible] * (width - 1) + [torch.zeros_like(impossible)]  # B, beginning with B_{1-K}
    ends = []  # A, beginning with A_1
    for position in range(length):
        ends.append((torch.stack(starts[-1 : -width - 1 : -1], 1) + ending[:, position]).logsumexp(1))
        starts.append((ends[-1].unsqueeze(2) + moves).logsumexp(1))
    totals = [torch.zeros_like(impossible[:, 0]), *(alpha.logsumexp(1) for alpha in ends)]
    # Within the text, as `sequence_mask` understands lengths; no value is read from the device to refuse others.
    ends_at = lengths.to(segment.device, torch.long).clamp(0, length)
    return torch.stack(totals, 1).gather(1, ends_at.unsqueeze(1)).squeeze(1)


def _index_by_end(segment: Tensor) -> Tensor:
    """[batch, start, width, labels] -> [batch, last position, width, labels]; impossible for starts before 0."""
    length = segment.shape[1]
    columns = [
        F.pad(segment[:, : max(0, length - k), k], (0, 0, min(k, length), 0), value=IMPOSSIBLE)
        for k in range(segment.shape[2])
    ]
    return torch.stack(columns, 2)
