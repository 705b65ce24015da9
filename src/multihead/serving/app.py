"""The HTTP application: middleware, routes and the files of the page.

`make_app` wraps a FastAPI application, which routes requests and describes itself (`openapi`), into `ApiMiddleware`,
which checks the token, adds headers, counts and turns exceptions into error responses. Requests are read by `requests`
and searched by the `Scheduler`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from multihead import __version__
from multihead.serving.error_responses import ApiError, retry_later
from multihead.serving.openapi import describe_json, describe_metrics, describe_translate, publish_schema
from multihead.serving.requests import on_disconnect, read_request
from multihead.serving.scheduler import Scheduler
from multihead.serving.schema import (
    ApiRequest,
    InfoResponse,
    Limits,
    StatusResponse,
    TranslatedText,
    TranslateResponse,
)
from multihead.serving.stream import EventStream

_CLIENT_CLOSED_REQUEST = 499
"""Status counted for a request whose client disconnected; nobody receives it."""

HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
"""Security headers of every response: a page may load files of this server only, and cannot be framed."""

PUBLIC_PATHS = ("/", "/health", "/ready")
"""Paths that need no token, as do the page's files below /static/: the page itself asks for the token."""

Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(scheduler: Scheduler, token: str | None = None) -> ASGIApp:
    """The application.

    Args:
        scheduler: translates.
        token: required of clients; None admits every client.
    """
    api = Api(scheduler)
    app = FastAPI(
        title="multihead", version=__version__, description="Translates texts with one model.", docs_url=None,
        redoc_url=None, redirect_slashes=False,
    )  # fmt: skip
    app.router.route_class = PlainRoute
    app.add_api_route("/translate", api.translate, methods=["POST"], **describe_translate(TranslateResponse))
    app.add_api_route("/translate/stream", api.stream, methods=["POST"], **describe_translate(None))
    for path, endpoint, description in (
        ("/health", api.health, describe_json(StatusResponse)),
        ("/ready", api.ready, describe_json(StatusResponse, 503)),
        ("/info", api.info, describe_json(InfoResponse, 503)),
        ("/metrics", api.metrics, describe_metrics()),
        ("/", api.index, None),
        ("/static/{name}", api.static, None),
    ):
        in_schema = description is not None
        app.add_api_route(path, endpoint, methods=["GET"], include_in_schema=in_schema, **(description or {}))
        app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
    app.add_exception_handler(HTTPException, api.raise_routing_error)
    app.add_exception_handler(Exception, api.raise_unhandled)
    publish_schema(app, None if token is None else PUBLIC_PATHS)
    counted = ("/translate", "/translate/stream", "/health", "/ready", "/info", "/metrics", "/", "/openapi.json")
    return ApiMiddleware(app, scheduler, counted, token, {("POST", "/translate"): api.translate})


class ApiMiddleware:
    """Wraps the whole application, so that every response has its headers and no stack trace leaves the server.

    Args:
        app: the application.
        scheduler: has the metrics and the log.
        counted: paths with metrics of their own; other paths are counted together.
        token: required of clients; None admits every client.
        direct: endpoints called without the application, by method and path. The application's routing takes a fifth of
            the Python time of a request.
    """

    def __init__(
        self,
        app: ASGIApp,
        scheduler: Scheduler,
        counted: Collection[str],
        token: str | None,
        direct: Mapping[tuple[str, str], Endpoint],
    ) -> None:
        self._app, self._scheduler, self._counted, self._direct = app, scheduler, frozenset(counted), direct
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, statuses, metrics = time.perf_counter(), [], self._scheduler.metrics

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
            await send(message)

        path = scope["path"] if scope["path"] in self._counted else "other"
        try:
            self._check_token(scope)
            await self._respond(scope, receive, send_with_headers)
        except Exception as error:
            refusal = error if isinstance(error, ApiError) else self._scheduler.log_internal_error(error)
            if statuses:
                raise ConnectionAbortedError from None  # half a response must not look complete
            metrics.refused.labels(refusal.error).inc()
            await refusal.response()(scope, receive, send_with_headers)
        finally:
            status = str(statuses[0]) if statuses else "none"
            metrics.requests.labels(path, status).inc()
            metrics.seconds.labels(path).observe(time.perf_counter() - began)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._direct.get((scope["method"], scope["path"]))
        if endpoint is None:
            await self._app(scope, receive, send)
        else:
            response = await endpoint(Request(scope, receive))
            await response(scope, receive, send)

    def _check_token(self, scope: Scope) -> None:
        if self._token is None or scope["path"] in PUBLIC_PATHS or scope["path"].startswith("/static/"):
            return
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.lstrip(b" "), self._token):
            message = "this server wants a token: send the header 'Authorization: Bearer TOKEN'"
            raise ApiError(401, "unauthorized", message, {"WWW-Authenticate": "Bearer"})


