"""The models of the server: chosen by languages, loaded within a limit.

A server has one model, loaded at the start, or several, loaded with the first request for them. With a memory limit,
the model whose last request is longest ago is unloaded first; it finishes its requests, and later ones wait until it
has been loaded again. Loads run one after the other, so models that exclude each other take turns.

A model counts with the bytes of its weights: the network's, and the packed copy of the compiled search. Before the
first load this is estimated from the files.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from multihead.errors import MultiheadError
from multihead.serving.error_responses import ApiError, retry_later
from multihead.serving.languages import match
from multihead.serving.loaded_model import LoadedModel, weight_bytes
from multihead.serving.metrics import Metrics
from multihead.serving.schema import ModelState
from multihead.serving.work_thread import call_in_daemon, finish_all
from multihead.translating.translator import Translator

RETRY_SECONDS = 10.0
"""Time after a failed load during which requests for the model are refused at once."""


class Pair(NamedTuple):
    """Source and target language."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from.

    Args:
        load: loads it; called in a thread.
        pair: its languages; None for those that it names itself.
        estimated_bytes: of its weights in memory.
    """

    load: Callable[[], Translator]
    pair: Pair | None = None
    estimated_bytes: int = 0


@dataclass(frozen=True)
class LoadingContext:
    """What loading a model needs besides the model.

    Args:
        threads: number of threads of the compiled search.
        longest: maximum source tokens of a sentence, including the end symbol.
        metrics: counts loads.
        say: called with each line of the log.
        collect_garbage: called after a model was loaded and after an old one was closed. A model has reference cycles,
            so an old one would otherwise stay in memory until Python collects garbage by itself.
    """

    threads: int
    longest: int
    metrics: Metrics
    say: Callable[[str], None]
    collect_garbage: Callable[[], object]


class ServedModel:
    """A model of the server, loaded or not.

    Args:
        source: where it comes from.
        context: what loading needs.
    """

    def __init__(self, source: ModelSource, context: LoadingContext) -> None:
        self._source, self._context = source, context
        self.loaded: LoadedModel | None = None
        self.generation = 0
        """Number of times it was loaded."""
        self.holds = 0
        """Requests that use it or wait for it."""
        self.last_used = 0.0
        self.loading: asyncio.Task[None] | None = None
        self.load_error: MultiheadError | None = None
        """Why the last load failed."""
        self.failed_at = -RETRY_SECONDS
        self.leaving = False
        """Whether it finishes its requests to make room."""
        self.left = asyncio.Event()
        self._bytes = source.estimated_bytes
        self.count_request = context.metrics.model_requests.labels(self.label).inc

    @property
    def pair(self) -> Pair | None:
        """Its languages; None if they are not known, or not known yet."""
        if self._source.pair is not None or self.loaded is None:
            return self._source.pair
        bundle = self.loaded.translator.bundle
        if bundle.source_language is None or bundle.target_language is None:
            return None
        return Pair(bundle.source_language, bundle.target_language)

    @property
    def name(self) -> str:
        """The language pair given for it."""
        return "the model" if self._source.pair is None else str(self._source.pair)

    @property
    def bytes(self) -> int:
        """Memory of its weights when it is loaded."""
        return self._bytes

    @property
    def state(self) -> ModelState:
        """What clients may know about it."""
        source, target = self.pair or (None, None)
        word: Literal["loaded", "loading", "unloading", "failed", "unloaded"]
        if self.loaded is not None:
            word = "unloading" if self.leaving else "loaded"
        elif self.loading is not None:
            word = "loading"
        else:
            word = "unloaded" if self.load_error is None else "failed"
        return ModelState(
            source=source, target=target, state=word, generation=self.generation, bytes=self.bytes, requests=self.holds
        )

    async def load(self) -> None:
        """Load it and serve with it from then on; an old model finishes its requests and is closed.

        If loading fails, `load_error` says why, and an old model stays.
        """
        old, context = self.loaded, self._context
        try:
            translator = await call_in_daemon(self._source.load)
            call_in_loop = partial(_call_soon, asyncio.get_running_loop())
            new = LoadedModel(self.generation + 1, translator, context.threads, context.longest, call_in_loop)
        except Exception as error:  # whatever it is, the old model stays
            context.metrics.reloads.labels("refused").inc()
            suffix = "" if old is None else "; the old model stays"
            context.say(f"{self.name} cannot be loaded: {error or type(error).__name__}{suffix}")
            # Without its traceback, whose frames hold the old model.
            self.load_error = error.with_traceback(None) if isinstance(error, MultiheadError) else _wrap(error)
            self.failed_at = time.monotonic()
            return
        self.loaded, self.load_error = new, None
        self.generation, self._bytes = new.generation, weight_bytes(translator)
        context.collect_garbage()
        context.metrics.reloads.labels("loaded").inc()
        context.metrics.model_bytes.labels(self.label).set(self._bytes)
        name = "" if self._source.pair is None else f"{self.name}, "
        context.say(f"serving {name}model {new.generation}: {translator.bundle.model.config.summary}")
        if old is not None:
            await _end(old)
            del old
            context.collect_garbage()

    @property
    def label(self) -> str:
        """Its name in metrics."""
        return "" if self._source.pair is None else self.name

    async def unload(self) -> None:
        """Close it; called without requests."""
        old, self.loaded = self.loaded, None
        if old is not None:
            await _end(old)
            del old
            self._context.collect_garbage()
            self._context.metrics.unloads.labels(self.label).inc()
            self._context.metrics.model_bytes.labels(self.label).set(0)
            self._context.say(f"unloaded {self.name}")


async def _end(old: LoadedModel) -> None:
    """Close a model once its requests are done."""
    while old.requests:
        await asyncio.sleep(0.05)
    await old.close()


def unsupported(name: str, code: str, known: Iterable[str]) -> ApiError:
    """No model has a language.

    Args:
        name: of the field.
        code: of the language.
        known: the languages of the server.
    """
    message = f"{name}: {code!r} is not supported; this server has {', '.join(sorted(known))}"
    return ApiError(422, "unsupported_languages", message)


def _wrap(error: Exception) -> MultiheadError:
    return MultiheadError(str(error) or type(error).__name__)


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(callback)


class Models:
    """All models of the server.

    Args:
        sources: one, whose languages may be unknown and which `reload` loads, or several with their languages, loaded
            with the first request.
        context: what loading needs.
        memory_limit: maximum bytes of weights in memory; None for no limit.
        pivots: languages through which texts are translated where no model has the pair, in order of preference.
    """

    def __init__(
        self,
        sources: Sequence[ModelSource],
        context: LoadingContext,
        memory_limit: int | None = None,
        pivots: Sequence[str] = (),
    ) -> None:
        self.all = [ServedModel(source, context) for source in sources]
        self.lazy = len(sources) > 1 or sources[0].pair is not None
        self._say, self._memory_limit, self._pivots = context.say, memory_limit, list(pivots)
        self._lock, self._released = asyncio.Lock(), asyncio.Event()
        self.closed = False
        """Whether nothing is loaded any more."""

    @property
    def default(self) -> ServedModel:
        """The model of a request that names no languages."""
        return self.all[0]

    @property
    def loaded(self) -> list[LoadedModel]:
        """The models in memory."""
        return [model.loaded for model in self.all if model.loaded is not None]

    @property
    def pairs(self) -> dict[Pair, list[ServedModel]]:
        """The models for every pair of languages: one, or two with a pivot between them."""
        direct = {model.pair: [model] for model in self.all if model.pair is not None}
        pairs = dict(direct)
        for pivot in self._pivots:
            for first, (before,) in direct.items():
                for second, (after,) in direct.items():
                    joined = Pair(first.source, second.target)
                    if first.target == second.source == pivot and joined.source != joined.target:
                        pairs.setdefault(joined, [before, after])
        return pairs

    def route(self, source: str | None, target: str | None, pivot: str | None = None) -> list[ServedModel]:
        """The models for languages as a client writes them: one, or two with a pivot between them.

        Raises:
            ApiError: 422, no model has the languages.
        """
        if source is None and target is None and pivot is None:
            return [self.default]
        pairs = self.pairs
        if not pairs:
            message = "the model does not name its languages: start the server with 'serve SOURCE-TARGET=MODEL'"
            raise ApiError(422, "unsupported_languages", message)
        source = self._language("source", source, {pair.source for pair in pairs})
        target = self._language("target", target, {pair.target for pair in pairs})
        if pivot is None:
            return self._models_of(pairs, source, target)
        pivot = self._language("pivot", pivot, {pair.target for pair in pairs})
        return [*self._direct(pairs, source, pivot), *self._direct(pairs, pivot, target)]

    @staticmethod
    def _language(name: str, code: str | None, known: set[str]) -> str | None:
        found = None if code is None else match(code, sorted(known))
        if code is not None and found is None:
            raise unsupported(name, code, known)
        return found

    @staticmethod
    def _models_of(pairs: dict[Pair, list[ServedModel]], source: str | None, target: str | None) -> list[ServedModel]:
        """A missing language is that of the only pair with the other one."""
        found = [pair for pair in pairs if source in (None, pair.source) and target in (None, pair.target)]
        if len(found) == 1:
            return pairs[found[0]]
        wanted = f"from {source or 'any language'} to {target or 'any language'}"
        problem = "no model translates" if not found else "several models translate"
        message = f"{problem} {wanted}; this server has {', '.join(map(str, pairs))}"
        raise ApiError(422, "unsupported_languages", message)

    def _direct(
        self, pairs: dict[Pair, list[ServedModel]], source: str | None, target: str | None
    ) -> list[ServedModel]:
        direct = {pair: models for pair, models in pairs.items() if len(models) == 1}
        return self._models_of(direct, source, target)

    async def acquire(self, model: ServedModel) -> LoadedModel:
        """Hold a model, loading it if necessary; `release` gives it back.

        Raises:
            ApiError: 503, it cannot be loaded, or is the only one and not loaded yet.
        """
        while model.leaving:
            await model.left.wait()
        model.holds += 1
        try:
            if model.loaded is None:
                await self._load_for_request(model)
            assert model.loaded is not None
        except BaseException:
            self._let_go(model)
            raise
        model.loaded.requests += 1
        return model.loaded

    def release(self, model: ServedModel, loaded: LoadedModel) -> None:
        """Give back a model."""
        loaded.requests -= 1
        self._let_go(model)

    def _let_go(self, model: ServedModel) -> None:
        model.holds -= 1
        model.last_used = time.monotonic()
        if not model.holds:
            self._released.set()

    async def _load_for_request(self, model: ServedModel) -> None:
        if not self.lazy:
            raise retry_later("loading", "the model is being loaded; ask again in a moment", 2)
        waited = RETRY_SECONDS - (time.monotonic() - model.failed_at)
        if waited <= 0:
            if model.loading is None:
                model.loading = asyncio.create_task(self._load(model))
            await asyncio.wait({model.loading})  # which goes on if this request ends
            waited = RETRY_SECONDS
        if model.loaded is None:
            message = f"{model.name} cannot be loaded now; the server's log says why"
            raise retry_later("model_unavailable", message, max(int(waited), 1))

    async def _load(self, model: ServedModel) -> None:
        try:
            async with self._lock:
                if self.closed:
                    return
                await self._make_room(model, model.bytes)
                if self.closed:
                    return
                self._say(f"loading {model.name}")
                await model.load()
                await self._make_room(model, 0)  # the estimate may have been too low
        finally:
            model.loading = None

    async def _make_room(self, model: ServedModel, needed: int) -> None:
        """Unload models until so many bytes are free, the one used longest ago first."""
        while self._memory_limit is not None:
            others = [other for other in self.all if other.loaded is not None and other is not model]
            used = sum(other.bytes for other in self.all if other.loaded is not None)
            if used + needed <= self._memory_limit or not others:
                return
            other = min(others, key=lambda one: (one.holds > 0, one.last_used))
            other.leaving = True
            other.left.clear()
            try:
                while other.holds:
                    self._released.clear()
                    await self._released.wait()
                await other.unload()
            finally:
                other.leaving = False
                other.left.set()

    async def reload(self) -> None:
        """Load every model in memory again, one after the other; a single model also for the first time."""
        for model in self.all:
            if not self.lazy or model.loaded is not None:
                async with self._lock:
                    if not self.closed and (not self.lazy or model.loaded is not None):
                        await model.load()

    async def close(self, seconds: float) -> bool:
        """End all threads; called without requests.

        Args:
            seconds: time for models that are being loaded; after it they are given up.

        Returns:
            Whether none was given up.
        """
        self.closed = True
        complete = await finish_all([model.loading for model in self.all if model.loading is not None], seconds)
        for loaded in self.loaded:
            await loaded.close()
        return complete
