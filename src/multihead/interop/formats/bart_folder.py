"""Folders of BART's family in `transformers`: settings, weights, search.

    config.json               settings of the network
    generation_config.json    settings of search; older folders have them in config.json
    model.safetensors         the weights, or pytorch_model.bin
    tokenizer_config.json     languages, and the class of the tokenizer

Marian, M2M-100, NLLB and mBART share them. Names of weights are in `bart_names`; `marian`, `m2m100` and `mbart` know
what the models compute, and their tokenizers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multihead.decoding.search import Search
from multihead.errors import FormatError
from multihead.interop.formats import bart_names
from multihead.interop.formats.renaming import check_layers
from multihead.model_folder import CONFIG, COPY_AGAIN, parse_settings, read_json
from multihead.models.config import TransformerConfig
from multihead.models.layers import sinusoid
from multihead.models.transformer import Transformer
from multihead.skeletons import parameter_shapes
from multihead.text import components
from multihead.text.foreign import SpecialIds

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
"""Their activations, and ours of the same name or equation."""

GENERATION = "generation_config.json"

NORM_EPS = 1e-5
"""Epsilon of every layer norm of the family."""

POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
"""Their tables of positions, which are no weights where positions are sinusoids."""

_HALF = 1e-3
"""Largest difference of positions in half precision."""

_COPIES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
"""Embeddings that a file may hold besides `bart_names.SHARED`, though they are one."""


def model_type(folder: Path) -> str | None:
    """The ``model_type`` in the folder's config.json; None if there is none, or multihead wrote the folder."""
    try:
        config = read_json(folder / CONFIG)
    except FormatError:
        return None
    return None if "format_version" in config else str(config.get("model_type"))


def special_ids(config: Mapping[str, Any], unk: int, path: Path) -> SpecialIds:
    """The special ids of a model; the unknown symbol is known to its tokenizer only.

    Raises:
        FormatError: one is missing.
    """
    found = []
    for name in ("pad_token_id", "decoder_start_token_id", "eos_token_id"):
        value = config.get(name)
        if not isinstance(value, int):
            raise FormatError(f"{path}: {name} is {value!r}; expected an id: the file is damaged or incomplete")
        found.append(value)
    pad, start, end = found
    return SpecialIds(pad, unk, start, end)


def read_settings(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], **fixed: Any
) -> TransformerConfig:
    """The settings of the network.

    Args:
        folder: for messages.
        config: content of config.json; where it says nothing, the defaults are those of BART, Marian, mBART, Pegasus.
        tensors: the weights, which say what is tied.
        fixed: fields that the kind of model fixes: norm, positions.

    Raises:
        FormatError: a setting is missing, or is none that multihead has.
    """
    path = folder / CONFIG
    activation = _checked_activation(config, path)
    theirs = {
        "width": "d_model",
        "heads": "encoder_attention_heads",
        "inner": "encoder_ffn_dim",
        "encoder_layers": "encoder_layers",
        "decoder_layers": "decoder_layers",
        "padding_id": "pad_token_id",
        "source_vocab": "vocab_size",
    }
    missing = [name for name in theirs.values() if config.get(name) is None]
    if missing:
        raise FormatError(f"{path}: has no {missing[0]}; {COPY_AGAIN}")
    shared = config.get("share_encoder_decoder_embeddings", True)
    encoder, decoder, output = _COPIES
    values = {
        **{ours: config[name] for ours, name in theirs.items()},
        "target_vocab": (None if shared else config.get("decoder_vocab_size")) or config["vocab_size"],
        "feed_forward": activation,
        "embedding_scale": "embedding" if config.get("scale_embedding") else "none",
        # A file may hold all of them, equal or not, whatever the settings say.
        "tie_embeddings": shared and _same(tensors, encoder, decoder),
        "tie_output": output not in tensors or _same(tensors, decoder, output),
        "output_bias": bart_names.BIAS in tensors,
        "norm_eps": NORM_EPS,
        "dropout": config.get("dropout", 0.1),
        "attention_dropout": config.get("attention_dropout", 0.0),
        **fixed,
    }
    settings = parse_settings(TransformerConfig, values, path)
    check_layers(settings, tensors, path)
    return settings


def _checked_activation(config: Mapping[str, Any], path: Path) -> str:
    """Our name of the activation.

    Raises:
        FormatError: it is none that multihead has, or the sizes of encoder and decoder differ.
    """
    for one in ("attention_heads", "ffn_dim"):
        pair = config.get(f"encoder_{one}"), config.get(f"decoder_{one}")
        if pair[0] != pair[1]:
            raise FormatError(
                f"{path}: encoder_{one} is {pair[0]} and decoder_{one} {pair[1]}; this multihead reads equal ones only"
            )
    activation = ACTIVATIONS.get(str(config.get("activation_function")))
    if activation is None:
        raise FormatError(
            f"{path}: activation_function is {config.get('activation_function')!r}; this multihead reads models with "
            f"{', '.join(ACTIVATIONS)}"
        )
    return activation


