"""Builds compiled kernels with the machine's C++ compiler and loads them.

There are two libraries: the operations of a training update (`KERNELS`), and the search of translations
(`engine.native`). Each is built once per compiler, processor and source, and kept in the user's cache folder under a
hash of everything that it depends on. It is compiled under another name and renamed, under a lock, so that several
processes build it once and none loads half a file. It links to the OpenMP library that PyTorch has loaded, since two
OpenMP libraries in a process would compete for the cores.

Compiled kernels are optional. Every operation of `multihead.kernels` has a plain form with PyTorch's operations, which
is used without a compiler, on other devices, for other dtypes, and under torch.compile and function transforms; the
compiled search (`multihead.engine`) has a plain form in `multihead.decoding`. The environment variable MULTIHEAD_NATIVE
decides: ``0`` = never compiled, ``1`` = always (an error where it is impossible), unset = where possible.
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
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from multihead.errors import ConfigurationError

VARIABLE = "MULTIHEAD_NATIVE"
SECONDS = 300
"""Timeout of the compiler."""
TYPES = {torch.float32: 0, torch.bfloat16: 1}
"""Numbers of the element types in kernels.cpp."""

Announce = Callable[[str], None]
"""Called with one line before a build, which takes some seconds."""

_log = logging.getLogger("multihead")


@dataclass(frozen=True)
class Library:
    """Functions that are compiled into one shared library."""

    name: str
    """Name of the file, also for messages."""
    sources: tuple[Path, ...]
    """The file to compile, then the files that it includes."""
    signatures: dict[str, str]
    """Argument types of each function, a letter each (see `_LETTERS`); after a colon the result's, if any."""
    keeps_gil: frozenset[str] = frozenset()
    """Functions that return within a microsecond and keep the GIL: releasing it would mean waiting to regain it."""


class BuildError(Exception):
    """Why a library cannot be built here; the plain form is used and the log shows the message."""


class Native(NamedTuple):
    """A loaded library, or the reason why there is none."""

    library: ctypes.CDLL | None
    reason: str
    """One line for the log, without a full stop."""


_loaded: dict[str, Native] = {}
"""Results of `load_library` in this process, by name of the library."""


def load_kernels(announce: Announce | None = None) -> Native:
    """Load the kernels of training, and build them if needed; later calls return the first result.

    Args:
        announce: called with one line before a build.

    Raises:
        ConfigurationError: MULTIHEAD_NATIVE is 1 and they cannot be built, or it is neither 0 nor 1.
    """
    return load_library(KERNELS, announce)


def load_library(library: Library, announce: Announce | None = None) -> Native:
    """As `load_kernels`, for any library."""
    if library.name not in _loaded:
        _loaded[library.name] = _load(library, announce)
    return _loaded[library.name]


def clear_loaded() -> None:
    """Make the next call of `load_library` start over, for tests."""
    _loaded.clear()


def _load(source: Library, announce: Announce | None) -> Native:
    setting = os.environ.get(VARIABLE, "")
    if setting not in ("", "0", "1"):
        raise ConfigurationError(f"{VARIABLE}={setting!r}: write 0 (never), 1 (always), or nothing (if possible)")
    if setting == "0":
        return Native(None, f"plain {source.name}: {VARIABLE}=0")
    try:
        library, how = build_or_load(source, announce)
    except BuildError as error:
        if setting == "1":
            raise ConfigurationError(f"{VARIABLE}=1, but {error}") from error
        return Native(None, f"plain {source.name}: {error}")
    _declare(library, source)
    return Native(library, f"compiled {source.name} ({how})")


def library_for(*tensors: Tensor | None) -> ctypes.CDLL | None:
    """The compiled kernels, if they support these tensors: plain ones on the CPU, in float32 or bfloat16."""
    if torch.compiler.is_compiling() or _is_transformed():
        return None
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) not in _PLAIN or tensor.device.type != "cpu" or tensor.dtype not in TYPES or tensor.is_nested:
            return None
    return load_kernels().library


_PLAIN = (Tensor, nn.Parameter)


