"""A Transformer's step on a GPU as a CUDA graph per bucket of shapes.

A step consists of about a hundred small kernels, each of which finishes before Python has launched the next. A graph
launches all of them at once, but its shapes and addresses are fixed. So the state of a search is copied into static
tensors whose numbers of sentences, positions and source symbols are rounded up; the padding affects nothing. The output
is copied, too, so that a state remains a value.

`Graphs` is a `Stepper` around the model, for the searches of `multihead.decoding`. The tests prove without a GPU that a
replayed step equals the model's own for every shape within a bucket, and that no step depends on a value that only the
device knows.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.attention import KeyValue
from multihead.models.state import Memory, TransformerState
from multihead.models.transformer import Transformer

MOST = 64
"""Maximum number of graphs; each has its own copy of a state."""

_LENGTHS = 16
"""Positions and source symbols are rounded up to multiples of this; sentences to powers of two."""

Outputs = tuple[Tensor, ...]
Capture = Callable[[Callable[[], Outputs]], tuple[Outputs, Callable[[], None]]]
"""computation -> (its output tensors, a function that recomputes them from the current inputs)"""


class CudaCapture:
    """PyTorch's graphs on the current device. All share one memory pool: read one before the next runs."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], Outputs]) -> tuple[Outputs, Callable[[], None]]:
        """See `Capture`; the computation first runs twice, so that libraries initialize their workspaces."""
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                compute()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs = compute()
        return outputs, graph.replay


@dataclass(frozen=True)
class Bucket:
    """The shapes of a graph."""

    sentences: int
    group: int
    """Hypotheses per sentence."""
    time: int
    """Number of positions before the new one."""
    source: int

    @classmethod
    def of(cls, state: TransformerState) -> Bucket:
        """The smallest bucket that holds a state."""
        sentences = 1 << (len(state.memory.lengths) - 1).bit_length()
        return cls(sentences, state.group, _up(state.time), _up(state.memory.layers[0].length))


class Graphs:
    """A `Stepper` that runs the model's steps as graphs, except in training.

    Args:
        model: on its device; when its weights move, the graphs are captured again.
        capture: captures graphs; by default PyTorch's, which needs a GPU.
        most: maximum number of graphs; the least recently used one is dropped.
    """

    def __init__(self, model: Transformer, capture: Capture | None = None, most: int = MOST) -> None:
        self.model = model
        self._capture, self._most = CudaCapture() if capture is None else capture, most
        self._made: OrderedDict[Bucket, _Graph] = OrderedDict()
        self._lock = threading.Lock()
        self._where: tuple[int, ...] = ()

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The buckets that have graphs, the most recently used last."""
        return tuple(self._made)

    def start(self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, " batch"]) -> TransformerState:
        """The model's own start: much computation in few kernels."""
        return self.model.start(source, lengths)

    def step(
        self, tokens: Int[Tensor, " rows"], state: TransformerState
    ) -> tuple[Float[Tensor, "rows vocab"], TransformerState]:
        """The model's step, replayed from a graph."""
        autocast = torch.is_autocast_enabled(tokens.device.type)
        if self.model.training or torch.is_grad_enabled() or autocast or not state.rows:
            return self.model.step(tokens, state)
        with self._lock:  # the graphs share their tensors and memory, and a server searches in several threads
            graph = self._of(Bucket.of(state), state)
            graph.fill(tokens, state)
            graph.replay()
            return graph.read(state)

    def step_attending(
        self, tokens: Int[Tensor, " rows"], state: TransformerState
    ) -> tuple[Float[Tensor, "rows vocab"], Float[Tensor, "rows source"], TransformerState]:
        """The model's own step: few searches need it."""
        return self.model.step_attending(tokens, state)

    def _of(self, bucket: Bucket, state: TransformerState) -> _Graph:
        where = tuple(tensor.data_ptr() for tensor in (*self.model.parameters(), *self.model.buffers()))
        if where != self._where:
            self._made.clear()
            self._where = where
        if bucket not in self._made:
            while len(self._made) >= self._most:
                self._made.popitem(last=False)
            self._made[bucket] = _Graph(self.model, bucket, state, self._capture)
        self._made.move_to_end(bucket)
        return self._made[bucket]


