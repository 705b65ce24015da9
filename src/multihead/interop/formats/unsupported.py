"""Says what a folder of another program is that no reader recognizes.

A refusal names the architecture, what multihead lacks for it, and what it reads instead.
"""

from __future__ import annotations

from pathlib import Path

from multihead.errors import FormatError, shortened, shown
from multihead.model_folder import CONFIG, read_json

_LACKS = {
    "umt5": "relative positions of each layer",
    "nllb-moe": "layers that choose among experts",
    "switch_transformers": "layers that choose among experts",
    "seamless_m4t": "an encoder of speech",
    "seamless_m4t_v2": "an encoder of speech",
    "speech_to_text": "an encoder of speech",
    "whisper": "an encoder of speech",
    "prophetnet": "a decoder that predicts several tokens at once",
    "led": "attention through windows",
    "longt5": "attention through windows",
    "bigbird_pegasus": "attention through windows",
    "encoder-decoder": "a decoder made of a BERT or GPT",
}
"""What multihead lacks for some encoder-decoders, by their ``model_type``."""

_ALONE = "an encoder and a decoder: this network has one stack only, and does not translate by itself"


def describe(folder: Path) -> str | None:
    """What the folder is and why it cannot be read; None if nothing in it says so."""
    config_path = folder / CONFIG
    if config_path.is_file():
        try:
            config = read_json(config_path)
        except FormatError:
            return None
        kind, names = config.get("model_type"), config.get("architectures")
        if isinstance(kind, str):
            network = f" ({shortened(', '.join(map(str, names)))})" if isinstance(names, list) and names else ""
            lacks = _LACKS.get(kind) or ("a reader for it" if config.get("is_encoder_decoder") else _ALONE)
            return f"a model of the type {shown(kind)}{network}; multihead lacks {lacks}"
    for pattern, what in (
        (
            "model.bin",
            "a folder of CTranslate2, which holds a model for inference only; give the model it was made from",
        ),
        ("*.gguf", "a model of llama.cpp; give the model it was made from"),
        ("*.onnx", "a graph of ONNX; give the model it was exported from"),
        ("*.npz.bin", "a binary model of Marian; give its .npz"),
    ):
        if any(folder.glob(pattern)):
            return what
    return None
