"""Loads compiled kernels, of the package or built by the C++ compiler.

There are two libraries: the operations of a training update (`KERNELS`), and the search of translations
(`engine.native`). A wheel holds a file of each for several levels of instructions (`levels`), and the best one that the
processor can run is loaded. Sources hold none: there a library is built once per compiler, processor and source
(`building`), and kept in the user's cache folder under a hash of everything that it depends on. It is loaded only if it
is the file that was built (`verified`): loading damaged code would end the process. The environment variable
MULTIHEAD_NATIVE_LEVEL names the highest level that is used.

Compiled code runs on the threads of the OpenMP library that PyTorch loads (``threads.cpp``), since two OpenMP libraries
in a process would compete for the cores. Nothing here needs PyTorch itself, which takes seconds to import: where it is
not imported yet, its OpenMP library alone is loaded, and there are as many threads as it would choose (`threads`).

Compiled code reads and writes memory without bounds. Every tensor that it gets passes through `tensors.pointer`, which
checks its size, its type and its place.

The threads of OpenMP do not exist in a child that os.fork() made, and to wait for them would hang it. A child therefore
computes with one thread (`thread_count`), as PyTorch's DataLoader does in its workers.

Compiled kernels are optional. Every operation of `multihead.kernels` has a plain form with PyTorch's operations, which
is used without a compiler, on other devices, for other dtypes, and under torch.compile and function transforms; the
compiled search (`multihead.engine`) has a plain form in `multihead.decoding`. The environment variable MULTIHEAD_NATIVE
decides: ``0`` = never compiled, ``1`` = always (an error where it is impossible), unset = where possible.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import logging
import os
import platform
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from multihead.errors import ConfigurationError
from multihead.kernels.native import levels
from multihead.kernels.native.levels import Level
from multihead.kernels.native.threads import packaged_openmp, usual_threads
from multihead.platforms import processor

VARIABLE = "MULTIHEAD_NATIVE"
SECONDS = 300
"""Timeout of the compiler."""
_MOST_BYTES = 1 << 28
"""No library is larger; what is larger is not read to its end."""

Announce = Callable[[str], None]
"""Called with one line before a build, which takes some seconds."""

log = logging.getLogger("multihead")


@dataclass(frozen=True)
class Library:
    """Functions that are compiled into one shared library."""

    name: str
    """Name of the file, also for messages."""
    sources: tuple[Path, ...]
    """The file to compile, then the files that it includes; `THREADS` belongs to every library."""
    signatures: dict[str, str]
    """Argument types of each function, a letter each (see `_LETTERS`); after a colon the result's, if any."""
    keeps_gil: frozenset[str] = frozenset()
    """Functions that return within a microsecond and keep the GIL: releasing it would mean waiting to regain it."""


class BuildError(Exception):
    """Why a library cannot be built here; the plain form is used and the log shows the message."""


class Choice(NamedTuple):
    """For which instructions a library is compiled here."""

    level: Level | None
    """None: those of this processor."""
    file: Path | None
    """Of the package; None: it is to be built."""
    why: str
    """One line, without a full stop; empty if nothing had to be chosen."""


class Native(NamedTuple):
    """A loaded library, or the reason why there is none."""

    library: ctypes.CDLL | None
    reason: str
    """One line for the log, without a full stop."""
    level: str = ""
    """Name of the `Level` that it is compiled for; empty if that is this processor, or if there is none."""


_loaded: dict[str, Native] = {}
"""Results of `load_library` in this process, by name of the library."""


