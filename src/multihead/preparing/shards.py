"""Shards of text: read in order, encoded anywhere, joined in order.

A shard is the next `SHARD` training pairs of a corpus, in the order of its reader, with what the reader met on the way:
held-out pairs, and the faults of pairs that cannot be used. The last shard of a corpus is shorter, and may be empty;
its ``ends`` says so. Shards are numbered from 0 over all corpora. The same text and held-out pairs always give the same
shards, so a preparation is resumed by a number, and its result does not depend on who encodes which shard.

    read_shards(scans, held_out)    in one process: streams every corpus once, and yields its shards as `TextShard`s
    Encoder(shard)                  anywhere, in any order: a function from `TextShard` to `EncodedShard`; it and both
                                    kinds of shard can be pickled
    Joiner.append(shard)            in one process, in the order of numbers: fills the store, counts and collects

A `workers.Engine` carries shards from the first to the last. `prepare` is the caller that does all of this for files
and a folder, `journal` makes it resumable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from multihead.data.corpus import Pair, Report
from multihead.data.readers import CorpusScan
from multihead.data.store import Flat, Int64
from multihead.data.store_writers import ParallelWriter
from multihead.errors import InputError
from multihead.text.terms import Terms
from multihead.text.tokenizer import Tokenizer

SHARD = 10_000
"""Training pairs of a shard: some 0.4 s of one core, 1 to 3 MB of text."""


@dataclass(frozen=True)
class TextShard:
    """A shard as it was read.

    Attributes:
        number: counted from 0, over all corpora.
        corpus: number of its corpus.
        ends: whether it is the last one of its corpus.
        paths: the files of source and target, for faults.
        pairs: the training pairs.
        held_out: pairs that are held out for validation.
        report: the pairs that the reader left out.
    """

    number: int
    corpus: int
    ends: bool
    paths: tuple[Path, Path]
    pairs: list[Pair]
    held_out: list[Pair]
    report: Report


@dataclass(frozen=True, eq=False)
class EncodedShard:
    """A shard as it is stored.

    Attributes:
        number: as in `TextShard`; so are ``corpus``, ``ends`` and ``held_out``.
        corpus: number of its corpus.
        ends: whether it is the last one of its corpus.
        source: the ids of all sources, and the length of each.
        target: likewise.
        lines: the line of each pair in the corpus.
        held_out: pairs that are held out for validation.
        report: the pairs that were left out, for their text or their length.
    """

    number: int
    corpus: int
    ends: bool
    source: Flat
    target: Flat
    lines: Int64
    held_out: list[Pair]
    report: Report


# --------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Start:
    """Where reading begins.

    Attributes:
        number: number of the first shard to read, over all corpora.
        corpus: its corpus.
        skipped: shards of that corpus that come before it.
    """

    number: int = 0
    corpus: int = 0
    skipped: int = 0


def read_shards(
    scans: Sequence[CorpusScan], held_out: Sequence[Set[int]], start: Start | None = None
) -> Iterator[TextShard]:
    """The shards of corpora, one after the other.

    Args:
        scans: the corpora.
        held_out: for each corpus, the indices among its usable pairs of those that are held out.
        start: where to begin; the corpora before are not read.

    Raises:
        DataError: as `CorpusScan.read`.
    """
    start = start or Start()
    number = start.number - start.skipped
    for corpus, (scan, held) in enumerate(zip(scans, held_out, strict=True)):
        if corpus < start.corpus:
            continue
        for shard in _shards_of(scan, held, corpus, number):
            number += 1
            if shard.number >= start.number:
                yield shard


def _shards_of(scan: CorpusScan, held: Set[int], corpus: int, number: int) -> Iterator[TextShard]:
    recorder, kept = _Recorder(), list[Pair]()
    paths = scan.path(0), scan.path(1)
    training = _without_held_out(scan.read(recorder), held, kept)
    while True:
        pairs = list(islice(training, SHARD))
        ends = len(pairs) < SHARD
        yield TextShard(number, corpus, ends, paths, pairs, kept[:], recorder.take())
        if ends:
            return
        kept.clear()
        number += 1


def _without_held_out(pairs: Iterator[Pair], held: Set[int], kept: list[Pair]) -> Iterator[Pair]:
    """The pairs that are not held out; the others are appended to ``kept``."""
    if not held:
        yield from pairs
        return
    for index, pair in enumerate(pairs):
        if index in held:
            kept.append(pair)
        else:
            yield pair


class _Recorder(Report):
    """A report of a whole corpus, which counts only, and of the part since the last `take`."""

    def __init__(self) -> None:
        super().__init__(limit=0)
        self._part = Report()

    def add(self, path: str | Path, line: int, reason: str, detail: str = "") -> None:
        super().add(path, line, reason, detail)
        self._part.add(path, line, reason, detail)

    def take(self) -> Report:
        """The report since the last call."""
        part, self._part = self._part, Report()
        return part


# --------------------------------------------------------------------------- encoding


class Encoder:
    """Encodes shards: subword ids of both sides, without the pairs of unwanted length.

    It is a function of its shard alone, and is pickled as the text of its tokenizers.

    Args:
        source: the tokenizer of sources.
        target: the tokenizer of targets.
        lengths: the allowed numbers of subwords of each side.
        symbols: for each corpus, the ids before its sources, which say into which language; empty if there are none.
        terms: are annotated in sources.
    """

    def __init__(
        self,
        source: Tokenizer,
        target: Tokenizer,
        lengths: range,
        symbols: Sequence[tuple[int, ...]] = (),
        terms: Terms | None = None,
    ) -> None:
        self._tokenizers, self._lengths, self._terms = (source, target), lengths, terms
        self._symbols = tuple(symbols) if any(symbols) else ()

    def __reduce__(self) -> tuple[Callable[..., Encoder], tuple[Any, ...]]:
        texts = (tokenizer.to_json() for tokenizer in self._tokenizers)
        return _encoder_of, (*texts, self._lengths, self._symbols, self._terms)

    def __call__(self, shard: TextShard) -> EncodedShard:
        """The ids of a shard; pairs of unwanted length go to its report, after those that the reader left out."""
        texts = self._tokenizers[0].training_pairs(
            [pair.source for pair in shard.pairs], [pair.target for pair in shard.pairs]
        )
        if self._terms is not None:
            texts = list(map(self._terms.annotate_pair, *texts)), texts[1]
        ids = [tokenizer.encode_batch(side) for tokenizer, side in zip(self._tokenizers, texts, strict=True)]
        if self._symbols:
            ids[0] = [[*self._symbols[shard.corpus], *row] if row else row for row in ids[0]]
        report = Report()
        report.merge(shard.report)
        fitting = [
            i for i, both in enumerate(zip(*ids, strict=True)) if self._fits(shard, shard.pairs[i].line, both, report)
        ]
        source, target = (
            _flat(side if len(fitting) == len(side) else [side[i] for i in fitting], tokenizer)
            for side, tokenizer in zip(ids, self._tokenizers, strict=True)
        )
        lines = np.array([shard.pairs[i].line for i in fitting], np.int64)
        return EncodedShard(shard.number, shard.corpus, shard.ends, source, target, lines, shard.held_out, report)

    def _fits(self, shard: TextShard, line: int, ids: Sequence[list[int]], report: Report) -> bool:
        """Whether both sides have an allowed length; otherwise the first that has not goes to the report."""
        for side, length in enumerate(map(len, ids)):
            if length not in self._lengths:
                long = length >= self._lengths.stop
                reason = f"more than {self._lengths.stop - 1}" if long else f"fewer than {self._lengths.start}"
                report.add(shard.paths[side], line, f"{reason} subwords", str(length))
                return False
        return True


def _encoder_of(
    source: str, target: str, lengths: range, symbols: Sequence[tuple[int, ...]], terms: Terms | None
) -> Encoder:
    own = Tokenizer.from_json(source)
    return Encoder(own, own if source == target else Tokenizer.from_json(target), lengths, symbols, terms)


def _flat(ids: list[list[int]], tokenizer: Tokenizer) -> Flat:
    """The concatenated ids in as few bytes as they need, and their lengths."""
    lengths = np.fromiter(map(len, ids), np.int32, len(ids))
    dtype: npt.DTypeLike = np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32
    return np.fromiter(chain.from_iterable(ids), dtype, int(lengths.sum())), lengths


# --------------------------------------------------------------------------- joining


@dataclass
class Tally:
    """What became of the pairs of a corpus."""

    pairs: int = 0
    """Training pairs in the store."""
    shards: int = 0
    """Shards that were joined."""
    report: Report = field(default_factory=Report)
    """The pairs that were left out."""


class Joiner:
    """Joins encoded shards: their ids go to the store, the rest is collected.

    Args:
        corpora: number of corpora.
    """

    def __init__(self, corpora: int) -> None:
        self.tallies = [Tally() for _ in range(corpora)]
        self.held_out: list[Pair] = []
        """The pairs held out from all corpora."""
        self.next = Start()
        """The shard to join next; its corpus is the number of corpora if there is none."""

    def append(self, shard: EncodedShard, writer: ParallelWriter) -> None:
        """Join the next shard.

        Raises:
            InputError: it is not the next one.
        """
        if shard.number != self.next.number:
            raise InputError(f"shard {shard.number} to be joined; expected {self.next.number}, as they are in order")
        writer.append_flat(shard.source, shard.target, shard.lines)
        self.count(shard.corpus, shard.ends, len(shard.lines), shard.held_out, shard.report)

    def count(self, corpus: int, ends: bool, pairs: int, held_out: Sequence[Pair], report: Report) -> None:
        """Count the next shard, whose ids are in the store."""
        tally = self.tallies[corpus]
        tally.pairs, tally.shards = tally.pairs + pairs, tally.shards + 1
        tally.report.merge(report)
        self.held_out.extend(held_out)
        number = self.next.number + 1
        self.next = Start(number, corpus + 1) if ends else Start(number, corpus, tally.shards)

    @property
    def seen(self) -> int:
        """Candidates for a pair, as `CorpusScan.lines` counts them, that have been dealt with."""
        return sum(tally.pairs + tally.report.left_out for tally in self.tallies) + len(self.held_out)
