"""Admission and life of a request, reloading, draining, metrics.

Everything here runs in the event loop's thread. A request is in flight from `Scheduler.admit` on. Whatever ends it
(result, time limit, disconnect, error) frees its place and removes its sentences from the searches.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from multihead.errors import MultiheadError
from multihead.serving import requests, responses
from multihead.serving.error_responses import ApiError, internal_error, retry_later, server_stopped
from multihead.serving.loaded_model import LoadedModel
from multihead.serving.queue import Job
from multihead.serving.requests import PreparedRequest
from multihead.serving.schema import ApiRequest, GuardChoice, TranslatedText
from multihead.serving.settings import ServeSettings
from multihead.translating.translator import Translator

_INLINE_SIZE = 4000
"""Maximum characters times n-best processed in the event loop's thread; more would delay other requests."""

T = TypeVar("T")


class SlidingRate:
    """Events per second over a sliding window.

    Args:
        window: length in seconds.
        clock: returns seconds.
    """

    def __init__(self, window: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._window, self._clock, self._began = window, clock, clock()
        self._counts: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, count: int) -> None:
        """Count events that happened now."""
        self._counts.append((self._clock(), count))
        self._sum += count
        self._forget()

    def value(self) -> float:
        """Events per second; 0 without events."""
        self._forget()
        return self._sum / max(min(self._window, self._clock() - self._began), 1.0)

    def _forget(self) -> None:
        while self._counts and self._counts[0][0] < self._clock() - self._window:
            self._sum -= self._counts.popleft()[1]


_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """Prometheus metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("multihead_requests", "Requests answered.", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "multihead_request_seconds", "From a request's first byte to its answer's last.", ["path"],
            buckets=_BUCKETS, registry=registry,
        )  # fmt: skip
        self.refused = Counter(
            "multihead_refused", "Requests refused, by their word for programs.", ["error"], registry=registry
        )
        self.disconnects = Counter(
            "multihead_clients_gone", "Requests whose client did not wait for the answer.", registry=registry
        )
        self.sentences = Counter("multihead_sentences", "Sentences translated.", registry=registry)
        self.tokens = Counter("multihead_tokens", "Tokens of translations, end symbols counted.", registry=registry)
        self.reloads = Counter(
            "multihead_reloads", "Models that were to be loaded anew.", ["result"], registry=registry
        )

    def add_gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Add a gauge that calls ``value`` whenever metrics are read."""
        Gauge(name, description, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)


@dataclass(frozen=True, eq=False)
class ActiveRequest:
    """A request in flight."""

    model: LoadedModel
    prepared: PreparedRequest
    job: Job
    aborted: asyncio.Future[Exception]
    """Resolves to the reason if the request is aborted."""

    def abort(self, reason: Exception) -> None:
        """Stop working on the request, because its client disconnected or the server ends."""
        self.job.fail(reason)
        if not self.aborted.done():
            self.aborted.set_result(reason)

    @property
    def partial_text(self) -> str:
        """The translation of the first text as far as it is known."""
        return responses.partial_text(self.prepared, self.job, self.model.translator)

    async def build_texts(self, default_guard: GuardChoice) -> list[TranslatedText]:
        """The translations of a finished job, with everything the request asks for."""
        request, translator, run_in_slices = self.prepared.request, self.model.translator, self.model.run_in_slices
        results = await _run(request, partial(responses.collect_results, self.prepared, self.job, translator))
        mode, inspected, count = request.guard or default_guard, None, len(results)
        if mode != "off":
            judge = partial(responses.judge_results, self.prepared, results, translator, mode)
            results = await run_in_slices(judge, count)
        if request.alignment or request.alternatives:
            inspect = partial(responses.inspect_results, self.prepared, results, translator)
            inspected = await run_in_slices(inspect, count)
        return await _run(request, partial(responses.build_texts, self.prepared, results, inspected))


