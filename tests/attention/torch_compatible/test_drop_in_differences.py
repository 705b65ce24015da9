"""The intended differences from PyTorch, each with PyTorch's behavior for comparison.

The list is in the docstring of `MultiheadAttention`. A test fails when PyTorch changes to agree.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multihead.attention import Causal, Dense
from multihead.attention.torch_compatible.functional import multi_head_attention_forward
from multihead.attention.torch_compatible.module import MultiheadAttention

WIDTH, HEADS, BATCH, LENGTH = 8, 2, 3, 4
NOTHING = torch.tensor([[False] * 4, [True] * 4, [False, False, True, True]])  # the second sentence is all padding
LATER = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)


def pair(**options: Any) -> tuple[nn.MultiheadAttention, MultiheadAttention]:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64, **options)
    for name, parameter in theirs.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    ours = MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def draw(batch: int = BATCH, length: int = LENGTH) -> Tensor:
    return torch.randn(batch, length, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("evaluating", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("kind", ["bool", "numbers", "ours"])
def test_nothing_to_attend_to_is_zero(kind: str, need_weights: bool, evaluating: bool) -> None:
    theirs, ours = pair()
    theirs.train(not evaluating), ours.train(not evaluating)
    padding = NOTHING if kind == "bool" else torch.zeros(BATCH, LENGTH).double().masked_fill(NOTHING, -torch.inf)
    call: dict[str, Any] = {"key_padding_mask": padding, "need_weights": need_weights}
    if kind == "ours":
        call = {"mask": Dense(~NOTHING[:, None, None]), "need_weights": need_weights}
    x = draw()
    with torch.set_grad_enabled(not evaluating):
        output, weights = ours(x, x, x, **call)
        if kind == "bool" and need_weights:  # PyTorch: NaN here; zeros or NaN without weights
            assert theirs(x, x, x, **call)[0][1].isnan().all()
    torch.testing.assert_close(output[1], ours.out_proj.bias.expand(LENGTH, -1))
    if weights is not None:
        assert torch.equal(weights[1], torch.zeros(LENGTH, LENGTH).double())
    torch.testing.assert_close(output[::2], ours(x[::2], x[::2], x[::2], key_padding_mask=NOTHING[::2])[0])


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("need_weights", [False, True])
def test_nothing_to_attend_to_has_zero_gradients(need_weights: bool) -> None:
    _, ours = pair()
    gradients = []
    with torch.autograd.detect_anomaly(check_nan=True):
        for rows in (slice(None), slice(0, 3, 2)):  # with and without the empty sentence
            ours.zero_grad()
            x = draw().requires_grad_()
            output, _ = ours(x[rows], x[rows], x[rows], key_padding_mask=NOTHING[rows], need_weights=need_weights)
            (output**2).sum().backward()
            gradients.append([x.grad, ours.in_proj_weight.grad])
    assert gradients[0][0] is not None
    assert torch.equal(gradients[0][0][1], torch.zeros(LENGTH, WIDTH).double())
    torch.testing.assert_close(*gradients)


SECOND = torch.arange(LENGTH) == 1
TWO_LAST = LATER | LATER.T.tril(-2)  # a query attends to its own place and the one before
NO_KEY = {
    "padding": {"key_padding_mask": NOTHING},
    "padding, numbers": {"key_padding_mask": torch.zeros(BATCH, LENGTH).double().masked_fill(NOTHING, -torch.inf)},
    "attn_mask": {"attn_mask": SECOND[:, None].expand(LENGTH, LENGTH)},
    "both": {"key_padding_mask": NOTHING & ~SECOND[:BATCH, None], "attn_mask": TWO_LAST},
}
"""Masks that leave the second sentence, the second query, or the last query of the last sentence without a key."""


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("mask", NO_KEY)
def test_never_nan_where_pytorch_gives_nan(mask: str, need_weights: bool, training: bool) -> None:
    """pytorch#41508: one query without a key makes NaN of the gradients, though no loss reads its output."""
    modules, found = pair(), []
    attended = ~without_keys(**NO_KEY[mask])
    for module in modules:
        x = draw().requires_grad_()
        output, weights = module.train(training)(x, x, x, need_weights=need_weights, **NO_KEY[mask])
        output[attended].square().sum().backward()
        gradients = [x.grad, *(parameter.grad for parameter in module.parameters())]
        found.append([output, *([] if weights is None else [weights]), *gradients])
    theirs, ours = found
    assert all(tensor.isfinite().all() for tensor in ours)
    assert torch.equal(ours[0][~attended], modules[1].out_proj.bias.expand(int((~attended).sum()), -1))
    if need_weights:  # PyTorch: NaN in the output, the weights, and every gradient but that of the last bias
        assert [bool(tensor.isnan().any()) for tensor in theirs] == [True] * 6 + [False]
    else:  # PyTorch agrees as long as gradients are recorded
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other)
    torch.testing.assert_close(ours[0][attended], theirs[0][attended])
    with torch.no_grad():
        alone, _ = modules[1](draw(), draw(), draw(), need_weights=need_weights, **NO_KEY[mask])
    torch.testing.assert_close(alone, ours[0])


