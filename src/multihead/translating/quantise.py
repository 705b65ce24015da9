"""Quantize a model folder to half or a quarter of its size.

`multihead.model_folder` rounds the weights and stores them. The result can be read like any other model folder. The
compiled search with the precision of the rounding finds the same as in the original, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from multihead.bundle import load_bundle, locate, save_bundle
from multihead.files import check_new_folder
from multihead.model_folder import COPY_AGAIN, WEIGHTS, Rounding
from multihead.sealed import open_folder
from multihead.text.languages import Languages
from multihead.translating import shortlist

_METRICS = "metrics.json"


def quantise(
    model: str | Path,
    *,
    output: str | Path,
    precision: Rounding = "int8",
    languages: Languages | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Write a model with rounded weights.

    Args:
        model: a run or a model folder, or one of another program; its shortlist, if any, is copied.
        output: a new or empty folder.
        precision: of the matrices.
        languages: source and target, for a model of another program that has several.
        say: called with a line about the size.

    Returns:
        The new model folder.

    Raises:
        ConfigurationError: the output exists; a language of a model with several is not named.
        FormatError: not a model, or damaged.
        SurroundingsError: it cannot be written.
    """
    output = Path(output)
    check_new_folder(output)
    folder = locate(Path(model))
    bundle = load_bundle(folder, languages=languages)
    made_by = (
        f"The model of {model} with {precision} weights, by multihead {version('multihead')}. What was measured is of "
        "the weights before they were rounded."
    )
    with open_folder(folder, COPY_AGAIN) as found:
        metrics = found.read_json(_METRICS) if _METRICS in found else {}  # a model of another program has none
        others = {name: bytes(found.read_bytes(name, None)) for name in (shortlist.FILE,) if name in found}
    save_bundle(output, bundle, metrics, made_by, precision, others)
    before = f" instead of {_megabytes(folder):.1f}" if (folder / WEIGHTS).is_file() else ""  # or named otherwise
    say(f"{output}: {_megabytes(output):.1f} MB of weights{before}; translate with --precision {precision}")
    return output


def _megabytes(folder: Path) -> float:
    return (folder / WEIGHTS).stat().st_size / 1e6
