"""`Pointer`: solve problems with a trained pointer network.

The problems are in `data.toy.pointing`. The search is that of `decoding`, as for translations: the places of the inputs
are the symbols of a vocabulary that each problem brings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from multihead import model_folder
from multihead.configuration import require_device
from multihead.data.order import batches_by_tokens
from multihead.data.toy.pointing import Hull, Problem, Sort, collate_inputs
from multihead.decoding.beam import beam_search
from multihead.decoding.greedy import greedy_search
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.search import Search, Symbols
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError, FormatError, InputError, ShapeError
from multihead.models.pointer.config import BEGIN, END, FIRST, PADDING, PointerConfig
from multihead.models.pointer.network import PointerNetwork
from multihead.runs.pointer.settings import ProblemName, Task, default_folder

Row = Sequence[Any] | npt.NDArray[Any]
"""A problem: numbers to sort, or points, each of two numbers."""

SYMBOLS = Symbols(BEGIN, END, (PADDING, BEGIN))

_AT_ONCE = 1 << 14
"""Inputs per batch, including padding and all hypotheses."""


@dataclass(frozen=True)
class PointerAnswer:
    """The places that the network points at."""

    places: tuple[int, ...]
    """Places of inputs, counted from 1."""
    log_probability: float
    """The log-probability of the whole answer."""
    finished: bool
    """False if the answer has as many places as there are inputs, but no end symbol."""
    warning: str | None = None
    """Set if the model was trained on shorter, or longer, problems."""


class Pointer:
    """A trained pointer network with the problem that it solves.

    Args:
        model: the network.
        task: what it was trained to do.

    Example:
        ``Pointer.load("pointer-sort").point([[20, 5, 10]])`` is ``[[1, 3, 2]]``
    """

    def __init__(self, model: PointerNetwork, task: Task) -> None:
        self.model, self.task = model, task
        self.problem = self.problem_of(task)

    @staticmethod
    def problem_of(task: Task) -> Problem:
        """The problem of a task."""
        return Sort(task.ascending) if task.problem == "sort" else Hull()

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> Pointer:
        """Read a model folder, or the best model of a run folder.

        Raises:
            FormatError: the folder is neither, is damaged, or holds another kind of network.
            ConfigurationError: the device does not exist.
        """
        require_device(device)
        with model_folder.open_model(Path(path)) as folder:
            config = model_folder.read_config(folder)
            model_folder.require_architecture(
                folder, config, ("pointer",), "pointer network", "multihead pointer train"
            )
            file = folder.path / model_folder.CONFIG
            task = model_folder.parse_settings(Task, config.get("task"), file)
            sizes = model_folder.parse_settings(PointerConfig, config["model"], file)
            if sizes.features != cls.problem_of(task).features:
                raise FormatError(
                    f"{file}: damaged: a network of {sizes.features} features for the problem '{task.problem}'; "
                    f"{model_folder.COPY_AGAIN}"
                )
            model = model_folder.load_network(sizes, lambda: PointerNetwork(sizes), folder, config)
        return cls(model.eval().to(device), task)

    @classmethod
    def of(cls, problem: ProblemName, path: str | Path | None = None, device: str = "cpu") -> Pointer:
        """Load the model for a problem; by default from where ``multihead pointer train`` writes it.

        Raises:
            FormatError: as for `load`; or there is no model yet, or it is for another problem.
        """
        folder = default_folder(problem) if path is None else Path(path)
        if path is None and not folder.exists():
            raise FormatError(
                f"{folder}: there is no model yet; `multihead pointer train {problem}` makes one, or name another "
                "by --model"
            )
        pointer = cls.load(folder, device)
        if pointer.task.problem != problem:
            raise FormatError(
                f"{folder}: this model is for '{pointer.task.problem}', not for '{problem}'; "
                f"`multihead pointer train {problem}` makes one that is"
            )
        return pointer

    def save(self, folder: Path, metrics: dict[str, Any]) -> None:
        """Write a model folder (config.json, model.safetensors and metrics.json) atomically.

        Raises:
            FormatError: the folder holds something other than a model; it is left alone.
            SurroundingsError: the folder cannot be written.
        """

        def parts(draft: Path) -> dict[str, Any]:
            model_folder.write_json(draft / "metrics.json", metrics)
            return {"task": self.task.model_dump(mode="json")}

        model_folder.save_folder(folder, self.model, self.model.config, parts)

    def point(self, rows: Sequence[Row], *, beam: int = 1, repeats: bool | None = None) -> list[list[int]]:
        """Solve problems: for each the places of its inputs, counted from 1.

        Args:
            rows: lists of numbers, or of points, of any size and range; may be empty.
            beam: width of the beam search; 1 is greedy search.
            repeats: whether a place may occur twice; by default as in training.

        Raises:
            InputError: an input is not a finite number or not a point, or numbers are too close to each other.
            ConfigurationError: the beam is below 1.
        """
        return [list(answer.places) for answer in self.answers(rows, beam=beam, repeats=repeats)]

    @torch.no_grad()
    def answers(self, rows: Sequence[Row], *, beam: int = 1, repeats: bool | None = None) -> list[PointerAnswer]:
        """Solve problems as `point` does, with the probability of each answer and warnings."""
        if beam < 1:
            raise ConfigurationError(f"beam must be at least 1, got {beam}")
        inputs = [self._inputs(number, row) for number, row in enumerate(rows, start=1)]
        results = [PointerAnswer((), 0.0, True)] * len(rows)
        work = [index for index, row in enumerate(inputs) if len(row)]
        lengths = [len(inputs[index]) for index in work]
        model = self._network_with(repeats)
        for group in batches_by_tokens(lengths, max(_AT_ONCE // beam, 1)):
            members = [work[place] for place in group]
            found = _search(model, [inputs[index] for index in members], beam)
            for index, hypothesis in zip(members, found, strict=True):
                results[index] = self._answer(hypothesis, len(inputs[index]))
        return results

    def _network_with(self, repeats: bool | None) -> PointerNetwork:
        """The network with ``repeats`` as requested, sharing the weights."""
        config = self.model.config
        if repeats is None or repeats is not config.no_repeats:
            return self.model.eval()
        with torch.random.fork_rng(), torch.device("meta"):
            model = PointerNetwork(config.model_copy(update={"no_repeats": not repeats}))
        model.load_state_dict(self.model.state_dict(), assign=True)
        return model.eval()

    def _inputs(self, number: int, row: Row) -> npt.NDArray[np.float32]:
        """The normalized inputs of one problem.

        Raises:
            InputError: see `point`; the message gives the number of the row.
        """
        features = self.problem.features
        what = "numbers" if features == 1 else f"points of {features} numbers"
        try:
            values = np.asarray(row, np.float64)
        except (TypeError, ValueError):
            raise InputError(f"row {number}: expected {what}, got {row!r}") from None
        values = values.reshape(-1, features) if values.size == 0 or (features == 1 and values.ndim == 1) else values
        try:
            return self.problem.normalized(values)
        except ShapeError:
            raise InputError(f"row {number}: expected {what}, got an array of shape {list(values.shape)}") from None
        except InputError as error:
            raise InputError(f"row {number}: {error}") from None

    def _answer(self, hypothesis: Hypothesis, inputs: int) -> PointerAnswer:
        places = tuple(token - FIRST + 1 for token in hypothesis.tokens)
        task, warning = self.task, None
        if not task.smallest <= inputs <= task.largest:
            warning = (
                f"{inputs} inputs, but the model learned from {task.smallest} to {task.largest}: do not rely on it"
            )
        return PointerAnswer(places, hypothesis.log_probability, hypothesis.finished, warning)


def _search(model: PointerNetwork, inputs: list[npt.NDArray[np.float32]], beam: int) -> list[Hypothesis]:
    """The best hypothesis for each problem, of at most as many symbols as inputs, and the end symbol."""
    source, lengths = (tensor.to(model.begin.device) for tensor in collate_inputs(inputs))
    task = SearchTask(SYMBOLS, max_lengths=[len(row) + 1 for row in inputs])
    if beam == 1:
        return greedy_search(model, source, lengths, task)
    found = beam_search(model, source, lengths, task, Search(beam=beam, alpha=0.0))
    return [hypotheses[0] for hypotheses in found]
