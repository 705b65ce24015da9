"""The commands as users type them: results, help, closed and full streams."""

import gzip
import io
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import click
import processes
import pytest

from multihead import Translator, __version__, evaluate
from multihead.bundle import model_digest
from multihead.cli.main import main
from multihead.cli.main import multihead as command
from multihead.errors import ConfigurationError
from multihead.platforms import replace_closed_streams
from multihead.runs import curves
from multihead.serving import folders
from multihead.translating.datastore import read as read_datastore

PROGRAM = [sys.executable, "-m", "multihead"]


def multihead(*words, given=b"", **options):
    """Run the command in a separate process."""
    return subprocess.run([*PROGRAM, *map(str, words)], input=given, capture_output=True, check=False, **options)


# ------------------------------------------------------------------------------------------ translate


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return Translator.load(trained)


HOSTILE = [
    "eins zwei",
    "",
    "   ",
    "drei\u2028vier\u2029fünf\x85sechs",
    "\x0b\x0c\x1c\x1d",
    "nul\0l",
    "</s>",
    "<unk> <pad> <s> <0x0A> <0x41>",
    "▁▁ ▁",
    "👩‍👩‍👧‍👦 e\u0301 \u202e \ufeff",
    "neun " * 20,
    "\t",
    "zehn",
]


@pytest.mark.parametrize(("end", "closed"), [(b"\n", True), (b"\r\n", True), (b"\r\n", False)])
def test_as_many_lines_come_out_in_order(call, trained, translator, end, closed):
    given = end.join(line.encode() for line in HOSTILE) + (end if closed else b"")
    ended = call("translate", trained, "--beam", 2, "--max-source", 0, given=given)  # the Python call splits no line
    assert ended.status == 0
    assert ended.out.endswith(b"\n")
    assert b"\r" not in ended.out
    lines = ended.text.split("\n")[:-1]
    assert len(lines) == len(HOSTILE)
    assert lines == translator.translate(HOSTILE, beam=2)
    assert [not line.strip() for line in HOSTILE] == [not line for line in lines]


def test_a_carriage_return_belongs_to_the_line_end_only_once(call, trained, translator):
    ended = call("translate", trained, given=b"eins\r\r\n\rzwei\n")
    assert ended.text.split("\n")[:-1] == translator.translate(["eins\r", "\rzwei"])


@pytest.mark.parametrize(("given", "out"), [(b"", b""), (b"\n", b"\n"), (b"\n\n\n", b"\n\n\n"), (b" ", b"\n")])
def test_nothing_to_translate(call, trained, given, out):
    assert call("translate", trained, given=given).out == out


def test_more_lines_than_are_read_at_once(call, trained, translator, monkeypatch):
    monkeypatch.setattr("multihead.lines.windows.WINDOW", 3)
    given = "".join(line + "\n" for line in HOSTILE).encode()
    ended = call("translate", trained, "--beam", 1, "--max-source", 0, given=given)
    assert ended.text.split("\n")[:-1] == translator.translate(HOSTILE, beam=1)


def test_options_of_the_search_reach_it(call, trained, translator):
    given = b"eins zwei drei\nsieben acht\n"
    for options in ({"beam": 1}, {"beam": 3, "alpha": 0.2}, {"batch_tokens": 1}):
        flags = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
        expected = translator.translate(["eins zwei drei", "sieben acht"], **options)
        assert call("translate", trained, *flags, given=given).text.split("\n")[:-1] == expected


def test_a_translation_that_may_be_cut_is_named(call, trained, tmp_path, numbers):
    import shutil

    model = shutil.copytree(trained / "best", tmp_path / "model")
    generation = json.loads((model / "generation.json").read_text(encoding="utf-8"))
    generation |= {"length_factor": 1e-9, "length_margin": 1}
    (model / "generation.json").write_text(json.dumps(generation), encoding="utf-8")
    numbers.seal_again(model)
    ended = call("translate", model, given=b"\neins zwei\n")
    assert ended.status == 0
    assert ended.err == "line 2: the translation reached the length limit and may be cut\n"


