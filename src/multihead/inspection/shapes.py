"""Trace the shapes of tensors through a module.

`trace` runs a module once and records its parts in order, with the shapes of their inputs, outputs and parameters.
Inside multi-head attention it records every step: query, W_q, Q, key, W_k, K, value, W_v, V, the concatenated heads,
W_o, output (`inspection.attention_steps`).
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
    """A module call, or a step inside an attention."""

    depth: int
    """Nesting depth; 0 is the traced module."""
    name: str
    """Name of the module within its parent."""
    what: str
    """Description of what happened."""
    inputs: tuple[tuple[str, Shape], ...] = ()
    """Argument name and shape of each input tensor."""
    outputs: tuple[Shape, ...] = ()
    """Shape of each output tensor; empty if only parts of the module were called."""
    parameters: tuple[tuple[str, Shape], ...] = ()
    """The module's own parameters, without those of its parts."""

    @property
    def sentence(self) -> str:
        """The description with inputs and parameters."""
        named = len(self.inputs) > 1
        given = ", ".join(
            f"{name} {format_shape(shape)}" if named else format_shape(shape) for name, shape in self.inputs
        )
        own = ", ".join(f"{name} {format_shape(shape)}" for name, shape in self.parameters)
        return "; ".join([self.what, *([f"from {given}"] if given else []), *([own] if own else [])])


@dataclass(frozen=True)
class Trace:
    """The rows of one call of a module, in order; ``str()`` returns the table."""

    rows: tuple[Row, ...]

    def __str__(self) -> str:
        """A table of name, shape, and what happened; equal neighbors, such as layers, share a line."""
        lines = [("name", "shape", "what happened"), *_lines(_tree(list(self.rows)))]
        widths = [max(len(line[column]) for line in lines) for column in (0, 1)]
        return "\n".join(f"{name:<{widths[0]}}  {shape:<{widths[1]}}  {what}".rstrip() for name, shape, what in lines)


def trace(module: nn.Module, *args: Any, **kwargs: Any) -> Trace:
    """Run ``module(*args, **kwargs)`` once and record what happens.

    The module runs in evaluation mode without gradients. Afterwards, even after an error, all hooks are removed, and
    training modes and PyTorch's random state are restored.

    Raises:
        InputError: ``module`` is not a module.
        Exception: whatever the module raises.
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"expected a module (torch.nn.Module) to run, got {type(module).__name__}")
    recorder = _Recorder(module)
    devices = sorted({p.device.index or 0 for p in module.parameters() if p.is_cuda})
    random_state = torch.random.fork_rng(devices)
    with torch.no_grad(), random_state, _evaluation_mode(module), _no_fast_path(), recorder.attached():
        module(*args, **kwargs)
    return Trace(tuple(recorder.rows))


@contextmanager
def _evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode; restores the mode of each part."""
    before = [(part, part.training) for part in module.modules()]
    try:
        module.eval()
        yield
    finally:
        for part, training in before:
            part.training = training


