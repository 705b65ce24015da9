"""A fault at any system call of a save leaves an intact checkpoint.

Three kinds of fault: the call fails and the process lives (full disk, I/O error); the process dies at the call; the
machine loses power at the call, and any data that was not flushed to the disk may be missing.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from multihead.errors import SurroundingsError
from multihead.training.checkpoint import Checkpoint, RunState, load_newest, save

PATHS = ("open", "mkdir", "replace", "unlink", "rmdir", "stat", "lstat", "scandir", "listdir")
HANDLES = ("write", "fsync", "close", "fstat")


class Died(BaseException):
    """The process is dead: none of its calls reaches the disk."""


class Disk:
    """Wraps every call of `os` on ``folder``.

    Args:
        folder: other calls are left alone.
        monkeypatch: installs the wrapper.
        at: the call that fails, counted from 0; None for none.
        fault: the exception to raise; `Died` is also raised by all later calls.
    """

    def __init__(self, folder, monkeypatch, at=None, fault=None):
        self.folder, self.at, self.fault = str(folder), at, fault
        self.calls, self.files, self.unforced, self.renamed = [], {}, {}, []
        for name in (*PATHS, *HANDLES):
            monkeypatch.setattr(os, name, self._between(name, getattr(os, name)))

    def _between(self, name, call):
        def between(place=".", *args, **kwargs):
            if not self._is_ours(place, kwargs.get("dir_fd")):
                return call(place, *args, **kwargs)
            self.calls.append(name)
            if self.at is not None and len(self.calls) - 1 >= self.at:
                if isinstance(self.fault, Died):
                    if name == "close":
                        call(place)  # the system does that for a dead process
                    raise self.fault
                if len(self.calls) - 1 == self.at:
                    if name == "close":
                        call(place)
                    raise OSError(self.fault, os.strerror(self.fault))
            found = call(place, *args, **kwargs)
            self._note(name, place, args, found)
            return found

        return between

    def _is_ours(self, place, parent):
        if isinstance(place, int):
            return place in self.files
        return parent in self.files or os.fspath(place).startswith(self.folder)

    def _note(self, name, place, args, found):
        match name:
            case "open":
                self.files[found] = str(place)
            case "close":
                self.files.pop(place, None)
            case "write":
                self.unforced[self.files[place]] = True
            case "fsync":
                self.unforced.pop(self.files[place], None)
                self.renamed = [pair for pair in self.renamed if str(pair[1].parent) != self.files[place]]
            case "replace":
                self.renamed.append((Path(place), Path(args[0])))

    def lose_power(self, how):
        """Lose what was not flushed by fsync: contents of files, according to ``how``, and renames."""
        for path in map(Path, self.unforced):
            if path.exists():
                content = path.read_bytes()
                left = {"empty": b"", "half": content[: len(content) // 2], "zeros": bytes(len(content))}
                path.write_bytes(left.get(how, content[:-1]))
        if how != "renamed":
            for old, new in reversed(self.renamed):
                if new.exists() and not old.exists():
                    new.rename(old)


def made(step, seed):
    torch.manual_seed(seed)
    model = {"a": torch.randn(3, 4), "b": torch.randn(2)}
    return Checkpoint(RunState(step=step), model, {}, {f"{name}/step": tensor * 2 for name, tensor in model.items()})


def same(one, other):
    return one.state == other.state and all(
        mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
        for mine, theirs in zip(one[1:], other[1:], strict=True)
    )


OLD = made(5, 0)
NEW = {"another": made(10, 1), "the same step": made(5, 2)}
"""A later checkpoint, after which the old one is removed; and one that replaces it."""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("begun") / "checkpoints"
    save(folder, OLD, keep=1)
    return folder


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """fsync is only recorded, because only the order matters here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def attempt(
    begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Path, Disk, BaseException | None]]:
    """Save into a copy of ``begun`` with a fault; return the disk and the exception."""

    def go(new, at=None, fault=None):
        folder = tmp_path / "checkpoints"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(begun, folder)
        error = None
        with monkeypatch.context() as patch:
            disk = Disk(folder, patch, at, fault)
            try:
                save(folder, new, keep=1)
            except (SurroundingsError, OSError, Died) as found:
                error = found
        return folder, disk, error

    return go


def refuse(sentence):
    raise AssertionError(f"warned: {sentence}")


def contents(folder):
    """What is in a folder: the bytes of each file, None for a folder."""
    return {
        path.relative_to(folder): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))
    }


def fill(folder, wanted):
    """Restore what `contents` found."""
    if contents(folder) == wanted:
        return
    shutil.rmtree(folder)
    folder.mkdir()
    for path, content in wanted.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)


def is_old_or_new(folder, new, ended, judged):
    """Load without a warning: the new one if saving succeeded. ``judged``: the states that were loaded before."""
    state = ended, tuple(contents(folder).items())
    if state in judged:
        return
    judged.add(state)
    found = load_newest(folder, refuse)
    assert same(found, new) or (not ended and same(found, OLD))
    save(folder, new, keep=1)  # and its remains do not prevent the next save
    assert same(load_newest(folder, refuse), new)
    assert [path.name for path in folder.iterdir()] == [f"{new.state.step:08d}"]


@pytest.mark.parametrize("kind", NEW)
def test_without_a_fault(attempt, kind):
    """Every kind of call is recorded, and in the end everything is flushed."""
    folder, disk, error = attempt(NEW[kind])
    assert error is None
    assert {"open", "write", "fsync", "close", "mkdir", "replace", "rmdir", "unlink"} <= {*disk.calls}
    assert disk.calls.count("write") >= 8
    assert disk.unforced == {}
    assert [pair for pair in disk.renamed if pair[1].name == f"{NEW[kind].state.step:08d}"] == []
    is_old_or_new(folder, NEW[kind], ended=True, judged=set())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("kind", NEW)
def test_a_call_that_fails(attempt, kind, number):
    """A full disk or an I/O error at each call raises an error that names the place, or has no effect."""
    told, judged = 0, set()
    for at in range(len(attempt(NEW[kind])[1].calls)):
        folder, _, error = attempt(NEW[kind], at, number)
        if error is not None:
            told += 1
            assert isinstance(error, SurroundingsError), (at, error)
            assert str(error).startswith(str(folder))
        is_old_or_new(folder, NEW[kind], ended=error is None, judged=judged)
    assert told > 20


LOST = ("nothing", "empty", "half", "zeros", "renamed")


@pytest.mark.parametrize("kind", NEW)
def test_a_process_or_a_machine_that_stops(attempt, kind):
    """At each call; only the process ends, or the disk keeps one of several parts of unflushed files."""
    judged = set()
    for at in range(len(attempt(NEW[kind])[1].calls)):
        folder, disk, error = attempt(NEW[kind], at, Died())
        left = contents(folder)
        for how in LOST:
            if how != "nothing":
                fill(folder, left)
                disk.lose_power(how)
            is_old_or_new(folder, NEW[kind], ended=error is None, judged=judged)
    assert len(judged) > 20


@pytest.mark.parametrize("limit", range(0, 900, 60))
def test_a_file_may_be_no_larger(begun, tmp_path, limit):
    """The system's limit of file sizes makes a real write fail or write only a part."""
    import resource

    folder = tmp_path / "checkpoints"
    shutil.copytree(begun, folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        ended = True
        save(folder, NEW["another"], keep=1)
    except SurroundingsError as error:
        ended = False
        assert "larger than files may be here" in str(error)  # noqa: PT017
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    is_old_or_new(folder, NEW["another"], ended, judged=set())
