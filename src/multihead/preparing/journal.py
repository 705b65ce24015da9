"""The journal of a preparation: which shards are joined, to go on there.

    FOLDER/preparing.jsonl    one JSON object a line; it exists only while the text is prepared

The first line identifies the preparation (`digest_of`: settings, files, programs) and holds what was decided before the
first shard. Every further line is a joined shard: the sizes of the store after it, its held-out pairs and its faults.
A line is written once the store is on the disk up to there, every few seconds. Whatever the moment at which the process
is killed, the store is then cut to the sizes of the last whole line, and the next shard is read. A journal that belongs
to another preparation, or does not fit its store, is not used: the work starts over.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from multihead.data.corpus import Pair, Report
from multihead.data.store_writers import ParallelWriter, Sizes
from multihead.files import force, fsync, write_chunks, write_errors
from multihead.preparing.shards import EncodedShard, Joiner
from multihead.work_folder import JOURNAL

_SECONDS = 2.0
"""Seconds between two points from which the work can go on."""


def digest_of(content: Mapping[str, Any]) -> str:
    """What identifies a preparation: the SHA-256 of everything that decides its result."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


class Journal:
    """The journal in a folder that is being prepared.

    Args:
        folder: the folder.
        digest: from `digest_of`.
    """

    def __init__(self, folder: Path, digest: str) -> None:
        self._path, self.digest = folder / JOURNAL, digest
        self._waiting: list[dict[str, Any]] = []
        self._synced = time.monotonic()

    def read(self) -> dict[str, Any] | None:
        """What was decided before the first shard; None if there is nothing to go on from."""
        head, _ = next(_lines(self._path), ({}, 0))
        decided: dict[str, Any] | None = head.get("decided")
        return decided if head.get("digest") == self.digest else None

    def names(self) -> tuple[str, ...]:
        """What is in the folder and goes on being used; nothing if the work starts over."""
        return () if self.read() is None else (JOURNAL, "data")

    def replay(self, joiner: Joiner) -> Sizes:
        """Count the joined shards; returns the size of the store after the last one. Cuts off an unfinished line."""
        sizes, end = Sizes(), 0
        for number, (line, size) in enumerate(_lines(self._path)):
            if number:
                held_out = [Pair(*row) for row in line["held_out"]]
                joiner.count(line["corpus"], line["ends"], line["pairs"], held_out, Report.restored(line["report"]))
                sizes = Sizes(*line["sizes"])
            end += size
        with write_errors(self._path):
            os.truncate(self._path, end)
        return sizes

    def begin(self, decided: Mapping[str, Any]) -> None:
        """Start the journal with what was decided."""
        with write_errors(self._path):
            write_chunks(self._path, [_dumped({"digest": self.digest, "decided": decided})])
            fsync(self._path)
            fsync(self._path.parent)

    def note(self, shard: EncodedShard, writer: ParallelWriter) -> None:
        """Note a joined shard, now or with one of the next."""
        self._waiting.append(
            {
                "corpus": shard.corpus,
                "ends": shard.ends,
                "pairs": len(shard.lines),
                "held_out": shard.held_out,
                "report": shard.report.state(),
                "sizes": writer.sizes,
            }
        )
        if time.monotonic() - self._synced > _SECONDS:
            self.sync(writer)

    def sync(self, writer: ParallelWriter) -> None:
        """Write what was noted, after the store."""
        if not self._waiting:
            return
        writer.sync()
        with write_errors(self._path), self._path.open("ab") as stream:
            stream.write(b"".join(map(_dumped, self._waiting)))
            stream.flush()
            force(stream.fileno())
        self._waiting.clear()
        self._synced = time.monotonic()


def has_shards(folder: Path) -> bool:
    """Whether a folder holds a journal with a joined shard."""
    return len(list(islice(_lines(folder / JOURNAL), 2))) == 2


def _dumped(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line).encode("ascii") + b"\n"


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """The whole lines of a journal up to the first one that is damaged, each with its size in bytes."""
    try:
        with path.open("rb") as stream:
            for raw in stream:
                line = json.loads(raw) if raw.endswith(b"\n") else None
                if not isinstance(line, dict):
                    return
                yield line, len(raw)
    except (OSError, ValueError, RecursionError):
        return
