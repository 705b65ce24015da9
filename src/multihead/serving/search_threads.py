"""Search threads: compiled running batches, and uncompiled batches.

`SearchThread` runs the compiled search (`engine.search`). Several such threads share the weights; each has its own
running batches, which sentences join and leave at any step. A thread runs its batches for a few milliseconds, delivers
finished sentences and takes new ones from the queue, so sentences of different clients share a step. Sentences with
different settings (beam, length penalty) are in separate batches, which take turns. The result of a sentence does not
depend on the others, to the last bit.

Several threads with one worker each, rather than one search with several workers: the thread with the smallest load
takes the next sentence, so a few sentences spread over all threads, and no thread waits for the others.

`UncompiledSearchThread` searches what the compiled search cannot (other networks and devices, prefixes, no compiler)
with the searches of `multihead.decoding`. Waiting sentences with equal settings form a batch; sentences that arrive
meanwhile form the next one. A restriction reports the progress of streamed translations (`_ProgressReporter`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.data.batching import collate_source
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.lexical import table_size
from multihead.decoding.restrictions import Restriction, Rows
from multihead.decoding.search import Symbols
from multihead.decoding.task import SearchTask
from multihead.engine.search import CompiledSearch, RunningSearch
from multihead.serving.queue import BatchKey, CallInLoop, Sentence, SentenceQueue
from multihead.translating.searching import Constraints, build_restrictions, search_batch, symbols_of
from multihead.translating.translator import Translator

SLICE_SECONDS = 0.004
"""Time between two looks at the queue; at least one step runs."""

STREAM_SLICE_SECONDS = 0.001
"""The same for a batch with a streamed translation."""

MAX_IDLE_BATCHES = 4
"""Empty batches kept open for later sentences with the same settings."""

MAX_ROWS = 256
"""Maximum hypotheses of an uncompiled batch."""

MAX_STATES = 1 << 22
"""Maximum entries of the tables of required phrases in an uncompiled batch (`decoding.lexical`): 64 MB."""

LENGTH_MARGIN = 64
"""An uncompiled batch holds sources of at most twice the first one's length plus so many tokens."""


@dataclass
class _Batch:
    running: RunningSearch
    sentences: dict[int, Sentence] = field(default_factory=dict)

    def close(self) -> None:
        self.running.__exit__(None, None, None)


class SearchThread(threading.Thread):
    """Compiled search of the sentences of a queue.

    Args:
        engine: the compiled search, shared by several threads.
        symbols: special symbols of the target vocabulary.
        longest: maximum length limit of a sentence.
        queue: where sentences wait.
        fallback: queue for sentences whose batch failed; an uncompiled search takes them one by one.
        call_in_loop: schedules a callback in the event loop.
    """

    def __init__(
        self,
        engine: CompiledSearch,
        symbols: Symbols,
        longest: int,
        queue: SentenceQueue,
        fallback: SentenceQueue,
        call_in_loop: CallInLoop,
    ) -> None:
        super().__init__(name="compiled search", daemon=True)
        self._engine, self._symbols, self._longest = engine, symbols, longest
        self._queue, self._fallback, self._call_in_loop = queue, fallback, call_in_loop
        self._batches: dict[BatchKey, _Batch] = {}
        queue.register(self)

    def run(self) -> None:
        """Search until the queue is closed and every sentence taken is done."""
        while (taken := self._queue.take(self, self._load, self._engine.rows)) is not None:
            self._drop_cancelled()
            for sentence in taken:
                self._add(sentence)
            for key in [key for key, batch in self._batches.items() if batch.sentences]:
                self._run_batch(key)
            self._close_idle_batches()
        for batch in self._batches.values():
            batch.close()

    @property
    def _load(self) -> int:
        return sum(len(batch.sentences) * key.search.beam for key, batch in self._batches.items())

    def _add(self, sentence: Sentence) -> None:
        key = sentence.job.key
        try:
            if key not in self._batches:
                task = SearchTask(self._symbols, n_best=key.n_best)
                self._batches[key] = _Batch(self._engine.open(task, key.search, self._longest, workers=1))
            batch = self._batches[key]
            batch.running.add(sentence.number, sentence.ids, sentence.limit, key.search.least(len(sentence.ids)))
            batch.sentences[sentence.number] = sentence
        except Exception:  # whatever it is, the thread goes on with the other sentences
            sentence.isolated = True
            self._fallback.put_back([sentence])

    def _drop_cancelled(self) -> None:
        for batch in self._batches.values():
            for number in [number for number, sentence in batch.sentences.items() if sentence.job.cancelled]:
                batch.running.drop(number)
                del batch.sentences[number]

    def _run_batch(self, key: BatchKey) -> None:
        """Run a batch for a slice of time and deliver finished sentences and progress."""
        batch = self._batches[key]
        finished: list[tuple[Sentence, list[Hypothesis]]] = []
        streamed = any(sentence.job.streamed for sentence in batch.sentences.values())
        try:
            for number, hypotheses in batch.running.run(STREAM_SLICE_SECONDS if streamed else SLICE_SECONDS):
                finished.append((batch.sentences.pop(number), hypotheses))
        except Exception:
            # The search does not say which sentence failed: each is searched alone, and only that one fails again.
            self._move_to_fallback(key)
        updates = [
            (sentence, partial)
            for number, sentence in batch.sentences.items()
            if sentence.job.streamed and (partial := batch.running.leading(number)) and partial != sentence.partial
        ]
        if finished or updates:
            self._call_in_loop(lambda: _deliver(finished, updates))

    def _move_to_fallback(self, key: BatchKey) -> None:
        batch = self._batches.pop(key)
        batch.close()
        for sentence in batch.sentences.values():
            sentence.isolated = True
        self._fallback.put_back(list(batch.sentences.values()))
        batch.sentences.clear()

    def _close_idle_batches(self) -> None:
        idle = [key for key, batch in self._batches.items() if not batch.sentences]
        for key in idle[: max(len(idle) - MAX_IDLE_BATCHES, 0)]:
            self._batches.pop(key).close()


