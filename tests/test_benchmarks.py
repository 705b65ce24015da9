"""Every benchmark runs, in tiny sizes, and writes its figures."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"

TINY = {
    "attention.py": ["--tiny", "--rounds", "1"],
    "bridge.py": ["--toy"],
    "cleaning.py": ["--toy", "--similar", "0.8", "--pairs", "100"],
    "corpus.py": ["--pairs", "400", "--words", "500", "--here", "--batches", "3", "--vocab-size", "500"],
    "decoding.py": ["--size", "toy", "--rounds", "1", "--sentences", "4", "--single", "1", "--only", "threads"],
    "doctor.py": ["--pairs", "500"],
    "guard.py": ["--tiny"],
    "interop.py": ["--size", "toy", "--rounds", "1", "--sentences", "4", "--beams", "2", "--only", "transformers"],
    "kernels.py": ["--tiny", "--rounds", "1"],
    "marginals.py": ["--batch", "2", "--length", "5", "--rounds", "1"],
    "quality.py": ["--toy", "--lowercase"],
    "recurrent.py": ["--tiny", "--rounds", "1"],
    "scaling.py": ["--processes", "2", "--megabytes", "0.01", "0.1", "--rounds", "2"],
    "serving.py": ["--quick", "--steps", "3"],
    "time_to_bleu.py": ["--toy"],
    "training.py": ["--size", "toy", "--rounds", "1", "--updates", "1", "--batches", "1"],
    "web.py": ["--rounds", "1", "--count", "4", "--beams", "1"],
}
"""The arguments of each benchmark."""
COSTLY = {"bridge.py", "quality.py"}
"""Those that train several models."""


def flags(script: str) -> set[str]:
    """The flags that a benchmark offers, as its source names them; those of `common.parser` by its arguments."""
    text = (BENCHMARKS / script).read_text(encoding="utf-8")
    (common,) = re.findall(r"parser\(__doc__(.*)\)$", text, re.MULTILINE)
    found = {name for name in ("rounds", "seconds") if f"{name}=" in common}
    found |= {"threads"} - ({"threads"} if "threads=None" in common else set())
    return found | {name.replace("-", "_") for name in re.findall(r'add_argument\(\s*"--([\w-]+)"', text)}


@pytest.mark.parametrize("script", TINY)
def test_a_benchmark_uses_every_flag_that_it_offers(script: str) -> None:
    texts = [(BENCHMARKS / name).read_text(encoding="utf-8") for name in (script, "quality.py")]
    text = "".join(texts if "measure_text(" in texts[0] else texts[:1])  # quality.measure_text reads common flags
    offered = flags(script)
    assert offered
    assert [name for name in offered if not re.search(rf'\.{name}\b|"{name}"', text)] == []


def test_every_benchmark_is_run_here() -> None:
    parts = {"common.py", "peers.py", "time_to_bleu_peer.py", "training_contender.py", "decoding_contender.py",
             "serving_load.py"}  # fmt: skip
    scripts = {path.name for path in BENCHMARKS.glob("*.py")} - parts
    assert scripts == set(TINY)


@pytest.fixture
def in_benchmarks(monkeypatch: pytest.MonkeyPatch, one_thread: None, without_checks: Any) -> Iterator[None]:
    """The working directory and import path of a benchmark; what it imports and starts does not outlive the test."""
    started: list[Recorded] = []

    class Recorded(processes.WarmPopen):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    monkeypatch.chdir(BENCHMARKS)
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name, value in (("OMP_NUM_THREADS", "1"), ("PYTHONDONTWRITEBYTECODE", "1")):
        monkeypatch.setenv(name, value)
    with without_checks():
        yield
    for process in started:
        process.kill()
        process.wait()
        for stream in filter(None, (process.stdin, process.stdout, process.stderr)):
            stream.close()
    for path in BENCHMARKS.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.usefixtures("in_benchmarks")
@pytest.mark.parametrize(
    "script", [pytest.param(name, marks=pytest.mark.proof if name in COSTLY else ()) for name in TINY]
)
def test_it_runs_and_writes_its_figures(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, as importing PyTorch again takes longer than the measurement; contenders are processes."""
    file = tmp_path / "new" / "figures.json"
    threads = ["--threads", "1"] if "threads" in flags(script) else []
    monkeypatch.setattr(sys, "argv", [script, *TINY[script], *threads, "--json", str(file)])
    monkeypatch.setattr("multihead.diagnosis.model_checks._UPDATES", 2)  # by which doctor.py's network learns
    runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
    printed = capsys.readouterr().out
    figures = json.loads(file.read_text(encoding="utf-8"))
    assert figures["threads"] == 1
    assert figures["rows"]
    assert all(row["case"] in printed for row in figures["rows"])


