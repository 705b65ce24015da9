"""Equality with the network of `attention-is-all-you-need-pytorch`.

Its code is not part of this project: the test looks for a clone in the folder that MULTIHEAD_PEERS names, or in
`peers/` beside `src/`, and is skipped if there is none. test_transformer_equations.py needs no clone.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from multihead.models.config import TransformerConfig, preset
from multihead.models.transformer import Transformer

NAME = "attention-is-all-you-need-pytorch"
PEERS = Path(os.environ.get("MULTIHEAD_PEERS", Path(__file__).resolve().parents[2] / "peers"))
PAD = 0
SIZES: dict[str, Any] = {"width": 24, "heads": 3, "key_dim": 5, "value_dim": 7, "inner": 40}
LAYERS = {"encoder_layers": 3, "decoder_layers": 3}
THEIRS = {  # their names for the parts of a layer; a norm is inside the part that it follows
    "self_residual.norm": "slf_attn.layer_norm",
    "cross_residual.norm": "enc_attn.layer_norm",
    "feed_forward_residual.norm": "pos_ffn.layer_norm",
    "feed_forward.expand": "pos_ffn.w_1",
    "feed_forward.contract": "pos_ffn.w_2",
    "self_attention.output_projection": "slf_attn.fc",
    "cross_attention.output_projection": "enc_attn.fc",
    "self_attention.in_projection": "slf_attn.w_{}s",
    "cross_attention.in_projection": "enc_attn.w_{}s",
}
OUTSIDE = {
    "source_embedding.table": "encoder.src_word_emb",
    "target_embedding.table": "decoder.trg_word_emb",
    "source_embedding.norm": "encoder.layer_norm",
    "target_embedding.norm": "decoder.layer_norm",
    "output": "trg_word_prj",
}


@pytest.fixture(scope="module")
def models() -> Iterator[ModuleType]:
    """Their module `transformer.Models`, removed from `sys.modules` afterwards."""
    folder = PEERS / NAME
    if not (folder / "transformer" / "Models.py").is_file():
        pytest.skip(f"no clone of {NAME} in {PEERS}: set MULTIHEAD_PEERS to the folder that holds one")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setattr(sys, "dont_write_bytecode", True)
        yield importlib.import_module("transformer.Models")
        for name in [name for name in sys.modules if name.split(".")[0] == "transformer"]:
            del sys.modules[name]


def their_names(name: str) -> list[str]:
    """Their names for our parameter: one, or three for W^Q, W^K and W^V, which we store as one."""
    owner, kind = name.rsplit(".", 1)
    if owner in OUTSIDE:
        return [f"{OUTSIDE[owner]}.{kind}"]
    side, layer, part = owner.split(".", 2)
    place = f"{side}.layer_stack.{layer}.{THEIRS[part]}.{kind}"
    return [place.format(which) for which in "qkv"] if "{}" in place else [place]


def reference(models: ModuleType, ours: Transformer, scale: str) -> nn.Module:
    """Their network with our parameters and positions, in evaluation mode."""
    config: TransformerConfig = ours.config
    theirs: nn.Module = models.Transformer(
        n_src_vocab=config.source_vocab,
        n_trg_vocab=config.target_vocab,
        src_pad_idx=PAD,
        trg_pad_idx=PAD,
        d_word_vec=config.width,
        d_model=config.width,
        d_inner=config.inner,
        n_layers=config.encoder_layers,
        n_head=config.heads,
        d_k=config.key_dim,
        d_v=config.value_dim,
        trg_emb_prj_weight_sharing=config.tie_output,
        emb_src_trg_weight_sharing=config.tie_embeddings,
        scale_emb_or_prj=scale,
    )
    theirs = theirs.double().eval()
    parameters = dict(theirs.named_parameters(remove_duplicate=False))
    filled = set()
    with torch.no_grad():
        for name, value in ours.named_parameters(remove_duplicate=False):
            names = their_names(name)
            parts = value.split([len(parameters[other]) for other in names])
            for other, part in zip(names, parts, strict=True):
                parameters[other].copy_(part)
            filled |= set(names)
        for side, table in (("encoder", ours.source_embedding), ("decoder", ours.target_embedding)):
            positions = theirs.get_submodule(side).position_enc.pos_table
            own = table.positions.table[: positions.size(1)].double()
            torch.testing.assert_close(positions[0], own, rtol=0, atol=2e-7)
            positions[0] = own  # both are float32 numbers below 1
    assert filled == parameters.keys()
    return theirs


def their_weights(theirs: Any, source: Tensor, target: Tensor, models: ModuleType) -> dict[str, list[Tensor]]:
    source_mask = models.get_pad_mask(source, PAD)
    target_mask = models.get_pad_mask(target, PAD) & models.get_subsequent_mask(target)
    encoded, encoder = theirs.encoder(source, source_mask, return_attns=True)
    _, own, cross = theirs.decoder(target, target_mask, encoded, source_mask, return_attns=True)
    return {"encoder": encoder, "decoder": own, "cross": cross}


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("scale", "tie_embeddings", "tie_output", "ours_scales"),
    [
        ("prj", True, True, "projection"),
        ("emb", True, True, "embedding"),
        ("none", True, True, "none"),
        ("prj", False, True, "projection"),
        ("emb", False, True, "embedding"),
        ("prj", True, False, "none"),  # theirs scales nothing where the projection is not tied
        ("emb", False, False, "none"),
    ],
)
def test_equals_theirs(
    small: Any, models: ModuleType, scale: str, tie_embeddings: bool, tie_output: bool, ours_scales: str
) -> None:
    """Logits, all weights of all heads and the gradient of every parameter, of a batch with padding on both sides."""
    options = {**preset(NAME), **SIZES, **LAYERS, "embedding_scale": ours_scales, "tie_output": tie_output}
    ours = small.model(target_vocab=13 if tie_embeddings else 11, tie_embeddings=tie_embeddings, **options)
    theirs = reference(models, ours, scale)
    (source, lengths), (target, target_lengths) = small.padded(small.sources, 1), small.padded(small.targets, 2)
    output = ours(source, lengths, target, need_weights=True)
    their_logits = theirs(source, target).view_as(output.logits)
    real = torch.arange(target.size(1)) < target_lengths[:, None]
    close(output.logits[real], their_logits[real])

    queries = {"encoder": torch.arange(source.size(1)) < lengths[:, None], "decoder": real, "cross": real}
    for kind, expected in their_weights(theirs, source, target, models).items():
        found = getattr(output.weights, kind)
        assert len(found) == len(expected) == 3
        for layer, other in zip(found, expected, strict=True):
            close(layer.transpose(1, 2)[queries[kind]], other.transpose(1, 2)[queries[kind]])

    direction = torch.randn(int(real.sum()), output.logits.size(-1), dtype=torch.float64)
    for logits in (output.logits, their_logits):
        (logits[real] * direction).sum().backward()
    gradients = {name: value.grad for name, value in theirs.named_parameters(remove_duplicate=False)}
    tied = {id(ours.output.weight)} if tie_output else set()
    for name, value in ours.named_parameters(remove_duplicate=False):
        expected = torch.cat([gradients[other] for other in their_names(name)])
        if id(value) in tied:
            expected[PAD] = 0  # theirs lets the projection train the padding row
        close(value.grad, expected)


def test_the_preset_is_their_default(models: ModuleType) -> None:
    """Sizes of all parameters, and every dropout."""
    with torch.device("meta"):
        ours = Transformer(TransformerConfig(source_vocab=90, target_vocab=90, **preset(NAME)))
        theirs = models.Transformer(90, 90, PAD, PAD)
    parameters = dict(theirs.named_parameters(remove_duplicate=False))
    mine = dict(ours.named_parameters(remove_duplicate=False))
    shapes = {other: value.shape for name, value in mine.items() for other in their_names(name)}
    assert shapes.keys() == parameters.keys()
    packed = {other for name in mine for other in their_names(name) if "in_projection" in name}
    assert all(parameters[other].shape == shapes[other] for other in shapes.keys() - packed)
    assert {shapes[other] for other in packed} == {(3 * 512, 512)}
    assert {parameters[other].shape for other in packed} == {(512, 512)}
    layer, other = ours.decoder[0], theirs.decoder.layer_stack[0]
    assert ours.source_embedding.dropout.p == theirs.encoder.dropout.p == 0.1
    assert layer.self_residual.dropout.p == other.slf_attn.dropout.p == 0.1
    assert layer.cross_attention.dropout == other.enc_attn.attention.dropout.p == 0.1
    assert layer.feed_forward_residual.dropout.p == other.pos_ffn.dropout.p == 0.1
    assert layer.feed_forward.dropout.p == 0.0  # theirs has none there
    assert theirs.scale_prj
    assert ours.output_scale == 512**-0.5
