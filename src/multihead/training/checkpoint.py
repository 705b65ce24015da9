"""Checkpoints: everything a run needs to go on as if it had never stopped, written whole or not at all.

    checkpoints/00001200/
        model.safetensors        the weights
        average.safetensors      their moving average, where there is one
        optimizer.safetensors    Adam's two moments and step of each parameter, Muon's momentum of those it moves
        state.json               where the run stands: a `RunState`
        manifest.json            the SHA-256 of each file above; written last

`load_newest` takes the newest checkpoint whose files are what the manifest says; a damaged one is named and passed
over. What the numbers in a run mean is said in `training.trainer`.

Checkpoints written while training goes on: copied in memory; a thread writes, hashes and forces them to the disk.

What a run waits for is the copy alone, a small part of what hashing, writing and the disk take (docs/lab-notes.md);
its memory, of the size of a checkpoint, is kept for the next one: pages that are there already are filled ten times
faster than new ones. One checkpoint is under way at a time; the next one waits for it, and so does the end of the run,
whatever ends it. What is written is the state of the moment of the copy, so nothing a run computes depends on when
the disk is done. A fault of the disk is raised in the loop, at the next update or wait.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field, ValidationError
from safetensors.torch import load_file
from torch import Tensor

from multihead.configuration import Settings
from multihead.errors import FormatError
from multihead.files import atomic_folder, remove_unfinished, sha256_of, write_chunks, write_errors, write_tensors


class LogWindow(Settings):
    """Sums since the last line of the log."""

    tokens: int = 0
    source_tokens: int = 0
    loss: float = 0.0
    nll: float = 0.0
    correct: int = 0
    gradient_norm: float = 0.0
    updates: int = 0


class RunState(Settings):
    """Where a run stands, apart from the tensors."""

    step: int = 0
    """Updates made."""
    position: tuple[int, int] = (0, 0)
    """Epoch and batch of the next batch."""
    validated_at: int = 0
    """The last update after which the model was validated; -1 where that is due before the first one."""
    best_step: int = 0
    """The update whose model is kept in best/; 0 before the first validation."""
    best_score: float | None = None
    """Its score on the validation set."""
    best_loss: float | None = None
    """Its loss there; not known in checkpoints of version 0.1."""
    without_gain: int = 0
    """Validations since then."""
    window: LogWindow = Field(default_factory=LogWindow)
    """What the next line of the log already holds."""
    norms: tuple[float, ...] = ()
    """Norms of the gradients of the last updates: see `training.step`."""
    skipped: tuple[int, ...] = ()
    """The last updates that were skipped."""
    room: int | None = None
    """Batches of more cells are taken in pieces, since a larger one did not fit into memory: see `training.loss`."""

    @property
    def logged(self) -> int:
        """The last update whose records belong to this state."""
        return self.step if self.validated_at >= 0 else -1

    def is_better(self, score: float, loss: float) -> bool:
        """Whether a model with this score and loss is better than the best so far: (score, -loss) is larger."""
        if self.best_score is None or score != self.best_score:
            return self.best_score is None or score > self.best_score
        return self.best_loss is not None and loss < self.best_loss


class Checkpoint(NamedTuple):
    """A checkpoint in memory."""

    state: RunState
    model: dict[str, Tensor]
    average: dict[str, Tensor]
    optimizer: dict[str, Tensor]


_PARTS = ("model", "average", "optimizer")


def save(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Writes ``folder/<step>`` and removes all but the newest ``keep``.

    Later steps than this one are of damaged checkpoints that `load_newest` passed over: they go, too.

    Raises:
        SurroundingsError: it cannot be written; what stood there still stands.
    """
    path = folder / f"{checkpoint.state.step:08d}"
    with write_errors(path):
        remove_unfinished(folder)
        with atomic_folder(path) as draft:
            hashes = {
                f"{part}.safetensors": write_tensors(draft / f"{part}.safetensors", tensors)
                for part, tensors in zip(_PARTS, checkpoint[1:], strict=True)
            }
            hashes["state.json"] = write_chunks(
                draft / "state.json", [checkpoint.state.model_dump_json(indent=1).encode()]
            )
            write_chunks(draft / "manifest.json", [_manifest(hashes)])
        standing = _steps(folder)
        place = standing.index(path)
        for other in (*standing[:place], *standing[place + keep :]):
            shutil.rmtree(other, ignore_errors=True)
    return path


