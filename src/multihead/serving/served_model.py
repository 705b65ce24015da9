"""A model of the server: where it comes from, loading and unloading it.

A model counts with the bytes of its weights: the networks', and the packed copies of the compiled search. Before the
first load this is estimated from the files. `models` decides when it is loaded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from multihead.errors import MultiheadError
from multihead.serving.loaded_model import LoadedModel, weight_bytes
from multihead.serving.metrics import Metrics
from multihead.serving.schema import ModelState
from multihead.serving.work_thread import call_in_daemon
from multihead.translating.request import Weights
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
        name: tells it from others with the same languages; None for the first of them.
        weights: by which its translations are chosen among candidates; None if they are not.
    """

    load: Callable[[], Translator]
    pair: Pair | None = None
    estimated_bytes: int = 0
    name: str | None = None
    weights: Weights | None = None

    @property
    def label(self) -> str:
        """Its languages and its name, as the command line writes them."""
        return "@".join(str(part) for part in (self.pair, self.name) if part is not None)


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
    def name(self) -> str | None:
        """Tells it from others with the same languages."""
        return self._source.name

    @property
    def label(self) -> str:
        """The languages and the name given for it; empty without both."""
        return self._source.label

    @property
    def weights(self) -> Weights | None:
        """By which its translations are chosen among candidates."""
        return self._source.weights

    @property
    def _called(self) -> str:
        return self.label or "the model"

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
            source=source, target=target, name=self.name, state=word, generation=self.generation, bytes=self.bytes,
            requests=self.holds,
        )  # fmt: skip

    async def load(self) -> None:
        """Load it and serve with it from then on; an old model finishes its requests and is closed.

        If loading fails, `load_error` says why, and an old model stays.
        """
        old, context = self.loaded, self._context
        try:
            translator = await call_in_daemon(self._source.load)
            call_in_loop = partial(_call_soon, asyncio.get_running_loop())
            new = LoadedModel(
                self.generation + 1, translator, context.threads, context.longest, call_in_loop, self.weights
            )
        except Exception as error:  # whatever it is, the old model stays
            context.metrics.reloads.labels("refused").inc()
            suffix = "" if old is None else "; the old model stays"
            context.say(f"{self._called} cannot be loaded: {error or type(error).__name__}{suffix}")
            # Without its traceback, whose frames hold the old model.
            self.load_error = error.with_traceback(None) if isinstance(error, MultiheadError) else _wrap(error)
            self.failed_at = time.monotonic()
            return
        self.loaded, self.load_error = new, None
        self.generation, self._bytes = new.generation, weight_bytes(translator)
        context.collect_garbage()
        context.metrics.reloads.labels("loaded").inc()
        context.metrics.model_bytes.labels(self.label).set(self._bytes)
        name = f"{self.label}, " if self.label else ""
        context.say(f"serving {name}model {new.generation}: {translator.bundle.model.config.summary}")
        if old is not None:
            await _end(old)
            del old
            context.collect_garbage()

    async def unload(self) -> None:
        """Close it; called without requests."""
        old, self.loaded = self.loaded, None
        if old is not None:
            await _end(old)
            del old
            self._context.collect_garbage()
            self._context.metrics.unloads.labels(self.label).inc()
            self._context.metrics.model_bytes.labels(self.label).set(0)
            self._context.say(f"unloaded {self._called}")


async def _end(old: LoadedModel) -> None:
    """Close a model once its requests are done."""
    while old.requests:
        await asyncio.sleep(0.05)
    await old.close()


def _wrap(error: Exception) -> MultiheadError:
    return MultiheadError(str(error) or type(error).__name__)


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(callback)
