"""Failures affect one request only: a sentence that cannot be searched, a batch that cannot be opened, a bug."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from multihead import Translator
from multihead.engine.search import Engine
from multihead.serving import requests

Servers = Any


@pytest.mark.parametrize("compiled", [True, False])
def test_only_the_sentence_that_cannot_be_searched_fails(compiled: bool, damaged: Translator, servers: Servers) -> None:
    model = damaged if compiled else damaged.searching(no_repeat=1000)
    if compiled and model.engine is None:
        pytest.skip("no compiled search here")
    wanted = model.translate(["eins zwei"])
    serving = servers.start(lambda: model, threads=1)
    texts = ["eins zwei", "acht"] * (8 if compiled else 4)  # fewer of those that are searched slowly
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda text: serving.client.post(text=text), texts))
    for good in replies[::2]:
        assert (good.status, good.texts) == (200, wanted)
    for bad in replies[1::2]:
        assert (bad.status, bad.json["error"]) == (500, "translation_failed")
    assert any("NaN" in line for line in serving.log)
    serving.client.until("multihead_batch_rows", 0)
    assert serving.client.post(text="eins\nacht").status == 500
    assert serving.client.post("/translate/stream", text="acht").events[-1][1]["error"] == "translation_failed"


def test_a_batch_that_cannot_be_had_is_searched_otherwise(
    translator: Translator, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only search thread goes on."""
    if translator.engine is None:
        pytest.skip("no compiled search here")
    wanted = {beam: translator.translate(["eins zwei"], beam=beam) for beam in (2, 3)}
    client, real = servers.start(lambda: translator, threads=1).client, Engine.open
    refused, opened = list[int](), list[int]()

    def refusing(engine: Any, task: Any, search: Any, *words: Any, **named: Any) -> Any:
        if search.beam == 3:
            refused.append(search.beam)
            raise RuntimeError("no room")
        running = real(engine, task, search, *words, **named)
        opened.append(search.beam)
        return running

    monkeypatch.setattr(Engine, "open", refusing)
    assert client.post(text="eins zwei", beam=3).texts == wanted[3]
    assert client.post(text="eins zwei", beam=2).texts == wanted[2]
    assert (refused, opened) == ([3], [2])


@pytest.mark.parametrize("path", ["/translate", "/translate/stream"])
def test_a_mistake_of_ours_is_answered_like_any_refusal(
    path: str, translator: Translator, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("/a/path.py")

    serving = servers.start(lambda: translator)
    with monkeypatch.context() as patch:
        patch.setattr(requests, "prepare", broken)
        reply = serving.client.post(path, text="eins")
    assert (reply.status, reply.json["error"]) == (500, "internal_error")
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "path" not in reply.body.decode()
    assert [line for line in serving.log if "/a/path.py" in line]
    assert serving.client.metric('multihead_refused_total{error="internal_error"}') == 1
    assert serving.client.post(text="eins zwei").texts == translator.translate(["eins zwei"])
