"""Settings of translators' runs, and the decisions in ``run.json``.

`TrainSettings` and `PrepareSettings` combine sections of `planning.sections`; a user may leave every field open.
`planning.choices` completes them to a `RunConfig`, with the reason of each choice (`Choices`). No torch here:
``--help`` reads this file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from pydantic import Field, model_serializer, model_validator

from multihead import work_folder
from multihead.configuration import MOST_FACTOR, Settings
from multihead.data.corpus import normalize_code
from multihead.data.readers import format_of
from multihead.decoding.search import StoredSearch
from multihead.errors import ConfigurationError
from multihead.models.config import AnyNetworkConfig
from multihead.planning.sections import (
    Chance,
    Machine,
    Model,
    Place,
    RecurrentModel,
    Search,
    SeveralProcesses,
    Subwords,
    Text,
    Training,
)
from multihead.training.config import TrainingConfig

T = TypeVar("T")

AS_ASKED = "as asked"
"""The reason of a setting that the user gave."""


class BaseRunConfig(Settings):
    """What the ``run.json`` of every kind of run holds: all decisions, with their reasons.

    Each kind declares these fields itself, because their order is the order in the file.
    """

    sealed_since: ClassVar[int] = 2
    """Runs of this format version and later have a manifest."""

    if TYPE_CHECKING:
        format_version: int
        """Newer code reads older versions; the default is the newest."""
        versions: dict[str, str]
        """Of multihead and what it depends on, when the run began."""
        asked: dict[str, object]
        """The settings given by the user."""
        model: Any
        """The sizes of the network; all have a ``width``."""
        training: TrainingConfig
        reasons: dict[str, str]
        """The reason of each choice."""


class PrepareSettings(Place, Text, Subwords, Chance):
    """Settings of ``multihead prepare``; every field is a flag."""

    @model_validator(mode="after")
    def _text_agrees(self) -> PrepareSettings:
        one_sided = (self.valid_source is None) != (self.valid_target is None)
        if one_sided and not self._reads_one_text and not holds_pairs(self.valid_source):
            given, missing = ("valid_source", "valid_target") if self.valid_source else ("valid_target", "valid_source")
            raise ValueError(f"{given} is given without {missing}: validation needs both sides, or a file of pairs")
        for name in ("source", "target"):
            _refuse(self, "corpus", name, "name every corpus in one way: the first as corpus, too")
        for name in ("valid_source", "valid_target", "valid"):
            _refuse(self, "held_out", name, "text is held out where there are no validation files")
        _refuse(self, "valid", "valid_source", "name every validation file in one way: the first as valid, too")
        for name in SUBWORDS:
            _refuse(self, "from_model", name, "a model that is fine-tuned brings its own subwords")
        for name in ("placeholders", "terms"):
            _refuse(self, "context", name, "the sentences before would have some that the translation lacks")
        _refuse(self, "source_factors", "placeholders", "copied text has to keep its case")
        if self.source_factors is not None and self.shared_vocabulary:
            raise ValueError(
                "source_factors needs two vocabularies, since the source is in lower case and the target is not: leave "
                "out shared-vocabulary or source-factors"
            )
        if self.temperature is None and self.temperature_over is not None:
            raise ValueError("temperature_over is given without temperature: name one, or leave it out")
        for name in ("corpus", "valid"):
            if getattr(self, name) == ():
                raise ValueError(f"{name} is empty: name one, or leave it out")
        if any(one.weight != 1 for one in self.valid or ()):
            raise ValueError("valid has a weight: every validation pair counts once; leave the weight out")
        if self.min_tokens is not None and self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens is {self.min_tokens}, above max_tokens, {self.max_tokens}: no pair is left")
        return self

    @property
    def _reads_one_text(self) -> bool:
        """Whether there is no source side."""
        return False


class TrainSettings(PrepareSettings, Model, RecurrentModel, Training, Search, SeveralProcesses, Machine):
    """Settings of ``multihead train``; every field is a flag and a key of its TOML file."""

    heading: ClassVar[str] = "Folders"

    data: Path | None = None
    """A folder that `multihead prepare` wrote, or its URL, instead of text files."""

    @property
    def _reads_one_text(self) -> bool:
        return self.model == "decoder"

    @model_validator(mode="after")
    def _training_agrees(self) -> TrainSettings:
        _refuse(self, "updates", "budget", "both say how long to train")
        self._teachers_agree()
        self._alignments_agree()
        self._adapters_agree()
        if self.model == "recurrent" and self.parallel == "sharded":
            raise ValueError(
                "model recurrent and parallel sharded exclude each other: weights are gathered for whole sequences, "
                "not for each step of a layer; choose sum or replicated"
            )
        if self.positions != "learned":
            _refuse(self, "max_positions", "positions", "only learned positions have a limit")
        _refuse(self, "source_factors", "bpe_dropout", "it would segment subwords again, whose cases are known")
        if self.source_factors is not None and self.model == "recurrent":
            raise ValueError("only a Transformer reads source_factors: leave out model recurrent, or source_factors")
        if self.tie_embeddings and self.source_factors is not None:
            raise ValueError("tie_embeddings needs one vocabulary: leave out source-factors or tie-embeddings")
        if self.tie_embeddings and self.shared_vocabulary is False:
            raise ValueError("tie_embeddings needs one vocabulary: leave out no-shared-vocabulary or tie-embeddings")
        return self

    def _teachers_agree(self) -> None:
        if self.teacher == ():
            raise ValueError("teacher is empty: name one, or leave it out")
        if self.teacher_weight is not None and self.teacher is None:
            raise ValueError("teacher_weight is given without teacher: name one, or leave it out")
        for name in SUBWORDS:
            _refuse(self, "teacher", name, "a teacher brings its own subwords")

    def _alignments_agree(self) -> None:
        _refuse(self, "context", "alignments", "the words of the sentences before are aligned with nothing")
        if self.right_to_left:
            _refuse(self, "right_to_left", "alignments", "words are counted from left to right")
        if self.alignment_weight is not None and self.alignments is None:
            raise ValueError("alignment_weight is given without alignments: name a file, or ibm1, or leave it out")
        if self.alignments is not None and self.compile:
            raise ValueError(
                "alignments and compile exclude each other: the guided head is not compiled; leave out one of them"
            )

    def _adapters_agree(self) -> None:
        if self.lora_alpha is not None and self.lora is None:
            raise ValueError("lora_alpha is given without lora: name the rank, too, or leave it out")
        if self.lora is None:
            return
        if self.from_model is None:
            raise ValueError(
                "lora is given without from_model: adapters change a model that has learned; name it, or leave lora out"
            )
        if self.optimizer == "muon":
            raise ValueError("lora and optimizer muon exclude each other: Adam trains adapters; leave out optimizer")
        if self.parallel == "sharded":
            raise ValueError(
                "lora and parallel sharded exclude each other: what adapters train is too little to divide; choose sum "
                "or replicated"
            )


SUBWORDS = tuple(Subwords.model_fields)
"""Settings that a model to be fine-tuned has decided."""


def holds_pairs(path: Path | None) -> bool:
    """Whether a file holds both sides, judging by its name, or a folder such files."""
    return path is not None and (format_of(path) is not None or os.path.isdir(path))  # noqa: PTH112 - any name


def _refuse(settings: Settings, one: str, other: str, reason: str) -> None:
    """Raise if both settings are given."""
    if getattr(settings, one) is not None and getattr(settings, other) is not None:
        raise ValueError(f"{one} and {other} exclude each other: {reason}; leave out one of them")


@dataclass
class Choices:
    """The decisions about a run: values chosen by the user or by a rule, and the reason of each."""

    settings: Settings
    reasons: dict[str, str] = field(default_factory=dict)

    def requested(self, name: str) -> Any:
        """The user's value of ``name``; ``None`` if it was left open."""
        return getattr(self.settings, name)

    def take(self, name: str, choose: Callable[[], tuple[T, str]]) -> T:
        """The user's value of ``name``, or else the value of ``choose()``, which returns value and reason."""
        requested: T | None = self.requested(name)
        value, reason = (requested, AS_ASKED) if requested is not None else choose()
        self.reasons[name] = reason
        return value

    def override(
        self, chosen: Mapping[str, Any], reasons: Mapping[str, str], fields: Container[str] | None = None
    ) -> dict[str, Any]:
        """The chosen values, with the user's in place of those that were given.

        Args:
            chosen: values by name.
            reasons: why they were chosen.
            fields: the settings that may override; all if ``None``.
        """
        given = work_folder.given_settings(self.settings)
        given = {name: value for name, value in given.items() if fields is None or name in fields}
        self.reasons |= {**reasons, **dict.fromkeys(given, AS_ASKED)}
        return {**chosen, **given}


