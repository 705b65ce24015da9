r"""Projective dependency trees: Eisner's algorithm.

Eisner 1996, "Three New Probabilistic Models for Dependency Parsing"; as attention: Kim et al. 2017, section 3.2 and
appendix A. With words 1..n, ROOT at 0 and s(h, m) the score of an arc from head to modifier, for a span i..j

    S(i, j)   = log sum_{i <= k < j}  exp(R(i, k) + L(k+1, j))         two complete halves meet
    >(i, j)   = S(i, j) + s(i, j)         <(i, j) = S(i, j) + s(j, i)  an arc joins them (incomplete spans)
    R(i, j)   = log sum_{i < k <= j}  exp(>(i, k) + R(k, j))           head i with all its modifiers up to j
    L(i, j)   = log sum_{i <= k < j}  exp(L(i, k) + <(k, j))           head j with all its modifiers down to i

and log Z = R(0, n). For exactly one root word, S(0, j) uses only the empty span R(0, 0). `_plain` computes these
equations directly. `Eisner` computes all spans of one width at a time, in tables whose layout makes the operands two
strided views. The outside pass goes back through the same views with each split's share of its sum, which yields the
marginal of every arc with products and additions only. Per sentence: time n^3 / 2 in 2n steps, and n^3 / 2 numbers for
the shares.
"""

from __future__ import annotations

import torch
from torch import Tensor

from multihead.attention.structured.partition import IMPOSSIBLE, Family, Trace, log_sum


class Eisner(Family):
    """Sums over projective trees; potentials [nodes (head), nodes (modifier), batch], node 0 = ROOT, without a head.

    Args:
        multiroot: whether ROOT may have several modifiers.
    """

    def __init__(self, multiroot: bool) -> None:
        self.multiroot = multiroot

    def plain(self, potentials: Tensor) -> Tensor:
        """log Z by the equations above."""
        return _plain(potentials, self.multiroot)

    def sums(self, potentials: Tensor) -> tuple[Tensor, Tensor, Trace]:
        """The inside pass with growing widths, then the outside pass with shrinking widths."""
        spans, shares = _inside(potentials.contiguous(), self.multiroot)
        marginals = torch.zeros_like(potentials, memory_format=torch.contiguous_format)
        outer = _outside(spans, shares, marginals)
        return spans.root.clone(), marginals, (outer.falling, outer.rising, *shares)

    def tangent(self, trace: Trace, direction: Tensor) -> Tensor:
        """The derivatives of both passes along ``direction``."""
        falling, rising, *shares = trace
        changes = _inside_tangent(direction, shares)
        return _outside_tangent(Spans(falling, rising), shares, changes, torch.zeros_like(direction))


class Spans:
    """The four tables of spans, and the views of all spans of one width.

    ``falling[0]`` holds > and ``falling[1]`` L, indexed by the start of the span, widest first. ``rising[0]`` holds R
    and ``rising[1]`` <, indexed by the end of the span, narrowest first. All are [nodes (width), nodes (place), batch].
    The splits of a span then run through the rows of one falling and one rising table in the same direction, for all
    spans of a width at once. Indexing a table by the other end of the span is a diagonal, that is, a stride.
    """

    def __init__(self, falling: Tensor, rising: Tensor) -> None:
        self.falling, self.rising = falling, rising
        self.nodes, self.batch = falling.shape[1], falling.shape[3]

    @classmethod
    def filled(cls, like: Tensor, value: float) -> Spans:
        """Tables for potentials shaped like ``like``, filled with ``value``."""
        nodes, _, batch = like.shape
        falling, rising = (like.new_full((2, nodes, nodes, batch), value) for _ in range(2))
        return cls(falling, rising)

    @property
    def root(self) -> Tensor:
        """R(0, n) [batch]."""
        return self.rising[0, -1, -1]

    def halves(self, width: int) -> tuple[Tensor, Tensor]:
        """The operands of S: R(i, k) and L(k+1, j), [splits, spans, batch] each."""
        shape = (width, self.nodes - width, self.batch)
        diagonal = ((self.nodes + 1) * self.batch, self.batch, 1)
        first = self.falling[1, self.nodes - width, 1:]
        return (
            self.rising.as_strided(shape, diagonal, self.rising.storage_offset()),
            first.as_strided(shape, diagonal, first.storage_offset()),
        )

    def parts(self, width: int) -> tuple[Tensor, Tensor]:
        """The operands of R and L: (> and L), (R and <), [2, splits, spans, batch] each."""
        return self.falling[:, self.nodes - width :, : self.nodes - width], self.rising[:, :width, width:]

    def incomplete(self, width: int) -> tuple[Tensor, Tensor]:
        """> and < of all spans, [spans, batch] each."""
        return self.falling[0, self.nodes - width, : self.nodes - width], self.rising[1, width - 1, width:]

    def complete(self, width: int) -> tuple[Tensor, Tensor]:
        """R and L of all spans, [spans, batch] each."""
        return self.rising[0, width, width:], self.falling[1, self.nodes - 1 - width, : self.nodes - width]


