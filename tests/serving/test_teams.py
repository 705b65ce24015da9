"""Several models together on the server: ensembles, choosing, the uses of a run in stages, names."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from multihead import Translator
from multihead.bundle import save_bundle
from multihead.errors import ConfigurationError, FormatError
from multihead.runs.best.comparison import Use
from multihead.runs.best.train import USES
from multihead.serving.folders import Opened, Team, find_models
from multihead.serving.loaded_model import estimate_bytes, weight_bytes
from multihead.serving.served_model import ModelSource, Pair
from multihead.serving.settings import ServeSettings
from multihead.serving.uses import has_uses, read_uses
from multihead.text.backwards import BackwardsTokenizer
from multihead.translating.remember import remember
from multihead.translating.request import TranslationRequest, Weights, usual_weights

Servers = Any

TEXTS = ["eins zwei drei", "sieben", "vier fünf\n\nzehn neun", "Xylophon acht"]
WEIGHTS = Weights(forward=0.4, reverse=0.5, agreement=0.2, length=-0.1)


@pytest.fixture(scope="module")
def run(translator: Translator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parts of a run in stages that a server reads: its models, and their uses."""
    folder, bundle = tmp_path_factory.mktemp("stages") / "run", translator.bundle

    def write(name: str, seed: int, **changes: Any) -> Path:
        model = copy.deepcopy(bundle.model)
        torch.manual_seed(seed)
        with torch.no_grad():
            for tensor in model.parameters():
                tensor += 0.08 * torch.randn_like(tensor)
        save_bundle(folder / name / "best", replace(bundle, model=model, **changes), {}, "Made by a test.")
        return folder / name

    save_bundle(folder / "best", bundle, {}, "Made by a test.")
    others = [write(f"forward-{seed}", seed) for seed in (1, 2)]
    turned = {"source_language": bundle.target_language, "target_language": bundle.source_language}
    turned |= {"source_tokenizer": bundle.target_tokenizer, "target_tokenizer": bundle.source_tokenizer}
    reverse = write("reverse-1", 3, **turned)
    ensemble = [word for path in others for word in ("--with", str(path))]
    choosing = ["--beam", "6", "--reverse", str(reverse), "--weights", str(WEIGHTS)]
    uses = [
        Use("the model alone", (), 1.0),
        Use("an ensemble", tuple(ensemble), 2.0),
        Use("the model alone, choosing", tuple(choosing), 3.0),
        Use("an ensemble, choosing", (*ensemble, *choosing), 4.0),
    ]
    (folder / USES).write_text(json.dumps({"sentences": 9, "uses": [use.as_dict() for use in uses]}))
    return folder


def joined(run: Path) -> dict[str, Translator]:
    """The same, as `multihead translate` makes them."""
    alone, reverse = Translator.load(run), Translator.load(run / "reverse-1")
    ensemble = alone.ensemble([Translator.load(run / f"forward-{number}") for number in (1, 2)])
    return {
        "model alone": alone,
        "ensemble": ensemble,
        "model alone, choosing": alone.searching(beam=6).with_reverse(reverse),
        "ensemble, choosing": ensemble.searching(beam=6).with_reverse(reverse),
    }


def translations(translator: Translator, texts: list[str], weights: Weights | None) -> list[str]:
    """The translations of texts, line by line."""
    lines = [line for text in texts for line in text.split("\n")]
    found = iter(translator.run(TranslationRequest(translator.search_settings(), lines, weights=weights)))
    return ["\n".join(next(found)[0].text for _ in text.split("\n")) for text in texts]


