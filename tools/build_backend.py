"""Builds the package as setuptools does, and on request with compiled libraries.

pip and build call this module (PEP 517). ``pip install .`` and ``pip install -e .`` need no compiler: they build what
setuptools builds. With the setting ``native=true``, which `make wheel` passes, a wheel also contains the compiled
libraries for every instruction-set level that the compiler supports (`multihead.kernels.native.levels`). They are
loaded with ctypes, so one wheel per platform serves every version of Python.

    python -m build -C native=true

The build needs only setuptools, and g++ (or the compiler in CXX) for the libraries. A cross-compiler builds a wheel for
another architecture; as in other Python builds, _PYTHON_HOST_PLATFORM names the platform:

    CXX=aarch64-linux-gnu-g++ _PYTHON_HOST_PLATFORM=linux-aarch64 python -m build --wheel -C native=true
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401 - the other hooks
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "multihead"


def build_wheel(folder: str, settings: dict[str, Any] | None = None, metadata: str | None = None) -> str:
    """Build a wheel; returns its file name.

    Args:
        folder: where to write it.
        settings: ``{"native": "true"}`` for a wheel with compiled libraries.
        metadata: the folder that ``prepare_metadata_for_build_wheel`` made.
    """
    settings = dict(settings or {})
    native = settings.pop("native", "false")
    if native not in ("true", "false"):
        sys.exit(f"native={native}: write true or false")
    if native == "false":
        return build_meta.build_wheel(folder, settings, metadata)
    with tempfile.TemporaryDirectory() as place:
        libraries = compile_all(Path(place))
        pure = Path(place, build_meta.build_wheel(place, settings, metadata))
        return with_libraries(pure, libraries, Path(folder)).name


def levels_module() -> ModuleType:
    """The module `multihead.kernels.native.levels`, without the packages that importing multihead needs."""
    spec = importlib.util.spec_from_file_location("levels", PACKAGE / "kernels" / "native" / "levels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_all(folder: Path) -> dict[str, Path]:
    """Compile each library for each level; returns the files by their paths in a wheel."""
    levels = levels_module()
    compiler = levels.compiler()
    if compiler is None:
        sys.exit(f"{levels.no_compiler()}: without native=true none is needed")
    system, _, machine = sysconfig.get_platform().partition("-")
    among = levels.levels(machine=machine)
    if system != "linux" or not among:
        sys.exit(f"no compiled libraries are made for {sysconfig.get_platform()}: leave out native=true")
    found = {}
    for level in among:
        command = [*compiler, *levels.FLAGS, *level.flags]
        known = subprocess.run([*command, "-E", "-x", "c++", os.devnull], capture_output=True, text=True, check=False)
        if known.returncode:
            first = (known.stderr.strip() or "no message").splitlines()[0]
            if level == among[0]:
                sys.exit(f"{' '.join(compiler)} does not know {level.name}: {first}")
            print(f"left out {level.name}: {first}", file=sys.stderr)
            continue
        for name in level.libraries:
            source = Path(levels.SOURCES[name])
            target = folder / f"{name}.{level.name}.so"
            files = [str(PACKAGE / source), str(PACKAGE / levels.THREADS), "-o", str(target)]
            subprocess.run([*command, *levels.LINK, "-s", *files], check=True)
            found[f"multihead/{source.parent.as_posix()}/{target.name}"] = target
    return found


def with_libraries(pure: Path, libraries: dict[str, Path], folder: Path) -> Path:
    """A copy of a wheel with these files added, tagged for this platform."""
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    name, version = pure.name.split("-")[:2]
    about = f"{name}-{version}.dist-info"
    made = folder / f"{name}-{version}-py3-none-{platform}.whl"
    with zipfile.ZipFile(pure) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        records = old.read(f"{about}/RECORD").decode().splitlines()
        described = old.read(f"{about}/WHEEL").decode()
        described = described.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
        described = described.replace("Tag: py3-none-any", f"Tag: py3-none-{platform}")
        changed = {f"{about}/WHEEL": described.encode()}
        changed |= {path: file.read_bytes() for path, file in libraries.items()}
        records = [record for record in records if record.split(",")[0] not in changed]
        records[-1:-1] = [record_of(path, content) for path, content in changed.items()]  # the last is RECORD's own
        changed[f"{about}/RECORD"] = ("\n".join(records) + "\n").encode()
        for entry in old.infolist():
            if entry.filename not in changed:
                new.writestr(entry, old.read(entry))
        for path, content in changed.items():
            entry = zipfile.ZipInfo(path, old.getinfo(f"{about}/RECORD").date_time)
            entry.external_attr = (0o100755 if path.endswith(".so") else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            new.writestr(entry, content)
    return made


def record_of(path: str, content: bytes) -> str:
    """The line in RECORD that describes a file."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}"