# --------------------------------------------------------------------------- processes


@pytest.mark.usefixtures("in_benchmarks")
def test_commands_of_the_bridge_get_its_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import bridge
    import common

    started: list[tuple[str, dict[str, str]]] = []

    def run(words: list[str], env: dict[str, str], **_: object) -> None:
        started.append((words[3], env))
        if words[3] == "export":
            output = Path(words[words.index("-o") + 1])
            output.mkdir()
            (output / "certificate.json").write_text("{}", encoding="utf-8")

    monkeypatch.setattr(common.subprocess, "run", run)
    monkeypatch.setattr(bridge, "row_of", lambda name, found: {})
    monkeypatch.setattr(bridge, "text_of", lambda side, name, arguments: f"{name}.{side}")
    wishes = Namespace(output=tmp_path, updates=None, count=3, threads=3)
    for threads in (3, None):
        wishes.threads = threads
        run_folder = bridge.train(tmp_path / "half", tmp_path / "run", 1, 0.1, wishes)
        bridge.compared("transformers", run_folder, wishes)
        shutil.rmtree(tmp_path / "transformers")
        assert [word for word, _ in started] == ["train", "export", "import"]
        expected = os.environ["OMP_NUM_THREADS"] if threads is None else "3"
        assert {env["OMP_NUM_THREADS"] for _, env in started} == {expected}
        started.clear()


@pytest.mark.usefixtures("in_benchmarks")
def test_translations_are_compared_before_they_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    import decoding

    printed: list[str] = []

    class Fake:
        """A contender whose translations partly equal the others', and change once it is timed."""

        precision = "float32"

        def __init__(self, name: str, outputs: list[str]) -> None:
            self.name, self._outputs, self._asked = name, outputs, 0

        def ask(self, line: str) -> dict[str, Any]:
            self._asked += 1
            if self._asked == 2:
                printed.append(capsys.readouterr().out)
            outputs = self._outputs if self._asked == 1 else ["?"] * 4
            return {"seconds": 1.0, "cpu": 1.0, "outputs": outputs}

    contenders = [Fake("ours", list("abcd")), Fake("theirs", list("abxd"))]
    chosen = Namespace(beams=[1], rounds=2, single=0, times=1, model=None, size="toy")
    rows = decoding.turns(contenders, chosen, None)
    assert "theirs float32, beam 1: 75.0% of the translations are those of ours float32, beam 1" in printed[0]
    assert [row["same"] for row in rows] == [1.0, 0.75]
    assert [row["sentences_per_second"] for row in rows] == [4.0, 4.0]


@pytest.mark.usefixtures("in_benchmarks")
def test_memory_is_that_of_all_processes() -> None:
    from corpus import Watch, memory_of

    program = "x = bytearray(b'1' * 2**26); print(len(x), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{2**26}\n"
        watch, own = Watch(os.getpid()), memory_of(os.getpid())["anonymous"]
        watch.look()
        assert watch.peak["anonymous"] > own + 50  # MiB
        process.communicate("\n")


