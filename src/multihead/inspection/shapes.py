"""The way of tensors through a module: what each part was given, what it made of it, and of which shapes.

`trace` runs any module once and prints what happened, in order; inside of multi-head attention it goes on step by step:
query, W_q, Q, key, W_k, K, value, W_v, V, the heads side by side, W_o, output. The words are those of
`multihead.inspection.attention_steps`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from multihead.attention import Mask, MultiHeadAttention
from multihead.attention.multihead import PackedLinear
from multihead.errors import InputError
from multihead.inspection.attention_steps import (
    AttentionStep,
    Shape,
    describe_module,
    format_shape,
    mixing_steps,
    projection_steps,
    torch_steps,
)


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
        given = ", ".join(
            f"{name} {format_shape(shape)}" if named else format_shape(shape) for name, shape in self.inputs
        )
        own = ", ".join(f"{name} {format_shape(shape)}" for name, shape in self.parameters)
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


def trace(module: nn.Module, *args: Any, **kwargs: Any) -> Trace:
    """Runs ``module(*args, **kwargs)`` once and tells what happened.

    It runs in evaluation mode and without gradients. Nothing is left behind: hooks are removed, every part is put back
    into the mode that it was in, and PyTorch's random numbers go on as if nothing had been, also after an error.

    Raises:
        InputError: not a module.
        Exception: whatever the module raises.
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"expected a module (torch.nn.Module) to run, got {type(module).__name__}")
    recorder = _Recorder(module)
    devices = sorted({p.device.index or 0 for p in module.parameters() if p.is_cuda})
    with torch.no_grad(), torch.random.fork_rng(devices), _evaluating(module), recorder.attached():
        module(*args, **kwargs)
    return Trace(tuple(recorder.rows))


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode, and back to what each part was in."""
    before = [(part, part.training) for part in module.modules()]
    try:
        module.eval()
        yield
    finally:
        for part, training in before:
            part.training = training


@dataclass
class _Frame:
    """A module that is being called."""

    module: nn.Module
    path: str
    row: int
    depth: int
    inside: list[str] = field(default_factory=list)
    """Parts of it that were not called themselves, while parts of theirs were: their rows stand already."""


class _Recorder:
    """Writes rows while a module runs."""

    def __init__(self, module: nn.Module) -> None:
        self.rows: list[Row] = []
        self._stack: list[_Frame] = []
        self._root = module
        self._parts = dict(module.named_modules(remove_duplicate=False))
        self._paths: dict[nn.Module, list[str]] = {}
        for path, part in self._parts.items():
            self._paths.setdefault(part, []).append(path)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Hooks on every part, for as long as this lasts."""
        with ExitStack() as hooks:
            for part in self._paths:
                for handle in (
                    part.register_forward_pre_hook(self._enter, with_kwargs=True),
                    part.register_forward_hook(self._leave, with_kwargs=True),
                ):
                    hooks.callback(handle.remove)
            yield

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._stack:
            path, depth = "", 0
        else:
            path = self._path_of(module)
            depth = self._announce(self._stack[-1], path)
        row = Row(
            depth,
            self._local_name(path),
            describe_module(module),
            tuple((name, _shape(x)) for name, x in _named(module, args, kwargs)),
            parameters=tuple((name, _shape(p)) for name, p in module.named_parameters(recurse=False)),
        )
        self.rows.append(row)
        self._stack.append(_Frame(module, path, len(self.rows) - 1, depth))

    def _leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        frame = self._stack.pop()
        while frame.module is not module:  # something inside raised an exception, which the module caught
            frame = self._stack.pop()
        row = self.rows[frame.row]
        row = self.rows[frame.row] = replace(row, outputs=tuple(_shape(x) for x in _tensors(output)))
        owner = self._parts[frame.path.rpartition(".")[0]]
        if isinstance(module, PackedLinear) and isinstance(owner, MultiHeadAttention):
            first = _bound(module, args, kwargs).get("first", 0)
            steps = projection_steps(owner, module, first, row.inputs[0][1], row.outputs)
            self._exchange(frame, steps)
        elif isinstance(owner, MultiHeadAttention) and module is owner.output_projection:
            width = owner.key_width // owner.heads
            steps = mixing_steps("output_projection", owner.output_projection, width, row.inputs[0][1], row.outputs[0])
            self._exchange(frame, steps)
        elif isinstance(module, nn.MultiheadAttention):
            inputs = dict(_named(module, args, kwargs))
            if {"query", "key", "value"} <= inputs.keys():
                del self.rows[frame.row + 1 :]  # its output projection, if that was called: the steps have it
                steps = torch_steps(module, inputs, row.outputs[0])
                self.rows += [_step_row(frame.depth + 1, step) for step in steps]
                self.rows[frame.row] = replace(row, parameters=())

    def _exchange(self, frame: _Frame, steps: list[AttentionStep]) -> None:
        """Puts the steps where the row of the frame stands, which is the last one."""
        self.rows[frame.row :] = [_step_row(frame.depth, step) for step in steps]

    def _path_of(self, module: nn.Module) -> str:
        """Where a part stands; a shared one where the module being called has it, if it does."""
        paths = self._paths[module]
        above = self._stack[-1].path
        return next((path for path in paths if not above or path.startswith(f"{above}.")), paths[0])

    def _announce(self, above: _Frame, path: str) -> int:
        """Rows for the parts between the module being called and ``path``; the depth of what comes there."""
        between = [name for name in _owners(path) if _is_below(name, above.path) and not self._is_list(name)]
        kept = 0
        while kept < min(len(between), len(above.inside)) and between[kept] == above.inside[kept]:
            kept += 1
        for place, name in enumerate(between[kept:], start=kept):
            self.rows.append(Row(above.depth + 1 + place, self._local_name(name), describe_module(self._parts[name])))
        above.inside = between
        return above.depth + 1 + len(between)

    def _is_list(self, path: str) -> bool:
        return isinstance(self._parts[path], (nn.ModuleList, nn.ModuleDict))

    def _local_name(self, path: str) -> str:
        """The name that its owner has for a part; a list's own name stands before its number."""
        if not path:
            return type(self._root).__name__
        owner, _, name = path.rpartition(".")
        return f"{self._local_name(owner)}.{name}" if owner and self._is_list(owner) else name


