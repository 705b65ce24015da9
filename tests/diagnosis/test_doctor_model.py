"""The network checks pass sound networks and recognize broken ones."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from multihead.attention import Causal, Padding
from multihead.bundle import build_network
from multihead.diagnosis.model_checks import (
    check_first_loss,
    check_learning,
    check_network,
    check_trained,
    random_pairs,
    small_batch,
)
from multihead.models import transformer as module
from multihead.models.config import RecurrentConfig, TransformerConfig
from multihead.models.network import Network
from multihead.models.transformer import Transformer

pytestmark = pytest.mark.usefixtures("one_thread")

V = 60
SMALL: dict[str, Any] = {"source_vocab": V, "target_vocab": V, "padding_id": 0, "width": 16, "dropout": 0.0}
LAYERS: dict[str, Any] = {**SMALL, "heads": 2, "inner": 32, "encoder_layers": 1, "decoder_layers": 1, "norm": "pre"}
SOUND = {
    "pre-norm": TransformerConfig(**LAYERS),
    "post-norm": TransformerConfig(**{**LAYERS, "norm": "post"}),
    "learned positions": TransformerConfig(**LAYERS, positions="learned", max_positions=9),
    "few key heads": TransformerConfig(**LAYERS, kv_heads=1, feed_forward="swiglu", tie_output=True),
    "gru": RecurrentConfig(**SMALL),
    "lstm, after": RecurrentConfig(**SMALL, cell="lstm", attend="after", input_feeding=True, score="dot"),
    "hard attention": RecurrentConfig(**SMALL, alignment="sample"),
    "gumbel": RecurrentConfig(**SMALL, alignment="gumbel"),
    "trees": RecurrentConfig(**SMALL, encoder_attention="tree"),
}
SPECIAL_IDS = {"pad_id": 0, "bos_id": 2, "eos_id": 3}
BATCH = small_batch(*random_pairs(V, V), SPECIAL_IDS)


def made(config: Any = SOUND["pre-norm"]) -> Network:
    torch.manual_seed(0)
    return build_network(config)


def codes(findings: list[Any]) -> list[str]:
    return [one.code for one in findings]


@pytest.mark.parametrize("kind", SOUND)
def test_sound_networks_pass(kind: str) -> None:
    model = made(SOUND[kind]).train()
    assert check_network(model, BATCH, kind) == []
    assert model.training
    findings, loss = check_first_loss(model, BATCH, kind)
    assert (findings, loss) == ([], pytest.approx(math.log(V), abs=1.5))


@pytest.mark.parametrize(
    "kind",
    ["pre-norm", "gru", *(pytest.param(k, marks=pytest.mark.proof) for k in SOUND if k not in ("pre-norm", "gru"))],
)
def test_sound_networks_learn(kind: str) -> None:
    learned, loss, updates = check_learning(lambda: made(SOUND[kind]), BATCH, kind)
    assert (codes(learned), loss < 0.1) in (([], True), (["learns-slowly"], False))
    assert 1 < updates <= 60


def test_the_batch_is_of_different_lengths_and_pairs() -> None:
    batch = small_batch([[5] * 40, [5] * 40, [6, 7], [8]], [[9] * 3, [9] * 3, [9], [9] * 5], SPECIAL_IDS)
    assert len(batch) == 3
    assert batch.source.shape[1] == 17
    assert len(set(batch.target_lengths.tolist())) == 3


def test_a_decoder_that_sees_the_future_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It also sees the padding, which follows the end."""
    monkeypatch.setattr(module, "Causal", lambda: ~Causal() | Causal())
    assert "sees-the-future" in codes(check_network(made(), BATCH, "leaky"))


def test_a_mask_without_padding_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(lengths: Any, *_: Any) -> Any:
        return Padding(torch.full_like(lengths, int(lengths.max())))

    monkeypatch.setattr(module, "Padding", everything)
    (one,) = check_network(made(), BATCH, "unmasked")
    assert (one.code, one.severity) == ("sees-padding", "error")


class _OtherRows(Transformer):
    """The rows of a batch influence each other."""

    def forward(self, *inputs: Any, **options: Any) -> Any:
        output = super().forward(*inputs, **options)
        return output._replace(logits=output.logits + output.logits[:, :1].mean(0))


class _OtherLoss(Transformer):
    """The training loss is not that of the logits."""

    def loss(self, *inputs: Any, smoothing: float) -> Any:
        loss = super().loss(*inputs, smoothing=smoothing)
        return loss._replace(total=1.1 * loss.total, nll=1.1 * loss.nll)


class _Blind(Transformer):
    """The encoder gets no gradient."""

    def loss(self, *inputs: Any, smoothing: float) -> Any:
        return super().loss(torch.ones_like(inputs[0]).mul(3), *inputs[1:], smoothing=smoothing)


def test_rows_that_know_each_other_are_found() -> None:
    assert codes(check_network(_OtherRows(SOUND["pre-norm"]), BATCH, "x")) == ["sees-padding"]


def test_a_loss_of_its_own_is_found() -> None:
    assert codes(check_network(_OtherLoss(SOUND["pre-norm"]), BATCH, "x")) == ["loss-differs"]


def test_numbers_that_are_none_are_found() -> None:
    model = made()
    with torch.no_grad():
        next(model.parameters())[5] = math.nan
    (one,) = check_network(model, BATCH, "x")
    assert (one.code, one.count > 0) == ("not-finite", True)


def test_weights_of_a_wrong_scale_are_found() -> None:
    model = made()
    with torch.no_grad():
        model.output.weight.mul_(20)
    findings, loss = check_first_loss(model, BATCH, "x")
    assert (codes(findings), loss > math.log(V) + 1.5) == (["initial-loss"], True)
    assert codes(check_trained(model, BATCH, "x")[0]) == ["learned-nothing"]


def test_a_part_without_a_gradient_is_named() -> None:
    def make() -> Network:
        model = made()
        model.register_parameter("unused", nn.Parameter(torch.ones(2)))
        return model

    findings, _, updates = check_learning(make, BATCH, "x")
    assert (codes(findings), updates, "unused" in findings[0].what) == (["no-gradient"], 1, True)


def test_a_network_that_cannot_learn_is_found() -> None:
    def frozen() -> Network:
        model = made()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.endswith("decoder_norm.bias"))
        assert any(parameter.requires_grad for parameter in model.parameters())
        return model

    findings, loss, updates = check_learning(frozen, BATCH, "x")
    assert (codes(findings), updates) == (["does-not-learn"], 60)
    assert loss > 1.0


def test_a_source_that_is_not_read_is_found() -> None:
    """With equal sources only one row of the source embedding learns, and the pairs cannot be told apart."""
    findings, loss, _ = check_learning(lambda: _Blind(SOUND["pre-norm"]), BATCH, "x")
    assert findings
    assert loss > 0.1


def test_gradients_and_dropout_leave_no_trace() -> None:
    """A check changes neither weights nor training mode, and leaves no gradients."""
    model = made()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    check_network(model, BATCH, "x")
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
    assert all(parameter.grad is None for parameter in model.parameters())
