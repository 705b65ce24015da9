"""Initial values: distributions, seeds, and the padding row."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from multihead.attention import MultiHeadAttention
from multihead.data.batching import Batch, collate
from multihead.data.store import ParallelStore
from multihead.models.transformer import Transformer
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import build_optimizer
from multihead.training.step import train_step


def built(small: Any, seed: int = 0, **changes: Any) -> Transformer:
    """A new model, unchanged."""
    torch.manual_seed(seed)
    return Transformer(small.config(**changes))


def matrices(model: Transformer) -> list[tuple[str, torch.Tensor]]:
    """Every matrix of the layers, packed ones split."""
    found: list[tuple[str, torch.Tensor]] = []
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            key, value = module.key_width // module.heads, module.value_width // module.heads
            sizes = (module.key_width, key * module.kv_heads, value * module.kv_heads)
            assert module.in_projection is not None
            parts = module.in_projection.weight.detach().split(sizes)
            found += [(f"{name}.{which}", part) for which, part in zip("qkv", parts, strict=True)]
        elif isinstance(module, nn.Linear):
            found.append((name, module.weight.detach()))
    return found


def check_xavier(found: list[tuple[str, torch.Tensor]]) -> None:
    for name, matrix in found:
        bound = math.sqrt(6 / sum(matrix.shape))
        assert 0.98 * bound < matrix.abs().max() <= bound, name
        assert matrix.var().item() == pytest.approx(bound**2 / 3, rel=0.1), name
        assert abs(matrix.mean()) < 0.05 * bound, name


@pytest.mark.parametrize(
    ("changes", "in_front"),
    [({}, 1), ({"kv_heads": 2, "key_dim": 24, "value_dim": 12, "feed_forward": "geglu"}, 2)],
)
def test_matrices_are_xavier_uniform(small: Any, changes: dict[str, Any], in_front: int) -> None:
    found = matrices(built(small, width=64, inner=96, tie_output=False, target_vocab=80, **changes))
    assert len(found) == 2 * (4 + in_front + 1) + 2 * (8 + in_front + 1) + 1
    check_xavier(found)


@pytest.mark.parametrize("tie_output", [True, False])
def test_embeddings_are_xavier_uniform_on_request_but_for_the_padding_row(small: Any, tie_output: bool) -> None:
    options = {"positions": "learned", "max_positions": 70, "initialization": "xavier", "tie_output": tie_output}
    model = built(small, width=64, inner=96, source_vocab=90, target_vocab=80, **options)
    embeddings = {name: m.weight.detach() for name, m in model.named_modules() if isinstance(m, nn.Embedding)}
    assert len(embeddings) == 4
    check_xavier([*embeddings.items(), *matrices(model)])
    for embedding in (model.source_embedding, model.target_embedding):
        zero = embedding.table.weight.eq(0).all(1)
        assert zero.nonzero().flatten().tolist() == [0]


def test_embeddings_have_unit_variance_once_scaled(small: Any) -> None:
    model = built(small, width=64, source_vocab=300, target_vocab=200)
    for embedding in (model.source_embedding, model.target_embedding):
        real = embedding.table.weight.detach()[1:]
        assert real.var().item() * 64 == pytest.approx(1.0, rel=0.05)
        assert abs(real.mean()) * 8 < 0.05
        assert not embedding.table.weight[0].any()


def test_learned_positions_are_drawn_like_embeddings_and_apart(small: Any) -> None:
    model = built(small, width=64, positions="learned", max_positions=200)
    tables = [
        embedding.positions.table.weight.detach() for embedding in (model.source_embedding, model.target_embedding)
    ]
    for table in tables:
        assert table.shape == (200, 64)
        assert table.var().item() * 64 == pytest.approx(1.0, rel=0.05)
        assert table.ne(0).any(1).all()
    assert not torch.equal(*tables)


def test_biases_are_zero_and_norms_are_one(small: Any) -> None:
    model = built(small, norm="pre", embedding_norm=True, feed_forward="reglu")
    vectors = {name: value for name, value in model.named_parameters() if value.dim() == 1}
    for name, value in vectors.items():
        assert value.eq(float("norm" in name and name.endswith("weight"))).all(), name
    assert any("norm" in name for name in vectors)


def test_one_seed_one_model(small: Any) -> None:
    one, same, other = built(small, 3), built(small, 3), built(small, 4)
    for name, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[name]), name
        assert torch.equal(value, other.state_dict()[name]) == (value.dim() == 1), name


@pytest.mark.parametrize(("tie_embeddings", "tie_output"), [(True, True), (True, False), (False, True), (False, False)])
def test_tied_tables_are_one_parameter(small: Any, tie_embeddings: bool, tie_output: bool) -> None:
    model = built(small, target_vocab=13, tie_embeddings=tie_embeddings, tie_output=tie_output)
    tables = (model.source_embedding.table.weight, model.target_embedding.table.weight, model.output.weight)
    source, target, output = tables
    assert (source is target) is tie_embeddings
    assert (target is output) is tie_output
    assert source is not output or (tie_embeddings and tie_output)
    apart = {id(table): table for table in tables}.values()
    assert len(apart) == 3 - tie_embeddings - tie_output
    assert sum(p.numel() for p in model.parameters() if p.shape == source.shape) == sum(p.numel() for p in apart)
    for one in apart:
        assert all(one is other or not torch.equal(one, other) for other in apart)


def test_two_vocabularies_have_their_own_sizes(small: Any) -> None:
    model = built(small)
    assert model.source_embedding.table.weight.shape == (13, 16)
    assert model.target_embedding.table.weight.shape == (11, 16)
    source, lengths = small.padded([(12, 2)])
    assert model(source, lengths, torch.tensor([[1, 10]])).logits.shape == (1, 2, 11)


def some_pairs() -> Batch:
    sources, targets = [[5, 3, 7], [4], [9, 9]], [[6], [8, 3, 10, 4], [5, 5]]
    store = ParallelStore.from_lists(sources, targets)
    return collate(store, torch.arange(3).numpy(), pad_id=0, bos_id=1, eos_id=2)


def train(model: Transformer, updates: int = 3) -> None:
    settings = TrainingConfig(updates=updates)
    optimizer = build_optimizer(model, settings)
    for step in range(1, updates + 1):
        train_step(model, optimizer, [some_pairs(), some_pairs()], settings, step, 1e-2)


@pytest.mark.parametrize("tie_output", [True, False])
@pytest.mark.parametrize("tie_embeddings", [True, False])
@pytest.mark.parametrize("copied", [False, True])
def test_the_padding_row_stays_zero(small: Any, tie_embeddings: bool, tie_output: bool, copied: bool) -> None:
    options = small.unusual if copied else {}
    model = built(small, target_vocab=13, tie_embeddings=tie_embeddings, tie_output=tie_output, **options)
    if copied:
        model = copy.deepcopy(model)
    before = [model.source_embedding.table.weight.clone(), model.target_embedding.table.weight.clone()]
    train(model)
    for embedding, was in zip((model.source_embedding, model.target_embedding), before, strict=True):
        assert not embedding.table.weight[0].any()
        assert not torch.equal(embedding.table.weight[5], was[5])  # the others are trained


def test_an_untied_projection_has_a_padding_row_of_its_own(small: Any) -> None:
    model = built(small, tie_output=False)
    before = model.output.weight.clone()
    train(model)
    assert not torch.equal(model.output.weight[0], before[0])
