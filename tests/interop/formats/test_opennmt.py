"""OpenNMT-py's and Eole's networks as their documentation describes them, their transforms, and what is refused.

Comparison with both programs themselves: docs/interop.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from multihead.errors import FormatError
from multihead.interop.formats.opening import read_foreign
from multihead.interop.formats.parts import Languages

WIDTH, INNER = 8, 12
PIECES = ["<unk>", "<blank>", "<s>", "</s>", "the", "low@@", "er", "l@@", "o@@", "w", "house", "▁A"]

ONMT = {
    "source": "encoder.embeddings.make_embedding.emb_luts.0",
    "target": "decoder.embeddings.make_embedding.emb_luts.0",
    "encoder": "encoder.transformer",
    "decoder": "decoder.transformer_layers",
    "encoder norms": ("layer_norm", "", "feed_forward.layer_norm"),
    "decoder norms": ("layer_norm_1", "layer_norm_2", "feed_forward.layer_norm"),
    "first": "feed_forward.w_1",
    "last": "feed_forward.w_2",
    "other": "feed_forward.w_3",
}
EOLE = {
    "source": "src_emb.embeddings",
    "target": "tgt_emb.embeddings",
    "encoder": "encoder.transformer_layers",
    "decoder": "decoder.transformer_layers",
    "encoder norms": ("input_layernorm", "", "post_attention_layernorm"),
    "decoder norms": ("input_layernorm", "precontext_layernorm", "post_attention_layernorm"),
    "first": "mlp.gate_up_proj",
    "last": "mlp.down_proj",
    "other": "mlp.up_proj",
}
"""Where the two programs keep the parts of the same network."""


class Network:
    """The documented network: pre-norm, a last norm, embeddings times sqrt(D) plus sinusoids, no source end."""

    def __init__(self, made: Any, names: dict[str, Any], **variant: Any) -> None:
        self.names, self.made = names, made
        self.gated: bool = variant.pop("gated", False)
        self.bias: bool = variant.pop("bias", True)
        self.shared_heads: int = variant.pop("kv_heads", 2)
        self.positions: Callable[[int], Tensor] = variant.pop("positions", lambda n: made.interleaved(n, WIDTH))
        self.scale: float = variant.pop("scale", WIDTH**0.5)
        self.weights: dict[str, Tensor] = made.random_weights(self.shapes() | variant.pop("more", {}))
        self.plain = made.plain(self.weights, 2, variant.pop("eps", 1e-6), variant.pop("activation", torch.relu))
        assert not variant

    def shapes(self) -> dict[str, Sequence[int]]:
        found: dict[str, Sequence[int]] = {f"{self.names[side]}.weight": (12, WIDTH) for side in ("source", "target")}
        for side in ("encoder", "decoder"):
            found |= self.made.norm(WIDTH, f"{side}.layer_norm")
            layer = f"{self.names[side]}.0"
            found |= self.made.norm(WIDTH, *(f"{layer}.{norm}" for norm in self.names[f"{side} norms"] if norm))
            for name in (self.names["first"], self.names["other"])[: 1 + self.gated]:
                found |= self.made.linear(f"{layer}.{name}", INNER, WIDTH, self.bias)
            found |= self.made.linear(f"{layer}.{self.names['last']}", WIDTH, INNER, self.bias)
            for kind in ("self_attn", "context_attn")[: 1 + (side == "decoder")]:
                for part in ("linear_query", "linear_keys", "linear_values", "final_linear"):
                    rows = WIDTH // 2 * self.shared_heads if part in ("linear_keys", "linear_values") else WIDTH
                    found |= self.made.linear(f"{layer}.{kind}.{part}", rows, WIDTH, self.bias)
        return found | self.made.linear("generator", 12, WIDTH)

    def run(self, side: str, embedding: str, ids: list[int], memory: Tensor | None = None) -> Tensor:
        plain, layer = self.plain, f"{self.names[side]}.0"
        x = self.scale * self.weights[f"{self.names[embedding]}.weight"][ids] + self.positions(len(ids))
        norms = self.names[f"{side} norms"]
        for kind, norm in zip(("self_attn", "context_attn"), norms, strict=False):
            if norm:
                z = plain.norm(x, f"{layer}.{norm}")
                parts = [f"{layer}.{kind}.{part}" for part in ("linear_query", "linear_keys", "linear_values")]
                own = kind == "self_attn"
                attended = z if own else memory
                names = [*parts, f"{layer}.{kind}.final_linear"]
                x = x + plain.attend(z, attended, names, causal=own and side == "decoder")
        z = plain.norm(x, f"{layer}.{norms[2]}")
        first, last, other = (f"{layer}.{self.names[name]}" for name in ("first", "last", "other"))
        x = x + (plain.feed(z, other, last, gate=first) if self.gated else plain.feed(z, first, last))
        return plain.norm(x, f"{side}.layer_norm")

    def __call__(self, source: list[int], target: list[int]) -> Tensor:
        return self.plain.linear(
            self.run("decoder", "target", target, self.run("encoder", "source", source)), "generator"
        )


def halves(length: int) -> Tensor:
    """Sinusoids of 'SinusoidalConcat'."""
    angles = torch.arange(length)[:, None] * 10000 ** (-torch.arange(WIDTH // 2) / (WIDTH // 2 - 1))
    return torch.cat((angles.sin(), angles.cos()), 1)


def write_opennmt(folder: Path, network: Network, pieces: list[str] = PIECES, **options: Any) -> None:
    """A folder with a checkpoint of OpenNMT-py 3."""
    settings = {"encoder_type": "transformer", "decoder_type": "transformer", "position_encoding": True, "heads": 2}
    vocabulary = {"src": pieces, "tgt": pieces, "data_task": "seq2seq", "decoder_start_token": "<s>"}
    table = {"encoder.embeddings.make_embedding.pe.pe": torch.zeros(9, 1, WIDTH)}
    checkpoint = {
        "model": {name: tensor for name, tensor in network.weights.items() if "generator" not in name} | table,
        "generator": {name[10:]: tensor for name, tensor in network.weights.items() if "generator" in name},
        "vocab": vocabulary,
        "opt": argparse.Namespace(**settings | options),
        "optim": {},
    }
    torch.save(checkpoint, folder / "model_step_20.pt")
    torch.save({}, folder / "model_step_3.pt")


def write_eole(folder: Path, network: Network, model: dict[str, Any], **content: Any) -> None:
    """A folder of Eole."""
    settings = {
        "architecture": "transformer",
        "eole_version": "0.6",
        "hidden_size": WIDTH,
        "heads": 2,
        "encoder": {"encoder_type": "transformer"},
        "decoder": {"decoder_type": "transformer"},
    }
    weights = dict(network.weights)
    if model.get("share_embeddings"):
        del weights["tgt_emb.embeddings.weight"]
    if model.get("share_decoder_embeddings"):
        del weights["generator.weight"]
    half = len(weights) // 2
    for number, names in enumerate((list(weights)[:half], list(weights)[half:])):
        save_file({name: weights[name] for name in names}, folder / f"model.0{number}.safetensors")
    (folder / "config.json").write_text(json.dumps({"model": settings | model} | content), encoding="utf-8")
    (folder / "vocab.json").write_text(json.dumps({"src": PIECES, "tgt": PIECES}), encoding="utf-8")


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        ({}, {}),
        ({"bias": False, "activation": F.gelu}, {"pos_ffn_activation_fn": "gelu", "norm_eps": 1e-6}),
        ({"gated": True, "activation": F.silu, "kv_heads": 1}, {"pos_ffn_activation_fn": "silu", "num_kv": 1}),
        ({"positions": halves}, {"position_encoding_type": "SinusoidalConcat"}),
    ],
    ids=["default", "no biases, GELU", "gated, one head of keys", "sines, then cosines"],
)
def test_opennmts_network_is_the_documented_one(
    tmp_path: Path, foreigners: Any, variant: dict[str, Any], options: dict[str, Any]
) -> None:
    network = Network(foreigners, ONMT, **variant)
    write_opennmt(tmp_path, network, **options)
    foreigners.compare(tmp_path, network, end=False)


def test_opennmts_shared_matrices_are_tied(tmp_path: Path, foreigners: Any) -> None:
    network = Network(foreigners, ONMT)
    for name in (f"{ONMT['target']}.weight", "generator.weight"):
        network.weights[name] = network.weights[f"{ONMT['source']}.weight"]
    write_opennmt(tmp_path, network)
    parts = foreigners.compare(tmp_path, network, end=False)
    assert (parts.config.tie_embeddings, parts.config.tie_output, parts.config.output_bias) == (True, True, True)


def test_opennmts_weights_may_be_in_safetensors(tmp_path: Path, foreigners: Any) -> None:
    network = Network(foreigners, ONMT)
    write_opennmt(tmp_path, network)
    path = tmp_path / "model_step_20.pt"
    checkpoint = torch.load(path, weights_only=False)
    torch.save({name: value for name, value in checkpoint.items() if name not in ("model", "generator")}, path)
    with pytest.raises(FormatError, match=r"has no weights, and model_step_20.00.safetensors is missing"):
        read_foreign(tmp_path, Languages())
    save_file(network.weights, tmp_path / "model_step_20.00.safetensors")
    foreigners.compare(tmp_path, network, end=False)


@pytest.mark.parametrize(
    ("variant", "model"),
    [
        ({"eps": 1e-5}, {}),
        ({"gated": True, "activation": F.silu, "eps": 1e-6}, {"mlp_activation_fn": "gated-silu", "norm_eps": 1e-6}),
        (
            {"bias": False, "activation": F.silu, "kv_heads": 1, "eps": 1e-5},
            {"mlp_activation_fn": "silu", "heads_kv": 1},
        ),
        ({"positions": halves, "eps": 1e-5}, {"embeddings": {"position_encoding_type": "SinusoidalConcat"}}),
    ],
    ids=["default", "gated", "SiLU, one head of keys", "sines, then cosines"],
)
def test_eoles_network_is_the_documented_one(
    tmp_path: Path, foreigners: Any, variant: dict[str, Any], model: dict[str, Any]
) -> None:
    network = Network(foreigners, EOLE, **variant)
    write_eole(tmp_path, network, model)
    foreigners.compare(tmp_path, network, end=False)


def test_eoles_learned_positions_are_read_from_their_shift_on(tmp_path: Path, foreigners: Any) -> None:
    tables = {"src_emb.pe.weight": (12, WIDTH), "tgt_emb.pe.weight": (12, WIDTH)}
    network = Network(foreigners, EOLE, eps=1e-5, scale=1.0, more=tables)
    network.weights["tgt_emb.pe.weight"] = network.weights["src_emb.pe.weight"].clone()
    network.positions = lambda length: network.weights["src_emb.pe.weight"][1 : length + 1]
    embeddings = {"position_encoding_type": "Learned", "n_positions": 12, "position_shift": 1}
    write_eole(tmp_path, network, {"embeddings": embeddings})
    assert foreigners.compare(tmp_path, network, end=False).config.max_positions == 11


def test_eole_stores_shared_matrices_once(tmp_path: Path, foreigners: Any) -> None:
    network = Network(foreigners, EOLE, eps=1e-5)
    for name in ("tgt_emb.embeddings.weight", "generator.weight"):
        network.weights[name] = network.weights["src_emb.embeddings.weight"]
    write_eole(tmp_path, network, {"share_embeddings": True, "share_decoder_embeddings": True})
    parts = foreigners.compare(tmp_path, network, end=False)
    assert (parts.config.tie_embeddings, parts.config.tie_output, parts.config.output_bias) == (True, True, True)


def test_the_transform_cuts_texts(tmp_path: Path, foreigners: Any, foreign: Any) -> None:
    codes = "#version: 0.2\nl o\ne r</w>\nlo w\n"
    (tmp_path / "bpe.codes").write_text(codes, encoding="utf-8")
    (tmp_path / "sp.model").write_bytes(foreign.pieces.joint)
    network = Network(foreigners, ONMT)
    write_opennmt(tmp_path, network, transforms=["filtertoolong", "bpe"], src_subword_model="/data/bpe.codes")
    tokenizer = read_foreign(tmp_path, Languages()).source_tokenizer
    assert tokenizer.pieces(tokenizer.encode("lower low")) == ["low@@", "er", "<unk>", "w"]
    write_opennmt(tmp_path, network, transforms=["sentencepiece"], src_subword_model="sp.model")
    tokenizer = read_foreign(tmp_path, Languages()).target_tokenizer
    assert PIECES.index("▁A") in tokenizer.encode("A house")
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id) == (1, 2, 3, 0)
    (tmp_path / "sp.model").unlink()
    with pytest.raises(FormatError, match=r"the SentencePiece model is missing: expected sp.model"):
        read_foreign(tmp_path, Languages())
    write_opennmt(tmp_path, network, transforms=["onmt_tokenize"])
    with pytest.raises(FormatError, match="texts are prepared by 'onmt_tokenize'; multihead knows the transforms"):
        read_foreign(tmp_path, Languages())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder_type": "brnn"}, "the encoder is of type 'brnn'; multihead reads OpenNMT's Transformers"),
        ({"copy_attn": True}, "a copy mechanism"),
        ({"max_relative_positions": -1, "position_encoding": False}, "rotary positions; multihead reads sinusoidal"),
        ({"max_relative_positions": 20, "position_encoding": False}, "relative positions"),
        ({"position_encoding": False}, "no positions"),
        ({"layer_norm": "rms"}, "layer_norm is 'rms'; multihead reads 'standard'"),
        ({"self_attn_type": "average"}, "self-attention of type 'average'"),
        ({"num_experts": 4}, "a mixture of experts"),
        ({"pos_ffn_activation_fn": "tanh"}, "the activation 'tanh'"),
        ({"src_vocab_threshold": 5, "transforms": ["bpe"]}, "src_vocab_threshold restricts the pieces"),
    ],
)
def test_opennmts_other_variants_are_refused_by_name(
    tmp_path: Path, foreigners: Any, options: dict[str, Any], message: str
) -> None:
    write_opennmt(tmp_path, Network(foreigners, ONMT), **options)
    with pytest.raises(FormatError, match=message):
        read_foreign(tmp_path, Languages())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"encoder": {"encoder_type": "cnn"}}, "the encoder is of type 'cnn'; multihead reads Eole's Transformers"),
        ({"encoder": None}, "the encoder is of type 'None'"),
        ({"embeddings": {"position_encoding_type": "Rotary"}}, "Rotary positions; multihead reads Learned, Sinusoidal"),
        ({"layer_norm": "rms"}, "layer norms of type 'rms'"),
        ({"parallel_residual": True}, "parallel residual connections"),
        ({"decoder": {"decoder_type": "transformer", "heads": 4}}, "heads is 2 in the encoder and 4 in the decoder"),
        ({"mlp_activation_fn": "gelu-tanh"}, "the activation 'gelu-tanh'"),
        ({"embeddings": {"normalize": True}}, "embeddings that are scaled or normalized"),
    ],
)
def test_eoles_other_variants_are_refused_by_name(
    tmp_path: Path, foreigners: Any, model: dict[str, Any], message: str
) -> None:
    write_eole(tmp_path, Network(foreigners, EOLE), model)
    with pytest.raises(FormatError, match=message):
        read_foreign(tmp_path, Languages())


def test_damage_is_one_line(tmp_path: Path, foreigners: Any, evil: Any) -> None:
    network = Network(foreigners, ONMT)
    write_opennmt(tmp_path, network, pieces=[piece for piece in PIECES if piece != "<blank>"])
    with pytest.raises(FormatError, match="the vocabulary 'src' has no <blank>"):
        read_foreign(tmp_path, Languages())
    path = tmp_path / "model_step_20.pt"
    torch.save({"vocab": [("src", evil)], "opt": None}, path)
    with pytest.raises(FormatError, match="which is code and not data"):
        read_foreign(tmp_path, Languages())
    torch.save({"vocab": [("src", 1)], "opt": None}, path)
    with pytest.raises(FormatError, match=r"a checkpoint of OpenNMT-py 1 or 2; its tools/convertv2_v3.py converts it"):
        read_foreign(tmp_path, Languages())
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(FormatError, match="not a checkpoint of PyTorch, or damaged"):
        read_foreign(tmp_path, Languages())
