"""FlexAttention: blocks follow the mask, training on a CPU is refused, one compilation serves all lengths."""

from __future__ import annotations

import sys
from typing import Any

import processes
import pytest
import torch

from multihead.attention import Causal, Padding, SlidingWindow, attention, block_mask, choose, explain
from multihead.attention.backends import flex
from multihead.errors import ConfigurationError, ShapeError


def test_blocks_that_nobody_sees_are_left_out() -> None:
    made = block_mask(Causal() & Padding([128, 384]), 512, 512, batch=2)
    assert made.shape == (2, 1, 512, 512)
    assert made.to_dense()[:, 0].int().tolist() == [
        [[1, 0, 0, 0]] * 4,
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0]],
    ]
    assert block_mask(SlidingWindow(127), 512, 512).to_dense()[0, 0].int().sum().item() == 7


def test_axes_that_make_no_difference_have_size_one() -> None:
    assert block_mask(Causal(), 8, 8, batch=3, heads=4).shape[:2] == (1, 1)
    assert block_mask(Padding([1, 2, 3]), 8, 8, batch=3, heads=4).shape[:2] == (3, 1)


@pytest.mark.parametrize("backend", ["flex", "flex_eager"])
def test_training_on_a_cpu_is_refused(backend: str) -> None:
    query = torch.randn(1, 1, 4, 8, requires_grad=True)
    with pytest.raises(ConfigurationError, match=r"no backward pass.*blockwise"):
        attention(query, query, query, backend=backend)  # type: ignore[arg-type]
    with torch.no_grad():
        assert choose(query, query, query, backend=backend).kernel == backend  # type: ignore[arg-type]
    still = query.detach()
    with pytest.raises(ConfigurationError, match="dropout"):
        attention(still, still, still, dropout_p=0.1, backend=backend)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="does not return weights"):
        attention(still, still, still, need_weights=True, backend=backend)  # type: ignore[arg-type]


def test_it_is_never_picked_on_a_cpu() -> None:
    """Compiling takes half a minute, so it must be requested."""
    query = torch.randn(1, 1, 2000, 8)
    for mask in (None, Causal(), SlidingWindow(5), Causal() | Padding([3])):
        assert not choose(query, query, query, mask=mask).kernel.startswith("flex")


def test_explain_says_how_much_is_left_out() -> None:
    query = torch.randn(1, 1, 512, 8)
    assert "flex with 56% of the blocks left out" in explain(
        query, query, query, mask=SlidingWindow(127), backend="flex"
    )


def test_a_mask_of_another_batch_is_named() -> None:
    query = torch.randn(2, 1, 4, 8)
    with pytest.raises(ShapeError, match="3 sentences, but there are 2"):
        attention(query, query, query, mask=Padding([1, 2, 3]), backend="flex_eager")


COMPILED = """
import torch
from torch._dynamo.utils import counters
from multihead.attention import ALiBi, Causal, Padding, SlidingWindow, attention

def check(length, dtype=torch.float32, kv_heads=4, bias=None, window=None, soft_cap=None):
    query = torch.randn(3, 4, length, 16, dtype=dtype)
    key, value = torch.randn(2, 3, kv_heads, length, 16, dtype=dtype)
    lengths = torch.randint(0, length + 1, (3,))
    mask = (Causal() if window is None else SlidingWindow(window)) & Padding(lengths)
    with torch.no_grad():
        ours, _ = attention(query, key, value, mask=mask, bias=bias, soft_cap=soft_cap, backend="flex")
        wide = (tensor.double() for tensor in (query, key, value))
        exact, _ = attention(*wide, mask=mask, bias=bias, soft_cap=soft_cap, backend="explicit")
    close = 2e-2 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(ours.double(), exact, rtol=close, atol=close)
    assert ours[lengths == 0].eq(0).all()

torch.manual_seed(0)
for length in (256, 200, 300):  # another length, then another number of blocks
    check(length)
made = counters["stats"]["unique_graphs"]
for length in (256, 200, 411, 500):
    check(length)
assert counters["stats"]["unique_graphs"] == made, "lengths are captured as tensors: no value needs a new kernel"
check(256, torch.bfloat16, kv_heads=2)
check(256, bias=ALiBi(4))
check(256, bias=ALiBi(4), soft_cap=0.7)
"""


AFTER_A_CAP = """
import torch
from multihead.attention import Causal, attention, sink_attention

torch.manual_seed(0)
for length, kind in ((37, "cap"), (50, "cap"), (64, "tensor"), (70, "tensor"), (40, "sink"), (33, "sink")):
    query, key, value = torch.randn(3, 1, 4, length, 16)
    bias, sink = torch.randn(1, 4, length, length), torch.randn(4)
    with torch.no_grad():
        ours, exact = (
            sink_attention(query, key, value, sink, mask=Causal(), backend=backend)[0]
            if kind == "sink"
            else attention(
                query, key, value, mask=Causal(), backend=backend,
                **({"soft_cap": 0.7} if kind == "cap" else {"bias": bias}),
            )[0]
            for backend in ("flex", "explicit")
        )
    torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-4)
"""


@pytest.mark.proof
def test_tensors_of_several_lengths_are_compiled_after_a_soft_cap() -> None:
    """PyTorch can confuse the names of sizes; a kernel is then compiled for a single length."""
    result = processes.run([sys.executable, "-c", AFTER_A_CAP], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_only_names_that_collide_are_compiled_for_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    query = torch.randn(1, 2, 4, 8)
    said, called = "error: cur_kvSplitSize4 was not declared", []

    def function(compiled: bool, any_length: bool = True) -> Any:
        called.append((compiled, any_length))

        def fail(*_: Any, **__: Any) -> Any:
            if any_length:
                raise RuntimeError(said)
            return query

        return fail

    monkeypatch.setattr(flex, "_function", function)
    with torch.no_grad():
        assert flex.flexible_attention(query, query, query, None) is query
        assert called == [(True, True), (True, False)]
        said = "something else"
        with pytest.raises(RuntimeError, match="something else"):
            flex.flexible_attention(query, query, query, None)
    assert called[2:] == [(True, True)]


@pytest.mark.proof
def test_causal_with_padding_on_the_compiled_kernel() -> None:
    """Variable lengths in a batch. In a fresh interpreter, because shape checks cannot be compiled."""
    result = processes.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
