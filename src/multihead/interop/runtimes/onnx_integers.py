"""Integer products of ONNX graphs: in float32, and each one checked.

A graph with 8-bit integers rounds the inputs of its products as it runs, so its probabilities differ from those of its
own weights by more than any useful bound. Two comparisons replace that one, and each has a bound of its own:

    in_float32      the graph with its integers times their scales, and inputs that are not rounded: its probabilities
                    are those of the rounded weights
    check_products  each product x W^T of the graph as it is, against the same product in float32. DynamicQuantizeLinear
                    rounds x to steps s_x = (max(x, 0) - min(x, 0)) / 255 and the zero point to one of them, so that

                        |y_o - sum_i W_oi x_i|  <=  s_x sum_i |W_oi|        (and the rounding of float32)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multihead.interop.formats.onnx_graph import ZERO, import_onnx

_ROUNDING = 1e-5
"""Of float32, relative to the sum of magnitudes."""


def in_float32(content: bytes) -> bytes:
    """The graph with float32 products of the same weights.

    Raises:
        MissingDependencyError: onnx is not installed.
    """
    onnx = import_onnx()
    model = onnx.load_from_string(content)
    _unround(onnx, model.graph)
    rewritten: bytes = model.SerializeToString()
    return rewritten


def _unround(onnx: Any, graph: Any) -> None:
    """Replace the nodes of a graph, and of its branches."""
    make, floating = onnx.helper.make_node, onnx.TensorProto.FLOAT
    nodes = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _unround(onnx, attribute.g)
        if node.op_type == "DynamicQuantizeLinear":
            rounded, factor, _ = node.output
            one = onnx.numpy_helper.from_array(np.array(1, dtype=np.float32))
            nodes += [make("Identity", [node.input[0]], [rounded]), make("Constant", [], [factor], value=one)]
        elif node.op_type == "MatMulInteger":
            x, weights, _, middle = node.input
            (product,) = node.output
            steps = [f"{product}/{part}" for part in ("weights", "middle", "steps")]
            nodes += [make("Cast", [weights], [steps[0]], to=floating), make("Cast", [middle], [steps[1]], to=floating)]
            nodes += [make("Sub", steps[:2], [steps[2]]), make("MatMul", [x, steps[2]], [product])]
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


@dataclass(frozen=True)
class Product:
    """A product of a graph: the names of its input and its result, and its weights [in, out] in float32."""

    name: str
    x: str
    y: str
    weights: NDArray[np.float32]


def with_products(content: bytes) -> tuple[bytes, list[Product]]:
    """The graph with inputs and results of its products as further outputs, without those in branches."""
    onnx = import_onnx()
    model = onnx.load_from_string(content)
    graph = model.graph
    made_by = {name: node for node in graph.node for name in node.output}
    used_by = {name: node for node in graph.node for name in node.input}
    tensors = {one.name: one for one in graph.initializer}
    products = []
    for node in graph.node:
        if node.op_type == "MatMulInteger":
            x = made_by[node.input[0]].input[0]
            y = used_by[used_by[node.output[0]].output[0]].output[0]  # through Cast to Mul
            name = made_by[node.input[1]].input[0].removesuffix(".steps")
            steps, scale = (onnx.numpy_helper.to_array(tensors[f"{name}.{part}"]) for part in ("steps", "scale"))
            weights = (steps.astype(np.float32) - np.float32(ZERO)) * scale[:, None]
            products.append(Product(name, x, y, weights.T))
    known = {one.name for one in (*graph.input, *graph.output)}
    names = dict.fromkeys(name for product in products for name in (product.x, product.y) if name not in known)
    graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    return model.SerializeToString(), products


def check_products(products: list[Product], values: dict[str, NDArray[Any]]) -> Iterator[str]:
    """What is wrong with the products of a run, in words."""
    for product in products:
        x, y = values[product.x].astype(np.float64), values[product.y]
        step = (max(x.max(), 0.0) - min(x.min(), 0.0)) / 255
        sizes = np.abs(product.weights).sum(0)
        allowed = step * sizes + _ROUNDING * (np.abs(x) @ np.abs(product.weights)).max()
        gaps = np.abs(y - x @ product.weights.astype(np.float64)).reshape(-1, y.shape[-1]).max(0)
        worst = int((gaps - allowed).argmax())
        if not gaps[worst] <= allowed[worst]:
            yield (
                f"the integer product with {product.name} is off by {gaps[worst]:.3g} in column {worst}, and rounding "
                f"explains {allowed[worst]:.3g}"
            )
