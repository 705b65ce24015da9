"""Builds what is compiled with the machine's own compiler, once for each compiler, processor and source, and loads it.

There are two libraries: the operations of a training update, and the search of translations, which trainings do not
wait for.

The result lies in the user's cache folder under a key of everything that it depends on. It is compiled under another
name and then renamed, under a lock, so that processes that want it at the same time build it once and never see half a
file. It uses the very OpenMP library that PyTorch has loaded: two of them would fight for the cores.

The compiled kernels: whether they are there, and why not if they are not. How they are built is in `build`.

Nothing depends on them: each operation of `multihead.kernels` has a plain form of PyTorch's operations, which is taken
where no compiler is, on other devices, for other types, under compilers and function transforms; and the compiled
search (`multihead.engine`) has the searches of `multihead.decoding` beside it. The environment variable
MULTIHEAD_NATIVE says what is wished: ``0`` never, ``1`` always (an error where it cannot be), unset: where it can be.
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

SECONDS = 300
"""After which a compiler is given up."""

_log = logging.getLogger("multihead")


@dataclass(frozen=True)
class Library:
    """Functions that are compiled into one shared library.

    Attributes:
        name: of the file, and in messages.
        sources: the file that is compiled, then those that it includes.
        signatures: argument types of each function, a letter each (see `_LETTERS`); after a colon the result's, if any.
        brief: functions that return within a microsecond and keep Python's global lock meanwhile: releasing it would
            mean waiting to regain it.
    """

    name: str
    sources: tuple[Path, ...]
    signatures: dict[str, str]
    brief: frozenset[str] = frozenset()


class BuildError(Exception):
    """Why there are no compiled kernels here."""


def load(library: Library, announce: Callable[[str], None] | None = None) -> tuple[ctypes.CDLL, str]:
    """A compiled library and, in a few words, what it is.

    Args:
        library: which one.
        announce: told in one line before a build begins.

    Raises:
        CannotBuild: no compiler, or one that does not manage; no folder to write to; not Linux.
    """
    if not sys.platform.startswith("linux") or sys.byteorder != "little":
        raise BuildError(f"compiled ones are made on Linux, and this is {platform.system()}")
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None:
        raise BuildError("there is no C++ compiler (g++, or what CXX names)")
    openmp = _loaded_openmp()
    version = _said_by([compiler, "--version"]).partition("\n")[0]
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
        with _lock(folder / "lock"):
            if not _loads(path):
                (announce or _log.info)(f"building the compiled {library.name}, once for this machine ({folder})")
                began = time.monotonic()
                _compile(command, library.sources[0], openmp, path)
                _log.info("built in %.1f s", time.monotonic() - began)
        return ctypes.CDLL(str(path)), how
    except OSError as error:
        raise BuildError(f"they cannot be kept in {folder}: {error}") from error


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
        raise BuildError(f"{command[0]} does not run: {error}") from error
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[0]
        raise BuildError(f"{command[0]} ended with status {done.returncode}: {last}")
    return done.stdout


def _loaded_openmp() -> Path:
    """The OpenMP library in this process: GNU's, which this code is compiled for."""
    import torch

    torch.get_num_threads()  # it is loaded now
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        name = line.partition("/")[2]
        if Path(name).name.startswith("libgomp"):
            return Path("/" + name)
    raise BuildError("this PyTorch has not GNU's OpenMP")


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
        raise BuildError(f"{folder} belongs to somebody else, or others may write to it")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


VARIABLE = "MULTIHEAD_NATIVE"

Announce = Callable[[str], None]

TYPES = {torch.float32: 0, torch.bfloat16: 1}
"""The numbers of the types of elements in kernels.cpp."""


class Native(NamedTuple):
    """The compiled kernels, or the reason why there are none."""

    library: ctypes.CDLL | None
    reason: str
    """For a log: one line without a full stop."""


_found: dict[str, Native] = {}
"""What was looked for in this process, by the library's name."""


def native(announce: Announce | None = None) -> Native:
    """Loads the kernels, building them if need be; looks once in a process.

    Args:
        announce: told in one line before a build begins, which takes some seconds.

    Raises:
        ConfigurationError: MULTIHEAD_NATIVE is 1 and they cannot be had, or is neither 0 nor 1.
    """
    return find(KERNELS, announce)


def find(library: Library, announce: Announce | None = None) -> Native:
    """As `native`, for any library."""
    if library.name not in _found:
        _found[library.name] = _find(library, announce)
    return _found[library.name]


def forget() -> None:
    """Makes the next call of `find` look again: for tests of the variable."""
    _found.clear()


def _find(source: Library, announce: Announce | None) -> Native:
    wish = os.environ.get(VARIABLE, "")
    if wish not in ("", "0", "1"):
        raise ConfigurationError(f"{VARIABLE}={wish!r}: write 0 (never), 1 (always), or nothing (if possible)")
    if wish == "0":
        return Native(None, f"plain {source.name}: {VARIABLE}=0")
    try:
        library, how = load(source, announce)
    except BuildError as error:
        if wish == "1":
            raise ConfigurationError(f"{VARIABLE}=1, but {error}") from error
        return Native(None, f"plain {source.name}: {error}")
    _declare(library, source)
    return Native(library, f"compiled {source.name} ({how})")


def library_for(*tensors: Tensor | None) -> ctypes.CDLL | None:
    """The compiled kernels if they can be had for these tensors: plain ones on the CPU, float32 or bfloat16."""
    if torch.compiler.is_compiling() or _transformed():
        return None
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) not in _PLAIN or tensor.device.type != "cpu" or tensor.dtype not in TYPES or tensor.is_nested:
            return None
    return native().library


_PLAIN = (Tensor, nn.Parameter)


def _transformed() -> bool:
    """Inside torch.func's transforms, torch.jit's tracer or forward-mode differentiation."""
    return bool(
        torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def pointer(tensor: Tensor | None) -> int | None:
    """What a kernel is handed for a (contiguous) tensor."""
    return None if tensor is None else tensor.data_ptr()


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
    keeping_lock = ctypes.PyDLL(library._name)
    for name, letters in source.signatures.items():
        arguments, _, result = letters.partition(":")
        if name in source.brief:
            setattr(library, name, getattr(keeping_lock, name))
        function = getattr(library, name)
        function.argtypes = [_LETTERS[letter] for letter in arguments]
        function.restype = _LETTERS[result] if result else None
