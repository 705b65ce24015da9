"""Errors: one helpful line that begins with ``multihead: ``; no file is overwritten, none is left behind."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import processes
import pytest
import torch

from multihead.cli import language_models, process
from multihead.cli import main as main_module
from multihead.cli.options import flag_name
from multihead.errors import ConfigurationError
from multihead.text.languages import Languages

if TYPE_CHECKING:
    from tests.conftest import Numbers


def one_line(ended, status, *words, after=0):
    """Check an error: one readable line on standard error, and the exit status.

    ``after``: maximum lines of progress before it.
    """
    assert ended.status == status, ended.err
    *lines, rest = ended.err.split("\n")
    assert rest == ""
    assert len(lines) <= 1 + after, ended.err
    assert lines[-1].startswith("multihead: ")
    assert "Traceback" not in ended.err
    for word in words:
        assert word in lines[-1]


@pytest.fixture
def files(tmp_path: Path, numbers: Numbers) -> Path:
    """A folder of files: ``good``, ``short`` (a line less), and others with a fault each."""
    folder = tmp_path / "files"
    folder.mkdir()
    good = numbers.pairs(60, 4)
    numbers.write(folder, "good", good)
    numbers.write(folder, "short", good[:-1])
    packed = gzip.compress((folder / "good.de").read_bytes())
    (folder / "cut.gz").write_bytes(packed[:-20])
    (folder / "damaged.gz").write_bytes(packed[:30] + b"\xff" * 10 + packed[40:])
    (folder / "nothing.gz").write_bytes(gzip.compress(b""))
    (folder / "empty").write_bytes(b"")
    (folder / "folder").mkdir()
    (folder / "binary").write_bytes(bytes(range(1, 256)) * 40)
    (folder / "zeros").write_bytes(b"\0" * 5000 + b"\n")
    (folder / "latin1").write_bytes("fünf\n".encode("latin-1") * 60)
    (folder / "utf16").write_bytes("eins zwei\n".encode("utf-16") * 60)
    (folder / "blank").write_bytes(b" \n" * 60)
    return folder


WRONG = [
    ("nowhere", "no such file"),
    ("empty", "is empty"),
    ("folder", "is a folder"),
    ("cut.gz", "damaged or cut off gzip"),
    ("damaged.gz", "gzip"),
    ("nothing.gz", "is empty"),
    ("binary", "not valid UTF-8"),
    ("zeros", "NUL"),
    ("latin1", "iconv -f ISO-8859-1"),
    ("utf16", "UTF-16"),
    ("empty/below", "cannot be opened"),
]


@pytest.mark.parametrize(("name", "said"), WRONG)
@pytest.mark.parametrize("role", ["source", "valid-target"])
def test_train_on_a_file_that_cannot_be_read(call, files, numbers, role, name, said):
    given = {side: files / f"good.{code}" for side, code in (("source", "de"), ("target", "en"))}
    given |= {f"valid-{side}": path for side, path in given.items()}
    given[role] = files / name
    before = numbers.contents(files)
    one_line(call("train", *numbers.flags(given), "--output", files / "out" / "run"), 2, str(files / name), said)
    assert numbers.contents(files) == before


@pytest.mark.parametrize(("name", "said"), WRONG)
def test_evaluate_on_a_file_that_cannot_be_read(call, files, numbers, trained, name, said):
    before = numbers.contents(files)
    words = ("--source", files / name, "--target", files / "good.en", "--save", files / "out")
    one_line(call("evaluate", trained, *words), 2, str(files / name), said)
    assert numbers.contents(files) == before


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_files_that_are_not_aligned(call, files, numbers, trained, command):
    before = numbers.contents(files)
    rest = ["--output", files / "run"] if command == "train" else [trained]
    ended = call(command, *rest, "--source", files / "good.de", "--target", files / "short.en")
    one_line(ended, 2, "good.de has 60 lines but", "short.en has 59")
    assert numbers.contents(files) == before


def test_text_without_any_words(call, files, numbers, trained):
    before = numbers.contents(files)
    words = ("--source", files / "blank", "--target", files / "good.en")
    one_line(call("train", *words, "--output", files / "run"), 2, "blank", "no pair can be used out of 60")
    one_line(call("evaluate", trained, *words), 2, "blank", "nothing to evaluate")
    assert numbers.contents(files) == before


# ------------------------------------------------------------------------------------------ misspelt and impossible


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "--sorce", "x"], ["--sorce", "--source"]),
        (["train", "--vocabsize", "9"], ["--vocabsize", "--vocab-size"]),
        (["translate", "run", "--baem", "3"], ["--baem", "--beam"]),
        (["trian"], ["trian", "train"]),
        (["train", "--width", "wide"], ["--width", "wide"]),
        (["train", "--norm", "middle"], ["--norm", "middle", "post", "pre"]),
        (["train", "extra"], ["extra"]),
        (["train", "--width"], ["--width"]),
        (["translate"], ["MODEL"]),
        (["evaluate", "run"], ["--target"]),
        (["evaluate", "run", "--target", "x"], ["--source is missing"]),
        (["train"], ["output missing", "--output FOLDER"]),
        (["train", "--output", "new"], ["source and target missing"]),
        (["train", "--output", "new", "--budget", "long"], ["budget", "25m"]),
        (["train", "--output", "new", "--updates", "5", "--budget", "5m"], ["updates and budget"]),
        (["train", "--output", "new", "--valid-source", "x"], ["valid_source is given without valid_target"]),
        (["translate", "run", "--beam", "0"], ["beam", "got 0"]),
        (["translate", "run", "--alpha", "nan"], ["alpha", "finite"]),
        (["translate", "run", "--threads", "0"], ["--threads", "got 0"]),
        (["translate", "run", "--batch-tokens", "-1"], ["--batch-tokens", "got -1"]),
        (["train", "--config", "nowhere.toml"], ["nowhere.toml", "No such file"]),
        (["translate", "run", "--draft", "b", "--prefixes", "x"], ["--draft", "which has no --prefixes: leave out"]),
        (["translate", "run", "--draft", "b", "--phrases", "x"], ["--draft", "which has no --phrases: leave out"]),
        (["translate", "run", "--input", "x.parquet"], ["--input: Parquet needs an engine: add --engine local:1"]),
        (["distill", "run", "--source", "x.parquet", "--output", "y.tsv"], ["--source: Parquet needs an engine"]),
        (["heads", "run", "--source", "x", "--target", "y", "--beam", "2"], ["--beam needs --bleu NUMBER"]),
        (["classify", "predict", "run", "--explain", "--top", "2"], ["--explain", "leave out --top"]),
        (["export", "run", "--format", "web", "-o", "o", "--no-certificate", "--beam", "5"], ["--beam does nothing"]),
        (["export", "run", "--format", "web", "-o", "o", "--no-certificate", "--count", "9"], ["--count does nothing"]),
        (["import", "run", "-o", "new", "--no-certificate", "--lines", "x"], ["--lines", "--no-certificate"]),
        (["import", "run", "-o", "new", "--no-certificate", "--references", "x"], ["--references does nothing"]),
    ],
)
def test_a_wrong_command_line(call, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    one_line(call(*words), 2, *said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"preset": "smal"}, ["the transformer model has no preset 'smal'", "did you mean 'small'"]),
        ({"width": 30, "heads": 4}, ["width must be a multiple of heads, got width 30 and 4 heads"]),
        ({"dropout": 2.0}, ["dropout", "less than 1", "got 2.0"]),
        ({"updates": -1}, ["updates", "got -1"]),
        ({"vocab_size": 3}, ["vocab_size is 3"]),
        ({"held_out": 60}, ["60 pairs can be used, and 60 would be held out"]),
        ({"max_tokens": 1, "held_out": 59}, ["no training pair is left"]),
        ({"learning_rate": "inf"}, ["learning_rate", "finite"]),
        ({"threads": 0}, ["threads", "got 0"]),
    ],
)
def test_settings_that_cannot_be(call, files, numbers, settings, said):
    before = numbers.contents(files)
    given = {"source": files / "good.de", "target": files / "good.en", "output": files / "run", **settings}
    if "max_tokens" in settings:
        for name in ("good.de", "good.en"):
            (files / name).write_text("eins zwei drei\n" * 60)
        before = numbers.contents(files)
    one_line(call("train", *numbers.flags(given)), 2, *said, after=1)
    assert numbers.contents(files) == before


def test_zero_is_a_value_that_a_language_model_refuses():
    language_models.refuse({"alpha": None, "shortlist": False, "others": ()}, Languages())
    for flags in ({"alpha": 0.0}, {"resamples": 0}):
        with pytest.raises(ConfigurationError, match="is for translators, and this is a language model"):
            language_models.refuse(flags, Languages())


def test_a_language_model_refuses_flags_by_their_names(call, tmp_path, monkeypatch):
    """As `evaluate` passes them: --with is the parameter ``others``."""
    seen = {}
    monkeypatch.setattr(language_models, "is_given", lambda _: True)
    monkeypatch.setattr(language_models, "refuse", lambda flags, _: seen.update(flags))
    monkeypatch.setattr(language_models, "evaluate_text", lambda *_: None)
    assert call("evaluate", tmp_path, "--target", tmp_path / "text").status == 0
    spelled = {flag for one in main_module.multihead.commands["evaluate"].params for flag in one.opts}
    assert {flag_name(name) for name in seen} <= spelled


def test_a_misspelt_key_in_a_file(call, tmp_path):
    (tmp_path / "a.toml").write_text("widht = 64\n")
    one_line(call("train", "--config", tmp_path / "a.toml"), 2, "a.toml", "'widht'; did you mean 'width'?")


# ------------------------------------------------------------------------------------------ folders


@pytest.mark.parametrize("kind", ["other", "file", "below a file"])
def test_an_output_that_is_somebody_elses(call, files, numbers, kind):
    (files / "letters").mkdir()
    (files / "letters" / "mother.txt").write_text("dear")
    output = {"other": "letters", "file": "letters/mother.txt", "below a file": "letters/mother.txt/run"}[kind]
    before = numbers.contents(files)
    words = ("--source", files / "good.de", "--target", files / "good.en", "--output", files / output)
    one_line(call("train", *words), 2, "holds something that is not a run" if kind == "other" else "is a file")
    assert numbers.contents(files) == before


@pytest.mark.parametrize(("output", "said"), [("good.de", "is a file"), (".", "holds something that is not a demo")])
def test_a_demo_does_not_write_over_anything(call, files, numbers, output, said):
    (files / "data").mkdir()
    (files / "data" / "train.de").write_text("mine")
    before = numbers.contents(files)
    one_line(call("demo", "--output", files / output), 2, said)
    assert numbers.contents(files) == before


def test_a_name_of_the_hugging_face_hub_is_answered_with_the_command_that_takes_it(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one_line(call("translate", "some/model"), 2, "`multihead import some/model -o model`")
    (tmp_path / "some").mkdir()  # a folder, so the name is a misspelled path
    ended = call("translate", "some/model")
    one_line(ended, 2, "there is no such folder")
    assert "import" not in ended.err


@pytest.mark.parametrize("command", ["translate", "evaluate"])
@pytest.mark.parametrize(
    ("name", "said"),
    [("nowhere", "no such folder"), ("good.de", "is a file"), ("folder", "not a model folder"), ("damaged", "damaged")],
)
def test_a_model_that_is_none(call, files, numbers, trained, command, name, said):
    shutil.copytree(trained / "best", files / "damaged")
    (files / "damaged" / "model.safetensors").write_bytes(b"no weights")
    before = numbers.contents(files)
    words = ["--source", files / "good.de", "--target", files / "good.en"] if command == "evaluate" else []
    ended = call(command, files / name, *words, given=b"eins\n")
    one_line(ended, 2, str(files / name), said)
    assert ended.out == b""
    assert numbers.contents(files) == before


def test_a_file_to_save_into_is_never_overwritten(call, files, numbers, trained):
    before = numbers.contents(files)
    words = (trained, *numbers.flags(numbers.test), "--save")
    one_line(call("evaluate", *words, files / "good.en"), 2, "good.en: exists already; nothing was overwritten")
    one_line(call("evaluate", *words, files / "new" / "out"), 2, "there is no folder")
    assert numbers.contents(files) == before


def test_a_device_that_is_not_there(call, trained, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    one_line(call("translate", trained, "--device", "cuda", given=b"eins\n"), 2, "no CUDA")


def test_a_line_that_cannot_be_read_does_not_cost_those_before_it(call, trained):
    ended = call("translate", trained, given=b"eins\n\nzw\xffei\ndrei\n")
    one_line(ended, 2, "standard input:3", "not valid UTF-8", "byte 0xff at column 3")
    assert ended.out == b"one\n\n"


def test_a_line_without_end(call, trained, monkeypatch):
    monkeypatch.setattr("multihead.data.text_files.LONGEST_LINE", 1000)
    ended = call("translate", trained, given=b"eins\n" + b"x" * 5000)
    one_line(ended, 2, "standard input:2", "is this text")
    assert ended.out == b"one\n"


# ------------------------------------------------------------------------------------------ environment


@pytest.mark.parametrize(
    ("number", "said"), [(28, "no space left"), (30, "read-only"), (13, "permission denied"), (122, "quota")]
)
def test_a_disk_that_cannot_be_written_to(call, files, numbers, monkeypatch, number, said):
    before = numbers.contents(files)

    def fails(path, chunks):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("multihead.files.write_chunks", fails)
    words = ("--source", files / "good.de", "--target", files / "good.en", "--output", files / "run")
    one_line(call("train", *words), 1, "cannot be written", said)
    assert numbers.contents(files) == before


def test_translations_that_cannot_be_saved(call, numbers, trained):
    words = (trained, *numbers.flags(numbers.test), "--save", "/proc/out.en")
    one_line(call("evaluate", *words), 1, "/proc/out.en: cannot be written")


def test_what_nobody_thought_of_is_one_line_too(call, trained, monkeypatch):
    """For example, a disk that fails while the model is read."""

    def fails(*args, **options):
        raise OSError(5, "Input/output error", "/somewhere")

    monkeypatch.setattr("multihead.translating.translator.load_bundle", fails)
    one_line(call("translate", trained), 1, "/somewhere: Input/output error")


LIMITED = """
import resource, runpy
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
runpy.run_module("multihead", run_name="__main__", alter_sys=True)
"""


def test_files_that_may_not_grow_stop_a_run_which_then_goes_on(numbers, tmp_path):
    """Uses a real limit of the system, in a separate process."""
    settings = {**numbers.train, **numbers.valid, **numbers.settings, "updates": 4, "validate_every": 2}
    command = [sys.executable, "-c", LIMITED, "train", *numbers.flags(settings), "--output", str(tmp_path / "run")]
    ended = processes.run(command, capture_output=True, check=False)
    said = ended.stderr.decode()
    assert ended.returncode == 1
    assert "Traceback" not in said
    (line,) = [line for line in said.splitlines() if line.startswith("multihead: ")]
    assert "cannot be written: larger than files may be here (ulimit -f)" in line
    leftovers = [path.name for path in (tmp_path / "run").rglob("*") if "unfinished" in path.name]
    assert leftovers == []
    assert numbers.learn(tmp_path / "run", **settings).updates == 4


# ------------------------------------------------------------------------------------------ unexpected errors


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(5, "Input/output error"), 1, "Input/output error"),
        (ImportError("no x"), 1, "no x: a package is missing or broken, and `multihead env` says which"),
        (main_module.MultiheadError("two\nlines  of text"), 1, "two lines  of text"),
    ],
)
def test_how_a_command_ends(call, monkeypatch, error, status, said):
    def fails():
        raise error

    monkeypatch.setattr(process, "configure_process", fails)
    ended = call("translate", "run")
    assert ended.status == status
    assert ended.err.strip().split("\n") == [f"multihead: {said}"]


@pytest.mark.parametrize(
    "error",
    [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"), None],
    ids=["Python", "GPU", "CPU"],
)
def test_too_little_memory_is_said_in_one_line(call, monkeypatch, error):
    def fails(*_args, **_options):
        if error is not None:
            raise error
        torch.empty(1 << 60, dtype=torch.uint8)

    monkeypatch.setattr(main_module.multihead, "main", fails)
    one_line(call("score"), 1, "not enough memory", "shorter lines")


@pytest.mark.parametrize("error", [ZeroDivisionError(), ImportError("no x", name="multihead.models.x")])
def test_a_mistake_of_ours_keeps_its_traceback(call, monkeypatch, error):
    """The traceback is needed to fix the bug."""

    def fails():
        raise error

    monkeypatch.setattr(process, "configure_process", fails)
    with pytest.raises(type(error)):
        call("translate", "run")