def _is_transformed() -> bool:
    """Whether torch.func's transforms, torch.jit's tracer or forward-mode differentiation are active."""
    return bool(
        torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def pointer(tensor: Tensor | None) -> int | None:
    """The address of a contiguous tensor, as an argument of a kernel."""
    return None if tensor is None else tensor.data_ptr()


def build_or_load(library: Library, announce: Announce | None = None) -> tuple[ctypes.CDLL, str]:
    """Load a library from the cache, or build it; also return a short description of it.

    Args:
        library: the library.
        announce: called with one line before a build.

    Raises:
        BuildError: there is no compiler, or it fails; there is no folder to write to; the system is not Linux.
    """
    if not sys.platform.startswith("linux") or sys.byteorder != "little":
        raise BuildError(f"compiled ones are made on Linux, and this is {platform.system()}")
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None:
        raise BuildError("there is no C++ compiler (g++, or what CXX names)")
    openmp = _loaded_openmp()
    version = _run([compiler, "--version"]).partition("\n")[0]
    command = [compiler, *_flags()]
    facts = "\n".join((*command, version, str(openmp), _processor()))
    key = hashlib.sha256(b"".join(file.read_bytes() for file in library.sources) + facts.encode()).hexdigest()[:20]
    folder = cache_folder() / key
    path = folder / f"{library.name}.so"
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
        with _locked(folder / "lock"):
            if not _is_loadable(path):  # another process may have built it meanwhile
                (announce or _log.info)(f"building the compiled {library.name}, once for this machine ({folder})")
                began = time.monotonic()
                _compile(command, library.sources[0], openmp, path)
                _log.info("built in %.1f s", time.monotonic() - began)
        return ctypes.CDLL(str(path)), how
    except OSError as error:
        raise BuildError(f"they cannot be kept in {folder}: {error}") from error


def cache_folder() -> Path:
    """The folder of compiled kernels in the user's cache folder, where others cannot write."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache.startswith("/") else Path("~/.cache").expanduser()) / "multihead" / "kernels"


def _flags() -> list[str]:
    machine = platform.machine().lower()
    flags = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fPIC", "-fopenmp"]
    if machine in ("x86_64", "amd64"):
        return [*flags, "-march=native", "-mprefer-vector-width=512"]
    return [*flags, "-mcpu=native"] if machine in ("aarch64", "arm64") else flags


def _compile(command: list[str], source: Path, openmp: Path, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        compiled, linked = Path(folder, "part.o"), Path(folder, path.name)
        _run([*command, "-c", str(source), "-o", str(compiled)])
        _run([command[0], "-shared", str(compiled), str(openmp), f"-Wl,-rpath,{openmp.parent}", "-o", str(linked)])
        ctypes.CDLL(str(linked))  # raises before the file gets its final name
        linked.replace(path)


def _run(command: list[str]) -> str:
    """The standard output of a command; `BuildError` if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{command[0]} does not run: {error}") from error
    if done.returncode:
        first = (done.stderr.strip() or "no message").splitlines()[0]
        raise BuildError(f"{command[0]} ended with status {done.returncode}: {first}")
    return done.stdout


def _loaded_openmp() -> Path:
    """The OpenMP library that PyTorch has loaded; it must be GNU's, which this code is compiled for."""
    torch.get_num_threads()  # makes PyTorch load it
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        name = line.partition("/")[2]
        if Path(name).name.startswith("libgomp"):
            return Path("/" + name)
    raise BuildError("this PyTorch has not GNU's OpenMP")


def _processor() -> str:
    """The lines of /proc/cpuinfo that -march=native depends on."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0]
    fields = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
    return "\n".join(line for line in text.splitlines() if line.partition(":")[0].strip() in fields)


def _is_loadable(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        ctypes.CDLL(str(path))
    except OSError:
        return False
    return True


def _check_owner(folder: Path) -> None:
    """Raise `BuildError` if another user could have written the code in this folder."""
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise BuildError(f"{folder} belongs to somebody else, or others may write to it")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


_LETTERS = {
    "p": ctypes.c_void_p,
    "i": ctypes.c_int,
    "l": ctypes.c_int64,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
    "u": ctypes.c_uint32,
}
_KEY = "uulllp"
_KERNELS = {
    "dropout": "pipill" + _KEY + "ifl",
    "keep_mask": "pll" + _KEY + "il",
    "add_norm": "ppipp" + "ppipp" + "llf" + _KEY + "ifl",
    "add_norm_backward": "pipppp" + "pppipp" + "ll" + _KEY + "ifl",
    "activation": "pppiill" + _KEY + "ifl",
    "activation_backward": "pppppiill" + _KEY + "ifl",
    "cross_entropy": "pipllfipppl",
    "attention": "pppppp" + "ippppifl",
    "attention_backward": "ppppppppp" + "ippppifl",
}
KERNELS = Library("kernels", (Path(__file__).with_name("kernels.cpp"),), _KERNELS)
"""The operations of a training update."""


def _declare(library: ctypes.CDLL, source: Library) -> None:
    """Set the argument and result types of each function."""
    keeping_gil = ctypes.PyDLL(library._name)
    for name, letters in source.signatures.items():
        arguments, _, result = letters.partition(":")
        if name in source.keeps_gil:
            setattr(library, name, getattr(keeping_gil, name))
        function = getattr(library, name)
        function.argtypes = [_LETTERS[letter] for letter in arguments]
        function.restype = _LETTERS[result] if result else None
