"""Learned queries and pooling: the equations of Yang et al.; empty sentences yield zeros and change nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from multihead.attention.alignment import Gumbel
from multihead.attention.composition import Attention
from multihead.attention.masks import Padding
from multihead.attention.pooling import AttentionPool, HierarchicalAttention, LearnedQuery
from multihead.attention.scores import Additive, Bilinear, ScaledDot
from multihead.errors import ConfigurationError, ShapeError

DIM = 4


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(depth: int = 2) -> HierarchicalAttention:
    torch.manual_seed(0)
    return HierarchicalAttention(DIM, depth, hidden_dim=3).double()


def by_hand(pool: AttentionPool, rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Equations 5 to 7, vector by vector."""
    scores = torch.stack([torch.tanh(pool.projection(h)) @ pool.context for h in rows])
    weights = scores.exp() / scores.exp().sum()
    return torch.stack([weight * h for weight, h in zip(weights, rows, strict=True)]).sum(0), weights


def test_a_pool_is_yangs_equations_and_the_additive_score_with_a_constant_query() -> None:
    torch.manual_seed(0)
    pool, x = AttentionPool(DIM, 3).double(), normal(2, 5, DIM)
    output, weights = pool(x)
    for row in range(2):
        expected = by_hand(pool, list(x[row]))
        torch.testing.assert_close(output[row], expected[0])
        torch.testing.assert_close(weights[row], expected[1])
    additive = Additive(1, DIM, 3).double()
    with torch.no_grad():
        additive.key_projection.weight.copy_(pool.projection.weight)
        additive.query_projection.weight.copy_(pool.projection.bias[:, None])  # U q = b, with q = 1
        additive.energy.copy_(pool.context)
    torch.testing.assert_close(Attention(additive)(torch.ones(2, 1, 1).double(), x)[0][:, 0], output)


