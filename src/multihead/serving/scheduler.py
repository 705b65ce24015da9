"""Admission and life of a request, draining.

Everything here runs in the event loop's thread. A request is in flight from `Scheduler.admit` on. Whatever ends it
(result, time limit, disconnect, error) frees its place and removes its sentences from the searches.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from multihead.errors import MultiheadError
from multihead.judging.analysis import PairAnalysis
from multihead.serving import requests, responses
from multihead.serving.error_responses import ApiError, internal_error, retry_later, server_stopped
from multihead.serving.loaded_model import LoadedModel
from multihead.serving.log import Log
from multihead.serving.metrics import Metrics, SlidingRate
from multihead.serving.models import Models
from multihead.serving.queue import Job
from multihead.serving.requests import PreparedRequest
from multihead.serving.schema import ApiRequest, GuardChoice, TranslatedText
from multihead.serving.served_model import LoadingContext, ModelSource, ServedModel
from multihead.serving.settings import ServeSettings
from multihead.serving.work_thread import finish_all
from multihead.translating.translator import Translator

_INLINE_SIZE = 4000
"""Maximum characters times n-best processed in the event loop's thread; more would delay other requests."""

T = TypeVar("T")


class Flight:
    """What can end a request from outside, from its arrival on; made in the event loop."""

    def __init__(self) -> None:
        self.aborted: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        """Resolves to the reason if the request is aborted."""
        self.job: Job | None = None
        """What is being searched for it."""

    def abort(self, reason: Exception) -> None:
        """Stop working on the request, because its client disconnected or the server ends."""
        if self.job is not None:
            self.job.fail(reason)
        if not self.aborted.done():
            self.aborted.set_result(reason)


@dataclass(frozen=True, eq=False)
class ActiveRequest:
    """A request that is being searched."""

    served: ServedModel
    model: LoadedModel
    prepared: PreparedRequest
    job: Job
    flight: Flight
    pivoted: Sequence[TranslatedText] = ()
    """Through a pivot: the translations into it, which are being translated."""

    @property
    def partial_text(self) -> str:
        """The translation of the first text as far as it is known."""
        return responses.partial_text(self.prepared, self.job, self.model.translator)

    async def build_texts(self, default_guard: GuardChoice, max_answer: int) -> list[TranslatedText]:
        """The translations of a finished job, with everything the request asks for.

        Raises:
            ApiError: 422, they would take more than ``max_answer`` bytes.
        """
        prepared, model = self.prepared, self.model
        request, translator = prepared.request, model.translator
        if translator.bundle.target_tokenizer.copied:
            again = partial(responses.search_placeholders, prepared, self.job, translator)
            await model.run_in_slices(again, [float(len(row)) for row in prepared.rows])
        results = await _run(request, partial(responses.collect_results, prepared, self.job, translator))
        if model.weights is not None:
            choose = partial(responses.choose_results, prepared, self.job, results, translator, model.weights)
            results = await model.run_in_slices(choose, responses.costs(prepared, results))
        responses.check_size(responses.text_bytes(request, results), max_answer)
        mode = request.guard or default_guard
        if mode != "off":
            judge = partial(responses.judge_results, prepared, results, translator, mode)
            results = await model.run_in_slices(judge, responses.costs(prepared, results))
        if not request.alignment and not request.alternatives:
            return await _run(request, partial(responses.build_texts, prepared, results, None))
        inspect = partial(responses.inspect_results, prepared, results, translator)
        sizes, costs = responses.InspectionSizes(prepared), responses.costs(prepared, results)

        def check(found: list[PairAnalysis]) -> None:
            responses.check_size(sizes.add(found), max_answer)

        inspected = await model.run_in_slices(inspect, costs, check)
        return await model.run_last(partial(responses.build_texts, prepared, results, inspected))


