"""What a user may say about a classifier, what is chosen otherwise, and what is written down. No torch here.

`ClassifySettings` are wishes, each a flag of ``multihead classify train``; `decide` turns them into a `ClassifyRun`, in
which nothing is open, with the reason of each choice. What the rules rest on stands in docs/classification.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from multihead.configuration import Settings, build
from multihead.errors import ConfigurationError
from multihead.models.bert.config import BertConfig
from multihead.models.classifier.config import BertClassifierConfig, HierarchicalConfig
from multihead.planning.sections import Chance
from multihead.planning.settings import GivenModel
from multihead.training.config import TrainingConfig

ModelName = Literal["hierarchical", "bert"]

# --------------------------------------------------------------------------- wishes


class Files(Settings):
    """Where from, where to; flags of their own, since these names are folders elsewhere."""

    data: Path | None = None
    """Documents to learn from: label TAB text, one a line; further tabs end paragraphs. Plain, gzip, xz or zstd."""
    valid: Path | None = None
    """Documents to choose the best model by; without them a part of the others is held out."""
    output: Path | None = None
    """The folder to write: new, empty, or one that was begun, which then goes on."""
    from_model: Path | None = None
    """Start from this BERT: a run of `multihead pretrain`, or a model folder."""


class _Text(Settings):
    heading: ClassVar[str] = "Text"

    held_out: int | None = Field(default=None, ge=1)
    """Documents to hold out where there is no file of them. [a tenth, 1,000 at most]"""
    separator: str | None = Field(default=None, min_length=1)
    """What stands between sentences. [they end where ends of sentences are]"""
    max_words: int | None = Field(default=None, ge=1)
    """Subwords of a sentence; what is longer becomes several. [64]"""
    max_tokens: int | None = Field(default=None, ge=8)
    """Of a BERT: subwords of a document, the rest is not read. [256, or what the given model can read]"""


class _Subwords(Settings):
    heading: ClassVar[str] = "Subwords"

    vocab_size: int | None = Field(default=None, ge=1)
    """Entries of the subword vocabulary. [by the number of documents]"""


class _Model(Settings):
    heading: ClassVar[str] = "Model"

    model: ModelName | None = None
    """Which network: hierarchical attention, or a BERT. [hierarchical; bert with --from-model]"""
    depth: int | None = None
    """Levels of a hierarchical network: 1 words, 2 and sentences, 3 and paragraphs. [2; 3 where there are tabs]"""
    encoder: Literal["gru", "transformer", "none"] | None = None
    """What reads the parts of each of its levels. [gru]"""
    pool: Literal["first", "mean", "attention"] | None = None
    """What stands for a document in a BERT: its pooled first state, the mean of all, or one weighted by attention.
    [mean]"""
    width: int | None = None
    """Model width D. [128]"""
    layers: int | None = None
    """Layers of a BERT, or of each level's encoder. [2, or 1]"""
    heads: int | None = None
    """Attention heads. [4]"""
    inner: int | None = None
    """Width of the feed-forward network's hidden layer. [4 D]"""
    dropout: float | None = None
    """Dropout."""


class _Training(Settings):
    heading: ClassVar[str] = "Training"

    updates: int | None = None
    """Updates in all. [20 times through the documents, 200 at least]"""
    batch_tokens: int | None = None
    """Subwords in a batch: documents times the longest. [by their number]"""
    learning_rate: float | None = None
    """The highest learning rate."""
    warmup: int | None = None
    """Updates of rising learning rate. [a tenth]"""
    smoothing: float | None = None
    """Label smoothing. [0]"""
    weight_decay: float | None = None
    """Decoupled weight decay of matrices. [0.01]"""
    average: float | None = None
    """Decay of the moving average of the weights; 0 for none. [0.9]"""
    validate_every: int | None = None
    """Updates between validations. [20 times a run]"""
    patience: int | None = None
    """Validations without gain before training ends; 0 for never. [0]"""


