"""Problems whose answer points at their inputs: sorting and convex hulls.

An example has inputs, [n, F] real numbers, and an answer, the indices of some of them in order. Problems generate any
number of examples; their answers are computed by an algorithm, so no data is read.

Neither answer changes if an axis is shifted or scaled, so networks need not learn this: `Problem.normalized` maps every
axis of an example to [0, 1], and generated examples are already normalized. This is part of the problem, which knows
what its answers do not depend on; models read numbers as they are (`models.pointer.network`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from multihead.data.batching import Batch
from multihead.data.toy.planar import convex_hull, coverage, refuse_infinite
from multihead.errors import ConfigurationError, InputError, ShapeError
from multihead.models.pointer.config import BEGIN, END, FIRST, PADDING

Inputs = npt.NDArray[np.floating[Any]]
Indices = npt.NDArray[np.int64]

_STEPS = 2.0**24
"""Resolution of [0, 1]: float32 represents all multiples of its inverse, and float64 arithmetic on them is exact."""


class Example(NamedTuple):
    """A problem and its answer.

    Args:
        inputs: [n, F], float32, every axis within [0, 1].
        answer: indices of inputs, from 0, in order.
    """

    inputs: npt.NDArray[np.float32]
    answer: Indices


class Problem(ABC):
    """A kind of problem, which generates and solves examples."""

    name: ClassVar[str]
    features: ClassVar[int]
    """F: number of values of an input."""

    def draw(self, random: np.random.Generator, count: int, smallest: int, largest: int) -> list[Example]:
        """Random examples of ``smallest`` to ``largest`` inputs, each number of inputs equally likely.

        Args:
            random: the random numbers (`generator`), which determine the examples.
            count: number of examples.
            smallest: minimum number of inputs.
            largest: maximum number of inputs.

        Raises:
            ConfigurationError: a number is out of range.
        """
        if not (1 <= smallest <= largest and count >= 0):
            raise ConfigurationError(
                f"got {count} examples of {smallest} to {largest} inputs; expected 0 or more, of at least 1 input, "
                "and the smallest first"
            )
        sizes = random.integers(smallest, largest, count, endpoint=True)
        drawn: list[Example] = [None] * count  # type: ignore[list-item]
        for size in range(smallest, largest + 1):
            places = (sizes == size).nonzero()[0]
            inputs = _normalize(self._inputs(random, len(places), size))
            for place, row, answer in zip(places.tolist(), inputs, self._answers(inputs), strict=True):
                drawn[place] = Example(row, answer)
        return drawn

    def solve(self, inputs: Inputs) -> Indices:
        """The correct answer: indices of inputs, from 0.

        Args:
            inputs: [n, F], of any magnitude.

        Raises:
            ShapeError: the inputs are not [n, F].
            InputError: an input is not finite.
        """
        self._check(inputs)
        return self._answers(inputs[None])[0]

    def normalized(self, inputs: Inputs) -> npt.NDArray[np.float32]:
        """The same problem with every axis scaled to [0, 1]; an axis on which all inputs are equal becomes 0.

        x -> (x - min) / (max - min), rounded to a multiple of 2^-24. Order and equality are preserved.

        Args:
            inputs: [n, F], of any magnitude.

        Raises:
            ShapeError: the inputs are not [n, F].
            InputError: an input is not finite, or two differ so little, relative to the range of all, that they would
                become equal.
        """
        self._check(inputs)
        result: npt.NDArray[np.float32] = _normalize(inputs[None].astype(np.float64))[0]
        _, seen, which = np.unique(result, axis=0, return_index=True, return_inverse=True)
        apart = (inputs != inputs[seen[which.reshape(-1)]]).any(axis=1).nonzero()[0]
        if len(apart):
            one, other = (inputs[index].tolist() for index in (seen[which.reshape(-1)[apart[0]]], apart[0]))
            raise InputError(
                f"{one} and {other} differ by less than 1/{_STEPS:.0f} of the range of all inputs, which is the least "
                "that a network can be shown: leave out what lies far away from the others, or one of these two"
            )
        return result

    def _check(self, inputs: Inputs) -> None:
        if inputs.ndim != 2 or inputs.shape[1] != self.features:
            raise ShapeError(f"inputs of '{self.name}' have the shape [n, {self.features}], got {list(inputs.shape)}")
        refuse_infinite(inputs)

    @abstractmethod
    def _inputs(self, random: np.random.Generator, count: int, size: int) -> npt.NDArray[np.float64]:
        """Random problems of one size, [count, size, F], before normalization."""

    @abstractmethod
    def _answers(self, inputs: Inputs) -> Sequence[Indices]:
        """The answers to problems of one size, [count, size, F]."""


@dataclass(frozen=True)
class Sort(Problem):
    """Sorting numbers in descending order; equal numbers keep their order.

    Half of the generated lists are real numbers in [0, 1), half are integers from 0 to 99, which may be equal.

    Args:
        ascending: sort in ascending order instead.
    """

    ascending: bool = False
    name: ClassVar[str] = "sort"
    features: ClassVar[int] = 1

    def _inputs(self, random: np.random.Generator, count: int, size: int) -> npt.NDArray[np.float64]:
        real = random.random((count, size, 1))
        whole = random.random((count, 1, 1)) < 0.5
        return np.where(whole, np.floor(100 * real), real)

    def _answers(self, inputs: Inputs) -> Sequence[Indices]:
        numbers = inputs[..., 0]
        order: Indices = (numbers if self.ascending else -numbers).argsort(axis=1, kind="stable")
        return list(order)


@dataclass(frozen=True)
class Hull(Problem):
    """The corners of the convex hull of points in the plane, counter-clockwise, starting at the lowest index.

    As in Vinyals et al. 2015, section 3.1, except that answers do not repeat the first corner: the end symbol closes
    the hull. Points are drawn uniformly from the unit square.
    """

    name: ClassVar[str] = "hull"
    features: ClassVar[int] = 2

    def _inputs(self, random: np.random.Generator, count: int, size: int) -> npt.NDArray[np.float64]:
        return random.random((count, size, 2))

    def _answers(self, inputs: Inputs) -> Sequence[Indices]:
        return [np.array(convex_hull(points), np.int64) for points in inputs]

    @staticmethod
    def area_coverage(inputs: Inputs, indices: Sequence[int]) -> float | None:
        """The share of the true hull's area covered by the polygon of these points; None if invalid (`coverage`)."""
        return coverage(inputs, indices)


