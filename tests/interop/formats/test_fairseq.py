"""fairseq's networks as its documentation describes them, its dictionaries, and what is refused.

Comparison with fairseq itself: docs/interop.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from multihead.errors import FormatError
from multihead.interop.formats import fairseq
from multihead.interop.formats.opening import read_foreign
from multihead.interop.formats.parts import Languages
from multihead.text.sentencepiece import SentencePieceTokenizer

WIDTH, INNER = 8, 12
WORDS = ["the", "low@@", "er", "l@@", "o@@", "w", "house", "e@@", "r", "w@@"]
OPTIONS: dict[str, Any] = {
    "arch": "transformer",
    "task": "translation",
    "source_lang": "de",
    "target_lang": "en",
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
}
PRE = {"encoder_normalize_before": True, "decoder_normalize_before": True}


def shapes(made: Any, options: dict[str, Any], narrow: int = INNER) -> dict[str, Sequence[int]]:
    """The weights of a model; the decoder's inner width is ``narrow``."""
    found: dict[str, Sequence[int]] = {}
    sides = (("encoder", ("self_attn",), INNER, 2), ("decoder", ("self_attn", "encoder_attn"), narrow, 1))
    for side, kinds, inner, layers in sides:
        found[f"{side}.embed_tokens.weight"] = (len(WORDS) + 4, WIDTH)
        if options.get("encoder_learned_pos"):
            found[f"{side}.embed_positions.weight"] = (14, WIDTH)
        if options.get("layernorm_embedding"):
            found |= made.norm(WIDTH, f"{side}.layernorm_embedding")
        if options.get("encoder_normalize_before"):
            found |= made.norm(WIDTH, f"{side}.layer_norm")
        for name in (f"{side}.layers.{i}" for i in range(layers)):
            found |= made.norm(WIDTH, f"{name}.final_layer_norm", *(f"{name}.{kind}_layer_norm" for kind in kinds))
            found |= made.linear(f"{name}.fc1", inner, WIDTH) | made.linear(f"{name}.fc2", WIDTH, inner)
            for kind in kinds:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    found |= made.linear(f"{name}.{kind}.{part}", WIDTH, WIDTH)
    found["decoder.output_projection.weight"] = (len(WORDS) + 4, WIDTH)
    return found


