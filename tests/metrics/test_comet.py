"""COMET in a separate process: its protocol, its failures, and choices by its scores."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from multihead import compare, evaluate
from multihead.errors import ConfigurationError, InputError, SurroundingsError
from multihead.metrics.comet import DEFAULT, VARIABLE, Comet, CometMetric, checkpoint, find_python
from multihead.metrics.significance import score_systems
from multihead.planning.choices import choose_comet
from multihead.planning.settings import Choices, TrainSettings

FAKE = """
import os, sys, types

__version__ = "0.1"
print("what a library prints")

def load_from_checkpoint(path):
    if path == "made/broken":
        raise KeyError("Model 'made/broken' not supported by COMET.")
    return Model()

def download_model(name):
    return name

class Model:
    def predict(self, samples, batch_size, gpus, progress_bar):
        print("progress", gpus)
        if samples[0]["src"] == "die":
            print("no memory", file=sys.stderr)
            os._exit(3)
        if samples[0]["src"] == "fail":
            raise ValueError("no such text")
        scores = [f(one["src"], one["mt"], one["ref"]) for one in samples]
        return types.SimpleNamespace(scores=scores)

def f(source, translation, reference):
    given, wanted = set(translation.split()), set(reference.split())
    return len(source) / 1000 - len(given & wanted) / max(len(wanted), 1)
"""
"""A package with COMET's two functions and a known score: the best translation has no word of the reference."""


def f(source: str, translation: str, reference: str) -> float:
    given, wanted = set(translation.split()), set(reference.split())
    return len(source) / 1000 - len(given & wanted) / max(len(wanted), 1)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment with that package."""
    (tmp_path / "site" / "comet").mkdir(parents=True)
    (tmp_path / "site" / "comet" / "__init__.py").write_text(FAKE, encoding="utf-8")
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), *inherited]))
    monkeypatch.setenv(VARIABLE, sys.executable)


def ended(pid: int) -> bool:
    """Whether a process has ended within seconds."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        with contextlib.suppress(OSError):  # nobody has asked for its status yet
            if Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z":
                return True
        time.sleep(0.05)
    return False


# ------------------------------------------------------------------------------------------ the process


@pytest.mark.usefixtures("fake")
def test_one_process_scores_until_it_is_closed():
    texts = ["eins\u2028zwei", "", "drei"], ["one", "null \n", "x"], ["one two", "null", "three"]
    with Comet("made/model") as comet:
        assert comet.pid is None
        expected = [f(*row) for row in zip(*texts, strict=True)]
        assert comet.score(*texts) == expected
        pid = comet.pid
        assert pid is not None
        assert comet.score(["a"] * 5000, ["b " * 50] * 5000, ["c"] * 5000) == [0.001] * 5000
        assert (comet.pid, comet.signature) == (pid, "model:made/model|version:0.1")
    assert comet.pid is None
    assert ended(pid)


@pytest.mark.usefixtures("fake")
def test_a_killed_process_is_an_error_and_the_next_score_starts_another():
    with Comet("made/model") as comet:
        comet.start()
        assert comet.pid is not None
        os.kill(comet.pid, signal.SIGKILL)
        with pytest.raises(SurroundingsError, match=r"COMET's process ended early \(signal 9\); is there enough"):
            comet.score(["a"], ["b"], ["c"])
        assert comet.score(["a"], ["b"], ["c"]) == [0.001]
        with pytest.raises(SurroundingsError, match=r"ended early \(status 3, no memory\)"):
            comet.score(["die"], ["b"], ["c"])