def _arcs(table: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The arcs i -> i + width and i + width -> i of [head, modifier, batch], for all i: [spans, batch] each."""
    return table.diagonal(width).T, table.diagonal(-width).T


def _inside(arcs: Tensor, multiroot: bool) -> tuple[Spans, list[Tensor]]:
    """All tables, and the shares of the splits: for each width those of S, then those of R and L."""
    spans = Spans.filled(arcs, IMPOSSIBLE)
    for single in spans.complete(0):
        single.zero_()
    shares = []
    for width in range(1, spans.nodes):
        left, right = spans.halves(width)
        terms = left + right
        if not multiroot:
            terms[1:, 0] = IMPOSSIBLE  # the span from ROOT: only the empty R(0, 0)
        met, share = log_sum(terms, 0)
        shares.append(share)
        for arc, cell in zip(_arcs(arcs, width), spans.incomplete(width), strict=True):
            torch.add(met, arc, out=cell)
        left, right = spans.parts(width)
        done, share = log_sum(left + right, 1)
        shares.append(share)
        for value, cell in zip(done, spans.complete(width), strict=True):
            cell.copy_(value)
    return spans, shares


def _outside(spans: Spans, shares: list[Tensor], marginals: Tensor) -> Spans:
    """The marginals of all spans; the marginals of arcs are written to ``marginals``."""
    outer = Spans.filled(marginals, 0.0)
    outer.root.fill_(1.0)
    for width in range(spans.nodes - 1, 0, -1):
        terms = shares[2 * width - 1] * torch.stack(outer.complete(width)).unsqueeze(1)
        for part in outer.parts(width):
            part.add_(terms)
        right, left = outer.incomplete(width)
        for arc, cell in zip(_arcs(marginals, width), (right, left), strict=True):
            arc.copy_(cell)
        terms = shares[2 * width - 2] * (right + left)
        for half in outer.halves(width):
            half.add_(terms)
    return outer


def _inside_tangent(direction: Tensor, shares: list[Tensor]) -> list[Tensor]:
    """The relative change of each share when the arcs move along ``direction``."""
    moved = Spans.filled(direction, 0.0)
    changes = []
    for width in range(1, moved.nodes):
        left, right = moved.halves(width)
        terms = left + right
        met = (shares[2 * width - 2] * terms).sum(0)
        changes.append(terms.sub_(met))
        for arc, cell in zip(_arcs(direction, width), moved.incomplete(width), strict=True):
            torch.add(met, arc, out=cell)
        left, right = moved.parts(width)
        terms = left + right
        done = (shares[2 * width - 1] * terms).sum(1)
        changes.append(terms.sub_(done.unsqueeze(1)))
        for value, cell in zip(done, moved.complete(width), strict=True):
            cell.copy_(value)
    return changes


def _outside_tangent(outer: Spans, shares: list[Tensor], changes: list[Tensor], result: Tensor) -> Tensor:
    """The change of the arc marginals, from the marginals of the spans and the changes of the shares."""
    moved = Spans.filled(result, 0.0)
    for width in range(outer.nodes - 1, 0, -1):
        whole, change = torch.stack(outer.complete(width)).unsqueeze(1), changes[2 * width - 1]
        terms = change.mul_(whole).add_(torch.stack(moved.complete(width)).unsqueeze(1)).mul_(shares[2 * width - 1])
        for part in moved.parts(width):
            part.add_(terms)
        right, left = moved.incomplete(width)
        for arc, cell in zip(_arcs(result, width), (right, left), strict=True):
            arc.copy_(cell)
        whole, change = torch.add(*outer.incomplete(width)), changes[2 * width - 2]
        terms = change.mul_(whole).add_(right + left).mul_(shares[2 * width - 2])
        for half in moved.halves(width):
            half.add_(terms)
    return result


def _plain(arcs: Tensor, multiroot: bool) -> Tensor:
    nodes = len(arcs)
    empty = torch.zeros_like(arcs[:, 0])
    # Each table: width -> all spans of that width by their start, [spans, batch].
    right, left, to_right, to_left = {0: empty}, {0: empty}, {}, {}
    for width in range(1, nodes):
        count = nodes - width
        terms = [right[k][:count] + left[width - 1 - k][k + 1 : k + 1 + count] for k in range(width)]
        if not multiroot:
            root = torch.zeros_like(empty[:count])
            root[0] = IMPOSSIBLE
            terms[1:] = [term + root for term in terms[1:]]
        met = torch.stack(terms).logsumexp(0)
        to_right[width] = met + arcs.diagonal(width).T
        to_left[width] = met + arcs.diagonal(-width).T
        splits = range(1, width + 1)
        right[width] = torch.stack([to_right[k][:count] + right[width - k][k : k + count] for k in splits]).logsumexp(0)
        left[width] = torch.stack(
            [left[width - k][:count] + to_left[k][width - k : width - k + count] for k in splits]
        ).logsumexp(0)
    return right[nodes - 1][0]
