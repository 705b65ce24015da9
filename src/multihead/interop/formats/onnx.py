"""ONNX: the files that Optimum and transformers.js load.

    config.json, generation_config.json, tokenizer.json, tokenizer_config.json
    onnx/encoder_model.onnx             input_ids, attention_mask -> last_hidden_state
    onnx/decoder_model.onnx             the first step, or a whole target: no past
    onnx/decoder_with_past_model.onnx   one more token
    onnx/decoder_model_merged.onnx      both, chosen by use_cache_branch

Names of inputs and outputs are Optimum's: a past is ``past_key_values.LAYER.decoder.key`` and ``.value`` for
self-attention, ``.encoder.`` for cross-attention, which is computed in the first step; outputs are ``present.…``.
transformers.js loads the encoder and the merged decoder, Optimum either kind. With int8 the files end with
``_quantized.onnx``, which is transformers.js' name for ``dtype: "q8"``.

The graphs are our network, so they carry what no class of transformers does: gated units, any epsilon, learned
positions with post-norm. Those programs still want a class in config.json, from which they take shapes and special ids;
it is Marian, which both know, whatever the network is.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch

from multihead.files import write_errors
from multihead.interop.formats import equivalent, transformers
from multihead.interop.formats.onnx_graph import OPSET, Graph, import_onnx
from multihead.interop.formats.onnx_network import decoder_graph, encoder_graph
from multihead.interop.formats.parts import TranslatorParts, search_refusals

QUANTIZATIONS = ("float32", "int8")

FOLDER = "onnx"

ENCODER, FIRST, WITH_PAST, MERGED = "encoder_model", "decoder_model", "decoder_with_past_model", "decoder_model_merged"

_MARIAN = transformers.Layout("marian", "MarianMTModel", has_table=False)


def refusals(parts: TranslatorParts) -> list[str]:
    """What the graphs or the programs that load them cannot carry; empty if they carry everything."""
    reasons = transformers.attention_refusals(parts.config, rotary=True) + search_refusals(parts.generation)
    return reasons + transformers.tokenizer_refusals(parts)


def file_name(name: str, quantization: str) -> str:
    """The file of a graph, in `FOLDER`."""
    return f"{name}{'_quantized' if quantization == 'int8' else ''}.onnx"


def write(parts: TranslatorParts, folder: Path, quantization: str = "float32") -> None:
    """Write the folder: settings, tokenizers, four graphs and a card.

    Args:
        parts: a translator without `refusals`.
        folder: an existing folder.
        quantization: float32, or int8: the matrices are rounded, and so are the inputs of their products.

    Raises:
        MissingDependencyError: onnx is not installed.
        InputError: a graph is larger than 2 GB.
        SurroundingsError: the folder cannot be written.
    """
    import_onnx()
    length = transformers.longest_of(parts.config)
    same = equivalent.without_projection_scale(parts)
    model = (same if same.config.positions == "rotary" else equivalent.with_learned_positions(same, length)).build(
        folder
    )
    int8 = quantization == "int8"
    with write_errors(folder):
        transformers.write_settings(parts, folder, transformers.settings_of(parts, _MARIAN))
        transformers.write_tokenizers(parts, folder)
        (folder / FOLDER).mkdir()
    _save(encoder_graph(model, length, int8), folder, file_name(ENCODER, quantization))
    _save(decoder_graph(model, length, "first", int8), folder, file_name(FIRST, quantization))
    _save(decoder_graph(model, length, "with_past", int8), folder, file_name(WITH_PAST, quantization))
    _save(decoder_graph(model, length, "merged", int8), folder, file_name(MERGED, quantization))
    with write_errors(folder):
        (folder / "README.md").write_text(_card(parts, quantization, length), encoding="utf-8", newline="\n")


def represented(parts: TranslatorParts, quantization: str) -> TranslatorParts:
    """The parts with the weights that the files have."""
    if quantization != "int8":
        return parts

    def rounded(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() != 2 or ".positions." in name:
            return tensor
        largest = tensor.abs().amax(1, keepdim=True)
        scale = torch.where(largest > 0, largest, torch.ones_like(largest)) / 127
        return (tensor / scale).round() * scale

    return replace(parts, weights={name: rounded(name, tensor) for name, tensor in parts.weights.items()})


def _save(graph: Graph, folder: Path, name: str) -> None:
    content = graph.content(f"multihead {version('multihead')}")
    with write_errors(folder):
        (folder / FOLDER / name).write_bytes(content)


def _card(parts: TranslatorParts, quantization: str, longest: int) -> str:
    languages = f"{parts.source_language or 'source'} to {parts.target_language or 'target'}"
    other = transformers.has_other_target(parts)
    target, folder = "target" if other else "tokenizer", transformers.TARGET
    python = f'target = AutoTokenizer.from_pretrained("{folder}")\n' if other else ""
    script = f"const target = await AutoTokenizer.from_pretrained('./{folder}');\n" if other else ""
    files = ", ".join(
        f'{key}="{file_name(name, quantization)}"'
        for key, name in (("encoder_file_name", ENCODER), ("decoder_file_name", MERGED))
    )
    return (
        f"# Translator in ONNX, {languages}\n\n{parts.config.summary}; weights in {quantization}, opset {OPSET}.\n\n"
        "With Optimum:\n\n"
        "```python\nfrom optimum.onnxruntime import ORTModelForSeq2SeqLM\nfrom transformers import AutoTokenizer\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained(".")\n{python}'
        f'model = ORTModelForSeq2SeqLM.from_pretrained(".", subfolder="{FOLDER}", {files})\n'
        'batch = tokenizer(["..."], padding=True, return_tensors="pt")\n'
        f"print({target}.batch_decode(model.generate(**batch), skip_special_tokens=True))\n"
        "```\n\nWith transformers.js, which searches greedily:\n\n"
        "```js\nimport { AutoModelForSeq2SeqLM, AutoTokenizer } from '@huggingface/transformers';\n\n"
        f"const tokenizer = await AutoTokenizer.from_pretrained('.');\n{script}"
        f"const model = await AutoModelForSeq2SeqLM.from_pretrained('.', {{ dtype: '{_DTYPES[quantization]}' }});\n"
        "const found = await model.generate({ ...tokenizer(['...'], { padding: true }), num_beams: 1 });\n"
        f"console.log({target}.batch_decode(found, {{ skip_special_tokens: true }}));\n```\n\n"
        f"The model has {longest:,} positions; a longer text must be cut into sentences first.\n"
    )


_DTYPES: dict[str, str] = {"float32": "fp32", "int8": "q8"}
"""The names of the quantizations in transformers.js."""
