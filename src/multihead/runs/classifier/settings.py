"""Settings of classifiers, and rules for the open ones.

`ClassifySettings` are what a user may set, each a flag of ``multihead classify train``; `decide` completes them to a
`ClassifyRunConfig`, with the reason of each choice. What the rules rest on is in docs/classification.md. No torch here:
``--help`` reads this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from multihead.configuration import MOST_BATCH, MOST_ENTRIES, MOST_TOKENS, Settings, build
from multihead.errors import ConfigurationError
from multihead.models.bert.config import BertConfig
from multihead.models.classifier.config import BertClassifierConfig, HierarchicalConfig
from multihead.planning.sections import Chance, shared
from multihead.planning.settings import BaseRunConfig, Choices, GivenModel, pick_fields
from multihead.platforms import Device
from multihead.training.config import TrainingConfig
from multihead.work_folder import given_settings

ModelName = Literal["hierarchical", "bert"]
_LANGUAGE = "^[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*$"

# --------------------------------------------------------------------------- what users may set


class Files(Settings):
    """Files and folders; their flags are declared in the command, since the same names mean folders elsewhere."""

    data: Path | None = None
    """Documents to learn from: label TAB text, one a line; further tabs end paragraphs. Plain, gzip, xz or zstd."""
    valid: Path | None = None
    """Documents to choose the best model by; without them a part of the others is held out."""
    output: Path | None = shared("output")
    from_model: Path | None = None
    """Start from this BERT: a run of `multihead pretrain`, or a model folder."""


class _Text(Settings):
    heading: ClassVar[str] = "Text"

    held_out: int | None = Field(default=None, ge=1, le=MOST_BATCH)
    """Documents to hold out if there is no file of validation documents. [a tenth, 1,000 at most]"""
    separator: str | None = Field(default=None, min_length=1)
    """The string between sentences. [sentence ends are found in the text]"""
    language: str | None = Field(default=None, pattern=_LANGUAGE)
    """The language of the texts, such as de: its rules say where sentences end. [und: unknown]"""
    max_words: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """Maximum subwords of a sentence; longer sentences are split. [64]"""
    max_tokens: int | None = Field(default=None, ge=8, le=MOST_TOKENS)
    """Maximum subwords of a document for a BERT; the rest is not read. [256, or what the given model can read]"""


class _Subwords(Settings):
    heading: ClassVar[str] = "Subwords"

    vocab_size: int | None = shared("vocab_size", "by the number of documents", ge=1, le=MOST_ENTRIES)


class _Model(Settings):
    heading: ClassVar[str] = "Model"

    model: ModelName | None = None
    """Which network: hierarchical attention, or a BERT. [hierarchical; bert with --from-model]"""
    depth: int | None = None
    """Levels of a hierarchical network: 1 words, 2 and sentences, 3 and paragraphs. [2; 3 where there are tabs]"""
    encoder: Literal["gru", "transformer", "none"] | None = None
    """The encoder of each of its levels. [gru]"""
    pool: Literal["first", "mean", "attention"] | None = None
    """How a BERT represents a document: its pooled first state, the mean of all states, or a mean weighted by
    attention. [mean]"""
    width: int | None = shared("width", "128")
    layers: int | None = None
    """Layers of a BERT, or of each level's encoder. [2, or 1]"""
    heads: int | None = shared("heads", "4")
    inner: int | None = shared("inner", "4 D")
    dropout: float | None = None
    """Dropout."""


class _Training(Settings):
    heading: ClassVar[str] = "Training"

    updates: int | None = shared("updates", "20 times through the documents, 200 at least")
    batch_tokens: int | None = None
    """Subwords in a batch: the number of documents times the longest one. [by their number]"""
    learning_rate: float | None = shared("learning_rate")
    warmup: int | None = shared("warmup", "a tenth")
    smoothing: float | None = shared("smoothing", "0")
    weight_decay: float | None = shared("weight_decay", "0.01")
    average: float | None = shared("average", "0.9")
    validate_every: int | None = shared("validate_every", "20 times a run")
    patience: int | None = shared("patience", "0")


class _Machine(Settings):
    heading: ClassVar[str] = "Run"

    threads: int | None = shared("threads")
    device: Device | None = shared("device", "cpu")
    log_every: int | None = shared("log_every", "20 times a run")


class ClassifyOptions(_Text, _Subwords, _Model, _Training, Chance, _Machine):
    """All settings but the files."""


class ClassifySettings(Files, ClassifyOptions):
    """Settings of a run; all but the files may be left open."""


# --------------------------------------------------------------------------- what is decided

RUN_VERSION = 2
"""Newest format version of run.json; older versions can be read."""


UNKNOWN_LANGUAGE = "und"


