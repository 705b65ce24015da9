"""Checkpoints: the complete state of a run, written atomically.

    checkpoints/00001200/
        model.safetensors        the weights
        average.safetensors      their moving average, if there is one
        optimizer.safetensors    state per parameter: Adam's two moments and step, or Muon's momentum
        state.json               progress of the run: a `RunState`
        manifest.json            size and SHA-256 of each file above (`multihead.sealed`); written last

Where processes have a part of each tensor, each writes a file of its own instead (`training.sharded_checkpoint`).
`load_newest` reads both, and returns the newest checkpoint whose files match the manifest; it reports damaged ones and
skips them.

`CheckpointWriter` writes while training goes on: it copies the tensors in memory, and a thread hashes, writes and
fsyncs the copy. The run waits for the copy only, which takes a small part of the time (docs/lab-notes.md). The buffers
are kept for the next checkpoint, because writing to memory that is already mapped is ten times faster than to new
pages. One checkpoint is written at a time; the next one, and the end of the run, wait for it. The files hold the state
at the time of the copy, so the result of a run does not depend on the speed of the disk. Errors of the disk are raised
in the training loop, at the next update or wait.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
from pydantic import Field, ValidationError
from torch import Tensor

from multihead.configuration import Settings
from multihead.errors import FormatError
from multihead.files import atomic_folder, remove_unfinished, write_chunks, write_errors, write_tensors
from multihead.sealed import MANIFEST, Entry, OpenFolder, open_folder, seal
from multihead.tensor_files import read_tensors
from multihead.training.plan import Plan

T = TypeVar("T")


class LogWindow(Settings):
    """Sums over the updates since the last line of the log."""

    tokens: int = 0
    source_tokens: int = 0
    loss: float = 0.0
    nll: float = 0.0
    soft: float = 0.0
    guided: float = 0.0
    correct: int = 0
    gradient_norm: float = 0.0
    updates: int = 0


class RunState(Settings):
    """Progress of a run, without the tensors."""

    step: int = 0
    """Number of updates so far, including skipped ones."""
    position: tuple[int, int] = (0, 0)
    """Epoch of the next batch, and its number there."""
    validated_at: int = 0
    """The last update after which the model was validated; -1 = validate before the first update."""
    best_step: int = 0
    """The update whose model is in best/; 0 for the model that a run starts from, and before the first validation."""
    best_score: float | None = None
    """Its score on the validation set; None before the first validation."""
    best_loss: float | None = None
    """Its loss there; None in checkpoints of version 0.1."""
    without_gain: int = 0
    """Number of validations since then."""
    window: LogWindow = Field(default_factory=LogWindow)
    """Sums for the next line of the log."""
    norms: tuple[float, ...] = ()
    """Gradient norms of the last updates: see `training.step`."""
    skipped: tuple[int, ...] = ()
    """The last updates that were skipped."""
    room: int | None = None
    """Maximum number of cells that fit into memory; larger batches are split; None = no limit."""
    shares: int = 0
    """Number of shares into which the rows of each batch are divided (`training.splitting`); 0 in older checkpoints."""
    computed_by: dict[str, str] = Field(default_factory=dict)
    """What the last digits of the weights depend on: the processes, threads and instructions of the last updates."""
    plan: Plan | None = None
    """The current plan of a run with a budget."""

    @property
    def logged(self) -> int:
        """The last update whose log records belong to this state."""
        return self.step if self.validated_at >= 0 else -1

    def is_better(self, score: float, loss: float) -> bool:
        """Whether (score, -loss) is larger than that of the best model so far."""
        if self.best_score is None or score != self.best_score:
            return self.best_score is None or score > self.best_score
        return self.best_loss is not None and loss < self.best_loss


class Checkpoint(NamedTuple):
    """A checkpoint in memory; tensors by parameter name."""

    state: RunState
    model: dict[str, Tensor]
    average: dict[str, Tensor]
    optimizer: dict[str, Tensor]


STATE = "state.json"
_PARTS = ("model", "average", "optimizer")
_FILES = (*(f"{part}.safetensors" for part in _PARTS), STATE)
_REMEDY = "it is not used"


def save(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write ``folder/<step>`` and remove all but the newest ``keep`` checkpoints.

    Checkpoints of later steps are removed too: they are damaged ones that `load_newest` skipped.

    Raises:
        SurroundingsError: the checkpoint cannot be written; existing checkpoints are untouched.
    """
    path = folder / f"{checkpoint.state.step:08d}"
    with write_errors(path):
        remove_unfinished(folder)
        with atomic_folder(path) as draft:
            hashes = {
                f"{part}.safetensors": write_tensors(draft / f"{part}.safetensors", tensors)
                for part, tensors in zip(_PARTS, checkpoint[1:], strict=True)
            }
            hashes[STATE] = write_chunks(draft / STATE, [checkpoint.state.model_dump_json(indent=1).encode()])
            seal(draft, hashes)
        remove_old(folder, path, keep)
    return path