class Written:
    """The documented network: residuals around attention and feed-forward, norms before or after."""

    def __init__(self, made: Any, weights: dict[str, Tensor], options: dict[str, Any]) -> None:
        activation = F.gelu if options.get("activation_fn") == "gelu" else torch.relu
        self.plain, self.options = made.plain(weights, 2, 1e-5, activation), options

    def embed(self, side: str, ids: list[int]) -> Tensor:
        weights = self.plain.weights
        scale = 1 if self.options.get("no_scale_embedding") else WIDTH**0.5
        places = torch.arange(len(ids)) + 2  # the first position after that of padding, 1
        if self.options.get("encoder_learned_pos"):
            positions = weights[f"{side}.embed_positions.weight"][places]
        else:
            angles = places[:, None] * torch.exp(
                torch.arange(WIDTH // 2) * -(torch.tensor(1e4).log() / (WIDTH / 2 - 1))
            )
            positions = torch.cat((angles.sin(), angles.cos()), 1)
        x = scale * weights[f"{side}.embed_tokens.weight"][ids] + positions
        return self.plain.norm(x, f"{side}.layernorm_embedding") if self.options.get("layernorm_embedding") else x

    def sub_layer(self, x: Tensor, norm: str, function: Any) -> Tensor:
        if self.options.get("encoder_normalize_before"):
            return x + function(self.plain.norm(x, norm))
        return self.plain.norm(x + function(x), norm)

    def attend(self, name: str, x: Tensor, memory: Tensor | None) -> Tensor:
        names = [f"{name}.{part}_proj" for part in ("q", "k", "v", "out")]
        causal = name.startswith("decoder") and memory is None
        return self.sub_layer(
            x,
            f"{name}_layer_norm",
            lambda z: self.plain.attend(z, z if memory is None else memory, names, causal=causal),
        )

    def run(self, side: str, ids: list[int], memory: Tensor | None = None) -> Tensor:
        x = self.embed(side, ids)
        for layer in range(1 if side == "decoder" else 2):
            name = f"{side}.layers.{layer}"
            x = self.attend(f"{name}.self_attn", x, None)
            if memory is not None:
                x = self.attend(f"{name}.encoder_attn", x, memory)
            x = self.sub_layer(
                x, f"{name}.final_layer_norm", lambda z, name=name: self.plain.feed(z, f"{name}.fc1", f"{name}.fc2")
            )
        return self.plain.norm(x, f"{side}.layer_norm") if self.options.get("encoder_normalize_before") else x

    def __call__(self, source: list[int], target: list[int]) -> Tensor:
        states = self.run("decoder", target, self.run("encoder", source))
        return self.plain.linear(states, "decoder.output_projection")


def write(folder: Path, weights: dict[str, Tensor], options: dict[str, Any], *, new: bool = False, **more: Any) -> None:
    """A folder as ``fairseq-train`` leaves it, with options under ``args``, or in sections as newer versions do."""
    extra = {"encoder.version": torch.tensor([3.0]), "encoder.embed_positions._float_tensor": torch.zeros(1)}
    task = {"_name": "translation", "source_lang": "de", "target_lang": "en"}
    state: dict[str, Any] = {"model": weights | extra, "optimizer_history": [{"criterion_name": "x"}]}
    namespace = argparse.Namespace(**options)
    state |= {"args": None, "cfg": {"model": namespace, "task": task, "bpe": None}} if new else {"args": namespace}
    torch.save(state, folder / "checkpoint_best.pt", **more)
    for language in ("de", "en"):
        (folder / f"dict.{language}.txt").write_text("".join(f"{word} 5\n" for word in WORDS), encoding="utf-8")


@pytest.fixture
def model(tmp_path: Path, foreigners: Any) -> Path:
    """A folder with a small post-norm model."""
    write(tmp_path, foreigners.random_weights(shapes(foreigners, OPTIONS)), OPTIONS)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "narrow", "written"),
    [
        ({}, INNER, {}),
        ({**PRE, "activation_fn": "gelu"}, INNER, {"new": True}),
        ({"no_scale_embedding": True, "layernorm_embedding": True, "encoder_learned_pos": True}, INNER, {}),
        ({}, 5, {"_use_new_zipfile_serialization": False}),  # WMT19's decoder is narrower; it is a file of 2019
    ],
    ids=["post-norm", "pre-norm", "learned positions", "narrow decoder"],
)
def test_the_network_is_the_documented_one(
    tmp_path: Path, foreigners: Any, options: dict[str, Any], narrow: int, written: dict[str, Any]
) -> None:
    options = OPTIONS | options
    weights = foreigners.random_weights(shapes(foreigners, options, narrow))
    write(tmp_path, weights, options, **written)
    parts = foreigners.compare(tmp_path, Written(foreigners, weights, options))
    assert (parts.config.tie_embeddings, parts.config.tie_output) == (False, False)
    assert (parts.source_language, parts.target_language) == ("de", "en")


def test_shared_matrices_are_tied(tmp_path: Path, foreigners: Any) -> None:
    weights = foreigners.random_weights(shapes(foreigners, OPTIONS))
    for name in ("decoder.embed_tokens.weight", "decoder.output_projection.weight"):
        weights[name] = weights["encoder.embed_tokens.weight"]
    del weights["decoder.output_projection.weight"]  # as old checkpoints have it
    options = OPTIONS | {"share_all_embeddings": True}
    write(tmp_path, weights, options)
    reference = weights | {"decoder.output_projection.weight": weights["encoder.embed_tokens.weight"]}
    parts = foreigners.compare(tmp_path, Written(foreigners, reference, options))
    assert (parts.config.tie_embeddings, parts.config.tie_output) == (True, True)


def test_names_of_old_checkpoints_are_read(tmp_path: Path, foreigners: Any) -> None:
    """Before 2019 the three projections were one matrix, norms were numbered, and the output was ``embed_out``."""
    weights = foreigners.random_weights(shapes(foreigners, OPTIONS))
    old = dict(weights)
    numbers = {"encoder": ("self_attn", "final"), "decoder": ("self_attn", "encoder_attn", "final")}
    for name in weights:
        side, _, layer, *rest = [*name.split("."), "", "", ""]
        base = f"{side}.layers.{layer}"
        if rest[:2] == ["self_attn", "q_proj"]:
            rows = [old.pop(f"{base}.self_attn.{part}_proj.{rest[2]}") for part in "qkv"]
            old[f"{base}.self_attn.in_proj_{rest[2]}"] = torch.cat(rows)
        elif rest[0].endswith("_layer_norm"):
            place = numbers[side].index(rest[0].removesuffix("_layer_norm"))
            old[f"{base}.layer_norms.{place}.{rest[1]}"] = old.pop(name)
    old["decoder.embed_out"] = old.pop("decoder.output_projection.weight")
    write(tmp_path, old, OPTIONS)
    foreigners.compare(tmp_path, Written(foreigners, weights, OPTIONS))


