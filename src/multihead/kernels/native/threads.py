"""PyTorch's OpenMP library and number of threads, before its import.

PyTorch takes as many threads as there are cores: on x86-64 those of the hardware, as Intel's MKL counts them (two
threads of a core share it), elsewhere those of the system. OMP_NUM_THREADS and MKL_NUM_THREADS set another number; MKL
takes no more than there are cores.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterable
from pathlib import Path

from multihead.platforms import usable_cores

_CORES = Path("/sys/devices/system/cpu")


def packaged_openmp(folders: Iterable[Path]) -> ctypes.CDLL | None:
    """GNU's OpenMP library in the folders of PyTorch's package; None if there is none or several.

    Once it is loaded, PyTorch finds it instead of loading one.
    """
    files = [file for place in folders for file in sorted(place.glob("libgomp*.so*"))]
    try:
        return ctypes.CDLL(str(files[0])) if len(files) == 1 else None
    except OSError:
        return None


def usual_threads() -> int:
    """The number of threads that PyTorch takes by default."""
    names = ("MKL_NUM_THREADS", "OMP_NUM_THREADS") if _by_hardware() else ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    for name in names:
        first = os.environ.get(name, "").split(",")[0].strip()
        if first.isdigit() and int(first):
            return min(int(first), _hardware_cores()) if _by_hardware() else int(first)
    return _hardware_cores() if _by_hardware() else usable_cores()


def _by_hardware() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def _hardware_cores() -> int:
    """Cores that this process may use, with their threads counted once."""
    cores = set()
    for number in os.sched_getaffinity(0):
        try:
            cores.add((_CORES / f"cpu{number}" / "topology" / "thread_siblings_list").read_text(encoding="ascii"))
        except OSError:
            return usable_cores()
    return len(cores)
