"""Recurrent translators work with every command of the Transformer, given ``--model recurrent``."""

from __future__ import annotations

import itertools
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from multihead import Translator
from multihead.bundle import build_network
from multihead.configuration import Launch
from multihead.errors import ConfigurationError, FormatError, Interrupted
from multihead.models.recurrent.network import RecurrentTranslator
from multihead.planning.settings import RunConfig
from multihead.runs import run
from multihead.runs.average import average
from multihead.training.splitting import SingleProcess

if TYPE_CHECKING:
    from tests.conftest import Numbers


NETWORK = {
    "model": "recurrent",
    "width": 48,
    "cell": "lstm",
    "attend": "after",
    "score": "dot",
    "encoder_layers": 1,
    "decoder_layers": 1,
}
SHORT = {"updates": 12, "validate_every": 5, "log_every": 3, "dropout": 0.3, "seed": 3}
KINDS = [
    pytest.param({"cell": "gru", "attend": "before", "score": "additive"}, id="bahdanau"),
    pytest.param({"cell": "lstm", "attend": "after", "input_feeding": True, "score": "bilinear"}, id="luong"),
    pytest.param({"attend": "after", "score": "dot", "alignment": "sample"}, id="hard"),
]


@pytest.fixture(scope="module")
def settings(numbers: Numbers) -> dict[str, Any]:
    """The settings of other tests, without those of a Transformer only."""
    common = {name: value for name, value in numbers.settings.items() if name not in ("heads", "inner")}
    return {**common, **NETWORK, **numbers.train, **numbers.valid}


@pytest.fixture(scope="module")
def learned(
    numbers: Numbers, settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, without_checks: Any
) -> Path:
    """A finished run that translates number words."""
    output = tmp_path_factory.mktemp("recurrent") / "run"
    options = {"updates": 240, "validate_every": 120, "log_every": 50, "dropout": 0.0, "smoothing": 0.0}
    with without_checks():
        numbers.learn(output, **{**settings, **options})
    return output


def test_it_learns_and_translates(learned, numbers):
    translator, pairs = Translator.load(learned), numbers.pairs(40, 77)
    assert isinstance(translator.bundle.model, RecurrentTranslator)
    found = translator.translate([source for source, _ in pairs])
    assert sum(text == target for text, (_, target) in zip(found, pairs, strict=True)) >= 28


def test_the_commands_take_it(learned, numbers, call, tmp_path):
    lines = "".join(f"{source}\n" for source, _ in numbers.pairs(5, 78)).encode()
    best = call("translate", learned, "--beam", 3, "--n-best", 2, "--scores", given=lines)
    assert best.status == 0
    assert len(best.text.splitlines()) == 10
    greedy = call("translate", learned, "--beam", 1, given=lines)
    assert len(greedy.text.splitlines()) == 5
    files = [word for name, path in numbers.test.items() for word in (f"--{name}", path)]
    assert "BLEU" in call("evaluate", learned, *files).text
    seen = json.loads(call("attention", learned, "eins zwei", "--json").out)
    assert seen["title"] == "decoder to source, layer 1 of 1, head 1"
    assert all(sum(row) == pytest.approx(1, abs=1e-5) for row in seen["weights"][0])


def test_a_batch_is_its_sentences_one_by_one(learned, numbers):
    """Contract 4, n-best lists included."""
    translator, texts = Translator.load(learned), [source for source, _ in numbers.pairs(12, 79)]
    together = translator.n_best(texts, 3, beam=4)
    for text, several in zip(texts, together, strict=True):
        (alone,) = translator.n_best([text], 3, beam=4)
        assert [one.text for one in several] == [one.text for one in alone]
        assert [one.score for one in several] == pytest.approx([one.score for one in alone], abs=1e-5)


def test_it_has_no_attention_but_to_the_source(learned):
    seen = Translator.load(learned).attention("eins zwei drei")
    assert seen.view().weights.shape == (1, len(seen.target), len(seen.source))
    for kind in ("encoder", "decoder"):
        with pytest.raises(ConfigurationError, match=r"this model has no attention within"):
            seen.view(kind)


