"""Expressions: heads follow Python's precedence, and only trees find them from pair scores."""

from __future__ import annotations

import ast
from itertools import islice, product
from random import Random

import pytest
import torch
from torch import Tensor

from multihead.attention.structured import tree_marginals
from multihead.errors import ConfigurationError, InputError
from tasks.expressions import OPERATORS, Expressions, Question, by_operand, heads
from tasks.reordering import END, PADDING

PYTHON = dict(zip(OPERATORS, (ast.BitOr, ast.BitXor, ast.BitAnd, ast.LShift, ast.Sub, ast.Mult), strict=True))
"""The operators as Python's own parser names them."""


def drawn(task: Expressions, count: int = 300) -> list[Question]:
    random = Random(0)
    return [task.draw(random) for _ in range(count)]


def bracketed(symbols: tuple[str, ...], head: list[int], place: int) -> str:
    """The subexpression below a symbol, with parentheses around each operation."""
    below = [bracketed(symbols, head, other) for other, above in enumerate(head) if above == place + 1]
    return f"({f' {symbols[place]} '.join(below)})" if below else symbols[place]


def way_up(expression: ast.AST, operand: str) -> list[str] | None:
    """The operators around a name in Python's tree, innermost first."""
    if isinstance(expression, ast.Name):
        return [] if expression.id == operand else None
    assert isinstance(expression, ast.BinOp)
    for side in (expression.left, expression.right):
        found = way_up(side, operand)
        if found is not None:
            return [*found, next(sign for sign, kind in PYTHON.items() if isinstance(expression.op, kind))]
    return None


@pytest.mark.parametrize(
    "task", [Expressions(), Expressions(1, 1, operands=2), Expressions(12, 25, operands=26)], ids=repr
)
def test_an_answer_is_the_way_up_the_tree_that_python_makes(task: Expressions) -> None:
    for question in drawn(task):
        tree = ast.parse(" ".join(question.symbols), mode="eval").body
        for operand in question.symbols[::2]:
            assert list(Question(question.symbols, operand).answer) == way_up(tree, operand)


def test_heads_written_as_brackets_are_the_same_expression_to_python() -> None:
    for question in drawn(Expressions()):
        head = heads(question.symbols)
        (root,) = [place for place, above in enumerate(head) if above == 0]
        text = bracketed(question.symbols, head, root)
        plain = ast.parse(" ".join(question.symbols), mode="eval")
        assert ast.dump(ast.parse(text, mode="eval")) == ast.dump(plain)


def test_and_the_same_number() -> None:
    random = Random(1)
    for question in drawn(Expressions(1, 4), 200):
        values = {symbol: random.randrange(1, 9) for symbol in question.symbols[::2]}
        head = heads(question.symbols)
        text = bracketed(question.symbols, head, head.index(0))
        try:
            wanted = eval(" ".join(question.symbols), {}, values)
        except ValueError:  # a negative shift
            with pytest.raises(ValueError, match="negative shift"):
                eval(text, {}, values)
        else:
            assert eval(text, {}, values) == wanted


def test_the_heads_are_a_projective_tree_with_one_root_and_two_operands_an_operator() -> None:
    for question in drawn(Expressions(1, 12, operands=13)):
        head = heads(question.symbols)
        assert head.count(0) == 1
        for place, symbol in enumerate(question.symbols, 1):
            assert head.count(place) == (2 if symbol in OPERATORS else 0)
            seen, above = {place}, head[place - 1]
            while above:
                assert above not in seen
                seen.add(above)
                above = head[above - 1]
        arcs = [(min(one, above), max(one, above)) for one, above in enumerate(head, 1)]
        assert not any(a < c < b < d for (a, b), (c, d) in product(arcs, arcs))


def pair_scores(symbols: tuple[str, ...]) -> Tensor:
    """Scores of pairs of symbols [head, modifier]: only looser heads are possible, and tighter ones score higher."""
    order = sorted(range(len(symbols)), key=lambda place: (_rank(symbols[place]), -place))
    arc = torch.full((1, 1 + len(symbols), 1 + len(symbols)), -torch.inf, dtype=torch.float64)
    arc[0, 0] = 0.0
    for rank, head in enumerate(order):
        for modifier in order[rank + 1 :]:
            arc[0, 1 + head, 1 + modifier] = 20.0 * rank
    return arc


