"""The routes: what each asks of the desk. Nothing is decided here; how they are described, `described` says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from multihead import __version__
from multihead.serving.disconnect import ClientGone, leaving
from multihead.serving.error_responses import Refusal, later
from multihead.serving.middleware import OPEN, Front
from multihead.serving.openapi import answering, figures, translating, wants_token
from multihead.serving.page_files import page_files
from multihead.serving.requests import asked_of
from multihead.serving.scheduler import Desk
from multihead.serving.schema import Answer, Answers, Asked, Info, Limits, State
from multihead.serving.stream import EventStream

_GONE = 499
"""What is noted of a request whose client has gone; nobody reads it."""


class Plain(APIRoute):
    """A route whose function takes the request and makes the answer: nothing is injected, converted or checked."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The function itself."""
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handler


class Api:
    """What the routes do.

    Args:
        desk: who translates.
    """

    def __init__(self, desk: Desk) -> None:
        self.desk, self.page = desk, page_files()

    async def translate(self, request: Request) -> Response:
        """Translates texts. The lines of a text are translated one by one."""
        began = time.perf_counter()
        try:
            asked = await asked_of(request, self.desk.settings)
            async with asyncio.timeout(self.desk.settings.time_limit):
                made = await self._translated(asked, request)
        except TimeoutError:
            raise self._late() from None
        except (ClientGone, ClientDisconnect):
            self.desk.metrics.gone.inc()
            return Response(status_code=_GONE)
        return _json(Answers(translations=made, seconds=time.perf_counter() - began))

    async def _translated(self, asked: Asked, request: Request) -> list[Answer]:
        async with self.desk.work(asked) as work, leaving(request.receive, partial(work.end, ClientGone())):
            return await self.desk.finish(work)

    async def stream(self, request: Request) -> Response:
        """Translates one text, and tells how far it is: server-sent events `partial`, then `done` or `error`."""
        try:
            asked = await asked_of(request, self.desk.settings)
        except ClientDisconnect:
            self.desk.metrics.gone.inc()
            return Response(status_code=_GONE)
        if not isinstance(asked.text, str):
            raise Refusal(422, "invalid_request", "text: expected one text to stream, got a list")
        return EventStream(self.desk, asked, self._late())

    def _late(self) -> Refusal:
        seconds = f"{self.desk.settings.time_limit:g}"
        return later("time_exceeded", f"not done within {seconds} seconds; send less at once, or ask again later", 5)

    async def health(self, _request: Request) -> Response:
        """Whether the server lives."""
        return _json(State(status="ok"))

    async def ready(self, _request: Request) -> Response:
        """Whether the server translates: 503 while the model is being loaded, and when the server shuts down."""
        self.desk.ready()
        return _json(State(status="ok"))

    async def metrics(self, _request: Request) -> Response:
        """Figures for Prometheus."""
        return Response(self.desk.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def info(self, _request: Request) -> Response:
        """The model, what is done where a request does not say, and what is taken at most."""
        generation, settings = self.desk.ready(), self.desk.settings
        bundle, search = generation.translator.bundle, generation.translator.search_settings()
        limits = Limits(
            body_bytes=settings.max_body, characters=settings.max_characters, texts=settings.max_texts,
            sentences=settings.max_sentences, sentence_tokens=settings.max_tokens, beam=settings.max_beam,
            requests=settings.queue, seconds=settings.time_limit,
        )  # fmt: skip
        info = Info(
            source_language=bundle.source_language, target_language=bundle.target_language,
            model=bundle.model.config.summary, generation=generation.number, compiled=generation.compiled,
            beam=search.beam, alpha=search.alpha, alignment=generation.aligns, guard=settings.guard,
            limits=limits, version=__version__,
        )  # fmt: skip
        return _json(info)

    async def index(self, request: Request) -> Response:
        """The page."""
        return self._file("index.html", request)

    async def static(self, request: Request) -> Response:
        """What the page is made of."""
        return self._file(request.path_params["name"], request)

    def _file(self, name: str, request: Request) -> Response:
        if name not in self.page:
            raise HTTPException(404)
        return self.page[name].response(request)

    async def refuse_route(self, request: Request, error: Exception) -> Response:
        """What the router refuses: an address that there is not, or another method."""
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            message = f"this address does not take {request.method}; /openapi.json says what there is"
            raise Refusal(405, "method_not_allowed", message, error.headers)
        message = "there is no such address; /openapi.json says what there is"
        raise Refusal(404, "not_found", message)

    async def pass_on(self, _request: Request, error: Exception) -> Response:
        """A refusal or a mistake of ours is for `Front` to answer; mistakes Starlette would, in a form of its own."""
        raise error


def make_app(desk: Desk, token: str | None = None) -> ASGIApp:
    """The whole application.

    Args:
        desk: who translates.
        token: that clients must show, if any.
    """
    api = Api(desk)
    app = FastAPI(
        title="multihead", version=__version__, description="Translates texts with one model.", docs_url=None,
        redoc_url=None, redirect_slashes=False,
    )  # fmt: skip
    app.router.route_class = Plain
    app.add_api_route("/translate", api.translate, methods=["POST"], **translating(Answers))
    app.add_api_route("/translate/stream", api.stream, methods=["POST"], **translating(None))
    for path, answer, described in (
        ("/health", api.health, answering(State)),
        ("/ready", api.ready, answering(State, 503)),
        ("/info", api.info, answering(Info, 503)),
        ("/metrics", api.metrics, figures()),
        ("/", api.index, None),
        ("/static/{name}", api.static, None),
    ):
        app.add_api_route(path, answer, methods=["GET"], include_in_schema=described is not None, **(described or {}))
        app.add_api_route(path, answer, methods=["HEAD"], include_in_schema=False)
    app.add_exception_handler(HTTPException, api.refuse_route)
    app.add_exception_handler(Exception, api.pass_on)
    if token is not None:
        wants_token(app, OPEN)
    paths = ("/translate", "/translate/stream", "/health", "/ready", "/info", "/metrics", "/", "/openapi.json")
    return Front(app, desk, paths, token, {("POST", "/translate"): api.translate})


def _json(content: Answers | State | Info) -> Response:
    return Response(content.model_dump_json(), media_type="application/json")
