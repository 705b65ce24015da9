"""Speed of multi-head and blockwise attention against PyTorch's.

    python benchmarks/attention.py [--only SUBSTRING] [--rounds 40] [--seconds 10] [--threads 1] [--json FILE]
    python benchmarks/attention.py --only long --threads 1 --processor-time    # on a machine that others use

Modules: forward and backward of self-attention by ``torch.nn.MultiheadAttention(need_weights=False)`` and by ours with
the same parameters and the same masks, 512 wide with 8 heads. ``drop-in`` is called as PyTorch's module is.

Blocks: forward and backward of ``attention`` with a structured mask, and of ``scaled_dot_product_attention`` with the
same mask as a boolean tensor. Both masks are built before the timing, since a network builds them once for all layers.

Long: the same without a mask, and with a causal mask by PyTorch's ``is_causal``; also the forward pass alone. In
float32, and in bfloat16 if the processor has instructions for it.

Contenders take turns. Their outputs (at positions of words) are compared before anything is timed. Ratios are of
medians, and in parentheses of minimum times. Where the two differ, the machine was busy; one thread is then more
reliable than two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from common import Timing, describe_machine, interleave, parser, write_figures
from torch import Tensor, nn

from multihead.attention import Causal, Document, Mask, MultiHeadAttention, Padding, SlidingWindow, attention
from multihead.attention.functional import BackendName
from multihead.attention.torch_compatible.module import MultiheadAttention
from multihead.configuration import inspect_machine
from multihead.kernels.linear import library_for_this_processor

PYTORCH = "PyTorch"

MASKED = ("no mask", "causal", "padding", "causal and padding")

Call = Callable[[], Tensor]


class Case(NamedTuple):
    """One comparison.

    Attributes:
        name: as printed.
        calls: the contenders; PyTorch's is called `PYTORCH`.
        claimed: the minimum speed that we claim for each, in multiples of PyTorch's.
        about: a remark to print.
    """

    name: str
    calls: dict[str, Call]
    claimed: dict[str, float]
    about: str


def lengths_of(batch: int, length: int) -> list[int]:
    """Lengths spread evenly from a quarter of the full length to all of it, shuffled."""
    spread = torch.linspace(length / 4, length, batch).round().long()
    return spread[torch.randperm(batch, generator=torch.Generator().manual_seed(0))].tolist()


def update(leaves: Sequence[Tensor], gradient: Tensor, half: bool, forward: Callable[[], Tensor]) -> Call:
    """A forward and backward pass, as in an update; it returns the output."""

    def call() -> Tensor:
        for leaf in leaves:
            leaf.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            y = forward()
        y.backward(gradient.to(y.dtype))
        return y.detach()

    return call


def module_case(name: str, shape: tuple[int, int], width: int, heads: int, masked: str, half: bool) -> Case:
    """Our modules and PyTorch's."""
    batch, length = shape
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(width, heads, batch_first=True)
    ours = MultiHeadAttention(width, heads)
    drop_in = MultiheadAttention.from_torch(theirs)
    assert ours.in_projection is not None
    ours.in_projection.load_state_dict({"weight": theirs.in_proj_weight, "bias": theirs.in_proj_bias})
    ours.output_projection.load_state_dict(theirs.out_proj.state_dict())
    x, gradient = torch.randn(batch, length, width, requires_grad=True), torch.randn(batch, length, width)
    lengths = lengths_of(batch, length)
    padded, causal = "padding" in masked, "causal" in masked
    words = torch.arange(length) < torch.tensor(lengths)[:, None] if padded else torch.ones(batch, length).bool()
    mask = causal_and(Padding(lengths) if padded else None, causal)
    as_torch: dict[str, Any] = {
        "key_padding_mask": ~words if padded else None,
        "attn_mask": torch.ones(length, length, dtype=torch.bool).triu(1) if causal else None,
        "is_causal": causal,
        "need_weights": False,
    }
    calls: dict[str, Call] = {}
    for contender, module in ((PYTORCH, theirs), ("drop-in", drop_in)):
        forward = partial(module, x, x, x, **as_torch)
        calls[contender] = update([x, *module.parameters()], gradient, half, lambda forward=forward: forward()[0])
    calls["ours"] = update([x, *ours.parameters()], gradient, half, lambda: ours(x, mask=mask)[0])
    reference = calls[PYTORCH]()
    for call in calls.values():
        agree(call()[words], reference[words], half)
    share = sum(lengths) / (batch * length)
    claimed = {contender: 0.95 for contender in calls if contender != PYTORCH}
    about = f"{100 * share:.0f}% of the positions are words" if padded else ""
    return Case(name, calls, claimed, about)


def causal_and(mask: Mask | None, causal: bool) -> Mask | None:
    """``mask & Causal()``, or either alone."""
    if not causal:
        return mask
    return Causal() if mask is None else mask & Causal()


def agree(one: Tensor, other: Tensor, half: bool) -> None:
    """Compare two outputs, up to rounding."""
    tolerance = 3e-2 if half else 1e-4
    torch.testing.assert_close(one.float(), other.float(), rtol=tolerance, atol=tolerance)


def block_case(name: str, mask: Mask, length: int, heads: int, dim: int, claimed: float) -> Case:
    """Attention with a structured mask and with the boolean one."""
    about = f"{100 * float(mask.dense(length, length).float().mean()):.0f}% of the scores are visible"
    return kernel_case(name, mask, (1, heads, length, dim), claimed, ("auto", "blockwise"))._replace(about=about)


