"""Checkpoints to which each process writes its part of every tensor.

    checkpoints/00001200/
        shard-00001-model-00001-of-00001.safetensors     the rows of the first process, and so on for each
        state.json, manifest.json                        as in `training.checkpoint`

PyTorch's `torch.distributed.checkpoint` writes and reads the shards; its writer for safetensors notes in each file
which rows it holds, so any number of processes reads them, also one alone (`training.shards`), and nothing is pickled.
Names are ``model/<parameter>``, ``average/<parameter>`` and ``optimizer/<parameter>/<field>``.

The write is asynchronous: the tensors are copied to the host, and a thread writes them, with a process group of its own
so that its exchanges do not mix with those of training. All processes finish it together (`ShardedWriter.finish`):
they exchange the hashes of their files, and the first one writes the manifest and renames the folder into place. Until
then there is no checkpoint, so a kill leaves the one before.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from multihead.errors import MultiheadError, SurroundingsError
from multihead.files import atomic_folder, remove_unfinished, sha256_of, write_chunks, write_errors
from multihead.sealed import seal
from multihead.training.checkpoint import STATE, RunState, remove_old
from multihead.training.shards import reader, writer
from multihead.training.splitting import Processes


class ShardedWriter:
    """Writes checkpoints of which each process has a part. All processes call all methods but `is_done`.

    Args:
        folder: the folder that `checkpoint.load_newest` reads.
        keep: number of checkpoints to keep, newest first.
        processes: those that train together.
    """

    def __init__(self, folder: Path, keep: int, processes: Processes) -> None:
        self._folder, self._keep, self._processes = folder, keep, processes
        self._group = dist.new_group(backend="gloo")
        self._written: Future[Any] | None = None
        self._state = RunState()
        self._draft, self._opened = Path(), contextlib.ExitStack()

    def save(self, state: RunState, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Copy the tensors and start writing; the caller may change them once this returns.

        Raises:
            SurroundingsError: this or the previous checkpoint cannot be written.
        """
        self.finish()
        self._state, draft = state, None
        if self._processes.is_first:
            remove_unfinished(self._folder)
            draft = self._opened.enter_context(atomic_folder(self._folder / f"{state.step:08d}"))
        self._draft = self._processes.broadcast(draft)
        tensors = {f"{part}/{name}": t.detach() for part, own in parts.items() for name, t in own.items()}
        with _reported(self._draft):
            saving = async_save(tensors, storage_writer=writer(self._draft), process_group=self._group)
            self._written = cast("Future[Any]", saving)

    @property
    def is_pending(self) -> bool:
        """Whether a checkpoint is being written; the same in all processes."""
        return self._written is not None

    def is_done(self) -> bool:
        """Whether this process has written its part."""
        return self._written is None or self._written.done()

    def finish(self) -> None:
        """Wait until all parts are written, and put the checkpoint in place.

        Raises:
            SurroundingsError: it cannot be written.
        """
        if self._written is None:
            return
        written, self._written = self._written, None
        with self._opened:
            with _reported(self._draft):
                written.result()
            prefix = f"shard-{self._processes.rank + 1:05d}-"
            own = {path.name: sha256_of(path) for path in self._draft.glob(f"{prefix}*")}
            hashes = {name: digest for hashed in self._processes.all_gather(own) for name, digest in hashed.items()}
            if self._processes.is_first:
                with write_errors(self._draft):
                    hashes[STATE] = write_chunks(self._draft / STATE, [self._state.model_dump_json(indent=1).encode()])
                    seal(self._draft, hashes)
        if self._processes.is_first:
            remove_old(self._folder, self._folder / f"{self._state.step:08d}", self._keep)
        self._processes.all_gather("in place")

    def abandon(self) -> None:
        """Give up a checkpoint that is being written, after an error; alone."""
        if self._written is not None:
            with contextlib.suppress(Exception):
                self._written.exception(timeout=10)
            shutil.rmtree(self._draft, ignore_errors=True)
            self._written = None

    def load(self, path: Path, tensors: dict[str, Tensor]) -> None:
        """Read the tensors of a checkpoint, each process its part, in place.

        Args:
            path: the checkpoint, which was verified.
            tensors: what to fill, by the names in the files.
        """
        load(cast("dict[str, Any]", tensors), storage_reader=reader(path), process_group=self._group)


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Report what PyTorch raises where a checkpoint cannot be written."""
    try:
        yield
    except MultiheadError:
        raise
    except Exception as error:
        raise SurroundingsError(f"{path}: the checkpoint cannot be written: {error}") from error