def test_words_have_the_ids_of_the_dictionary(model: Path) -> None:
    parts = read_foreign(model, Languages())
    tokenizer = parts.source_tokenizer
    assert (tokenizer.bos_id, tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id) == (2, 1, 2, 3)
    ids = tokenizer.encode("the  low@@ er house </s> garden")
    assert ids == [4 + WORDS.index("the"), 5, 6, 4 + WORDS.index("house"), 3, 3]
    assert tokenizer.decode(ids[:4]) == "the lower house"


@pytest.mark.parametrize(
    ("file", "codes"),
    [("code", "#version: 0.2\nl o\ne r</w>\nlo w\n"), ("bpecodes", "l o 9\ne r</w> 8\nlo w 3\n")],
    ids=["subword-nmt", "fastBPE"],
)
def test_codes_cut_words(model: Path, file: str, codes: str) -> None:
    (model / file).write_text(codes, encoding="utf-8")
    tokenizer = read_foreign(model, Languages()).source_tokenizer
    assert tokenizer.pieces(tokenizer.encode("lower low")) == ["low@@", "er", "<unk>", "w"]
    assert tokenizer.decode(tokenizer.encode("lower")) == "lower"


def test_a_sentencepiece_model_gives_the_pieces(model: Path, foreign: Any) -> None:
    (model / "sentencepiece.bpe.model").write_bytes(foreign.pieces.joint)
    pieces = ["▁Ein", "▁A", "n"]
    (model / "dict.de.txt").write_text("".join(f"{piece} 1\n" for piece in [*pieces, *WORDS[3:]]), encoding="utf-8")
    tokenizer = read_foreign(model, Languages()).source_tokenizer
    known = {piece: 4 + place for place, piece in enumerate(pieces)}
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=foreign.pieces.joint)
    for line in foreign.sentences(5):
        assert tokenizer.encode(line) == [known.get(piece, 3) for piece in processor.encode(line, out_type=str)]


def test_the_file_that_the_options_name_comes_first(model: Path, foreigners: Any, foreign: Any) -> None:
    """Found by the last part of its path; a file of any other name is not used instead."""
    weights = foreigners.random_weights(shapes(foreigners, OPTIONS))
    write(model, weights, OPTIONS | {"bpe": "subword_nmt", "bpe_codes": "/x/codes.30000"})
    (model / "a.codes").write_text("#version: 0.2\nw e\n", encoding="utf-8")
    with pytest.raises(FormatError, match=r"is missing: expected codes\.30000 or bpecodes or code"):
        read_foreign(model, Languages())
    (model / "bpecodes").write_text("#version: 0.2\nw e\n", encoding="utf-8")
    (model / "codes.30000").write_text("#version: 0.2\nl o\ne r</w>\nlo w\n", encoding="utf-8")
    tokenizer = read_foreign(model, Languages()).source_tokenizer
    assert tokenizer.pieces(tokenizer.encode("lower low")) == ["low@@", "er", "<unk>", "w"]
    (model / "a.model").write_bytes(foreign.pieces.target)
    for option, named in (("sentencepiece_model", "joint.model"), ("sentencepiece_vocab", "joint[1].model")):
        write(model, weights, OPTIONS | {"bpe": "sentencepiece", option: f"/x/{named}"})
        with pytest.raises(FormatError, match="the SentencePiece model is missing: expected joint"):
            read_foreign(model, Languages())
        (model / named).write_bytes(foreign.pieces.joint)
        pair = read_foreign(model, Languages())
        for side in (pair.source_tokenizer, pair.target_tokenizer):
            assert isinstance(side, SentencePieceTokenizer)
            assert side.model == foreign.pieces.joint
    write(model, weights, OPTIONS | {"bpe": "sentencepiece", "sentencepiece_model": "???"})  # not set
    unnamed = read_foreign(model, Languages()).source_tokenizer
    assert isinstance(unnamed, SentencePieceTokenizer)
    assert unnamed.model == foreign.pieces.target  # a.model


