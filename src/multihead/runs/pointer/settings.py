"""Settings of pointer networks, and rules for the open ones.

`PointerSettings` are what a user may set, each a flag of ``multihead pointer train``; `decide` completes them to a
`PointerRunConfig`, with the reason of each choice. The `RECIPES` were found by trial: see docs/pointer-networks.md and
docs/lab-notes.md. No torch here: ``--help`` reads this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from multihead.configuration import MOST_BATCH, MOST_TOKENS, Settings, build
from multihead.errors import ConfigurationError
from multihead.models.pointer.config import PointerConfig
from multihead.planning.sections import Chance, shared
from multihead.planning.settings import BaseRunConfig, Choices, pick_fields
from multihead.platforms import Device
from multihead.training.config import TrainingConfig
from multihead.work_folder import given_settings

ProblemName = Literal["sort", "hull"]
EncoderName = Literal["recurrent", "bidirectional", "transformer"]

PROBLEM_NAMES: tuple[ProblemName, ...] = get_args(ProblemName)
"""The problems of `multihead.data.toy.pointing`, repeated here because ``--help`` does not import torch."""

FEATURES: dict[ProblemName, int] = {"sort": 1, "hull": 2}
"""Numbers per input."""


def default_folder(problem: ProblemName) -> Path:
    """The default run folder, in the current folder."""
    return Path(f"pointer-{problem}")


# --------------------------------------------------------------------------- what users may set


class _Place(Settings):
    heading: ClassVar[str] = "Folders"

    output: Path | None = shared("output", "pointer-sort or pointer-hull")


class _Task(Settings):
    heading: ClassVar[str] = ""

    ascending: bool | None = None
    """Sort the smallest number first. [the largest first]"""
    smallest: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """Minimum count of numbers, or points, in an example."""
    largest: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """Maximum count of numbers, or points, in an example."""


class _Model(Settings):
    heading: ClassVar[str] = "Model"

    encoder: EncoderName | None = None
    """What reads the inputs: an LSTM as in the paper, one in each direction, or self-attention. [recurrent]"""
    width: int | None = shared("width")
    layers: int | None = shared("encoder_layers")
    heads: int | None = None
    """Attention heads of a Transformer's encoder."""
    inner: int | None = None
    """Width of the hidden layer of its feed-forward networks."""
    positions: bool | None = None
    """Position encodings in a Transformer's encoder; recurrent encoders see the order anyway."""
    dropout: float | None = None
    """Dropout of the encoder."""
    repeats: bool | None = None
    """Whether the network may point at the same input twice, in training and in search."""


class _Training(Settings):
    heading: ClassVar[str] = "Training"

    updates: int | None = shared("updates")
    batch: int | None = Field(default=None, ge=1, le=MOST_BATCH)
    """Examples in a batch; all of them are drawn anew."""
    learning_rate: float | None = shared("learning_rate")
    warmup: int | None = shared("warmup")
    average: float | None = shared("average")
    validate_every: int | None = shared("validate_every")
    held_out: int | None = Field(default=None, ge=1, le=MOST_BATCH)
    """Examples of the validation set."""


class _Machine(Settings):
    heading: ClassVar[str] = "Run"

    threads: int | None = shared("threads")
    device: Device | None = shared("device", "cpu")
    log_every: int | None = shared("log_every")


class PointerSettings(_Place, _Task, _Model, _Training, Chance, _Machine):
    """Settings of a run; everything may be left open."""


# --------------------------------------------------------------------------- what is decided


class Task(Settings):
    """What a network is trained to do."""

    problem: ProblemName
    ascending: bool = False
    """Sort the least number first."""
    smallest: int = Field(ge=1, le=MOST_TOKENS)
    """The fewest inputs of a training example."""
    largest: int = Field(ge=1, le=MOST_TOKENS)
    """The most inputs of a training example."""

    @model_validator(mode="after")
    def _agrees(self) -> Task:
        if self.smallest > self.largest:
            raise ValueError(f"smallest is {self.smallest}, above largest, {self.largest}: no example is left")
        if self.ascending and self.problem != "sort":
            raise ValueError(f"ascending is for sorting, not for '{self.problem}': leave it out")
        if self.problem == "hull" and self.smallest < CORNERS:
            raise ValueError(f"smallest is {self.smallest}: a hull needs {CORNERS} points at least")
        return self


CORNERS = 3
"""The fewest points that have a hull."""

