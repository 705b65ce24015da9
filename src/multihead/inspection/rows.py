"""What a trace is made of, and how it is printed: a table in which parts that repeat one another share a line.

Rows are written by `multihead.inspection.shapes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """One thing that happened: a module was called, or a step inside an attention."""

    depth: int
    """How far inside: 0 is the module that was traced."""
    name: str
    """As its owner calls it."""
    what: str
    """What happened, in words."""
    inputs: tuple[tuple[str, Shape], ...] = ()
    """Each tensor that it was given: the argument's name and the shape."""
    outputs: tuple[Shape, ...] = ()
    """Each tensor that it gave; empty where only parts of the module were called."""
    parameters: tuple[tuple[str, Shape], ...] = ()
    """Its own parameters, not those of its parts."""

    @property
    def sentence(self) -> str:
        """`what`, where it came from, and the parameters."""
        named = len(self.inputs) > 1
        given = ", ".join(f"{name} {show(shape)}" if named else show(shape) for name, shape in self.inputs)
        own = ", ".join(f"{name} {show(shape)}" for name, shape in self.parameters)
        return "; ".join([self.what, *([f"from {given}"] if given else []), *([own] if own else [])])


@dataclass(frozen=True)
class Trace:
    """What happened in one call of a module, in order. ``str()`` is the table."""

    rows: tuple[Row, ...]

    def __str__(self) -> str:
        """Name, shape, what happened; parts that repeat the one before, such as equal layers, share a line."""
        lines = [("name", "shape", "what happened"), *_lines(_tree(list(self.rows)))]
        widths = [max(len(line[column]) for line in lines) for column in (0, 1)]
        return "\n".join(f"{name:<{widths[0]}}  {shape:<{widths[1]}}  {what}".rstrip() for name, shape, what in lines)


def show(shape: Shape) -> str:
    """A shape as people write it: ``[2, 5, 32]``."""
    return str(list(shape))


def _show_all(shapes: Sequence[Shape]) -> str:
    """Several; equal neighbours once, with their number."""
    counted = ((shape, len(list(equal))) for shape, equal in groupby(shapes))
    return ", ".join(show(shape) + f" x {count}" * (count > 1) for shape, count in counted)


@dataclass(frozen=True)
class _Node:
    """A row and what happened inside."""

    row: Row
    children: tuple[_Node, ...]


def _tree(rows: list[Row]) -> list[_Node]:
    """Rows under the row that they belong to."""
    nodes: list[_Node] = []
    while rows:
        stop = next((place for place, row in enumerate(rows[1:], 1) if row.depth <= rows[0].depth), len(rows))
        nodes.append(_Node(rows[0], tuple(_tree(rows[1:stop]))))
        rows = rows[stop:]
    return nodes


def _lines(nodes: list[_Node]) -> Iterator[tuple[str, str, str]]:
    """Name, shape and sentence of each row; numbered neighbours in which the same happened share a line."""
    place = 0
    groups = _groups(nodes)
    while place < len(groups):
        first = groups[place]
        for node in first:
            row = node.row
            yield "  " * row.depth + row.name, _show_all(row.outputs), row.sentence
            yield from _lines(list(node.children))
        last = place
        while last + 1 < len(groups) and _same(first, groups[last + 1]):
            last += 1
        if last > place:
            name, begin = first[0].row.name, groups[place + 1][0].row.name
            end = groups[last][0].row.name
            names = begin if begin == end else f"{begin} to {end.rpartition('.')[2]}"
            yield "  " * first[0].row.depth + names, "", f"as {name}"
        place = last + 1


def _groups(nodes: list[_Node]) -> list[list[_Node]]:
    """Neighbours of one name together: parts of a decoder layer run before it does."""
    groups: list[list[_Node]] = []
    for node in nodes:
        if groups and groups[-1][-1].row.name == node.row.name:
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _same(one: list[_Node], other: list[_Node]) -> bool:
    """Whether the same happened in both, which are members of one list."""
    stems = [group[0].row.name.rpartition(".") for group in (one, other)]
    if stems[0][0] != stems[1][0] or not (stems[0][2].isdecimal() and stems[1][2].isdecimal()):
        return False
    return [_without_name(node) for node in one] == [_without_name(node) for node in other]


def _without_name(node: _Node) -> _Node:
    return replace(node, row=replace(node.row, name=""))
