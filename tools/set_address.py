"""Moves the project: replaces the addresses of its site and repository in every file that git tracks.

    python3 tools/set_address.py --site https://docs.example.org/latest/ --repository https://example.org/me/multihead

The current addresses are those of ``[project.urls]`` in pyproject.toml.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def replace(root: Path, changes: dict[str, str]) -> list[str]:
    """Replace texts in the files of a checkout; returns the names of the changed files."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout.decode()
    changed = []
    for name in filter(None, listed.split("\0")):
        try:
            text = new = (root / name).read_bytes().decode("utf-8")  # keeps line endings
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        for old, wanted in changes.items():
            new = new.replace(old, wanted)
        if new != text:
            (root / name).write_bytes(new.encode("utf-8"))
            changed.append(name)
    return changed


def main() -> None:
    """Replace the given addresses."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--site", default=urls["Documentation"], help="of the newest version; must end with a slash")
    parser.add_argument("--repository", default=urls["Repository"], help="must not end with a slash")
    given = parser.parse_args()
    if not given.site.endswith("/") or given.repository.endswith("/"):
        sys.exit(f"got --site {given.site} --repository {given.repository}: only --site must end with a slash")
    for name in replace(ROOT, {urls["Documentation"]: given.site, urls["Repository"]: given.repository}):
        print(name)


if __name__ == "__main__":
    main()
