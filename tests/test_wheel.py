"""Packages: their contents, and that a wheel works without a compiler.

The short form takes a second and runs in `make test`. The others, marked `wheel`, test what `make wheel` builds.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from multihead.kernels.native import VARIABLE, levels
from multihead.platforms import processor

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LINES = ["eins zwei drei", "sieben", "zehn neun acht", "vier fünf sechs eins"]


@pytest.fixture(scope="module")
def backend() -> ModuleType:
    """The build back end, as pip finds it."""
    settings = PROJECT["build-system"]
    (folder,) = settings["backend-path"]
    spec = importlib.util.spec_from_file_location(
        settings["build-backend"], ROOT / folder / f"{settings['build-backend']}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files_of(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel, which are those of its record, with their hashes and sizes."""
    with zipfile.ZipFile(wheel) as opened:
        assert len(opened.namelist()) == len(set(opened.namelist()))
        files = {name: opened.read(name) for name in opened.namelist()}
    (record,) = [name for name in files if name.endswith(".dist-info/RECORD")]
    rows = [line.rsplit(",", 2) for line in files[record].decode().splitlines()]
    assert {name for name, _, _ in rows} == set(files)
    for name, digest, size in rows:
        if name != record:
            expected = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={expected}", len(files[name]))
    return files


# --------------------------------------------------------------------------- the short form


def fake_compiler(folder: Path, unknown: str) -> str:
    """A compiler that writes its arguments instead of a library, and does not know a flag."""
    path = folder / "compiler"
    path.write_text(
        f'#!/bin/sh\ncase "$*" in *{unknown}*) echo "unrecognized option {unknown}" >&2; exit 1;; esac\n'
        'for last; do :; done\n[ "$last" = /dev/null ] || echo "$*" > "$last"\n'
    )
    path.chmod(0o755)
    return str(path)


def pure_wheel(folder: Path) -> Path:
    wheel = folder / "pack-1.0-py3-none-any.whl"
    files = {"pack/__init__.py": b"", "pack-1.0.dist-info/WHEEL": b"Root-Is-Purelib: true\nTag: py3-none-any\n"}
    with zipfile.ZipFile(wheel, "w") as opened:
        rows = ["pack/__init__.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0"]
        rows += ["pack-1.0.dist-info/WHEEL,sha256=x,1", "pack-1.0.dist-info/RECORD,,"]
        for name, content in {**files, "pack-1.0.dist-info/RECORD": "\n".join(rows).encode()}.items():
            opened.writestr(name, content)
    return wheel


def test_a_wheel_gets_its_libraries_and_the_tag_of_the_platform(backend: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "one.so").write_bytes(b"code")
    made = backend.with_libraries(pure_wheel(tmp_path), {"pack/one.so": tmp_path / "one.so"}, tmp_path / "made")
    assert re.fullmatch(r"pack-1\.0-py3-none-[a-z0-9_]+\.whl", made.name)
    assert not made.name.endswith("-any.whl")
    files = files_of(made)
    assert files["pack/one.so"] == b"code"
    tag = made.name.removesuffix(".whl").removeprefix("pack-1.0-")
    assert files["pack-1.0.dist-info/WHEEL"].decode() == f"Root-Is-Purelib: false\nTag: {tag}\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="libraries are compiled under Linux")
def test_every_level_that_the_compiler_knows_is_compiled(
    backend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for machine, unknown, left_out in (("x86_64", "-mamx-tile", "amx"), ("aarch64", "bf16", "bf16")):
        monkeypatch.setattr("sysconfig.get_platform", lambda machine=machine: f"linux-{machine}")
        monkeypatch.setenv("CXX", fake_compiler(tmp_path, unknown))
        found = backend.compile_all(tmp_path)
        expected = {
            f"multihead/{Path(levels.SOURCES[name]).parent}/{name}.{level.name}.so": level
            for level in levels.LEVELS[machine]
            for name in level.libraries
            if level.name != left_out
        }
        assert found.keys() == expected.keys()
        for name, level in expected.items():
            words = found[name].read_text().split()
            assert {*levels.FLAGS, *level.flags, *levels.LINK} <= {*words}
        said = capsys.readouterr().err
        assert said == f"left out {left_out}: unrecognized option {unknown}\n"
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, "-march="))
    with pytest.raises(SystemExit, match=r"does not know neon: unrecognized option -march="):
        backend.compile_all(tmp_path)
    monkeypatch.setenv("CXX", "no-such-compiler g++")
    with pytest.raises(
        SystemExit, match=r"CXX='no-such-compiler g\+\+' names none\): without native=true none is needed"
    ):
        backend.compile_all(tmp_path)
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, "nothing"))
    for place in ("linux-riscv64", "win-amd64", "macosx-14.0-arm64"):
        monkeypatch.setattr("sysconfig.get_platform", lambda place=place: place)
        with pytest.raises(SystemExit, match=f"no compiled libraries are made for {place}: leave out native=true"):
            backend.compile_all(tmp_path)


def test_without_the_setting_setuptools_builds_and_no_compiler_is_called(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(backend.build_meta, "build_wheel", lambda *given: asked.append(given) or "pack.whl")
    monkeypatch.setattr(backend, "compile_all", lambda _: pytest.fail("it compiles"))
    for settings in (None, {}, {"native": "false"}):
        assert backend.build_wheel(str(tmp_path), settings) == "pack.whl"
    assert asked == [(str(tmp_path), {}, None)] * 3
    with pytest.raises(SystemExit, match="native=yes: write true or false"):
        backend.build_wheel(str(tmp_path), {"native": "yes"})


def test_the_wheels_of_an_index_are_built_with_libraries_for_every_architecture() -> None:
    settings = PROJECT["tool"]["cibuildwheel"]
    assert settings["config-settings"] == {"native": "true"}
    lowest = PROJECT["project"]["requires-python"].removeprefix(">=").replace(".", "")
    assert settings["build"] == f"cp{lowest}-manylinux_*"
    assert settings["test-environment"][VARIABLE] == "1"
    for machine in levels.LEVELS:
        assert f"manylinux-{machine}-image" in settings
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text(encoding="utf-8"))
    machines = workflow["jobs"]["linux"]["strategy"]["matrix"]["os"]
    assert [name.endswith("-arm") for name in machines] == [False, True]


