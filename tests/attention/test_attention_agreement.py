"""All backends agree for every mask, type and length, with and without grouped heads.

The reference is the explicit backend in float64. Blocks are made small, so that these small shapes have many of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import Tensor

from multihead.attention import (
    ALiBi,
    Bias,
    Causal,
    Dense,
    Document,
    Full,
    Mask,
    MaskFunction,
    Padding,
    PrefixLM,
    RelativeBias,
    SlidingWindow,
    attention,
    choose,
    explicit_attention,
)
from multihead.attention.backends import blockwise
from multihead.attention.functional import BackendName

BATCH, HEADS, KEYS, DIM = 3, 4, 11, 4
LENGTHS = {"equal": KEYS, "shorter": 6, "one": 1}
TRAINABLE: tuple[BackendName, ...] = ("explicit", "sdpa", "blockwise")
CLOSE = {
    torch.float64: {"rtol": 1e-12, "atol": 1e-13},
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "BLOCK", 4)


def masks(queries: int) -> dict[str, Mask | None]:
    draw = torch.Generator().manual_seed(queries)
    lengths = [KEYS, 0, 5]
    documents = torch.tensor([[0] * 3 + [1] * 5 + [2] * 3, [7] * KEYS, [4, 4, 4, 9, 9, 2, 2, 2, 2, 2, 1]])
    document = Document(documents[:, KEYS - queries :], documents)
    scattered = documents[:, torch.randperm(KEYS, generator=draw)]
    return {
        "none": None,
        "full": Full(),
        "causal": Causal(),
        "start": Causal(align="start"),
        "padding": Padding(torch.tensor(lengths)),
        "padding known": Padding(lengths),
        "padding of both": Padding(lengths, [min(queries, 5), queries, 0]),
        "causal & padding": Causal() & Padding(torch.tensor(lengths)),
        "causal & padding known": Causal() & Padding(lengths),
        "left padding": Causal() & ~Padding([0, 2, KEYS]),
        "window": SlidingWindow(2),
        "window to both sides": SlidingWindow(1, 3) & Padding([KEYS, 4, 9]),
        "prefix": PrefixLM([0, 4, KEYS]),
        "prefix & padding": PrefixLM(torch.tensor([0, 4, KEYS])) & Padding(lengths),
        "document": document,
        "document & causal": document & Causal(),
        "document & window & padding": document & SlidingWindow(1) & Padding([KEYS, 8, 3]),
        "document scattered": Document(scattered[:, :queries], scattered),
        "dense": Dense(torch.rand(queries, KEYS, generator=draw) < 0.5),
        "dense of heads": Causal() & Dense(torch.rand(BATCH, HEADS, queries, KEYS, generator=draw) < 0.5),
        "function": MaskFunction(lambda b, h, q, k: (q + b - k).abs() <= h),
        "or": SlidingWindow(1) | Padding([2, 0, 1]),
        "not": ~SlidingWindow(2, 1) & Causal(),
        "nothing": ~Full(),
    }


def inputs(queries: int, kv_heads: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(10 * queries + kv_heads)
    shapes = ((HEADS, queries), (kv_heads, KEYS), (kv_heads, KEYS))
    query, key, value = (torch.randn(BATCH, *shape, DIM, generator=draw).to(dtype) for shape in shapes)
    return query, key, value


def with_gradients(
    backend: BackendName | None, tensors: tuple[Tensor, ...], mask: Mask | None, bias: Tensor | Bias | None
) -> list[Tensor]:
    """Output and gradients; backend None = the reference, in float64."""
    wide = torch.float64 if backend is None else tensors[0].dtype
    leaves = [tensor.detach().to(wide).requires_grad_() for tensor in tensors]
    queries = tensors[0].shape[2]
    if isinstance(bias, Tensor):
        term: Tensor | Bias | None = bias.detach().to(wide).requires_grad_()
        leaves.append(term)
    else:
        term = bias
    if backend is None:
        written = None if mask is None else mask.dense(queries, KEYS, batch=BATCH, heads=HEADS)
        dense = term.dense(queries, KEYS, wide) if isinstance(term, Bias) else term
        output, _ = explicit_attention(*leaves[:3], mask=written, bias=dense)
    else:
        assert choose(*leaves[:3], mask=mask, bias=term, backend=backend).kernel == backend
        output, _ = attention(*leaves[:3], mask=mask, bias=term, backend=backend)
    seed = torch.linspace(-1, 1, output.numel()).view_as(output).to(wide)
    return [output.detach(), *torch.autograd.grad(output, leaves, seed)]


def assert_agree(tensors: tuple[Tensor, ...], mask: Mask | None, bias: Tensor | Bias | None = None) -> None:
    dtype, queries, groups = tensors[0].dtype, tensors[0].shape[2], HEADS // tensors[1].shape[1]
    exact = with_gradients(None, tensors, mask, bias)
    written = (Full() if mask is None else mask).dense(queries, KEYS, batch=BATCH, heads=HEADS)
    allowed = written.expand(BATCH, HEADS, queries, KEYS)
    sees, seen = allowed.any(3), allowed.any(2).unflatten(1, (-1, groups)).any(2)
    for backend in TRAINABLE:
        ours = with_gradients(backend, tensors, mask, bias)
        for mine, theirs in zip(ours, exact, strict=True):
            assert mine.dtype == dtype
            torch.testing.assert_close(mine.double(), theirs, **CLOSE[dtype])
        for tensor, used in zip(ours[:4], (sees, sees, seen, seen), strict=True):
            assert tensor[~used].eq(0).all()  # not merely small


@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", masks(1))
def test_forwards_and_backwards(kind: str, length: str, kv_heads: int) -> None:
    queries = LENGTHS[length]
    mask = masks(queries)[kind]
    for dtype in (torch.float32, torch.bfloat16):
        assert_agree(inputs(queries, kv_heads, dtype), mask)
    half = inputs(queries, kv_heads, torch.bfloat16)
    exact, _ = attention(*(tensor.double() for tensor in half), mask=mask, backend="explicit")  # type: ignore[misc]
    for backend in TRAINABLE:  # without training, half types are computed in half precision
        assert choose(*half, mask=mask, backend=backend).compute_dtype is None
        output, _ = attention(*half, mask=mask, backend=backend)
        torch.testing.assert_close(output.double(), exact, **CLOSE[torch.bfloat16])


def biases(queries: int) -> dict[str, Tensor | Bias]:
    relative = RelativeBias(HEADS, buckets=8, max_distance=16)
    with torch.no_grad():
        relative.table.normal_(generator=torch.Generator().manual_seed(0))
    draw = torch.Generator().manual_seed(1)
    forbids = torch.zeros(queries, KEYS)
    forbids[:, 1::3] = -torch.inf
    return {
        "alibi": ALiBi(HEADS),
        "symmetric": ALiBi(HEADS, symmetric=True),
        "relative": relative,
        "two axes": torch.randn(queries, KEYS, generator=draw),
        "four axes": torch.randn(BATCH, HEADS, queries, KEYS, generator=draw),
        "of keys": torch.randn(BATCH, 1, 1, KEYS, generator=draw),
        "forbids": forbids,
    }


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", biases(1))
def test_with_a_bias(name: str, length: str) -> None:
    queries = LENGTHS[length]
    for kind in ("none", "document & causal", "causal & padding", "nothing"):
        assert_agree(inputs(queries, 2, torch.float64), masks(queries)[kind], biases(queries)[name])


def flexible(kind: str, length: str, dtype: torch.dtype, kv_heads: int, bias: Tensor | Bias | None = None) -> None:
    queries = LENGTHS[length]
    tensors = inputs(queries, kv_heads, dtype)
    mask = masks(queries)[kind]
    with torch.no_grad():
        ours, _ = attention(*tensors, mask=mask, bias=bias, backend="flex_eager")
    wide = [tensor.double() for tensor in tensors]
    exact, _ = attention(*wide, mask=mask, bias=bias, backend="explicit")  # type: ignore[misc]
    assert ours.dtype == dtype
    torch.testing.assert_close(ours.double(), exact, **CLOSE[dtype])


FLEX_CASES = [
    ("causal & padding", "equal", torch.float32, HEADS),
    ("window to both sides", "shorter", torch.bfloat16, 2),
    ("document & causal", "equal", torch.float32, 2),
    ("dense of heads", "one", torch.float32, HEADS),
    ("nothing", "equal", torch.float32, HEADS),
]


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize(("kind", "length", "dtype", "kv_heads"), FLEX_CASES)
def test_flex(kind: str, length: str, dtype: torch.dtype, kv_heads: int) -> None:
    flexible(kind, length, dtype, kv_heads)


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("name", ["alibi", "relative", "four axes"])
def test_flex_with_a_bias(name: str) -> None:
    flexible("causal & padding", "shorter", torch.float32, 2, biases(6)[name])


@pytest.mark.proof
@pytest.mark.parametrize("kind", masks(1))
def test_flex_with_everything(kind: str) -> None:
    for length, dtype, kv_heads in product(LENGTHS, (torch.float32, torch.bfloat16), (HEADS, 2)):
        torch.compiler.reset()
        flexible(kind, length, dtype, kv_heads)
    for bias in biases(LENGTHS["shorter"]).values():
        torch.compiler.reset()
        flexible(kind, "shorter", torch.float32, 2, bias)
