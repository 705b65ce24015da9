"""The system and the hardware that this process runs on.

Only the standard library, `platforms` and `kernels.native.levels` are imported. Facts that a system does not tell are
None; sizes are bytes.
"""

from __future__ import annotations

import contextlib
import locale
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from multihead import platforms
from multihead.kernels.native import levels

_FEATURES = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)
"""The features that kernels use, by the names that Linux gives them."""

_CGROUP = Path("/sys/fs/cgroup")
_MEMORY = Path("/proc/meminfo")


def system() -> dict[str, Any]:
    """Names and versions of the operating system and its C library, and the encoding of texts."""
    name = None
    with contextlib.suppress(OSError):
        name = platform.freedesktop_os_release().get("PRETTY_NAME")
    if sys.platform == "darwin":
        name = f"macOS {platform.mac_ver()[0]}"
    return {
        "name": name or platform.system(),
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "encoding": locale.getpreferredencoding(False),
    }


def processor() -> dict[str, Any]:
    """The processor's name, and those of its features that kernels use."""
    facts, features = platforms.processor()
    name = facts.get("model name") or _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor()
    used = [feature for feature in _FEATURES if feature in features] if features else None
    return {"name": name or None, "features": used}


def threads() -> dict[str, Any]:
    """The processor threads of the machine, those that this process may use, and the limit of its container."""
    limit = None
    with contextlib.suppress(OSError, ValueError):
        share, period = (_CGROUP / "cpu.max").read_text(encoding="ascii").split()
        limit = int(share) / int(period)  # a ValueError where the share is "max"
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {"machine": os.cpu_count(), "usable": usable, "container": limit}


def memory() -> dict[str, int | None]:
    """The memory of the machine, or of its container, and what of it is free for programs."""
    total, free = [], []
    with contextlib.suppress(OSError, ValueError, LookupError):  # some containers list other rows
        rows = (line.split() for line in _MEMORY.read_text(encoding="ascii").splitlines())
        kilobytes = {row[0].rstrip(":"): int(row[1]) for row in rows}
        total.append(kilobytes["MemTotal"] << 10)
        free.append(kilobytes["MemAvailable"] << 10)
    with contextlib.suppress(OSError, ValueError):
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        total.append(limit)
        free.append(max(0, limit - int((_CGROUP / "memory.current").read_text(encoding="ascii"))))
    if not total:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            total.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if not total and (told := platforms.memory_by_windows()) is not None:
        total.append(told.total)
        free.append(told.free)
    return {"total": min(total, default=None), "free": min(free, default=None)}


def compiler() -> dict[str, Any]:
    """The C++ compiler that builds kernels; its path is None if there is none."""
    name = os.environ.get("CXX") or "g++"
    command = levels.compiler()
    version = None if command is None else _output(*command, "--version")
    return {"name": name, "path": None if command is None else command[0], "version": version}


def cache() -> dict[str, Any]:
    """The folder that holds what was compiled, and its size."""
    folder = _cache_folder()
    if folder is None:
        return {"folder": None, "bytes": 0}
    size = 0
    for path in folder.rglob("*") if folder.is_dir() else ():
        with contextlib.suppress(OSError):  # another process is compiling, and has just removed it
            size += path.stat().st_size * path.is_file()
    return {"folder": str(folder), "bytes": size}


def _cache_folder() -> Path | None:
    """multihead's folder in the user's cache folder."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(given) if given.startswith("/") else Path.home() / ".cache") / "multihead"
    except RuntimeError:  # a user without a home
        return None


def disk() -> dict[str, int | None]:
    """The free space of the file systems of the current folder, the cache and temporary files."""
    places: dict[str, Callable[[], Path | None]] = {
        "current folder": Path.cwd,
        "cache": _cache_folder,
        "temporary files": lambda: Path(tempfile.gettempdir()),
    }
    found: dict[str, int | None] = {}
    for name, place in places.items():
        found[name] = None
        with contextlib.suppress(OSError):
            folder = place()
            if folder is not None:
                existing = next(path for path in (folder, *folder.parents) if path.exists())
                found[name] = shutil.disk_usage(existing).free
    return found


def _output(*words: str) -> str | None:
    """The first line that a program prints; None if it cannot be run."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.splitlines()), None) if done.returncode == 0 else None
