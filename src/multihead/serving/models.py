"""The models of the server: chosen by languages or name, loaded by need.

A server has one model, loaded at the start, or several, loaded with the first request for them. With a memory limit,
the model whose last request is longest ago is unloaded first; it finishes its requests, and later ones wait until it
has been loaded again. Loads run one after the other, so models that exclude each other take turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from multihead.errors import shown
from multihead.serving.error_responses import ApiError, retry_later
from multihead.serving.languages import match
from multihead.serving.loaded_model import LoadedModel
from multihead.serving.served_model import RETRY_SECONDS, LoadingContext, ModelSource, Pair, ServedModel
from multihead.serving.work_thread import finish_all


def unsupported(name: str, code: str, known: Iterable[str]) -> ApiError:
    """No model has a language.

    Args:
        name: of the field.
        code: of the language.
        known: the languages of the server.
    """
    message = f"{name}: {code!r} is not supported; this server has {', '.join(sorted(known))}"
    return ApiError(422, "unsupported_languages", message)


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
        direct: dict[Pair, list[ServedModel]] = {}
        for model in self.all:
            if model.pair is not None:
                direct.setdefault(model.pair, [model])
        pairs = dict(direct)
        for pivot in self._pivots:
            for first, (before,) in direct.items():
                for second, (after,) in direct.items():
                    joined = Pair(first.source, second.target)
                    if first.target == second.source == pivot and joined.source != joined.target:
                        pairs.setdefault(joined, [before, after])
        return pairs

    def route(
        self, source: str | None, target: str | None, pivot: str | None = None, name: str | None = None
    ) -> list[ServedModel]:
        """The models for languages as a client writes them: one, or two with a pivot between them.

        Args:
            source: language of the texts.
            target: language of the translations.
            pivot: a language between them.
            name: of the model, where several have the same languages.

        Raises:
            ApiError: 422, no model has the languages, or the name.
        """
        if name is not None:
            return [self._named(name, source, target, pivot)]
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

    def _named(self, name: str, source: str | None, target: str | None, pivot: str | None) -> ServedModel:
        """The model of a name, for the languages that are given."""
        if pivot is not None:
            raise ApiError(422, "unknown_model", "model: leave it out, or pivot; through a pivot there are two models")
        found = [one for one in self.all if one.name is not None and one.name.casefold() == name.strip().casefold()]
        if not found:
            names = ", ".join(dict.fromkeys(one.name for one in self.all if one.name is not None)) or "no named models"
            raise ApiError(422, "unknown_model", f"model: there is no {shown(name)}; this server has {names}")
        pairs = {one.pair: [one] for one in found if one.pair is not None}
        if not pairs or (source is None and target is None and len(found) == 1):
            return found[0]
        source = self._language("source", source, {pair.source for pair in pairs})
        target = self._language("target", target, {pair.target for pair in pairs})
        return self._models_of(pairs, source, target)[0]

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
            raise retry_later("loading", "the model is being loaded; try again in a moment", 2)
        waited = RETRY_SECONDS - (time.monotonic() - model.failed_at)
        if waited <= 0:
            if model.loading is None:
                model.loading = asyncio.create_task(self._load(model))
            await asyncio.wait({model.loading})  # which goes on if this request ends
            waited = RETRY_SECONDS
        if model.loaded is None:
            message = f"{model.label} cannot be loaded now; the server's log says why"
            raise retry_later("model_unavailable", message, max(int(waited), 1))

    async def _load(self, model: ServedModel) -> None:
        try:
            async with self._lock:
                if self.closed:
                    return
                await self._make_room(model, model.bytes)
                if self.closed:
                    return
                self._say(f"loading {model.label}")
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