class _Machine(Settings):
    heading: ClassVar[str] = "Run"

    threads: int | None = None
    """Processor threads."""
    device: Literal["cpu", "cuda"] | None = None
    """Where to train. [cpu]"""
    log_every: int | None = None
    """Updates between lines of the log. [20 times a run]"""


class ClassifyWishes(_Text, _Subwords, _Model, _Training, Chance, _Machine):
    """What is not a file."""


class ClassifySettings(Files, ClassifyWishes):
    """Wishes for a run; all but the files may be left open."""


# --------------------------------------------------------------------------- what is decided

RUN_VERSION = 1
"""Of a classifier's run.json: newer code reads older ones."""


class Reading(Settings):
    """How a text becomes what the network reads, and what its answers are called."""

    labels: tuple[str, ...] = Field(min_length=2)
    """The classes, in the order of the network's outputs."""
    separator: str | None = None
    """What stands between sentences; None: they end where ends of sentences are."""
    max_words: int = Field(default=64, ge=1)
    """Subwords of a sentence."""
    max_tokens: int = Field(default=256, ge=8)
    """Of a BERT: ids of a row."""


class ClassifyData(Settings):
    """What was learned from."""

    path: str
    """The file, as it was given."""
    documents: int
    """Those that are trained on."""
    held_out: int
    """Those that the best model is chosen by."""
    valid: str | None
    """The file where those stand; None: they were held out of the first one."""


class ClassifyRun(Settings):
    """Everything decided about a run: run.json."""

    format_version: int = RUN_VERSION
    kind: Literal["classifier"]
    """What tells it from a translator's."""
    versions: dict[str, str]
    """What it was started with."""
    asked: dict[str, object]
    """The settings that were given, rather than chosen."""
    data: ClassifyData
    reading: Reading
    from_model: GivenModel | None
    """The BERT that it began with."""
    model: HierarchicalConfig | BertClassifierConfig = Field(discriminator="architecture")
    training: TrainingConfig
    reasons: dict[str, str]
    """Why each choice was made."""


class Facts(NamedTuple):
    """What decisions depend on."""

    data: ClassifyData
    reading: Reading
    vocab: int
    """Entries of the vocabulary."""
    padding_id: int
    tokens: int
    """Subwords that an epoch has."""
    paragraphs: bool
    """Whether a document has several."""
    threads: int
    """What PyTorch computes with here."""
    versions: dict[str, str]
    given: tuple[GivenModel, BertConfig] | None
    """The BERT to begin with."""


_SHAPE = ("width", "layers", "heads", "inner")
"""What a given model has settled."""


