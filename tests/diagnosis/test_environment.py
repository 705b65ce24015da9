"""The report of an environment: it names what is broken, but neither the user nor secrets."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from floors import PROJECT
from packaging.requirements import Requirement

from multihead import __version__
from multihead.cli.env import as_text
from multihead.diagnosis import environment, machine, probe
from multihead.engine.weights import load_search_library
from multihead.kernels.linear import library_for_this_processor
from multihead.kernels.native import load_kernels


def probed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What the steps print, in this process."""
    probe.main()
    return dict(json.loads(line) for line in capsys.readouterr().out.splitlines())


@pytest.fixture
def fake_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that makes new processes import another PyTorch instead of the real one."""

    def write(code: str) -> None:
        for name in {*probe.PACKAGES} - {"numpy", "pydantic"}:  # the compiled search has these before torch
            (tmp_path / f"{name}.py").touch()
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "__init__.py").write_text(code, encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    return write


# --------------------------------------------------------------------------- what is found


def test_the_steps_tell_what_is_imported_here(capsys: pytest.CaptureFixture[str]) -> None:
    found = probed(capsys)
    assert tuple(found) == environment.STEPS == tuple(probe.STEPS)
    assert found["packages"] == {}
    assert found["torch"]["version"] == str(torch.__version__)
    assert found["torch"]["threads"] == torch.get_num_threads()
    assert found["devices"]["cuda"] is None or torch.cuda.is_available() or torch.version.cuda
    for step, native in (("kernels", load_kernels()), ("search", load_search_library())):
        assert found[step] == {"compiled": native.library is not None, "reason": native.reason}
    assert found["products"] == {"library": library_for_this_processor(), "half": library_for_this_processor(True)}


def test_every_cuda_device_is_told_with_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation: what PyTorch answers on a machine with two devices."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    facts = [SimpleNamespace(name=f"GPU {number}", major=9, minor=number) for number in range(2)]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: facts[number])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (10 + number, 20 + number))
    assert probe.devices()["cuda"] == [
        {"name": "GPU 0", "capability": "9.0", "total": 20, "free": 10},
        {"name": "GPU 1", "capability": "9.1", "total": 21, "free": 11},
    ]


def test_a_build_with_cuda_that_finds_no_device_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.\nPlease check")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", fails)
    assert probe.devices()["cuda"] == "RuntimeError: Found no NVIDIA driver on your system. Please check"
    monkeypatch.setattr(torch.version, "cuda", None)
    assert probe.devices()["cuda"] is None


GROUPS: dict[str | None, list[str]] = {
    None: PROJECT["project"]["dependencies"],
    **PROJECT["project"]["optional-dependencies"],
}


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata that pip writes for the current pyproject.toml; the installed metadata may be older."""
    lines = [f'{line}; extra == "{extra}"' if extra else line for extra, lines in GROUPS.items() for line in lines]
    monkeypatch.setattr(environment.importlib.metadata, "requires", lambda _: lines)


def test_the_packages_are_those_of_the_project(project: None) -> None:
    found = environment.requirements()
    wanted = [(extra, Requirement(line)) for extra, lines in GROUPS.items() if extra != "dev" for line in lines]
    assert {(one.extra, one.package, f">={one.floor}") for one in found} == {
        (extra, line.name, str(line.specifier)) for extra, line in wanted
    }
    assert {"torch", *probe.PACKAGES} == {line.name.replace("-", "_") for extra, line in wanted if extra is None}


@pytest.mark.parametrize(
    ("found", "floor", "older"),
    [("2.13.0+cu130", "2.6", False), ("2.5.1", "2.6", True), ("10", "9.9", False), ("0.22.2", "0.22.2", False)],
)
def test_versions_are_compared_as_numbers(found: str, floor: str, older: bool) -> None:
    assert environment.is_older(found, floor) is older


def test_the_machine_is_this_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert machine.system()["machine"] == platform.machine()
    assert machine.threads()["machine"] == os.cpu_count()
    memory = machine.memory()
    assert memory["total"] is None or 0 < (memory["free"] or 0) <= memory["total"]
    (tmp_path / "multihead").mkdir()
    (tmp_path / "multihead" / "kernels.so").write_bytes(b"x" * 1234)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert machine.cache() == {"folder": str(tmp_path / "multihead"), "bytes": 1234}
    assert all(free is not None and free >= 0 for free in machine.disk().values())
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert machine.compiler() == {"name": "no-such-compiler", "path": None, "version": None}


def test_a_container_limits_threads_and_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, content in {"cpu.max": "150000 100000", "memory.max": "1000000", "memory.current": "400000"}.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert machine.threads()["container"] == 1.5
    assert machine.memory() == {"total": 1_000_000, "free": 600_000}


def test_a_file_of_the_cache_that_disappears_meanwhile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "multihead").mkdir()
    (tmp_path / "multihead" / "kernels.so").write_bytes(b"x" * 1234)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    listed = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda self, pattern: [self / "gone", *listed(self, pattern)])
    assert machine.cache()["bytes"] == 1234


def test_a_system_that_does_not_tell_its_free_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 2048 kB\nMemFree: 1024 kB\n")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(machine, "_MEMORY", tmp_path / "meminfo")
    assert machine.memory() == {"total": 2048 << 10, "free": None}


# --------------------------------------------------------------------------- what is broken


