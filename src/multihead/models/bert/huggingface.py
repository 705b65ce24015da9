"""Reads and writes BERT models in Hugging Face's format.

That is ``config.json`` and ``model.safetensors``. Two tables map their names to ours; every name in a file has to be in
one of them. Models such as BertForPreTraining, BertForMaskedLM and BertModel can be read, of which some lack the pooler
or a head, and are written again without it. Ours are written as BertForPreTraining. Vocabularies are in
`text.bert_words`, whole folders in `runs.bert.model`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from multihead.errors import FormatError, shown
from multihead.files import write_tensors
from multihead.model_folder import CONFIG, COPY_AGAIN, WEIGHTS, parse_settings, write_json
from multihead.models.bert.config import BertConfig
from multihead.models.bert.network import Bert
from multihead.sealed import OpenFolder
from multihead.skeletons import parameter_shapes
from multihead.tensor_files import read_tensors

_FIELDS = {
    "vocab": "vocab_size",
    "padding_id": "pad_token_id",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "segments": "type_vocab_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_eps": "layer_norm_eps",
    "initial_deviation": "initializer_range",
}
_FIXED: dict[str, Any] = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
"""Settings with only one supported value."""

_MODULES = {
    "embedding.tokens": "bert.embeddings.word_embeddings",
    "embedding.positions": "bert.embeddings.position_embeddings",
    "embedding.segments": "bert.embeddings.token_type_embeddings",
    "embedding.norm": "bert.embeddings.LayerNorm",
    "pooler": "bert.pooler.dense",
    "words.transform": "cls.predictions.transform.dense",
    "words.norm": "cls.predictions.transform.LayerNorm",
    "words": "cls.predictions",
    "follows": "cls.seq_relationship",
}
_LAYER_MODULES = {
    "self_attention.in_projection": "attention.self.{}",
    "self_attention.output_projection": "attention.output.dense",
    "self_residual.norm": "attention.output.LayerNorm",
    "feed_forward.expand": "intermediate.dense",
    "feed_forward.contract": "output.dense",
    "feed_forward_residual.norm": "output.LayerNorm",
}
_PACKED = ("query", "key", "value")
"""The matrices that ``in_projection`` holds one below the other."""
OPTIONAL = ("pooler", "words", "follows")
"""Our modules that a file may lack."""
_CLASSES = {
    (): "BertForPreTraining",
    ("follows",): "BertForMaskedLM",
    ("words",): "BertForNextSentencePrediction",
    ("words", "follows"): "BertModel",
}
"""Their class for a model, by the heads that it lacks."""
_COPIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
"""Tensors that a file may hold a second time, under this other name."""


class Imported(NamedTuple):
    """A model read from Hugging Face's files."""

    model: Bert
    missing: tuple[str, ...]
    """Modules that the files lack ("pooler", "words", "follows"); they keep their initial values."""


def is_huggingface(config: dict[str, Any]) -> bool:
    """Whether a ``config.json`` is in Hugging Face's format."""
    return "model_type" in config and "format_version" not in config


