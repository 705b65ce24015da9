"""Bodies of requests: read within limits, parsed as JSON or as a form.

A body is read up to a size and within a time (`read_body`). `parse_object` parses a JSON object; `parse_form` parses
``application/x-www-form-urlencoded`` and ``multipart/form-data``, whose parser is python-multipart's. What the fields
mean is decided by `requests` and `libretranslate_schema`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic_core import from_json
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from multihead.serving.error_responses import ApiError
from multihead.serving.settings import ServeSettings

T = TypeVar("T")

JSON = "application/json"
URL_ENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"

MAX_FIELDS = 1_000
"""Maximum fields of a form."""

_DISCARD_SECONDS = 1.0
"""Time for which the rest of a body that is too large is read and discarded."""

_INLINE_BYTES = 20_000
"""Size of bodies that are parsed in the event loop's thread; more would delay other requests."""

_CLOSE = {"Connection": "close"}


def media_type(request: Request) -> str:
    """The media type of the body, in lower case; empty if the request names none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(request: Request, settings: ServeSettings) -> bytes:
    """Read a body.

    Raises:
        ApiError: 408 or 413.
        ClientDisconnect: the client disconnected before the body was complete.
    """
    try:
        async with asyncio.timeout(settings.send_time):
            return await _read(request, settings.max_body)
    except TimeoutError:
        message = f"the body did not arrive within {settings.send_time:g} seconds"
        raise ApiError(408, "body_too_slow", message, _CLOSE) from None


async def _read(request: Request, limit: int) -> bytes:
    announced = request.headers.get("content-length", "")
    parts, size = [], int(announced[:20]) if announced.isdecimal() else 0
    if size <= limit:
        size, more = 0, True
        while more and size <= limit:
            part, more = await _receive_part(request)
            parts.append(part)
            size += len(part)
    if size > limit:
        await _discard_rest(request)
        raise ApiError(413, "body_too_large", f"at most {limit:,} bytes are allowed: send the texts in parts", _CLOSE)
    return b"".join(parts)


async def _receive_part(request: Request) -> tuple[bytes, bool]:
    """Some bytes of the body, and whether more may follow."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


async def _discard_rest(request: Request) -> None:
    """Read on for a moment: a client still sending when the connection closes would never read the response."""
    if "expect" in request.headers:
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            while (await _receive_part(request))[1]:
                pass


async def read_object(request: Request, settings: ServeSettings, kind: str | None = None) -> dict[str, Any]:
    """Read a body that is a JSON object.

    Args:
        request: whose body was not read yet.
        settings: of the server.
        kind: the media type, if it is known.

    Raises:
        ApiError: 400, 408, 413, 415 or 422.
        ClientDisconnect: the client disconnected before the body was complete.
    """
    kind = media_type(request) if kind is None else kind
    if kind != JSON:
        raise ApiError(415, "unsupported_media_type", f"Content-Type: expected {JSON}, got {kind or 'none'!r}")
    return await _parse(parse_object, await read_body(request, settings))


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ApiError: 400, not JSON (including lone surrogates and deep nesting); 422, not an object.
    """
    try:
        content = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, "malformed_json", f"the body is not JSON: {error}") from None
    if not isinstance(content, dict):
        names = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}
        kind = names.get(type(content), "a number")
        raise ApiError(422, "invalid_request", f'expected an object such as {{"text": "..."}}, got {kind}')
    return content


@dataclass(frozen=True)
class FormFile:
    """A file of a form."""

    name: str
    content: bytes


@dataclass(frozen=True)
class Form:
    """The fields and files of a form, in order; a name can be repeated."""

    fields: list[tuple[str, str]] = field(default_factory=list)
    files: list[tuple[str, FormFile]] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        """All values of a field."""
        return [value for own, value in self.fields if own == name]

    def file(self, name: str) -> FormFile | None:
        """The first file of this name."""
        return next((value for own, value in self.files if own == name), None)


async def read_form(request: Request, settings: ServeSettings) -> Form:
    """Read a form: the fields of the body, then those of the address.

    Raises:
        ApiError: 400, 408 or 413.
        ClientDisconnect: the client disconnected before the body was complete.
    """
    form = await _parse(partial(parse_form, request.headers), await read_body(request, settings))
    return Form([*form.fields, *_url_decode(request.scope["query_string"])], form.files)


async def _parse(parse: Callable[[bytes], T], body: bytes) -> T:
    """Parse a body, in a thread if it is large."""
    return parse(body) if len(body) <= _INLINE_BYTES else await asyncio.to_thread(parse, body)


async def call_for(request: Request, function: Callable[[], T]) -> T:
    """Call a function whose time grows with the body, in a thread if the body is large or its size not announced."""
    announced = request.headers.get("content-length", "")
    small = announced.isdecimal() and int(announced[:20]) <= _INLINE_BYTES
    return function() if small else await asyncio.to_thread(function)


def parse_form(headers: Mapping[str, str], body: bytes) -> Form:
    """Parse a form; text must be UTF-8.

    Args:
        headers: Content-Type is either type of form; any other type has no fields.
        body: of the request.

    Raises:
        ApiError: 400.
    """
    kind, options = parse_options_header(headers.get("content-type"))
    if kind.lower() == URL_ENCODED.encode():
        return Form(_url_decode(body))
    if kind.lower() != MULTIPART.encode():
        return Form()
    if not options.get(b"boundary"):
        raise _malformed("the header Content-Type has no boundary")
    parts = _Parts()
    try:
        parser = MultipartParser(options[b"boundary"], parts.callbacks)
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise _malformed(str(error)) from None
    if not parts.complete:
        raise _malformed("the last part has no end")
    return Form(parts.fields, parts.files)


def _malformed(reason: str) -> ApiError:
    return ApiError(400, "malformed_form", f"the body is not a form: {reason}")


def _url_decode(encoded: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(encoded.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except UnicodeDecodeError:
        raise _malformed("expected UTF-8 text") from None
    except ValueError:
        raise _malformed(f"at most {MAX_FIELDS:,} fields are allowed") from None


class _Parts:
    """Collects the parts of a multipart body."""

    def __init__(self) -> None:
        self.fields: list[tuple[str, str]] = []
        self.files: list[tuple[str, FormFile]] = []
        self.complete = False
        self._header, self._value, self._data = bytearray(), bytearray(), bytearray()
        self._disposition = b""

    @property
    def callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_part_data": lambda data, start, end: self._data.extend(data[start:end]),
            "on_part_end": self._end,
            "on_end": self._finish,
        }

    def _begin(self) -> None:
        self._data, self._disposition = bytearray(), b""
        if len(self.fields) + len(self.files) >= MAX_FIELDS:
            raise _malformed(f"at most {MAX_FIELDS:,} fields are allowed")

    def _end_header(self) -> None:
        if bytes(self._header).lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header, self._value = bytearray(), bytearray()

    def _end(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"name" not in options:
            raise _malformed("a part has no name in its header Content-Disposition")
        name = _text(options[b"name"])
        if b"filename" in options:
            self.files.append((name, FormFile(_text(options[b"filename"]), bytes(self._data))))
        else:
            self.fields.append((name, _text(bytes(self._data))))

    def _finish(self) -> None:
        self.complete = True


def _text(encoded: bytes) -> str:
    try:
        return encoded.decode("utf-8")
    except UnicodeDecodeError:
        raise _malformed("expected UTF-8 text") from None
