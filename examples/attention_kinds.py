"""Draw what each kind of attention does with the same sequence.

    python examples/attention_kinds.py [FILE]

A panel shows the weights of one head: a row for each query, a column for each key, and nothing above the diagonal,
since the mask is causal. Red weights are negative. The last panel does not show attention but the paged cache of three
sequences: a column for each position, with the number of the page that holds it. `docs/attention-kinds.md` explains the
kinds and shows the picture.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from multihead.attention import (
    Attention,
    Causal,
    DifferentialAttention,
    KeyValue,
    LatentAttention,
    PagedKeyValue,
    PagePool,
    ScaledDot,
    attention,
    elu_plus_one,
    sink_attention,
)

LENGTH, WIDTH = 10, 16
PAGES = "paged cache, page of each position"


def matrices(seed: int = 2) -> dict[str, Tensor]:
    """The weights [query, key] of each kind for the same sequence; for pages, their numbers (-1: none)."""
    torch.manual_seed(seed)
    x, mask = torch.randn(1, LENGTH, WIDTH), Causal()
    query, key = 2 * x, x @ torch.randn(WIDTH, WIDTH) / WIDTH**0.5
    q, k = query[:, None], key[:, None]
    found = {"softmax": attention(q, k, k, mask=mask, need_weights=True)[1]}
    found["soft-capped scores, cap 1"] = attention(q, k, k, mask=mask, need_weights=True, soft_cap=1.0)[1]
    for name in ("entmax15", "sparsemax", "sigmoid"):
        found[name] = Attention(ScaledDot(), name)(query, key, mask=mask, need_weights=True)[1]
    found["a sink that takes the rest"] = sink_attention(q, k, k, torch.ones(1), mask=mask, need_weights=True)[1]
    features = elu_plus_one(query) @ elu_plus_one(key).transpose(-2, -1)
    allowed = mask.dense(LENGTH, LENGTH)[0, 0]
    found["linear attention"] = (features * allowed) / (features * allowed).sum(-1, keepdim=True)
    found["differential"] = DifferentialAttention(WIDTH, heads=1, depth=4)(3 * x, mask=mask, need_weights=True)[1]
    found["latent, rank 4"] = LatentAttention(WIDTH, heads=1, rank=4, rotary_width=4)(
        3 * x, mask=mask, need_weights=True
    )[1]
    weights = {name: made.detach().reshape(-1, LENGTH)[:LENGTH] for name, made in found.items() if made is not None}
    return {**weights, PAGES: pages()}


def pages() -> Tensor:
    """The page of each position [sequence, position]: sequences of 3, 7 and 5 positions that grew in turns."""
    pool, lengths = PagePool(10, 2, kv_heads=1, key_width=1), [3, 7, 5]
    caches = [PagedKeyValue.begin(pool, 1) for _ in lengths]
    table = torch.full((len(lengths), max(lengths)), -1.0)
    numbers: dict[int, int] = {}
    for position in range(max(lengths)):
        for row, length in enumerate(lengths):
            if position < length:
                one = torch.zeros(1, 1, 1, 1)
                caches[row] = caches[row].append(KeyValue(one, one))
                page = id(caches[row].tables[0][-1])
                table[row, position] = numbers.setdefault(page, len(numbers))
    return table


def draw(file: Path) -> None:
    """Write the picture."""
    made = matrices()
    figure = Figure(figsize=(12, 5.4), layout="constrained")
    panels = figure.subplots(2, 5).flat
    for axes, (name, values) in zip(panels, made.items(), strict=True):
        axes.set_title(name, fontsize=9)
        axes.set_xticks([]), axes.set_yticks([])
        if name == PAGES:
            axes.imshow(values.where(values >= 0, torch.nan).numpy(), cmap="tab10", vmin=0, vmax=9)
            for row, column in (values >= 0).nonzero().tolist():
                axes.text(column, row, int(values[row, column]), ha="center", va="center", fontsize=8)
        else:
            most = values.abs().max().item()
            axes.imshow(values.numpy(), cmap="RdBu", vmin=-most, vmax=most)
            sums = values.sum(-1)
            axes.set_xlabel(f"rows sum to {sums.min():.2f} ... {sums.max():.2f}", fontsize=8)
    figure.savefig(file, dpi=90, metadata={"Software": None})


def main() -> None:
    """The command line."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("file", nargs="?", type=Path, default=Path("attention-kinds.png"))
    chosen = arguments.parse_args()
    draw(chosen.file)
    print(chosen.file)


if __name__ == "__main__":
    main()
