"""Each kind of mask is correct index by index, its forms agree, and errors say what to write."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from multihead.attention import (
    Causal,
    Dense,
    Document,
    FirstKeys,
    Full,
    Mask,
    MaskFunction,
    Padding,
    PrefixLM,
    SlidingWindow,
    attention,
    block_mask,
    sequence_mask,
    zero_padding,
)
from multihead.errors import ConfigurationError, MaskError, ShapeError

QUERIES, KEYS, BATCH, HEADS = 4, 6, 3, 2
IDS = [[0, 0, 1, 1, 1, 2], [5, 5, 5, 5, 5, 5], [3, 1, 1, 0, 0, 0]]


def kinds() -> list[Mask]:
    ids = torch.tensor(IDS)
    draw = torch.Generator().manual_seed(0)
    return [
        Full(),
        Causal(),
        Causal(align="start"),
        Padding([6, 0, 3]),
        Padding(torch.tensor([6, 0, 3]), [4, 1, 0]),
        Padding([1, 5, 2], q_lengths=[4, 0, 2]),
        SlidingWindow(1),
        SlidingWindow(0, 2),
        FirstKeys(2),
        (FirstKeys(1) | SlidingWindow(1)) & Causal(),
        PrefixLM([0, 3, 6]),
        PrefixLM(torch.tensor([0, 3, 6])),
        Document(ids[:, 2:], ids),
        Document(ids[0, :4], ids),
        Document([1, 0, 1, 0], [0, 1, 0, 1, 0, 1]),
        Dense(torch.rand(QUERIES, KEYS, generator=draw) < 0.5),
        Dense(torch.rand(BATCH, HEADS, QUERIES, KEYS, generator=draw) < 0.5),
        Dense(torch.rand(BATCH, 1, 1, KEYS, generator=draw) < 0.5),
        MaskFunction(lambda b, h, q, k: q * 2 >= k),
        MaskFunction(lambda b, h, q, k: (q + b - k).abs() <= h),
        Causal() & Padding([6, 1, 3]),
        SlidingWindow(2) & Document(ids[:, 2:], ids) & Padding([6, 1, 3]),
        ~SlidingWindow(1),
        Causal() | Padding([1, 2, 3]),
    ]


def whole(mask: Mask) -> Tensor:
    dense = mask.dense(QUERIES, KEYS, batch=BATCH, heads=HEADS)
    return dense.expand(BATCH, HEADS, QUERIES, KEYS)


def by_index(mask: Mask) -> Tensor:
    """The rule, evaluated for one query and key after the other."""
    rule = mask.rule(QUERIES, KEYS, "cpu")
    sizes = (BATCH, HEADS, QUERIES, KEYS)
    answers = [rule(*map(torch.tensor, place)).item() for place in product(*map(range, sizes))]
    return torch.tensor(answers).view(sizes)


@pytest.mark.parametrize("mask", kinds(), ids=repr)
def test_all_forms_are_one_mask(mask: Mask) -> None:
    expected = by_index(mask)
    assert torch.equal(whole(mask), expected)
    rows, queries, keys = range(1, 3), range(1, 4), range(2, 5)
    part = mask.part(rows, HEADS, queries, keys, QUERIES, KEYS)
    assert torch.equal(part.expand(2, HEADS, 3, 3), expected[1:3, :, 1:4, 2:5])
    known = mask.intervals(QUERIES, KEYS)
    if known is not None:
        low, high = (torch.from_numpy(end)[:, None, :, None] for end in known)
        place = torch.arange(KEYS)
        assert torch.equal(((place >= low) & (place < high)).expand_as(expected), expected)
        spread = known.spread(BATCH, QUERIES, KEYS)
        assert (spread.high - spread.low).sum(1).tolist() in (
            expected[:, 0].sum((1, 2)).tolist(),
            expected[:1, 0].sum((1, 2)).tolist(),
        )
    additive = mask.additive(QUERIES, KEYS, torch.float32, batch=BATCH, heads=HEADS)
    assert torch.equal((additive == 0).expand_as(expected), expected)


@pytest.mark.parametrize("mask", [m for m in kinds() if m.conjuncts], ids=repr)
def test_a_block_mask_is_the_same_mask(mask: Mask) -> None:
    made = block_mask(mask, QUERIES, KEYS, batch=BATCH, heads=HEADS, block_size=1)
    assert torch.equal(made.to_dense().bool().expand(BATCH, HEADS, QUERIES, KEYS), whole(mask))


def test_which_masks_the_host_knows() -> None:
    ids = torch.tensor(IDS)
    known = [
        Causal(),
        Padding([1, 2, 3]),
        Padding([1], [2]),
        SlidingWindow(1),
        PrefixLM([1]),
        Document(ids[:, 2:], ids),
    ]
    unknown = [
        Padding(torch.tensor([1])),
        Padding([1], torch.tensor([2])),
        PrefixLM(torch.tensor([1])),
        Document([1, 0, 1, 0], [0, 1, 0, 1, 0, 1]),
        ~Causal(),
        Causal() | SlidingWindow(1),
        Causal() & ~Causal(),
    ]
    assert all(mask.intervals(QUERIES, KEYS) is not None for mask in known)
    assert all(mask.intervals(QUERIES, KEYS) is None for mask in unknown)


def test_meaning_index_by_index() -> None:
    offset = KEYS - QUERIES
    window, prefix, document = (
        whole(m) for m in (SlidingWindow(1, 2), PrefixLM([0, 3, 6]), Document([row[2:] for row in IDS], IDS))
    )
    for b, h, q, k in product(range(BATCH), range(HEADS), range(QUERIES), range(KEYS)):
        assert window[b, h, q, k] == (q + offset - 1 <= k <= q + offset + 2)
        assert prefix[b, h, q, k] == (k < [0, 3, 6][b] or k <= q + offset)
        assert document[b, h, q, k] == (IDS[b][q + 2] == IDS[b][k])


@pytest.mark.parametrize("size", range(1, 6))
def test_window_sizes_of_the_field(size: int) -> None:
    """FlashAttention has (left, right); Hugging Face's sliding_window=w counts the query itself: k > q - w."""
    q, k = torch.arange(8)[:, None], torch.arange(8)
    assert torch.equal(SlidingWindow(size - 1).dense(8, 8)[0, 0], (k > q - size) & (k <= q))
    assert torch.equal(SlidingWindow(size, 1).dense(8, 8)[0, 0], (k >= q - size) & (k <= q + 1))
    assert SlidingWindow(size).dense(8, 8)[0, 0].sum(1).max() == size + 1


