"""Marginals of chains and segments equal enumeration; lengths, -inf, extreme scores, gradients."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from multihead.attention.structured import (
    chain_log_partition,
    chain_marginals,
    semi_markov_log_partition,
    semi_markov_marginals,
)
from multihead.attention.structured.chain import FEW_STATES, marginals_of_present
from multihead.errors import ShapeError

STATES = (1, 2, 3, FEW_STATES + 1)
"""The last one uses the forward recursion, the others the pairwise product."""


def inputs(
    states: int, length: int = 4, batch: int = 3, scale: float = 1.0, by_place: bool = False
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(states)
    places = (batch, length - 1) if by_place else ()
    return tuple(
        scale * torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((batch, length, states), (*places, states, states))
    )


def paths(unary: Tensor, transition: Tensor) -> tuple[Tensor, Tensor]:
    """log Z and marginals of one sentence by enumerating all paths."""
    length, states = unary.shape
    moves = transition if transition.dim() == 3 else transition.expand(length, -1, -1)
    every = torch.tensor(list(product(range(states), repeat=length)))
    scores = sum(unary[i, every[:, i]] for i in range(length))
    scores = scores + sum(moves[i, every[:, i], every[:, i + 1]] for i in range(length - 1))
    probabilities = scores.softmax(0)
    one_hot = torch.nn.functional.one_hot(every, states).double()
    return scores.logsumexp(0), (probabilities[:, None, None] * one_hot).sum(0)


@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize("by_place", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_marginals_are_those_of_all_paths(states: int, by_place: bool, length: int) -> None:
    unary, transition = inputs(states, length, by_place=by_place)
    log_z, marginals = chain_log_partition(unary, transition), chain_marginals(unary, transition)
    for row in range(3):
        expected = paths(unary[row], transition[row] if by_place else transition)
        torch.testing.assert_close(log_z[row], expected[0], rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(marginals[row], expected[1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("states", STATES)
def test_lengths_cut_and_rows_do_not_talk(states: int) -> None:
    unary, transition = inputs(states, 6, batch=4)
    lengths = torch.tensor([6, 0, 1, 4])
    for row, length in enumerate(lengths.tolist()):
        unary[row, length:] = torch.nan
    unary.requires_grad_()
    log_z, marginals = chain_log_partition(unary, transition, lengths), chain_marginals(unary, transition, lengths)
    for row, length in enumerate(lengths.tolist()):
        assert (marginals[row, length:] == 0).all()
        alone = unary[row, None, :length]
        torch.testing.assert_close(marginals[row, :length], chain_marginals(alone, transition)[0])
        torch.testing.assert_close(log_z[row], chain_log_partition(alone, transition)[0])
    assert log_z[1] == 0
    (gradient,) = torch.autograd.grad(log_z.sum() + marginals[..., 0].sum(), unary)
    assert gradient.isfinite().all()


def test_a_missing_position_makes_its_neighbors_adjacent() -> None:
    unary, transition = inputs(2, 6, batch=32)
    present = torch.rand(32, 6, generator=torch.Generator().manual_seed(1)) < 0.5
    marginals = marginals_of_present(unary, transition, present)
    for row in range(32):
        kept = unary[row, None, present[row]]
        torch.testing.assert_close(marginals[row, present[row]], chain_marginals(kept, transition)[0])
    assert (marginals[~present] == 0).all()


@pytest.mark.parametrize("states", STATES)
def test_marginals_are_the_gradient_and_can_be_differentiated(states: int) -> None:
    unary, transition = (tensor.requires_grad_() for tensor in inputs(states, 3, batch=2))
    lengths = torch.tensor([3, 2])
    (gradient,) = torch.autograd.grad(chain_log_partition(unary, transition, lengths).sum(), unary)
    torch.testing.assert_close(gradient, chain_marginals(unary, transition, lengths))

    def both(unary: Tensor, transition: Tensor) -> tuple[Tensor, Tensor]:
        return chain_log_partition(unary, transition, lengths), chain_marginals(unary, transition, lengths)

    assert torch.autograd.gradcheck(both, (unary, transition), fast_mode=states > 3)
    assert torch.autograd.gradgradcheck(both, (unary, transition), fast_mode=True)


def test_without_transitions_positions_are_independent() -> None:
    unary, _ = inputs(2, 7)
    marginals = chain_marginals(unary, torch.zeros(2, 2).double())
    torch.testing.assert_close(marginals[..., 1], (unary[..., 1] - unary[..., 0]).sigmoid())


@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize("scale", [60.0, 1e4])
def test_extreme_scores_stay_right_in_float32(states: int, scale: float) -> None:
    unary, transition = (tensor.float() for tensor in inputs(states, 4, batch=8, scale=scale))
    marginals = chain_marginals(unary.requires_grad_(), transition)
    expected = torch.stack([paths(row, transition.double())[1] for row in unary.detach().double()])
    torch.testing.assert_close(marginals, expected.float(), rtol=0, atol=2e-3 if scale > 100 else 1e-4)
    (gradient,) = torch.autograd.grad(marginals.square().sum(), unary)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("states", [2, FEW_STATES + 1])
def test_minus_infinity_forbids(states: int) -> None:
    unary, transition = inputs(states, 4, batch=2)
    unary[0, 1, 0] = -torch.inf
    unary[1, 2] = -torch.inf  # no possible state
    transition[1, 0] = -torch.inf
    unary.requires_grad_()
    log_z, marginals = chain_log_partition(unary, transition), chain_marginals(unary, transition)
    expected = paths(unary[0], transition)
    torch.testing.assert_close(log_z[0], expected[0])
    torch.testing.assert_close(marginals[0], expected[1])
    assert marginals[0, 1, 0] == 0
    assert log_z[1] == -torch.inf
    assert (marginals[1] == 0).all()
    with torch.autograd.set_detect_anomaly(True):
        (gradient,) = torch.autograd.grad(marginals.square().sum(), unary)
    assert gradient.isfinite().all()
    assert (gradient[1] == 0).all()


@pytest.mark.parametrize("states", STATES)
def test_marginals_can_be_had_in_inference_mode(states: int) -> None:
    with torch.inference_mode():
        unary, transition = inputs(states)
        marginals, segments = chain_marginals(unary, transition), semi_markov_marginals(unary[:, :, None], transition)
    torch.testing.assert_close(marginals.sum(-1), torch.ones(3, 4).double())
    torch.testing.assert_close(segments[:, :, 0], marginals)
    assert not segments.requires_grad


def test_empty_batches_and_sentences() -> None:
    assert chain_marginals(torch.zeros(0, 3, 2), torch.zeros(2, 2)).shape == (0, 3, 2)
    assert chain_marginals(torch.zeros(2, 0, 2), torch.zeros(2, 2)).shape == (2, 0, 2)
    assert chain_log_partition(torch.zeros(2, 0, 2), torch.zeros(2, 2)).tolist() == [0, 0]
    assert chain_marginals(torch.zeros(2, 3, 2).bfloat16(), torch.zeros(2, 2).bfloat16()).dtype == torch.bfloat16
    draw = torch.Generator().manual_seed(1)
    unary, transition = (torch.randn(*size, generator=draw).half() for size in ((2, 3, 2), (2, 2)))
    mixed = chain_log_partition(unary.bfloat16(), transition.float())
    torch.testing.assert_close(mixed, chain_log_partition(unary.bfloat16().float(), transition.float()))
    segment, lengths = torch.randn(2, 3, 2, 2, generator=draw).half(), torch.tensor([3, 1])
    for function, scores in (
        (chain_marginals, unary),
        (chain_log_partition, unary),
        (semi_markov_marginals, segment),
        (semi_markov_log_partition, segment),
    ):
        expected = function(scores.float(), transition.float(), lengths)  # type: ignore[operator]
        torch.testing.assert_close(function(scores, transition, lengths), expected.half())  # type: ignore[operator]


def cuts(length: int, width: int) -> Iterator[list[int]]:
    """All ways to cut ``length`` positions into segments."""
    if length == 0:
        yield []
    for first in range(1, min(width, length) + 1):
        yield from ([first, *rest] for rest in cuts(length - first, width))


def segmentations(segment: Tensor, transition: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """log Z and marginals of one sentence by enumerating all cuts and labels."""
    scores, marginals, everything = [], torch.zeros_like(segment), []
    for widths in cuts(length, segment.shape[1]):
        starts = [sum(widths[:i]) for i in range(len(widths))]
        for labels in product(range(segment.shape[2]), repeat=len(widths)):
            parts = list(zip(starts, [width - 1 for width in widths], labels, strict=True))
            total = sum((segment[part] for part in parts), torch.zeros(()).double())
            scores.append(total + sum(transition[a, b] for a, b in pairwise(labels)))
            everything.append(parts)
    log_z = torch.stack(scores).logsumexp(0)
    for parts, score in zip(everything, scores, strict=True):
        for part in parts:
            marginals[part] += (score - log_z).exp()
    return log_z, marginals


def test_segments_are_those_of_all_cuts() -> None:
    generator = torch.Generator().manual_seed(0)
    segment = torch.randn(5, 4, 3, 2, generator=generator, dtype=torch.float64)
    transition = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    segment[4, 1] = -torch.inf
    segment[4, 0, 1:] = -torch.inf  # position 1 cannot be covered
    lengths = torch.tensor([4, 0, 1, 3, 4])
    log_z = semi_markov_log_partition(segment, transition, lengths)
    marginals = semi_markov_marginals(segment, transition, lengths)
    for row, length in enumerate(lengths.tolist()[:4]):
        expected = segmentations(segment[row], transition, length)
        torch.testing.assert_close(log_z[row], expected[0])
        torch.testing.assert_close(marginals[row], expected[1])
    assert log_z[4] == -torch.inf
    assert (marginals[4] == 0).all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_lengths_beyond_the_text_are_all_of_it(dtype: torch.dtype) -> None:
    """In chains and segments alike; without a look at the values, which may be on another device."""
    unary, transition = inputs(2)
    segment = torch.randn(3, 4, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lengths, beyond = (torch.tensor(numbers, dtype=dtype) for numbers in ([4, 2, 0], [9, 2, -1]))
    for function, scores in (
        (chain_marginals, unary),
        (chain_log_partition, unary),
        (semi_markov_marginals, segment),
        (semi_markov_log_partition, segment),
    ):
        expected = function(scores, transition, lengths)  # type: ignore[operator]
        assert torch.equal(function(scores, transition, beyond), expected)  # type: ignore[operator]


def test_segments_of_width_one_are_a_chain_and_every_position_is_covered_once() -> None:
    unary, transition = inputs(3, 5)
    one_wide = semi_markov_marginals(unary[:, :, None], transition)
    torch.testing.assert_close(one_wide[:, :, 0], chain_marginals(unary, transition))
    segment = torch.randn(3, 5, 7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    marginals = semi_markov_marginals(segment, transition).sum(-1)
    covering = [
        sum(marginals[:, start, width - 1] for start in range(5) for width in range(1, 8) if start <= i < start + width)
        for i in range(5)
    ]
    torch.testing.assert_close(torch.stack([torch.as_tensor(c) for c in covering], 1), torch.ones(3, 5).double())


def test_gradients_of_segments() -> None:
    generator = torch.Generator().manual_seed(0)
    segment, transition = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((2, 3, 2, 2), (2, 2))
    )
    lengths = torch.tensor([3, 2])
    (gradient,) = torch.autograd.grad(semi_markov_log_partition(segment, transition, lengths).sum(), segment)
    torch.testing.assert_close(gradient, semi_markov_marginals(segment, transition, lengths))
    assert torch.autograd.gradcheck(lambda s, t: semi_markov_marginals(s, t, lengths), (segment, transition))
    assert not semi_markov_marginals(segment.detach(), transition.detach()).requires_grad
    with torch.no_grad():
        assert not semi_markov_marginals(segment, transition).requires_grad


def test_what_does_not_fit_is_named(unchecked: None) -> None:
    unary, transition = inputs(2)
    with pytest.raises(ShapeError, match=r"transition has shape \[3, 3\].*\[2, 2\] or \[3, 3, 2, 2\]"):
        chain_marginals(unary, torch.zeros(3, 3).double())
    with pytest.raises(ShapeError, match=r"lengths has shape \[2\].*3 sentences"):
        chain_marginals(unary, transition, torch.tensor([1, 2]))
    with pytest.raises(ShapeError, match=r"unary has shape \[4, 2\]"):
        chain_marginals(unary[0], transition)
    with pytest.raises(ShapeError, match=r"segment has shape \[3, 4, 2\]"):
        semi_markov_marginals(unary, transition)
    with pytest.raises(ShapeError, match=r"lengths has shape \[2\]"):
        semi_markov_marginals(unary[:, :, None], transition, torch.tensor([1, 2]))
