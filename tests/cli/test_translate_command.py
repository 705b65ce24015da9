"""``multihead translate`` beyond lines in, lines out: rows for programs, and files that survive being stopped."""

from __future__ import annotations

import gzip
import json
import lzma
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import processes
import pytest
import torch
import zstandard

from multihead import Translator
from multihead.lines import windows as lines
from multihead.lines.windows import LineOptions
from multihead.translating import translator as module
from multihead.translating.lengths import most_tokens
from multihead.translating.request import TranslationRequest
from multihead.translating.shortlist import FILE, shortlist

if TYPE_CHECKING:
    from tests.conftest import Numbers


SMALL = 14
"""Lines in a window, so that a short file has several."""

PATIENCE = 120.0
"""Seconds after which the test fails, even on a busy machine."""


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return Translator.load(trained)


def one_line(ended, *words):
    assert ended.status == 2, ended.err
    assert ended.err.startswith("multihead: ")
    assert ended.err.count("\n") == 1
    for word in words:
        assert word in ended.err


# ------------------------------------------------------------------------------------------ rows and lengths

GIVEN = ["eins zwei", "", "drei\tvier", "sieben"]


def rows(ended):
    return [(int(n), float(score), text) for n, score, text in (x.split("\t", 2) for x in ended.text.split("\n")[:-1])]


def test_rows_are_the_translations_of_their_lines(call, trained, translator):
    given = "".join(line + "\n" for line in GIVEN).encode()
    ended = call("translate", trained, "--n-best", 3, "--beam", 4, "--alpha", 0.5, given=given)
    expected = [
        (number, round(translation.score, 4), translation.text)
        for number, found in enumerate(translator.n_best(GIVEN, 3, beam=4, alpha=0.5), start=1)
        for translation in found
    ]
    assert rows(ended) == expected
    assert [number for number, _, _ in expected] == [1, 1, 1, 2, 3, 3, 3, 4, 4, 4]
    ended = call("translate", trained, "--scores", "--beam", 1, given=given)
    best = translator.translations(GIVEN, beam=1)
    assert rows(ended) == [(n, round(t.score, 4), t.text) for n, t in enumerate(best, start=1)]


def test_lengths_reach_the_search(call, trained, translator):
    flags = ("--min-length", 6, "--max-length", 8)
    ended = call("translate", trained, *flags, given=b"eins\n")
    assert ended.text.split("\n")[:-1] == translator.translate(["eins"], min_length=6, max_length=8)
    assert ended.text != call("translate", trained, given=b"eins\n").text


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--n-best", 4, "--beam", 3), ["n_best", "which is 3, got 4"]),
        (("--n-best", 0), ["--n-best: expected at least 1, got 0"]),
        (("--min-length", 9, "--max-length", 9), ["max_length", "above min_length"]),
        (("--min-length", -1), ["min_length", "got -1"]),
        (("--output", "out"), ["--output needs --input"]),
        (("--input", "nowhere"), ["nowhere: there is no such file"]),
    ],
)
def test_what_cannot_be_asked(call, trained, flags, said):
    one_line(call("translate", trained, *flags, given=b"eins\n"), *said)


# ------------------------------------------------------------------------------------------ files


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a short file has several."""
    monkeypatch.setattr(lines, "WINDOW", SMALL)


@pytest.fixture(scope="module")
def text(numbers: Numbers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 24 lines, some empty, one of another kind."""
    path = tmp_path_factory.mktemp("text") / "in.de"
    made = [source if number % 9 else "" for number, (source, _) in enumerate(numbers.pairs(22, 7))]
    path.write_bytes("\n".join([*made, "ein\tzwei\u2028\0", "zehn"]).encode())
    return path


