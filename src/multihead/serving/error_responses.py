"""Every answer that says no: its status, its word for programs and its sentence for people, always in one form.

    400 malformed_json, malformed_http
    401 unauthorized            404 not_found           405 method_not_allowed
    408 body_too_slow           413 body_too_large          415 unsupported_media_type
    422 invalid_request, text_too_long, too_many_texts, too_many_sentences, beam_too_wide
    429 queue_full (Retry-After) 431 head_too_large      500 internal_error, translation_failed
    503 loading, draining, time_exceeded (Retry-After)

No message holds a path, a stack or anything of another request.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from multihead.serving.schema import Fault

LONGEST = 500
"""Characters of a message: what was got is shown, but not all of it."""


class Refusal(Exception):  # noqa: N818 - an answer like others
    """A request that is not done.

    Args:
        status: of HTTP.
        error: for programs.
        message: what was got, what was expected, what to do.
        headers: besides.
    """

    def __init__(self, status: int, error: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.error, self.headers = status, error, dict(headers or {})
        self.message = message if len(message) <= LONGEST else message[: LONGEST - 3] + "..."

    @property
    def fault(self) -> Fault:
        """Its body."""
        return Fault(error=self.error, message=self.message)

    def response(self) -> Response:
        """As an answer."""
        return Response(self.fault.model_dump_json(), self.status, self.headers, "application/json")


def later(error: str, message: str, seconds: int, status: int = 503) -> Refusal:
    """One that says after how many seconds to come again."""
    return Refusal(status, error, message, {"Retry-After": str(seconds)})


def no_time() -> Refusal:
    """The server ends, and this is not done."""
    return later("draining", "the server ended before this was translated; ask again", 5)


def internal_error() -> Refusal:
    """What is our fault; the log has more."""
    return Refusal(500, "internal_error", "something went wrong here, which is not your fault; the server's log has it")
