"""``uses.json``: how the models of a run in stages are best used.

``multihead train --best`` writes it (`runs.best`), servers offer what it lists (`serving.uses`), and exports take the
small model that it names (`interop.exporting`).

    model        the folder of the training that best/ is from
    small        folder, parameters, those of the best model, BLEU, and how much lower that is; absent without one
    sentences    on how many sentences of the validation set BLEU was measured
    uses         name, flags of ``multihead translate`` and BLEU of each use
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from multihead.errors import FormatError

USES = "uses.json"
NEAR = 0.3
"""BLEU by which a small model may be worse and still be what is exported for browsers and phones."""


def read_uses_file(run: Path) -> dict[str, Any] | None:
    """What the file says; ``None`` where there is none.

    Raises:
        FormatError: it is damaged.
    """
    path = run / USES
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(run, error) from None
    if not isinstance(content, dict):
        raise damaged(run, TypeError())
    return content


def damaged(run: Path, error: Exception) -> FormatError:
    """The error of a file that does not say what it should."""
    return FormatError(f"{run / USES}: damaged ({type(error).__name__}): copy the run again")


def small_model(run: Path) -> tuple[Path, float] | None:
    """The small model of a run in stages, and by how much BLEU it is worse than the best; ``None`` without one.

    Raises:
        FormatError: the file is damaged, or names a model that is not there.
    """
    content = read_uses_file(run)
    if content is None or "small" not in content:
        return None
    try:
        folder, behind = run / Path(content["small"]["model"]).name, float(content["small"]["behind"])
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(run, error) from None
    if not folder.is_dir():
        raise FormatError(f"{run / USES}: names the model {folder.name}, which is not in {run}: copy the run again")
    return folder, behind
