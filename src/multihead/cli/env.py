"""``multihead env``: facts for bug reports; see `diagnosis.environment`.

Only click is imported from outside of the standard library, so that the report is made where any other package is
broken.
"""

from __future__ import annotations

import json
from typing import Any

import click

from multihead import __version__
from multihead.cli.help import ExampleCommand


@click.command(
    cls=ExampleCommand,
    examples=("multihead env", "multihead env --json > env.json"),
)
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON; sizes are bytes.")
def env(as_json: bool) -> None:
    """Print what a bug report needs to know: versions, processor, compiled code, memory, devices.

    PyTorch and the other packages are imported in a separate process, so a broken one is reported like anything else.
    Compiled code is loaded as for training, and built first if necessary; the report says why if that fails.

    The report names no user: ~ stands for the home folder. Tokens and the settings of a server are not shown.
    """
    from multihead.diagnosis.environment import collect

    facts = collect(__version__)
    click.echo(json.dumps(facts, indent=2, ensure_ascii=False) if as_json else as_text(facts))


def as_text(facts: dict[str, Any]) -> str:
    """The facts as lines: a name, and what is known."""
    own, python, system, processor = (facts[name] for name in ("multihead", "python", "system", "processor"))
    disk = (f"{size(free)} in the {name}" for name, free in facts["disk"].items())
    rows = [
        ("multihead", f"{own['version']} in {own['place']}"),
        ("Python", f"{python['version']} ({python['implementation']}), {python['executable']}"),
        ("PyTorch", _torch(facts["torch"])),
        ("system", _listed(system["name"], system["kernel"], system["machine"], system["libc"], system["encoding"])),
        ("processor", f"{processor['name'] or 'unknown'}: {' '.join(processor['features'] or ['features unknown'])}"),
        ("threads", _threads(facts["threads"], facts["torch"])),
        ("memory", f"{size(facts['memory']['free'])} free of {size(facts['memory']['total'])}"),
        ("disk", f"free: {_listed(*disk)}"),
        ("devices", _devices(facts["devices"])),
        *((f"compiled {name}", _kernels(facts["kernels"][step])) for name, step in _COMPILED.items()),
        ("products by", _products(facts["kernels"]["products"])),
        ("compiler", _compiler(facts["compiler"])),
        ("cache", f"{facts['cache']['folder'] or 'none'} ({size(facts['cache']['bytes'])})"),
        ("environment", _listed(*(f"{name}={value}" for name, value in facts["environment"].items())) or "-"),
        ("packages", _versions(facts["packages"])),
        ("extras", "; ".join(f"{name}: {_versions(packages)}" for name, packages in facts["extras"].items()) or "-"),
        *(("problem", problem) for problem in facts["problems"]),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


_COMPILED = {"training": "kernels", "search": "search"}
"""The steps that load compiled code, by what it computes."""


def size(count: int | None) -> str:
    """``12.3 GB``, ``45 MB``."""
    if count is None:
        return "unknown"
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _listed(*parts: str | None) -> str:
    return ", ".join(part for part in parts if part)


def _versions(packages: dict[str, str | None]) -> str:
    return _listed(*(f"{name} {version or 'missing'}" for name, version in packages.items()))


def _value(facts: dict[str, Any], name: str) -> str:
    """A fact, or why it is not known."""
    found = facts.get(name, facts)
    return f"not known: {found['error']}" if isinstance(found, dict) else str(found)


def _products(facts: dict[str, Any]) -> str:
    library = _value(facts, "library")
    return library if "error" in facts else f"{library}, in bfloat16 by {facts['half']}"


def _torch(facts: dict[str, Any]) -> str:
    if "error" in facts:
        return f"cannot be imported: {facts['error']}"
    builds = {"CUDA": facts["cuda"], "ROCm": facts["hip"]}
    build = next((f"built for {name} {version}" for name, version in builds.items() if isinstance(version, str)), "")
    if not build:
        build = "built for the CPU" if facts["cuda"] is None else f"build {_value(facts, 'cuda')}"
    libraries = [name for name in ("mkl", "onednn", "openmp") if facts[name] is True]
    parts = (build, f"instructions up to {_value(facts, 'capability')}", *libraries)
    return f"{_value(facts, 'version')}, {_listed(*parts)}, {_value(facts, 'place')}"


def _threads(facts: dict[str, Any], torch: dict[str, Any]) -> str:
    limit = None if facts["container"] is None else f"the container allows {facts['container']:g}"
    usable = None if facts["usable"] is None else f"{facts['usable']} usable"
    return _listed(f"{facts['machine']} of the machine", usable, limit, f"PyTorch uses {_value(torch, 'threads')}")


def _devices(facts: dict[str, Any]) -> str:
    if "error" in facts:
        return f"not known: {facts['error']}"
    found = [] if facts["mps"] is not True else ["MPS"]
    if isinstance(facts["cuda"], list):
        found += [
            f"{one['name']} (compute capability {one['capability']}, {size(one['free'])} free of {size(one['total'])})"
            for one in facts["cuda"]
        ]
    elif facts["cuda"] is not None:
        found.append(f"no CUDA: {_value(facts, 'cuda')}")
    return _listed(*found) or "the processor alone"


def _kernels(facts: dict[str, Any]) -> str:
    if "error" in facts:
        return f"not known: {facts['error']}"
    return f"{'yes' if facts['compiled'] else 'no'}: {facts['reason']}"


def _compiler(facts: dict[str, Any]) -> str:
    if facts["path"] is None:
        return f"none: there is no {facts['name']}"
    return f"{facts['path']}: {facts['version'] or 'does not run'}"
