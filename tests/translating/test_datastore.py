"""From a text to a datastore, and the translations of a model with this datastore."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from multihead import Translator
from multihead.bundle import load_bundle, model_digest, save_bundle
from multihead.errors import ConfigurationError, FormatError, Interrupted
from multihead.files import write_tensors
from multihead.judging.explain import explain
from multihead.judging.guard import assess, retry
from multihead.judging.guard_signs import GuardSettings
from multihead.judging.score import score
from multihead.models.transformer import Transformer
from multihead.sealed import seal
from multihead.text.tokenizer import Tokenizer
from multihead.translating import remember as remembering_text
from multihead.translating.datastore import ARRAYS, CONFIG, read
from multihead.translating.remember import SHARES, TEMPERATURES, _prepared, remember
from multihead.translating.request import TranslationRequest

if TYPE_CHECKING:
    from tests.conftest import CommandResult, Numbers

TEXTS = ["eins zwei drei", "", "sieben acht", "zehn neun acht eins", "sieben"]


@pytest.fixture(scope="module")
def store(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A datastore of the model's own text."""
    return remember(trained, output=tmp_path_factory.mktemp("datastore") / "own", say=lambda _: None)


def renamed(numbers: Numbers) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Pairs for the datastore and for validation, in which seven is translated as zero."""
    rows = [(one, other.replace("seven", "zero")) for one, other in numbers.pairs(80, seed=5)]
    return rows[:60], rows[60:]


@pytest.fixture(scope="module")
def memory(trained: Path, numbers: Numbers, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A datastore of a text that translates seven as zero, and the messages printed while it was made."""
    text, valid = ([list(side) for side in zip(*some, strict=True)] for some in renamed(numbers))
    said: list[str] = []
    output = tmp_path_factory.mktemp("datastore") / "seven"
    folder = remember(
        trained, output=output, text=(text[0], text[1]), valid=(valid[0], valid[1]), neighbours=8, say=said.append
    )
    return folder, said


