"""``multihead env``: facts as lines, and as JSON."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multihead import __version__
from multihead.cli.env import as_text, size
from multihead.diagnosis import environment, probe

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The facts of this process, which has imported everything already."""
    found = {step: json.loads(json.dumps(find())) for step, find in probe.STEPS.items()}
    monkeypatch.setattr(environment, "probe", lambda: found)
    return environment.collect(__version__)


def row(text: str, name: str) -> str:
    (found,) = [line for line in text.splitlines() if re.match(rf"{name}  ", line)]
    return found.removeprefix(name).strip()


def test_the_command_prints_the_facts(call: Callable[..., Any], facts: dict[str, Any]) -> None:
    ended = call("env", "--json")
    assert ended.status == 0
    content = json.loads(ended.text)
    varying = ("memory", "disk", "cache")
    assert {name: value for name, value in content.items() if name not in varying} == {
        name: value for name, value in json.loads(json.dumps(facts)).items() if name not in varying
    }
    ended = call("env")
    assert ended.status == 0
    assert row(ended.text, "multihead").startswith(f"{__version__} in ")
    assert facts["torch"]["version"] in row(ended.text, "PyTorch")
    assert row(ended.text, "compiled search").endswith(facts["kernels"]["search"]["reason"])
    assert f"torch {facts['packages']['torch']}" in row(ended.text, "packages")


def test_the_document_lists_the_sections(facts: dict[str, Any]) -> None:
    assert re.findall(r"^\| `(\w+)` \|", DOCUMENT, re.MULTILINE) == list(facts)


def test_devices(facts: dict[str, Any]) -> None:
    facts = copy.deepcopy(facts)
    device = {"name": "Tesla T4", "capability": "7.5", "total": 15_843_721_216, "free": 11_000_000_000}
    facts["devices"] = {"cuda": [device], "mps": False}
    shown = "Tesla T4 (compute capability 7.5, 11.0 GB free of 15.8 GB)"
    assert row(as_text(facts), "devices") == shown
    facts["devices"] = {"cuda": "RuntimeError: no driver", "mps": True}
    assert row(as_text(facts), "devices") == "MPS, no CUDA: RuntimeError: no driver"
    facts["devices"] = {"cuda": None, "mps": False}
    assert row(as_text(facts), "devices") == "the processor alone"
    facts["devices"] = {"error": "it broke"}
    assert row(as_text(facts), "devices") == "not known: it broke"


def test_what_is_broken_is_shown_as_broken(facts: dict[str, Any]) -> None:
    facts = copy.deepcopy(facts)
    facts["torch"] = {"error": "OSError: no library"}
    facts["kernels"] = {name: {"error": "it broke"} for name in facts["kernels"]}
    facts["compiler"] = {"name": "g++", "path": None, "version": None}
    facts["memory"] = {"total": None, "free": None}
    facts["extras"]["zh"] = {"mplfonts": None}
    facts["problems"] = ["one", "two"]
    text = as_text(facts)
    assert row(text, "PyTorch") == "cannot be imported: OSError: no library"
    assert row(text, "compiled training") == "not known: it broke"
    assert row(text, "compiler") == "none: there is no g\\+\\+".replace("\\", "")
    assert row(text, "memory") == "unknown free of unknown"
    assert "zh: mplfonts missing" in row(text, "extras")
    assert text.splitlines()[-2:] == [line for line in text.splitlines() if line.startswith("problem ")]
    facts["torch"] = {
        name: {"error": "AttributeError: x"} for name in ("version", "cuda", "hip", "capability", "threads")
    }
    facts["torch"] |= {"mkl": True, "onednn": False, "openmp": True, "place": "~/torch"}
    shown = row(as_text(facts), "PyTorch")
    assert shown.startswith("not known: AttributeError: x, build not known: ")
    assert shown.endswith("mkl, openmp, ~/torch")


@pytest.mark.parametrize(
    ("count", "shown"), [(None, "unknown"), (0, "0 MB"), (45_400_000, "45 MB"), (12_345_678_901, "12.3 GB")]
)
def test_sizes(count: int | None, shown: str) -> None:
    assert size(count) == shown
