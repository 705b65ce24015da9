"""Python programs in processes forked from one that has imported the package: they start in milliseconds.

On systems without fork, `run` starts ordinary processes, and `starter` raises a ValueError.
"""

from __future__ import annotations

import atexit
import inspect
import multiprocessing
import os
import runpy
import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from multiprocessing import reduction
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

# The last module, which PyTorch imports for its first optimizer, takes a third of the import time.
_IMPORTED = ["multihead.cli.main", "multihead.runs.translator.train", "torch._dynamo"]


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    return context


# --------------------------------------------------------------------------- commands


def _run(words: list[str], errors: Path) -> None:
    from multihead.cli.main import main

    with errors.open("wb") as stream:
        os.dup2(stream.fileno(), 2)
    sys.exit(main(words))


def starter() -> Callable[[list[str], Path], BaseProcess]:
    """A function that starts ``multihead`` with some words and a file for standard error, and returns the process."""
    context = _context()
    first = context.Process(target=abs, args=(1,))
    first.start()
    first.join()

    def start(words: list[str], errors: Path) -> BaseProcess:
        process = context.Process(target=_run, args=(words, errors))
        process.start()
        return process

    return start


# --------------------------------------------------------------------------- programs


class WarmPopen(subprocess.Popen[Any]):
    """`subprocess.Popen` that forks Python programs from a process that has imported the package.

    The program gets its arguments, environment, working directory and streams as in a new process. Two things differ:
    modules that it has not imported are loaded, and it shares the seed of `hash` with other programs. Other commands,
    and Python programs with options that a fork cannot apply, run in ordinary new processes.
    """

    _forked: BaseProcess | None = None

    def _execute_child(self, args: Any, *others: Any) -> None:
        start = super()._execute_child  # type: ignore[misc]
        given = inspect.signature(start).bind(args, *others).arguments
        program = _Program.of(args)
        if program is None or given["preexec_fn"] or given["shell"] or given["pass_fds"] or given["executable"]:
            start(args, *others)
            return
        ends = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        streams = _Streams([number if end == -1 else end for number, end in enumerate(ends)])
        environment = dict(os.environ if given["env"] is None else given["env"])
        folder = os.fspath(given["cwd"] or Path.cwd())
        self._forked = _context().Process(
            target=program.run, args=(environment, folder, streams, given["start_new_session"]), daemon=True
        )
        self._forked.start()
        self.pid, self._child_created = self._forked.pid, True
        self._close_pipe_fds(
            *(given[f"{stream}{end}"] for stream in ("p2c", "c2p", "err") for end in ("read", "write"))
        )  # type: ignore[attr-defined]

    def _internal_poll(self, *given: Any, **options: Any) -> int | None:
        if self._forked is None:
            return super()._internal_poll(*given, **options)  # type: ignore[misc, no-any-return]
        if self.returncode is None:
            self.returncode = self._forked.exitcode
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._forked is None:
            return super()._wait(timeout)  # type: ignore[misc, no-any-return]
        self._forked.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode


def run(*given: Any, **options: Any) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` with `WarmPopen`."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return subprocess.run(*given, **options)
    with mock.patch.object(subprocess, "Popen", WarmPopen):
        return subprocess.run(*given, **options)


class _Streams:
    """File descriptors that are passed to another process as its standard streams."""

    def __init__(self, numbers: list[Any]) -> None:
        self._numbers = numbers

    def __reduce__(self) -> tuple[Any, ...]:
        return _Streams, ([reduction.DupFd(number) for number in self._numbers],)

    def take(self, *, unbuffered: bool) -> None:
        """Install them as the standard streams of this process."""
        for number, given in enumerate(self._numbers):
            own = given.detach()
            os.dup2(own, number)
            os.close(own)
        sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
        sys.stdout, sys.stderr = (
            open(number, "w", encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
            for number, errors in ((1, "strict"), (2, "backslashreplace"))
        )
        sys.stdout.reconfigure(write_through=unbuffered)
        sys.stderr.reconfigure(line_buffering=True)
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]


class _Program:
    """A Python program: code, a module or a file, and its arguments."""

    def __init__(self, kind: str, name: str, arguments: list[str], filters: list[str], *, unbuffered: bool) -> None:
        self._kind, self._name, self._arguments = kind, name, arguments
        self._filters, self._unbuffered = filters, unbuffered

    @classmethod
    def of(cls, words: Any) -> _Program | None:
        """The program of a command; None if it is not a Python program or has unsupported options."""
        if isinstance(words, (str, bytes, os.PathLike)) or os.fspath(words[0]) != sys.executable:
            return None
        rest, filters, unbuffered = [os.fspath(word) for word in words[1:]], [], False
        while rest and rest[0] in ("-W", "-u"):
            if rest.pop(0) == "-u":
                unbuffered = True
            else:
                filters.append(rest.pop(0))
        if (
            not rest
            or (rest[0].startswith("-") and rest[0] not in ("-c", "-m"))
            or not {*filters} <= {"error", "ignore"}
        ):
            return None
        kind = rest.pop(0) if rest[0] in ("-c", "-m") else "file"
        return cls(kind, rest[0], rest[1:], filters, unbuffered=unbuffered)

    def run(self, environment: dict[str, str], folder: str, streams: _Streams, new_session: bool) -> None:
        """Run the program in this process, which was forked for it."""
        import torch

        multiprocessing.current_process().daemon = False  # it may start processes
        if new_session:
            os.setsid()
        streams.take(unbuffered=self._unbuffered)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        torch.set_num_threads(int(environment.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
        for action in self._filters:
            warnings.simplefilter(action)  # type: ignore[arg-type]
        self._add_search_path(environment.get("PYTHONPATH", "").split(os.pathsep))
        try:
            self._execute()
        finally:
            atexit._run_exitfuncs()

    def _add_search_path(self, places: Sequence[str]) -> None:
        first = {"-c": "", "-m": str(Path.cwd())}.get(self._kind, str(Path(self._name).resolve().parent))
        sys.path[:] = [first, *(place for place in places if place), *sys.path]

    def _execute(self) -> None:
        sys.argv = ["-c" if self._kind == "-c" else self._name, *self._arguments]
        if self._kind == "-m":
            runpy.run_module(self._name, run_name="__main__", alter_sys=True)
        elif self._kind == "file":
            runpy.run_path(self._name, run_name="__main__")
        else:
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(self._name, "<string>", "exec"), vars(main))