@contextmanager
def _no_fast_path() -> Iterator[None]:
    """Without PyTorch's fast path, which makes nested tensors of padded ones: those have no shape to record."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@dataclass
class _Frame:
    """A module call in progress."""

    module: nn.Module
    path: str
    row: int
    depth: int
    open_parts: list[str] = field(default_factory=list)
    """Parts that have rows already because parts of theirs were called, though they were not called themselves."""


class _Recorder:
    """Records rows while a module runs, through hooks."""

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
        """Attach hooks to every part, for the duration of the context."""
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
            depth = self._open_parts(self._stack[-1], path)
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
        while frame.module is not module:  # a part raised an exception that its parent caught
            frame = self._stack.pop()
        row = self.rows[frame.row]
        row = self.rows[frame.row] = replace(row, outputs=tuple(_shape(x) for x in _tensors(output)))
        owner = self._parts[frame.path.rpartition(".")[0]]
        if isinstance(module, PackedLinear) and isinstance(owner, MultiHeadAttention):
            first = _bound(module, args, kwargs).get("first", 0)
            steps = projection_steps(owner, module, first, row.inputs[0][1], row.outputs)
            self._replace_row(frame, steps)
        elif isinstance(owner, MultiHeadAttention) and module is owner.output_projection:
            width = owner.key_width // owner.heads
            steps = mixing_steps("output_projection", owner.output_projection, width, row.inputs[0][1], row.outputs[0])
            self._replace_row(frame, steps)
        elif isinstance(module, nn.MultiheadAttention):
            inputs = dict(_named(module, args, kwargs))
            if {"query", "key", "value"} <= inputs.keys():
                del self.rows[frame.row + 1 :]  # the row of its output projection, which the steps include
                steps = torch_steps(module, inputs, row.outputs[0])
                self.rows += [_step_row(frame.depth + 1, step) for step in steps]
                self.rows[frame.row] = replace(row, parameters=())

    def _replace_row(self, frame: _Frame, steps: list[AttentionStep]) -> None:
        """Replace the row of a frame, which is the last one, by steps."""
        self.rows[frame.row :] = [_step_row(frame.depth, step) for step in steps]

    def _path_of(self, module: nn.Module) -> str:
        """The path of a part; for a shared part, preferably below the module being called."""
        paths = self._paths[module]
        above = self._stack[-1].path
        return next((path for path in paths if not above or path.startswith(f"{above}.")), paths[0])

    def _open_parts(self, above: _Frame, path: str) -> int:
        """Add rows for the parts between the module being called and ``path``; returns the depth of ``path``."""
        between = [name for name in _owners(path) if _is_below(name, above.path) and not self._is_list(name)]
        kept = 0
        while kept < min(len(between), len(above.open_parts)) and between[kept] == above.open_parts[kept]:
            kept += 1
        for place, name in enumerate(between[kept:], start=kept):
            self.rows.append(Row(above.depth + 1 + place, self._local_name(name), describe_module(self._parts[name])))
        above.open_parts = between
        return above.depth + 1 + len(between)

    def _is_list(self, path: str) -> bool:
        return isinstance(self._parts[path], (nn.ModuleList, nn.ModuleDict))

    def _local_name(self, path: str) -> str:
        """The name of a part within its parent; for an item of a list, the list's name and its index."""
        if not path:
            return type(self._root).__name__
        owner, _, name = path.rpartition(".")
        return f"{self._local_name(owner)}.{name}" if owner and self._is_list(owner) else name


def _step_row(depth: int, step: AttentionStep) -> Row:
    return Row(depth, step.name, step.what, outputs=(step.shape,))


def _owners(path: str) -> list[str]:
    """The paths of all parents, outermost first: ``a`` and ``a.b`` for ``a.b.c``."""
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _is_below(path: str, above: str) -> bool:
    return not above or path.startswith(f"{above}.")


# --------------------------------------------------------------------------------------- tensors in arguments


def _bound(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, as far as they can be bound."""
    try:
        return dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return {**{str(place): value for place, value in enumerate(args)}, **kwargs}


def _named(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """The tensors among the arguments, each with the name of its argument."""
    return [(name, x) for name, value in _bound(module, args, kwargs).items() for x in _tensors(value)]


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in a value, however nested; masks do not count as inputs."""
    if isinstance(value, Tensor):
        if not value.is_nested:  # nested tensors have no single shape
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


def _format_shapes(shapes: Sequence[Shape]) -> str:
    """Several shapes; equal neighbors are written once, with their number."""
    counted = ((shape, len(list(equal))) for shape, equal in groupby(shapes))
    return ", ".join(format_shape(shape) + f" x {count}" * (count > 1) for shape, count in counted)


@dataclass(frozen=True)
class _Node:
    """A row and the rows below it."""

    row: Row
    children: tuple[_Node, ...]


def _tree(rows: list[Row]) -> list[_Node]:
    """Group rows below their parents."""
    nodes: list[_Node] = []
    while rows:
        stop = next((place for place, row in enumerate(rows[1:], 1) if row.depth <= rows[0].depth), len(rows))
        nodes.append(_Node(rows[0], tuple(_tree(rows[1:stop]))))
        rows = rows[stop:]
    return nodes


def _lines(nodes: list[_Node]) -> Iterator[tuple[str, str, str]]:
    """Name, shape and description of each row; equal numbered neighbors share a line."""
    place = 0
    groups = _groups(nodes)
    while place < len(groups):
        first = groups[place]
        for node in first:
            row = node.row
            yield "  " * row.depth + row.name, _format_shapes(row.outputs), row.sentence
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
    """Group neighbors with the same name: parts of a decoder layer run before the layer itself."""
    groups: list[list[_Node]] = []
    for node in nodes:
        if groups and groups[-1][-1].row.name == node.row.name:
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _same(one: list[_Node], other: list[_Node]) -> bool:
    """Whether the same happened in two members of a list."""
    stems = [group[0].row.name.rpartition(".") for group in (one, other)]
    if stems[0][0] != stems[1][0] or not (stems[0][2].isdecimal() and stems[1][2].isdecimal()):
        return False
    return [_without_name(node) for node in one] == [_without_name(node) for node in other]


def _without_name(node: _Node) -> _Node:
    return replace(node, row=replace(node.row, name=""))
