"""Theorems about attention, checked on every trainable backend."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from multihead.attention import (
    Causal,
    Dense,
    Document,
    Full,
    Mask,
    MultiHeadAttention,
    Padding,
    PrefixLM,
    SlidingWindow,
    attention,
    join_heads,
    split_heads,
)
from multihead.attention.functional import BackendName
from multihead.errors import ConfigurationError

BATCH, HEADS, LENGTH, DIM = 2, 3, 7, 4
BACKENDS: tuple[BackendName, ...] = ("explicit", "sdpa", "blockwise")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(heads: int = HEADS) -> tuple[Tensor, Tensor, Tensor]:
    return (
        draw(BATCH, HEADS, LENGTH, DIM),
        draw(BATCH, heads, LENGTH, DIM, seed=1),
        draw(BATCH, heads, LENGTH, 3, seed=2),
    )


SOME = Dense(torch.rand(LENGTH, LENGTH, generator=torch.Generator().manual_seed(3)) < 0.6)
MASKS: list[Mask] = [Full(), Causal(), Padding([7, 3]), SlidingWindow(2), SOME]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_keys_are_a_set_and_queries_are_asked_one_by_one(mask: Mask, backend: BackendName) -> None:
    """Permuting keys with their values changes nothing; permuting queries permutes the outputs."""
    query, key, value = inputs()
    plain, _ = attention(query, key, value, mask=mask, backend=backend)
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(0))
    allowed = mask.dense(LENGTH, LENGTH).expand(BATCH, 1, LENGTH, LENGTH)
    of_keys, _ = attention(
        query, key[:, :, order], value[:, :, order], mask=Dense(allowed[..., order]), backend=backend
    )
    torch.testing.assert_close(of_keys, plain)
    of_queries, _ = attention(query[:, :, order], key, value, mask=Dense(allowed[:, :, order]), backend=backend)
    torch.testing.assert_close(of_queries, plain[:, :, order])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_an_answer_is_a_mean_of_what_is_seen(mask: Mask, backend: BackendName) -> None:
    query, key, value = inputs()
    allowed = mask.dense(LENGTH, LENGTH).expand(BATCH, 1, LENGTH, LENGTH)[..., None]
    sees = allowed.any(3).expand(BATCH, HEADS, LENGTH, 3)
    output, _ = attention(query, key, value, mask=mask, backend=backend)
    spread = value[:, :, None].expand(BATCH, HEADS, LENGTH, LENGTH, 3)
    assert (output <= spread.masked_fill(~allowed, -math.inf).amax(3) + 1e-12)[sees].all()
    assert (output >= spread.masked_fill(~allowed, math.inf).amin(3) - 1e-12)[sees].all()
    alike, _ = attention(torch.zeros_like(query), key, value, mask=mask, backend=backend)
    mean = (spread * allowed).sum(3) / allowed.sum(3).clamp(min=1)
    torch.testing.assert_close(alike, mean)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_the_same_for_a_row_of_scores_changes_nothing(backend: BackendName) -> None:
    query, key, value = inputs()
    plain, _ = attention(query, key, value, mask=Causal(), backend=backend)
    shifted, _ = attention(query, key, value, mask=Causal(), bias=10 * draw(LENGTH, 1), backend=backend)
    torch.testing.assert_close(shifted, plain)
    moved, _ = attention(query, key + draw(DIM), value, mask=Causal(), backend=backend)  # adds q . c to a whole row
    torch.testing.assert_close(moved, plain)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_scale_is_that_of_a_head(backend: BackendName) -> None:
    query, key, value = inputs()
    plain, _ = attention(query, key, value, backend=backend)
    torch.testing.assert_close(attention(query / 2, key, value, scale=1.0, backend=backend)[0], plain)  # sqrt(4) = 2
    torch.testing.assert_close(attention(query, key, value, scale=0.5, backend=backend)[0], plain)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_query_heads_share_key_heads_in_neighboring_groups(groups: int, backend: BackendName) -> None:
    query, key, value = draw(BATCH, 6, LENGTH, DIM), draw(BATCH, groups, LENGTH, DIM), draw(BATCH, groups, LENGTH, DIM)
    shared, _ = attention(query, key, value, mask=SlidingWindow(2), backend=backend)
    for head in range(6):
        mine = slice(head * groups // 6, head * groups // 6 + 1)
        alone, _ = attention(query[:, head, None], key[:, mine], value[:, mine], mask=SlidingWindow(2), backend=backend)
        torch.testing.assert_close(shared[:, head, None], alone)


def test_many_queries_to_the_same_inputs() -> None:
    """Document 001, equation 5: att((K, V), Q) = att((K, V), q_1) + ... + att((K, V), q_M), side by side."""
    queries, key, value = draw(BATCH, 4, LENGTH, DIM), draw(BATCH, LENGTH, DIM, seed=1), draw(BATCH, LENGTH, 3, seed=2)
    heads, _ = attention(queries, key[:, None], value[:, None], mask=Padding([7, 3]))
    joined = join_heads(heads)
    assert joined.shape == (BATCH, LENGTH, 4 * 3)
    for row, length in enumerate((7, 3)):
        for m in range(4):
            scores = queries[row, m] @ key[row, :length].T / math.sqrt(DIM)
            expected = scores.softmax(-1) @ value[row, :length]
            torch.testing.assert_close(joined[row, :, 3 * m : 3 * m + 3], expected)


def test_heads_are_split_and_joined() -> None:
    x = draw(BATCH, LENGTH, 6)
    assert torch.equal(split_heads(x, 3)[:, 1], x[..., 2:4])
    assert torch.equal(join_heads(split_heads(x, 3)), x)


END_ALIGNED: list[Mask] = [
    Causal(),
    SlidingWindow(2),
    SlidingWindow(1, 1),
    PrefixLM([4, 0]),
    Causal() & Padding([7, 5]),
    Causal() & ~Padding([0, 3]),
    SlidingWindow(3) | Padding([2, 1]),
]


@pytest.mark.parametrize("mask", END_ALIGNED, ids=repr)
@pytest.mark.parametrize("queries", [1, 3])
def test_the_last_queries_alone_are_the_last_rows_of_the_whole(mask: Mask, queries: int) -> None:
    """Cached decoding relies on it: queries are the last positions of their keys."""
    whole = mask.dense(LENGTH, LENGTH)
    alone = mask.dense(queries, LENGTH)
    shape = (BATCH, 1, queries, LENGTH)
    assert torch.equal(alone.expand(shape), whole.expand(BATCH, 1, LENGTH, LENGTH)[:, :, -queries:])
    query, key, value = inputs()
    output, _ = attention(query, key, value, mask=mask)
    last, _ = attention(query[:, :, -queries:], key, value, mask=mask)
    torch.testing.assert_close(last, output[:, :, -queries:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_later_keys_do_not_exist_for_a_causal_mask(backend: BackendName) -> None:
    query, key, value = inputs()
    whole, _ = attention(query, key, value, mask=Causal(), backend=backend)
    for length in (1, 4):
        short = (tensor[:, :, :length] for tensor in (query, key, value))
        torch.testing.assert_close(attention(*short, mask=Causal(), backend=backend)[0], whole[:, :, :length])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_module_passes_backend_and_bias_on(backend: BackendName) -> None:
    torch.manual_seed(0)
    module = MultiHeadAttention(12, 3, kv_heads=1).double()
    x, memory = draw(BATCH, LENGTH, 12), draw(BATCH, 5, 12, seed=1)
    mask, bias = Document([0] * 3 + [1] * 4) & Causal(), draw(1, 3, LENGTH, LENGTH)
    plain, _ = module(x, mask=mask, bias=bias)
    torch.testing.assert_close(module(x, mask=mask, bias=bias, backend=backend)[0], plain)
    assert not torch.allclose(module(x, mask=mask)[0], plain)
    weights = module(x, mask=mask, bias=bias, need_weights=True)[1]
    forbidden = bias.masked_fill(weights < weights.median(), -math.inf)
    assert (
        module(x, mask=mask, bias=forbidden, need_weights=True)[1][forbidden.isneginf().expand_as(weights)].eq(0).all()
    )
    crossed, _ = module(x, memory, mask=Padding([5, 2]), backend=backend)
    torch.testing.assert_close(crossed, module(x, memory, mask=Padding([5, 2]))[0])
    with pytest.raises(ConfigurationError, match="cannot train on a CPU"):
        module(x, backend="flex")


@pytest.mark.parametrize("backend", BACKENDS)
def test_anomaly_detection_finds_nothing(backend: BackendName) -> None:
    leaves = [tensor.requires_grad_() for tensor in inputs()]
    for mask in (Padding([7, 0], [5, 7]) & SlidingWindow(1), ~Full(), Causal() & ~Padding([7, 1])):
        with torch.autograd.set_detect_anomaly(True):
            attention(*leaves, mask=mask, backend=backend)[0].square().sum().backward()
        assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves)
