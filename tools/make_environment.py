"""Makes .venv and installs multihead into it with everything that the demo, the checks and the tests need.

Standard library only: this runs before anything is installed. A PyTorch of the surrounding Python that satisfies
constraints.txt is used as it is (it is the largest download by far); otherwise one is installed.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"


def pinned_torch() -> str:
    """The version of PyTorch that constraints.txt asks for."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix("torch==").strip() for line in lines if line.startswith("torch=="))


def torch_is_there() -> bool:
    """Whether the Python that runs this has that PyTorch ("2.13.0+cpu" is 2.13.0)."""
    try:
        return version("torch").split("+")[0] == pinned_torch()
    except PackageNotFoundError:
        return False


def main() -> None:
    """Creates the environment, or brings an old one up to date."""
    if sys.version_info < (3, 11):
        sys.exit(f"multihead needs Python 3.11 or newer; this is {sys.version.split()[0]}: make PYTHON=python3.11 ...")
    outer = torch_is_there()
    print(f"PyTorch {pinned_torch()}: {'the one that is installed' if outer else 'will be installed'}", flush=True)
    if not (ENVIRONMENT / "bin" / "python").exists():
        venv.create(ENVIRONMENT, with_pip=True, system_site_packages=outer)
    pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", "constraints.txt", f"torch=={pinned_torch()}"], cwd=ROOT, check=True)
    subprocess.run([*pip, "-c", "constraints.txt", "-e", ".[demo,dev]"], cwd=ROOT, check=True)
    (ENVIRONMENT / ".installed").touch()


if __name__ == "__main__":
    main()
