"""OpenAPI descriptions of the routes: bodies, errors, headers, token.

Nothing here changes what the routes do; `publish_schema` adds the one that sends the descriptions. The tests compare
every response with them.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Collection
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from multihead.serving.bodies import JSON, MULTIPART, URL_ENCODED
from multihead.serving.libretranslate_schema import (
    Detection,
    DetectRequest,
    FileRequest,
    FileResponse,
    LibreTranslateFault,
    LibreTranslateRequest,
    LibreTranslateResponse,
)
from multihead.serving.middleware import KEYED_PATHS, THEIR_PATHS
from multihead.serving.schema import TRANSLATION_EXAMPLE, ApiRequest, ErrorBody, TranslateResponse

_STATUS_DESCRIPTIONS = {
    400: "Neither JSON nor a form; for a request of LibreTranslate's API as 422.",
    401: "No token, or a wrong one.",
    403: "No token, or a wrong one, in a request of LibreTranslate's API.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "Not application/json.",
    422: "Not valid for the schema, or above a limit.",
    429: "Too many requests; retry after the seconds in Retry-After.",
    500: "The server failed; the request is valid.",
    503: "Loading, shutting down, or out of time; retry after the seconds in Retry-After.",
}

ERROR_EXAMPLES = {
    400: {
        "malformed_json": "the body is not JSON: EOF while parsing a string at line 1 column 9",
        "malformed_form": "the body is not a form: the last part has no end",
    },
    401: {"unauthorized": "this server requires a token: send the header 'Authorization: Bearer TOKEN'"},
    408: {"body_too_slow": "the body did not arrive within 10 seconds"},
    413: {"body_too_large": "at most 1,000,000 bytes are allowed: send the texts in parts"},
    415: {"unsupported_media_type": "Content-Type: expected application/json, got 'text/plain'"},
    422: {
        "invalid_request": "the request: there is no setting 'baem'; did you mean 'beam'?",
        "text_too_long": "text 1 has 9,000 characters; at most 5,000 are allowed: cut it",
        "too_many_texts": "got 200 texts; at most 100 are allowed at once",
        "too_many_sentences": "got 900 sentences; at most 500 are allowed at once",
        "beam_too_wide": "beam: got 40; at most 16 is allowed",
        "answer_too_large": "the answer would take more than 10,000,000 bytes: send less, or request fewer details",
        "unsupported_languages": "no model translates from fr to ja; this server has de-en, en-de",
        "unknown_model": "model: there is no 'large'; this server has ensemble",
        "detection_unavailable": "py3langid is not installed: pip install 'multihead[detect]'",
    },
    429: {"queue_full": "32 requests are in progress, the maximum; try again later"},
    500: {
        "translation_failed": "this model could not translate the text; the server's log says why",
        "internal_error": "internal error, not caused by the request; the server's log has the details",
    },
    503: {
        "loading": "the model is being loaded; try again in a moment",
        "model_unavailable": "de-en cannot be loaded now; the server's log says why",
        "draining": "the server is shutting down; try another server, or try again later",
        "time_exceeded": "not done within 30 seconds; send less at once, or try again later",
    },
}
"""For each status: its error codes, with an example message each."""

_RETRY_AFTER = {
    "Retry-After": {"description": "Seconds.", "required": True, "schema": {"type": "integer", "minimum": 1}}
}


def _events(*events: tuple[str, Any]) -> str:
    return "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)


_EVENTS_EXAMPLE = _events(("partial", {"text": "A dog"}), ("done", TRANSLATION_EXAMPLE))
_FILE_EVENTS_EXAMPLE = _events(
    ("progress", {"done": 16, "total": 40}),
    ("done", {"translatedFileUrl": "http://127.0.0.1:8000/download_file/2d9f0c6e.notes_en.txt"}),
)
_METRICS_EXAMPLE = (
    '# TYPE multihead_requests_total counter\nmultihead_requests_total{path="/translate",status="200"} 12.0\n'
)


def describe_json(model: Any, *statuses: int) -> dict[str, Any]:
    """A route with a JSON response and error responses of these statuses."""
    return _describe({"model": model, "description": "Done."}, statuses)


_SEARCH_STATUSES = (400, 408, 413, 415, 422, 429, 500, 503)


def describe_translate() -> dict[str, Any]:
    """``POST /translate``, for requests of our API and of LibreTranslate's.

    FastAPI does not read the body itself, so the schemas of the body are given explicitly.
    """
    ours, theirs = ApiRequest.model_json_schema(), LibreTranslateRequest.model_json_schema()
    either = {"anyOf": [ours, theirs], "examples": [*ours["examples"], *theirs["examples"]]}
    description = describe_json(TranslateResponse | LibreTranslateResponse, *_SEARCH_STATUSES)
    for status in _SEARCH_STATUSES:
        description["responses"][status]["model"] = ErrorBody | LibreTranslateFault
    bodies = {JSON: {"schema": either}, URL_ENCODED: {"schema": theirs}, MULTIPART: {"schema": theirs}}
    return {**description, "openapi_extra": {"requestBody": {"required": True, "content": bodies}}}


def describe_detect() -> dict[str, Any]:
    """``POST /detect``."""
    schema = DetectRequest.model_json_schema()
    bodies = {kind: {"schema": schema} for kind in (JSON, URL_ENCODED, MULTIPART)}
    description = _describe_theirs(list[Detection], 400, 408, 413)
    return {**description, "openapi_extra": {"requestBody": {"required": True, "content": bodies}}}


def describe_file() -> dict[str, Any]:
    """``POST /translate_file``."""
    schema = FileRequest.model_json_schema()
    schema["properties"]["file"] = {"type": "string", "format": "binary", "description": "The file."}
    schema["required"] = ["file"]
    body = {"required": True, "content": {MULTIPART: {"schema": schema}}}
    description = _describe_theirs(FileResponse, *(status for status in _SEARCH_STATUSES if status != 422))
    events = {"schema": {"type": "string"}, "example": _FILE_EVENTS_EXAMPLE}
    description["responses"][200]["content"] = {"text/event-stream": events}
    return {**description, "openapi_extra": {"requestBody": body}}


def _describe_theirs(model: Any, *statuses: int) -> dict[str, Any]:
    """A route of LibreTranslate's API."""
    description = describe_json(model, *statuses)
    for status in statuses:
        described = description["responses"][status]
        described["model"] = LibreTranslateFault
        words = ERROR_EXAMPLES[422 if status == 400 else status]
        examples = {word: {"value": {"error": message}} for word, message in sorted(words.items())}
        described["content"] = {"application/json": {"examples": examples}}
    return description


