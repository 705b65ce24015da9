"""A file of lines to a file of lines, which can be stopped and resumed.

The output has a translation for each line, in order, and the same bytes however often it was stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from multihead.bundle import locate
from multihead.data.text_files import TextScan, read_lines, refuse_undecodable, scan
from multihead.engine.stored import StoredTransformer
from multihead.errors import DataError
from multihead.kernels.native import thread_count
from multihead.lines import windows
from multihead.lines.growing_file import growing_file
from multihead.lines.side_files import SideFiles
from multihead.lines.windows import LineOptions, translated
from multihead.sealed import open_folder
from multihead.translating.translator import Translator


def check_input(path: Path) -> TextScan:
    """Scan a text file, plain or compressed, all of whose lines will be used.

    Raises:
        DataError: it cannot be read, or a line is not UTF-8; names the first such line.
    """
    found = scan(path)
    refuse_undecodable(found)
    return found


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
    enough: Callable[[], bool] = lambda: False,
) -> None:
    """Translate every line of a file into another file.

    Stopped at any moment and called again with the same arguments, it continues where it stopped (`growing_file`).
    Finished windows of lines are kept.

    Args:
        translator: a loaded model.
        model: identifies it (`bundle.model_digest`); for an ensemble all models, and how they are averaged.
        source: the file, as `check_input` scanned it.
        output: the file to write, which must not exist.
        options: how to translate, and what to write.
        files: constraints of single lines.
        begin: called with the number of lines that an earlier process has translated.
        progress: called with the number of newly finished lines.
        remark: called with each note for the reader of the translations.
        enough: called after each window of lines; if it is true, the other lines are left out.

    Raises:
        DataError: the file has changed since it was looked at, or a side file does not fit it.
        ConfigurationError: the output exists, or was begun with other arguments.
        SurroundingsError: it cannot be written.
    """
    if files is not None:
        files.check_lines(source)
    with growing_file(output, _made_from(translator, model, source, options, files)) as file:
        if file is None:
            return
        begin(file.lines)
        lines = read_lines(source.path)
        before = deque(islice(lines, file.lines), maxlen=translator.bundle.source_tokenizer.context)
        for window in translated(
            translator, lines, options, done=file.lines, files=files, progress=progress, before=before
        ):
            file.append(window.rows, window.lines)
            for one in window.remarks:
                remark(one)
            if file.lines < source.lines and enough():
                file.finish()
                return
        if file.lines != source.lines:
            message = f"has changed: {source.lines:,} lines were counted, {file.lines:,} were read"
            raise DataError(f"{message}; begin anew with another --output", source.path)
        file.finish()


def _made_from(
    translator: Translator, model: str, source: TextScan, options: LineOptions, files: SideFiles | None
) -> dict[str, Any]:
    """Everything that decides the bytes of the output."""
    return {
        **of_the_input(model, source, files),
        **of_the_translator(translator, options),
        "threads": thread_count(),
    }


def of_the_input(model: str, source: TextScan, files: SideFiles | None) -> dict[str, Any]:
    """What decides the bytes of an output: the models and the files that are read."""
    prefixes, phrases = (None, None) if files is None else (files.prefixes, files.phrases)
    return {
        "input": source.sha256[:16],
        "model": model,
        "prefixes": None if prefixes is None else prefixes.sha256[:16],
        "phrases": None if phrases is None else phrases.sha256[:16],
    }


def of_the_translator(translator: Translator, options: LineOptions) -> dict[str, Any]:
    """What else decides them, but for the threads. Unused settings are None, as in records of earlier versions."""
    request, guard = options.request, options.guard
    return {
        **request.search.model_dump(mode="json"),
        "shortlist_file": _shortlist_of(translator, options),
        "n_best": request.n_best,
        "scores": options.scores,
        "sampling": None if request.sampling is None else request.sampling.model_dump(mode="json"),
        "mbr": request.metric,
        **({} if request.weights is None else {"weights": str(request.weights)}),
        **({"both": True} if request.both else {}),
        **({} if request.terms is None else {"terms": request.terms.digest[:16]}),
        "guard": None if guard is None else {**guard.model_dump(mode="json"), **asdict(translator.lengths)},
        "max_source": options.max_source or None,
        "max_sentence": options.max_sentence or None,
        "batch_tokens": request.batch_tokens,
        "window": windows.WINDOW,
        "compiled": translator.compiled,
        "device": _device_of(translator),
        **options.record,
    }


def _device_of(translator: Translator) -> str:
    found = translator.bundle.searched
    return "cpu" if isinstance(found, StoredTransformer) else str(found.output.weight.device)


def _shortlist_of(translator: Translator, options: LineOptions) -> str | None:
    """Identifies the shortlist, which `multihead shortlist` can replace at any time."""
    folder = translator.folder
    if folder is None or not options.request.search.shortlist:
        return None
    from multihead.translating.shortlist import AGAIN, FILE

    _ = translator.shortlist  # raises an error if there is none, or one for another model
    with open_folder(locate(folder), AGAIN) as found:
        return found.digest(FILE)[:16]
