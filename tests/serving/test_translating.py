"""The server returns what `Translator` finds for the line alone, whatever else is in the batch, compiled or not."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from multihead import Translator
from multihead.judging.guard import translate_guarded
from multihead.judging.guard_signs import GuardMode
from multihead.serving import stream
from multihead.serving.loaded_model import SLICE_SENTENCES
from multihead.translating.lengths import SplitLine, join_parts, most_tokens, split_long_lines

Serving = Any
Servers = Any
Client = Any

WORDS = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht"]
TEXTS = [" ".join(random.Random(seed).choices(WORDS, k=1 + seed % 5)) for seed in range(24)]


def test_a_text_alone_and_several_at_once(client: Client, translator: Translator) -> None:
    wanted = translator.translate(TEXTS)
    assert client.post(text=TEXTS).texts == wanted
    assert [client.post(text=text).texts[0] for text in TEXTS[:5]] == wanted[:5]


def test_scores_are_the_translators(client: Client, translator: Translator) -> None:
    found = client.post(text=TEXTS, n_best=3).json["translations"]
    for own, wanted in zip(found, translator.n_best(TEXTS, 3), strict=True):
        assert [one["text"] for one in own["n_best"]] == [one.text for one in wanted]
        assert [one["score"] for one in own["n_best"]] == pytest.approx([one.score for one in wanted])
        assert (own["text"], own["finished"]) == (wanted[0].text, wanted[0].finished)


@pytest.mark.parametrize("compiled", [True, False])
def test_neighbours_change_nothing(compiled: bool, translator: Translator, servers: Servers) -> None:
    """Many clients at once, with different settings: each gets what it would get alone."""
    # A search with this restriction is not compiled, and the restriction never applies.
    model = translator if compiled else translator.searching(no_repeat=40)
    if compiled and model.engine is None:
        pytest.skip("no compiled search here")
    serving = servers.start(lambda: model)
    draw, count = random.Random(5), 40 if compiled else 12
    requests = [
        {"text": draw.choice(TEXTS), "beam": draw.choice([1, 2, 5]), "alpha": draw.choice([0.5, 1.0])}
        for _ in range(count)
    ]
    with ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(lambda one: serving.client.post(**one), requests))
    for one, reply in zip(requests, replies, strict=True):
        wanted = model.translate([one["text"]], beam=one["beam"], alpha=one["alpha"])
        assert reply.texts == wanted
    assert serving.client.metric("multihead_requests_in_hand") == 0
    serving.client.until("multihead_batch_rows", 0)
    assert serving.client.metric("multihead_sentences_total") == count


def test_lines_stay_lines(client: Client, translator: Translator) -> None:
    one, two = translator.translate(["eins zwei", "drei"])
    wanted = {"eins zwei\n\n  \r\ndrei\n": f"{one}\n\n\r\n{two}\n", "": "", " \n": "\n", "drei": two}
    assert client.post(text=list(wanted)).texts == list(wanted.values())


@pytest.mark.parametrize(
    "text", ["eins\u2028zwei", "eins\0zwei", "🐍 eins", "\ufeffeins", "e\u0301ins", "eins\tzwei\r"]
)
def test_odd_characters_are_translated_like_any(text: str, client: Client, translator: Translator) -> None:
    reply = client.post(text=text)
    assert reply.texts == translator.translate([text])
    assert reply.json["translations"][0]["source"] == text


def test_a_prefix_is_what_the_translation_begins_with(client: Client, translator: Translator) -> None:
    wanted = translator.translate(["eins zwei drei"], prefixes=["seven"])
    assert client.post(text="eins zwei drei", prefix="seven").texts == wanted
    assert wanted[0].startswith("seven")


def test_no_texts_have_no_translations(client: Client) -> None:
    assert client.post(text=[]).json["translations"] == []


def test_words_say_where_they_looked(client: Client) -> None:
    (found,) = client.post(text="eins zwei\ndrei", alignment=True, alternatives=2).json["translations"]
    link = found["alignment"]
    assert link["source_words"] == ["eins", "zwei", "drei"]
    assert link["target_words"] == found["text"].split()
    assert [len(row) for row in link["weights"]] == [3] * len(link["target_words"])
    first = len(found["text"].split("\n")[0].split())
    assert all(row[2] == 0 for row in link["weights"][:first])
    assert all(row[:2] == [0, 0] for row in link["weights"][first:])
    assert all(0 <= s < 3 and 0 <= t < len(link["target_words"]) for s, t in link["links"])
    assert len(found["alternatives"]) == len(link["target_words"])
    assert all(1 <= len(others) <= 2 for others in found["alternatives"])
    assert all(0 < other["probability"] < 1 for others in found["alternatives"] for other in others)


def test_many_sentences_are_looked_into_as_each_alone(client: Client) -> None:
    """They are inspected a few at a time: none is lost or swapped."""
    wishes = {"alignment": True, "alternatives": 1, "guard": "mark"}
    texts = TEXTS[: SLICE_SENTENCES + 2]
    assert len(texts) > SLICE_SENTENCES
    for own, text in zip(client.post(text=texts, **wishes).json["translations"], texts, strict=True):
        (alone,) = client.post(text=text, **wishes).json["translations"]
        assert own["text"] == alone["text"]
        for part in ("source_words", "target_words"):
            assert own["alignment"][part] == alone["alignment"][part]
        for row, wanted in zip(own["alignment"]["weights"], alone["alignment"]["weights"], strict=True):
            assert row == pytest.approx(wanted, abs=3e-4)
        assert [len(others) for others in own["alternatives"]] == [len(others) for others in alone["alternatives"]]
        assert own["guard"]["score"] == pytest.approx(alone["guard"]["score"], abs=1e-3)


def test_the_stream_ends_with_what_translate_answers(client: Client) -> None:
    request = {"text": "eins zwei drei vier\nfünf", "beam": 3, "n_best": 2}
    *partial, last = client.post("/translate/stream", **request).events
    assert {name for name, _ in partial} <= {"partial"}
    assert last == ("done", client.post(**request).json["translations"][0])


@pytest.mark.parametrize("compiled", [True, False])
def test_a_greedy_translation_grows(
    compiled: bool, endless: Callable[[], Translator], servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each partial text is a prefix of the next one."""
    monkeypatch.setattr(stream, "MIN_INTERVAL", 0.01)
    long = {"min_length": 2000} if compiled else {"min_length": 80, "no_repeat": 1000}
    model = endless().searching(beam=1, **long)
    if compiled and model.engine is None:
        pytest.skip("no compiled search here")
    client, began = servers.start(lambda: model).client, time.perf_counter()
    events = client.post("/translate/stream", text="eins zwei drei").events
    assert len(events) <= (time.perf_counter() - began) / stream.MIN_INTERVAL + 2
    names, contents = zip(*events, strict=True)
    assert names == ("partial",) * (len(events) - 1) + ("done",)
    texts = [content["text"] for content in contents]
    assert len(texts) > 3
    for one, other in pairwise(texts):
        assert other.startswith(one.rstrip("\ufffd"))
        assert one != other or other == texts[-1]
    assert texts[-1] == model.translate(["eins zwei drei"])[0]


