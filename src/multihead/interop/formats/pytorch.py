"""Reads translators that are written around ``torch.nn.Transformer``.

    config.json            what the weights do not say: `PyTorchSettings`
    model.pt               or model.pth, model.safetensors: a state dict, or a checkpoint with one
    source.txt, target.txt the entry of each id, one per line

There is no format to follow, since every such program saves what it likes. The names of PyTorch's own tutorial
("Language Translation with nn.Transformer") and of others like it are recognized: the Transformer by its layers, the
embeddings, the projection and the table of positions by words in their names. ``names`` in the settings names them
otherwise. A table of positions is compared with the sinusoids; any other one is taken as learned positions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from multihead.configuration import Settings
from multihead.decoding.search import Search
from multihead.errors import FormatError
from multihead.interop.formats.checkpoints import load_checkpoint, stored
from multihead.interop.formats.parts import Languages, TranslatorParts
from multihead.interop.formats.pieces import find, inside, read_codes, read_lines, with_sentencepiece
from multihead.interop.formats.renaming import count_layers, fit, rename, same, take
from multihead.interop.formats.tensors import read_tensors
from multihead.model_folder import CONFIG, parse_settings, read_json
from multihead.models.config import TransformerConfig
from multihead.models.layers import sinusoid
from multihead.text.foreign import SpecialIds
from multihead.text.preparation import Preparation, PreparedTokenizer
from multihead.text.tokenizer import Tokenizer
from multihead.text.word_pieces import WordPieceTokenizer

_FORMAT = "torch.nn.Transformer"
_WEIGHTS = ("model.safetensors", "model.pt", "model.pth", "*.pt", "*.pth")
_FIRST = "encoder.layers.0.self_attn.in_proj.weight"
_CHECKPOINT = ("model_state_dict", "state_dict", "model_state", "model")

_WORDS = {
    "source_embedding": r"(src|source|enc)\w*",
    "target_embedding": r"(tgt|trg|target|dec)\w*",
    "output": r"(generator|fc_?out|out|linear|head|proj)\w*",
    "positions": r"(pos\w*|pe)",
}
"""How the modules outside of the Transformer are named."""


class PyTorchNames(Settings):
    """Names in the state dict, where they are unusual."""

    transformer: str | None = None
    """The module ``torch.nn.Transformer``; by default the one with its layers."""
    source_embedding: str | None = None
    """The embedding matrix of the source; by default the one with 'src', 'source' or 'enc' in its name."""
    target_embedding: str | None = None
    """The embedding matrix of the target; by default the one with 'tgt', 'trg', 'target' or 'dec' in its name."""
    output: str | None = None
    """The module that projects to the vocabulary; by default 'generator', 'fc_out', 'out', 'linear', 'head', 'proj'."""
    positions: str | None = None
    """The table of positions; by default the one with 'pos' or 'pe' in its name."""


class PyTorchSymbols(Settings):
    """The special symbols, as the vocabularies have them."""

    pad: str = "<pad>"
    """Padding."""
    unk: str = "<unk>"
    """Unknown words."""
    bos: str = "<bos>"
    """The first input of the decoder."""
    eos: str = "<eos>"
    """The end of a sentence."""


class PyTorchSettings(Settings):
    """``config.json`` of a translator around ``torch.nn.Transformer``."""

    format: Literal["torch.nn.Transformer"]
    """Says that this is such a folder."""
    nhead: int = Field(ge=1)
    """Number of attention heads: the argument of ``torch.nn.Transformer``, like the next three."""
    activation: Literal["relu", "gelu"] = "relu"
    """Activation of the feed-forward networks."""
    norm_first: bool = False
    """Pre-norm instead of post-norm."""
    layer_norm_eps: float = Field(default=1e-5, gt=0)
    """Epsilon of the layer norms."""
    scale_embeddings: bool = True
    """Whether embeddings are multiplied by the square root of their width, as the tutorial does."""
    source_begin: bool = True
    """Whether sources begin with the begin symbol, as in the tutorial."""
    source_end: bool = True
    """Whether sources end with the end symbol."""
    source_vocabulary: str = "source.txt"
    """File with the entry of each id of the source, one per line."""
    target_vocabulary: str = "target.txt"
    """File with the entry of each id of the target, one per line."""
    symbols: PyTorchSymbols = PyTorchSymbols()
    """The special symbols."""
    codes: tuple[str, ...] = Field(default=(), max_length=2)
    """Files of codes of subword-nmt: one for both sides, or source and target. Without, words are split at spaces."""
    sentencepiece: tuple[str, ...] = Field(default=(), max_length=2)
    """SentencePiece models: one for both sides, or source and target."""
    lowercase: bool = False
    """Whether texts are lowercased."""
    source_language: str | None = None
    """Language of the source."""
    target_language: str | None = None
    """Language of the target."""
    names: PyTorchNames = PyTorchNames()
    """Names in the state dict."""


def recognizes(folder: Path) -> bool:
    """Whether the folder has settings that say so."""
    return (folder / CONFIG).is_file() and read_json(folder / CONFIG).get("format") == _FORMAT


def read(folder: Path, _languages: Languages) -> TranslatorParts:
    """The model in a folder.

    Raises:
        FormatError: something is missing or damaged, or the state dict has weights that cannot be placed.
        MissingDependencyError: the vocabulary needs a library that is not installed.
    """
    settings = parse_settings(PyTorchSettings, read_json(folder / CONFIG), folder / CONFIG)
    path = find(folder, _WEIGHTS, "the file of weights")
    weights = _place(_load(path), settings.names, path)
    pair = (
        _tokenizer(folder, settings, "source", settings.source_vocabulary),
        _tokenizer(folder, settings, "target", settings.target_vocabulary),
    )
    table = weights.pop("positions", None)
    config = _config(weights, settings, table, pair[0].pad_id, path)
    found = rename(weights, _modules(config), r"^$", path)
    if config.positions == "learned" and table is not None:
        found |= {f"{side}_embedding.positions.table.weight": table for side in ("source", "target")}
    return TranslatorParts(
        config, fit(found, config), *pair, Search(), settings.source_language, settings.target_language
    )


def _load(path: Path) -> dict[str, Tensor]:
    """The state dict, without the prefixes of DataParallel and torch.compile."""
    content: dict[Any, Any]
    content = dict(read_tensors(path)) if path.suffix == ".safetensors" else load_checkpoint(path)
    inner = next((content[name] for name in _CHECKPOINT if isinstance(content.get(name), dict)), content)
    weights = {
        re.sub(r"^(module\.|_orig_mod\.)+", "", str(name)).replace("in_proj_", "in_proj."): stored(tensor, path).float()
        for name, tensor in inner.items()
        if isinstance(tensor, Tensor)
    }
    if not weights:
        raise FormatError(f"{path}: has no tensors; expected the state dict of a module")
    return weights


def _place(weights: Mapping[str, Tensor], names: PyTorchNames, path: Path) -> dict[str, Tensor]:
    """The weights under fixed names: those of the Transformer without a prefix, the others as in `_WORDS`."""
    prefix = f"{names.transformer}." if names.transformer else None
    if prefix is None:
        prefix = next((name.removesuffix(_FIRST) for name in weights if name.endswith(_FIRST)), None)
    if prefix is None or f"{prefix}{_FIRST}" not in weights:
        raise FormatError(f"{path}: has no torch.nn.Transformer with an encoder: no weight is named '...{_FIRST}'")
    inside = (f"{prefix}encoder.", f"{prefix}decoder.")
    found = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(inside)}
    width = found[_FIRST].shape[1]
    outside = {name: tensor for name, tensor in weights.items() if not name.startswith(inside)}
    used: set[str] = set()
    for part, expression in _WORDS.items():
        named = getattr(names, part)
        candidates = {name: tensor for name, tensor in outside.items() if named is not None or name not in used}
        chosen = _choose(candidates, part, named, expression, width, path)
        if chosen is None:
            continue
        found["positions" if part == "positions" else f"{part}.weight"] = outside[chosen].reshape(-1, width)
        used.add(chosen)
        bias = f"{chosen.removesuffix('.weight')}.bias"
        if part == "output" and bias in outside:
            found["output.bias"] = outside[bias]
            used.add(bias)
    if "source_embedding.weight" in found:
        found.setdefault("target_embedding.weight", found["source_embedding.weight"])
    return found | {f"unplaced.{name}": tensor for name, tensor in outside.items() if name not in used}


def _choose(
    weights: Mapping[str, Tensor], part: str, named: str | None, expression: str, width: int, path: Path
) -> str | None:
    """The name of the matrix that is this part."""
    if named is not None:
        for name in (named, f"{named}.weight"):
            if name in weights:
                return name
        raise FormatError(f"{path}: has no weight '{named}', which names.{part} names")
    fits = [name for name, tensor in weights.items() if tensor.shape[-1] == width and tensor.dim() in (2, 3)]
    found = [name for name in fits if re.search(rf"(^|[._]){expression}", name)]
    positions = [name for name in found if re.search(rf"(^|[._]){_WORDS['positions']}([._]|$)", name)]
    found = positions if part == "positions" else [name for name in found if name not in positions]
    if part == "source_embedding" and not found:
        found = [name for name in fits if re.search(r"(^|[._])emb", name) and name not in positions]
    if len(found) > 1 or (not found and part in ("source_embedding", "output")):
        raise FormatError(
            f"{path}: {'several weights' if found else 'no weight'} may be the {part.replace('_', ' ')} "
            f"({', '.join(found or fits)[:200]}): name it in config.json under names.{part}"
        )
    return found[0] if found else None


def _config(
    weights: Mapping[str, Tensor], settings: PyTorchSettings, table: Tensor | None, padding_id: int, path: Path
) -> TransformerConfig:
    source, target = (take(weights, f"{side}_embedding.weight", path) for side in ("source", "target"))
    layout = _layout(table, source.shape[1])
    values = {
        "source_vocab": len(source),
        "target_vocab": len(target),
        "padding_id": padding_id,
        "width": source.shape[1],
        "heads": settings.nhead,
        "inner": len(take(weights, "encoder.layers.0.linear1.weight", path)),
        "feed_forward": settings.activation,
        "encoder_layers": count_layers(weights, "encoder.layers"),
        "decoder_layers": count_layers(weights, "decoder.layers"),
        "positions": "learned" if layout is None else "sinusoidal",
        "sinusoid": layout or "interleaved",
        "max_positions": len(table) if layout is None and table is not None else 512,
        "embedding_scale": "embedding" if settings.scale_embeddings else "none",
        "norm": "pre" if settings.norm_first else "post",
        "final_norm": "encoder.norm.weight" in weights,
        "norm_eps": settings.layer_norm_eps,
        "tie_embeddings": same(target, source),
        "tie_output": same(weights.get("output.weight"), target),
        "output_bias": "output.bias" in weights,
        "source_end": settings.source_end,
    }
    return parse_settings(TransformerConfig, values, path)


def _layout(table: Tensor | None, width: int) -> Literal["interleaved", "halves", "marian", "fairseq"] | None:
    """The sinusoids that a table has, up to rounding in float32 (which grows with the angle); None: some others.

    Without a table in the state dict they are the paper's.
    """
    if table is None:
        return "interleaved"
    positions = torch.arange(len(table))
    for layout in ("interleaved", "halves", "marian", "fairseq"):
        if width % 2 == 0 and torch.allclose(table, sinusoid(positions, width, layout), rtol=0, atol=2e-3):
            return layout
    return None


def _modules(config: TransformerConfig) -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {
        "source_embedding.table": ("source_embedding",),
        "target_embedding.table": ("target_embedding",),
        "output": ("output",),
    }
    norms = {"encoder": ("self", "feed_forward"), "decoder": ("self", "cross", "feed_forward")}
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        if config.final_norm:
            table[f"{side}_norm"] = (f"{side}.norm",)
        for i in range(layers):
            ours, theirs = f"{side}.{i}", f"{side}.layers.{i}"
            table[f"{ours}.feed_forward.expand"] = (f"{theirs}.linear1",)
            table[f"{ours}.feed_forward.contract"] = (f"{theirs}.linear2",)
            for number, kind in enumerate(norms[side], 1):
                table[f"{ours}.{kind}_residual.norm"] = (f"{theirs}.norm{number}",)
                if kind != "feed_forward":
                    name = "self_attn" if kind == "self" else "multihead_attn"
                    table[f"{ours}.{kind}_attention.in_projection"] = (f"{theirs}.{name}.in_proj",)
                    table[f"{ours}.{kind}_attention.output_projection"] = (f"{theirs}.{name}.out_proj",)
    return table


def _tokenizer(folder: Path, settings: PyTorchSettings, side: str, file: str) -> Tokenizer:
    path = inside(folder, file)
    pieces = read_lines(path)
    symbols = settings.symbols.model_dump()
    missing = [symbol for symbol in symbols.values() if symbol not in pieces]
    if missing:
        raise FormatError(f"{path}: has no entry '{missing[0]}': name the special symbols in config.json under symbols")
    ids = SpecialIds(**{name: pieces.index(symbol) for name, symbol in symbols.items()})
    prefix = (ids.bos,) if side == "source" and settings.source_begin else ()
    last = side == "target"
    inner: Tokenizer
    if settings.sentencepiece:
        model = find(folder, settings.sentencepiece[last * -1 :][:1], "the SentencePiece model")
        inner = with_sentencepiece(model, pieces, ids, prefix=prefix)
    else:
        codes = read_codes(find(folder, settings.codes[last * -1 :][:1], "the codes")) if settings.codes else None
        inner = WordPieceTokenizer(pieces, ids, prefix=prefix, codes=codes)
    return PreparedTokenizer(inner, Preparation(lowercase=True)) if settings.lowercase else inner
