"""Atomic files and folders, with faults at every call."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save

from multihead import files, platforms
from multihead.errors import ConfigurationError, FormatError, SurroundingsError
from multihead.files import (
    atomic_file,
    atomic_folder,
    check_new_folder,
    copy_folder,
    current_folder,
    is_unfinished,
    read_stable,
    remove,
    remove_unfinished,
    sha256_of,
    write_errors,
    write_tensors,
    write_text,
)


class Stop(BaseException):
    """The end of a process, which no error handler sees."""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_text_is_written_as_it_is(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "eins\r\nzwei\n\0▁")
    assert (tmp_path / "a.txt").read_bytes() == "eins\r\nzwei\n\0▁".encode()
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError, Stop, KeyboardInterrupt])
def test_a_file_keeps_its_content_when_writing_ends_early(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a.txt"
    for before in (None, "old"):
        if before is not None:
            path.write_text(before)

        def write():
            with atomic_file(path) as draft:
                draft.write_text("half")
                assert not path.exists() or path.read_text() == "old"
                raise error

        with pytest.raises(error):
            write()
        assert names(tmp_path) == ([] if before is None else ["a.txt"])
    assert path.read_text() == "old"


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "model"
    for content in ("old", "new"):
        with atomic_folder(path) as draft:
            (draft / content).write_text(content)
            (draft / "sub").mkdir()
            (draft / "sub" / "deep").write_text(content)
        assert names(path) == [content, "sub"]
        assert names(tmp_path) == ["model"]


@pytest.mark.parametrize("error", [ValueError, Stop])
def test_a_folder_keeps_its_content_when_filling_ends_early(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "model"
    with atomic_folder(path) as draft:
        (draft / "old").write_text("old")

    def fill():
        with atomic_folder(path) as second:
            (second / "new").write_text("new")
            raise error

    with pytest.raises(error):
        fill()
    assert names(tmp_path) == ["model"]
    assert names(path) == ["old"]


class Killed:
    """Allow a number of calls that change the disk, then end the process without cleaning up."""

    def __init__(self, monkeypatch, calls):
        self.left = calls
        for owner, name in ((Path, "replace"), (Path, "mkdir"), (Path, "unlink"), (files.shutil, "rmtree")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, function):
        def call(*args, **kwargs):
            self.left -= 1
            if self.left < 0:
                raise Stop
            return function(*args, **kwargs)

        return call


@pytest.mark.parametrize("calls", range(9))
def test_a_folder_is_old_or_new_wherever_the_process_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    path = tmp_path / "model"
    path.mkdir()
    (path / "old").write_text("old")
    with monkeypatch.context() as patch:
        Killed(patch, calls)
        try:
            with atomic_folder(path) as draft:
                (draft / "new").write_text("new")
        except Stop:
            pass
    assert names(current_folder(path)) in (["old"], ["new"])
    remove_unfinished(tmp_path)
    assert names(tmp_path) == ["model"]
    assert names(path) in (["old"], ["new"])
    with atomic_folder(path) as draft:
        (draft / "newer").write_text("newer")
    assert names(tmp_path) == ["model"]
    assert names(path) == ["newer"]


@pytest.fixture(scope="module")
def ended() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def leave(draft: Path, age: float = 0.0) -> str:
    """Make a draft, or age an existing one, so that its last change was some seconds ago; returns its name."""
    draft.mkdir(exist_ok=True)
    (draft / "large").write_text("x")
    for path in (draft / "large", draft):
        os.utime(path, (time.time() - age, time.time() - age))
    return draft.name


def write_anew(path: Path) -> None:
    with atomic_folder(path) as draft:
        (draft / "new").write_text("new")


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path: Path, ended: int) -> None:
    """Also if that process was killed during the removal; but nothing with another name."""
    if not (place := platforms.process_place()):
        pytest.skip("the system does not tell where processes have their numbers")
    leave(tmp_path / f".out.unfinished-{ended}-{place}")
    leave(tmp_path / f".out.unfinished-{ended}-{place}-abandoned")
    (tmp_path / f".out.unfinished-{2**40}-{place}").write_text("no number of a process")
    kept = [leave(tmp_path / f".{name}.unfinished-{ended}-{place}") for name in ("other", "out.more")]
    write_anew(tmp_path / "out")
    assert names(tmp_path) == sorted([*kept, f".out.unfinished-{2**40}-{place}", "out"])
    assert names(tmp_path / "out") == ["new"]


def test_what_another_process_may_be_writing_stays(tmp_path: Path, ended: int) -> None:
    """Drafts of a running process, and for a day those of processes on other machines or of other versions."""
    here = [f".out.unfinished-{os.getppid()}-{place}" for place in [platforms.process_place()] if place]
    elsewhere = [f".out.unfinished-{ended}-0123456789ab", f".out.unfinished-{ended}", ".out.unfinished-x-abandoned"]
    for name in (*here, *elsewhere):
        leave(tmp_path / name)
    write_anew(tmp_path / "out")
    assert names(tmp_path) == sorted([*here, *elsewhere, "out"])
    for name in (*here, *elsewhere):
        leave(tmp_path / name, 2 * files._ABANDONED)
    (tmp_path / elsewhere[0] / "large").touch()
    write_anew(tmp_path / "out")
    assert names(tmp_path) == sorted([*here, elsewhere[0], "out"])


@pytest.mark.skipif(os.name == "nt", reason="a process that has a file open keeps its folder there")
def test_a_process_that_goes_on_after_all_finishes_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It made no change for a day: its draft was removed, which the error says."""
    path = tmp_path / "out"

    def silent() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(platforms, "process_place", lambda: "0123456789ab")
            with atomic_folder(path) as draft:
                leave(draft, 2 * files._ABANDONED)
                patch.undo()
                write_anew(path)
                (draft / "second").write_text("x")

    with pytest.raises(SurroundingsError, match="out: cannot be written"):
        silent()
    assert names(tmp_path) == ["out"]
    assert names(path) == ["new"]