def network_of(settings: ClassifySettings) -> ModelName:
    """Which network is meant.

    Raises:
        ConfigurationError: settings of the other one, or of a given model that cannot be changed.
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
    return name


def vocabulary_size(settings: ClassifySettings, documents: int) -> int:
    """Entries of a vocabulary that is to be learned: few where words are seen seldom."""
    return settings.vocab_size or (2_000 if documents < 2_000 else 4_000 if documents < 20_000 else 8_000)


def reading_of(settings: ClassifySettings, labels: tuple[str, ...], most: int | None) -> Reading:
    """How texts are cut.

    Args:
        settings: the wishes.
        labels: the classes.
        most: ids of a row that the given BERT can read; None where there is none.

    Raises:
        ConfigurationError: more are asked for.
    """
    asked = _of(Reading, settings.model_dump(exclude_none=True))
    usual = Reading.model_fields["max_tokens"].default
    found = build(Reading, {"labels": labels, "max_tokens": min(usual, most or usual), **asked}, "the settings")
    if most is not None and found.max_tokens > most:
        raise ConfigurationError(f"max_tokens is {found.max_tokens}, but the given model reads {most} at most")
    return found


_CHOSEN: dict[str, Any] = {"seed": 1, "device": "cpu", "smoothing": 0.0, "weight_decay": 0.01, "average": 0.9}
_MODELS: dict[ModelName, dict[str, Any]] = {
    "hierarchical": {"width": 128, "layers": 1, "heads": 4, "encoder": "gru", "dropout": 0.2, "learning_rate": 2e-3},
    "bert": {"width": 128, "layers": 2, "heads": 4, "pool": "mean", "dropout": 0.1, "learning_rate": 5e-4},
}
_EPOCHS, _FEWEST = 20, 200
_OFTEN = 20
"""Validations, and lines of the log, a run."""


def decide(settings: ClassifySettings, facts: Facts) -> ClassifyRun:
    """Everything that the user left open.

    Raises:
        ConfigurationError: a wish that cannot be, or two that exclude each other.
    """
    asked = settings.model_dump(mode="json", exclude_none=True, exclude={"output"})
    name = network_of(settings)
    chosen = {**_CHOSEN, **_MODELS[name], "threads": facts.threads, **_by_size(facts, asked)}
    reasons = dict.fromkeys(chosen, "found by trial") | {
        "threads": "what PyTorch uses here",
        "pool": "the first state is of use where next sentences were predicted",
        "batch_tokens": f"for {facts.tokens:,} subwords",
        "updates": f"{_EPOCHS} times through the documents, {_FEWEST} at least",
        "depth": "the documents have paragraphs" if facts.paragraphs else "the documents have one paragraph each",
    }
    if facts.given is not None:
        chosen["learning_rate"] = round(5e-5 * 768 / facts.given[1].width, 7)
        reasons["learning_rate"] = "5e-5 for a width of 768 (Devlin et al. 2019), more for less"
        reasons |= dict.fromkeys(_SHAPE, "the given model's")
    reasons |= dict.fromkeys(asked, "as asked")
    values = {**chosen, **asked}
    values.setdefault("inner", 4 * values["width"])
    values.setdefault("warmup", max(values["updates"] // 10, 1))
    for often in ("validate_every", "log_every"):
        values.setdefault(often, max(values["updates"] // _OFTEN, 1))
    origin = "the settings"
    model = _network(name, values, facts, origin)
    training = build(TrainingConfig, _of(TrainingConfig, values), origin)
    known = {*type(model).model_fields, *TrainingConfig.model_fields, *asked, *(_SHAPE if name == "bert" else ())}
    return ClassifyRun(
        kind="classifier",
        versions=facts.versions,
        asked=asked,
        data=facts.data,
        reading=facts.reading,
        from_model=None if facts.given is None else facts.given[0],
        model=model,
        training=training,
        reasons={field: reason for field, reason in reasons.items() if field in known},
    )


def _by_size(facts: Facts, asked: dict[str, Any]) -> dict[str, Any]:
    """What depends on how much there is to learn from: some hundred updates an epoch, of documents that fit."""
    batch = asked.get("batch_tokens") or min(max(facts.tokens // 100, 512), 4096)
    updates = max(_EPOCHS * facts.tokens // batch, _FEWEST)
    return {"batch_tokens": batch, "updates": updates, "depth": 3 if facts.paragraphs else 2}


def _network(
    name: ModelName, values: dict[str, Any], facts: Facts, origin: str
) -> HierarchicalConfig | BertClassifierConfig:
    sizes = {"classes": len(facts.reading.labels), "dropout": values["dropout"]}
    if name == "hierarchical":
        known = {**_of(HierarchicalConfig, values), "vocab": facts.vocab, "padding_id": facts.padding_id}
        return build(HierarchicalConfig, known | sizes, origin)
    dropouts = {"dropout": values["dropout"], "attention_dropout": 0.0}
    if facts.given is None:
        shape = {**_of(BertConfig, values), "vocab": facts.vocab, "padding_id": facts.padding_id}
        encoder = build(BertConfig, {**shape, **dropouts, "max_positions": facts.reading.max_tokens}, origin)
    else:
        encoder = build(BertConfig, {**facts.given[1].model_dump(), **dropouts}, origin)
    return build(BertClassifierConfig, {"encoder": encoder, "pool": values["pool"], **sizes}, origin)


def _of(cls: type[Settings], values: dict[str, Any]) -> dict[str, Any]:
    """Those of the values that are fields of ``cls``."""
    return {name: value for name, value in values.items() if name in cls.model_fields}