def test_making_a_datastore_can_be_stopped_between_any_two_parts(
    trained: Path, numbers: Numbers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted while states are computed or looked up, and while share, temperature and cells are chosen."""
    text = [list(side) for side in zip(*numbers.pairs(20, seed=6), strict=True)]
    monkeypatch.setattr(remembering_text, "_LOOKED_UP", 10)
    asked = itertools.count()
    known: dict[str, Any] = {"text": (text[0], text[1]), "valid": (text[0], text[1]), "neighbours": 4}
    whole = remember(trained, output=tmp_path / "whole", **known, progress=lambda: next(asked) and None)
    moments = next(asked)
    symbols = len(read(whole, model_digest(trained / "best")).symbols)
    assert moments > symbols / 10 + len(SHARES) * len(TEMPERATURES)
    for most in range(0, moments, 7):
        asked = itertools.count()

        def progress(asked: Iterator[int] = asked, most: int = most) -> None:
            if next(asked) >= most:
                raise Interrupted(15, "stopped")

        with pytest.raises(Interrupted):
            remember(trained, output=tmp_path / "stopped", **known, progress=progress)
        assert not (tmp_path / "stopped").exists()


def test_each_symbol_of_the_text_has_a_state(trained: Path, store: Path) -> None:
    """Keys are the states before the output projection: with them the model gives each symbol its probability."""
    found, bundle = read(store, model_digest(trained / "best")), load_bundle(trained / "best")
    keys = torch.from_numpy(found.keys * found.steps[:, None])
    assert len(found.symbols) == len(keys)
    with torch.no_grad():
        log_probabilities = bundle.model.output(keys).log_softmax(dim=1)
    own = log_probabilities.gather(1, torch.from_numpy(found.symbols).long()[:, None])
    assert -own.mean() < 0.1  # the model has learned the text
    assert int(found.symbols.max()) < len(bundle.target_tokenizer)
    ends = int((found.symbols == bundle.target_tokenizer.eos_id).sum())
    assert ends == 600


def test_a_text_that_the_model_knows_changes_little(trained: Path, store: Path) -> None:
    translator = Translator.load(trained)
    remembering = translator.with_datastore(store)
    assert remembering.translate(TEXTS) == translator.translate(TEXTS)
    assert remembering.searching(precision="int8").translate(TEXTS) == translator.translate(TEXTS)
    assert [t.score for t in remembering.translations(TEXTS)] != [t.score for t in translator.translations(TEXTS)]
    lazily = Translator.load(trained, lazily=True).with_datastore(store)
    assert lazily.translations(TEXTS) == remembering.translations(TEXTS)
    both = remembering.ensemble([Translator.load(trained)])
    assert both.translate(TEXTS) == translator.translate(TEXTS)
    assert both.datastore is remembering.datastore


def test_a_text_of_another_kind_is_remembered(trained: Path, memory: tuple[Path, list[str]]) -> None:
    folder, said = memory
    assert "8 neighbours with a share of" in said[-1]
    how = json.loads((folder / CONFIG).read_text())
    assert how["neighbours"] == 8
    assert how["share"] >= 0.5  # seven is nearly always wrong without it
    plain = Translator.load(trained)
    remembering = plain.with_datastore(folder)
    assert plain.translate(["sieben zwei", "sieben"]) == ["seven two", "seven"]
    assert remembering.translate(["sieben zwei", "sieben"]) == ["zero two", "zero"]
    assert remembering.translate(["eins zwei drei"]) == ["one two three"]
    drawn = remembering.sample(["sieben"] * 40, keys=range(40))
    assert sum(row[0].text == "zero" for row in drawn) > 20


def test_the_share_is_the_one_with_the_lowest_loss(trained: Path, numbers: Numbers, store: Path) -> None:
    """Of all pairs of share and temperature that are tried, by plain arithmetic over the validation text."""
    from multihead.translating.remember import SHARES, TEMPERATURES, Pairs, states_of

    found, bundle = read(store, model_digest(trained / "best")), load_bundle(trained / "best")
    sides = [path.read_text().splitlines() for path in numbers.valid.values()]
    ids = [bundle.source_tokenizer.encode_batch(sides[0]), bundle.target_tokenizer.encode_batch(sides[1])]
    rows = list(states_of(bundle, Pairs(*ids)))
    states, symbols = torch.cat([one for one, _ in rows]).double(), torch.cat([one for _, one in rows])
    with torch.no_grad():
        own = bundle.model.output(states.float()).double().softmax(dim=1).gather(1, symbols[:, None])[:, 0]
    keys = torch.from_numpy(found.keys * found.steps[:, None]).double()
    nearest, places = (torch.cdist(states, keys) ** 2).topk(64, dim=1, largest=False)
    right = torch.from_numpy(found.symbols)[places] == symbols[:, None]
    unit = float((nearest[:, -1] - nearest[:, 0]).mean())
    losses = {
        (share, temperature): float(-((1 - share) * own + share * p).log().mean())
        for temperature in TEMPERATURES
        for p in [((-nearest / (temperature * unit)).softmax(dim=1) * right).sum(dim=1)]
        for share in SHARES
    }
    chosen = min(TEMPERATURES, key=lambda one: abs(one * unit - found.how.temperature))
    assert chosen * unit == pytest.approx(found.how.temperature, rel=0.02)  # states are rounded to bytes
    assert losses[found.how.share, chosen] <= min(losses.values()) + 1e-3
    alone = [one.log_probability for one in score(Translator.load(trained), *sides)]
    assert float(own.log().sum()) == pytest.approx(sum(alone), rel=1e-3)


def test_states_may_be_far_apart(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The temperature is in units of their squared distance, which has no bound."""
    monkeypatch.setattr(remembering_text, "TEMPERATURES", (1e6,))
    folder = remember(trained, output=tmp_path / "far", say=lambda _: None)
    assert read(folder, model_digest(trained / "best")).how.temperature > 10_000


def test_as_few_cells_are_looked_into_as_the_loss_allows(
    trained: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of many cells, and all if no loss is allowed; entries and translations are the same."""
    monkeypatch.setattr("multihead.translating.cells.CELL", 40)
    digest, said, found = model_digest(trained / "best"), list[str](), {}
    for tolerance in (0.001, -10.0):
        monkeypatch.setattr("multihead.translating.remember.TOLERANCE", tolerance)
        folder = remember(trained, output=tmp_path / str(tolerance), say=said.append)
        found[tolerance] = read(folder, digest)
        remembering = Translator.load(trained).with_datastore(folder)
        assert remembering.translate(TEXTS) == Translator.load(trained).with_datastore(store).translate(TEXTS)
    some, every = found.values()
    cells, whole = len(some.cells.sizes), read(store, digest)
    assert cells > 20
    assert 1 <= some.how.probes < cells
    assert f"in {some.how.probes} of {cells} cells" in said[0]
    assert every.how.probes == 0
    assert f"in {cells} of {cells} cells" in said[1]
    assert every.how.share == whole.how.share
    assert every.how.temperature == pytest.approx(whole.how.temperature)
    rows = [sorted(zip(map(bytes, one.keys), one.symbols.tolist(), strict=True)) for one in (some, whole)]
    assert rows[0] == rows[1]


def test_the_share_can_be_chosen_for_an_ensemble(trained: Path, store: Path, tmp_path: Path) -> None:
    """For an ensemble of the model with itself, it equals that of the model; another vocabulary is refused."""
    said: list[str] = []
    both = remember(trained, output=tmp_path / "both", others=[trained], say=said.append)
    assert json.loads((both / CONFIG).read_text()) == json.loads((store / CONFIG).read_text())
    shutil.copytree(trained / "best", tmp_path / "other")
    other = load_bundle(tmp_path / "other")
    words = Tokenizer.learn(["other words"], 270)
    changed = replace(other, source_tokenizer=words, target_tokenizer=words)
    sizes = {"source_vocab": len(words), "target_vocab": len(words)}
    network = Transformer(other.model.config.model_copy(update=sizes))
    save_bundle(tmp_path / "others", replace(changed, model=network), {}, "a test")
    with pytest.raises(ConfigurationError, match="has another source vocabulary"):
        remember(trained, output=tmp_path / "new", others=[tmp_path / "others"])


def test_fewer_entries_are_of_pairs_that_are_evenly_spread(trained: Path, store: Path, tmp_path: Path) -> None:
    digest = model_digest(trained / "best")
    whole, few = (
        read(store, digest),
        read(remember(trained, output=tmp_path / "few", most=500, say=lambda _: None), digest),
    )
    assert 250 < len(few.symbols) <= 500
    bundle = load_bundle(trained)
    some, every = (_prepared(trained, bundle, "train", most) for most in (500, 10**6))
    assert some == every.spread(500)
    assert {key.tobytes() for key in few.keys} < {key.tobytes() for key in whole.keys}


def test_a_second_search_of_the_guard_does_without(trained: Path, store: Path, numbers: Numbers) -> None:
    """The guard's search excludes repetitions, which the compiled search, and so a datastore, does not support."""
    plain = Translator.load(trained)
    sources = [source for source, _ in numbers.pairs(4, seed=3)]
    found = []
    for translator in (plain, plain.with_datastore(store)):
        request = TranslationRequest(translator.search_settings(), sources)
        first = assess(translator, sources, [row[0] for row in translator.run(request)], GuardSettings())
        marked = [replace(each, marked=True, score=1.0) for each in first]
        again = retry(translator, request, marked, GuardSettings(mode="retry", samples=3))
        found.append([each.translation.text for each in again])
        assert all(each.first is not None for each in again)
    assert found[0] == found[1]


def test_what_does_not_fit_is_refused(trained: Path, store: Path, tmp_path: Path, numbers: Numbers) -> None:
    translator = Translator.load(trained)
    other = Path(shutil.copytree(trained, tmp_path / "other"))
    bundle = load_bundle(trained / "best")
    with pytest.raises(ConfigurationError, match="load the translator from there"):
        Translator(bundle).with_datastore(store)
    remembering = translator.with_datastore(store)
    for search in (
        lambda: remembering.searching(no_repeat=2).translate(TEXTS),
        lambda: remembering.translate(TEXTS, prefixes=["one" if text else "" for text in TEXTS]),
        lambda: remembering.searching(coverage=0.1).with_datastore(store),
    ):
        with pytest.raises(ConfigurationError, match=r"a datastore cannot be used here: .* compiled; leave it out"):
            search()
    with pytest.raises(ConfigurationError, match="a datastore cannot be explained"):
        explain(remembering, "eins")
    with pytest.raises(FormatError, match="there is no such folder"):
        translator.with_datastore(tmp_path / "nowhere")
    with pytest.raises(FormatError, match="is not a datastore"):
        translator.with_datastore(trained)
    with pytest.raises(ConfigurationError, match="exists already"):
        remember(trained, output=store)
    with pytest.raises(ConfigurationError, match="has no pairs of text"):
        remember(other / "best", output=tmp_path / "new")
    with pytest.raises(ConfigurationError, match="most is a number"):
        remember(trained, output=tmp_path / "new", most=0)
    with pytest.raises(ConfigurationError, match="neighbours"):
        remember(trained, output=tmp_path / "new", neighbours=0)
    with pytest.raises(ConfigurationError, match="got 2 sentences and 1 translations"):
        remember(trained, output=tmp_path / "new", text=(["eins", "zwei"], ["one"]), valid=(["eins"], ["one"]))
    with pytest.raises(ConfigurationError, match="chosen on validation text"):
        remember(trained, output=tmp_path / "new", text=(["eins"], ["one"]))
    with pytest.raises(ConfigurationError, match="holds no pairs"):
        remember(trained, output=tmp_path / "new", text=([""], ["one"]), valid=(["eins"], ["one"]))
    assert not (tmp_path / "new").exists()


def changed(store: Path, folder: Path, config: dict[str, Any] | None = None, **arrays: np.ndarray) -> Path:
    """A copy of a datastore with another description or other arrays."""
    shutil.copytree(store, folder)
    read = read_any(store)
    found = {"keys": read.keys, "steps": read.steps, "symbols": read.symbols, **read.cells._asdict(), **arrays}
    write_tensors(folder / ARRAYS, {name: torch.from_numpy(array) for name, array in found.items()})
    said = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**said, **(config or {})}))
    (folder / "manifest.json").unlink()
    seal(folder)
    return folder