def test_heads_in_trees_are_shown_with_their_root(numbers, settings, tmp_path):
    wishes = {**settings, "updates": 2, "validate_every": 2, "encoder_attention": "tree"}
    view = numbers.learn(tmp_path / "run", **wishes).translator().attention("eins zwei").view("encoder")
    assert view.columns == ["ROOT", *view.rows]
    assert view.weights.shape == (1, len(view.rows), len(view.columns))


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_stopped_ends_as_the_one_that_was_not(numbers, settings, tmp_path, kind):
    """Contract 9, with dropout, drawn positions and the moving baseline of their rewards."""
    wishes = {**settings, **SHORT, **kind}
    numbers.learn(tmp_path / "whole", **wishes)
    for polls in (9, 1, 3):
        counter = itertools.count(1)
        with pytest.raises(Interrupted):
            numbers.learn(
                tmp_path / "run",
                **wishes,
                stop_signal=lambda counter=counter, polls=polls: signal.SIGINT if next(counter) == polls else None,
            )
    numbers.learn(tmp_path / "run", **wishes)
    one, other = (
        {
            name: content
            for name, content in numbers.contents(tmp_path / folder, without=("timing.jsonl", "log.txt")).items()
            if not name.startswith("checkpoints/") or "00000012" in name
        }
        for folder in ("whole", "run")
    )
    assert one == other


def test_everything_is_decided_with_a_reason(learned):
    config = RunConfig.model_validate_json((learned / "run.json").read_text(encoding="utf-8"))
    assert config.model.architecture == "recurrent"
    assert config.reasons["model"] == "as asked"
    assert all(config.reasons[name].strip() for name in ("cell", "attend", "score", "alignment"))
    card = (learned / "best" / "README.md").read_text(encoding="utf-8")
    assert "Recurrent network (LSTM), 1+1 layers, width 48" in card


def test_it_can_be_fine_tuned_and_averaged(learned, numbers, tmp_path):
    files = {**numbers.train, **numbers.valid}
    again = {"updates": 4, "validate_every": 2, "batch_tokens": 512, "threads": 1, "precision": "float32"}
    numbers.learn(tmp_path / "tuned", from_model=learned, **files, **again, dropout=0.4)
    average(learned, tmp_path / "tuned", output=tmp_path / "mean", say=lambda _: None)
    assert len(Translator.load(tmp_path / "mean").translate(["eins zwei"])) == 1
    with pytest.raises(ConfigurationError, match="a recurrent model, but transformer was requested"):
        numbers.learn(tmp_path / "other", from_model=learned, model="transformer", **files, **again)
    with pytest.raises(ConfigurationError, match="heads is a setting of the transformer model"):
        numbers.learn(tmp_path / "other", from_model=learned, heads=4, **files, **again)


def test_it_is_not_divided_among_processes(learned, numbers, tmp_path, monkeypatch):
    """If requested, at the start or later, it is refused; otherwise it is not chosen, however small the memory."""
    for folder, wishes in (
        (learned, {}),
        (tmp_path / "tuned", {"from_model": learned, **numbers.train, **numbers.valid}),
    ):
        with pytest.raises(ConfigurationError, match="--parallel sharded: this network is recurrent"):
            numbers.learn(folder, parallel="sharded", **wishes)
    assert list(tmp_path.iterdir()) == []
    config = RunConfig.model_validate_json((learned / "run.json").read_text(encoding="utf-8"))
    training = config.training.model_copy(update={"device": "cuda"})
    monkeypatch.setattr(run, "memory_of", lambda _: 1)
    chosen, _ = run.combine(lambda: build_network(config.model), training, SingleProcess(Launch(size=2)), None)
    assert chosen == "replicated"


def test_it_has_no_mean_with_a_transformer(learned, trained, tmp_path):
    with pytest.raises(ConfigurationError, match="one is a recurrent, the other a transformer model"):
        average(learned, trained, output=tmp_path / "mean", say=lambda _: None)


def test_a_network_of_the_future_is_named(learned, tmp_path, numbers):
    config = json.loads((learned / "best" / "config.json").read_text(encoding="utf-8"))
    config["model"]["architecture"] = "mamba"
    folder = tmp_path / "model"
    folder.mkdir()
    for path in (learned / "best").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    numbers.seal_again(folder)
    with pytest.raises(FormatError, match="describes a network 'mamba', but there are transformer, recurrent"):
        Translator.load(folder)
