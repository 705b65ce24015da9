"""Settings of BERT pre-training, and rules for the open ones.

`PretrainSettings` are what a user may set, each a flag of ``multihead pretrain``; `decide` completes them to a
`PretrainRunConfig`, with the reason of each choice. What depends only on the text (its vocabulary, how much of it is
held out) is decided before it is stored, in `runs.bert.text`. No torch here: ``--help`` reads this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from multihead.configuration import MOST_BATCH, MOST_ENTRIES, MOST_TOKENS, Settings, build, nearest
from multihead.errors import ConfigurationError
from multihead.models.bert.config import BERT_PRESETS, BertConfig
from multihead.planning.sections import Chance, Machine, Output, Schedule, shared
from multihead.planning.settings import BaseRunConfig, Choices, TextFile, usual_average, usual_intervals
from multihead.training.config import TrainingConfig

RUN_VERSION = 2
"""Newest format version of run.json; older versions can be read."""

_MIN_DOCUMENTS = 4
"""Documents from which next sentences can be learned, even if some are held out."""
FEWEST_DOCUMENTS = 2
"""Documents of which pairs can be made: half of the second passages come from another document."""
_EPOCHS, _MIN_UPDATES, _MAX_UPDATES = 40, 500, 1_000_000


# --------------------------------------------------------------------------- what users may set


class _Text(Settings):
    heading: ClassVar[str] = "Text"

    text: Path | None = None
    """The corpus: one sentence per line, an empty line between documents. Plain, gzip, xz or zstd."""
    valid_text: Path | None = None
    """Text to validate on; without it, some documents are held out."""
    held_out: int | None = Field(default=None, ge=1, le=MOST_BATCH)
    """Documents to hold out for validation; of a single document, sentences at its end."""
    max_tokens: int | None = Field(default=None, ge=8, le=MOST_TOKENS)
    """Maximum tokens of a row, which is filled with sentences."""
    next_sentence: bool | None = None
    """Rows are pairs of passages, half of them from different documents; without it, one passage each."""
    whole_words: bool | None = None
    """Words are hidden as a whole rather than subword by subword."""


class _Subwords(Settings):
    heading: ClassVar[str] = "Subwords"

    vocab_size: int | None = shared("vocab_size", ge=1, le=MOST_ENTRIES)


class _Model(Settings):
    heading: ClassVar[str] = "Model"

    preset: str | None = None
    """Model size: tiny, mini, small or base."""
    width: int | None = shared("width")
    layers: int | None = shared("encoder_layers")
    heads: int | None = shared("heads")
    inner: int | None = shared("inner")
    max_positions: int | None = None
    """Maximum tokens of a row that the finished model can read; max_tokens by default."""
    dropout: float | None = None
    """Dropout of embeddings and residual branches."""
    attention_dropout: float | None = shared("attention_dropout")


class _Training(Settings):
    heading: ClassVar[str] = "Training"

    updates: int | None = shared("updates")
    batch_tokens: int | None = None
    """Tokens in a batch, including padding."""
    accumulate: int | None = shared("accumulate")
    schedule: Schedule | None = shared("schedule")
    learning_rate: float | None = shared("learning_rate")
    warmup: int | None = shared("warmup")
    weight_decay: float | None = shared("weight_decay")
    average: float | None = shared("average")
    validate_every: int | None = shared("validate_every")
    patience: int | None = shared("patience")


class PretrainSettings(Output, _Text, _Subwords, _Model, _Training, Chance, Machine):
    """Settings of ``multihead pretrain``; ``text`` and ``output`` are needed, all others may be left open."""

    @model_validator(mode="after")
    def _agrees(self) -> PretrainSettings:
        if self.valid_text is not None and self.held_out is not None:
            raise ValueError("there is a valid_text, so that nothing is held out: leave out valid_text or held_out")
        return self


# --------------------------------------------------------------------------- what is decided


class PretrainText(Settings):
    """The text of a run, and how it was stored."""

    text: TextFile
    valid: TextFile | None
    """The validation text; ``None`` if part of the text was held out."""
    documents: int
    """Documents of the text, including those held out."""
    sentences: int
    held_out: int
    """Documents held out for validation, or sentences of a single document."""
    left_out: int
    """Lines that could not be read."""
    vocab_size: int
    max_tokens: int
    next_sentence: bool
    whole_words: bool


class PretrainRunConfig(BaseRunConfig):
    """The run.json of a pre-training."""

    format_version: int = RUN_VERSION
    kind: Literal["pretrain"]
    versions: dict[str, str]
    asked: dict[str, object]
    text: PretrainText
    model: BertConfig
    training: TrainingConfig
    reasons: dict[str, str]


class PretrainFacts(Settings):
    """What the decisions depend on besides the user's settings."""

    sentences: int
    """Training sentences."""
    vocab: int
    """Entries of the vocabulary."""
    padding_id: int
    batches: int
    """Batches in an epoch, of the size that `choose_batch` returns."""
    threads: int
    device: str
    fast_bfloat16: bool


