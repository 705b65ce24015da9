"""One loaded model and the threads that search with it; a reload makes another one, and this ends when it is idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from multihead.errors import MultiheadError
from multihead.judging.analysis import inspect_tokens
from multihead.serving.queue import Job, Post, Queue
from multihead.serving.search_thread import Lane
from multihead.serving.uncompiled import Eager
from multihead.translating.searching import Demands, not_compiled, symbols_of
from multihead.translating.translator import Translator

T = TypeVar("T")

SLICE = 16
"""Sentences of a request that are judged, or looked into, at a time."""


class Generation:
    """A model at work.

    Args:
        number: 1, and one more for each model that was loaded since.
        translator: the model.
        lanes: threads of the compiled search.
        longest: the most tokens of a sentence, its end symbol counted.
        post: into the event loop.
    """

    def __init__(self, number: int, translator: Translator, lanes: int, longest: int, post: Post) -> None:
        self.number, self.translator = number, translator
        self.jobs = 0
        """Requests in hand."""
        self.aligns = _aligns(translator)
        """Whether the model says where it looked."""
        self._waiting, self._aside = Queue(), Queue()
        engine = translator.engine
        bound = max(translator.search_settings().limit(longest), 2)
        symbols = symbols_of(translator.bundle.target_tokenizer)
        self._lanes = (
            []
            if engine is None
            else [Lane(engine, symbols, bound, self._waiting, self._aside, post) for _ in range(lanes)]
        )
        self._eager = Eager(translator, self._aside, post)
        self._besides = ThreadPoolExecutor(1, "besides")
        for thread in (*self._lanes, self._eager):
            thread.start()

    @property
    def compiled(self) -> bool:
        """Whether there are lanes."""
        return bool(self._lanes)

    @property
    def waiting(self) -> int:
        """Sentences that nobody has begun."""
        return len(self._waiting) + len(self._aside)

    @property
    def rows(self) -> int:
        """Hypotheses that are being extended."""
        return self._waiting.running + self._aside.running

    def begin(self, job: Job) -> None:
        """Its sentences are searched, in a lane where that can be."""
        prefixed = any(sentence.prefix for sentence in job.sentences)
        plain = self.compiled and not prefixed and not_compiled(job.kind.settings, Demands()) is None
        (self._waiting if plain else self._aside).put(job)

    def drop(self, job: Job) -> None:
        """Nobody waits for it any more."""
        for queue in (self._waiting, self._aside):
            queue.drop(job)

    async def besides(self, act: Callable[[slice], list[T]], count: int) -> list[T]:
        """What else is to be found for so many sentences: a few at a time in one thread, so requests take turns.

        Who is cancelled has no more of them done than those that are under way.
        """
        made: list[T] = []
        for start in range(0, count, SLICE):
            part = partial(act, slice(start, start + SLICE))
            made += await asyncio.get_running_loop().run_in_executor(self._besides, part)
        return made

    async def close(self) -> None:
        """Ends its threads when what they have in hand is done."""
        self._waiting.close()
        for lane in self._lanes:
            await asyncio.to_thread(lane.join)
        self._aside.close()
        await asyncio.to_thread(self._eager.join)
        self._besides.shutdown(wait=False, cancel_futures=True)


def _aligns(translator: Translator) -> bool:
    try:
        (seen,) = inspect_tokens(translator, [[]], [[]], 0)
    except MultiheadError:
        return False
    return seen.weights is not None


def load(folder: Path, search: Mapping[str, object], device: str) -> Translator:
    """Reads a model and tries it once: one that cannot translate a word is refused before it serves anybody.

    Raises:
        MultiheadError: the folder is damaged, or the model gives no numbers.
    """
    translator = Translator.load(folder, device)
    translator = translator.searching(**search)
    translator.translate(["a"])
    return translator
