"""Several models in one server: chosen by languages, loaded on demand within a memory limit, joined by a pivot."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multihead import Translator
from multihead.errors import ConfigurationError, FormatError
from multihead.serving.folders import find_models, load
from multihead.serving.languages import NAMES, match, name_of
from multihead.serving.loaded_model import estimate_bytes, weight_bytes
from multihead.serving.served_model import ModelSource, Pair
from multihead.serving.settings import ServeSettings

Servers = Any

JSON = {"Content-Type": "application/json"}
PAIRS = [Pair("de", "en"), Pair("en", "fr"), Pair("en", "de")]


class Loads:
    """Sources of models that record how often each was loaded.

    Models differ in beam and minimum length, so that a translation shows which model made it.
    """

    def __init__(self, translator: Translator) -> None:
        self.counts = dict.fromkeys(PAIRS, 0)
        self.translators = {
            pair: translator.searching(beam=1 + place, min_length=12 * place) for place, pair in enumerate(PAIRS)
        }
        assert len({one.translate(["eins"])[0] for one in self.translators.values()}) == len(PAIRS)
        self.bytes = weight_bytes(translator)
        self.broken: set[Pair] = set()

    def load(self, pair: Pair) -> Translator:
        self.counts[pair] += 1
        if pair in self.broken:
            raise FormatError("damaged")
        return self.translators[pair]

    @property
    def sources(self) -> list[ModelSource]:
        return [ModelSource(lambda pair=pair: self.load(pair), pair, self.bytes) for pair in PAIRS]  # type: ignore[misc]

    def limit(self, models: int) -> str:
        """A memory limit with room for this many models."""
        return f"{models * self.bytes / 1000 + 1}KB"


@pytest.fixture
def loads(translator: Translator) -> Loads:
    return Loads(translator)


def test_languages_choose_the_model_and_the_first_request_loads_it(loads: Loads, servers: Servers) -> None:
    client = servers.start(lambda: None, sources=loads.sources).client
    assert client.get("/ready").status == 200
    assert {model["state"] for model in client.get("/models").json} == {"unloaded"}
    for pair, translator in loads.translators.items():
        wanted = translator.translate(["eins zwei", "drei"])
        for _ in range(2):
            reply = client.post(text=["eins zwei", "drei"], source=pair.source, target=pair.target)
            assert reply.texts == wanted
            assert (
                client.post(q="eins zwei", source=pair.source, target=pair.target).json["translatedText"] == wanted[0]
            )
        assert client.get(f"/info?source={pair.source}&target={pair.target}").json["beam"] == 1 + PAIRS.index(pair)
    assert loads.counts == dict.fromkeys(PAIRS, 1)
    assert client.post(text="eins").texts == loads.translators[PAIRS[0]].translate(["eins"])
    for fields, pair in (({"source": "de"}, PAIRS[0]), ({"target": "fr"}, PAIRS[1])):  # one language is enough here
        assert client.post(text="eins", **fields).texts == loads.translators[pair].translate(["eins"])
    assert [(one["source"], one["state"], one["requests"]) for one in client.get("/models").json] == [
        (pair.source, "loaded", 0) for pair in PAIRS
    ]
    assert client.metric('multihead_model_requests_total{model="en-fr"}') == 5


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"source": "de", "target": "fr"}, "no model translates from de to fr"),
        ({"source": "en"}, "several models translate from en to any language"),
        ({"source": "ja"}, "source: 'ja' is not supported; this server has de, en"),
        ({"source": "de", "target": "fr", "pivot": "de"}, "no model translates from de to de"),
    ],
)
def test_languages_without_a_model_are_named(
    fields: dict[str, str], named: str, loads: Loads, servers: Servers
) -> None:
    reply = servers.start(lambda: None, sources=loads.sources).client.post(text="eins", **fields)
    assert (reply.status, reply.json["error"]) == (422, "unsupported_languages")
    assert named in reply.json["message"]


def test_a_pivot_is_one_translation_after_the_other(loads: Loads, servers: Servers) -> None:
    texts = ["eins zwei drei", "", "vier\n\nfünf"]
    allowed, asked = (servers.start(lambda: None, sources=loads.sources, pivot=own).client for own in (("en",), None))
    first = allowed.post(text=texts, source="de", target="en").texts
    wanted = allowed.post(text=first, source="en", target="fr").json["translations"]
    through = {"source": "de", "target": "fr"}
    for reply in (allowed.post(text=texts, **through), asked.post(text=texts, pivot="en", **through)):
        assert [{**one, "source": None} for one in reply.json["translations"]] == [
            {**one, "source": None} for one in wanted
        ]
        assert [one["source"] for one in reply.json["translations"]] == texts
    assert allowed.post(q=texts, **through).json["translatedText"] == [one["text"] for one in wanted]
    *_, (name, streamed) = allowed.post("/translate/stream", text=texts[0], **through).events
    assert (name, streamed) == ("done", allowed.post(text=texts[0], **through).json["translations"][0])
    guarded = allowed.post(text=texts[0], guard="mark", n_best=2, prefix="seven", **through).json["translations"][0]
    assert guarded["guard"]["score"] >= 0
    assert len(guarded["n_best"]) == 2
    assert guarded["text"].startswith("seven")
    assert "alignment" in allowed.post(text="eins", alignment=True, **through).json["message"]
    info = allowed.get("/info?source=de&target=fr").json
    assert (info["source_language"], info["alignment"]) == ("de", False)
    targets = {one["code"]: one["targets"] for one in allowed.get("/languages").json}
    assert targets == {"de": ["en", "fr"], "en": ["de", "fr"], "fr": []}
    assert {one["code"]: one["targets"] for one in asked.get("/languages").json}["de"] == ["en"]


def test_the_model_used_longest_ago_makes_room(loads: Loads, servers: Servers) -> None:
    serving = servers.start(lambda: None, sources=loads.sources, memory_limit=loads.limit(2))
    first, second, third = PAIRS

    def ask(pair: Pair) -> None:
        wanted = loads.translators[pair].translate(["eins"])
        assert serving.client.post(text="eins", source=pair.source, target=pair.target).texts == wanted

    for pair in (first, second, first, third):
        ask(pair)
    assert [one["state"] for one in serving.client.get("/models").json] == ["loaded", "unloaded", "loaded"]
    assert loads.counts == {first: 1, second: 1, third: 1}
    assert serving.client.metric('multihead_unloads_total{model="en-fr"}') == 1
    assert serving.client.metric("multihead_models_loaded") == 2
    ask(second)
    assert loads.counts == {first: 1, second: 2, third: 1}
    assert any(line == "unloaded en-fr" for line in serving.log)


def test_models_that_exclude_each_other_take_turns(loads: Loads, servers: Servers) -> None:
    """Each request gets the translation of its own model, and none waits for ever."""
    client = servers.start(lambda: None, sources=loads.sources, memory_limit=loads.limit(1), queue=64).client
    texts = ["eins", "zwei drei", "vier"]
    wanted = {pair: translator.translate(texts) for pair, translator in loads.translators.items()}
    asked = [(pair, number) for number in range(len(texts)) for pair in PAIRS] * 2
    with ThreadPoolExecutor(12) as pool:
        replies = list(
            pool.map(lambda one: client.post(text=texts[one[1]], source=one[0].source, target=one[0].target), asked)
        )
    for (pair, number), reply in zip(asked, replies, strict=True):
        assert (reply.status, reply.texts) == (200, [wanted[pair][number]])
    assert client.metric("multihead_models_loaded") == 1
    assert client.metric("multihead_requests_in_hand") == 0
    assert {one["requests"] for one in client.get("/models").json} == {0}


def test_a_model_in_use_is_waited_for_until_the_time_limit(loads: Loads, servers: Servers) -> None:
    serving = servers.start(lambda: None, sources=loads.sources, memory_limit=loads.limit(1), time_limit=0.5)
    client, models = serving.client, serving.scheduler.models
    (model,) = models.route("de", "en")
    held = asyncio.run_coroutine_threadsafe(models.acquire(model), serving.loop).result(30)
    reply = client.post(text="eins", source="en", target="fr")
    assert (reply.status, reply.json["error"]) == (503, "time_exceeded")
    assert int(reply.headers["retry-after"]) >= 1
    serving.loop.call_soon_threadsafe(models.release, model, held)
    replies = (client.post(text="eins", source="en", target="fr").status for _ in range(60))  # half a second each
    assert 200 in replies


def test_who_disconnects_while_a_model_is_loaded_is_forgotten(loads: Loads, servers: Servers) -> None:
    entered, over = threading.Event(), threading.Event()

    def slow() -> Translator:
        entered.set()
        assert over.wait(30)
        return loads.load(PAIRS[0])

    client = servers.start(lambda: None, sources=[ModelSource(slow, PAIRS[0]), *loads.sources[1:]]).client
    with client.in_flight(text="eins", source="de", target="en"):
        assert entered.wait(30)
        assert client.get("/models").json[0]["state"] == "loading"
    client.until("multihead_requests_in_hand", 0)
    assert client.metric("multihead_clients_gone_total") == 1
    over.set()
    assert client.post(text="eins", source="de", target="en").status == 200
    assert loads.counts[PAIRS[0]] == 1


def test_a_model_that_cannot_be_loaded_leaves_the_others(loads: Loads, servers: Servers) -> None:
    loads.broken.add(PAIRS[0])
    serving = servers.start(lambda: None, sources=loads.sources)
    for _ in range(3):
        reply = serving.client.post(text="eins", source="de", target="en")
        assert (reply.status, reply.json["error"]) == (503, "model_unavailable")
        assert 1 <= int(reply.headers["retry-after"]) <= 10
    assert loads.counts[PAIRS[0]] == 1  # it is not retried at once
    assert serving.log.count("de-en cannot be loaded: damaged") == 1
    assert serving.client.post(q="eins", source="de", target="en").status == 503
    assert serving.client.post(text="eins", source="en", target="fr").status == 200
    assert [one["state"] for one in serving.client.get("/models").json] == ["failed", "loaded", "unloaded"]
    loads.broken.clear()
    serving.scheduler.models.all[0].failed_at = -1e9
    assert serving.client.post(text="eins", source="de", target="en").status == 200


def test_a_reload_concerns_the_models_in_memory(loads: Loads, servers: Servers) -> None:
    serving = servers.start(lambda: None, sources=loads.sources)
    assert serving.client.post(text="eins", source="en", target="fr").status == 200

    async def reload() -> None:
        await serving.scheduler.start_loading()

    asyncio.run_coroutine_threadsafe(reload(), serving.loop).result(30)
    assert loads.counts == {PAIRS[0]: 0, PAIRS[1]: 2, PAIRS[2]: 0}
    assert serving.client.get("/info?target=fr").json["generation"] == 2


def test_a_request_that_waits_when_the_server_ends_gets_503(loads: Loads, servers: Servers) -> None:
    over = threading.Event()

    def slow() -> Translator:
        assert over.wait(30)
        return loads.load(PAIRS[0])

    serving = servers.start(lambda: None, sources=[ModelSource(slow, PAIRS[0]), *loads.sources[1:]])
    held = serving.client.begin(text="eins", source="de", target="en")
    serving.client.until("multihead_requests_in_hand", 1)
    serving.loop.call_soon_threadsafe(serving.scheduler.abort_all)
    answer = held.getresponse()
    assert (answer.status, json.loads(answer.read())["error"]) == (503, "draining")
    held.close()
    over.set()


def test_folders_are_checked_before_the_server_listens(trained: Path, tmp_path: Path) -> None:
    def find(folders: Any, **settings: Any) -> list[ModelSource]:
        return find_models(folders, {}, "cpu", ServeSettings(**settings))

    (source,) = find({("de", "en"): trained})
    assert source.pair == Pair("de", "en")
    assert source.load().translate(["eins"]) == Translator.load(trained).translate(["eins"])
    with pytest.raises(FormatError, match="not a model"):
        find({("de", "en"): trained, ("en", "de"): tmp_path})
    with pytest.raises(ConfigurationError, match="more than --memory-limit 1KB"):
        find({("de", "en"): trained}, memory_limit="1KB")
    for flag, value in (("memory_limit", "1GB"), ("pivot", ("en",))):
        with pytest.raises(ConfigurationError, match="for models given with their languages"):
            find({None: trained}, **{flag: value})


def test_a_model_of_other_languages_is_not_served(trained: Path) -> None:
    with pytest.raises(ConfigurationError, match="the source language of this model is de, not en"):
        load(trained, Pair("en", "de"), {}, "cpu")


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_memory_is_estimated_from_the_files(precision: Any, trained: Path) -> None:
    translator = Translator.load(trained).searching(precision=precision)
    if translator.engine is None:
        pytest.skip("no compiled search here")
    assert estimate_bytes(trained / "best", precision) == pytest.approx(weight_bytes(translator), rel=0.05)


@pytest.mark.parametrize(
    ("size", "wanted"), [("2GB", 2 * 10**9), ("1.5 MiB", 3 * 2**19), ("10kb", 10_000), (None, None)]
)
def test_sizes(size: str | None, wanted: int | None) -> None:
    assert ServeSettings(memory_limit=size).memory_bytes == wanted


@pytest.mark.parametrize("size", ["", "2", "GB", "0MB", "-1GB", "2TB", "1e9KB"])
def test_no_sizes(size: str) -> None:
    with pytest.raises(ValueError, match="expected a size such as 500MB or 2GB"):
        ServeSettings(memory_limit=size)


@given(code=st.sampled_from(sorted(NAMES)), upper=st.booleans(), region=st.sampled_from(["", "-AT", "_XX"]))
def test_a_code_is_found_in_every_spelling(code: str, upper: bool, region: str) -> None:
    spelled = (code.upper() if upper else code) + region
    assert match(spelled, NAMES) == code
    assert match(code, [code + "-XX"]) == code + "-XX"
    assert match(code, [code + "-XX", code + "-YY"]) is None
    assert name_of(code + region).startswith(NAMES[code])


def test_unknown_codes_are_their_own_names() -> None:
    assert (name_of("tlh"), name_of("pt-BR"), name_of("")) == ("tlh", "Portuguese (BR)", "")
