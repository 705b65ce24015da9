"""Facts about an installation and its machine, for reports of bugs.

`collect` reads what is installed without importing it. Everything that needs an import is found by `diagnosis.probe` in
a process of its own: a broken PyTorch, or code with an instruction that the processor lacks, ends that process, and the
report says at which step. Only the standard library is imported here, so that the report is made where any package is
broken. `diagnosis.machine` looks at the system and the hardware.

The report may be published: `hide_user` replaces the user's name in paths, and of environment variables that may hold
a secret it is said only that they are set.
"""

from __future__ import annotations

import getpass
import importlib.metadata
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from multihead.diagnosis import machine

Facts = dict[str, Any]
"""Facts by name; JSON can hold them."""

STEPS = ("packages", "torch", "devices", "kernels", "search", "products")
"""The steps of `diagnosis.probe`, in order."""

NOT_REACHED = "not looked at: the process that was to find out had ended"

_PLACE = Path(__file__).resolve().parents[1]
"""The folder of the package."""

_SECONDS = 900
"""Timeout of the probe, which builds the compiled code where that has not been done yet."""

_PREFIXES = (
    *("MULTIHEAD_", "OMP_", "GOMP_", "KMP_", "MKL_", "DNNL_", "ONEDNN_", "ATEN_", "TORCH_", "PYTORCH_", "CUDA_"),
    *("NVIDIA_", "NCCL_", "MALLOC_", "DYLD_", "LC_"),
)
_NAMES = (
    *("CXX", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LD_PRELOAD", "LRU_CACHE_CAPACITY", "PYTHONPATH", "PYTHONUTF8"),
    *("HF_HOME", "HF_HUB_OFFLINE", "SACREBLEU", "SACREBLEU_SEED", "TMPDIR", "TOKENIZERS_PARALLELISM", "VIRTUAL_ENV"),
    *("CONDA_PREFIX", "XDG_CACHE_HOME", "TERM", "COLUMNS", "NO_COLOR", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
)
_COMMON = ("root", "nobody", "user", "ubuntu", "multihead")
"""Names of users that say nothing about a person."""

_SECRET = {"AUTH", "CREDENTIALS", "KEY", "PASSWORD", "SECRET", "TOKEN"}
"""Words in the names of variables whose values are not shown."""


class Requirement(NamedTuple):
    """A package that multihead, or one of its extras, needs."""

    package: str
    floor: str
    extra: str | None


def collect(code: str) -> Facts:
    """All facts, by section; sizes are bytes.

    Args:
        code: the version of the code that runs, which need not be that of the package that is installed.

    Returns:
        A mapping from each section to its facts; ``problems`` lists, in words, what keeps multihead from working well.
    """
    required = requirements()
    found = probe()
    facts: Facts = {
        "multihead": {"version": code, "installed": installed("multihead"), "place": str(_PLACE)},
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
        },
        "torch": found["torch"],
        "system": machine.system(),
        "processor": machine.processor(),
        "threads": machine.threads(),
        "memory": machine.memory(),
        "devices": found["devices"],
        "kernels": {name: found[name] for name in ("kernels", "search", "products")},
        "compiler": machine.compiler(),
        "cache": machine.cache(),
        "disk": machine.disk(),
        "environment": variables(os.environ),
        "packages": {one.package: installed(one.package) for one in required if one.extra is None},
        "extras": _extras(required),
    }
    facts["problems"] = [*_problems(facts, required), *_broken(found)]
    return _shown(facts)  # type: ignore[no-any-return]


# --------------------------------------------------------------------------- packages


def requirements() -> list[Requirement]:
    """What the installed package says that it needs; nothing if it runs from its sources without being installed."""
    try:
        lines = importlib.metadata.requires("multihead") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    matches = (re.match(r"([\w.-]+)(?:\[[\w,]+\])?(?:>=([\w.]+))?(?:.*extra == .([\w-]+))?", line) for line in lines)
    found = [Requirement(match[1], match[2] or "", match[3]) for match in matches if match is not None]
    return [one for one in found if one.extra != "dev"]


def installed(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_older(version: str, floor: str) -> bool:
    """Whether a version is below a floor, by their leading numbers."""
    numbers = [[int(part) for part in re.findall(r"\d+", text.split("+")[0])[:3]] for text in (version, floor)]
    return numbers[0] < numbers[1]


def _extras(required: list[Requirement]) -> Facts:
    """Of each extra the versions of its packages, or None."""
    found: Facts = {}
    for one in required:
        if one.extra is not None:
            found.setdefault(one.extra, {})[one.package] = installed(one.package)
    return found


def _problems(facts: Facts, required: list[Requirement]) -> Iterator[str]:
    """What is wrong with the installed packages."""
    own = facts["multihead"]
    if own["installed"] is None:
        yield "multihead is not installed as a package: its extras are not known"
    elif own["installed"] != own["version"]:
        yield f"multihead {own['installed']} is installed, and the code is that of {own['version']}: install it again"
    for one in {one.package: one for one in required}.values():
        version = installed(one.package)
        wanted = f"{one.package}>={one.floor}" if one.floor else one.package
        if version is None:
            if one.extra is None:
                yield f'{one.package} is missing: pip install "{wanted}"'
        elif one.floor and is_older(version, one.floor):
            yield f'{one.package} {version} is too old: pip install "{wanted}"'


# --------------------------------------------------------------------------- environment variables


def variables(environment: Mapping[str, str]) -> Facts:
    """The variables that change what multihead, or a library that it uses, does."""
    names = [name for name in sorted(environment) if name.startswith(_PREFIXES) or name in _NAMES]
    return {name: "(set)" if _is_private(name) else environment[name] for name in names}


def _is_private(name: str) -> bool:
    return name.startswith("MULTIHEAD_SERVE_") or not _SECRET.isdisjoint(name.split("_"))


def hide_user(text: str) -> str:
    """A text with ``~`` for home folders and for the user's name in other paths, without credentials in URLs."""
    homes = {str(Path.home()), os.path.realpath(Path.home())} if _has_home() else set()
    for home in sorted(homes - {os.sep, ""}, key=len, reverse=True):
        text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
    text = re.sub(r"((?:[A-Za-z]:\\Users\\|/(?:home|Users)/)[^/\\\s:;,'\"]+)", "~", text)
    text = re.sub(r"//[^/@\s]+@", "//", text)
    user = "" if _user() in _COMMON else _user()
    return re.sub(rf"(?<=[/\\]){re.escape(user)}(?![\w.-])", "~", text) if user else text


def _has_home() -> bool:
    try:
        Path.home()
    except RuntimeError:
        return False
    return True


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


def _shown(value: Any) -> Any:
    """A value whose texts name no user."""
    if isinstance(value, str):
        return hide_user(value)
    if isinstance(value, dict):
        return {hide_user(name): _shown(inner) for name, inner in value.items()}
    return [_shown(inner) for inner in value] if isinstance(value, list) else value


# --------------------------------------------------------------------------- what must be imported


def probe() -> Facts:
    """What the steps of `diagnosis.probe` find, each as ``{"error": ...}`` if it failed or was not reached."""
    path = os.pathsep.join([str(_PLACE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [sys.executable, "-m", "multihead.diagnosis.probe"]
    try:
        done = subprocess.run(
            words, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}, timeout=_SECONDS, check=False
        )
        written, ending = done.stdout, _ending(done.returncode)
    except subprocess.TimeoutExpired as error:
        written, ending = error.stdout or b"", f"took longer than {_SECONDS} s"
    except OSError as error:
        written, ending = b"", f"could not be started: {error.strerror}"
    found: Facts = {}
    for line in written.splitlines():
        try:
            step, facts = json.loads(line)
            found[step] = facts
        except (ValueError, TypeError):  # what a package has printed, which may be JSON, too
            continue
    for step in STEPS:
        if step not in found:
            found[step] = {"error": f"the process that was to find out {ending}"}
            return {step: found.get(step, {"error": NOT_REACHED}) for step in STEPS}
    return found


def _ending(status: int) -> str:
    if status < 0:
        names = {one.value: one.name for one in signal.Signals}
        return f"was ended by {names.get(-status, f'signal {-status}')}"  # those for real time have no names
    return f"ended with status {status}" if status < 256 else f"ended with status {status:#x}"


def _broken(found: Facts) -> Iterator[str]:
    """The errors of the probe, in words; a missing package is one error, at however many steps."""
    names: dict[str, list[str]] = {}
    for step in STEPS:
        for name, value in {step: found[step], **found[step]}.items():
            if isinstance(value, dict) and "error" in value:
                names.setdefault(value["error"], []).append(name)
    return (f"{', '.join(where)}: {error}" for error, where in names.items() if error != NOT_REACHED)
