"""Which trainings measure what more data gains, and how long each is.

The text of a run is N pairs, its training U updates. A part of n pairs is trained with the same settings for

    u(n) = c U e(n) n / (e(N) N)

updates, where e is the number of epochs that `planning.choices` plans for so many pairs. If the budget allows c = 1, an
eighth, a quarter and half of the pairs are trained, with a larger budget from several seeds, and the run itself is the
training with all pairs, unless it began as a model that has seen them: then all pairs are trained, too. With a smaller
budget all four are trained, c times as long, because a long training cannot be compared with short ones. Parts with the
same seed contain the smaller ones (`preparing.derived.nested_part`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from multihead.configuration import MOST_UPDATES, Settings
from multihead.errors import ConfigurationError
from multihead.models.config import ARCHITECTURES
from multihead.planning.choices import FROM_TEXT, usual_epochs
from multihead.planning.sections import Duration
from multihead.planning.settings import RunConfig, TrainSettings
from multihead.runs.best.plan import Stage
from multihead.training.progress import format_duration

SHARES = (0.125, 0.25, 0.5)
"""Parts of the text that are trained, in this order."""
_MOST_SEEDS = 3
_MARGIN = 1.15
"""What a training may take in relation to the pace of the run."""
_SHORTEST = 0.05
"""Smallest c that says anything."""
_FEWEST_PAIRS = 64
_VALIDATIONS, _SHORT = 4, 0.5
"""Validations of each training, and the c up to which there is one at its end."""

_FOLLOWING = (
    *("updates", "budget", "warmup", "average", "validate_every", "log_every"),
    *("seed", "teacher_weight", "alignment_weight", "tensorboard", "keep_checkpoints"),
)
"""Settings of training that are not those of the run: parts are trained without teachers, weights and alignments."""


class ReportSettings(Settings):
    """What the user says of the trainings of a report."""

    run: str
    budget: Duration | None = None


class Part(Settings):
    """A training with a part of the pairs."""

    share: float = Field(gt=0, le=1)
    seed: int
    pairs: int = Field(ge=1)
    updates: int = Field(ge=1, le=MOST_UPDATES)
    validate_every: int = Field(ge=1, le=MOST_UPDATES)

    @property
    def name(self) -> str:
        """Of its folders."""
        return f"{self.pairs}-pairs-seed-{self.seed}"


class Outcome(Settings):
    """What a training has reached."""

    updates: int
    loss: float
    bleu: float
    """Of greedy search on the validation set."""


class ReportConfig(Settings):
    """Everything decided about a report: its run.json."""

    sealed_since: ClassVar[int] = 1

    format_version: int = 1
    kind: Literal["report"] = "report"
    versions: dict[str, str]
    """What it was started with."""
    asked: dict[str, object]
    """The settings that were given."""
    settings_sha256: str
    """SHA-256 of the run.json of the run."""
    budget: float | None
    """Seconds of all trainings; ``None`` for none."""
    length: float
    """c: how long the trainings are, in relation to those planned for so many pairs."""
    whole: bool
    """Whether the run itself is the training with all pairs."""
    parts: tuple[Part, ...]
    own: Outcome | None = None
    """The run itself when the trainings were decided; ``None`` without trainings, and in older reports."""


def decide(
    asked: ReportSettings,
    config: RunConfig,
    updates: int,
    pace: float,
    versions: dict[str, str],
    sha256: str,
    *,
    comparable: bool = True,
) -> ReportConfig:
    """Decide the trainings of a report.

    Args:
        asked: the user's settings.
        config: the run.
        updates: that the run has made.
        pace: seconds per update of the run, validations included; 0 if that is unknown.
        versions: of multihead and what it depends on.
        sha256: of the run's run.json.
        comparable: whether the run itself can be the training with all pairs.

    Raises:
        ConfigurationError: the budget is too short, or the text too small, for trainings that say anything.
    """
    length, whole, parts = 1.0, True, tuple[Part, ...]()
    if asked.budget is not None:
        pairs = config.data.pairs
        if pairs < _FEWEST_PAIRS:
            raise ConfigurationError(
                f"budget: {pairs} pairs are too few to train parts of them; expected {_FEWEST_PAIRS} or more"
            )
        sizes = [_pairs_of(config, share) for share in (*SHARES, 1.0)]
        if len({0, *sizes}) <= len(sizes):
            raise ConfigurationError(
                f"budget: the parts of each corpus would have {', '.join(map(str, sizes))} pairs in all, which say "
                "nothing; join corpora of a few pairs into one file"
            )
        shares = SHARES if comparable else (*SHARES, 1.0)
        one = _parts(config, updates, shares, 1.0, 1)
        possible = asked.budget / seconds(one, pace) if pace else 1.0
        if possible >= 1:
            parts, whole = _parts(config, updates, shares, 1.0, min(int(possible), _MOST_SEEDS)), comparable
        else:
            shares, whole = (*SHARES, 1.0), False
            needed = seconds(_parts(config, updates, shares, 1.0, 1), pace)
            length = asked.budget / needed
            if length < _SHORTEST:
                raise ConfigurationError(
                    f"budget: {format_duration(asked.budget)} are too short to learn from parts of the text: "
                    f"{format_duration(seconds(one, pace))} train each as long as it needs, and "
                    f"{format_duration(_SHORTEST * needed)} are the least"
                )
            parts = _parts(config, updates, shares, length, 1)
    return ReportConfig(
        versions=versions,
        asked=asked.model_dump(mode="json", exclude_none=True),
        settings_sha256=sha256,
        budget=asked.budget,
        length=length,
        whole=whole,
        parts=parts,
    )


def _parts(config: RunConfig, updates: int, shares: Sequence[float], length: float, seeds: int) -> tuple[Part, ...]:
    total, first = config.data.pairs, config.training.seed
    whole = usual_epochs(total) * total
    found = []
    for number in range(seeds):
        for share in shares:
            pairs = _pairs_of(config, share)
            planned = max(round(length * updates * usual_epochs(pairs) * pairs / whole), 1)
            often = -(-planned // (_VALIDATIONS if length > _SHORT else 1))
            found.append(Part(share=share, seed=first + number, pairs=pairs, updates=planned, validate_every=often))
    return tuple(found)


def _pairs_of(config: RunConfig, share: float) -> int:
    """The pairs of a part, which has its share of each corpus."""
    return sum(round(share * corpus.pairs) for corpus in config.data.corpora)


def seconds(parts: Sequence[Part], pace: float) -> float:
    """What trainings are expected to take at most."""
    return _MARGIN * pace * sum(part.updates for part in parts)


def stages(parts: Sequence[Part]) -> list[Stage]:
    """The trainings as stages, whose weights are their updates (`runs.best.plan.budget_of`)."""
    return [Stage(part.name, float(part.updates)) for part in parts]


def training_settings(config: RunConfig, part: Part, budget: float | None) -> dict[str, Any]:
    """The settings with which a part is trained: those of the run, for fewer updates.

    Args:
        config: the run.
        part: the part.
        budget: seconds, if there is no time for the planned number of updates.
    """
    network, training = ARCHITECTURES[config.model.architecture], config.training
    values: dict[str, Any] = {
        name: getattr(config.model, name)
        for name in network.model_fields
        if name in TrainSettings.model_fields and name not in (*FROM_TEXT, "alignment_layer")
    }
    if values.get("positions") != "learned":
        values.pop("max_positions", None)  # no other positions have a limit
    for name in type(training).model_fields:
        if name in TrainSettings.model_fields and name not in _FOLLOWING:
            values[name] = getattr(training, name)
    if not training.average:
        values["average"] = 0.0
    if not training.lora:
        del values["lora"], values["lora_alpha"]
    if training.best_by != "comet":
        del values["comet"]  # a part is not scored by what chooses nothing
    if training.schedule == "noam":
        del values["learning_rate"]  # a factor that follows from the warm-up
    length: dict[str, Any] = {"budget": budget}
    if budget is None:
        length = {"updates": part.updates, "validate_every": part.validate_every}
    values |= {**length, "model": config.model.architecture, "seed": part.seed, "keep_checkpoints": 1}
    if config.from_model is not None:
        values["from_model"] = config.from_model.path
    return {name: value for name, value in values.items() if value is not None}
