"""Counts the operations of an update, which shows slowdowns on any machine.

Products are counted exactly: an update makes three times those of a forward pass over its words, and no others. Calls
and bytes have budgets, a tenth above the current counts of a layer; an additional pass over memory exceeds them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from multihead.data.batching import Batch, collate
from multihead.data.store import ParallelStore
from multihead.kernels import random
from multihead.models.config import TransformerConfig
from multihead.models.transformer import ROUND, Transformer
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import build_optimizer
from multihead.training.step import train_step

WIDTH, INNER, VOCAB = 32, 48, 60
CONFIG = TrainingConfig(updates=10)
LOW = TrainingConfig(updates=10, precision="bfloat16")

CALLS = 480
"""Operations of PyTorch, including views, of an encoder and a decoder layer in a bfloat16 update (439 now)."""
BYTES = 142
"""Bytes that they allocate per number of the residual stream, with inner layers 1.5 times as wide (129 now)."""


class Counter(TorchDispatchMode):
    """Counts calls of PyTorch's operations and the bytes of new results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the call and compute it."""
        result = func(*args, **(kwargs or {}))
        given = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        self.calls += 1
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in given:
                self.bytes += leaf.untyped_storage().nbytes()
        return result


def model_of(layers: int) -> Transformer:
    """A small model with everything that affects a step: dropout, tied embeddings, norms."""
    torch.manual_seed(1)
    sizes = {"width": WIDTH, "heads": 2, "inner": INNER, "encoder_layers": layers, "decoder_layers": layers}
    return Transformer(TransformerConfig(source_vocab=VOCAB, target_vocab=VOCAB, padding_id=0, dropout=0.1, **sizes))


def batch() -> Batch:
    """Sentences of many lengths."""
    rows = [[4 + (i * 7 + j) % 50 for j in range(3 + i % 9)] for i in range(40)]
    store = ParallelStore.from_lists(rows, [row[::-1][: 2 + len(row) // 2] for row in rows])
    return collate(store, torch.arange(40).numpy(), pad_id=0, bos_id=2, eos_id=3)


def counted(layers: int, config: TrainingConfig) -> Counter:
    """The counts of an update after the first one."""
    model = model_of(layers)
    optimizer = build_optimizer(model, config)
    train_step(model, optimizer, [batch()], config, 1, 1e-3)
    with Counter() as counter:
        train_step(model, optimizer, [batch()], config, 2, 1e-3)
    return counter


def up(words: int) -> int:
    """Number of positions of a packed row."""
    return -(-words // ROUND) * ROUND


@pytest.mark.parametrize("layers", [1, 3])
def test_an_update_multiplies_what_it_needs_and_nothing_else(layers: int, compiled: Any) -> None:
    """Three times the forward pass: for each product y = x W^T also dx = dy W and dW = dy^T x (2 operations each)."""
    model, some = model_of(layers), batch()
    with FlopCounterMode(display=False) as counter, random.step(1):
        model.train().loss(*some.inputs, smoothing=0.1).total.backward()
    source, target = up(some.source_tokens), up(some.target_tokens)
    encoder = source * (4 * WIDTH**2 + 2 * WIDTH * INNER)
    decoder = target * (6 * WIDTH**2 + 2 * WIDTH * INNER) + source * 2 * WIDTH**2
    output = some.target_tokens * WIDTH * VOCAB
    assert counter.get_total_flops() == 3 * 2 * (layers * (encoder + decoder) + output)


def test_a_layer_makes_few_calls_and_passes_over_memory(compiled: Any) -> None:
    one, three = counted(1, LOW), counted(3, LOW)
    tokens = up(batch().source_tokens) + up(batch().target_tokens)
    calls, size = (three.calls - one.calls) / 2, (three.bytes - one.bytes) / 2 / tokens / WIDTH
    assert calls <= CALLS
    assert size <= BYTES


def test_more_sentences_are_no_more_calls(compiled: Any) -> None:
    """A loop over rows would exceed the budget."""
    calls = []
    for part in (batch().part(0, 20), batch()):
        model = model_of(1)
        optimizer = build_optimizer(model, CONFIG)
        with Counter() as counter:
            train_step(model, optimizer, [part], CONFIG, 1, 1e-3)
        calls.append(counter.calls)
    assert calls[0] == calls[1]
