"""Writes a run's records as TensorBoard events, besides the log files.

Scalars are named ``train/loss``, ``validation/bleu``, ``timing/tokens_per_second``; the step is the update. Text (a
sample translation) is shown as text. `training.trainer` decides what a record holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multihead.errors import require_package

FOLDER = "tensorboard"
"""The folder of event files in a run folder."""


class TensorBoard:
    """A writer of records, for `RunLog.copy_to`.

    Args:
        folder: the run folder; events go to ``folder/tensorboard``.
        after: the update that the run resumes from. Later events, which a stopped process may have left, are marked
            as void: the run writes them again.

    Raises:
        MissingDependencyError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path, after: int = 0) -> None:
        require_tensorboard()
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / FOLDER), purge_step=after + 1)

    def __call__(self, kind: str, step: int, values: Mapping[str, Any], timing: Mapping[str, float]) -> None:
        """Write one record and flush, so that a killed run keeps its events."""
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
    """Check that TensorBoard is installed.

    Raises:
        MissingDependencyError: it is not; the message names the extra to install.
    """
    require_package("tensorboard", "tensorboard", "logging for TensorBoard")