def choose_vocabulary(choices: Choices, sentences: int) -> int:
    """Entries of the vocabulary: few for little text, where rare subwords would never be learned."""
    size = next((size for limit, size in ((5_000, 2_000), (100_000, 8_000)) if sentences < limit), 30_000)
    return choices.take("vocab_size", lambda: (size, f"for {sentences:,} sentences"))


def choose_rows(choices: Choices, documents: int, sentences: int, fewer: int) -> tuple[int, bool, bool]:
    """The maximum number of tokens of a row, whether rows are pairs, and whether whole words are hidden.

    Args:
        choices: the user's settings; collects the reason of each choice.
        documents: of the text, including those held out.
        sentences: in these.
        fewer: documents to learn from or to validate on, whichever are fewer.
    """
    ordered = documents >= _MIN_DOCUMENTS and sentences >= 2 * documents and fewer >= FEWEST_DOCUMENTS
    why = "there are documents, and sentences in an order"
    if not ordered:
        why = f"{documents:,} documents with {sentences:,} sentences: too few to tell what follows"
        if fewer < FEWEST_DOCUMENTS <= _MIN_DOCUMENTS <= documents:
            why = "one document to learn from, or to validate on: there is no other one to draw sentences from"
    return (
        choices.take("max_tokens", lambda: (128, "as most updates of the paper")),
        choices.take("next_sentence", lambda: (ordered, why)),
        choices.take("whole_words", lambda: (False, "as in the paper")),
    )


def choose_batch(choices: Choices, device: str) -> int:
    """Padded tokens of a batch."""
    size, reason = (4096, "fills the caches of a processor") if device == "cpu" else (16_384, "fills a GPU")
    return choices.take("batch_tokens", lambda: (size, reason))


def decide(choices: Choices, facts: PretrainFacts, max_tokens: int) -> tuple[BertConfig, TrainingConfig]:
    """The model and its training.

    Args:
        choices: the user's settings; collects the reason of each choice.
        facts: about text and machine.
        max_tokens: maximum number of tokens of a row.

    Raises:
        ConfigurationError: a setting is out of range, or two settings exclude each other.
    """
    model = _choose_model(choices, facts, max_tokens)
    return model, _choose_training(choices, facts, model.width)


def _choose_model(choices: Choices, facts: PretrainFacts, max_tokens: int) -> BertConfig:
    few = facts.sentences < 100_000
    size = "tiny" if few or facts.device == "cpu" else "small"
    why = f"{facts.sentences:,} sentences are too few for a larger one" if few else "a larger one takes days here"
    name = choices.take("preset", lambda: (size, why))
    if name not in BERT_PRESETS:
        raise ConfigurationError(f"there is no preset '{name}' of a BERT{nearest(name, list(BERT_PRESETS))}")
    chosen = {**BERT_PRESETS[name], "attention_dropout": 0.0, "max_positions": max_tokens}
    reasons = dict.fromkeys(BERT_PRESETS[name], "the preset's")
    reasons |= {"attention_dropout": "the fused kernel has none", "max_positions": "rows are no longer"}
    values = choices.override(chosen, reasons, BertConfig.model_fields)
    values |= {"vocab": facts.vocab, "padding_id": facts.padding_id}
    values["initial_deviation"] = round(0.02 * (768 / max(values["width"], 1)) ** 0.5, 4)
    choices.reasons["initial_deviation"] = (
        "0.02 at the paper's width; narrower layers begin with states of the same size"
    )
    if values["max_positions"] < max_tokens:
        raise ConfigurationError(
            f"max_positions is {values['max_positions']}, but rows have up to {max_tokens} tokens: make max_tokens as "
            "small, or leave max_positions out"
        )
    return build(BertConfig, values, "the settings of the model")


def _choose_training(choices: Choices, facts: PretrainFacts, width: int) -> TrainingConfig:
    epochs = _EPOCHS * facts.batches // (choices.requested("accumulate") or 1)
    updates = choices.requested("updates") or min(max(epochs, _MIN_UPDATES), _MAX_UPDATES)
    often = usual_intervals(updates)
    low = facts.fast_bfloat16
    chosen: dict[str, tuple[Any, str]] = {
        "updates": (
            updates,
            f"{_EPOCHS} epochs of {facts.batches:,} batches, within {_MIN_UPDATES:,} and {_MAX_UPDATES:,}",
        ),
        "learning_rate": (0.25 / width, f"for width {width}"),
        "warmup": (max(min(10_000, updates // 10), 1), "a tenth of the run: states are normed behind each sum"),
        "schedule": ("linear", "as in the paper"),
        "smoothing": (0.0, "as in the paper"),
        "weight_decay": (0.01, "as in the paper"),
        "average": usual_average(updates),
        **often,
        "threads": (facts.threads, "what PyTorch uses here"),
        "device": (facts.device, "the fastest device here"),
        "precision": (
            "bfloat16" if low else "float32",
            "the hardware multiplies it fastest" if low else "there is no fast bfloat16 here",
        ),
    }
    reasons = {name: reason for name, (_, reason) in chosen.items()}
    values = {name: value for name, (value, _) in chosen.items()}
    values["batch_tokens"] = choose_batch(choices, facts.device)
    values = choices.override(values, reasons, TrainingConfig.model_fields)
    return build(TrainingConfig, values, "the settings of training")
