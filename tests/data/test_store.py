"""Token stores: they round-trip, damage is detected, and incomplete stores never appear."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multihead.data import store_writers
from multihead.data.store import ParallelStore, TokenStore
from multihead.data.store_writers import ParallelWriter, TokenStoreWriter
from multihead.errors import FormatError, InputError, SurroundingsError
from multihead.sealed import OpenFolder

Lists = list[list[int]]
SAMPLE: Lists = [[1, 2, 3], [], [65535], [0, 0], list(range(50))]


def write_store(path: Path, sequences: Lists, vocab_size: int = 65536) -> Path:
    with TokenStoreWriter(path, vocab_size) as writer:
        writer.append(sequences)
    return path


def contents(store: TokenStore) -> Lists:
    return [store[index].tolist() for index in range(len(store))]


@given(
    st.lists(st.lists(st.lists(st.integers(0, 99_999), max_size=5), max_size=4), max_size=4),
    st.sampled_from([100_000, 1 << 31]),
)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, batches: list[Lists], vocab_size: int) -> None:
    path = tmp_path_factory.mktemp("round") / "store"
    with TokenStoreWriter(path, vocab_size) as writer:
        for batch in batches:
            writer.append(batch)
    expected = [sequence for batch in batches for sequence in batch]
    store = TokenStore.open(path)
    assert contents(store) == contents(TokenStore.from_lists(expected)) == expected
    assert store.lengths.dtype == np.int32
    assert store.lengths.tolist() == list(map(len, expected))
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65536, np.uint16), (65537, np.uint32)])
def test_ids_take_two_bytes_where_two_are_enough(tmp_path: Path, vocab_size: int, dtype: type) -> None:
    sequences = [[0, vocab_size - 1], [vocab_size // 2]]
    store = TokenStore.open(write_store(tmp_path / "s", sequences, vocab_size))
    assert contents(store) == sequences
    assert store[0].dtype == dtype


def test_ids_beyond_the_vocabulary_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    for wrong in ([65536], [3, -1]):
        with pytest.raises(InputError, match=rf"token id {wrong[-1]} .* from 0 to 65535"):
            write_store(tmp_path / "s", [[1], wrong])
    assert not list(tmp_path.iterdir())


def test_gather_is_the_concatenation(tmp_path: Path) -> None:
    store = TokenStore.open(write_store(tmp_path / "s", SAMPLE))
    for chosen in ([4, 1, 0, 0], [1], [3]):
        flat, lengths = store.gather(np.array(chosen))
        assert flat.tolist() == [token for index in chosen for token in SAMPLE[index]]
        assert lengths.tolist() == [len(SAMPLE[index]) for index in chosen]


def test_the_ids_at_a_place_are_those_of_each_sequence(tmp_path: Path) -> None:
    store = TokenStore.open(write_store(tmp_path / "s", SAMPLE))
    for place in (0, 1, 49, 50):
        expected = [ids[place] if place < len(ids) else 0 for ids in SAMPLE]
        assert store.ids_at(place).tolist() == expected
        assert store.ids_at(place, 1, 4).tolist() == expected[1:4]


def test_lengths_alone_are_those_of_the_store() -> None:
    store = TokenStore.from_lists(SAMPLE)
    alone = TokenStore.of_lengths(store.lengths)
    assert alone.lengths.tolist() == store.lengths.tolist()
    assert alone.lengths_of(np.array([4, 1])).tolist() == [50, 0]


@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_outside_is_an_error(index: int) -> None:
    with pytest.raises(IndexError, match="a store with 5"):
        TokenStore.from_lists(SAMPLE)[index]


def test_pairs_keep_their_corpus_lines(tmp_path: Path) -> None:
    with ParallelWriter(tmp_path / "data", 100, 100_000) as writer:
        writer.append([[1], [2, 3]], [[99_999], []], [1, 4])
        writer.append([[4]], [[5, 6]], [1 << 40])
    store = ParallelStore.open(tmp_path / "data")
    assert len(store) == 3
    assert contents(store.source) == [[1], [2, 3], [4]]
    assert contents(store.target) == [[99_999], [], [5, 6]]
    assert store.lines.tolist() == [1, 4, 1 << 40]
    assert list(tmp_path.iterdir()) == [tmp_path / "data"]


def test_pairs_in_memory() -> None:
    store = ParallelStore.from_lists([[1], [2, 3]], [[4], []])
    assert (contents(store.source), contents(store.target)) == ([[1], [2, 3]], [[4], []])
    assert store.lines.tolist() == [1, 2]
    with pytest.raises(InputError, match="2 sources but 1 targets"):
        ParallelStore.from_lists([[1], [2]], [[1]])


def test_an_empty_store_of_pairs_is_a_store(tmp_path: Path) -> None:
    with ParallelWriter(tmp_path / "data", 10, 10):
        pass
    assert len(ParallelStore.open(tmp_path / "data")) == 0


class TestHalfWritten:
    def test_an_exception_leaves_nothing(self, tmp_path: Path) -> None:
        def fail(writer: TokenStoreWriter | ParallelWriter, *batch: Lists | list[int]) -> None:
            with writer:
                writer.append(*batch)  # type: ignore[arg-type]
                raise RuntimeError("stop")

        with pytest.raises(RuntimeError, match="stop"):
            fail(TokenStoreWriter(tmp_path / "s", 10), [[1]])
        with pytest.raises(RuntimeError, match="stop"):
            fail(ParallelWriter(tmp_path / "p", 10, 10), [[1]], [[1]], [1])
        assert not list(tmp_path.iterdir())

    def test_unequal_sides_leave_nothing(self, tmp_path: Path) -> None:
        with (
            pytest.raises(InputError, match="2 sources, 1 targets and 2 line numbers"),
            ParallelWriter(tmp_path / "p", 10, 10) as writer,
        ):
            writer.append([[1], [2]], [[1]], [1, 2])
        assert not list(tmp_path.iterdir())

    def test_a_killed_process_leaves_no_store_and_the_next_one_succeeds(self, tmp_path: Path) -> None:
        script = (
            "import os, signal, sys; from multihead.data.store_writers import ParallelWriter\n"
            "with ParallelWriter(sys.argv[1], 10, 10) as writer:\n"
            "    writer.append([[1]] * 9999, [[2]] * 9999, range(9999))\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        path = tmp_path / "data"
        ended = subprocess.run([sys.executable, "-c", script, str(path)], env=environment, check=False)
        assert ended.returncode == -signal.SIGKILL
        assert list(tmp_path.iterdir())  # something was being written,
        with pytest.raises(FormatError, match="no multihead parallel store here"):
            ParallelStore.open(path)  # but not there
        with ParallelWriter(path, 10, 10) as writer:
            writer.append([[3]], [[4]], [7])
        assert ParallelStore.open(path).lines.tolist() == [7]
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize("function", ["fsync", "replace"])
    def test_a_full_disk_is_said_and_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(store_writers.os if function == "fsync" else Path, function, full)
        with pytest.raises(SurroundingsError, match="No space left on device"):
            write_store(tmp_path / "s", SAMPLE)
        with (
            pytest.raises(SurroundingsError, match="No space left on device"),
            ParallelWriter(tmp_path / "p", 9, 9),
        ):
            pass
        assert not list(tmp_path.iterdir())

    def test_a_place_that_may_not_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(SurroundingsError, match="cannot be written"):
            write_store(tmp_path / "file" / "s", SAMPLE)

    def test_nothing_is_overwritten(self, tmp_path: Path) -> None:
        path = write_store(tmp_path / "s", SAMPLE)
        with pytest.raises(FormatError, match="exists already"):
            write_store(path, [[1]])
        assert contents(TokenStore.open(path)) == SAMPLE


class TestDamage:
    @pytest.mark.parametrize("name", ["ids.bin", "offsets.bin"])
    @pytest.mark.parametrize("change", [-1, -8, 8])
    def test_a_file_of_another_size(self, tmp_path: Path, name: str, change: int) -> None:
        file = write_store(tmp_path / "s", SAMPLE) / name
        os.truncate(file, file.stat().st_size + change)
        with pytest.raises(FormatError, match=rf"{name}: has .* expected .* bytes; delete"):
            TokenStore.open(tmp_path / "s")

    @pytest.mark.parametrize("name", ["ids.bin", "offsets.bin", "store.json"])
    def test_a_missing_file(self, tmp_path: Path, name: str) -> None:
        (write_store(tmp_path / "s", SAMPLE) / name).unlink()
        with pytest.raises(FormatError, match=name):
            TokenStore.open(tmp_path / "s")

    @pytest.mark.parametrize("offsets", [[0, 3, 3, 4, 6, 55], [1, 3, 3, 4, 6, 56], [0, 3, 2, 4, 6, 56]])
    def test_offsets_that_do_not_fit(self, tmp_path: Path, offsets: list[int]) -> None:
        (write_store(tmp_path / "s", SAMPLE) / "offsets.bin").write_bytes(np.array(offsets, "<i8").tobytes())
        with pytest.raises(FormatError, match="do not fit"):
            TokenStore.open(tmp_path / "s")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"version": 2}, "version 2, but .*newer multihead"),
            ({"version": None}, "version None"),
            ({"format": "something else"}, "does not describe"),
            ({"dtype": "<f4"}, "damaged description"),
            ({"count": "five"}, "damaged description"),
            ({"count": -1}, "damaged description"),
            ({"tokens": -1}, "do not fit"),
        ],
    )
    def test_another_description(self, tmp_path: Path, change: dict[str, object], message: str) -> None:
        file = write_store(tmp_path / "s", SAMPLE) / "store.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
        with pytest.raises(FormatError, match=message):
            TokenStore.open(tmp_path / "s")

    @pytest.mark.parametrize("text", ["{", "[]", "\xff"])
    def test_a_description_that_is_none(self, tmp_path: Path, text: str) -> None:
        (write_store(tmp_path / "s", SAMPLE) / "store.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(FormatError, match=r"store\.json"):
            TokenStore.open(tmp_path / "s")

    def test_something_else_at_the_path(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        for path in (tmp_path / "absent", tmp_path, tmp_path / "file"):
            with pytest.raises(FormatError, match="no multihead token store here"):
                TokenStore.open(path)
        with pytest.raises(FormatError, match="does not describe a multihead parallel store"):
            ParallelStore.open(write_store(tmp_path / "s", SAMPLE))

    def test_sides_of_different_sizes(self, tmp_path: Path) -> None:
        with ParallelWriter(tmp_path / "p", 10, 10) as writer:
            writer.append([[1]], [[1]], [1])
        (tmp_path / "p" / "source").rename(tmp_path / "old")
        write_store(tmp_path / "p" / "source", [[1], [2]])
        with pytest.raises(FormatError, match="2 sources, 1 targets"):
            ParallelStore.open(tmp_path / "p")

    @pytest.mark.parametrize("name", ["lines.bin", "source/ids.bin", "target/offsets.bin", "target/store.json"])
    def test_a_store_of_pairs_that_is_cut_off(self, tmp_path: Path, name: str) -> None:
        with ParallelWriter(tmp_path / "p", 10, 10) as writer:
            writer.append([[1], [2, 3]], [[1, 2], [5]], [1, 2])
        file = tmp_path / "p" / name
        os.truncate(file, file.stat().st_size - 1)
        with pytest.raises(FormatError, match=rf"{name}: .*delete the folder and make it again from the corpus"):
            ParallelStore.open(tmp_path / "p")

    def test_a_store_that_may_not_be_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write_store(tmp_path / "s", SAMPLE)

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(OpenFolder, "_open", refuse)  # file modes do not stop the superuser
        with pytest.raises(FormatError, match=r"store\.json: cannot be read: Permission denied; delete the folder"):
            TokenStore.open(path)


def test_a_store_is_opened_where_it_stands_by_as_many_as_like(tmp_path: Path) -> None:
    with ParallelWriter(tmp_path / "p", 10, 10) as writer:
        writer.append([[1], [2, 3]], [[1, 2], [5]], [1, 2])
    before = {path: path.stat() for path in tmp_path.rglob("*")}
    one, two = ParallelStore.open(tmp_path / "p"), ParallelStore.open(tmp_path / "p")
    assert one.source[1].tolist() == two.source[1].tolist() == [2, 3]
    with pytest.raises(ValueError, match="read-only"):
        one.source[1][0] = 7
    with pytest.raises(ValueError, match="read-only"):
        one.lines[0] = 7
    after = {path: path.stat() for path in tmp_path.rglob("*")}
    assert {path: (s.st_mtime_ns, s.st_size) for path, s in after.items()} == {
        path: (s.st_mtime_ns, s.st_size) for path, s in before.items()
    }
