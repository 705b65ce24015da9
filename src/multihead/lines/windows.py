"""A stream of lines to a stream of lines, window after window: memory does not grow, and order is kept.

A window is enough lines to sort by length, so that batches are well filled; each is translated by itself, so that who
goes on at the beginning of one gets the same batches, and the same bytes, as who never stopped. What is written of a
line is in `lines.rendering`; what becomes of one that is too long, in `lines.long_lines`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from multihead.lines.answering import Answer, answers
from multihead.lines.long_lines import Line, in_parts, together
from multihead.lines.rendering import Rendering
from multihead.lines.side_files import SideFiles, Wanted
from multihead.translating.searching import RoomError
from multihead.translating.translation import Translation
from multihead.translating.translator import Translator

T = TypeVar("T")

WINDOW = 2000
"""Lines that are translated together."""
PARTS_NAMED = 5
"""Of how many suspicious parts of a line is said why: one of ten thousand words can have hundreds."""


@dataclass(frozen=True)
class Window:
    """Some lines, translated."""

    lines: int
    """How many went in."""
    rows: list[str]
    """What is to be written of them, without line feeds."""
    remarks: tuple[str, ...]
    """What their reader should know, each with its line."""


def translated(
    translator: Translator,
    lines: Iterator[str],
    rendering: Rendering,
    *,
    done: int = 0,
    files: SideFiles | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Window]:
    """Translates lines as they come.

    Args:
        translator: the model.
        lines: those still to do.
        rendering: how, and what is written.
        done: how many lines stood before them.
        files: what is demanded of single lines; files with a line for each, those before included.
        progress: is told how many more lines are done, whenever some are.

    Raises:
        DataError: a side file does not fit the lines; names file and line.
    """
    translator = translator.searching(**rendering.search.model_dump())
    demanded = (files or SideFiles()).opened(done)
    for window in in_chunks(lines, WINDOW):
        wanted = demanded.of(window)
        tokenizer, most = translator.bundle.source_tokenizer, rendering.max_source
        split = in_parts(tokenizer, window, most, wanted.any, rendering.max_sentence)
        try:
            found = _answers(translator, split, rendering, wanted, progress)
        except RoomError as error:  # no line is cut of which something is demanded
            number = done + 1 + [place for place, line in enumerate(split) for _ in line.texts][error.place]
            demanded.refuse("prefixes" if error.name == "prefix" else "phrases", f"its {error.reason}", number)
        rows: list[str] = []
        remarks: list[str] = []
        for number, line, own in zip(range(done + 1, done + len(window) + 1), split, found, strict=True):
            whole = together(line, [answer.found for answer in own])
            rows += rendering.rows(number, whole, _suspicions(own, len(whole)))
            remarks += [f"line {number}{remark}" for remark in _remarks(line, whole, own)]
        yield Window(len(window), rows, tuple(remarks))
        done += len(window)
    demanded.end()


def _answers(
    translator: Translator,
    lines: Sequence[Line],
    rendering: Rendering,
    wanted: Wanted,
    progress: Callable[[int], None] | None,
) -> list[list[Answer]]:
    """Of each line those of its parts."""
    texts = [text for line in lines for text in line.texts]
    prefixes, phrases = _of_texts(wanted.prefixes, lines), _of_texts(wanted.phrases, lines)
    told = None if progress is None else _in_lines(progress, len(lines), len(texts))
    found = iter(answers(translator, texts, rendering, prefixes, phrases, told))
    return [[next(found) for _ in line.texts] for line in lines]


def _of_texts(demands: Sequence[T] | None, lines: Sequence[Line]) -> list[T] | None:
    """What is demanded of lines, for each text of theirs."""
    if demands is None:
        return None
    return [own for own, line in zip(demands, lines, strict=True) for _ in line.texts]


def _in_lines(progress: Callable[[int], None], lines: int, texts: int) -> Callable[[int], None]:
    """Progress in texts, told in lines: as many as are done of the whole."""
    done = 0

    def tell(more: int) -> None:
        nonlocal done
        before, done = done, done + more
        whole = done * lines // texts - before * lines // texts
        if whole:
            progress(whole)

    return tell


def _suspicions(parts: Sequence[Answer], count: int) -> list[float]:
    """Of each of the ``count`` translations of a line: the highest of its parts'; none where they are not guarded."""
    rows = [answer.guarded for answer in parts if answer.guarded]
    return [max(row[min(place, len(row) - 1)].score for row in rows) for place in range(count)] if rows else []


def _remarks(line: Line, whole: Sequence[Translation], parts: Sequence[Answer]) -> Iterator[str]:
    """What is said of a line behind its number."""
    if line.remark is not None:
        yield f": {line.remark}"
    for place, translation in enumerate(whole, start=1):
        if not translation.finished:
            yield f": {_which(place, len(whole))} reached the length limit and may be cut"
    if whole[0].warning is not None:
        yield f": {whole[0].warning}"
    said = list(_of_parts(parts))
    most = PARTS_NAMED if len(parts) > 1 else len(said)
    yield from said[:most]
    if len(said) > most:
        yield f": {len(said) - most:,} more of its parts were suspicious"


def _of_parts(parts: Sequence[Answer]) -> Iterator[str]:
    """What the guard says of each part, or of a line that is whole."""
    for number, answer in enumerate(parts, start=1):
        part = f", part {number}" if len(parts) > 1 else ""
        for place, guarded in enumerate(answer.guarded, start=1):
            if guarded.remark is not None:
                which = "" if len(answer.guarded) == 1 else f"{_which(place, len(answer.guarded))} is "
                yield f"{part}: {which}{guarded.remark}"


def _which(place: int, count: int) -> str:
    return "the translation" if count == 1 else f"translation {place}"


def in_chunks(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    """Lists of up to ``size`` lines."""
    chunk: list[str] = []
    for line in lines:
        chunk.append(line)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
