"""What a user may say about a pointer network, what is chosen otherwise, and what is written down. No torch here.

`PointerSettings` are wishes, each a flag of ``multihead pointer train``; `decide` turns them into a `PointerRun`, in
which nothing is open, with the reason of each choice. `RECIPES` were found by trial, which docs/pointer-networks.md and
docs/lab-notes.md tell of.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from multihead.configuration import Settings, build
from multihead.models.pointer.config import PointerConfig
from multihead.planning.sections import Chance
from multihead.training.config import TrainingConfig

ProblemName = Literal["sort", "hull"]
EncoderName = Literal["recurrent", "bidirectional", "transformer"]

PROBLEM_NAMES: tuple[ProblemName, ...] = get_args(ProblemName)
"""What `multihead.data.toy.pointing` can draw; named here, too, because ``--help`` does not wait for torch."""

FEATURES: dict[ProblemName, int] = {"sort": 1, "hull": 2}
"""How many numbers an input has."""


def default_folder(problem: ProblemName) -> Path:
    """Where a run stands unless one says otherwise: in the current folder."""
    return Path(f"pointer-{problem}")


# --------------------------------------------------------------------------- wishes


class _Place(Settings):
    heading: ClassVar[str] = "Folders"

    output: Path | None = None
    """The folder to write: new, empty, or one that was begun, which then goes on. [pointer-sort or pointer-hull]"""


class _Task(Settings):
    heading: ClassVar[str] = ""

    ascending: bool | None = None
    """Sort the least number first. [the greatest first]"""
    smallest: int | None = Field(default=None, ge=1)
    """The fewest numbers, or points, of an example."""
    largest: int | None = Field(default=None, ge=1)
    """The most of them."""


class _Model(Settings):
    heading: ClassVar[str] = "Model"

    encoder: EncoderName | None = None
    """What reads the inputs: an LSTM as in the paper, one in each direction, or self-attention. [recurrent]"""
    width: int | None = None
    """Model width D."""
    layers: int | None = None
    """Layers of the encoder."""
    heads: int | None = None
    """Attention heads of a Transformer's encoder."""
    inner: int | None = None
    """Width of its feed-forward network's hidden layer."""
    positions: bool | None = None
    """A Transformer's encoder is told in which order the inputs came; the others see it anyway."""
    dropout: float | None = None
    """Dropout of the encoder."""
    repeats: bool | None = None
    """Whether the network may point at the same input twice, in training and in search."""


class _Training(Settings):
    heading: ClassVar[str] = "Training"

    updates: int | None = None
    """Updates in all."""
    batch: int | None = Field(default=None, ge=1)
    """Examples in a batch; all of them are drawn anew."""
    learning_rate: float | None = None
    """The highest learning rate."""
    warmup: int | None = None
    """Updates of rising learning rate."""
    average: float | None = None
    """Decay of the moving average of the weights; 0 for none."""
    validate_every: int | None = None
    """Updates between validations."""
    held_out: int | None = Field(default=None, ge=1)
    """Examples of the validation set."""


class _Machine(Settings):
    heading: ClassVar[str] = "Run"

    threads: int | None = None
    """Processor threads."""
    device: Literal["cpu", "cuda"] | None = None
    """Where to train. [cpu]"""
    log_every: int | None = None
    """Updates between lines of the log."""


class PointerSettings(_Place, _Task, _Model, _Training, Chance, _Machine):
    """Wishes for a run; everything may be left open."""


# --------------------------------------------------------------------------- what is decided


class Task(Settings):
    """What a network was made to do."""

    problem: ProblemName
    ascending: bool = False
    """Of sorting: the least number first."""
    smallest: int = Field(ge=1)
    """The fewest inputs of an example that was learned from."""
    largest: int = Field(ge=1)
    """The most."""

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
"""The fewest points with a hull to speak of."""

RUN_VERSION = 1
"""Of a pointer network's run.json: newer code reads older ones."""


class PointerRun(Settings):
    """Everything decided about a run: run.json."""

    format_version: int = RUN_VERSION
    kind: Literal["pointer"]
    """What tells it from a translator's."""
    versions: dict[str, str]
    """What it was started with."""
    asked: dict[str, object]
    """The settings that were given, rather than chosen."""
    task: Task
    batch: int = Field(ge=1)
    """Examples in a batch."""
    held_out: int = Field(ge=1)
    """Examples of the validation set."""
    model: PointerConfig
    training: TrainingConfig
    reasons: dict[str, str]
    """Why each choice was made."""


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
"""What is taken where nothing was said."""

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
"""Why, where there is more to say than that it was tried."""

SIZES: dict[ProblemName, tuple[int, int]] = {"sort": (2, 10), "hull": (5, 20)}
"""The fewest and the most inputs of an example."""


def decide(problem: ProblemName, settings: PointerSettings, threads: int, versions: dict[str, str]) -> PointerRun:
    """Everything that the user left open.

    Args:
        problem: what is to be learned.
        settings: the wishes.
        threads: what PyTorch computes with here.
        versions: what the run depends on.

    Raises:
        ConfigurationError: a wish that cannot be, or two that exclude each other.
    """
    asked = settings.model_dump(mode="json", exclude_none=True, exclude={"output"})
    encoder: EncoderName = settings.encoder or "recurrent"
    smallest, largest = SIZES[problem]
    chosen = {"encoder": encoder, "smallest": smallest, "largest": largest, **_EVERYWHERE, **RECIPES[problem, encoder]}
    reasons = dict.fromkeys(chosen, f"found by trial for '{problem}', encoder '{encoder}'")
    reasons |= {"encoder": "as in the paper", "threads": "what PyTorch uses here", "validate_every": "ten times a run"}
    reasons |= {name: reason for name, reason in _REASONS[problem].items() if name in chosen}
    reasons |= dict.fromkeys(asked, "as asked")
    values = {"seed": 1, "threads": threads, "device": "cpu", "held_out": 1000, **chosen, **asked}
    values.setdefault("validate_every", max(values["updates"] // 10, 1))
    task = build(Task, {"problem": problem, **_of(Task, values)}, "the settings")
    shape = {"features": FEATURES[problem], "no_repeats": not values["repeats"], **_of(PointerConfig, values)}
    model = build(PointerConfig, shape, "the settings")
    tokens = values["batch"] * (task.largest + 1)
    training = build(
        TrainingConfig, {"smoothing": 0.0, "batch_tokens": tokens, **_of(TrainingConfig, values)}, "the settings"
    )
    return PointerRun(
        kind="pointer",
        versions=versions,
        asked={"problem": problem, **asked},
        task=task,
        batch=values["batch"],
        held_out=values["held_out"],
        model=model,
        training=training,
        reasons=reasons,
    )


def _of(cls: type[Settings], values: dict[str, Any]) -> dict[str, Any]:
    """Those of the values that are fields of ``cls``."""
    return {name: value for name, value in values.items() if name in cls.model_fields}
