"""A module with a soft cap or sinks is the composition of its projections and the functions, by hand."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from multihead.attention import (
    ALiBi,
    Causal,
    KeyValue,
    MultiHeadAttention,
    Padding,
    ScaledDot,
    SoftCap,
    attention,
    join_heads,
    sink_attention,
    split_heads,
)
from multihead.errors import ConfigurationError
from multihead.models.layers import sinusoid

EXACT = {"rtol": 1e-11, "atol": 1e-12}
WIDTH, HEADS = 12, 3


def module(**options: object) -> MultiHeadAttention:
    torch.manual_seed(2)
    made = MultiHeadAttention(WIDTH, HEADS, **options).double()  # type: ignore[arg-type]
    if made.sink is not None:
        with torch.no_grad():
            made.sink.copy_(torch.tensor([0.5, -1.0, 2.0]))
    return made


def sequence(length: int = 6, seed: int = 1) -> Tensor:
    return torch.randn(2, length, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_hand(ours: MultiHeadAttention, x: Tensor, memory: Tensor, **options: object) -> tuple[Tensor, Tensor | None]:
    query, kv = ours.project_query(x), ours.project(memory)
    if ours.sink is None:
        heads, weights = attention(query, kv.key, kv.value, soft_cap=ours.soft_cap, **options)  # type: ignore[arg-type]
    else:
        heads, weights = sink_attention(query, kv.key, kv.value, ours.sink, soft_cap=ours.soft_cap, **options)  # type: ignore[arg-type]
    return ours.output_projection(join_heads(heads)), weights


@pytest.mark.parametrize("kind", [{"soft_cap": 0.3}, {"sink": True}, {"soft_cap": 0.3, "sink": True}], ids=str)
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_it_is_the_composition_by_hand(kind: dict[str, object], kv_heads: int) -> None:
    """In self-attention with a mask and a bias, step by step, and to another sequence; with all gradients."""
    ours, x, memory = module(kv_heads=kv_heads, **kind), sequence(), sequence(4, 3)
    options: dict[str, object] = {"mask": Causal() & Padding([6, 4]), "bias": ALiBi(HEADS), "need_weights": True}
    output, weights = ours(x, **options)
    wanted, wanted_weights = by_hand(ours, x, x, **options)
    torch.testing.assert_close(output, wanted, **EXACT)
    torch.testing.assert_close(weights, wanted_weights, **EXACT)
    plain = MultiHeadAttention(WIDTH, HEADS, kv_heads=kv_heads).double()
    plain.load_state_dict(ours.state_dict(), strict=False)
    assert not torch.allclose(output, plain(x, **options)[0], atol=1e-3)
    direction = torch.randn_like(output)
    parameters = list(ours.parameters())
    found, expected = (torch.autograd.grad((y * direction).sum(), parameters) for y in (output, wanted))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **EXACT)
    cache: KeyValue | None = None
    for time in range(6):
        step, _, cache = ours.step(x[:, time : time + 1], cache, bias=ALiBi(HEADS))
        torch.testing.assert_close(step[0], output[0, time : time + 1], **EXACT)
    for result in (ours(x, memory), ours.attend(x, ours.project(memory))):
        torch.testing.assert_close(result[0], by_hand(ours, x, memory)[0], **EXACT)
        assert result[1] is None


def test_the_cap_is_that_of_the_score_and_the_sink_begins_at_0() -> None:
    """As `SoftCap`; a sink of 0 is a 1 in the denominator, one of minus infinity is none."""
    ours, x = module(soft_cap=0.3), sequence()
    assert ours.in_projection is not None
    query, key, value = (split_heads(part, HEADS) for part in ours.in_projection(x))
    score = SoftCap(ScaledDot(), 0.3)
    weights = torch.stack([score(query[:, h], key[:, h]).softmax(-1) for h in range(HEADS)], 1)
    torch.testing.assert_close(ours(x)[0], ours.output_projection(join_heads(weights @ value)), **EXACT)
    assert torch.equal(MultiHeadAttention(WIDTH, HEADS, sink=True).sink, torch.zeros(HEADS))  # type: ignore[arg-type]
    with_sink = module(sink=True)
    gone = copy.deepcopy(with_sink)
    with torch.no_grad():
        gone.sink.fill_(-torch.inf)  # type: ignore[union-attr]
    torch.testing.assert_close(gone(x)[0], module()(x)[0], **EXACT)
    _, weights_with = with_sink(x, need_weights=True)
    assert (weights_with.sum(-1) < 1).all()


def test_dropped_weights_of_a_sink_are_those_of_the_function() -> None:
    ours, x = module(sink=True, dropout=0.4), sequence()
    torch.manual_seed(4)
    found, _ = ours(x)
    torch.manual_seed(4)
    torch.testing.assert_close(found, by_hand(ours, x, x, dropout_p=0.4)[0], **EXACT)
    assert not torch.allclose(found, ours.eval()(x)[0])


@pytest.mark.parametrize("qk_norm", [None, "layer"])
def test_the_explicit_backend_is_differentiable_twice(qk_norm: str | None, compiled: Any) -> None:
    """With norms and rotary positions too, which are compiled kernels on a CPU."""
    torch.manual_seed(2)
    ours = MultiHeadAttention(16, 2, qk_norm=qk_norm)  # type: ignore[arg-type]
    x, turns = torch.randn(2, 5, 16), sinusoid(torch.arange(5), 8, "halves")
    found = []
    for context in (nullcontext, compiled):
        leaves = [x.clone().requires_grad_(), *ours.parameters()]
        with context():
            output, _ = ours(leaves[0], mask=Causal(), turns=turns, backend="explicit")
            first = torch.autograd.grad(output.pow(3).sum(), leaves, create_graph=True)
            second = torch.autograd.grad(sum(gradient.square().sum() for gradient in first), leaves)  # type: ignore[arg-type]
        found.append([*first, *second])
    for one, plain in zip(*found, strict=True):
        torch.testing.assert_close(one, plain, rtol=1e-3, atol=1e-4 * float(plain.detach().abs().max()))


def test_an_impossible_cap_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"soft_cap=-1\.0: a finite bound above 0 is needed"):
        module(soft_cap=-1.0)
