"""An ONNX graph, written node by node.

`Graph` has the operations that a Transformer needs; each returns the name of its result. Matrices are float32, or 8-bit
integers: then a product rounds its input as it runs,

    x W^T ~ s_x s_w (q_x - z_x) (q_w - 128)^T,      s_w [out], z_x and s_x of the whole tensor x

(``DynamicQuantizeLinear`` and ``MatMulInteger``). The integers of W are unsigned with the zero point 128: with signed
ones, processors without VNNI, and so most browsers, saturate in sums of two products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import LayerNorm

from multihead.errors import InputError, require_package

OPSET = 17
"""The first with ``LayerNormalization``."""

IR_VERSION = 8
"""Of that opset."""

LARGEST = 2**31 - 1
"""Bytes of a file: the limit of its format."""

ZERO = 128
"""The integer of a weight of 0."""


def import_onnx() -> Any:
    """The package ``onnx``.

    Raises:
        MissingDependencyError: it is not installed.
    """
    require_package("onnx", "onnx", "writing an ONNX model")
    import onnx

    return onnx


class Graph:
    """A graph under construction.

    Args:
        name: of the graph.
        int8: whether matrices are 8-bit integers.
        outer: the graph around this one, if it is a branch: it holds the weights of both.

    Raises:
        MissingDependencyError: onnx is not installed.
    """

    def __init__(self, name: str, int8: bool = False, outer: Graph | None = None) -> None:
        self._onnx = import_onnx()
        self._name, self.int8 = name, int8
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._root: Graph = self if outer is None else outer._root
        self._tensors: dict[str, Any] = {}
        self._matrices: dict[str, str] = {}

    def input(self, name: str, shape: Sequence[str | int], kind: str = "INT64") -> str:
        """An input of the graph: INT64, FLOAT or BOOL."""
        self._inputs.append(self._info(name, kind, shape))
        return name

    def output(self, value: str, name: str, shape: Sequence[str | int]) -> None:
        """Make a float value an output of the graph."""
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name]))
        self._outputs.append(self._info(name, "FLOAT", shape))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node with one result; the name of the result."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """A node with several results; their names."""
        names = [f"{self._name}/{kind}_{len(self._nodes)}_{i}" for i in range(count)]
        self._nodes.append(self._onnx.helper.make_node(kind, list(inputs), names, **attributes))
        return names

    def ints(self, *values: int) -> str:
        """A list of integers."""
        return self._constant("ints_" + "_".join(map(str, values)), np.array(values, dtype=np.int64))

    def integer(self, value: int) -> str:
        """A single integer."""
        return self._constant(f"integer_{value}", np.array(value, dtype=np.int64))

    def number(self, value: float) -> str:
        """A single number."""
        return self._constant(f"number_{value!r}", np.array(value, dtype=np.float32))

    def weight(self, name: str, tensor: Tensor) -> str:
        """A weight that is float32 in any case."""
        return self._constant(name, tensor.detach().float().numpy())

    def look_up(self, ids: str, name: str, table: Tensor) -> str:
        """Rows of a matrix [entries, width]."""
        if not self.int8:
            return self.op("Gather", self.weight(name, table), ids)
        steps, scale = self._integers(name, table)
        rows = self.op("Cast", self.op("Gather", steps, ids), to=self._onnx.TensorProto.FLOAT)
        factor = self.op("Unsqueeze", self.op("Gather", scale, ids), self.ints(-1))
        return self.op("Mul", self.op("Sub", rows, self.number(float(ZERO))), factor)

    def linear(self, x: str, name: str, weight: Tensor, bias: Tensor | None) -> str:
        """x W^T + b for W [out, in]."""
        y = self._integer_product(x, name, weight) if self.int8 else self.op("MatMul", x, self._columns(name, weight))
        return y if bias is None else self.op("Add", y, self.weight(f"{name}.bias", bias))

    def norm(self, x: str, name: str, layer: LayerNorm) -> str:
        """Layer norm over the last axis."""
        inputs = (x, self.weight(f"{name}.weight", layer.weight), self.weight(f"{name}.bias", layer.bias))
        return self.op("LayerNormalization", *inputs, axis=-1, epsilon=layer.eps)

    def branch(self) -> Graph:
        """A graph for `choose`, which may use the values of this one."""
        return Graph(f"{self._name}/branch_{len(self._nodes)}", self.int8, self)

    def choose(self, condition: str, yes: Sequence[str], other: Graph, no: Sequence[str]) -> list[str]:
        """The values ``yes`` where the condition holds, otherwise ``no`` of the other graph, computed only then."""
        branches = []
        for graph, values in ((self.branch(), yes), (other, no)):
            names = [graph.op("Identity", value) for value in values]
            shapes = [
                self._onnx.helper.make_tensor_value_info(n, self._onnx.TensorProto.FLOAT, [None] * 4) for n in names
            ]
            branches.append(self._onnx.helper.make_graph(graph._nodes, graph._name, [], shapes))
        return self.ops("If", len(yes), condition, then_branch=branches[0], else_branch=branches[1])

    def content(self, producer: str) -> bytes:
        """The model as a file.

        Raises:
            InputError: it is larger than such a file can be.
        """
        onnx = self._onnx
        size = sum(len(tensor.raw_data) for tensor in self._tensors.values())
        if size > LARGEST:
            raise InputError(
                f"the weights have {size / 1e9:.1f} GB, but an ONNX file has at most 2 GB: quantize to int8"
            )
        weights = list(self._tensors.values())
        graph = onnx.helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, weights)
        opsets = [onnx.helper.make_opsetid("", OPSET)]
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name=producer)
        onnx.checker.check_model(model)
        content: bytes = model.SerializeToString()
        return content

    def _info(self, name: str, kind: str, shape: Sequence[str | int]) -> Any:
        return self._onnx.helper.make_tensor_value_info(name, getattr(self._onnx.TensorProto, kind), list(shape))

    def _constant(self, name: str, array: NDArray[Any]) -> str:
        tensors = self._root._tensors
        if name not in tensors:
            tensors[name] = self._onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        return name

    def _columns(self, name: str, weight: Tensor) -> str:
        """W^T; runtimes transpose a constant once, when they load the model."""
        return self._transposed(self.weight(name, weight))

    def _transposed(self, name: str) -> str:
        root = self._root
        if name not in root._matrices:
            root._matrices[name] = root.op("Transpose", name, perm=[1, 0])
        return root._matrices[name]

    def _integers(self, name: str, weight: Tensor) -> tuple[str, str]:
        """q_w [out, in] and s_w [out], the largest magnitude of a row being 127 steps."""
        array = weight.detach().float().numpy()
        largest = np.abs(array).max(axis=1)
        scale = np.where(largest > 0, largest, 1.0).astype(np.float32) / np.float32(127)
        steps = (np.rint(array / scale[:, None]) + ZERO).astype(np.uint8)
        return self._constant(f"{name}.steps", steps), self._constant(f"{name}.scale", scale)

    def _integer_product(self, x: str, name: str, weight: Tensor) -> str:
        steps, scale = self._integers(name, weight)
        rounded, factor, zero = self.ops("DynamicQuantizeLinear", 3, x)
        middle = self._constant("zero_point", np.array(ZERO, dtype=np.uint8))
        product = self.op("MatMulInteger", rounded, self._transposed(steps), zero, middle)
        sums = self.op("Cast", product, to=self._onnx.TensorProto.FLOAT)
        return self.op("Mul", sums, self.op("Mul", factor, scale))