def test_every_use_of_a_run_translates_as_its_flags_do(run: Path, servers: Servers) -> None:
    sources = find_models({None: run}, {}, "cpu", ServeSettings(), read_uses(run))
    client = servers.start(lambda: None, sources=sources).client
    seen = set()
    for name, translator in joined(run).items():
        weights = WEIGHTS if "choosing" in name else None
        wanted = translations(translator, TEXTS, weights)
        assert client.post(text=TEXTS, model=name).texts == wanted
        assert client.post(text=TEXTS[0], model=name.upper(), source="de", target="en").texts == wanted[:1]
        seen.add(tuple(wanted))
        info = client.get(f"/info?model={name.replace(' ', '%20')}").json
        assert (info["name"], info["ensemble"], info["chooses"]) == (name, len(translator.networks), bool(weights))
        assert info["beam"] == translator.search_settings().beam
    assert len(seen) > 1  # the uses differ
    states = client.get("/models").json
    assert [(one["source"], one["target"], one["name"], one["state"]) for one in states] == [
        ("de", "en", name, "loaded") for name in joined(run)
    ]
    assert client.post(text=TEXTS).texts == translations(joined(run)["model alone"], TEXTS, None)  # the first one
    assert client.metric('multihead_model_requests_total{model="de-en@ensemble"}') == 2


def test_what_is_chosen_has_its_own_alignment_and_candidates(run: Path, servers: Servers) -> None:
    (team,) = (team for team in read_uses(run) if team.name == "ensemble, choosing")
    sources = find_models({("de", "en"): run}, {}, "cpu", ServeSettings(), (replace(team, name=None),))
    client = servers.start(lambda: None, sources=sources).client
    (answer,) = client.post(text="eins zwei drei", n_best=4, alignment=True, alternatives=1).json["translations"]
    translator = joined(run)["ensemble, choosing"]
    assert answer["text"] == answer["n_best"][0]["text"] == translations(translator, ["eins zwei drei"], WEIGHTS)[0]
    beam = {one.text: one.score for one in reversed(translator.n_best(["eins zwei drei"], 6)[0])}
    for one in answer["n_best"]:
        assert one["score"] == pytest.approx(beam[one["text"]])
    assert answer["alignment"]["target_words"] == answer["text"].split()
    greedy = client.post(text="eins zwei", beam=1).texts  # one candidate: nothing to choose
    assert greedy == translator.translate(["eins zwei"], beam=1)
    *_, (name, streamed) = client.post("/translate/stream", text="eins zwei drei").events
    assert (name, streamed["text"]) == ("done", answer["text"])
    prefixed = client.post(text="eins zwei", prefix="two").texts
    asked = TranslationRequest(translator.search_settings(), ["eins zwei"], ["two"], weights=WEIGHTS)
    assert prefixed == [translator.run(asked)[0][0].text]


def test_uses_share_the_networks_in_memory(run: Path) -> None:
    sources = find_models({None: run}, {}, "cpu", ServeSettings(), read_uses(run))
    alone, ensemble, _, both = (source.load() for source in sources)
    assert ensemble.networks[0] is alone.bundle.model
    assert [one is other for one, other in zip(both.networks, ensemble.networks, strict=True)] == [True] * 3
    assert both.reverse is not None
    if alone.engine is not None:
        members = {id(engine) for one in (ensemble, both) for engine in one.engine.together.engines}  # type: ignore[union-attr]
        assert len(members) == 3
        single = weight_bytes(alone)
        reverse = sum(tensor.nbytes for tensor in both.reverse.bundle.model.parameters())
        assert weight_bytes(both) == 3 * single + reverse
        assert sources[3].estimated_bytes == pytest.approx(weight_bytes(both), rel=0.05)
    opened, pair = Opened(), Pair("de", "en")
    loaded = opened.load(run, pair, "cpu", shared=True).ensemble([opened.load(run / "forward-1", pair, "cpu", True)])
    assert len(opened._models) == 2
    del loaded
    assert len(opened._models) == 0  # unused models are not kept


def test_a_use_computes_in_its_precision_unless_the_server_has_one(run: Path, tmp_path: Path) -> None:
    uses = {"uses": [{"use": "the model alone", "flags": ["--precision", "int8"]}]}
    (tmp_path / USES).write_text(json.dumps(uses))
    teams = read_uses(tmp_path)
    assert teams == (Team(name="model alone", search={"precision": "int8"}),)
    for given, precision in (({}, "int8"), ({"precision": "float32"}, "float32")):
        (source,) = find_models({None: run}, given, "cpu", ServeSettings(), teams)
        assert source.load().search_settings().precision == precision


