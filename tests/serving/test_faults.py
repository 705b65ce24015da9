"""A sentence that a model cannot search fails alone: its neighbours get what they would get anyway."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from multihead import Translator

Servers = Any


@pytest.mark.parametrize("compiled", [True, False])
def test_only_the_sentence_that_cannot_be_searched_fails(compiled: bool, damaged: Translator, servers: Servers) -> None:
    model = damaged if compiled else damaged.searching(no_repeat=1000)
    if compiled and model.engine is None:
        pytest.skip("no compiled search here")
    wanted = model.translate(["eins zwei"])
    serving = servers.start(lambda: model, lanes=1)
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda text: serving.client.post(text=text), ["eins zwei", "acht"] * 8))
    for good in replies[::2]:
        assert (good.status, good.texts) == (200, wanted)
    for bad in replies[1::2]:
        assert (bad.status, bad.json["error"]) == (500, "translation_failed")
    assert any("NaN" in line for line in serving.said)
    serving.client.until("multihead_batch_rows", 0)
    assert serving.client.post(text="eins\nacht").status == 500
    assert serving.client.post("/translate/stream", text="acht").events[-1][1]["error"] == "translation_failed"
