"""Commands on objects of a local S3 server, through s3fs, give the bytes that files give. `make proofs` runs it."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from multihead.preparing.prepared import data_digests

if TYPE_CHECKING:
    from tests.conftest import Numbers

COPIES = 8
"""Of the 600 training lines, which are then a few shards of 2,000."""
PATIENCE = 300.0
INSTALL = "is not installed: pip install s3fs 'moto[server]'"

pytestmark = pytest.mark.proof


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The file system of a server with the empty bucket ``corpus``, which commands find by their environment."""
    fsspec = pytest.importorskip("fsspec", reason='fsspec is not installed: pip install "multihead[ray]"')
    for package in ("s3fs", "moto"):
        pytest.importorskip(package, reason=f"{package} {INSTALL}")
    server = pytest.importorskip("moto.server", reason=f"flask {INSTALL}").ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    names = {"ENDPOINT_URL": f"http://{host}:{port}", "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}
    for name, value in {**names, "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    files = fsspec.filesystem("s3", use_listings_cache=False, skip_instance_cache=True)
    files.mkdir("corpus")
    yield files
    files.rm("corpus", recursive=True)  # servers of one process share what they hold
    server.stop()


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "multihead", *map(str, words)]


def texts(numbers: Numbers) -> tuple[bytes, bytes]:
    """Source and target, of several shards."""
    source, target = (Path(numbers.train[side]).read_bytes() * COPIES for side in ("source", "target"))
    return source, target


def objects_in(bucket: Any, folder: str) -> dict[str, Any]:
    """The objects of a folder and their times; `find` lists the folder itself while its first object appears."""
    found = bucket.find(folder, detail=True).items()
    return {name: facts["LastModified"] for name, facts in found if name.startswith(f"{folder}/")}


def killed(bucket: Any, folder: str, objects: int, words: list[str]) -> dict[str, Any]:
    """Kill a command as soon as a folder has this many objects; returns its objects at that time.

    The server is a thread of this process, so polling pauses.
    """
    stopped, deadline = subprocess.Popen(words, start_new_session=True), time.monotonic() + PATIENCE
    while len(objects_in(bucket, folder)) < objects:
        assert stopped.poll() is None, "ended before it was stopped"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(stopped.pid, signal.SIGKILL)
    stopped.wait()
    return objects_in(bucket, folder)


@pytest.mark.parametrize(("engine", "ending"), [("local:2", "en"), ("local:2", "parquet"), ("ray", "en")])
def test_translations_are_resumed_and_have_the_bytes_of_files(
    bucket: Any, numbers: Numbers, trained: Path, tmp_path: Path, engine: str, ending: str
) -> None:
    if engine == "ray":
        pytest.importorskip("ray.data", reason='ray is not installed: pip install "multihead[ray]"')
    lines = texts(numbers)[0].splitlines(keepends=True)
    (tmp_path / "text").write_bytes(b"".join(lines))
    bucket.pipe("corpus/text-1.gz", gzip.compress(b"".join(lines[:2500])))
    bucket.pipe("corpus/text-2", b"".join(lines[2500:]))
    here = tmp_path / f"out.{ending}"
    subprocess.run(
        command("translate", trained, "--input", tmp_path / "text", "--output", here, "--engine", "local:1"),
        check=True,
        timeout=PATIENCE,
    )
    words = ("--input", "s3://corpus/text-*", "--output", f"s3://corpus/out.{ending}", "--engine", engine)
    folder = f"corpus/out.{ending}.shards"
    there = killed(bucket, folder, 2, command("translate", trained, *words))
    assert f"{folder}/record.json" in there
    assert not bucket.exists(f"corpus/out.{ending}")
    subprocess.run(command("translate", trained, *words), check=True, timeout=PATIENCE)
    assert bucket.cat(f"corpus/out.{ending}") == here.read_bytes()
    assert objects_in(bucket, folder) == {}


def test_prepared_and_cleaned_text_is_that_of_files(
    bucket: Any, numbers: Numbers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULTIHEAD_STORES", str(tmp_path / "stores"))
    source, target = texts(numbers)
    bucket.pipe("corpus/train.de.gz", gzip.compress(source))
    bucket.pipe("corpus/train.en", target)
    (tmp_path / "train.de").write_bytes(source)
    (tmp_path / "train.en").write_bytes(target)
    sides = ("--source-language", "de", "--target-language", "en")
    made: dict[str, tuple[list[str], list[str]]] = {}
    for place, ending in (("s3://corpus", ".gz"), (tmp_path, "")):
        named = ("--source", f"{place}/train.de{ending}", "--target", f"{place}/train.en", *sides)
        prepare = command("prepare", *named, "--vocab-size", 300, "--output", f"{place}/out/p", "--engine", "local:2")
        made[str(place)] = prepare, command("clean", *named, "--output", f"{place}/clean/train.tsv")
    (tmp_path / "clean").mkdir()
    for words in made[str(tmp_path)]:
        subprocess.run(words, check=True, timeout=PATIENCE)
    prepare, clean = made["s3://corpus"]

    # Killed at three moments of its upload, `prepare` leaves nothing that looks finished, and goes on.
    seen: dict[str, Any] = {}
    for objects in (1, 4, 9):
        written = killed(bucket, "corpus/out", objects, prepare)
        assert "corpus/out/p/prepared.json" not in written
        assert {name: written[name] for name in seen} == seen
        seen = {name: when for name, when in written.items() if not name.endswith("uploading.json")}
    assert len(seen) >= 8
    subprocess.run(prepare, check=True, timeout=PATIENCE)
    written = objects_in(bucket, "corpus/out")
    assert {name: written[name] for name in seen} == seen
    assert "corpus/out/p/uploading.json" not in written
    expected = data_digests(tmp_path / "out" / "p")
    assert {name.removeprefix("corpus/out/p/") for name in written if "/data/" in name} == set(expected)

    # Another machine trains from it.
    monkeypatch.setenv("MULTIHEAD_STORES", str(tmp_path / "other"))
    settings = ("--updates", 2, "--preset", "tiny")
    train = command("train", "--data", "s3://corpus/out/p", "--output", tmp_path / "run", *settings)
    subprocess.run(train, check=True, timeout=PATIENCE)
    (copy,) = (path.parent for path in (tmp_path / "other").rglob("prepared.json"))
    assert data_digests(copy) == expected

    # So does `clean`, whose kept pairs come last.
    monkeypatch.setenv("MULTIHEAD_STORES", str(tmp_path / "stores"))
    seen = {}
    for objects in (1, 2, 3):
        written = killed(bucket, "corpus/clean", objects, clean)
        assert "corpus/clean/train.tsv" not in written
        assert {name: written[name] for name in seen} == seen
        seen = {name: when for name, when in written.items() if not name.endswith("uploading.json")}
    subprocess.run(clean, check=True, timeout=PATIENCE)
    written = objects_in(bucket, "corpus/clean")
    assert {name: written[name] for name in seen} == seen
    names = ["train.tsv", "train.tsv.removed.tsv", "train.tsv.report.html"]
    assert sorted(written) == [f"corpus/clean/{name}" for name in names]
    for name in names[:2]:  # the report names the files that were read
        assert bucket.cat(f"corpus/clean/{name}") == (tmp_path / "clean" / name).read_bytes() != b""
