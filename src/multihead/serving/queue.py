"""Sentences on their way from a request to a search and back; and the queue that is fair between requests.

A `Job` is a request's sentences. Searches take sentences from a `Queue`, one of each job in turn, so that a document of
five hundred lines does not keep a single sentence waiting. A job that is dropped leaves at once what waits, and the
searches let go of what runs at their next look. Threads meet here and nowhere else: a queue has a lock, and results
come back by a function that the event loop hands in (`Post`).
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from multihead.decoding.hypothesis import Hypothesis
from multihead.translating.search_settings import SearchSettings

_numbers = itertools.count()

Post = Callable[[Callable[[], None]], None]
"""Has something done in the event loop's thread, soon, from any other."""


@dataclass(frozen=True)
class Kind:
    """What sentences must have in common to be searched together."""

    settings: SearchSettings
    n_best: int


class Sentence:
    """A sentence, and what was found for it.

    Args:
        job: whose it is.
        ids: its tokens, the end symbol included.
        prefix: tokens that its translation begins with.
    """

    def __init__(self, job: Job, ids: list[int], prefix: list[int]) -> None:
        self.number = next(_numbers)
        """No other sentence of this process has it."""
        self.job, self.ids, self.prefix = job, ids, prefix
        self.alone = False
        """Whether it is searched by itself: something went wrong beside others."""
        self.leading: tuple[int, ...] = ()
        """The best so far, for somebody who watches."""
        self.found: list[Hypothesis] = []

    @property
    def limit(self) -> int:
        """The most tokens of its translation, the end symbol counted."""
        return self.job.kind.settings.limit(len(self.ids))


class Job:
    """The sentences of a request, in order; made, settled and waited for in the event loop's thread.

    Args:
        kind: how they are searched.
        rows: tokens of each, the end symbol included.
        prefix: tokens that the first translation begins with.
        watched: whether somebody wants to see translations grow.
    """

    def __init__(self, kind: Kind, rows: Sequence[list[int]], prefix: list[int], watched: bool) -> None:
        self.kind, self.watched = kind, watched
        self.sentences = [Sentence(self, row, [] if place else prefix) for place, row in enumerate(rows)]
        self.left = len(self.sentences)
        """Not yet found."""
        self.dropped = False
        self.changed = asyncio.Event()
        """Set whenever something is new, for somebody who watches."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Its result is that everything was found; or the exception says what went wrong."""
        if not self.left:
            self.done.set_result(None)

    def settle(self, sentence: Sentence, found: list[Hypothesis]) -> None:
        """One of the sentences was found."""
        sentence.found = found
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(None)
        self.changed.set()

    def fail(self, error: Exception) -> None:
        """One could not be."""
        if not self.done.done():
            self.done.set_exception(error)
        self.changed.set()

    def grow(self, sentence: Sentence, leading: tuple[int, ...]) -> None:
        """One goes on."""
        sentence.leading = leading
        self.changed.set()


class Queue:
    """Jobs that have sentences waiting; whoever searches takes from it, from a thread of its own."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: OrderedDict[Job, deque[Sentence]] = OrderedDict()
        """What waits here of each job, in the order of their turns. A job can have sentences in two queues."""
        self._loads: dict[object, int] = {}
        self._closed = False

    def __len__(self) -> int:
        with self._changed:
            return sum(map(len, self._jobs.values()))

    @property
    def running(self) -> int:
        """Rows (a hypothesis each) that those who take from it are busy with."""
        with self._changed:
            return sum(self._loads.values())

    def put(self, job: Job) -> None:
        """Its sentences wait."""
        with self._changed:
            if job.sentences:
                self._jobs[job] = deque(job.sentences)
                self._changed.notify_all()

    def put_back(self, sentences: Sequence[Sentence]) -> None:
        """These wait once more, before all others; but for those that nobody waits for any more."""
        with self._changed:
            for sentence in sentences:
                if not sentence.job.dropped:
                    self._jobs.setdefault(sentence.job, deque()).appendleft(sentence)
                    self._jobs.move_to_end(sentence.job, last=False)
            self._changed.notify_all()

    def drop(self, job: Job) -> None:
        """Nobody waits for it any more."""
        with self._changed:
            job.dropped = True
            self._jobs.pop(job, None)

    def join(self, who: object) -> None:
        """Somebody who is going to take."""
        with self._changed:
            self._loads[who] = 0

    def take(self, who: object, load: int, places: int) -> list[Sentence] | None:
        """What somebody should search besides what they have: of each job a sentence in turn, while there is room.

        Of several takers the one with the least to do takes first. Blocks while a taker has nothing at all to do.

        Args:
            who: as they joined.
            load: rows that they are busy with.
            places: rows that they can be busy with; one sentence is taken in any case by who has nothing to do.

        Returns:
            Sentences; None when the queue is closed and there is nothing to do.
        """
        with self._changed:
            self._loads[who] = load
            taken: list[Sentence] = []
            while not (taken := self._next(who, places)) and not self._loads[who]:
                if self._closed:
                    return None
                self._changed.wait()
            return taken

    def _next(self, who: object, places: int) -> list[Sentence]:
        taken: list[Sentence] = []
        while self._jobs:
            job, waiting = next(iter(self._jobs.items()))
            load, beam = self._loads[who], job.kind.settings.beam
            if load and (load + beam > places or load > min(self._loads.values())):
                break
            taken.append(waiting.popleft())
            self._loads[who] += beam
            if waiting:
                self._jobs.move_to_end(job)
            else:
                del self._jobs[job]
        return taken

    def close(self) -> None:
        """Who has nothing to do any more is told to end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
