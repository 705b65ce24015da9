"""Arithmetic, and what is done to one of its operands: the answer is a way up a tree.

    a - b * c & d | e,   b?        ->      * - & |              since it is (((a - (b * c)) & d) | e)

No brackets are written: the tree is in the order of the symbols alone. Every symbol has a head, the operation that it
is an operand of; the loosest operation has none. With symbols ordered by how tightly they bind (operands tightest; of
equal operations the left one, so that they are done from left to right),

    head(i) = the tighter one of the nearest looser symbol on the left and the nearest looser symbol on the right,

and the answer are the heads from the operand upwards. Precedence is Python's. Which symbol is the head is told neither
by the two symbols nor by their distance but by what stands between: of all projective trees whose heads are looser than
what they hold, this one gives every symbol the tightest head. So scores of pairs of symbols are all that a distribution
over *trees* needs to find the heads, and with the same scores a softmax for each symbol by itself does not find them.
(Kim et al. 2017, section 4.1, transduce bracketed prefix notation, whose tree is in no such scores; there a recurrent
network reads the source for them.)

The question is asked of the decoder: the operand stands in the place of the begin symbol. The encoder does not know it,
so that its heads must serve for every operand. Learning is left to others.
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
from multihead.data.toy.reordering import BEGIN, END, FIRST, PADDING
from multihead.errors import ConfigurationError, InputError

OPERATORS = ("|", "^", "&", "<<", "-", "*")
"""Six of Python's, of six precedences, the loosest first."""

_OPERANDS = "abcdefghijklmnopqrstuvwxyz"
_IDS = {symbol: FIRST + index for index, symbol in enumerate((*OPERATORS, *_OPERANDS))}


def heads(symbols: Sequence[str]) -> list[int]:
    """The head of each symbol as `multihead.attention.structured` counts: from 1, and 0 for the one that has none.

    Raises:
        InputError: the symbols are not operands with operators between them.
    """
    if len(symbols) % 2 == 0 or any((symbol in OPERATORS) != (place % 2 == 1) for place, symbol in enumerate(symbols)):
        raise InputError(f"{' '.join(symbols)!r} is no expression: expected operands with operators between them")
    tightness = [
        (OPERATORS.index(symbol) if symbol in OPERATORS else len(OPERATORS), -place)
        for place, symbol in enumerate(symbols)
    ]
    found = []
    for place, own in enumerate(tightness):
        left = next((other for other in reversed(range(place)) if tightness[other] < own), None)
        right = next((other for other in range(place + 1, len(symbols)) if tightness[other] < own), None)
        candidates = [other for other in (left, right) if other is not None]
        found.append(1 + max(candidates, key=lambda other: tightness[other]) if candidates else 0)
    return found


class Question(NamedTuple):
    """An expression, and the operand that is asked about."""

    symbols: tuple[str, ...]
    """Operands, no two alike, with operators between them."""
    operand: str
    """One of them."""

    @property
    def answer(self) -> tuple[str, ...]:
        """The operators that are applied to the operand, in this order: its heads."""
        head = heads(self.symbols)
        way, place = [], head[self.symbols.index(self.operand)]
        while place:
            way.append(self.symbols[place - 1])
            place = head[place - 1]
        return tuple(way)

    @property
    def pattern(self) -> tuple[tuple[str, ...], int]:
        """What it is but for the names of operands: its operators, and the place that is asked about."""
        return self.symbols[1::2], self.symbols.index(self.operand)


@dataclass(frozen=True)
class Expressions:
    """The task in one size.

    Args:
        fewest: the least operators of an expression.
        most: the most.
        operands: how many different operands there are: more than operators, 26 at most.

    Raises:
        ConfigurationError: numbers that make no task.
    """

    fewest: int = 3
    most: int = 7
    operands: int = 10

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.most:
            raise ConfigurationError(
                f"fewest={self.fewest}, most={self.most}: at least 1 operator is needed, and the most not below the "
                "fewest"
            )
        if not self.most < self.operands <= len(_OPERANDS):
            raise ConfigurationError(
                f"operands={self.operands}, most={self.most}: more operands than operators are needed, and "
                f"{len(_OPERANDS)} at most"
            )

    @property
    def vocabulary(self) -> int:
        """Ids on either side: operators and operands, after padding, begin and end."""
        return FIRST + len(OPERATORS) + self.operands

    def id_of(self, symbol: str) -> int:
        """The id of an operator or an operand."""
        return _IDS[symbol]

    def draw(self, random: Random) -> Question:
        """A question: first the number of operators, all being equally probable, then they, the operands, and one."""
        count = random.randint(self.fewest, self.most)
        first, *others = operands = random.sample(_OPERANDS[: self.operands], count + 1)
        pairs = zip(random.choices(OPERATORS, k=count), others, strict=True)
        return Question((first, *chain.from_iterable(pairs)), random.choice(operands))

    def held_out(self, count: int, seed: int) -> list[Question]:
        """So many questions to test with, of different patterns; a function of the arguments alone.

        Raises:
            ConfigurationError: there are not so many, or hardly.
        """
        possible = sum((n + 1) * len(OPERATORS) ** n for n in range(self.fewest, self.most + 1))
        if 2 * count > possible:
            raise ConfigurationError(
                f"{count} questions of {possible} that differ in more than names: at least half must remain to learn "
                "from; ask for fewer, or have more operators"
            )
        random, found = Random(f"held out expressions {seed}"), dict[tuple[tuple[str, ...], int], Question]()
        while len(found) < count:
            question = self.draw(random)
            found.setdefault(question.pattern, question)
        return list(found.values())

    def batch(self, questions: Sequence[Question]) -> Batch:
        """Expressions and answers, in this order, as tensors; each answer's begin symbol is the operand."""
        store = ParallelStore.from_lists(
            [[self.id_of(symbol) for symbol in question.symbols] for question in questions],
            [[self.id_of(symbol) for symbol in question.answer] for question in questions],
        )
        batch = collate(store, np.arange(len(questions)), pad_id=PADDING, bos_id=BEGIN, eos_id=END)
        begin = torch.tensor([self.id_of(question.operand) for question in questions])
        return replace(batch, target_input=torch.cat((begin[:, None], batch.target_input[:, 1:]), 1))

    def batches(self, rows: int, seed: int, without: Collection[Question] = ()) -> Iterator[Batch]:
        """Batches of so many questions, without end: the same ones for the same seed.

        None has the pattern of one of ``without``, which must leave some over.
        """
        random, unwanted = Random(f"expressions {seed}"), {question.pattern for question in without}
        drawn = (one for one in iter(lambda: self.draw(random), None) if one.pattern not in unwanted)
        while True:
            yield self.batch([next(drawn) for _ in range(rows)])


def by_operand(questions: Sequence[Question]) -> dict[str, list[int]]:
    """Which questions ask for the same operand: a search has one begin symbol."""
    groups = defaultdict[str, list[int]](list)
    for index, question in enumerate(questions):
        groups[question.operand].append(index)
    return dict(groups)
