"""Blocks cover every query once and miss no key, are chosen where they are faster, and have the gradients of slices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from multihead.attention import (
    ALiBi,
    Causal,
    Dense,
    Document,
    Full,
    Mask,
    Padding,
    PrefixLM,
    SlidingWindow,
    attention,
    choose,
    explain,
)
from multihead.attention.backends import blockwise
from multihead.attention.backends.blockwise import Block, BlockwisePlan, count_cells, cut, plan_blocks
from multihead.attention.backends.call import Sizes
from multihead.attention.backends.sdpa import SdpaPlan

CPU = torch.device("cpu")


def plan(
    mask: Mask, q_len: int, kv_len: int | None = None, batch: int = 1, triangles: bool = True
) -> tuple[Block, ...]:
    keys = q_len if kv_len is None else kv_len
    return plan_blocks(mask, Sizes(batch, 1, q_len, keys), CPU, triangles=triangles)


def spelled_out(blocks: tuple[Block, ...], sizes: tuple[int, int, int, int]) -> Tensor:
    """The boolean mask that is equivalent to the blocks; no query may be in two of them."""
    allowed = torch.zeros(sizes, dtype=torch.bool)
    covered = torch.zeros(sizes[0], sizes[2], dtype=torch.long)
    for block in blocks:
        rows, queries, keys = (slice(r.start, r.stop) for r in (block.rows, block.queries, block.keys))
        covered[rows, queries] += 1
        seen = torch.ones(len(block.queries), len(block.keys), dtype=torch.bool)
        if block.is_causal:
            assert block.mask is None
            assert len(block.queries) == len(block.keys)
            seen = seen.tril()
        elif block.mask is not None:
            seen = seen & block.mask
        allowed[rows, :, queries, keys] |= seen
    assert covered.eq(1).all()
    return allowed


@settings(max_examples=100)
@given(st.data())
def test_blocks_are_the_mask(data: st.DataObject) -> None:
    batch, kv_len = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 12))
    q_len = data.draw(st.integers(1, kv_len + 2))
    numbers = st.lists(st.integers(0, 3), min_size=kv_len, max_size=kv_len)
    ids = [sorted(row) if data.draw(st.booleans()) else row for row in data.draw(_of(batch, numbers))]
    lengths, left, right = data.draw(_of(batch, st.integers(0, kv_len))), data.draw(SMALL), data.draw(SMALL)
    q_lengths = data.draw(_of(batch, st.integers(0, q_len)))
    kinds: list[Mask] = [
        Causal(),
        Causal(align="start"),
        SlidingWindow(left, right),
        Padding(lengths),
        Padding(torch.tensor(lengths)),
        Padding(lengths, q_lengths),
        PrefixLM(lengths),
        ~Padding(lengths),
    ]
    if q_len <= kv_len:
        kinds.append(Document([row[kv_len - q_len :] for row in ids], ids))
    mask: Mask = Full()
    for chosen in data.draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=3)):
        mask = mask & kinds[chosen]
    before, blockwise.BLOCK = blockwise.BLOCK, data.draw(st.integers(1, 5))
    try:
        blocks = plan(mask, q_len, kv_len, batch, triangles=data.draw(st.booleans()))
    finally:
        blockwise.BLOCK = before
    expected = mask.dense(q_len, kv_len).expand(batch, 1, q_len, kv_len)
    assert torch.equal(spelled_out(blocks, (batch, 1, q_len, kv_len)), expected)


SMALL = st.integers(0, 4)


def _of(count: int, values: st.SearchStrategy) -> st.SearchStrategy:  # type: ignore[type-arg]
    return st.lists(values, min_size=count, max_size=count)


def test_documents_are_blocks_without_a_mask() -> None:
    documents = Document.from_lengths([128] * 4)
    blocks = plan(documents, 512)
    assert [block.queries for block in blocks] == [block.keys for block in blocks]
    assert [len(block.queries) for block in blocks] == [128] * 4
    assert all(block.mask is None and not block.is_causal for block in blocks)
    assert all(block.is_causal for block in plan(documents & Causal(), 512))
    assert not any(block.is_causal for block in plan(documents & Causal(), 512, triangles=False))


def test_short_documents_share_a_block() -> None:
    blocks = plan(Document.from_lengths([16] * 32), 512)
    assert [len(block.queries) for block in blocks] == [128] * 4
    assert all(block.mask is not None for block in blocks)


def test_rows_that_are_alike_share_blocks() -> None:
    assert len(plan(Document.from_lengths([[64, 64], [64, 64], [128]]), 128, batch=3)) == 2 + 1
    assert len(plan(SlidingWindow(3), 512, batch=7)) == len(plan(SlidingWindow(3), 512))


def test_a_window_computes_only_what_it_sees() -> None:
    blocks = plan(SlidingWindow(127), 2048)
    assert max(len(block.keys) for block in blocks) <= 255
    inner = [block.mask for block in blocks[2:-1]]
    assert all(mask is inner[0] for mask in inner)  # written out once
    assert count_cells(blocks, heads=1) < 0.13 * 2048**2


def test_known_padding_is_left_out() -> None:
    blocks = plan(Padding([100, 300]), 256, 512, batch=2)
    assert [(len(block.keys), block.mask) for block in blocks] == [(100, None), (300, None)]


@pytest.mark.parametrize(
    ("mask", "kernel"),
    [
        (None, "sdpa"),
        (Full(), "sdpa"),
        (Causal(), "sdpa"),
        (SlidingWindow(127), "blockwise"),
        (SlidingWindow(1500, 1500), "sdpa"),
        (Document.from_lengths([128] * 16), "blockwise"),
        (Document.from_lengths([2048]), "sdpa"),
        (Causal() & Padding(torch.tensor([2000])), "blockwise"),
        (Padding(torch.tensor([2000])), "sdpa"),
        (Padding([900]), "blockwise"),
        (SlidingWindow(10) | Padding([3]), "sdpa"),
        (~SlidingWindow(2000), "sdpa"),
        (SlidingWindow(127) & Dense(torch.ones(1, 1, 1, 2048, dtype=torch.bool)), "blockwise"),
    ],
    ids=repr,
)
def test_when_blocks_pay(mask: Mask | None, kernel: str) -> None:
    query = torch.zeros(1, 1, 2048, 8, dtype=torch.float64)  # not for our kernel of long sequences
    assert choose(query, query, query, mask=mask).kernel == kernel
    assert choose(query, query, query, mask=mask, need_weights=True).kernel == "explicit"


def test_is_causal_and_a_bias_exclude_one_another() -> None:
    """So with a bias a causal mask is computed block by block."""
    query = torch.zeros(1, 2, 2048, 8, dtype=torch.float64)
    whole = choose(query, query, query, mask=Causal())
    assert isinstance(whole, SdpaPlan)
    assert whole.is_causal
    biased = choose(query, query, query, mask=Causal(), bias=ALiBi(2))
    assert biased.kernel == "blockwise"
    assert isinstance(biased, BlockwisePlan)
    assert not any(block.is_causal for block in biased.blocks)


@pytest.mark.parametrize("mask", [SlidingWindow(3), Document.from_lengths([8] * 8), Causal() & Padding([60])], ids=repr)
def test_short_sequences_are_left_whole(mask: Mask) -> None:
    query = torch.zeros(1, 8, 64, 8)
    assert choose(query, query, query, mask=mask).kernel == "sdpa"


def test_a_decoder_with_a_window_reads_its_window_only() -> None:
    query, key = torch.randn(4, 4, 1, 8), torch.randn(4, 4, 4000, 8)
    chosen = choose(query, key, key, mask=SlidingWindow(9))
    assert chosen.kernel == "blockwise"
    assert isinstance(chosen, BlockwisePlan)
    assert [(block.keys, block.mask) for block in chosen.blocks] == [(range(3990, 4000), None)]
    output, _ = attention(query, key, key, mask=SlidingWindow(9))
    torch.testing.assert_close(output, attention(query, key[:, :, -10:], key[:, :, -10:])[0])


def test_long_sequences_agree_at_the_real_size() -> None:
    torch.manual_seed(0)
    for mask in (SlidingWindow(50), Document.from_lengths([300, 20, 20, 400, 100, 60]) & Causal()):
        query, key, value = (torch.randn(1, 2, 900, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
        assert choose(query, key, value, mask=mask).kernel == "blockwise"
        results = []
        for backend in ("auto", "explicit"):
            output, _ = attention(query, key, value, mask=mask, backend=backend)  # type: ignore[arg-type]
            results.append([output, *torch.autograd.grad(output.square().sum(), (query, key, value))])
        for ours, exact in zip(*results, strict=True):
            torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-5)


def test_explain_counts_the_blocks() -> None:
    query = torch.zeros(1, 1, 2048, 8, dtype=torch.float64)  # not for our kernel of long sequences
    said = explain(query, query, query, mask=SlidingWindow(127))
    assert "blockwise in 16 blocks" in said
    assert "less work" in said
    assert "blockwise in 1 block." in explain(query, query, query, backend="blockwise", bias=ALiBi(1))


def test_pieces_have_the_gradients_of_slices() -> None:
    tensor = torch.randn(3, 2, 6, 4, dtype=torch.float64, requires_grad=True)
    pieces = ((range(3), range(4)), (range(1, 2), range(2, 6)), (range(3), range(0)), (range(2), range(1, 5)))
    seeds = [torch.randn(len(rows), 2, len(places), 4, dtype=torch.float64) for rows, places in pieces]

    def gradient(parts: tuple[Tensor, ...]) -> Tensor:
        return torch.autograd.grad(sum((p * s).sum() for p, s in zip(parts, seeds, strict=True)), tensor)[0]  # type: ignore[arg-type]

    plain = tuple(tensor[r.start : r.stop, :, p.start : p.stop] for r, p in pieces)
    assert all(torch.equal(a, b) for a, b in zip(cut(tensor, pieces), plain, strict=True))
    torch.testing.assert_close(gradient(cut(tensor, pieces)), gradient(plain))
    assert all(a.data_ptr() == b.data_ptr() for a, b in zip(cut(tensor.detach(), pieces), plain, strict=True))


def test_nothing_at_all_is_blocks_too() -> None:
    for queries, keys in ((0, 5), (5, 0), (0, 0)):
        query, key = torch.randn(2, 1, queries, 4), torch.randn(2, 1, keys, 4)
        for mask in (None, SlidingWindow(1), Padding([0, min(keys, 3)])):
            output, _ = attention(query, key, key, mask=mask, backend="blockwise")
            assert output.shape == query.shape
            torch.testing.assert_close(output, attention(query, key, key, mask=mask, backend="explicit")[0])


def test_no_sentences_are_blocks_too() -> None:
    nothing = torch.zeros(0, dtype=torch.long)
    for queries, keys in ((3, 5), (5, 5), (0, 5), (5, 0)):
        query = torch.randn(0, 2, queries, 4, requires_grad=True)
        key = torch.randn(0, 2, keys, 4, requires_grad=True)
        masks: list[Mask] = [Padding([]), Padding([]) & Causal(), Padding([], []), PrefixLM([]) & Padding(nothing)]
        for mask in masks:
            output, _ = attention(query, key, key, mask=mask, backend="blockwise")
            assert output.shape == query.shape
            output.sum().backward()
            assert query.grad is not None
            assert query.grad.shape == query.shape


def test_dropout_reaches_every_block() -> None:
    torch.manual_seed(0)
    query = torch.zeros(1, 1, 600, 4)
    output, _ = attention(
        query, query, torch.ones_like(query), mask=SlidingWindow(20), dropout_p=0.5, backend="blockwise"
    )
    assert abs(output.mean() - 1) < 0.05
    assert output[:, :, ::100].unique().numel() > 2
