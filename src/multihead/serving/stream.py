"""Server-sent events of a growing translation (HTML standard, 9.2).

event: partial    data: {"text": "A dog"}              at most every 30 ms
event: done       data: one translation, as in the response of /translate
event: error      data: {"error": ..., "message": ...}
"""

from __future__ import annotations

import asyncio
from functools import partial

from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from multihead.serving.error_responses import ApiError, time_exceeded
from multihead.serving.requests import on_disconnect
from multihead.serving.responses import dump_texts
from multihead.serving.scheduler import ActiveRequest, Flight, Scheduler
from multihead.serving.schema import ApiRequest

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""The second one tells proxies not to buffer events."""

MIN_INTERVAL = 0.03
"""Seconds between two partial events. Each holds the whole text so far; more of them could not be seen."""


class EventStream(Response):
    """The response to ``POST /translate/stream``.

    Args:
        scheduler: translates.
        request: has one text.
    """

    media_type = "text/event-stream"

    def __init__(self, scheduler: Scheduler, request: ApiRequest) -> None:
        super().__init__(b"", headers=_HEADERS, media_type=self.media_type)
        del self.headers["content-length"]
        self._scheduler, self._request = scheduler, request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events. An error before the first event is an ordinary error response, later it is an event."""
        started, time_limit, flight = False, self._scheduler.settings.time_limit, Flight()
        try:
            async with (
                asyncio.timeout(time_limit),
                on_disconnect(receive, partial(flight.abort, ClientDisconnect())),
                self._scheduler.admit(self._request, flight, streamed=True) as active,
            ):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                started = True
                await self._send_progress(active, send)
                texts = await self._scheduler.finish(active)
                data = await dump_texts(texts[0], texts, self._scheduler.settings)
                await send(_event_message("done", data))
        except ClientDisconnect:
            self._scheduler.metrics.disconnects.inc()
        except TimeoutError:
            await self._send_error(time_exceeded(time_limit), started, scope, receive, send)
        except ApiError as error:
            await self._send_error(error, started, scope, receive, send)
        except Exception as error:
            await self._send_error(self._scheduler.log_internal_error(error), started, scope, receive, send)
        if started:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_progress(self, active: ActiveRequest, send: Send) -> None:
        """Send the text so far whenever it changed, until the job is done."""
        job, sent = active.job, ""
        while not job.done.done():
            await job.updated.wait()
            job.updated.clear()
            text = active.partial_text
            if text != sent and not job.done.done():
                sent = text
                await send(_event_message("partial", to_json({"text": text})))
                await asyncio.wait({job.done}, timeout=MIN_INTERVAL)

    async def _send_error(self, error: ApiError, started: bool, scope: Scope, receive: Receive, send: Send) -> None:
        self._scheduler.metrics.refused.labels(error.error).inc()
        if started:
            await send(_event_message("error", error.body.model_dump_json().encode()))
        else:
            await error.response()(scope, receive, send)


def _event_message(name: str, data: bytes) -> dict[str, object]:
    """An event; ``data`` is one line, because JSON escapes line breaks."""
    return {"type": "http.response.body", "body": b"event: %b\ndata: %b\n\n" % (name.encode(), data), "more_body": True}
