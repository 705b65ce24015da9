"""Where a mask has lengths, nothing spreads from the padding, not even NaN and infinity."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from multihead.attention import Causal, Dense, Document, Mask, MultiHeadAttention, Padding, SlidingWindow, attention
from multihead.attention import functional as functional_module
from multihead.attention.backends.sdpa import SdpaPlan
from multihead.attention.functional import BackendName

BATCH, HEADS, LENGTH, DIM = 3, 2, 6, 4
LENGTHS = [6, 0, 3]
GARBAGE = [math.nan, math.inf, -math.inf, 1e30]
MASKS: dict[str, Mask] = {
    "known": Padding(LENGTHS),
    "tensor": Padding(torch.tensor(LENGTHS)),
    "causal": Causal() & Padding(torch.tensor(LENGTHS)),
    "queries": Padding(LENGTHS, LENGTHS) & SlidingWindow(2),
    "queries in a tensor": Padding(torch.tensor(LENGTHS), torch.tensor(LENGTHS)),
    "documents": Document.from_lengths([2, 4]) & Padding(torch.tensor(LENGTHS)),
}


def inputs(garbage: float, spoil_queries: bool) -> tuple[list[Tensor], list[Tensor]]:
    """The same queries, keys and values twice: with zeros and with garbage behind the lengths."""
    draw = torch.Generator().manual_seed(0)
    clean = [torch.randn(BATCH, HEADS, LENGTH, DIM, generator=draw) for _ in range(3)]
    padding = (torch.arange(LENGTH) >= torch.tensor(LENGTHS)[:, None])[:, None, :, None]
    spoilt = [
        tensor.masked_fill(padding, garbage) if index > 0 or spoil_queries else tensor
        for index, tensor in enumerate(clean)
    ]
    return [t.masked_fill(padding, 0) if i > 0 or spoil_queries else t for i, t in enumerate(clean)], spoilt


def run(tensors: list[Tensor], mask: Mask, backend: BackendName, need_weights: bool = False) -> list[Tensor]:
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    output, weights = attention(*leaves, mask=mask, backend=backend, need_weights=need_weights)  # type: ignore[misc]
    results = [output, *torch.autograd.grad(output.square().sum(), leaves)]
    return results if weights is None else [*results, weights]


def count_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with each run of the fused kernel."""
    calls: list[int] = []
    run_once = SdpaPlan.run
    monkeypatch.setattr(SdpaPlan, "run", lambda *args: calls.append(1) or run_once(*args))
    return calls


@pytest.mark.parametrize("backend", ["auto", "explicit", "sdpa", "blockwise"])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_in_the_padding(garbage: float, name: str, backend: BackendName) -> None:
    clean, spoilt = inputs(garbage, spoil_queries="queries" in name)
    need_weights = backend in ("auto", "explicit")
    for ours, exact in zip(
        run(spoilt, MASKS[name], backend, need_weights), run(clean, MASKS[name], backend, need_weights), strict=True
    ):
        torch.testing.assert_close(ours, exact)


def test_padding_on_the_left() -> None:
    draw = torch.Generator().manual_seed(0)
    query, key = (torch.randn(BATCH, HEADS, n, DIM, generator=draw) for n in (1, LENGTH))
    pad = torch.tensor([0, 6, 2])
    padding = (torch.arange(LENGTH) < pad[:, None])[:, None, :, None]
    mask = Causal() & ~Padding(pad)
    spoilt = key.masked_fill(padding, math.nan)
    torch.testing.assert_close(attention(query, spoilt, spoilt, mask=mask)[0], attention(query, key, key, mask=mask)[0])


def test_an_infinite_key_that_leaves_the_output_alone_does_not_reach_a_gradient() -> None:
    """Its score is -inf, like that of a masked key; but the gradients would contain 0 * inf."""
    query, value = torch.ones(1, 1, 1, 2, requires_grad=True), torch.ones(1, 1, 2, 2)
    key = torch.tensor([[[[0.5, 1.0], [-math.inf, -math.inf]]]])
    for backend in ("explicit", "sdpa"):
        output, _ = attention(query, key, value, mask=Padding([1]), backend=backend)  # type: ignore[arg-type]
        (gradient,) = torch.autograd.grad(output.sum(), query)
        assert gradient.isfinite().all()


