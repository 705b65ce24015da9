"""A growing output file: wherever writing stops, resuming gives the same bytes, or says why it cannot."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from multihead.errors import ConfigurationError, FormatError, SurroundingsError
from multihead.lines.growing_file import GrowingFile, growing_file, part_of, record_of

MADE_FROM = {"input": "abc", "beam": 5, "sizes": [1, 2]}
PIECES = [(["one", "two"], 2), (["drei\u2028", "", "fünf"], 3), (["6"], 1)]
WHOLE = "one\ntwo\ndrei\u2028\n\nfünf\n6\n".encode()
DONE = [0, 2, 5, 6]


def nothing(_: Path) -> None:
    """What is normally called between two pieces: nothing."""


def go_on(
    path: Path,
    until: int = 3,
    finish: bool = True,
    made_from: Mapping[str, object] = MADE_FROM,
    between: Callable[[Path], None] = nothing,
) -> list[int]:
    """Appends the missing pieces; returns the number of lines at the start and after each piece."""
    told: list[int] = []
    with growing_file(path, made_from) as file:
        assert file is not None
        told.append(file.lines)
        for rows, lines in PIECES[DONE.index(file.lines) : until]:
            between(path)
            file.append(rows, lines)
            told.append(file.lines)
        if finish:
            between(path)
            file.finish()
    return told


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_has_its_name_only_when_all_of_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with growing_file(path, MADE_FROM) as file:
        assert file is not None
        for rows, lines in PIECES:
            assert names(tmp_path) == ["out.part", "out.part.json"]
            file.append(rows, lines)
        file.finish()
    assert names(tmp_path) == ["out"]
    assert path.read_bytes() == WHOLE


@pytest.mark.parametrize("pieces", [1, 2, 3])
@pytest.mark.parametrize("torn", [b"", b"h", b"half a line\nand a "])
def test_what_was_being_written_is_cut_off(tmp_path: Path, pieces: int, torn: bytes) -> None:
    path = tmp_path / "out"
    go_on(path, until=pieces, finish=False)
    with part_of(path).open("ab") as stream:
        stream.write(torn)
    (tmp_path / ".out.part.json.unfinished-123").write_text("{")
    assert go_on(path) == DONE[pieces:]
    assert path.read_bytes() == WHOLE
    assert names(tmp_path) == ["out"]


def test_a_part_that_was_begun_and_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / "out"
    part_of(path).touch()
    assert go_on(path) == DONE
    assert path.read_bytes() == WHOLE


def test_a_process_that_ended_between_the_name_and_the_record(tmp_path: Path) -> None:
    path = tmp_path / "out"
    go_on(path, finish=False)
    part_of(path).rename(path)
    with growing_file(path, MADE_FROM) as file:
        assert file is None
    assert names(tmp_path) == ["out"]
    assert path.read_bytes() == WHOLE
    with pytest.raises(ConfigurationError, match="exists already"), growing_file(path, MADE_FROM):
        pass


@pytest.mark.parametrize("end", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize(("before", "left"), [(0, []), (1, ["out.part", "out.part.json"])])
def test_who_stops_before_anything_is_done_leaves_nothing(
    tmp_path: Path, end: type[BaseException], before: int, left: list[str]
) -> None:
    moments = [nothing] * before

    def stop(path: Path) -> None:
        if not moments:
            raise end
        moments.pop()

    with pytest.raises(end):
        go_on(tmp_path / "out", between=stop)
    assert names(tmp_path) == left


def test_what_was_begun_with_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "out"
    go_on(path, until=1, finish=False)
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    other = {**MADE_FROM, "beam": 4, "new": 1}
    with pytest.raises(ConfigurationError, match=r"out\.part: .*\(beam was 5, now 4, new was None, now 1\)"):
        go_on(path, made_from=other)
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == before


def test_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with growing_file(path, MADE_FROM) as file:
        assert isinstance(file, GrowingFile)
        file.append(*PIECES[0])
        with pytest.raises(ConfigurationError, match=r"another process.* is writing it"), growing_file(path, MADE_FROM):
            pass
        for piece in PIECES[1:]:
            file.append(*piece)
        file.finish()
    assert path.read_bytes() == WHOLE


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "out"
    part_of(path).write_text("somebody's\n")
    with pytest.raises(FormatError, match=r"out\.part: not something that this command has made"):
        go_on(path)
    assert part_of(path).read_text() == "somebody's\n"
    part_of(path).unlink()
    go_on(path, until=2, finish=False)
    part_of(path).write_bytes(b"one\n")
    with pytest.raises(FormatError, match=r"out\.part: shorter than its record says"):
        go_on(path)
    for damaged in ("", "[]", json.dumps({"made_from": MADE_FROM, "lines": 1})):
        record_of(path).write_text(damaged)
        with pytest.raises(FormatError, match=r"out\.part\.json: damaged"):
            go_on(path)


def test_names_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("x")
    with pytest.raises(ConfigurationError, match="exists already"):
        go_on(tmp_path / "taken")
    with pytest.raises(ConfigurationError, match="there is no folder"):
        go_on(tmp_path / "nowhere" / "out")
    with pytest.raises(ConfigurationError, match="exists already"):  # taken while it was made
        go_on(tmp_path / "out", between=lambda path: path.write_text("x") and None)
    assert (tmp_path / "out").read_text() == "x"


def test_a_disk_that_is_full_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "out"
    go_on(path, until=1, finish=False)
    with monkeypatch.context() as patch:
        patch.setattr("multihead.lines.growing_file.os.fsync", full)
        with pytest.raises(SurroundingsError, match=r"out\.part: cannot be written: no space left"):
            go_on(path)
    assert go_on(path) == DONE[1:]
    assert path.read_bytes() == WHOLE
