"""A sentence splitter for Argos Translate, as a small ONNX model.

Argos Translate cuts each paragraph into sentences with MiniSBD, whose models it downloads unless the package has one.
This one needs no download and no training. It is a rule as a network of comparisons on characters x_t:

    x_t ends a sentence    if x_t is one of 。！？ or
                           x_t is one of . ! ? …, perhaps with a closing quote or bracket behind it, x_{t+1} is a
                           space, and a capital letter follows, perhaps after an opening quote; but not if x_t is a
                           period after a digit (3. Mai) or after a single letter (z. B., J. Smith)

MiniSBD gives the model an id and features of every character, and reads the class of each from the result: 2 ends a
sentence, 0 goes on. The last character of a paragraph always ends one.
"""

from __future__ import annotations

import json
from typing import Any

from multihead.errors import require_package

_CLASSES: dict[str, str] = {
    "period": ".",
    "hard": "!?…",
    "wide": "。！？",
    "space": " ",
    "closing": "\"'”“’»)]",
    "opening": "\"'“„‘«([¿¡",
    "digit": "0123456789",
}
_REACH = 3
"""Characters before and after that the rule looks at."""


def sentence_model(language: str) -> bytes:
    """The ONNX model.

    Args:
        language: code of the source language, for the model's description.

    Raises:
        MissingDependencyError: the package onnx is not installed.
    """
    require_package("onnx", "argos", "an Argos Translate package")
    import onnx

    characters = sorted(set("".join(_CLASSES.values())))
    ids = {"<PAD>": 0, "<UNK>": 1, **{character: number for number, character in enumerate(characters, 2)}}
    helper, kinds = onnx.helper, onnx.TensorProto
    graph = _Graph(onnx)
    text, capital = graph.inputs(ids)
    ends = graph.rule(text, capital)
    graph.outputs(ends)
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "sentence ends",
            [
                helper.make_tensor_value_info("units", kinds.INT64, ["batch", "time"]),
                helper.make_tensor_value_info("features", kinds.FLOAT, ["batch", "time", 1]),
            ],
            [helper.make_tensor_value_info("classes", kinds.FLOAT, ["batch", "time", 3])],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    vocabulary = {"lang": "", "idx": 0, "cutoff": 0, "lower": False, "_unit2id": ids, "_id2unit": list(ids)}
    config = {"feat_funcs": ["capitalized"], "max_seqlen": 100000}
    described = {"lang_code": language, "config": json.dumps(config), "vocab": json.dumps(vocabulary)}
    helper.set_model_props(model, described)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


class _Graph:
    """Nodes and constants of the model; every intermediate value is a boolean for each character.

    Args:
        onnx: the module.
    """

    def __init__(self, onnx: Any) -> None:
        self._onnx, self._helper = onnx, onnx.helper
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._classes: dict[str, str] = {}

    def inputs(self, ids: dict[str, int]) -> tuple[dict[str, str], str]:
        """For each class of characters whether a character is in it; and whether it is a capital letter."""
        kinds = self._onnx.TensorProto
        for name, characters in _CLASSES.items():
            members = {ids[character] for character in characters}
            table = self._constant(kinds.BOOL, [len(ids)], [i in members for i in range(len(ids))])
            self._classes[name] = self._node("Gather", table, "units")
        half, last = self._constant(kinds.FLOAT, [], [0.5]), self._constant(kinds.INT64, [1], [2])
        return self._classes, self._node("Greater", self._node("Squeeze", "features", last), half)

    def rule(self, text: dict[str, str], capital: str) -> str:
        """Whether a sentence ends with a character."""
        space, period = text["space"], text["period"]
        start = self._or(self._near(capital, 2), self._and(self._near(text["opening"], 2), self._near(capital, 3)))
        kept = self._or(
            self._near(text["digit"], -1),
            self._or(self._near(space, -2), self._or(self._near(period, -2), self._is_first(-2, text))),
        )
        mark = self._or(text["hard"], self._and(period, self._node("Not", kept)))
        closed = self._and(text["closing"], self._near(mark, -1))
        before = self._and(self._or(mark, closed), self._and(self._near(space, 1), start))
        return self._or(text["wide"], before)

    def outputs(self, ends: str) -> None:
        """Scores of the classes 0, 1 and 2: 2 wins where a sentence ends, 0 elsewhere."""
        kinds = self._onnx.TensorProto
        axis, scores = self._constant(kinds.INT64, [1], [2]), self._constant(kinds.FLOAT, [3], [1.0, 0.0, 0.0])
        gain = self._constant(kinds.FLOAT, [3], [0.0, 0.0, 2.0])
        number = self._node("Cast", self._node("Unsqueeze", ends, axis), to=kinds.FLOAT)
        self._node("Add", self._node("Mul", number, gain), scores, name="classes")

    def _is_first(self, offset: int, text: dict[str, str]) -> str:
        """Whether the text does not reach that far back."""
        anything = self._node("Or", text["space"], self._node("Not", text["space"]))
        return self._node("Not", self._near(anything, offset))

    def _near(self, value: str, offset: int) -> str:
        """The value of the character ``offset`` places later; False beyond the ends."""
        kinds = self._onnx.TensorProto
        pads = self._constant(kinds.INT64, [4], [0, _REACH, 0, _REACH])
        number = self._node("Pad", self._node("Cast", value, to=kinds.FLOAT), pads)
        start = self._constant(kinds.INT64, [1], [_REACH + offset])
        stop = self._constant(kinds.INT64, [1], [offset - _REACH if offset < _REACH else 2**31])
        axis = self._constant(kinds.INT64, [1], [1])
        return self._node("Cast", self._node("Slice", number, start, stop, axis), to=kinds.BOOL)

    def _and(self, one: str, other: str) -> str:
        return self._node("And", one, other)

    def _or(self, one: str, other: str) -> str:
        return self._node("Or", one, other)

    def _node(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        output = name or f"value_{len(self.nodes)}"
        self.nodes.append(self._helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def _constant(self, kind: int, shape: list[int], values: list[Any]) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(self._helper.make_tensor(name, kind, shape, values))
        return name
