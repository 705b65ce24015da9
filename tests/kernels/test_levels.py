"""The level of a compiled library: what the processor supports, the environment allows, and the package contains."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from multihead import platforms
from multihead.engine.weights import DECODING
from multihead.errors import ConfigurationError
from multihead.interop.formats import web
from multihead.kernels import native
from multihead.kernels.native import KERNELS, THREADS, clear_loaded, levels, load_kernels, load_library


def features(text: str) -> set[str]:
    return set(text.split())


V2 = features("cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3 fpu")
V3 = V2 | features("abm avx avx2 bmi1 bmi2 f16c fma movbe")
V4 = V3 | features("avx512f avx512bw avx512cd avx512dq avx512vl")
PROCESSORS: dict[str, tuple[str, set[str], str | None, str | None]] = {
    "of 2007": ("x86_64", V2 - {"popcnt"}, None, None),
    "Nehalem": ("x86_64", V2, "x86-64-v2", "x86-64-v2"),
    "AVX alone": ("x86_64", V2 | {"avx"}, "x86-64-v2", "x86-64-v2"),
    "Haswell, Zen 3": ("x86_64", V3, "avx2", "avx2"),
    "Alder Lake": ("x86_64", V3 | {"avx_vnni"}, "avx2", "avx-vnni"),
    "Skylake server": ("AMD64", V4, "avx512", "avx512"),
    "Ice Lake": ("x86_64", V4 | {"avx512_vnni"}, "avx512", "avx512-vnni"),
    "Zen 4": ("x86_64", V4 | {"avx512_vnni", "avx512_bf16"}, "avx512-bf16", "avx512-bf16"),
    "Zen 5": ("x86_64", V4 | {"avx_vnni", "avx512_vnni", "avx512_bf16"}, "avx512-bf16", "avx512-bf16"),
    "Sapphire Rapids": (
        "x86_64", V4 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"}, "avx512-bf16", "amx",
    ),
    "Raspberry Pi 4": ("aarch64", features("fp asimd crc32"), "neon", "neon"),
    "Graviton 2": ("aarch64", features("fp asimd crc32 atomics fphp asimdhp asimdrdm asimddp"), "neon", "dotprod"),
    "Graviton 3": (
        "arm64", features("fp asimd crc32 atomics fphp asimdhp asimdrdm asimddp i8mm bf16"), "neon", "bf16",
    ),
    "RISC-V": ("riscv64", set(), None, None),
}  # fmt: skip
"""Machine, features, and the level of kernels and of decoding."""


@pytest.fixture
def package(tmp_path: Path) -> Iterator[Path]:
    """A folder with a file of each level of this machine's kernels, which need not be libraries."""
    for level in levels.levels("kernels"):
        (tmp_path / f"kernels.{level.name}.so").touch()
    clear_loaded()
    yield tmp_path
    clear_loaded()


def processor(monkeypatch: pytest.MonkeyPatch, machine: str, present: set[str]) -> None:
    monkeypatch.setattr(levels.platform, "machine", lambda: machine)
    monkeypatch.setattr(native, "processor", lambda: platforms.Processor({}, frozenset(present)))


