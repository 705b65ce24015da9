"""What every request passes, whatever it asks: the token, headers for browsers, figures, and its refusal, if any.

It stands around the whole application, so no answer leaves without its headers, and no mistake of ours as a stack.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable, Collection, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from multihead.serving.error_responses import Refusal
from multihead.serving.scheduler import Desk, unforeseen

Endpoint = Callable[[Request], Awaitable[Response]]

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
"""Of every answer: a page may load what stands here and nothing else, and nobody may frame it."""

OPEN = ("/", "/health", "/ready")
"""Without a token: that somebody lives here, and the page, which asks for it. So is what the page is made of."""


class Front:
    """An application around the application.

    Args:
        app: what answers.
        desk: whose figures are kept.
        paths: that figures are kept of; others are one.
        token: that clients must show; none: nobody must.
        short: what answers a request of this method and address without the way through the application, which takes a
            fifth of all that Python does for a request.
    """

    def __init__(
        self,
        app: ASGIApp,
        desk: Desk,
        paths: Collection[str],
        token: str | None,
        short: Mapping[tuple[str, str], Endpoint],
    ) -> None:
        self._app, self._desk, self._paths, self._short = app, desk, frozenset(paths), short
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; what else servers tell an application passes through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, statuses = time.perf_counter(), []

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
            await send(message)

        path = scope["path"] if scope["path"] in self._paths else "other"
        try:
            self._check_token(scope)
            await self._answer(scope, receive, sending)
        except Exception as error:
            refusal = error if isinstance(error, Refusal) else unforeseen(self._desk, error)
            if statuses:
                raise ConnectionAbortedError from None  # half an answer must not look whole
            self._desk.metrics.refused.labels(refusal.error).inc()
            await refusal.response()(scope, receive, sending)
        finally:
            status = str(statuses[0]) if statuses else "none"
            self._desk.metrics.requests.labels(path, status).inc()
            self._desk.metrics.seconds.labels(path).observe(time.perf_counter() - began)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._short.get((scope["method"], scope["path"]))
        if answer is None:
            await self._app(scope, receive, send)
        else:
            response = await answer(Request(scope, receive))
            await response(scope, receive, send)

    def _check_token(self, scope: Scope) -> None:
        if self._token is None or scope["path"] in OPEN or scope["path"].startswith("/static/"):
            return
        shown = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, word = shown[0].partition(b" ") if len(shown) == 1 else (b"", b"", b"")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(word.lstrip(b" "), self._token):
            message = "this server wants a token: send the header 'Authorization: Bearer TOKEN'"
            raise Refusal(401, "unauthorized", message, {"WWW-Authenticate": "Bearer"})
