"""The backend for long sequences equals the definition for every mask of stretches, or refuses."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from multihead.attention import (
    ALiBi,
    Causal,
    Dense,
    Document,
    EndToEnd,
    Mask,
    Padding,
    PrefixLM,
    RelativeBias,
    SlidingWindow,
    attention,
    choose,
    explain,
)
from multihead.attention.backends import long
from multihead.attention.backends.long import MANY, Stretches, long_attention, rule_of, takes
from multihead.attention.functional import LONG_QUERIES, LONG_SCORES
from multihead.errors import ConfigurationError, ShapeError
from multihead.platforms import Processor


def heads_of(batch: int, heads: int, length: int, width: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Heads as a projection returns them: a slice of a wider tensor, heads side by side."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(batch, length, heads * width + 16, generator=generator).to(dtype)
    return wide[..., 16:].view(batch, length, heads, width).transpose(1, 2).requires_grad_()


def results(inputs: tuple[Tensor, ...], backend: str, **call: Any) -> tuple[Tensor, ...]:
    """The output and the gradients of a weighted sum of it."""
    output, _ = attention(*inputs, backend=backend, **call)  # type: ignore[arg-type]
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(9))
    return output, *torch.autograd.grad((output * weight).sum(), inputs)


def masks(batch: int, queries: int, keys: int, seed: int) -> list[Mask | None]:
    draw = torch.Generator().manual_seed(seed)
    lengths, asked = (torch.randint(0, most + 1, (batch,), generator=draw) for most in (keys, queries))
    kinds: list[Mask | None] = [
        None,
        Causal(),
        Causal(align="start"),
        SlidingWindow(keys // 5),
        SlidingWindow(7, 30) & Padding(lengths.tolist()),
        Causal() & Padding(lengths),
        Padding(lengths, asked),
        PrefixLM(lengths.tolist()),
    ]
    if queries == keys:
        pieces = [keys // 3, 0, keys - keys // 3 - keys // 4]
        kinds += [Document.from_lengths(pieces, keys), Document.from_lengths(pieces, keys) & Causal()]
    return kinds


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    half=st.booleans(),
    queries=st.one_of(st.integers(1, 40), st.integers(90, 420)),
    more=st.sampled_from([0, 0, 1, 150]),
    fewer=st.booleans(),
    heads=st.sampled_from([(2, 2), (4, 2), (3, 1)]),
    width=st.sampled_from([1, 8, 20, 33]),
    kind=st.integers(0, 9),
    alibi=st.sampled_from([None, None, False, True]),
    seed=st.integers(0, 99),
)
def test_it_is_the_definition(
    half: bool,
    queries: int,
    more: int,
    fewer: bool,
    heads: tuple[int, int],
    width: int,
    kind: int,
    alibi: bool | None,
    seed: int,
    compiled: Any,
) -> None:
    keys = max(1, queries - more) if fewer else queries + more
    kinds = masks(2, queries, keys, seed)
    bias = None if alibi is None else ALiBi(heads[0], alibi)
    call = {"mask": kinds[kind % len(kinds)], "bias": bias, "scale": 0.4}
    dtype = torch.bfloat16 if half else torch.float32
    query = heads_of(2, heads[0], queries, width, 1, dtype)
    inputs = (query, *(heads_of(2, heads[1], keys, width, n, dtype) for n in (2, 3)))
    exact = tuple(x.detach().double().requires_grad_() for x in inputs)
    ours, wanted = results(inputs, "long", **call), results(exact, "explicit", **call)
    if half:
        check_half(ours, wanted)
        return
    rounding = 2e-6 * math.sqrt(queries * width)  # sums of gradients may cancel: with a single key they are 0
    for got, want in zip(ours, wanted, strict=True):
        most = max(1.0, float(want.detach().abs().max()))
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=rounding * most)


def check_half(ours: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> None:
    """Compare output and gradients in bfloat16, whose numbers have a relative error of up to 0.002.

    Gradients of queries and keys are sums over differences of rounded numbers: with a single key they should be 0.
    """
    queries = wanted[0].shape[2]
    for name, got, want in zip(("output", "query", "key", "value"), ours, wanted, strict=True):
        lost = 0.001 * math.sqrt(queries * want.numel()) if name in ("query", "key") else 0.0
        error = float((got.double() - want).detach().norm())
        assert error <= 0.01 * float(want.detach().norm()) + lost, name


def test_bfloat16_is_read_and_written_in_place(compiled: Any) -> None:
    inputs = tuple(heads_of(2, 2, 300, 24, seed, torch.bfloat16) for seed in range(3))
    exact = tuple(x.detach().double().requires_grad_() for x in inputs)
    ours = results(inputs, "long", mask=Causal())
    assert all(one.dtype == torch.bfloat16 for one in ours)
    assert choose(*inputs, mask=Causal(), backend="long").compute_dtype is None
    for got, want in zip(ours, results(exact, "explicit", mask=Causal()), strict=True):
        assert float((got.double() - want).detach().norm()) <= 0.01 * float(want.detach().norm())


@pytest.mark.parametrize(("heads", "dtype"), [(1, torch.float32), (3, torch.float32), (1, torch.bfloat16)])
def test_results_do_not_depend_on_the_number_of_threads(heads: int, dtype: torch.dtype, compiled: Any) -> None:
    """Bit for bit: with fewer heads than threads, queries and keys are also divided among threads."""
    inputs = tuple(heads_of(1, heads, 2100, 8, seed, dtype) for seed in range(3))
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(results(inputs, "long", mask=SlidingWindow(900)))
    finally:
        torch.set_num_threads(before)
    for one, *others in zip(*found, strict=True):
        assert all(torch.equal(one, other) for other in others)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_spreads_from_the_padding(dtype: torch.dtype, compiled: Any) -> None:
    lengths, asked = [300, 0, 97], [300, 300, 200]  # 97: the last pair of keys of bfloat16 is half padding
    mask = Padding(lengths, asked) & SlidingWindow(200, 40)
    inputs = tuple(heads_of(3, 2, 300, 16, seed, dtype) for seed in range(3))
    clean = results(inputs, "long", mask=mask)
    with torch.no_grad():
        for row in range(3):
            inputs[0][row, :, asked[row] :] = float("nan")
            for x in inputs[1:]:
                x[row, :, lengths[row] :] = float("nan") if row else float("inf")
    for one, other in zip(clean, results(inputs, "long", mask=mask), strict=True):
        assert torch.equal(one, other)
        assert not other[1].any()  # a row without any key: zeros, and zero gradients


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_that_is_seen_is_returned(dtype: torch.dtype, compiled: Any) -> None:
    query, key, value = (heads_of(1, 1, 300, 16, seed, dtype).detach() for seed in range(3))
    key[:, :, 100] = float("nan")
    output, _ = attention(query, key, value, mask=Causal(), backend="long")
    assert output[:, :, 100:].isnan().all()
    assert output[:, :, :90].isfinite().all()  # queries of other groups do not see it


def test_memory_is_linear_in_the_length(compiled: Any) -> None:
    """One head's scores would be 144 MiB, and twice that with gradients."""

    def peak() -> int:
        return int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0])

    inputs = tuple(heads_of(1, 1, 6144, 8, seed) for seed in range(3))
    results(tuple(x[:, :, :300] for x in inputs), "long", mask=Causal())
    Path("/proc/self/clear_refs").write_text("5")  # the peak is the present size
    before = peak()
    results(inputs, "long", mask=Causal())
    assert peak() - before < 24 * 1024


