"""What a user may say about the pre-training of a BERT, what is chosen otherwise, what is written down. No torch here.

`PretrainSettings` are wishes, each a flag of ``multihead pretrain``; `decide` turns them into a `PretrainRun`, in which
nothing is open, with the reason of each choice. What depends on the text alone, its vocabulary and how much of it is
held out, is decided before it is stored (`runs.bert.text`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field, model_validator

from multihead.configuration import Settings, build, nearest
from multihead.errors import ConfigurationError
from multihead.models.bert.config import BERT_PRESETS, BertConfig
from multihead.planning.sections import Chance, Machine
from multihead.planning.settings import TextFile
from multihead.training.config import TrainingConfig

T = TypeVar("T")

RUN_VERSION = 1
"""Of a pre-training's run.json: newer code reads older ones."""


# --------------------------------------------------------------------------- wishes


class _Place(Settings):
    heading: ClassVar[str] = "Folders"

    output: Path | None = None
    """The folder to write: new, empty, or one that was begun, which then goes on."""


class _Text(Settings):
    heading: ClassVar[str] = "Text"

    text: Path | None = None
    """The corpus: a sentence a line, an empty line between documents. Plain, gzip, xz or zstd."""
    valid_text: Path | None = None
    """Text to validate on; without it some documents are held out."""
    held_out: int | None = Field(default=None, ge=1)
    """Documents to hold out for validation; of a single document, sentences at its end."""
    max_tokens: int | None = Field(default=None, ge=8)
    """Tokens of a row: it is filled with sentences up to this."""
    next_sentence: bool | None = None
    """Rows are pairs of passages, half of them from different documents; without it, one passage each."""
    whole_words: bool | None = None
    """Words are hidden as a whole rather than subword by subword."""


class _Subwords(Settings):
    heading: ClassVar[str] = "Subwords"

    vocab_size: int | None = Field(default=None, ge=1)
    """Entries of the subword vocabulary."""


class _Model(Settings):
    heading: ClassVar[str] = "Model"

    preset: str | None = None
    """Model size: tiny, mini, small or base."""
    width: int | None = None
    """Model width D."""
    layers: int | None = None
    """Layers of the encoder."""
    heads: int | None = None
    """Attention heads."""
    inner: int | None = None
    """Width of the feed-forward network's hidden layer."""
    max_positions: int | None = None
    """The most tokens of a row that the finished model can read; max_tokens by default."""
    dropout: float | None = None
    """Dropout of embeddings and residual branches."""
    attention_dropout: float | None = None
    """Dropout of attention weights."""


class _Training(Settings):
    heading: ClassVar[str] = "Training"

    updates: int | None = None
    """Updates in all."""
    batch_tokens: int | None = None
    """Padded tokens in a batch."""
    accumulate: int | None = None
    """Batches to an update."""
    schedule: Literal["linear", "cosine", "trapezoid", "inverse_sqrt", "noam", "constant"] | None = None
    """How the learning rate goes on after the warm-up."""
    learning_rate: float | None = None
    """The highest learning rate."""
    warmup: int | None = None
    """Updates of rising learning rate."""
    weight_decay: float | None = None
    """Decoupled weight decay of matrices."""
    average: float | None = None
    """Decay of the moving average of the weights; 0 for none."""
    validate_every: int | None = None
    """Updates between validations."""
    patience: int | None = None
    """Validations without gain before training ends; 0 for never."""


class PretrainSettings(_Place, _Text, _Subwords, _Model, _Training, Chance, Machine):
    """Wishes for a run; ``text`` and ``output`` are needed, all else may be left open."""

    @model_validator(mode="after")
    def _agrees(self) -> PretrainSettings:
        if self.valid_text is not None and self.held_out is not None:
            raise ValueError("there is a valid_text, so that nothing is held out: leave out valid_text or held_out")
        return self


# --------------------------------------------------------------------------- what is decided


class PretrainText(Settings):
    """What is learned from, and how it was stored."""

    text: TextFile
    valid: TextFile | None
    """Text to validate on; None where a part of the text was held out."""
    documents: int
    """Of the text, those held out among them."""
    sentences: int
    held_out: int
    """Documents, or sentences of a single one, that validate."""
    left_out: int
    """Lines that could not be read."""
    vocab_size: int
    max_tokens: int
    next_sentence: bool
    whole_words: bool


class PretrainRun(Settings):
    """Everything decided about a run: run.json."""

    format_version: int = RUN_VERSION
    kind: Literal["pretrain"]
    """What tells it from a translator's."""
    versions: dict[str, str]
    """What it was started with."""
    asked: dict[str, object]
    """The settings that were given, rather than chosen."""
    text: PretrainText
    model: BertConfig
    training: TrainingConfig
    reasons: dict[str, str]
    """Why each choice was made."""


class Facts(Settings):
    """What decisions depend on besides the wishes."""

    sentences: int
    """To learn from."""
    vocab: int
    """Entries of the vocabulary."""
    padding_id: int
    batches: int
    """Batches of an epoch, in the size of `decide_batch`."""
    threads: int
    device: str
    fast_bfloat16: bool


Reasons = dict[str, str]


def decide_vocabulary(settings: PretrainSettings, sentences: int, reasons: Reasons) -> int:
    """Entries of the vocabulary: few for little text, where rare subwords would never be learned."""
    size = next((size for limit, size in ((5_000, 2_000), (100_000, 8_000)) if sentences < limit), 30_000)
    return _take(settings, "vocab_size", size, f"for {sentences:,} sentences", reasons)


