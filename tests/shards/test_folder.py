"""An output that is made shard by shard can stop and resume at any time; nothing is lost or duplicated."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from multihead.errors import ConfigurationError, FormatError
from multihead.files import open_lock, take_lock
from multihead.shards import storage
from multihead.shards.folder import check_begun, check_free, folder_of, shard_folder, write_shard

COUNT = 7
CONTENT = [f"{number}\n".encode() * number for number in range(COUNT)]


class Stop(BaseException):
    """Simulates a process that is killed: nothing is cleaned up."""


def work(output: Path, made_from: dict[str, object]) -> int:
    """The work of a command; returns the number of computed shards."""
    computed = 0
    with shard_folder(str(output), made_from, COUNT) as folder:
        if folder is not None:
            for number in random.Random(1).sample(range(COUNT), COUNT):
                if number not in folder.finished():
                    folder.check_written(write_shard(str(output), number, CONTENT[number]))
                    computed += 1
            folder.join()
    return computed


def test_stopped_at_any_change_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process ends at each change of the disk in turn; then the same command finishes the work."""
    changes = [(os, "replace"), (os, "unlink"), (os, "rmdir"), (os, "mkdir")]
    steps = 0
    while True:
        folder = tmp_path / str(steps)
        folder.mkdir()
        left, computed = steps, 0

        def counted(original: object, *arguments: object, **options: object) -> object:
            nonlocal left
            if not left:
                raise Stop
            left -= 1
            return original(*arguments, **options)  # type: ignore[operator]

        stopped = False
        with monkeypatch.context() as patch:
            for module, name in changes:
                original = getattr(module, name)
                patch.setattr(module, name, lambda *a, _original=original, **o: counted(_original, *a, **o))
            try:
                work(folder / "out", {"model": 1})
            except Stop:
                stopped = True
        if stopped and not ((folder / "out").exists() and not list(folder.glob("out.shards/*"))):
            computed = work(folder / "out", {"model": 1})
        elif stopped:  # only an empty folder was left to be removed: the output is complete
            with pytest.raises(ConfigurationError, match="exists already"):
                work(folder / "out", {"model": 1})
        assert (folder / "out").read_bytes() == b"".join(CONTENT)
        assert sorted(path.name for path in folder.iterdir()) == ["out"]
        assert computed <= COUNT
        if not stopped:
            break
        steps += 1
    assert steps > 2 * COUNT


def test_what_is_finished_is_not_computed_again(tmp_path: Path) -> None:
    output = str(tmp_path / "out")

    def begin() -> None:
        with shard_folder(output, {"model": 1}, COUNT):
            for number in (3, 5):
                write_shard(output, number, CONTENT[number])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin()
    check_free(output)
    check_begun(output)
    with pytest.raises(ConfigurationError, match=r"with other settings \(model was 1, now 2\)\. To continue, repeat"):
        work(Path(output), {"model": 2})
    assert work(Path(output), {"model": 1}) == COUNT - 2
    assert Path(output).read_bytes() == b"".join(CONTENT)
    with pytest.raises(ConfigurationError, match="exists already"):
        work(Path(output), {"model": 1})


def test_nothing_is_left_of_work_that_has_not_begun(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), shard_folder(str(tmp_path / "out"), {}, COUNT):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigurationError, match="nothing of it has been done"):
        check_begun(str(tmp_path / "out"))
    with pytest.raises(ConfigurationError, match="there is no folder"):
        check_free(str(tmp_path / "none" / "out"))


def test_one_process_at_a_time(tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    with shard_folder(output, {}, COUNT):
        write_shard(output, 0, CONTENT[0])
        with pytest.raises(ConfigurationError, match=r"another process.* is working in it"):
            work(Path(output), {})


def test_the_folder_of_a_process_that_begins_just_now_stays(tmp_path: Path) -> None:
    """It is locked, and empty until its record is written."""
    place = Path(folder_of(str(tmp_path / "out")))
    place.mkdir()
    lock = open_lock(place)
    try:
        assert take_lock(lock)
        with pytest.raises(ConfigurationError, match=r"another process.* is working in it"):
            work(tmp_path / "out", {})
    finally:
        os.close(lock)


def test_damage_is_named(tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    with shard_folder(output, {}, COUNT) as folder:
        assert folder is not None
        names = [write_shard(output, number, content) for number, content in enumerate(CONTENT)]
        with pytest.raises(FormatError, match="cannot be seen here"):
            folder.check_written("00000000-0123456789abcdef")
        path = Path(folder_of(output), names[2])
        path.write_bytes(b"other")
        with pytest.raises(FormatError, match=f"{names[2]}: damaged; remove it"):
            folder.join()
        path.unlink()
        with pytest.raises(FormatError, match="shard 2 is missing"):
            folder.join()
        write_shard(output, 2, b"something else\n")
        write_shard(output, 2, CONTENT[2])
        with pytest.raises(FormatError, match="shard 2 was computed twice, with different results"):
            folder.join()
    assert not storage.exists(output)
    Path(folder_of(output), "record.json").write_text("{")
    with pytest.raises(FormatError, match=r"record.json: damaged"):
        work(Path(output), {})
