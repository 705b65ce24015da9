"""A request's body, read within limits and checked against the contract; nothing that comes in is an error of ours."""

from __future__ import annotations

import asyncio
import contextlib

from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from multihead.configuration import build
from multihead.errors import ConfigurationError
from multihead.serving.error_responses import Refusal
from multihead.serving.schema import Asked
from multihead.serving.settings import ServeSettings

_LINGER = 1.0
"""Seconds for which more of a body that is too large is read, and thrown away."""


async def asked_of(request: Request, settings: ServeSettings) -> Asked:
    """What is asked.

    Raises:
        Refusal: 400, 408, 413, 415 or 422.
        ClientDisconnect: the client has gone before it was said.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, "unsupported_media_type", f"Content-Type: expected application/json, got {kind or 'none'!r}")
    try:
        async with asyncio.timeout(settings.send_time):
            body = await _body(request, settings.max_body)
    except TimeoutError:
        raise Refusal(
            408, "body_too_slow", f"the body did not come within {settings.send_time:g} seconds", _CLOSE
        ) from None
    return parse(body)


_CLOSE = {"Connection": "close"}


async def _body(request: Request, most: int) -> bytes:
    said = request.headers.get("content-length", "")
    parts, size = [], int(said[:20]) if said.isdecimal() else 0
    if size <= most:
        size, more = 0, True
        while more and size <= most:
            part, more = await _part(request)
            parts.append(part)
            size += len(part)
    if size > most:
        await _let_it_send(request)
        raise Refusal(413, "body_too_large", f"at most {most:,} bytes are taken: send the texts in parts", _CLOSE)
    return b"".join(parts)


async def _part(request: Request) -> tuple[bytes, bool]:
    """Some bytes, and whether more may come."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


async def _let_it_send(request: Request) -> None:
    """Throws away what comes for a moment: who is still sending when the connection is closed never reads why."""
    if "expect" in request.headers:
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER):
            while (await _part(request))[1]:
                pass


def parse(body: bytes) -> Asked:
    """What a body asks.

    Raises:
        Refusal: 400, it is not JSON (lone surrogates and deep nesting count as that); 422, not what the contract says.
    """
    try:
        content = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Refusal(400, "malformed_json", f"the body is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise Refusal(422, "invalid_request", f'expected an object such as {{"text": "..."}}, got {_kind(content)}')
    try:
        return build(Asked, {str(name): value for name, value in content.items()}, "the request")
    except ConfigurationError as error:
        raise Refusal(422, "invalid_request", str(error)) from None


def _kind(content: object) -> str:
    names = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(content), "a number")
