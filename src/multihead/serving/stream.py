"""Server-sent events of what takes time: a translation, a document.

The format is that of the HTML standard, 9.2.

event: partial    data: {"text": "A dog"}              at most every 30 ms
event: progress   data: {"done": 16, "total": 40}      passages of a document
event: done       data: what the response without events would be; of /translate one translation
event: error      data: {"error": ..., "message": ...}
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from pydantic import BaseModel
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


Progress = Callable[[int, int], Awaitable[None]]
"""Called with the passages that are done, and with all of them."""


class DocumentStream(Response):
    """The response to ``POST /translate_file`` for clients that ask for events.

    Args:
        scheduler: has the metrics and the log.
        work: translates the document, and reports its progress.
    """

    media_type = "text/event-stream"

    def __init__(self, scheduler: Scheduler, work: Callable[[Progress], Awaitable[BaseModel]]) -> None:
        super().__init__(b"", headers=_HEADERS, media_type=self.media_type)
        del self.headers["content-length"]
        self._scheduler, self._work = scheduler, work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the events. The work notices itself when the client disconnects."""

        async def progress(done: int, total: int) -> None:
            await send(_event_message("progress", to_json({"done": done, "total": total})))

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            made = await self._work(progress)
            await send(_event_message("done", to_json(made)))
        except ClientDisconnect:
            self._scheduler.metrics.disconnects.inc()
        except Exception as error:
            known = error if isinstance(error, ApiError) else self._scheduler.log_internal_error(error)
            self._scheduler.metrics.refused.labels(known.error).inc()
            await send(_event_message("error", known.body.model_dump_json().encode()))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _event_message(name: str, data: bytes) -> dict[str, object]:
    """An event; ``data`` is one line, because JSON escapes line breaks."""
    return {"type": "http.response.body", "body": b"event: %b\ndata: %b\n\n" % (name.encode(), data), "more_body": True}
