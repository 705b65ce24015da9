"""The lowest versions (floors) in pyproject.toml, and a check that a test run imports these packages.

As a pytest plugin (``-p floors``), it fails a run that does not import one of them, or imports a version other than the
lowest. `make test-lowest-short` uses it.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

NOT_IMPORTED = {
    "setuptools": "builds the package at installation",
    "ruff": "a program that runs beside the tests",
    "mypy": "a program; types are checked with the newest versions",
    "httpx2": "for the test client of newer servers; the lowest version uses httpx",
    "mplfonts": "not installed: a font of 85 MB",
    "build": "not installed: builds packages",
    "twine": "not installed: checks packages",
    "ziglang": "not installed: a compiler of 80 MB",
    **{
        canonicalize_name(Requirement(text).name): "not installed: builds the site"
        for text in PROJECT["project"]["optional-dependencies"]["site"]
    },
}
"""Packages that no test imports, with the reason."""


class Floor(NamedTuple):
    """A package, its lowest allowed version, and the dependency group that requires it."""

    group: str
    package: str
    version: Version


def floors() -> list[Floor]:
    """All floors, including those of the build."""
    project = PROJECT["project"]
    groups = {
        "build-system": PROJECT["build-system"]["requires"],
        "dependencies": project["dependencies"],
        **project["optional-dependencies"],
    }
    wanted = [(group, Requirement(text)) for group, texts in groups.items() for text in texts]
    assert all([one.operator for one in need.specifier] == [">="] for _, need in wanted)
    return [Floor(group, canonicalize_name(need.name), Version(str(need.specifier)[2:])) for group, need in wanted]


def is_imported(package: str) -> bool:
    """Whether a module of an installed package is loaded."""
    found = distribution(package)
    files = {str(found.locate_file(path)) for path in found.files or ()}
    return any(getattr(module, "__file__", None) in files for module in list(sys.modules.values()))


def left_out(imported: Iterable[str]) -> list[str]:
    """The packages that must be imported but are not among these."""
    return sorted({floor.package for floor in floors()} - {*NOT_IMPORTED, *imported})


def other_versions(imported: Iterable[str]) -> list[str]:
    """Packages whose installed version is not the floor, with both versions; "2.6.0+cpu" counts as 2.6."""
    lowest = {floor.package: floor.version for floor in floors()}
    installed = {package: version(package) for package in sorted(imported)}
    return [
        f"{package} {found} instead of {lowest[package]}"
        for package, found in installed.items()
        if Version(Version(found).public) != lowest[package]
    ]


class Imported:
    """The packages that the processes of a run have imported."""

    def __init__(self) -> None:
        self.packages: set[str] = set()
        self.faults: list[str] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the packages that a pytest-xdist process has imported."""
        self.packages.update(getattr(node, "workeroutput", {}).get("imported", ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.packages.update(package for package in left_out(()) if is_imported(package))
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["imported"] = sorted(self.packages)
            return
        self.faults = [f"no test of this run imports {package}" for package in left_out(self.packages)]
        self.faults += [f"not the lowest versions: {other}" for other in other_versions(self.packages)]
        if self.faults and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for fault in self.faults:
            terminalreporter.write_line(fault, red=True)


def pytest_configure(config: pytest.Config) -> None:
    """Register the check; pytest calls this if the module is loaded as a plugin."""
    config.pluginmanager.register(Imported())
