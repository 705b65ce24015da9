"""The loss of a guided head is the written equation, in padded and packed batches, with its gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from multihead.data.batching import Batch, collate
from multihead.data.store import ParallelStore
from multihead.errors import ConfigurationError
from multihead.kernels.guided import Links, guided_cross_entropy
from multihead.models.config import RecurrentConfig, TransformerConfig
from multihead.models.recurrent.network import RecurrentTranslator
from multihead.models.transformer import Transformer
from multihead.training.config import TrainingConfig
from multihead.training.step import train_step

SMALL = {"width": 16, "heads": 2, "inner": 32, "encoder_layers": 1, "decoder_layers": 2, "dropout": 0.0}
LINKS = [(0, 0, 1), (0, 1, 0), (0, 1, 2), (1, 2, 0), (2, 0, 0), (2, 0, 1), (2, 3, 1)]
"""Row, target and source position; other target positions are aligned with nothing."""


def links(weight: float = 0.3) -> Links:
    rows, targets, sources = map(torch.tensor, zip(*LINKS, strict=True))
    counts = [sum(1 for other in LINKS if other[:2] == link[:2]) for link in LINKS]
    return Links(rows, targets, sources, 1 / torch.tensor(counts, dtype=torch.float32), weight)


def batch_of(weights: list[float] | None = None, weight: float = 0.3) -> Batch:
    draw = np.random.default_rng(3)
    sources, targets = ([draw.integers(3, 20, n).tolist() for n in sizes] for sizes in ((4, 2, 3), (3, 5, 4)))
    batch = collate(ParallelStore.from_lists(sources, targets), np.arange(3), pad_id=0, bos_id=1, eos_id=2)
    own = None if weights is None else torch.tensor(weights)
    return Batch(**{**vars(batch), "links": links(weight), "weights": own})


def written(model: Transformer, batch: Batch) -> Tensor:
    """The equation, with the weights that the model returns."""
    weights = model(batch.source, batch.source_lengths, batch.target_input, need_weights=True).weights
    assert weights is not None
    assert model.config.alignment_layer is not None
    head = weights.cross[model.config.alignment_layer - 1][:, 0]
    total = torch.zeros(())
    for row, target in {link[:2] for link in LINKS}:
        aligned = [source for *place, source in LINKS if tuple(place) == (row, target)]
        own = -sum(head[row, target, source].log() / len(aligned) for source in aligned)
        total = total + own * (1 if batch.weights is None else batch.weights[row])
    return total


def network(layer: int | None = 1, **changes: object) -> Transformer:
    torch.manual_seed(1)
    settings = {"source_vocab": 20, "target_vocab": 20, **SMALL, "alignment_layer": layer, **changes}
    return Transformer(TransformerConfig.model_validate(settings))


@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 1.0]])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kv_heads": 1},
        {"query_key_norm": "rms"},
        {"positions": "relative"},
        {"layer": 2, "source_end": False},
        {"block": "parallel", "norm": "pre"},
    ],
)
def test_loss_and_gradient_are_those_of_the_equation(changes, weights, monkeypatch) -> None:
    """Packed where the kernels allow it, padded elsewhere; with the loss of the labels, whose sums it leaves alone."""
    model, batch = network(**changes), batch_of(weights)
    plain = model.loss(*batch.inputs[:4], None, batch.weights, smoothing=0.1)
    expected = plain.total + 0.3 * written(model, batch)
    theirs = torch.autograd.grad(expected, list(model.parameters()), allow_unused=True)
    packs = []
    for packed in (True, False):
        if not packed:
            monkeypatch.setattr(Transformer, "_packs", lambda *_: False)
        packs.append(model._packs(batch.source, batch.target_input))
        loss = model.loss(*batch.inputs, smoothing=0.1)
        torch.testing.assert_close(loss.total, expected)
        torch.testing.assert_close(loss.guided, written(model, batch).detach())
        torch.testing.assert_close(loss.labels, (plain.total if weights is None else plain.labels).detach())
        ours = torch.autograd.grad(loss.total, list(model.parameters()), allow_unused=True)
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert packs == [changes.keys().isdisjoint({"kv_heads", "positions"}), False]


def test_checkpointed_layers_have_the_same_gradient() -> None:
    gradients = []
    for checkpointing in (False, True):
        model = network()
        model.checkpointing = checkpointing
        loss = model.loss(*batch_of().inputs, smoothing=0.1)
        gradients.append(torch.autograd.grad(loss.total, list(model.parameters())))
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_pieces_of_a_batch_add_up() -> None:
    config = TrainingConfig(updates=1, clip=0.0, smoothing=0.1)
    found = []
    for cells in (None, 7):
        model = network()
        sums = train_step(
            model, torch.optim.SGD(model.parameters(), lr=0.0), [batch_of()], config, 1, 0.0, max_cells=cells
        )
        found.append((sums, [p.grad for p in model.parameters()]))
    assert found[0][0] == pytest.approx(found[1][0])
    assert found[0][0].guided > 0
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other)


def test_no_links_and_weight_0_add_nothing() -> None:
    model = network()
    plain = model.loss(*batch_of().inputs[:4], smoothing=0.1).total
    empty = torch.empty(0, dtype=torch.int64)
    none = Links(empty, empty, empty, torch.empty(0), 0.3)
    for inputs in (batch_of(weight=0.0).inputs, (*batch_of().inputs[:4], None, None, none)):
        torch.testing.assert_close(model.loss(*inputs, smoothing=0.1).total, plain)


def test_weights_that_equal_the_alignment_have_its_entropy_as_loss() -> None:
    """Gibbs' inequality: the least possible loss."""
    torch.manual_seed(2)
    query, key = torch.randn(1, 3, 8), torch.zeros(1, 2, 8)
    every = torch.tensor([[t, s] for t in range(3) for s in range(2)])
    even = Links(torch.zeros(6, dtype=torch.int64), every[:, 0], every[:, 1], torch.full((6,), 0.5), 1.0)
    loss = guided_cross_entropy(query, key, torch.tensor([2]), even)
    torch.testing.assert_close(loss, 3 * torch.tensor(2.0).log())