def kernel_case(
    name: str,
    mask: Mask | None,
    shape: tuple[int, int, int, int],
    claimed: float,
    backends: tuple[BackendName, ...] = ("auto",),
    backward: bool = True,
    half: bool = False,
) -> Case:
    """Attention [batch, heads, length, width] with a mask, and PyTorch's with its own or the boolean one."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if half else torch.float32
    query, key, value = (torch.randn(shape, dtype=dtype, requires_grad=backward) for _ in range(3))
    gradient, causal = torch.randn(shape), isinstance(mask, Causal)
    dense = None if mask is None or causal else mask.dense(shape[2], shape[2])
    leaves = (query, key, value)
    theirs = partial(F.scaled_dot_product_attention, *leaves, attn_mask=dense, is_causal=causal)
    calls = {PYTORCH: update(leaves, gradient, False, theirs) if backward else theirs}
    for backend in backends:
        contender = "ours" if backend == "auto" else backend
        forward = partial(attention, *leaves, mask=mask, backend=backend)
        output: Call = lambda forward=forward: forward()[0]  # type: ignore[misc]  # noqa: E731
        calls[contender] = update(leaves, gradient, False, output) if backward else output
        agree(calls[contender](), calls[PYTORCH](), half)
    return Case(name, calls, {contender: claimed for contender in calls if contender != PYTORCH}, "")


def long_cases(tiny: bool, only: str) -> Iterator[Case]:
    """Long sequences without a mask and with a causal one."""
    sizes = ((2, 64), (1, 128)) if tiny else ((16, 512), (4, 2048), (1, 8192))
    claims = {512: (1.1, 1.8), 2048: (1.1, 1.3), 8192: (1.1, 1.2)}
    types = (False, True) if inspect_machine().fast_bfloat16 else (False,)
    for (batch, length), half, causal, backward in product(sizes, types, (False, True), (False, True)):
        passes = "forward and backward" if backward else "forward"
        dtype = "bfloat16" if half else "float32"
        name = f"long, {batch} x {length}, {'causal' if causal else 'no mask'}, {passes}, {dtype}"
        if only in name:
            claimed = 2.5 if half and not tiny else claims.get(length, (1.0, 1.0))[causal]
            mask, shape = Causal() if causal else None, (batch, 8, length, 64)
            yield kernel_case(name, mask, shape, claimed, backward=backward, half=half)


def cases(tiny: bool, only: str) -> Iterator[Case]:
    """The cases with ``only`` in their name, built one at a time to save memory."""
    shapes, width, heads, length = (((4, 8), (2, 16)), 32, 2, 128) if tiny else (((64, 64), (4, 2048)), 512, 8, 2048)
    for shape, masked, half in product(shapes, MASKED, (False, True)):
        name = f"module, {shape[0]} x {shape[1]}, {masked}, {'bfloat16 autocast' if half else 'float32'}"
        if only in name:
            yield module_case(name, shape, width, heads, masked, half)
    window, ids = length // 16, torch.arange(16).repeat_interleave(length // 16)[None]
    masks: list[tuple[str, Mask, float]] = [
        (f"blocks, 16 documents in {length}", Document(ids), 8.0),
        (f"blocks, a window of {window} in {length}", SlidingWindow(window - 1, 0), 6.0),
    ]
    for name, mask, claimed in masks:
        if only in name:
            yield block_case(name, mask, length, heads, 64, claimed)
    yield from long_cases(tiny, only)


def show(case: Case, taken: dict[str, Timing]) -> list[dict[str, Any]]:
    """Print a case; returns its figures as rows."""
    theirs = taken[PYTORCH]
    print(f"\n{case.name}" + (f" ({case.about})" if case.about else ""))
    print(f"  {PYTORCH:<12} {theirs.median:9.2f} ms, least {theirs.minimum:9.2f}; {theirs.calls} rounds")
    rows: list[dict[str, Any]] = []
    for name, claimed in case.claimed.items():
        mine = taken[name]
        ratio, of_least = theirs.median / mine.median, theirs.minimum / mine.minimum
        figures = f"  {name:<12} {mine.median:9.2f} ms, least {mine.minimum:9.2f}"
        print(f"{figures}: {ratio:5.2f} times as fast (least: {of_least:5.2f}; claimed: {claimed})")
        times = {"median_ms": mine.median, "least_ms": mine.minimum}
        pytorch = {"pytorch_median_ms": theirs.median, "pytorch_least_ms": theirs.minimum}
        ratios = {"ratio": ratio, "ratio_of_least": of_least, "claimed": claimed}
        rows.append({"case": case.name, "about": case.about, "contender": name, **times, **pytorch, **ratios})
    return rows


def main() -> None:
    arguments = parser(__doc__, rounds=40, seconds=10)
    arguments.add_argument("--only", default="", help="run only the cases with this in their name")
    arguments.add_argument(
        "--processor-time", action="store_true", help="measure the CPU time of this thread; needs --threads 1"
    )
    arguments.add_argument("--tiny", action="store_true", help="tiny sizes, to check that it runs")
    chosen = arguments.parse_args()
    if chosen.processor_time and chosen.threads != 1:
        arguments.error("--processor-time counts one thread: add --threads 1")
    clock = time.thread_time if chosen.processor_time else time.perf_counter
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    library = library_for_this_processor()
    print(
        ", ".join(f"{name}: {fact}" for name, fact in describe_machine().items()),
        f"float32 products: {library}",
        sep="\n",
    )
    rows: list[dict[str, Any]] = []
    for case in cases(chosen.tiny, chosen.only):
        rows += show(case, interleave(case.calls, chosen.rounds, chosen.seconds, clock))
    write_figures(chosen, {"float32_products": library, "rows": rows})


if __name__ == "__main__":
    main()
