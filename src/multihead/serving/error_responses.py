"""Error responses: status, code for programs, message for people.

    400 malformed_json, malformed_form, malformed_http
    401 unauthorized            404 not_found           405 method_not_allowed
    408 body_too_slow           413 body_too_large          415 unsupported_media_type
    422 invalid_request, text_too_long, too_many_texts, too_many_sentences, beam_too_wide, unsupported_languages,
        unknown_model, answer_too_large, detection_unavailable
    421 unknown_host            429 queue_full (Retry-After) 431 head_too_large
    500 internal_error, translation_failed
    503 loading, model_unavailable, draining, time_exceeded (Retry-After)

All have the same JSON form, except for requests of LibreTranslate's API (`libretranslate_schema`). No message contains
a path, a stack trace or anything from another request.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from multihead.serving.schema import ErrorBody

MAX_MESSAGE = 500
"""Maximum characters of a message; longer ones, which quote the input, are cut."""


class ApiError(Exception):
    """An error response, raised anywhere while a request is handled.

    Args:
        status: HTTP status.
        error: code for programs.
        message: what was received, what was expected, what to do.
        headers: additional response headers.
    """

    def __init__(self, status: int, error: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.error, self.headers = status, error, dict(headers or {})
        self.message = message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 3] + "..."

    @property
    def body(self) -> ErrorBody:
        return ErrorBody(error=self.error, message=self.message)

    def response(self) -> Response:
        return Response(self.body.model_dump_json(), self.status, self.headers, "application/json")


def retry_later(error: str, message: str, seconds: int, status: int = 503) -> ApiError:
    """An error with the header Retry-After, in seconds."""
    return ApiError(status, error, message, {"Retry-After": str(seconds)})


def time_exceeded(limit: float) -> ApiError:
    """The request was not done within so many seconds."""
    message = f"not done within {limit:g} seconds; send less at once, or try again later"
    return retry_later("time_exceeded", message, 5)


def server_stopped() -> ApiError:
    """The server ended before the request was done."""
    return retry_later("draining", "the server ended before this was translated; try again", 5)


def internal_error() -> ApiError:
    """An unexpected exception; details are in the server's log only."""
    return ApiError(
        500, "internal_error", "internal error, not caused by the request; the server's log has the details"
    )