def load_newest(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is intact; ``None`` where there is none at all.

    Args:
        folder: where `save` writes.
        warn: is told, in a sentence, of each damaged checkpoint that was passed over.

    Raises:
        FormatError: there are checkpoints, but none is intact.
    """
    remove_unfinished(folder)
    paths = _steps(folder)
    for path in paths:
        fault = _fault(path)
        if fault is None:
            return _read(path)
        warn(f"{path}: damaged ({fault}); going back to the checkpoint before it")
    if paths:
        raise FormatError(f"{folder}: none of {len(paths)} checkpoints is intact; start the run again in a new folder")
    return None


def intact_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints that are what their manifests say, newest first; changes nothing."""
    return [path for path in _steps(folder) if _fault(path) is None]


def read_weights(path: Path, part: Literal["model", "average"]) -> dict[str, Tensor]:
    """The weights of one checkpoint, or their moving average: empty where the run has none."""
    return load_file(path / f"{part}.safetensors")


def _read(path: Path) -> Checkpoint:
    try:
        state = RunState.model_validate_json((path / "state.json").read_text(encoding="utf-8"))
    except ValidationError as error:
        raise FormatError(
            f"{path}: from another version of multihead ({error.error_count()} fields of state.json differ); "
            "go on with the version that run.json names, or start the run again in a new folder"
        ) from None
    return Checkpoint(state, *(load_file(path / f"{part}.safetensors") for part in _PARTS))


def _manifest(hashes: dict[str, str]) -> bytes:
    return json.dumps(dict(sorted(hashes.items())), indent=1).encode()


def _fault(path: Path) -> str | None:
    """What is wrong with a checkpoint, if anything: the slightest change of any of its files."""
    try:
        content = (path / "manifest.json").read_bytes()
        manifest = json.loads(content.decode("utf-8"))
        for name in (*(f"{part}.safetensors" for part in _PARTS), "state.json"):
            if not isinstance(manifest, dict) or sha256_of(path / name) != manifest.get(name):
                return f"{name} is not the file that manifest.json names"
        if content != _manifest(manifest):
            return "manifest.json is not as it was written"
    except OSError as error:
        return f"{Path(error.filename or path).name}: {error.strerror or error}"
    except (ValueError, RecursionError):
        return "manifest.json is not JSON"
    return None


def _steps(folder: Path) -> list[Path]:
    """The folders of checkpoints, newest first."""
    return sorted((p for p in folder.glob("[0-9]*") if p.name.isdecimal()), key=lambda p: int(p.name), reverse=True)


def copy_into(parameters: dict[str, Tensor], saved: dict[str, Tensor]) -> None:
    """Overwrites parameters in place.

    Raises:
        FormatError: the saved ones have other names or shapes (another version of multihead wrote them).
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
    """Writes checkpoints into ``folder``; a context manager, on whose end nothing is under way any more.

    Args:
        folder: where `checkpoint.load_newest` reads.
        keep: how many stay, newest first.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._copies: tuple[dict[str, Tensor], ...] = ({}, {}, {})

    def save(self, checkpoint: Checkpoint, before: Callable[[Checkpoint], None] = lambda _: None) -> None:
        """Begins to write; the tensors may be changed as soon as this returns.

        Args:
            checkpoint: what is copied and written.
            before: is called with the copy, beside training as well, and has to be done when the checkpoint is there.

        Raises:
            SurroundingsError: the one before could not be written.
        """
        self.wait()
        for copies, tensors in zip(self._copies, checkpoint[1:], strict=True):
            _copy(tensors, copies)
        copied = Checkpoint(checkpoint.state, *self._copies)
        self._thread = threading.Thread(target=self._write, args=(copied, before), name="checkpoint")
        self._thread.start()

    def _write(self, checkpoint: Checkpoint, before: Callable[[Checkpoint], None]) -> None:
        try:
            before(checkpoint)
            save(self._folder, checkpoint, self._keep)
        except BaseException as error:  # whatever it is, it is raised where somebody can see it
            self._error = error

    def check(self) -> None:
        """Raises what went wrong, if anything has; does not wait."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Until nothing is under way.

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
        elif self._thread is not None:  # the error on its way is the one to report
            self._thread.join()


def _copy(tensors: dict[str, Tensor], copies: dict[str, Tensor]) -> None:
    """Makes ``copies`` equal to ``tensors``, on the host, in the memory that it has."""
    for name in copies.keys() - tensors.keys():
        del copies[name]
    for name, tensor in tensors.items():
        old = copies.get(name)
        if old is None or old.shape != tensor.shape or old.dtype != tensor.dtype:
            copies[name] = torch.empty(tensor.shape, dtype=tensor.dtype)
        if tensor.is_cpu and tensor.is_contiguous():  # by one thread: threads cost more to wake than they save
            np.copyto(_bytes(copies[name]), _bytes(tensor))
        else:
            copies[name].copy_(tensor.detach())


def _bytes(tensor: Tensor) -> np.ndarray:
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()
