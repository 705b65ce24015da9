"""Folders that translate in a browser, offline: ``--format web``.

    index.html             a page; with it page.js, texts.js and style.css
    example.html           the module in 20 lines
    multihead.js           the module, with multihead.d.ts, package.json and the files that it imports
    decoding.wasm          the compiled search (engine/native), built by `make wasm`
    model.json             sizes, search settings, languages, tokenizers
    weights.bin            the tensors, in the order of `multihead.engine.weights`

A matrix is stored as `multihead.model_folder` rounds it to int8: its bytes row by row, then the largest number of each
row as float32. Everything else is float32. Each tensor begins at a multiple of 4 bytes; a shared one is stored once.
Sinusoidal positions are computed by the browser.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from multihead.engine.networks import NetworkWeights
from multihead.engine.weights import DECODING, PRECISIONS, model_weights
from multihead.interop.formats.parts import TranslatorParts, network_refusals
from multihead.interop.formats.web_vocabulary import describe, refusal
from multihead.kernels.native import has_instructions
from multihead.model_folder import LARGEST, quantize_tensors, round_matrix
from multihead.models.layers import Embedding, LearnedPositions
from multihead.models.stack_config import Sinusoid
from multihead.models.transformer import Transformer

SITE = Path(__file__).with_name("site")
"""The files that do not depend on the model."""

QUANTIZATIONS = ("int8",)

LONGEST_LINE = 128
"""Tokens, including the end symbol, above which a line is translated sentence by sentence."""

_README = """\
# A translator in the browser

Put this folder on any file server, for example `python3 -m http.server`, and open `index.html`. Nothing is sent
anywhere; after the files are loaded, the page works without a network. `example.html` shows how to use the module in a
page of your own; `multihead.d.ts` describes it.
"""

_SEARCH = (
    "beam", "alpha", "length_factor", "length_margin", "min_length", "max_length", "min_factor", "length_penalty",
    "stopping", "patience",
)  # fmt: skip

_MISSING, _NUMBERS, _BYTES = 0, 1, 2
"""Kinds of stored tensors, as web.cpp reads them."""


def refusals(parts: TranslatorParts) -> list[str]:
    """What a browser's search and tokenizer lack."""
    search = parts.generation
    usual = {"no_repeat": 0, "without": (), "groups": 1, "coverage": 0.0, "shortlist": False}
    changed = [name for name, value in usual.items() if getattr(search, name) != value]
    reasons = network_refusals(parts.config, rotary=True, native=True)
    reasons += [f"a search with {name}={getattr(search, name)!r}, which the compiled search lacks" for name in changed]
    for side, tokenizer in (("source", parts.source_tokenizer), ("target", parts.target_tokenizer)):
        reason = refusal(tokenizer)
        reasons += [] if reason is None else [f"a {side} vocabulary that {reason}"]
    if parts.target_tokenizer.prefix:
        reasons.append("tokens that every translation begins with, such as a language, which the page lacks")
    if not parts.config.source_end:
        reasons.append("an encoder that does not read the end symbol of a source, as OpenNMT's")
    return reasons


def represented(parts: TranslatorParts, _quantization: str) -> TranslatorParts:
    """The parts with the weights that the folder has, in float32."""
    weights = {
        name: round_matrix(tensor, "int8") if tensor.dim() == 2 and ".positions." not in name else tensor
        for name, tensor in parts.weights.items()
    }
    return replace(parts, weights=weights)


def allowed(_quantization: str) -> float:
    """The largest difference of the log-probability of a translation.

    Where our engine has the vectors of AVX-512, the browser computes the same bits, except for the last one of a
    logarithm. Elsewhere our engine sums in another order, and bytes of int8 differ by a step now and then: with AVX2,
    translations of 1,000 sentences by up to 0.13.
    """
    return 1e-4 if has_instructions(DECODING, "avx512f") else 0.5


