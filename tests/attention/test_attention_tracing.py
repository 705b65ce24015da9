"""torch.jit.trace records attention; what it records equals the call, for other batches and lengths too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from multihead.attention import Causal, Mask, MultiHeadAttention, attention

pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),  # sizes are checked in Python, and become constants
    pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning"),
]


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


class Output(nn.Module):
    """The output alone: a trace cannot return the absent weights, which are None."""

    def __init__(self, heads: MultiHeadAttention, mask: Mask | None) -> None:
        super().__init__()
        self.heads, self.mask = heads, mask

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.heads(x, mask=self.mask)[0]
        return output


@pytest.mark.parametrize("key_heads", [4, 2], ids=["equal heads", "grouped heads"])
@pytest.mark.parametrize("mask", [None, Causal()], ids=["no mask", "causal"])
def test_a_trace_of_the_function_is_the_function(mask: Mask | None, key_heads: int) -> None:
    def output(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention(query, key, value, mask=mask)[0]

    keys = drawn(2, key_heads, 5, 8)
    traced = torch.jit.trace(output, (drawn(2, 4, 5, 8), keys, keys))
    for batch, length in ((2, 5), (3, 7), (1, 1)):
        query, key = drawn(batch, 4, length, 8), drawn(batch, key_heads, length, 8)
        torch.testing.assert_close(traced(query, key, key), output(query, key, key))


@pytest.mark.parametrize("mask", [None, Causal()], ids=["no mask", "causal"])
def test_a_trace_of_the_module_is_the_module(mask: Mask | None) -> None:
    module = Output(MultiHeadAttention(16, 4, kv_heads=2), mask).eval()
    # The check of torch.jit.trace compares graphs, which the type checks of the test run change.
    traced = torch.jit.trace(module, (drawn(2, 5, 16),), check_trace=False)
    for batch, length in ((2, 5), (3, 7)):
        x = drawn(batch, length, 16)
        torch.testing.assert_close(traced(x), module(x))
