"""Marginals of dependency trees equal enumeration, for four kinds of trees; scores, lengths, gradients."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
import torch
from torch import Tensor

from multihead.attention.structured import tree_log_partition, tree_marginals
from multihead.attention.structured.eisner import Eisner
from multihead.attention.structured.matrix_tree import Elimination
from multihead.attention.structured.partition import IMPOSSIBLE, log_partition
from multihead.attention.structured.trees import marginals_of_present
from multihead.errors import ShapeError

KINDS = [
    {"projective": projective, "multiroot": multiroot} for projective in (True, False) for multiroot in (True, False)
]

kinds = pytest.mark.parametrize(
    "kind", KINDS, ids=lambda kind: "-".join(name for name, on in kind.items() if on) or "x"
)


@cache
def trees(words: int, projective: bool, multiroot: bool) -> Tensor:
    """The heads of words 1..n in every tree, [trees, words]."""
    found = []
    for heads in product(range(words + 1), repeat=words):
        if not multiroot and heads.count(0) != 1:
            continue
        if any(not reaches_root(word, heads) for word in range(1, words + 1)):
            continue
        arcs = [tuple(sorted((head, word))) for word, head in enumerate(heads, start=1)]
        if projective and any(a < c < b < d for (a, b), (c, d) in product(arcs, arcs)):
            continue
        found.append(heads)
    return torch.tensor(found).view(-1, words)


def reaches_root(word: int, heads: tuple[int, ...]) -> bool:
    for _ in heads:
        word = heads[word - 1]
        if word == 0:
            return True
    return False


def enumerated(arc: Tensor, **kind: bool) -> tuple[Tensor, Tensor]:
    """log Z and marginals of one sentence by enumerating all trees."""
    words = len(arc) - 1
    every = trees(words, **kind)
    scores = arc[every, torch.arange(1, words + 1)].sum(1)
    log_z = scores.logsumexp(0)
    marginals = torch.zeros_like(arc)
    if log_z > -torch.inf:
        for word in range(words):
            marginals[:, word + 1].index_add_(0, every[:, word], (scores - log_z).exp())
    return log_z, marginals


def arcs(words: int, batch: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(batch, words + 1, words + 1, generator=generator, dtype=torch.float64)


def check(arc: Tensor, tolerance: float, **kind: bool) -> None:
    log_z, marginals = tree_log_partition(arc, **kind), tree_marginals(arc, **kind)
    for row in range(len(arc)):
        expected = enumerated(arc[row].double(), **kind)
        torch.testing.assert_close(log_z[row].double(), expected[0], rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(marginals[row].double(), expected[1], rtol=0, atol=10 * tolerance)


def test_there_are_as_many_trees_as_there_should_be() -> None:
    """At scores of 0, Z is the number of trees: n^(n-1) and (n+1)^(n-1) of all, by Cayley's formula."""
    counts = {(True, True): (12, 55), (True, False): (7, 30), (False, True): (16, 125), (False, False): (9, 64)}
    for (projective, multiroot), numbers in counts.items():
        for words, number in zip((3, 4), numbers, strict=True):
            kind = {"projective": projective, "multiroot": multiroot}
            assert len(trees(words, **kind)) == number
            z = tree_log_partition(torch.zeros(1, words + 1, words + 1).double(), **kind).exp()
            torch.testing.assert_close(z, torch.tensor([float(number)]).double(), rtol=1e-13, atol=0)
    for words in (7, 12):
        zeros = torch.zeros(1, words + 1, words + 1).double()
        for multiroot, base in ((True, words + 1), (False, words)):
            z = tree_log_partition(zeros, projective=False, multiroot=multiroot).exp()
            torch.testing.assert_close(z, torch.tensor([float(base)]).double() ** (words - 1), rtol=1e-12, atol=0)


@kinds
@pytest.mark.parametrize("words", [1, 2, 3, 4])
def test_marginals_are_those_of_all_trees(kind: dict[str, bool], words: int) -> None:
    check(arcs(words, 6), 1e-14, **kind)


@kinds
def test_marginals_add_up(kind: dict[str, bool]) -> None:
    marginals = tree_marginals(arcs(9, 5), **kind)
    torch.testing.assert_close(marginals[:, :, 1:].sum(1), torch.ones(5, 9).double())  # every word has one head
    assert (marginals[:, :, 0] == 0).all()
    assert (marginals.diagonal(dim1=1, dim2=2) == 0).all()
    roots = marginals[:, 0].sum(1)
    if kind["multiroot"]:
        assert (roots > 1).all()
    else:
        torch.testing.assert_close(roots, torch.ones(5).double())
    assert (marginals >= -1e-15).all()


