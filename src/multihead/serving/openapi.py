"""What OpenAPI says of the routes: bodies, every status with examples of its words, headers, the token.

It describes and decides nothing; the tests hold every answer against it.
"""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI

from multihead.serving.schema import ANSWER, Asked, Fault

_WHATS = {
    400: "Not JSON.",
    401: "No token, or another one.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    415: "Not application/json.",
    422: "Not what the contract says, or more than is taken.",
    429: "Too many requests; come again after the seconds of Retry-After.",
    500: "It could not be translated, and that is not the request's fault.",
    503: "No model yet, no more, or no time; come again after the seconds of Retry-After.",
}

SAID = {
    400: {"malformed_json": "the body is not JSON: EOF while parsing a string at line 1 column 9"},
    401: {"unauthorized": "this server wants a token: send the header 'Authorization: Bearer TOKEN'"},
    408: {"body_too_slow": "the body did not come within 10 seconds"},
    413: {"body_too_large": "at most 1,000,000 bytes are taken: send the texts in parts"},
    415: {"unsupported_media_type": "Content-Type: expected application/json, got 'text/plain'"},
    422: {
        "invalid_request": "the request: unknown key 'baem'; did you mean 'beam'?",
        "text_too_long": "text 1 has 9,000 characters; at most 5,000 are taken: cut it",
        "too_many_texts": "got 200 texts; at most 100 are taken at once",
        "too_many_sentences": "got 900 sentences; at most 500 are taken at once",
        "beam_too_wide": "beam: got 40; at most 16 is taken",
    },
    429: {"queue_full": "32 requests are in hand, as many as are taken; ask again"},
    500: {
        "translation_failed": "this model could not translate the text; the server's log says why",
        "internal_error": "something went wrong here, which is not your fault; the server's log has it",
    },
    503: {
        "loading": "the model is being loaded; ask again in a moment",
        "draining": "the server is shutting down; ask again elsewhere or later",
        "time_exceeded": "not done within 30 seconds; send less at once, or ask again later",
    },
}
"""Of each status: its words for programs, with a sentence that goes with them."""

_AFTER = {"Retry-After": {"description": "Seconds.", "required": True, "schema": {"type": "integer", "minimum": 1}}}

_EVENTS = "".join(
    f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in (("partial", {"text": "A dog"}), ("done", ANSWER))
)
_FIGURES = '# TYPE multihead_requests_total counter\nmultihead_requests_total{path="/translate",status="200"} 12.0\n'


def answering(model: type, *statuses: int) -> dict[str, Any]:
    """A route whose answer is JSON, and whose refusals have these statuses."""
    return _described({"model": model, "description": "Done."}, statuses)


def translating(model: type | None) -> dict[str, Any]:
    """A route that takes `Asked`; without a model it answers with events.

    The body is read by us, within limits, so its description is given by hand.
    """
    events = {"content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EVENTS}}}
    first = {**events, "description": "Events."} if model is None else {"model": model, "description": "Done."}
    body = {"required": True, "content": {"application/json": {"schema": Asked.model_json_schema()}}}
    described = _described(first, (400, 408, 413, 415, 422, 429, 500, 503))
    return {**described, "openapi_extra": {"requestBody": body}}


def figures() -> dict[str, Any]:
    """The route for Prometheus."""
    content = {"text/plain": {"schema": {"type": "string"}, "example": _FIGURES}}
    return _described({"content": content, "description": "Figures."}, ())


def _described(first: dict[str, Any], statuses: tuple[int, ...]) -> dict[str, Any]:
    """What such a route returns is a response already: nothing is made of it."""
    return {"response_model": None, "responses": {200: first, **{status: _refusal(status) for status in statuses}}}


def _refusal(status: int) -> dict[str, Any]:
    examples = {
        error: {"value": {"error": error, "message": message}} for error, message in sorted(SAID[status].items())
    }
    described: dict[str, Any] = {"model": Fault, "description": _WHATS[status]}
    described["content"] = {"application/json": {"examples": examples}}
    return {**described, "headers": _AFTER} if status in (429, 503) else described


def wants_token(app: FastAPI, free: tuple[str, ...]) -> None:
    """Says of all routes but the free ones that they want a token; called when they are all there."""
    schema = app.openapi()  # kept by the application, and changed here
    schema["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    refusal = _refusal(401)
    fault = {"schema": {"$ref": "#/components/schemas/Fault"}, **refusal["content"]["application/json"]}
    said = {"description": refusal["description"], "content": {"application/json": fault}}
    for path, methods in schema["paths"].items():
        for method in () if path in free else methods.values():
            method["security"] = [{"bearer": []}]
            method["responses"]["401"] = said