def without_keys(key_padding_mask: Tensor | None = None, attn_mask: Tensor | None = None) -> Tensor:
    """The queries [batch, length] that may attend to nothing."""
    hidden = torch.zeros(BATCH, LENGTH, LENGTH)
    for mask in (None if key_padding_mask is None else key_padding_mask[:, None], attn_mask):
        if mask is not None:
            hidden = hidden + (mask if mask.dtype == torch.bool else mask < 0)
    return (hidden > 0).all(-1)


@pytest.mark.parametrize("evaluating", [False, True])
def test_is_causal_alone_means_causal(evaluating: bool) -> None:
    theirs, ours = pair()
    theirs.train(not evaluating), ours.train(not evaluating)
    x = draw()
    with torch.set_grad_enabled(not evaluating):
        expected, expected_weights = theirs(x, x, x, attn_mask=LATER)
        for need_weights in (False, True):
            output, weights = ours(x, x, x, is_causal=True, need_weights=need_weights)
            torch.testing.assert_close(output, expected)
            if weights is not None:
                torch.testing.assert_close(weights, expected_weights)
        if evaluating:  # PyTorch: not causal at all
            full, _ = theirs(x, x, x)
            torch.testing.assert_close(theirs(x, x, x, is_causal=True, need_weights=False)[0], full)
        else:
            with pytest.raises(RuntimeError, match="Need attn_mask"):
                theirs(x, x, x, is_causal=True)


@pytest.mark.parametrize("need_weights", [False, True])
def test_is_causal_alone_joins_the_other_masks(need_weights: bool) -> None:
    theirs, ours = pair()
    x, padding = draw(), torch.arange(LENGTH) >= torch.tensor([4, 1, 2])[:, None]
    expected, _ = theirs(x, x, x, attn_mask=LATER, key_padding_mask=padding, need_weights=need_weights)
    for call in ({"key_padding_mask": padding}, {"mask": Dense(~padding[:, None, None])}):
        torch.testing.assert_close(ours(x, x, x, is_causal=True, need_weights=need_weights, **call)[0], expected)


def test_is_causal_is_aligned_at_the_start_and_causal_at_the_end() -> None:
    _, ours = pair()
    query, key = draw(length=2), draw()
    start, _ = ours(query, key, key, attn_mask=LATER[:2], need_weights=False)
    end, _ = ours(query, key, key, attn_mask=LATER[2:], need_weights=False)
    torch.testing.assert_close(ours(query, key, key, is_causal=True, need_weights=False)[0], start)
    torch.testing.assert_close(ours(query, key, key, mask=Causal(), need_weights=False)[0], end)
    assert not torch.allclose(start, end)


def test_a_hint_is_believed_where_pytorch_believes_it() -> None:
    """`is_causal` with a mask that is not causal is an error of the caller, with the same result as in PyTorch."""
    theirs, ours = pair()
    x, other = draw(), torch.eye(LENGTH, dtype=torch.bool)
    for call in ({"need_weights": False}, {}, {"need_weights": False, "key_padding_mask": NOTHING[:1].expand(3, -1)}):
        expected, _ = theirs(x, x, x, attn_mask=other, is_causal=True, **call)
        torch.testing.assert_close(ours(x, x, x, attn_mask=other, is_causal=True, **call)[0], expected)


def test_added_keys_stay_visible_when_causal() -> None:
    """PyTorch hides them without weights, and shows them with weights."""
    theirs, ours = pair(add_bias_kv=True, add_zero_attn=True)
    x = draw()
    expected, weights = theirs(x, x, x, attn_mask=LATER, is_causal=True)
    assert weights[0, 0, LENGTH:].gt(0).all()
    hidden, _ = theirs(x, x, x, attn_mask=LATER, is_causal=True, need_weights=False)
    assert not torch.allclose(hidden, expected)
    for call in ({"attn_mask": LATER}, {}):
        for need_weights in (False, True):
            output, _ = ours(x, x, x, is_causal=True, need_weights=need_weights, **call)
            torch.testing.assert_close(output, expected)