def test_a_model_folder_is_as_good_as_its_run(call, trained):
    given = b"eins zwei\n"
    assert call("translate", trained / "best", given=given).out == call("translate", trained, given=given).out


# ------------------------------------------------------------------------------------------ evaluate


def test_evaluate_prints_what_the_call_gives(call, trained, numbers, tmp_path):
    expected = evaluate(trained, **numbers.test)
    ended = call("evaluate", trained, *numbers.flags(numbers.test), "--save", tmp_path / "out.en")
    assert ended.status == 0
    assert ended.text.startswith(f"{expected}\n20 sentences in ")
    assert (tmp_path / "out.en").read_text(encoding="utf-8") == "".join(f"{x}\n" for x in expected.hypotheses)


@pytest.mark.usefixtures("fewer_trials")
def test_evaluate_against_a_second_system(call, trained, numbers, tmp_path):
    (other := tmp_path / "other.en").write_text("one\n" * 20, encoding="utf-8")
    files = numbers.flags(numbers.test)
    expected = evaluate(trained, **numbers.test, against=other, resamples=60)
    ended = call("evaluate", trained, *files, "--against", other, "--resamples", 60)
    assert ended.text.startswith(f"{expected}\n20 sentences in ")
    assert "p: paired approximate randomization, 1,000 trials" in ended.text
    content = json.loads(call("evaluate", trained, *files, "--against", trained, "--resamples", 60, "--json").text)
    assert [one["p"] for one in content["measures"]] == [1.0] * 3
    assert content["against"]["name"] == str(trained)


def test_evaluate_names_what_its_lengths_cut(call, trained, numbers):
    flags = {"beam": 1, "max_length": 2}
    ended = call("evaluate", trained, *numbers.flags({**numbers.test, **flags}))
    expected = evaluate(trained, **numbers.test, **flags)
    assert ended.text.startswith(f"{expected}\n")
    named = ", ".join(map(str, expected.cut))
    assert ended.err.splitlines()[-1] == f"{trained}: the length limit was reached in lines {named}"


def test_evaluate_reads_gzip(call, trained, numbers, tmp_path):
    packed = {}
    for side, path in numbers.test.items():
        packed[side] = tmp_path / f"{path.name}.gz"
        packed[side].write_bytes(gzip.compress(path.read_bytes()))
    plain = call("evaluate", trained, *numbers.flags(numbers.test)).text.splitlines()
    assert call("evaluate", trained, *numbers.flags(packed)).text.splitlines()[:2] == plain[:2]


# ------------------------------------------------------------------------------------------ the whole pipeline


def test_train_translate_evaluate_as_a_user_types_them(numbers, tmp_path):
    """Three processes, gzip files, other settings in a TOML file."""
    files = {}
    for name, path in {**numbers.train, **numbers.valid}.items():
        files[name] = tmp_path / f"{path.name}.gz"
        files[name].write_bytes(gzip.compress(path.read_bytes()))
    settings = {**numbers.settings, "updates": 6, "validate_every": 3, "log_every": 2}
    toml = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    (tmp_path / "tiny.toml").write_text(toml, encoding="utf-8")
    run = tmp_path / "run"
    ended = multihead("train", "--config", tmp_path / "tiny.toml", *numbers.flags(files), "--output", run)
    assert ended.returncode == 0
    assert ended.stdout == b""
    said = ended.stderr.decode()
    assert "600 training pairs" in said
    assert "validation at 6" in said
    assert f"is in {run / 'best'}" in said
    ended = multihead("translate", run, given=b"eins\n\nzwei drei")
    assert (ended.returncode, ended.stdout.count(b"\n")) == (0, 3)
    assert ended.stdout.split(b"\n")[1] == b""
    words = [*PROGRAM, "evaluate", str(run), *map(str, numbers.flags(numbers.test))]
    ended = processes.run(words, capture_output=True, check=False)  # `train` has shown a start from nothing
    assert ended.returncode == 0
    assert "BLEU" in ended.stdout.decode()
    assert "nrefs:1" in ended.stdout.decode()


