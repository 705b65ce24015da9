"""Differences of systems and devices: fallbacks equal what they replace; everything works on a simulated Windows."""

from __future__ import annotations

import ast
import asyncio
import ctypes
import errno
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import pytest

from multihead import files, platforms, sealed, work_folder
from multihead.errors import ConfigurationError, FormatError, SurroundingsError
from multihead.lines.growing_file import growing_file
from multihead.planning.corpus_settings import parse_corpus
from multihead.serving.connections import connection_limits

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "multihead"
on_linux = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the Windows of the tests runs on Linux")


@pytest.fixture
def without_posix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Folders cannot be opened, and what is open cannot be renamed."""
    for name in ("FOLDERS_OPEN", "OPENS_WITHIN", "RENAMES_OPEN"):
        monkeypatch.setattr(platforms, name, False)
    monkeypatch.setattr(platforms, "TO_SYNC", os.O_RDWR)
    monkeypatch.setattr(platforms, "_SHORTEST", 0.001)
    monkeypatch.setattr(platforms, "PATIENCE", 0.2)
    opened = os.open

    def refused(path: Any, *rest: Any, **options: Any) -> int:
        if Path(path).is_dir():
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *rest, **options)

    monkeypatch.setattr(os, "open", refused)
    monkeypatch.setattr(shutil, "_use_fd_functions", False)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))


@pytest.fixture
def with_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of Windows's locks instead of POSIX's."""
    if platforms.fcntl is None:
        return
    import windows

    monkeypatch.setattr(platforms, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", windows._lock_module())


# --------------------------------------------------------------------------- everything, on a Windows


def test_everyday_work_is_the_same_on_windows(tmp_path: Path) -> None:
    """A training that is stopped and resumed, a file, a stream and a server; equal to uninterrupted training here."""
    both = ["--windows"] if Path("/proc/self/maps").exists() else []
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests" / "support")))
    words = [sys.executable, str(ROOT / "tests" / "support" / "everyday.py"), str(tmp_path), *both]
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(words, capture_output=True, env=environment, text=True, encoding="utf-8", check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    done, *here = map(json.loads, ended.stdout.splitlines())
    assert {"run/best/model.safetensors", "run/log.jsonl", "text.en"} <= done["files"].keys()
    assert here == [done["files"]] * len(both)
    assert done["written"] == done["streamed"]
    first, empty, *_ = done["written"].split("\n")
    assert done["written"].count("\n") == 4
    assert (done["served"], empty) == (first, "")
    if both:
        assert list((tmp_path / "multihead-locks").iterdir())  # folders were locked


@on_linux
def test_the_windows_of_tests_denies(tmp_path: Path) -> None:
    """The simulation refuses a careless program: each of these statements fails there and succeeds on Linux."""
    program = """
import mmap, os, sys, windows
from pathlib import Path
windows.install()
folder = Path(sys.argv[1])
(folder / "file").write_text("one\\n", encoding="utf-8")
assert (folder / "file").read_bytes() == b"one\\r\\n"
(folder / "other").write_bytes(b"x")
mapped = open(folder / "other", "r+b")
room = mmap.mmap(mapped.fileno(), 0)
mapped.close()
opened = open(folder / "file", "rb")
def tried(call):
    try:
        call()
    except OSError as error:
        return type(error).__name__
print(*map(tried, [
    lambda: os.open(folder, os.O_RDONLY),
    lambda: os.replace(folder / "other", folder / "file"),
    lambda: os.replace(folder / "other", folder / "third"),
    lambda: (folder / "file").unlink(),
    lambda: folder.rename(folder.with_name("elsewhere")),
    lambda: os.fsync(opened.fileno()),
    lambda: (folder / "a:b").write_bytes(b""),
    lambda: os.rename(folder / "other", folder / "file"),
    lambda: open(folder),
]))
"""
    (tmp_path / "folder").mkdir()
    words = [sys.executable, "-c", program, str(tmp_path / "folder")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support")}
    said = subprocess.run(words, capture_output=True, env=environment, text=True, check=True).stdout.split()
    denied = "PermissionError"
    assert said == [denied] * 5 + ["OSError", "OSError", "FileExistsError", denied]


# --------------------------------------------------------------------------- who may know a system

SYSTEMS = {
    *("name", "uname", "sched_getaffinity", "sysconf", "geteuid", "getuid", "getpgid", "getloadavg", "statvfs", "nice"),
    *("fork", "register_at_fork", "killpg", "setsid", "major", "minor", "mkfifo", "pread", "pwrite"),
    *("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"),
}
"""Names in `os` that some system lacks, or that name it."""
OTHERS = {"sys.platform", "loop.add_signal_handler", "loop.add_reader"}
GUARDED = {("configuration.py", "os.sysconf"), ("files.py", "os.major"), ("files.py", "os.minor")}
"""Calls that are not reached, or whose absence is handled, on systems without them."""
APART = ("kernels/native/", "engine/native/", "diagnosis/machine.py")
"""Compiled code, which has its own conditions, and the report on a machine, which shows what the system reports."""


def nodes(words: str) -> Iterator[tuple[str, ast.AST]]:
    """The syntax of the other modules in which some words occur, a regular expression; each node with its file."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name, text = path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")
        if name != "platforms.py" and not name.startswith(APART) and re.search(words, text):
            yield from ((name, node) for node in ast.walk(ast.parse(text)))


def dotted(node: ast.AST) -> str:
    """The dotted name of a node, such as ``a.b``; empty if it has none."""
    whole = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    return f"{node.value.id}.{node.attr}" if whole else ""  # type: ignore[attr-defined]


def test_no_other_module_knows_a_system() -> None:
    forbidden = OTHERS | {f"os.{name}" for name in SYSTEMS}
    allowed = ("signal.SIGINT", "signal.SIGTERM", "signal.SIG_DFL", "signal.SIG_IGN")
    missing = {"fcntl", "resource", "msvcrt", "pwd", "grp"}
    found = set()
    for name, node in nodes(
        "|".join(map(re.escape, (*forbidden, "signal.SIG", *(f"import {one}" for one in missing))))
    ):
        if isinstance(node, ast.Import):
            found |= {(name, alias.name) for alias in node.names if alias.name in missing}
        place = dotted(node)
        if place in forbidden or (place.startswith("signal.SIG") and place not in allowed):
            found.add((name, place))
    assert found == GUARDED


def test_text_is_written_with_the_same_bytes_everywhere() -> None:
    """All code that writes text states its encoding and its line ends."""
    careless, seen = [], 0
    for name, node in nodes(r"\.write_text\(|open\(\"[wax]"):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        text = node.func.attr == "write_text"
        if node.func.attr == "open" and node.args and isinstance(mode := node.args[0], ast.Constant):
            text = isinstance(mode.value, str) and mode.value in ("w", "a", "x", "wt", "at", "xt")
        seen += text
        if text and not {"encoding", "newline"} <= {keyword.arg for keyword in node.keywords}:
            careless.append(f"{name}:{node.lineno}")
    assert careless == []
    assert seen > 10


# --------------------------------------------------------------------------- files


def test_files_appear_where_folders_cannot_be_opened(without_posix: None, tmp_path: Path) -> None:
    path = tmp_path / "file"
    for text in ("one", "two"):
        files.write_text(path, text)
        assert path.read_text(encoding="utf-8") == text
    for text in ("one", "two"):
        with files.atomic_folder(tmp_path / "folder") as draft:
            (draft / "inner").mkdir()
            (draft / "inner" / "file").write_text(text, encoding="utf-8")
        assert (tmp_path / "folder" / "inner" / "file").read_text(encoding="utf-8") == text
    assert sorted(found.name for found in tmp_path.iterdir()) == ["file", "folder", "temporary"]


def test_processes_are_asked_for_nowhere_else_than_on_linux(without_posix: None, monkeypatch: Any) -> None:
    """Windows would stop a process that is sent signal 0."""
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a signal was sent"))
    assert platforms.process_place() == ""
    draft = files._draft_of(Path("model"))
    assert draft.name == f".model.unfinished-{os.getpid()}"
    with pytest.raises(FileNotFoundError):
        files._is_abandoned(draft)


def test_what_is_open_elsewhere_is_waited_for(without_posix: None, tmp_path: Path, monkeypatch: Any) -> None:
    """A reader that closes in time causes no error; another one causes a one-line error, and nothing changes."""
    files.write_text(tmp_path / "file", "before")
    moved, refusals = os.replace, [3]

    def replace(source: Any, target: Any) -> None:
        if refusals[0]:
            refusals[0] -= 1
            raise PermissionError(errno.EACCES, "The process cannot access the file")
        moved(source, target)

    monkeypatch.setattr(os, "replace", replace)
    files.write_text(tmp_path / "file", "after")
    assert (refusals, (tmp_path / "file").read_text(encoding="utf-8")) == ([0], "after")
    refusals[0] = 1_000_000
    with pytest.raises(SurroundingsError, match=r"file: cannot be written: permission denied"):
        files.write_text(tmp_path / "file", "never")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "after"
    assert sorted(found.name for found in tmp_path.iterdir()) == ["file", "temporary"]


def test_a_folder_that_is_replaced_is_read_in_one_state(without_posix: None, tmp_path: Path, monkeypatch: Any) -> None:
    """Also without descriptors of folders: a folder that is replaced while it is opened is opened again."""

    def write(text: str) -> None:
        with files.atomic_folder(tmp_path / "model") as draft:
            for name in ("a", "b"):
                files.write_chunks(draft / name, [text.encode()])
            sealed.seal(draft)

    write("one")
    opened, swapped = sealed.OpenFolder._open, []

    def swap_once(self: sealed.OpenFolder, name: str) -> int:
        found = opened(self, name)
        if name == "a" and not swapped:
            swapped.append(True)
            write("two")
        return found

    monkeypatch.setattr(sealed.OpenFolder, "_open", swap_once)
    with sealed.open_folder(tmp_path / "model", "copy it again") as folder:
        assert {folder.read_text(name) for name in ("a", "b")} == {"two"}
        assert "folder" not in folder
    assert swapped


def test_folders_are_said_to_be_folders(without_posix: None, tmp_path: Path) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    with pytest.raises(FormatError, match="is a folder, not a regular file"):
        sealed.read_file(tmp_path / "folder")
    with sealed.open_folder(tmp_path / "folder", "") as folder:
        assert "inner" not in folder
        with pytest.raises(FormatError, match="inner: cannot be read: Is a directory"):
            folder.read_bytes("inner")


def test_a_drive_before_a_path(without_posix: None) -> None:
    assert platforms.path_of_url("file:///C:/corpus/a.txt") == Path("C:/corpus/a.txt")
    assert platforms.path_of_url("file:///corpus/a.txt") == Path("/corpus/a.txt")


def test_a_drive_may_have_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If fsync does not flush the drive's cache, the other call is used; if that fails, fsync."""
    asked: list[int] = []
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    (tmp_path / "file").write_bytes(b"x")
    for fails in (False, True):

        def control(descriptor: int, command: int, fails: bool = fails) -> None:
            asked.append(command)
            if fails:
                raise OSError(errno.ENOTSUP, "Operation not supported")

        monkeypatch.setattr(platforms, "fcntl", SimpleNamespace(F_FULLFSYNC=51, fcntl=control))
        monkeypatch.setattr(platforms, "HAS_FULL_SYNC", True)
        files.fsync(tmp_path / "file")
        assert len(synced) == fails
    assert asked == [51, 51]


# --------------------------------------------------------------------------- locks


def test_a_lock_stands_for_a_folder(without_posix: None, with_locks: None, tmp_path: Path) -> None:
    with work_folder.locked(tmp_path / "run"):
        for same in (tmp_path / "run", tmp_path / "temporary" / ".." / "run"):
            with (
                pytest.raises(ConfigurationError, match="run: another process is working in it"),
                work_folder.locked(same),
            ):
                pass
        with work_folder.locked(tmp_path / "other"):
            pass
    with work_folder.locked(tmp_path / "run"):
        pass
    assert {found.name for found in tmp_path.iterdir()} == {"run", "other", "temporary"}


def test_a_growing_file_is_closed_before_it_is_renamed(without_posix: None, with_locks: None, tmp_path: Path) -> None:
    with growing_file(tmp_path / "file", {}) as file:
        assert file is not None
        file.append(["a"], 1)
        with (
            pytest.raises(ConfigurationError, match="another process is writing it"),
            growing_file(tmp_path / "file", {}),
        ):
            pass
        file.finish()
        assert file._stream.closed
    assert {found.name for found in tmp_path.iterdir()} == {"file", "temporary"}


def test_a_lock_that_has_no_place(without_posix: None, with_locks: None, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "temporary")
    with (
        pytest.raises(SurroundingsError, match="run: cannot be locked: no temporary file"),
        work_folder.locked(tmp_path / "run"),
    ):
        pass
    assert list((tmp_path / "run").iterdir()) == []


# --------------------------------------------------------------------------- signals and streams


def test_signals_reach_a_loop_that_handles_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function runs in the loop, soon even if nothing else happens there, and the old handler is restored."""
    before = signal.getsignal(signal.SIGTERM)

    async def wait() -> tuple[bool, float]:
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()

        refuse = MethodType(asyncio.AbstractEventLoop.add_signal_handler, loop)
        monkeypatch.setattr(loop, "add_signal_handler", refuse)
        inside: list[bool] = []

        def handle() -> None:
            inside.append(asyncio.get_running_loop() is loop)
            arrived.set()

        with platforms.handle_signals(loop, {signal.SIGTERM: handle}):
            started = time.monotonic()
            threading.Timer(0.05, signal.raise_signal, [signal.SIGTERM]).start()
            await asyncio.wait_for(arrived.wait(), 20)
            return inside == [True], time.monotonic() - started

    in_loop, seconds = asyncio.run(wait())
    assert in_loop
    assert seconds < 10
    assert signal.getsignal(signal.SIGTERM) is before


@on_linux
def test_a_process_starts_without_interrupts() -> None:
    """The signal is sent before the program can have started."""
    program = [sys.executable, "-c", "print(input())"]
    with platforms.without_interrupts() as flags:
        process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, creationflags=flags)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(b"here\n")
    assert (process.returncode, out) == (0, b"here\n")


@pytest.mark.parametrize(("encoding", "end"), [("cp1252", "\r\n"), ("latin-1", None), ("ascii", None)])
def test_streams_take_every_script(monkeypatch: pytest.MonkeyPatch, encoding: str, end: str | None) -> None:
    out, error = io.BytesIO(), io.BytesIO()
    for name, raw, errors in (("stdout", out, "strict"), ("stderr", error, "backslashreplace")):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(raw, encoding=encoding, errors=errors, newline=end))
    platforms.use_utf8_streams()
    for stream in (sys.stdout, sys.stderr):
        print("汉字 Ελλάς", file=stream, flush=True)
    assert out.getvalue() == error.getvalue() == "汉字 Ελλάς\n".encode()
    assert sys.stderr.errors == "backslashreplace"
    print("m\udcff", flush=True)  # the name of a file that is not UTF-8
    assert out.getvalue().endswith(b"\nm\xff\n")


def test_a_closed_pipe_has_two_names(monkeypatch: pytest.MonkeyPatch) -> None:
    invalid, broken = OSError(errno.EINVAL, "Invalid argument"), BrokenPipeError(errno.EPIPE, "Broken pipe")
    monkeypatch.setattr(platforms, "FOLDERS_OPEN", True)
    assert [platforms.is_closed_pipe(error) for error in (broken, invalid)] == [True, False]
    monkeypatch.setattr(platforms, "FOLDERS_OPEN", False)
    assert [platforms.is_closed_pipe(error) for error in (broken, invalid, OSError(errno.ENOSPC, ""))] == [
        True,
        True,
        False,
    ]


# --------------------------------------------------------------------------- command lines

WORDS = ["train.de", r"C:\corpus\a b.de", "it's", "a&b", "b\\", "a c\\", "汉"]


def test_paths_with_backslashes_are_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "ESCAPES", False)
    text = r"""C:\data\a.de "C:\my data\a.en" weight=0.5"""
    assert platforms.split_words(text) == [r"C:\data\a.de", r"C:\my data\a.en", "weight=0.5"]
    corpus = {"source": r"C:\data\a.de", "target": r"C:\my data\a.en", "weight": "0.5"}
    assert parse_corpus(text) == corpus
    with pytest.raises(ValueError, match="No closing quotation"):
        platforms.split_words('"a')


def test_words_are_split_as_in_a_shell_of_posix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "ESCAPES", True)
    for text in (shlex.join(WORDS), r"a\ b 'c d' \"e\" # f", "汉 x=y;z"):
        assert platforms.split_words(text) == shlex.split(text)
    assert platforms.join_words(WORDS) == shlex.join(WORDS)


def test_commands_are_shown_as_windows_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program gets these words; `subprocess` writes such a line, but leaves signs of the console bare."""
    monkeypatch.setattr(platforms, "ESCAPES", False)
    assert platforms.join_words(WORDS) == r"""train.de "C:\corpus\a b.de" "it's" "a&b" b\ "a c\\" 汉"""
    for word in ("a b", "a\\ b\\\\", 'a "b\\" c', "", '\\" '):
        assert platforms.join_words([word]) == subprocess.list2cmdline([word])


# --------------------------------------------------------------------------- limits


def test_limits_that_a_system_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    platforms.raise_open_file_limit()
    said: list[str] = []
    assert connection_limits(5_000, said.append).most == 5_000
    assert said == []
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert platforms.usable_cores() == (os.cpu_count() or 1)
    monkeypatch.delattr(os, "geteuid", raising=False)
    assert not platforms.is_administrator()


def test_a_limit_that_is_refused_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has no limit by name, but refuses to have none."""
    now = [256, -1]

    def change(_: int, limits: tuple[int, int]) -> None:
        if limits[0] == -1:
            raise ValueError("current limit exceeds maximum limit")
        now[:] = limits

    fake = SimpleNamespace(RLIMIT_NOFILE=8, RLIM_INFINITY=-1, getrlimit=lambda _: tuple(now), setrlimit=change)
    monkeypatch.setitem(sys.modules, "resource", fake)
    platforms.raise_open_file_limit()
    assert now == [10_240, -1]
    platforms.raise_open_file_limit()
    assert platforms.open_file_limit() == 10_240


@on_linux
def test_memory_that_windows_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    import windows

    from multihead.configuration import memory_of
    from multihead.diagnosis import machine

    assert platforms.memory_by_windows() is None or hasattr(ctypes, "windll")
    kernel = SimpleNamespace(GlobalMemoryStatusEx=windows._tell_memory)
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    monkeypatch.delattr(os, "sysconf", raising=False)
    memory = memory_of("cpu")
    assert memory is not None
    assert platforms.memory_by_windows() == (windows.MEMORY, windows.FREE)
    assert memory <= windows.MEMORY

    def missing(*_: Any, **__: Any) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert machine.memory() == {"total": windows.MEMORY, "free": windows.FREE}


# --------------------------------------------------------------------------- processors


def test_processors_have_what_every_one_of_them_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """On some Arm systems, the processors differ."""
    text = "processor\t: 0\nFeatures\t: fp asimd bf16\n\nprocessor\t: 1\nFeatures\t: fp asimd\n\nHardware\t: x\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
    assert platforms.processor() == ({"processor": "0", "Features": "fp asimd bf16"}, {"fp", "asimd"})
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "Processor: none\n")
    assert platforms.processor() == ({"Processor": "none"}, frozenset())

    def missing(*_: Any, **__: Any) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert platforms.processor() == ({}, frozenset())


@on_linux
def test_processors_of_this_machine() -> None:
    listed = next(
        line for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines() if re.match("flags|Features", line)
    )
    assert platforms.processor().features <= {*listed.partition(":")[2].split()}
    assert platforms.processor().features
