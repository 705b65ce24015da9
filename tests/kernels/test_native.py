"""Building compiled kernels: once, atomically; and failures."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from multihead.engine.weights import DECODING
from multihead.errors import ConfigurationError
from multihead.kernels import native as build
from multihead.kernels.native import KERNELS, VARIABLE, building, clear_loaded, levels, load_kernels

if TYPE_CHECKING:
    from tests.conftest import WithoutKernels


FAKE = """#!{python}
import subprocess, sys, time
with open({log!r}, "a") as log:
    log.write(sys.argv[1] + "\\n")
if sys.argv[1] == "--version":
    print("fake 1.0")
else:
    import shutil
    time.sleep(0.3)
    shutil.copy({good!r}, sys.argv[sys.argv.index("-o") + 1])
"""


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Empty folders for the cache and for temporary files; loaded libraries are cleared before and after the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
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


@pytest.fixture
def copied(good: str, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replaces the compiler by a copy of the compiled library; returns the folder of the test."""
    monkeypatch.setattr(build, "_compile", lambda _, __, path: shutil.copy(good, path))
    return fresh


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
    assert {path.name for path in Path(first._name).parent.iterdir()} == {"kernels.so", "kernels.sha256", "lock"}
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
    assert sum(call != "--version" for call in calls) == 1  # compiled once