class DocumentFormat(Settings):
    """How texts are segmented, and the names of the classes."""

    labels: tuple[str, ...] = Field(min_length=2)
    """The classes, in the order of the network's outputs."""
    separator: str | None = Field(default=None, min_length=1)
    """The string between sentences; ``None``: sentences are detected."""
    language: str | None = Field(default=None, pattern=_LANGUAGE)
    """The language by whose rules they are; "und" if it is not known. ``None``, in older folders: they end at marks
    (`text.sentences.split_at_marks`)."""
    max_words: int = Field(default=64, ge=1, le=MOST_TOKENS)
    """Maximum number of subwords of a sentence."""
    max_tokens: int = Field(default=256, ge=8, le=MOST_TOKENS)
    """Maximum number of tokens of a row of a BERT."""

    @model_validator(mode="after")
    def _differ(self) -> DocumentFormat:
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("two labels are equal")
        return self


class ClassifyData(Settings):
    """The documents of a run."""

    path: str
    """The file, as it was given."""
    documents: int
    """Training documents."""
    held_out: int
    """Validation documents."""
    valid: str | None
    """The file of the validation documents; ``None`` if they were held out of the first one."""


class ClassifyRunConfig(BaseRunConfig):
    """The run.json of a classifier."""

    format_version: int = RUN_VERSION
    kind: Literal["classifier"]
    versions: dict[str, str]
    asked: dict[str, object]
    data: ClassifyData
    reading: DocumentFormat
    from_model: GivenModel | None
    """The BERT that the run starts from."""
    model: HierarchicalConfig | BertClassifierConfig = Field(discriminator="architecture")
    training: TrainingConfig
    reasons: dict[str, str]


class ClassifyFacts(NamedTuple):
    """What the decisions depend on besides the user's settings."""

    data: ClassifyData
    reading: DocumentFormat
    vocab: int
    """Entries of the vocabulary."""
    padding_id: int
    tokens: int
    """Subwords in an epoch."""
    paragraphs: bool
    """Whether a document has several paragraphs."""
    threads: int
    """Threads that PyTorch uses."""
    versions: dict[str, str]
    given: tuple[GivenModel, BertConfig] | None
    """The BERT to start from."""


_SHAPE = ("width", "layers", "heads", "inner")
"""Sizes that a given model has decided."""
_UNUSED: dict[str, tuple[str, ...]] = {
    "gru": ("heads", "inner"),
    "none": ("layers", "heads", "inner"),
    "transformer": (),
}
"""Sizes that an encoder of a hierarchical network does not have."""


def choose_network(settings: ClassifySettings) -> ModelName:
    """The kind of network.

    Raises:
        ConfigurationError: a setting belongs to the other kind or to another encoder, or a given model has decided it.
    """
    name: ModelName = settings.model or ("hierarchical" if settings.from_model is None else "bert")
    foreign: tuple[str, ...] = ("max_tokens", "pool") if name == "hierarchical" else ("depth", "encoder", "max_words")
    if settings.from_model is not None:
        if name != "bert":
            raise ConfigurationError("from_model: a pre-trained encoder is a BERT; leave model out, or ask for bert")
        foreign += (*_SHAPE, "vocab_size")
    wrong = [field for field in foreign if getattr(settings, field) is not None]
    if wrong:
        of = "model = 'hierarchical'" if name == "hierarchical" else "model = 'bert'"
        of = "a pre-trained model, which has its own" if settings.from_model is not None else of
        raise ConfigurationError(f"{', '.join(wrong)}: not a setting of {of}; leave it out")
    encoder = settings.encoder or _MODELS["hierarchical"]["encoder"]
    unused = [field for field in _UNUSED[encoder] if getattr(settings, field) is not None]
    if name == "hierarchical" and unused:
        raise ConfigurationError(
            f"{', '.join(unused)}: not a setting of encoder = '{encoder}'; leave it out, or choose another encoder"
        )
    return name


def choose_vocabulary(settings: ClassifySettings, documents: int) -> int:
    """Entries of a vocabulary to be learned: few where words occur seldom."""
    return settings.vocab_size or (2_000 if documents < 2_000 else 4_000 if documents < 20_000 else 8_000)


def choose_format(settings: ClassifySettings, labels: tuple[str, ...], most: int | None) -> DocumentFormat:
    """How texts are segmented.

    Args:
        settings: the user's.
        labels: the classes.
        most: maximum number of tokens that the given BERT can read; ``None`` if no model is given.

    Raises:
        ConfigurationError: more are requested, or both a separator and a language.
    """
    given = {name: value for name, value in settings if name in DocumentFormat.model_fields and value is not None}
    if settings.separator is not None and settings.language is not None:
        raise ConfigurationError(
            "separator and language exclude each other: sentences are detected or separated; leave out one of them"
        )
    usual = DocumentFormat.model_fields["max_tokens"].default
    chosen = {"labels": labels, "max_tokens": min(usual, most or usual), "language": UNKNOWN_LANGUAGE, **given}
    format_ = build(DocumentFormat, chosen, "the settings")
    if most is not None and format_.max_tokens > most:
        raise ConfigurationError(f"max_tokens is {format_.max_tokens}, but the given model reads {most} at most")
    return format_


