"""Texts and their lines, which are translated one by one and stay lines; how a long one is cut, `long_lines` says.

A line ends at LF, and a CR before it belongs to the end, as in files (`data.corpus`). A line without words is not
translated and comes back empty, as `Translator.translate` has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Piece:
    """What is translated by itself, and what stands behind it."""

    text: str
    behind: str

    @property
    def empty(self) -> bool:
        """Whether there is nothing to translate."""
        return not self.text.strip()


def pieces_of(text: str) -> list[Piece]:
    """The lines of a text."""
    *lines, last = text.split("\n")
    cut = [(line[:-1], "\r\n") if line.endswith("\r") else (line, "\n") for line in lines]
    return [*(Piece(line, end) for line, end in cut), Piece(last, "")]


def joined(pieces: Sequence[Piece], translations: Sequence[str]) -> str:
    """The translation of a text from those of its pieces."""
    return "".join(text + piece.behind for piece, text in zip(pieces, translations, strict=True))


def block_diagonal(blocks: Sequence[list[list[float]]], widths: Sequence[int]) -> list[list[float]]:
    """Matrices of so many columns each, one behind and below the other; zeros elsewhere."""
    total, rows = sum(widths), []
    starts = [sum(widths[:place]) for place in range(len(widths) + 1)]
    for block, (start, end) in zip(blocks, pairwise(starts), strict=True):
        rows += [[0.0] * start + row + [0.0] * (total - end) for row in block]
    return rows
