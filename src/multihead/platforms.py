"""What systems and devices do differently, with a fallback for each.

No other module asks for a system by its name; it asks here what the system can do. What it can do is a constant, and
what is done instead is a function, so the usual way stays where it was. Differences that have no entry are hidden by
Python.

    folders           POSIX opens them: they are forced to the disk, locked, and files are opened relative to them
    open files        POSIX renames, replaces and removes them, mapped ones too; Windows refuses (`when_closed`)
    locks             flock of the file or folder itself; on Windows of a file that stands for it (`open_lock_file`)
    processes         Linux tells where the number of a process is that of only one (`process_place`)
    signals           Windows has no SIGHUP and no SIGPIPE, and its event loops handle none (`handle_signals`); a
                      Ctrl-C is kept from worker processes in another way there (`without_interrupts`)
    limits            the number of open files, cores, memory: asked of the system in its own way
    processors        Linux describes them in /proc/cpuinfo (`processor`)
    standard streams  locales have other encodings, and Windows ends lines by CR LF (`use_utf8_streams`)
    command lines     a backslash escapes in a shell of POSIX, and separates folders on Windows (`split_words`)
    devices           MPS has no float64 (`widest_float`); `configuration.require_device` looks for devices

Compiled code has its own conditions (`kernels.native`). Nothing here but `widest_float` imports torch.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import io
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from multihead.errors import SurroundingsError

if TYPE_CHECKING:
    import socket
    from asyncio import AbstractEventLoop

    import torch


def _module(name: str) -> Any:
    """A module of the standard library that some systems lack; None there."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


# --------------------------------------------------------------------------- files and folders

FOLDERS_OPEN = hasattr(os, "O_DIRECTORY")
"""Whether a folder can be opened as a file can. On Windows it cannot, and need not be forced to the disk: NTFS notes
the renaming of a file in its journal."""

OPENS_WITHIN = FOLDERS_OPEN and os.open in os.supports_dir_fd
"""Whether a file is opened relative to an open folder. Where it is not, an open file in the folder keeps the folder
from being renamed, so the files of an opened folder are of one state there, too."""

READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""Flags of `os.open` for a file that is read: a pipe does not block, and bytes stay as they are."""

READ_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
"""The same for a folder, where it can be opened."""

WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
"""The same for a file that is written anew."""

TO_SYNC = os.O_RDONLY if FOLDERS_OPEN else os.O_RDWR | getattr(os, "O_BINARY", 0)
"""The same for a file that is forced to the disk. Windows does that only to files that may be written."""

RENAMES_OPEN = FOLDERS_OPEN
"""Whether an open file, and a folder with open files in it, can be renamed, replaced and removed."""

DENIED = "permission denied: choose a folder that you may write to" + (
    "" if RENAMES_OPEN else ", or close the program that has a file of it open"
)
"""What to do about a refusal. Windows does not tell a file that is open elsewhere from one that is not the user's."""

fcntl = _module("fcntl")
"""The module of POSIX's locks; None elsewhere."""

PATIENCE = 10.0
"""Seconds for which `when_closed` waits."""
_SHORTEST, _LONGEST = 0.01, 0.5

HAS_FULL_SYNC = hasattr(fcntl, "F_FULLFSYNC")
"""Whether `os.fsync` stops at the cache of the drive, as on macOS, and `force_drive` does not."""


def force_drive(descriptor: int) -> bool:
    """Force an open file to the medium; False on a file system that cannot."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    except OSError:
        return False
    return True


def when_closed(change: Callable[[], object]) -> None:
    """Rename or remove what another program may have open, where the system refuses that as long as it is.

    Our own readers close a folder within the time of loading a model, and virus scanners and indexers within less.

    Args:
        change: may be called again after a `PermissionError`.

    Raises:
        PermissionError: it is refused for longer than `PATIENCE`.
    """
    deadline, pause = time.monotonic() + PATIENCE, _SHORTEST
    while True:
        try:
            change()
            return
        except PermissionError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST)


def open_lock_file(path: Path) -> int:
    """Open an empty file whose lock stands for ``path``, where a folder cannot be locked itself.

    It is in the user's temporary folder and stays there: removing it would let two processes lock two files. It binds
    the processes of one user on one machine.

    Raises:
        SurroundingsError: the temporary folder cannot be written.
    """
    import tempfile

    place = os.path.normcase(os.path.realpath(path)).encode("utf-8", "surrogatepass")
    try:
        folder = Path(tempfile.gettempdir(), "multihead-locks")
        folder.mkdir(exist_ok=True)
        name = f"{hashlib.sha256(place).hexdigest()[:32]}.lock"
        return os.open(folder / name, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    except OSError as error:
        raise SurroundingsError(f"{path}: cannot be locked: no temporary file: {error.strerror or error}") from error


def lock_first_byte(descriptor: int) -> bool:
    """Windows's lock of an open file; False if another process holds it, True where there are no locks at all."""
    windows = _module("msvcrt")
    if windows is None:
        return True
    try:
        windows.locking(descriptor, windows.LK_NBLCK, 1)
    except PermissionError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def process_place() -> str:
    """Names where processes have the numbers that this process sees: one start of one machine, in one container.

    Empty where the system does not tell. A number from another place may be that of any process here.
    """
    return _linux_place() if FOLDERS_OPEN else ""


