"""What surrounds requests: host, token, headers, metrics, errors."""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from multihead.serving.error_responses import ApiError
from multihead.serving.hosts import AllowedHosts
from multihead.serving.libretranslate_schema import LibreTranslateError
from multihead.serving.scheduler import Scheduler

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

PUBLIC_PATHS = ("/", "/docs", "/health", "/ready", "/languages", "/frontend/settings")
"""Paths that need no token: the page itself asks for the token."""

PUBLIC_FOLDERS = ("/static/", "/download_file/")
"""What lies below these needs no token either: the page's files, and files under names that cannot be guessed."""

THEIR_PATHS = ("/translate_file", "/detect")
"""Paths of LibreTranslate's API alone, whose errors are in its form."""

KEYED_PATHS = ("/translate", *THEIR_PATHS)
"""Paths that also take the token as ``api_key`` in the body; their endpoints check it (`token_missing`)."""

_TOKEN_MISSING = "multihead.token_missing"

Endpoint = Callable[[Request], Awaitable[Response]]


class ApiMiddleware:
    """Wraps the whole application, so that every response has its headers and no stack trace leaves the server.

    Args:
        app: the application.
        scheduler: has the metrics and the log.
        counted: paths with metrics of their own; other paths are counted together.
        token: required of clients; None admits every client.
        direct: endpoints called without the application, by method and path. The application's routing takes a fifth of
            the Python time of a request.
        hosts: the names of this server.
    """

    def __init__(
        self,
        app: ASGIApp,
        scheduler: Scheduler,
        counted: Collection[str],
        token: str | None,
        direct: Mapping[tuple[str, str], Endpoint],
        hosts: AllowedHosts,
    ) -> None:
        self._hosts = hosts
        self._app, self._scheduler, self._counted, self._direct = app, scheduler, frozenset(counted), direct
        self._token = token

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
            self._hosts.check(scope)
            self._check_token(scope)
            await self._respond(scope, receive, send_with_headers)
        except ClientDisconnect:
            metrics.disconnects.inc()
            if not statuses:
                await Response(status_code=_CLIENT_CLOSED_REQUEST)(scope, receive, send_with_headers)
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
        if self._token is None or scope["path"] in PUBLIC_PATHS or scope["path"].startswith(PUBLIC_FOLDERS):
            return
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        if not values and scope["method"] == "POST" and scope["path"] in KEYED_PATHS:
            scope[_TOKEN_MISSING] = True
            return
        scheme, _, token = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
        if scheme.lower() != b"bearer" or not same_token(token.lstrip(b" "), self._token):
            error = unauthorized()
            raise LibreTranslateError(error) if scope["path"] in THEIR_PATHS else error


def allow_origins(app: ASGIApp, origins: Sequence[str] | None) -> ASGIApp:
    """The application with CORS headers for the pages of these origins; unchanged without origins.

    Preflight requests need no token. Credentials of the browser (cookies) are never allowed: a page sends the token.
    """
    if not origins:
        return app
    return CORSMiddleware(
        app, allow_origins=list(origins), allow_methods=["GET", "POST"], allow_headers=["Authorization"],
        expose_headers=["Retry-After"],
    )  # fmt: skip


def same_token(shown: bytes, token: str) -> bool:
    """Compare tokens in constant time."""
    return hmac.compare_digest(shown, token.encode())


def token_missing(request: Request) -> bool:
    """Whether the server has a token and the request has no header with it (only for `KEYED_PATHS`)."""
    return _TOKEN_MISSING in request.scope


def unauthorized() -> ApiError:
    """No token, or a wrong one."""
    message = "this server requires a token: send the header 'Authorization: Bearer TOKEN'"
    return ApiError(401, "unauthorized", message, {"WWW-Authenticate": "Bearer"})