def test_a_copy_replaces_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "one/inner").mkdir(parents=True)
    (tmp_path / "one/inner/file").write_text("1")
    (tmp_path / "two").mkdir()
    (tmp_path / "two/old").write_text("2")
    copy_folder(tmp_path / "one", tmp_path / "two")
    for name in ("one", "two"):
        folder = tmp_path / name
        assert [str(path.relative_to(folder)) for path in sorted(folder.rglob("*"))] == ["inner", "inner/file"]
    assert (tmp_path / "two/inner/file").read_text() == "1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


@pytest.mark.parametrize("calls", range(9))
def test_a_killed_exchange_does_not_hinder_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """As above, but without a cleanup in between."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "old").write_text("old")
    with monkeypatch.context() as patch:
        Killed(patch, calls)
        try:
            with atomic_folder(path) as draft:
                (draft / "new").write_text("new")
        except Stop:
            pass
    with atomic_folder(path) as draft:
        (draft / "newer").write_text("newer")
    assert names(tmp_path) == ["model"]
    assert names(path) == ["newer"]


def test_only_what_writers_left_is_cleared_away(tmp_path: Path) -> None:
    for name in (".a.unfinished-1", "a.unfinished-1", ".hidden", "b.old", ".c.replaced.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / ".d.unfinished-99").mkdir()
    (tmp_path / ".d.unfinished-99" / "e").write_text("x")
    drafts = sorted(path.name for path in tmp_path.iterdir() if is_unfinished(path))
    assert drafts == [".a.unfinished-1", ".d.unfinished-99"]
    remove_unfinished(tmp_path)
    assert names(tmp_path) == [".c.replaced.txt", ".hidden", "a.unfinished-1", "b.old"]
    remove_unfinished(tmp_path / "nowhere")


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege there")
def test_a_place_that_cannot_be_replaced_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder may be named, but not a link to one, or where a file system is mounted."""
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    check_new_folder(tmp_path / "there")
    check_new_folder(tmp_path / "link" / "new")
    with pytest.raises(ConfigurationError, match="link: is a link to a folder, which cannot be replaced"):
        check_new_folder(tmp_path / "link")
    monkeypatch.setattr(os.path, "ismount", lambda _: True)
    with pytest.raises(ConfigurationError, match="there: is where a file system is mounted"):
        check_new_folder(tmp_path / "there")


