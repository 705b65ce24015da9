"""The algebra of masks, their lowered forms (correct and as small as possible), and errors that say what to write."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from multihead.attention import (
    And,
    Causal,
    Dense,
    Document,
    Full,
    Mask,
    MaskFunction,
    Not,
    Or,
    Padding,
    PrefixLM,
    SlidingWindow,
    sequence_mask,
)
from multihead.errors import ConfigurationError, MaskError, ShapeError

QUERIES, KEYS, BATCH, HEADS = 4, 6, 3, 2


def random_dense(*shape: int, seed: int = 0) -> Dense:
    return Dense(torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5)


def leaves() -> list[Mask]:
    return [
        Full(),
        Causal(),
        Causal(align="start"),
        Padding(torch.tensor([6, 0, 3])),
        Padding([1, 5, 2], q_lengths=[4, 0, 2]),
        random_dense(QUERIES, KEYS),
        random_dense(BATCH, HEADS, QUERIES, KEYS, seed=1),
        SlidingWindow(1, 1),
        PrefixLM([2, 0, 5]),
        Document([[0, 1, 1, 2]] * BATCH, [[0, 0, 1, 1, 2, 2]] * BATCH),
        MaskFunction(lambda b, h, q, k: (q + k) % 2 == 0),
    ]


def whole(mask: Mask) -> torch.Tensor:
    return mask.dense(QUERIES, KEYS).expand(BATCH, HEADS, QUERIES, KEYS)


@pytest.mark.parametrize(("a", "b"), list(product(leaves(), leaves())), ids=repr)
def test_algebra(a: Mask, b: Mask) -> None:
    assert torch.equal(whole(a & b), whole(a) & whole(b))
    assert torch.equal(whole(a | b), whole(a) | whole(b))
    assert torch.equal(whole(a & b), whole(b & a))
    assert torch.equal(whole(~(a & b)), whole(~a | ~b))
    assert torch.equal(whole(~(a | b)), whole(~a & ~b))
    assert torch.equal(whole(a & (a | b)), whole(a))


def test_meaning_index_by_index() -> None:
    lengths, q_lengths = [6, 0, 3], [4, 1, 2]
    causal, start = whole(Causal()), whole(Causal(align="start"))
    padding = whole(Padding(lengths, q_lengths))
    for b, h, q, k in product(range(BATCH), range(HEADS), range(QUERIES), range(KEYS)):
        assert causal[b, h, q, k] == (k <= q + KEYS - QUERIES)
        assert start[b, h, q, k] == (k <= q)
        assert padding[b, h, q, k] == (k < lengths[b] and q < q_lengths[b])


def test_alignments_are_equal_when_as_many_queries_as_keys() -> None:
    assert torch.equal(Causal().dense(5, 5), Causal(align="start").dense(5, 5))
    assert not torch.equal(Causal().dense(2, 5), Causal(align="start").dense(2, 5))


def test_more_queries_than_keys_leaves_the_first_with_nothing() -> None:
    assert Causal().dense(5, 2)[0, 0].any(dim=-1).tolist() == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("mask", "shape"),
    [
        (Full(), [1, 1, 1, 1]),
        (Causal(), [1, 1, QUERIES, KEYS]),
        (Padding([1, 2, 3]), [BATCH, 1, 1, KEYS]),
        (~Padding([1, 2, 3]), [BATCH, 1, 1, KEYS]),
        (Padding([1, 2, 3], [1, 2, 3]), [BATCH, 1, QUERIES, KEYS]),
        (Causal() & Padding([1, 2, 3]), [BATCH, 1, QUERIES, KEYS]),
        (random_dense(QUERIES, KEYS), [1, 1, QUERIES, KEYS]),
        (random_dense(1, HEADS, 1, KEYS) & Causal(), [1, HEADS, QUERIES, KEYS]),
    ],
    ids=repr,
)
def test_dense_is_the_smallest_that_broadcasts(mask: Mask, shape: list[int]) -> None:
    assert list(mask.dense(QUERIES, KEYS).shape) == shape


def test_conjuncts_are_flat_and_full_has_none() -> None:
    causal, padding, other = Causal(), Padding([1]), Causal() | Padding([2])
    assert (causal & (padding & Full()) & other).conjuncts == (causal, padding, other)
    assert Full().conjuncts == (Full() & Full()).conjuncts == ()


def test_twice_not_is_the_mask_itself() -> None:
    causal = Causal()
    assert ~~causal is causal


@pytest.mark.parametrize("mask", leaves()[1:], ids=repr)
def test_additive_is_zero_where_allowed(mask: Mask) -> None:
    term = mask.additive(QUERIES, KEYS, torch.bfloat16)
    assert term.dtype == torch.bfloat16
    assert torch.equal(term == 0, mask.dense(QUERIES, KEYS))
    assert torch.equal(torch.isneginf(term), ~mask.dense(QUERIES, KEYS))


def test_lengths_stay_on_the_host_only_if_they_came_from_there() -> None:
    assert Padding([3, 5]).host_lengths == (3, 5)
    assert Padding(torch.tensor([3, 5])).host_lengths is None
    assert torch.equal(Padding([3, 5]).dense(1, 5), Padding(torch.tensor([3, 5])).dense(1, 5))


def test_padding_from_ids_and_from_pytorch_agree() -> None:
    ids = torch.tensor([[5, 6, 0, 0], [7, 8, 9, 4], [0, 0, 0, 0]])
    from_ids = Padding.from_ids(ids, pad_id=0)
    assert from_ids.lengths.tolist() == [2, 4, 0]
    assert Padding.from_key_padding_mask(ids == 0).lengths.tolist() == [2, 4, 0]
    assert torch.equal(from_ids.dense(1, 4)[:, 0, 0], ids != 0)


def test_padding_elsewhere_than_on_the_right_is_refused() -> None:
    with pytest.raises(MaskError, match=r"row 1 .*~Padding"):
        Padding.from_ids(torch.tensor([[5, 0], [0, 5]]), pad_id=0)
    with pytest.raises(MaskError, match="row 0"):
        Padding.from_key_padding_mask(torch.tensor([[False, True, False]]))
    with pytest.raises(MaskError, match="True = ignore"):
        Padding.from_key_padding_mask(torch.tensor([[0, 1, 1]]))


def test_sequence_mask() -> None:
    lengths = torch.tensor([0, 2, 3])
    assert sequence_mask(lengths).tolist() == [[False] * 3, [True, True, False], [True] * 3]
    assert torch.equal(sequence_mask(lengths, 5).sum(dim=1), lengths)
    assert sequence_mask(lengths, 2).shape == (3, 2)


def test_a_mask_has_no_truth_value() -> None:
    with pytest.raises(MaskError, match=r"& \| ~"):
        bool(Causal())
    with pytest.raises(MaskError, match=r"& \| ~"):
        Causal() and Padding([1])
    with pytest.raises(MaskError, match=r"& \| ~"):
        not Causal()


@pytest.mark.parametrize("batch", [2, 3])
def test_three_axes_are_refused_also_when_batch_equals_heads(batch: int) -> None:
    with pytest.raises(MaskError, match=r"\[.*4, 6\].*Dense\(mask\[:, None\]\).*Dense\(mask\[None\]\)"):
        Dense(torch.ones(batch, QUERIES, KEYS, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_integer_masks_are_refused_with_the_line_to_write(dtype: torch.dtype) -> None:
    with pytest.raises(MaskError, match=r"Dense\(mask == 1\)"):
        Dense(torch.ones(QUERIES, KEYS, dtype=dtype))


def test_other_refusals(unchecked: None) -> None:
    with pytest.raises(MaskError, match="bias=mask"):
        Dense(torch.zeros(QUERIES, KEYS))
    with pytest.raises(MaskError, match=r"torch\.tensor"):
        Dense([[True]])  # type: ignore[arg-type]
    with pytest.raises(MaskError, match=r"Dense\(tensor\)"):
        Causal() & torch.ones(1, 1, dtype=torch.bool)  # type: ignore[operator]
    with pytest.raises(MaskError, match="bool"):
        Causal() | True  # type: ignore[operator]
    with pytest.raises(MaskError, match="integers"):
        Padding(torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(MaskError, match="integers"):
        Padding([1.5])  # type: ignore[list-item]
    with pytest.raises(ShapeError, match=r"\[2, 3\]"):
        Padding(torch.ones(2, 3, dtype=torch.long))
    with pytest.raises(ShapeError, match=r"\[2\].*\[3\]"):
        Padding([1, 2], [1, 2, 3])
    with pytest.raises(ConfigurationError, match="'end'"):
        Causal(align="middle")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="at least one"):
        And()


def test_wrong_shapes_name_both() -> None:
    with pytest.raises(ShapeError, match=r"\[1, 1, 4, 6\].*5 queries and 6 keys"):
        random_dense(QUERIES, KEYS).dense(5, KEYS)
    with pytest.raises(ShapeError, match=r"\[2, 1, 1, 6\] and \[3, 1, 1, 6\]"):
        (Padding([1, 2]) & Padding([1, 2, 3])).dense(QUERIES, KEYS)


def test_repr_is_the_expression() -> None:
    mask = (Causal() | Full()) & ~Padding([2, 1]) & Causal(align="start")
    assert repr(mask) == "(Causal() | Full()) & ~Padding([2, 1]) & Causal(align='start')"
    again = eval(repr(mask))  # the names are this module's
    assert torch.equal(again.dense(3, 3), mask.dense(3, 3))
    assert repr(~(Causal() & Full())) == "~(Causal() & Full())"
    assert repr(Padding(torch.tensor([2]), [1])) == "Padding([2], q_lengths=[1])"
    assert repr(random_dense(2, 3)) == "Dense(<bool [1, 1, 2, 3]>)"


def test_dense_says_where_it_is_put() -> None:
    for mask in (
        Causal(),
        Padding([1]),
        random_dense(2, 3),
        ~Padding([1]) & Causal(),
        Causal() | Padding([3]),
    ):
        assert mask.dense(2, 3, device="meta").device.type == "meta"
        assert mask.dense(2, 3).device.type == "cpu"
    assert (Causal() & Padding(torch.ones(1, dtype=torch.long, device="meta"))).dense(2, 3).device.type == "meta"


def test_show_picks_sentence_and_head_and_needs_no_labels() -> None:
    assert Padding([1, 2]).show(1, 3, batch=1) == "■ ■ ·"
    per_head = Dense(torch.tensor([[[[True, False]], [[False, True]]]]))
    assert [per_head.show(1, 2, head=head) for head in (0, 1)] == ["■ ·", "· ■"]
    assert Causal().show(2, batch=7) == "■ ·\n■ ■"
    assert Causal().show(0) == ""
    with pytest.raises(ShapeError, match="batch=2"):
        Padding([1, 2]).show(1, 3, batch=2)
    with pytest.raises(ShapeError, match="2 key labels for 3"):
        Causal().show(3, key_labels=["a", "b"])


def test_nodes_can_be_built_directly() -> None:
    assert torch.equal(And(Causal(), Full()).dense(3, 3), Causal().dense(3, 3))
    assert Or(Causal(), Or(Full(), Causal())).dense(3, 3).all()
    assert not Not(Full()).dense(3, 3).any()
