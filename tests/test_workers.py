"""Worker processes: results equal those of one process, in order, whatever happens to the workers."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from multihead.errors import DataError, SurroundingsError
from multihead.workers import Engine, InProcess, LocalWorkers, default_engine

FUNCTIONS = """
import os, signal, threading
from dataclasses import dataclass
from pathlib import Path

@dataclass
class Kills:
    number: int
    mark: Path | None = None  # there once it has killed

    def __call__(self, item):
        if item == self.number and (self.mark is None or not self.mark.exists()):
            if self.mark is not None:
                self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * item

@dataclass
class Raises:
    error: BaseException

    def __call__(self, item):
        if item == 5:
            raise self.error
        return item

class CannotBePickledError(Exception):
    def __init__(self):
        super().__init__("its lock")
        self.lock = threading.Lock()

def refuse(_):
    raise CannotBePickledError

def talk(item):
    print("printed")
    return item
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module that workers find on the path of this process."""
    (tmp_path / "functions_for_workers.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("functions_for_workers")
    del sys.modules["functions_for_workers"]


@pytest.mark.parametrize("engine", [InProcess(), LocalWorkers(2, 2)])
def test_results_come_in_order(engine: Engine) -> None:
    assert isinstance(engine, Engine)
    assert list(engine.map(str, range(40))) == [str(n) for n in range(40)]
    assert list(engine.map(str, [])) == []


def test_only_the_next_items_are_read() -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            read.append(number)
            yield number

    before = children()  # processes of other tests
    results = LocalWorkers(2).map(abs, items())
    for taken in range(20):
        assert next(results) == taken
        assert len(read) <= taken + 6
    assert len(children() - before) == 2
    results.close()
    assert len(read) < 30
    assert children() <= before


def test_a_worker_that_is_killed_is_replaced(functions: ModuleType, tmp_path: Path) -> None:
    assert list(LocalWorkers(2).map(functions.Kills(7, tmp_path / "mark"), range(20))) == list(range(0, 40, 2))


def test_an_item_that_kills_each_worker_ends_the_work(functions: ModuleType) -> None:
    with pytest.raises(SurroundingsError, match=r"2 times at the same place \(signal 9\)"):
        list(LocalWorkers(2).map(functions.Kills(3), range(20)))


@pytest.mark.parametrize("engine", [InProcess(), LocalWorkers(2)])
def test_an_error_is_raised_where_the_results_are_taken(functions: ModuleType, engine: Engine) -> None:
    found = []
    with pytest.raises(DataError, match="a:3: wrong") as caught:
        found.extend(engine.map(functions.Raises(DataError("wrong", Path("a"), 3)), range(20)))
    assert (caught.value.path, caught.value.line) == (Path("a"), 3)


def test_an_error_that_cannot_be_pickled_is_told(functions: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="CannotBePickledError: its lock"):
        list(LocalWorkers(1).map(functions.refuse, [1]))


def test_a_function_that_workers_cannot_import_is_told(functions: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[1:])
    with pytest.raises(ModuleNotFoundError, match="functions_for_workers"):
        list(LocalWorkers(1).map(functions.talk, [1]))


def test_an_error_of_the_items_ends_the_work_and_what_a_function_prints_does_not_disturb(functions: ModuleType) -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        raise DataError("cut off")

    found, before = list[int](), children()
    with pytest.raises(DataError, match="cut off"):
        found.extend(LocalWorkers(1).map(functions.talk, items()))
    assert list(InProcess().map(functions.talk, range(3))) == [0, 1, 2]
    assert children() <= before


def children() -> set[int]:
    """The processes that this one has started but not waited for."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended since
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


def test_an_interrupt_does_not_reach_a_worker() -> None:
    """The signal is blocked before `serve` can ignore it, and only there."""
    blocked = partial(signal.pthread_sigmask, signal.SIG_BLOCK)
    (masked,) = LocalWorkers(1).map(blocked, [()])
    assert signal.SIGINT in masked
    assert signal.SIGINT not in blocked(())


def test_all_cores_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, expected in ((1, None), (2, (2, 1)), (8, (8, 1)), (64, (8, 8))):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)), raising=False)
        engine = default_engine()
        assert (isinstance(engine, LocalWorkers) and (engine.count, engine.threads)) == (expected or False)


def test_a_worker_ends_with_its_parent_in_the_middle_of_an_item() -> None:
    code = "import time; from multihead.workers import LocalWorkers; list(LocalWorkers(1).map(time.sleep, [600]))"
    parent = subprocess.Popen([sys.executable, "-c", code])
    children, deadline = Path(f"/proc/{parent.pid}/task/{parent.pid}/children"), time.monotonic() + 60
    if not children.exists():
        parent.kill()
        pytest.skip("this system does not list the children of a process")
    while not (
        workers := [pid for task in children.parents[1].iterdir() for pid in (task / "children").read_text().split()]
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.5)  # it is at its item, or about to be
    parent.kill()
    parent.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.01)