def elsewhere(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The built library under a new name, since the process keeps what it has loaded under the old one."""
    name = Path(build.build_or_load(build.KERNELS)[0]._name).relative_to(fresh / "cache")
    (fresh / "cache").rename(fresh / "elsewhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(fresh / "elsewhere"))
    return fresh / "elsewhere" / name


def record(path: Path) -> Path:
    return path.with_suffix(".sha256")


def rewrite(path: Path, content: bytes) -> None:
    path.unlink()  # a loaded library keeps its old file
    path.write_bytes(content)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    rewrite(path, bytes(content))


def link(path: Path) -> None:
    path.rename(path.with_name("other.so"))
    path.symlink_to("other.so")


def replace_by(path: Path, make: Callable[[Path], None]) -> None:
    path.unlink()
    make(path)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "rubbish": lambda path: rewrite(path, b"not a library"),
    "empty": lambda path: rewrite(path, b""),
    "cut": lambda path: rewrite(path, path.read_bytes()[:-4096]),
    "longer": lambda path: rewrite(path, path.read_bytes() + b"x"),
    "one bit": flip,
    "a link": link,
    "a pipe": lambda path: replace_by(path, os.mkfifo),
    "a folder": lambda path: replace_by(path, Path.mkdir),
    "others may write": lambda path: path.chmod(0o722),
    "no record": lambda path: record(path).unlink(),
    "another record": lambda path: rewrite(record(path), b"0 0\n"),
    "a record that is no text": lambda path: rewrite(record(path), b"\xff\xfe" * 40),
    "a large record": lambda path: rewrite(record(path), record(path).read_bytes() * 10),
    "a record that is a pipe": lambda path: replace_by(record(path), os.mkfifo),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_library_is_not_loaded_but_built_again(damage, good, copied, monkeypatch, logged):
    path = elsewhere(copied, monkeypatch)
    DAMAGE[damage](path)
    loaded: list[str] = []
    cdll = ctypes.CDLL
    monkeypatch.setattr(build.ctypes, "CDLL", lambda name: loaded.append(name) or cdll(name))
    said: list[str] = []
    build.build_or_load(build.KERNELS, said.append)
    assert len(said) == 1
    assert any("building it again" in message for message in logged)
    assert loaded[0] != str(path)  # the new one, in its draft
    assert path.read_bytes() == Path(good).read_bytes()
    assert build.verified(path) is not None


def test_every_changed_byte_of_the_record_is_noticed(good, copied, monkeypatch):
    path = elsewhere(copied, monkeypatch)
    content = record(path).read_bytes()
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        rewrite(record(path), bytes(changed))
        assert build.verified(path) is None


def test_what_a_killed_compilation_left_is_removed(copied, monkeypatch):
    path = elsewhere(copied, monkeypatch)
    draft = path.parent / "tmpkilled"
    draft.mkdir()
    (draft / "kernels.o").write_bytes(b"half an obj")
    path.unlink()  # the compiler was killed before the rename
    again, _ = build.build_or_load(build.KERNELS)
    assert Path(again._name) == path
    assert {one.name for one in path.parent.iterdir()} == {"kernels.so", "kernels.sha256", "lock"}


def test_keys_that_are_no_longer_used_are_removed(copied, monkeypatch):
    first, _ = build.build_or_load(build.KERNELS)
    old = Path(first._name).parent
    names = ["0" * 20, "1" * 20, "2" * 20, "notes"]
    for name in names:
        shutil.copytree(old, old.with_name(name))
    past = time.time() - (building.UNUSED_DAYS + 1) * 86400
    for name in (old.name, *names):
        for path in (*old.with_name(name).iterdir(), old.with_name(name)):
            os.utime(path, (past, past))
    os.utime(old.with_name("1" * 20) / "kernels.sha256")  # another process has loaded it
    with building.locked(old.with_name("2" * 20), build.check_owner):  # another process compiles it
        os.utime(old.with_name("2" * 20) / "lock", (past, past))
        os.utime(old.with_name("2" * 20), (past, past))
        building.clean(old.parent, old.name, build.check_owner)
    assert {path.name for path in old.parent.iterdir()} == {old.name, "1" * 20, "2" * 20, "notes"}
    building.clean(old.parent, "", build.check_owner)
    assert {path.name for path in old.parent.iterdir()} == {"1" * 20, "notes"}
    assert first.dropout is not None  # processes that have loaded it keep it
    again, _ = build.build_or_load(build.KERNELS)
    assert build.verified(Path(again._name)) is not None


def test_loading_notes_the_time_of_use(copied, monkeypatch):
    path = Path(build.build_or_load(build.KERNELS)[0]._name)
    past = time.time() - 7 * 86400
    os.utime(record(path), (past, past))
    build.build_or_load(build.KERNELS)
    assert record(path).stat().st_mtime > past + 86400


def test_a_folder_that_vanishes_before_it_is_locked_is_made_again(fresh):
    folder, times = fresh / "cache" / ("3" * 20), []

    def vanish(path: Path) -> None:
        build.check_owner(path)
        times.append(path)
        if len(times) == 1:
            shutil.rmtree(folder)

    with building.locked(folder, vanish):
        assert (folder / "lock").exists()
    assert len(times) == 2


def no_home(monkeypatch: pytest.MonkeyPatch, fresh: Path) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)


def a_file_in_the_way(monkeypatch: pytest.MonkeyPatch, fresh: Path) -> None:
    (fresh / "cache").write_text("")


def others_may_write(monkeypatch: pytest.MonkeyPatch, fresh: Path) -> None:
    folder = Path(build.build_or_load(build.KERNELS)[0]._name).parent
    folder.chmod(0o777)


def a_link_in_the_way(monkeypatch: pytest.MonkeyPatch, fresh: Path) -> None:
    folder = Path(build.build_or_load(build.KERNELS)[0]._name).parent
    folder.rename(fresh / "theirs")
    folder.symlink_to(fresh / "theirs")


UNUSABLE = {
    "no home": (no_home, "no home folder"),
    "a file in the way": (a_file_in_the_way, "Not a directory"),
    "others may write": (others_may_write, "others may write"),
    "a link": (a_link_in_the_way, "cannot be used"),
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_without_a_cache_folder_it_is_kept_in_a_temporary_one_and_said_once(what, copied, monkeypatch):
    spoil, reason = UNUSABLE[what]
    spoil(monkeypatch, copied)
    said: list[str] = []
    for _ in range(2):
        library, how = build.build_or_load(build.KERNELS, said.append)
        assert Path(library._name).is_relative_to(copied / "temporary")
        assert str(copied / "temporary") in how
    assert len(said) == 1
    assert reason in said[0]
    assert (copied / "temporary" / f"multihead-{os.getuid()}").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("temporary", ["none", "a file in the way"])
def test_without_any_folder_the_plain_form_is_taken_and_said(temporary, copied, monkeypatch):
    no_home(monkeypatch, copied)
    if temporary == "none":

        def nowhere() -> str:
            raise FileNotFoundError(2, "No usable temporary directory found")

        monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    else:
        (copied / "temporary" / f"multihead-{os.getuid()}").touch()
    found = load_kernels()
    assert found.library is None
    assert found.reason.startswith("plain kernels: they cannot be stored: this user has no home folder")
    assert "\n" not in found.reason


def test_a_wish_that_is_none(fresh, monkeypatch):
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(ConfigurationError, match="0 \\(never\\), 1 \\(always\\)"):
        load_kernels()


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_systems_without_compiled_kernels_have_the_plain_ones(system, fresh, monkeypatch):
    """These systems have no /proc, from which Linux's OpenMP library is found."""
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(build, "_loaded_openmp", lambda: Path("/proc/none/maps").read_text(encoding="utf-8"))
    monkeypatch.delenv(VARIABLE, raising=False)
    found = load_kernels()
    assert found.library is None
    assert found.reason.startswith("plain kernels: compiled ones are made on Linux, and this is ")
    clear_loaded()
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(ConfigurationError, match="compiled ones are made on Linux"):
        load_kernels()


def test_cxx_may_have_several_words(good, fresh, monkeypatch):
    """As in make, for example ``ccache g++``: the first word is the program, the others are arguments."""
    commands = []
    monkeypatch.setattr(build, "_compile", lambda command, _, path: commands.append(command) or shutil.copy(good, path))
    one, spaced = fresh / "one", fresh / "my tools"
    for folder in (one, spaced):
        folder.mkdir()
    program = compiler(one, "#!/bin/sh\necho fake 1.0\n")
    monkeypatch.setenv("CXX", f"{program} g++ '-D a'")
    _, how = build.build_or_load(build.KERNELS)
    assert commands[0][:3] == [program, "g++", "-D a"]
    assert how.startswith("compiler g++ -D a 1.0, ")
    program = compiler(spaced, "#!/bin/sh\necho fake 1.0\n")  # a program whose name has a space is no list of words
    monkeypatch.setenv("CXX", program)
    build.build_or_load(build.KERNELS)
    assert commands[1][0] == program


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="libraries are compiled under Linux")
@pytest.mark.parametrize("named", ["no-such-compiler g++", "g++ 'unfinished"])
def test_a_compiler_that_is_not_there_is_named(named, fresh, monkeypatch):
    monkeypatch.setattr(build, "packaged_file", lambda *_: fresh / "none.so")
    monkeypatch.setenv("CXX", named)
    with pytest.raises(build.BuildError) as caught:
        build.build_or_load(build.KERNELS)
    assert str(caught.value) == f"there is no C++ compiler (CXX={named!r} names none)"