def test_a_torch_that_cannot_be_imported(fake_torch: Any) -> None:
    fake_torch("raise OSError('libtorch_cpu.so: undefined symbol')")
    facts = environment.collect(__version__)
    assert facts["multihead"]["version"] == __version__
    assert facts["packages"]["torch"] == version("torch")
    assert "undefined symbol" in facts["torch"]["error"]
    assert "products" in facts["kernels"]
    (problem,) = [problem for problem in facts["problems"] if "undefined symbol" in problem]
    assert problem.startswith("torch, devices, kernels, search, products: OSError: ")


def test_a_torch_that_lacks_parts(fake_torch: Any) -> None:
    fake_torch("__version__ = '9.9'\nprint('hello')\nprint(1)\nprint([[1], 2])\ndef get_num_threads(): return 3")
    found = environment.probe()
    assert (found["torch"]["version"], found["torch"]["threads"]) == ("9.9", 3)
    assert "AttributeError" in found["torch"]["cuda"]["error"]
    assert "AttributeError" in found["devices"]["cuda"]["error"]
    assert found["kernels"] == {"compiled": False, "reason": "plain kernels: this PyTorch does not use GNU's OpenMP"}


@pytest.mark.parametrize(("number", "name"), [("SIGILL", "SIGILL"), ("SIGRTMIN + 3", "signal ")])
def test_a_torch_that_ends_the_process(fake_torch: Any, number: str, name: str) -> None:
    """As code that uses an instruction which the processor lacks."""
    fake_torch(f"import os, signal\nos.kill(os.getpid(), signal.{number})")
    found = environment.probe()
    assert found["packages"] == {}
    assert f"was ended by {name}" in found["torch"]["error"]
    assert found["products"] == {"error": environment.NOT_REACHED}
    assert [problem.partition(":")[0] for problem in environment._broken(found)] == ["torch"]


def test_a_process_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.sys, "executable", "/no/such/python")
    assert "could not be started: No such file" in environment.probe()["packages"]["error"]


def test_missing_and_old_packages_are_problems(project: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(package: str) -> str:
        if package in ("rich", "pyarrow"):
            raise PackageNotFoundError
        return {"torch": "1.13.1", "multihead": "0.1"}.get(package, "9999")

    monkeypatch.setattr(environment.importlib.metadata, "version", found)
    own = {"multihead": {"version": __version__, "installed": environment.installed("multihead")}}
    problems = list(environment._problems(own, environment.requirements()))
    assert len(problems) == 3  # a missing extra is not an error until it is needed
    assert problems[0] == f"multihead 0.1 is installed, and the code is that of {__version__}: install it again"
    assert any(problem.startswith("torch 1.13.1 is too old: pip install") for problem in problems)
    assert any(problem.startswith("rich is missing: pip install") for problem in problems)


def test_sources_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise PackageNotFoundError

    monkeypatch.setattr(environment.importlib.metadata, "requires", missing)
    assert environment.requirements() == []


# --------------------------------------------------------------------------- what is not told


def test_no_user_and_no_secret_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fake_torch: Any, call: Any
) -> None:
    fake_torch("raise RuntimeError('/home/mallory/lib/libtorch.so and /data/alice/x')")
    home = tmp_path / "alice"
    home.mkdir()
    for name, value in {
        "HOME": str(home),
        "LOGNAME": "alice",
        "USER": "alice",
        "XDG_CACHE_HOME": str(home / "cache"),
        "MULTIHEAD_TOKEN": "s3cret",
        "HF_TOKEN": "s3cret",
        "TORCH_ACCESS_KEY": "s3cret",
        "MULTIHEAD_SERVE_ALLOWED_HOST": "s3cret.example.org",
        "MULTIHEAD_NATIVE": "0",
        "TOKENIZERS_PARALLELISM": "true",
        "LD_LIBRARY_PATH": "/scratch/alice/lib:https://alice:s3cret@host/x",
    }.items():
        monkeypatch.setenv(name, value)
    ended = call("env", "--json")
    assert ended.status == 0
    facts = json.loads(ended.text)
    shown = facts["environment"]
    assert shown["MULTIHEAD_TOKEN"] == shown["TORCH_ACCESS_KEY"] == shown["MULTIHEAD_SERVE_ALLOWED_HOST"] == "(set)"
    assert "HF_TOKEN" not in shown
    assert (shown["MULTIHEAD_NATIVE"], shown["TOKENIZERS_PARALLELISM"]) == ("0", "true")
    assert shown["LD_LIBRARY_PATH"] == "/scratch/~/lib:https://host/x"
    assert facts["cache"]["folder"] == "~/cache/multihead"
    assert "RuntimeError: ~/lib/libtorch.so and /data/~/x" in facts["torch"]["error"]
    for text in (ended.text, as_text(facts)):
        assert not [word for word in ("s3cret", "alice", "mallory") if word in text]


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("/home/bob/x", "~/x"),
        ("/Users/bob/x:/Users/bob", "~/x:~"),
        (r"C:\Users\Bob\x", r"~\x"),
        ("/homes/bob", "/homes/bob"),
        ("/nfs/alice-2/x /nfs/alice/x", "/nfs/alice-2/x /nfs/~/x"),
        ("alice", "alice"),
    ],
)
def test_paths_without_the_user(text: str, hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")
    monkeypatch.setenv("LOGNAME", "alice")
    assert environment.hide_user(text) == hidden