def test_the_python_call_is_the_command(call, numbers, tmp_path):
    settings = {**numbers.train, **numbers.valid, **numbers.settings, "updates": 4, "seed": 5}
    numbers.learn(tmp_path / "call", **settings)
    assert call("train", *numbers.flags(settings), "--output", tmp_path / "command").status == 0
    found = [numbers.contents(tmp_path / name, without=("log.txt", "timing.jsonl")) for name in ("call", "command")]
    assert found[0] == found[1]


# ------------------------------------------------------------------------------------------ help and version


def every_command(group=command, words=()):
    """The names of every command and subcommand."""
    yield words
    for name, inner in group.commands.items() if isinstance(group, click.Group) else ():
        yield from every_command(inner, (*words, name))


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("words", list(every_command()), ids=" ".join)
def test_help(call, words, flag):
    ended = call(*words, flag)
    assert ended.status == 0
    assert ended.text.startswith(" ".join(["Usage: multihead", *words]))
    assert ended.err == ""


def test_no_help_waits_for_torch():
    program = (
        "import json, sys\n"
        "from multihead.cli.main import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    assert main([*words, '--help']) == 0\n"
        "sys.exit(bool({'torch', 'numpy', 'tokenizers', 'rich', 'matplotlib'} & set(sys.modules)))"
    )
    given = json.dumps(list(every_command()))
    assert (
        subprocess.run([sys.executable, "-c", program, given], stdout=subprocess.DEVNULL, check=False).returncode == 0
    )


def test_the_commands():
    assert list(command.commands) == [
        "train",
        "translate",
        "evaluate",
        "serve",
        "demo",
        "doctor",
        "clean",
        "prepare",
        "bpe",
        "backtranslate",
        "distill",
        "compare",
        "score",
        "align",
        "tune",
        "attention",
        "explain",
        "heads",
        "plot",
        "report",
        "selftest",
        "average",
        "adapt",
        "shrink",
        "quantise",
        "shortlist",
        "datastore",
        "import",
        "export",
        "pretrain",
        "fill-mask",
        "generate",
        "classify",
        "pointer",
        "env",
    ]


def test_quantize_is_another_spelling_of_quantise(call):
    found, wanted = (call(word, "--help").text for word in ("quantize", "quantise"))
    assert found == wanted.replace("Usage: multihead quantise", "Usage: multihead quantize")
    assert (
        call("quantize", "no-model", "--output", "small").err == call("quantise", "no-model", "--output", "small").err
    )


def test_help_is_quick_and_needs_no_torch():
    """The time of the processor, because the machine may be busy."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "multihead", "train", "--help"], capture_output=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    modules = {line.rsplit("|", 1)[-1].strip() for line in ended.stderr.decode().splitlines()}
    assert "click" in modules
    assert not modules & {"torch", "numpy", "sacrebleu", "tokenizers", "safetensors", "rich"}
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3.0


def test_version_and_no_command(call):
    ended = call("--version")
    assert (ended.status, ended.text) == (0, f"multihead, version {__version__}\n")
    ended = call()
    assert ended.status == 2
    assert "Translators:" in ended.text + ended.err
    assert "Traceback" not in ended.err


# ------------------------------------------------------------------------------------------ standard output


def test_a_reader_that_has_gone_ends_it_quietly(trained):
    """As in ``multihead translate run < text | head -1``."""
    reading, writing = os.pipe()
    os.close(reading)
    ended = processes.run(
        [*PROGRAM, "translate", str(trained)], input=b"eins\n", stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["train", "--help"], ["env", "--json"]])
def test_a_reader_that_has_gone_ends_every_command_alike(words):
    reading, writing = os.pipe()
    os.close(reading)
    ended = processes.run([*PROGRAM, *words], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize("words", [["--version"], ["bpe", "--help"], ["bpe", "undo"]])
def test_standard_output_that_was_closed_before(words, monkeypatch, capsys):
    """As with ``multihead --version >&-``."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n"), encoding="utf-8"))
    monkeypatch.setattr(sys, "stdout", None)
    replace_closed_streams()
    with sys.stdout:
        assert main(words) == 1
    assert capsys.readouterr().err == "multihead: standard output: cannot be written: it is closed\n"