class Opened(ctypes.CDLL):
    """A library that has only a name."""

    def __init__(self, name: str) -> None:
        self._name = name


@pytest.fixture
def mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str | None]:
    """Which of a process's loaded OpenMP libraries is used; PyTorch has its own in /torch/lib."""

    def taken(*names: str, bundled: bool = True) -> str | None:
        line = "7f0000000000-7f0000001000 r-xp 00000000 08:01 42                         {}\n"
        text = "".join(line.format(name) for name in ("[heap]", "/usr/lib/libc.so.6", *names))
        (tmp_path / "maps").write_bytes(text.encode("utf-8", "surrogateescape"))
        found = build._mapped_openmp(bundled=bundled)
        return None if found is None else found._name

    monkeypatch.setattr(build, "_MAPS", tmp_path / "maps")
    monkeypatch.setattr(build, "_openmp_folders", lambda: (Path("/torch/lib"), Path("/torch.libs")))
    monkeypatch.setattr(build.ctypes, "CDLL", Opened)
    return taken


def test_the_threads_are_pytorch_s_and_not_those_of_a_copy_in_another_package(mapped):
    bundled, own, system = "/ctranslate2.libs/libgomp-e985bcbb.so.1.0.0", "/torch/lib/libgomp.so.1", "/lib/libgomp.so.1"
    assert mapped(bundled, system, own) == own
    assert mapped(bundled, "/torch.libs/libgomp-a34b3233.so.1") == "/torch.libs/libgomp-a34b3233.so.1"
    assert mapped(bundled, system) == system
    assert mapped(bundled) == bundled
    assert mapped(bundled, bundled=False) is None  # PyTorch is not loaded yet, and will load another
    assert mapped(bundled, own, bundled=False) == own
    assert mapped("/libgomp/other.so") is None
    assert mapped() is None


def test_what_is_mapped_may_be_deleted_or_have_any_name(mapped, monkeypatch):
    assert mapped("/torch/lib/libgomp.so.1 (deleted)", "/lib/libgomp.so.1") == "/lib/libgomp.so.1"
    assert mapped("/torch/lib/libgomp.so.1 (deleted)") is None
    assert mapped("/folder \udcff/libgomp.so.1") == "/folder \udcff/libgomp.so.1"

    def fail(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(build.ctypes, "CDLL", fail)
    with pytest.raises(build.BuildError, match=r"^/lib/libgomp.so.1 cannot be loaded: .*cannot open"):
        mapped("/lib/libgomp.so.1")


def test_the_library_says_what_it_is(compiled):
    assert load_kernels().reason.startswith("compiled kernels (")


@pytest.mark.parametrize("library", [KERNELS, DECODING], ids=lambda library: library.name)
def test_what_is_shipped_compiles_where_there_is_a_compiler(library):
    """Other tests of the kernels are skipped if they cannot be built."""
    if levels.compiler() is None or not sys.platform.startswith("linux"):
        pytest.skip("there is no C++ compiler")
    loaded, _ = build.build_or_load(library)
    assert loaded is not None