def pick_fields(cls: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are fields of ``cls``."""
    return {name: value for name, value in values.items() if name in cls.model_fields}


def usual_average(updates: int) -> tuple[float, str]:
    """The decay of the moving average of the weights in a run of so many updates, and the reason."""
    return min(round(1 - 1 / max(0.06 * updates, 10.0), 5), 0.99999), "remembers about 6% of the run"


def usual_intervals(updates: int) -> dict[str, tuple[int, str]]:
    """How often a run of so many updates is validated and logged, each with its reason."""
    return {
        "validate_every": (max(updates // 16, 10), "16 times a run"),
        "log_every": (max(min(updates // 60, 100), 1), "some 60 lines"),
    }


def without_unset(values: dict[str, Any], names: Container[str]) -> dict[str, Any]:
    """The values without those of some names that say nothing."""
    return {name: value for name, value in values.items() if name not in names or value}


class TextFile(Settings):
    """A text file of a run."""

    path: str
    sha256: str
    """SHA-256 of the decompressed text."""
    lines: int


class CorpusRecord(Settings):
    """How the pairs of a corpus are used."""

    optional: ClassVar[frozenset[str]] = frozenset({"source_language", "target_language", "columns", "reversed"})
    """Fields that are written only if they say something, so that files without them are as they always were."""

    files: tuple[TextFile, ...]
    """Source and target, or one file of pairs."""
    weight: float = Field(default=1.0, gt=0, le=MOST_FACTOR)
    """How often each of its pairs is seen in an epoch, on average."""
    pairs: int = Field(ge=0)
    """Pairs in the store, which holds the corpora one after the other."""
    held_out: int = 0
    """Pairs held out for validation."""
    left_out: int = 0
    """Pairs that could not be used."""
    source_language: str | None = None
    """Of this corpus, if its settings name it."""
    target_language: str | None = None
    columns: tuple[str, str] | None = None
    """The columns or keys that were read, if its settings name them."""

    reversed: bool = False
    """Whether the files are named in the other order than they were given in: the corpus is read both ways, or its
    sides were exchanged."""

    @model_serializer(mode="wrap")
    def _written(self, write: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return without_unset(write(self), self.optional)

    @property
    def content(self) -> tuple[frozenset[tuple[str, str]], frozenset[str]]:
        """What its files are, and which columns of them are read, whichever is the source."""
        return frozenset((file.path, file.sha256) for file in self.files), frozenset(self.columns or ())

    @property
    def languages(self) -> frozenset[str]:
        """Those that are recorded, whichever is the source."""
        return frozenset(normalize_code(code) for code in (self.source_language, self.target_language) if code)

    def exchanged(self) -> CorpusRecord:
        """The record of the same pairs with their sides exchanged."""
        changes = {
            "files": self.files[::-1],
            "columns": self.columns and self.columns[::-1],
            "source_language": self.target_language,
            "target_language": self.source_language,
            "reversed": not self.reversed,
        }
        return self.model_copy(update=changes)


def find_twins(corpora: Sequence[CorpusRecord]) -> list[int | None]:
    """For each corpus the number of the one whose text it is, read in the other direction; None where there is none.

    Languages choose the columns of some formats, so two corpora of one file can differ in them alone. A corpus read
    forwards may have no record of its languages, or of one of them, and then fits any.
    """
    forward: dict[object, list[int]] = {}
    for place, corpus in enumerate(corpora):
        if not corpus.reversed:
            forward.setdefault(corpus.content, []).append(place)

    def twin(place: int) -> int | None:
        own = corpora[place]
        fitting = forward.get(own.content, []) if own.reversed else []
        same = [other for other in fitting if corpora[other].languages == own.languages]
        unnamed = [
            other
            for other in fitting
            if corpora[other].languages <= own.languages or corpora[other].languages >= own.languages
        ]
        found = same or unnamed
        # Of equal corpora, each is followed by its own twin; in derived text all twins may come first.
        return next((other for other in reversed(found) if other < place), found[0] if found else None)

    return [twin(place) for place in range(len(corpora))]


def are_twins(corpora: Sequence[CorpusRecord]) -> list[bool]:
    """Which corpora are the text of another one, read in the other direction."""
    return [twin is not None for twin in find_twins(corpora)]


def without_twins(corpora: Sequence[CorpusRecord]) -> list[CorpusRecord]:
    """The corpora whose text is not that of another one."""
    return [corpus for corpus, is_twin in zip(corpora, are_twins(corpora), strict=True) if not is_twin]


class DirectionRecord(Settings):
    """A direction of a model that has several."""

    source: str | None
    """None if neither the settings nor the files say."""
    target: str
    valid: int = Field(ge=0)
    """Validation pairs; those of a direction stand together, in the order of the directions."""


class PreparedFolder(Settings):
    """A folder of `multihead prepare` that a run reads in place."""

    path: str
    sha256: str
    """SHA-256 of its manifest, which lists the SHA-256 of every other file."""


class DataConfig(Settings):
    """The text of a run, as it was prepared."""

    corpora: tuple[CorpusRecord, ...]
    """Training corpora."""
    valid: CorpusRecord | None = None
    """The validation files, if they were given."""
    source_language: str | None
    target_language: str | None
    vocab_size: int
    """Requested size of the vocabulary; the tokenizer has the actual one."""
    shared_vocabulary: bool
    min_frequency: int | None = None
    """Minimum frequency of a merge; unknown for the vocabulary of another model."""
    coverage: float | None = None
    """Share of the text whose characters have entries of their own; unknown for the vocabulary of another model."""
    min_tokens: int = 1
    max_tokens: int
    held_out: int
    """Pairs held out from the corpora for validation; 0 with validation files."""
    pairs: int
    """Training pairs."""
    left_out: int
    """Pairs that could not be used; left-out.tsv lists them."""
    prepared: PreparedFolder | None = None
    """The folder of text prepared ahead of the run."""
    order: Literal["whole", "blocks"] = "whole"
    """Whether an epoch is ordered as a whole or in blocks (`data.order`, `data.block_order`). A new run takes over how
    its text was prepared, and one that has begun keeps its order."""
    directions: tuple[DirectionRecord, ...] = ()
    """Where sources begin with a symbol of the language into which they are translated (`text.language_tokens`)."""
    valid_more: tuple[CorpusRecord, ...] = ()
    """The validation files after the first ones, if there are several."""
    right_to_left: bool = False
    """Whether targets are written from right to left (`text.backwards`)."""

    @model_serializer(mode="wrap")
    def _without_usual(self, write: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """The fields, without what older versions do not know where it is as usual."""
        values = without_unset(write(self), frozenset({"directions", "valid_more", "right_to_left"}))
        return {name: value for name, value in values.items() if (name, value) != ("order", "whole")}

    @model_validator(mode="before")
    @classmethod
    def _version_1(cls, values: object) -> object:
        """Convert version 1 of run.json, which had a single pair of files."""
        if not isinstance(values, dict) or "files" not in values:
            return values
        rest = {name: value for name, value in values.items() if name != "files"}
        files = dict(values["files"])
        valid = [files.pop(name) for name in ("valid_source", "valid_target") if name in files]
        own = {"pairs": rest["pairs"], "held_out": rest["held_out"], "left_out": rest["left_out"]}
        rest["corpora"] = [{"files": list(files.values()), **own}]
        return rest | ({"valid": {"files": valid, "pairs": valid[0]["lines"]}} if valid else {})


class GivenModel(Settings):
    """A model that a run starts from, or learns from."""

    path: str
    weights: str
    """SHA-256 of its model.safetensors."""


RUN_VERSION = 4
"""Newest format version of run.json; older versions can be read."""


class RunConfig(BaseRunConfig):
    """Everything decided about a run: run.json."""

    sealed_since: ClassVar[int] = 4

    format_version: int = RUN_VERSION
    versions: dict[str, str]
    """What it was started with."""
    asked: dict[str, object]
    """The settings that were given, rather than chosen."""
    data: DataConfig
    from_model: GivenModel | None = None
    """The model that was fine-tuned."""
    teachers: tuple[GivenModel, ...] = ()
    """The models whose predictions are learned (`preparing.teachers`)."""
    weights: TextFile | None = None
    """The weights of the pairs (`preparing.weights`)."""
    alignments: TextFile | Literal["ibm1", "ibm1-grow"] | None = None
    """The word alignments of the pairs (`preparing.alignments`)."""
    model: AnyNetworkConfig
    training: TrainingConfig
    generation: StoredSearch
    reasons: dict[str, str]
    """Why each choice was made."""

    @model_serializer(mode="wrap")
    def _written(self, write: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """The fields, without what older versions do not know where it says nothing."""
        return without_unset(write(self), frozenset({"weights", "alignments"}))


def read_run(folder: Path) -> RunConfig | None:
    """Read the decisions of a translator's run; ``None`` if a run can begin in ``folder``.

    Raises:
        ConfigurationError: the folder is a file, or holds something that is not a run, or another kind of run.
        FormatError: run.json is damaged, or of a newer version.
    """
    return work_folder.read(folder, RunConfig)


def read_begun_run(folder: Path) -> RunConfig:
    """As `read_run`, for a folder in which there must be a run.

    Raises:
        ConfigurationError: there is none.
    """
    config = read_run(folder)
    if config is None:
        raise ConfigurationError(f"{folder}: no run has begun there: there is no {work_folder.RUN} in it")
    return config
