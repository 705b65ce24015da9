"""The floors of pyproject.toml are versions that were installed together: constraints-lowest.txt."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import processes
import pytest
from floors import NOT_IMPORTED, PROJECT, ROOT, floors, is_imported, left_out, other_versions
from packaging.utils import canonicalize_name
from packaging.version import Version


def pins(name: str) -> dict[str, Version]:
    """The versions of a file of constraints."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    rows = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(package): Version(version) for package, version in rows}


@pytest.mark.parametrize(("group", "package", "floor"), floors())
def test_a_floor_is_the_lowest_version_that_is_tested(group: str, package: str, floor: Version) -> None:
    assert floor == pins("constraints-lowest.txt")[package]


def test_what_is_tested_lies_between_the_floors_and_the_newest() -> None:
    newest = pins("constraints.txt")
    wanted = [floor for floor in floors() if floor.group != "build-system"]
    assert [floor.package for floor in wanted if not floor.version <= newest[floor.package]] == []


def test_the_license_is_an_expression_that_the_backend_knows() -> None:
    """Tables are not read from 2027 on; expressions are read by setuptools since 77."""
    project, (backend,) = PROJECT["project"], PROJECT["build-system"]["requires"]
    assert project["license"] == "Apache-2.0"
    assert all((ROOT / name).is_file() for name in project["license-files"])
    assert not [name for name in project["classifiers"] if name.startswith("License")]
    (floor,) = re.findall(r"setuptools>=([0-9.]+)", backend)
    assert Version(floor) >= Version("77")


def test_every_module_is_imported_with_these_versions() -> None:
    """In a process of its own, without the checks of signatures, which take most of the time."""
    code = (
        "import importlib, pkgutil, multihead\n"
        "names = [found.name for found in pkgutil.walk_packages(multihead.__path__, 'multihead.')]\n"
        "print(len([importlib.import_module(name) for name in names]))"
    )
    ended = processes.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    files = list((ROOT / "src" / "multihead").rglob("*.py"))
    assert int(ended.stdout) == len(files) - 1  # the package itself


def short_form() -> list[str]:
    """The tests of `make test-lowest-short`."""
    (listed,) = re.findall(r"^SHORT_FORM := ((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    return listed.replace("\\\n", " ").split()


def test_the_short_form_names_tests_that_exist() -> None:
    assert len(short_form()) > 20
    for test in short_form():
        file, _, function = test.partition("::")
        assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8") if function else (ROOT / file).is_file()


def test_a_package_that_no_test_imports_is_named() -> None:
    wanted = {floor.package for floor in floors()} - set(NOT_IMPORTED)
    assert {"torch", "numpy", "click", "protobuf", "pytest-xdist"} <= wanted
    assert left_out(()) == sorted(wanted)
    assert left_out(wanted - {"onnx"}) == ["onnx"]
    assert is_imported("torch")
    assert not is_imported("ruff")


def test_a_version_that_is_not_the_lowest_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floors.version", {"torch": "2.6.0+cpu", "numpy": "2.0.1"}.__getitem__)
    assert other_versions(["torch"]) == []
    assert other_versions(["numpy", "torch"]) == ["numpy 2.0.1 instead of 2"]


def make_environment() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_environment", ROOT / "tools" / "make_environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("fails_at", [1, 2])
def test_an_environment_that_cannot_be_installed_is_said_in_one_line(fails_at: int, tmp_path: Path) -> None:
    """A program in place of its Python counts the calls of pip and fails at one."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "python"
    program.write_text(f'#!/bin/sh\necho x >> "{tmp_path}/calls"\n[ $(wc -l < "{tmp_path}/calls") -lt {fails_at} ]\n')
    program.chmod(0o755)
    (tmp_path / ".installed").touch()
    with pytest.raises(SystemExit) as stopped:
        make_environment().make(tmp_path, "constraints-lowest.txt", "setuptools", [], outer=False)
    assert "is not complete: pip ended with status 1" in str(stopped.value)
    assert "constraints-lowest.txt" in str(stopped.value)
    assert str(stopped.value).count("\n") == 0
    assert not (tmp_path / ".installed").exists()