def describe_stream() -> dict[str, Any]:
    """``POST /translate/stream``, whose response is events."""
    events = {"content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EVENTS_EXAMPLE}}}
    body = {"required": True, "content": {JSON: {"schema": ApiRequest.model_json_schema()}}}
    description = _describe({**events, "description": "Events."}, _SEARCH_STATUSES)
    return {**description, "openapi_extra": {"requestBody": body}}


def describe_metrics() -> dict[str, Any]:
    """The route for Prometheus."""
    content = {"text/plain": {"schema": {"type": "string"}, "example": _METRICS_EXAMPLE}}
    return _describe({"content": content, "description": "Metrics."}, ())


def _describe(success: dict[str, Any], statuses: tuple[int, ...]) -> dict[str, Any]:
    """Arguments of a FastAPI route whose endpoint returns a `Response`."""
    responses = {200: success, **{status: _describe_error(status) for status in statuses}}
    return {"response_model": None, "responses": responses}


def _describe_error(status: int) -> dict[str, Any]:
    examples = {
        error: {"value": {"error": error, "message": message}}
        for error, message in sorted(ERROR_EXAMPLES[status].items())
    }
    description: dict[str, Any] = {"model": ErrorBody, "description": _STATUS_DESCRIPTIONS[status]}
    description["content"] = {"application/json": {"examples": examples}}
    return {**description, "headers": _RETRY_AFTER} if status in (429, 503) else description


def publish_schema(app: FastAPI, public_paths: Collection[str] | None) -> None:
    """Add the route of the OpenAPI document, once all others are added.

    The document is made at the first request, since that takes a few tenths of a second, for which no start has to
    wait. If ``public_paths`` is given, all other paths require a token.
    """

    @functools.cache
    def document() -> dict[str, Any]:
        made = _with_titles(app.openapi())
        if public_paths is not None:
            _require_token(made, public_paths)
        return made

    async def send(_request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(document))

    app.add_api_route("/openapi.json", send, methods=["GET", "HEAD"], include_in_schema=False)


def _with_titles(document: dict[str, Any]) -> dict[str, Any]:
    """The document with its schemas under their titles."""
    text = json.dumps(document)
    titles = {name: schema["title"] for name, schema in document["components"]["schemas"].items()}
    for name, title in titles.items():
        text = text.replace(f'"#/components/schemas/{name}"', f'"#/components/schemas/{title}"')
    renamed: dict[str, Any] = json.loads(text)
    schemas = renamed["components"]["schemas"]
    renamed["components"]["schemas"] = {titles[name]: schemas[name] for name in sorted(schemas, key=titles.__getitem__)}
    return renamed


def _require_token(document: dict[str, Any], public_paths: Collection[str]) -> None:
    document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    error = _describe_error(401)
    body = {"schema": {"$ref": "#/components/schemas/Fault"}, **error["content"]["application/json"]}
    response = {"description": error["description"], "content": {"application/json": body}}
    fault = {"schema": {"$ref": "#/components/schemas/LibreTranslateFault"}}
    theirs = {"description": _STATUS_DESCRIPTIONS[403], "content": {"application/json": fault}}
    for path, methods in document["paths"].items():
        for method in () if path in public_paths else methods.values():
            if path in KEYED_PATHS:
                method["responses"]["403"] = theirs
            if path in THEIR_PATHS:
                method["security"] = [{}, {"bearer": []}]  # the token, or api_key
            else:
                method["security"] = [{"bearer": []}]
                method["responses"]["401"] = response