def test_windows_at_their_limits() -> None:
    eye = torch.eye(5, dtype=torch.bool)
    assert torch.equal(SlidingWindow(0).dense(5, 5)[0, 0], eye)
    assert torch.equal(SlidingWindow(9).dense(5, 5), Causal().dense(5, 5))
    assert SlidingWindow(9, 9).dense(5, 5).all()
    assert torch.equal((SlidingWindow(2, 5) & Causal()).dense(5, 7), SlidingWindow(2).dense(5, 7))


def test_a_prefix_of_nothing_is_causal_and_of_everything_is_full() -> None:
    assert torch.equal(PrefixLM([0]).dense(4, 6), Causal().dense(4, 6))
    assert PrefixLM([6]).dense(4, 6).all()
    spelled = Causal() | Padding([2, 5])
    assert torch.equal(PrefixLM([2, 5]).dense(4, 6), spelled.dense(4, 6))


def test_documents_from_lengths_and_from_ids() -> None:
    made = Document.from_lengths([[2, 3, 1], [6]])
    assert made.ids.tolist() == [[0, 0, 1, 1, 1, 2], [0] * 6]
    assert Document.from_lengths([2, 3]).ids.tolist() == [[0, 0, 1, 1, 1]]
    assert Document.from_lengths([2], length=4).ids.tolist() == [[0, 0, 1, 1]]
    assert torch.equal(made.dense(6, 6)[0, 0], torch.block_diag(*(torch.ones(n, n) for n in (2, 3, 1))).bool())
    assert list(Document([0, 1]).dense(2, 2).shape) == [1, 1, 2, 2]


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(0, 3), min_size=7, max_size=7), min_size=1, max_size=3))
def test_any_ids_at_all(ids: list[list[int]]) -> None:
    """Documents in several pieces have no intervals; all other intervals are correct."""
    mask = Document(ids)
    tensor = torch.tensor(ids)
    assert torch.equal(mask.dense(7, 7)[:, 0], tensor[:, :, None] == tensor[:, None, :])
    known = mask.intervals(7, 7)
    pieces = [1 + sum(a != b for a, b in pairwise(row)) for row in ids]
    assert (known is not None) == all(len(set(row)) == count for row, count in zip(ids, pieces, strict=True))
    if known is not None:
        low, high = (torch.from_numpy(end)[:, :, None] for end in known)
        assert torch.equal((torch.arange(7) >= low) & (torch.arange(7) < high), mask.dense(7, 7)[:, 0])