@cache
def _linux_place() -> str:
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        numbers = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return ""
    return hashlib.sha256(f"{start} {numbers}".encode()).hexdigest()[:12]


def process_exists(number: int) -> bool:
    """Whether a process has a number. To be asked only where there is a `process_place`: Windows would stop it."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # it is another user's, or not a number of processes
        return True
    return True


def path_of_url(url: str) -> Path:
    """The path of a URL ``file://...``. Before the letter of a drive stands a slash that does not belong to it."""
    path = url.removeprefix("file://")
    return Path(path[1:] if not FOLDERS_OPEN and path[2:3] == ":" else path)


# --------------------------------------------------------------------------- signals

STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name))
"""Signals that request a stop. On Windows SIGTERM never arrives, and SIGBREAK is Ctrl+Break or a closed console."""

RELOAD_SIGNAL: signal.Signals | None = getattr(signal, "SIGHUP", None)
"""The signal upon which a server reads its models again; None on Windows, where it is started again instead."""


def is_closed_pipe(error: OSError) -> bool:
    """Whether an error of writing means that the reader has closed the pipe; Windows calls that an invalid argument."""
    return isinstance(error, BrokenPipeError) or (not FOLDERS_OPEN and error.errno == errno.EINVAL)


@contextlib.contextmanager
def handle_signals(loop: AbstractEventLoop, handlers: Mapping[signal.Signals, Callable[[], object]]) -> Iterator[None]:
    """Inside, a signal calls a function in an event loop.

    Windows's loops have no handlers of signals. There Python's handlers pass the call to the loop. They run in the main
    thread, which a signal does not wake from waiting for connections, so the loop wakes up by itself.

    Args:
        loop: the running loop of the main thread.
        handlers: the function of each signal.
    """
    before: dict[signal.Signals, Any] = {}
    active = True

    def tick() -> None:
        if active:
            loop.call_later(_TICK, tick)

    try:
        for number, handler in handlers.items():
            try:
                loop.add_signal_handler(number, handler)
            except RuntimeError:  # a loop without them says that it is not implemented
                before[number] = signal.signal(number, _passing(loop, handler))
        if before:
            tick()
        yield
    finally:
        active = False
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextlib.contextmanager
def without_interrupts() -> Iterator[int]:
    """Inside, this thread starts processes that a Ctrl-C of the terminal does not reach.

    They inherit that SIGINT is blocked, from their first instruction on. Yields the ``creationflags`` for
    `subprocess.Popen`: of a new group of processes on Windows, 0 elsewhere.
    """
    if not hasattr(signal, "pthread_sigmask"):
        import subprocess

        yield getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_TICK = 0.2
"""Seconds until a signal is noticed, at most."""


