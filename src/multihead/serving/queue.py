"""Sentences between requests and searches, in a queue fair to requests.

A `Job` holds the sentences of one request. Search threads take sentences from a `SentenceQueue`, one of each job in
turn, so that a document of five hundred lines does not delay a single sentence. Large jobs do not take turns with each
other: all of them would end late, and under load after the time limit. Cancelling a job removes its waiting
sentences at once; the searches drop its running sentences when they next look. Threads share nothing else: a queue has
a lock, and results return through a function that runs a callback in the event loop (`CallInLoop`).
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.search import Search

_numbers = itertools.count()

LARGE = 16
"""Waiting sentences above which a job is large."""

LARGE_TOKENS = 1_000
"""Waiting source tokens above which a job is large."""

CallInLoop = Callable[[Callable[[], None]], None]
"""Schedules a callback in the event loop's thread; called from any thread."""


Phrases = list[list[list[int]]]
"""What a translation contains: phrases, each with its alternatives, in tokens."""


@dataclass(frozen=True)
class BatchKey:
    """What sentences must have in common to share a batch."""

    search: Search
    n_best: int


class Sentence:
    """A sentence and its hypotheses.

    Args:
        job: the job it belongs to.
        ids: source tokens, including the end symbol.
        prefix: tokens its translation begins with.
        phrases: tokens its translation contains.
    """

    def __init__(self, job: Job, ids: list[int], prefix: list[int], phrases: Phrases) -> None:
        self.number = next(_numbers)
        """Unique in this process."""
        self.job, self.ids, self.prefix, self.phrases = job, ids, prefix, phrases
        self.isolated = False
        """Whether it must be searched alone, because its last batch failed."""
        self.partial: tuple[int, ...] = ()
        """Tokens of the best unfinished hypothesis, of a streamed job."""
        self.hypotheses: list[Hypothesis] = []

    @property
    def limit(self) -> int:
        """Maximum tokens of the translation, including the end symbol."""
        return self.job.key.search.limit(len(self.ids))


class Job:
    """The sentences of a request, in order. Its methods run in the event loop's thread.

    Args:
        key: how the sentences are searched.
        rows: source tokens of each sentence, including the end symbol.
        prefix: tokens the first translation begins with.
        streamed: whether a client watches the translation grow.
        phrases: tokens that the translation of each sentence contains; empty if there are none.
    """

    def __init__(
        self,
        key: BatchKey,
        rows: Sequence[list[int]],
        prefix: list[int],
        streamed: bool,
        phrases: Sequence[Phrases] = (),
    ) -> None:
        self.key, self.streamed, self.number = key, streamed, next(_numbers)
        self.sentences = [
            Sentence(self, row, [] if place else prefix, phrases[place] if phrases else [])
            for place, row in enumerate(rows)
        ]
        self.remaining = len(self.sentences)
        """Sentences without a result."""
        self.cancelled = False
        self.updated = asyncio.Event()
        """Set whenever a sentence makes progress."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolves when every sentence has a result; fails if one cannot be searched."""
        if not self.remaining:
            self.done.set_result(None)

    def finish(self, sentence: Sentence, hypotheses: list[Hypothesis]) -> None:
        """Store the result of a sentence."""
        sentence.hypotheses = hypotheses
        self.remaining -= 1
        if not self.remaining and not self.done.done():
            self.done.set_result(None)
        self.updated.set()

    def fail(self, error: Exception) -> None:
        """End the job with an error, unless it has ended already."""
        if not self.done.done():
            self.done.set_exception(error)
        self.updated.set()

    def update(self, sentence: Sentence, partial: tuple[int, ...]) -> None:
        """Store the best unfinished hypothesis of a sentence."""
        sentence.partial = partial
        self.updated.set()


class SentenceQueue:
    """Waiting sentences of several jobs; search threads (takers) take from it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: OrderedDict[Job, deque[Sentence]] = OrderedDict()
        """Waiting sentences of each job, in the order of their turns. A job can have sentences in two queues."""
        self._loads: dict[object, int] = {}
        """Rows (one per hypothesis) that each taker is searching."""
        self._closed = False

    def __len__(self) -> int:
        with self._changed:
            return sum(map(len, self._jobs.values()))

    @property
    def running_rows(self) -> int:
        """Rows that all takers are searching."""
        with self._changed:
            return sum(self._loads.values())

    def put(self, job: Job, sentences: Sequence[Sentence] | None = None) -> None:
        """Add sentences of a job, by default all."""
        sentences = job.sentences if sentences is None else sentences
        with self._changed:
            if sentences:
                self._jobs.setdefault(job, deque()).extend(sentences)  # a search may have put some back before
                self._changed.notify_all()

    def put_back(self, sentences: Sequence[Sentence]) -> None:
        """Add sentences before all others, except those of cancelled jobs."""
        with self._changed:
            for sentence in sentences:
                if not sentence.job.cancelled:
                    self._jobs.setdefault(sentence.job, deque()).appendleft(sentence)
                    self._jobs.move_to_end(sentence.job, last=False)
            self._changed.notify_all()

    def cancel(self, job: Job) -> None:
        """Remove the sentences of a job and mark it, so that searches drop the rest."""
        with self._changed:
            job.cancelled = True
            self._jobs.pop(job, None)

    def register(self, taker: object) -> None:
        """Announce a taker, before it takes for the first time."""
        with self._changed:
            self._loads[taker] = 0

    def take(self, taker: object, load: int, capacity: int) -> list[Sentence] | None:
        """Sentences for a taker to search in addition to those it has: one of each job in turn, while there is room.

        Among several takers, the one with the smallest load goes first. Blocks only while the taker has no load.

        Args:
            taker: as registered.
            load: rows the taker is searching.
            capacity: maximum rows of the taker; without load it gets one sentence in any case.

        Returns:
            Sentences; None if the queue is closed and the taker has no load, which ends its registration.
        """
        with self._changed:
            self._loads[taker] = load
            taken: list[Sentence] = []
            while not (taken := self._next(taker, capacity)) and not self._loads[taker]:
                if self._closed:
                    # A thread that the queue still knew would be a cycle, and its model would stay until the next
                    # garbage collection.
                    del self._loads[taker]
                    return None
                self._changed.wait()
            return taken

    def _next(self, taker: object, capacity: int) -> list[Sentence]:
        taken: list[Sentence] = []
        while self._jobs:
            job = self._whose_turn()
            waiting = self._jobs[job]
            load, beam = self._loads[taker], job.key.search.beam
            if load and (load + beam > capacity or load > min(self._loads.values())):
                break
            taken.append(waiting.popleft())
            self._loads[taker] += beam
            if waiting:
                self._jobs.move_to_end(job)
            else:
                del self._jobs[job]
        return taken

    def _whose_turn(self) -> Job:
        """The next job in turn; of the large ones, only the first takes part."""
        large = {job for job, waiting in self._jobs.items() if _is_large(waiting)}
        first = min(large, key=_number, default=None)
        return next(job for job in self._jobs if job is first or job not in large)

    def close(self) -> None:
        """Let takers end once nothing is left to take."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _is_large(waiting: Sequence[Sentence]) -> bool:
    return len(waiting) > LARGE or sum(len(sentence.ids) for sentence in waiting) > LARGE_TOKENS


def _number(job: Job) -> int:
    return job.number