def test_networks_without_a_guided_head_refuse_links() -> None:
    recurrent = RecurrentTranslator(RecurrentConfig(source_vocab=20, target_vocab=20, width=16))
    for model in (network(None), recurrent):
        with pytest.raises(ConfigurationError, match="needs a Transformer with an alignment_layer"):
            model.loss(*batch_of().inputs, smoothing=0.0)
    with pytest.raises(ValueError, match="alignment_layer must be a layer of the decoder, which has 2, got 3"):
        TransformerConfig(source_vocab=9, target_vocab=9, decoder_layers=2, alignment_layer=3)


def permuted(draw: torch.Generator, order: Tensor, rows: int, weight: float | None) -> Batch:
    """Sources of random words and their reordered translations; the links connect the words."""
    words = torch.randint(3, 20, (rows, len(order)), generator=draw)
    source = torch.cat((words, words.new_full((rows, 1), 2)), 1)
    output = torch.cat((words[:, order], words.new_full((rows, 1), 2)), 1)
    given = output.roll(1, 1)
    given[:, 0] = 1
    lengths = torch.full((rows,), len(order) + 1)
    place = torch.arange(rows).repeat_interleave(len(order)), torch.arange(len(order)).repeat(rows)
    own = Links(*place, order.repeat(rows), torch.ones(rows * len(order)), weight or 0.0)
    none = None if weight is None else own
    return Batch(source, lengths, given, output, lengths, output.numel(), np.arange(rows), links=none)


@pytest.mark.usefixtures("one_thread")
def test_a_guided_head_learns_a_planted_permutation(without_checks) -> None:
    """The share of wrong links on new text: near 0 with guidance, that of another head without."""
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    found = {}
    config, updates = TrainingConfig(updates=100, smoothing=0.0), range(1, 101)
    for weight in (None, 5.0):
        model, draw = network(), torch.Generator().manual_seed(4)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.03, betas=(0.9, 0.98))
        with without_checks():
            for step in updates:
                rate = 0.03 * min(1.0, step / 20) * (1 - step / 101)
                train_step(model, optimizer, [permuted(draw, order, 24, weight)], config, step, rate)
        batch = permuted(draw, order, 64, None)
        weights = model.eval()(batch.source, batch.source_lengths, batch.target_input, need_weights=True).weights
        best = weights.cross[0][:, 0, :-1].argmax(-1)
        found[weight] = float((best != order).float().mean())
    assert found[5.0] < 0.05
    assert found[None] > 0.5
