"""A simulated Windows for tests: a Linux process in which everything fails that fails on Windows.

`install` changes the process permanently. Call it before the package is imported, and after the libraries that behave
differently on Windows. The open and the mapped files are read from /proc.

* A folder cannot be opened, and no file can be opened relative to a folder.
* A file that is open or mapped cannot be renamed, replaced or removed, and its folder cannot be renamed. A folder
  cannot replace another one.
* ``fsync`` needs a file that is open for writing.
* Names must not contain ``< > : " | ? *`` or end in a dot or a space.
* Text is written with CR LF unless the caller says otherwise, and standard streams use a code page.
* Modules, signals and functions of POSIX are missing, and event loops handle no signals.
"""

from __future__ import annotations

import asyncio
import builtins
import ctypes
import errno
import fcntl
import io
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

MEMORY, FREE = 8 << 30, 3 << 30
"""Bytes of memory that the simulation reports."""

_MODULES = ("fcntl", "grp", "pwd", "resource", "termios")
_FUNCTIONS = (
    *("chown", "fork", "forkpty", "getegid", "geteuid", "getgid", "getloadavg", "getpgid", "getuid", "killpg", "major"),
    *("minor", "mkfifo", "nice", "posix_fallocate", "pread", "preadv", "pwrite", "register_at_fork", "sendfile"),
    *("sched_getaffinity", "sched_setaffinity", "setsid", "statvfs", "sysconf", "uname", "wait4"),
    *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC", "WNOHANG"),
)
_SIGNALS = ("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGUSR1", "SIGUSR2")
_FORBIDDEN = frozenset('<>:"|?*')
_BINARY = 0x8000  # a bit that Linux's open ignores

_open, _os_open, _readlink, _listdir, _realpath = io.open, os.open, os.readlink, os.listdir, os.path.realpath


def held() -> Iterator[str]:
    """The paths of all files that this process has open or mapped."""
    for number in _listdir("/proc/self/fd"):
        try:
            yield _readlink(f"/proc/self/fd/{number}")
        except OSError:  # the descriptor that listed the folder
            continue
    with _open("/proc/self/maps", encoding="utf-8") as maps:
        yield from (line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "/" in line)


def _refuse(path: Any) -> PermissionError:
    return PermissionError(errno.EACCES, "Access is denied", os.fspath(path))


def _check_free(path: Any) -> None:
    """Raise the error of Windows if a file, or a file in a folder, is open or mapped."""
    place = _realpath(path)
    if any(name == place or name.startswith(place + os.sep) for name in held()):
        raise _refuse(path)


def _check_name(path: Any) -> None:
    name = Path(os.fsdecode(path)).name
    if _FORBIDDEN & set(name) or (name.endswith((".", " ")) and name.strip(".")):
        raise OSError(errno.EINVAL, "The filename, directory name, or volume label syntax is incorrect", name)


def _without_folders(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    if dir_fd is not None:
        raise RuntimeError("dir_fd unavailable on this platform")
    if Path(os.fsdecode(path)).is_dir():
        raise _refuse(path)
    if flags & os.O_CREAT:
        _check_name(path)
    return _os_open(path, flags & ~_BINARY, mode)


def _text_with_crlf(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    *rest: Any,
    **options: Any,
) -> Any:
    if not isinstance(file, int):
        if Path(os.fsdecode(file)).is_dir():
            raise _refuse(file)
        if "r" not in mode:
            _check_name(file)
    if newline is None and "b" not in mode and ("r" not in mode or "+" in mode):
        newline = "\r\n"
    return _open(file, mode, buffering, encoding, errors, newline, *rest, **options)


def _fsync(descriptor: int) -> None:
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "Bad file descriptor")


def _moving(move: Callable[..., None], *, replaces: bool) -> Callable[..., None]:
    def moved(source: Any, target: Any, **_: Any) -> None:
        _check_name(target)
        if Path(target).exists() and not replaces:
            raise FileExistsError(errno.EEXIST, "Cannot create a file when that file already exists", target)
        if Path(target).is_dir():
            raise _refuse(target)
        _check_free(source)
        _check_free(target)
        move(source, target)

    return moved


def _removing(remove: Callable[[Any], None]) -> Callable[..., None]:
    def removed(path: Any, **_: Any) -> None:
        if os.path.lexists(path):
            _check_free(path)
        remove(path)

    return removed


def _making(make: Callable[..., None]) -> Callable[..., None]:
    def made(path: Any, mode: int = 0o777, **_: Any) -> None:
        _check_name(path)
        make(path, mode)

    return made


def _lock_module() -> ModuleType:
    module: Any = ModuleType("msvcrt")
    module.LK_NBLCK = 2

    def locking(descriptor: int, _mode: int, _bytes: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None

    module.locking = locking
    return module


def _tell_memory(status: Any) -> int:
    status._obj.total, status._obj.free = MEMORY, FREE
    return 1


def install() -> None:
    """Simulate Windows from now on."""
    for name in _MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for module, names in ((os, _FUNCTIONS), (signal, _SIGNALS)):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    changes: dict[Any, dict[str, Any]] = {
        os: {
            "O_ACCMODE": 3,
            "O_BINARY": _BINARY,
            "linesep": "\r\n",
            "supports_dir_fd": set(),
            "supports_fd": set(),
            "open": _without_folders,
            "fsync": _fsync,
            "mkdir": _making(os.mkdir),
            "replace": _moving(os.replace, replaces=True),
            "rename": _moving(os.rename, replaces=False),
            "unlink": _removing(os.unlink),
            "remove": _removing(os.remove),
        },
        shutil: {"_use_fd_functions": False},
        signal: {"SIGBREAK": signal.Signals(21)},
        io: {"open": _text_with_crlf},
        builtins: {"open": _text_with_crlf},
        ctypes: {"windll": SimpleNamespace(kernel32=SimpleNamespace(GlobalMemoryStatusEx=_tell_memory))},
        asyncio.SelectorEventLoop: {
            name: getattr(asyncio.AbstractEventLoop, name) for name in ("add_signal_handler", "remove_signal_handler")
        },
    }
    for place, values in changes.items():
        for name, value in values.items():
            setattr(place, name, value)
    sys.modules["msvcrt"] = _lock_module()
    for stream in ("stdout", "stderr"):
        getattr(sys, stream).reconfigure(encoding="cp1252", newline="\r\n")
