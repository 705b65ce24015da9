"""Commands in processes forked from one that has imported the package: they start within milliseconds, not seconds."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path


def _run(words: list[str], errors: Path) -> None:
    from multihead.cli.main import main

    with errors.open("wb") as stream:
        os.dup2(stream.fileno(), 2)
    sys.exit(main(words))


def starter() -> Callable[[list[str], Path], BaseProcess]:
    """A function that starts ``multihead`` with some words and a file for standard error, and returns the process."""
    context = multiprocessing.get_context("forkserver")
    # A third of the import time is what PyTorch imports for its first optimizer.
    context.set_forkserver_preload(["multihead.cli.main", "multihead.runs.translator.train", "torch._dynamo"])
    first = context.Process(target=abs, args=(1,))
    first.start()
    first.join()

    def start(words: list[str], errors: Path) -> BaseProcess:
        process = context.Process(target=_run, args=(words, errors))
        process.start()
        return process

    return start