class PlainRoute(APIRoute):
    """A route whose endpoint takes the request and returns the response, without injection or validation."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handler


class Api:
    """The endpoints; their docstrings are descriptions in the OpenAPI document.

    Args:
        scheduler: translates.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.page = scheduler, load_page_files()

    async def translate(self, request: Request) -> Response:
        """Translate texts. The lines of a text are translated one by one."""
        began = time.perf_counter()
        try:
            content = await read_request(request, self.scheduler.settings)
            async with asyncio.timeout(self.scheduler.settings.time_limit):
                texts = await self._translate(content, request)
        except TimeoutError:
            raise self._time_exceeded() from None
        except ClientDisconnect:
            self.scheduler.metrics.disconnects.inc()
            return Response(status_code=_CLIENT_CLOSED_REQUEST)
        return _json_response(TranslateResponse(translations=texts, seconds=time.perf_counter() - began))

    async def _translate(self, content: ApiRequest, request: Request) -> list[TranslatedText]:
        async with (
            self.scheduler.admit(content) as active,
            on_disconnect(request.receive, partial(active.abort, ClientDisconnect())),
        ):
            return await self.scheduler.finish(active)

    async def stream(self, request: Request) -> Response:
        """Translate one text and report progress: server-sent events `partial`, then `done` or `error`."""
        try:
            content = await read_request(request, self.scheduler.settings)
        except ClientDisconnect:
            self.scheduler.metrics.disconnects.inc()
            return Response(status_code=_CLIENT_CLOSED_REQUEST)
        if not isinstance(content.text, str):
            raise ApiError(422, "invalid_request", "text: expected one text to stream, got a list")
        return EventStream(self.scheduler, content, self._time_exceeded())

    def _time_exceeded(self) -> ApiError:
        seconds = f"{self.scheduler.settings.time_limit:g}"
        message = f"not done within {seconds} seconds; send less at once, or ask again later"
        return retry_later("time_exceeded", message, 5)

    async def health(self, _request: Request) -> Response:
        """Whether the server is alive."""
        return _json_response(StatusResponse(status="ok"))

    async def ready(self, _request: Request) -> Response:
        """Whether the server translates: 503 until the model is loaded, and while the server shuts down."""
        self.scheduler.ready_model()
        return _json_response(StatusResponse(status="ok"))

    async def metrics(self, _request: Request) -> Response:
        """Metrics for Prometheus."""
        return Response(self.scheduler.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def info(self, _request: Request) -> Response:
        """The model, the defaults of a request and the limits."""
        model, settings = self.scheduler.ready_model(), self.scheduler.settings
        bundle, search = model.translator.bundle, model.translator.search_settings()
        limits = Limits(
            body_bytes=settings.max_body, characters=settings.max_characters, texts=settings.max_texts,
            sentences=settings.max_sentences, sentence_tokens=settings.max_tokens, beam=settings.max_beam,
            requests=settings.queue, seconds=settings.time_limit,
        )  # fmt: skip
        info = InfoResponse(
            source_language=bundle.source_language, target_language=bundle.target_language,
            model=bundle.model.config.summary, generation=model.generation, compiled=model.compiled,
            beam=search.beam, alpha=search.alpha, alignment=model.aligns, guard=settings.guard,
            limits=limits, version=__version__,
        )  # fmt: skip
        return _json_response(info)

    async def index(self, request: Request) -> Response:
        return self._file_response("index.html", request)

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
            message = f"this address does not take {request.method}; /openapi.json says what there is"
            raise ApiError(405, "method_not_allowed", message, error.headers)
        raise ApiError(404, "not_found", "there is no such address; /openapi.json says what there is")

    async def raise_unhandled(self, _request: Request, error: Exception) -> Response:
        """Leave every other exception to `ApiMiddleware`; Starlette would answer in a form of its own."""
        raise error


def _json_response(content: TranslateResponse | StatusResponse | InfoResponse) -> Response:
    return Response(content.model_dump_json(), media_type="application/json")


_CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "woff2": "font/woff2",
}


@dataclass(frozen=True)
class PageFile:
    """A file of the page."""

    content: bytes
    content_type: str

    def response(self, request: Request) -> Response:
        """The file, or 304 if the browser has this version."""
        tag = f'"{hashlib.sha256(self.content).hexdigest()[:16]}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.content_type)


def load_page_files() -> dict[str, PageFile]:
    """The files in ``page/`` by name. They are read once and looked up by name, so no path leads elsewhere."""
    folder = resources.files("multihead.serving") / "page"
    if not folder.is_dir():
        return {}
    files = {}
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        content_type = _CONTENT_TYPES.get(entry.name.rpartition(".")[2])
        if entry.is_file() and content_type is not None:
            files[entry.name] = PageFile(entry.read_bytes(), content_type)
    return files