def test_the_output_projection_is_called_as_a_module() -> None:
    theirs, ours = pair()
    x, seen = draw(), []
    for module in (theirs, ours):
        module.out_proj.register_forward_hook(lambda *call: seen.append(call[0]))
        module(x, x, x)
    assert seen == [ours.out_proj]
    ours.out_proj = nn.Sequential(ours.out_proj, nn.Flatten())
    assert ours(x, x, x)[0].shape == (BATCH, LENGTH * WIDTH)


def test_masks_of_two_kinds_without_a_warning() -> None:
    theirs, ours = pair()
    x, padding = draw(), torch.arange(LENGTH) >= torch.tensor([4, 1, 2])[:, None]
    numbers = torch.randn(LENGTH, LENGTH, generator=torch.Generator().manual_seed(2))
    with pytest.warns(UserWarning, match="mismatched"):
        expected, _ = theirs(x, x, x, attn_mask=numbers.double(), key_padding_mask=padding)
    for term in (numbers, numbers.double()):  # PyTorch accepts only the type of the query
        torch.testing.assert_close(ours(x, x, x, attn_mask=term, key_padding_mask=padding)[0], expected)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_everywhere(layout: torch.layout) -> None:
    """A sentence in a nested tensor equals the sentence alone; PyTorch rejects nested tensors in training."""
    theirs, ours = pair()
    sentences = [draw(1, length)[0] for length in (2, 4, 1)]
    nested = torch.nested.nested_tensor(sentences, layout=layout, requires_grad=True)
    with pytest.raises(AssertionError, match="does not support NestedTensor"):
        theirs(nested, nested, nested)
    output, weights = ours(nested, nested, nested)
    assert output.layout == layout
    total = (output + nested).to_padded_tensor(0.0)  # as in a residual sum
    for row, sentence in enumerate(sentences):
        alone, alone_weights = theirs(sentence, sentence, sentence)
        torch.testing.assert_close(total[row, : len(sentence)], alone + sentence)
        padded = F.pad(alone_weights, (0, 4 - len(sentence), 0, 4 - len(sentence)))
        torch.testing.assert_close(weights[row], padded)
    total.sum().backward()
    assert nested.grad is not None
    memory = torch.nested.nested_tensor([draw(1, length)[0] for length in (3, 2, 4)], layout=layout)
    crossed, _ = ours(nested, memory, memory, need_weights=False, is_causal=True)
    for one, query, key in zip(crossed.unbind(), sentences, memory.unbind(), strict=True):
        torch.testing.assert_close(one, theirs(query, key, key, attn_mask=LATER[: len(query), : len(key)])[0])


def test_bias_of_the_output_alone() -> None:
    """`qkv_bias`, which PyTorch lacks: biases of W^Q, W^K and W^V independent of the bias of W^O."""
    x = draw()
    for bias, qkv_bias in ((True, False), (False, True)):
        ours = MultiheadAttention(WIDTH, HEADS, bias=bias, qkv_bias=qkv_bias, batch_first=True, dtype=torch.float64)
        assert (ours.in_proj_bias is not None) == qkv_bias
        assert (ours.out_proj.bias is not None) == bias
        for parameter in ours.parameters():
            nn.init.normal_(parameter)
        theirs, _ = pair()
        state = {name: torch.zeros_like(tensor) for name, tensor in theirs.state_dict().items()}
        theirs.load_state_dict({**state, **ours.state_dict()})
        torch.testing.assert_close(ours(x, x, x)[0], theirs(x, x, x)[0])


def test_the_function_differs_as_the_module_does() -> None:
    theirs, _ = pair()
    x = draw().transpose(0, 1)
    call = (x, x, x, WIDTH, HEADS, theirs.in_proj_weight, theirs.in_proj_bias, None, None, False, 0.0)
    rest = (theirs.out_proj.weight, theirs.out_proj.bias)
    expected, _ = F.multi_head_attention_forward(*call, *rest, attn_mask=LATER)
    for extra in ({"is_causal": True}, {"mask": Causal()}, {"mask": Dense(~LATER)}):
        torch.testing.assert_close(multi_head_attention_forward(*call, *rest, **extra)[0], expected)
    output, weights = multi_head_attention_forward(*call, *rest, key_padding_mask=NOTHING)
    assert output.isfinite().all()
    assert torch.equal(weights[1], torch.zeros(LENGTH, LENGTH).double())
