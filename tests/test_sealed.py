"""Folders with a manifest: reading returns what was written, every change is reported, a load is one snapshot."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from multihead import sealed
from multihead.errors import FormatError
from multihead.files import atomic_folder
from multihead.sealed import MANIFEST, OpenFolder, find_folder, open_folder, parse_json, read_file, seal

REMEDY = "copy it again"


def write(folder: Path, **content: str) -> Path:
    """A sealed folder with text files, and one in a sub-folder."""
    with atomic_folder(folder) as draft:
        (draft / "inner").mkdir()
        (draft / "inner" / "deep.txt").write_text("deep", encoding="utf-8")
        for name, text in content.items():
            (draft / f"{name}.txt").write_text(text, encoding="utf-8")
        seal(draft)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "folder", one="eins", two="zwei")


@pytest.fixture
def opened(folder: Path) -> Iterator[OpenFolder]:
    with open_folder(folder, REMEDY) as found:
        yield found


def refused(folder: Path, name: str) -> str:
    with pytest.raises(FormatError) as caught, open_folder(folder, REMEDY) as found:
        found.read_bytes(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_written_comes_back(opened: OpenFolder) -> None:
    assert opened.read_text("one.txt") == "eins"
    assert opened.read_bytes("two.txt") == b"zwei"
    assert opened.part("inner").read_text("deep.txt") == opened.read_text("inner/deep.txt") == "deep"
    assert set(opened.entries or ()) == {"one.txt", "two.txt", "inner/deep.txt"}
    assert opened.digest("one.txt") == opened.verify("one.txt")
    assert "one.txt" in opened
    assert "deep.txt" in opened.part("inner")
    assert "three.txt" not in opened
    opened.verify_all()


def damage(folder: Path) -> str | None:
    """The error for a folder, if there is one; "none" for a folder without a manifest of ours."""
    try:
        with open_folder(folder, REMEDY) as found:
            found.verify_all()
            return "none" if found.entries is None else None
    except FormatError as error:
        return str(error)


def test_every_flipped_bit_is_named(folder: Path) -> None:
    """One bit of each byte."""
    assert damage(folder) is None
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        content = path.read_bytes()
        for place in range(len(content)):
            changed = bytearray(content)
            changed[place] ^= 1 << place % 8
            path.write_bytes(changed)
            said = damage(folder)
            assert said is not None, (path.name, place)
            assert path.name in said or (said == "none" and path.name == MANIFEST), (path.name, place, said)
        path.write_bytes(content)


def test_missing_surplus_swapped_and_cut_files_are_named(folder: Path) -> None:
    (folder / "more.txt").write_text("more")
    assert "does not list it" in refused(folder, "more.txt")
    (folder / "two.txt").rename(folder / "kept")
    assert "two.txt: is missing" in refused(folder, "two.txt")
    (folder / "kept").rename(folder / "two.txt")
    first, second = (folder / "one.txt").read_bytes(), (folder / "two.txt").read_bytes()
    (folder / "one.txt").write_bytes(second)
    (folder / "two.txt").write_bytes(first)
    assert "one.txt: damaged, or changed" in refused(folder, "one.txt")
    (folder / "one.txt").write_bytes(first[:-1])
    assert "one.txt: damaged: it has 3 bytes, manifest.json says 4" in refused(folder, "one.txt")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_only_regular_files_are_read(folder: Path, tmp_path: Path) -> None:
    (folder / "one.txt").unlink()
    os.mkfifo(folder / "one.txt")
    assert "one.txt: is a pipe or a device, not a regular file" in refused(folder, "one.txt")
    (folder / "two.txt").unlink()
    (folder / "two.txt").mkdir()
    assert "two.txt: is a folder, not a regular file" in refused(folder, "two.txt")
    (folder / MANIFEST).unlink()
    os.mkfifo(folder / MANIFEST)
    assert "manifest.json: is a pipe" in refused(folder, "one.txt")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="pipe"):
        read_file(tmp_path / "pipe")


def test_links_are_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "one.txt").rename(tmp_path / "blob")
    (folder / "one.txt").symlink_to(tmp_path / "blob")
    with open_folder(folder, REMEDY) as found:
        assert found.read_text("one.txt") == "eins"


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/../../secret", "", ".", "a\nb", "\ud800"])
def test_a_manifest_names_files_in_its_folder_only(folder: Path, name: str) -> None:
    content = json.loads((folder / MANIFEST).read_bytes())
    content["files"] = {name: content["files"]["one.txt"]}
    (folder / MANIFEST).write_text(json.dumps(content))
    assert "manifest.json: damaged" in refused(folder, "one.txt")


def test_a_manifest_of_another_program_is_none(folder: Path) -> None:
    for content in (b"{}", b"[]", b"\xff", b'{"format": "other", "files": {}}', b" " * (1 << 23)):
        (folder / MANIFEST).write_bytes(content)
        with open_folder(folder, REMEDY) as found:
            assert found.entries is None
            assert found.read_text("one.txt") == "eins"
    (folder / MANIFEST).write_text(json.dumps({"format": "multihead manifest", "version": 2}))
    assert "newer multihead" in refused(folder, "one.txt")


def test_an_open_folder_is_a_snapshot(folder: Path) -> None:
    with open_folder(folder, REMEDY) as before:
        write(folder, one="1", two="2")
        with open_folder(folder, REMEDY) as after:
            assert [after.read_text(f"{name}.txt") for name in ("one", "two")] == ["1", "2"]
        shutil.rmtree(folder)
        assert [before.read_text(f"{name}.txt") for name in ("one", "two")] == ["eins", "zwei"]
    assert find_folder(folder, REMEDY) is None
    with pytest.raises(FormatError, match="there is no such folder"):
        open_folder(folder, REMEDY)


def test_the_folder_moved_aside_is_read(folder: Path) -> None:
    folder.rename(folder.with_name(".folder.replaced"))
    with open_folder(folder, REMEDY) as found:
        assert found.read_text("one.txt") == "eins"
        assert found.path == folder


@pytest.mark.parametrize("manifest", [True, False])
def test_loads_beside_a_writer_are_snapshots(tmp_path: Path, manifest: bool) -> None:
    """300 loads while another thread replaces the folder all the time."""
    folder, ended = write(tmp_path / "folder", one="0", two="0"), threading.Event()

    def replace() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            with atomic_folder(folder) as draft:
                for name in ("one", "two"):
                    (draft / f"{name}.txt").write_text(str(number), encoding="utf-8")
                if manifest:
                    seal(draft)

    thread = threading.Thread(target=replace)
    thread.start()
    seen, loads = set(), 0
    try:
        while loads < 300 or len(seen) < 5:
            loads += 1
            with open_folder(folder, REMEDY) as found:
                one, two = found.read_text("one.txt"), found.read_text("two.txt")
            assert one == two
            seen.add(one)
    finally:
        ended.set()
        thread.join()


def test_a_folder_that_is_there_again_is_not_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is replaced during each of five attempts."""
    folder, opened, attempts = write(tmp_path / "folder", one="1"), sealed._open_once, iter(range(6))

    def unlucky(path: Path, remedy: str) -> sealed.OpenFolder:
        if next(attempts) < 5:
            raise sealed._AbsentError
        return opened(path, remedy)

    monkeypatch.setattr(sealed, "_open_once", unlucky)
    with open_folder(folder, REMEDY) as found:
        assert found.read_text("one.txt") == "1"
    assert next(attempts, None) is None


# --------------------------------------------------------------------------- bounded reading


def test_json_is_bounded() -> None:
    path = Path("file.json")
    assert parse_json(b'{"a": [1, {"b": null}]}', path) == {"a": [1, {"b": None}]}
    for content in (b"", b"[]", b"null", b"\xff", b"{", b'{"a": ' + b"9" * 5000 + b"}"):
        with pytest.raises(FormatError, match=r"file\.json: damaged"):
            parse_json(content, path)
    for depth in (sealed.DEEPEST, 200_000):
        with pytest.raises(FormatError, match="depth"):
            parse_json(b'{"a": ' + b"[" * depth + b"]" * depth + b"}", path)
    assert parse_json(b'{"a": ' + b"[" * (sealed.DEEPEST - 1) + b"]" * (sealed.DEEPEST - 1) + b"}", path)


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match=r"but at most [\d,]+ are read"):
        read_file(tmp_path / "large")
    with open_folder(tmp_path, REMEDY) as found, pytest.raises(FormatError, match=r"but at most [\d,]+ are read"):
        found.read_json("large")
