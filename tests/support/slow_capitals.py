"""A slow function of shards, to test engines without a model: writes text in capitals and logs its shards."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from multihead.errors import DataError
from multihead.shards.cutting import Shard
from multihead.shards.folder import write_shard


@dataclass
class SlowCapitals:
    """A callable that converts a shard to capitals.

    Args:
        output: folder of the output.
        log: a file that gets a line for each shard that is started: its number and the process.
        seconds: time that each shard takes.
        together: no shard ends before this many processes have started one.
        bad: number of a shard that cannot be read.
        held: shards from this number on wait for `let_go`.
    """

    output: str
    log: Path
    seconds: float = 0.0
    together: int = 1
    bad: int | None = None
    held: int | None = None

    def __call__(self, shard: Shard) -> tuple[int, str]:
        with self.log.open("a") as stream:
            stream.write(f"{shard.number} {os.getpid()}\n")
        if shard.number == self.bad:
            raise DataError("is not text", "input", shard.done + 1)
        time.sleep(self.seconds)
        waits = self.held is not None and shard.number >= self.held
        while len(self.processes()) < self.together or (waits and not self._sign.exists()):
            time.sleep(0.05)
        content = "".join(f"{line.upper()}\n" for line in shard.read("text"))
        return shard.number, write_shard(self.output, shard.number, content.encode())

    @property
    def _sign(self) -> Path:
        return self.log.with_name(f"{self.log.name}.go")

    def let_go(self) -> None:
        """Let the held shards end."""
        self._sign.touch()

    def processes(self) -> set[int]:
        """The processes that have started a shard."""
        return {int(line.split()[1]) for line in self.log.read_text().splitlines()}