def load_kernels(announce: Announce | None = None) -> Native:
    """Load the kernels of training, and build them if needed; later calls return the first result.

    Args:
        announce: called with one line before a build.

    Raises:
        ConfigurationError: MULTIHEAD_NATIVE is 1 and they cannot be built, or it is neither 0 nor 1; or
            MULTIHEAD_NATIVE_LEVEL names no level.
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


_watched: list[bool] = []
"""Has an item once `_use_one_thread` is registered."""


def _load(source: Library, announce: Announce | None) -> Native:
    setting = os.environ.get(VARIABLE, "")
    if setting not in ("", "0", "1"):
        raise ConfigurationError(f"{VARIABLE}={setting!r}: write 0 (never), 1 (always), or nothing (if possible)")
    if setting == "0":
        return Native(None, f"plain {source.name}: {VARIABLE}=0")
    try:
        _require_linux()
        openmp = _loaded_openmp()
        library, how = build_or_load(source, announce)
    except BuildError as error:
        if setting == "1":
            raise ConfigurationError(f"{VARIABLE}=1, but {error}") from error
        return Native(None, f"plain {source.name}: {error}")
    _declare(library, source)
    _use_threads(library, openmp)
    if not _watched:
        os.register_at_fork(after_in_child=_use_one_thread)
        _watched.append(True)
    level = choice_of(source).level
    return Native(library, f"compiled {source.name} ({how})", "" if level is None else level.name)


def check(status: int) -> None:
    """Raise `MemoryError` if a kernel could not allocate its scratch memory; its results are then undefined."""
    if status:
        raise MemoryError("a compiled kernel ran out of memory")


_is_child = False
"""Whether this process was made by os.fork() after compiled code was loaded."""


_before_torch: int | None = None
"""The number of threads that was set before PyTorch was imported."""


def set_thread_count(count: int) -> None:
    """Set the number of threads of compiled code and of PyTorch, which need not be imported yet."""
    global _before_torch
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(count)
    else:
        _before_torch = count


def thread_count(wanted: int | None = None) -> int:
    """Number of threads of compiled code: as wanted, or PyTorch's; 1 in a child that os.fork() made."""
    global _before_torch
    if _is_child:
        return 1
    if wanted:
        return wanted
    if "torch" not in sys.modules:
        return _before_torch or usual_threads()
    import torch

    if _before_torch is not None:
        torch.set_num_threads(_before_torch)
        _before_torch = None
    return torch.get_num_threads()


def _use_one_thread() -> None:
    """Called in every child that os.fork() makes: without it, PyTorch's own operations would hang, too.

    PyTorch is imported for that if the parent had not: it would take as many threads as ever when the child does.
    """
    global _is_child
    import torch

    _is_child = True
    torch.set_num_threads(1)


def choice_of(library: Library) -> Choice:
    """The level of a library that is taken here: of those in the package if there are any, or of all if one is set.

    Raises:
        ConfigurationError: MULTIHEAD_NATIVE_LEVEL names no level.
    """
    highest, names = os.environ.get(levels.VARIABLE, ""), [level.name for level in levels.levels()]
    if highest and highest not in names:
        known = ", ".join(names) or "none"
        raise ConfigurationError(f"{levels.VARIABLE}={highest!r}: the levels of {platform.machine()} are {known}")
    all_levels = levels.levels(library.name)
    files = {level.name: packaged_file(library, level) for level in all_levels}
    packaged = [level for level in all_levels if files[level.name].is_file()]
    among = packaged or (all_levels if highest else ())
    best, why = levels.choose(among, processor().features, highest)
    if best is None:
        return Choice(None, None, f"for this processor, since {why}" if why else "")
    reason = f"{best.name}{': ' if why else ''}{why}"
    return Choice(best, files[best.name], f"of the package, {reason}") if packaged else Choice(best, None, reason)


def packaged_file(library: Library, level: Level) -> Path:
    """Where a package has a library of a level."""
    return library.sources[0].with_name(f"{library.name}.{level.name}.so")


def has_instructions(library: Library, feature: str) -> bool:
    """Whether a library is compiled here for a feature of /proc/cpuinfo."""
    level = choice_of(library).level
    return feature in processor().features and (level is None or feature in level.features)


@lru_cache(maxsize=1)
def multiplies_half() -> bool:
    """Whether the kernels multiply bfloat16 as fast as PyTorch does: by AVX512-BF16, where there is no matrix unit."""
    return has_instructions(KERNELS, "avx512_bf16") and "amx_bf16" not in processor().features


