"""A file of lines to a file of lines: as many, in order, and the same bytes however often it was stopped on the way."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from multihead import bundle as bundles
from multihead.data.corpus import TextScan, read_lines, scan
from multihead.errors import DataError
from multihead.files import sha256_of
from multihead.workflows import lines as windows
from multihead.workflows.growing_file import growing_file
from multihead.workflows.lines import Rendering, translated
from multihead.workflows.translate import Translator


def check_input(path: Path) -> TextScan:
    """Looks through a text file, plain or compressed, of which every line is going to be translated.

    Raises:
        DataError: it cannot be read, or a line is not UTF-8: names the first.
    """
    found = scan(path)
    if found.undecodable:
        for _ in read_lines(path):  # comes to the line and says what is wrong with it
            pass
    return found


def model_digest(folder: Path) -> str:
    """Says which model a folder holds: a hash over its weights, sizes and tokenizers.

    Raises:
        FormatError: it is no model folder.
    """
    folder = bundles.locate(folder)
    return "-".join(sha256_of(folder / name)[:16] for name in ("config.json", "model.safetensors"))


def translate_file(
    translator: Translator,
    model: str,
    source: TextScan,
    output: Path,
    rendering: Rendering,
    *,
    begin: Callable[[int], None] = lambda _: None,
    progress: Callable[[int], None] = lambda _: None,
    remark: Callable[[str], None] = lambda _: None,
) -> None:
    """Translates every line of a file into another.

    Stopped at any moment and called again with the same arguments it goes on where it was (`growing_file`). Each window
    of lines that is done stays done.

    Args:
        translator: a loaded model.
        model: which one that is (`model_digest`).
        source: the file, as `check_input` saw it.
        output: the file to make; nothing stands there.
        rendering: how to translate, and what to write.
        begin: is told how many lines an earlier process has done.
        progress: is told how many more lines are done, whenever some are.
        remark: is told what a reader of the translations should know.

    Raises:
        DataError: the file has changed since it was looked at.
        ConfigurationError: the output is there already, or was begun with something else.
        SurroundingsError: it cannot be written.
    """
    with growing_file(output, _made_from(translator, model, source, rendering)) as file:
        if file is None:
            return
        begin(file.lines)
        lines = islice(read_lines(source.path), file.lines, None)
        for window in translated(translator, lines, rendering, done=file.lines, progress=progress):
            file.append(window.rows, window.lines)
            for one in window.remarks:
                remark(one)
        if file.lines != source.lines:
            message = f"has changed: {source.lines:,} lines were counted, {file.lines:,} were read"
            raise DataError(f"{message}; begin anew with another --output", source.path)
        file.finish()


def _made_from(translator: Translator, model: str, source: TextScan, rendering: Rendering) -> dict[str, Any]:
    """All that decides on the bytes of the output."""
    return {
        "input": source.sha256[:16],
        "model": model,
        **rendering.search.model_dump(mode="json"),
        "n_best": rendering.n_best,
        "scores": rendering.scores,
        "batch_tokens": rendering.batch_tokens,
        "window": windows.WINDOW,
        "compiled": translator.compiled,
        "device": str(translator.bundle.model.output.weight.device),
        "threads": torch.get_num_threads(),
    }