@pytest.mark.parametrize("words", [["translate"], ["--help"]])
def test_standard_output_that_is_full(trained, words):
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        command = [*PROGRAM, *words, *([str(trained)] if words == ["translate"] else [])]
        ended = processes.run(command, input=b"eins\n", stdout=full, stderr=subprocess.PIPE, check=False)
    assert ended.returncode == 1
    said = ended.stderr.decode()
    assert said.startswith("multihead: ")
    assert "o space left on" in said
    assert said.count("\n") == 1


# ------------------------------------------------------------------------------------------ flags beside the settings

FOLDER = Path(__file__).parents[1] / "data_folders" / "v6"
"""A model of number words."""


def test_clean_writes_where_it_is_told_and_asks_the_model(call, numbers, tmp_path):
    kept, removed, report = (tmp_path / name for name in ("kept.tsv", "reasons.jsonl", "page.html"))
    outputs = ("--output", kept, "--removed", removed, "--report", report)
    ended = call("clean", *numbers.flags(numbers.test), *outputs, "--model", FOLDER, "--max-surprise", 1e-3)
    assert ended.status == 0, ended.err
    assert {*tmp_path.iterdir()} == {kept, removed, report}
    reasons = [json.loads(line)["reason"] for line in removed.read_text(encoding="utf-8").splitlines()]
    assert "alignment" in reasons
    assert len(reasons) + kept.read_text(encoding="utf-8").count("\n") == 20


@pytest.mark.parametrize("words", [["evaluate", FOLDER], ["compare", "TARGET", "TARGET"]], ids=["evaluate", "compare"])
def test_comet_is_asked_for_by_its_flag(call, numbers, monkeypatch, words):
    monkeypatch.setenv("MULTIHEAD_COMET", "nowhere")
    words = [numbers.test["target"] if word == "TARGET" else word for word in words]
    ended = call(*words, *numbers.flags(numbers.test), "--resamples", 60, "--comet", "model")
    assert (ended.status, ended.out) == (1, b"")
    assert "MULTIHEAD_COMET: expected the Python of an environment with COMET, got 'nowhere'" in ended.err


def test_serve_passes_on_how_its_models_search(call, monkeypatch):
    given = []

    def find(_folders, search, device, *_):
        given.append((search, device))
        raise ConfigurationError("enough")

    monkeypatch.setattr(folders, "find_models", find)
    for words in ((), ("--alpha", 0.25, "--precision", "int8", "--beam", 3, "--device", "mps")):
        assert call("serve", FOLDER, *words).err == "multihead: enough\n"
    assert given == [({}, "cpu"), ({"beam": 3, "alpha": 0.25, "precision": "int8"}, "mps")]


@pytest.mark.usefixtures("compiled")
def test_a_datastore_has_about_as_many_entries_as_it_may(call, numbers, tmp_path):
    valid = {f"valid-{side}": path for side, path in numbers.test.items()}
    texts = numbers.flags({**numbers.test, **valid})
    sizes = []
    for most in (10_000, 40):
        output = tmp_path / str(most)
        ended = call("datastore", FOLDER, "--output", output, *texts, "--neighbours", 2, "--most", most)
        assert ended.status == 0, ended.err
        sizes.append(len(read_datastore(output, model_digest(FOLDER)).symbols))
    assert sizes[0] > 2 * sizes[1] > 40


def test_plot_draws_over_what_it_is_told(call, monkeypatch, tmp_path):
    (table := tmp_path / "table.csv").write_text("updates,seconds,bleu\n10,120,3\n20,600,4\n", encoding="utf-8")
    drawn = []
    monkeypatch.setattr(curves, "draw_curves", lambda panels, _: drawn.append(panels))
    for over in ((), ("--over", "updates"), ("--over", "time")):
        assert call("plot", table, "-o", tmp_path / "curves.svg", *over).status == 0
    logs = curves.read_curves([table])
    assert drawn == [curves.panels_of(logs, axis) for axis in ("step", "step", "seconds")]
    assert drawn[0] != drawn[2]