@pytest.mark.usefixtures("in_benchmarks")
@pytest.mark.parametrize(("measure", "error"), [(lambda: None, SystemExit), (lambda: 1 / 0, ZeroDivisionError)])
def test_a_server_ends_with_its_measurement(measure: Callable[[], object], error: type[BaseException]) -> None:
    """Also if the measurement fails; its error is then reported, not the status of the server."""
    from serving import Served
    from training import Contender

    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    served = Served.__new__(Served)
    served.process = subprocess.Popen(["sleep", "60"])
    served.clients = Contender("clients", "", True, subprocess.Popen(["cat"], **pipes))
    with pytest.raises(error), served:
        measure()
    assert served.process.returncode is not None
    assert served.clients.process.returncode == 0


# --------------------------------------------------------------------------- time to BLEU


def curve(*points: tuple[float, float]) -> list[dict[str, Any]]:
    return [{"seconds": seconds, "bleu": bleu} for seconds, bleu in points]


@pytest.mark.usefixtures("in_benchmarks")
def test_a_level_that_no_peer_reaches_gives_a_bound_and_no_ratio() -> None:
    from time_to_bleu import ratio, reached

    ours, slow, slower = curve((10, 20), (20, 36), (30, 34)), curve((50, 10), (90, 31)), curve((60, 30), (200, 33))
    assert reached(ours, 36) == 20
    assert reached(ours, 37) is None
    assert ratio(ours, [slow, slower], 30) == (60 / 20, True), "the quickest peer, not the first"
    assert ratio(ours, [slow, slower], 32) == (200 / 20, True)
    assert ratio(ours, [slow, slower], 36) == (90 / 20, False), "one of them may have reached it after 90 s"
    assert ratio(ours, [slow, slower], 37) is None
    assert ratio(ours, [], 30) is None


@pytest.mark.usefixtures("in_benchmarks")
def test_curves_are_read_back_and_drawn_by_multihead_plot(tmp_path: Path) -> None:
    from time_to_bleu import read, store

    from multihead.runs.curves import read_curves

    file, rest = tmp_path / "curves.jsonl", {"updates": 5, "loss": 2.5, "validating": 1.0}
    curves = {name: [{"name": name, **rest, **point} for point in curve((1, 3), (2, 4))] for name in ("one", "two")}
    for name, points in curves.items():
        store(file, name, points * 2)
        store(file, name, points)
    assert read(file) == curves, "a curve that is stored again replaces the old one"
    records = read_curves([file])
    assert {name: [(r["seconds"], r["bleu"], r["loss"], r["step"]) for r in log] for name, log in records.items()} == {
        name: [(p["seconds"], p["bleu"], p["loss"], p["updates"]) for p in points] for name, points in curves.items()
    }


