"""`multihead bpe`: exactly reversible, equal to the Python calls and to the package subword-nmt."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from subword_nmt import apply_bpe, learn_bpe

from multihead.cli import main as main_module
from multihead.cli import streams
from multihead.cli.bpe import bpe
from multihead.data.text_files import split_lines
from multihead.errors import DataError
from multihead.text.segment import Segmenter
from multihead.text.tokenizer import Tokenizer
from multihead.text.vocabulary import MARK

TEXT = [
    "A man in an orange hat, starring at something.",
    "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.",
    "Zwei junge weiße Männer sind im Freien, um 12:30 Uhr.",
    "我们在北京吃饭。 tab\ttab no\u00a0break",
] * 3
HOSTILE = [
    "A man, ein Mann.",
    "",
    "   ",
    "  two   runs  of spaces  ",
    f"{MARK} {MARK}{MARK}word{MARK} ",
    "\t tab\t\t",
    " \u00a0no-break\u00a0 ",
    "\r a\rb \r ",
    "line\u2028paragraph\u2029next\x85form\x0b\x0c\x1c",
    "nul\0l </s> <unk> <0x41> <0x0A> <0xE2>",
    "a@@ b@@",
    "👩‍👩‍👧‍👦 e\u0301 \ufeff 我们",
]
GIVEN = "".join(f"{line}\n" for line in HOSTILE).encode()
PLAIN = "".join(f"{line}\n" for line in TEXT).encode()
PROGRAM = (
    "from multihead.cli import main\nfrom multihead.cli.bpe import bpe\nmain.multihead.add_command(bpe)\nmain.entry()\n"
)

Run = Callable[..., SimpleNamespace]


@pytest.fixture
def run(call: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs ``multihead bpe`` in this process."""
    monkeypatch.setitem(main_module.multihead.commands, "bpe", bpe)
    return lambda *words, given=b"": call("bpe", *words, given=given)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer and codes, and the text both were learned from."""
    folder = tmp_path_factory.mktemp("bpe")
    (folder / "text").write_bytes(PLAIN)
    Tokenizer.learn(TEXT, 400).save(folder / "tokenizer.json")
    written = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):
        learn_bpe.learn_bpe([f"{line}\n" for line in TEXT], written, 100)
    (folder / "codes").write_text(written.getvalue(), encoding="utf-8", newline="\n")
    return folder


def lines(out: bytes) -> list[str]:
    assert out.endswith(b"\n")
    return out.decode().split("\n")[:-1]


# ------------------------------------------------------------------------------------------ tokenizer.json


@pytest.mark.parametrize("options", [[], ["--ids"], ["--dropout", 0.3], ["--dropout", 1, "--ids"]])
def test_what_is_applied_is_undone_exactly(run: Run, made: Path, options: list[object]) -> None:
    applied = run("apply", made / "tokenizer.json", *options, given=GIVEN)
    assert (applied.status, applied.err) == (0, "")
    assert len(lines(applied.out)) == len(HOSTILE)
    undone = run("undo", *([made / "tokenizer.json", "--ids"] if "--ids" in options else []), given=applied.out)
    assert undone.out == GIVEN


def test_one_carriage_return_belongs_to_the_line_end(run: Run, made: Path) -> None:
    applied = run("apply", made / "tokenizer.json", given=b"a\r\r\n\r\r\nb\r\n\r\nc")
    assert b"\r" not in applied.out
    assert run("undo", given=applied.out).out == b"a\r\n\r\nb\n\nc\n"


def test_apply_is_the_call(run: Run, made: Path) -> None:
    tokenizer = Tokenizer.load(made / "tokenizer.json")
    ids = tokenizer.encode_batch(HOSTILE)
    shown = [line.split() for line in lines(run("apply", made / "tokenizer.json", "--ids", given=GIVEN).out)]
    assert [[int(word) for word in row] for row in shown] == ids
    pieces = lines(run("apply", made / "tokenizer.json", given=PLAIN).out)
    assert [line.split(" ") for line in pieces] == [
        [tokenizer.parts.vocabulary[i] for i in row] for row in tokenizer.encode_batch(TEXT)
    ]


def test_dropout_is_seeded_by_line(run: Run, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.load(made / "tokenizer.json")
    words = ("apply", made / "tokenizer.json", "--ids", "--dropout", 0.2)
    once, other = run(*words, given=PLAIN).out, run(*words, "--seed", 2, given=PLAIN).out
    numbers = range(1, len(TEXT) + 1)
    expected = Segmenter(tokenizer, 0.2, 1).segment(tokenizer.encode_batch(TEXT), numbers, 0, 0)
    assert [[int(word) for word in line.split()] for line in lines(once)] == expected
    assert once != other
    for name in ("tokenizer.json", "codes"):
        words = ("apply", made / name, "--dropout", 0.2)
        with monkeypatch.context() as parts:
            whole = run(*words, given=PLAIN).out
            parts.setattr(streams, "_BLOCK", 7)
            assert run(*words, given=PLAIN).out == whole
        assert run(*words, "--seed", 2, given=PLAIN).out != whole


def test_learn_is_the_call(run: Run, made: Path, tmp_path: Path) -> None:
    output = tmp_path / "new.json"
    options = ["--vocab-size", 3500, "--coverage", 0.99, "--min-frequency", 3, "--pad", "<pad>"]
    ended = run("learn", made / "text", "-o", output, *options)
    assert (ended.status, ended.out) == (0, b"")
    assert ended.err == f"{output}: {len(Tokenizer.load(output))} entries of 3,500 asked for: the text gives no more\n"
    learned = Tokenizer.load(output)
    assert learned.specials.strings == ("<pad>", "<unk>", "<s>", "</s>")
    assert (
        learned.digest == Tokenizer.learn(TEXT, 3500, coverage=0.99, min_frequency=3, specials=learned.specials).digest
    )


def test_learn_names_the_special_symbols(run: Run, made: Path, tmp_path: Path) -> None:
    names = ("--pad", "<p>", "--unk", "<u>", "--bos", "<b>", "--eos", "<e>")
    for count in range(0, len(names), 2):
        output = tmp_path / str(count)
        assert run("learn", made / "text", "-o", output, "--vocab-size", 400, *names[count : count + 2]).status == 0
        expected = ["<blank>", "<unk>", "<s>", "</s>"]
        expected[count // 2] = names[count + 1]
        assert Tokenizer.load(output).specials.strings == tuple(expected)


def test_learn_reads_several_files_or_standard_input(run: Run, made: Path, tmp_path: Path) -> None:
    assert run("learn", made / "text", made / "text", "-o", tmp_path / "files", "--vocab-size", 400).status == 0
    assert run("learn", "-o", tmp_path / "stdin", "--vocab-size", 400, given=PLAIN * 2).status == 0
    assert (tmp_path / "files").read_bytes() == (tmp_path / "stdin").read_bytes()


def test_the_tokenizers_of_models_and_runs(run: Run, made: Path, tmp_path: Path) -> None:
    other = Tokenizer.learn(TEXT[1:], 320)
    (tmp_path / "run" / "best").mkdir(parents=True)
    (tmp_path / "begun" / "data").mkdir(parents=True)
    shutil.copy(made / "tokenizer.json", tmp_path / "run" / "best" / "tokenizer.json")
    shutil.copy(made / "tokenizer.json", tmp_path / "begun" / "data" / "source.tokenizer.json")
    other.save(tmp_path / "begun" / "data" / "target.tokenizer.json")
    expected = run("apply", made / "tokenizer.json", given=GIVEN).out
    for folder in ("run", "run/best", "begun"):
        assert run("apply", tmp_path / folder, given=GIVEN).out == expected
    target = run("apply", tmp_path / "begun", "--side", "target", "--ids", given=GIVEN).out
    assert [[int(i) for i in line.split()] for line in lines(target)] == other.encode_batch(HOSTILE)
    assert run("undo", tmp_path / "begun", "--side", "target", "--ids", given=target).out == GIVEN


# ------------------------------------------------------------------------------------------ subword-nmt


def test_codes_are_learned_as_by_the_package(run: Run, made: Path, tmp_path: Path) -> None:
    for name, flag in (("one", "-s"), ("two", "--merges")):
        ended = run("learn", made / "text", "-o", tmp_path / name, "--format", "subword-nmt", flag, 100)
        assert ended.status == 0
        assert (tmp_path / name).read_bytes() == (made / "codes").read_bytes()
    ended = run("learn", made / "text", "-o", tmp_path / "all", "--format", "subword-nmt", "--min-frequency", 4)
    assert "of 10,000 asked for: no other pair occurs 4 times" in ended.err


def test_codes_are_applied_as_by_the_package(run: Run, made: Path, tmp_path: Path) -> None:
    (tmp_path / "units").write_text("an@@ 5\nM@@ 4\nMann 1\nman 7\n", encoding="utf-8")
    everything = {
        "separator": (["--separator", "￭"], {"separator": "￭"}),
        "merges": (["-m", 10], {"merges": 10}),
        "glossaries": (["--glossaries", "orange", "--glossaries", "[MZ]"], {"glossaries": ["orange", "[MZ]"]}),
        "vocabulary": (
            ["--vocabulary", tmp_path / "units", "--vocabulary-threshold", 4],
            {"vocab": {"an@@", "M@@", "man"}},
        ),
        "nothing": ([], {}),
    }
    text = [*TEXT, *HOSTILE]
    seen = set()
    for flags, options in everything.values():
        with (made / "codes").open(encoding="utf-8", newline="\n") as codes:
            theirs = apply_bpe.BPE(codes, **options)
        ended = run("apply", made / "codes", *flags, given=PLAIN + GIVEN)
        assert ended.status == 0
        assert lines(ended.out) == [theirs.process_line(line) for line in text]
        seen.add(ended.out)
    assert len(seen) == len(everything)


def test_codes_are_undone(run: Run, made: Path) -> None:
    for flags in (["--separator", "￭"], []):
        cut = run("apply", made / "codes", *flags, given=PLAIN).out
        assert run("undo", made / "codes", *flags, given=cut).out == PLAIN
        assert run("undo", "--format", "subword-nmt", *flags, given=cut).out == PLAIN


# ------------------------------------------------------------------------------------------ streams


@settings(max_examples=100)
@given(text=st.text(st.sampled_from("aä\r\n\n"), max_size=30), sizes=st.lists(st.integers(1, 9), min_size=1))
def test_lines_do_not_depend_on_how_they_arrive(text: str, sizes: list[int]) -> None:
    class Slow(io.BytesIO):
        """Returns a few bytes at a time."""

        reads = 0

        def read1(self, size: int | None = -1, /) -> bytes:
            self.reads += 1
            return super().read1(sizes[self.reads % len(sizes)])

    fault: list[DataError] = []
    groups = list(streams.read_arriving(Slow(text.encode()), fault))
    expected = [raw.decode() for raw in split_lines(io.BytesIO(text.encode()))]
    assert [line for group in groups for line in group] == expected
    assert all(groups)
    assert not fault


def test_a_line_is_answered_before_the_next_is_there(made: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, "bpe", "apply", str(made / "tokenizer.json"), "--ids"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in ("A man", "", "ein Mann"):
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            answer = process.stdout.readline().decode()
            assert len(answer.split()) == len(Tokenizer.load(made / "tokenizer.json").encode(line))
        process.stdin.close()
        assert process.wait() == 0


def test_nothing_needs_torch(made: Path, tmp_path: Path) -> None:
    program = (
        "import io, sys\n"
        "from multihead.cli.bpe import bpe\n"
        "folder, new = sys.argv[1:]\n"
        "for words in (['apply', folder], ['apply', folder, '--dropout', '0.1'],\n"
        "    ['apply', folder + '/codes'], ['undo'],\n"
        "    ['learn', folder + '/text', '-o', new + '/a'],\n"
        "    ['learn', folder + '/text', '-o', new + '/b', '--format', 'subword-nmt']):\n"
        "    sys.stdin = io.TextIOWrapper(io.BytesIO(b'A man\\n'))\n"
        "    bpe(words, standalone_mode=False)\n"
        "assert 'torch' not in sys.modules\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(made), str(tmp_path)], capture_output=True, check=False, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("\n") == 4


# ------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize("name", ["tokenizer.json", "codes"])
def test_what_came_before_a_bad_line_is_written(run: Run, made: Path, name: str) -> None:
    ended = run("apply", made / name, given=b"A man\n\nein \xff Mann\nA man\n")
    assert ended.status == 2
    assert ended.out == run("apply", made / name, given=b"A man\n\n").out
    assert ended.err.startswith("multihead: standard input:3: not valid UTF-8")


WRONG = [
    (["apply", "nowhere"], "nowhere: cannot be opened (No such file"),
    (["apply", "{}"], "there is no tokenizer.json or source.tokenizer.json in it"),
    (["apply", "{}/text"], "neither a tokenizer.json nor codes of subword-nmt"),
    (["apply", "{}/other.json"], "other.json: this tokenizer.json was not written by multihead"),
    (["apply", "{}/broken.codes"], "broken.codes:2: expected two symbols"),
    (["apply", "{}/tokenizer.json", "--separator", "@"], "--separator: applies to codes of subword-nmt only"),
    (["apply", "{}/tokenizer.json", "--glossaries", "a"], "--glossaries: applies to codes"),
    (["apply", "{}/tokenizer.json", "--dropout", "2"], "dropout is 2.0"),
    (["apply", "{}/codes", "--dropout", "2"], "dropout is 2.0"),
    (["apply", "{}/codes", "--ids"], "--ids: applies to tokenizer.json only"),
    (["apply", "{}/codes", "--vocabulary-threshold", "3"], "expected --vocabulary FILE too"),
    (["apply", "{}/codes", "--vocabulary", "{}/text"], "text:1: expected a unit, a space and its frequency"),
    (["apply", "{}/codes", "--glossaries", "("], "is not a regular expression"),
    (["undo", "--ids"], "--ids: expected TOKENIZER too"),
    (["undo", "--side", "target"], "--side: expected TOKENIZER too"),
    (["undo", "{}/tokenizer.json", "--ids", "--side", "target"], "tokenizer.json is a file, with one tokenizer"),
    (["apply", "{}/tokenizer.json", "--side", "target"], "tokenizer.json is a file, with one tokenizer"),
    (["apply", "{}/codes", "--side", "source"], "codes is a file, with one tokenizer"),
    (["undo", "{}/tokenizer.json", "--ids"], "standard input:1: expected ids with spaces between them, got 'A man'"),
    (["undo", "{}/codes", "--format", "subword-nmt"], "--format: TOKENIZER already determines the format"),
    (["undo", "--format", "subword-nmt", "--separator", ""], "--separator: expected some characters"),
    (["undo", "--separator", "@@"], "--separator: applies to codes"),
    (["learn", "-o", "{}/codes"], "codes: exists already; nothing was overwritten"),
    (["learn", "-o", "{}/no/where"], "there is no folder"),
    (["learn", "nowhere", "-o", "{}/new"], "nowhere: there is no such file"),
    (["learn", "-o", "{}/new", "--vocab-size", "100"], "vocab_size is 100"),
    (["learn", "-o", "{}/new", "--symbols", "100"], "--symbols: applies to codes"),
    (["learn", "-o", "{}/new", "--eos", "x"], "special symbol 'x'"),
    (["learn", "-o", "{}/new", "--format", "subword-nmt", "--vocab-size", "9"], "--vocab-size: applies to tok"),
    (["learn", "-o", "{}/new", "--format", "subword-nmt", "-s", "0"], "merges is 0"),
]


@pytest.mark.parametrize(("words", "said"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_said_in_a_line_and_nothing_is_left(
    run: Run, made: Path, tmp_path: Path, words: list[str], said: str
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(made, folder)
    (folder / "other.json").write_text(json.dumps({"model": {}}), encoding="utf-8")
    (folder / "broken.codes").write_text("#version: 0.2\none\n", encoding="utf-8")
    if words[:2] == ["apply", "{}"]:
        (folder / "tokenizer.json").unlink()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    ended = run(*(word.replace("{}", str(folder)) for word in words), given=b"A man\n")
    assert ended.status == 2
    assert ended.err.startswith("multihead: ")
    assert ended.err.count("\n") == 1
    assert said in ended.err
    assert ended.out == b""
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_failure_to_write_leaves_no_file(
    run: Run, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    for kind in ("multihead", "subword-nmt"):
        ended = run("learn", made / "text", "-o", tmp_path / "new", "--format", kind)
        assert ended.status == 1
        assert "o space left on" in ended.err
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["--help"], ["learn", "-h"], ["apply", "--help"], ["undo", "-h"]])
def test_help(run: Run, words: list[str]) -> None:
    ended = run(*words)
    assert ended.status == 0
    assert ended.text.startswith("Usage: multihead bpe")


def test_user_symbols_stay_whole(run: Run, tmp_path: Path) -> None:
    learned = run("learn", "--user-symbols", "<b> ⟨n⟩", "--vocab-size", 400, "-o", tmp_path / "t.json", given=PLAIN)
    assert learned.status == 0, learned.err
    given = "a<b>c ⟨n⟩12\n<b>\n".encode()
    cut = run("apply", tmp_path / "t.json", "--dropout", 0.5, given=given)
    assert [line.split().count("<b>") for line in cut.text.splitlines()] == [1, 1]
    assert run("undo", given=cut.out).out == given
    ended = run("learn", "--user-symbols", "a a", "-o", tmp_path / "other.json", given=PLAIN)
    assert (ended.status, "'a' is given twice" in ended.err) == (2, True)
    ended = run("learn", "--user-symbols", "a", "--format", "subword-nmt", "-o", tmp_path / "codes", given=PLAIN)
    assert (ended.status, "--user-symbols: applies to tokenizer.json only" in ended.err) == (2, True)
