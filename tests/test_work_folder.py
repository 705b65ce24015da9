"""Locks on folders: one process at a time; the lock is released however its holder ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from multihead import files
from multihead.errors import ConfigurationError
from multihead.work_folder import locked

if TYPE_CHECKING:
    from tests.conftest import Numbers


PROGRAM = """
import sys
from pathlib import Path
from multihead.work_folder import locked
with locked(Path(sys.argv[1])):
    print("mine", flush=True)
    sys.stdin.readline()  # until it is killed or its input ends
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds ``tmp_path / "deep" / "run"``."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "deep" / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"mine\n"
        yield process
        process.kill()


def refused(folder):
    with pytest.raises(ConfigurationError) as caught, locked(folder):
        pytest.fail("it was let in")
    return str(caught.value)


def test_a_folder_that_another_process_holds_is_refused_in_one_line(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    folder = tmp_path / "deep" / "run"
    said = refused(folder)
    assert said.startswith(f"{folder}: another process")
    assert "\n" not in said
    if files._LOCK_TABLE.exists() and re.search(rf"\b{holder.pid}\b", files._LOCK_TABLE.read_text()):
        assert f"(process {holder.pid})" in said
    assert folder.is_dir()


@pytest.mark.parametrize("death", ["leaves", "is killed"])
def test_the_next_one_is_let_in(tmp_path: Path, holder: subprocess.Popen[bytes], death: str) -> None:
    folder = tmp_path / "deep" / "run"
    refused(folder)
    if death == "leaves":
        holder.stdin.close()
    else:
        holder.kill()
    holder.wait()
    with locked(folder):
        refused(folder)  # a second lock of the same process is refused, too


def test_a_refused_one_leaves_everything_as_it_was(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    (tmp_path / "deep" / "run" / "file").write_text("x")
    refused(tmp_path / "deep" / "run")
    assert [path.name for path in (tmp_path / "deep" / "run").iterdir()] == ["file"]


@pytest.mark.parametrize("there", [False, True])
def test_an_exception_leaves_no_empty_folder_where_there_was_none(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "a" / "b"
    if there:
        folder.mkdir(parents=True)

    def fails(make):
        with locked(folder):
            assert folder.is_dir()
            if make:
                (folder / "file").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails(make=False)
    assert folder.exists() == there
    with pytest.raises(KeyboardInterrupt):
        fails(make=True)
    assert (folder / "file").read_text() == "x"


def test_many_at_once_are_never_two(tmp_path: Path) -> None:
    """Each process creates, locks and leaves the empty folder; no process may lock a folder that has been removed."""
    inside, most, entered = [], [], []

    def work():
        for _ in range(200):
            try:
                with locked(tmp_path / "run"):
                    inside.append(1)
                    most.append(len(inside))
                    entered.append((tmp_path / "run").is_dir())
                    inside.pop()
                    raise KeyError
            except (ConfigurationError, KeyError):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert all(entered)


@pytest.mark.skipif(os.name == "nt", reason="an open folder cannot be removed there")
def test_a_lock_stands_for_its_own_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for one that was made again, and not for one that another process removes between two questions."""
    folder, asked = tmp_path / "run", Path.stat

    def remove_after(path: Path, **options: bool) -> os.stat_result:
        found = asked(path, **options)
        path.rmdir()
        return found

    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        assert files.lock_stands_for(descriptor, folder)
        folder.rmdir()
        assert not files.lock_stands_for(descriptor, folder)
        folder.mkdir()
        assert not files.lock_stands_for(descriptor, folder)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "stat", remove_after)
            assert not files.lock_stands_for(descriptor, folder)
    finally:
        os.close(descriptor)


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege there")
def test_a_link_to_nowhere_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "gone")
    for folder in (tmp_path / "run", tmp_path / "run" / "deep"):
        with pytest.raises(ConfigurationError, match=r"run: is a link to .*gone, which does not exist"), locked(folder):
            pass
    (tmp_path / "gone").mkdir()
    with locked(tmp_path / "run" / "deep"):
        assert (tmp_path / "gone" / "deep").is_dir()


def test_who_holds_it_is_not_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        assert files.lock_holder(descriptor) == ""
        for content in ("", "1: POSIX  ADVISORY  WRITE 1 00:00:0 0 EOF\n1: -> FLOCK ADVISORY WRITE 2 00:00:0 0 EOF\n"):
            (tmp_path / "locks").write_text(content)
            monkeypatch.setattr(files, "_LOCK_TABLE", tmp_path / "locks")
            assert files.lock_holder(descriptor) == ""
        monkeypatch.setattr(files, "_LOCK_TABLE", tmp_path / "nowhere")
        assert files.lock_holder(descriptor) == ""
    finally:
        os.close(descriptor)


def test_training_and_preparing_ask_for_it(numbers: Numbers, tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    from multihead import prepare

    folder = tmp_path / "deep" / "run"
    for work in (numbers.learn, prepare):
        with pytest.raises(ConfigurationError, match="another process"):
            work(output=folder, **numbers.train)
    assert list(folder.iterdir()) == []
