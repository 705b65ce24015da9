"""Events of a file translation: real progress, fairness to other clients, and an end when the client disconnects."""

from __future__ import annotations

import http.client
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from multihead import Translator
from multihead.serving.error_responses import ApiError, retry_later
from multihead.serving.scheduler import Scheduler
from multihead.serving.served_model import ModelSource, Pair

Client = Any
Servers = Any

EVENTS = {"Accept": "text/event-stream"}


def form(name: str, content: bytes, **fields: str) -> tuple[bytes, dict[str, str]]:
    """Body and headers of an upload, from German to English."""
    named = [(f'name="{field}"', value.encode()) for field, value in {"source": "de", "target": "en", **fields}.items()]
    parts = [*named, (f'name="file"; filename="{name}"', content)]
    body = b"".join(b"--limit\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (n.encode(), v) for n, v in parts)
    return body + b"--limit--\r\n", {"Content-Type": "multipart/form-data; boundary=limit"}


def upload(client: Client, name: str, content: bytes, events: bool = True, **fields: str) -> Any:
    body, headers = form(name, content, **fields)
    return client.ask("POST", "/translate_file", body, headers | (EVENTS if events else {}))


def fetched(client: Client, url: str) -> bytes:
    return bytes(client.get("/" + url.split("/", 3)[3]).body)


def test_progress_is_told_and_the_file_is_the_same(client: Client) -> None:
    content = b"<p>eins <b>zwei</b></p>drei<br>" * 20
    streamed, plain = (upload(client, "a.html", content, events) for events in (True, False))
    *progress, (last, made) = streamed.events
    assert [(name, data["done"], data["total"]) for name, data in progress] == [
        ("progress", done, 40)
        for done in (16, 20, 36, 40)  # plain passages first, then those with tags
    ]
    assert last == "done"
    assert fetched(client, made["translatedFileUrl"]) == fetched(client, plain.json["translatedFileUrl"])
    described = client.get("/openapi.json").json["paths"]["/translate_file"]["post"]["responses"]["200"]["content"]
    assert {streamed.headers["content-type"].partition(";")[0], plain.headers["content-type"]} == set(described)


def test_an_error_is_an_event_once_the_form_is_read(client: Client) -> None:
    late = upload(client, "a.txt", b"eins\n" * 16 + b"e" * 2_001)
    assert [name for name, _ in late.events] == ["progress", "error"]
    assert late.events[-1][1]["error"] == "text_too_long"
    for name, fields, word in (("a.pdf", {}, "invalid_request"), ("a.txt", {"model": "large"}, "unknown_model")):
        ((event, data),) = upload(client, name, b"eins", **fields).events
        assert (event, data["error"]) == ("error", word)
    assert upload(client, "", b"eins").status == 400


def test_a_file_waits_for_its_turn_and_ends_with_its_client(
    servers: Servers, translator: Translator, endless: Any
) -> None:
    pair = Pair("de", "en")
    sources = [ModelSource(endless, pair), ModelSource(lambda: translator, pair, name="quick")]
    client = servers.start(lambda: None, sources=sources, queue=1).client
    with ThreadPoolExecutor(1) as pool:
        with client.in_flight(text="eins"):
            client.until("multihead_requests_in_hand", 1)
            waiting = pool.submit(upload, client, "a.txt", b"eins\n", model="quick")
            assert client.post(text="eins").status == 429
            assert not waiting.done()
        assert [name for name, _ in waiting.result(30).events] == ["progress", "done"]
    body, headers = form("a.txt", b"eins")
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
    connection.request("POST", "/translate_file", body, headers | EVENTS)
    client.until("multihead_requests_in_hand", 1)
    connection.close()
    client.until("multihead_requests_in_hand", 0)


def test_a_waiting_file_ends_at_once_with_the_server(
    servers: Servers, endless: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = threading.Event()

    def queue_full(_: Scheduler) -> ApiError:
        full.set()
        return retry_later("queue_full", "ask again in an hour", 3_600, 429)

    monkeypatch.setattr(Scheduler, "_queue_full", queue_full)
    serving = servers.start(lambda: None, sources=[ModelSource(endless, Pair("de", "en"))], queue=1)
    with ThreadPoolExecutor(1) as pool, serving.client.in_flight(text="eins"):
        serving.client.until("multihead_requests_in_hand", 1)
        waiting = pool.submit(upload, serving.client, "a.txt", b"eins\n")
        assert full.wait(30)
        serving.loop.call_soon_threadsafe(serving.scheduler.drain)
        ((name, data),) = waiting.result(20).events
        assert (name, data["error"]) == ("error", "draining")
