"""Creates .venv and installs multihead with everything for the demo, the checks and the tests.

With ``--lowest`` it creates .venv-lowest, with the lowest versions that pyproject.toml allows (constraints-lowest.txt),
those of the build included.

Standard library only, since this runs before anything is installed. If the surrounding Python has the PyTorch that
constraints.txt requires, .venv uses it (it is the largest download by far); otherwise one is installed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def pinned(package: str, constraints: str) -> str:
    """The version of a package in a file of constraints."""
    lines = (ROOT / constraints).read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix(f"{package}==").strip() for line in lines if line.startswith(f"{package}=="))


def is_installed(package: str, wanted: str) -> bool:
    """Whether this Python has that version of a package ("2.13.0+cpu" counts as 2.13.0)."""
    try:
        return version(package).split("+")[0] == wanted
    except PackageNotFoundError:
        return False


def make(environment: Path, constraints: str, first: str, options: list[str], outer: bool) -> None:
    """Create or update an environment.

    Args:
        environment: its folder.
        constraints: the file that pins all versions.
        first: a package that is installed before the others.
        options: options of pip for the others.
        outer: whether it sees the packages of this Python.
    """
    (environment / ".installed").unlink(missing_ok=True)
    if not (environment / "bin" / "python").exists():
        venv.create(environment, with_pip=True, system_site_packages=outer)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for words in ([f"{first}=={pinned(first, constraints)}"], [*options, "-e", ".[demo,dev]"]):
        ended = subprocess.run([*pip, "-c", constraints, *words], cwd=ROOT).returncode
        if ended:
            sys.exit(
                f"{environment.name} is not complete: pip ended with status {ended} (its message is above); "
                f"it was asked for the versions in {constraints}, for Python {sys.version.split()[0]}"
            )
    (environment / ".installed").touch()


def main() -> None:
    """Create or update the environment that is asked for."""
    if sys.version_info < (3, 11):
        sys.exit(f"multihead needs Python 3.11 or newer; this is {sys.version.split()[0]}: make PYTHON=python3.11 ...")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lowest", action="store_true", help="create .venv-lowest instead")
    if parser.parse_args().lowest:
        # Without isolation, the package is built by the setuptools of the environment: the lowest one, too.
        make(ROOT / ".venv-lowest", "constraints-lowest.txt", "setuptools", ["--no-build-isolation"], outer=False)
        return
    torch = pinned("torch", "constraints.txt")
    outer = is_installed("torch", torch)
    print(f"PyTorch {torch}: {'the one that is installed' if outer else 'will be installed'}", flush=True)
    make(ROOT / ".venv", "constraints.txt", "torch", [], outer)


if __name__ == "__main__":
    main()