# --------------------------------------------------------------------------- what `make wheel` has built


def built(pattern: str) -> Path:
    found = sorted(DIST.glob(pattern))
    assert len(found) == 1, f"dist has {len(found)} files {pattern}: make wheel"
    return found[0]


@pytest.mark.wheel
def test_the_sdist_is_the_repository() -> None:
    with tarfile.open(built("*.tar.gz")) as opened:
        held = {member.name.partition("/")[2] for member in opened.getmembers() if member.isfile()}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    made = {"PKG-INFO", "setup.cfg", "src/multihead.egg-info/SOURCES.txt"}
    held = {name for name in held if name in made or not name.startswith("src/multihead.egg-info/")}
    assert held == {*filter(None, listed)} | made


@pytest.mark.wheel
def test_the_wheel_holds_the_package_and_the_libraries_that_the_compiler_knows(backend: ModuleType) -> None:
    wheel = built("*.whl")
    files = files_of(wheel)
    package = {
        path.relative_to(ROOT / "src").as_posix(): path.read_bytes()
        for path in (ROOT / "src" / "multihead").rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    held = {name: content for name, content in files.items() if name.startswith("multihead/")}
    libraries = {name for name in held if name.endswith(".so")}
    assert {name: content for name, content in held.items() if name not in libraries} == package
    assert {Path(name).name for name in libraries} == {
        f"{name}.{level.name}.so" for level in levels.levels() for name in level.libraries
    }
    for name in libraries:
        assert held[name][:4] == b"\x7fELF"
        assert b"libgomp" not in held[name]


class Installed:
    """The wheel in a separate environment, which sees the other packages of this Python but no compiler."""

    def __init__(self, place: Path) -> None:
        self.folder = place / "work"
        self.folder.mkdir()
        programs, self.cache = place / "environment" / "bin", place / "cache"
        venv.create(programs.parent, with_pip=True)
        words = ["-I", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
        subprocess.run([programs / "python", *words, built("*.whl")], check=True)
        packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        outer = programs.parent / "lib" / version / "site-packages" / "outer.pth"
        outer.write_text("\n".join(packages) + "\n", encoding="utf-8")
        self.program = programs / "multihead"
        self.environment = {"PATH": str(programs), "HOME": str(place), "XDG_CACHE_HOME": str(self.cache), VARIABLE: "1"}

    def __call__(self, *words: str, text: str = "", **variables: str) -> str:
        """What the command prints."""
        given = {"cwd": self.folder, "env": {**self.environment, **variables}, "input": text}
        done = subprocess.run([self.program, *words], **given, capture_output=True, text=True, check=False)  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr
        assert not list(self.cache.rglob("*.so"))
        return str(done.stdout)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"))


def usable() -> list[str]:
    """The names of the levels that this processor has."""
    features = processor().features
    return [level.name for level in levels.levels() if features.issuperset(level.features)]


@pytest.mark.wheel
def test_the_wheel_takes_the_best_level_without_a_compiler(installed: Installed) -> None:
    facts = json.loads(installed("env", "--json"))
    assert facts["compiler"]["path"] is None
    assert str(ROOT) not in facts["multihead"]["place"]
    expected = {
        "kernels": [level.name for level in levels.levels("kernels") if level.name in usable()][-1],
        "search": usable()[-1],
    }
    for step, level in expected.items():
        assert facts["kernels"][step]["compiled"]
        assert f"(of the package, {level}" in facts["kernels"][step]["reason"]


@pytest.mark.wheel
def test_the_wheel_trains_as_the_plain_form_does(installed: Installed, numbers: Any) -> None:
    settings = {
        **numbers.settings,
        "updates": 10,
        "log_every": 2,
        "validate_every": 10,
        **numbers.train,
        **numbers.valid,
    }
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    logs = []
    for native in ("1", "0"):
        installed("train", *flags, f"--output=run{native}", **{VARIABLE: native})
        log = (installed.folder / f"run{native}" / "log.jsonl").read_text(encoding="utf-8")
        logs.append([json.loads(line) for line in log.splitlines()])
    assert len(logs[0]) > 5
    for one, other in zip(*logs, strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            assert one[name] == (pytest.approx(value, rel=1e-3) if isinstance(value, float) else value)


@pytest.mark.wheel
@pytest.mark.parametrize("level", [level.name for level in levels.levels()])
def test_the_wheel_translates_at_every_level(level: str, installed: Installed, trained: Path) -> None:
    if level not in usable():
        features = processor().features
        needed = next(one.features for one in levels.levels() if one.name == level)
        pytest.skip(f"this processor has no {next(one for one in needed if one not in features)}, which {level} needs")
    text = "\n".join(LINES) + "\n"
    plain = installed("translate", str(trained), text=text, **{VARIABLE: "0"})
    assert plain.splitlines()[0] == "one two three"
    for precision in ("float32", "int8"):
        done = installed("translate", str(trained), f"--precision={precision}", text=text, **{levels.VARIABLE: level})
        assert done == plain