def test_a_real_nan_is_not_hidden() -> None:
    clean, _ = inputs(0.0, spoil_queries=False)
    clean[1][2, 0, 1] = math.nan
    output, _ = attention(*clean, mask=Padding(LENGTHS))  # type: ignore[misc]
    assert output[2, 0].isnan().all()
    assert output[2, 1].isfinite().all()
    assert output[0].isfinite().all()


def test_where_numbers_cannot_be_looked_at_padding_is_always_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on another device, or while a compiler traces the call."""
    monkeypatch.setattr(functional_module, "_can_inspect", lambda query: False)
    clean, spoilt = inputs(math.nan, spoil_queries=True)
    for ours, exact in zip(run(spoilt, MASKS["queries"], "sdpa"), run(clean, MASKS["queries"], "sdpa"), strict=True):
        torch.testing.assert_close(ours, exact)


def test_under_vmap() -> None:
    clean, spoilt = inputs(math.nan, spoil_queries=False)

    def one(query: Tensor, key: Tensor, value: Tensor, length: Tensor) -> Tensor:
        output, _ = attention(query[None], key[None], value[None], mask=Padding(length[None]), backend="explicit")
        return output[0]

    many = torch.func.vmap(one)(*spoilt, torch.tensor(LENGTHS))
    torch.testing.assert_close(many, attention(*clean, mask=Padding(LENGTHS))[0])  # type: ignore[misc]


def test_clean_padding_costs_no_second_run(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_runs(monkeypatch)
    clean, spoilt = inputs(math.nan, spoil_queries=False)
    attention(*clean, mask=Padding(LENGTHS))  # type: ignore[misc]
    assert len(calls) == 1
    attention(*spoilt, mask=Dense(torch.ones(LENGTH, LENGTH, dtype=torch.bool)))  # type: ignore[misc]
    assert len(calls) == 2  # no lengths, so the padding is unknown
    attention(*spoilt, mask=Padding(LENGTHS))  # type: ignore[misc]
    assert len(calls) == 4


@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
def test_a_seed_of_dropout_means_the_same_whatever_the_padding_holds(backend: BackendName) -> None:
    results = []
    for tensors in inputs(math.nan, spoil_queries=False):
        torch.manual_seed(1)
        output, _ = attention(*tensors, mask=Padding(LENGTHS), dropout_p=0.5, backend=backend)  # type: ignore[misc]
        results.append((output, torch.rand(())))
    for clean, spoilt in zip(*results, strict=True):
        assert torch.equal(clean, spoilt)


def test_half_precision_sums_do_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large numbers are no garbage: the result is not computed again."""
    calls = count_runs(monkeypatch)
    query, value = torch.zeros(1, 1, 8, 4, dtype=torch.float16), torch.full((1, 1, 8, 4), 3e4, dtype=torch.float16)
    output, _ = attention(query, query, value, mask=Padding([4]), backend="sdpa")
    assert output.isfinite().all()
    assert output.sum().isinf()  # in its own type
    assert len(calls) == 1


def test_a_network_forgets_its_padding() -> None:
    torch.manual_seed(0)
    module = MultiHeadAttention(8, 2)
    x = torch.randn(BATCH, LENGTH, 8)
    padding = (torch.arange(LENGTH) >= torch.tensor(LENGTHS)[:, None])[..., None]
    for mask in (Padding(LENGTHS), Causal() & Padding(torch.tensor(LENGTHS))):
        clean, _ = module(x, mask=mask)
        spoilt, _ = module(x.masked_fill(padding, math.nan), mask=mask)
        torch.testing.assert_close(spoilt.masked_fill(padding, 0), clean.masked_fill(padding, 0))