def test_a_run_can_be_anywhere_and_must_be_whole(run: Path, trained: Path, tmp_path: Path) -> None:
    content = json.loads((run / USES).read_text())
    assert (has_uses(run), has_uses(trained)) == (True, False)
    assert [path.parent for team in read_uses(run) for path in (*team.others, *team.reverse)] == [run] * 6
    on_windows = (run / USES).read_text().replace(f"{run.as_posix()}/", "C:\\\\runs\\\\own\\\\")
    (run / USES).write_text(on_windows)
    assert [path.parent for team in read_uses(run) for path in (*team.others, *team.reverse)] == [run] * 6
    (run / USES).write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match="--uses is for a finished run"):
        read_uses(trained)

    def read(uses: Any) -> Mapping[str, Any]:
        (tmp_path / USES).write_text(uses if isinstance(uses, str) else json.dumps({**content, "uses": uses}))
        return {str(team.name): team for team in read_uses(tmp_path)}

    assert read([{"use": "the model alone", "flags": []}]) == {"model alone": Team(name="model alone")}
    for broken in ("{", "[" * 100_000, [], [{}], [{"use": "a", "flags": ["--with"]}], 5):
        with pytest.raises(FormatError, match=f"{USES}: "):
            read(broken)
    with pytest.raises(FormatError, match="names the model forward-1, which is not in"):
        read(content["uses"])
    with pytest.raises(FormatError, match="--sample is a flag that a server does not have"):
        read([{"use": "a", "flags": ["--sample", "5"]}])
    (tmp_path / "reverse-1").mkdir()
    assert read([{"use": "a", "flags": ["--reverse", "x/reverse-1"]}])["a"].weights == usual_weights(True, False)


def test_names_choose_among_models_of_the_same_languages(translator: Translator, servers: Servers) -> None:
    short, other = translator.searching(max_length=2), translator.searching(max_length=3)
    pair, back = Pair("de", "en"), Pair("en", "de")
    sources = [
        ModelSource(lambda: translator, pair),
        ModelSource(lambda: short, pair, name="small"),
        ModelSource(lambda: other, back, name="small"),
    ]
    client = servers.start(lambda: None, sources=sources).client
    wanted = {name: one.translate(["eins zwei drei"]) for name, one in (("", translator), ("small", short))}
    assert client.post(text="eins zwei drei", source="de", target="en").texts == wanted[""]
    assert client.post(text="eins zwei drei", source="de", model="Small").texts == wanted["small"]
    assert client.post(text="eins zwei drei", source="en", model="small").texts == other.translate(["eins zwei drei"])
    for fields, named in (
        ({"model": "large"}, "there is no 'large'; this server has small"),
        ({"model": "small"}, "several models translate from any language to any language"),
        ({"model": "small", "source": "de", "target": "en", "pivot": "fr"}, "model: leave it out, or pivot"),
        ({"model": "small", "source": "fr"}, "'fr' is not supported"),
    ):
        reply = client.post(text="eins", **fields)
        assert (reply.status, named in reply.json["message"]) == (422, True)
    assert client.get("/info?model=large").json["error"] == "unknown_model"
    assert [one["name"] for one in client.get("/models").json] == [None, "small", "small"]


def test_a_choice_needs_candidates_and_room(run: Path) -> None:
    (team,) = (team for team in read_uses(run) if team.name == "model alone, choosing")
    with pytest.raises(ConfigurationError, match="--beam 1 leaves nothing to choose from"):
        find_models({None: run}, {"beam": 1}, "cpu", ServeSettings(), (team,))
    needed = estimate_bytes(run / "best", "float32") + estimate_bytes(run / "reverse-1" / "best", None)
    tight = ServeSettings(memory_limit=f"{needed // 1000}KB")
    with pytest.raises(ConfigurationError, match="more than --memory-limit"):
        find_models({("de", "en"): run}, {}, "cpu", tight, (team,))


