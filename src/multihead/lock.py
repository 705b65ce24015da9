"""One process at a time: a lock of the operating system on an open file or folder, gone when its holder ends.

However a process ends, the system takes its locks back, so nothing has to be cleared up and nobody waits for the dead.
They bind only those who ask (flock), and have no effect where the system, or a file system, knows none.
"""

from __future__ import annotations

import os
from pathlib import Path

_TABLE = Path("/proc/locks")


def take(descriptor: int) -> bool:
    """Locks an open file or folder until it is closed or this process ends; False where somebody else has it."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def holder(descriptor: int) -> str:
    """Who has the lock of an open file or folder, in words: `` (process 123)``; nothing where the system does not say.

    Linux lists its locks in /proc/locks, a line each: ``1: FLOCK ADVISORY WRITE 123 fe:00:456 0 EOF`` has process,
    device (in hexadecimal) and inode.
    """
    found = os.fstat(descriptor)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        rows = [line.split() for line in _TABLE.read_text(encoding="ascii").splitlines()]
    except (OSError, ValueError):
        return ""
    processes = [row[4] for row in rows if row[1] == "FLOCK" and row[5] == place]
    return f" (process {processes[0]})" if processes and processes[0] != "0" else ""