@kinds
@pytest.mark.parametrize("scale", [60.0, 1e4])
def test_extreme_scores_stay_right_in_float32(kind: dict[str, bool], scale: float) -> None:
    arc = arcs(4, 10, scale=scale).float()
    check(arc, 1e-6, **kind)
    arc.requires_grad_()
    (gradient,) = torch.autograd.grad(tree_marginals(arc, **kind).square().sum(), arc)
    assert gradient.isfinite().all()


def test_a_cycle_that_wins_by_far_is_not_lost_in_rounding() -> None:
    """Words 1 and 2 prefer each other as heads; a determinant in float32 would lose the trees to rounding."""
    arc = torch.zeros(1, 3, 3)
    arc[0, 1, 2] = arc[0, 2, 1] = 60.0
    arc[0, 0, 1] = 1.0
    weights = arc[0].exp()
    laplacian = torch.diag(weights[:, 1:].sum(0) - weights.diagonal()[1:]) - weights[1:, 1:].fill_diagonal_(0)
    assert torch.linalg.det(laplacian.double()) == 0
    for multiroot in (True, False):
        check(arc, 1e-6, projective=False, multiroot=multiroot)
        # The cycle is broken at one arc, chosen by the scores of ROOT's arcs.
        roots = tree_marginals(arc, projective=False, multiroot=multiroot)[0, 0, 1:]
        torch.testing.assert_close(roots, torch.tensor([1.0, 0.0]).softmax(0))


@kinds
def test_forbidden_arcs_are_in_no_tree(kind: dict[str, bool]) -> None:
    arc = arcs(4, 60)
    arc[torch.rand(arc.shape, generator=torch.Generator().manual_seed(0)) < 0.4] = -torch.inf
    arc[0, :, 2] = -torch.inf  # no head for word 2
    arc[1, 0] = -torch.inf  # no root
    arc[2, 0, 1:3] = 0.0
    arc[2, 1:, 1:3] = -torch.inf  # two words whose only possible head is ROOT
    check(arc, 1e-13, **kind)
    impossible = torch.tensor([enumerated(row, **kind)[0] == -torch.inf for row in arc])
    assert impossible[:2].all()
    assert 0 < impossible.sum() < 30
    arc.requires_grad_()
    with torch.autograd.set_detect_anomaly(True):
        (gradient,) = torch.autograd.grad(tree_marginals(arc, **kind).square().sum(), arc)
    assert gradient.isfinite().all()
    assert (gradient[impossible] == 0).all()
    assert (gradient[arc.isneginf()] == 0).all()


@kinds
def test_lengths_cut_and_rows_do_not_talk(kind: dict[str, bool]) -> None:
    arc, lengths = arcs(5, 6), torch.tensor([5, 0, 1, 2, 4, 3])
    for row, length in enumerate(lengths.tolist()):
        arc[row, length + 1 :] = torch.nan
        arc[row, :, length + 1 :] = torch.inf
    arc.requires_grad_()
    log_z, marginals = tree_log_partition(arc, lengths=lengths, **kind), tree_marginals(arc, lengths=lengths, **kind)
    for row, length in enumerate(lengths.tolist()):
        alone = arc[row, None, : length + 1, : length + 1]
        expected = tree_marginals(alone, **kind)[0]
        torch.testing.assert_close(marginals[row, : length + 1, : length + 1], expected)
        torch.testing.assert_close(marginals[row].sum(), expected.sum())
        torch.testing.assert_close(log_z[row], tree_log_partition(alone, **kind)[0])
    assert log_z[1] == 0
    (gradient,) = torch.autograd.grad(log_z.sum() + marginals.square().sum(), arc)
    assert gradient.isfinite().all()
    for row, length in enumerate(lengths.tolist()):
        assert (gradient[row, length + 1 :] == 0).all()
        assert (gradient[row, :, length + 1 :] == 0).all()


@kinds
def test_a_missing_word_makes_its_neighbours_neighbours(kind: dict[str, bool]) -> None:
    arc = arcs(5, 40)
    present = torch.rand(40, 5, generator=torch.Generator().manual_seed(1)) < 0.5
    marginals = marginals_of_present(arc, present, **kind)
    for row in range(40):
        kept = torch.cat((torch.zeros(1, dtype=torch.long), present[row].nonzero()[:, 0] + 1))
        expected = tree_marginals(arc[row][kept][:, kept][None], **kind)[0]
        torch.testing.assert_close(marginals[row][kept][:, kept], expected)
        torch.testing.assert_close(marginals[row].sum(), expected.sum())


