"""Creates .venv and installs multihead with everything for the demo, the checks and the tests.

With ``--lowest`` it creates .venv-lowest, with the lowest versions that pyproject.toml allows (constraints-lowest.txt),
those of the build included.

This program uses only the standard library, since it runs before anything is installed. If the Python that runs it has
the PyTorch version that constraints.txt requires, .venv uses that PyTorch, by far the largest download; otherwise it is
installed. An environment without a working pip, which an earlier failure can leave, is created again. ``--compare``
changes nothing: it fails if the Python version of the environment differs from that of the running Python.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import sysconfig
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


def runs_pip(environment: Path) -> bool:
    """Whether an environment exists and is complete enough for pip to start."""
    command = [str(environment / "bin" / "python"), "-m", "pip", "--version"]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


def create(environment: Path, outer: bool) -> None:
    """Create an empty environment; the remains of an incomplete one are removed.

    Args:
        environment: its folder.
        outer: whether it sees the packages of this Python.
    """
    if importlib.util.find_spec("ensurepip") is None:
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        sys.exit(
            f"{sys.executable} has no module ensurepip and cannot create {environment.name}: install the system's "
            f"package that contains it ({package} on Debian and Ubuntu), or name another Python: make PYTHON=..."
        )
    if environment.exists():
        print(f"{environment.name} has no working pip: it is created again", flush=True)
    try:
        venv.create(environment, clear=True, symlinks=True, with_pip=True, system_site_packages=outer)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"{environment.name} could not be created with {sys.executable}: {error}")


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
    if not runs_pip(environment):
        create(environment, outer)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for words in ([f"{first}=={pinned(first, constraints)}"], [*options, "-e", ".[demo,dev]"]):
        ended = subprocess.run([*pip, "-c", constraints, *words], cwd=ROOT).returncode
        if ended:
            sys.exit(
                f"{environment.name} is not complete: pip ended with status {ended} (its message is above); "
                f"it was asked for the versions in {constraints}, for {python_of(environment)}"
            )
    (environment / ".installed").touch()


def python_of(environment: Path) -> str:
    """The Python of an environment, for example python3.11; empty if there is none."""
    return next((path.name for path in sorted((environment / "lib").glob("python3.*"))), "")


def compare(environment: Path) -> None:
    """Exit with an error if the environment exists and its Python version is not that of this Python."""
    found, this = python_of(environment), Path(sysconfig.get_path("stdlib")).name
    if found not in ("", this):
        sys.exit(
            f"{environment.name} has {found}, and {sys.executable} is {this}: remove the folder {environment.name} to "
            "create it anew, or leave out PYTHON"
        )


def main() -> None:
    """Create or update the requested environment."""
    if sys.version_info < (3, 11):
        sys.exit(f"multihead needs Python 3.11 or newer; this is {sys.version.split()[0]}: make PYTHON=python3.11 ...")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lowest", action="store_true", help="create .venv-lowest instead")
    parser.add_argument("--compare", action="store_true", help="only compare its Python version with this one")
    given = parser.parse_args()
    environment = ROOT / (".venv-lowest" if given.lowest else ".venv")
    if given.compare:
        compare(environment)
    elif given.lowest:
        # Without isolation, the environment's own setuptools, the lowest version, builds the package.
        make(environment, "constraints-lowest.txt", "setuptools", ["--no-build-isolation"], outer=False)
    else:
        torch = pinned("torch", "constraints.txt")
        outer = is_installed("torch", torch)
        if not environment.exists():
            print(f"PyTorch {torch}: {'the one that is installed' if outer else 'will be installed'}", flush=True)
        make(environment, "constraints.txt", "torch", [], outer)


if __name__ == "__main__":
    main()