def read_any(store: Path) -> Any:
    return read(store, json.loads((store / CONFIG).read_text())["model"])


def test_a_damaged_one_is_refused(trained: Path, store: Path, tmp_path: Path) -> None:
    translator, found = Translator.load(trained), read_any(store)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"config": {"model": "another"}}, "is of another model"),
        ({"config": {"format_version": 2}}, "format 2, expected 1"),
        ({"config": {"share": 1.5}}, "share"),
        ({"config": {"more": 1}}, "more"),
        ({"keys": found.keys.astype(np.float32)}, "expected .*int8"),
        ({"keys": found.keys[1:]}, "expected keys"),
        ({"symbols": -found.symbols}, "expected symbols from 0 on"),
        ({"sizes": found.cells.sizes + 1}, "expected cells with"),
        ({"centres": found.cells.centres[:, 1:]}, "expected cells with"),
        ({"config": {"probes": -1}}, "probes"),
        ({"symbols": found.symbols + 10_000}, "the datastore is of a model"),
    ]
    for number, (change, message) in enumerate(cases):
        with pytest.raises((FormatError, ConfigurationError), match=message):
            translator.with_datastore(changed(store, tmp_path / str(number), **change))
    cut = Path(shutil.copytree(store, tmp_path / "cut"))
    (cut / ARRAYS).write_bytes((store / ARRAYS).read_bytes()[:-1])
    with pytest.raises(FormatError, match=ARRAYS):
        translator.with_datastore(cut)


