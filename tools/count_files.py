"""Counts the files of the package that three everyday calls enter.

    train        ten updates on a prepared corpus, by `multihead train`
    translate    one line, by `multihead translate`
    attention    one call of `MultiHeadAttention`

A file is entered when one of its functions runs; code that runs on import does not count. Run it as
``.venv/bin/python tools/count_files.py``; ``--list`` names the files. `tests/test_main_path.py` limits the counts.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from multihead.engine.weights import load_search_library
from multihead.kernels.native import load_kernels

FUNCTION = 1  # inspect.CO_OPTIMIZED: set for functions, not for modules and classes

WATCH = f"""
import atexit, sys, threading
from importlib.util import find_spec
from pathlib import Path

package, entered = str(Path(find_spec("multihead").origin).parent) + "/", set()

def importing(frame):
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(package):
            return True
        frame = frame.f_back
    return False

def note(frame, event, argument):
    code = frame.f_code
    path = code.co_filename
    if path.startswith(package) and path not in entered and code.co_flags & {FUNCTION} and not importing(frame):
        entered.add(path)

def start():
    threading.settrace(note)
    sys.settrace(note)

def stop():
    sys.settrace(None)
    Path(sys.argv[1]).write_text("\\n".join(sorted(path.removeprefix(package) for path in entered)))
"""

COMMAND = f"""{WATCH}
import multihead.cli.main as command
atexit.register(stop)
start()
sys.exit(command.main(sys.argv[2:]))
"""

ATTENTION = f"""{WATCH}
import torch
from multihead.attention import MultiHeadAttention

module = MultiHeadAttention(width=64, heads=4)
start()
module(torch.zeros(2, 5, 64))
stop()
"""


def entered(program: str, *arguments: object, given: str = "") -> list[str]:
    """The files that a program enters, relative to the package.

    Args:
        program: one of the programs above.
        arguments: arguments of the command.
        given: the standard input.
    """
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "files"
        words = [sys.executable, "-c", program, str(listed), *map(str, arguments)]
        subprocess.run(words, input=given, text=True, capture_output=True, check=True)
        return listed.read_text().split()


def measure(folder: Path) -> dict[str, list[str]]:
    """The files of all three calls; the corpus and the runs are created in ``folder``, which is empty."""
    draw = random.Random(1)
    words = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six"}
    rows = [[draw.choice(list(words)) for _ in range(draw.randint(2, 6))] for _ in range(200)]
    (folder / "text.de").write_text("".join(" ".join(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "text.en").write_text("".join(" ".join(words[w] for w in row) + "\n" for row in rows), encoding="utf-8")
    prepared, run = folder / "prepared", folder / "run"
    load_kernels(), load_search_library()  # a build, once for each machine, would enter more files
    files = ("--source", folder / "text.de", "--target", folder / "text.en")
    entered(COMMAND, "prepare", *files, "--output", prepared, "--vocab-size", 300)
    sizes = ("--preset", "tiny", "--threads", 1, "--updates", 10)
    return {
        "train": entered(COMMAND, "train", "--data", prepared, "--output", run, *sizes),
        "translate": entered(COMMAND, "translate", run, given="eins zwei\n"),
        "attention": entered(ATTENTION),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="also name the files")
    listing = parser.parse_args().list
    with tempfile.TemporaryDirectory() as folder:
        for name, files in measure(Path(folder)).items():
            print(f"{name:<10} {len(files):3}")
            if listing:
                print("".join(f"    {file}\n" for file in files), end="")


if __name__ == "__main__":
    main()
