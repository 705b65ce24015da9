"""Linear attention equals its quadratic form; the causal form equals the recurrence, one step or several at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from multihead.attention import (
    Causal,
    LinearState,
    Mask,
    Padding,
    SlidingWindow,
    elu_plus_one,
    linear_attention,
    linear_attention_step,
)
from multihead.errors import MaskError, ShapeError

EXACT = {"rtol": 1e-10, "atol": 1e-11}
MASKS = [None, Causal(), Padding([7, 3]), Causal() & Padding([7, 3]), Padding([7, 4], [7, 5])]


def inputs(length: int = 7, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, 3, length, width, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for width in (4, 4, 5)
    )
    return query, key, value


def quadratic(tensors: tuple[Tensor, ...], mask: Mask | None) -> Tensor:
    """Equation 3 of Katharopoulos et al. 2020: similarities phi(q) . phi(k), normalized for each query."""
    query, key, value = tensors
    phi_q, phi_k = (torch.where(x > 0, x + 1, x.exp()) for x in (query, key))
    similar = torch.einsum("bhqd,bhkd->bhqk", phi_q, phi_k)
    if mask is not None:
        similar = similar * mask.dense(query.shape[2], key.shape[2])
    return similar / similar.sum(-1, keepdim=True).clamp(min=1e-300) @ value


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_it_is_the_quadratic_form_with_its_gradients(mask: Mask | None) -> None:
    tensors = inputs()
    expected, ours = quadratic(tensors, mask), linear_attention(*tensors, mask=mask)
    torch.testing.assert_close(ours, expected, **EXACT)
    seed = torch.linspace(-1, 1, ours.numel()).double().view_as(ours)
    for got, wanted in zip(
        torch.autograd.grad(ours, tensors, seed), torch.autograd.grad(expected, tensors, seed), strict=True
    ):
        torch.testing.assert_close(got, wanted, **EXACT)


def test_the_causal_form_is_a_recurrence() -> None:
    """S_i = S_{i-1} + phi(k_i) v_i^T and z_i = z_{i-1} + phi(k_i), written as a loop; over several chunks."""
    query, key, value = (tensor.detach() for tensor in inputs(150))
    whole = linear_attention(query, key, value, mask=Causal())
    memory, total, state = torch.zeros(2, 3, 4, 5).double(), torch.zeros(2, 3, 4).double(), None
    for i in range(150):
        q, k, v = elu_plus_one(query[:, :, i]), elu_plus_one(key[:, :, i]), value[:, :, i]
        memory, total = memory + k[..., :, None] * v[..., None, :], total + k
        expected = (q[..., None] * memory).sum(2) / (q * total).sum(-1, keepdim=True)
        torch.testing.assert_close(whole[:, :, i], expected, **EXACT)
        if i % 10 == 0:  # steps of ten positions
            here = slice(i, i + 10)
            output, state = linear_attention_step(query[:, :, here], key[:, :, here], value[:, :, here], state)
            torch.testing.assert_close(output, whole[:, :, here], **EXACT)
    assert state is not None
    torch.testing.assert_close((state.memory, state.total), (memory, total), **EXACT)
    last, _ = linear_attention_step(query[:, :, -1:], key[:, :, -1:], value[:, :, -1:])
    torch.testing.assert_close(last, value[:, :, -1:], **EXACT)  # the first position sees itself alone


def test_rows_of_a_state_are_selected() -> None:
    query, key, value = (tensor.detach() for tensor in inputs())
    _, state = linear_attention_step(query, key, value)
    rows = torch.tensor([1, 1, 0])
    chosen = state.select(rows)
    again, _ = linear_attention_step(query[rows], key[rows], value[rows], chosen)
    torch.testing.assert_close(again, linear_attention_step(query, key, value, state)[0][rows], **EXACT)
    assert isinstance(chosen, LinearState)


@pytest.mark.parametrize("garbage", [0.0, float("nan"), float("inf")])
@pytest.mark.parametrize("causal", [False, True])
def test_nothing_to_attend_to_is_zero_and_padding_stays_out(causal: bool, garbage: float) -> None:
    query, key, value = (tensor.detach() for tensor in inputs())
    query[0, :, 5:], key[0, :, 4:], value[0, :, 4:], key[1], value[1] = (garbage,) * 5
    leaves = [tensor.requires_grad_() for tensor in (query, key, value)]
    mask = Padding([4, 0], [5, 7])
    output = linear_attention(*leaves, mask=mask & Causal() if causal else mask)
    output.sum().backward()
    assert (output[1] == 0).all()
    assert (output[0, :, 5:] == 0).all()
    assert output[0, :, :5].isfinite().all()
    for leaf in leaves:
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()
        assert (leaf.grad[1] == 0).all()
    alone = linear_attention(query[:1, :, :4], key[:1, :, :4], value[:1, :, :4], mask=Causal() if causal else None)
    torch.testing.assert_close(output[:1, :, :4], alone, **EXACT)


def test_half_types_empty_axes_and_other_features() -> None:
    expected = linear_attention(*inputs(), mask=Causal())
    for dtype in (torch.bfloat16, torch.float16):
        half = linear_attention(*inputs(dtype=dtype), mask=Causal())
        assert half.dtype == dtype
        torch.testing.assert_close(half.double(), expected, rtol=0.02, atol=0.02)
        output, state = linear_attention_step(*inputs(dtype=dtype))
        assert (output.dtype, state.memory.dtype) == (dtype, torch.float32)
    query, key, value = inputs()
    assert (linear_attention(query, key[:, :, :0], value[:, :, :0]) == 0).all()
    for mask in (None, Causal()):
        assert linear_attention(query[:, :, :0], key[:, :, :0], value[:, :, :0], mask=mask).shape == (2, 3, 0, 5)
        assert linear_attention(query[:0], key[:0], value[:0], mask=mask).shape == (0, 3, 7, 5)
    squares = linear_attention(query, key, value, feature_map=torch.square)
    weights = query.square() @ key.square().transpose(2, 3)
    torch.testing.assert_close(squares, weights / weights.sum(-1, keepdim=True) @ value, **EXACT)
    underflow = linear_attention(query * 0 - 1e4, key, value)  # phi is 0 there
    assert (underflow == 0).all()


def test_under_autocast_it_is_computed_in_float32_too() -> None:
    tensors = inputs(dtype=torch.float32)
    for mask in (None, Causal()):
        expected = linear_attention(*tensors, mask=mask)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(linear_attention(*tensors, mask=mask), expected)
            output, state = linear_attention_step(*tensors)
    assert state.memory.dtype == torch.float32
    assert torch.equal(output, expected)
    assert linear_attention(*(tensor.to("meta") for tensor in tensors)).shape == expected.shape  # has no autocast


def test_what_does_not_fit_is_named(unchecked: None) -> None:
    query, key, value = inputs()
    with pytest.raises(MaskError, match="mask is a Tensor"):
        linear_attention(query, key, value, mask=torch.ones(7, 7, dtype=torch.bool))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="lengths of 3 sentences, the batch 2"):
        linear_attention(query, key, value, mask=Padding([1, 2, 3]))
    for mask in (SlidingWindow(2), Causal(align="start"), ~Padding([1, 2])):
        with pytest.raises(MaskError, match="takes Padding, Causal"):
            linear_attention(query, key, value, mask=mask)
    with pytest.raises(ShapeError, match=r"as many queries as keys, got 2 and 7.*linear_attention_step"):
        linear_attention(query[:, :, :2], key, value, mask=Causal())
    with pytest.raises(ShapeError, match="got 2 and 7"):
        linear_attention_step(query[:, :, :2], key, value)
    with pytest.raises(ShapeError, match="four axes"):
        linear_attention(query[0], key[0], value[0])
    with pytest.raises(ShapeError, match="one length"):
        linear_attention(query, key, value[:, :, :3])
