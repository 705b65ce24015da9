"""examples/attention_kinds.py: the panels have the properties that docs/attention-kinds.md states, and are drawn."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import torch


def test_the_panels_are_what_the_page_says(example: ModuleType, tmp_path: Path) -> None:
    made = example.matrices()
    weights = {name: values for name, values in made.items() if name != example.PAGES}
    assert all(values.triu(1).count_nonzero() == 0 for values in weights.values())  # causal
    sums = {name: values.sum(-1) for name, values in weights.items()}
    for name in ("softmax", "soft-capped scores, cap 1", "entmax15", "sparsemax", "linear attention", "latent, rank 4"):
        torch.testing.assert_close(sums[name], torch.ones(example.LENGTH))
    assert (sums["a sink that takes the rest"] < 1).all()
    assert sums["sigmoid"].max() > 1
    torch.testing.assert_close(sums["differential"], sums["differential"][:1].expand(example.LENGTH))
    assert made["differential"].min() < 0
    below = example.LENGTH * (example.LENGTH + 1) // 2
    kept = [made[name].count_nonzero().item() for name in ("softmax", "entmax15", "sparsemax")]
    assert below == kept[0] > kept[1] > kept[2]
    assert made["soft-capped scores, cap 1"][2:].max() < made["softmax"][2:].max()
    assert (made[example.PAGES] >= 0).sum(-1).tolist() == [3, 7, 5]
    for page in range(9):
        assert 1 <= (made[example.PAGES] == page).sum() <= 2
    example.draw(tmp_path / "kinds.png")
    assert (tmp_path / "kinds.png").read_bytes().startswith(b"\x89PNG")