def write(parts: TranslatorParts, folder: Path, _quantization: str = "int8") -> None:
    """Write a folder that any file server can serve.

    Args:
        parts: a translator without `refusals`; its search settings become the page's.
        folder: an empty folder.
    """
    names = ("source_tokenizer", "target_tokenizer")
    vocabularies: dict[str, Any] = {name: describe(getattr(parts, name)) for name in names}
    if parts.source_tokenizer.digest == parts.target_tokenizer.digest:
        vocabularies["target_tokenizer"] = None
    network, weights = network_of(parts.build(Path("the model")))
    network["symbols"] = {
        "begin": parts.target_tokenizer.bos_id,
        "end": parts.target_tokenizer.eos_id,
        "forbidden": list(parts.target_tokenizer.forbidden_in_output),
    }
    for file in sorted(SITE.iterdir()):
        shutil.copyfile(file, folder / file.name)
    (folder / "weights.bin").write_bytes(weights)
    reach = parts.config.max_positions if parts.config.positions == "learned" else LONGEST_LINE
    settings = {
        "format": 1,
        "source_language": parts.source_language,
        "target_language": parts.target_language,
        **({"directions": parts.directions} if parts.directions else {}),
        "search": parts.generation.model_dump(mode="json", include=set(_SEARCH)),
        "longest_line": min(LONGEST_LINE, reach),
        "bytes": {"weights": len(weights), "module": (SITE / "decoding.wasm").stat().st_size},
        "network": network,
        **vocabularies,
    }
    (folder / "README.md").write_text(_README, encoding="utf-8", newline="\n")
    content = json.dumps(settings, ensure_ascii=False, separators=(",", ":"))
    (folder / "model.json").write_text(content, encoding="utf-8", newline="\n")


def _table(model: Transformer, side: Embedding) -> Tensor | None:
    """The position vectors that the browser does not compute: learned ones, or zeros if there are none."""
    if isinstance(side.positions, LearnedPositions):
        return side.positions.table.weight
    return torch.zeros(1, model.config.width) if side.positions is None and model.rotary is None else None


def network_of(model: Transformer) -> tuple[dict[str, Any], bytes]:
    """Sizes and places of the tensors for model.json, and the content of weights.bin."""
    given = model_weights(NetworkWeights(model), "float32")
    sides = (model.source_embedding, model.target_embedding)
    positions = [_table(model, one) for one in sides]
    places: list[int] = []
    data = bytearray()
    known: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for number, tensor in enumerate([*given.tensors, *positions]):
        if tensor is None:
            places += [_MISSING, 0, 0, 0]
            continue
        key = tensor.data_ptr(), tuple(tensor.shape)
        if key not in known:
            kind = _BYTES if tensor.dim() == 2 and number < len(given.tensors) else _NUMBERS
            known[key] = [kind, *_shape(tensor), len(data)]
            data += _content(tensor, kind)
        places += known[key]
    network = {
        "sizes": [PRECISIONS.index("int8"), *given.sizes[1:]],
        "scales": given.scales,
        "tensors": places,
        "layout": get_args(Sinusoid).index("halves" if model.rotary is not None else model.config.sinusoid),
        "tied": sides[0].table.weight is sides[1].table.weight,
    }
    return network, bytes(data)


def _shape(tensor: Tensor) -> tuple[int, int]:
    return (len(tensor), 1) if tensor.dim() == 1 else (tensor.shape[0], tensor.shape[1])


def _content(tensor: Tensor, kind: int) -> bytes:
    """The bytes of a tensor, padded to a multiple of 4."""
    tensor = tensor.detach().contiguous()
    if kind == _NUMBERS:
        return _little(tensor)
    rounded = quantize_tensors({"matrix": tensor}, ["matrix"], "int8")
    steps = rounded["matrix"].numpy().tobytes()
    return steps + bytes(-len(steps) % 4) + _little(rounded["matrix" + LARGEST])


def _little(tensor: Tensor) -> bytes:
    numbers = tensor.to(torch.float32).numpy()
    return (numbers if sys.byteorder == "little" else numbers.byteswap()).tobytes()
