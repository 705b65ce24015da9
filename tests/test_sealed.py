"""Folders with a manifest: what is written comes back, every change is named, one load is one snapshot."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from multihead import sealed
from multihead.errors import FormatError
from multihead.files import atomic_folder, write_tensors
from multihead.model_folder import read_tensors, tensor_places
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
    with pytest.raises(FormatError, match="at most are read"):
        read_file(tmp_path / "large")
    with open_folder(tmp_path, REMEDY) as found, pytest.raises(FormatError, match="at most are read"):
        found.read_json("large")


TENSORS = {
    "bytes": torch.tensor([1, 2, 3], dtype=torch.int8),
    "empty": torch.zeros(0, 4),
    "flags": torch.tensor([[True], [False]]),
    "matrix": torch.arange(6.0).view(2, 3),
    "scalar": torch.tensor(7, dtype=torch.int64),
    "short": torch.tensor([1.5, 2.5]).bfloat16(),
}


def test_tensors_are_read_as_the_library_reads_them(tmp_path: Path) -> None:
    write_tensors(tmp_path / "ours", TENSORS)
    save_file(TENSORS, tmp_path / "theirs", {"format": "pt"})
    (tmp_path / "odd").write_bytes(
        b"\x3f\0\0\0\0\0\0\0" + b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}         ' + bytes(8)
    )
    with open_folder(tmp_path, REMEDY) as folder:
        for name in ("ours", "theirs"):
            found, expected = read_tensors(folder, name), load_file(tmp_path / name)
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[key], expected[key]) for key in expected)
            assert all(found[key].dtype == expected[key].dtype for key in expected)
            assert {key: place.shape for key, place in tensor_places(folder, name).items()} == {
                key: tuple(tensor.shape) for key, tensor in expected.items()
            }
        assert torch.equal(read_tensors(folder, "odd")["x"], torch.zeros(2))


@pytest.mark.parametrize(
    "described",
    [
        {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 17]},
        {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]},
        {"dtype": "F32", "shape": [4], "data_offsets": [16, 32]},
        {"dtype": "F99", "shape": [4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [True, 4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [0] + [10**12] * 12, "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": 4, "data_offsets": [0, 16]},
        7,
    ],
)
def test_a_header_that_lies_is_refused_before_anything_is_allocated(tmp_path: Path, described: object) -> None:
    header = json.dumps({"x": described}).encode()
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    with open_folder(tmp_path, REMEDY) as folder:
        for read in (tensor_places, read_tensors):
            with pytest.raises(FormatError, match="x: damaged: its"):
                read(folder, "x")


@pytest.mark.parametrize("content", [b"", b"\1", b"\xff" * 8, b"\xff\xff\xff\3\0\0\0\0{}", b"\2\0\0\0\0\0\0\0{}x"])
def test_a_header_longer_than_the_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with open_folder(tmp_path, REMEDY) as folder, pytest.raises(FormatError, match="x: damaged"):
        read_tensors(folder, "x")


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

    assert sealed.read_stable(tmp_path, read) == "33322"
    assert reads == ["11", "122", "33322"]


def test_what_changes_all_the_time_or_is_damaged_is_refused(tmp_path: Path) -> None:
    def change() -> int:
        return (tmp_path / "one").write_text("1" * len(list(tmp_path.iterdir()))) + touch()

    def touch() -> int:
        (tmp_path / str(len(list(tmp_path.iterdir())))).touch()
        return 0

    with pytest.raises(FormatError, match="changes while it is read"):
        sealed.read_stable(tmp_path, change)

    def damaged() -> None:
        raise FormatError("damaged")

    with pytest.raises(FormatError, match=r"^damaged$"):
        sealed.read_stable(tmp_path, damaged)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_among_the_files_of_another_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    assert sealed.read_stable(tmp_path, lambda: 1) == 1
    os.mkfifo(tmp_path / "source.spm")
    with pytest.raises(FormatError, match=r"source\.spm: is a pipe or a device"):
        sealed.read_stable(tmp_path, lambda: 1)