def generator(seed: int, *place: int) -> np.random.Generator:
    """Random numbers determined by a seed and a place, such as the number of an update."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=place)))


def collate(examples: Sequence[Example]) -> Batch:
    """Examples as padded tensors, in order: ``source`` is float32 [batch, inputs, F].

    For the answer (0, 2), ``target_input`` is ``BEGIN, FIRST + 0, FIRST + 2`` and ``target_output`` is ``FIRST + 0,
    FIRST + 2, END``.

    Raises:
        InputError: there are no examples.
    """
    inputs, lengths = collate_inputs([example.inputs for example in examples])
    answers = np.array([len(example.answer) for example in examples], np.int64)
    flat = np.concatenate([example.answer for example in examples]) + FIRST
    target_input = np.full((len(examples), int(answers.max()) + 1), PADDING, np.int64)
    target_output = target_input.copy()
    real = np.arange(target_input.shape[1] - 1) < answers[:, None]
    target_output[:, :-1][real] = flat
    target_output[np.arange(len(examples)), answers] = END
    target_input[:, 0] = BEGIN
    target_input[:, 1:][real] = flat
    return Batch(
        source=inputs,
        source_lengths=lengths,
        target_input=torch.from_numpy(target_input),
        target_output=torch.from_numpy(target_output),
        target_lengths=torch.from_numpy(answers + 1),
        target_tokens=int(answers.sum()) + len(examples),
        indices=np.arange(len(examples)),
    )


def collate_inputs(inputs: Sequence[npt.NDArray[np.float32]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Problems to search: float32 [batch, inputs, F], padded with zeros, and the number of inputs of each.

    Raises:
        InputError: there are no problems.
    """
    if not inputs:
        raise InputError("a batch of no problems; expected at least one")
    lengths = np.array([len(rows) for rows in inputs], np.int64)
    padded = np.zeros((len(inputs), int(lengths.max(initial=0)), inputs[0].shape[1]), np.float32)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = np.concatenate(inputs)
    return torch.from_numpy(padded), torch.from_numpy(lengths)


def _normalize(inputs: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """`Problem.normalized` of problems [count, n, F], unchecked."""
    # Dividing by a power of two first is exact, and prevents differences from overflowing.
    size = np.frexp(np.abs(inputs).max(axis=1, keepdims=True, initial=0.0))[1]
    inputs = np.ldexp(inputs, -size)
    low = inputs.min(axis=1, keepdims=True, initial=np.inf)
    extent = inputs.max(axis=1, keepdims=True, initial=-np.inf) - low
    steps: npt.NDArray[np.float64] = np.rint((inputs - low) / np.where(extent > 0, extent, 1) * _STEPS)
    return (steps / _STEPS).astype(np.float32)


PROBLEMS: dict[str, type[Sort] | type[Hull]] = {Sort.name: Sort, Hull.name: Hull}
"""All kinds of problems, by name."""
