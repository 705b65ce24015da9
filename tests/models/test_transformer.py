"""The forward pass: equality with PyTorch's Transformer, masks, weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multihead.attention import Causal, Padding
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer

DOUBLE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
NAMES = {
    "self_attention.in_projection.": "self_attn.in_proj_",
    "cross_attention.in_projection.": "multihead_attn.in_proj_",
    "self_attention.output_projection.": "self_attn.out_proj.",
    "cross_attention.output_projection.": "multihead_attn.out_proj.",
    "feed_forward.expand.": "linear1.",
    "feed_forward.contract.": "linear2.",
    "self_residual.norm.": "norm1.",
    "cross_residual.norm.": "norm2.",
}


def their_name(name: str) -> str:
    """PyTorch's name for our parameter."""
    if name.startswith(("encoder_norm.", "decoder_norm.")):
        return name.replace("_norm", ".norm")
    side, layer, rest = name.split(".", 2)
    last = {"encoder": "norm2.", "decoder": "norm3."}[side]
    for ours, theirs in {**NAMES, "feed_forward_residual.norm.": last}.items():
        rest = rest.replace(ours, theirs)
    return f"{side}.layers.{layer}.{rest}"


def pytorch(model: Transformer) -> nn.ModuleDict:
    """PyTorch's encoder and decoder with our weights; in training mode, which avoids its fast path."""
    config: TransformerConfig = model.config
    sizes = (config.width, config.heads, config.inner, 0.0)
    layout: dict[str, Any] = {
        "layer_norm_eps": config.norm_eps,
        "norm_first": config.norm == "pre",
        "batch_first": True,
        "dtype": model.output.weight.dtype,
    }

    def norm() -> nn.LayerNorm | None:
        eps, dtype = layout["layer_norm_eps"], layout["dtype"]
        return nn.LayerNorm(config.width, eps=eps, dtype=dtype) if config.has_final_norm else None

    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(*sizes, **layout), config.encoder_layers, norm(), enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(*sizes, **layout), config.decoder_layers, norm())
    reference = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    reference.load_state_dict({their_name(name): value for name, value in layers_of(model).items()}, strict=True)
    return reference.train()


def layers_of(model: Transformer) -> dict[str, nn.Parameter]:
    """The parameters of encoder and decoder, without embeddings and output projection."""
    return {name: value for name, value in model.named_parameters() if name.startswith(("encoder", "decoder"))}


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, in units of the tensor's largest element."""
    assert ours.shape == theirs.shape
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("final_norm", [False, True])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_equals_pytorch_in_output_and_gradients(
    small: Any, norm: str, final_norm: bool, dtype: torch.dtype, tolerance: float
) -> None:
    ours = small.model(dtype=dtype, norm=norm, final_norm=final_norm, norm_eps=1e-5, width=24, encoder_layers=3)
    theirs = pytorch(ours)
    (source, lengths), (target, target_lengths) = small.padded(small.sources), small.padded(small.targets)
    padding = torch.arange(source.size(1)) >= lengths[:, None]
    real = torch.arange(target.size(1)) < target_lengths[:, None]
    future = torch.ones(target.size(1), target.size(1), dtype=torch.bool).triu(1)

    encoded, _ = ours.encode(source, lengths)
    logits = ours(source, lengths, target).logits
    their_encoded = theirs["encoder"](ours.source_embedding(source), src_key_padding_mask=padding)
    states = theirs["decoder"](
        ours.target_embedding(target), their_encoded, tgt_mask=future, memory_key_padding_mask=padding
    )
    their_logits = F.linear(states, ours.output.weight)
    assert relative_error(encoded[~padding], their_encoded[~padding]) <= tolerance
    assert relative_error(logits[real], their_logits[real]) <= tolerance

    direction = torch.randn(int(real.sum()), logits.size(-1), dtype=dtype)
    tables = [ours.source_embedding.table.weight, ours.target_embedding.table.weight]
    names = list(layers_of(ours))
    gradients = torch.autograd.grad((logits[real] * direction).sum(), [*layers_of(ours).values(), *tables])
    their_parameters = dict(theirs.named_parameters())
    leaves = [*(their_parameters.pop(their_name(name)) for name in names), *tables]
    assert not their_parameters
    their_gradients = torch.autograd.grad((their_logits[real] * direction).sum(), leaves)
    for name, mine, other in zip([*names, "source", "target"], gradients, their_gradients, strict=True):
        assert relative_error(mine, other) <= tolerance, name