def test_a_file_is_translated_as_a_stream_of_its_lines(call, trained, text, tmp_path, small_windows):
    given = text.read_bytes()
    expected = call("translate", trained, "--beam", 1, given=given).out
    assert expected.count(b"\n") == 24
    packed = {
        "plain": given,
        "gz": gzip.compress(given),
        "xz": lzma.compress(given),
        "zst": zstandard.ZstdCompressor().compress(given),
    }
    for name, content in packed.items():
        source, output = tmp_path / f"in.{name}", tmp_path / f"out.{name}"
        source.write_bytes(content)
        ended = call("translate", trained, "--beam", 1, "--input", source, "--output", output)
        assert (ended.status, ended.out, ended.err) == (0, b"", "")
        assert output.read_bytes() == expected
    assert call("translate", trained, "--beam", 1, "--input", tmp_path / "in.xz").out == expected
    names = {f"{side}.{name}" for side in ("in", "out") for name in packed}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_file_with_a_line_that_is_no_text_is_refused_before_work(call, trained, tmp_path):
    source = tmp_path / "in"
    source.write_bytes(b"eins\n" * 300 + b"f\xfcnf\n")
    one_line(
        call("translate", trained, "--input", source, "--output", tmp_path / "out"), f"{source}:301: not valid UTF-8"
    )
    one_line(call("translate", trained, "--input", source), f"{source}:301: not valid UTF-8")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_nothing_is_overwritten(call, trained, text, tmp_path):
    (tmp_path / "out").write_text("mine")
    flags = ("--input", text, "--output")
    one_line(call("translate", trained, *flags, tmp_path / "out"), "out: exists already")
    one_line(call("translate", trained, *flags, tmp_path / "no" / "out"), "there is no folder")
    one_line(call("translate", tmp_path, *flags, tmp_path / "new"), "not a model folder")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_reaches_the_limit_is_named_with_its_line(call, trained, text, tmp_path, small_windows):
    ended = call("translate", trained, "--input", text, "--output", tmp_path / "out", "--beam", 1, "--max-length", 1)
    named = [line.split(":")[0] for line in ended.err.splitlines()]
    content = text.read_bytes().decode().split("\n")
    assert named == [f"line {number}" for number, line in enumerate(content, start=1) if line.strip()]


# ------------------------------------------------------------------------------------------ stopped, and going on


class Job:
    """The command in a process of its own, with small windows."""

    def __init__(self, model, source, folder, *flags):
        self.output, self.record = folder / "out", folder / "out.part.json"
        words = ["translate", model, "--input", source, "--output", self.output, "--threads", 1, *flags]
        self.words = [str(word) for word in words]
        program = "from multihead.lines import windows; from multihead.cli.main import entry"
        program += f"; windows.WINDOW = {SMALL}; entry()"
        self.command = [sys.executable, "-c", program, *self.words]

    def start(self):
        self.process = processes.WarmPopen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def done(self):
        """Lines that are safely on disk."""
        try:
            return json.loads(self.record.read_text(encoding="utf-8"))["lines"]
        except FileNotFoundError:
            return 0

    def stop_after(self, count, number):
        """Sends a signal when this many lines are done; returns the exit status and the messages."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None and self.done() < count:
            assert time.monotonic() < deadline
            time.sleep(0.0005)
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said.decode()


@pytest.fixture(scope="module")
def long_text(numbers: Numbers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "in.de"
    path.write_text("".join(source + "\n" for source, _ in numbers.pairs(80, 8)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def whole(trained: Path, long_text: Path) -> bytes:
    """The outputs of an uninterrupted process for the long text with `FLAGS`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "WINDOW", SMALL)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        translator = Translator.load(trained)
        line, sentence = most_tokens(translator.lengths, translator.reach)
        search = translator.search_settings(beam=2)
        options = LineOptions(TranslationRequest(search, n_best=2), max_source=line, max_sentence=sentence)
        given = long_text.read_text(encoding="utf-8").split("\n")[:-1]
        windows = list(lines.translated(translator, iter(given), options))
        torch.set_num_threads(threads)
    return "".join(row + "\n" for window in windows for row in window.rows).encode()


FLAGS = ("--beam", 2, "--n-best", 2)


