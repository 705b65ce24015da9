"""The training loop of processes that have a part of the model each.

It differs from `Trainer` where that one reads or writes whole tensors: a validation gathers the averaged weights in
every process for its time, a checkpoint is written by all, and one process alone cannot save what all have done. After
the end of another process the run goes on from its last checkpoint, with any number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from multihead.sealed import OpenFolder
from multihead.tensor_files import tensor_places
from multihead.training.checkpoint import Checkpoint, RunState, is_sharded, load_newest, read_state, verify
from multihead.training.context import TrainerInputs
from multihead.training.optimizer import build_optimizer, optimizer_tensors
from multihead.training.sharded import Sharded, ShardedAverage, ShardedMuon, own_part, own_rows
from multihead.training.sharded_checkpoint import ShardedWriter
from multihead.training.shards import shapes_in
from multihead.training.splitting import SINGLE_PROCESS, Model, Processes
from multihead.training.step import all_finite
from multihead.training.trainer import Trainer


class ShardedTrainer(Trainer[Model]):
    """A run of which each process has a part. Arguments are those of `Trainer`; it divides the model."""

    @staticmethod
    def newest_checkpoint(
        folder: Path, warn: Callable[[str], None], processes: Processes = SINGLE_PROCESS
    ) -> Checkpoint | None:
        """What a run in ``folder`` resumes from: its state, and the shapes of the weights; nothing else is read yet."""
        found = load_newest(folder / "checkpoints", warn, _described) if processes.is_first else None
        return processes.all_gather(found)[0]

    def _prepare(self) -> None:
        average: ShardedAverage[Model] = ShardedAverage(self.model, self.config.average)
        self.processes = Sharded(self.processes, self.model, self.config)
        self.optimizer = build_optimizer(self.model, self.config, ShardedMuon)
        average.follow(dict(self.model.named_parameters()))
        self._sharded_average = average
        self.average = average  # type: ignore[assignment]
        self._shards = ShardedWriter(self.checkpoints, self.config.keep_checkpoints, self.processes)

    @contextmanager
    def _averaged(self) -> Iterator[Model]:
        with self._sharded_average.gathered() as model:
            yield model

    def _weights_are_finite(self) -> bool:
        return all(self.processes.all_gather(all_finite(map(own_rows, self.model.parameters()))))

    def _agreed(self, value: bool) -> bool:
        return self.processes.all_gather(value)[0]

    def _loop(self, inputs: TrainerInputs[Model]) -> None:
        try:
            super()._loop(inputs)
            self._shards.finish()
        except BaseException:
            self._shards.abandon()
            raise

    def _save_alone(self) -> str:
        return "run the same command again to continue from the last checkpoint"

    def _received_signal(self, inputs: TrainerInputs[Model]) -> int | None:
        number = super()._received_signal(inputs)
        if self._shards.is_pending and all(self.processes.all_gather(self._shards.is_done())):
            self._shards.finish()
        return number

    def _validate(self, inputs: TrainerInputs[Model]) -> dict[str, Any] | None:
        """As `Trainer._validate`; the best model is written at once, while its weights are here."""
        with self._averaged() as model:
            best = self._judge(model, inputs)
            if best is not None and self.processes.is_first:
                inputs.save_best(model, best)
        return None

    def _save(self, before: Callable[[Checkpoint], None] = lambda _: None) -> None:
        """Start writing a checkpoint; all processes call it."""
        del before
        if not self._weights_are_finite():
            raise self._diverged("weights are no longer finite numbers")
        started = self._clock()
        if self._pacer is not None:
            self._pacer.note(self.state.step)
        self._shards.save(self.state, self._parts())
        if self._pacer is not None:
            self._pacer.saved(self._clock() - started)

    def _finish_saving(self) -> None:
        self._shards.finish()

    def _parts(self) -> dict[str, Mapping[str, Tensor]]:
        average = self._sharded_average.tensors if self.config.average else {}
        return {
            "model": dict(self.model.named_parameters()),
            "average": average,
            "optimizer": optimizer_tensors(self.model, self.optimizer),
        }

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Read the checkpoint that ``checkpoint`` describes, however many processes wrote it."""
        self.state = checkpoint.state
        path = self.checkpoints / f"{self.state.step:08d}"
        parameters = dict(self.model.named_parameters())
        whole: dict[str, dict[str, Tensor]] | None = None
        if self.processes.is_first and any(path.glob("model.safetensors")):
            found = load_newest(self.checkpoints, self.log.say)
            assert found is not None
            whole = {"model": found.model, "average": found.average, "optimizer": found.optimizer}
        names = self.processes.broadcast(_names(path, whole) if self.processes.is_first else None)
        self._make_optimizer_state(parameters, names)
        into = {f"{part}/{name}": t.detach() for part, own in self._parts().items() for name, t in own.items()}
        if not self.processes.all_gather(whole is not None)[0]:
            self._shards.load(path, into)
            return
        for name, tensor in into.items():  # one tensor at a time: the whole state would not fit
            part, _, key = name.partition("/")
            sent = self.processes.broadcast_tensors(None if whole is None else {name: whole[part][key]})[name]
            own_rows(tensor).copy_(own_part(sent, tensor))

    def _make_optimizer_state(self, parameters: Mapping[str, nn.Parameter], names: list[str]) -> None:
        """Make room for the state that a checkpoint has."""
        for key in names:
            name, _, field = key.rpartition("/")
            parameter = parameters[name]
            empty = torch.zeros((), device=parameter.device) if field == "step" else torch.zeros_like(parameter)
            self.optimizer.state[parameter][field] = empty


def _described(opened: OpenFolder) -> Checkpoint:
    """A verified checkpoint with the shapes of its weights, on the device ``meta``."""
    verify(opened)
    state: RunState = read_state(opened)
    if is_sharded(opened):
        shapes = shapes_in(opened.path, "model")
    else:
        shapes = {name: torch.Size(place.shape) for name, place in tensor_places(opened, "model.safetensors").items()}
    return Checkpoint(state, {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}, {}, {})


def _names(path: Path, whole: Mapping[str, Mapping[str, Tensor]] | None) -> list[str]:
    """The names of the optimizer's tensors in a checkpoint."""
    if whole is not None:
        return list(whole["optimizer"])
    return list(shapes_in(path, "optimizer"))