def test_moses_tokenizes_where_the_options_say_so(model: Path, foreigners: Any) -> None:
    write(model, foreigners.random_weights(shapes(foreigners, OPTIONS)), OPTIONS | {"tokenizer": "moses"})
    (model / "dict.de.txt").write_text("".join(f"{word} 1\n" for word in ["the", ".", *WORDS[2:]]), encoding="utf-8")
    tokenizer = read_foreign(model, Languages()).source_tokenizer
    assert tokenizer.pieces(tokenizer.encode("the house.")) == ["the", "house", "."]
    assert tokenizer.decode(tokenizer.encode("the house.")) == "the house."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adaptive_softmax_cutoff": [10, 20]}, "an adaptive softmax"),
        ({"cross_self_attention": True}, "attention to source and target at once"),
        ({"encoder_layers_to_keep": "0,2"}, "pruned layers"),
        ({"quant_noise_pq": 0.1}, "product quantization"),
        ({"encoder_layers": 6}, "6 encoder layers are expected, and 2 found"),
        ({"activation_fn": "relu_squared"}, "the activation 'relu_squared'; multihead reads relu, gelu"),
        ({"decoder_attention_heads": 4}, "encoder_attention_heads is 2 and decoder_attention_heads is 4"),
        ({"encoder_normalize_before": True}, "encoder_normalize_before is True"),
        ({"task": "translation_lev"}, "task 'translation_lev'; multihead reads those of 'translation'"),
        ({"tokenizer": "nltk"}, "fairseq's tokenizer 'nltk' first; multihead reads models of 'moses', 'space'"),
        ({"bpe": "gpt2"}, "a vocabulary of 'gpt2'; multihead reads those of sentencepiece"),
        ({"bpe": "sentencepiece"}, "the SentencePiece model is missing: expected sentencepiece.bpe.model or"),
    ],
)
def test_other_variants_are_refused_by_name(
    tmp_path: Path, foreigners: Any, options: dict[str, Any], message: str
) -> None:
    write(tmp_path, foreigners.random_weights(shapes(foreigners, OPTIONS)), OPTIONS | options)
    with pytest.raises(FormatError, match=message) as caught:
        read_foreign(tmp_path, Languages())
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_and_missing_weights_are_refused(tmp_path: Path, foreigners: Any) -> None:
    weights = foreigners.random_weights(shapes(foreigners, OPTIONS))
    write(tmp_path, weights | {"encoder.layers.0.fc3.weight": torch.zeros(2)}, OPTIONS)
    with pytest.raises(FormatError, match=r"has the weight 'encoder.layers.0.fc3.weight', and a Transformer"):
        read_foreign(tmp_path, Languages())
    write(tmp_path, {name: tensor for name, tensor in weights.items() if name != "encoder.layers.1.fc2.bias"}, OPTIONS)
    assert not read_foreign(tmp_path, Languages()).build(tmp_path).encoder[1].feed_forward.contract.bias.any()
    del weights["encoder.layers.1.fc2.weight"]
    write(tmp_path, weights, OPTIONS)
    with pytest.raises(FormatError, match=r"the weight 'encoder.layers.1.fc2.weight' is missing"):
        read_foreign(tmp_path, Languages())
    write(tmp_path, {"encoder.lstm.weight_ih_l0": torch.zeros(4)}, OPTIONS | {"arch": "lstm"})
    with pytest.raises(FormatError, match="fairseq's architecture 'lstm'"):
        read_foreign(tmp_path, Languages())


def test_damage_is_one_line(model: Path, evil: Any) -> None:
    (model / "dict.en.txt").unlink()
    with pytest.raises(FormatError, match=r"dict.en.txt: the vocabulary is missing"):
        read_foreign(model, Languages())
    for content, message in (
        ("the 3\nhouse\n", ":2: expected a word and its count"),
        ("a 1\na 1\n", ":2: the word 'a'"),
    ):
        (model / "dict.en.txt").write_text(content, encoding="utf-8")
        with pytest.raises(FormatError, match=message):
            read_foreign(model, Languages())
    path = model / "checkpoint_best.pt"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(FormatError, match="not a checkpoint of PyTorch, or damaged"):
        read_foreign(model, Languages())
    torch.save({"model": {}, "args": evil}, path)
    with pytest.raises(FormatError, match=r"refused: it names '\w+\.system', which is code"):
        read_foreign(model, Languages())


def test_languages_can_be_named(model: Path, foreigners: Any) -> None:
    unnamed = {name: value for name, value in OPTIONS.items() if not name.endswith("_lang")}
    write(model, foreigners.random_weights(shapes(foreigners, OPTIONS)), unnamed)
    with pytest.raises(FormatError, match=r"dict.de.txt, dict.en.txt: name them with --source-language"):
        read_foreign(model, Languages())
    parts = read_foreign(model, Languages("en", "de"))
    assert (parts.source_language, parts.target_language) == ("en", "de")
    assert not fairseq.recognizes(model / "nothing")