def test_packed_documents_are_the_documents_one_by_one() -> None:
    torch.manual_seed(0)
    lengths = [3, 1, 4]
    query, key, value = (torch.randn(1, 2, 8, 4, dtype=torch.float64) for _ in range(3))
    for mask, alone in ((Document.from_lengths(lengths), None), (Document.from_lengths(lengths) & Causal(), Causal())):
        packed, _ = attention(query, key, value, mask=mask)
        pieces = zip(*(tensor.split(lengths, dim=2) for tensor in (query, key, value)), strict=True)
        apart = torch.cat([attention(*piece, mask=alone)[0] for piece in pieces], dim=2)
        torch.testing.assert_close(packed, apart)


def test_a_function_may_depend_on_whatever_it_likes() -> None:
    table = torch.tensor([[True, False], [False, True]])
    per_head = MaskFunction(lambda b, h, q, k: table[h % 2, k % 2])
    assert list(per_head.dense(3, 4, heads=2).shape) == [1, 2, 1, 4]
    assert list(MaskFunction(lambda b, h, q, k: q >= k).dense(3, 4, batch=5, heads=2).shape) == [1, 1, 3, 4]
    assert list(MaskFunction(lambda b, h, q, k: b >= 0).dense(3, 4, batch=5).shape) == [5, 1, 1, 1]
    query = torch.randn(2, 2, 3, 4)
    output, _ = attention(query, query, query, mask=MaskFunction(lambda b, h, q, k: k == b))
    torch.testing.assert_close(output, torch.stack([query[b, :, b : b + 1].expand(2, 3, 4) for b in range(2)]))

    class Pattern:
        def allowed(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return q >= k

    bound = MaskFunction(Pattern().allowed)
    assert torch.equal(block_mask(bound, 3, 3, block_size=1).to_dense()[0, 0].bool(), Causal().dense(3, 3)[0, 0])


def test_a_function_may_change_its_mind() -> None:
    shift = torch.zeros((), dtype=torch.long)
    mask = MaskFunction(lambda b, h, q, k: k <= q + shift)
    tensor = torch.randn(1, 1, 3, 4)
    first, _ = attention(tensor, tensor, tensor, mask=mask & Full())
    shift += 1
    second, _ = attention(tensor, tensor, tensor, mask=mask & Full())
    assert not torch.equal(first, second)


def test_functions_that_cannot_be(unchecked: None) -> None:
    with pytest.raises(MaskError, match=r"gives a boolean.*torch\.float32"):
        MaskFunction(lambda b, h, q, k: q * 1.0).dense(2, 2)
    with pytest.raises(MaskError, match=r"gives a boolean.*bool"):
        MaskFunction(lambda b, h, q, k: True).dense(2, 2)  # type: ignore[arg-type, return-value]
    with pytest.raises(MaskError, match=r"& \| ~ and torch\.where"):
        MaskFunction(lambda b, h, q, k: q >= k and q >= 0).dense(3, 3)


def test_what_was_lowered_is_kept_and_shared() -> None:
    """The layers of a network share the mask, so they share its lowered form; other lengths have their own."""
    from multihead.attention import choose

    query, short = torch.randn(2, 2, 5, 4), torch.randn(2, 2, 4, 4)
    mask = Causal() & Padding(torch.tensor([3, 5]))
    first = choose(query, query, query, mask=mask, backend="sdpa").mask
    assert choose(query, query, query, mask=mask, backend="sdpa").mask is first
    other = choose(short, short, short, mask=mask, backend="sdpa").mask
    assert other is not None
    assert list(other.shape) == [2, 1, 4, 4]
    for backend in ("sdpa", "blockwise"):  # one mask, several lengths in turn
        for some in (query, short, query):
            ours, _ = attention(some, some, some, mask=mask, backend=backend)  # type: ignore[arg-type]
            exact, _ = attention(some, some, some, mask=Causal() & Padding([3, 5]), backend="explicit")
            torch.testing.assert_close(ours, exact)
    for twin in (copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
        assert torch.equal(choose(query, query, query, mask=twin, backend="sdpa").mask, first)


def test_a_mask_lowered_in_inference_mode_serves_training() -> None:
    mask = Causal() & Padding([2, 3])
    tensor = torch.randn(2, 1, 3, 4, requires_grad=True)
    for backend in ("explicit", "sdpa", "blockwise"):
        with torch.inference_mode():
            attention(tensor, tensor, tensor, mask=mask, backend=backend)  # type: ignore[arg-type]
        output, _ = attention(tensor, tensor, tensor, mask=mask, backend=backend)  # type: ignore[arg-type]
        output.sum().backward()
    assert tensor.grad is not None


def test_a_mask_is_a_value() -> None:
    """The tensors that it was made from may change afterwards."""
    lengths, ids = torch.tensor([1, 2]), torch.tensor([[0, 0, 1], [0, 1, 1]])
    masks = (Padding(lengths), PrefixLM(lengths), Document(ids))
    before = [mask.dense(3, 3).clone() for mask in masks]
    lengths += 1
    ids[:] = 7
    assert all(torch.equal(mask.dense(3, 3), old) for mask, old in zip(masks, before, strict=True))


def test_zero_padding_replaces_whatever_stood_there() -> None:
    x = torch.full((2, 3, 2), torch.nan)
    x[0, :2] = x[1, :1] = 1.0
    assert zero_padding(x, torch.tensor([2, 1])).sum(dim=(1, 2)).tolist() == [4, 2]
    flat = torch.arange(6.0).view(2, 3)
    assert torch.equal(zero_padding(flat, torch.tensor([3, 0])), flat * sequence_mask(torch.tensor([3, 0]), 3))


def test_refusals_say_what_to_write(unchecked: None) -> None:
    with pytest.raises(ConfigurationError, match=r"left=-1.*Causal\(\)"):
        SlidingWindow(-1)
    with pytest.raises(ConfigurationError, match=r"right=0\.5"):
        SlidingWindow(1, 0.5)  # type: ignore[arg-type]
    with pytest.raises(MaskError, match="lengths must be integers"):
        PrefixLM(torch.ones(2))
    with pytest.raises(MaskError, match=r"ids must be integers.*float32"):
        Document(torch.zeros(2, 3))
    with pytest.raises(ShapeError, match=r"ids must have the shape.*\[1, 2, 3\]"):
        Document(torch.zeros(1, 2, 3, dtype=torch.long))
    with pytest.raises(ShapeError, match="rows of one length"):
        Document([[1, 2], [3]])
    with pytest.raises(ShapeError, match="2 rows and key_ids 3"):
        Document([[1], [2]], [[1], [2], [3]])
    with pytest.raises(ShapeError, match="do not fit into rows of 4"):
        Document.from_lengths([3, 2], length=4)
    with pytest.raises(ShapeError, match=r"5 queries and 5 keys, but 1 queries and 5 keys.*key_ids"):
        Document([0, 0, 1, 1, 1]).dense(1, 5)
    with pytest.raises(ShapeError, match=r"mask\[:, None, None, :\]"):
        Dense(torch.ones(4, 6, dtype=torch.bool)).dense(5, 6)


def test_repr_is_the_expression() -> None:
    mask = SlidingWindow(2) & PrefixLM([1, 2]) & Document([[0, 1]], [[0, 0, 1]]) | SlidingWindow(1, 3)
    assert repr(mask) == (
        "SlidingWindow(2) & PrefixLM([1, 2]) & Document([[0, 1]], key_ids=[[0, 0, 1]]) | SlidingWindow(1, 3)"
    )
    assert torch.equal(eval(repr(mask)).dense(2, 3), mask.dense(2, 3))  # the names are this module's
    assert repr(Document([0] * 50)) == "Document(<[1, 50]>)"
    assert repr(MaskFunction(test_repr_is_the_expression)) == "MaskFunction(test_repr_is_the_expression)"  # type: ignore[arg-type]