def test_the_commands(
    call: Callable[..., CommandResult],
    trained: Path,
    numbers: Numbers,
    tmp_path: Path,
    store: Path,
    memory: tuple[Path, list[str]],
) -> None:
    """A datastore in which seven is called zero shows where it is in use."""
    from pyarrow import parquet

    made = call("datastore", trained, "--output", tmp_path / "store", "--neighbours", 16, "--most", 500)
    assert made.status == 0, made.err
    assert "entries" in made.err
    assert "16 neighbours" in made.err
    same = remember(trained, output=tmp_path / "same", neighbours=16, most=500, say=lambda _: None)
    assert numbers.contents(tmp_path / "store") == numbers.contents(same)
    folder, _ = memory
    given, expected = b"eins zwei\n\nsieben\n", "one two\n\nzero\n"
    for more in ((), ("--precision", "int8"), ("--with", trained), ("--sample", 1, "--top-k", 1)):
        found = call("translate", trained, "--datastore", folder, *more, given=given)
        assert found.status == 0, found.err
        assert found.text == expected
    text = tmp_path / "text.de"
    text.write_bytes(given)
    table = tmp_path / "out.parquet"
    for output in (tmp_path / "out.en", table):
        flags = ("--input", text, "--output", output, "--datastore", folder)
        assert call("translate", trained, *flags).status == 0
    assert (tmp_path / "out.en").read_text() == expected
    rows = parquet.read_table(table).to_pylist()
    assert "".join(row["translation"]["en"] + "\n" for row in rows) == expected
    pairs = numbers.write(
        tmp_path, "changed", [("eins zwei", "one two"), ("sieben acht neun zehn", "zero eight nine ten")]
    )
    flags = (*(word for side, path in pairs.items() for word in (f"--{side}", path)), "--json")
    scores = [
        json.loads(call("evaluate", trained, *flags, *more).text)["measures"][0]["score"]
        for more in ((), ("--datastore", store), ("--datastore", folder))
    ]
    assert scores[0] == scores[1] < scores[2]
    for words, message in (
        (
            ("translate", trained, "--datastore", store, "--beam", 1, "--draft", trained),
            "leave out --draft or --datastore",
        ),
        (("translate", trained, "--datastore", store, "--no-repeat", 2), "a datastore cannot be used here"),
        (("datastore", trained, "--output", tmp_path / "n", "--source", text), "--source and --target need each other"),
        (
            ("datastore", trained, "--output", tmp_path / "n", "--data", trained, "--source", text, "--target", text),
            "leave one of them out",
        ),
        (
            ("datastore", trained, "--output", tmp_path / "n", "--source", text, "--target", numbers.train["target"]),
            "has 3 lines and",
        ),
    ):
        refused = call(*words, given=given)
        assert refused.status == 2
        assert message in refused.err
    own, valid = (numbers.write(tmp_path, *some) for some in zip(("own", "valid"), renamed(numbers), strict=True))
    adapted = call(
        *("datastore", trained, "--output", tmp_path / "adapted", "--neighbours", 8),
        *("--source", own["source"], "--target", own["target"]),
        *("--valid-source", valid["source"], "--valid-target", valid["target"]),
    )
    assert adapted.status == 0, adapted.err
    assert numbers.contents(tmp_path / "adapted") == numbers.contents(folder)