def cut(translator: Translator, text: str) -> list[SplitLine]:
    """The lines of a text, cut as by `multihead translate`."""
    most, longest = most_tokens(translator.lengths, translator.reach)
    bundle = translator.bundle
    lines = text.split("\n")
    return split_long_lines(bundle.source_tokenizer, lines, most, lambda _: False, longest, bundle.source_language)


@pytest.mark.parametrize("mode", ["mark", "retry"])
@pytest.mark.usefixtures("unchecked")
def test_the_guard_says_what_it_says_of_each_sentence(mode: GuardMode, client: Client, translator: Translator) -> None:
    texts = ["eins zwei", "qwxy " * 5, "drei\nvier"]
    found = client.post(text=texts, guard=mode).json["translations"]
    for own, text in zip(found, texts, strict=True):
        wanted = translate_guarded(
            translator, [part for line in cut(translator, text) for part in line.texts], mode=mode
        )
        assert own["text"].split() == " ".join(one.translation.text for one in wanted).split()
        assert own["guard"]["suspicious"] == any(one.marked for one in wanted)
        assert own["guard"]["score"] == pytest.approx(max(one.score for one in wanted))
        assert own["guard"]["retried"] == any(one.first is not None for one in wanted)
        assert own["n_best"][0]["text"] == own["text"]
    assert found[1]["guard"]["suspicious"]
    assert found[1]["guard"]["reasons"]
    assert client.post(text="eins", guard="off").json["translations"][0]["guard"] is None


def test_a_long_line_is_cut_as_multihead_translate_cuts_it(client: Client, translator: Translator) -> None:
    assert translator.bundle.source_language == "de"
    sentences = ["Eins zwei drei vier.", "Der 3. Mai."] * 8
    text = " ".join(sentences)
    (line,) = cut(translator, text)
    assert line.texts == sentences
    (wanted,) = join_parts(line, [[one] for one in translator.translations(line.texts)])
    (found,) = client.post(text=text).json["translations"]
    assert (found["text"], found["score"]) == (wanted.text, pytest.approx(wanted.score))
    assert found["warning"] == line.remark
    *_, (name, streamed) = client.post("/translate/stream", text=text).events
    assert (name, streamed) == ("done", found)