def _passing(loop: AbstractEventLoop, handler: Callable[[], object]) -> Callable[[int, object], None]:
    def passed(_number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(handler)

    return passed


# --------------------------------------------------------------------------- limits


def own_address(listening: socket.socket) -> None:
    """Let a socket take an address that a server has just left, and no other one take it meanwhile."""
    import socket

    # On Windows SO_REUSEADDR would let a second server listen, too.
    option = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
    listening.setsockopt(socket.SOL_SOCKET, option, 1)


_MOST_FILES = 10_240
"""Open files that macOS allows where it names no limit (OPEN_MAX)."""


def open_file_limit() -> int | None:
    """Files that this process may open; None if there is no limit, or none that the system tells."""
    resource = _module("resource")
    if resource is None:  # Windows counts handles, of which there are millions
        return None
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if files == resource.RLIM_INFINITY else int(files)


def raise_open_file_limit() -> None:
    """Allow this process as many open files as its user may have."""
    resource = _module("resource")
    if resource is None:
        return
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (most, _MOST_FILES):  # macOS refuses its own infinity
        if allowed == resource.RLIM_INFINITY or allowed >= limit != resource.RLIM_INFINITY:
            return
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
            return


def open_file_count() -> int:
    """Files that this process has open; a guess where the system does not list them."""
    folders = [Path("/proc/self/fd"), Path("/dev/fd")]
    return next((sum(1 for _ in folder.iterdir()) for folder in folders if folder.is_dir()), 64)


def usable_cores() -> int:
    """Cores that this process may use; all of them where processes are not bound to cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Memory(NamedTuple):
    """What a system says of its memory, in bytes."""

    total: int
    free: int


def memory_by_windows() -> Memory | None:
    """The machine's memory, where `os.sysconf` does not tell; None if Windows does not either."""
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = (
            ("length", ctypes.c_uint32),
            ("load", ctypes.c_uint32),
            ("total", ctypes.c_uint64),
            ("free", ctypes.c_uint64),
            ("others", ctypes.c_uint64 * 5),
        )

    kernel: Any = getattr(getattr(ctypes, "windll", None), "kernel32", None)
    status = Status(length=ctypes.sizeof(Status))
    if kernel is None or not kernel.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return Memory(status.total, status.free)


_ZEN_4, _ZEN_5 = "25", 26
"""Processor families of AMD: the one with AVX-512 in halves, shared with Zen 3; the first with 512-bit arithmetic."""


class Processor(NamedTuple):
    """What a system says of its processors."""

    facts: Mapping[str, str]
    """Of the first one, by the names of /proc/cpuinfo."""
    features: frozenset[str]
    """Names of instructions and other features that every one has; on some Arm systems they differ."""

    @property
    def is_amd(self) -> bool:
        return self.facts.get("vendor_id") == "AuthenticAMD"

    @property
    def is_zen_4(self) -> bool:
        """Whether it is an AMD processor of Zen 4, which computes 512 bits in two halves, and may use them."""
        return self.is_amd and self.facts.get("cpu family") == _ZEN_4 and "avx512f" in self.features

    @property
    def is_zen_5(self) -> bool:
        """Whether it is an AMD processor of Zen 5 or later, which computes 512 bits at once, and may use them."""
        family = self.facts.get("cpu family", "")
        return self.is_amd and family.isdigit() and int(family) >= _ZEN_5 and "avx512f" in self.features


def processor() -> Processor:
    """The processors of this machine; nothing on systems other than Linux."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    each = [
        {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in part.splitlines())}
        for part in text.split("\n\n")
    ]
    listed = [names for facts in each if (names := facts.get("flags") or facts.get("Features"))]
    return Processor(each[0], frozenset.intersection(*(frozenset(names.split()) for names in listed or [""])))


def is_administrator() -> bool:
    """Whether this process may do everything on a POSIX system; browsers refuse to isolate pages then."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


HAS_GLIBC = sys.platform.startswith("linux")
"""Whether the allocator may be glibc's, which can be told to keep freed memory (`cli.process`)."""


# --------------------------------------------------------------------------- standard streams


def replace_closed_streams() -> None:
    """Give Python streams in place of those that were closed (``>&-``), for which it has none.

    Standard input then is empty, writing to standard output is an error, and standard error goes nowhere. The
    descriptors are taken, so that no file of ours gets one of them.
    """
    for name, mode in (("stdin", "r"), ("stdout", "r"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def use_utf8_streams() -> None:
    """Let standard output and standard error take UTF-8 and end lines by LF, whatever the locale is.

    A locale such as C or de_DE.ISO-8859-1, and the code page of Windows, which redirected streams have, lack most
    scripts. Names of files that are not UTF-8 are written as the bytes that they are. Standard input is read as bytes.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            errors = "surrogateescape" if stream.errors == "strict" else stream.errors
            stream.reconfigure(encoding="utf-8", errors=errors, newline="\n")


# --------------------------------------------------------------------------- command lines

ESCAPES = os.sep != "\\"
"""Whether a backslash is an escape in a command line, not a part of a path."""


def split_words(text: str) -> list[str]:
    """The words of a text, those with spaces quoted as in a shell.

    Raises:
        ValueError: a quote does not end.
    """
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    if not ESCAPES:
        lexer.escape = ""
    return list(lexer)


def join_words(words: Iterable[str]) -> str:
    """A command line to show, whose words a shell of this system reads as these."""
    if ESCAPES:
        return shlex.join(words)
    return " ".join(word if re.fullmatch(r"[\w@%+=:,./\\-]+", word) else _in_double_quotes(word) for word in words)


def _in_double_quotes(word: str) -> str:
    """For Windows's programs: a backslash escapes where it stands before a quote."""
    return '"' + re.sub(r'(\\*)("|$)', lambda found: 2 * found[1] + (found[2] and '\\"'), word) + '"'


# --------------------------------------------------------------------------- devices

Device = Literal["cpu", "cuda", "mps"]
DEVICES: tuple[str, ...] = get_args(Device)
"""Where a model can be computed. MPS is the GPU of a Mac; it runs the plain forms, and no test here runs on one."""

WITHOUT_FLOAT64 = frozenset({"mps"})
"""Kinds of devices that cannot hold numbers of 64 bits with a point."""


def widest_float(device: torch.device) -> torch.dtype:
    """The type of sums on a device: float64, or float32 where there is none.

    The scores of a search are float32 sums, which float64 only keeps apart after they were divided; so on such devices
    hypotheses with nearly equal scores may be ordered otherwise.
    """
    import torch

    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64