def remove_old(folder: Path, newest: Path, keep: int) -> None:
    """Remove all checkpoints but ``newest`` and those before it, ``keep`` in all."""
    existing = _checkpoint_folders(folder)
    index = existing.index(newest)
    for other in (*existing[:index], *existing[index + keep :]):
        shutil.rmtree(other, ignore_errors=True)


def load_newest(
    folder: Path, warn: Callable[[str], None], read: Callable[[OpenFolder], T] | None = None
) -> Checkpoint | T | None:
    """Load the newest intact checkpoint; None if there are no checkpoints.

    Args:
        folder: the folder that `save` writes to.
        warn: called with one sentence for each damaged checkpoint that is skipped.
        read: reads an opened checkpoint instead of `read_checkpoint`.

    Raises:
        FormatError: there are checkpoints, but none is intact.
    """
    remove_unfinished(folder)
    paths = _checkpoint_folders(folder)
    damage = None
    for path in paths:
        try:
            with _open(path) as opened:
                return read_checkpoint(opened) if read is None else read(opened)
        except _DamagedError as error:
            damage = error
            warn(f"{damage}; going back to the checkpoint before it")
    if damage is not None:
        raise FormatError(
            f"{folder}: none of {len(paths)} checkpoints is intact ({damage}); start the run again in a new folder"
        )
    return None


