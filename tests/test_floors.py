"""The floors of pyproject.toml are versions that were installed together: constraints-lowest.txt."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def pins(name: str) -> dict[str, Version]:
    """The versions of a file of constraints."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    rows = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(package): Version(version) for package, version in rows}


def floors() -> list[tuple[str, str, Version]]:
    """Where each floor is asked for, its package and its version."""
    project = PROJECT["project"]
    groups = {"dependencies": project["dependencies"], **project["optional-dependencies"]}
    wanted = [(group, Requirement(text)) for group, texts in groups.items() for text in texts]
    assert all([one.operator for one in need.specifier] == [">="] for _, need in wanted)
    return [(group, canonicalize_name(need.name), Version(str(need.specifier)[2:])) for group, need in wanted]


@pytest.mark.parametrize(("group", "package", "floor"), floors())
def test_a_floor_is_the_lowest_version_that_is_tested(group: str, package: str, floor: Version) -> None:
    assert floor == pins("constraints-lowest.txt")[package]


def test_what_is_tested_lies_between_the_floors_and_the_newest() -> None:
    newest = pins("constraints.txt")
    assert [package for _, package, floor in floors() if not floor <= newest[package]] == []


def test_the_license_is_an_expression_that_the_backend_knows() -> None:
    """Tables are not read from 2027 on; expressions are read by setuptools since 77."""
    project, (backend,) = PROJECT["project"], PROJECT["build-system"]["requires"]
    assert project["license"] == "Apache-2.0"
    assert all((ROOT / name).is_file() for name in project["license-files"])
    assert not [name for name in project["classifiers"] if name.startswith("License")]
    (floor,) = re.findall(r"setuptools>=([0-9.]+)", backend)
    assert Version(floor) >= Version("77")
