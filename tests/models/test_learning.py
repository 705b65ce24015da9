"""The model, the loss, the step and the search together learn what a Transformer should: copy, reverse, sort."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from multihead.data.batching import Batch, collate, collate_source
from multihead.data.store import ParallelStore
from multihead.decoding.greedy import greedy_search
from multihead.decoding.stepper import Symbols
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import build_optimizer
from multihead.training.schedule import learning_rate
from multihead.training.step import train_step

Ids = tuple[int, ...]
PAD, BEGIN, END = 0, 1, 2
VOCAB = 15  # twelve words
SEED, ROWS, HELD_OUT = 1, 64, 300
TASKS: dict[str, Callable[[Ids], Ids]] = {
    "copy": lambda ids: ids,
    "reverse": lambda ids: ids[::-1],
    "sort": lambda ids: tuple(sorted(ids)),
}
TRAINING = TrainingConfig(seed=SEED, updates=700, learning_rate=3e-3, warmup=70, smoothing=0.0)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Matrices as small as these are multiplied faster by one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def draw(choose: random.Random) -> Ids:
    return tuple(choose.choices(range(3, VOCAB), k=choose.randint(3, 8)))


def batch_of(sources: list[Ids], task: Callable[[Ids], Ids]) -> Batch:
    store = ParallelStore.from_lists(sources, [task(source) for source in sources])
    return collate(store, np.arange(len(sources)), pad_id=PAD, bos_id=BEGIN, eos_id=END)


def trained(task: Callable[[Ids], Ids], held_out: set[Ids], choose: random.Random) -> Transformer:
    """A model of one layer a side that never saw what is held out."""
    torch.manual_seed(SEED)
    sizes = {"width": 64, "heads": 4, "inner": 128, "encoder_layers": 1, "decoder_layers": 1}
    model = Transformer(TransformerConfig(source_vocab=VOCAB, target_vocab=VOCAB, dropout=0.0, **sizes))
    optimizer = build_optimizer(model, TRAINING)
    for step in range(1, TRAINING.updates + 1):
        sources = [ids for ids in (draw(choose) for _ in range(ROWS)) if ids not in held_out]
        rate = learning_rate(TRAINING, step, model.config.width)
        train_step(model, optimizer, [batch_of(sources, task)], TRAINING, step, rate, PAD)
    return model.eval()


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_learned(name: str) -> None:
    task, choose = TASKS[name], random.Random(SEED)
    held_out = {draw(choose) for _ in range(HELD_OUT)}
    model = trained(task, held_out, choose)
    sources = sorted(held_out)
    symbols = Symbols(BEGIN, END, forbidden=(PAD, BEGIN))
    found = greedy_search(model, *collate_source(sources, PAD, END), symbols, max_lengths=12)
    right = sum(hypothesis.tokens == task(source) for hypothesis, source in zip(found, sources, strict=True))
    assert right >= 0.99 * len(sources)
