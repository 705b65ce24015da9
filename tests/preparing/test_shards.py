"""Shards: every pair is in one of them, and who encodes them does not matter."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from multihead.data.corpus import Report
from multihead.data.readers import CorpusScan, scan_corpus
from multihead.data.store import ParallelStore
from multihead.data.store_writers import ParallelWriter
from multihead.errors import InputError
from multihead.preparing import shards
from multihead.preparing.prepare import prepare
from multihead.preparing.shards import Encoder, Joiner, Start, TextShard, read_shards
from multihead.text.tokenizer import Tokenizer
from multihead.workers import InProcess, LocalWorkers

if TYPE_CHECKING:
    from tests.conftest import Numbers

SIZE = 40
HELD_OUT = [frozenset({0, 39, 40, 41, 120}), frozenset[int]()]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD", SIZE)


@pytest.fixture
def scans(numbers: Numbers, tmp_path: Path) -> list[CorpusScan]:
    """Two corpora: one with faults, also after its last pair, and one of whole shards."""
    faulty = [("", "x") if n % 17 == 0 else pair for n, pair in enumerate(numbers.pairs(150, 1))]
    files = numbers.write(tmp_path, "a", [*faulty, ("eins", " ")]), numbers.write(tmp_path, "b", numbers.pairs(80, 2))
    return [scan_corpus(pair["source"], pair["target"]) for pair in files]


@pytest.fixture(scope="module")
def encoder(numbers: Numbers) -> Encoder:
    pairs = numbers.pairs(100, 1)
    source, target = (Tokenizer.learn([pair[side] for pair in pairs], 310) for side in (0, 1))
    return Encoder(source, target, range(1, 12))


def test_the_shards_hold_what_the_readers_yield(scans: list[CorpusScan]) -> None:
    found = list(read_shards(scans, HELD_OUT))
    assert [shard.number for shard in found] == list(range(len(found)))
    assert [shard.corpus for shard in found if shard.ends] == [0, 1]
    for corpus, scan in enumerate(scans):
        own, report = [shard for shard in found if shard.corpus == corpus], Report()
        read = list(scan.read(report))
        assert [pair for shard in own for pair in shard.pairs] == [
            pair for index, pair in enumerate(read) if index not in HELD_OUT[corpus]
        ]
        assert [pair for shard in own for pair in shard.held_out] == [read[i] for i in sorted(HELD_OUT[corpus])]
        assert [fault for shard in own for fault in shard.report.faults] == report.faults
        assert all(len(shard.pairs) == SIZE for shard in own[:-1])


def test_reading_begins_at_any_shard(scans: list[CorpusScan]) -> None:
    whole = list(read_shards(scans, HELD_OUT))
    seen = [0, 0]
    for number, shard in enumerate(whole):
        start = Start(number, shard.corpus, seen[shard.corpus])
        assert [described(s) for s in read_shards(scans, HELD_OUT, start)] == [described(s) for s in whole[number:]]
        seen[shard.corpus] += 1


def described(shard: TextShard) -> tuple[Any, ...]:
    return shard.number, shard.corpus, shard.ends, shard.pairs, shard.held_out, shard.report.faults


def test_an_encoder_is_a_function_that_can_be_sent(scans: list[CorpusScan], encoder: Encoder) -> None:
    """Called again, and from its pickle, it gives the same; the shard is not changed."""
    for shard in read_shards(scans, HELD_OUT):
        before = shard.report.left_out
        results = [
            encoder(shard),
            encoder(shard),
            pickle.loads(pickle.dumps(encoder))(pickle.loads(pickle.dumps(shard))),
        ]
        assert shard.report.left_out == before
        assert len({pickle.dumps(result) for result in results}) <= 2  # memo of equal strings may differ once
        for other in results[1:]:
            assert [part.tolist() for part in (*other.source, *other.target, other.lines)] == [
                part.tolist() for part in (*results[0].source, *results[0].target, results[0].lines)
            ]
            assert other.report.faults == results[0].report.faults


def test_joined_they_are_the_store_of_all_pairs(scans: list[CorpusScan], encoder: Encoder, tmp_path: Path) -> None:
    joiner = Joiner(2)
    with ParallelWriter(tmp_path / "store", 310, 310) as writer:
        for shard in map(encoder, read_shards(scans, HELD_OUT)):
            joiner.append(shard, writer)
        with pytest.raises(InputError, match="expected"):
            joiner.append(shard, writer)
    store = ParallelStore.open(tmp_path / "store")
    expected, held_out = [], []
    for scan, held, tally in zip(scans, HELD_OUT, joiner.tallies, strict=True):
        report, before, long = Report(), len(expected), set()
        for index, pair in enumerate(scan.read(report)):
            both = [t.encode(text) for t, text in zip(encoder._tokenizers, pair[1:], strict=True)]
            if index in held:
                held_out.append(pair)
            elif max(map(len, both)) < 12:
                expected.append((pair.line, *both))
            else:
                long.add(pair.line)
        assert long
        assert tally.pairs == len(expected) - before > 0
        assert {fault.line for fault in tally.report.faults} == long | {fault.line for fault in report.faults}
        assert tally.report.left_out == len(long) + report.left_out
    found = zip(store.lines.tolist(), store.source, store.target, strict=True)
    assert [(line, source.tolist(), target.tolist()) for line, source, target in found] == expected
    assert joiner.held_out == held_out != []
    assert joiner.seen == sum(scan.lines for scan in scans)
    assert joiner.next.corpus == 2


def test_a_report_in_parts_is_the_report(tmp_path: Path) -> None:
    whole, merged, restored = Report(limit=25), Report(limit=25), Report(limit=25)
    for part in range(6):
        own = Report()
        for line in range(part, 60, 6):
            for report in (whole, own):
                report.add(tmp_path / f"{line % 2}", line, f"reason {line % 3}", str(part))
        merged.merge(own)
        restored.merge(Report.restored(own.state()))
    for report in (merged, restored):
        assert report.faults == whole.faults
        assert report.summary() == whole.summary()
        assert report.counts == whole.counts


def test_workers_write_the_same_bytes(numbers: Numbers, tmp_path: Path) -> None:
    for name, engine in (("one", InProcess()), ("two", LocalWorkers(2))):
        prepare(**numbers.train, output=tmp_path / name, vocab_size=320, say=lambda _: None, engine=engine)
    assert numbers.contents(tmp_path / "one") == numbers.contents(tmp_path / "two")
