"""Work on objects of an S3 server of this machine, through s3fs: the bytes of files. `make proofs` runs it."""

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


@pytest.mark.parametrize("ending", ["en", "parquet"])
def test_translations_are_resumed_and_have_the_bytes_of_files(
    bucket: Any, numbers: Numbers, trained: Path, tmp_path: Path, ending: str
) -> None:
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
    words = ("--input", "s3://corpus/text-*", "--output", f"s3://corpus/out.{ending}", "--engine", "local:2")
    stopped = subprocess.Popen(command("translate", trained, *words), start_new_session=True)
    folder, deadline = f"corpus/out.{ending}.shards", time.monotonic() + PATIENCE
    while not [name for name in bucket.find(folder) if not name.endswith("record.json")]:
        assert stopped.poll() is None, "ended before it was stopped"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(stopped.pid, signal.SIGKILL)
    stopped.wait()
    assert not bucket.exists(f"corpus/out.{ending}")
    before = {name for name in bucket.find(folder) if not name.endswith("record.json")}
    assert before
    subprocess.run(command("translate", trained, *words), check=True, timeout=PATIENCE)
    assert bucket.cat(f"corpus/out.{ending}") == here.read_bytes()
    assert bucket.find(folder) == []


def test_prepared_and_cleaned_text_is_that_of_files(bucket: Any, numbers: Numbers, tmp_path: Path) -> None:
    source, target = texts(numbers)
    bucket.pipe("corpus/train.de.gz", gzip.compress(source))
    bucket.pipe("corpus/train.en", target)
    (tmp_path / "train.de").write_bytes(source)
    (tmp_path / "train.en").write_bytes(target)
    sides = ("--source-language", "de", "--target-language", "en")
    for name, place, ending in (("there", "s3://corpus", ".gz"), ("here", tmp_path, "")):
        named = ("--source", f"{place}/train.de{ending}", "--target", f"{place}/train.en", *sides)
        subprocess.run(
            command("prepare", *named, "--vocab-size", 300, "--output", tmp_path / name, "--engine", "local:2"),
            check=True,
            timeout=PATIENCE,
        )
        subprocess.run(command("clean", *named, "--output", tmp_path / f"{name}.tsv"), check=True, timeout=PATIENCE)
    assert data_digests(tmp_path / "there") == data_digests(tmp_path / "here")
    assert (tmp_path / "there.tsv").read_bytes() == (tmp_path / "here.tsv").read_bytes() != b""
