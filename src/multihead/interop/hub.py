"""Models by their name on the hub of Hugging Face, ``organization/model``.

The package ``huggingface_hub`` downloads and caches them; its settings apply (``HF_HOME``, ``HF_HUB_OFFLINE``, tokens).
Only the files that some reader needs are fetched.
"""

from __future__ import annotations

import re
from pathlib import Path

from multihead.errors import SurroundingsError, require_package

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

WANTED = ["*.json", "*.safetensors", "*.bin", "*.spm", "*.model", "*.yml", "*.npz", "*.txt"]
"""Patterns of the files that readers need."""
_FOLDER = "target_tokenizer"
"""The only folder of a model that a reader needs, of our own exports (`interop.formats.multilingual`)."""
_UNWANTED = [
    *("*onnx*", "tf_model*", "flax_model*", "rust_model*"),
    # All other folders: their names differ at some character, end before it, or go on.
    *(f"{_FOLDER[:place]}[!{letter}]*/*" for place, letter in enumerate(_FOLDER)),
    *(f"{_FOLDER[:place]}/*" for place in range(1, len(_FOLDER))),
    f"{_FOLDER}[!/]*/*",
]


def model_folder_of(model: str | Path) -> Path:
    """The folder of a model: the given one if it exists, or the downloaded one of a name of the hub.

    Raises:
        MissingDependencyError: it is a name, and huggingface_hub is not installed.
        SurroundingsError: it cannot be downloaded, and is not in the cache.
    """
    folder = Path(model)
    if folder.exists() or not _NAME.fullmatch(str(model)):
        return folder
    require_package("huggingface_hub", "interop", f"{model}: downloading it")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(model), allow_patterns=WANTED, ignore_patterns=_UNWANTED))
    except Exception as error:  # of the packages that it uses, too: a proxy that refuses, a name of another form
        raise SurroundingsError(
            f"{model}: there is no such folder, it is not in the cache of huggingface_hub, and cannot be downloaded "
            f"({_reason(error)}). Where there is a network, put the files of https://huggingface.co/{model} into a "
            "folder (config.json, weights, tokenizers), and give that folder here"
        ) from None


def _reason(error: Exception) -> str:
    """The first line of an error's message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