class Scheduler:
    """State of the server: its models and the requests in flight.

    Args:
        settings: limits and defaults.
        load: loads the only model; or several models, which are loaded with the first request for them.
        threads: number of threads of the compiled search.
        say: called with each line of the log.
        collect_garbage: see `LoadingContext`.
    """

    def __init__(
        self,
        settings: ServeSettings,
        load: Callable[[], Translator] | Sequence[ModelSource],
        threads: int,
        say: Callable[[str], None],
        collect_garbage: Callable[[], object] = gc.collect,
    ) -> None:
        self.settings, self.metrics, self.say = settings, Metrics(), Log(say)
        context = LoadingContext(threads, settings.max_tokens + 1, self.metrics, self.say, collect_garbage)
        sources = load if isinstance(load, Sequence) else [ModelSource(load)]
        self.models = Models(sources, context, settings.memory_bytes, settings.pivot or ())
        self.draining = False
        """Whether the server is shutting down: no request is admitted, no model is loaded."""
        self.abandoned = False
        """Whether a model was still being loaded when the server ended."""
        self._ends_at = math.inf
        self._active: set[ActiveRequest] = set()
        self._flights: set[Flight] = set()
        self._sentences, self._tokens = SlidingRate(), SlidingRate()
        self._loads: set[asyncio.Task[None]] = set()
        self._add_gauges()

    def _add_gauges(self) -> None:
        add = self.metrics.add_gauge
        add("multihead_requests_in_hand", "Requests admitted and not answered.", lambda: self.in_flight)
        add("multihead_queue_sentences", "Sentences that wait.", lambda: self._waiting)
        add(
            "multihead_batch_rows",
            "Hypotheses being searched.",
            lambda: sum(model.rows for model in self.models.loaded),
        )
        add(
            "multihead_batch_sentences",
            "Sentences admitted that do not wait.",
            lambda: self._remaining_sentences - self._waiting,
        )
        add("multihead_tokens_per_second", "Tokens of translations in the last ten seconds.", self._tokens.value)
        add(
            "multihead_model_generation",
            "Number of times that the first model was loaded.",
            lambda: self.models.default.generation,
        )
        add("multihead_models_loaded", "Models in memory.", lambda: len(self.models.loaded))

    @property
    def model(self) -> LoadedModel | None:
        """The first model, if it is loaded."""
        return self.models.default.loaded

    @property
    def load_error(self) -> MultiheadError | None:
        """Why the only model could not be loaded, if it never was."""
        only = self.models.default
        return None if self.models.lazy or only.loaded is not None else only.load_error

    @property
    def in_flight(self) -> int:
        """Requests admitted and not answered."""
        return len(self._flights)

    @property
    def _waiting(self) -> int:
        return sum(model.waiting for model in self.models.loaded)

    @property
    def _remaining_sentences(self) -> int:
        return sum(active.job.remaining for active in self._active)

    def check_ready(self) -> None:
        """Whether requests are admitted.

        Raises:
            ApiError: 503, the only model is not loaded yet, or the server is shutting down.
        """
        if self.draining:
            raise retry_later("draining", "the server is shutting down; try another server, or try again later", 5)
        if not self.models.lazy and self.model is None:
            raise retry_later("loading", "the model is being loaded; try again in a moment", 2)

    @contextlib.asynccontextmanager
    async def admit(
        self, request: ApiRequest, flight: Flight | None = None, streamed: bool = False
    ) -> AsyncIterator[ActiveRequest]:
        """Start searching a request; it is in flight until the block ends.

        Raises:
            ApiError: 422, 429 or 503.
            ClientDisconnect: the flight was aborted for that reason before the search.
        """
        self.check_ready()
        models = self.models.route(request.source, request.target, request.pivot, request.model)
        requests.check_limits(request, self.settings)
        if len(models) > 1:
            requests.check_pivot(request)
        if self.in_flight >= self.settings.queue:
            raise self._queue_full()
        flight = flight or Flight()
        self._flights.add(flight)
        try:
            pivoted: list[TranslatedText] = []
            if len(models) > 1:
                pivoted = await self._translate_to_pivot(models[0], request, flight)
                request = request.of_pivot([one.text for one in pivoted])
            active = await self._begin(models[-1], request, flight, streamed, pivoted)
            try:
                yield active
            finally:
                self._end(active)
        finally:
            self._flights.discard(flight)

    async def _translate_to_pivot(
        self, served: ServedModel, request: ApiRequest, flight: Flight
    ) -> list[TranslatedText]:
        active = await self._begin(served, request.to_pivot(), flight, False)
        try:
            return await self.finish(active)
        finally:
            self._end(active)

    async def _begin(
        self,
        served: ServedModel,
        request: ApiRequest,
        flight: Flight,
        streamed: bool,
        pivoted: Sequence[TranslatedText] = (),
    ) -> ActiveRequest:
        model = await self._acquire(served, flight)
        try:
            chooses = model.weights is not None
            prepare = partial(requests.prepare, request, model.translator, self.settings, chooses)
            prepared = await _run(request, prepare)
            if flight.aborted.done():
                raise flight.aborted.result()
        except BaseException:
            self.models.release(served, model)
            raise
        job = flight.job = Job(prepared.key, prepared.rows, prepared.prefix, streamed, prepared.phrases)
        active = ActiveRequest(served, model, prepared, job, flight, pivoted)
        self._active.add(active)
        model.submit(job)
        return active

    def _end(self, active: ActiveRequest) -> None:
        self._active.discard(active)
        active.model.cancel(active.job)
        _retrieve_exception(active.job.done)
        self.models.release(active.served, active.model)

    async def _acquire(self, served: ServedModel, flight: Flight) -> LoadedModel:
        """Wait until the model is loaded, or the request is aborted."""
        if served.loaded is not None and not served.leaving:
            return await self.models.acquire(served)
        acquiring = asyncio.create_task(self.models.acquire(served))
        either: set[asyncio.Future[Any]] = {acquiring, flight.aborted}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not acquiring.done():
                raise flight.aborted.result()
        except BaseException:
            if acquiring.done() and not acquiring.exception():
                self.models.release(served, acquiring.result())
            _retrieve_exception(acquiring)
            raise
        return acquiring.result()

    def _queue_full(self) -> ApiError:
        """429; Retry-After is the time the requests in flight take at the recent rate."""
        rate = self._sentences.value()
        seconds = min(max(math.ceil(self._remaining_sentences / rate), 1), 60) if rate else 1
        limit = self.settings.queue
        return retry_later(
            "queue_full", f"{limit} requests are in progress, the maximum; try again later", seconds, 429
        )

    async def finish(self, active: ActiveRequest) -> list[TranslatedText]:
        """Wait for a request's translations, or until it is aborted.

        Raises:
            ApiError: 500, the search failed; 503, the server ends.
            ClientDisconnect: the client disconnected.
        """
        building = asyncio.create_task(self._finish(active))
        either: set[asyncio.Future[Any]] = {building, active.flight.aborted}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if building.done():
                return building.result()
            raise active.flight.aborted.result()
        finally:
            _retrieve_exception(building)

    async def _finish(self, active: ActiveRequest) -> list[TranslatedText]:
        try:
            await active.job.done
            texts = await active.build_texts(self.settings.guard, self.settings.max_answer)
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
        active.served.count_request()
        return responses.join_pivoted(active.pivoted, texts) if active.pivoted else texts

    def log_internal_error(self, error: BaseException) -> ApiError:
        """Log an unexpected exception; the response does not contain it."""
        self.say(f"internal error: {type(error).__name__}: {error}")
        return internal_error()

    async def load_model(self) -> None:
        """Load the models in memory again; a single model also for the first time (`load_error`)."""
        await self.models.reload()

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

    def drain(self) -> None:
        """Admit no more requests; those in flight have the seconds of `ServeSettings.drain`."""
        loop = asyncio.get_running_loop()
        self.draining, self._ends_at = True, loop.time() + self.settings.drain
        loop.call_later(self.settings.drain, self.abort_all)

    def abort_all(self) -> None:
        """Answer every request in flight with 503, because the time to drain is over."""
        for flight in self._flights:
            flight.abort(server_stopped())

    async def close(self) -> None:
        """End the models' threads; called without requests in flight."""
        self.draining = True
        now = asyncio.get_running_loop().time()
        ends_at = min(self._ends_at, now + self.settings.drain)
        loaded = await finish_all(list(self._loads), max(ends_at - now, 0))
        closed = await self.models.close(max(ends_at - asyncio.get_running_loop().time(), 0))
        self.abandoned = not (loaded and closed)
        if self.abandoned:
            self.say("a model was still being loaded")


async def _run(request: ApiRequest, function: Callable[[], T]) -> T:
    """Call a function whose time grows with the request, in a thread if the request is large or has a glossary."""
    size = (sum(map(len, request.texts)) + len(request.prefix or "")) * request.n_best
    return function() if size <= _INLINE_SIZE and not request.glossary else await asyncio.to_thread(function)


def _retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Cancel a future, or mark its exception as retrieved; asyncio would log it otherwise."""
    if not future.cancel() and not future.cancelled():
        future.exception()