def test_a_killed_process_goes_on_and_ends_with_the_same_bytes(
    call, trained, long_text, whole, tmp_path, small_windows
):
    job = Job(trained, long_text, tmp_path, *FLAGS)
    job.start()
    assert job.stop_after(SMALL, signal.SIGKILL)[0] == -signal.SIGKILL
    done = job.done()
    assert SMALL <= done < 80
    assert not job.output.exists()
    # Commands with other flags may not resume it.
    one_line(call(*job.words, "--beam", 3), "out.part: ", "beam was 2, now 3")
    one_line(call(*job.words, "--scores"), "scores was False, now True")
    other = tmp_path / "other.de"
    other.write_bytes(long_text.read_bytes() + b"eins\n")
    one_line(call(*(other if word == str(long_text) else word for word in job.words)), "input was ")
    assert job.done() == done
    assert call(*job.words).status == 0
    assert job.output.read_bytes() == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.de", "out"]


def test_an_interrupted_one_says_how_far_it_came(call, trained, long_text, whole, tmp_path, small_windows, monkeypatch):
    """Interrupted in the middle of a window, and before the first line is done."""
    job = Job(trained, long_text, tmp_path, *FLAGS)
    search = module.Translator._search
    batches = []

    def interrupted(self, *arguments):
        batches.append(1)
        if len(batches) in (1, 4):
            raise KeyboardInterrupt
        return search(self, *arguments)

    monkeypatch.setattr(module.Translator, "_search", interrupted)
    ended = call(*job.words)
    assert (ended.status, ended.err) == (130, "multihead: stopped before anything was done (SIGINT)\n")
    assert list(tmp_path.iterdir()) == []
    ended = call(*job.words)
    assert ended.status == 130
    assert ended.err == "multihead: stopped after line 28 of 80; run the same command again to continue (SIGINT)\n"
    assert call(*job.words).status == 0
    assert job.output.read_bytes() == whole


def test_another_shortlist_makes_another_file(call, trained, text, tmp_path, small_windows, monkeypatch):
    """The shortlist is made anew while a file is unfinished: resuming would mix translations with two shortlists."""
    run, output = shutil.copytree(trained, tmp_path / "run"), tmp_path / "out"
    shortlist(run, always=1, candidates=12, say=lambda _: None)
    words = ("translate", run, "--input", text, "--output", output, "--shortlist", "--threads", 1)
    original, calls = module.Translator.run, []

    def stopped(self, *arguments, **named):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(self, *arguments, **named)

    monkeypatch.setattr(module.Translator, "run", stopped)
    assert "stopped after line 14 of 24" in call(*words).err
    first = (run / "best" / FILE).read_bytes()
    shortlist(run, always=1, candidates=2, say=lambda _: None)
    one_line(call(*words, "--resume"), "shortlist_file was ")
    shortlist(run, always=1, candidates=12, say=lambda _: None)
    assert (run / "best" / FILE).read_bytes() == first
    assert call(*words, "--resume").status == 0
    assert output.read_bytes().count(b"\n") == 24


def test_a_shortlist_that_is_not_there(call, trained, text, tmp_path):
    output = tmp_path / "out"
    for words in ((), ("--input", text), ("--input", text, "--output", output)):
        one_line(call("translate", trained, "--shortlist", *words, given=b"eins\n"), "there is no shortlist")
    assert list(tmp_path.iterdir()) == []


ALL_AT_ONCE = (
    *("--sample", 2, "--temperature", 1.2, "--mbr", "chrf", "--max-source", 9, "--scores"),
    *("--guard", "retry", "--guard-closer", "--guard-threshold", 0.95, "--max-length", 10),
)


