"""Runs the tutorials as notebooks, and writes their outputs and pictures into docs/tutorials.

    .venv/bin/python tools/run_tutorials.py
    .venv/bin/python tools/run_tutorials.py dot-product

Each page runs in its own kernel and folder. The output of a code block is written as the block below it, also in the
Chinese page; pictures are copied into docs/tutorials/images. The program needs the extra `site`, which `make tutorials`
installs.
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
    """Run a page in a folder; returns the output of each block."""
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
    """Run the named tutorials, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    pages = {path.stem: path for path in sorted(FOLDER.glob("*.md")) if "." not in path.stem and path.stem != "index"}
    parser.add_argument("names", nargs="*", choices=pages, help="tutorials to run (all)")
    for name in parser.parse_args().names or pages:
        with tempfile.TemporaryDirectory() as folder:
            outputs = outputs_of(pages[name], Path(folder))
            (FOLDER / "images").mkdir(exist_ok=True)
            for picture in sorted(Path(folder, "images").glob("*.png")):
                shutil.copyfile(picture, FOLDER / "images" / picture.name)
        for page in (pages[name], FOLDER / f"{name}.zh-CN.md"):
            if page.exists():
                text = with_outputs(page.read_text(encoding="utf-8"), outputs)
                page.write_text(text, encoding="utf-8", newline="\n")
        print(f"{name}: {sum(map(bool, outputs))} outputs", flush=True)


if __name__ == "__main__":
    main()
