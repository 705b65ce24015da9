"""JoeyNMT's networks as its documentation describes them, its ways to cut text, and what is refused.

Comparison with JoeyNMT itself: docs/interop.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from multihead.bundle import load_bundle
from multihead.errors import FormatError
from multihead.interop.formats.opening import read_foreign
from multihead.interop.formats.parts import Languages
from multihead.interop.importing import ImportOptions, import_model
from multihead.text.preparation import PreparedTokenizer

WIDTH, INNER = 8, 12
WORDS = ["the", "low@@", "er", "l@@", "o@@", "w", "house", "e@@", "r", "w@@"]
SIDE = {"type": "transformer", "num_heads": 2, "layer_norm": "pre", "embeddings": {"scale": True}}


def shapes(made: Any, *, pre: bool) -> dict[str, Sequence[int]]:
    """The weights of a model with two encoder layers and one decoder layer."""
    found: dict[str, Sequence[int]] = {}
    kinds = {"encoder": ("src_src_att",), "decoder": ("trg_trg_att", "src_trg_att")}
    norms = {"encoder": ("layer_norm",), "decoder": ("x_layer_norm", "dec_layer_norm")}
    for side, embedding, layers in (("encoder", "src", 2), ("decoder", "trg", 1)):
        found[f"{embedding}_embed.lut.weight"] = (len(WORDS) + 4, WIDTH)
        found |= made.norm(WIDTH, f"{side}.layer_norm") if pre else {}
        for name in (f"{side}.layers.{i}" for i in range(layers)):
            found |= made.norm(WIDTH, f"{name}.feed_forward.layer_norm", *(f"{name}.{norm}" for norm in norms[side]))
            found |= made.linear(f"{name}.feed_forward.pwff_layer.0", INNER, WIDTH)
            found |= made.linear(f"{name}.feed_forward.pwff_layer.3", WIDTH, INNER)
            for kind in kinds[side]:
                for part in ("q_layer", "k_layer", "v_layer", "output_layer"):
                    found |= made.linear(f"{name}.{kind}.{part}", WIDTH, WIDTH)
    found["decoder.output_layer.weight"] = (len(WORDS) + 4, WIDTH)
    return found


class Written:
    """The documented network."""

    def __init__(self, made: Any, weights: dict[str, Tensor], pre: bool, scale: bool, activation: Any) -> None:
        self.plain, self.made, self.pre = made.plain(weights, 2, 1e-6, activation), made, pre
        self.scale = WIDTH**0.5 if scale else 1

    def sub_layer(self, x: Tensor, norm: str, function: Any) -> Tensor:
        return x + function(self.plain.norm(x, norm)) if self.pre else self.plain.norm(x + function(x), norm)

    def run(self, side: str, embedding: str, ids: list[int], memory: Tensor | None = None) -> Tensor:
        x = self.scale * self.plain.weights[f"{embedding}_embed.lut.weight"][ids]
        x = x + self.made.interleaved(len(ids), WIDTH)
        kinds = {"src_src_att": "layer_norm"} if side == "encoder" else {"trg_trg_att": "x_layer_norm"}
        kinds |= {} if memory is None else {"src_trg_att": "dec_layer_norm"}
        for layer in range(2 if side == "encoder" else 1):
            name = f"{side}.layers.{layer}"
            for kind, norm in kinds.items():
                names = [f"{name}.{kind}.{part}" for part in ("q_layer", "k_layer", "v_layer", "output_layer")]
                own = kind != "src_trg_att"
                x = self.sub_layer(
                    x,
                    f"{name}.{norm}",
                    lambda z, names=names, own=own: self.plain.attend(
                        z, z if own else memory, names, causal=own and side == "decoder"
                    ),
                )
            forward = f"{name}.feed_forward"
            x = self.sub_layer(
                x,
                f"{forward}.layer_norm",
                lambda z, forward=forward: self.plain.feed(z, f"{forward}.pwff_layer.0", f"{forward}.pwff_layer.3"),
            )
        return self.plain.norm(x, f"{side}.layer_norm") if self.pre else x

    def __call__(self, source: list[int], target: list[int]) -> Tensor:
        states = self.run("decoder", "trg", target, self.run("encoder", "src", source))
        return self.plain.linear(states, "decoder.output_layer")


def write(folder: Path, weights: dict[str, Tensor], data: dict[str, Any], model: dict[str, Any]) -> None:
    """A ``model_dir`` of JoeyNMT."""
    sides = {side: {"lang": language, "level": "word"} | data for side, language in (("src", "de"), ("trg", "en"))}
    settings = {
        "data": sides,
        "testing": {"beam_size": 5, "beam_alpha": 0.6},
        "model": {"encoder": SIDE, "decoder": SIDE} | model,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    state = weights | {"encoder.pe.pe": torch.zeros(1, 9, WIDTH), "decoder.pe.pe": torch.zeros(1, 9, WIDTH)}
    torch.save({"model_state": state, "stats_state": {"steps": 3}}, folder / "best.ckpt")
    for side in ("src", "trg"):
        entries = ["<unk>", "<pad>", "<s>", "</s>", *WORDS]
        (folder / f"{side}_vocab.txt").write_text("".join(f"{word}\n" for word in entries), encoding="utf-8")


@pytest.fixture
def weights(foreigners: Any) -> dict[str, Tensor]:
    """Those of a small pre-norm model."""
    found: dict[str, Tensor] = foreigners.random_weights(shapes(foreigners, pre=True))
    return found


@pytest.mark.parametrize(
    ("pre", "scale", "activation", "function"),
    [(True, True, "relu", torch.relu), (False, False, "gelu", F.gelu), (True, False, "swish", F.silu)],
)
def test_the_network_is_the_documented_one(
    tmp_path: Path, foreigners: Any, pre: bool, scale: bool, activation: str, function: Any
) -> None:
    weights = foreigners.random_weights(shapes(foreigners, pre=pre))
    side = SIDE | {
        "layer_norm": "pre" if pre else "post",
        "activation": activation,
        "embeddings": {"scale": scale},
    }
    write(tmp_path, weights, {}, {"encoder": side, "decoder": side})
    parts = foreigners.compare(tmp_path, Written(foreigners, weights, pre, scale, function))
    assert (parts.source_language, parts.target_language) == ("de", "en")
    assert (parts.generation.beam, parts.generation.alpha, parts.generation.length_penalty) == (5, 0.6, "wu")


def test_an_import_keeps_the_search(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    folder = tmp_path / "joey"
    folder.mkdir()
    write(folder, weights, {}, {})
    import_model(folder, tmp_path / "model", ImportOptions(certificate=False), say=lambda _: None)
    found = load_bundle(tmp_path / "model").generation
    assert found == load_bundle(folder).generation
    assert found.length_penalty == "wu"


def test_shared_matrices_are_tied(tmp_path: Path, foreigners: Any, weights: dict[str, Tensor]) -> None:
    for name in ("trg_embed.lut.weight", "decoder.output_layer.weight"):
        weights[name] = weights["src_embed.lut.weight"]
    write(tmp_path, weights, {}, {"tied_embeddings": True, "tied_softmax": True})
    parts = foreigners.compare(tmp_path, Written(foreigners, weights, True, True, torch.relu))
    assert (parts.config.tie_embeddings, parts.config.tie_output) == (True, True)


def test_text_is_cut_as_the_settings_say(tmp_path: Path, weights: dict[str, Tensor], foreign: Any) -> None:
    """Words, characters, codes within the vocabulary, and SentencePiece within the vocabulary."""

    def tokenizer(**data: Any) -> Any:
        write(tmp_path, weights, data, {})
        return read_foreign(tmp_path, Languages()).source_tokenizer

    words = tokenizer(level="word", lowercase=True)
    assert isinstance(words, PreparedTokenizer)
    assert words.pieces(words.encode("THE House lower")) == ["the", "house", "<unk>"]
    characters = tokenizer(level="char")
    assert characters.pieces(characters.encode("w r")) == ["w", "<unk>", "r"]
    (tmp_path / "bpe.codes").write_text("#version: 0.2\nl o\ne r</w>\nlo w\n", encoding="utf-8")
    cut = tokenizer(level="bpe", tokenizer_type="subword-nmt", tokenizer_cfg={"codes": "/elsewhere/bpe.codes"})
    # 'lo' is a merge, but no entry of the vocabulary, so it is undone
    assert cut.pieces(cut.encode("lower low")) == ["low@@", "er", "l@@", "o@@", "w"]
    assert cut.decode(cut.encode("lower low")) == "lower low"
    (tmp_path / "sp.model").write_bytes(foreign.pieces.joint)
    spelled = tokenizer(level="bpe", tokenizer_type="sentencepiece", tokenizer_cfg={"model_file": "sp.model"})
    assert set(spelled.pieces(spelled.encode("lower"))) <= {"<unk>", "w", "er", "r"}


def test_text_is_normalized_where_the_settings_say_so(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    write(tmp_path, weights, {"normalize": True}, {})
    tokenizer = read_foreign(tmp_path, Languages()).source_tokenizer
    assert tokenizer.encode("the\u3000\u200bho\uff55se") == tokenizer.encode("the house")
    assert tokenizer.preparation.apply("“ﬁne”  ’x’ !") == "\"fine\" 'x'!"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"encoder": {"type": "recurrent"}}, "a recurrent encoder; multihead reads JoeyNMT's Transformers"),
        ({"decoder": {}}, "a recurrent decoder"),
        ({"decoder": SIDE | {"num_heads": 4}}, "num_heads is 2 in the encoder and 4 in the decoder"),
        ({"decoder": SIDE | {"layer_norm": "post"}}, "layer_norm is pre in the encoder and post in the decoder"),
        ({"encoder": {"type": "transformer"}, "decoder": {"type": "transformer"}}, "layer_norm is pre in the encoder"),
        ({"encoder": SIDE | {"alpha": 1.2}}, r"weighted with alpha 1.2; multihead reads alpha 1.0"),
        ({"encoder": SIDE | {"activation": "tanh"}, "decoder": SIDE | {"activation": "tanh"}}, "activation 'tanh'"),
        ({"encoder": "transformer"}, "'encoder' is 'transformer', expected a section"),
        ({"encoder": SIDE | {"num_heads": 3}, "decoder": SIDE | {"num_heads": 3}}, "width must be a multiple of heads"),
    ],
)
def test_other_variants_are_refused_by_name(
    tmp_path: Path, weights: dict[str, Tensor], model: dict[str, Any], message: str
) -> None:
    write(tmp_path, weights, {}, model)
    with pytest.raises(FormatError, match=message) as caught:
        read_foreign(tmp_path, Languages())
    assert "config.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damage_is_one_line(tmp_path: Path, weights: dict[str, Tensor], evil: Any) -> None:
    write(tmp_path, weights, {"level": "bpe", "tokenizer_type": "subword-nmt", "tokenizer_cfg": {"codes": "x"}}, {})
    with pytest.raises(FormatError, match="the file of codes is missing: expected x"):
        read_foreign(tmp_path, Languages())
    write(tmp_path, weights, {"level": "syllables"}, {})
    with pytest.raises(FormatError, match="a vocabulary of level 'syllables'"):
        read_foreign(tmp_path, Languages())
    write(tmp_path, weights, {}, {})
    config = (tmp_path / "config.yaml").read_text(encoding="utf-8")
    for text, message in (
        (config.replace("data:", "date:"), "'data' is None"),
        (config + "run: !!python/object/apply:os.system ['true']\n", "not YAML with plain data"),
        ("- 1\n", "expected a mapping, got list"),
    ):
        (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(FormatError, match=message):
            read_foreign(tmp_path, Languages())
    (tmp_path / "config.yaml").write_text(config, encoding="utf-8")
    torch.save({"model_state": weights, "train_iter_state": evil}, tmp_path / "best.ckpt")
    with pytest.raises(FormatError, match="which is code and not data"):
        read_foreign(tmp_path, Languages())
    torch.save({"model": weights}, tmp_path / "best.ckpt")
    with pytest.raises(FormatError, match=re.escape("expected the weights under 'model_state', found only model")):
        read_foreign(tmp_path, Languages())