def _rank(symbol: str) -> int:
    return OPERATORS.index(symbol) if symbol in OPERATORS else len(OPERATORS)


def test_trees_find_the_heads_from_scores_of_pairs() -> None:
    """Why the task needs trees: with the same scores, a separate choice for each symbol is wrong."""
    right, of_all = 0, 0
    for question in drawn(Expressions(3, 8), 100):
        arc, head = pair_scores(question.symbols), torch.tensor(heads(question.symbols))
        marginals = tree_marginals(arc)[0, :, 1:]
        assert torch.equal(marginals.argmax(0), head)
        assert marginals.amax(0).min() > 0.99
        alone = arc[0, :, 1:].argmax(0)
        right += int((alone == head)[head > 0].sum())
        of_all += int((head > 0).sum())
    assert right / of_all < 0.5


def test_a_batch_asks_by_its_begin_symbol() -> None:
    task = Expressions()
    questions = drawn(task, 20)
    batch = task.batch(questions)
    for row, question in enumerate(questions):
        source = [task.id_of(symbol) for symbol in question.symbols]
        answer = [task.id_of(symbol) for symbol in question.answer]
        assert _unpadded(batch.source[row]) == [*source, END]
        assert _unpadded(batch.target_output[row]) == [*answer, END]
        assert _unpadded(batch.target_input[row]) == [task.id_of(question.operand), *answer]
        assert set(batch.target_input[row, 1 + len(answer) :].tolist()) <= {PADDING}
    assert int(batch.source.max()) < task.vocabulary
    ids = [task.id_of(symbol) for symbol in (*OPERATORS, *"abcdefghij")]
    assert ids == list(range(task.vocabulary - len(ids), task.vocabulary))


def _unpadded(row: Tensor) -> list[int]:
    return [token for token in row.tolist() if token != PADDING]


def test_questions_are_grouped_by_what_they_ask_for() -> None:
    questions = drawn(Expressions(), 50)
    groups = by_operand(questions)
    assert sorted(index for rows in groups.values() for index in rows) == list(range(50))
    assert all(questions[row].operand == operand for operand, rows in groups.items() for row in rows)


def test_questions_are_a_function_of_the_seed_and_held_out_patterns_are_not_trained_on() -> None:
    task = Expressions(1, 2)
    held_out = task.held_out(50, 1)
    assert held_out == task.held_out(50, 1) != task.held_out(50, 2)
    assert len({question.pattern for question in held_out}) == 50
    first, again, other = (
        [batch.source for batch in islice(task.batches(16, seed, without=held_out), 20)] for seed in (1, 1, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(first, other, strict=True))
    asked = {question.pattern for question in held_out}
    names = {task.id_of(symbol): symbol for symbol in (*OPERATORS, *"abcdefghij")}
    for batch in islice(task.batches(16, 1, without=held_out), 20):
        for row, begin in zip(batch.source.tolist(), batch.target_input[:, 0].tolist(), strict=True):
            symbols = tuple(names[token] for token in row if token in names)
            assert Question(symbols, names[begin]).pattern not in asked


@pytest.mark.parametrize("text", ["a -", "- a", "a b c", "", "a - - b c"])
def test_what_is_no_expression(text: str) -> None:
    with pytest.raises(InputError, match="is not an expression"):
        heads(text.split())


@pytest.mark.parametrize(("fewest", "most", "operands"), [(0, 3, 9), (3, 2, 9), (1, 5, 5), (1, 5, 27)])
def test_sizes_that_make_no_task(fewest: int, most: int, operands: int) -> None:
    with pytest.raises(ConfigurationError):
        Expressions(fewest, most, operands=operands)


def test_more_questions_than_leave_something_to_learn_from() -> None:
    with pytest.raises(ConfigurationError, match="at least half must remain"):
        Expressions(1, 1, operands=2).held_out(7, 0)
