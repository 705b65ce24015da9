"""Settings of a language model's run, and the decisions of its run.json.

What users may set are those of `planning.settings.TrainSettings` that are `SUPPORTED`: ``multihead train --model
decoder`` has the same flags as for translators. `planning.choices` decides the rest by the same rules. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import Field

from multihead.configuration import Machine, Settings, build
from multihead.errors import ConfigurationError
from multihead.models.decoder.config import DecoderConfig
from multihead.planning.choices import CorpusSize, Pace, adapt_dropout, choose_decoder, choose_training
from multihead.planning.settings import BaseRunConfig, Choices, TextFile, TrainSettings
from multihead.training.config import TrainingConfig

RUN_VERSION = 1
"""Newest format version of run.json; older versions can be read."""

SUPPORTED = frozenset(
    (
        *("output", "target", "valid_target", "held_out", "max_tokens"),
        *("vocab_size", "min_frequency", "coverage", "symbols", "user_symbols"),
        *("model", "preset", *DecoderConfig.model_fields),
        *("updates", "budget", "batch_tokens", "accumulate", "optimizer", "muon_scale"),
        *("schedule", "learning_rate", "warmup"),
        *("smoothing", "clip", "skip_above", "skip_limit", "weight_decay", "average", "validate_every", "patience"),
        *("precision", "threads", "device", "log_every", "keep_checkpoints", "tensorboard", "seed"),
    )
)
"""The settings that a language model has."""
_FEWEST_TOKENS = 2


def parse(values: dict[str, Any]) -> TrainSettings:
    """The settings of a run.

    Raises:
        ConfigurationError: there is no such setting, or it is one of translators alone; or a value is invalid.
    """
    given = {name: value for name, value in values.items() if value is not None}
    asked = given.get("model", "decoder")
    if asked != "decoder":
        raise ConfigurationError(f"model: a language model is 'decoder', got '{asked}'")
    for name in given:
        if name in TrainSettings.model_fields and name not in SUPPORTED:
            raise ConfigurationError(
                f"{name} is a setting of translators, and model 'decoder' is a language model of one text, the target: "
                "leave it out"
            )
    settings = build(TrainSettings, {**values, "model": "decoder"}, "the settings")
    if settings.max_tokens is not None and settings.max_tokens < _FEWEST_TOKENS:
        raise ConfigurationError(
            f"max_tokens is {settings.max_tokens}, and a language model reads {_FEWEST_TOKENS} tokens at least; "
            "raise it, or leave it out"
        )
    return settings


class Reading(Settings):
    """How a language model reads texts; a part of its model folder."""

    max_tokens: int = Field(ge=_FEWEST_TOKENS)
    """Maximum number of tokens that it reads at once; longer texts are cut into windows (`data.texts`)."""


class LanguageModelText(Settings):
    """The text of a run, and how it was stored."""

    text: TextFile
    valid: TextFile | None
    """The validation text; ``None`` if lines of the text were held out."""
    texts: int
    """Lines to learn from, without empty ones."""
    tokens: int
    """Their tokens, end symbols counted."""
    held_out: int
    """Lines held out for validation; 0 with a validation text."""
    left_out: int
    """Lines that could not be read."""
    valid_texts: int
    valid_characters: int
    """Of the validation texts, the end of each line counted as one."""
    valid_bytes: int
    vocab_size: int
    """Requested size of the vocabulary; the tokenizer has the actual one."""
    max_tokens: int


class LanguageModelRunConfig(BaseRunConfig):
    """The run.json of a language model."""

    sealed_since: ClassVar[int] = 1

    format_version: int = RUN_VERSION
    kind: Literal["language-model"]
    versions: dict[str, str]
    asked: dict[str, object]
    text: LanguageModelText
    model: DecoderConfig
    training: TrainingConfig
    reasons: dict[str, str]


def decide(
    choices: Choices,
    corpus: CorpusSize,
    max_tokens: int,
    machine: Machine,
    pace: Callable[[DecoderConfig, TrainingConfig], Pace],
) -> tuple[DecoderConfig, TrainingConfig]:
    """The model and its training.

    Raises:
        ConfigurationError: a setting is out of range, or two settings exclude each other.
    """
    model = choose_decoder(choices, corpus, machine)
    if model.positions == "learned" and model.max_positions < max_tokens:
        raise ConfigurationError(
            f"max_positions is {model.max_positions}, but up to {max_tokens} tokens are read at once: make max_tokens "
            "as small, or max_positions as large"
        )
    usual = {
        "smoothing": (0.0, "perplexity measures the text's own words"),
        "best_by": ("loss", "what perplexity is made of"),
    }
    training = choose_training(choices, corpus, model, machine, lambda trial: pace(model, trial), usual)
    return adapt_dropout(choices, model, corpus, training), training


def choose_size(choices: Choices) -> int:
    """The maximum number of tokens that are read at once."""
    return choices.take("max_tokens", lambda: (512, "longer lines are read in parts"))
