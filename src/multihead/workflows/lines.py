"""A stream of lines to a stream of lines, window after window: memory does not grow, and order is kept.

A window is enough lines to sort by length, so that batches are well filled; each is translated by itself, so that who
goes on at the beginning of one gets the same batches, and the same bytes, as who never stopped.

What is written is a line for each line, or rows for programs, where scores or several translations are wanted:

    line TAB score TAB text

``line`` counts from 1; the rows of one line stand together, best first. A text can hold a TAB, but it stands last, and
no text holds a line feed: cut a row at its first two TABs. A line without words has one row, of score 0 and no text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from multihead.models.config import GenerationConfig
from multihead.workflows.translate import Translation, Translator, check_n_best

WINDOW = 2000
"""Lines that are translated together."""


@dataclass(frozen=True)
class Rendering:
    """How lines are translated, and what is written of them.

    Args:
        search: as `Translator.search_settings` gives it.
        n_best: rows with so many translations of each line; None = lines, or with ``scores`` the best as a row.
        scores: whether rows are wanted.
        batch_tokens: as `Translator.translate` has it.

    Raises:
        ConfigurationError: more translations than the beam.
    """

    search: GenerationConfig
    n_best: int | None = None
    scores: bool = False
    batch_tokens: int = 4096

    def __post_init__(self) -> None:
        check_n_best(1 if self.n_best is None else self.n_best, self.search.beam)

    def rows(self, number: int, found: list[Translation]) -> list[str]:
        """What is written of line ``number``, without line feeds."""
        if self.n_best is None and not self.scores:
            return [found[0].text]
        return [f"{number}\t{translation.score:.4f}\t{translation.text}" for translation in found]


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
    progress: Callable[[int], None] | None = None,
) -> Iterator[Window]:
    """Translates lines as they come.

    Args:
        translator: the model.
        lines: those still to do.
        rendering: how, and what is written.
        done: how many lines stood before them.
        progress: is told how many more lines are done, whenever some are.
    """
    search = rendering.search
    for window in in_chunks(lines, WINDOW):
        found = translator.n_best(
            window,
            rendering.n_best or 1,
            beam=search.beam,
            alpha=search.alpha,
            min_length=search.min_length,
            max_length=search.max_length,
            batch_tokens=rendering.batch_tokens,
            progress=progress,
        )
        numbered = list(enumerate(found, start=done + 1))
        rows = [row for number, each in numbered for row in rendering.rows(number, each)]
        remarks = tuple(remark for number, each in numbered for remark in _remarks(number, each))
        yield Window(len(window), rows, remarks)
        done += len(window)


def _remarks(number: int, found: list[Translation]) -> Iterator[str]:
    for place, translation in enumerate(found, start=1):
        which = "the translation" if len(found) == 1 else f"translation {place}"
        if not translation.finished:
            yield f"line {number}: {which} reached the length limit and may be cut"
    if found[0].warning is not None:
        yield f"line {number}: {found[0].warning}"


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
