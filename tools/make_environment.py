"""Creates .venv and installs multihead with everything for the demo, the checks and the tests.

Standard library only, since this runs before anything is installed. If the surrounding Python has the PyTorch that
constraints.txt requires, it is used (it is the largest download by far); otherwise one is installed.
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
    """The version of PyTorch in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix("torch==").strip() for line in lines if line.startswith("torch=="))


def torch_is_installed() -> bool:
    """Whether this Python has that version of PyTorch ("2.13.0+cpu" counts as 2.13.0)."""
    try:
        return version("torch").split("+")[0] == pinned_torch()
    except PackageNotFoundError:
        return False


def main() -> None:
    """Create or update the environment."""
    if sys.version_info < (3, 11):
        sys.exit(f"multihead needs Python 3.11 or newer; this is {sys.version.split()[0]}: make PYTHON=python3.11 ...")
    outer = torch_is_installed()
    print(f"PyTorch {pinned_torch()}: {'the one that is installed' if outer else 'will be installed'}", flush=True)
    if not (ENVIRONMENT / "bin" / "python").exists():
        venv.create(ENVIRONMENT, with_pip=True, system_site_packages=outer)
    pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", "constraints.txt", f"torch=={pinned_torch()}"], cwd=ROOT, check=True)
    subprocess.run([*pip, "-c", "constraints.txt", "-e", ".[demo,dev]"], cwd=ROOT, check=True)
    (ENVIRONMENT / ".installed").touch()


if __name__ == "__main__":
    main()
