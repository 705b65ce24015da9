"""Corpora at URLs are read like files by readers, `prepare` and `clean`; outputs that must be local refuse a URL."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from multihead.cleaning.clean import Outputs, clean
from multihead.data.corpus import Report
from multihead.data.readers import scan_corpus, shards
from multihead.data.text_files import read_lines
from multihead.errors import ConfigurationError, DataError, SurroundingsError
from multihead.preparing.prepare import prepare
from multihead.preparing.prepared import data_digests
from multihead.shards import storage
from multihead.urls import url_of
from multihead.work_folder import nearest_existing

fsspec = pytest.importorskip("fsspec", reason='fsspec is not installed: pip install "multihead[ray]"')
from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402

DE = "".join(f"Satz {n}: der Hund Nummer {n} läuft um das Haus.\n" for n in range(120))
EN = "".join(f"Sentence {n}: dog number {n} runs around the house.\n" for n in range(120))


@pytest.fixture
def store() -> Iterator[Callable[[str, bytes], Path]]:
    """A function that puts a file into a store; returns its URL as the path that a command gets."""
    files = fsspec.filesystem("memory")

    def put(name: str, content: bytes) -> Path:
        files.pipe(f"/corpus/{name}", content)
        return Path(f"memory://corpus/{name}")

    yield put
    files.rm("/corpus", recursive=True)


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("s3://bucket/a.de", "s3://bucket/a.de"),
        ("s3:/bucket/a.de", "s3://bucket/a.de"),
        ("memory:///a/b*.tsv", "memory://a/b*.tsv"),
        ("c:/a.de", None),
        ("file:///a.de", None),
        ("a.de", None),
        ("/x/y:/a.de", None),
        ("https:", None),
    ],
)
def test_the_url_of_a_path(name: str, url: str | None) -> None:
    assert url_of(name) == url_of(Path(name)) == url


def test_a_file_with_such_a_name_is_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s3:").mkdir()
    Path("s3:/a.de").write_text("here\n", encoding="utf-8")
    assert list(read_lines("s3:/a.de")) == ["here"]


def test_pairs_of_every_format(store: Callable[[str, bytes], Path]) -> None:
    source, target = store("a.de.gz", gzip.compress(DE.encode())), store("a.en", EN.encode())
    pairs = list(zip(DE.splitlines(), EN.splitlines(), strict=True))
    rows = "".join(f"{one}\t{other}\n" for one, other in pairs).encode()
    for scan in (
        scan_corpus(source, target),
        scan_corpus(store("b.tsv", rows), None, "de", "en"),
        scan_corpus(_parquet(store, pairs), None, "de", "en"),
    ):
        assert [(pair.source, pair.target) for pair in scan.read(Report())] == pairs
    store("parts/b-2.tsv", rows)
    store("parts/b-1.tsv", rows)
    found = shards(Path("memory://corpus/parts/*.tsv"))
    assert [url_of(source) for source, _ in found] == [f"memory://corpus/parts/b-{n}.tsv" for n in (1, 2)]


def _parquet(store: Callable[[str, bytes], Path], pairs: list[tuple[str, str]]) -> Path:
    pyarrow = pytest.importorskip("pyarrow", reason='pyarrow is not installed: pip install "multihead[parquet]"')
    from pyarrow import parquet

    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table({"de": [one for one, _ in pairs], "en": [one for _, one in pairs]}), sink)
    return store("c.parquet", sink.getvalue().to_pybytes())


def test_prepared_and_cleaned_text_is_that_of_files(store: Callable[[str, bytes], Path], tmp_path: Path) -> None:
    texts = {"source": DE.encode(), "target": EN.encode()}
    remote = {side: store(f"train.{code}", texts[side]) for side, code in (("source", "de"), ("target", "en"))}
    local = {side: tmp_path / f"train.{code}" for side, code in (("source", "de"), ("target", "en"))}
    for side, path in local.items():
        path.write_bytes(texts[side])
    made, kept = [], []
    for number, named in enumerate((remote, local)):
        prepared = prepare(
            output=tmp_path / f"p{number}",
            vocab_size=300,
            say=lambda _: None,
            source=named["source"],
            target=named["target"],
        )
        made.append((prepared.config.pairs, list(data_digests(tmp_path / f"p{number}").items())))
        outputs = Outputs.named(tmp_path / f"{number}.de", tmp_path / f"{number}.en", None, None)
        clean(named["source"], named["target"], outputs)
        kept.append((outputs.kept.read_bytes(), outputs.removed.read_bytes()))
    assert made[0] == made[1]
    assert kept[0] == kept[1]
    record = prepare(
        output=tmp_path / "p0", vocab_size=300, say=lambda _: None, source=remote["source"], target=remote["target"]
    ).config.corpora[0]
    assert [file.path for file in record.files] == ["memory://corpus/train.de", "memory://corpus/train.en"]


def test_errors_name_the_url(store: Callable[[str, bytes], Path]) -> None:
    bad = store("bad.de", DE.encode() + b"\xff\n")
    with pytest.raises(DataError, match=r"^memory://corpus/none: there is no such file"):
        list(read_lines("memory:/corpus/none"))
    with pytest.raises(DataError, match=r"^memory://corpus/bad.de:121: not valid UTF-8"):
        list(read_lines(bad))
    with pytest.raises(ConfigurationError, match=r"^memory://out: this output is written on this machine; name a file"):
        nearest_existing(Path("memory://out"))


class Breaking(MemoryFileSystem):
    """A store that answers from lists that it keeps, and whose connection breaks."""

    protocol = "breaking"
    cachable = True

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, bool] = {}

    def exists(self, path: str, **options: object) -> bool:
        return self.known.setdefault(path, super().exists("/" + path.rpartition("://")[2], **options))

    def invalidate_cache(self, path: str | None = None) -> None:
        self.known.clear()

    def _open(self, path: str, mode: str = "rb", **options: object) -> object:
        if path.endswith("only-read"):
            raise io.UnsupportedOperation
        raise ConnectionResetError("connection lost") if mode == "rb" else RuntimeError("a failure\n  of the package")


def test_what_a_store_keeps_and_raises(store: Callable[[str, bytes], Path]) -> None:
    fsspec.register_implementation("breaking", Breaking, clobber=True)
    name = "breaking://corpus/new"
    assert not storage.exists(name)
    store("new", b"x\n")  # by another process
    assert storage.exists(name)
    with pytest.raises(SurroundingsError, match=r"^breaking://corpus/new: cannot be read: connection lost$"):
        list(read_lines(name))
    with pytest.raises(
        SurroundingsError, match=r"^breaking://corpus/new: cannot be written: a failure of the package$"
    ):
        storage.write(name, [b"y\n"])
    with pytest.raises(SurroundingsError, match=r"^breaking://only-read: cannot be written: no reason is given"):
        storage.write("breaking://only-read", [b"y\n"])