def test_whatever_is_asked_a_killed_process_goes_on(call, trained, numbers, tmp_path, small_windows):
    """Samples, their consensus, the guard's second search, parts of lines, side files: the same bytes."""
    source, prefixes = tmp_path / "in.de", tmp_path / "prefixes"
    source.write_text("".join(text + "\n" for text, _ in numbers.pairs(30, 8)), encoding="utf-8")
    prefixes.write_text("".join("two\n" if number % 5 == 0 else "\n" for number in range(30)))
    job = Job(trained, source, tmp_path, *ALL_AT_ONCE, "--prefixes", prefixes)
    one_line(call(*job.words, "--resume"), "out: nothing of it has been done", "begin without --resume")
    whole = tmp_path / "whole"
    assert call(*[whole if word == str(job.output) else word for word in job.words]).status == 0
    job.start()
    assert job.stop_after(SMALL, signal.SIGKILL)[0] == -signal.SIGKILL
    done = job.done()
    assert SMALL <= done < 30
    for flags, said in (
        (("--seed", 1), "sampling was "),
        (("--mbr", "bleu"), "mbr was chrf, now bleu"),
        (("--guard", "mark"), "guard was "),
        (("--max-source", 0), "max_source was 9, now None"),
        (("--with", trained), "model was "),
    ):
        one_line(call(*job.words, "--resume", *flags), "out.part: ", said)
    before = prefixes.read_text()
    prefixes.write_text(before.replace("two", "six"))
    one_line(call(*job.words, "--resume"), "prefixes was ")
    prefixes.write_text(before)
    assert job.done() == done
    assert call(*job.words, "--resume").status == 0
    assert job.output.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.de", "out", "prefixes", "whole"]


DEMANDING = ("--beam", 2, "--n-best", 2, "--scores", "--guard", "mark", "--guard-threshold", 0.3)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("seed", "kills", "count", "flags", "demanding"),
    [
        (1, 25, 2000, ("--beam", 2, "--scores"), False),
        (2, 8, 180, DEMANDING, True),
        (3, 8, 180, ALL_AT_ONCE, False),
        (4, 8, 180, ("--beam", 1, "--guard", "retry", "--guard-threshold", 0.2), True),
    ],
)
def test_killed_at_random_moments(
    call, trained, numbers, tmp_path, small_windows, seed, kills, count, flags, demanding
):
    """A signal of either kind, at any moment after the first line was done; with side files and the guard, too."""
    source, prefixes = tmp_path / "in.de", tmp_path / "prefixes"
    source.write_text("".join(text + "\n" for text, _ in numbers.pairs(count, seed)), encoding="utf-8")
    prefixes.write_text("".join("two\n" if number % 5 == 0 else "\n" for number in range(count)))
    if demanding:
        flags = (*flags, "--prefixes", prefixes)
    words = ("--input", source, "--output", tmp_path / "whole", "--threads", 1)
    assert call("translate", trained, *words, *flags).status == 0
    job, draw = Job(trained, source, tmp_path, *flags), random.Random(seed)
    stopped = 0
    for _ in range(kills):
        if job.output.exists():
            break
        job.start()
        before = job.done()
        deadline = time.monotonic() + PATIENCE
        while job.process.poll() is None and job.done() == before:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(draw.uniform(0.0, 0.5))
        status, said = job.stop_after(0, draw.choice([signal.SIGKILL, signal.SIGINT]))
        whole = job.output.exists() and not job.record.exists()  # its work done, it dies from SIGINT
        assert status in (-signal.SIGKILL, 130, 0) or (whole and status == -signal.SIGINT), said
        assert "Traceback" not in said
        stopped += not whole
    assert stopped >= 2
    if not job.output.exists():
        assert call(*job.words).status == 0
    assert job.output.read_bytes() == (tmp_path / "whole").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.de", "out", "prefixes", "whole"]


@pytest.mark.proof
def test_memory_does_not_grow_with_the_stream(trained):
    """A quarter of a million lines take as much memory as ten thousand."""
    program = (
        "import resource, sys; from multihead.cli.main import main\n"
        "status = main(sys.argv[1:])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)\n"
        "sys.exit(status)"
    )
    peaks = []
    for count in (10_000, 250_000):
        command = [sys.executable, "-c", program, "translate", str(trained), "--beam", "1", "--max-length", "2"]
        ended = subprocess.run(command, input=b"eins zwei\n" * count, capture_output=True, check=True)
        assert ended.stdout.count(b"\n") == count
        peaks.append(int(ended.stderr.splitlines()[-1]))
    assert peaks[1] < 1.1 * peaks[0]
