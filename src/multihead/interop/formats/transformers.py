"""transformers: the folder that ``AutoModelForSeq2SeqLM`` loads.

Hugging Face's ``transformers`` has no single layout for translators: a class fixes where the norms are. Four of BART's
family cover ours:

    norm    embedding_norm    class       positions
    post    no                Marian      sinusoids, computed by the class: sines in the first half of the channels
    post    yes               BART        a table in the file
    pre     no                Pegasus     a table in the file
    pre     yes               mBART       a table in the file

A model with the positions of M2M-100 is written as M2M-100, if everything else is as there, too.

Marian computes its sinusoids, and ``save_pretrained`` drops a table of its own, so our channels are put into its
order; apart from the order both have the same numbers. M2M-100 is pre-norm too, but its frequencies are others (the
last one is exactly 1/10000), so no permutation makes them ours. Pegasus computes the sinusoids of Marian, but it loads
and saves a table where the file has one. A table needs no permutation, and carries learned positions, too.

All these classes fix the epsilon of the layer norm to 1e-5, where ours is 1e-6. With a table the residual stream is
multiplied by sqrt(10), which is exact (`equivalent.with_epsilon`). Marian has no table, so there the epsilon differs:
a norm's output changes by a factor of 1 - 4.5e-6 / v for an input of variance v. The certificate shows the effect.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multihead.files import write_errors, write_tensors
from multihead.interop.formats import bart_names, equivalent, marian_tokenizer, tokenizer_json
from multihead.interop.formats.parts import TranslatorParts, network_refusals, refused_tokenizers, search_refusals
from multihead.interop.formats.tokenizer_json import write_json
from multihead.models.config import TransformerConfig
from multihead.models.stack_config import GATED

QUANTIZATIONS = ("float32", "float16", "bfloat16")
"""Types of weights, the default first."""

POSITIONS = 1024
"""Number of positions of a model whose sinusoids have no end here."""

EPSILON = 1e-5
"""The epsilon of every layer norm in these classes."""

TARGET = "target_tokenizer"
"""Folder of the tokenizer of the target, if it is another one."""

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu"}

_NEVER = -1e4
"""The bias of an output that is no entry: its probability is zero in any precision."""


@dataclass(frozen=True)
class Layout:
    """A class of ``transformers``.

    Args:
        model_type: its name in config.json.
        architecture: the class.
        has_table: whether the positions are in the file.
        offset: rows of the table before position 0.
    """

    model_type: str
    architecture: str
    has_table: bool = True
    offset: int = 0


_LAYOUTS = {
    ("post", False): Layout("marian", "MarianMTModel", has_table=False),
    ("post", True): Layout("bart", "BartForConditionalGeneration", offset=2),
    ("pre", False): Layout("pegasus", "PegasusForConditionalGeneration"),
    ("pre", True): Layout("mbart", "MBartForConditionalGeneration", offset=2),
}


_M2M100 = Layout("m2m_100", "M2M100ForConditionalGeneration", has_table=False)


def layout_of(config: TransformerConfig) -> Layout:
    """The class for a network."""
    fairseq = config.norm == "pre" and (config.positions, config.sinusoid) == ("sinusoidal", "fairseq")
    plain = config.tie_embeddings and not (config.output_bias or config.embedding_norm)
    if fairseq and plain and (config.padding_id, config.norm_eps) == (1, EPSILON):
        return _M2M100
    return _LAYOUTS[config.norm, config.embedding_norm]


def refusals(parts: TranslatorParts) -> list[str]:
    """What no class of ``transformers`` carries; empty if one carries everything."""
    config = parts.config
    layout, reasons = layout_of(config), attention_refusals(config)
    if config.feed_forward in GATED:
        reasons.append(f"a gated feed-forward network ({config.feed_forward})")
    if config.has_final_norm != (config.norm == "pre"):
        reasons.append(f"{config.norm}-norm with final_norm {config.has_final_norm}")
    if layout.model_type == "marian" and config.positions in ("learned", "none"):
        kind = "learned" if config.positions == "learned" else "no"
        reasons.append(f"{kind} positions with post-norm and without embedding_norm, which Marian does not keep")
    elif layout.model_type == "marian" and config.sinusoid not in ("interleaved", "halves"):
        reasons.append(f"positions of the kind '{config.sinusoid}' with post-norm and without embedding_norm")
    reasons += search_refusals(parts.generation)
    return reasons + ([] if _has_marian_files(parts) else tokenizer_refusals(parts))


def _has_marian_files(parts: TranslatorParts) -> bool:
    """Whether the tokenizers are written as Marian's."""
    return layout_of(parts.config).model_type == "marian" and marian_tokenizer.has_such(parts)