def intact_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints that match their manifests, newest first; changes nothing."""
    return [path for path in _checkpoint_folders(folder) if _is_intact(path)]


def read_weights(path: Path, part: Literal["model", "average"]) -> dict[str, Tensor]:
    """The weights of a checkpoint, or their moving average (empty if the run has none).

    Raises:
        FormatError: the checkpoint is damaged, or gone.
    """
    with _open(path) as opened:
        if not is_sharded(opened):
            return _tensors(opened, part)
        from multihead.training.shards import read_whole

        verify(opened)
        return read_whole(path, (part,))[part]


class _DamagedError(FormatError):
    """A checkpoint is not as it was written."""


def _open(path: Path) -> OpenFolder:
    """Open a checkpoint with its manifest; that of older versions has one SHA-256 for each name, and no more."""
    try:
        opened = open_folder(path, _REMEDY)
    except FormatError as error:
        raise _DamagedError(str(error)) from None
    if opened.entries is not None:
        return opened
    try:
        found = opened.read_json(MANIFEST)
        if bytes(opened.read_bytes(MANIFEST)) != json.dumps(dict(sorted(found.items())), indent=1).encode():
            raise FormatError(f"{path / MANIFEST}: damaged: not as it was written; {_REMEDY}")
        opened.entries = {name: Entry(opened.size(name), str(found[name])) for name in _FILES if name in found}
    except FormatError as error:
        opened.close()
        raise _DamagedError(str(error)) from None
    return opened


def _is_intact(path: Path) -> bool:
    try:
        with _open(path) as opened:
            verify(opened)
    except FormatError:
        return False
    return True


def is_sharded(opened: OpenFolder) -> bool:
    """Whether several processes wrote a part of each tensor (`training.sharded_checkpoint`)."""
    return any(name.startswith("shard-") for name in opened.entries or ())


def verify(opened: OpenFolder) -> None:
    """Compare every file with the manifest.

    Raises:
        FormatError: one is missing or damaged.
    """
    try:
        for name in (opened.entries or ()) if is_sharded(opened) else _FILES:
            opened.verify(name)
    except FormatError as error:
        raise _DamagedError(str(error)) from None


def read_checkpoint(opened: OpenFolder) -> Checkpoint:
    """Read all of a checkpoint.

    Raises:
        FormatError: it is damaged, or of another version of multihead.
    """
    state = read_state(opened)
    if not is_sharded(opened):
        return Checkpoint(state, *(_tensors(opened, part) for part in _PARTS))
    from multihead.training.shards import read_whole

    verify(opened)
    return Checkpoint(state, **read_whole(opened.path))


def read_state(opened: OpenFolder) -> RunState:
    """Read the progress of a run. Errors as in `read_checkpoint`."""
    try:
        text = opened.read_text(STATE)
    except FormatError as error:
        raise _DamagedError(str(error)) from None
    try:
        return RunState.model_validate_json(text)
    except ValidationError as error:
        raise FormatError(
            f"{opened.path}: from another version of multihead ({error.error_count()} fields of state.json differ); "
            "go on with the version that run.json names, or start the run again in a new folder"
        ) from None


def _tensors(opened: OpenFolder, part: str) -> dict[str, Tensor]:
    try:
        return read_tensors(opened, f"{part}.safetensors")
    except FormatError as error:
        raise _DamagedError(str(error)) from None


def _checkpoint_folders(folder: Path) -> list[Path]:
    """The folders of checkpoints, newest first."""
    return sorted((p for p in folder.glob("[0-9]*") if p.name.isdecimal()), key=lambda p: int(p.name), reverse=True)


def copy_into(parameters: dict[str, Tensor], saved: dict[str, Tensor]) -> None:
    """Overwrite parameters in place.

    Raises:
        FormatError: the saved tensors have other names or shapes (another version of multihead wrote them).
    """
    shapes = {name: tensor.shape for name, tensor in parameters.items()}
    if {name: tensor.shape for name, tensor in saved.items()} != shapes:
        raise FormatError(
            "the checkpoint is not of the model that run.json describes; go on with the version of multihead that "
            "run.json names, or start the run again in a new folder"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved[name])


class CheckpointWriter:
    """Writes checkpoints in a thread; a context manager that waits for the last one on exit.

    Args:
        folder: the folder that `load_newest` reads.
        keep: number of checkpoints to keep, newest first.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._copies: tuple[dict[str, Tensor], ...] = ({}, {}, {})
        self.seconds = 0.0
        """How long the last write took; 0 before the first one."""

    def save(self, checkpoint: Checkpoint, before: Callable[[Checkpoint], None] = lambda _: None) -> None:
        """Start writing; the caller may change the tensors once this returns.

        Args:
            checkpoint: copied, then written.
            before: called in the thread with the copy, before the checkpoint appears.

        Raises:
            SurroundingsError: the previous checkpoint could not be written.
        """
        self.wait()
        for copies, tensors in zip(self._copies, checkpoint[1:], strict=True):
            _copy(tensors, copies)
        copied = Checkpoint(checkpoint.state, *self._copies)
        self._thread = threading.Thread(target=self._write, args=(copied, before), name="checkpoint")
        self._thread.start()

    def _write(self, checkpoint: Checkpoint, before: Callable[[Checkpoint], None]) -> None:
        started = time.monotonic()
        try:
            before(checkpoint)
            save(self._folder, checkpoint, self._keep)
            self.seconds = time.monotonic() - started
        except BaseException as error:  # re-raised in the training loop by `check`
            self._error = error

    def check(self) -> None:
        """Raise the error of a failed write, if any; does not wait."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Wait until the current checkpoint is written.

        Raises:
            SurroundingsError: it could not be written.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.wait()
        elif self._thread is not None:  # an error is already propagating: report that one
            self._thread.join()


def _copy(tensors: dict[str, Tensor], copies: dict[str, Tensor]) -> None:
    """Copy ``tensors`` to the host, reusing the memory of ``copies``."""
    for name in copies.keys() - tensors.keys():
        del copies[name]
    for name, tensor in tensors.items():
        old = copies.get(name)
        if old is None or old.shape != tensor.shape or old.dtype != tensor.dtype:
            copies[name] = torch.empty(tensor.shape, dtype=tensor.dtype)
        if tensor.is_cpu and tensor.is_contiguous():  # single-threaded: waking threads costs more than it saves
            np.copyto(_bytes(copies[name]), _bytes(tensor))
        else:
            copies[name].copy_(tensor.detach())


def _bytes(tensor: Tensor) -> np.ndarray:
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()
