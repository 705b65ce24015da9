"""The HTTP application: its routes, and the endpoints of our API.

`make_app` wraps a FastAPI application, which routes requests and describes itself (`openapi`), into `ApiMiddleware`.
Requests are read by `bodies`, checked by `requests` and searched by the `Scheduler`; the endpoints of LibreTranslate's
API are in `libretranslate`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from multihead import __version__
from multihead.serving.bodies import MULTIPART, URL_ENCODED, call_for, media_type, read_object
from multihead.serving.error_responses import ApiError, time_exceeded
from multihead.serving.hosts import hosts_of
from multihead.serving.libretranslate import LibreTranslate
from multihead.serving.libretranslate_schema import FrontendSettings, Language, is_libretranslate
from multihead.serving.loaded_model import LoadedModel
from multihead.serving.middleware import (
    HEADERS,
    PUBLIC_PATHS,
    ApiMiddleware,
    allow_origins,
    token_missing,
    unauthorized,
)
from multihead.serving.openapi import (
    describe_detect,
    describe_file,
    describe_json,
    describe_metrics,
    describe_stream,
    describe_translate,
    publish_schema,
)
from multihead.serving.page_files import load_page_files
from multihead.serving.requests import check_request, on_disconnect, read_request
from multihead.serving.responses import dump_texts
from multihead.serving.scheduler import Flight, Scheduler
from multihead.serving.schema import (
    ApiRequest,
    InfoResponse,
    Limits,
    ModelState,
    StatusResponse,
    TranslatedText,
    TranslateResponse,
)
from multihead.serving.settings import ServeSettings
from multihead.serving.stream import EventStream

__all__ = ["HEADERS", "make_app"]


def make_app(scheduler: Scheduler, token: str | None = None) -> ASGIApp:
    """The application.

    Args:
        scheduler: translates.
        token: required of clients; None admits every client.
    """
    api = Api(scheduler, token)
    app = FastAPI(
        title="multihead", version=__version__, description="Translates texts.", openapi_url=None,
        redirect_slashes=False,
    )  # fmt: skip
    app.router.route_class = PlainRoute
    app.add_api_route("/translate", api.translate, methods=["POST"], **describe_translate())
    app.add_api_route("/translate/stream", api.stream, methods=["POST"], **describe_stream())
    app.add_api_route("/translate_file", api.libretranslate.translate_file, methods=["POST"], **describe_file())
    app.add_api_route("/detect", api.libretranslate.detect, methods=["POST"], **describe_detect())
    got = {
        "/health": (api.health, describe_json(StatusResponse)),
        "/ready": (api.ready, describe_json(StatusResponse, 503)),
        "/info": (api.info, describe_json(InfoResponse, 422, 503)),
        "/models": (api.models, describe_json(list[ModelState])),
        "/metrics": (api.metrics, describe_metrics()),
        "/languages": (api.libretranslate.languages, describe_json(list[Language])),
        "/frontend/settings": (api.libretranslate.settings, describe_json(FrontendSettings)),
    }
    for path, (endpoint, description) in got.items():
        app.add_api_route(path, endpoint, methods=["GET"], **description)
        app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
    unlisted = {
        "/": api.index,
        "/docs": api.docs,
        "/static/{name}": api.static,
        "/download_file/{name}": api.libretranslate.download,
    }
    for path, page in unlisted.items():
        app.add_api_route(path, page, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_exception_handler(HTTPException, api.raise_routing_error)
    app.add_exception_handler(Exception, api.raise_unhandled)
    publish_schema(app, None if token is None else PUBLIC_PATHS)
    counted = [*got, "/translate", "/translate/stream", "/translate_file", "/detect", "/", "/docs", "/openapi.json"]
    direct = {("POST", "/translate"): api.translate}
    whole = ApiMiddleware(app, scheduler, counted, token, direct, hosts_of(scheduler.settings))
    return allow_origins(whole, scheduler.settings.cors_origin)


class PlainRoute(APIRoute):
    """A route whose endpoint takes the request and returns the response, without injection or validation."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handler


