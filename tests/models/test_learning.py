"""A Transformer learns to copy, reverse and sort."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch

from multihead.data.batching import Batch, collate, collate_source
from multihead.data.store import ParallelStore
from multihead.decoding.greedy import greedy_search
from multihead.decoding.search import Symbols
from multihead.decoding.task import SearchTask
from multihead.models.config import PRESETS, TransformerConfig, preset
from multihead.models.transformer import Transformer
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import build_optimizer, learning_rate
from multihead.training.splitting import sequence_loss
from multihead.training.step import train_step

Ids = tuple[int, ...]
PAD, BEGIN, END = 0, 1, 2
VOCAB = 11  # eight words
SEED, ROWS, HELD_OUT = 1, 48, 300
TASKS: dict[str, Callable[[Ids], Ids]] = {
    "copy": lambda ids: ids,
    "reverse": lambda ids: ids[::-1],
    "sort": lambda ids: tuple(sorted(ids)),
}
WithoutChecks = Callable[[], AbstractContextManager[None]]
TRAINING = TrainingConfig(seed=SEED, updates=320, learning_rate=4e-3, warmup=32, smoothing=0.0)


pytestmark = pytest.mark.usefixtures("one_thread")


def draw(choose: random.Random) -> Ids:
    return tuple(choose.choices(range(3, VOCAB), k=choose.randint(3, 6)))


def batch_of(sources: list[Ids], task: Callable[[Ids], Ids]) -> Batch:
    store = ParallelStore.from_lists(sources, [task(source) for source in sources])
    return collate(store, np.arange(len(sources)), pad_id=PAD, bos_id=BEGIN, eos_id=END)


def trained(task: Callable[[Ids], Ids], held_out: set[Ids], choose: random.Random) -> Transformer:
    """A trained model with one encoder and one decoder layer."""
    torch.manual_seed(SEED)
    sizes = {"width": 64, "heads": 4, "inner": 128, "encoder_layers": 1, "decoder_layers": 1}
    model = Transformer(TransformerConfig(source_vocab=VOCAB, target_vocab=VOCAB, dropout=0.0, **sizes))
    optimizer = build_optimizer(model, TRAINING)
    for step in range(1, TRAINING.updates + 1):
        sources = [ids for ids in (draw(choose) for _ in range(ROWS)) if ids not in held_out]
        rate = learning_rate(TRAINING, step, model.config.width)
        train_step(model, optimizer, [batch_of(sources, task)], TRAINING, step, rate)
    return model.eval()


@pytest.mark.parametrize("name", [pytest.param("copy", marks=pytest.mark.proof), "reverse", "sort"])
def test_a_task_is_learned(name: str, without_checks: WithoutChecks) -> None:
    task, choose = TASKS[name], random.Random(SEED)
    held_out = {draw(choose) for _ in range(HELD_OUT)}
    with without_checks():
        model = trained(task, held_out, choose)
    sources = sorted(held_out)
    symbols = Symbols(BEGIN, END, forbidden=(PAD, BEGIN))
    found = greedy_search(model, *collate_source(sources, PAD, END), SearchTask(symbols, max_lengths=12))
    right = sum(hypothesis.tokens == task(source) for hypothesis, source in zip(found, sources, strict=True))
    assert right >= 0.99 * len(sources)


# ------------------------------------------------------------------------------------------ presets


COSTLY = {"base", "big", "attention-is-all-you-need-pytorch"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.proof if name in COSTLY else ()) for name in PRESETS]
)
def test_every_preset_trains(name: str) -> None:
    """20 updates on the same two pairs, with a small vocabulary."""
    training = TrainingConfig(seed=SEED, updates=20, learning_rate=5e-4, warmup=5, smoothing=0.0)
    torch.manual_seed(SEED)
    model = Transformer(TransformerConfig(source_vocab=VOCAB, target_vocab=VOCAB, **preset(name)))
    optimizer = build_optimizer(model, training)
    batch = batch_of([(3, 9, 4), (7, 5, 10, 10, 8)], TASKS["copy"])
    losses = []
    for step in range(1, training.updates + 1):
        rate = learning_rate(training, step, model.config.width)
        losses.append(train_step(model, optimizer, [batch], training, step, rate).nll / batch.target_tokens)
    assert min(losses[:2]) > 0.8 * math.log(VOCAB)  # it knew nothing
    assert max(losses[-3:]) < 0.9 * losses[0]


# ------------------------------------------------------------------------------------------ depth


SHORTEST, LONGEST, WORDS = 2, 4, range(3, 9)
BLIND = (3 * math.log(len(WORDS)) + math.log(3)) / 4
"""Nats per token of the best guess without the source: three words on average, and where the end is."""


def copied(norm: str, updates: int, rows: int) -> tuple[Transformer, list[Ids], float]:
    """A trained model of 6 + 6 layers, unseen sentences, and its loss on them."""
    training = TrainingConfig(seed=SEED, updates=updates, learning_rate=1e-3, warmup=updates // 3, smoothing=0.0)
    torch.manual_seed(SEED)
    sizes: dict[str, Any] = {"width": 64, "heads": 4, "inner": 128}
    vocabulary = WORDS.stop
    config = TransformerConfig(source_vocab=vocabulary, target_vocab=vocabulary, dropout=0.0, norm=norm, **sizes)
    assert (config.encoder_layers, config.decoder_layers) == (6, 6)
    model, choose = Transformer(config), random.Random(SEED)
    optimizer = build_optimizer(model, training)

    def some(count: int) -> list[Ids]:
        return [tuple(choose.choices(WORDS, k=choose.randint(SHORTEST, LONGEST))) for _ in range(count)]

    unseen = some(100)
    for step in range(1, updates + 1):
        rate = learning_rate(training, step, config.width)
        sources = [ids for ids in some(rows) if ids not in unseen]
        train_step(model, optimizer, [batch_of(sources, TASKS["copy"])], training, step, rate)
    batch = batch_of(unseen, TASKS["copy"])
    with torch.no_grad():
        loss = sequence_loss(model.eval(), batch, 0.0).nll.item() / batch.target_tokens
    return model, unseen, loss


@pytest.mark.parametrize(("norm", "updates"), [("post", 140), pytest.param("pre", 80, marks=pytest.mark.proof)])
def test_six_layers_a_side_begin_to_copy(norm: str, updates: int, without_checks: WithoutChecks) -> None:
    """Better than any model that cannot use the source through all of its twelve layers."""
    with without_checks():
        *_, loss = copied(norm, updates, 24)
    assert loss < BLIND / 2


@pytest.mark.proof
@pytest.mark.parametrize(("norm", "updates"), [("post", 2500), ("pre", 1200)])
def test_six_layers_a_side_learn_to_copy(norm: str, updates: int) -> None:
    model, sources, loss = copied(norm, updates, 32)
    assert loss < 0.01
    symbols = Symbols(BEGIN, END, forbidden=(PAD, BEGIN))
    found = greedy_search(model, *collate_source(sources, PAD, END), SearchTask(symbols, max_lengths=12))
    right = sum(hypothesis.tokens == source for hypothesis, source in zip(found, sources, strict=True))
    assert right >= 0.99 * len(sources)
