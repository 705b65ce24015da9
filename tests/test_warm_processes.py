"""A forked program does what it does in a new process (`processes.WarmPopen`)."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import processes
import pytest

LOOK = """
import atexit, os, sys
atexit.register(print, "at the end")
print(__name__, sys.argv, sys.path[0], os.getcwd(), os.environ.get("SAID"), sys.stdin.read())
print("é", file=sys.stderr)
"""
PROGRAMS: dict[str, str] = {
    "looks": LOOK,
    "fails": "raise ValueError('no')",
    "exits": "import sys; sys.exit(7)",
    "exits with words": "import sys; sys.exit('why')",
    "is killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "refers to itself": """
import dataclasses, sys
@dataclasses.dataclass
class A:
    x: int
print(sys.modules["__main__"].A(1))
""",
    "starts another": """
import multiprocessing
process = multiprocessing.get_context("fork").Process(target=print, args=("there",))
process.start()
process.join()
""",
    "warns": "import warnings; warnings.warn('x')",
}


def ended(popen: Any, command: list[str], folder: Path) -> tuple[Any, ...]:
    environment = {**os.environ, "SAID": "ja", "OMP_NUM_THREADS": "1"}
    with popen(command, stdin=-1, stdout=-1, stderr=-1, cwd=folder, env=environment, text=True) as process:
        out, errors = process.communicate("given", 60)
    return process.returncode, out, errors.splitlines()[-1:]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("kind", ["-c", "file", "-m"])
def test_it_ends_as_if_it_had_been_started(name: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAMS[name], encoding="utf-8")
    words = {"-c": ["-c", PROGRAMS[name]], "file": [str(tmp_path / "program.py")], "-m": ["-m", "program"]}[kind]
    command = [sys.executable, "-W", "error", *words, "one", "-W", "two"]
    assert ended(processes.WarmPopen, command, tmp_path) == ended(subprocess.Popen, command, tmp_path)


def test_programs_are_started_where_there_is_no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("multiprocessing.context.ForkServerContext")
    monkeypatch.setattr("multiprocessing.get_all_start_methods", lambda: ["spawn"])
    spec = importlib.util.spec_from_file_location("other_processes", processes.__file__)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    spec.loader.exec_module(other := importlib.util.module_from_spec(spec))
    assert other.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True).stdout == "1\n"


def test_it_is_the_process_that_signals_reach() -> None:
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with processes.WarmPopen([sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{process.pid}\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


def test_modules_are_there_and_other_commands_are_started(warm_processes: None, tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import sys; print('torch' in sys.modules)"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "True\n"
    words.insert(1, "-I")
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "False\n"
    assert subprocess.run(["pwd"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout == f"{tmp_path}\n"
