"""Builds what is compiled with the machine's own compiler, once for each compiler, processor and source, and loads it.

There are two libraries: the operations of a training update, and the search of translations, which trainings do not
wait for.

The result lies in the user's cache folder under a key of everything that it depends on. It is compiled under another
name and then renamed, under a lock, so that processes that want it at the same time build it once and never see half a
file. It uses the very OpenMP library that PyTorch has loaded: two of them would fight for the cores.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCES = {"kernels": ("kernels.cpp",), "decoding": ("decoding.cpp", "network.h", "products.h", "packing.h", "tiles.h")}
"""The files of each library; the first is compiled, and the others are part of it."""

SECONDS = 300
"""After which a compiler is given up."""

_log = logging.getLogger("multihead")


class CannotBuild(Exception):  # noqa: N818 - always caught: the plain form is taken, and this is said
    """Why there are no compiled kernels here."""


def load(announce: Callable[[str], None] | None = None, name: str = "kernels") -> tuple[ctypes.CDLL, str]:
    """A compiled library and, in a few words, what it is.

    Args:
        announce: told in one line before a build begins.
        name: of the library, in `SOURCES`.

    Raises:
        CannotBuild: no compiler, or one that does not manage; no folder to write to; not Linux.
    """
    if not sys.platform.startswith("linux") or sys.byteorder != "little":
        raise CannotBuild(f"compiled ones are made on Linux, and this is {platform.system()}")
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None:
        raise CannotBuild("there is no C++ compiler (g++, or what CXX names)")
    openmp = _loaded_openmp()
    version = _said_by([compiler, "--version"]).partition("\n")[0]
    command = [compiler, *_flags()]
    facts = "\n".join((*command, version, str(openmp), _processor()))
    sources = [Path(__file__).with_name(file) for file in SOURCES[name]]
    key = hashlib.sha256(b"".join(file.read_bytes() for file in sources) + facts.encode()).hexdigest()[:20]
    folder = cache_folder() / key
    path = folder / f"{name}.so"
    how = f"{Path(compiler).name} {version.rpartition(' ')[2]}, {folder}"
    try:
        if path.exists():
            _check_owner(folder)
            try:
                return ctypes.CDLL(str(path)), how
            except OSError:  # damaged: build it again
                _log.warning("%s cannot be loaded; building it again", path)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(folder)
        with _lock(folder / "lock"):
            if not _loads(path):
                (announce or _log.info)(f"building the compiled {name}, once for this machine ({folder})")
                began = time.monotonic()
                _compile(command, sources[0], openmp, path)
                _log.info("built in %.1f s", time.monotonic() - began)
        return ctypes.CDLL(str(path)), how
    except OSError as error:
        raise CannotBuild(f"they cannot be kept in {folder}: {error}") from error


def cache_folder() -> Path:
    """Where compiled kernels are kept: the user's cache folder, and nowhere that others may write to."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if given.startswith("/") else Path("~/.cache").expanduser()) / "multihead" / "kernels"


def _flags() -> list[str]:
    machine = platform.machine().lower()
    flags = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fPIC", "-fopenmp"]
    if machine in ("x86_64", "amd64"):
        return [*flags, "-march=native", "-mprefer-vector-width=512"]
    return [*flags, "-mcpu=native"] if machine in ("aarch64", "arm64") else flags


def _compile(command: list[str], source: Path, openmp: Path, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        compiled, linked = Path(folder, "part.o"), Path(folder, path.name)
        _said_by([*command, "-c", str(source), "-o", str(compiled)])
        _said_by([command[0], "-shared", str(compiled), str(openmp), f"-Wl,-rpath,{openmp.parent}", "-o", str(linked)])
        ctypes.CDLL(str(linked))  # a file that cannot be loaded is not kept
        linked.replace(path)


def _said_by(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotBuild(f"{command[0]} does not run: {error}") from error
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[0]
        raise CannotBuild(f"{command[0]} ended with status {done.returncode}: {last}")
    return done.stdout


def _loaded_openmp() -> Path:
    """The OpenMP library in this process: GNU's, which this code is compiled for."""
    import torch

    torch.get_num_threads()  # it is loaded now
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        name = line.partition("/")[2]
        if Path(name).name.startswith("libgomp"):
            return Path("/" + name)
    raise CannotBuild("this PyTorch has not GNU's OpenMP")


def _processor() -> str:
    """What -march=native depends on."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0]
    wanted = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
    return "\n".join(line for line in text.splitlines() if line.partition(":")[0].strip() in wanted)


def _loads(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        ctypes.CDLL(str(path))
    except OSError:
        return False
    return True


def _check_owner(folder: Path) -> None:
    """Code that somebody else can write is not run."""
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise CannotBuild(f"{folder} belongs to somebody else, or others may write to it")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