def _step_row(depth: int, step: AttentionStep) -> Row:
    return Row(depth, step.name, step.what, outputs=(step.shape,))


def _owners(path: str) -> list[str]:
    """Everything that a path stands in, outermost first: ``a`` and ``a.b`` for ``a.b.c``."""
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _is_below(path: str, above: str) -> bool:
    return not above or path.startswith(f"{above}.")


# --------------------------------------------------------------------------------------- tensors among arguments


def _bound(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call under their names, as far as they can be told."""
    try:
        return dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return {**{str(place): value for place, value in enumerate(args)}, **kwargs}


def _named(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """The tensors that a call was given, each with the name of its argument."""
    return [(name, x) for name, value in _bound(module, args, kwargs).items() for x in _tensors(value)]


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in a value, however deep; a mask is no input but a condition."""
    if isinstance(value, Tensor):
        if not value.is_nested:  # which has no one shape
            yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one)
    elif is_dataclass(value) and not isinstance(value, (Mask, type)):
        for item in fields(value):
            yield from _tensors(getattr(value, item.name))


def _shape(x: Tensor) -> Shape:
    return tuple(x.shape)


# --------------------------------------------------------------------------------------- the table


def _show_all(shapes: Sequence[Shape]) -> str:
    """Several; equal neighbours once, with their number."""
    counted = ((shape, len(list(equal))) for shape, equal in groupby(shapes))
    return ", ".join(format_shape(shape) + f" x {count}" * (count > 1) for shape, count in counted)


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