@pytest.mark.parametrize(
    "call",
    [
        {"mask": Dense(torch.ones(300, 300, dtype=torch.bool))},
        {"mask": Causal() | SlidingWindow(3)},
        {"mask": ~Padding([3, 4])},
        {"bias": RelativeBias(2)},
    ],
    ids=lambda call: repr(next(iter(call.values())))[:20],
)
def test_other_masks_and_biases_go_elsewhere_or_are_refused(call: dict[str, Any], compiled: Any) -> None:
    inputs = tuple(heads_of(2, 2, 300, 16, seed) for seed in range(3))
    assert choose(*inputs, **call).kernel != "long"
    with pytest.raises(ConfigurationError, match="backend='long' supports only CPUs with compiled kernels"):
        attention(*inputs, **call, backend="long")


def test_so_do_other_types_widths_dropout_and_weights(compiled: Any) -> None:
    query, key, value = (torch.randn(1, 2, 300, 16) for _ in range(3))
    assert takes(query, key[:, :1], value[:, :1])
    assert not takes(query, key, value[..., :8])
    assert not takes(query.double(), key.double(), value.double())
    assert not takes(query, key, value.bfloat16())
    assert not takes(query[:, :0], key, value)
    with pytest.raises(ConfigurationError, match="does not return weights"):
        attention(query, key, value, need_weights=True, backend="long")
    with pytest.raises(ConfigurationError, match="does not support dropout"):
        attention(query, key, value, dropout_p=0.1, backend="long")
    with pytest.raises(ConfigurationError, match="ask `takes` first"):
        long_attention(query, key, value.double(), Stretches(*torch.zeros(2, 1, 300, dtype=torch.int32)))
    with pytest.raises(ShapeError, match=r"the bias ALiBi\(3\) has 3 heads, the query 2"):
        long_attention(query, key, value, Stretches(*torch.zeros(2, 1, 300, dtype=torch.int32)), bias=ALiBi(3))
    with pytest.raises(ShapeError, match=r"one stretch a query is needed: \(1, 300\)"):
        long_attention(query, key, value, Stretches(*torch.zeros(2, 1, 299, dtype=torch.int32)))