RUN_VERSION = 2
"""Newest format version of run.json; older versions can be read."""


class PointerRunConfig(BaseRunConfig):
    """The run.json of a pointer network."""

    format_version: int = RUN_VERSION
    kind: Literal["pointer"]
    versions: dict[str, str]
    asked: dict[str, object]
    task: Task
    batch: int = Field(ge=1, le=MOST_BATCH)
    """Examples in a batch."""
    held_out: int = Field(ge=1, le=MOST_BATCH)
    """Examples of the validation set."""
    model: PointerConfig
    training: TrainingConfig
    reasons: dict[str, str]


_EVERYWHERE: dict[str, Any] = {
    "layers": 1,
    "dropout": 0.0,
    "batch": 64,
    "warmup": 100,
    "repeats": False,
    "average": 0.99,
    "log_every": 100,
}
_SORT: dict[str, Any] = {"width": 64, "updates": 3000, "learning_rate": 0.01, "threads": 1}
_HULL: dict[str, Any] = {"width": 128, "updates": 12_000, "learning_rate": 5e-3, "log_every": 200}

RECIPES: dict[tuple[ProblemName, EncoderName], dict[str, Any]] = {
    ("sort", "recurrent"): _SORT,
    ("sort", "bidirectional"): _SORT,
    ("sort", "transformer"): _SORT | {"updates": 500, "learning_rate": 3e-3, "heads": 4, "inner": 128},
    ("hull", "recurrent"): _HULL,
    ("hull", "bidirectional"): _HULL,
    ("hull", "transformer"): _HULL
    | {"updates": 10_000, "learning_rate": 2e-3, "layers": 3, "heads": 4, "inner": 256, "positions": True},
}
"""What is chosen for settings that are left open."""

_REASONS: dict[ProblemName, dict[str, str]] = {
    "sort": {
        "repeats": "no answer needs one",
        "threads": "so small a network gains nothing by more",
    },
    "hull": {
        "repeats": "no answer needs one",
        "positions": "an answer begins with that corner which was given first",
    },
}
"""The reasons of some choices; that of all others is that they were found by trial."""

SIZES: dict[ProblemName, tuple[int, int]] = {"sort": (2, 10), "hull": (5, 20)}
"""The fewest and the most inputs of a training example."""


def decide(problem: ProblemName, settings: PointerSettings, threads: int, versions: dict[str, str]) -> PointerRunConfig:
    """Choose every setting that the user left open.

    Args:
        problem: what is to be learned.
        settings: the user's.
        threads: the threads that PyTorch uses.
        versions: the versions that the run depends on.

    Raises:
        ConfigurationError: a setting is out of range, or two settings exclude each other.
    """
    choices, encoder = Choices(settings), settings.encoder or "recurrent"
    unused = [name for name in ("heads", "inner") if encoder != "transformer" and choices.requested(name) is not None]
    if unused:
        raise ConfigurationError(
            f"{', '.join(unused)}: for encoder = 'transformer', got '{encoder}'; leave it out, or choose that encoder"
        )
    smallest, largest = SIZES[problem]
    chosen = {"encoder": encoder, "smallest": smallest, "largest": largest, **_EVERYWHERE, **RECIPES[problem, encoder]}
    reasons = dict.fromkeys(chosen, f"found by trial for '{problem}', encoder '{encoder}'")
    reasons |= {"encoder": "as in the paper", "threads": "what PyTorch uses here", "validate_every": "ten times a run"}
    reasons |= {name: reason for name, reason in _REASONS[problem].items() if name in chosen}
    values = choices.override({"seed": 1, "threads": threads, "device": "cpu", "held_out": 1000, **chosen}, reasons)
    values.setdefault("validate_every", max(values["updates"] // 10, 1))
    origin = "the settings"
    task = build(Task, {"problem": problem, **pick_fields(Task, values)}, origin)
    shape = {"features": FEATURES[problem], "no_repeats": not values["repeats"], **pick_fields(PointerConfig, values)}
    model = build(PointerConfig, shape, origin)
    usual = {"smoothing": 0.0, "batch_tokens": values["batch"] * (task.largest + 1)}
    training = build(TrainingConfig, usual | pick_fields(TrainingConfig, values), origin)
    return PointerRunConfig(
        kind="pointer",
        versions=versions,
        asked={"problem": problem, **given_settings(settings)},
        task=task,
        batch=values["batch"],
        held_out=values["held_out"],
        model=model,
        training=training,
        reasons=choices.reasons,
    )