def read(folder: OpenFolder) -> Imported:
    """Read a model from ``config.json`` and ``model.safetensors``; missing modules keep their initial values.

    Raises:
        FormatError: the files are damaged, of another kind of model, or use an unsupported setting.
    """
    config, path = read_config(folder), folder.path / WEIGHTS
    tensors = _load(folder)
    if config.layers > len(tensors):
        raise FormatError(
            f"{folder.path / CONFIG}: {config.layers:,} layers, but {WEIGHTS} has {len(tensors):,} tensors"
        )
    missing, joined = [], {}
    for name, shape in parameter_shapes(lambda: Bert(config)).items():
        theirs = _their_names(name)
        found = [tensors.pop(name) for name in theirs if name in tensors]
        part = name.split(".")[0]
        if not found and part in OPTIONAL:
            missing.append(part)
            continue
        if len(found) < len(theirs):
            raise FormatError(f"{path}: has no {theirs[len(found)]}; {COPY_AGAIN}")
        expected = [shape[0] // len(theirs), *shape[1:]]
        for their, tensor in zip(theirs, found, strict=True):
            if list(tensor.shape) != expected:
                raise FormatError(
                    f"{path}: {their} has the shape {list(tensor.shape)}, but {CONFIG} means {expected}; {COPY_AGAIN}"
                )
        joined[name] = found[0] if len(found) == 1 else torch.cat(found)
    if tensors:
        raise FormatError(f"{path}: has {len(tensors)} tensors that no BERT has, among them {sorted(tensors)[:3]}")
    model = Bert(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in joined:
                parameter.copy_(joined[name])
    return Imported(model, tuple(dict.fromkeys(missing)))


def write(folder: Path, model: Bert, missing: Collection[str] = ()) -> None:
    """Write ``config.json`` and ``model.safetensors`` into an existing folder, such as `files.atomic_folder`'s.

    Args:
        folder: the folder.
        model: the model.
        missing: its modules that are not trained, and not written (`Imported.missing`).
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if name.split(".")[0] in missing:
            continue
        theirs = _their_names(name)
        tensors |= dict(zip(theirs, parameter.detach().chunk(len(theirs)), strict=True))
    write_tensors(folder / WEIGHTS, tensors)
    values = model.config.model_dump(mode="json")
    fields = {theirs: values[ours] for ours, theirs in _FIELDS.items()}
    class_name = _CLASSES[tuple(head for head in ("words", "follows") if head in missing)]
    write_json(folder / CONFIG, {"architectures": [class_name], "model_type": "bert", **fields, **_FIXED})


def read_config(folder: OpenFolder) -> BertConfig:
    """Read our settings from Hugging Face's ``config.json``.

    Raises:
        FormatError: the file is damaged, or has an unsupported setting.
    """
    config, path = folder.read_json(CONFIG), folder.path / CONFIG
    kind = config.get("model_type")
    if kind != "bert":
        raise FormatError(f"{path}: describes a model of the type {shown(kind)}; expected 'bert'")
    for name, value in _FIXED.items():
        if config.get(name, value) != value:
            raise FormatError(
                f"{path}: {name} is {shown(config[name])}; this multihead reads models with {value!r} only"
            )
    return parse_settings(
        BertConfig, {ours: config[theirs] for ours, theirs in _FIELDS.items() if config.get(theirs) is not None}, path
    )


def _their_names(ours: str) -> tuple[str, ...]:
    """Hugging Face's names for one of our parameters: three for queries, keys and values in one."""
    module, _, kind = ours.rpartition(".")
    in_layer = re.fullmatch(r"encoder\.(\d+)\.(.+)", module)
    if in_layer is None:
        return (f"{_MODULES[module]}.{kind}",)
    theirs = _LAYER_MODULES[in_layer[2]]
    parts = _PACKED if "{}" in theirs else ("",)
    return tuple(f"bert.encoder.layer.{in_layer[1]}.{theirs.format(part)}.{kind}" for part in parts)


def _normalize_name(name: str) -> str:
    """A name as in today's BertForPreTraining: BertModel has no prefix, and old norms have gamma and beta."""
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


def _load(folder: OpenFolder) -> dict[str, Tensor]:
    """The tensors of the folder, each once, under normalized names.

    Raises:
        FormatError: the file cannot be read, or two tensors that should be tied differ.
    """
    path = folder.path / WEIGHTS
    tensors = {_normalize_name(name): tensor for name, tensor in read_tensors(folder, WEIGHTS).items()}
    tensors.pop("bert.embeddings.position_ids", None)  # 0, 1, 2, ...
    for name, original in _COPIES.items():
        copy = tensors.pop(name, None)
        if copy is not None and not torch.equal(copy, tensors.setdefault(original, copy)):
            raise FormatError(f"{path}: {name} is not {original}: this model was trained without tying them")
    return tensors
