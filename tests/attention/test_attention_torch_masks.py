"""Conversion to PyTorch's two mask arguments and back, where True has the opposite meaning."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from multihead.attention import (
    Causal,
    Dense,
    Document,
    Mask,
    MaskFunction,
    MultiHeadAttention,
    Padding,
    SlidingWindow,
    attention,
    from_torch,
    generate_square_subsequent_mask,
    to_torch,
)
from multihead.errors import MaskError, ShapeError

BATCH, HEADS, LENGTH, WIDTH = 3, 2, 5, 8
DRAW = torch.Generator().manual_seed(0)
MASKS: list[Mask | None] = [
    None,
    Causal(),
    Padding([5, 1, 3]),
    Causal() & Padding([5, 1, 3]),
    SlidingWindow(2) & ~Padding([0, 0, 0]) & Padding(torch.tensor([5, 4, 3])),
    Document([[0, 0, 1, 1, 1]] * 3) & Padding([5, 4, 3]),
    Dense(torch.rand(BATCH, HEADS, LENGTH, LENGTH, generator=DRAW) < 0.7) | Causal(),
    MaskFunction(lambda b, h, q, k: (q - k).abs() <= b + h),
]


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_there_and_back(mask: Mask | None) -> None:
    masks = to_torch(mask, LENGTH, LENGTH, batch=BATCH, heads=HEADS)
    again, bias = from_torch(masks.attn_mask, masks.key_padding_mask, heads=HEADS)
    assert bias is None
    if mask is None:
        assert again is None
        return
    assert again is not None
    shape = (BATCH, HEADS, LENGTH, LENGTH)
    expected = mask.dense(LENGTH, LENGTH, batch=BATCH, heads=HEADS).expand(shape)
    assert torch.equal(again.dense(LENGTH, LENGTH).expand(shape), expected)


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_pytorch_understands_it(mask: Mask | None) -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    ours = MultiHeadAttention(WIDTH, HEADS)
    assert ours.in_projection is not None
    with torch.no_grad():
        ours.in_projection.weight.copy_(theirs.in_proj_weight)
        ours.output_projection.weight.copy_(theirs.out_proj.weight)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    masks = to_torch(mask, LENGTH, LENGTH, batch=BATCH, heads=HEADS)
    reference, _ = theirs(x, x, x, **masks._asdict(), need_weights=False)
    torch.testing.assert_close(ours(x, mask=mask)[0], reference)


def test_what_speaks_of_keys_alone_becomes_the_key_padding_mask() -> None:
    masks = to_torch(Padding([3, 1]), 2, 3, batch=2, heads=4)
    assert masks.attn_mask is None
    assert masks.key_padding_mask is not None
    assert masks.key_padding_mask.tolist() == [[False, False, False], [False, True, True]]
    both = to_torch(Causal() & Padding([3, 1]), 2, 3, batch=2, heads=4)
    assert both.attn_mask is not None
    assert both.attn_mask.tolist() == [[False, False, True], [False, False, False]]
    assert torch.equal(both.key_padding_mask, masks.key_padding_mask)
    per_sentence = to_torch(Padding([3, 1], [2, 0]), 2, 3, batch=2, heads=4)
    assert per_sentence.key_padding_mask is None
    assert per_sentence.attn_mask is not None
    assert list(per_sentence.attn_mask.shape) == [8, 2, 3]


def test_both_are_on_the_device_of_the_mask() -> None:
    """A part without tensors of its own, too; on a device that holds no values."""
    lengths = torch.tensor([3, 1], device="meta")
    for mask in (Causal() & Padding(lengths), Padding(lengths) & SlidingWindow(1)):
        masks = to_torch(mask, 3, 3, batch=2, heads=4)
        assert masks.attn_mask is not None
        assert masks.key_padding_mask is not None
        assert masks.attn_mask.device.type == masks.key_padding_mask.device.type == "meta"


@pytest.mark.parametrize("shape", [(6, 0, 4), (6, 4, 0), (0, 4, 4), (0, 0, 0)])
def test_masks_of_heads_may_have_empty_axes(shape: tuple[int, int, int]) -> None:
    number, queries, keys = shape
    mask, bias = from_torch(torch.zeros(shape, dtype=torch.bool), heads=2)
    assert bias is None
    assert mask is not None
    assert mask.dense(queries, keys).shape == (number // 2, 2, queries, keys)
    mask, bias = from_torch(torch.zeros(shape), heads=2)
    assert mask is None
    assert bias is not None
    assert bias.shape == (number // 2, 2, queries, keys)


def test_numbers_become_a_bias() -> None:
    square = generate_square_subsequent_mask(4)
    padding = torch.zeros(2, 4).index_fill(1, torch.tensor([3]), -torch.inf)
    mask, bias = from_torch(square, padding, heads=2)
    assert mask is None
    query = torch.randn(2, 2, 4, 4)
    torch.testing.assert_close(
        attention(query, query, query, bias=bias)[0],
        attention(query, query, query, mask=Causal() & Padding([3, 3]))[0],
    )
    mask, bias = from_torch(square, padding == 0, heads=2)
    assert mask is not None
    assert bias is not None
    assert list(from_torch(torch.zeros(6, 4, 4), heads=2)[1].shape) == [3, 2, 4, 4]  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [0, 1, 5])
def test_the_square_subsequent_mask_is_pytorchs(size: int) -> None:
    theirs = nn.Transformer.generate_square_subsequent_mask(size)
    assert torch.equal(generate_square_subsequent_mask(size), theirs)
    assert torch.equal(generate_square_subsequent_mask(size), Causal().additive(size, size, torch.float32)[0, 0])
    assert generate_square_subsequent_mask(size, dtype=torch.float64).dtype == torch.float64


def test_refusals(unchecked: None) -> None:
    with pytest.raises(MaskError, match=r"attn_mask is boolean.*int64"):
        from_torch(torch.ones(2, 2, dtype=torch.long), heads=1)
    with pytest.raises(ShapeError, match=r"attn_mask has the shape \[queries, keys\] or.*\[3, 2, 2\] with 2 heads"):
        from_torch(torch.zeros(3, 2, 2), heads=2)
    with pytest.raises(ShapeError, match=r"key_padding_mask has the shape \[batch, keys\]"):
        from_torch(key_padding_mask=torch.zeros(3), heads=2)
    with pytest.raises(ShapeError, match=r"\[3, 1\], but there are \[2, 4\]"):
        to_torch(Padding([1, 2, 3]), 2, 3, batch=2, heads=4)