def test_several_uses_share_a_datastore(run: Path, trained: Path, tmp_path: Path) -> None:
    store = remember(run / "best", output=tmp_path / "store", data=trained, say=lambda _: None)
    teams = (Team(datastore=store), Team((run / "forward-1",), datastore=store, name="ensemble"))
    sources = find_models({None: run}, {}, "cpu", ServeSettings(), teams)
    alone, both = (source.load() for source in sources)
    texts = ["eins zwei drei", "sieben acht"]
    assert alone.datastore is not None
    assert alone.datastore is both.datastore
    assert alone.translations(texts) == Translator.load(run).with_datastore(store).translations(texts)
    assert sources[0].estimated_bytes > estimate_bytes(run / "best", "float32") + 2 * alone.datastore.keys.nbytes
    named = {"uses": [{"use": "a memory", "flags": ["--datastore", "elsewhere/store"]}]}
    (tmp_path / USES).write_text(json.dumps(named))
    assert read_uses(tmp_path) == (Team(datastore=store, name="memory"),)


def test_a_judge_chooses_and_its_memory_counts(run: Path, tmp_path: Path) -> None:
    weights, judge = Weights(forward=0.2, judge=0.8), run / "forward-2"
    team = Team(judge=(judge,), weights=weights, search={"beam": 6}, name="judged")
    (source,) = find_models({None: run}, {}, "cpu", ServeSettings(), (team,))
    served, alone = source.load(), Translator.load(run).searching(beam=6)
    assert translations(served, TEXTS, weights) == translations(
        alone.with_judge(Translator.load(judge)), TEXTS, weights
    )
    assert weight_bytes(served) > weight_bytes(alone)
    assert source.estimated_bytes == pytest.approx(weight_bytes(served), rel=0.05)
    flags = ["--beam", "6", "--judge", str(judge), "--weights", str(weights)]
    (tmp_path / "forward-2").mkdir()
    (tmp_path / USES).write_text(json.dumps({"uses": [{"use": "a judged", "flags": flags}]}))
    assert read_uses(tmp_path) == (replace(team, judge=(tmp_path / "forward-2",)),)
    (tmp_path / USES).write_text(json.dumps({"uses": [{"use": "a judged", "flags": flags[2:4]}]}))
    assert read_uses(tmp_path)[0].weights == usual_weights(False, True)


def test_a_model_from_right_to_left_has_no_words_to_show(translator: Translator, servers: Servers) -> None:
    tokenizer = BackwardsTokenizer(translator.bundle.target_tokenizer)
    turned = Translator(replace(translator.bundle, target_tokenizer=tokenizer))
    client = servers.start(lambda: turned).client
    assert client.post(text=["eins", "eins zwei"]).texts == turned.translate(["eins", "eins zwei"])
    for fields in ({"alignment": True}, {"alternatives": 2}, {"prefix": "two"}):
        reply = client.post(text="eins zwei", **fields)
        assert (reply.status, "writes from right to left" in reply.json["message"]) == (422, True)


def test_a_draft_guesses_for_greedy_searches(run: Path) -> None:
    team = Team(draft=run / "forward-1")
    (source,) = find_models({None: run}, {"beam": 1}, "cpu", ServeSettings(), (team,))
    drafted, alone = source.load(), Translator.load(run).searching(beam=1)
    texts = ["eins zwei drei", "sieben acht"]
    assert drafted.translations(texts) == alone.translations(texts)
    if drafted.engine is not None:
        assert drafted.engine.together.draft is not None
        assert source.estimated_bytes == pytest.approx(weight_bytes(drafted), rel=0.05)
    assert drafted.translations(texts, beam=4) == alone.translations(texts, beam=4)
