"""Speed of the compiled kernels against their plain forms.

    python benchmarks/kernels.py [--threads 2] [--tokens 4096] [--rounds 15] [--tiny] [--json FILE]

The forward and backward passes of each operation are timed in the types that autocast gives it; the compiled and the
plain form take turns. The plain form is what `multihead.kernels` computes with MULTIHEAD_NATIVE=0; for attention it is
PyTorch's fused kernel in float32 between two conversions, the fastest way to use that kernel on a CPU. Medians are
compared: of CPU time with one thread, since other processes disturb it less; of wall time with several.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from common import parser, write_figures
from torch import Tensor

from multihead.attention.backends.short import short_attention
from multihead.cli.process import configure_malloc
from multihead.kernels import native as kernels
from multihead.kernels.linear import linear_cross_entropy
from multihead.kernels.pointwise import activation_dropout, add_norm
from multihead.kernels.random import dropout, step

LOW = torch.bfloat16
SIZES = {"tiny": (128, 256, 4), "base": (512, 2048, 8)}
"""Width, inner width and heads."""

Call = Callable[[], object]


def training(compute: Callable[..., Tensor | tuple[Tensor, ...]], *inputs: Tensor) -> Call:
    """Forward and backward, with gradients of ones."""
    leaves = [tensor.requires_grad_() for tensor in inputs if tensor.is_floating_point()]

    def call() -> None:
        with step(1):
            outputs = compute(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        torch.autograd.grad(outputs, leaves, [torch.ones_like(output) for output in outputs])

    return call


def attention(qkv: Tensor, heads: int, fused: bool) -> Tensor:
    """Self-attention on packed projections, with PyTorch's kernel or ours."""
    query, key, value = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
    if fused:
        query, key, value = query.float(), key.float(), value.float()
        return F.scaled_dot_product_attention(query, key, value).to(qkv.dtype)
    return short_attention(query, key, value)


def cases(size: str, tokens: int, vocabulary: int) -> dict[str, tuple[Call, Call | None]]:
    """Operations by name, each with the call that it is compared with (None: its plain form)."""
    width, inner, heads = SIZES[size]
    rows = max(1, tokens // 16)

    def x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, dtype=dtype)

    made: dict[str, tuple[Call, Call | None]] = {
        "dropout": (training(lambda a: dropout(a, 0.1), x(rows, 16, width)), None),
        "dropout, residual sum, norm": (
            training(
                lambda a, b, gain, shift: tuple(add_norm(a, b, gain, shift, 1e-6, 0.1, dtype=LOW)),
                *(x(rows, 16, width), x(rows, 16, width, dtype=LOW), x(width), x(width)),
            ),
            None,
        ),
    }
    for kind in ("relu", "gelu"):
        made[f"bias, {kind}, dropout"] = (
            training(
                lambda a, b, kind=kind: activation_dropout(a, b, kind, 0.1),
                *(x(rows, 16, inner, dtype=LOW), x(inner)),
            ),
            None,
        )
    for length in (16, 64):
        sentences = max(1, tokens // length)
        packed = x(sentences, length, 3 * width, dtype=LOW)
        made[f"attention, length {length}"] = (
            training(lambda a: attention(a, heads, False), packed),
            training(lambda a: attention(a, heads, True), packed),
        )
    target = torch.randint(vocabulary, (tokens,))

    def loss(hidden: Tensor, weight: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=LOW):
            return linear_cross_entropy(hidden, weight, target, 0.1).total

    made["projection and cross-entropy"] = (training(loss, x(tokens, width), x(vocabulary, width)), None)
    return made


def plainly(call: Call) -> Call:
    """The same call without compiled kernels."""

    def without() -> None:
        found = dict(kernels._loaded)
        kernels._loaded["kernels"] = kernels.Native(None, "plain kernels: asked for")
        try:
            call()
        finally:
            kernels._loaded.update(found)

    return without


def main() -> None:
    """Print a line per case."""
    options = parser(__doc__, rounds=15, seconds=10)
    options.add_argument("--tokens", type=int, default=4096, help="tokens per batch (4,096)")
    options.add_argument("--vocabulary", type=int, default=10_000, help="entries of the vocabulary (10,000)")
    options.add_argument("--tiny", action="store_true", help="64 tokens and 50 entries, to check that it runs")
    arguments = options.parse_args()
    configure_malloc()  # as training does
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    tokens, vocabulary = (64, 50) if arguments.tiny else (arguments.tokens, arguments.vocabulary)
    found = kernels.load_kernels(lambda line: print(line, file=sys.stderr))
    print(found.reason)
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        for name, (call, other) in cases(size, tokens, vocabulary).items():
            ours, plain = measured((call, plainly(call) if other is None else other), arguments, clock)
            row = {"case": f"{size}: {name}", "compiled": ours, "plain": plain, "times": plain / ours}
            rows.append(row)
            print(f"{row['case']:40} {ours:8.2f} ms, plain {plain:8.2f} ms: {row['times']:.2f} times", flush=True)
    write_figures(arguments, {"kernels": found.reason, "rows": rows})


def measured(calls: tuple[Call, Call], arguments: Any, clock: Callable[[], float]) -> tuple[float, float]:
    """Medians in milliseconds of two functions that take turns."""
    times: tuple[list[float], list[float]] = ([], [])
    began = time.perf_counter()
    for turn in range(arguments.rounds + 1):
        for call, taken in zip(calls, times, strict=True):
            start = clock()
            call()
            if turn:  # the first warms up
                taken.append(1000 * (clock() - start))
        if turn and time.perf_counter() - began > arguments.seconds:
            break
    return max(median(times[0]), 1e-6), max(median(times[1]), 1e-6)


if __name__ == "__main__":
    main()
