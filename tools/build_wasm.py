"""Compile the search to WebAssembly: ``decoding.wasm`` of the web export.

Run ``make wasm`` after a change in ``src/multihead/engine/native/``. The compiler is Zig's C++ (``pip install
ziglang``, pinned in constraints.txt); the same version gives the same bytes everywhere. The module ends with a section
``sources`` that names the compiler and the SHA-256 of every source file, so that a test can detect an outdated module
without compiling anything.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "src" / "multihead" / "engine" / "native"
MODULE = ROOT / "src" / "multihead" / "interop" / "formats" / "site" / "decoding.wasm"
SOURCES = (
    *("web.cpp", "decoding.cpp", "datastore.h", "drawing.h", "forcing.h", "next_symbols.h", "network.h", "attention.h"),
    *("model.h", "helper.h", "products.h", "operands.h", "tiles.h", "buffers.h", "functions.h", "vectors.h"),
    "webassembly.h",
)

FEATURES = "generic+simd128+nontrapping_fptoint+bulk_memory+sign_ext"
"""Features that all browsers have supported since 2023."""

FLAGS = (
    "-target", "wasm32-wasi", "-mexec-model=reactor", f"-mcpu={FEATURES}", "-std=c++17", "-O3", "-g0", "-s",
    "-fno-exceptions", "-fno-rtti", "-fopenmp-simd", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
    "-Wno-pass-failed",
)  # fmt: skip


def find_compiler() -> list[str] | None:
    """The command of Zig; None if it is not installed."""
    found = subprocess.run([sys.executable, "-m", "ziglang", "version"], capture_output=True, check=False)
    if found.returncode == 0:
        return [sys.executable, "-m", "ziglang"]
    zig = shutil.which("zig")
    return None if zig is None else [zig]


def version_of(compiler: list[str]) -> str:
    """The version of the compiler."""
    return subprocess.run([*compiler, "version"], capture_output=True, text=True, check=True).stdout.strip()


def describe(compiler: str) -> dict[str, str]:
    """The content of the section ``sources``: the compiler's version, the flags, the SHA-256 of each source file."""
    files = {name: hashlib.sha256((NATIVE / name).read_bytes()).hexdigest() for name in SOURCES}
    return {"compiler": f"zig {compiler}", "flags": " ".join(FLAGS), **files}


def build(compiler: list[str]) -> bytes:
    """Compile the module; returns its bytes."""
    with tempfile.TemporaryDirectory() as folder:
        for name in SOURCES:
            shutil.copyfile(NATIVE / name, Path(folder, name))
        command = [*compiler, "c++", *FLAGS, SOURCES[0], "-o", "decoding.wasm"]
        subprocess.run(command, cwd=folder, check=True)
        code = Path(folder, "decoding.wasm").read_bytes()
    return code + section("sources", json.dumps(describe(version_of(compiler))).encode())


def section(name: str, content: bytes) -> bytes:
    """A custom section of a module: number 0, size, size of the name, name, content."""
    body = number(len(name)) + name.encode() + content
    return b"\0" + number(len(body)) + body


def number(value: int) -> bytes:
    """An unsigned LEB128 number."""
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + number(rest) if rest else bytes([low])


def recorded(module: bytes) -> dict[str, str]:
    """The section ``sources`` of a module, its last section."""
    content: dict[str, str] = json.loads(module[module.rindex(b"\x07sources") + 8 :])
    return content


def main() -> None:
    """Build the module, or check that the existing one is up to date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="compare with the module instead of replacing it")
    check = parser.parse_args().check
    compiler = find_compiler()
    if compiler is None:
        sys.exit("Zig is not installed: pip install -c constraints.txt ziglang")
    made = build(compiler)
    if check and made != MODULE.read_bytes():
        sys.exit(f"{MODULE} is out of date: run make wasm")
    if not check:
        MODULE.write_bytes(made)
    print(f"{MODULE}: {len(made):,} bytes, zig {version_of(compiler)}")


if __name__ == "__main__":
    main()
