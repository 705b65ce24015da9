"""A preparation that is killed by SIGKILL at random moments ends with the bytes of one that was not."""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from multihead import work_folder
from multihead.errors import Interrupted
from multihead.preparing import journal, shards
from multihead.preparing.prepare import prepare
from multihead.runs.translator import begin

if TYPE_CHECKING:
    from tests.conftest import Numbers

KILLS = 12

PROGRAM = """
import sys, time
from multihead.preparing import journal, shards
from multihead.preparing.prepare import prepare
from multihead.workers import LocalWorkers

shards.SHARD, journal._SECONDS = 200, -1.0
append = shards.Joiner.append

def slowly(self, shard, writer):
    time.sleep(0.1)
    append(self, shard, writer)

shards.Joiner.append = slowly
source, target, output = sys.argv[1:]
prepare(source=source, target=target, output=output, vocab_size=320, held_out=50, engine=LocalWorkers(2))
"""


def noted(folder: Path) -> int:
    """The size of the journal."""
    journal = folder / work_folder.JOURNAL
    return journal.stat().st_size if journal.exists() else 0


@pytest.mark.proof
def test_killed_at_random_moments_it_ends_as_if_it_had_not_been(numbers: Numbers, tmp_path: Path) -> None:
    files = numbers.write(tmp_path, "many", numbers.pairs(6000, 1))
    text = {"vocab_size": 320, "held_out": 50, "say": lambda _: None}
    prepare(output=tmp_path / "whole", **files, **text)
    output, draw, said = tmp_path / "killed", random.Random(1), ""
    command = [sys.executable, "-u", "-c", PROGRAM, *map(str, files.values()), str(output)]
    resumed = 0
    for _ in range(KILLS):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        before = noted(output)
        while process.poll() is None and noted(output) == before:
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.4))
        process.send_signal(signal.SIGKILL)
        said = process.communicate()[0]
        resumed += "going on after" in said
        if (output / work_folder.PREPARED).exists():
            break
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert resumed >= 2
    assert numbers.contents(output, without=("prepared.json", "manifest.json")) == numbers.contents(
        tmp_path / "whole", without=("prepared.json", "manifest.json")
    )


# ------------------------------------------------------------------------------- the text of a run

TIMES = ("timing.jsonl", "log.txt")


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of 100 pairs, each recorded at once, also in a run with little text."""
    monkeypatch.setattr(shards, "SHARD", 100)
    monkeypatch.setattr(journal, "_SECONDS", -1.0)
    monkeypatch.setattr(begin, "FEW_LINES", 100)


class Killed(BaseException):
    """Simulates a killed process: nothing is done afterwards."""


def die(patch: pytest.MonkeyPatch) -> NoReturn:
    for victim, method in ((work_folder, "_empty"), (Path, "unlink"), (Path, "rmdir"), (shutil, "rmtree")):
        patch.setattr(victim, method, lambda *_, **__: None)
    raise Killed


@pytest.mark.parametrize("moment", ["third shard", "stored", "decided"])
@pytest.mark.usefixtures("small_shards")
def test_a_run_that_is_killed_while_it_prepares_goes_on_with_the_stored_shards(
    numbers: Numbers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    wishes: dict[str, Any] = {**numbers.settings, **numbers.train, "updates": 4, "vocab_size": 320, "held_out": 20}
    numbers.learn(tmp_path / "whole", **wishes)
    append, output, said = shards.Joiner.append, tmp_path / "run", list[str]()

    with monkeypatch.context() as patch:

        def until_the_third(self: shards.Joiner, shard: shards.EncodedShard, writer: Any) -> None:
            die(patch) if self.next.number == 2 else append(self, shard, writer)

        if moment == "third shard":
            patch.setattr(shards.Joiner, "append", until_the_third)
        else:
            place = (begin.NewTranslatorRun, "decide") if moment == "stored" else (work_folder, "write")
            patch.setattr(*place, lambda *_: die(patch))
        with pytest.raises(Killed):
            numbers.learn(output, **wishes)
    numbers.learn(output, **wishes, say=said.append)
    (joined,) = re.findall(r"going on after (\d+) of 600 pairs", "\n".join(said))
    assert (200 <= int(joined) < 300) if moment == "third shard" else int(joined) == 600
    assert numbers.contents(output, without=TIMES) == numbers.contents(tmp_path / "whole", without=TIMES)


@pytest.mark.usefixtures("small_shards")
def test_a_run_that_is_stopped_while_it_prepares_keeps_its_shards_for_the_same_text(
    numbers: Numbers, tmp_path: Path
) -> None:
    wishes: dict[str, Any] = {**numbers.settings, **numbers.train, "updates": 4, "vocab_size": 320, "held_out": 20}
    polls = count(1)
    with pytest.raises(Interrupted, match="again to continue"):
        numbers.learn(tmp_path / "run", **wishes, stop_signal=lambda: signal.SIGINT if next(polls) == 2 else None)
    assert journal.has_shards(tmp_path / "run")
    for changed, goes_on in (({"vocab_size": 330}, False), ({}, False), ({"updates": 3}, True)):
        polls, said = count(1), list[str]()
        with pytest.raises(Interrupted):
            numbers.learn(
                tmp_path / "run",
                **{**wishes, **changed},
                say=said.append,
                stop_signal=lambda polls=polls: signal.SIGINT if next(polls) == 2 else None,
            )
        assert any(line.startswith("going on after") for line in said) == goes_on
