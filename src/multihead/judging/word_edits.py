"""The edits that turn a translation into its reference, word by word.

A token is a word or a punctuation mark. The edits are those of the smallest Levenshtein distance; among equally small
ones similar words are exchanged for each other, so that "dogs" is aligned with "dog" and not with its neighbor.
Applying all edits gives the reference, applying some of them a translation in which only these errors are repaired.

What kind of error an edit is, and which errors are frequent, is in `judging.errors`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from multihead.judging.guard_signs import WORD

_TOKEN = re.compile(rf"\s*(?:{WORD.pattern}|\S)")
_SIMILAR = 0.5
"""What an exchange of words with nothing in common costs more than one of almost equal words."""
_LETTERS = 12  # that are compared


@dataclass(frozen=True)
class Edit:
    """A step from a translation to its reference."""

    written: str | None
    """The translation's token; None if it lacks one."""
    wanted: str | None
    """The reference's token; None if the translation has one too many."""
    place: int
    """Of the token in the translation, or of the one before which it lacks one."""
    goal: int
    """Likewise in the reference."""

    @property
    def kept(self) -> bool:
        """Whether nothing changes."""
        return self.written == self.wanted


def tokens(text: str) -> list[str]:
    """The words and punctuation marks of a text."""
    return [token.strip() for token in _TOKEN.findall(text)]


def align_words(written: Sequence[str], wanted: Sequence[str]) -> list[Edit]:
    """The edits from one sequence of tokens to another, in order, with those that keep a token."""
    costs = _costs(written, wanted)
    edits, row, column = list[Edit](), len(written), len(wanted)
    while row or column:
        here = costs[row][column]
        if row and column and here == costs[row - 1][column - 1] + exchange_cost(written[row - 1], wanted[column - 1]):
            row, column = row - 1, column - 1
            edits.append(Edit(written[row], wanted[column], row, column))
        elif row and here == costs[row - 1][column] + 1:
            row -= 1
            edits.append(Edit(written[row], None, row, column))
        else:
            column -= 1
            edits.append(Edit(None, wanted[column], row, column))
    return edits[::-1]


def _costs(written: Sequence[str], wanted: Sequence[str]) -> list[list[float]]:
    """The smallest cost from each prefix to each prefix; multiples of 1/64, which floats add exactly."""
    costs = [[float(column) for column in range(len(wanted) + 1)]]
    for row, own in enumerate(written, start=1):
        line = [float(row)]
        for column, other in enumerate(wanted, start=1):
            exchanged = costs[-1][column - 1] + exchange_cost(own, other)
            line.append(min(exchanged, costs[-1][column] + 1, line[-1] + 1))
        costs.append(line)
    return costs


def exchange_cost(written: str, wanted: str) -> float:
    """0 for equal tokens, 1 for very similar ones, 1.5 for different ones: always less than to omit and insert."""
    if written == wanted:
        return 0.0
    one, other = written.casefold(), wanted.casefold()
    if one == other:
        return 1.0
    return 1.0 + round(64 * _SIMILAR * (1 - shared_beginning(one, other))) / 64


def shared_beginning(one: str, other: str) -> float:
    """The length of the common beginning of two words, as a share of the longer one."""
    longest, count = min(max(len(one), len(other)), _LETTERS), 0
    for left, right in zip(one[:_LETTERS], other[:_LETTERS], strict=False):
        if left != right:
            break
        count += 1
    return count / longest


def repaired(written: str, wanted: str, edits: Sequence[Edit], wrong: Callable[[Edit], bool]) -> str:
    """The translation with some of its errors repaired.

    White space comes with each token, that of the reference where both have it. If tokens would run together so, all of
    them are separated by blanks.

    Args:
        written: the translation.
        wanted: the reference.
        edits: between the two.
        wrong: says of an edit that keeps nothing whether it is made.
    """
    own, other = _TOKEN.findall(written), _TOKEN.findall(wanted)
    parts = []
    for edit in edits:
        if edit.wanted is not None and (edit.kept or wrong(edit)):
            parts.append(other[edit.goal])
        elif edit.written is not None and not wrong(edit):
            parts.append(own[edit.place])
    text, expected = "".join(parts).strip(), [part.strip() for part in parts]
    return text if tokens(text) == expected else " ".join(expected)