def build_or_load(library: Library, announce: Announce | None = None) -> tuple[ctypes.CDLL, str]:
    """Load a library from the package or the cache, or build it; also return a short description of it.

    Args:
        library: the library.
        announce: called with one line before a build.

    Raises:
        BuildError: there is no compiler, or it fails; there is no folder to write to; the system is not Linux.
        ConfigurationError: MULTIHEAD_NATIVE_LEVEL names no level.
    """
    _require_linux()
    choice = choice_of(library)
    if choice.file is not None:
        try:
            return ctypes.CDLL(str(choice.file)), choice.why
        except OSError as error:
            raise BuildError(f"{choice.file} cannot be loaded: {error}") from error
    compiler = levels.compiler()
    if compiler is None:
        raise BuildError(levels.no_compiler())
    version = _run([*compiler, "--version"]).partition("\n")[0]
    command = [*compiler, *_flags(choice.level)]
    facts = "\n".join((*command, version, _processor()))
    sources = b"".join(file.read_bytes() for file in (*library.sources, THREADS))
    key = hashlib.sha256(sources + facts.encode()).hexdigest()[:20]
    folders = cache_folders()
    for folder in folders:
        path = folder if isinstance(folder, str) else folder / key / f"{library.name}.so"
        loaded = None if isinstance(path, str) else verified(path)
        if loaded is not None:
            break
    else:
        from multihead.kernels.native.building import Checks, build  # a file that is needed once for each machine

        def compile_to(path: Path) -> None:
            _compile(command, library.sources[0], path)
            try:
                ctypes.CDLL(str(path))
            except OSError as error:
                raise BuildError(f"what the compiler made cannot be loaded: {error}") from error

        say, checks = announce or log.info, Checks(verified, summary, check_owner)
        try:
            path = build(f"{library.name}.so", key, folders, compile_to, say, checks)
        except OSError as error:
            raise BuildError(f"they cannot be stored: {error}") from error
        loaded = verified(path)
        if loaded is None:
            raise BuildError(f"{path} was removed or changed after it was built")
    assert isinstance(path, Path)
    reason = f"{choice.why}, " if choice.why else ""
    name = " ".join((Path(compiler[0]).name, *compiler[1:]))
    return loaded, f"{reason}{name} {version.rpartition(' ')[2]}, {path.parent}"


def _require_linux() -> None:
    if not sys.platform.startswith("linux") or sys.byteorder != "little":
        raise BuildError(f"compiled ones are made on Linux, and this is {platform.system()}")


