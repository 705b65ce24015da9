"""onnxruntime as the other side of a certificate.

It runs encoder and decoders of a folder step by step, with the keys and values of earlier steps. onnxruntime has no
search; ours searches the graphs as it searches any `multihead.decoding.stepper.Stepper`, by our own rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from multihead.decoding.beam import beam_search
from multihead.decoding.greedy import greedy_search
from multihead.decoding.search import Search, Symbols
from multihead.decoding.task import SearchTask
from multihead.errors import MultiheadError, require_package
from multihead.interop.formats.onnx import ENCODER, FIRST, FOLDER, MERGED, WITH_PAST, file_name
from multihead.interop.formats.parts import TranslatorParts
from multihead.interop.formats.transformers import longest_of
from multihead.interop.runtimes import Rules
from multihead.interop.runtimes.batches import batches, chosen, pad
from multihead.interop.runtimes.onnx_integers import check_products, in_float32, with_products

Arrays = dict[str, NDArray[Any]]

_CHECKED = 8
"""Sentences on which integer products are checked."""


@dataclass(frozen=True)
class Past:
    """The state of a search: per row, the source and the keys and values of all steps, by the names of the inputs."""

    states: NDArray[np.float32]
    mask: NDArray[np.int64]
    values: Arrays

    @property
    def rows(self) -> int:
        """Number of hypotheses."""
        return len(self.states)

    def select(self, rows: Tensor) -> Past:
        """The state of these rows."""
        index = rows.numpy()
        return Past(self.states[index], self.mask[index], {name: one[index] for name, one in self.values.items()})

    def join(self, other: Past) -> Past:
        """Not used by the searches here: graphs have one position for all rows."""
        raise MultiheadError(f"rows of {self.rows} and {other.rows} hypotheses cannot be joined in an ONNX graph")


class OnnxStepper:
    """The graphs of a folder, as searches step them.

    Args:
        folder: written by `multihead.interop.formats.onnx`.
        quantization: of its files.
        in_float: multiply integers by their scales first, so that inputs are not rounded (`onnx_integers`).
        merged: run the merged decoder instead of the two others.

    Raises:
        MissingDependencyError: onnxruntime is not installed.
    """

    def __init__(
        self, folder: Path, quantization: str = "float32", merged: bool = False, in_float: bool = False
    ) -> None:
        require_package("onnxruntime", "onnx", "running an ONNX model")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.version, self._merged = str(onnxruntime.__version__), merged

        def load(name: str) -> Any:
            path = folder / FOLDER / file_name(name, quantization)
            model = in_float32(path.read_bytes()) if in_float else path
            return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

        self._encoder = load(ENCODER)
        self._first = load(MERGED if merged else FIRST)
        self._next = self._first if merged else load(WITH_PAST)

    def start(self, source: Tensor, lengths: Tensor) -> Past:
        """Encode the sources."""
        mask = (torch.arange(source.shape[1]) < lengths[:, None]).long().numpy()
        (states,) = self._encoder.run(None, {"input_ids": source.numpy(), "attention_mask": mask})
        return Past(states, mask, {})

    def step(self, tokens: Tensor, state: Past) -> tuple[Tensor, Past]:
        """One more token of each row."""
        logits, following = self.run(tokens[:, None], state)
        return logits[:, -1].log_softmax(-1), following

    def run(self, tokens: Tensor, state: Past) -> tuple[Tensor, Past]:
        """The logits after each of some tokens [rows, time], and the state behind them."""
        session = self._next if state.values else self._first
        feeds: Arrays = {"input_ids": tokens.numpy(), "encoder_attention_mask": state.mask, **state.values}
        if self._merged:
            feeds["use_cache_branch"] = np.array([bool(state.values)])
            if not state.values:
                feeds |= self._empty_past(len(tokens))
        if session is self._first:
            feeds["encoder_hidden_states"] = state.states
        names = [output.name for output in session.get_outputs()]
        found = dict(zip(names, session.run(names, feeds), strict=True))
        logits = torch.from_numpy(found.pop("logits"))
        values = {name.replace("present", "past_key_values"): value for name, value in found.items()}
        return logits, Past(state.states, state.mask, state.values | values)

    def _empty_past(self, rows: int) -> Arrays:
        """A past without positions, whose shapes other than the length are in the graph."""
        inputs = [one for one in self._first.get_inputs() if one.name.startswith("past_key_values")]
        return {one.name: np.zeros((rows, one.shape[1], 0, one.shape[3]), dtype=np.float32) for one in inputs}


class OnnxRuntime:
    """The graphs of a folder on token ids.

    Args:
        stepper: the graphs.
        parts: our side, for the ids of the special symbols.
        integers: the folder, if its files hold integers and the stepper has them in float32.
    """

    name = "onnxruntime"

    def __init__(self, stepper: OnnxStepper, parts: TranslatorParts, integers: Path | None = None) -> None:
        self._stepper, self.version, self._integers = stepper, stepper.version, integers
        self.positions = longest_of(parts.config)
        self._source, self._target = parts.source_tokenizer, parts.target_tokenizer

    def encode(self, texts: Sequence[str]) -> None:
        """onnxruntime has no tokenizer."""

    def decode(self, rows: Sequence[Sequence[int]]) -> None:
        """onnxruntime has no tokenizer."""

    def rules(self, search: Search) -> Rules:
        """The search is ours."""
        differences = (
            "onnxruntime has no search, so the search of multihead ran on its graphs; Optimum searches as transformers "
            "does, transformers.js greedily",
        )
        return Rules(search, self._target.forbidden_in_output, differences=differences)

    @torch.no_grad()
    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """The decoder without a past runs on whole targets."""
        scores: list[list[float]] = [[] for _ in sources]
        begin, pad_id = self._target.bos_id, self._source.pad_id
        for places, source, lengths in batches(sources, pad_id):
            inputs = pad([[begin, *targets[place][:-1]] for place in places], pad_id)
            logits, _ = self._stepper.run(inputs, self._stepper.start(source, lengths))
            for place, row in zip(places, logits.log_softmax(-1), strict=True):
                scores[place] = chosen(row, targets[place])
        return scores

    @torch.no_grad()
    def wrong_products(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[str]:
        """What is wrong with the integer products of encoder and decoders for the first sentences, in words."""
        if self._integers is None:
            return []
        begin, pad_id = self._target.bos_id, self._source.pad_id
        places, source, lengths = next(iter(batches(sources[:_CHECKED], pad_id)))
        tokens = pad([[begin, *targets[place][:-1]] for place in places], pad_id)
        state = self._stepper.start(source, lengths)
        _, past = self._stepper.run(tokens, state)
        first: Arrays = {"encoder_attention_mask": state.mask, "encoder_hidden_states": state.states}
        feeds: dict[str, Arrays] = {
            ENCODER: {"input_ids": source.numpy(), "attention_mask": state.mask},
            FIRST: {**first, "input_ids": tokens.numpy()},
            WITH_PAST: {
                "encoder_attention_mask": state.mask,
                "input_ids": tokens[:, -1:].numpy(),
                **past.values,
            },
        }
        return [wrong for name, fed in feeds.items() for wrong in _wrong_products(self._integers, name, fed)]

    @torch.no_grad()
    def translate(self, sources: Sequence[Sequence[int]], search: Search) -> list[list[int]]:
        """Our greedy or beam search on the graphs."""
        target, found = self._target, [[0] for _ in sources]
        symbols = Symbols(target.bos_id, target.eos_id, target.forbidden_in_output, target.prefix)
        task = SearchTask(symbols, max_lengths=search.max_length, min_lengths=search.min_length)
        for places, source, lengths in batches(sources, self._source.pad_id):
            if search.beam == 1:
                best = greedy_search(self._stepper, source, lengths, task, search)
            else:
                best = [row[0] for row in beam_search(self._stepper, source, lengths, task, search)]
            for place, one in zip(places, best, strict=True):
                found[place] = [*one.tokens, target.eos_id] if one.finished else [*one.tokens]
        return found


def open_folder(folder: Path, parts: TranslatorParts, quantization: str) -> OnnxRuntime:
    """The runtime of a folder.

    Raises:
        MissingDependencyError: onnxruntime is not installed.
    """
    rounded = quantization != "float32"
    return OnnxRuntime(OnnxStepper(folder, quantization, in_float=rounded), parts, folder if rounded else None)


def open_as_used(folder: Path, parts: TranslatorParts) -> tuple[OnnxRuntime, str]:
    """The runtime of a folder of integers as they are, and the arithmetic of its products."""
    return OnnxRuntime(OnnxStepper(folder, "int8"), parts), "products of integers"


def _wrong_products(folder: Path, name: str, feeds: Arrays) -> list[str]:
    import onnxruntime

    content, products = with_products((folder / FOLDER / file_name(name, "int8")).read_bytes())
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    fed = {one.name: feeds[one.name] for one in session.get_inputs()}
    values = fed | dict(zip(names, session.run(names, fed), strict=True))
    return [f"{name}: {wrong}" for wrong in check_products(products, values)]
