"""Low-rank adapters: the equation, its gradients, what is frozen, and merging."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from multihead.engine.networks import why_not
from multihead.errors import ConfigurationError
from multihead.kernels import random
from multihead.models.adapters import adapt, merged
from multihead.models.config import RecurrentConfig, TransformerConfig
from multihead.models.recurrent.network import RecurrentTranslator
from multihead.models.transformer import Transformer

RANK, ALPHA = 4, 6.0
SIZES: dict[str, Any] = {
    **dict.fromkeys(("source_vocab", "target_vocab"), 30),
    "padding_id": 0,
    "width": 24,
    "heads": 3,
    "inner": 40,
    "encoder_layers": 1,
    "decoder_layers": 2,
}
KINDS: list[dict[str, Any]] = [
    {"norm": "post"},
    {"norm": "pre", "kv_heads": 1, "feed_forward": "swiglu", "tie_output": False, "output_bias": True},
]


@pytest.fixture(params=KINDS, ids=["relu", "grouped, gated"])
def given(request: pytest.FixtureRequest) -> Transformer:
    """A network in which every parameter has been learned."""
    torch.manual_seed(3)
    model = Transformer(TransformerConfig(**SIZES, **request.param, dropout=0.2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        for weight, row in model.zero_rows():
            weight[row] = 0
    return model


def adapted(given: Transformer, *, learned: bool = True) -> Transformer:
    """A copy with adapters, which have learned something."""
    model = copy.deepcopy(given)
    adapt(model, RANK, ALPHA, torch.Generator().manual_seed(5))
    if learned:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(".b"):
                    parameter.normal_(std=0.3)
    return model


def example() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([7, 1, 12])
    source, target = (
        torch.randint(4, 30, (3, 12), generator=generator) * (torch.arange(12) < length[:, None])
        for length in (lengths, torch.tensor([4, 12, 1]))
    )
    return source, lengths, target.roll(1, 1) * (target > 0), target


@torch.no_grad()
def logits(model: Transformer) -> Tensor:
    return model.eval()(*example()[:3]).logits


def gradients(model: Transformer, precision: torch.dtype | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    model.train().zero_grad()
    with random.step(7), torch.autocast("cpu", precision, enabled=precision is not None):
        loss = model.loss(*example(), smoothing=0.1)
    loss.total.backward()
    return loss.total.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def parts(model: Transformer, name: str) -> tuple[int, ...]:
    """The rows of each map in an adapted weight."""
    module = model.get_submodule(name)
    return getattr(module, "sizes", (module.weight.shape[0],))


def test_it_begins_as_the_given_network_bit_for_bit(given: Transformer) -> None:
    model = adapted(given, learned=False)
    assert torch.equal(logits(model), logits(given))
    assert torch.equal(logits(merged(model)), logits(given))


def test_each_map_of_attention_and_feed_forward_has_its_own_pair_and_all_else_is_frozen(given: Transformer) -> None:
    model = adapted(given)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    maps = [
        name
        for name, weight in given.named_parameters()
        if weight.dim() == 2 and not name.startswith(("source_embedding", "target_embedding", "output"))
    ]
    assert trained.keys() == {f"{name.removesuffix('weight')}{part}" for name in maps for part in "ab"}
    for name in maps:
        stem, weight = name.removesuffix(".weight"), given.get_parameter(name)
        count = 3 if "in_projection" in name else 1
        assert trained[f"{stem}.a"].shape == (count * RANK, weight.shape[1])
        assert trained[f"{stem}.b"].shape == (weight.shape[0], RANK)
        assert torch.equal(model.get_parameter(f"{stem}.base"), weight)


def test_the_gradients_are_those_of_the_equation(given: Transformer) -> None:
    """With G the gradient of W' in the plain network: dA = (alpha / r) B^T G, dB = (alpha / r) G A^T."""
    model = adapted(given)
    (loss, own), (want, plain) = gradients(model), gradients(merged(model))
    torch.testing.assert_close(loss, want, rtol=1e-5, atol=0)
    assert own.keys() == {name for name, p in model.named_parameters() if p.requires_grad}
    for name in (name for name in own if name.endswith(".a")):
        stem = name.removesuffix(".a")
        sizes, a, b = parts(model, stem), model.get_parameter(name), model.get_parameter(f"{stem}.b")
        pieces = zip(plain[f"{stem}.weight"].split(sizes), a.split(RANK), b.split(sizes), strict=True)
        of_a, of_b = zip(*((down.T @ g, g @ up.T) for g, up, down in pieces), strict=True)
        for got, expected in ((own[name], torch.cat(of_a)), (own[f"{stem}.b"], torch.cat(of_b))):
            expected = ALPHA / RANK * expected
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-4 * expected.abs().max().item() + 1e-7)


def test_merging_gives_a_plain_network_that_computes_the_same(given: Transformer) -> None:
    model = adapted(given)
    before = logits(model)
    plain = merged(model)
    assert (logits(plain) - before).abs().max() < 1e-5 * before.abs().max()
    assert (before - logits(given)).abs().max() > 0.1  # and the adapters do something
    assert torch.equal(logits(model), before)  # the network itself keeps its adapters
    assert why_not(plain) is None  # the compiled search takes it
    for name, weight in plain.named_parameters():
        stem, original = name.removesuffix(".weight"), given.get_parameter(name)
        assert weight.requires_grad
        if f"{stem}.a" not in dict(model.named_parameters()):
            assert torch.equal(weight, original), name
            continue
        a, b = model.get_parameter(f"{stem}.a"), model.get_parameter(f"{stem}.b")
        pairs = zip(b.split(parts(model, stem)), a.split(RANK), strict=True)
        expected = original + ALPHA / RANK * torch.cat([down @ up for down, up in pairs])
        torch.testing.assert_close(weight, expected, rtol=1e-5, atol=1e-6)


def test_a_merged_network_can_be_trained_and_its_padding_stays_zero(given: Transformer) -> None:
    plain = merged(adapted(given))
    _, found = gradients(plain)
    assert found.keys() == dict(given.named_parameters()).keys()
    for weight, row in plain.zero_rows():
        assert weight.grad is not None
        assert not weight.grad[row].any()


def test_under_autocast_the_sum_stays_in_float32(given: Transformer) -> None:
    model = adapted(given)
    feed_forward: Any = model.encoder[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(feed_forward.feed_forward.expand.weight, merged(model).encoder[0].feed_forward.expand.weight)  # type: ignore[union-attr, operator]
    (loss, own), (want, _) = gradients(model, torch.bfloat16), gradients(model)
    torch.testing.assert_close(loss, want, rtol=1e-2, atol=0)
    assert {gradient.dtype for gradient in own.values()} == {torch.float32}


def test_a_rank_above_a_matrix_and_a_recurrent_network_are_refused(given: Transformer) -> None:
    smallest = 8 if given.config.kv_heads == 1 else 24
    with pytest.raises(ConfigurationError, match=f"--lora 25: a rank is at most .*, {smallest} in encoder.0.self_"):
        adapt(given, 25, ALPHA)
    adapt(given, smallest, ALPHA)
    recurrent = RecurrentTranslator(RecurrentConfig(source_vocab=30, target_vocab=30, padding_id=0, width=8))
    with pytest.raises(ConfigurationError, match="only Transformers have adapters, and this model is recurrent"):
        adapt(recurrent, 2, ALPHA)
