"""The backend for short sequences is taken for the masks that it knows, equals the reference, or refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from multihead.attention import (
    Causal,
    Document,
    EndToEnd,
    Mask,
    Padding,
    RelativeBias,
    SlidingWindow,
    attention,
    choose,
    explain,
)
from multihead.attention.backends.short import LONGEST, short_attention
from multihead.errors import ConfigurationError, ShapeError

WORDS, OTHERS = torch.tensor([3, 1, 4]), torch.tensor([2, 5, 1])


def tensors(rows: int, queries: int, keys: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Queries, keys and values of two heads, which require gradients."""
    draw = torch.Generator().manual_seed(queries + keys)
    return tuple(
        torch.randn(rows, 2, length, 8, generator=draw).to(dtype).requires_grad_() for length in (queries, keys, keys)
    )


TAKEN: list[tuple[Mask | None, int, int, int]] = [
    (None, 3, 6, 6),
    (None, 3, 4, 7),
    (Causal(), 3, 6, 6),
    (Padding([6, 0, 2]), 3, 4, 6),
    (Padding(torch.tensor([6, 0, 2]), torch.tensor([1, 5, 0])), 3, 5, 6),
    (Causal() & Padding([6, 3, 2]), 3, 6, 6),
    (EndToEnd(WORDS, 8), 1, 8, 8),
    (EndToEnd(WORDS, 12) & Causal(), 1, 12, 12),
    (EndToEnd(WORDS, 9, OTHERS, 10), 1, 9, 10),
]


@pytest.mark.parametrize("number", range(len(TAKEN)))
def test_it_is_taken_for_training_and_for_packed_rows_and_equal_to_the_definition(number: int, compiled: Any) -> None:
    mask, *sizes = TAKEN[number]
    inputs = tensors(*sizes)
    assert choose(*inputs, mask=mask).kernel == "short"
    found = []
    for backend in ("auto", "short", "explicit"):
        output, weights = attention(*inputs, mask=mask, backend=backend)  # type: ignore[arg-type]
        assert backend == "explicit" or weights is None
        seed = torch.linspace(-1, 1, output.numel()).view_as(output)
        found.append((output, *torch.autograd.grad(output, inputs, seed)))
    for auto, short, exact in zip(*found, strict=True):
        assert torch.equal(auto, short)
        torch.testing.assert_close(short, exact, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        end_to_end = mask is not None and any(isinstance(part, EndToEnd) for part in mask.conjuncts)
        assert (choose(*inputs, mask=mask).kernel == "short") == end_to_end


@pytest.mark.parametrize(
    "call",
    [
        {"mask": SlidingWindow(2)},
        {"mask": Document([0, 0, 0, 1, 1, 1])},
        {"mask": Padding([6, 2, 1]) & Padding([5, 5, 5])},
        {"mask": Causal() | Padding([6, 2, 1])},
        {"bias": RelativeBias(2)},
    ],
    ids=lambda call: repr(next(iter(call.values()))),
)
def test_other_masks_and_biases_go_elsewhere_or_are_refused(call: dict[str, Any], compiled: Any) -> None:
    inputs = tensors(3, 6, 6)
    assert choose(*inputs, **call).kernel != "short"
    with pytest.raises(ConfigurationError, match="backend='short' supports only CPUs with compiled kernels"):
        attention(*inputs, **call, backend="short")


def test_so_do_long_sequences_other_types_and_grouped_heads(compiled: Any) -> None:
    query, key, value = tensors(1, 6, 6)
    assert choose(*tensors(1, LONGEST, LONGEST)).kernel == "short"
    assert choose(*tensors(1, LONGEST + 1, 4)).kernel != "short"
    assert choose(*tensors(1, 6, 6, torch.float64)).kernel != "short"
    assert choose(query, key[:, :1], value[:, :1]).kernel != "short"
    # A row may be longer than the sequences in it.
    whole = EndToEnd(torch.tensor([LONGEST, LONGEST]), 2 * LONGEST)
    assert choose(*tensors(1, 2 * LONGEST, 2 * LONGEST), mask=whole).kernel == "short"
    with pytest.raises(ConfigurationError, match="does not return weights"):
        attention(query, key, value, need_weights=True, backend="short")
    with pytest.raises(ConfigurationError, match="does not support dropout"):
        attention(query, key, value, dropout_p=0.1, backend="short")
    assert "training on short sequences" in explain(query, key, value)


def test_without_a_compiler_pytorch_does_it(compiled: Any) -> None:
    inputs = tensors(3, 6, 6)
    ours, _ = attention(*inputs, mask=Causal())
    with compiled():
        assert choose(*inputs, mask=Causal()).kernel == "sdpa"
        theirs, _ = attention(*inputs, mask=Causal())
    torch.testing.assert_close(ours, theirs)


def test_under_autocast_it_reads_bfloat16(compiled: Any) -> None:
    inputs = tensors(3, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        assert choose(*inputs).compute_dtype == torch.bfloat16
        output, _ = attention(*inputs)
    with torch.autocast("cpu", torch.float16):
        assert choose(*inputs).kernel != "short"
    torch.testing.assert_close(output, attention(*inputs)[0], rtol=0.02, atol=0.02)


def test_sequences_end_to_end_see_their_own_keys() -> None:
    seen = EndToEnd(WORDS, 9, OTHERS, 10).dense(9, 10)[0, 0]
    want = torch.zeros(9, 10, dtype=torch.bool)
    want[0:3, 0:2] = want[3:4, 2:7] = want[4:8, 7:8] = True
    assert torch.equal(seen, want)
    assert EndToEnd(torch.tensor([], dtype=torch.long), 4).dense(4, 4).sum() == 0
    x = torch.randn(1, 2, 4, 8, requires_grad=True)
    assert attention(x, x, x, mask=EndToEnd(torch.tensor([], dtype=torch.long), 4))[0].sum() == 0
    with pytest.raises(ShapeError, match="8 positions do not fit into a row of 7"):
        EndToEnd(WORDS, 7)
    with pytest.raises(ShapeError, match="3 sequences of queries and 2 of keys"):
        EndToEnd(WORDS, 8, WORDS[:2], 8)


def test_lengths_that_are_no_lengths_are_refused() -> None:
    for lengths in ([10, -2], [-1], [2**40, 1], [2**62] * 4):
        with pytest.raises(ShapeError, match=r"lengths are from 0 to|do not fit into a row"):
            EndToEnd(torch.tensor(lengths), 8)
    with pytest.raises(ShapeError, match="lengths are from 0 to"):
        EndToEnd(torch.tensor([4, 4]), 8, torch.tensor([10, -2]), 8)


def test_lengths_that_change_later_do_not_change_a_mask() -> None:
    lengths = torch.tensor([3, 5])
    mask = EndToEnd(lengths, 8)
    lengths[0] = 1 << 30
    assert mask.row is not None
    assert mask.row.query_lengths.tolist() == mask.row.key_lengths.tolist() == [3, 5]


def test_saved_tensors_of_another_type_or_shape_do_not_reach_the_kernel(compiled) -> None:
    for unpack in (lambda x: x.double(), lambda x: x[..., :-1], lambda x: x[:, :, :-1]):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
            query = torch.randn(2, 2, 5, 8, requires_grad=True)
            output = short_attention(query, query, query)
        with pytest.raises(ShapeError, match="a compiled kernel takes"):
            output.sum().backward()
