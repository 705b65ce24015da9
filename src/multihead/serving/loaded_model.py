"""A loaded model and its search threads; a reload makes a new one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from multihead.engine.weights import Precision
from multihead.errors import MultiheadError
from multihead.judging.analysis import analyze_tokens
from multihead.model_folder import COPY_AGAIN
from multihead.models.network import Network
from multihead.sealed import open_folder
from multihead.serving.queue import CallInLoop, Job, SentenceQueue
from multihead.serving.search_threads import SearchThread, UncompiledSearchThread
from multihead.serving.work_thread import WorkThread
from multihead.translating.request import Weights
from multihead.translating.searching import Constraints, symbols_of, uncompiled_reason
from multihead.translating.translator import Translator

T = TypeVar("T")

_WEIGHTS = (".safetensors", ".bin", ".npz", ".pt", ".model")
"""Endings of files with weights."""

_PACKED: dict[Precision, float] = {"float32": 1.0, "bfloat16": 0.5, "int8": 0.25}
"""Size of the compiled search's copy of the weights."""

SLICE_SENTENCES = 16
"""Sentences of a request that are judged or inspected at a time."""


class LoadedModel:
    """A model with running search threads.

    Args:
        generation: 1 for the first model of the server, increasing by 1 with every reload.
        translator: the model.
        threads: number of threads of the compiled search.
        longest: maximum source tokens of a sentence, including the end symbol.
        call_in_loop: schedules a callback in the event loop.
        weights: by which translations are chosen among the hypotheses of the beam; None if they are not.
    """

    def __init__(
        self,
        generation: int,
        translator: Translator,
        threads: int,
        longest: int,
        call_in_loop: CallInLoop,
        weights: Weights | None = None,
    ) -> None:
        self.generation, self.translator, self.weights = generation, translator, weights
        self.requests = 0
        """Requests in flight that use this model."""
        self.aligns = _has_attention(translator)
        """Whether the model returns attention to the source."""
        self._compiled_queue, self._uncompiled_queue = SentenceQueue(), SentenceQueue()
        self._compiled_threads: list[SearchThread] = []
        if (engine := translator.engine) is not None:
            limit = max(translator.search_settings().limit(longest), 2)
            symbols = symbols_of(translator.bundle.target_tokenizer)
            queues = self._compiled_queue, self._uncompiled_queue
            self._compiled_threads = [
                SearchThread(engine, symbols, limit, *queues, call_in_loop) for _ in range(threads)
            ]
        self._uncompiled_thread = UncompiledSearchThread(translator, self._uncompiled_queue, call_in_loop)
        self._work_thread = WorkThread("inspection")
        for thread in (*self._compiled_threads, self._uncompiled_thread, self._work_thread):
            thread.start()

    @property
    def compiled(self) -> bool:
        """Whether there are threads of the compiled search."""
        return bool(self._compiled_threads)

    @property
    def waiting(self) -> int:
        """Sentences whose search has not begun."""
        return len(self._compiled_queue) + len(self._uncompiled_queue)

    @property
    def rows(self) -> int:
        """Hypotheses being searched."""
        return self._compiled_queue.running_rows + self._uncompiled_queue.running_rows

    def submit(self, job: Job) -> None:
        """Queue the sentences of a job, for the compiled search if possible."""
        if not self.compiled or uncompiled_reason(job.key.search, Constraints()) is not None:
            self._uncompiled_queue.put(job)
            return
        constrained = [sentence for sentence in job.sentences if sentence.prefix or sentence.phrases]
        if not constrained:
            self._compiled_queue.put(job)
            return
        free = [sentence for sentence in job.sentences if not sentence.prefix and not sentence.phrases]
        self._compiled_queue.put(job, free)
        self._uncompiled_queue.put(job, constrained)

    def cancel(self, job: Job) -> None:
        """Stop searching the sentences of a job."""
        for queue in (self._compiled_queue, self._uncompiled_queue):
            queue.cancel(job)

    async def run_in_slices(
        self,
        function: Callable[[slice], list[T]],
        costs: Sequence[float],
        check: Callable[[list[T]], None] | None = None,
    ) -> list[T]:
        """Concatenate ``function(slice)`` over slices of sentences, computed in a single thread.

        Between slices, the request with the least left to do goes on. Cancelling the coroutine leaves at most the
        running slice to finish.

        Args:
            function: called with slices of up to `SLICE_SENTENCES` sentences.
            costs: an estimate for each sentence, in any unit.
            check: called with the results so far; may raise.
        """
        results: list[T] = []

        def call(part: slice) -> None:
            results.extend(function(part))
            if check is not None:
                check(results)

        starts = range(0, len(costs), SLICE_SENTENCES)
        parts = [partial(call, slice(start, start + SLICE_SENTENCES)) for start in starts]
        await self._work_thread.call_all(parts, [sum(costs[start:]) for start in starts])
        return results

    async def run_last(self, function: Callable[[], T]) -> T:
        """The result of a function that completes a request: it goes before everything else in that thread."""
        results: list[T] = []
        await self._work_thread.call_all([lambda: results.append(function())], [0.0])
        return results[0]

    async def close(self) -> None:
        """End the threads once their sentences are done."""
        self._compiled_queue.close()
        for thread in self._compiled_threads:
            await asyncio.to_thread(thread.join)
        # Closed last: a compiled search may still move sentences to this queue.
        self._uncompiled_queue.close()
        await asyncio.to_thread(self._uncompiled_thread.join)
        self._work_thread.close()


def _has_attention(translator: Translator) -> bool:
    try:
        (inspected,) = analyze_tokens(translator, [[]], [[]], 0)
    except MultiheadError:
        return False
    return inspected.weights is not None


def weight_bytes(translator: Translator) -> int:
    """Bytes of the weights in memory: those of all networks, and the packed copies of the compiled search."""
    packed = 0.0 if translator.engine is None else _PACKED[translator.search_settings().precision]
    choosing = [one for one in (translator.reverse, translator.judge) if one is not None]
    drafting = [] if translator.draft is None else translator.draft.networks
    return int(_network_bytes([*translator.networks, *drafting]) * (1 + packed)) + _network_bytes(
        [network for one in choosing for network in one.networks]
    )


def _network_bytes(networks: Sequence[Network]) -> int:
    tensors = (tensor for network in networks for tensor in network.parameters())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def estimate_bytes(folder: Path, precision: Precision | None) -> int:
    """`weight_bytes` of a model that is not loaded, from the sizes of its files.

    Args:
        folder: of the model.
        precision: of the compiled search; None for a model without one.
    """
    with open_folder(folder, COPY_AGAIN) as found:
        sizes = [found.size(name) for name in found.names() if Path(name).suffix in _WEIGHTS and name in found]
    return int(sum(sizes) * (1 + (0 if precision is None else _PACKED[precision])))
