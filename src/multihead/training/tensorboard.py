"""The records of a run as TensorBoard reads them: an extra, written beside the log and never instead of it.

Scalars are named ``train/loss``, ``validation/bleu``, ``timing/tokens_per_second``; the step is the update. What a
record holds is decided in `training.trainer`; text (a sample translation) is shown as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multihead.errors import MissingDependencyError

FOLDER = "tensorboard"
"""Where in a run folder the event files are."""


class TensorBoard:
    """Writes records as events.

    Args:
        folder: the run folder; events go to ``folder/tensorboard``.
        after: the update that the run goes on from. Events of later ones, which a stopped process may have left,
            are marked as void: the run makes them again.

    Raises:
        MissingDependencyError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path, after: int = 0) -> None:
        require_tensorboard()
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / FOLDER), purge_step=after + 1)

    def __call__(self, kind: str, step: int, values: Mapping[str, Any], timing: Mapping[str, float]) -> None:
        """One record, written at once: a run that is killed leaves what it logged."""
        for prefix, group in ((kind, values), ("timing", timing)):
            for name, value in group.items():
                tag = f"{prefix}/{name}"
                if isinstance(value, int | float):
                    self._writer.add_scalar(tag, value, step)
                elif isinstance(value, dict):
                    text = "\n".join(f"* {label}: {content}" for label, content in value.items())
                    self._writer.add_text(tag, text, step)
        self._writer.flush()


def require_tensorboard() -> None:
    """Says what to install where TensorBoard is missing.

    Raises:
        MissingDependencyError: it is.
    """
    import importlib.util

    if importlib.util.find_spec("tensorboard") is None:
        raise MissingDependencyError("tensorboard", "tensorboard", "logging for TensorBoard")