def attention_refusals(config: TransformerConfig, *, rotary: bool = False) -> list[str]:
    """Attention, or what it attends to, that differs from BART's; ``rotary`` positions may be possible."""
    reasons = network_refusals(config, rotary=rotary)
    if config.kv_heads not in (None, config.heads):
        reasons.append(f"grouped queries (kv_heads {config.kv_heads} of {config.heads} heads)")
    if not config.key_width == config.value_width == config.width:
        reasons.append(f"heads that do not divide the width (key_dim {config.key_dim}, value_dim {config.value_dim})")
    if not config.source_end:
        reasons.append("an encoder that does not read the end symbol of a source, as OpenNMT's")
    return reasons


def tokenizer_refusals(parts: TranslatorParts) -> list[str]:
    """Tokenizers that cannot be written as ``tokenizer.json``."""
    return refused_tokenizers(parts, tokenizer_json.is_supported)


def write(parts: TranslatorParts, folder: Path, quantization: str = "float32") -> None:
    """Write the folder: settings, weights, tokenizers and a card.

    Args:
        parts: a translator without `refusals`.
        folder: an existing folder.
        quantization: the type of the weights.

    Raises:
        SurroundingsError: the folder cannot be written.
    """
    layout, longest = layout_of(parts.config), longest_of(parts.config)
    with write_errors(folder):
        write_settings(parts, folder, settings_of(parts, layout) | {"dtype": quantization})
        if _has_marian_files(parts):
            marian_tokenizer.write_tokenizers(parts, folder, longest)
        else:
            write_tokenizers(parts, folder)
    dtype = getattr(torch, quantization)
    tensors = {name: tensor.to(dtype) for name, tensor in tensors_of(parts, layout).items()}
    write_tensors(folder / "model.safetensors", tensors)
    with write_errors(folder):
        (folder / "README.md").write_text(_card(parts, layout, longest), encoding="utf-8", newline="\n")


def represented(parts: TranslatorParts, quantization: str) -> TranslatorParts:
    """The parts with the weights that a file of this type has."""
    if quantization == "float32":
        return parts
    fitted, dtype = fit(parts, layout_of(parts.config)), getattr(torch, quantization)
    return replace(fitted, weights={name: tensor.to(dtype).float() for name, tensor in fitted.weights.items()})


def write_settings(parts: TranslatorParts, folder: Path, settings: dict[str, Any]) -> None:
    """Write config.json and generation_config.json."""
    write_json(folder / "config.json", settings)
    write_json(folder / "generation_config.json", generation_of(parts))


def write_tokenizers(parts: TranslatorParts, folder: Path) -> None:
    """Write the tokenizers as ``tokenizer.json``, that of another target into `TARGET`."""
    longest = longest_of(parts.config)
    tokenizer_json.write_tokenizer(parts.source_tokenizer, folder, longest)
    if has_other_target(parts):
        (folder / TARGET).mkdir()
        tokenizer_json.write_tokenizer(parts.target_tokenizer, folder / TARGET, longest)


def has_other_target(parts: TranslatorParts) -> bool:
    """Whether source and target have different tokenizers."""
    return parts.source_tokenizer.digest != parts.target_tokenizer.digest


def longest_of(config: TransformerConfig) -> int:
    """Number of positions in the folder."""
    return max(config.max_positions, POSITIONS) if config.positions == "learned" else POSITIONS


def settings_of(parts: TranslatorParts, layout: Layout) -> dict[str, Any]:
    """The content of config.json."""
    config, target = parts.config, parts.target_tokenizer
    tied = config.tie_output and (config.tie_embeddings or layout.model_type == "marian")
    sizes = {"layers": "{}_layers", "attention_heads": "heads", "ffn_dim": "inner"}
    sides = {
        f"{side}_{name}": getattr(config, field.format(side))
        for side in ("encoder", "decoder")
        for name, field in sizes.items()
    }
    return {
        "model_type": layout.model_type,
        "architectures": [layout.architecture],
        "is_encoder_decoder": True,
        "d_model": config.width,
        **sides,
        "num_hidden_layers": config.encoder_layers,
        "activation_function": ACTIVATIONS.get(config.feed_forward, config.feed_forward),
        "scale_embedding": config.embedding_scale == "embedding",
        "max_position_embeddings": longest_of(config),
        **_vocabularies(config, layout),
        "tie_word_embeddings": tied,
        "pad_token_id": target.pad_id,
        "bos_token_id": target.bos_id,
        "eos_token_id": target.eos_id,
        "decoder_start_token_id": target.bos_id,
        "forced_eos_token_id": None,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.dropout_of("feed_forward"),
        "use_cache": True,
        "dtype": "float32",
    }


def _vocabularies(config: TransformerConfig, layout: Layout) -> dict[str, Any]:
    if layout.model_type == "marian":
        return {
            "vocab_size": config.source_vocab,
            "decoder_vocab_size": config.target_vocab,
            "share_encoder_decoder_embeddings": config.tie_embeddings,
        }
    return {"vocab_size": max(config.source_vocab, config.target_vocab)}


