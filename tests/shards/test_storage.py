"""Files at paths and at URLs behave alike; no file is ever visible half-written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from multihead.errors import ConfigurationError, DataError, SurroundingsError
from multihead.shards import storage
from multihead.shards.cutting import cut, shards_of
from multihead.shards.folder import shard_folder, write_shard


@pytest.fixture(params=["path", "file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """The place of a name in an empty folder."""
    if request.param == "memory":
        fsspec = pytest.importorskip("fsspec", reason='fsspec is not installed: pip install "multihead[ray]"')
        yield lambda name: f"memory://tests/{name}"
        store = fsspec.filesystem("memory")
        if store.exists("/tests"):
            store.rm("/tests", recursive=True)
    else:
        yield lambda name: ("file://" if request.param == "file" else "") + str(tmp_path / name)


def test_a_file_is_there_whole_or_not_at_all(place: Callable[[str], str]) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"new"
        raise KeyboardInterrupt

    name = place("a")
    assert not storage.exists(name)
    assert storage.read(name) is None
    with pytest.raises(KeyboardInterrupt):
        storage.write(name, chunks())
    assert not storage.exists(name)
    storage.write(name, [b"old ", b"text\n"])
    with pytest.raises(KeyboardInterrupt):
        storage.write(name, chunks())
    assert storage.read(name) == b"old text\n"
    assert storage.size(name) == 9
    assert storage.names_in(place("")) == {"a"}
    with pytest.raises(ConfigurationError, match="exists already; nothing was overwritten"):
        storage.check_new(name)


def test_patterns(place: Callable[[str], str]) -> None:
    for name in ("b-2", "b-1", "c"):
        storage.write(place(name), [b"x\n"])
    found = storage.expand(place("b-*"))
    assert [name.rsplit("/", 1)[1] for name in found] == ["b-1", "b-2"]
    assert [storage.read(name) for name in found] == [b"x\n"] * 2
    assert storage.expand(place("none")) == [place("none")]
    with pytest.raises(DataError, match="no file has such a name"):
        storage.expand(place("d-*"))
    for missing in (storage.size, lambda name: cut([name], 1)):
        with pytest.raises(DataError):
            missing(place("d"))


def test_shards_are_cut_written_and_joined_anywhere(place: Callable[[str], str]) -> None:
    storage.write(place("text"), [b"a\nb\nc\n"])
    shards = shards_of({"text": cut([place("text")], 2)})
    with shard_folder(place("out"), {"model": "m"}, len(shards)) as folder:
        assert folder is not None
        for shard in reversed(shards):
            content = "".join(f"{line.upper()}\n" for line in shard.read("text"))
            folder.check_written(write_shard(place("out"), shard.number, content.encode()))
        folder.join()
    assert storage.read(place("out")) == b"A\nB\nC\n"
    assert storage.names_in(place("")) == {"text", "out"}


def test_protocols_that_do_not_exist() -> None:
    pytest.importorskip("fsspec", reason='fsspec is not installed: pip install "multihead[ray]"')
    with pytest.raises(SurroundingsError, match="nowhere://a: cannot be opened: Protocol not known"):
        storage.exists("nowhere://a")