def _deliver(
    finished: Sequence[tuple[Sentence, list[Hypothesis]]], updates: Sequence[tuple[Sentence, tuple[int, ...]]]
) -> None:
    for sentence, hypotheses in finished:
        sentence.job.finish(sentence, hypotheses)
    for sentence, partial in updates:
        sentence.job.update(sentence, partial)


class UncompiledSearchThread(threading.Thread):
    """Search of the sentences of a queue without compiled code, one batch after the other.

    Args:
        translator: the model.
        queue: where sentences wait.
        call_in_loop: schedules a callback in the event loop.
    """

    def __init__(self, translator: Translator, queue: SentenceQueue, call_in_loop: CallInLoop) -> None:
        super().__init__(name="uncompiled search", daemon=True)
        self._translator, self._queue, self._call_in_loop = translator, queue, call_in_loop
        queue.register(self)

    def run(self) -> None:
        """Search until the queue is closed and every sentence taken is done."""
        while (taken := self._queue.take(self, 0, MAX_ROWS)) is not None:
            while taken:
                batch = _select_batch(taken)
                taken = [sentence for sentence in taken if sentence not in batch]
                self._run_batch([sentence for sentence in batch if not sentence.job.cancelled])

    def _run_batch(self, batch: list[Sentence]) -> None:
        if not batch:
            return
        try:
            found = self._search(batch)
        except _BatchCancelledError:
            return
        except Exception as error:  # whatever it is, the thread goes on
            if len(batch) > 1:  # only the sentence that cannot be searched fails
                for sentence in batch:
                    self._run_batch([sentence])
            else:
                self._call_in_loop(_fail_callback(batch[0], error))
            return
        for sentence, hypotheses in zip(batch, found, strict=True):
            self._call_in_loop(_finish_callback(sentence, hypotheses))

    @torch.no_grad()
    def _search(self, batch: Sequence[Sentence]) -> list[list[Hypothesis]]:
        bundle, key = self._translator.bundle, batch[0].job.key
        tokenizer = bundle.target_tokenizer
        source, lengths = collate_source([one.ids[:-1] for one in batch], tokenizer.pad_id, tokenizer.eos_id)
        device = bundle.model.output.weight.device
        constraints = Constraints(
            [one.prefix for one in batch] if any(one.prefix for one in batch) else [],
            [one.phrases for one in batch] if any(one.phrases for one in batch) else [],
        )
        restrictions: list[Restriction] = [_ProgressReporter(batch, self._call_in_loop)]
        restrictions += build_restrictions(key.search, tokenizer, constraints)
        task = SearchTask(symbols_of(tokenizer), n_best=key.n_best, restrictions=restrictions)
        stepper, phrases = self._translator.stepper, constraints.phrases
        return search_batch(stepper, source.to(device), lengths.to(device), task, key.search, phrases)


def _fail_callback(sentence: Sentence, error: Exception) -> Callable[[], None]:
    return lambda: sentence.job.fail(error)


def _finish_callback(sentence: Sentence, hypotheses: list[Hypothesis]) -> Callable[[], None]:
    return lambda: sentence.job.finish(sentence, hypotheses)


def _select_batch(sentences: Sequence[Sentence]) -> list[Sentence]:
    """The first sentence, and those that share a batch with it without much padding."""
    first = sentences[0]
    if first.isolated:
        return [first]
    longest, largest = 2 * len(first.ids) + LENGTH_MARGIN, table_size(first.phrases)
    batch = [first]
    for one in sentences:
        fits = one is not first and one.job.key == first.job.key and not one.isolated and len(one.ids) <= longest
        table = max(largest, table_size(one.phrases)) if fits else 0  # each has as much room as the largest one
        if fits and table * (len(batch) + 1) <= MAX_STATES:
            batch.append(one)
            largest = table
    return batch


class _BatchCancelledError(Exception):
    """Every sentence of the batch was cancelled."""


class _ProgressReporter:
    """A restriction that forbids nothing: it reports progress, and stops a batch nobody waits for."""

    def __init__(self, batch: Sequence[Sentence], call_in_loop: CallInLoop) -> None:
        self._batch, self._call_in_loop = batch, call_in_loop
        self._streamed = [place for place, sentence in enumerate(batch) if sentence.job.streamed]

    def check(self, limits: Int[Tensor, " batch"], symbols: Symbols) -> None:
        pass

    def restrict(self, permitted: Float[Tensor, "rows vocab"], rows: Rows) -> Float[Tensor, "rows vocab"]:
        if all(sentence.job.cancelled for sentence in self._batch):
            raise _BatchCancelledError
        if self._streamed and rows.written.shape[1]:
            places = rows.sentences.tolist()
            for place in self._streamed:
                if place in places:  # the rows of a sentence are adjacent, the best one first
                    self._report(self._batch[place], tuple(rows.written[places.index(place)].tolist()))
        return permitted

    def _report(self, sentence: Sentence, partial: tuple[int, ...]) -> None:
        self._call_in_loop(lambda: sentence.job.update(sentence, partial))
