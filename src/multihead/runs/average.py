"""The mean of several models: of the newest checkpoints of a run, or of runs and model folders that share a shape.

    theta = (theta_1 + ... + theta_N) / N

tensor by tensor, summed in float64 and rounded once to float32 (Vaswani et al. 2017, section 6.1: the mean of the last
5 checkpoints, of the large model the last 20). Of a checkpoint the weights that were trained are taken, not their
moving average, which is a mean already; ``weights`` says otherwise. Sizes and subwords have to be the same; what a
model was trained on, with which dropout, does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from torch import Tensor

from multihead import work_folder
from multihead.bundle import Bundle, load_bundle, save_bundle
from multihead.errors import ConfigurationError, FormatError
from multihead.planning.settings import read_run
from multihead.training.checkpoint import copy_into, intact_checkpoints, read_weights

Weights = Literal["trained", "average"]
_PARTS: dict[Weights, Literal["model", "average"]] = {"trained": "model", "average": "average"}


@dataclass(frozen=True)
class Source:
    """One of the models of which the mean is taken."""

    name: str
    read: Callable[[], dict[str, Tensor]]


def average(
    *folders: str | Path,
    output: str | Path,
    last: int | None = None,
    weights: Weights | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Writes the mean of models as a model folder, with the subwords and the search of the first.

    Args:
        *folders: runs or model folders; of a run its best model, unless ``last`` is given.
        output: a new or empty folder.
        last: take the newest so many checkpoints of each run instead.
        weights: of a checkpoint, "trained" (the default) or "average".
        say: is told what the mean is of.

    Returns:
        The model folder.

    Raises:
        ConfigurationError: models of other sizes or subwords, fewer than two, an output that is taken.
        FormatError: a folder that is no run or no model.
    """
    output = Path(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigurationError(f"{output}: exists already; nothing was overwritten. Choose a new folder")
    if last is not None and last < 1:
        raise ConfigurationError(f"last is {last}: it is a number of checkpoints, at least 1")
    if weights is not None and last is None:
        raise ConfigurationError("weights says what to take of checkpoints: give last, too, or leave it out")
    paths = [Path(folder) for folder in folders]
    given = [load_bundle(path) for path in paths]
    for path, bundle in zip(paths[1:], given[1:], strict=True):
        _check_alike(paths[0], given[0], path, bundle)
    sources = [s for p, b in zip(paths, given, strict=True) for s in _sources(p, b, last, weights or "trained")]
    if len(sources) < 2:
        raise ConfigurationError("the mean of one model is that model: name several, or --last NUMBER of a run")
    copy_into(dict(given[0].model.named_parameters()), mean(source.read() for source in sources))
    names = "; ".join(source.name for source in sources)
    made_by = f"The mean of {len(sources)} models by multihead {version('multihead')}: {names}."
    save_bundle(output, given[0], {"mean_of": names}, made_by)
    say(f"{output}: the mean of {names}")
    return output


def mean(models: Iterator[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The arithmetic mean of each tensor, one model in memory at a time.

    Args:
        models: at least one; all with the same names and shapes.

    Returns:
        In the type of the first; ``mean([x, x]) == x`` bit for bit.
    """
    first = next(models)
    sums, count = {name: tensor.double() for name, tensor in first.items()}, 1
    for tensors in models:
        sums, count = {name: total + tensors[name].double() for name, total in sums.items()}, count + 1
    return {name: (total / count).to(first[name].dtype) for name, total in sums.items()}


def _sources(path: Path, bundle: Bundle, last: int | None, weights: Weights) -> Iterator[Source]:
    """What is taken of one folder."""
    if last is None:
        yield Source(str(path), lambda: {name: p.detach() for name, p in bundle.model.named_parameters()})
        return
    config = read_run(path) if (path / work_folder.RUN).is_file() else None
    if config is None:
        raise FormatError(f"{path}: is a model, not a run, and has no checkpoints; leave --last out to take the model")
    if weights == "average" and not config.training.average:
        raise ConfigurationError(f"{path}: this run keeps no moving average of its weights; take the trained ones")
    there = intact_checkpoints(path / "checkpoints")
    if len(there) < last:
        updates = ", ".join(str(int(checkpoint.name)) for checkpoint in there) or "none"
        raise ConfigurationError(
            f"{path}: {last} checkpoints asked for, but those of updates {updates} are there; take fewer, or train "
            f"with --keep-checkpoints {last} or more"
        )
    for checkpoint in reversed(there[:last]):
        name = f"{path}, update {int(checkpoint.name)} ({weights} weights)"
        yield Source(name, lambda checkpoint=checkpoint: read_weights(checkpoint, _PARTS[weights]))  # type: ignore[misc]


def _check_alike(first_path: Path, first: Bundle, path: Path, bundle: Bundle) -> None:
    """Refuses a model whose weights do not mean what those of the first mean."""
    config, other = first.model.config, bundle.model.config
    if config.architecture != other.architecture:
        raise ConfigurationError(
            f"{first_path} and {path} have no mean: one is a {config.architecture}, the other a {other.architecture} "
            "model"
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
        raise ConfigurationError(f"{first_path} and {path} have no mean: {'; '.join(differing)}")