def in_package(folder: Path) -> native.Library:
    """The kernels, as if they were installed in this folder."""
    return replace(KERNELS, sources=(folder / "kernels.cpp",))


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_best_level_that_a_processor_has(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, present, *expected = PROCESSORS[name]
    processor(monkeypatch, machine, present)
    found = [levels.choose(levels.levels(library), frozenset(present), "")[0] for library in ("kernels", "decoding")]
    assert [level.name if level else None for level in found] == expected


def test_a_level_has_all_that_is_before_it() -> None:
    for machine in levels.LEVELS.values():
        for lower, higher in pairwise(level for level in machine if level.name not in levels._ASIDE):
            assert set(lower.features) < set(higher.features)
        for number, level in enumerate(machine):
            if level.name in levels._ASIDE:
                assert set(machine[number - 1].features) < set(level.features)
        assert "decoding" in machine[-1].libraries
        assert machine[0].libraries == tuple(levels.SOURCES)


def test_the_reason_names_the_first_level_above_that_is_missing() -> None:
    search, here = levels.levels("decoding", "x86_64"), "this processor has no"
    for present, named in (
        (V3, "avx_vnni, which avx-vnni needs"),
        (V3 | {"avx_vnni"}, "avx512f, which avx512 needs"),
        (V4, "avx512_vnni, which avx512-vnni needs"),
        (V4 | {"avx_vnni"}, "avx512_vnni, which avx512-vnni needs"),
    ):
        assert levels.choose(search, frozenset(present), "")[1] == f"{here} {named}"


def test_a_package_is_chosen_from_and_the_reason_said(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor(monkeypatch, "x86_64", V3)
    for level in ("x86-64-v2", "avx2", "avx512", "avx512-bf16"):
        (package / f"kernels.{level}.so").touch()
    choice = native.choice_of(in_package(package))
    assert (choice.level.name if choice.level else None, choice.file) == ("avx2", package / "kernels.avx2.so")
    assert choice.why == "of the package, avx2: this processor has no avx512f, which avx512 needs"
    for level in ("avx512", "avx512-bf16"):
        (package / f"kernels.{level}.so").unlink()
    assert native.choice_of(in_package(package)).why == "of the package, avx2"
    monkeypatch.setenv(levels.VARIABLE, "x86-64-v2")
    choice = native.choice_of(in_package(package))
    assert choice.file == package / "kernels.x86-64-v2.so"
    assert choice.why == "of the package, x86-64-v2: MULTIHEAD_NATIVE_LEVEL=x86-64-v2"
    processor(monkeypatch, "x86_64", V2 - {"ssse3"})
    monkeypatch.delenv(levels.VARIABLE)
    choice = native.choice_of(in_package(package))
    assert (choice.level, choice.file) == (None, None)
    assert choice.why == "for this processor, since this processor has no ssse3, which x86-64-v2 needs"


def test_sources_are_compiled_for_this_processor_or_for_the_highest_level(monkeypatch: pytest.MonkeyPatch) -> None:
    processor(monkeypatch, "x86_64", V3)
    monkeypatch.setattr(native.platform, "machine", lambda: "x86_64")
    assert native.choice_of(KERNELS) == (None, None, "")
    assert "-march=native" in native._flags(None)
    monkeypatch.setenv(levels.VARIABLE, "avx512-bf16")
    choice = native.choice_of(KERNELS)
    assert choice.level == levels.LEVELS["x86_64"][1]
    assert "-march=x86-64-v3" in native._flags(choice.level)


@pytest.mark.parametrize("feature", ["avx512f", "avx2"])
def test_the_instructions_of_a_library(feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser computes like AVX-512, so the tolerance of its results depends on our level."""
    processor(monkeypatch, "x86_64", V4)
    assert native.has_instructions(DECODING, feature)
    assert web.allowed("int8") == 1e-4
    monkeypatch.setenv(levels.VARIABLE, "avx2")
    assert native.has_instructions(DECODING, feature) == (feature == "avx2")
    assert web.allowed("int8") == 0.5
    processor(monkeypatch, "x86_64", V2)
    assert not native.has_instructions(DECODING, feature)


@pytest.mark.parametrize("machine", ["x86_64", "riscv64"])
def test_an_unknown_level_is_refused_with_the_levels(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    processor(monkeypatch, machine, V3)
    monkeypatch.setenv(levels.VARIABLE, "avx")
    names = {"x86_64": "x86-64-v2, avx2, avx-vnni, avx512, avx512-vnni, avx512-bf16, amx"}.get(machine, "none")
    with pytest.raises(ConfigurationError) as raised:
        native.choice_of(KERNELS)
    assert str(raised.value) == f"MULTIHEAD_NATIVE_LEVEL='avx': the levels of {machine} are {names}"


@pytest.mark.usefixtures("warm_processes")
def test_the_command_says_so_in_one_line(call: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not levels.levels():
        pytest.skip("no level is known of this architecture")
    monkeypatch.setenv(levels.VARIABLE, "best")
    clear_loaded()
    try:
        ended = call("env", "--json")
    finally:
        clear_loaded()
    assert "MULTIHEAD_NATIVE_LEVEL='best': the levels of" in ended.text


def test_a_library_of_the_package_is_loaded_without_a_compiler(
    package: Path, compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = load_kernels().library
    assert own is not None
    lowest = levels.levels()[0]
    shutil.copy(own._name, package / f"kernels.{lowest.name}.so")
    monkeypatch.setenv(levels.VARIABLE, lowest.name)
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(package / "cache"))
    clear_loaded()
    found = load_library(in_package(package))
    assert found.library is not None
    assert (found.library._name, found.level) == (str(package / f"kernels.{lowest.name}.so"), lowest.name)
    assert found.reason.startswith(f"compiled kernels (of the package, {lowest.name}")
    assert not (package / "cache").exists()


def test_a_package_with_a_broken_library_says_so(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not levels.levels():
        pytest.skip("no level is known of this architecture")
    found = load_library(in_package(package))
    assert found.library is None
    assert found.reason.startswith(f"plain kernels: {package / 'kernels.'}")
    assert "cannot be loaded" in found.reason


def test_the_table_names_the_libraries_of_the_package() -> None:
    place = Path(levels.__file__).parents[2]
    assert {one.name: place / levels.SOURCES[one.name] for one in (KERNELS, DECODING)} == {
        one.name: one.sources[0] for one in (KERNELS, DECODING)
    }
    assert place / levels.THREADS == THREADS


# --------------------------------------------------------------------------- threads


def test_the_threads_are_those_of_the_openmp_library_that_is_given(compiled: Any) -> None:
    library = load_kernels().library
    assert library is not None
    parallel_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    work_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    wanted: list[int] = []

    def parallel(work: int, data: int, threads: int, flags: int) -> None:
        wanted.append(threads)
        work_type(work)(data)

    def kept() -> torch.Tensor:
        mask = torch.zeros(512, 64, dtype=torch.uint8)
        native.check(library.keep_mask(mask.data_ptr(), 512, 64, 1, 2, 0, 1, 512, None, 100, 3))
        return mask

    expected, given = kept(), parallel_type(parallel)
    try:
        library.use_threads(ctypes.cast(given, ctypes.c_void_p), None, None)
        one = kept()
        library.use_threads(None, None, None)
        other = kept()
    finally:
        native._use_threads(library, native._loaded_openmp())
    assert wanted == [3]
    assert 0.5 < expected.float().mean() < 0.7
    assert torch.equal(one, expected)
    assert torch.equal(other, expected)


@pytest.mark.parametrize("library", [KERNELS, DECODING], ids=lambda library: library.name)
def test_no_openmp_library_is_named(library: native.Library, compiled: Any) -> None:
    found = load_library(library).library
    assert found is not None
    content = Path(found._name).read_bytes()
    assert b"libstdc++.so" in content
    assert b"gomp" not in content
