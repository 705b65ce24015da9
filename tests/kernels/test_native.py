"""Building compiled kernels: once, atomically; and failures."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from multihead.engine.weights import DECODING
from multihead.errors import ConfigurationError
from multihead.kernels import native as build
from multihead.kernels.native import KERNELS, VARIABLE, clear_loaded, load_kernels

if TYPE_CHECKING:
    from tests.conftest import WithoutKernels


FAKE = """#!{python}
import subprocess, sys, time
with open({log!r}, "a") as log:
    log.write(sys.argv[1] + "\\n")
if sys.argv[1] == "--version":
    print("fake 1.0")
elif "-c" in sys.argv:
    time.sleep(0.3)
    open(sys.argv[sys.argv.index("-o") + 1], "wb").write(b"object")
else:
    import shutil
    shutil.copy({good!r}, sys.argv[sys.argv.index("-o") + 1])
"""


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache folder; loaded libraries are cleared before and after the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    clear_loaded()
    yield tmp_path
    monkeypatch.undo()
    clear_loaded()


def compiler(folder: Path, text: str) -> str:
    path = folder / "compiler"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def pretender(folder: Path, good: str) -> str:
    """A fake compiler that copies a library compiled before, and records each call."""
    return compiler(folder, FAKE.format(python=sys.executable, log=str(folder / "log"), good=good))


@pytest.fixture
def good(compiled: WithoutKernels) -> str:
    """The file of the compiled kernels."""
    library = load_kernels().library
    assert library is not None
    return library._name


def test_it_is_built_once_announced_and_found_again(good, fresh, monkeypatch):
    monkeypatch.setenv("CXX", pretender(fresh, good))
    said: list[str] = []
    first, how = build.build_or_load(build.KERNELS, said.append)
    assert len(said) == 1
    assert "once for this machine" in said[0]
    assert how.startswith("compiler 1.0")
    again, _ = build.build_or_load(build.KERNELS, said.append)
    assert len(said) == 1
    assert isinstance(first, ctypes.CDLL)
    assert first._name == again._name
    assert [path.name for path in Path(first._name).parent.iterdir() if path.name != "lock"] == ["kernels.so"]
    assert Path(first._name).stat().st_mode & 0o022 == 0


def test_processes_that_come_at_once_build_it_once(good, fresh, monkeypatch):
    monkeypatch.setenv("CXX", pretender(fresh, good))
    code = "from multihead.kernels import native as build; print(build.build_or_load(build.KERNELS)[0]._name)"
    several = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ)
        for _ in range(2)
    ]
    names = {process.communicate(timeout=60)[0] for process in several}
    assert len(names) == 1
    assert all(process.returncode == 0 for process in several)
    calls = (fresh / "log").read_text().split()
    assert sum(call != "--version" for call in calls) == 2  # compiled once, linked once


def test_a_damaged_file_is_built_again(good, fresh, monkeypatch, caplog):
    monkeypatch.setenv("CXX", pretender(fresh, good))
    name = Path(build.build_or_load(build.KERNELS)[0]._name).relative_to(fresh / "cache")
    (fresh / "cache").rename(fresh / "elsewhere")  # under its old name the process knows what it has loaded
    monkeypatch.setenv("XDG_CACHE_HOME", str(fresh / "elsewhere"))
    (fresh / "elsewhere" / name).unlink()  # what is loaded stays as it is
    (fresh / "elsewhere" / name).write_bytes(b"not a library")
    said: list[str] = []
    build.build_or_load(build.KERNELS, said.append)
    assert len(said) == 1
    assert "cannot be loaded" in caplog.text


BROKEN = {
    "none": (None, "there is no C\\+\\+ compiler"),
    "fails": ("#!/bin/sh\n[ $1 = --version ] && exit 0\necho 'no such processor' >&2; exit 3\n", "status 3: no such"),
    "hands out rubbish": (
        '#!/bin/sh\n[ $1 = --version ] && exit 0\nwhile [ $# -gt 1 ]; do shift; done\necho rubbish > "$1"\n',
        "cannot be kept|invalid ELF|file too short",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_without_a_good_compiler_the_plain_form_is_taken_and_said(what, fresh, monkeypatch):
    script, message = BROKEN[what]
    monkeypatch.setenv("CXX", str(fresh / "nothing") if script is None else compiler(fresh, script))
    with pytest.raises(build.BuildError, match=message):
        build.build_or_load(build.KERNELS)
    found = load_kernels()
    assert found.library is None
    assert found.reason.startswith("plain kernels: ")
    assert not list((fresh / "cache").rglob("kernels.so"))
    clear_loaded()
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(ConfigurationError, match=f"{VARIABLE}=1, but"):
        load_kernels()


def test_a_folder_that_others_may_write_to_is_not_trusted(good, fresh, monkeypatch):
    monkeypatch.setenv("CXX", pretender(fresh, good))
    folder = Path(build.build_or_load(build.KERNELS)[0]._name).parent
    folder.chmod(0o777)
    with pytest.raises(build.BuildError, match="others may write"):
        build.build_or_load(build.KERNELS)


def test_a_wish_that_is_none(fresh, monkeypatch):
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(ConfigurationError, match="0 \\(never\\), 1 \\(always\\)"):
        load_kernels()


def test_the_library_says_what_it_is(compiled):
    assert load_kernels().reason.startswith("compiled kernels (")


@pytest.mark.parametrize("library", [KERNELS, DECODING], ids=lambda library: library.name)
def test_what_is_shipped_compiles_where_there_is_a_compiler(library):
    """Other tests of them are skipped where it cannot be built."""
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("there is no C++ compiler")
    loaded, _ = build.build_or_load(library)
    assert loaded is not None