@pytest.mark.parametrize("extra", [0, 1, 9])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_padded_batch_equals_its_sentences_one_by_one(small: Any, norm: str, extra: int) -> None:
    model = small.model(norm=norm)
    source, lengths = small.padded(small.sources, extra)
    target, target_lengths = small.padded(small.targets, extra)
    together = model(source, lengths, target).logits
    for row, (one, other) in enumerate(zip(small.sources, small.targets, strict=True)):
        alone = model(*small.padded([one]), torch.tensor([other])).logits[0]
        torch.testing.assert_close(together[row, : target_lengths[row]], alone, **DOUBLE)


def test_what_stands_in_the_padding_is_never_seen(small: Any) -> None:
    model = small.model()
    source, lengths = small.padded(small.sources, 2)
    target, _ = small.padded(small.targets)
    padding = torch.arange(source.size(1)) >= lengths[:, None]
    other = source.masked_fill(padding, 7)
    assert not torch.equal(other, source)
    assert torch.equal(model(other, lengths, target).logits, model(source, lengths, target).logits)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_future_changes_nothing_before_it(small: Any, norm: str) -> None:
    model = small.model(norm=norm)
    source, lengths = small.padded(small.sources)
    target = torch.tensor([[1, 6, 4, 9, 3, 8]] * len(small.sources))
    before = model(source, lengths, target).logits
    for changed in range(1, target.size(1)):
        other = target.clone()
        other[:, changed] = 5
        after = model(source, lengths, other).logits
        assert torch.equal(after[:, :changed], before[:, :changed])
        assert (after[:, changed:] - before[:, changed:]).abs().amax(-1).min() > 1e-6  # all after it do change


def test_every_weight_of_every_head_can_be_seen(small: Any) -> None:
    model = small.model(encoder_layers=3)
    (source, lengths), (target, _) = small.padded(small.sources, 1), small.padded(small.targets)
    plain = model(source, lengths, target)
    seen = model(source, lengths, target, need_weights=True)
    assert plain.weights is None
    torch.testing.assert_close(seen.logits, plain.logits, **DOUBLE)

    batch, heads, long, short = len(source), model.config.heads, source.size(1), target.size(1)
    assert [tuple(w.shape) for w in seen.weights.encoder] == [(batch, heads, long, long)] * 3
    assert [tuple(w.shape) for w in seen.weights.decoder] == [(batch, heads, short, short)] * 2
    assert [tuple(w.shape) for w in seen.weights.cross] == [(batch, heads, short, long)] * 2
    padding = (torch.arange(long) >= lengths[:, None])[:, None, None]
    future = torch.ones(short, short, dtype=torch.bool).triu(1)
    cases = ((seen.weights.encoder, padding), (seen.weights.decoder, future), (seen.weights.cross, padding))
    for layers, hidden in cases:
        for weights in layers:
            assert weights.min() >= 0
            assert not weights.masked_select(hidden).any()
            torch.testing.assert_close(
                weights.masked_fill(hidden, 0.0).sum(-1), torch.ones(weights.shape[:-1]).double()
            )


def test_weights_come_first_layer_first(small: Any) -> None:
    model = small.model()
    (source, lengths), (target, _) = small.padded(small.sources), small.padded(small.targets)
    x, y, padding = model.source_embedding(source), model.target_embedding(target), Padding(lengths)
    weights = model(source, lengths, target, need_weights=True).weights
    assert weights is not None
    for layer, recorded in zip(model.encoder, weights.encoder, strict=True):
        x, own = layer(x, padding, need_weights=True)
        torch.testing.assert_close(recorded, own, **DOUBLE)
    for layer, of_self, of_cross in zip(model.decoder, weights.decoder, weights.cross, strict=True):
        y, own, cross, _ = layer(y, layer.project_memory(x), Causal(), padding, need_weights=True)
        torch.testing.assert_close(of_self, own, **DOUBLE)
        torch.testing.assert_close(of_cross, cross, **DOUBLE)
    encoded, recorded = model.encode(source, lengths)
    torch.testing.assert_close(encoded, x, **DOUBLE)
    assert recorded == ()


def test_hidden_is_the_state_before_the_output_projection(small: Any) -> None:
    model = small.model()
    (source, lengths), (target, _) = small.padded(small.sources), small.padded(small.targets)
    hidden = model.hidden(source, lengths, target)
    torch.testing.assert_close(model.output(hidden), model(source, lengths, target).logits, **DOUBLE)
    torch.testing.assert_close(model.output(hidden), hidden @ model.output.weight.t(), **DOUBLE)


def test_dropout_acts_in_training_only(small: Any) -> None:
    model = small.model(dropout=0.3)
    (source, lengths), (target, _) = small.padded(small.sources), small.padded(small.targets)
    quiet = small.model(dropout=0.0)(source, lengths, target).logits
    assert torch.equal(model(source, lengths, target).logits, quiet)
    model.train()
    first, second = model(source, lengths, target).logits, model(source, lengths, target).logits
    assert not torch.equal(first, second)
    assert not torch.equal(first, quiet)