class Scheduler:
    """State of the server: the loaded model and the requests in flight.

    Args:
        settings: limits and defaults.
        load: loads the model; called in a thread, at the start and for every reload.
        threads: number of threads of the compiled search.
        say: called with each line of the log.
        collect_garbage: called after a model was loaded and after an old one was closed. A model has reference cycles,
            so an old one would otherwise stay in memory until Python collects garbage by itself.
    """

    def __init__(
        self,
        settings: ServeSettings,
        load: Callable[[], Translator],
        threads: int,
        say: Callable[[str], None],
        collect_garbage: Callable[[], object] = gc.collect,
    ) -> None:
        self.settings, self.say, self.metrics = settings, say, Metrics()
        self._load, self._threads, self._collect_garbage = load, threads, collect_garbage
        self.model: LoadedModel | None = None
        self.draining = False
        """Whether the server is shutting down: no request is admitted, no model is loaded."""
        self.load_error: MultiheadError | None = None
        """Why the first model could not be loaded."""
        self._active: set[ActiveRequest] = set()
        self._count = 0
        self._aborted = False
        self._sentences, self._tokens = SlidingRate(), SlidingRate()
        self._loads: set[asyncio.Task[None]] = set()
        self._add_gauges()

    def _add_gauges(self) -> None:
        add = self.metrics.add_gauge
        add("multihead_requests_in_hand", "Requests admitted and not answered.", lambda: self.in_flight)
        add("multihead_queue_sentences", "Sentences that wait.", lambda: self._of_model("waiting"))
        add("multihead_batch_rows", "Hypotheses that are being extended.", lambda: self._of_model("rows"))
        add(
            "multihead_batch_sentences",
            "Sentences admitted that do not wait.",
            lambda: self._remaining_sentences - self._of_model("waiting"),
        )
        add("multihead_tokens_per_second", "Tokens of translations in the last ten seconds.", self._tokens.value)
        add(
            "multihead_model_generation",
            "1, and one more with every model loaded since.",
            lambda: self._of_model("generation"),
        )

    def _of_model(self, name: str) -> float:
        return 0.0 if self.model is None else float(getattr(self.model, name))

    @property
    def in_flight(self) -> int:
        """Requests admitted and not answered."""
        return self._count

    @property
    def _remaining_sentences(self) -> int:
        return sum(active.job.remaining for active in self._active)

    def ready_model(self) -> LoadedModel:
        """The model that serves.

        Raises:
            ApiError: 503, there is none yet, or the server is shutting down.
        """
        if self.draining:
            raise retry_later("draining", "the server is shutting down; ask again elsewhere or later", 5)
        if self.model is None:
            raise retry_later("loading", "the model is being loaded; ask again in a moment", 2)
        return self.model

    @contextlib.asynccontextmanager
    async def admit(self, request: ApiRequest, streamed: bool = False) -> AsyncIterator[ActiveRequest]:
        """Start searching a request; it is in flight until the block ends.

        Raises:
            ApiError: 422, 429 or 503.
        """
        model = self.ready_model()
        requests.check_limits(request, self.settings)
        if self._count >= self.settings.queue:
            raise self._queue_full()
        self._count += 1
        model.requests += 1
        try:
            prepared = await _run(request, partial(requests.prepare, request, model.translator, self.settings))
            if self._aborted:
                raise server_stopped()
            job = Job(prepared.key, prepared.rows, prepared.prefix, streamed)
            active = ActiveRequest(model, prepared, job, asyncio.get_running_loop().create_future())
            self._active.add(active)
            model.submit(job)
            try:
                yield active
            finally:
                self._active.discard(active)
                model.cancel(job)
                _retrieve_exception(job.done)
        finally:
            self._count -= 1
            model.requests -= 1

    def _queue_full(self) -> ApiError:
        """429; Retry-After is the time the requests in flight take at the recent rate."""
        rate = self._sentences.value()
        seconds = min(max(math.ceil(self._remaining_sentences / rate), 1), 60) if rate else 1
        limit = self.settings.queue
        return retry_later("queue_full", f"{limit} requests are in hand, as many as are taken; ask again", seconds, 429)

    async def finish(self, active: ActiveRequest) -> list[TranslatedText]:
        """Wait for a request's translations, or until it is aborted.

        Raises:
            ApiError: 500, the search failed; 503, the server ends.
            ClientDisconnect: the client disconnected.
        """
        building = asyncio.create_task(self._finish(active))
        either: set[asyncio.Future[Any]] = {building, active.aborted}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if building.done():
                return building.result()
            raise active.aborted.result()
        finally:
            _retrieve_exception(building)

    async def _finish(self, active: ActiveRequest) -> list[TranslatedText]:
        try:
            await active.job.done
            texts = await active.build_texts(self.settings.guard)
        except ApiError:
            raise
        except MultiheadError as error:
            self.say(f"a translation failed: {error}")
            message = "this model could not translate the text; the server's log says why"
            raise ApiError(500, "translation_failed", message) from None
        counts = [responses.count_tokens(sentence.hypotheses) for sentence in active.job.sentences]
        self._sentences.add(len(counts))
        self._tokens.add(sum(counts))
        self.metrics.sentences.inc(len(counts))
        self.metrics.tokens.inc(sum(counts))
        return texts

    def log_internal_error(self, error: BaseException) -> ApiError:
        """Log an unexpected exception; the response does not contain it."""
        self.say(f"internal error: {type(error).__name__}: {error}")
        return internal_error()

    async def load_model(self) -> None:
        """Load the model and serve with it from then on; an old model finishes its requests and is closed.

        If loading fails, the old model stays; without one, `load_error` is set.
        """
        old, loop = self.model, asyncio.get_running_loop()
        try:
            translator = await asyncio.to_thread(self._load)
            generation = 1 if old is None else old.generation + 1
            longest = self.settings.max_tokens + 1
            new = LoadedModel(generation, translator, self._threads, longest, partial(_call_soon, loop))
        except Exception as error:  # whatever it is, the old model stays
            self.metrics.reloads.labels("refused").inc()
            suffix = "" if old is None else "; the old model stays"
            self.say(f"the model cannot be loaded: {error or type(error).__name__}{suffix}")
            if old is None:
                self.load_error = error if isinstance(error, MultiheadError) else MultiheadError(str(error))
            return
        self.model = new
        self._collect_garbage()
        self.metrics.reloads.labels("loaded").inc()
        self.say(f"serving model {generation}: {translator.bundle.model.config.summary}")
        if old is not None:
            while old.requests:
                await asyncio.sleep(0.05)
            await old.close()
            old = None
            self._collect_garbage()

    def start_loading(self) -> asyncio.Task[None]:
        """Run `load_model` in a task, after loads started earlier; does nothing if the server is shutting down."""
        task = asyncio.get_running_loop().create_task(self._load_after(list(self._loads)))
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)
        return task

    async def _load_after(self, earlier: list[asyncio.Task[None]]) -> None:
        if earlier:
            await asyncio.wait(earlier)
        if not self.draining:
            await self.load_model()

    def abort_all(self) -> None:
        """Answer every request in flight with 503, because the time to drain is over."""
        self._aborted = True
        for active in self._active:
            active.abort(server_stopped())

    async def close(self) -> None:
        """End the model's threads; called without requests in flight."""
        self.draining = True
        if self._loads:
            await asyncio.wait(list(self._loads))
        if self.model is not None:
            await self.model.close()


async def _run(request: ApiRequest, function: Callable[[], T]) -> T:
    """Call a function whose time grows with the request, in a thread if the request is large."""
    size = (sum(map(len, request.texts)) + len(request.prefix or "")) * request.n_best
    return function() if size <= _INLINE_SIZE else await asyncio.to_thread(function)


def _retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Cancel a future, or mark its exception as retrieved; asyncio would log it otherwise."""
    if not future.cancel() and not future.cancelled():
        future.exception()


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(callback)