@pytest.mark.usefixtures("fake")
def test_it_ends_with_the_process_that_started_it():
    program = (
        "import os; from multihead.metrics.comet import Comet; comet = Comet('made/model'); comet.start()\n"
        "print(comet.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert ended(int(done.stdout))


@pytest.mark.usefixtures("fake")
def test_errors_of_the_library_and_of_the_caller():
    with pytest.raises(ConfigurationError, match=r"the model made/broken cannot be loaded \(KeyError: .*not supported"):
        Comet("made/broken").start()
    with pytest.raises(SurroundingsError, match=r"cannot score these texts \(ValueError: no such text\)"):
        Comet("made/model").score(["fail"], ["b"], ["c"])
    with pytest.raises(InputError, match="1 translations but 2 sources"):
        Comet("made/model").score(["a", "a"], ["b"], ["c"])


def test_an_environment_without_comet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(SurroundingsError, match="no comet-score on the PATH: pipx install unbabel-comet"):
        Comet()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "python"))
    with pytest.raises(SurroundingsError, match=f"{VARIABLE}: expected the Python of an environment with COMET"):
        Comet()
    monkeypatch.setenv(VARIABLE, sys.executable)
    (tmp_path / "comet.py").write_text("import missing_of_comet\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SurroundingsError, match=r"cannot import COMET \(ModuleNotFoundError: .*missing_of_comet"):
        Comet().start()
    (tmp_path / "comet.py").write_text("raise ImportError('no pkg_resources')\n", encoding="utf-8")
    with pytest.raises(
        SurroundingsError, match=r"no pkg_resources\): pipx inject --force unbabel-comet .setuptools<81"
    ):
        Comet().start()


@pytest.mark.parametrize("head", ["#!{}\n", "#!/bin/sh\n'''exec' \"{}\" \"$0\" \"$@\"\n' '''\n", "MZ"])
def test_the_python_is_that_of_comet_score(head: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    folder = tmp_path / "an environment"
    folder.mkdir()
    (folder / "python").write_text("", encoding="utf-8")
    (script := folder / "comet-score").write_text(head.format(folder / "python"), encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv(VARIABLE, raising=False)
    assert find_python() == str(folder / "python")


def test_a_model_is_a_file_a_folder_or_a_name(tmp_path: Path):
    (file := tmp_path / "checkpoints" / "model.ckpt").parent.mkdir()
    file.write_text("", encoding="utf-8")
    assert checkpoint(str(file)) == checkpoint(str(tmp_path)) == str(file)
    assert checkpoint(DEFAULT) == DEFAULT
    for wrong in (tmp_path / "none.ckpt", "none.ckpt", file.parent, "a/b/c"):
        with pytest.raises(ConfigurationError, match=f"comet: {wrong}: there is no such checkpoint"):
            checkpoint(str(wrong))


# ------------------------------------------------------------------------------------------ the metric


@pytest.mark.usefixtures("fake")
def test_intervals_and_tests_are_those_of_the_other_scores():
    """The bootstrap's mean is close to the mean of the segments, and a shifted system differs significantly."""
    sources, references = [f"{number}" for number in range(40)], ["a b c d"] * 40
    one = ["a b c d" if number % 2 else "a" for number in range(40)]
    other = ["x"] * 40
    with Comet("made/model") as comet:
        metric = {"COMET": CometMetric(comet, sources)}
        found = score_systems([one, other, one], references, "en", resamples=100, trials=100, others=metric)
    first, second, third = (row[-1] for row in found.systems)
    rows = zip(sources, one, references, strict=True)
    assert first.name == "COMET"
    assert first.score == pytest.approx(fmean(f(*row) for row in rows), rel=1e-12)
    assert second.score == pytest.approx(fmean(len(source) / 1000 for source in sources), rel=1e-12)
    assert first.low < first.score < first.high < 0 < second.low <= second.score <= second.high
    assert (second.p, third.p) == (pytest.approx(1 / 101), pytest.approx(1))
    assert first.signature == "nrefs:1|bs:100|seed:12345|model:made/model|version:0.1"
    assert str(first).startswith(f"COMET {first.score:.4f}  [{first.low:.4f}, ")
    alone = score_systems([one], references, "en", resamples=100)
    assert alone.systems[0] == found.systems[0][:3]


@pytest.mark.usefixtures("fake", "one_thread")
def test_evaluate_and_compare_have_it_beside_the_other_scores(trained: Path, numbers: Any, tmp_path: Path):
    texts = [path.read_text(encoding="utf-8").split("\n")[:-1] for path in numbers.test.values()]
    found = evaluate(trained, **numbers.test, beam=1, resamples=60, comet="made/model")
    own = found.measured.systems[0][-1]
    rows = zip(texts[0], found.hypotheses, texts[1], strict=True)
    assert own.score == pytest.approx(fmean(f(*row) for row in rows), rel=1e-12)
    assert [line.split()[0] for line in str(found).split("\n")] == ["BLEU", "chrF2", "TER", "COMET", "95%"]
    (output := tmp_path / "output.en").write_text("".join(f"{line}\n" for line in found.hypotheses), encoding="utf-8")
    both = compare(output, numbers.test["target"], **numbers.test, resamples=60, trials=60, comet="made/model")
    assert both.measured.systems[0][-1] == own
    assert f"{both.measured.systems[1][-1].score - own.score:+.4f}" in str(both)
    with pytest.raises(ConfigurationError, match="comet needs the source"):
        compare(output, output, target=numbers.test["target"], comet="made/model")


# ------------------------------------------------------------------------------------------ a training


@pytest.mark.usefixtures("fake")
def test_it_chooses_the_best_model_of_a_training(numbers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The logged score is that of `evaluate`; the run uses one process, and reports and survives its end."""
    wishes: dict[str, Any] = {**numbers.settings, **numbers.train, **numbers.valid, "updates": 9, "validate_every": 3}
    wishes |= {"best_by": "comet", "comet": "made/model", "threads": 1}
    said: list[str] = []
    pids: list[int] = []
    start = Comet.start

    def started(comet: Comet) -> None:
        start(comet)
        assert comet.pid is not None
        pids.append(comet.pid)

    def say(line: str) -> None:
        if line.startswith("validation at 3"):
            os.kill(pids[-1], signal.SIGKILL)

    monkeypatch.setattr(Comet, "start", started)
    with pytest.raises(SurroundingsError, match=r"COMET's process ended early \(signal 9\)"):
        numbers.learn(tmp_path / "run", say=say, **wishes)
    killed = set(pids)
    pids.clear()
    result = numbers.learn(tmp_path / "run", say=said.append, **wishes)
    resumed = set(pids)
    records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    validations = {r["step"]: r for r in records if r["kind"] == "validation"}
    assert list(validations) == [3, 6, 9]
    best = max(record["comet"] for record in validations.values())
    assert validations[result.best_step]["comet"] == best == result.best_score
    assert validations[9]["comet_signature"] == "model:made/model|version:0.1"
    assert f"a validation COMET of {best:.4f} (greedy)" in said[-1]
    files = {"source": wishes["valid_source"], "target": wishes["valid_target"]}
    found = evaluate(tmp_path / "run", **files, beam=1, resamples=60, comet="made/model")
    assert found.measured.systems[0][-1].score == pytest.approx(best, rel=1e-9)
    assert (len(killed), len(resumed), len(killed & resumed)) == (1, 1, 0)
    assert all(map(ended, resumed))


def test_a_run_without_comet_installed_is_refused_before_anything_is_written(
    numbers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(SurroundingsError, match="pipx install unbabel-comet"):
        numbers.learn(tmp_path / "run", **numbers.settings, **numbers.train, updates=3, best_by="comet")
    assert not (tmp_path / "run" / "run.json").exists()


def test_the_usual_model_is_that_of_the_library():
    given = {"output": Path("run"), "source": Path("a"), "target": Path("b")}
    assert choose_comet(Choices(TrainSettings(**given, best_by="comet")))[0] == DEFAULT
    assert choose_comet(Choices(TrainSettings(**given)))[0] == ""


# ------------------------------------------------------------------------------------------ the library

TINY = """
import json, sys
from pathlib import Path
import torch, yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import XLMRobertaConfig, XLMRobertaTokenizerFast
from comet.models import RegressionMetric
from comet import load_from_checkpoint

folder, texts = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
words = ["<s>", "<pad>", "</s>", "<unk>", *sorted({w for t in texts.values() for line in t for w in line.split()})]
tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
XLMRobertaTokenizerFast(tokenizer_object=tokenizer, model_max_length=64).save_pretrained(folder / "encoder")
XLMRobertaConfig(vocab_size=len(words), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                 intermediate_size=32, max_position_embeddings=80, pad_token_id=1).save_pretrained(folder / "encoder")
torch.manual_seed(1)
sizes = dict(pretrained_model=str(folder / "encoder"), hidden_sizes=[16, 8], load_pretrained_weights=False)
model = RegressionMetric(**sizes)
(folder / "checkpoints").mkdir()
path = folder / "checkpoints" / "model.ckpt"
torch.save({"state_dict": model.state_dict(), "hyper_parameters": dict(model.hparams),
            "pytorch-lightning_version": "2.0.0"}, path)
(folder / "hparams.yaml").write_text(yaml.safe_dump({"class_identifier": "regression_metric"}))
columns = zip(texts["src"], texts["mt"], texts["ref"])
samples = [dict(zip(("src", "mt", "ref"), row)) for row in columns]
print(json.dumps(load_from_checkpoint(str(path)).predict(samples, gpus=0, progress_bar=False).scores))
"""
"""A tiny COMET of random weights, and its own scores."""


@pytest.mark.proof
def test_the_scores_are_those_of_the_library(numbers: Any, tmp_path: Path):
    """Scores equal those of ``predict``, bit for bit; and a training run selects models by them."""
    try:
        python = find_python()
    except SurroundingsError as error:
        pytest.skip(str(error))
    pairs = numbers.pairs(40, 7)
    texts = {"src": [a for a, _ in pairs], "mt": [b for _, b in reversed(pairs)], "ref": [b for _, b in pairs]}
    (given := tmp_path / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    (model := tmp_path / "model").mkdir()
    made = subprocess.run([python, "-c", TINY, str(model), str(given)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    expected = json.loads(made.stdout.splitlines()[-1])
    with Comet(str(model)) as comet:
        assert comet.score(*texts.values()) == expected
        assert comet.version.startswith("2.")
    assert len({round(score, 4) for score in expected}) > 10
    wishes = {**numbers.settings, **numbers.train, **numbers.valid, "updates": 6, "validate_every": 2, "threads": 1}
    result = numbers.learn(tmp_path / "run", best_by="comet", comet=str(model), **wishes)
    records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    found = {r["step"]: r["comet"] for r in records if r["kind"] == "validation"}
    assert found[result.best_step] == result.best_score == max(found.values())
