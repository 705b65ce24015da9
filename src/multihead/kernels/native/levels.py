"""Levels of instructions of compiled libraries, and the choice of one.

A package holds a file of each library for each level of its architecture, such as ``kernels.avx2.so``; a process loads
the best one that its processor can run. A level has the instructions of all levels before it. Levels that add products
of int8, those of the matrix unit or those of bfloat16 on Arm are for the search alone: the kernels of training have no
code for them.

Only the standard library is imported: `tools/build_backend.py` compiles the files where nothing is installed.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import shutil
from collections.abc import Collection
from typing import NamedTuple

VARIABLE = "MULTIHEAD_NATIVE_LEVEL"
"""Environment variable: the highest level that is used."""

FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fPIC", "-fopenmp")
"""What every library is compiled with."""

LINK = ("-shared", "-Wl,--as-needed")
"""What every library is linked with; g++ would otherwise add an OpenMP library, of which nothing is needed."""

THREADS = "kernels/native/threads.cpp"
"""A part of every library."""

SOURCES = {"kernels": "kernels/native/kernels.cpp", "decoding": "engine/native/decoding.cpp"}
"""The file to compile of each library, from the folder of multihead; its libraries lie beside it."""


class Level(NamedTuple):
    """A set of instructions."""

    name: str
    flags: tuple[str, ...]
    """What the compiler gets, besides `FLAGS`."""
    features: tuple[str, ...]
    """What the processor must have, by the names of /proc/cpuinfo (`platforms.processor`)."""
    libraries: tuple[str, ...] = tuple(SOURCES)
    """The libraries that gain from it."""


def _levels(*steps: tuple[str, str, str]) -> tuple[Level, ...]:
    """Levels from names, flags and the features that each adds."""
    found: list[Level] = []
    before: tuple[str, ...] = ()
    for name, flags, features in steps:
        libraries = ("decoding",) if name in _OF_THE_SEARCH else tuple(SOURCES)
        found.append(Level(name, tuple(flags.split()), (*before, *features.split()), libraries))
        if name not in _ASIDE:
            before = found[-1].features
    return tuple(found)


_OF_THE_SEARCH = ("avx-vnni", "avx512-vnni", "amx", "dotprod", "bf16")
_ASIDE = ("avx-vnni",)
"""Levels whose features those above them need not have."""
_ZEN = "-march=x86-64-v3 -mtune=znver3"  # g++'s general tuning makes attention on Zen 3 up to 1.4 times slower
_512 = "-march=x86-64-v4 -mprefer-vector-width=512"
LEVELS = {
    "x86_64": _levels(
        ("x86-64-v2", "-march=x86-64-v2", "cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3"),
        ("avx2", _ZEN, "abm avx avx2 bmi1 bmi2 f16c fma movbe"),
        ("avx-vnni", f"{_ZEN} -mavxvnni", "avx_vnni"),
        ("avx512", _512, "avx512f avx512bw avx512cd avx512dq avx512vl"),
        ("avx512-vnni", f"{_512} -mavx512vnni", "avx512_vnni"),
        ("avx512-bf16", f"{_512} -mavx512vnni -mavx512bf16", "avx512_bf16"),
        (
            "amx",
            f"{_512} -mavx512vnni -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16",
            "amx_tile amx_int8 amx_bf16",
        ),
    ),
    "aarch64": _levels(
        ("neon", "-march=armv8-a", "asimd"),
        ("dotprod", "-march=armv8.2-a+fp16+dotprod", "asimddp asimdhp asimdrdm atomics crc32 fphp"),
        ("bf16", "-march=armv8.2-a+fp16+dotprod+bf16+i8mm", "bf16 i8mm"),
    ),
}
"""Of each architecture, the lowest first."""


def levels(library: str | None = None, machine: str = "") -> tuple[Level, ...]:
    """The levels of an architecture, by default this machine's; with a library, those that it is made for."""
    names = {"amd64": "x86_64", "arm64": "aarch64"}
    machine = (machine or platform.machine()).lower()
    found = LEVELS.get(names.get(machine, machine), ())
    return tuple(level for level in found if library is None or library in level.libraries)


def compiler() -> list[str] | None:
    """The command of the C++ compiler, g++ or what CXX names, with the path of its program; None if there is none.

    CXX may have several words, as for make: ``ccache g++``.
    """
    named = os.environ.get("CXX", "").strip() or "g++"
    words = [named]
    if shutil.which(named) is None:  # a program whose name has spaces is one word
        with contextlib.suppress(ValueError):  # a quotation mark without the other one
            words = shlex.split(named) or words
    path = shutil.which(words[0])
    return None if path is None else [path, *words[1:]]


def no_compiler() -> str:
    """What to say where `compiler` finds none."""
    named = os.environ.get("CXX")
    what = f"CXX={named!r} names none" if named else "g++, or what CXX names"
    return f"there is no C++ compiler ({what})"


def choose(among: Collection[Level], features: frozenset[str], highest: str) -> tuple[Level | None, str]:
    """The last level that a processor can run, and why it is not the next one, in words.

    Args:
        among: levels, the lowest first.
        features: of the processor.
        highest: name of the highest level that is allowed; empty for all.
    """
    names = [level.name for level in levels()]
    best, why = None, ""
    for level in among:
        if highest and names.index(level.name) > names.index(highest):
            return best, why or f"{VARIABLE}={highest}"
        lacks = [feature for feature in level.features if feature not in features]
        if not lacks:
            best, why = level, ""
        elif not why:
            why = f"this processor has no {lacks[0]}, which {level.name} needs"
    return best, why
