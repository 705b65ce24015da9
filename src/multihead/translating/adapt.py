"""Apply an adapter file to the model that it was made for.

The result is a plain model folder, as the run that trained the adapter wrote it (`multihead.models.adapters`): many
adapters of one large model can be kept as small files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from multihead.bundle import load_bundle, locate, save_bundle, weights_digests
from multihead.errors import ConfigurationError, FormatError
from multihead.files import check_new_folder
from multihead.models.adapters import ADAPTER, read_adapter, with_adapter
from multihead.text.languages import Languages


def apply_adapter(
    model: str | Path,
    adapter: str | Path,
    *,
    output: str | Path,
    languages: Languages | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Merge an adapter into the model that it was trained from, and write the model folder.

    Args:
        model: the model that was given as ``from_model``: a run or model folder, or one of another program.
        adapter: the file; or the run or model folder that it is in.
        output: a new or empty folder.
        languages: source and target, for a model of another program that has several.
        say: called with a line about the result.

    Returns:
        The new model folder.

    Raises:
        ConfigurationError: the output exists, or the adapter was made for other weights.
        FormatError: not a model or not an adapter, or damaged.
        SurroundingsError: it cannot be written.
    """
    output, path = Path(output), Path(adapter)
    check_new_folder(output)
    if path.is_dir():
        path = locate(path) / ADAPTER
        if not path.is_file():
            raise FormatError(f"{path}: there is no such file; `multihead train --lora` writes it")
    found = read_adapter(path)
    folder = locate(Path(model))
    digests = weights_digests(folder)
    if found.base not in digests:
        raise ConfigurationError(
            f"{path}: made for the weights {found.base[:12]}..., and those of {model} are {digests[0][:12]}...; give "
            "the model that it was trained from"
        )
    bundle = load_bundle(folder, languages=languages)
    made_by = (
        f"The model of {model}, whose weights are {found.base[:12]}, with a low-rank adapter of rank {found.rank} "
        f"merged into it, by multihead {version('multihead')}."
    )
    save_bundle(output, replace(bundle, model=with_adapter(bundle.model, found)), {}, made_by)
    count = sum(tensor.numel() for tensor in found.tensors.values())
    say(f"{output}: {model} with an adapter of rank {found.rank}, {count:,} numbers")
    return output
