"""BART and Pegasus folders of `transformers`, as our exports have them.

Lewis et al. (2020), "BART"; Zhang et al. (2020), "PEGASUS". BART is post-norm, with a norm after the embeddings and
learned positions, before which its tables have two rows that no position uses. Pegasus is pre-norm; its positions are
sinusoids, or a table in the file. `transformers` writes these layouts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from multihead.interop.formats import bart_folder
from multihead.interop.formats.multilingual import read_sides, read_vocabulary
from multihead.interop.formats.parts import Languages, TranslatorParts
from multihead.interop.formats.tensors import read_weights
from multihead.model_folder import CONFIG, read_json

_OFFSET = 2
"""Rows of BART's tables of positions before the first position."""


def recognizes(folder: Path) -> bool:
    """Whether the folder holds a BART or Pegasus model."""
    return bart_folder.model_type(folder) in ("bart", "pegasus")


def read(folder: Path, languages: Languages) -> TranslatorParts:
    """The model in a BART or Pegasus folder.

    Raises:
        FormatError: a file is missing, damaged, or of an unsupported variant.
    """
    config, tensors = read_json(folder / CONFIG), read_weights(folder)
    fixed: dict[str, Any]
    if config["model_type"] == "bart":
        tensors = bart_folder.without_rows(folder, tensors, _OFFSET)
        fixed = {"norm": "post", "embedding_norm": True, "positions": "learned"}
        fixed["max_positions"] = len(tensors[bart_folder.POSITIONS[0]])
    else:
        fixed = {"norm": "pre", **bart_folder.position_settings(tensors)}
    settings = bart_folder.read_settings(folder, config, tensors, **fixed)
    generation = bart_folder.generation_settings(folder, config)
    sides = read_sides(folder, read_vocabulary(folder, config, []), generation, languages)
    sinusoids = settings.positions == "sinusoidal"
    return TranslatorParts(
        settings,
        bart_folder.our_weights(folder, settings, tensors, lambda name: sinusoids and name in bart_folder.POSITIONS),
        sides.source,
        sides.target,
        bart_folder.read_search(folder, config),
        sides.source_language,
        sides.target_language,
    )
