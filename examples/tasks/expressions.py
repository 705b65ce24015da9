"""Arithmetic expressions: the operators applied to an operand.

    a - b * c & d | e,   b?        ->      * - & |              since it is (((a - (b * c)) & d) | e)

There are no parentheses: the tree follows from the order of the symbols, with Python's precedence. The head of a symbol
is the operator that it is an operand of; the loosest operator has none. With symbols ordered by how tightly they bind
(operands tightest; of equal operators the left one, so that they apply from left to right),

    head(i) = the tighter one of the nearest looser symbol on the left and the nearest looser symbol on the right,

and the answer is the chain of heads above the operand. Whether one symbol is the head of another depends on the symbols
between them, not on the two symbols or their distance: of all projective trees whose heads bind looser than their
modifiers, the correct one gives every symbol the tightest head. So scores of pairs of symbols suffice for a
distribution over *trees* to find the heads, but not for a separate softmax for each symbol. (Kim et al. 2017, section
4.1, use bracketed prefix notation, whose tree does not follow from such scores; there a recurrent network reads the
source.)

Only the decoder sees the question: the operand replaces the begin symbol. The encoder does not know the operand, so its
heads must serve all operands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from random import Random
from typing import NamedTuple

import numpy as np
import torch

from multihead.data.batching import Batch, collate
from multihead.data.store import ParallelStore
from multihead.errors import ConfigurationError, InputError
from tasks.reordering import BEGIN, END, FIRST, PADDING

OPERATORS = ("|", "^", "&", "<<", "-", "*")
"""Python operators with six different precedences, loosest first."""

_OPERANDS = "abcdefghijklmnopqrstuvwxyz"
_IDS = {symbol: FIRST + index for index, symbol in enumerate((*OPERATORS, *_OPERANDS))}


def heads(symbols: Sequence[str]) -> list[int]:
    """The position of each symbol's head, numbered from 1 as in `multihead.attention.structured`; 0 for the root.

    Raises:
        InputError: the symbols do not alternate between operands and operators.
    """
    if len(symbols) % 2 == 0 or any((symbol in OPERATORS) != (place % 2 == 1) for place, symbol in enumerate(symbols)):
        raise InputError(f"{' '.join(symbols)!r} is not an expression: expected operands with operators between them")
    tightness = [
        (OPERATORS.index(symbol) if symbol in OPERATORS else len(OPERATORS), -place)
        for place, symbol in enumerate(symbols)
    ]
    positions = []
    for place, own in enumerate(tightness):
        left = next((other for other in reversed(range(place)) if tightness[other] < own), None)
        right = next((other for other in range(place + 1, len(symbols)) if tightness[other] < own), None)
        candidates = [other for other in (left, right) if other is not None]
        positions.append(1 + max(candidates, key=lambda other: tightness[other]) if candidates else 0)
    return positions


class Question(NamedTuple):
    """An expression and the operand asked about."""

    symbols: tuple[str, ...]
    """Distinct operands with operators between them."""
    operand: str
    """One of the operands."""

    @property
    def answer(self) -> tuple[str, ...]:
        """The operators applied to the operand, innermost first: the chain of its heads."""
        head = heads(self.symbols)
        chain, place = [], head[self.symbols.index(self.operand)]
        while place:
            chain.append(self.symbols[place - 1])
            place = head[place - 1]
        return tuple(chain)

    @property
    def pattern(self) -> tuple[tuple[str, ...], int]:
        """The question without operand names: the operators, and the position asked about."""
        return self.symbols[1::2], self.symbols.index(self.operand)


@dataclass(frozen=True)
class Expressions:
    """The task, with its sizes.

    Args:
        fewest: minimum number of operators of an expression.
        most: maximum number of operators of an expression.
        operands: number of different operands: more than ``most``, at most 26.

    Raises:
        ConfigurationError: the sizes do not make a task.
    """

    fewest: int = 3
    most: int = 7
    operands: int = 10

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.most:
            raise ConfigurationError(f"fewest={self.fewest}, most={self.most}: expected 1 <= fewest <= most")
        if not self.most < self.operands <= len(_OPERANDS):
            raise ConfigurationError(
                f"operands={self.operands}, most={self.most}: expected most < operands <= {len(_OPERANDS)}"
            )

    @property
    def vocabulary(self) -> int:
        """Size of the vocabulary: padding, begin and end, then operators and operands."""
        return FIRST + len(OPERATORS) + self.operands

    def id_of(self, symbol: str) -> int:
        """The id of an operator or operand."""
        return _IDS[symbol]

    def draw(self, random: Random) -> Question:
        """Draw the number of operators uniformly, then operators and operands, then the operand asked about."""
        count = random.randint(self.fewest, self.most)
        first, *others = operands = random.sample(_OPERANDS[: self.operands], count + 1)
        pairs = zip(random.choices(OPERATORS, k=count), others, strict=True)
        return Question((first, *chain.from_iterable(pairs)), random.choice(operands))

    def held_out(self, count: int, seed: int) -> list[Question]:
        """``count`` questions of different patterns for testing; a function of the arguments alone.

        Raises:
            ConfigurationError: ``count`` is more than half of all possible patterns.
        """
        possible = sum((n + 1) * len(OPERATORS) ** n for n in range(self.fewest, self.most + 1))
        if 2 * count > possible:
            raise ConfigurationError(
                f"{count} questions of {possible} different patterns: at least half must remain for training; hold out "
                "fewer, or use more operators"
            )
        random, questions = Random(f"held out expressions {seed}"), dict[tuple[tuple[str, ...], int], Question]()
        while len(questions) < count:
            question = self.draw(random)
            questions.setdefault(question.pattern, question)
        return list(questions.values())

    def batch(self, questions: Sequence[Question]) -> Batch:
        """Expressions and answers as tensors, in the given order; the begin symbol of each answer is the operand."""
        store = ParallelStore.from_lists(
            [[self.id_of(symbol) for symbol in question.symbols] for question in questions],
            [[self.id_of(symbol) for symbol in question.answer] for question in questions],
        )
        batch = collate(store, np.arange(len(questions)), pad_id=PADDING, bos_id=BEGIN, eos_id=END)
        begin = torch.tensor([self.id_of(question.operand) for question in questions])
        return replace(batch, target_input=torch.cat((begin[:, None], batch.target_input[:, 1:]), 1))

    def batches(self, rows: int, seed: int, without: Collection[Question] = ()) -> Iterator[Batch]:
        """An endless stream of batches of ``rows`` questions, determined by the seed.

        Patterns of questions in ``without`` are left out; other patterns must exist.
        """
        random, excluded = Random(f"expressions {seed}"), {question.pattern for question in without}
        questions = (drawn for drawn in iter(lambda: self.draw(random), None) if drawn.pattern not in excluded)
        while True:
            yield self.batch([next(questions) for _ in range(rows)])


def by_operand(questions: Sequence[Question]) -> dict[str, list[int]]:
    """The indices of questions by operand, since a search has a single begin symbol."""
    groups = defaultdict[str, list[int]](list)
    for index, question in enumerate(questions):
        groups[question.operand].append(index)
    return dict(groups)
