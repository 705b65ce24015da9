"""A server copies placeholders as `Translator.translate` does, while it serves other requests."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.translating.test_copying import UNTRAINED, VALUES, copied

from multihead.translating import copying

Servers = Any

TEXTS = [" ".join(VALUES[:3]), "Hund 48213 48213\nrennt 907.55", "Hund"]


def test_every_text_is_copied(servers: Servers) -> None:
    translator = UNTRAINED[False]
    client = servers.start(lambda: translator).client
    texts = client.post(text=TEXTS).texts
    assert all(copied(source, text) for source, text in zip(TEXTS, texts, strict=True))
    assert [text.split("\n") for text in texts] == [translator.translate(text.split("\n")) for text in TEXTS]


def test_others_are_answered_while_a_sentence_is_searched_again(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, end = threading.Event(), threading.Event()
    original = copying.with_placeholders

    def slow(*given: Any) -> Any:
        begun.set()
        assert end.wait(20)
        return original(*given)

    client = servers.start(lambda: UNTRAINED[False]).client
    monkeypatch.setattr(copying, "with_placeholders", slow)
    with client.in_flight(text=[TEXTS[0]]):
        assert begun.wait(20)
        assert client.get("/health").status == 200
        end.set()