class Api:
    """The endpoints; their docstrings are descriptions in the OpenAPI document.

    Args:
        scheduler: translates.
        token: required of clients; None admits every client.
    """

    def __init__(self, scheduler: Scheduler, token: str | None) -> None:
        self.scheduler, self.page = scheduler, load_page_files()
        self.libretranslate = LibreTranslate(scheduler, self.translate_texts, token)

    async def translate(self, request: Request) -> Response:
        """Translate texts. The lines of a text are translated one by one.

        A form, and a JSON object with `q`, are requests of LibreTranslate's API.
        """
        began = time.perf_counter()
        kind = media_type(request)
        if kind in (URL_ENCODED, MULTIPART) or (not kind and request.url.query):
            return await self.libretranslate.translate_form(request)
        fields = await read_object(request, self.scheduler.settings, kind)
        if is_libretranslate(fields):
            return await self.libretranslate.translate_fields(fields, request)
        if token_missing(request):
            raise unauthorized()
        asked = await call_for(request, partial(check_request, fields))
        texts = await self.translate_texts(asked, request)
        answer = TranslateResponse(translations=texts, seconds=time.perf_counter() - began)
        return Response(await dump_texts(answer, texts, self.scheduler.settings), media_type="application/json")

    async def translate_texts(self, content: ApiRequest, request: Request) -> list[TranslatedText]:
        """Translate within the time limit, while the client waits.

        Raises:
            ApiError: 422, 429, 500 or 503.
            ClientDisconnect: the client disconnected.
        """
        flight = Flight()
        try:
            async with (
                asyncio.timeout(self.scheduler.settings.time_limit),
                on_disconnect(request.receive, partial(flight.abort, ClientDisconnect())),
                self.scheduler.admit(content, flight) as active,
            ):
                return await self.scheduler.finish(active)
        except TimeoutError:
            raise time_exceeded(self.scheduler.settings.time_limit) from None

    async def stream(self, request: Request) -> Response:
        """Translate one text and report progress: server-sent events `partial`, then `done` or `error`."""
        content = await read_request(request, self.scheduler.settings)
        if not isinstance(content.text, str):
            raise ApiError(422, "invalid_request", "text: expected one text to stream, got a list")
        return EventStream(self.scheduler, content)

    async def health(self, _request: Request) -> Response:
        """Whether the server is alive."""
        return _json_response(StatusResponse(status="ok"))

    async def ready(self, _request: Request) -> Response:
        """Whether the server translates: 503 until the model is loaded, and while the server shuts down."""
        self.scheduler.check_ready()
        return _json_response(StatusResponse(status="ok"))

    async def metrics(self, _request: Request) -> Response:
        """Metrics for Prometheus."""
        return Response(self.scheduler.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def info(self, request: Request) -> Response:
        """The model for the languages `source` and `target` and the name `model`, the defaults of a request, limits.

        Through a pivot, this is the second model.
        """
        self.scheduler.check_ready()
        asked = request.query_params
        named = asked.get("source"), asked.get("target"), None, asked.get("model")
        *firsts, served = self.scheduler.models.route(*named)
        model = await self.scheduler.models.acquire(served)
        try:
            info = describe_model(model, self.scheduler.settings)
            update: dict[str, object] = {"name": served.name, **({"alignment": False} if firsts else {})}
            first = firsts[0] if firsts else served
            if first.pair is not None and served.pair is not None:
                update |= {"source_language": first.pair.source, "target_language": served.pair.target}
            return _json_response(info.model_copy(update=update))
        finally:
            self.scheduler.models.release(served, model)

    async def models(self, _request: Request) -> Response:
        """The models of the server and their states."""
        states = [model.state for model in self.scheduler.models.all]
        return Response(to_json(states), media_type="application/json")

    async def index(self, request: Request) -> Response:
        return self._file_response("index.html", request)

    async def docs(self, request: Request) -> Response:
        return self._file_response("docs.html", request)

    async def static(self, request: Request) -> Response:
        return self._file_response(request.path_params["name"], request)

    def _file_response(self, name: str, request: Request) -> Response:
        if name not in self.page:
            raise HTTPException(404)
        return self.page[name].response(request)

    async def raise_routing_error(self, request: Request, error: Exception) -> Response:
        """Replace Starlette's 404 and 405 by errors in our form."""
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            message = f"this address does not accept {request.method}; /openapi.json lists the methods"
            raise ApiError(405, "method_not_allowed", message, error.headers)
        raise ApiError(404, "not_found", "there is no such address; /openapi.json lists all addresses")

    async def raise_unhandled(self, _request: Request, error: Exception) -> Response:
        """Leave every other exception to `ApiMiddleware`; Starlette would answer in a form of its own."""
        raise error


def _json_response(content: StatusResponse | InfoResponse) -> Response:
    return Response(content.model_dump_json(), media_type="application/json")


def describe_model(model: LoadedModel, settings: ServeSettings) -> InfoResponse:
    """A model, the defaults of a request and the limits."""
    bundle, search = model.translator.bundle, model.translator.search_settings()
    limits = Limits(
        body_bytes=settings.max_body, characters=settings.max_characters, texts=settings.max_texts,
        sentences=settings.max_sentences, sentence_tokens=settings.max_tokens, beam=settings.max_beam,
        requests=settings.queue, seconds=settings.time_limit,
    )  # fmt: skip
    return InfoResponse(
        source_language=bundle.source_language, target_language=bundle.target_language,
        model=bundle.model.config.summary, name=None, ensemble=len(model.translator.networks),
        chooses=model.weights is not None, generation=model.generation, compiled=model.compiled, beam=search.beam,
        alpha=search.alpha, alignment=model.aligns, guard=settings.guard,
        limits=limits, version=__version__,
    )  # fmt: skip
