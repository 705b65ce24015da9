"""Quantize a model folder to half or a quarter of its size.

`multihead.model_folder` rounds the weights and stores them. The result can be read like any other model folder. The
compiled search with the precision of the rounding finds the same as in the original, to the last bit.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from multihead.bundle import load_bundle, locate, save_bundle
from multihead.files import atomic_file, check_new_folder
from multihead.model_folder import WEIGHTS, Rounding, read_json
from multihead.translating import shortlist


def quantise(
    model: str | Path, *, output: str | Path, precision: Rounding = "int8", say: Callable[[str], None] = print
) -> Path:
    """Write a model with rounded weights.

    Args:
        model: a run or a model folder; its shortlist, if any, is copied.
        output: a new or empty folder.
        precision: of the matrices.
        say: called with a line about the size.

    Returns:
        The new model folder.

    Raises:
        ConfigurationError: the output exists.
        FormatError: not a model, or damaged.
        SurroundingsError: it cannot be written.
    """
    output = Path(output)
    check_new_folder(output)
    folder = locate(Path(model))
    bundle = load_bundle(folder)
    made_by = (
        f"The model of {model} with {precision} weights, by multihead {version('multihead')}. What was measured is of "
        "the weights before they were rounded."
    )
    metrics = folder / "metrics.json"  # a model of another program has none
    save_bundle(output, bundle, read_json(metrics) if metrics.is_file() else {}, made_by, precision)
    if (folder / shortlist.FILE).is_file():
        with atomic_file(output / shortlist.FILE) as draft:
            shutil.copyfile(folder / shortlist.FILE, draft)
    sizes = [(place / WEIGHTS).stat().st_size / 1e6 for place in (folder, output)]
    say(f"{output}: {sizes[1]:.1f} MB of weights instead of {sizes[0]:.1f}; translate with --precision {precision}")
    return output