def cache_folders() -> list[Path | str]:
    """Where compiled kernels may be kept, the best place first; a string says why there is no such place.

    The first is in the user's cache folder. The second is a folder of the user's in the system's temporary folder.
    """
    found: list[Path | str] = []
    cache = os.environ.get("XDG_CACHE_HOME", "")
    try:
        found.append((Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "multihead" / "kernels")
    except RuntimeError:
        found.append("this user has no home folder, and XDG_CACHE_HOME names no other place")
    try:
        found.append(Path(tempfile.gettempdir(), f"multihead-{os.getuid()}"))
    except OSError:
        found.append("there is no temporary folder")
    return found


def verified(path: Path) -> ctypes.CDLL | None:
    """Load a library, if it is the file that was built: its owner, size and hash are checked before it is loaded.

    None if it is missing or was changed, or if others may write to it or its folder.
    """
    record = record_of(path)
    try:
        check_owner(path.parent)
    except OSError:
        return None
    descriptor = -1
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        noted = record.lstat()
        if _is_own(os.fstat(descriptor)) and _is_own(noted) and noted.st_size < 200:
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(_MOST_BYTES)
            if record.read_text(encoding="ascii") == summary(content):
                library = ctypes.CDLL(str(path))
                if time.time() - noted.st_mtime > 86400:
                    with contextlib.suppress(OSError):
                        os.utime(record)  # the time of the last use, for `building.clean`
                return library
        log.warning("%s is not the file that was built; building it again", path)
    except (OSError, ValueError) as error:
        if descriptor >= 0 or not isinstance(error, FileNotFoundError):
            log.warning("%s cannot be loaded (%s); building it again", path, error)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return None


def _is_own(state: os.stat_result) -> bool:
    """Whether it is a regular file of this user's to which no other user may write."""
    return stat.S_ISREG(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o022


def summary(content: bytes) -> str:
    """What is noted of a library: its SHA-256 and its size."""
    return f"{hashlib.sha256(content).hexdigest()} {len(content)}\n"


def record_of(path: Path) -> Path:
    """The file with the hash and the size of a library."""
    return path.with_suffix(".sha256")


def check_owner(folder: Path) -> None:
    """Raise an `OSError` if another user could have written the code in this folder."""
    state, parent = folder.lstat(), folder.parent.lstat()
    own = stat.S_ISDIR(state.st_mode) and state.st_uid == parent.st_uid == os.getuid()
    if not own or state.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "it belongs to somebody else, or others may write to it")


def _flags(level: Level | None) -> list[str]:
    if level is not None:
        return [*levels.FLAGS, *level.flags]
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        return [*levels.FLAGS, "-march=native", "-mprefer-vector-width=512"]
    return [*levels.FLAGS, "-mcpu=native"] if machine in ("aarch64", "arm64") else [*levels.FLAGS]


def _compile(command: list[str], source: Path, path: Path) -> None:
    _run([*command, *levels.LINK, str(source), str(THREADS), "-o", str(path)])


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


def _loaded_openmp() -> ctypes.CDLL:
    """The OpenMP library that PyTorch loads; it must be GNU's, which this code is compiled for."""
    found = None if "torch" in sys.modules else _mapped_openmp(bundled=False) or packaged_openmp(_openmp_folders())
    if found is None:
        import torch

        torch.get_num_threads()  # makes PyTorch load it
        found = _mapped_openmp(bundled=True)
    if found is None:
        raise BuildError("this PyTorch does not use GNU's OpenMP")
    return found


def _openmp_folders() -> tuple[Path, ...]:
    """The folders of PyTorch's package that may hold an OpenMP library, without symbolic links."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return ()
    folder = Path(found.origin).resolve().parent
    return folder / "lib", folder.with_name("torch.libs")


_MAPS = Path("/proc/self/maps")
"""What this process has loaded."""


def _mapped_openmp(*, bundled: bool) -> ctypes.CDLL | None:
    """GNU's OpenMP library that this process has loaded: PyTorch's own, or else the system's.

    Other packages bundle copies under names of their own, such as ``libgomp-e985bcbb.so.1.0.0``. PyTorch does not
    compute on their threads, which would compete with its own.

    Args:
        bundled: whether such a copy is taken if there is nothing else.
    """
    lines = _MAPS.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    files = [Path("/" + line.partition("/")[2]) for line in lines if "/libgomp" in line]
    # What was deleted since, as in an upgrade, cannot be opened again.
    found = [file for file in files if file.name.startswith("libgomp") and not file.name.endswith(" (deleted)")]
    own = _openmp_folders() if found else ()

    def rank(file: Path) -> int:
        return 0 if file.parent in own else 2 if file.name.startswith("libgomp-") else 1

    best = min(found, key=rank, default=None)
    if best is None or (rank(best) == 2 and not bundled):
        return None
    try:
        return ctypes.CDLL(str(best))
    except OSError as error:
        raise BuildError(f"{best} cannot be loaded: {error}") from error


def _processor() -> str:
    """What -march=native depends on."""
    fields = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
    return "\n".join(f"{name}: {value}" for name, value in processor().facts.items() if name in fields)


def _use_threads(library: ctypes.CDLL, openmp: ctypes.CDLL) -> None:
    """Let a library compute on the threads of an OpenMP library."""
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
    library.use_threads(*(ctypes.cast(getattr(openmp, name), ctypes.c_void_p) for name in names))


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
    "rotate": "plpip" + "llll" + "il",
    "cross_entropy": "pipllfipppl",
    "soft_cross_entropy": "pipllfippp" + "ppldpl",
    "attention": "pppppp" + "ippppipifl",
    "attention_backward": "ppppppppp" + "ippppipifl",
    "orthogonal": "plll" + "plfil",
    "long_attention": "ppppppp" + "ipppifl",
    "long_attention_backward": "ppppppppppp" + "ipppifl",
    "linear": "pppp" + "lllil",
    "linear_weight": "pppp" + "lllil",
    "half_linear": "pipippi" + "lllil",
    "half_linear_weight": "pipipp" + "lllil",
}
THREADS = Path(__file__).with_name("threads.cpp")
"""Compiled into every library."""

KERNELS = Library(
    "kernels",
    tuple(
        Path(__file__).with_name(name)
        for name in (
            *("kernels.cpp", "tiles.h", "strips.h", "softmax.h", "directions.h", "half_linear.h"),
            *("long_attention.h", "short_attention.h"),
        )
    ),
    {name: f"{arguments}:i" for name, arguments in _KERNELS.items()},  # each returns its status
)
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