@kinds
def test_marginals_are_the_gradient_and_can_be_differentiated(kind: dict[str, bool]) -> None:
    arc, lengths = arcs(3, 2).requires_grad_(), torch.tensor([3, 2])
    (gradient,) = torch.autograd.grad(tree_log_partition(arc, lengths=lengths, **kind).sum(), arc)
    torch.testing.assert_close(gradient, tree_marginals(arc, lengths=lengths, **kind))

    def both(arc: Tensor) -> tuple[Tensor, Tensor]:
        return tree_log_partition(arc, lengths=lengths, **kind), tree_marginals(arc, lengths=lengths, **kind)

    assert torch.autograd.gradcheck(both, (arc,))
    assert torch.autograd.gradgradcheck(both, (arc,), fast_mode=True)


@pytest.mark.parametrize(
    "family",
    [Eisner(True), Eisner(False), Elimination(True), Elimination(False)],
    ids=["projective-multiroot", "projective", "any-multiroot", "any"],
)
def test_the_fast_way_is_the_readable_one_at_any_size(family: Eisner | Elimination) -> None:
    potentials = arcs(12, 3).permute(1, 2, 0).clone()
    potentials[:, 0] = IMPOSSIBLE
    potentials.requires_grad_()
    log_z = family.plain(potentials)
    (marginals,) = torch.autograd.grad(log_z.sum(), potentials, create_graph=True)
    seed = torch.linspace(-1, 1, marginals.numel()).double().view_as(marginals)
    (change,) = torch.autograd.grad((marginals * seed).sum(), potentials)
    fast_log_z, fast = log_partition(family, potentials)
    torch.testing.assert_close(fast_log_z, log_z)
    torch.testing.assert_close(fast, marginals)
    (fast_change,) = torch.autograd.grad((fast * seed).sum(), potentials)
    torch.testing.assert_close(fast_change, change, rtol=1e-10, atol=1e-12)


def test_projective_trees_are_among_all_trees() -> None:
    arc = arcs(6, 4)
    for multiroot in (True, False):
        some = tree_log_partition(arc, projective=True, multiroot=multiroot)
        assert (some < tree_log_partition(arc, projective=False, multiroot=multiroot)).all()
    assert (tree_log_partition(arc) < tree_log_partition(arc, multiroot=True)).all()


@kinds
def test_the_memory_layout_of_the_scores_does_not_matter(kind: dict[str, bool]) -> None:
    wide = arcs(7, 6)
    part = wide[1:4, 2:, 2:]  # a view with an offset and strides
    torch.testing.assert_close(tree_marginals(part, **kind), tree_marginals(part.clone(), **kind), rtol=0, atol=0)
    turned = wide.transpose(1, 2)
    torch.testing.assert_close(tree_marginals(turned, **kind), tree_marginals(turned.contiguous(), **kind))


def test_it_learns_a_tree() -> None:
    """Maximum likelihood of one tree: log Z falls to its score, and the marginals of its arcs rise to 1."""
    arc = torch.zeros(1, 6, 6, requires_grad=True)
    heads = torch.tensor([2, 0, 5, 5, 2])
    optimizer = torch.optim.Adam([arc], lr=0.3)
    for _ in range(40):
        optimizer.zero_grad()
        loss = tree_log_partition(arc)[0] - arc[0, heads, torch.arange(1, 6)].sum()
        loss.backward()
        optimizer.step()
    assert loss < 0.1
    assert (tree_marginals(arc)[0, heads, torch.arange(1, 6)] > 0.95).all()


@kinds
def test_marginals_can_be_had_in_inference_mode(kind: dict[str, bool]) -> None:
    with torch.inference_mode():
        marginals = tree_marginals(arcs(3, 2), lengths=torch.tensor([3, 1]), **kind)
    torch.testing.assert_close(marginals, tree_marginals(arcs(3, 2), lengths=torch.tensor([3, 1]), **kind))


def test_empty_batches_half_types_and_no_words() -> None:
    assert tree_marginals(torch.zeros(0, 3, 3)).shape == (0, 3, 3)
    assert tree_marginals(torch.zeros(2, 1, 1)).tolist() == [[[0]], [[0]]]
    assert tree_log_partition(torch.zeros(2, 1, 1)).tolist() == [0, 0]
    assert tree_marginals(torch.zeros(2, 3, 3).bfloat16()).dtype == torch.bfloat16
    arcs = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(1)).half()
    for options in ({}, {"projective": True}, {"multiroot": True}):
        torch.testing.assert_close(tree_marginals(arcs, **options), tree_marginals(arcs.float(), **options).half())
        found = tree_log_partition(arcs, **options)
        torch.testing.assert_close(found, tree_log_partition(arcs.float(), **options).half())


def test_what_does_not_fit_is_named(unchecked: None) -> None:
    with pytest.raises(ShapeError, match=r"arc has shape \[2, 3, 4\].*ROOT"):
        tree_marginals(torch.zeros(2, 3, 4))
    with pytest.raises(ShapeError, match=r"lengths has shape \[3\].*2 sentences"):
        tree_marginals(torch.zeros(2, 3, 3), lengths=torch.tensor([1, 2, 1]))
