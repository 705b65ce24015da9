"""Outputs at URLs: made locally, uploaded in order, resumed after a stop at any write; prepared text is copied back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multihead.cleaning.clean import Outputs, clean
from multihead.errors import ConfigurationError, FormatError, Interrupted
from multihead.planning.settings import Choices, TrainSettings
from multihead.preparing import shards
from multihead.preparing.prepare import prepare
from multihead.preparing.prepared import data_digests, folder_here, open_training_text, use_folder
from multihead.shards.publishing import MARKER, PROBE, VARIABLE, check_places, publish
from multihead.urls import url_of

fsspec = pytest.importorskip("fsspec", reason='fsspec is not installed: pip install "multihead[ray]"')
from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402

DE = "".join(f"Satz {n}: der Hund Nummer {n} läuft um das Haus.\n" for n in range(120))
EN = "".join(f"Sentence {n}: dog number {n} runs around the house.\n" for n in range(120))


class Killed(BaseException):
    """Simulates the end of the command."""


class Store:
    """A store whose writes are counted, and which ends a command at one of them."""

    def __init__(self) -> None:
        self.files = fsspec.filesystem("memory")
        self.written: list[str] = []
        self.left: int | None = None

    def note(self, path: str) -> None:
        if self.left == 0:
            raise Killed
        self.left = None if self.left is None else self.left - 1
        self.written.append(path)

    def names(self) -> list[str]:
        return sorted(name.removeprefix("/out/") for name in self.files.find("/out"))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "stores"))
    made, opened = Store(), MemoryFileSystem._open

    def counted(self: MemoryFileSystem, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "wb":
            made.note(path)
        return opened(self, path, mode, **options)

    monkeypatch.setattr(MemoryFileSystem, "_open", counted)
    made.files.mkdir("/out")
    yield made
    made.files.rm("/out", recursive=True)


@pytest.fixture
def text(tmp_path: Path) -> dict[str, Path]:
    named = {"source": tmp_path / "train.de", "target": tmp_path / "train.en"}
    for path, content in zip(named.values(), (DE, EN), strict=True):
        path.write_text(content, encoding="utf-8")
    return named


def test_an_upload_goes_on_wherever_it_was_stopped(store: Store, tmp_path: Path) -> None:
    files = {}
    for name in ("data/train/b", "data/a", "last"):
        path = tmp_path / name.replace("/", "-")
        path.write_bytes(name.encode() * 1000)
        files[f"memory://out/{name}"] = path
    marker, done = f"memory://out/{MARKER}", 0
    check_places(files, marker)
    assert store.names() == []
    store.written.clear()
    for stop in range(4):  # at the marker, and at each file
        store.left = stop - done
        with pytest.raises(Killed):
            publish(files, marker)
        done = stop
        assert ("last" in store.names(), len(store.names())) == (False, stop)
        store.left = None
        check_places(files, marker)  # a second start may go on
    publish(files, marker)
    assert [name.removeprefix("/out/") for name in store.written] == [MARKER, MARKER, "data/train/b", "data/a", "last"]
    assert store.names() == ["data/a", "data/train/b", "last"]
    for place, path in files.items():
        assert store.files.cat(place) == path.read_bytes()
    with pytest.raises(ConfigurationError, match=r"^memory://out/data/train/b: exists already; nothing was"):
        check_places(files, marker)
    store.left = 1
    others = {place.replace("out/", "out/x/"): path for place, path in files.items()}
    with pytest.raises(Killed):
        publish(others, marker)
    with pytest.raises(ConfigurationError, match=r"uploading.json: another output is being uploaded there"):
        publish({"memory://out/other": path}, marker)


def _prepare(text: dict[str, Path], output: Path | str, **settings: Any) -> list[str]:
    said: list[str] = []
    prepare(output=Path(output), **{"vocab_size": 300, "say": said.append, **text, **settings})
    return said


def test_prepared_text_is_uploaded_and_read_from_a_copy(
    store: Store, text: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "memory://out/prepared"
    _prepare(text, tmp_path / "here")
    expected = data_digests(tmp_path / "here")

    # Stopped in the upload: nothing looks finished, other text is refused, the same command uploads what is missing.
    store.left = 4  # the probe, the marker and two files
    with pytest.raises(Killed):
        _prepare(text, url)
    partly = {name for name in store.names() if not name.endswith(MARKER)}
    assert len(partly) == 2
    store.left = None
    with pytest.raises(FormatError, match=r"^memory://out/prepared: nothing was prepared there to the end"):
        folder_here(Path(url))
    with pytest.raises(
        ConfigurationError, match=r"^memory://out/prepared: holds a part of text that was prepared from other files or"
    ):
        _prepare(text, url, seed=3)
    store.written.clear()
    said = _prepare(text, url)
    assert said[-1].startswith("memory://out/prepared: is prepared, with ")
    written = [name.removeprefix("/out/") for name in store.written]
    assert written[-1] == "prepared/prepared.json"
    assert partly.isdisjoint(written)
    assert {*partly, *written} == {*store.names()}

    # A run reads the folder that was made here, without a copy; another machine makes one, and goes on with it.
    made = folder_here(Path(url))
    assert data_digests(made) == expected
    assert not (made.parent / "making").exists()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "other"))
    opened = use_folder(Path(url), Choices(TrainSettings(data=Path(url))))
    assert opened.config.prepared is not None
    assert opened.config.prepared.path == url
    copy = folder_here(Path(url))
    assert data_digests(copy) == expected
    (copy / "prepared.json").unlink()
    (copy / "data" / "valid.source.txt").unlink()
    inode = (copy / "data" / "valid.target.txt").stat().st_ino
    lines: list[str] = []
    assert folder_here(Path(url), lines.append) == copy
    assert data_digests(copy) == expected
    assert (copy / "data" / "valid.target.txt").stat().st_ino == inode
    assert len(lines) == 1

    # A run that has started with it does not need the store.
    with monkeypatch.context() as patched:
        patched.setattr("multihead.preparing.remote.storage", None)
        assert open_training_text(tmp_path, opened.config, None).config == opened.config
        assert open_training_text(tmp_path, opened.config, Path(url)).config == opened.config

    # The same command reports that the output exists; other settings are refused; damage in the store is reported.
    assert _prepare(text, url)[-1].startswith("memory://out/prepared: is prepared, with")
    with pytest.raises(ConfigurationError, match=r"^memory://out/prepared: holds text that was prepared with other"):
        _prepare(text, url, seed=3)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "third"))
    store.files.pipe("/out/prepared/data/valid.source.txt", b"x\n")
    with pytest.raises(FormatError, match=r"^memory://out/prepared/data/valid.source.txt: damaged, or changed"):
        folder_here(Path(url))


def test_preparing_for_a_url_goes_on_or_begins_anew(
    store: Store, text: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "memory://out/prepared"
    monkeypatch.setattr(shards, "SHARD", 40)
    answers = iter([None, 15])
    with pytest.raises(Interrupted, match="again to continue"):
        _prepare(text, url, stop_signal=lambda: next(answers))
    assert store.names() == []
    store.left = 1  # the probe
    said: list[str] = []
    with pytest.raises(Killed):
        _prepare(text, url, say=said.append)
    assert said[0] == "going on after 82 of 120 pairs"  # of two shards, and two pairs that are held out
    store.left = None
    store.files.pipe(f"/out/prepared/{MARKER}", PROBE)  # of a command that was killed between its two changes
    text["source"].write_text(DE.replace("Hund", "Dackel"), encoding="utf-8")  # nothing of the former text is there
    said = _prepare(text, url)
    assert any("uploading" in line for line in said)
    manifest = json.loads(store.files.cat("/out/prepared/prepared.json"))
    assert len(manifest["data"]["corpora"][0]["files"]) == 2
    assert "Dackel" in store.files.cat("/out/prepared/data/valid.source.txt").decode()
    store.files.pipe("/out/else/a", b"a")
    with pytest.raises(ConfigurationError, match=r"^memory://out/else: holds something that is not prepared text"):
        _prepare(text, "memory://out/else")


@pytest.mark.parametrize("ending", ["tsv", "gz"])
def test_cleaned_files_are_uploaded(store: Store, text: dict[str, Path], tmp_path: Path, ending: str) -> None:
    two = ending == "gz"
    named = [
        Outputs.named(
            place / ("clean.de.gz" if two else "clean.tsv"), place / "clean.en.gz" if two else None, None, page
        )
        for place, page in ((tmp_path, None), (Path("memory://out"), None if two else tmp_path / "page.html"))
    ]
    here, there = named
    expected = clean(text["source"], text["target"], here)
    store.left = 3  # the probe, the marker and the removed pairs
    with pytest.raises(Killed):
        clean(text["source"], text["target"], there)
    assert here.kept.name not in store.names()
    assert f"{here.removed.name}" in store.names()
    store.left = None
    store.written.clear()
    found = clean(text["source"], text["target"], there)
    assert found.counts == expected.counts
    assert store.written[-1] == f"/out/{here.kept.name}"
    assert not any(name.endswith(".removed.tsv") for name in store.written)
    for one, other in zip(here.every, there.every, strict=True):
        url = url_of(other)
        content = other.read_bytes() if url is None else store.files.cat(url)
        assert one.read_bytes() == content, one.name
    assert len(store.names()) == (4 if two else 2)
    assert list((tmp_path / "stores").iterdir()) == []
    with pytest.raises(ConfigurationError, match=r"^memory://out/clean[a-z.]*: exists already; nothing was"):
        clean(text["source"], text["target"], there)
    assert list((tmp_path / "stores").iterdir()) == []