class _Graph:
    """A graph with the tensors that it reads and writes.

    Args:
        model: the model.
        bucket: shapes of the graph.
        like: a state that has the types and widths of all states.
        capture: captures the graph.
    """

    def __init__(self, model: Transformer, bucket: Bucket, like: TransformerState, capture: Capture) -> None:
        self._bucket = bucket
        rows = bucket.sentences * bucket.group
        self._tokens = torch.zeros_like(like.positions[:1]).repeat(rows)
        self._positions, self._padding = self._tokens.clone(), self._tokens + bucket.time
        self._lengths = like.memory.lengths.new_ones(bucket.sentences)
        self._memory = [_room(layer, bucket.sentences, bucket.source) for layer in like.memory.layers]
        # Before the first step there is no cache; it has the heads and widths of the memory.
        self._cache = [_room(layer, rows, bucket.time) for layer in like.cache or like.memory.layers]
        self._outputs, self.replay = capture(lambda: self._compute(model))
        self._memory_of: Callable[[], Memory | None] = lambda: None
        """What the memory was copied from: usually the next step has the same one."""

    def _compute(self, model: Transformer) -> Outputs:
        memory = Memory(tuple(self._memory), self._lengths)
        log_probabilities, following = model.step(
            self._tokens, TransformerState(memory, tuple(self._cache), self._positions, self._padding)
        )
        assert following.cache is not None
        new = [part[:, :, -1:] for layer in following.cache for part in (layer.key, layer.value)]
        return log_probabilities, *(part.contiguous() for part in new)

    def fill(self, tokens: Tensor, state: TransformerState) -> None:
        """Copy a state to the inputs of the graph, its positions aligned to the right, as in the model."""
        rows, free = state.rows, self._bucket.time - state.time
        own = 0 if state.padding is None else state.padding
        to = [self._tokens[:rows], self._positions[:rows], self._padding[:rows]]
        given = [tokens, state.positions, own + torch.full_like(state.positions, free)]
        for room, layer in zip(self._cache, state.cache or (), strict=state.cache is not None):
            to += [room.key[:rows, :, free:], room.value[:rows, :, free:]]
            given += [layer.key, layer.value]
        if self._memory_of() is not state.memory:
            self._memory_of = weakref.ref(state.memory)
            sentences, width = len(state.memory.lengths), state.memory.layers[0].length
            to.append(self._lengths[:sentences])
            given.append(state.memory.lengths)
            for room, layer in zip(self._memory, state.memory.layers, strict=True):
                to += [room.key[:sentences, :, :width], room.value[:sentences, :, :width]]
                given += [layer.key, layer.value]
        torch._foreach_copy_(to, given)

    def read(self, state: TransformerState) -> tuple[Tensor, TransformerState]:
        """The result of the step, copied from the outputs of the graph."""
        rows = state.rows
        log_probabilities, *new = self._outputs
        grown = []
        for index in range(len(self._cache)):
            key, value = (part[:rows] for part in new[2 * index : 2 * index + 2])
            before = None if state.cache is None else state.cache[index]
            latest = KeyValue(key, value)
            grown.append(KeyValue(key.clone(), value.clone()) if before is None else before.append(latest))
        following = TransformerState(state.memory, tuple(grown), state.positions + 1, state.padding)
        return log_probabilities[:rows].clone(), following


def _up(length: int) -> int:
    """Round up to the next multiple, at least one."""
    return max(-(-length // _LENGTHS), 1) * _LENGTHS


def _room(like: KeyValue, rows: int, length: int) -> KeyValue:
    return KeyValue(*(part.new_zeros(rows, part.shape[1], length, part.shape[3]) for part in (like.key, like.value)))
