"""Structured attention layers use the marginals of chains and trees, and learn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from multihead.attention.composition import Attention
from multihead.attention.masks import Causal, Dense, Padding
from multihead.attention.scores import Bilinear, Dot
from multihead.attention.structured import (
    SegmentationAlignment,
    SegmentationAttention,
    TreeAlignment,
    TreeAttention,
    chain_marginals,
    tree_marginals,
)
from multihead.errors import ShapeError

DIM = 4
TREES = [(projective, multiroot) for projective in (True, False) for multiroot in (True, False)]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def segmentation(normalize: bool = False) -> SegmentationAlignment:
    align = SegmentationAlignment(normalize).double()
    torch.nn.init.normal_(align.transition, generator=torch.Generator().manual_seed(1))
    return align


def test_segmentation_weights_are_the_marginals_of_a_binary_chain() -> None:
    align, scores = segmentation(), normal(2, 3, 5)
    weights = align(scores)
    for query in range(3):
        unary = torch.stack((torch.zeros(2, 5).double(), scores[:, query]), -1)
        torch.testing.assert_close(weights[:, query], chain_marginals(unary, align.transition)[..., 1])
    torch.testing.assert_close(SegmentationAlignment().double()(scores), scores.sigmoid())


def test_segmentation_takes_masked_keys_out_of_the_chain() -> None:
    align, scores = segmentation(), normal(2, 3, 5)
    allowed = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(0)) < 0.6
    allowed[0, 0] = False
    weights = align(scores, allowed)
    for row in range(2):
        for query in range(3):
            kept = allowed[row, query]
            alone = align(scores[row, query, kept][None, None])[0, 0]
            torch.testing.assert_close(weights[row, query, kept], alone)
    assert (weights[~allowed] == 0).all()


def test_normalized_segmentation_sums_to_one() -> None:
    scores, allowed = normal(2, 3, 5), torch.tensor([[[True] * 5], [[False] * 5]])
    weights = segmentation(normalize=True)(scores, allowed)
    torch.testing.assert_close(weights.sum(-1), torch.tensor([[1.0] * 3, [0.0] * 3]).double())
    plain = segmentation()(scores, allowed)
    torch.testing.assert_close(weights[0], plain[0] / plain[0].sum(-1, keepdim=True))


@pytest.mark.parametrize(("projective", "multiroot"), TREES)
def test_tree_weights_are_the_marginals_turned_round(projective: bool, multiroot: bool) -> None:
    scores = normal(2, 4, 5)
    weights = TreeAlignment(projective, multiroot)(scores)
    arc = torch.cat((torch.zeros(2, 5, 1).double(), scores.transpose(1, 2)), 2)
    expected = tree_marginals(arc, projective=projective, multiroot=multiroot)
    torch.testing.assert_close(weights, expected[:, :, 1:].transpose(1, 2))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4).double())


@pytest.mark.parametrize(("projective", "multiroot"), TREES)
def test_trees_take_padding_out(projective: bool, multiroot: bool) -> None:
    align, scores, lengths = TreeAlignment(projective, multiroot), normal(4, 4, 5), [4, 0, 1, 3]
    # Padding of the keys alone and of both sides are equivalent: a word that cannot be a head is missing.
    for mask in (Padding([5, 1, 2, 4]), Padding([5, 1, 2, 4], q_lengths=lengths)):
        weights = align(scores, mask.dense(4, 5)[:, 0])
        for row, length in enumerate(lengths):
            alone = align(scores[row, None, :length, : length + 1])
            torch.testing.assert_close(weights[row, None, :length, : length + 1], alone)
            torch.testing.assert_close(weights[row].sum(), alone.sum())


def test_forbidden_heads_have_no_weight() -> None:
    """Heads only to the left: causal, with ROOT first."""
    scores = normal(2, 4, 5)
    weights = TreeAlignment(projective=False, multiroot=True)(scores, Causal().dense(4, 5)[:, 0])
    lower = torch.ones(4, 5, dtype=torch.bool).tril()
    assert (weights[:, ~lower] == 0).all()
    # The heads are then independent, since any choice of heads is a tree.
    torch.testing.assert_close(weights, scores.masked_fill(~lower, -torch.inf).softmax(-1))


def test_a_tree_attention_is_its_parts() -> None:
    torch.manual_seed(0)
    layer, x = TreeAttention(DIM).double(), normal(2, 3, DIM)
    output, weights = layer(x, need_weights=True)
    nodes = torch.cat((layer.root.expand(2, 1, DIM), x), 1)
    expected = TreeAlignment()(layer.attention.score(x, nodes))
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(output, expected @ nodes)
    assert layer(x)[1] is None


def test_tree_attention_does_not_see_the_padding() -> None:
    torch.manual_seed(0)
    layer, x, lengths = TreeAttention(DIM).double(), normal(3, 4, DIM), torch.tensor([4, 2, 0])
    x[1, 2:] = torch.nan
    x[2] = torch.inf
    x.requires_grad_()
    output, weights = layer(x, lengths=lengths, need_weights=True)
    torch.testing.assert_close(output[1, :2], layer(x[1:2, :2])[0][0])
    assert (output[1, 2:] == 0).all()
    assert (output[2] == 0).all()
    assert weights is not None
    assert (weights[2] == 0).all()
    gradients = torch.autograd.grad(output.square().sum(), (x, *layer.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_gradients_go_through_the_marginals() -> None:
    torch.manual_seed(0)
    x, memory = normal(2, 3, DIM).requires_grad_(), normal(2, 4, DIM, seed=1).requires_grad_()
    lengths = torch.tensor([3, 2])
    tree, chain = TreeAttention(DIM, score=Bilinear(DIM, DIM)).double(), SegmentationAttention(DIM, DIM).double()
    assert torch.autograd.gradcheck(lambda x: tree(x, lengths=lengths)[0], (x,), fast_mode=True)

    def segments(x: Tensor, memory: Tensor, transition: Tensor) -> Tensor:
        del transition  # the module reads it; gradcheck perturbs it in place
        return chain(x, memory, mask=Padding([4, 2]))[0]

    assert torch.autograd.gradcheck(segments, (x, memory, chain.align.transition), fast_mode=True)


def test_a_segmentation_learns_that_choices_come_in_runs() -> None:
    """Each key is a noisy sign of whether it is selected; its neighbors add information."""

    def loss_after_training(chain: bool) -> tuple[float, Tensor]:
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0)
        align = SegmentationAlignment()
        align.transition.requires_grad_(chain)
        attention = Attention(Bilinear(1, 2), align)
        optimizer = torch.optim.Adam(attention.parameters(), lr=0.1)
        for _ in range(50):
            switches = torch.rand(64, 20, generator=generator) < 0.1
            wanted = (switches.cumsum(1) + torch.randint(2, (64, 1), generator=generator)) % 2
            hint = wanted * 2 - 1 + torch.randn(64, 20, generator=generator) * 1.5
            key = torch.stack((hint, torch.ones_like(hint)), -1)
            _, weights = attention(torch.ones(64, 1, 1), key, need_weights=True)
            assert weights is not None
            loss = (weights[:, 0] - wanted).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item(), align.transition.detach()

    alone, _ = loss_after_training(chain=False)
    together, transition = loss_after_training(chain=True)
    assert together < 0.75 * alone
    assert transition.diagonal().sum() - transition.fliplr().diagonal().sum() > 1


@pytest.mark.parametrize("projective", [True, False])
def test_a_tree_attention_learns_to_look_left(projective: bool) -> None:
    """The target of a word is the previous word, which only the positions reveal."""
    torch.manual_seed(0)
    layer = TreeAttention(8, projective=projective, score=Bilinear(8, 8))
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    places = torch.eye(5)
    for _ in range(60):
        x = torch.cat((places.expand(16, 5, 5), torch.randn(16, 5, 3, generator=generator)), -1)
        output, weights = layer(x, need_weights=True)
        loss = (output[:, 1:] - x[:, :-1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert weights is not None
    assert (weights[:, torch.arange(1, 5), torch.arange(1, 5)] > 0.6).all()


def test_what_does_not_fit_is_named(unchecked: None) -> None:
    with pytest.raises(ShapeError, match=r"\[2, 4, 4\].*one key more than queries: ROOT"):
        TreeAlignment()(normal(2, 4, 4))
    with pytest.raises(ShapeError, match=r"one key more"):
        Attention(Dot(), TreeAlignment())(normal(2, 4, 3), normal(2, 3, 3), mask=Dense(torch.ones(4, 3) > 0))
