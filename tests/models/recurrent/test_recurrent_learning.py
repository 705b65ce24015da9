"""Recurrent translators learn to reverse, and attend to the right symbols."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import pytest
import torch

from multihead.data.batching import collate_source
from multihead.decoding.greedy import greedy_search
from multihead.decoding.search import Symbols
from multihead.decoding.task import SearchTask
from multihead.models.config import RECURRENT_PRESETS, RecurrentConfig
from multihead.models.recurrent.network import RecurrentTranslator
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import build_optimizer, learning_rate
from multihead.training.step import train_step
from tasks.reordering import BEGIN, END, PADDING, Reordering, share_right

WithoutChecks = Callable[[], AbstractContextManager[None]]
SEED, ROWS = 1, 64
TASK = Reordering("reverse", symbols=12)


pytestmark = pytest.mark.usefixtures("one_thread")


def trained(
    task: Reordering,
    updates: int,
    held_out: list[tuple[int, ...]],
    *,
    rate: float = 4e-3,
    rows: int = ROWS,
    **changes: Any,
) -> RecurrentTranslator:
    """A trained network."""
    training = TrainingConfig(seed=SEED, updates=updates, learning_rate=rate, warmup=updates // 10, smoothing=0.0)
    torch.manual_seed(SEED)
    sizes = {"source_vocab": task.vocabulary, "target_vocab": task.vocabulary, "width": 64, "dropout": 0.0}
    model = RecurrentTranslator(RecurrentConfig(**(sizes | changes)))
    optimizer = build_optimizer(model, training)
    batches = task.batches(rows, SEED, without=held_out)
    for step, batch in enumerate(islice(batches, updates), 1):
        train_step(model, optimizer, [batch], training, step, learning_rate(training, step, model.config.width))
    return model.eval()


def share_reversed(model: RecurrentTranslator, task: Reordering, sources: list[tuple[int, ...]]) -> float:
    """By greedy search, without an error."""
    symbols = Symbols(BEGIN, END, forbidden=(PADDING, BEGIN))
    found = greedy_search(model, *collate_source(sources, PADDING, END), SearchTask(symbols, max_lengths=20))
    right = [hypothesis.tokens == task.target(source) for hypothesis, source in zip(found, sources, strict=True)]
    return sum(right) / len(right)


@pytest.mark.parametrize(
    ("updates", "changes"),
    [
        pytest.param(300, {"attend": "before", "score": "additive", "cell": "gru"}, marks=pytest.mark.proof),
        (200, {"attend": "after", "score": "bilinear", "cell": "lstm", "rate": 8e-3, "rows": 32}),
    ],
    ids=["Bahdanau", "Luong"],
)
def test_sequences_are_reversed_by_looking_at_the_right_place(
    updates: int, changes: dict[str, Any], without_checks: WithoutChecks
) -> None:
    sources = TASK.held_out(300, SEED)
    with without_checks():
        model = trained(TASK, updates, sources, **changes)
    assert share_reversed(model, TASK, sources) >= 0.97
    batch = TASK.batch(sources)
    with torch.no_grad():
        weights = model(batch.source, batch.source_lengths, batch.target_input, need_weights=True).weights
    assert weights is not None
    there, of = share_right(weights.cross[0][:, 0], TASK.alignment(batch))
    assert there >= 0.9 * of


def test_sparse_alignments_learn_and_have_exact_zeros(without_checks: WithoutChecks) -> None:
    task = Reordering("reverse", symbols=8, shortest=3, longest=5)
    sources = task.held_out(60, SEED)
    fed = {"attend": "after", "input_feeding": True, "score": "bilinear", "encoder_layers": 0, "width": 48}
    with without_checks():
        model = trained(task, 150, sources, alignment="entmax15", **fed)
    assert share_reversed(model, task, sources) >= 0.9
    batch = task.batch(sources)
    with torch.no_grad():
        weights = model(batch.source, batch.source_lengths, batch.target_input, need_weights=True).weights
    assert weights is not None
    real = (torch.arange(batch.source.shape[1]) < batch.source_lengths[:, None])[:, None].expand(
        weights.cross[0][:, 0].shape
    )
    assert (weights.cross[0][:, 0][real] == 0).float().mean() > 0.4  # a softmax has none


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.proof if n in ("bahdanau", "luong") else ()) for n in RECURRENT_PRESETS]
)
def test_every_preset_trains(name: str) -> None:
    """A few updates on the same two pairs, with a small vocabulary."""
    training = TrainingConfig(seed=SEED, updates=12, learning_rate=1e-3, warmup=3, smoothing=0.0)
    torch.manual_seed(SEED)
    sizes = {"source_vocab": TASK.vocabulary, "target_vocab": TASK.vocabulary, **RECURRENT_PRESETS[name]}
    model = RecurrentTranslator(RecurrentConfig(**sizes))
    optimizer = build_optimizer(model, training)
    batch = TASK.batch([(3, 9, 4), (7, 5, 12, 6, 8)])
    losses = []
    for step in range(1, training.updates + 1):
        rate = learning_rate(training, step, model.config.width)
        losses.append(train_step(model, optimizer, [batch], training, step, rate).nll / batch.target_tokens)
    assert max(losses[-3:]) < 0.8 * losses[0]


@pytest.mark.proof
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"attend": "before", "encoder_layers": 2, "decoder_layers": 2}, id="two layers a side"),
        pytest.param({"attend": "after", "score": "dot", "input_feeding": True}, id="input feeding"),
        pytest.param({"attend": "after", "score": "low_rank", "encoder_layers": 0}, id="no encoder"),
    ],
)
def test_longer_sequences_are_reversed(changes: dict[str, Any]) -> None:
    long = Reordering("reverse", symbols=16, longest=12)
    sources = long.held_out(300, SEED)
    assert share_reversed(trained(long, 700, sources, **changes), long, sources) >= 0.97
