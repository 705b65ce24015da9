"""Average the weights of several checkpoints or models.

    theta = (theta_1 + ... + theta_N) / N

tensor by tensor, summed in float64 and rounded once to float32 (Vaswani et al. 2017, section 6.1: the mean of the last
5 checkpoints, and of the last 20 for the large model). From a checkpoint the trained weights are used by default, not
their moving average, which is already a mean. Sizes and subwords must be equal; text and dropout rates may differ. With
N = 1 the newest checkpoint of a run becomes a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from torch import Tensor

from multihead import work_folder
from multihead.bundle import Bundle, build_network, load_bundle, save_bundle
from multihead.errors import ConfigurationError, FormatError
from multihead.files import check_new_folder
from multihead.planning.settings import RunConfig, read_run
from multihead.text.languages import Languages
from multihead.training.checkpoint import copy_into, intact_checkpoints, read_weights

Weights = Literal["trained", "average"]
_PARTS: dict[Weights, Literal["model", "average"]] = {"trained": "model", "average": "average"}


@dataclass(frozen=True)
class WeightSource:
    """One of the models to be averaged."""

    name: str
    read: Callable[[], dict[str, Tensor]]


def average(
    *folders: str | Path,
    output: str | Path,
    last: int | None = None,
    weights: Weights | None = None,
    languages: Languages | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Write the mean of models as a model folder, with the subwords and search settings of the first.

    Args:
        *folders: runs or model folders; of a run its best model is used, unless ``last`` is given.
        output: a new or empty folder.
        last: use this many of the newest checkpoints of each run instead; 1 gives the end of a run as a model.
        weights: which weights of a checkpoint to use: "trained" (the default) or "average".
        languages: source and target, for models of another program that have several.
        say: called with a line that names the averaged models.

    Returns:
        The model folder.

    Raises:
        ConfigurationError: sizes or subwords differ, one model alone is named, or the output folder is in use.
        FormatError: a folder is neither a run nor a model.
    """
    output = Path(output)
    check_new_folder(output)
    if last is not None and last < 1:
        raise ConfigurationError(f"last is {last}: it is a number of checkpoints, at least 1")
    if weights is not None and last is None:
        raise ConfigurationError("weights says what to take of checkpoints: give last, too, or leave it out")
    paths = [Path(folder) for folder in folders]
    given = [load_bundle(path, languages=languages) for path in paths]
    for path, bundle in zip(paths[1:], given[1:], strict=True):
        _check_same_shape(paths[0], given[0], path, bundle)
    sources = [s for p, b in zip(paths, given, strict=True) for s in _sources(p, b, last, weights or "trained")]
    if len(sources) < 2 and last is None:
        raise ConfigurationError("the mean of one model is that model: name several, or --last NUMBER of a run")
    copy_into(dict(given[0].model.named_parameters()), mean(source.read() for source in sources))
    names = "; ".join(source.name for source in sources)
    what = "The weights" if len(sources) == 1 else f"The mean of {len(sources)} models"
    save_bundle(output, given[0], {"mean_of": names}, f"{what} by multihead {version('multihead')}: {names}.")
    say(f"{output}: {'the weights' if len(sources) == 1 else 'the mean'} of {names}")
    return output


def mean(models: Iterator[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The arithmetic mean of each tensor, with one model in memory at a time.

    Args:
        models: at least one; all have the same names and shapes.

    Returns:
        Tensors of the first model's type; ``mean([x, x]) == x`` bit for bit.
    """
    first = next(models)
    sums, count = {name: tensor.double() for name, tensor in first.items()}, 1
    for tensors in models:
        sums, count = {name: total + tensors[name].double() for name, total in sums.items()}, count + 1
    return {name: (total / count).to(first[name].dtype) for name, total in sums.items()}


def _sources(path: Path, bundle: Bundle, last: int | None, weights: Weights) -> Iterator[WeightSource]:
    if last is None:
        yield WeightSource(str(path), lambda: {name: p.detach() for name, p in bundle.model.named_parameters()})
        return
    config = read_run(path) if (path / work_folder.RUN).is_file() else None
    if config is None:
        raise FormatError(f"{path}: is a model, not a run, and has no checkpoints; leave --last out to take the model")
    if weights == "average" and not config.training.average:
        raise ConfigurationError(f"{path}: this run keeps no moving average of its weights; take the trained ones")
    checkpoints = intact_checkpoints(path / "checkpoints")
    if len(checkpoints) < last:
        updates = ", ".join(str(int(checkpoint.name)) for checkpoint in checkpoints) or "none"
        raise ConfigurationError(
            f"{path}: {last} checkpoints asked for, but those of updates {updates} are there; take fewer, or train "
            f"with --keep-checkpoints {last} or more"
        )
    for checkpoint in reversed(checkpoints[:last]):
        name = f"{path}, update {int(checkpoint.name)} ({weights} weights)"
        yield WeightSource(name, lambda checkpoint=checkpoint: _read(checkpoint, config, weights))  # type: ignore[misc]


def _read(checkpoint: Path, config: RunConfig, weights: Weights) -> dict[str, Tensor]:
    """The weights of a checkpoint by the names of a model folder."""
    tensors, training = read_weights(checkpoint, _PARTS[weights]), config.training
    if not training.lora:
        return tensors
    from multihead.models.adapters import adapt, merged

    network = build_network(config.model)
    adapt(network, training.lora, training.lora_alpha)
    copy_into(dict(network.named_parameters()), {**read_weights(checkpoint, "model"), **tensors})
    return {name: parameter.detach() for name, parameter in merged(network).named_parameters()}


def _check_same_shape(first_path: Path, first: Bundle, path: Path, bundle: Bundle) -> None:
    """Check that the weights of a model correspond to those of the first.

    Raises:
        ConfigurationError: architecture, sizes or subwords differ.
    """
    config, other = first.model.config, bundle.model.config
    if config.architecture != other.architecture:
        raise ConfigurationError(
            f"{first_path} and {path} cannot be averaged: one is a {config.architecture}, the other a "
            f"{other.architecture} model"
        )
    differing = [
        f"{name} is {getattr(config, name)} in the first and {getattr(other, name)} in the second"
        for name in type(config).model_fields
        if name not in (*config.training_only, "initialization") and getattr(config, name) != getattr(other, name)
    ]
    differing += [
        f"the {side} subwords differ"
        for side in ("source", "target")
        if getattr(first, f"{side}_tokenizer").digest != getattr(bundle, f"{side}_tokenizer").digest
    ]
    if differing:
        raise ConfigurationError(f"{first_path} and {path} cannot be averaged: {'; '.join(differing)}")
