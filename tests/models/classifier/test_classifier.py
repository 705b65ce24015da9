"""Classifiers: loss, independence of rows, pre-trained encoders."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from multihead.data.nested import StoredDocument, collate_nested, collate_segmented
from multihead.models.bert.config import BertConfig
from multihead.models.bert.network import Bert
from multihead.models.classifier.config import BertClassifierConfig, HierarchicalConfig
from multihead.models.classifier.network import BertClassifier, HierarchicalClassifier, build_classifier
from multihead.text.bert_words import Symbols
from multihead.training.splitting import Examples, Trainable

VOCAB, CLASSES = 20, 3
SYMBOLS = Symbols(pad=0, first=2, end=3, hidden=1)
DOCUMENTS = [
    StoredDocument(0, [[[5, 6, 7], [8]], [[9, 10]]]),
    StoredDocument(2, [[[11]]]),
    StoredDocument(1, [[[12, 13, 14, 15, 16], [17, 18], [19, 4]]]),
    StoredDocument(0, [[[7, 7]], [[8]], [[9, 9, 9]]]),
]
BERT = BertConfig(
    vocab=VOCAB, width=8, layers=2, heads=2, inner=16, max_positions=16, dropout=0.0, attention_dropout=0.0
)


def hierarchical(depth=2, **wishes):
    torch.manual_seed(0)
    config = HierarchicalConfig(vocab=VOCAB, classes=CLASSES, width=8, depth=depth, dropout=0.0, **wishes)
    return build_classifier(config).double().eval(), collate_nested(DOCUMENTS, depth, 0)


def bert(pool="first"):
    torch.manual_seed(0)
    config = BertClassifierConfig(encoder=BERT, classes=CLASSES, dropout=0.0, pool=pool)
    model = build_classifier(config).double().eval()
    with torch.no_grad():
        model.output.bias.normal_()
    return model, collate_segmented(DOCUMENTS, 16, SYMBOLS)


MADE = {
    "words": lambda: hierarchical(1),
    "sentences": hierarchical,
    "paragraphs": lambda: hierarchical(3),
    "bert": bert,
    "mean of bert": lambda: bert("mean"),
    "attention on bert": lambda: bert("attention"),
}


@pytest.fixture(params=MADE)
def made(request: pytest.FixtureRequest) -> Any:
    return MADE[request.param]()


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_the_cross_entropy_of_what_is_said(made, smoothing):
    model, batch = made
    said = model(*batch.encoder_inputs).log_probabilities
    loss = model.loss(*batch.inputs, smoothing=smoothing)
    expected = F.cross_entropy(said, batch.labels, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(loss.total, expected)
    torch.testing.assert_close(loss.nll, F.nll_loss(said, batch.labels, reduction="sum"))
    assert int(loss.correct) == int((said.argmax(1) == batch.labels).sum())
    torch.testing.assert_close(said.exp().sum(1), torch.ones(len(batch), dtype=torch.float64))


def test_the_loss_of_a_batch_is_that_of_its_parts(made):
    model, batch = made
    whole = model.loss(*batch.inputs, smoothing=0.1).total
    for cuts in ([0, 2, 4], [0, 1, 2, 3, 4]):
        parts = [batch.part(start, stop) for start, stop in pairwise(cuts)]
        torch.testing.assert_close(sum(model.loss(*part.inputs, smoothing=0.1).total for part in parts), whole)
        assert sum(part.cells for part in parts) <= batch.cells
        assert sum(part.source_tokens for part in parts) == batch.source_tokens
    assert isinstance(batch, Examples)
    assert isinstance(model, Trainable)


def test_every_parameter_learns(made):
    model, batch = made
    model.train().loss(*batch.inputs, smoothing=0.0).total.backward()
    assert [
        name for name, parameter in model.named_parameters() if parameter.grad is None and parameter.requires_grad
    ] == []


def test_dropout_is_a_function_of_the_seed_and_off_when_it_is_measured():
    torch.manual_seed(0)
    model = HierarchicalClassifier(HierarchicalConfig(vocab=VOCAB, classes=2, width=8, dropout=0.5))
    batch = collate_nested(DOCUMENTS, 2, 0)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(model.train()(*batch.encoder_inputs).log_probabilities)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert torch.equal(
        model.eval()(*batch.encoder_inputs).log_probabilities, model(*batch.encoder_inputs).log_probabilities
    )


def test_a_hierarchical_network_tells_the_weights_of_each_level():
    model, batch = hierarchical(3)
    assert len(model(*batch.encoder_inputs).weights) == 3
    for pool in ("first", "mean"):
        model, batch = bert(pool)
        assert model(*batch.encoder_inputs).weights == ()


def test_a_bert_is_pooled_by_its_first_state_by_all_or_by_weight():
    (first, batch), (mean, _), (weighted, _) = (bert(pool) for pool in ("first", "mean", "attention"))
    for other in (first, mean):
        other.encoder.load_state_dict(weighted.encoder.state_dict())
    vectors, (weights,) = weighted.encode(*batch.encoder_inputs)
    for row, length in enumerate(batch.lengths.tolist()):
        alone = [
            tensor[row : row + 1, :length] if tensor.dim() > 1 else tensor[row : row + 1]
            for tensor in batch.encoder_inputs
        ]
        states, pooled = weighted.encoder.encode(*alone)
        torch.testing.assert_close(first.encode(*batch.encoder_inputs)[0][row], pooled[0])
        torch.testing.assert_close(mean.encode(*batch.encoder_inputs)[0][row], states[0].mean(0))
        torch.testing.assert_close(vectors[row], weights[row, :length] @ states[0])
        torch.testing.assert_close(weights[row, :length].sum(), torch.ones((), dtype=torch.float64))
        assert not weights[row, length:].any()
    assert [model.encoder.pooler.weight.requires_grad for model in (first, mean, weighted)] == [True, False, False]


def test_a_pre_trained_encoder_is_taken_whole_and_without_its_heads():
    torch.manual_seed(1)
    given = Bert(BERT).eval()
    model = BertClassifier(BertClassifierConfig(encoder=BERT, classes=CLASSES)).eval()
    batch = collate_segmented(DOCUMENTS, 16, SYMBOLS)
    assert not torch.equal(model.encode(*batch.encoder_inputs)[0], given.encode(*batch.encoder_inputs).pooled)
    model.copy_encoder(given)
    assert torch.equal(model.encode(*batch.encoder_inputs)[0], given.encode(*batch.encoder_inputs).pooled)
    names = {name for name, _ in model.encoder.named_parameters()}
    assert {name for name, _ in given.named_parameters()} - names == {
        *(f"words.{name}" for name, _ in given.words.named_parameters()),
        *(f"follows.{name}" for name, _ in given.follows.named_parameters()),
    }
