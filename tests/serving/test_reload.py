"""Reloading: an old model leaves neither memory nor threads behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from pathlib import Path
from typing import Any

from multihead import Translator

Servers = Any


def test_who_is_about_to_end_loads_nothing_any_more(servers: Servers, translator: Translator) -> None:
    loaded = []

    def load() -> Translator:
        loaded.append(translator)
        return translator

    async def reload() -> None:
        await serving.scheduler.start_loading()

    serving = servers.start(load)
    asyncio.run_coroutine_threadsafe(reload(), serving.loop).result(30)
    assert len(loaded) == 2
    serving.scheduler.draining = True
    asyncio.run_coroutine_threadsafe(reload(), serving.loop).result(30)
    assert len(loaded) == 2


def test_nothing_of_an_old_model_stays(trained: Path, servers: Servers, translator: Translator) -> None:
    gc.collect()
    gc.freeze()  # collecting garbage is then quick
    serving = servers.start(lambda: Translator.load(trained).searching(), threads=2, collect=gc.collect)
    wanted, old, threads = translator.translate(["eins zwei"]), [], set()
    for number in range(2, 5):
        assert serving.client.post(text="eins zwei", alignment=True).texts == wanted
        threads.add(sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate()))
        now = serving.scheduler.model
        old += [weakref.ref(one) for one in (now, now.translator, now.translator.bundle.model)]
        del now
        asyncio.run_coroutine_threadsafe(serving.scheduler.load_model(), serving.loop).result(30)
        assert serving.client.get("/info").json["generation"] == number
        waiting = time.monotonic() + 10
        while any(one() is not None for one in old) and time.monotonic() < waiting:  # a thread may hold it still
            time.sleep(0.01)
        assert [one() for one in old] == [None] * len(old)
    assert len(threads) == 1
