"""The compiled kernel for short sequences equals the reference: values, gradients, lengths; padding does not spread."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from multihead.attention import ALiBi, Causal, Mask, Padding, attention, choose
from multihead.attention.backends.explicit import explicit_attention
from multihead.attention.backends.short import LONGEST, packed_short_attention, short_attention, takes
from multihead.attention.masks.documents import PackedRow
from multihead.errors import ConfigurationError, ShapeError
from multihead.kernels.native import VARIABLE, clear_loaded, load_kernels


def heads_of(batch: int, heads: int, length: int, width: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Heads as a projection returns them: a slice of a wider tensor, heads side by side."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(batch, length, heads * width + 16, generator=generator).to(dtype)
    return wide[..., 16:].view(batch, length, heads, width).transpose(1, 2).requires_grad_()


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_lengths: Tensor | None,
    query_lengths: Tensor | None,
    causal: bool,
    scale: float,
) -> Tensor:
    queries, keys = query.shape[2], key.shape[2]
    mask = torch.ones(query.shape[0], 1, queries, keys, dtype=torch.bool)
    if key_lengths is not None:
        mask &= (torch.arange(keys) < key_lengths[:, None])[:, None, None]
    if query_lengths is not None:
        mask &= (torch.arange(queries) < query_lengths[:, None])[:, None, :, None]
    if causal:
        mask &= torch.ones(queries, keys, dtype=torch.bool).tril()
    return explicit_attention(query.double(), key.double(), value.double(), mask=mask, scale=scale)[0]


CASES = [
    # queries, keys, width, causal, with key lengths, with query lengths
    (1, 1, 16, False, False, False),
    (5, 9, 32, False, True, False),
    (9, 9, 32, True, False, False),
    (16, 16, 32, True, True, True),
    (7, 18, 5, False, True, True),
    (20, 20, 40, True, True, False),
    (23, 23, 16, True, True, False),
    (33, 70, 64, False, True, True),
    (65, 64, 48, False, False, True),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("queries", "keys", "width", "causal", "short_keys", "short_queries"), CASES)
def test_it_is_the_reference(
    queries: int,
    keys: int,
    width: int,
    causal: bool,
    short_keys: bool,
    short_queries: bool,
    dtype: torch.dtype,
    compiled: Any,
) -> None:
    query = heads_of(4, 3, queries, width, dtype, 1)
    key, value = (heads_of(4, 3, keys, width, dtype, seed) for seed in (2, 3))
    assert takes(query, key, value)
    key_lengths = torch.tensor([keys, 0, 1, (keys + 1) // 2]) if short_keys else None
    query_lengths = torch.tensor([0, queries, (queries + 1) // 2, 1]) if short_queries else None
    limits = {"key_lengths": key_lengths, "query_lengths": query_lengths, "causal": causal}
    ours = short_attention(query, key, value, **limits, scale=0.3)
    theirs = reference(query, key, value, **limits, scale=0.3)
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(4))
    of_ours = torch.autograd.grad((ours * weight.to(dtype)).sum(), (query, key, value))
    of_theirs = torch.autograd.grad((theirs * weight.to(dtype)).sum(), (query, key, value))
    tolerance = 2e-6 if dtype == torch.float32 else 0.01
    for got, expected in zip((ours, *of_ours), (theirs, *of_theirs), strict=True):
        scale = max(1.0, float(expected.detach().abs().max()))
        torch.testing.assert_close(got.double(), expected.double(), rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("real", [3, 4])
def test_padding_reaches_nothing(real: int, dtype: torch.dtype, compiled: Any) -> None:
    """With an odd length, the last pair of a product in bfloat16 has one real number."""
    query, key, value = (heads_of(2, 2, 6, 16, dtype, seed) for seed in range(3))
    lengths = torch.tensor([real, 0])
    clean = short_attention(query, key, value, key_lengths=lengths)
    with torch.no_grad():
        for tensor in (key, value):
            tensor[0, :, real:] = float("nan")
            tensor[1] = float("inf")
    dirty = short_attention(query, key, value, key_lengths=lengths)
    assert torch.equal(clean, dirty)
    assert not dirty[1].any()
    for gradient in torch.autograd.grad(dirty.square().sum(), (query, key, value)):
        assert gradient.isfinite().all()
        assert not gradient[1].any()


def test_rows_do_not_affect_each_other(compiled: Any) -> None:
    query, key, value = (heads_of(5, 2, 12, 16, torch.bfloat16, seed) for seed in range(3))
    lengths = torch.tensor([12, 3, 7, 1, 12])
    together = short_attention(query, key, value, key_lengths=lengths)
    for row in range(5):
        alone = slice(row, row + 1)
        one = short_attention(query[alone], key[alone], value[alone], key_lengths=lengths[alone])
        assert torch.equal(one, together[alone])


def test_joining_the_heads_copies_nothing(compiled: Any) -> None:
    query, key, value = (heads_of(2, 3, 5, 16, torch.float32, seed) for seed in range(3))
    out = short_attention(query, key, value)
    assert out.transpose(1, 2).flatten(2).data_ptr() == out.data_ptr()


def test_what_it_does_not_take(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def x(*shape: int) -> Tensor:
        return torch.randn(*shape)

    good = x(2, 4, 8, 16)
    assert takes(good, good, good)
    assert not takes(good.double(), good.double(), good.double())
    assert not takes(good, good, good.bfloat16())
    assert not takes(good, good[:, :2], good[:, :2])
    assert not takes(good, good, x(2, 4, 8, 32))
    assert not takes(x(1, 1, LONGEST + 1, 16), good[:1, :1], good[:1, :1])
    assert not takes(good[:0], good[:0], good[:0])
    with compiled():
        assert not takes(good, good, good)
    monkeypatch.setenv(VARIABLE, "0")
    clear_loaded()
    try:
        assert not takes(good, good, good)
        assert load_kernels().reason == f"plain kernels: {VARIABLE}=0"
    finally:
        monkeypatch.undo()
        clear_loaded()


def test_what_would_read_past_the_end_is_an_error(compiled: Any) -> None:
    good = torch.randn(2, 4, 8, 16)
    with pytest.raises(ConfigurationError, match="ask `takes` first"):
        short_attention(good, good, good.double())
    with pytest.raises(ShapeError, match="one length a row"):
        short_attention(good, good, good, key_lengths=torch.tensor([1]))
    with pytest.raises(ShapeError, match="as many keys as queries"):
        short_attention(good, good[:, :, :5], good[:, :, :5], causal=True)
    long = torch.tensor([100, -3])
    bounded = short_attention(good, good, good, key_lengths=long)
    assert torch.equal(bounded, short_attention(good, good, good, key_lengths=torch.tensor([8, 0])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_sequences_end_to_end_are_the_sequences_one_by_one(causal: bool, dtype: torch.dtype, compiled: Any) -> None:
    asked = torch.tensor([4, 0, 17, 1])
    seen = asked if causal else torch.tensor([9, 3, 0, 20])
    query = heads_of(1, 3, 25, 20, dtype, 1)
    key, value = (heads_of(1, 3, 36, 20, dtype, seed) for seed in (2, 3))
    if causal:
        key, value = (tensor[:, :, :25].detach().requires_grad_() for tensor in (key, value))
    inputs = (query, key, value)
    ours = packed_short_attention(query, key, value, PackedRow(asked, seen), causal=causal, scale=0.3)
    q, k = 0, 0
    pieces = []
    for queries, keys in zip(asked.tolist(), seen.tolist(), strict=True):
        if queries and keys:
            one = query[:, :, q : q + queries], key[:, :, k : k + keys], value[:, :, k : k + keys]
            pieces.append(short_attention(*one, causal=causal, scale=0.3))
        else:
            pieces.append(torch.zeros(1, 3, queries, 20, dtype=dtype))
        q, k = q + queries, k + keys
    theirs = torch.cat((*pieces, torch.zeros(1, 3, 25 - q, 20, dtype=dtype)), 2)
    assert torch.equal(ours, theirs)
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(4)).to(dtype)
    for mine, want in zip(
        torch.autograd.grad((ours * weight).sum(), inputs),
        torch.autograd.grad((theirs * weight).sum(), inputs),
        strict=True,
    ):
        assert torch.equal(mine, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_distances_are_the_reference(causal: bool, symmetric: bool, dtype: torch.dtype, compiled: Any) -> None:
    """ALiBi of three heads: output and gradients, row by row and end to end."""
    bias, lengths = ALiBi(3, symmetric), torch.tensor([21, 0, 16, 5])
    inputs = [heads_of(4, 3, 21, 20, dtype, seed) for seed in range(3)]
    mask: Mask = Padding(lengths, lengths)
    plan = choose(*inputs, mask=mask & Causal() if causal else mask, bias=bias)
    assert plan.kernel == "short"
    ours, _ = attention(*inputs, mask=mask & Causal() if causal else mask, bias=bias, scale=0.3)
    allowed = (torch.arange(21) < lengths[:, None])[:, None, None, :] & (torch.arange(21) < lengths[:, None])[
        :, None, :, None
    ]
    allowed = allowed & torch.ones(21, 21, dtype=torch.bool).tril() if causal else allowed
    theirs, _ = explicit_attention(
        *(x.double() for x in inputs), mask=allowed, bias=bias.dense(21, 21).double(), scale=0.3
    )
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(4)).to(dtype)
    results = [(one, *torch.autograd.grad((one * weight).sum(), inputs)) for one in (ours, theirs)]
    tolerance = 2e-6 if dtype == torch.float32 else 0.01
    for got, expected in zip(*results, strict=True):
        scale = max(1.0, float(expected.detach().abs().max()))
        torch.testing.assert_close(got.double(), expected.double(), rtol=tolerance, atol=tolerance * scale)
    ends = [torch.cat([x[row : row + 1, :, :size] for row, size in enumerate(lengths)], 2) for x in inputs]
    together = packed_short_attention(*ends, PackedRow(lengths, lengths), causal=causal, bias=bias, scale=0.3)
    parts = [ours[row : row + 1, :, :size] for row, size in enumerate(lengths)]
    assert torch.equal(together, torch.cat(parts, 2))


def test_distances_of_other_keys_or_heads_are_refused(compiled: Any) -> None:
    query, key = heads_of(2, 2, 8, 16, torch.float32, 1), heads_of(2, 2, 5, 16, torch.float32, 2)
    with pytest.raises(ShapeError, match="ALiBi needs as many keys as queries, got 8 and 5"):
        short_attention(query, key, key, bias=ALiBi(2))
    with pytest.raises(ShapeError, match=r"the bias ALiBi\(3\) has 3 heads, the query 2"):
        short_attention(query, query, query, bias=ALiBi(3))
    assert choose(query, key, key, bias=ALiBi(2)).kernel == "sdpa"
    row = PackedRow(torch.tensor([3, 2]), torch.tensor([2, 3]))
    with pytest.raises(ShapeError, match="ALiBi needs as many keys as queries in every sequence"):
        packed_short_attention(query[:1], query[:1], query[:1], row, bias=ALiBi(2))


def test_sequences_that_do_not_fit_are_refused(compiled: Any) -> None:
    query = heads_of(1, 2, 10, 16, torch.float32, 1)
    lengths = torch.tensor([5, 6])
    with pytest.raises(ShapeError, match="do not fit into a row of 10"):
        packed_short_attention(query, query, query, PackedRow(lengths, lengths))
    unequal = PackedRow(torch.tensor([5, 5]), torch.tensor([4, 6]))
    with pytest.raises(ShapeError, match="as many keys as queries in every sequence"):
        packed_short_attention(query, query, query, unequal, causal=True)
    with pytest.raises(ShapeError, match="2 sequences of queries and 1 of keys"):
        PackedRow(lengths, lengths[:1])