@pytest.fixture
def peer_run(in_benchmarks: None, tmp_path: Path) -> Any:
    """Makes a peer with its state in a file of this name."""
    pytest.importorskip("transformers", reason="the peer is MarianMT of transformers")
    from quality import write_toy
    from time_to_bleu_peer import PeerRun

    from multihead.preparing.prepare import prepare

    write_toy(tmp_path)
    valid = [tmp_path / f"val.{language}" for language in ("de", "en")]
    pairs = zip(*(path.read_text(encoding="utf-8").splitlines() for path in valid), strict=True)
    shortest = sorted(pairs, key=lambda pair: len(pair[0]))[:2]  # untrained, the peer writes up to the length limit
    for path, lines in zip(valid, zip(*shortest, strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    names = {"source": "train.de", "target": "train.en", "valid_source": "val.de", "valid_target": "val.en"}
    files = {side: tmp_path / name for side, name in names.items()}
    text = prepare(**files, output=tmp_path / "text", vocab_size=400, say=lambda _: None)
    sizes = {"width": 16, "heads": 2, "inner": 16, "encoder_layers": 1, "decoder_layers": 1}
    return lambda name: PeerRun(text, sizes, "linear", 512, tmp_path / name)


@torch.no_grad()
def greedy(model: Any, batch: Any, length: int) -> list[list[int]]:
    """The most probable token again and again, each time from a forward pass; up to the end symbol."""
    given, mask = torch.full((len(batch), 1), 2), (batch.source != 0).long()
    for _ in range(length):
        logits = model(input_ids=batch.source, attention_mask=mask, decoder_input_ids=given, use_cache=False).logits
        given = torch.cat([given, logits[:, -1:].argmax(-1)], 1)
    given[:, -1] = 3
    return [row[1 : row.index(3)] for row in given.tolist()]


def test_the_peer_is_scored_by_its_own_loss_and_its_most_probable_tokens(peer_run: Any) -> None:
    run = peer_run("state.pt")
    for step in range(1, 4):
        run.update(run.stream.take(), step)
    run.model.eval()
    loss, tokens, decode = 0.0, 0, run.text.target_tokenizer.decode_batch
    for batch in run._batches:
        mask, labels = (batch.source != 0).long(), batch.target_output.masked_fill(batch.target_output == 0, -100)
        with torch.no_grad():
            own = run.model(input_ids=batch.source, attention_mask=mask, labels=labels).loss
        loss, tokens = loss + own.item() * batch.target_tokens, tokens + batch.target_tokens
        assert run._translate(batch) == decode(greedy(run.model, batch, 3 * batch.source.shape[1] + 20))
    assert run._scores()["loss"] == pytest.approx(loss / tokens, rel=1e-5)


def test_a_peer_that_was_stopped_goes_on_as_if_it_had_not_been(peer_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(ticks)))  # an update takes a second
    whole, parts, again = [], [], []
    keep = lambda points: lambda new: points.extend(new)  # noqa: E731
    at_once = peer_run("one.pt")
    at_once.train(4, 2, keep(whole))
    peer_run("two.pt").train(2, 2, keep(parts))
    resumed = peer_run("two.pt")
    resumed.train(4, 2, keep(parts))
    assert [point["updates"] for point in whole] == [2, 4, 4]
    assert parts == whole
    unwatched = peer_run("three.pt")
    unwatched.train(4, 4, keep([]))
    weights = unwatched.model.state_dict()
    for run in (at_once, resumed):
        equal = [torch.equal(weights[name], tensor) for name, tensor in run.model.state_dict().items()]
        assert all(equal), "validations do not change what is learned"
    peer_run("two.pt").train(4, 2, keep(again))
    assert not again, "the time was over"


# --------------------------------------------------------------------------- the corpus with a known translation


@pytest.mark.usefixtures("in_benchmarks")
def test_the_translation_of_a_generated_corpus_is_known_and_a_small_one_begins_a_large_one() -> None:
    from corpus import CHUNK, Language, pairs_of

    language = Language(3, 400)
    few, many = ([pair for chunk in pairs_of(language, 3, 0, count) for pair in chunk] for count in (50, CHUNK + 5))
    assert (few, len(many)) == (many[:50], CHUNK + 5)
    assert all(language.translate(source) == target for source, target in many[:200])


@pytest.mark.usefixtures("in_benchmarks")
def test_a_model_of_twice_the_width_computes_the_same(tmp_path: Path) -> None:
    """With positions that are twice as wide, too."""
    from bridge import widen
    from transformers import MarianMTModel

    from interop import Shape, build

    for name in ("narrow", "wide"):
        (tmp_path / name).mkdir()
    build(tmp_path / "narrow", Shape(16, 2, 2, 32, 60), ["ein Hund rennt", "zwei Katzen schlafen im Park"] * 9, 40)
    widen(tmp_path / "narrow", tmp_path / "wide")
    narrow, wide = (MarianMTModel.from_pretrained(tmp_path / name).eval() for name in ("narrow", "wide"))
    assert wide.config.d_model == 32
    for side in ("encoder", "decoder"):
        positions = getattr(narrow.model, side).embed_positions.weight
        getattr(wide.model, side).embed_positions.weight.data = positions.data.repeat_interleave(2, 1)
    ids = torch.tensor([[5, 9, 7, 0], [3, 4, 8, 0]])
    with torch.no_grad():
        expected, found = (model(input_ids=ids, decoder_input_ids=ids).logits for model in (narrow, wide))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.equal(wide.model.encoder.layers[0].fc1.weight[:, 0], wide.model.encoder.layers[0].fc1.weight[:, 1])
