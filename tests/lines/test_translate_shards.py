"""Translating shards gives the bytes of one machine, for any text, however often the work stops."""

from __future__ import annotations

import itertools
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
import pytest

from multihead import Translator
from multihead.cli import engines
from multihead.errors import ConfigurationError
from multihead.lines import windows
from multihead.lines.translate_shards import Models, ShardedText, TranslatedShard, decides
from multihead.lines.windows import LineOptions
from multihead.text.languages import Languages
from multihead.translating.companions import Companions
from multihead.translating.request import TranslationRequest
from multihead.workers import InProcess

if TYPE_CHECKING:
    from tests.conftest import Numbers

LINES = ["eins zwei", "", "drei vier", "sieben acht neun " * 8, "null", "Xylophon", "zwei", "vier", "zehn zehn"]
PREFIXES = ["one", "", "three", "", "", "", "two", "", ""]
PHRASES = ["two", "", "four ||| five", "", "", "", "", "", "ten"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows, and so shards, of two lines."""
    monkeypatch.setattr(windows, "WINDOW", 2)


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    "flags",
    [
        ("--n-best", 2, "--beam", 3),
        ("--scores", "--guard", "retry", "--guard-threshold", 0.01),
        ("--sample", 2, "--seed", 3),
        ("--prefixes", "prefixes", "--phrases", "phrases", "--beam", 4),
        ("--max-source", 9, "--no-repeat", 3),
    ],
)
def test_the_bytes_of_one_machine(call: Any, trained: Path, tmp_path: Path, flags: tuple[object, ...]) -> None:
    """Including all rows, remarks and line numbers; the same text can be in several files."""
    files = {"prefixes": write(tmp_path / "prefixes", PREFIXES), "phrases": write(tmp_path / "phrases", PHRASES)}
    flags = tuple(files.get(str(word), word) for word in flags)
    text = write(tmp_path / "text", LINES)
    one = call("translate", trained, "--input", text, "--output", tmp_path / "one", "--threads", 1, *flags)
    assert one.status == 0, one.err
    write(tmp_path / "part-1", LINES[:3])
    write(tmp_path / "part-2", LINES[3:])
    for name, inputs in (("whole", ["--input", text]), ("parts", ["--input", tmp_path / "part-*"])):
        ended = call(
            "translate", trained, *inputs, "--output", tmp_path / name, "--engine", "local:1", "--threads", 1, *flags
        )
        assert ended.status == 0, ended.err
        assert (tmp_path / name).read_bytes() == (tmp_path / "one").read_bytes()
        assert ended.err == one.err


@pytest.mark.usefixtures("few")
def test_pairs_of_shards(call: Any, trained: Path, tmp_path: Path) -> None:
    text = write(tmp_path / "text", LINES)
    for command, flag in (("backtranslate", "--monolingual"), ("distill", "--source")):
        ended = []
        for engine in ((), ("--engine", "local:1")):
            output = tmp_path / f"{command}-{len(engine)}.tsv"
            ended.append(call(command, trained, flag, text, "--output", output, "--threads", 1, *engine))
            assert ended[-1].status == 0, ended[-1].err
        one, other = (tmp_path / f"{command}-{count}.tsv" for count in (0, 2))
        assert one.read_bytes() == other.read_bytes() != b""
        assert ended[0].err.replace(str(one), str(other)) == ended[1].err


@pytest.mark.usefixtures("few")
def test_rows_of_parquet_files_by_a_url(call: Any, trained: Path, tmp_path: Path) -> None:
    for package in ("pyarrow", "fsspec"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'multihead[ray]'")
    import fsspec
    import pyarrow as pa
    import pyarrow.parquet

    store = fsspec.filesystem("memory")
    for name, lines in (("1", LINES[:5]), ("2", LINES[5:])):
        table = pa.Table.from_pylist([{"translation": {"de": line, "en": "x"}} for line in lines])
        with store.open(f"/rows/{name}.parquet", "wb") as stream:
            pyarrow.parquet.write_table(table, stream, row_group_size=2)
    try:
        text = write(tmp_path / "text", LINES)
        assert not call("translate", trained, "--input", text, "--output", tmp_path / "one", "--threads", 1).status
        words = ("translate", trained, "--input", "memory://rows/*.parquet", "--engine", "local:1", "--output")
        bad = call(*words, "memory://out/text")
        assert bad.status == 2
        assert "several columns of strings: name one of these by --column: translation.de, translation.en" in bad.err
        ended = call(*words, "memory://out/text", "--column", "translation.de")
        assert ended.status == 0, ended.err
        assert store.cat("/out/text") == (tmp_path / "one").read_bytes()
        assert store.ls("/out", detail=False) == ["/out/text"]
        again = call(*words, "memory://out/text", "--column", "translation.de")
        assert again.status == 2
        assert "exists already" in again.err
    finally:
        store.rm("/", recursive=True)


@pytest.mark.usefixtures("few")
def test_stopped_and_resumed(call: Any, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, output = write(tmp_path / "text", LINES), tmp_path / "out"
    assert not call("translate", trained, "--input", text, "--output", tmp_path / "one", "--threads", 1).status
    computed: list[int] = []
    translate = TranslatedShard.__call__

    def stopped(self: TranslatedShard, shard: Any) -> Any:
        if len(computed) == 3:
            raise KeyboardInterrupt
        computed.append(shard.number)
        return translate(self, shard)

    words = ("translate", trained, "--input", text, "--output", output, "--engine", "local:1")
    assert "nothing of it has been done" in call(*words, "--resume").err
    with monkeypatch.context() as patch:
        patch.setattr(TranslatedShard, "__call__", stopped)
        ended = call(*words)
    assert ended.status == 130
    assert "stopped after 6 of 9 lines; run the same command again to continue" in ended.err
    assert "beam was " in (refused := call(*words, "--beam", 2)).err
    assert refused.status == 2
    write(tmp_path / "text", [*LINES[:-1], "eins"])
    assert "input was " in call(*words).err
    write(tmp_path / "text", LINES)
    with monkeypatch.context() as patch:
        patch.setattr(
            TranslatedShard, "__call__", lambda self, shard: computed.append(shard.number) or translate(self, shard)
        )
        ended = call(*words, "--resume")
    assert ended.status == 0, ended.err
    assert computed == [0, 1, 2, 3, 4]
    assert output.read_bytes() == (tmp_path / "one").read_bytes()


@pytest.mark.usefixtures("few")
def test_errors_name_the_line_of_the_whole_text(call: Any, trained: Path, tmp_path: Path) -> None:
    text = write(tmp_path / "text", LINES)
    words = ("translate", trained, "--engine", "local:1", "--output", tmp_path / "out", "--input")
    (tmp_path / "bad").write_bytes(b"eins\n" * 6 + b"z\xff\n")
    phrases = write(tmp_path / "phrases", ["", "", "", "", "", "", "", " ||| x", ""])
    short = write(tmp_path / "short", PHRASES[:-1])
    for given, said in (
        ((tmp_path / "bad",), f"{tmp_path / 'bad'}:7: 1 of 7 lines are not valid UTF-8 (byte 0xff at column 2)"),
        ((text, "--phrases", phrases), f"{phrases}:8: a phrase has no characters"),
        ((text, "--phrases", short), f"{short}: has 8 lines, but {text} has 9"),
        ((tmp_path / "none-*",), "none-*: no file has such a name"),
        ((text, "--engine", "cloud"), "--engine: expected local:N, with N processes, or ray, got 'cloud'"),
        ((text, "--engine", "local:0"), "--engine: expected local:N"),
    ):
        ended = call(*words, *given)
        assert ended.status == 2, ended.err
        assert said in ended.err
        assert ended.err.splitlines()[-1].startswith("multihead: ")
        assert not (tmp_path / "out").exists()
    for words, said in (
        (("--input", text), "--engine needs --input and --output"),
        (("--output", tmp_path / "out"), "--engine needs --input and --output"),
    ):
        ended = call("translate", trained, "--engine", "local:1", *words)
        assert (ended.status, said in ended.err) == (2, True)
    ended = call("translate", trained, "--input", text, "--input", text)
    assert (ended.status, "several files and URLs need an engine" in ended.err) == (2, True)


def test_another_model_in_another_process_is_noticed(trained: Path, tmp_path: Path) -> None:
    """As on a machine that has another model in a folder of the same name."""
    models = Models(trained, threads=1)
    translator = Translator.load(trained)
    options = LineOptions(TranslationRequest(translator.search_settings()))
    text = ShardedText.read([str(write(tmp_path / "text", LINES))])
    function = TranslatedShard(models, options, decides(models, translator, options), None, str(tmp_path / "out"))
    written = function(text.shards[0])
    assert (tmp_path / "out.shards" / written.name).read_text().splitlines() == translator.translate(LINES)
    other = replace(function, decided={**function.decided, "models": "another"})
    with pytest.raises(ConfigurationError, match="would not translate as the machine that began the work: models is"):
        other(text.shards[0])


def test_the_same_models_in_other_roles_are_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multihead.bundle.model_digest", lambda path: f"<{path}>")
    one, other = Path("one"), Path("other")
    every = [
        Companions(**{name: tuple(path for path, role in zip((one, other), roles, strict=True) if role == name)
                      for name in ("others", "reverse", "judge")})
        for roles in itertools.product(("others", "reverse", "judge"), repeat=2)
    ]  # fmt: skip
    every += [Companions(), Companions((one, other), "log-probabilities")]
    assert len({Models(Path("own"), each).identity for each in every}) == len(every)
    assert Models(Path("own")).identity != Models(Path("own"), languages=Languages("de", "en")).identity


def test_engines() -> None:
    assert isinstance(engines.parse_engine("local:1", None, "cpu"), InProcess)
    assert vars(engines.parse_engine("local:3", None, "cpu")) == {"count": 3, "threads": 1}
    assert vars(engines.parse_engine("local:3", 2, "cpu")) == {"count": 3, "threads": 2}


@pytest.mark.proof
def test_killed_and_resumed_in_processes(call: Any, numbers: Numbers, trained: Path, tmp_path: Path) -> None:
    """The parent is killed in the middle: its processes end too, and another engine finishes the work."""
    pairs = numbers.pairs(4 * windows.WINDOW, 7)
    text, output = write(tmp_path / "text", [source for source, _ in pairs]), tmp_path / "out"
    shards = tmp_path / "out.shards"
    words = ["translate", str(trained), "--input", str(text), "--output", str(output), "--beam", "1"]
    job = processes.starter()([*words, "--engine", "local:2"], tmp_path / "stderr")
    deadline = time.monotonic() + 120

    def finished() -> list[str]:
        return sorted(path.name for path in shards.glob("0*-*"))

    while not finished():
        assert job.exitcode is None, (tmp_path / "stderr").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert job.pid is not None
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    os.kill(job.pid, signal.SIGKILL)
    job.join()
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    left = finished()
    assert 0 < len(left) < 4
    ended = call(*words, "--engine", "local:1")
    assert ended.status == 0, ended.err
    expected = call("translate", trained, "--threads", 1, "--beam", 1, given=text.read_bytes())
    assert output.read_bytes() == expected.out
