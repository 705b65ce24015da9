"""`capture` on models of `transformers`: a MarianMT, a BERT and a T5, tiny and random."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from multihead.errors import ConfigurationError
from multihead.inspection.capture import capture
from multihead.inspection.replacements import patch_heads, zero_heads

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")

SIZES: dict[str, Any] = {"d_model": 16, "vocab_size": 30, "pad_token_id": 0, "eos_token_id": 1}
SIDES = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in
         (("layers", 2), ("attention_heads", 4), ("ffn_dim", 24))}  # fmt: skip


def make(kind: str, implementation: str) -> Any:
    torch.manual_seed(0)
    start = {"decoder_start_token_id": 0}
    match kind:
        case "Marian":
            config = transformers.MarianConfig(
                **SIZES, **SIDES, **start, max_position_embeddings=20, dropout=0.0, forced_eos_token_id=None
            )
            made = transformers.MarianMTModel
        case "T5":
            config = transformers.T5Config(
                **SIZES, **start, num_layers=2, num_heads=4, d_kv=4, d_ff=24, dropout_rate=0.0
            )
            made = transformers.T5ForConditionalGeneration
        case _:
            config = transformers.BertConfig(
                vocab_size=30,
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=24,
                max_position_embeddings=20,
            )
            made = transformers.BertModel
    config._attn_implementation = implementation
    model = made(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


NAMES = {
    "Marian": {
        "encoder_attentions": "model.encoder.layers.{}.self_attn",
        "decoder_attentions": "model.decoder.layers.{}.self_attn",
        "cross_attentions": "model.decoder.layers.{}.encoder_attn",
    },
    "T5": {
        "encoder_attentions": "encoder.block.{}.layer.0.SelfAttention",
        "decoder_attentions": "decoder.block.{}.layer.0.SelfAttention",
        "cross_attentions": "decoder.block.{}.layer.1.EncDecAttention",
    },
    "BERT": {"attentions": "encoder.layer.{}.attention.self"},
}
"""Where the weights that `transformers` returns are from."""

PROJECTIONS = {"Marian": "{}.out_proj", "T5": "{}.o", "BERT": "encoder.layer.1.attention.output.dense"}


def run(model: Any, seed: int = 0, **options: Any) -> Any:
    draw = torch.Generator().manual_seed(seed)
    source, target = (torch.randint(2, 30, (2, length), generator=draw) for length in (6, 4))
    given = {"input_ids": source, "attention_mask": (torch.arange(6) < torch.tensor([6, 3])[:, None]).long()}
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = target
    return model(**given, **options)


def output(model: Any, seed: int = 0) -> Tensor:
    found: Tensor = run(model, seed)[0]
    return found


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", NAMES)
def test_weights_are_those_that_transformers_returns(kind: str, implementation: str) -> None:
    model = make(kind, implementation)
    before = output(model)
    with capture(model) as seen:
        found = output(model)
    close(found, before)
    assert implementation == "sdpa" or torch.equal(found, before)
    assert model.config._attn_implementation == implementation
    assert torch.equal(output(model), before)
    returned = run(make(kind, "eager"), output_attentions=True)
    assert len(seen) == 2 * len(NAMES[kind])
    for field, name in NAMES[kind].items():
        assert len(returned[field]) == 2
        for layer, weights in enumerate(returned[field]):
            assert torch.equal(seen[name.format(layer)].weights, weights)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", NAMES)
def test_replacing(kind: str, implementation: str) -> None:
    """Zeros equal W^O without these columns; the recorded output changes nothing; that of another run does."""
    model = make(kind, implementation)
    with capture(model) as own:
        before = output(model)
    with capture(model) as other:
        output(model, seed=1)
    for pattern in NAMES[kind].values():
        name = pattern.format(1)
        cut = copy.deepcopy(model)
        cut.get_submodule(PROJECTIONS[kind].format(name)).weight[:, 8:12] = 0
        wanted = output(cut)
        assert not torch.allclose(wanted, before, atol=1e-3)
        for what in ("heads", "weights"):
            for replaced, expected in ((zero_heads(2), wanted), (getattr(own[name], what), before)):
                with capture(model, **{what: {name: replaced}}):
                    close(output(model), expected)
        with capture(model, heads={name: patch_heads(other[name].heads, 2)}) as mixed:
            assert not torch.allclose(output(model), before, rtol=0, atol=1e-5)
        assert torch.equal(mixed[name].heads[:, 2], other[name].heads[:, 2])
        close(mixed[name].heads[:, [0, 1, 3]], own[name].heads[:, [0, 1, 3]])


def test_a_search_calls_it_at_every_step() -> None:
    model = make("Marian", "sdpa")
    source = torch.randint(2, 30, (1, 5), generator=torch.Generator().manual_seed(0))
    asked: dict[str, Any] = {"max_new_tokens": 4, "min_new_tokens": 4, "num_beams": 1, "do_sample": False}
    plain = model.generate(source, **asked)
    with capture(model) as seen:
        assert torch.equal(model.generate(source, **asked), plain)
    found = [tuple(call.weights.shape) for call in seen.calls("model.decoder.layers.0.encoder_attn")]
    assert found == [(1, 4, 1, 5)] * 4


def test_two_models_apart() -> None:
    """A part that is not captured is left alone, and so is another model of the same class."""
    model, other = make("BERT", "eager"), make("BERT", "eager")
    before = output(other)
    with capture(model, only=["encoder.layer.1.attention.self"]) as seen:
        assert torch.equal(output(other), before)
        output(model)
        with pytest.raises(ConfigurationError, match="captured already"), capture(model):
            pass
    assert list(seen) == ["encoder.layer.1.attention.self"]
