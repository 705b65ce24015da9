"""Sinks and registers equal their equations, and keep the rules of masks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from multihead.attention import (
    ALiBi,
    Bias,
    Causal,
    Dense,
    FirstKeys,
    Full,
    Mask,
    MultiHeadAttention,
    Padding,
    Registers,
    SlidingWindow,
    attention,
    sink_attention,
    sinks,
)
from multihead.attention.sinks import _SinkRule, _with_sink
from multihead.errors import ConfigurationError, MaskError, ShapeError

EXACT = {"rtol": 1e-11, "atol": 1e-12}
SINK = torch.tensor([0.0, 1.5, -2.0, 0.7], dtype=torch.float64)
MASKS = [None, Causal(), Padding([6, 2]), Causal() & Padding([6, 4]), (FirstKeys(1) | SlidingWindow(1)) & Causal()]


def inputs(kv_heads: int = 4, keys: int = 6) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 5, 8), (2, kv_heads, keys, 8), (2, kv_heads, keys, 3))
    query, key, value = (
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes
    )
    return query, key, value, SINK.clone().requires_grad_()


def by_hand(tensors: tuple[Tensor, ...], mask: Mask | None, bias: Tensor | float) -> tuple[Tensor, Tensor]:
    """The equation, for each head: exp s / (exp z + sum exp s)."""
    query, key, value, sink = tensors
    scores = query @ key.transpose(2, 3) / 8**0.5 + bias
    allowed = (Full() if mask is None else mask).dense(5, 6)
    terms = scores.exp() * allowed
    weights = terms / (sink.exp().view(1, 4, 1, 1) + terms.sum(-1, keepdim=True))
    return weights @ value, weights


@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize("bias", [None, "tensor", "ALiBi"])
def test_the_sink_is_a_term_of_the_denominator(mask: Mask | None, bias: str | None) -> None:
    tensors = inputs()
    alibi = ALiBi(4)
    row = torch.randn(1, 1, 1, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    given = {"tensor": row, "ALiBi": alibi, None: None}[bias]
    term = {"tensor": row, "ALiBi": alibi.dense(5, 6, torch.float64), None: 0.0}[bias]
    expected, weights = by_hand(tensors, mask, term)
    ours, returned = sink_attention(*tensors, mask=mask, bias=given, need_weights=True)
    torch.testing.assert_close(returned, weights, **EXACT)
    fused, nothing = sink_attention(*tensors, mask=mask, bias=given)
    assert nothing is None
    seed = torch.linspace(-1, 1, ours.numel()).double().view_as(ours)
    wanted = torch.autograd.grad(expected, tensors, seed)
    for output in (ours, fused):
        torch.testing.assert_close(output, expected, **EXACT)
        for got, right in zip(torch.autograd.grad(output, tensors, seed), wanted, strict=True):
            torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-12)


LONG = [None, Causal(), Padding([70, 0]), Causal() & Padding([40, 70], [70, 50]), SlidingWindow(9) & Causal()]


@pytest.mark.parametrize("mask", LONG, ids=repr)
@pytest.mark.parametrize("alibi", [False, True])
def test_the_kernel_for_long_sequences_is_the_equation_with_its_gradients(
    mask: Mask | None, alibi: bool, compiled: Any
) -> None:
    """It computes no extra key; one head has no sink, and one pays it nearly all of the weight."""
    generator = torch.Generator().manual_seed(1)
    shapes = ((2, 4, 70, 16), (2, 2, 70, 16), (2, 2, 70, 16))
    tensors = [torch.randn(shape, generator=generator) for shape in shapes]
    tensors.append(torch.tensor([0.0, -math.inf, -2.0, 20.0]))
    upstream = torch.randn(2, 4, 70, 16, generator=generator)
    found = []
    for backend in ("long", "explicit"):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        bias = ALiBi(4) if alibi else None
        output, _ = sink_attention(*leaves, mask=mask, bias=bias, backend=backend)  # type: ignore[arg-type]
        found.append((output, *torch.autograd.grad(output, leaves, upstream)))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=2e-5)


def test_a_long_sequence_needs_no_tensor_of_queries_and_keys(monkeypatch: pytest.MonkeyPatch, compiled: Any) -> None:
    x = torch.randn(1, 2, 300, 16)
    sink = torch.tensor([0.5, -1.0])
    expected, _ = sink_attention(x, x, x, sink, mask=Causal(), need_weights=True)
    monkeypatch.delattr(sinks, "_with_sink")
    output, _ = sink_attention(x, x, x, sink, mask=Causal())
    torch.testing.assert_close(output, expected)
    half, _ = sink_attention(x.bfloat16(), x.bfloat16(), x.bfloat16(), sink, mask=Causal())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), expected, rtol=0.03, atol=0.03)


def test_what_the_kernel_for_long_sequences_lacks_is_named() -> None:
    query, key, value, sink = (tensor.detach() for tensor in inputs())
    with pytest.raises(ConfigurationError, match="backend='long' "):
        sink_attention(query, key, value, sink, backend="long")


def test_no_sink_is_plain_attention_and_heads_may_be_grouped() -> None:
    query, key, value, _ = inputs(kv_heads=2)
    none = torch.full((4,), -math.inf, dtype=torch.float64)
    for mask in MASKS:
        ours, _ = sink_attention(query, key, value, none, mask=mask)
        torch.testing.assert_close(ours, attention(query, key, value, mask=mask)[0], **EXACT)
    shared, _ = sink_attention(query, key, value, SINK)
    repeated, _ = sink_attention(query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), SINK)
    torch.testing.assert_close(shared, repeated, **EXACT)
    with torch.no_grad():
        flexible, _ = sink_attention(
            query.float(), key.float(), value.float(), SINK.float(), mask=MASKS[3], backend="flex_eager"
        )
    expected, _ = sink_attention(query, key, value, SINK, mask=MASKS[3])
    torch.testing.assert_close(flexible, expected.detach().float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bias", [None, ALiBi(4), torch.linspace(-1, 1, 6)[None]], ids=["none", "rule", "tensor"])
@pytest.mark.parametrize("mask", [None, Causal() & Padding([6, 4])], ids=repr)
def test_the_score_rule_of_flex_attention_is_the_column_of_the_others(
    mask: Mask | None, bias: Bias | Tensor | None
) -> None:
    """Also with a soft cap, which does not cap the sink."""
    given = [tensor.detach().float() for tensor in inputs()]
    for cap in (None, 0.7):
        with torch.no_grad():
            found, expected = (
                sink_attention(*given, mask=mask, bias=bias, soft_cap=cap, backend=backend)[0]
                for backend in ("flex_eager", "explicit")
            )
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_the_rule_is_the_column_at_every_place() -> None:
    for inner in (None, ALiBi(4)):
        rule = _SinkRule(SINK, inner, 6)
        query, key = torch.zeros(1, 4, 5, 2).double(), torch.zeros(1, 4, 6, 2).double()
        column = _with_sink(SINK, inner, query, key).expand(1, 4, 5, 7)
        torch.testing.assert_close(rule.dense(5, 7, torch.float64), column)


@pytest.mark.parametrize("need_weights", [True, False])
def test_nothing_to_attend_to_is_zero_and_padding_stays_out(need_weights: bool) -> None:
    query, key, value, sink = (tensor.detach() for tensor in inputs())
    results = []
    for garbage in (0.0, math.nan):
        key[0, :, 4:], value[0, :, 4:], key[1], value[1] = (garbage,) * 4
        leaves = tuple(tensor.clone().requires_grad_() for tensor in (query, key, value, sink))
        output, weights = sink_attention(*leaves, mask=Padding([4, 0]), need_weights=need_weights)
        assert (output[1] == 0).all()
        assert weights is None or (weights[1] == 0).all()
        results.append([output, *torch.autograd.grad(output.sum(), leaves)])
        assert (results[-1][1][1] == 0).all()
    for clean, dirty in zip(*results, strict=True):
        assert torch.equal(clean, dirty)


def test_half_types_and_empty_axes() -> None:
    query, key, value, sink = inputs()
    expected, _ = sink_attention(query, key, value, sink)
    for dtype in (torch.bfloat16, torch.float16):
        half, _ = sink_attention(query.to(dtype), key.to(dtype), value.to(dtype), sink.float())
        assert half.dtype == dtype
        torch.testing.assert_close(half.double(), expected, rtol=0.03, atol=0.03)
    assert (sink_attention(query, key[:, :, :0], value[:, :, :0], sink)[0] == 0).all()
    masked, weights = sink_attention(query, key[:, :, :0], value[:, :, :0], sink, mask=Causal(), need_weights=True)
    assert (masked == 0).all()
    assert weights is not None
    assert weights.shape == (2, 4, 5, 0)
    assert sink_attention(query[:, :, :0], key, value, sink)[0].shape == (2, 4, 0, 3)
    assert sink_attention(query[:0], key[:0], value[:0], sink)[0].shape == (0, 4, 5, 3)


def test_the_streaming_mask_is_a_cache_without_the_keys_in_between() -> None:
    """StreamingLLM: only the first keys and the last ones are kept."""
    query, key, value, _ = inputs()
    mask = (FirstKeys(2) | SlidingWindow(1)) & Causal()
    whole, _ = attention(query[:, :, -1:], key, value, mask=mask)
    kept = [0, 1, 4, 5]
    torch.testing.assert_close(whole, attention(query[:, :, -1:], key[:, :, kept], value[:, :, kept])[0], **EXACT)
    assert mask.show(4) == "■ · · ·\n■ ■ · ·\n■ ■ ■ ·\n■ ■ ■ ■"
    assert FirstKeys(1).dense(3, 4).tolist() == [[[[True, False, False, False]]]]
    assert FirstKeys(9).dense(3, 4).all()
    assert not FirstKeys(0).dense(3, 4).any()
    assert repr(FirstKeys(2) & Causal()) == "FirstKeys(2) & Causal()"


@pytest.mark.parametrize("lengths", [[5, 2], torch.tensor([5, 2])], ids=["host", "tensor"])
def test_registers_are_tokens_of_the_sequence(lengths: list[int] | Tensor) -> None:
    torch.manual_seed(0)
    registers, encoder = Registers(3, 8).double(), MultiHeadAttention(8, 2).double()
    x = torch.randn(2, 5, 8).double()
    longer = registers(x)
    mask = registers.mask(Padding(lengths, lengths))
    assert mask is not None
    read, states = registers.split(encoder(longer, mask=mask)[0])
    assert (read.shape, states.shape) == ((2, 3, 8), (2, 5, 8))
    alone = torch.cat((registers.tokens, x[1, :2]))[None]
    expected, _ = encoder(alone)
    torch.testing.assert_close(torch.cat((read[1], states[1, :2]))[None], expected, **EXACT)
    torch.testing.assert_close(states[1, 2:], encoder.output_projection.bias.expand(3, 8), **EXACT)  # no query there
    assert registers.mask(None) is None
    assert (mask.host_lengths is None) == isinstance(lengths, Tensor)
    read.sum().backward()
    assert registers.tokens.grad is not None
    assert registers.tokens.grad.all()


def test_what_does_not_fit_is_named(unchecked: None) -> None:
    query, key, value, _ = inputs()
    for bias in (torch.ones(7, 7, dtype=torch.bool), torch.ones(7, 7, dtype=torch.long)):
        with pytest.raises(MaskError, match="bias"):
            sink_attention(query, key, value, torch.zeros(4), bias=bias)
    with pytest.raises(MaskError, match="mask"):
        sink_attention(query, key, value, torch.zeros(4), mask=torch.ones(7, 7, dtype=torch.bool))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"sink has shape \[3\].*4 heads"):
        sink_attention(query, key, value, torch.zeros(3))
    for count in (-1, 1.5, True):
        with pytest.raises(ConfigurationError, match=r"count=.*whole number"):
            FirstKeys(count)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="count=0"):
        Registers(0, 8)
    registers = Registers(2, 8)
    with pytest.raises(ShapeError, match=r"\[1, 4, 6\].*width 8"):
        registers(torch.zeros(1, 4, 6))
    for mask in (Causal(), Dense(torch.ones(4, 4, dtype=torch.bool))):
        with pytest.raises(MaskError, match="whose mask is Padding"):
            registers.mask(mask)  # type: ignore[arg-type]
