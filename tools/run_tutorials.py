"""Runs the tutorials as notebooks, and writes what they print and draw into docs/tutorials.

    .venv/bin/python tools/run_tutorials.py
    .venv/bin/python tools/run_tutorials.py dot-product

Each page runs in a kernel and a folder of its own. The output of a block becomes the block below it, in the Chinese
page, too; pictures are copied into docs/tutorials/images. It needs the extra `site`; `make tutorials` installs it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
from pathlib import Path

import nbclient
from notebooks import FOLDER, notebook_of

BLOCK = re.compile(r"(^```python\n.*?^```$)(\n\n```text\n.*?^```$)?", re.DOTALL | re.MULTILINE)


def outputs_of(page: Path, folder: Path) -> list[str]:
    """Run a page in a folder; the output of each block."""
    notebook = notebook_of(page, "")
    nbclient.NotebookClient(notebook, timeout=3600, resources={"metadata": {"path": str(folder)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(part.text for part in cell.outputs if part.get("name") == "stdout") for cell in cells]


def with_outputs(text: str, outputs: list[str]) -> str:
    """A page with these outputs below its blocks."""
    waiting = iter(outputs)

    def written(found: re.Match[str]) -> str:
        output = next(waiting)
        return found[1] + (f"\n\n```text\n{output.rstrip()}\n```" if output.strip() else "")

    return BLOCK.sub(written, text)


def main() -> None:
    """Run the tutorials that are named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    pages = {path.stem: path for path in sorted(FOLDER.glob("*.md")) if "." not in path.stem and path.stem != "index"}
    parser.add_argument("names", nargs="*", help=", ".join(pages))
    for name in parser.parse_args().names or pages:
        with tempfile.TemporaryDirectory() as folder:
            outputs = outputs_of(pages[name], Path(folder))
            (FOLDER / "images").mkdir(exist_ok=True)
            for picture in sorted(Path(folder, "images").glob("*.png")):
                shutil.copyfile(picture, FOLDER / "images" / picture.name)
        for page in (pages[name], FOLDER / f"{name}.zh-CN.md"):
            if page.exists():
                page.write_text(with_outputs(page.read_text(encoding="utf-8"), outputs), encoding="utf-8")
        print(f"{name}: {sum(map(bool, outputs))} outputs", flush=True)


if __name__ == "__main__":
    main()