_COMMON: dict[str, Any] = {"seed": 1, "device": "cpu", "smoothing": 0.0, "weight_decay": 0.01, "average": 0.9}
_MODELS: dict[ModelName, dict[str, Any]] = {
    "hierarchical": {"width": 128, "layers": 1, "heads": 4, "encoder": "gru", "dropout": 0.2, "learning_rate": 2e-3},
    "bert": {"width": 128, "layers": 2, "heads": 4, "pool": "mean", "dropout": 0.1, "learning_rate": 5e-4},
}
_EPOCHS, _MIN_UPDATES = 20, 200
_INTERVALS = 20
"""Validations, and lines of the log, in a run."""


def decide(settings: ClassifySettings, facts: ClassifyFacts) -> ClassifyRunConfig:
    """Choose every setting that the user left open.

    Raises:
        ConfigurationError: a setting is out of range, or two settings exclude each other.
    """
    name, choices = choose_network(settings), Choices(settings)
    chosen = {**_COMMON, **_MODELS[name], "threads": facts.threads, **_by_size(facts, settings)}
    reasons = dict.fromkeys(chosen, "found by trial") | {
        "threads": "what PyTorch uses here",
        "pool": "the first state is of use where next sentences were predicted",
        "batch_tokens": f"for {facts.tokens:,} subwords",
        "updates": f"{_EPOCHS} times through the documents, {_MIN_UPDATES} at least",
        "depth": "the documents have paragraphs" if facts.paragraphs else "the documents have one paragraph each",
    }
    if facts.given is not None:
        chosen["learning_rate"] = round(5e-5 * 768 / facts.given[1].width, 7)
        reasons["learning_rate"] = "5e-5 for a width of 768 (Devlin et al. 2019), more for less"
        reasons |= dict.fromkeys(_SHAPE, "the given model's")
    values = choices.override(chosen, reasons)
    values.setdefault("inner", 4 * values["width"])
    values.setdefault("warmup", max(values["updates"] // 10, 1))
    for interval in ("validate_every", "log_every"):
        values.setdefault(interval, max(values["updates"] // _INTERVALS, 1))
    origin = "the settings"
    model = _build_network(name, values, facts, origin)
    training = build(TrainingConfig, pick_fields(TrainingConfig, values), origin)
    given = given_settings(settings)
    known = {*type(model).model_fields, *TrainingConfig.model_fields, *given, *(_SHAPE if name == "bert" else ())}
    return ClassifyRunConfig(
        kind="classifier",
        versions=facts.versions,
        asked=given,
        data=facts.data,
        reading=facts.reading,
        from_model=None if facts.given is None else facts.given[0],
        model=model,
        training=training,
        reasons={field: reason for field, reason in choices.reasons.items() if field in known},
    )


def _by_size(facts: ClassifyFacts, settings: ClassifySettings) -> dict[str, Any]:
    """What depends on the amount of text: some hundred updates an epoch, on batches that hold whole documents."""
    batch = settings.batch_tokens or min(max(facts.tokens // 100, 512), 4096)
    updates = max(_EPOCHS * facts.tokens // batch, _MIN_UPDATES)
    return {"batch_tokens": batch, "updates": updates, "depth": 3 if facts.paragraphs else 2}


def _build_network(
    name: ModelName, values: dict[str, Any], facts: ClassifyFacts, origin: str
) -> HierarchicalConfig | BertClassifierConfig:
    sizes = {"classes": len(facts.reading.labels), "dropout": values["dropout"]}
    vocabulary = {"vocab": facts.vocab, "padding_id": facts.padding_id}
    if name == "hierarchical":
        return build(HierarchicalConfig, pick_fields(HierarchicalConfig, values) | vocabulary | sizes, origin)
    dropouts = {"dropout": values["dropout"], "attention_dropout": 0.0}
    if facts.given is None:
        shape = {**pick_fields(BertConfig, values), **vocabulary}
        encoder = build(BertConfig, {**shape, **dropouts, "max_positions": facts.reading.max_tokens}, origin)
    else:
        encoder = build(BertConfig, {**facts.given[1].model_dump(), **dropouts}, origin)
    return build(BertClassifierConfig, {"encoder": encoder, "pool": values["pool"], **sizes}, origin)