def test_stretches_past_the_keys_are_cut(compiled: Any) -> None:
    query, key, value = (torch.randn(1, 2, 70, 16) for _ in range(3))
    wide = Stretches(torch.full((1, 70), -5), torch.full((1, 70), 1 << 40))
    assert torch.equal(long_attention(query, key, value, wide), attention(query, key, value, backend="long")[0])


def test_it_is_taken_for_long_sequences_on_a_cpu(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def inputs(queries: int, keys: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        return [torch.zeros(2, 2, length, 8, dtype=dtype) for length in (queries, keys, keys)]

    def on(*features: str, half: bool = False) -> None:
        rule = rule_of(Processor({}, frozenset(features)), half)
        monkeypatch.setattr(long, "rule_of_this_processor", lambda: rule)

    def taken(tensors: list[Tensor], mask: Mask | None = None) -> str:
        return choose(*tensors, mask=mask).kernel

    keys, many = LONG_SCORES // LONG_QUERIES, MANY // LONG_QUERIES
    on("avx2")
    assert taken(inputs(LONG_QUERIES, keys), Causal()) == "long"
    assert taken(inputs(LONG_QUERIES - 1, many), Causal()) == "sdpa"
    assert taken(inputs(LONG_QUERIES, keys - 1), Causal()) == "sdpa"
    for mask in (None, Padding([many, many - 9])):
        assert taken(inputs(LONG_QUERIES, many), mask) == "long"
        assert taken(inputs(LONG_QUERIES, many - 1), mask) == "sdpa"
    assert taken(inputs(300, 300, torch.bfloat16)) == "long"
    on("avx2", "avx512f", "avx512_bf16", "amx_bf16")  # a processor with fewer measurements
    assert taken(inputs(LONG_QUERIES, many - 1), Causal()) == taken(inputs(300, 300)) == "sdpa"
    assert taken(inputs(300, 300, torch.bfloat16), Causal()) == "sdpa"
    on("avx2", "avx512f", "avx512_bf16", half=True)
    assert taken(inputs(300, 300, torch.bfloat16)) == "long"
    assert taken(inputs(300, 300)) == "sdpa"
    half = [x.requires_grad_() for x in inputs(512, 512)]
    for mask in (Padding([512, 0]), Padding(torch.tensor([512, 0]))):
        assert "long with 50% of the scores. Why: a long sequence on a CPU" in explain(*half, mask=mask)
    assert taken([x.double() for x in half], SlidingWindow(3)) == "blockwise"
    with compiled():
        assert taken(half, Causal()) == "sdpa"


def test_short_sequences_are_learned_from_by_the_other_kernel_unless_they_are_causal(
    compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short kernel also computes the scores that a causal mask hides."""
    rule = rule_of(Processor({}, frozenset({"avx2"})), half=False)
    monkeypatch.setattr(long, "rule_of_this_processor", lambda: rule)
    inputs = [torch.zeros(1, 2, 200, 8, requires_grad=True) for _ in range(3)]
    assert choose(*inputs, mask=Causal()).kernel == choose(*inputs, mask=Causal() & Padding([90])).kernel == "long"
    assert choose(*inputs).kernel == choose(*inputs, mask=Padding([90])).kernel == "short"
    assert choose(*inputs, mask=Causal(), bias=ALiBi(2)).kernel == "long"
    assert choose(*inputs, bias=ALiBi(2)).kernel == "short"
    assert choose(*inputs, mask=Causal() & EndToEnd(torch.tensor([20] * 10), 200)).kernel == "short"


def test_products_of_bfloat16_make_it_faster_for_short_sequences_too(
    compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = rule_of(Processor({}, frozenset({"avx2", "avx512f", "avx512_bf16"})), half=True)
    monkeypatch.setattr(long, "rule_of_this_processor", lambda: rule)
    inputs = [torch.zeros(1, 2, 200, 8, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    for mask in (None, Causal(), Padding([90])):
        assert choose(*inputs, mask=mask).kernel == "long"
        assert choose(*(x[:, :, :100] for x in inputs)).kernel == "short"
        assert choose(*(x.float() for x in inputs)).kernel == "short"
        with torch.autocast("cpu", torch.bfloat16):
            assert choose(*(x.float() for x in inputs), mask=mask).kernel == "long"


def test_it_is_differentiable_once_and_leaves_transforms_to_others(compiled: Any) -> None:
    query = torch.randn(1, 1, 300, 4, requires_grad=True)
    output, _ = attention(query, query, query, backend="long")
    (gradient,) = torch.autograd.grad(output.square().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
    plain = query.detach()
    other, _ = torch.func.vjp(lambda x: attention(x, x, x, mask=Causal())[0], plain)
    torch.testing.assert_close(other, attention(plain, plain, plain, mask=Causal())[0], rtol=1e-4, atol=1e-5)