def test_removing_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    for name in ("link", "nothing"):
        remove(tmp_path / name)
    assert names(tmp_path / "kept") == ["file"]
    remove(tmp_path / "kept")
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "no space left on the device: free some"),
        (errno.EDQUOT, "quota"),
        (errno.EFBIG, "ulimit"),
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_fault_of_the_surroundings_says_what_to_do(tmp_path: Path, number: int, remedy: str) -> None:
    path = tmp_path / "a"

    def fill():
        with atomic_folder(path) as draft:
            (draft / "x").write_text("x")
            raise OSError(number, os.strerror(number))

    with pytest.raises(SurroundingsError, match=remedy) as caught:
        fill()
    assert str(caught.value).startswith(f"{path}: cannot be written: ")
    assert caught.value.exit_status == 1
    assert names(tmp_path) == []


def test_an_error_without_a_number_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(SurroundingsError, match="cannot be written: strange"), write_errors(tmp_path):
        raise OSError("strange")


def test_where_there_is_no_folder_to_write_into(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "nowhere" / "a", tmp_path / "file" / "a"):
        with pytest.raises(SurroundingsError):
            write_text(path, "x")
    with pytest.raises(SurroundingsError):
        write_text(Path("/proc/nothing-can-be-made-here"), "x")
    assert names(tmp_path) == ["file"]


def test_tensors_round_trip_and_faults_are_those_of_files(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3).t(), "b": torch.tensor(1, dtype=torch.int64)}
    write_tensors(tmp_path / "x", tensors)
    found = load_file(tmp_path / "x")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    with pytest.raises(OSError, match=r".+"):
        write_tensors(Path("/dev/full/x"), tensors)


def test_tensors_are_the_bytes_that_the_library_of_the_format_writes(tmp_path: Path) -> None:
    """Every dtype, empty and single tensors, a view, an escaped name; and the hash."""
    kinds = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
    tensors = {f"{kind} {n}": torch.ones(n, 3).to(getattr(torch, kind)) for kind in kinds for n in (2, 0)}
    tensors |= {"turned": torch.arange(6.0).reshape(2, 3).t(), "single": torch.tensor(3.0), 'ü"\n': torch.ones(1)}
    expected = save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata={"format": "pt"})
    digest = write_tensors(tmp_path / "x", tensors)
    assert (tmp_path / "x").read_bytes() == expected
    assert digest == sha256_of(tmp_path / "x")
    write_tensors(tmp_path / "empty", {})
    assert (tmp_path / "empty").read_bytes() == save({}, metadata={"format": "pt"})


def test_what_the_system_writes_in_pieces_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`os.write` may write only a part."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
    digest = files.write_chunks(tmp_path / "x", [b"eins zwei drei", b"", memoryview(b"vier")])
    assert (tmp_path / "x").read_bytes() == b"eins zwei dreivier"
    assert digest == sha256_of(tmp_path / "x")


def test_the_hash_is_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_of(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


# --------------------------------------------------------------------------- folders of other programs


def test_what_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "two").write_text("1")
    reads = []

    def read() -> str:
        """The folder changes during the first two reads; the second one fails, too."""
        content = (tmp_path / "one").read_text() + (tmp_path / "inner" / "two").read_text()
        reads.append(content)
        if len(reads) == 1:
            (tmp_path / "inner" / "two").write_text("22")
        elif len(reads) == 2:
            (tmp_path / "one").write_text("333")
            raise FormatError("a mixture")
        return content

    assert read_stable(tmp_path, read) == "33322"
    assert reads == ["11", "122", "33322"]


def test_what_changes_all_the_time_or_is_damaged_is_refused(tmp_path: Path) -> None:
    def change() -> int:
        return (tmp_path / "one").write_text("1" * len(list(tmp_path.iterdir()))) + touch()

    def touch() -> int:
        (tmp_path / str(len(list(tmp_path.iterdir())))).touch()
        return 0

    with pytest.raises(FormatError, match="changes while it is read"):
        read_stable(tmp_path, change)

    def damaged() -> None:
        raise FormatError("damaged")

    with pytest.raises(FormatError, match=r"^damaged$"):
        read_stable(tmp_path, damaged)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_among_the_files_of_another_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    assert read_stable(tmp_path, lambda: 1) == 1
    os.mkfifo(tmp_path / "source.spm")
    with pytest.raises(FormatError, match=r"source\.spm: is a pipe or a device"):
        read_stable(tmp_path, lambda: 1)