def position_settings(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The settings of positions: sinusoids in halves, unless the file has a table of other numbers.

    A table that was once stored in half precision counts as the sinusoids that it was.
    """
    table = tensors.get(POSITIONS[0])
    if table is not None and table.ndim == 2 and table.shape[1] % 2 == 0:
        expected = sinusoid(torch.arange(len(table)), table.shape[1], "halves")
        if not torch.allclose(table.float(), expected, rtol=0, atol=_HALF):
            return {"positions": "learned", "max_positions": len(table)}
    return {"sinusoid": "halves"}


def without_rows(folder: Path, tensors: Mapping[str, Tensor], rows: int) -> dict[str, Tensor]:
    """The weights with tables of positions that lack their first rows, which no position uses.

    Raises:
        FormatError: a table is missing or has no more rows.
    """
    found = dict(tensors)
    for name in POSITIONS:
        if name not in found or found[name].ndim != 2 or len(found[name]) <= rows:
            raise FormatError(f"{folder}: {name} is missing or damaged; {COPY_AGAIN}")
        found[name] = found[name][rows:]
    return found


def _same(tensors: Mapping[str, Tensor], *names: str) -> bool:
    """Whether these embeddings, or the shared one where a file lacks them, are equal."""
    found = [tensors.get(name, tensors.get(bart_names.SHARED)) for name in names]
    return all(
        one is found[0] or (one is not None and found[0] is not None and torch.equal(one, found[0])) for one in found
    )


def our_weights(
    folder: Path,
    config: TransformerConfig,
    tensors: Mapping[str, Tensor],
    ignored: Callable[[str], bool] = lambda _: False,
) -> dict[str, Tensor]:
    """The weights under our names, in float32.

    Args:
        folder: for messages.
        config: of the network.
        tensors: under their names.
        ignored: whether a name of theirs is no weight of the network.

    Raises:
        FormatError: a weight is missing, or there is one that the network does not have.
    """
    found = bart_names.rename_back(tensors, config)
    wanted = list(parameter_shapes(lambda: Transformer(config)))
    missing = [name for name in wanted if name not in found]
    if missing:
        theirs = dict(bart_names.modules(config)).get(missing[0].rpartition(".")[0], (missing[0],))
        raise FormatError(f"{folder}: the weights of {theirs[0]} are missing; {COPY_AGAIN}")
    weights = {name: found[name].float() for name in wanted}
    modules = {name.rpartition(".")[0] for name in wanted}
    known = {name for ours, names in bart_names.modules(config) if ours in modules for name in names}
    surplus = sorted(
        name
        for name in tensors
        if name not in (bart_names.BIAS, bart_names.SHARED, *_COPIES)
        and name.rpartition(".")[0] not in known
        and not ignored(name)
    )
    if surplus:
        raise FormatError(
            f"{folder}: has {len(surplus)} tensors that no such model has, among them {surplus[:3]}: the model has "
            "parts that multihead does not know"
        )
    return weights


def read_search(folder: Path, config: Mapping[str, Any]) -> Search:
    """The settings of search that a folder names, and ours for the others.

    ``length_penalty`` is alpha. ``max_length`` and ``min_length`` count the begin symbol, which we do not;
    ``max_new_tokens`` and ``min_new_tokens``, which go before them, do not either.

    Raises:
        FormatError: a setting is damaged.
    """
    given = generation_settings(folder, config)
    values: dict[str, Any] = {}
    for ours, theirs in (
        ("beam", "num_beams"),
        ("alpha", "length_penalty"),
        ("max_length", "max_new_tokens"),
        ("min_length", "min_new_tokens"),
    ):
        if given.get(theirs) is not None:
            values[ours] = given[theirs]
    for name in ("max_length", "min_length"):
        length = given.get(name)
        if name not in values and isinstance(length, int) and length > 1:
            values[name] = length - 1
    return parse_settings(Search, values, folder / GENERATION)


def generation_settings(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """What generation_config.json says, and config.json where it says nothing."""
    path = folder / GENERATION
    given = read_json(path) if path.is_file() else {}
    return {**config, **{name: value for name, value in given.items() if value is not None}}


def suppressed(folder: Path, config: Mapping[str, Any]) -> set[int]:
    """The single ids that the folder forbids in translations."""
    words = generation_settings(folder, config).get("bad_words_ids") or []
    return {word[0] for word in words if isinstance(word, list) and len(word) == 1 and type(word[0]) is int}


def refuse(
    folder: Path, config: Mapping[str, Any], settings: Mapping[str, Collection[Any]], name: str = CONFIG
) -> None:
    """Refuse settings of the file ``name`` whose values are none of the supported ones.

    Raises:
        FormatError: there is one; the message names it.
    """
    for setting, allowed in settings.items():
        if setting in config and config[setting] not in allowed:
            raise FormatError(
                f"{folder / name}: {setting} is {config[setting]!r}; this multihead reads models with "
                f"{' or '.join(map(repr, allowed))}"
            )


def by_id(ids: Mapping[str, Any], size: int, path: Path) -> list[str]:
    """The pieces by id.

    Raises:
        FormatError: an id is no number, occurs twice, or is not below ``size``; or far more entries than pieces.
    """
    check_size(size, len(ids), path)
    names = [f"<unused {i}>" for i in range(size)]
    for piece, index in ids.items():
        if type(index) is not int or not 0 <= index < size:
            raise FormatError(f"{path}: {piece!r} has the id {index!r}, but the network has {size} entries")
        if not names[index].startswith("<unused "):
            raise FormatError(f"{path}: {names[index]!r} and {piece!r} have the same id {index}; {COPY_AGAIN}")
        names[index] = piece
    return names


def check_size(size: int, named: int, path: Path) -> None:
    """As `text.components.check_size`, with the name of the file."""
    try:
        components.check_size(size, named)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def tokenizer_settings(folder: Path) -> dict[str, Any]:
    """What tokenizer_config.json says; nothing if there is none."""
    path = folder / "tokenizer_config.json"
    return read_json(path) if path.is_file() else {}
