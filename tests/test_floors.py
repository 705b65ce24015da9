"""The floors of pyproject.toml are the versions of constraints-lowest.txt, which can be installed together."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import sysconfig
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
    """setuptools stops reading tables in 2027; it reads expressions since version 77."""
    project, (backend,) = PROJECT["project"], PROJECT["build-system"]["requires"]
    assert project["license"] == "Apache-2.0"
    assert all((ROOT / name).is_file() for name in project["license-files"])
    assert not [name for name in project["classifiers"] if name.startswith("License")]
    (floor,) = re.findall(r"setuptools>=([0-9.]+)", backend)
    assert Version(floor) >= Version("77")


def test_every_module_is_imported_with_these_versions() -> None:
    """In a separate process, without the signature checks, which take most of the time."""
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


def program(environment: Path, line: str) -> None:
    """Put a shell program in place of the Python of an environment."""
    file = environment / "bin" / "python"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8", newline="\n")
    file.chmod(0o755)


@pytest.mark.parametrize("fails_at", [1, 2])
def test_an_environment_that_cannot_be_installed_is_said_in_one_line(fails_at: int, tmp_path: Path) -> None:
    """A program in place of its Python counts the installations of pip and fails at one."""
    count = f'echo x >> "{tmp_path}/calls"\n[ $(wc -l < "{tmp_path}/calls") -lt {fails_at} ]'
    program(tmp_path, f'[ "$3" != install ] && exit 0\n{count}')
    (tmp_path / ".installed").touch()
    with pytest.raises(SystemExit) as stopped:
        make_environment().make(tmp_path, "constraints-lowest.txt", "setuptools", [], outer=False)
    assert "is not complete: pip ended with status 1" in str(stopped.value)
    assert "constraints-lowest.txt" in str(stopped.value)
    assert str(stopped.value).count("\n") == 0
    assert not (tmp_path / ".installed").exists()


@pytest.mark.parametrize("left", ["exit 1", None])
def test_an_environment_without_a_working_pip_is_created_again(
    left: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failed creation leaves a Python that does not find pip, or no Python."""
    environment, asked = tmp_path / ".venv", []
    if left is not None:
        program(environment, left)

    def create(folder: Path, **options: bool) -> None:
        asked.append(options)
        program(folder, "exit 0")

    tool = make_environment()
    monkeypatch.setattr(tool.venv, "create", create)
    for _ in range(2):
        tool.make(environment, "constraints.txt", "torch", [], outer=True)
    (options,) = asked
    assert options["clear"]
    assert options["with_pip"]
    assert options["system_site_packages"]
    assert (environment / ".installed").exists()
    assert ("no working pip" in capsys.readouterr().out) == (left is not None)


def test_a_python_that_cannot_create_environments_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's Python without the package python3-venv; or a creation that fails for another reason."""
    tool, environment = make_environment(), tmp_path / ".venv"

    def create(*_: object, **__: object) -> None:
        raise subprocess.CalledProcessError(1, ["python", "-m", "ensurepip"])

    monkeypatch.setattr(tool.venv, "create", create)
    with pytest.raises(SystemExit, match=r"\.venv could not be created .*'ensurepip'.* exit status 1"):
        tool.create(environment, outer=False)
    monkeypatch.setattr(tool.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=rf"ensurepip .*\.venv.* \(python3\.{sys.version_info.minor}-venv on Debian"):
        tool.create(environment, outer=False)


def test_another_python_than_that_of_an_environment_is_refused(tmp_path: Path) -> None:
    """Otherwise `make setup PYTHON=...` would be ignored."""
    tool, this = make_environment(), Path(sysconfig.get_path("stdlib")).name
    tool.compare(tmp_path / ".venv")  # there is none
    for version, refused in ((this, False), ("python3.10", True)):
        environment = tmp_path / version
        (environment / "lib" / version).mkdir(parents=True)
        if refused:
            with pytest.raises(SystemExit, match=rf"has python3\.10, .* is {re.escape(this)}: remove"):
                tool.compare(environment)
        else:
            tool.compare(environment)


def test_every_environment_of_the_makefile_is_compared_with_a_python_that_is_named() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    made = re.findall(r"^\$\(\w+\): (.*)\n\t\$\(PYTHON\) tools/make_environment.py(.*)", makefile, re.M)
    assert len(made) == 2
    for needs, option in made:
        assert needs.endswith(f" | same-python{option.replace(' --', '-')}")
