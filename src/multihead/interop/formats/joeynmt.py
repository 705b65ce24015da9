"""Reads Transformers of JoeyNMT 2 (Kreutzer, Bastings and Riezler 2019).

    config.yaml            settings of data, model and search
    best.ckpt              or latest.ckpt: the weights under ``model_state``
    src_vocab.txt          the entry of each id
    trg_vocab.txt
    ...                    the codes or the SentencePiece model that the settings name, by the name of the file

The settings say how text is cut: at spaces, into characters, by codes of subword-nmt, or by SentencePiece; either of
the last two only into entries of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from multihead.decoding.search import Search
from multihead.errors import FormatError
from multihead.interop.formats.checkpoints import load_checkpoint, section
from multihead.interop.formats.parts import Languages, TranslatorParts
from multihead.interop.formats.pieces import find, read_codes, read_lines, read_yaml, with_sentencepiece
from multihead.interop.formats.renaming import count_layers, fit, rename, same, take
from multihead.model_folder import parse_settings
from multihead.models.config import TransformerConfig
from multihead.text.foreign import SpecialIds
from multihead.text.preparation import Preparation, PreparedTokenizer
from multihead.text.tokenizer import Tokenizer
from multihead.text.word_pieces import WordPieceTokenizer

_CONFIG = "config.yaml"
_CHECKPOINTS = ("best.ckpt", "latest.ckpt", "*.ckpt")
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu"}
_SYMBOLS = {"unk": ("<unk>", 0), "pad": ("<pad>", 1), "bos": ("<s>", 2), "eos": ("</s>", 3)}
"""The special symbols and their ids, unless the settings say otherwise."""


def recognizes(folder: Path) -> bool:
    """Whether the folder has settings, a checkpoint and vocabularies as JoeyNMT names them."""
    names = (_CONFIG, "src_vocab.txt", "trg_vocab.txt")
    return all((folder / name).is_file() for name in names) and any(folder.glob("*.ckpt"))


def read(folder: Path, _languages: Languages) -> TranslatorParts:
    """The model in a folder of JoeyNMT.

    Raises:
        FormatError: something is missing or damaged, or the model is of a variant that multihead does not read.
        MissingDependencyError: the settings or the vocabulary need a library that is not installed.
    """
    settings = read_yaml(folder / _CONFIG)
    data, model = _part(settings, "data", folder), _part(settings, "model", folder)
    sides = _part(data, "src", folder), _part(data, "trg", folder)
    path = find(folder, _CHECKPOINTS, "a checkpoint")
    weights = section(load_checkpoint(path), "model_state", path)
    symbols = data.get("special_symbols") or {}
    ids = SpecialIds(**{name: int(symbols.get(f"{name}_id", index)) for name, (_, index) in _SYMBOLS.items()})
    config = _config(weights, model, ids.pad, folder)
    testing = settings.get("testing") or {}
    return TranslatorParts(
        config,
        fit(rename(weights, _table(config), r"\.pe\.pe$", path), config),
        _tokenizer(folder, "src_vocab.txt", sides[0], symbols, ids),
        _tokenizer(folder, "trg_vocab.txt", sides[1], symbols, ids),
        Search(
            beam=int(testing.get("beam_size", 1)),
            alpha=max(0.0, float(testing.get("beam_alpha", testing.get("alpha", 0)))),
            length_penalty="wu",
            min_length=int(testing.get("min_output_length", 1)),
        ),
        sides[0].get("lang"),
        sides[1].get("lang"),
    )


def _part(settings: Mapping[str, Any], name: str, folder: Path) -> dict[str, Any]:
    """A section of the settings.

    Raises:
        FormatError: it is missing, or not of version 2, where every section is a mapping.
    """
    part = settings.get(name)
    if not isinstance(part, dict):
        raise FormatError(
            f"{folder / _CONFIG}: '{name}' is {part!r}, expected a section of settings as JoeyNMT 2 writes them"
        )
    return part


def _config(
    weights: Mapping[str, Tensor], model: Mapping[str, Any], padding_id: int, folder: Path
) -> TransformerConfig:
    path = folder / _CONFIG
    encoder, decoder = _part(model, "encoder", folder), _part(model, "decoder", folder)
    for name, side in (("encoder", encoder), ("decoder", decoder)):
        kind = side.get("type", "recurrent")
        if kind != "transformer":
            raise FormatError(f"{path}: a {kind} {name}; multihead reads JoeyNMT's Transformers")
        if float(side.get("alpha", 1.0)) != 1.0:
            raise FormatError(f"{path}: residual sums weighted with alpha {side['alpha']}; multihead reads alpha 1.0")
    norm = _agreed("layer_norm", path, encoder.get("layer_norm", "pre"), decoder.get("layer_norm", "post"))
    final = _agreed("a final norm", path, *(side.get("layer_norm") == "pre" for side in (encoder, decoder)))
    activation = _agreed("activation", path, encoder.get("activation", "relu"), decoder.get("activation", "relu"))
    if activation not in _ACTIVATIONS:
        raise FormatError(f"{path}: the activation '{activation}'; multihead reads {', '.join(_ACTIVATIONS)}")
    tied = bool(model.get("tied_embeddings"))
    scales = [bool((side.get("embeddings") or {}).get("scale")) for side in (encoder, encoder if tied else decoder)]
    source, target = (take(weights, f"{side}_embed.lut.weight", path) for side in ("src", "trg"))
    values = {
        "source_vocab": len(source),
        "target_vocab": len(target),
        "padding_id": padding_id,
        "width": source.shape[1],
        "heads": _agreed("num_heads", path, encoder.get("num_heads", 4), decoder.get("num_heads", 8)),
        "inner": max(
            len(take(weights, f"{side}.layers.0.feed_forward.pwff_layer.0.weight", path))
            for side in ("encoder", "decoder")
        ),
        "feed_forward": _ACTIVATIONS[activation],
        "encoder_layers": count_layers(weights, "encoder.layers"),
        "decoder_layers": count_layers(weights, "decoder.layers"),
        "embedding_scale": "embedding" if _agreed("embeddings.scale", path, *scales) else "none",
        "norm": norm,
        "final_norm": final,
        "norm_eps": 1e-6,
        "dropout": float(encoder.get("dropout", 0.1)),
        "tie_embeddings": same(target, source),
        "tie_output": same(weights.get("decoder.output_layer.weight"), target),
    }
    return parse_settings(TransformerConfig, values, path)


def _agreed(name: str, path: Path, encoder: Any, decoder: Any) -> Any:
    """A setting of encoder and decoder, of which our network has one."""
    if encoder != decoder:
        raise FormatError(
            f"{path}: {name} is {encoder} in the encoder and {decoder} in the decoder: multihead needs one value"
        )
    return encoder


def _table(config: TransformerConfig) -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {
        "source_embedding.table": ("src_embed.lut",),
        "target_embedding.table": ("trg_embed.lut",),
        "output": ("decoder.output_layer",),
    }
    kinds = {"encoder": {"self": "src_src_att"}, "decoder": {"self": "trg_trg_att", "cross": "src_trg_att"}}
    norms = {"encoder": {"self": "layer_norm"}, "decoder": {"self": "x_layer_norm", "cross": "dec_layer_norm"}}
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        if config.has_final_norm:
            table[f"{side}_norm"] = (f"{side}.layer_norm",)
        for i in range(layers):
            ours, theirs = f"{side}.{i}", f"{side}.layers.{i}"
            for kind, name in kinds[side].items():
                parts = tuple(f"{theirs}.{name}.{part}_layer" for part in "qkv")
                table[f"{ours}.{kind}_attention.in_projection"] = parts
                table[f"{ours}.{kind}_attention.output_projection"] = (f"{theirs}.{name}.output_layer",)
                table[f"{ours}.{kind}_residual.norm"] = (f"{theirs}.{norms[side][kind]}",)
            table[f"{ours}.feed_forward.expand"] = (f"{theirs}.feed_forward.pwff_layer.0",)
            table[f"{ours}.feed_forward.contract"] = (f"{theirs}.feed_forward.pwff_layer.3",)
            table[f"{ours}.feed_forward_residual.norm"] = (f"{theirs}.feed_forward.layer_norm",)
    return table


def _tokenizer(
    folder: Path, file: str, side: Mapping[str, Any], symbols: Mapping[str, Any], ids: SpecialIds
) -> Tokenizer:
    """The tokenizer of one side."""
    special = [str(symbols.get(f"{name}_token", token)) for name, (token, _) in _SYMBOLS.items()]
    tags = [
        str(tag)
        for tag in (*([symbols["sep_token"]] if symbols.get("sep_token") else []), *symbols.get("lang_tags", []))
    ]
    vocabulary = list(dict.fromkeys([*special, *tags, *read_lines(folder / file)]))
    control = [vocabulary.index(tag) for tag in tags]
    settings = side.get("tokenizer_cfg") or {}
    level, kind = side.get("level"), side.get("tokenizer_type", side.get("bpe_type", "sentencepiece"))
    inner: Tokenizer
    if level == "bpe" and kind == "sentencepiece":
        model = find(folder, [Path(str(settings.get("model_file", "*.model"))).name], "the SentencePiece model")
        inner = with_sentencepiece(model, vocabulary, ids, control, restricted=True)
    elif level == "bpe" and kind == "subword-nmt":
        codes = read_codes(find(folder, [Path(str(settings.get("codes", "*.codes"))).name], "the file of codes"))
        separator = str(settings.get("separator", "@@"))
        inner = WordPieceTokenizer(vocabulary, ids, control, codes=codes, separator=separator, restricted=True)
    elif level in ("word", "char"):
        inner = WordPieceTokenizer(vocabulary, ids, control, unit="words" if level == "word" else "characters")
    else:
        raise FormatError(f"{folder / _CONFIG}: a vocabulary of level {level!r} and type {kind!r} is not known")
    moses = str(settings.get("pretokenizer", "none")).lower() == "moses"
    preparation = Preparation(
        normalize=bool(side.get("normalize")),
        moses=str(side.get("lang", "en")) if moses else None,
        moses_punctuation="en" if moses and side.get("normalize") else None,
        lowercase=bool(side.get("lowercase")),
    )
    return inner if preparation == Preparation() else PreparedTokenizer(inner, preparation)
