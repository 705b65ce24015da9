"""A file of lines to a file of lines: as many, in order, and the same bytes however often it was stopped on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from multihead.data.text_files import TextScan, read_lines, scan
from multihead.errors import DataError
from multihead.files import sha256_of
from multihead.lines import windows
from multihead.lines.growing_file import growing_file
from multihead.lines.side_files import SideFiles
from multihead.lines.windows import LineOptions, translated
from multihead.model_folder import locate
from multihead.translating.shortlist import FILE as SHORTLIST
from multihead.translating.translator import Translator


def check_input(path: Path) -> TextScan:
    """Looks through a text file, plain or compressed, of which every line is going to be used.

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
    folder = locate(folder)
    return "-".join(sha256_of(folder / name)[:16] for name in ("config.json", "model.safetensors"))


def translate_file(
    translator: Translator,
    model: str,
    source: TextScan,
    output: Path,
    options: LineOptions,
    *,
    files: SideFiles | None = None,
    begin: Callable[[int], None] = lambda _: None,
    progress: Callable[[int], None] = lambda _: None,
    remark: Callable[[str], None] = lambda _: None,
) -> None:
    """Translates every line of a file into another.

    Stopped at any moment and called again with the same arguments it goes on where it was (`growing_file`). Each window
    of lines that is done stays done.

    Args:
        translator: a loaded model.
        model: which one that is (`model_digest`); of an ensemble, which ones, and how they are averaged.
        source: the file, as `check_input` saw it.
        output: the file to make; nothing stands there.
        options: how to translate, and what to write.
        files: what is demanded of single lines; a line for each.
        begin: is told how many lines an earlier process has done.
        progress: is told how many more lines are done, whenever some are.
        remark: is told what a reader of the translations should know.

    Raises:
        DataError: the file has changed since it was looked at, or a side file does not fit it.
        ConfigurationError: the output is there already, or was begun with something else.
        SurroundingsError: it cannot be written.
    """
    files = files or SideFiles()
    files.check_lines(source)
    with growing_file(output, _made_from(translator, model, source, options, files)) as file:
        if file is None:
            return
        begin(file.lines)
        lines = islice(read_lines(source.path), file.lines, None)
        for window in translated(translator, lines, options, done=file.lines, files=files, progress=progress):
            file.append(window.rows, window.lines)
            for one in window.remarks:
                remark(one)
        if file.lines != source.lines:
            message = f"has changed: {source.lines:,} lines were counted, {file.lines:,} were read"
            raise DataError(f"{message}; begin anew with another --output", source.path)
        file.finish()


def _made_from(
    translator: Translator, model: str, source: TextScan, options: LineOptions, files: SideFiles
) -> dict[str, Any]:
    """All that decides on the bytes of the output; None where it is not used: an earlier version may not know it."""
    request, guard = options.request, options.guard
    return {
        "input": source.sha256[:16],
        "model": model,
        **request.search.model_dump(mode="json"),
        "shortlist_file": _shortlist_of(translator, options),
        "n_best": request.n_best,
        "scores": options.scores,
        "sampling": None if request.sampling is None else request.sampling.model_dump(mode="json"),
        "mbr": request.metric,
        "guard": None if guard is None else {**guard.model_dump(mode="json"), **asdict(translator.lengths)},
        "max_source": options.max_source or None,
        "max_sentence": options.max_sentence or None,
        "prefixes": None if files.prefixes is None else files.prefixes.sha256[:16],
        "phrases": None if files.phrases is None else files.phrases.sha256[:16],
        "batch_tokens": request.batch_tokens,
        "window": windows.WINDOW,
        "compiled": translator.compiled,
        "device": str(translator.bundle.model.output.weight.device),
        "threads": torch.get_num_threads(),
    }


def _shortlist_of(translator: Translator, options: LineOptions) -> str | None:
    """Which shortlist is used: `multihead shortlist` can have made another one since."""
    folder = translator.folder
    if folder is None or not options.request.search.shortlist:
        return None
    _ = translator.shortlist  # says what is wrong where there is none, or one for another model
    return sha256_of(locate(folder) / SHORTLIST)[:16]