def decide_rows(settings: PretrainSettings, documents: int, sentences: int, reasons: Reasons) -> tuple[int, bool, bool]:
    """The most tokens of a row, whether rows are pairs, whether words are hidden as a whole."""
    ordered = documents >= _DOCUMENTS and sentences >= 2 * documents
    why = (
        "there are documents, and sentences in an order"
        if ordered
        else (f"{documents:,} documents with {sentences:,} sentences: too few to tell what follows")
    )
    return (
        _take(settings, "max_tokens", 128, "as most updates of the paper", reasons),
        _take(settings, "next_sentence", ordered, why, reasons),
        _take(settings, "whole_words", False, "as in the paper", reasons),
    )


_DOCUMENTS = 4
"""Documents with which next sentences can be learned, and told of some that are held out."""
_EPOCHS, _LEAST, _MOST = 40, 500, 1_000_000


def decide_batch(settings: PretrainSettings, device: str, reasons: Reasons) -> int:
    """Padded tokens of a batch."""
    size, reason = (4096, "fills the caches of a processor") if device == "cpu" else (16_384, "fills a GPU")
    return _take(settings, "batch_tokens", size, reason, reasons)


def decide(
    settings: PretrainSettings, facts: Facts, max_tokens: int, reasons: Reasons
) -> tuple[BertConfig, TrainingConfig]:
    """The model and its training.

    Args:
        settings: the wishes.
        facts: of text and machine.
        max_tokens: of a row.
        reasons: takes the reason of each choice.

    Raises:
        ConfigurationError: a wish that cannot be, or two that exclude each other.
    """
    asked = settings.model_dump(exclude_none=True)
    model = _model(asked, facts, max_tokens, reasons)
    training = _training(asked, settings, facts, model.width, reasons)
    return model, training


def _model(asked: dict[str, Any], facts: Facts, max_tokens: int, reasons: Reasons) -> BertConfig:
    few = facts.sentences < 100_000
    size = "tiny" if few or facts.device == "cpu" else "small"
    name = asked.get("preset", size)
    reasons["preset"] = (
        "as asked"
        if "preset" in asked
        else (f"{facts.sentences:,} sentences are too few for a larger one" if few else "a larger one takes days here")
    )
    if name not in BERT_PRESETS:
        raise ConfigurationError(f"there is no preset '{name}' of a BERT{nearest(name, list(BERT_PRESETS))}")
    chosen = {**BERT_PRESETS[name], "attention_dropout": 0.0, "max_positions": max_tokens}
    reasons |= dict.fromkeys(BERT_PRESETS[name], "the preset's")
    reasons |= {"attention_dropout": "it would cost the fused kernel", "max_positions": "rows are no longer"}
    values = {**chosen, **_of(BertConfig, asked, reasons), "vocab": facts.vocab, "padding_id": facts.padding_id}
    values["initial_deviation"] = round(0.02 * (768 / max(values["width"], 1)) ** 0.5, 4)
    reasons["initial_deviation"] = "0.02 at the paper's width; narrower layers begin with states of the same size"
    if values["max_positions"] < max_tokens:
        raise ConfigurationError(
            f"max_positions is {values['max_positions']}, but rows have up to {max_tokens} tokens: make max_tokens as "
            "small, or leave max_positions out"
        )
    return build(BertConfig, values, "the settings of the model")


def _training(
    asked: dict[str, Any], settings: PretrainSettings, facts: Facts, width: int, reasons: Reasons
) -> TrainingConfig:
    updates = settings.updates or min(max(_EPOCHS * facts.batches // (settings.accumulate or 1), _LEAST), _MOST)
    low = facts.fast_bfloat16
    chosen: dict[str, tuple[Any, str]] = {
        "updates": (updates, f"{_EPOCHS} epochs of {facts.batches:,} batches, within {_LEAST:,} and {_MOST:,}"),
        "learning_rate": (0.25 / width, f"for width {width}"),
        "warmup": (max(min(10_000, updates // 10), 1), "a tenth of the run: states are normed behind each sum"),
        "schedule": ("linear", "as in the paper"),
        "smoothing": (0.0, "as in the paper"),
        "weight_decay": (0.01, "as in the paper"),
        "average": (min(round(1 - 1 / max(0.06 * updates, 10.0), 5), 0.99999), "remembers about 6% of the run"),
        "validate_every": (max(updates // 16, 10), "16 times a run"),
        "log_every": (max(min(updates // 60, 100), 1), "some 60 lines"),
        "threads": (facts.threads, "what PyTorch uses here"),
        "device": (facts.device, "what there is"),
        "precision": (
            "bfloat16" if low else "float32",
            "the hardware multiplies it fastest" if low else "there is no fast bfloat16 here",
        ),
    }
    reasons |= {name: reason for name, (_, reason) in chosen.items()}
    values = {name: value for name, (value, _) in chosen.items()}
    values["batch_tokens"] = decide_batch(settings, facts.device, reasons)
    return build(TrainingConfig, values | _of(TrainingConfig, asked, reasons), "the settings of training")


def _take(settings: PretrainSettings, name: str, chosen: T, reason: str, reasons: Reasons) -> T:
    """The user's value of ``name``, or the chosen one."""
    asked: T | None = getattr(settings, name)
    reasons[name] = reason if asked is None else "as asked"
    return chosen if asked is None else asked


def _of(cls: type[Settings], asked: dict[str, Any], reasons: Reasons) -> dict[str, Any]:
    """Those of the wishes that are fields of ``cls``."""
    found = {name: value for name, value in asked.items() if name in cls.model_fields}
    reasons |= dict.fromkeys(found, "as asked")
    return found
