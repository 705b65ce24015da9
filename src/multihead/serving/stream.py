"""Server-sent events: a translation as it grows, then whole (HTML standard, 9.2).

event: partial    data: {"text": "A dog"}              when there is more to show, not oftener than is seen
event: done       data: one translation, as /translate has it
event: error      data: {"error": ..., "message": ...}
"""

from __future__ import annotations

import asyncio
import json
from functools import partial

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from multihead.serving.disconnect import ClientGone, leaving
from multihead.serving.error_responses import Refusal
from multihead.serving.scheduler import Desk, Work, unforeseen
from multihead.serving.schema import Asked

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""A proxy is not to collect events."""

PACE = 0.03
"""Seconds between two partial events: each has the whole text so far, and nobody sees more of them."""


class EventStream(Response):
    """The answer to ``POST /translate/stream``.

    Args:
        desk: who translates.
        asked: one text.
        late: what is answered when there was no more time.
    """

    media_type = "text/event-stream"

    def __init__(self, desk: Desk, asked: Asked, late: Refusal) -> None:
        super().__init__(b"", headers=_HEADERS, media_type=self.media_type)
        del self.headers["content-length"]
        self._desk, self._asked, self._late = desk, asked, late

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refused before it begins, it is an answer like others; after that an event."""
        started = False
        try:
            async with asyncio.timeout(self._desk.settings.time_limit), self._desk.work(self._asked, True) as work:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                started = True
                async with leaving(receive, partial(work.end, ClientGone())):
                    await self._grow(work, send)
                    (answer,) = await self._desk.finish(work)
                    await _event(send, "done", answer)
        except ClientGone:
            self._desk.metrics.gone.inc()
        except TimeoutError:
            await self._refuse(self._late, started, scope, receive, send)
        except Refusal as refusal:
            await self._refuse(refusal, started, scope, receive, send)
        except Exception as error:
            await self._refuse(unforeseen(self._desk, error), started, scope, receive, send)
        if started:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _grow(self, work: Work, send: Send) -> None:
        """Tells what there is whenever there is more, until the job is done."""
        shown = ""
        while not work.job.done.done():
            await work.job.changed.wait()
            work.job.changed.clear()
            text = work.so_far
            if text != shown and not work.job.done.done():
                shown = text
                await send(_framed("partial", json.dumps({"text": text}, ensure_ascii=False)))
                await asyncio.wait({work.job.done}, timeout=PACE)

    async def _refuse(self, refusal: Refusal, started: bool, scope: Scope, receive: Receive, send: Send) -> None:
        self._desk.metrics.refused.labels(refusal.error).inc()
        if started:
            await _event(send, "error", refusal.fault)
        else:
            await refusal.response()(scope, receive, send)


async def _event(send: Send, name: str, content: BaseModel) -> None:
    await send(_framed(name, content.model_dump_json()))


def _framed(name: str, data: str) -> dict[str, object]:
    """JSON has no line breaks outside of strings, and escapes them inside: data is one line."""
    return {"type": "http.response.body", "body": f"event: {name}\ndata: {data}\n\n".encode(), "more_body": True}
