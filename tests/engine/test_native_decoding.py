"""The compiled search is a separate library: built at the first use, from all its source files."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from multihead.engine.weights import DECODING, load_search_library
from multihead.kernels import native as build


@pytest.mark.parametrize("library", [build.KERNELS, DECODING], ids=lambda library: library.name)
def test_what_is_included_belongs_to_the_key(library: build.Library) -> None:
    included = [re.findall(r'#include "(.*)"', file.read_text(encoding="utf-8")) for file in library.sources]
    elsewhere = {"webassembly.h"}  # included where __wasm__ is defined only (tests/interop/formats/test_web.py)
    assert {file for files in included for file in files} - elsewhere == {file.name for file in library.sources[1:]}


def test_each_library_is_built_by_itself_and_again_when_a_part_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    good = load_search_library().library
    if good is None:
        pytest.skip(load_search_library().reason)
    built: list[tuple[str, str]] = []

    def copied(_: list[str], source: Path, path: Path) -> None:
        built.append((source.name, path.name))
        shutil.copy(good._name, path)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "_compile", copied)
    said: list[str] = []
    for library in (DECODING, DECODING, build.KERNELS, DECODING):
        build.build_or_load(library, said.append)
    assert built == [("decoding.cpp", "decoding.so"), ("kernels.cpp", "kernels.so")]
    assert ["compiled decoding" in line for line in said] == [True, False]
    build.build_or_load(replace(DECODING, sources=DECODING.sources[:2]), said.append)
    assert len(built) == 3


def test_every_function_of_the_search_is_declared() -> None:
    text = DECODING.sources[0].read_text(encoding="utf-8")
    functions = re.findall(r'extern "C" ([\w ]+ ?\*?)(decoding_\w+)\((.*?)\) \{', text, flags=re.DOTALL)
    declared = DECODING.signatures
    assert {name for _, name, _ in functions} == set(declared)
    for result, name, arguments in functions:
        letters, _, answer = declared[name].partition(":")
        assert len(letters) == len(arguments.split(","))
        for letter, argument in zip(letters, arguments.split(","), strict=True):
            assert letter == ("p" if "*" in argument else "d" if "double" in argument else "l")
        assert answer == {"void *": "p", "void ": "", "i64 ": "l"}[result]
