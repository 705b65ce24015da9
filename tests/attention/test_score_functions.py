"""Scores equal their equations written as loops; keys can be computed once; chunking changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from multihead.attention import scores as module
from multihead.attention.scores import Additive, Bilinear, Dot, LowRankBilinear, ScaledDot, Score, SoftCap
from multihead.errors import ConfigurationError, ShapeError

DIM = 5

SCORES: dict[str, Callable[[], Score]] = {
    "additive": lambda: Additive(DIM, DIM, 3),
    "dot": Dot,
    "scaled dot": ScaledDot,
    "scaled by hand": lambda: ScaledDot(0.3),
    "bilinear": lambda: Bilinear(DIM, DIM),
    "low rank": lambda: LowRankBilinear(DIM, DIM, 2),
    "capped": lambda: SoftCap(LowRankBilinear(DIM, DIM, 2), cap=2.5),
}


def inputs(query_dim: int = DIM, key_dim: int = DIM) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(2, 4, query_dim, generator=generator, dtype=torch.float64),
        torch.randn(2, 6, key_dim, generator=generator, dtype=torch.float64),
    )


def pair(score: Score, x: Tensor, q: Tensor) -> Tensor:
    """The score of one pair, from its equation."""
    match score:
        case Additive():
            return score.energy @ torch.tanh(score.key_projection.weight @ x + score.query_projection.weight @ q)
        case ScaledDot():
            return x @ q * (1 / math.sqrt(DIM) if score.scale is None else score.scale)
        case Bilinear():
            return x @ score.weight @ q
        case LowRankBilinear():
            return (score.key_projection @ x) @ (score.query_projection @ q)
        case SoftCap():
            return score.cap * torch.tanh(pair(score.score, x, q) / score.cap)
        case _:
            return x @ q


@pytest.mark.parametrize("name", SCORES)
def test_every_pair_has_the_score_of_the_equation(name: str) -> None:
    score = SCORES[name]().double()
    query, key = inputs()
    expected = torch.stack(
        [
            torch.stack([torch.stack([pair(score, x, q) for x in k]) for q in qs])
            for qs, k in zip(query, key, strict=True)
        ]
    )
    torch.testing.assert_close(score(query, key), expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", SCORES)
def test_keys_computed_once_give_the_same_bits(name: str) -> None:
    score = SCORES[name]()
    query, key = (tensor.float() for tensor in inputs())
    keys = score.keys(key)
    assert torch.equal(score.from_keys(query, keys), score(query, key))


@pytest.mark.parametrize("name", SCORES)
def test_one_query_at_a_time_gives_the_same_scores(name: str) -> None:
    score = SCORES[name]().double()
    query, key = inputs()
    keys = score.keys(key)
    steps = [score.from_keys(query[:, step : step + 1], keys) for step in range(query.shape[1])]
    torch.testing.assert_close(torch.cat(steps, 1), score(query, key), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", SCORES)
def test_scores_move_with_queries_and_keys(name: str) -> None:
    score = SCORES[name]().double()
    query, key = inputs()
    rows, columns = torch.tensor([2, 0, 3, 1]), torch.tensor([5, 1, 0, 4, 2, 3])
    moved = score(query[:, rows], key[:, columns])
    torch.testing.assert_close(moved, score(query, key)[:, rows][:, :, columns], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", SCORES)
def test_gradients(name: str) -> None:
    score = SCORES[name]().double()
    query, key = (tensor.requires_grad_() for tensor in inputs())
    parameters = tuple(score.parameters())

    def call(*tensors: Tensor) -> Tensor:
        return score(*tensors[:2])

    assert torch.autograd.gradcheck(call, (query, key, *parameters), fast_mode=True)
    assert torch.autograd.gradgradcheck(call, (query, key, *parameters), fast_mode=True)


def test_scores_of_one_family_agree_where_they_should() -> None:
    query, key = inputs()
    bilinear = Bilinear(DIM, DIM).double()
    identity = torch.eye(DIM, dtype=torch.float64)
    with torch.no_grad():
        bilinear.weight.copy_(identity)
    assert torch.equal(bilinear(query, key), Dot()(query, key))
    with torch.no_grad():
        bilinear.weight.copy_(identity / math.sqrt(DIM))
    torch.testing.assert_close(bilinear(query, key), ScaledDot()(query, key), rtol=1e-13, atol=1e-14)
    low_rank = LowRankBilinear(DIM, DIM, 2).double()
    with torch.no_grad():
        bilinear.weight.copy_(low_rank.key_projection.T @ low_rank.query_projection)  # W = U^T V
    torch.testing.assert_close(bilinear(query, key), low_rank(query, key), rtol=1e-13, atol=1e-14)
    assert torch.equal(ScaledDot(1.0)(query, key), Dot()(query, key))


def test_additive_is_luongs_concatenation() -> None:
    """v . tanh(W [q; x]) with W = [U; W] (Luong et al. 2015, "concat")."""
    score = Additive(3, 4, 5).double()
    query, key = inputs(3, 4)
    both = torch.cat((query[:, :, None].expand(-1, -1, 6, -1), key[:, None].expand(-1, 4, -1, -1)), -1)
    weight = torch.cat((score.query_projection.weight, score.key_projection.weight), 1)
    torch.testing.assert_close(score(query, key), (both @ weight.T).tanh() @ score.energy, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("piece", [1, 36, 100])
def test_additive_scores_taken_in_pieces_are_the_same(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    score = Additive(DIM, DIM, 3).double()
    query, key = (tensor.requires_grad_() for tensor in inputs())
    tensors = (query, key, *score.parameters())
    whole = score(query, key)
    seed = torch.linspace(-1, 1, whole.numel(), dtype=whole.dtype).view_as(whole)
    expected = [whole, *torch.autograd.grad(whole, tensors, seed)]
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", piece)
    pieces = score(query, key)
    for ours, theirs in zip([pieces, *torch.autograd.grad(pieces, tensors, seed)], expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    assert torch.autograd.gradgradcheck(lambda *inputs: score(*inputs), (query, key), fast_mode=True)


@pytest.mark.parametrize("name", ["additive", "bilinear", "low rank", "scaled dot"])
def test_first_scores_are_of_order_one(name: str) -> None:
    torch.manual_seed(0)
    wide = {
        "additive": Additive(64, 48, 96),
        "bilinear": Bilinear(64, 48),
        "low rank": LowRankBilinear(64, 48, 16),
        "scaled dot": ScaledDot(),
    }[name]
    key_dim = 64 if name == "scaled dot" else 48
    spread = wide(torch.randn(8, 50, 64), torch.randn(8, 50, key_dim)).std()
    assert 0.3 < spread < 1.3


@pytest.mark.parametrize("name", SCORES)
def test_a_score_is_learned(name: str) -> None:
    """Gradient descent on the score and on the vectors finds the keys of each query."""
    torch.manual_seed(1)
    score = SCORES[name]()
    query, key = torch.randn(1, 3, DIM, requires_grad=True), torch.randn(1, 3, DIM, requires_grad=True)
    optimizer = torch.optim.Adam([query, key, *score.parameters()], lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(score(query, key)[0], torch.tensor([2, 0, 1]))
        loss.backward()
        optimizer.step()
    assert loss < 0.1


def test_what_does_not_fit_is_named(unchecked: None) -> None:
    query, key = inputs()
    with pytest.raises(ShapeError, match=r"key has shape \[2, 6, 5\].*\[batch, length, 4\]"):
        Bilinear(DIM, 4).double()(query, key)
    with pytest.raises(ShapeError, match=r"query has shape \[2, 4, 5\].*\[batch, length, 3\]"):
        Additive(3, DIM, 2).double()(query, key)
    with pytest.raises(ShapeError, match=r"query has shape \[4, 5\]"):
        Dot()(query[0], key)
    with pytest.raises(ShapeError, match=r"\[2, 4, 5\] and \[2, 6, 3\].*Bilinear"):
        Dot()(query, key[..., :3])
    with pytest.raises(ShapeError, match="different batch sizes"):
        Dot()(query, key[:1])
    with pytest.raises(ConfigurationError, match="rank=0"):
        LowRankBilinear(2, 2, 0)
    with pytest.raises(ConfigurationError, match="hidden_dim=0"):
        Additive(2, 2, 0)
