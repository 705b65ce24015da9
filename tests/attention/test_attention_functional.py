"""Explicit and fused attention agree, forwards and backwards; a query with nothing to attend to yields zeros."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from multihead.attention import (
    Causal,
    Dense,
    Full,
    Mask,
    Padding,
    PrefixLM,
    attention,
    explicit_attention,
    masked_softmax,
)
from multihead.errors import ConfigurationError, MaskError, ShapeError

BATCH, HEADS, KEYS, DIM = 3, 4, 5, 6
LENGTHS = {"equal": KEYS, "shorter": 2, "one": 1, "longer": 7}


def inputs(
    queries: int, kv_heads: int = HEADS, value_dim: int = DIM, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(queries * 10 + kv_heads)
    shapes = ((HEADS, queries, DIM), (kv_heads, KEYS, DIM), (kv_heads, KEYS, value_dim))
    query, key, value = (
        torch.randn(BATCH, *shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in shapes
    )
    return query, key, value


def masks(queries: int) -> dict[str, Mask | None]:
    generator = torch.Generator().manual_seed(queries)
    lengths = torch.tensor([5, 0, 3])
    return {
        "none": None,
        "full": Full(),
        "causal": Causal(),
        "start": Causal(align="start"),
        "padding": Padding(lengths),
        "both sides": Padding(lengths, torch.tensor([1, 2, 0])),
        "causal & padding": Causal() & Padding(lengths),
        "left padding": Causal() & ~Padding([0, 2, 5]),
        "or": Causal() | Padding(lengths),
        "not": ~Causal(),
        "dense 2-d": Dense(torch.rand(queries, KEYS, generator=generator) < 0.5),
        "dense 4-d": Dense(torch.rand(BATCH, HEADS, queries, KEYS, generator=generator) < 0.5),
        "heads": Causal() & Dense(torch.rand(1, HEADS, 1, KEYS, generator=generator) < 0.5),
        "nothing": ~Full(),
    }


def with_gradients(tensors: tuple[Tensor, ...], output: Tensor) -> list[Tensor]:
    seed = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    return [output, *torch.autograd.grad(output, tensors, seed)]


def full_mask(mask: Mask | None, queries: int) -> Tensor:
    dense = torch.ones(1, 1, 1, 1, dtype=torch.bool) if mask is None else mask.dense(queries, KEYS)
    return dense.expand(BATCH, HEADS, queries, KEYS)


CASES = list(product(LENGTHS, masks(1), [HEADS, 2, 1]))


@pytest.mark.parametrize(("length", "kind", "kv_heads"), CASES)
def test_fused_equals_explicit_forwards_and_backwards(length: str, kind: str, kv_heads: int) -> None:
    queries = LENGTHS[length]
    tensors = inputs(queries, kv_heads)
    mask = masks(queries)[kind]
    explicit, _ = attention(*tensors, mask=mask, backend="explicit")
    fused, _ = attention(*tensors, mask=mask, backend="sdpa")
    for ours, theirs in zip(with_gradients(tensors, explicit), with_gradients(tensors, fused), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("length", "kind"), list(product(LENGTHS, masks(1))))
@pytest.mark.parametrize("scale", [None, 0.7])
def test_both_equal_pytorch_with_its_own_mask(length: str, kind: str, scale: float | None) -> None:
    queries = LENGTHS[length]
    query, key, value = inputs(queries, kv_heads=2)
    mask = masks(queries)[kind]
    wide_key, wide_value = (tensor.repeat_interleave(2, dim=1) for tensor in (key, value))
    reference = F.scaled_dot_product_attention(
        query, wide_key, wide_value, attn_mask=full_mask(mask, queries), scale=scale
    )
    for backend in ("auto", "explicit", "sdpa"):
        ours, _ = attention(query, key, value, mask=mask, scale=scale, backend=backend)
        torch.testing.assert_close(ours, reference, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shape", [(2, KEYS), (BATCH, 1, 1, KEYS), (1, HEADS, 2, KEYS), (BATCH, HEADS, 2, 1)])
@pytest.mark.parametrize("kind", ["none", "causal & padding", "dense 4-d", "nothing"])
def test_bias_on_both_paths(shape: tuple[int, ...], kind: str) -> None:
    tensors = inputs(2, kv_heads=2)
    bias = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    results = [
        with_gradients((*tensors, bias), attention(*tensors, mask=masks(2)[kind], bias=bias, backend=backend)[0])
        for backend in ("explicit", "sdpa")
    ]
    for explicit, fused in zip(*results, strict=True):
        torch.testing.assert_close(explicit, fused, rtol=1e-12, atol=1e-13)


def test_minus_infinity_in_a_bias_is_a_mask() -> None:
    query, key, value = inputs(KEYS)
    mask = Causal() & Padding([5, 0, 3])
    bias = mask.additive(KEYS, KEYS, torch.float64)
    masked = with_gradients((query, key, value), attention(query, key, value, mask=mask)[0])
    for backend in ("explicit", "sdpa"):
        biased = attention(query, key, value, bias=bias, backend=backend)[0]
        for ours, theirs in zip(with_gradients((query, key, value), biased), masked, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


def test_mask_and_bias_together_can_leave_nothing() -> None:
    query, key, value = inputs(KEYS)
    bias = torch.zeros(KEYS, KEYS, dtype=torch.float64)
    bias[KEYS - 1] = -torch.inf  # the only row that the causal mask does not restrict
    for backend in ("explicit", "sdpa"):
        output, _ = attention(query, key, value, mask=Causal(), bias=bias, backend=backend)
        for result in with_gradients((query, key, value), output):
            assert result.isfinite().all()
        assert output[:, :, -1].eq(0).all()
        assert output[:, :, :-1].ne(0).all()


@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_nothing_to_attend_to_is_exactly_zero(backend: str, with_bias: bool, dtype: torch.dtype) -> None:
    query, key, value = inputs(KEYS, dtype=dtype)
    bias = torch.ones(1, HEADS, KEYS, KEYS, dtype=dtype, requires_grad=True) if with_bias else None
    mask = Padding([5, 0, 3], q_lengths=[4, 5, 5]) & Causal()
    with torch.autograd.set_detect_anomaly(True):
        output, _ = attention(query, key, value, mask=mask, bias=bias, backend=backend)  # type: ignore[arg-type]
        output.float().square().sum().backward()
    assert output.dtype == dtype
    assert output[1].eq(0).all()
    assert output[0, :, 4].eq(0).all()
    assert output[0, :, :4].ne(0).any(dim=-1).all()
    for tensor in (query, key, value):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
        assert tensor.grad[1].eq(0).all()
        assert tensor.grad[0].ne(0).any()
    assert query.grad is not None
    assert query.grad[0, :, 4].eq(0).all()
    if bias is not None:
        assert bias.grad is not None
        assert bias.grad.isfinite().all()


def test_weights_are_a_distribution_or_zero() -> None:
    query, key, value = inputs(2, kv_heads=2)
    mask = masks(2)["dense 4-d"]
    output, weights = attention(query, key, value, mask=mask, need_weights=True)
    allowed = full_mask(mask, 2)
    assert weights is not None
    assert weights[~allowed].eq(0).all()
    torch.testing.assert_close(weights.sum(dim=-1), allowed.any(dim=-1).double())
    torch.testing.assert_close(weights @ value.repeat_interleave(2, dim=1), output)


def test_no_weights_unless_wanted() -> None:
    for backend in ("auto", "explicit", "sdpa"):
        assert attention(*inputs(2), backend=backend)[1] is None


@pytest.mark.parametrize("kind", ["none", "causal & padding", "nothing"])
def test_gradients_of_the_reference_are_right(kind: str) -> None:
    query, key, value = (tensor[:, :2, :, :2].detach().requires_grad_() for tensor in inputs(2))
    mask = masks(2)[kind]
    allowed = None if mask is None else mask.dense(2, KEYS)
    bias = torch.randn(2, KEYS, dtype=torch.float64, requires_grad=True)

    def reference(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return explicit_attention(*tensors[:3], mask=allowed, bias=tensors[3])

    assert torch.autograd.gradcheck(reference, (query, key, value, bias))
    assert torch.autograd.gradgradcheck(reference, (query, key, value, bias), fast_mode=True)


def test_masked_softmax_is_the_softmax_of_what_is_allowed() -> None:
    scores = torch.randn(4, 5, dtype=torch.float64)
    allowed = torch.tensor([True, False, True, True, False])
    torch.testing.assert_close(masked_softmax(scores), scores.softmax(-1))
    torch.testing.assert_close(masked_softmax(scores, allowed)[:, allowed], scores[:, allowed].softmax(-1))
    torch.testing.assert_close(masked_softmax(scores.T, allowed[:, None], dim=0), masked_softmax(scores, allowed).T)


def test_masked_softmax_sums_to_one_in_half_precision() -> None:
    scores = torch.randn(4, 1000)
    half = masked_softmax(scores.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half, scores.bfloat16().float().softmax(-1).bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_masked_softmax_tells_the_lowest_half_score_from_a_masked_one(dtype: torch.dtype) -> None:
    lowest = torch.full((2,), torch.finfo(dtype).min, dtype=dtype)
    assert masked_softmax(lowest, torch.tensor([True, False])).tolist() == [1, 0]


def test_padded_keys_change_nothing() -> None:
    query, key, value = inputs(2)
    longer_key, longer_value = (F.pad(tensor, (0, 0, 0, 3), value=1e4) for tensor in (key, value))
    for backend in ("explicit", "sdpa"):
        short, _ = attention(query, key, value, mask=Padding([5, 2, 3]), backend=backend)
        long, _ = attention(query, longer_key, longer_value, mask=Padding([5, 2, 3]), backend=backend)
        torch.testing.assert_close(short, long)


def test_values_of_another_width_and_no_keys_at_all() -> None:
    for backend in ("explicit", "sdpa"):
        query, key, value = inputs(2, value_dim=3)
        assert attention(query, key, value, backend=backend)[0].shape == (BATCH, HEADS, 2, 3)
        assert attention(query, key[:, :, :0], value[:, :, :0], backend=backend)[0].eq(0).all()
        assert attention(query[:, :, :0], key, value, mask=Causal(), backend=backend)[0].shape[2] == 0


def test_dropout_drops_weights_and_keeps_their_mean() -> None:
    torch.manual_seed(0)
    query, key = torch.zeros(1, 1, 2000, 4), torch.zeros(1, 1, 8, 4)
    value = torch.ones(1, 1, 8, 1)
    for need_weights in (False, True):
        output, weights = attention(query, key, value, dropout_p=0.5, need_weights=need_weights)
        assert output.unique().numel() > 2
        assert abs(output.mean() - 1) < 0.05
        if weights is not None:
            assert weights.eq(1 / 8).all()  # before dropout


@pytest.mark.parametrize("need_weights", [False, True])
def test_half_precision_is_the_same_up_to_rounding(need_weights: bool) -> None:
    exact, _ = attention(*inputs(KEYS), mask=Causal())
    half, weights = attention(*inputs(KEYS, dtype=torch.bfloat16), mask=Causal(), need_weights=need_weights)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), exact, rtol=0, atol=0.06)
    if weights is not None:
        assert weights.dtype == torch.bfloat16


@pytest.mark.parametrize("need_weights", [False, True])
def test_under_autocast_types_may_differ_and_training_is_in_float32(need_weights: bool) -> None:
    query, key, value = inputs(KEYS, dtype=torch.bfloat16)
    reference, _ = attention(query.float(), key.float(), value.float(), mask=Causal())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = attention(query.float(), key, value, mask=Causal(), need_weights=need_weights)
    assert output.dtype == torch.float32
    torch.testing.assert_close(output, reference)  # float32 all the way, although autocast would make it bfloat16


def test_shapes_that_do_not_fit_are_named(unchecked: None) -> None:
    query, key, value = inputs(2)
    with pytest.raises(ShapeError, match=r"four axes.*\[4, 2, 6\]"):
        attention(query[0], key, value)
    with pytest.raises(ShapeError, match=r"batch and width.*key \[3, 4, 5, 3\]"):
        attention(query, key[..., :3], value)
    with pytest.raises(ShapeError, match=r"key \[3, 4, 5, 6\], value \[3, 4, 4, 6\]"):
        attention(query, key, value[:, :, :4])
    with pytest.raises(ShapeError, match=r"multiple.*key \[3, 3, 5, 6\]"):
        attention(query, key[:, :3], value[:, :3])
    with pytest.raises(ShapeError, match=r"one type.*float32"):
        attention(query, key.float(), value)
    with pytest.raises(ShapeError, match=r"\[3, 2, 5\].*bias\[:, None\]"):
        attention(query, key, value, bias=torch.zeros(3, 2, 5))
    with pytest.raises(ShapeError, match=r"bias has shape \[2, 4\].*\[3, 4, 2, 5\]"):
        attention(query, key, value, bias=torch.zeros(2, 4))
    with pytest.raises(ShapeError, match=r"Padding\(\[1, 2\]\) was made for 2 sentences.* 3"):
        attention(query, key, value, mask=Padding([1, 2]))
    with pytest.raises(MaskError, match=r"Dense\(mask\)"):
        attention(query, key, value, mask=torch.ones(2, 5, dtype=torch.bool))  # type: ignore[arg-type]
    for backend in ("auto", "explicit", "sdpa", "blockwise", "long"):  # parts that were made for different batches
        for lengths in ([1, 2], [1, 2, 3, 4]):
            with pytest.raises(ShapeError, match=rf"Padding\(.*\) was made for {len(lengths)} sentences.* 3"):
                attention(query, key, value, mask=Padding(lengths) & PrefixLM([1, 2, 3]), backend=backend)  # type: ignore[arg-type]


def test_settings_that_cannot_be(unchecked: None) -> None:
    tensors = inputs(2)
    with pytest.raises(ConfigurationError, match="does not return weights"):
        attention(*tensors, need_weights=True, backend="sdpa")
    with pytest.raises(ConfigurationError, match=r"'fast'.*explicit"):
        attention(*tensors, backend="fast")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"dropout_p=1\.5"):
        attention(*tensors, dropout_p=1.5)
