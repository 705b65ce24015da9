"""Selected weights, and sums over queries, equal those of the full matrix, which is never stored as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from multihead.attention import (
    ALiBi,
    Causal,
    Dense,
    Document,
    MultiHeadAttention,
    Padding,
    RelativeBias,
    SlidingWindow,
    attention,
    attention_weights,
    received_attention,
)
from multihead.errors import ConfigurationError, MaskError, ShapeError


def drawn(heads: int = 4, kv_heads: int = 2, queries: int = 9, keys: int = 9) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(3, heads, queries, 8), torch.randn(3, kv_heads, keys, 8)


def everything(query: Tensor, key: Tensor, **more: Any) -> Tensor:
    _, weights = attention(query, key, torch.zeros(*key.shape[:3], 1), need_weights=True, **more)
    assert weights is not None
    return weights


CALLS: dict[str, Callable[[], dict[str, Any]]] = {
    "nothing": dict,
    "causal": lambda: {"mask": Causal()},
    "causal, padding": lambda: {"mask": Causal() & Padding([9, 0, 4], [9, 3, 5])},
    "window": lambda: {"mask": SlidingWindow(2, 1)},
    "documents": lambda: {"mask": Document.from_lengths([[4, 5], [9], [1, 2, 6]])},
    "a mask of each head": lambda: {"mask": Dense(torch.rand(3, 4, 9, 9) > 0.4)},
    "linear biases": lambda: {"bias": ALiBi(4), "mask": Causal()},
    "learned biases": lambda: {"bias": RelativeBias(4)},
    "a tensor": lambda: {"bias": torch.randn(9, 9)},
    "a tensor of each head, -inf": lambda: {
        "bias": torch.randn(3, 4, 9, 9).masked_fill(torch.rand(9, 9) > 0.5, -torch.inf)
    },
    "a tensor of keys": lambda: {"bias": torch.randn(3, 1, 1, 9), "scale": 0.3, "soft_cap": 2.0},
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_some_of_them_and_their_sums_are_those_of_all(name: str) -> None:
    (query, key), more = drawn(), CALLS[name]()
    expected = everything(query, key, **more)
    torch.testing.assert_close(attention_weights(query, key, **more), expected, rtol=1e-5, atol=1e-7)
    queries, heads = [7, 2, 3, 4, -9], [3, 0]
    found = attention_weights(query, key, queries=queries, heads=heads, **more)
    torch.testing.assert_close(found, expected[:, heads][:, :, queries], rtol=1e-5, atol=1e-7)
    for block in (1, 4, 100):
        sums = received_attention(query, key, block=block, **more)
        torch.testing.assert_close(sums, expected.sum(2), rtol=1e-5, atol=1e-6)
    counted = torch.rand(3, 9) > 0.5
    sums = received_attention(query, key, counted=counted, block=4, **more)
    torch.testing.assert_close(sums, (expected * counted[:, None, :, None]).sum(2), rtol=1e-5, atol=1e-6)


def test_fewer_queries_than_keys_are_the_last_positions() -> None:
    query, key = drawn(queries=3, keys=7)
    more: dict[str, Any] = {"mask": Causal(), "bias": ALiBi(4)}
    expected = everything(query, key, **more)
    torch.testing.assert_close(attention_weights(query, key, queries=[-1], **more), expected[:, :, -1:])
    torch.testing.assert_close(received_attention(query, key, block=2, **more), expected.sum(2))


def test_gradients_are_those_of_all_weights() -> None:
    bias = RelativeBias(4)
    query, key = (tensor.requires_grad_() for tensor in drawn())
    leaves = [query, key, *bias.parameters()]
    counts = torch.randn(3, 4, 9)
    found = torch.autograd.grad((received_attention(query, key, bias=bias, block=4) * counts).sum(), leaves)
    expected = torch.autograd.grad((everything(query, key, bias=bias).sum(2) * counts).sum(), leaves)
    torch.testing.assert_close(found, expected)


def test_nan_in_padding_stays_there() -> None:
    query, key = drawn()
    lengths = [5, 9, 2]
    mask = Padding(lengths, lengths)
    clean = received_attention(query, key, mask=mask)
    for number, length in enumerate(lengths):
        query[number, :, length:] = torch.nan
        key[number, :, length:] = torch.nan
    for block in (4, 100):
        torch.testing.assert_close(received_attention(query, key, mask=mask, block=block), clean)
    assert clean.sum() == pytest.approx(4 * sum(lengths))  # each query gives away 1


def test_nan_in_padding_reaches_no_gradient() -> None:
    lengths = [5, 9, 2]
    mask = Padding(lengths, lengths)
    counts, upstream = torch.randn(3, 4, 9), torch.randn(3, 4, 2, 9)
    found = []
    for filling in (0.0, torch.nan):
        query, key = drawn()
        for number, length in enumerate(lengths):
            query[number, :, length:] = filling
            key[number, :, length:] = filling
        leaves = query.requires_grad_(), key.requires_grad_()
        received = (received_attention(query, key, mask=mask, block=4) * counts).sum()
        some = (attention_weights(query, key, mask=mask, queries=[1, 8]) * upstream).sum()
        found.append([*torch.autograd.grad(received, leaves), *torch.autograd.grad(some, leaves)])
    for clean, spoilt in zip(*found, strict=True):
        torch.testing.assert_close(spoilt, clean)


def test_the_sums_of_half_types_are_in_float32() -> None:
    query, key = (tensor.bfloat16() for tensor in drawn(queries=600, keys=600))
    sums = received_attention(query, key)
    assert sums.dtype == torch.float32
    torch.testing.assert_close(sums, received_attention(query.float(), key.float()), rtol=0.02, atol=0.02)


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that an operation made."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(one, Tensor):
                self.entries = max(self.entries, one.numel())
        return made


def test_memory_grows_with_the_length_and_not_with_its_square() -> None:
    query = torch.randn(1, 1, 2048, 4)
    with Largest() as largest:
        received_attention(query, query, mask=Causal(), block=16)
        attention_weights(query, query, mask=Causal(), queries=[3, 2047])
    assert largest.entries <= 16 * 2048


def test_a_layer_gives_its_queries_and_keys() -> None:
    torch.manual_seed(1)
    layer, x = MultiHeadAttention(16, 4).eval(), torch.randn(2, 6, 16)
    _, expected = layer(x, mask=Causal(), need_weights=True)
    found = attention_weights(layer.project_query(x), layer.project(x).key, mask=Causal(), queries=[5])
    torch.testing.assert_close(found, expected[:, :, 5:])


def test_what_cannot_be(unchecked: None) -> None:
    query, key = drawn()
    with pytest.raises(ShapeError, match="no query 9: there are 9"):
        attention_weights(query, key, queries=[9])
    with pytest.raises(ShapeError, match="no head -5: there are 4"):
        attention_weights(query, key, heads=[-5])
    with pytest.raises(ConfigurationError, match="at least one query"):
        received_attention(query, key, block=0)
    with pytest.raises(ShapeError, match="one boolean for each query"):
        received_attention(query, key, counted=torch.ones(3, 8, dtype=torch.bool))
    with pytest.raises(MaskError):
        received_attention(query, key, mask=torch.ones(9, 9, dtype=torch.bool))  # type: ignore[arg-type]