def generation_of(parts: TranslatorParts) -> dict[str, Any]:
    """The content of generation_config.json: our search, as far as ``generate`` has it.

    ``early_stopping`` False is our stopping rule 'ahead'. 'never' is the exact rule, but it needs a limit that grows
    with the source, as ours does: without one, it searches every sentence to the last position. ``max_length`` and
    ``min_length`` count the begin symbol, which ours do not.
    """
    search, target, longest = parts.generation, parts.target_tokenizer, longest_of(parts.config)
    return {
        "num_beams": search.beam,
        "length_penalty": search.alpha,
        "early_stopping": False,
        "max_length": min((search.max_length or longest - 1) + 1, longest),
        "min_length": search.min_length + 1 if search.min_length else 0,
        # generate refuses to force what it suppresses
        "suppress_tokens": [i for i in target.forbidden_in_output if i not in target.prefix],
        "pad_token_id": target.pad_id,
        "bos_token_id": target.bos_id,
        "eos_token_id": target.eos_id,
        "decoder_start_token_id": target.bos_id,
        "forced_bos_token_id": target.prefix[0] if target.prefix else None,
    }


def tensors_of(parts: TranslatorParts, layout: Layout) -> dict[str, Tensor]:
    """The weights by the names of the class."""
    fitted = fit(parts, layout)
    config = fitted.config
    found = bart_names.rename(fitted.weights, config)
    source, target = (f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
    head = "lm_head.weight"
    if config.tie_embeddings:
        found[target] = found[source]
    if config.tie_output:
        found[head] = found[target]
    if layout.offset:
        for side in ("encoder", "decoder"):
            name = f"model.{side}.embed_positions.weight"
            found[name] = torch.cat((found[name].new_zeros(layout.offset, config.width), found[name]))
    if layout.model_type == "marian":
        found.setdefault(bart_names.BIAS, torch.zeros(1, config.target_vocab))
        if config.tie_output and not config.tie_embeddings:
            del found[head]
    elif layout != _M2M100:
        _pad_vocabularies(found, config)
    if config.tie_embeddings:
        found[bart_names.SHARED] = found[source]
        if config.tie_output:
            for name in (source, target, head):
                del found[name]
    elif layout.model_type != "marian":
        found[bart_names.SHARED] = found[source]
    return {name: tensor.clone() for name, tensor in found.items()}


def _pad_vocabularies(found: dict[str, Tensor], config: TransformerConfig) -> None:
    """Give both sides the larger vocabulary, as these classes have one; no translation has the surplus entries."""
    size = max(config.source_vocab, config.target_vocab)
    bias = found.get(bart_names.BIAS, torch.zeros(1, config.target_vocab))
    surplus = bias.new_full((1, size - config.target_vocab), _NEVER)
    found[bart_names.BIAS] = torch.cat((bias, surplus), dim=1)
    for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"):
        rows = found[name].new_zeros(size - len(found[name]), config.width)
        found[name] = torch.cat((found[name], rows)) if len(rows) else found[name]


def fit(parts: TranslatorParts, layout: Layout) -> TranslatorParts:
    """The equivalent form that the class computes; for Marian, up to the epsilon."""
    parts = equivalent.with_biases(equivalent.without_projection_scale(parts))
    if not layout.has_table:
        interleaved = parts.config.sinusoid == "interleaved"
        return equivalent.in_halves(parts) if interleaved else parts
    return equivalent.with_epsilon(equivalent.with_learned_positions(parts, longest_of(parts.config)), EPSILON)


def _card(parts: TranslatorParts, layout: Layout, longest: int) -> str:
    languages = f"{parts.source_language or 'source'} to {parts.target_language or 'target'}"
    other = has_other_target(parts) and not _has_marian_files(parts)
    separate = f'target = AutoTokenizer.from_pretrained("{TARGET}")\n' if other else ""
    return (
        f"# Translator for transformers, {languages}\n\n{parts.config.summary}; as `{layout.architecture}`.\n\n"
        "```python\nfrom transformers import AutoModelForSeq2SeqLM, AutoTokenizer\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained(".")\n{separate}'
        'model = AutoModelForSeq2SeqLM.from_pretrained(".")\n\n'
        f'batch = tokenizer(["{marian_tokenizer.typed_prefix(parts)}..."], padding=True, return_tensors="pt")\n'
        "found = model.generate(**batch)\n"
        f"print({'target' if other else 'tokenizer'}.batch_decode(found, skip_special_tokens=True))\n```\n\n"
        'These lines replace `pipeline("translation")`, which transformers 5 no longer has. '
        f"The model has {longest:,} positions; a longer text must be cut into sentences first.\n"
    )