def test_pooling_does_not_see_the_padding() -> None:
    pool, x = AttentionPool(DIM).double(), normal(3, 5, DIM)
    x[1, 2:] = torch.nan
    x[2] = torch.inf
    x.requires_grad_()
    output, weights = pool(x, mask=Padding([5, 2, 0]))
    torch.testing.assert_close(output[1], pool(x[1:2, :2])[0][0])
    assert (output[2] == 0).all()
    assert (weights[2] == 0).all()
    gradients = torch.autograd.grad(output.sum(), (x, *pool.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[0][1, 2:] == 0).all()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_levels_are_pools_on_pools(depth: int) -> None:
    pooled = made(depth)
    x = normal(2, *(3, 4, 5)[3 - depth :], DIM)

    def walk(level: int, block: Tensor) -> Tensor:
        rows = list(block) if level == 0 else [walk(level - 1, part) for part in block]
        pool = pooled.levels[level]
        assert isinstance(pool, AttentionPool)
        return by_hand(pool, rows)[0]

    result = pooled(x)
    torch.testing.assert_close(result.output, torch.stack([walk(depth - 1, document) for document in x]))
    assert [list(weights.shape) for weights in result.weights] == [list(x.shape[: level + 2]) for level in range(depth)]


def test_what_is_not_there_changes_nothing() -> None:
    pooled, x = made(3), normal(2, 2, 3, 4, DIM)
    lengths = torch.tensor([[[4, 2, 3], [1, 4, 0]], [[3, 0, 0], [0, 0, 0]]])
    plain = pooled(x, lengths)
    # More words, an empty sentence in the middle and an empty paragraph in front, all filled with garbage.
    wide = torch.full((2, 3, 4, 6, DIM), torch.nan, dtype=torch.float64)
    wide_lengths = torch.zeros(2, 3, 4, dtype=torch.long)
    keep = torch.tensor([0, 2, 3])
    wide[:, 1:, keep, :4] = x
    wide_lengths[:, 1:, keep] = lengths
    wider = pooled(wide, wide_lengths)
    torch.testing.assert_close(wider.output, plain.output, rtol=1e-12, atol=1e-13)
    paragraphs, sentences, words = wider.weights
    torch.testing.assert_close(paragraphs[:, 1:], plain.weights[0])
    torch.testing.assert_close(sentences[:, 1:, keep], plain.weights[1])
    torch.testing.assert_close(words[:, 1:, keep, :4], plain.weights[2])
    assert (paragraphs[:, 0] == 0).all()
    assert (sentences[:, :, 1] == 0).all()
    assert (words[wide_lengths == 0] == 0).all()
    one_by_one = torch.cat([pooled(x[row, None], lengths[row, None]).output for row in range(2)])
    torch.testing.assert_close(one_by_one, plain.output, rtol=1e-12, atol=1e-13)


def test_the_shares_of_all_words_add_up_to_one() -> None:
    x, lengths = normal(2, 3, 4, DIM), torch.tensor([[4, 0, 2], [0, 0, 0]])
    result = made()(x, lengths)
    sentences, words = result.weights
    shares = sentences[..., None] * words
    torch.testing.assert_close(shares.sum((1, 2)), torch.tensor([1.0, 0.0]).double())
    torch.testing.assert_close((shares[..., None] * x).sum((1, 2)), result.output)
    assert (result.output[1] == 0).all()


def test_gradients_of_the_hierarchy() -> None:
    pooled, x = made(), normal(2, 2, 3, DIM).requires_grad_()
    lengths = torch.tensor([[3, 1], [0, 2]])
    assert torch.autograd.gradcheck(lambda x: pooled(x, lengths).output, (x,), fast_mode=True)
    with torch.autograd.set_detect_anomaly(True):
        (gradient,) = torch.autograd.grad(pooled(x, lengths).output.sum(), x)
    assert (gradient[0, 1, 1:] == 0).all()
    assert (gradient[1, 0] == 0).all()


def test_learned_queries_ask_every_sequence_the_same() -> None:
    torch.manual_seed(0)
    asking = LearnedQuery(Attention(Bilinear(3, DIM)), 3, count=2).double()
    key, value = normal(2, 5, DIM), normal(2, 5, 6, seed=1)
    output, weights = asking(key, value, mask=Padding([5, 2]), need_weights=True)
    query = asking.query.expand(2, -1, -1)
    expected, expected_weights = asking.attention(query, key, value, mask=Padding([5, 2]), need_weights=True)
    assert torch.equal(output, expected)
    assert weights is not None
    assert expected_weights is not None
    assert torch.equal(weights, expected_weights)
    assert output.shape == (2, 2, 6)
    drawn = LearnedQuery(Attention(ScaledDot(), Gumbel(hard=True)), DIM).double()
    first, second = (drawn(key, generator=torch.Generator().manual_seed(1))[0] for _ in range(2))
    assert torch.equal(first, second)


def test_a_hierarchy_learns_which_word_matters() -> None:
    """The vector of a document must become that of its one marked word."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    pooled = HierarchicalAttention(DIM)
    optimizer = torch.optim.Adam(pooled.parameters(), lr=0.1)
    for _ in range(60):
        x = torch.randn(32, 3, 4, DIM, generator=generator)
        x[..., 0] = 0
        place = torch.randint(12, (32,), generator=generator)
        marked = x.flatten(1, 2)[torch.arange(32), place]
        marked[:, 0] = 3
        x.view(32, 12, DIM)[torch.arange(32), place] = marked
        result = pooled(x)
        loss = (result.output - marked).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    sentences, words = result.weights
    assert ((sentences[..., None] * words).flatten(1).argmax(1) == place).float().mean() > 0.9


def test_what_does_not_fit_is_named(unchecked: None) -> None:
    with pytest.raises(ShapeError, match=r"\[2, 3, 4\].*depth=2 it must have 4 axes"):
        made()(normal(2, 3, 4))
    with pytest.raises(ShapeError, match=r"lengths has shape \[2\].*\[2, 3\]"):
        made()(normal(2, 3, 5, 4), torch.tensor([1, 2]))
    with pytest.raises(ConfigurationError, match="depth=0"):
        HierarchicalAttention(DIM, 0)
    with pytest.raises(ConfigurationError, match="hidden_dim=0"):
        AttentionPool(DIM, 0)
    with pytest.raises(ConfigurationError, match="count=0"):
        LearnedQuery(Attention(ScaledDot()), DIM, 0)
