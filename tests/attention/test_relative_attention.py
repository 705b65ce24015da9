"""Shaw's relative positions equal their equation, with a vector for every pair, and keep the rules of masks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from multihead.attention import (
    ALiBi,
    Causal,
    Dense,
    Full,
    KeyValue,
    Mask,
    MultiHeadAttention,
    Padding,
    RelativePositions,
    attention,
    relative_attention,
    split_heads,
)
from multihead.attention.relative import by_distance, by_pair
from multihead.errors import ConfigurationError, ShapeError

EXACT = {"rtol": 1e-11, "atol": 1e-12}
HEADS, DIM, VALUE_DIM = 4, 6, 3
MASKS = [None, Causal(), Padding([7, 2]), Causal() & Padding([7, 4])]


def positions(distance: int = 2, causal: bool = False) -> RelativePositions:
    torch.manual_seed(1)
    return RelativePositions(DIM, distance, value_dim=VALUE_DIM, causal=causal).double()


def inputs(queries: int = 5, keys: int = 7, kv_heads: int = HEADS) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, HEADS, queries, DIM), (2, kv_heads, keys, DIM), (2, kv_heads, keys, VALUE_DIM))
    query, key, value = (
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes
    )
    return query, key, value


def by_hand(
    tensors: tuple[Tensor, Tensor, Tensor], table: RelativePositions, mask: Mask | None, bias: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """Equations 3 and 4 of the paper: a^K and a^V as tensors [query, key, dim]."""
    query, key, value = tensors
    n, m = query.shape[2], key.shape[2]
    groups = HEADS // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    highest = 0 if table.causal else table.distance
    rows = [[max(-table.distance, min(highest, j - (i + m - n))) + table.distance for j in range(m)] for i in range(n)]
    of_keys, of_values = table.keys[torch.tensor(rows)], table.values[torch.tensor(rows)]
    sums = key[:, :, None] + of_keys  # [batch, heads, query, key, dim]
    scores = (query[:, :, :, None] * sums).sum(-1) / math.sqrt(DIM) + bias
    allowed = (Full() if mask is None else mask).dense(n, m)
    terms = scores.exp() * allowed
    weights = terms / terms.sum(-1, keepdim=True)
    return (weights[..., None] * (value[:, :, None] + of_values)).sum(3), weights


@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize(("distance", "causal"), [(1, False), (2, True), (3, False), (30, False), (30, True)])
def test_it_is_the_equation_with_a_vector_for_every_pair(mask: Mask | None, distance: int, causal: bool) -> None:
    """Output, weights, and gradients of the inputs and of both tables; more keys than queries; any clipping."""
    tensors, table = inputs(), positions(distance, causal)
    expected, weights = by_hand(tensors, table, mask)
    ours, returned = relative_attention(*tensors, table, mask=mask, need_weights=True)
    torch.testing.assert_close(ours, expected, **EXACT)
    torch.testing.assert_close(returned, weights, **EXACT)
    direction = torch.randn_like(expected)
    leaves = (*tensors, table.keys, table.values)
    found, wanted = (torch.autograd.grad((x * direction).sum(), leaves) for x in (ours, expected))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, **EXACT)


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 7), (7, 7), (2, 3)])
def test_grouped_queries_and_any_lengths(kv_heads: int, queries: int, keys: int) -> None:
    tensors, table = inputs(queries, keys, kv_heads), positions(2)
    row = torch.randn(1, HEADS, 1, keys, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    torch.testing.assert_close(
        relative_attention(*tensors, table, bias=row)[0], by_hand(tensors, table, None, row)[0], **EXACT
    )
    alibi = ALiBi(HEADS)
    term = alibi.dense(queries, keys, torch.float64)
    torch.testing.assert_close(
        relative_attention(*tensors, table, bias=alibi)[0], by_hand(tensors, table, None, term)[0], **EXACT
    )


@pytest.mark.parametrize(("queries", "keys"), [(1, 4), (2, 2), (3, 5), (5, 5)])
def test_skewing_and_its_inverse(queries: int, keys: int) -> None:
    columns = torch.arange(1.0 - keys, queries).expand(1, 1, queries, -1)
    distances = torch.arange(float(keys)) - torch.arange(keys - queries, keys)[:, None]
    assert torch.equal(by_pair(columns, keys)[0, 0], distances)
    pairs = torch.randn(2, 3, queries, keys)
    assert torch.equal(by_pair(by_distance(pairs), keys), pairs)
    torch.testing.assert_close(by_distance(pairs).sum(-1), pairs.sum(-1))


def test_vectors_of_zeros_are_plain_attention_and_rows_without_keys_are_zeros() -> None:
    query, key, value = inputs(7)
    table = positions()
    with torch.no_grad():
        table.keys.zero_()
        table.values.zero_()
    torch.testing.assert_close(
        relative_attention(query, key, value, table, mask=Causal())[0],
        attention(query, key, value, mask=Causal())[0],
        **EXACT,
    )
    nothing = Dense(torch.zeros(1, 1, 7, 7, dtype=torch.bool))
    output, weights = relative_attention(query, key, value, positions(), mask=nothing, need_weights=True)
    assert not output.any()
    assert weights is not None
    assert not weights.any()


def test_nothing_spreads_from_the_padding() -> None:
    query, key, value = inputs(7)
    table, mask = positions(), Padding([7, 4], [7, 4])
    clean, _ = relative_attention(query, key, value, table, mask=mask)
    with torch.no_grad():
        for x in (query, key, value):
            x[1, :, 4:] = math.nan
    found, _ = relative_attention(query, key, value, table, mask=mask)
    torch.testing.assert_close(found[1, :, :4], clean[1, :, :4], **EXACT)
    (found[0].sum() + found[1, :, :4].sum()).backward()
    assert table.keys.grad is not None
    assert table.values.grad is not None
    assert table.keys.grad.isfinite().all()
    assert table.values.grad.isfinite().all()


def test_dropped_weights_are_dropped_in_both_sums() -> None:
    query, key, value = inputs(7)
    table = positions()
    torch.manual_seed(5)
    output, weights = relative_attention(query, key, value, table, dropout_p=0.4, need_weights=True)
    assert weights is not None
    torch.manual_seed(5)
    kept = torch.nn.functional.dropout(weights, 0.4)
    torch.testing.assert_close(output, kept @ value + table.sums(kept), **EXACT)


def module(**options: object) -> MultiHeadAttention:
    torch.manual_seed(2)
    return MultiHeadAttention(HEADS * DIM, HEADS, value_width=HEADS * VALUE_DIM, **options).double()  # type: ignore[arg-type]


@pytest.mark.parametrize("causal", [False, True])
def test_a_module_step_by_step_and_as_a_whole(causal: bool) -> None:
    ours = module(relative=positions(2, causal))
    x = torch.randn(2, 7, HEADS * DIM, dtype=torch.float64)
    whole, weights = ours(x, mask=Causal(), need_weights=True)
    cache: KeyValue | None = None
    for start, stop in ((0, 3), (3, 4), (4, 7)):
        output, some, cache = ours.step(x[:, start:stop], cache, mask=Causal(), need_weights=True)
        torch.testing.assert_close(output, whole[:, start:stop], **EXACT)
        torch.testing.assert_close(some, weights[:, :, start:stop, :stop], **EXACT)
    assert ours.in_projection is not None
    query, key, value = (split_heads(part, HEADS) for part in ours.in_projection(x))
    heads = by_hand((query, key, value), ours.relative_positions, Causal())[0]  # type: ignore[arg-type]
    torch.testing.assert_close(whole, ours.output_projection(heads.transpose(1, 2).flatten(2)), **EXACT)


def test_what_does_not_fit_is_named(unchecked: None) -> None:
    query, key, value = inputs()
    with pytest.raises(ConfigurationError, match="distance=0"):
        RelativePositions(4, 0)
    with pytest.raises(ShapeError, match=r"widths 4 and 4, but keys and values of a head 6 and 3: write Rel"):
        relative_attention(query, key, value, RelativePositions(4))
    with pytest.raises(ShapeError, match="the bias"):
        relative_attention(query, key, value, positions(), bias=torch.zeros(3, 3))
    with pytest.raises(ConfigurationError, match="weights"):
        relative_attention(query, key, value, positions(), backend="sdpa")
    with pytest.raises(ShapeError, match="widths 6 and 3, but keys and values of a head 6 and 6"):
        MultiHeadAttention(24, 4, relative=positions())
    for other in ({"sink": True}, {"soft_cap": 3.0}):
        with pytest.raises(ConfigurationError, match=r"relative positions and s\w+=\S+ do not go together"):
            module(relative=positions(), **other)
    x = torch.randn(2, 7, HEADS * DIM, dtype=torch.float64)
    ours = module(relative=positions())
    for call in (lambda: ours(x, x.clone()), lambda: ours.attend(x, ours.project(x))):
        with pytest.raises(ShapeError, match="no common positions; leave out relative="):
            call()
