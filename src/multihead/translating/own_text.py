"""The pairs of a run or prepared folder, in the subwords of a model."""

from __future__ import annotations

from pathlib import Path

from multihead.bundle import Bundle
from multihead.data.store import MAKE_AGAIN, ParallelStore
from multihead.errors import ConfigurationError
from multihead.sealed import open_folder
from multihead.text.tokenizer import Tokenizer


def open_pairs(folder: Path, bundle: Bundle, name: str = "train", remedy: str = "") -> ParallelStore:
    """The training or validation pairs of a folder.

    Args:
        folder: a run, or a folder of `multihead prepare`.
        bundle: the model.
        name: ``train`` or ``valid``.
        remedy: what else can be done where there are none, for messages.

    Raises:
        ConfigurationError: there are none, or they are in other subwords.
        FormatError: the folder is damaged.
    """
    place = folder / "data"
    if not (place / name).is_dir():
        raise ConfigurationError(
            f"{folder}: has no pairs of text ({place / name}): name a run, or a folder of `multihead prepare`, with "
            f"--data{remedy}"
        )
    with open_folder(folder, MAKE_AGAIN) as found:
        for side, own in (("source", bundle.source_tokenizer), ("target", bundle.target_tokenizer)):
            file = f"data/{side}.tokenizer.json"
            if Tokenizer.read(found, file).digest != own.digest:
                raise ConfigurationError(
                    f"{folder / file}: not the subwords of the model; name the text that it was trained on{remedy}"
                )
        return ParallelStore.open(found.part(f"data/{name}"))
