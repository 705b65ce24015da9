"""Samples of a Transformer, or of an ensemble, as compiled code.

It draws what `decoding.sampling.sample` draws, which has the equations, from the same random numbers, except for
rounding: where the number lies as near as that to the border between two symbols, the other one may be drawn. Samples
take the places of a beam's hypotheses, and leave when they end, while the others go on. A sample does not depend, to
the last bit, on the other sentences, on their order or on the number of threads or samples. A draft is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from multihead.configuration import build
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.search import Search
from multihead.decoding.sharpening import Sharpening, streams
from multihead.decoding.task import SearchTask
from multihead.engine.search import SLICE, CompiledSearch, RunningSearch
from multihead.engine.weights import integers
from multihead.errors import ConfigurationError, ShapeError, SurroundingsError

TOGETHER = 32
"""Samples of a sentence that share a pass of the encoder and a first step. More are drawn as if for other sentences, so
that threads divide the work for a single one."""


class RunningSampling(RunningSearch):
    """A search that draws symbols; `add_samples` takes the place of `add_all`.

    Args:
        compiled: the models.
        task, search: lengths, symbols and penalty; the beam is the largest number of samples of a sentence.
        longest: the highest length limit of a sentence.
        workers: threads.
        sharpening: what is drawn from.

    Raises:
        SurroundingsError: not enough memory.
    """

    def __init__(
        self,
        compiled: CompiledSearch,
        task: SearchTask,
        search: Search,
        longest: int,
        workers: int,
        sharpening: Sharpening,
    ) -> None:
        super().__init__(compiled, task, search, longest, workers)
        truncations = sharpening.top_k, sharpening.top_p, sharpening.min_p, sharpening.epsilon
        given = sharpening.temperature, *(one or 0 for one in truncations)
        if self._library.decoding_sharpen(self._search, *given):
            raise SurroundingsError("there is not enough memory for samples")

    def __enter__(self) -> RunningSampling:
        return self

    def add_samples(
        self,
        numbers: Sequence[int],
        sources: Sequence[Sequence[int]],
        limits: Sequence[int],
        minimums: Sequence[int],
        seeds: Sequence[NDArray[np.uint64]],
    ) -> None:
        """Append sentences to the queue; arguments and errors as those of `add_all`.

        Args:
            seeds: the random stream of each sample of each sentence, at least one and at most as many as the beam.
        """
        counts = list(map(len, seeds))
        if len(counts) != len(sources) or not all(0 < count <= self.beam for count in counts):
            raise ShapeError(
                f"expected 1 to {self.beam} random streams for each of {len(sources)} sentences, got {counts}"
            )
        every = np.ascontiguousarray(np.concatenate(seeds)) if seeds else np.zeros(0, dtype=np.uint64)
        append = self._library.decoding_add_samples
        self._append(append, numbers, sources, limits, minimums, integers(counts), every.ctypes.data)


def sample(
    compiled: CompiledSearch,
    sources: Sequence[Sequence[int]],
    task: SearchTask,
    search: Search | None = None,
    *,
    seed: int = 0,
    keys: Sequence[int] | None = None,
    sharpening: Sharpening | None = None,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[list[Hypothesis]]:
    """``task.n_best`` samples of each sentence, in the order of their numbers; equal ones are possible.

    Args:
        compiled: the models.
        sources: ids of each sentence, including the end symbol, without padding.
        task, search, seed, keys, sharpening: as `decoding.sampling.sample` has them, without restrictions.
        workers: threads, each with a batch of its own; by default PyTorch's number.
        progress: called with the number of newly finished sentences.

    Raises:
        ShapeError, ConfigurationError, MultiheadError: as `decoding.sampling.sample` and `CompiledSearch.open`.
    """
    search, samples = search or Search(), task.n_best
    keys = range(len(sources)) if keys is None else keys
    if samples < 1:
        raise ConfigurationError(f"expected at least 1 sample of each sentence, got {samples}")
    if len(keys) != len(sources):
        raise ShapeError(f"got {len(keys)} keys for {len(sources)} sentences: give one each")
    limits, minimums = task.length_lists(search, [len(source) for source in sources])
    parts = -(-samples // TOGETHER)
    width = -(-samples // parts)
    settings = build(Search, {**search.model_dump(), "beam": width, "groups": 1, "coverage": 0.0}, "the search")
    task, longest, models = replace(task, n_best=width), max(limits, default=1), compiled.undrafted
    every = streams(seed, keys, samples)
    found: list[list[list[Hypothesis]]] = [[[]] * parts for _ in sources]
    left = [parts] * len(sources)
    order = [number * parts + part for number in _longest_first(sources) for part in range(parts)]
    places = [divmod(number, parts) for number in order]
    threads = models.check(task, settings, longest, workers)
    with RunningSampling(models, task, settings, longest, threads, sharpening or Sharpening()) as running:
        rows, most = [sources[place] for place, _ in places], [limits[place] for place, _ in places]
        least = [minimums[place] for place, _ in places]
        seeds = [every[place, part * width : (part + 1) * width] for place, part in places]
        running.add_samples(order, rows, most, least, seeds)
        while running.left:
            for number, hypotheses in running.run(SLICE):
                place, part = divmod(number, parts)
                found[place][part] = hypotheses
                left[place] -= 1
                if progress is not None and not left[place]:
                    progress(1)
    return [[hypothesis for part in some for hypothesis in part] for some in found]


def _longest_first(sources: Sequence[Sequence[int]]) -> list[int]:
    return sorted(range(len(sources)), key=lambda number: -len(sources[number]))
