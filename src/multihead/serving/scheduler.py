"""Who is let in, and what becomes of a request: admission, waiting, time limit, reload, drain.

Everything here runs in the event loop's thread. A request is in hand from `Desk.work` on; whatever ends it (done, time,
a client that is gone, an error) gives its place back and takes its sentences out of the searches.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from multihead.errors import MultiheadError
from multihead.serving import responses as answers
from multihead.serving.error_responses import Refusal, internal_error, later, no_time
from multihead.serving.loaded_model import Generation
from multihead.serving.metrics import Metrics, Rate
from multihead.serving.queue import Job
from multihead.serving.responses import Prepared
from multihead.serving.schema import Answer, Asked, Guarding
from multihead.serving.settings import ServeSettings
from multihead.translating.translator import Translator

_SHORT = 4000
"""Characters, times the n best, that are read and written at once; more are in a thread: nobody waits for it."""

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Work:
    """A request in hand."""

    generation: Generation
    prepared: Prepared
    job: Job
    over: asyncio.Future[Exception]
    """Why nothing more is to be done for it, once that is so."""

    def end(self, why: Exception) -> None:
        """Nothing more is done for it: its client is gone, or the server has no more time."""
        self.job.fail(why)
        if not self.over.done():
            self.over.set_result(why)

    @property
    def so_far(self) -> str:
        """What there is of the translation of its first text."""
        return answers.so_far(self.prepared, self.job, self.generation.translator)

    async def answers(self, guard: Guarding) -> list[Answer]:
        """Of a job that is done: the translations, and what else was asked for."""
        asked, translator, besides = self.prepared.asked, self.generation.translator, self.generation.besides
        found = await _done(asked, partial(answers.results_of, self.prepared, self.job, translator))
        mode, seen, count = asked.guard or guard, None, len(found)
        if mode != "off":
            found = await besides(partial(answers.guarded, self.prepared, found, translator, mode), count)
        if asked.alignment or asked.alternatives:
            seen = await besides(partial(answers.inspected, self.prepared, found, translator), count)
        return await _done(asked, partial(answers.answers, self.prepared, found, seen))


class Desk:
    """The server's state: the model, and who is in hand.

    Args:
        settings: what is taken.
        load: reads the model, in a thread; called again for a reload.
        lanes: threads of the compiled search.
        say: a line for the log.
        settled: called when a model is loaded, and when an old one has gone. A model is full of circles, so an old one
            would stay until Python looks for them of its own accord.
    """

    def __init__(
        self,
        settings: ServeSettings,
        load: Callable[[], Translator],
        lanes: int,
        say: Callable[[str], None],
        settled: Callable[[], object] = gc.collect,
    ) -> None:
        self.settings, self.say, self.metrics = settings, say, Metrics()
        self._load, self._lanes, self._settled = load, lanes, settled
        self.generation: Generation | None = None
        self.draining = False
        self.failed: MultiheadError | None = None
        """Why there is no model, where the first could not be loaded."""
        self._works: set[Work] = set()
        self._count = 0
        self._given_up = False
        self._sentences, self._tokens = Rate(), Rate()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch()

    def _watch(self) -> None:
        watch = self.metrics.watch
        watch("multihead_requests_in_hand", "Requests admitted and not answered.", lambda: self.in_hand)
        watch("multihead_queue_sentences", "Sentences that wait.", lambda: self._of("waiting"))
        watch("multihead_batch_rows", "Hypotheses that are being extended.", lambda: self._of("rows"))
        watch(
            "multihead_batch_sentences",
            "Sentences admitted that do not wait.",
            lambda: self._left - self._of("waiting"),
        )
        watch("multihead_tokens_per_second", "Tokens of translations in the last ten seconds.", self._tokens.value)
        watch(
            "multihead_model_generation", "1, and one more with every model loaded since.", lambda: self._of("number")
        )

    def _of(self, name: str) -> float:
        return 0.0 if self.generation is None else float(getattr(self.generation, name))

    @property
    def in_hand(self) -> int:
        """Requests admitted and not answered."""
        return self._count

    @property
    def _left(self) -> int:
        return sum(work.job.left for work in self._works)

    def ready(self) -> Generation:
        """The model that serves.

        Raises:
            Refusal: 503, there is none yet, or no more.
        """
        if self.draining:
            raise later("draining", "the server is shutting down; ask again elsewhere or later", 5)
        if self.generation is None:
            raise later("loading", "the model is being loaded; ask again in a moment", 2)
        return self.generation

    @contextlib.asynccontextmanager
    async def work(self, asked: Asked, watched: bool = False) -> AsyncIterator[Work]:
        """A request in hand, being searched, until the block ends.

        Raises:
            Refusal: 422, 429 or 503.
        """
        generation = self.ready()
        answers.check_counts(asked, self.settings)
        if self._count >= self.settings.queue:
            raise self._full()
        self._count += 1
        generation.jobs += 1
        try:
            prepared = await _done(asked, partial(answers.prepare, asked, generation.translator, self.settings))
            if self._given_up:
                raise no_time()
            job = Job(prepared.kind, prepared.rows, prepared.prefix, watched)
            work = Work(generation, prepared, job, asyncio.get_running_loop().create_future())
            self._works.add(work)
            generation.begin(job)
            try:
                yield work
            finally:
                self._works.discard(work)
                generation.drop(job)
                if not job.done.cancel() and not job.done.cancelled():
                    job.done.exception()  # somebody has heard of it, even where nobody waited
        finally:
            self._count -= 1
            generation.jobs -= 1

    def _full(self) -> Refusal:
        """429, with the seconds that what is in hand takes at the rate of late."""
        rate = self._sentences.value()
        seconds = min(max(math.ceil(self._left / rate), 1), 60) if rate else 1
        most = self.settings.queue
        return later("queue_full", f"{most} requests are in hand, as many as are taken; ask again", seconds, 429)

    async def finish(self, work: Work) -> list[Answer]:
        """Waits for a job, and says what was found; it ends early where the work does.

        Raises:
            Refusal: 500, it could not be searched; 503, the server ends.
            ClientGone: nobody waits for it.
        """
        making = asyncio.create_task(self._made(work))
        either: set[asyncio.Future[Any]] = {making, work.over}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if making.done():
                return making.result()
            raise work.over.result()
        finally:
            if not making.cancel() and not making.cancelled():
                making.exception()  # somebody has heard of it, even where nobody waited

    async def _made(self, work: Work) -> list[Answer]:
        try:
            await work.job.done
            made = await work.answers(self.settings.guard)
        except Refusal:
            raise
        except MultiheadError as error:
            self.say(f"a translation failed: {error}")
            message = "this model could not translate the text; the server's log says why"
            raise Refusal(500, "translation_failed", message) from None
        counts = [answers.tokens_of(sentence.found) for sentence in work.job.sentences]
        self._sentences.add(len(counts))
        self._tokens.add(sum(counts))
        self.metrics.sentences.inc(len(counts))
        self.metrics.tokens.inc(sum(counts))
        return made

    async def load(self) -> None:
        """Loads the model, or loads it anew and serves with that from then on; an old one ends what it has in hand.

        One that cannot be loaded is refused, and the log says so; without an old one it is `failed`.
        """
        old, loop = self.generation, asyncio.get_running_loop()
        try:
            translator = await asyncio.to_thread(self._load)
            number = 1 if old is None else old.number + 1
            longest = self.settings.max_tokens + 1
            new = Generation(number, translator, self._lanes, longest, partial(_post, loop))
        except Exception as error:  # whatever is wrong with it, the old one stays
            self.metrics.reloads.labels("refused").inc()
            stays = "" if old is None else "; the old model stays"
            self.say(f"the model cannot be loaded: {error or type(error).__name__}{stays}")
            if old is None:
                self.failed = error if isinstance(error, MultiheadError) else MultiheadError(str(error))
            return
        self.generation = new
        self._settled()
        self.metrics.reloads.labels("loaded").inc()
        self.say(f"serving model {number}: {translator.bundle.model.config.summary}")
        if old is not None:
            await self._retire(old)
            old = None
            self._settled()

    async def _retire(self, old: Generation) -> None:
        while old.jobs:
            await asyncio.sleep(0.05)
        await old.close()

    def begin(self) -> asyncio.Task[None]:
        """`load`, meanwhile; a second one waits for the first, and who is about to end loads nothing any more."""
        task = asyncio.get_running_loop().create_task(self._in_turn(list(self._tasks)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _in_turn(self, before: list[asyncio.Task[None]]) -> None:
        if before:
            await asyncio.wait(before)
        if not self.draining:
            await self.load()

    def give_up(self) -> None:
        """What is in hand is answered with 503: the server has no more time."""
        self._given_up = True
        for work in self._works:
            work.end(no_time())

    async def close(self) -> None:
        """Ends the model's threads, when nothing is in hand any more."""
        self.draining = True
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        if self.generation is not None:
            await self.generation.close()


async def _done(asked: Asked, act: Callable[[], T]) -> T:
    """Something that takes the longer the longer a request's texts are, and the more of them are wanted back."""
    size = (sum(map(len, asked.texts)) + len(asked.prefix or "")) * asked.n_best
    return act() if size <= _SHORT else await asyncio.to_thread(act)


def _post(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(act)


def unforeseen(desk: Desk, error: BaseException) -> Refusal:
    """What a client is told of a mistake of ours; the log has the rest."""
    desk.say(f"internal error: {type(error).__name__}: {error}")
    return internal_error()
