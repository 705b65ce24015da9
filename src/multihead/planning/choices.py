"""Rules for the settings of a run that the user left open.

`Choices` records every decision with its reason; a setting given by the user is always kept. The rules depend on the
size of the corpus and on the machine. They were found on validation sets, never on a test set (docs/results.md,
docs/lab-notes.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast

from multihead.configuration import MOST_UPDATES, Machine, Settings, build
from multihead.decoding.search import Search
from multihead.errors import ConfigurationError
from multihead.models.config import ARCHITECTURES, Architecture, NetworkConfig, preset
from multihead.models.decoder.config import DecoderConfig, decoder_preset
from multihead.planning.settings import AS_ASKED, Choices, TrainSettings, usual_average, usual_intervals
from multihead.training.config import TrainingConfig
from multihead.training.progress import format_duration

_UPDATING = 0.88
"""Share of a run's time spent in updates; the rest allows for validation and for other work on the machine. With a
budget it is an estimate, and the number of updates is decided anew while the run goes on (`training.budget`)."""

_MUON = ((128, 2), (256, 7))
_MUON_WIDE = 10
"""Minimum tokens per update and unit of model width for Muon. Up to a width, the fewest that were tried and gained
(docs/lab-notes.md, "Five thousand pairs"); above, as many as keep its products to a third of an update."""

USUAL_SCALE = 0.2
"""The length of Muon's steps relative to the learning rate, with which they are as long as Adam's."""

_FAST_RATE, _HIGHEST_RATE, _FAST_SCALE = 5.12, 0.02, 0.1
"""Muon's learning rate, times the width, and what it may be at most; and the length of its steps
relative to this rate, which is Adam's for embeddings and vectors (docs/lab-notes.md, "The rate of Muon")."""

_FEWEST = 5_000
"""Below this number sinusoids remain: a toy of hundreds of pairs generalized worse with rotary positions."""

FEW_PAIRS = 150_000
"""Below this number, a run with a budget and Muon gets weight decay, whatever its rate."""

_FAST_PAIRS = 1_000_000
"""Below this number, a new model has rotary positions and Muon a high rate, as was tried with up to 500,000 pairs
(docs/lab-notes.md, "Half a million pairs")."""

_TWO_VOCABULARIES = range(10_000, 50_000)
"""Numbers of pairs with which each side has a vocabulary of its own; with 5,000, a common one is better
(docs/lab-notes.md, "A vocabulary for each language")."""

_ALIKE = 0.3
"""From this share of target words that also occur in their source on, both sides have one vocabulary: in the German
and English of Multi30k it is 3%, in two forms of one language it is most of them."""

_SHORT_DROPOUTS = ((20.0, 0.1), (30.0, 0.2))
"""Dropout of trainings with fewer epochs than the first number (docs/lab-notes.md, "Dropout and epochs")."""

_SHORT = (700, 1_200)
"""Numbers of updates of the usual network: where fewer fit, one that is narrowed twice, or once, learns more in the
same time (docs/lab-notes.md, "The size for a short training")."""

_FILLED = 0.85
"""Share of a batch's cells that are not padding, as usual."""

_FINE_TUNING = 0.25
"""Length of a fine-tuning run relative to training a new model."""


@dataclass(frozen=True)
class CorpusSize:
    """The properties of a corpus that decisions depend on."""

    pairs: int
    """Training pairs."""
    target_tokens: int
    """Target subwords in an epoch, including end symbols."""
    source_vocab: int
    target_vocab: int
    padding_id: int
    factors: int = 1
    """Factors of a source's pieces."""
    shared: bool = True
    """Whether both sides have one vocabulary, which two of one size are not."""
    unit: str = "pairs"
    """What the reasons of decisions call them: pairs, or lines of a single text."""

    @property
    def counted(self) -> str:
        """The number of pairs in words."""
        return f"{self.pairs:,} {self.unit}"


def choose_vocabulary(choices: Choices, pairs: int, unit: str = "pairs") -> int:
    """The size of the vocabulary: small for small corpora, where rare subwords would never be learned."""
    size = next(
        (
            size
            for limit, size in ((5_000, 2_000), (50_000, 4_000), (100_000, 8_000), (1_000_000, 16_000))
            if pairs < limit
        ),
        32_000,
    )
    return choices.take("vocab_size", lambda: (size, f"for {pairs:,} {unit}"))


def choose_sharing(choices: Choices, pairs: int, alike: Callable[[], float], *, directions: bool = False) -> bool:
    """Whether both sides have one vocabulary.

    Args:
        choices: the user's settings; collects the reason.
        pairs: training pairs.
        alike: computes the share of target words that also occur in their source.
        directions: whether the text has several directions, so that both sides have the same languages.
    """

    def usual() -> tuple[bool, str]:
        if choices.requested("source_factors") is not None:
            return False, "the source is in lower case, the target is not"
        if getattr(choices.settings, "tie_embeddings", None):
            return True, "tie_embeddings needs it"
        if directions or pairs not in _TWO_VOCABULARIES or (share := alike()) >= _ALIKE:
            return True, "names and numbers are alike on both sides"
        return False, f"longer subwords for {pairs:,} pairs; only {share:.0%} of the words are alike on both sides"

    return choices.take("shared_vocabulary", usual)


FROM_TEXT = ("architecture", "source_vocab", "target_vocab", "vocab", "padding_id", "factors")
"""Fields of a network's settings that follow from the text or from the kind of network."""

_GIVEN, _PRESETS = "the given model's", "the preset's"

SIZES = ("width", "heads", "inner", "encoder_layers", "decoder_layers")
"""Fields that say how large a Transformer is."""

Network = TypeVar("Network", bound=NetworkConfig | DecoderConfig)


def choose_model(choices: Choices, corpus: CorpusSize, machine: Machine) -> NetworkConfig:
    """Choose the network, its sizes, dropout rates and layout.

    Each value is the user's, or else the preset's, or else that of a rule, or else the default.

    Raises:
        ConfigurationError: the preset does not exist, a setting belongs to another network, or sizes do not fit; or
            asked for is a language model.
    """
    asked: Architecture | Literal["decoder"]
    asked = choices.take("model", lambda: ("transformer", "the best there is for most texts"))
    if asked == "decoder":
        raise ConfigurationError(
            "model decoder is a language model, which does not translate: `multihead train --model decoder --target "
            "FILE` trains one; for a translator choose transformer or recurrent"
        )
    kind = ARCHITECTURES[asked]
    _check_architecture(choices, asked)
    fixed = preset(choices.take("preset", lambda: choose_preset(asked, corpus, machine)), asked)
    sizes = {
        "source_vocab": corpus.source_vocab,
        "target_vocab": corpus.target_vocab,
        "padding_id": corpus.padding_id,
    }
    if corpus.factors > 1:
        if asked == "recurrent":
            raise ConfigurationError(
                "the text has source factors, which only a Transformer reads: set model to transformer, or prepare the "
                "text without them"
            )
        sizes["factors"] = corpus.factors
    if choices.requested("tie_embeddings") and not corpus.shared:
        raise ConfigurationError(
            "tie_embeddings needs one vocabulary, and the text was prepared with two: leave it out, or prepare "
            "the text with --shared-vocabulary"
        )
    return build(kind, sizes | _fields(choices, kind, asked, corpus, fixed), "the settings of the model")


def choose_decoder(choices: Choices, corpus: CorpusSize, machine: Machine) -> DecoderConfig:
    """Choose a language model for a text, by the rules for translators.

    Raises:
        ConfigurationError: the preset does not exist, or sizes do not fit.
    """
    fixed = decoder_preset(choices.take("preset", lambda: choose_preset("decoder", corpus, machine)))
    sizes = {"vocab": corpus.target_vocab, "padding_id": corpus.padding_id}
    fields = _fields(choices, DecoderConfig, "decoder", corpus, fixed)
    return build(DecoderConfig, sizes | fields, "the settings of the model")


def _fields(
    choices: Choices, kind: type[Settings], architecture: str, corpus: CorpusSize, fixed: dict[str, Any]
) -> dict[str, Any]:
    """The settings of a network that do not follow from the text."""
    rules = _rules(choices, architecture, corpus, fixed)
    defaults = {name: (field.default, "the usual value") for name, field in kind.model_fields.items()}
    defaults |= rules | {name: (value, _PRESETS) for name, value in fixed.items()}
    return {
        name: choices.take(name, lambda name=name: defaults[name])  # type: ignore[misc]
        for name in kind.model_fields
        if name not in FROM_TEXT
    }


def choose_given_model(choices: Choices, given: NetworkConfig) -> NetworkConfig:
    """Choose the network of a fine-tuning run: the given sizes, and the dropout rates that were requested.

    Raises:
        ConfigurationError: requested sizes differ from those of the given weights; the message names each.
    """
    named, architecture = choices.requested("preset"), choices.requested("model")
    origin = choices.requested("from_model")
    if architecture not in (None, given.architecture):
        raise ConfigurationError(f"{origin}: is a {given.architecture} model, but {architecture} was requested")
    _check_architecture(choices, given.architecture)
    requested = {name: choices.requested(name) for name in type(given).model_fields if name not in FROM_TEXT}
    if named is not None:
        fixed = preset(named, given.architecture)
        requested = fixed | {name: value for name, value in requested.items() if value is not None}
    own = {name: getattr(given, name) for name in type(given).model_fields}  # a dump leaves rare defaults out
    differing = [
        f"{name} is {own[name]}, but {value} was requested"
        for name, value in requested.items()
        if name not in given.training_only and value is not None and value != own[name]
    ]
    if differing:
        raise ConfigurationError(
            f"{origin}: this model cannot be trained with other sizes ({'; '.join(differing)}); "
            "leave them out, or train a new model without from_model"
        )
    choices.reasons["preset"] = _GIVEN
    free = {
        name: choices.take(name, lambda name=name: _kept(choices, given, name))  # type: ignore[misc]
        for name in given.training_only
    }
    choices.reasons |= {name: _GIVEN for name in requested if name not in given.training_only}
    return build(type(given), {**own, **free}, "the settings of the model")


def _kept(choices: Choices, given: NetworkConfig, name: str) -> tuple[Any, str]:
    """A setting of a given model that fine-tuning may change."""
    if name == "alignment_layer":
        return _alignment_layer(choices, given.decoder_layers, getattr(given, name))
    return getattr(given, name), _GIVEN


def _check_architecture(choices: Choices, architecture: Architecture) -> None:
    """Check that no setting of another network was given, since it would be ignored.

    Raises:
        ConfigurationError: one was given; the message names it and its network.
    """
    own = ARCHITECTURES[architecture].model_fields
    for name, other in ((name, kind) for kind, cls in ARCHITECTURES.items() for name in cls.model_fields.keys() - own):
        if name in type(choices.settings).model_fields and choices.requested(name) is not None:
            raise ConfigurationError(
                f"{name} is a setting of the {other} model, and this one is {architecture}: leave it out, or set "
                f"model to {other}"
            )


def choose_preset(architecture: str, corpus: CorpusSize, machine: Machine) -> tuple[str, str]:
    """The preset that suits the corpus and the machine, and the reason."""
    small_reason = f"{corpus.counted} are too few for a larger one"
    if corpus.pairs < 5_000:
        return "tiny", small_reason
    if corpus.pairs < 200_000:
        return "small", small_reason
    if machine.device == "cpu":
        return "small", "without a GPU a larger one takes days"
    return "bahdanau" if architecture == "recurrent" else "base", f"{corpus.counted} and a GPU"


def _rules(
    choices: Choices, architecture: str, corpus: CorpusSize, fixed: dict[str, Any]
) -> dict[str, tuple[Any, str]]:
    """Values, with their reasons, that depend on the corpus, on the preset or on other settings."""
    common: dict[str, tuple[Any, str]] = {
        "dropout": _most_dropout(architecture, corpus),
        "tie_embeddings": (corpus.shared, "one vocabulary" if corpus.shared else "two vocabularies"),
        "tie_output": (True, "fewer parameters to learn"),
    }
    if architecture == "recurrent":
        return common
    return common | {
        "positions": _positions(choices, corpus, fixed),
        "alignment_layer": _alignment_layer(choices, fixed.get("decoder_layers", 6)),
        "attention_dropout": (0.0, "the fused kernel has none"),
        "norm": ("pre", "stable at the high learning rate of a short run"),
    }


def _alignment_layer(choices: Choices, layers: int, given: int | None = None) -> tuple[int | None, str]:
    """The layer of the decoder whose first head learns alignments, in a decoder of so many layers."""
    if choices.requested("alignments") is None:
        return given, "there are no alignments" if given is None else _GIVEN
    if given is not None:
        return given, _GIVEN
    return max((choices.requested("decoder_layers") or layers) - 1, 1), "the last but one aligns best"


def _positions(choices: Choices, corpus: CorpusSize, fixed: dict[str, Any]) -> tuple[str, str]:
    """The kind of positions (docs/lab-notes.md, "Parts of the network")."""
    if choices.requested("max_positions"):
        return "learned", "max_positions"
    sizes = {name: choices.requested(name) or fixed.get(name) for name in ("width", "heads", "key_dim")}
    head = sizes["key_dim"] or (sizes["width"] or 2) // (sizes["heads"] or 1)
    if _FEWEST <= corpus.pairs < _FAST_PAIRS and choices.requested("sinusoid") is None and head % 2 == 0:
        return "rotary", "learn more from each pair; any length"
    return "sinusoidal", "any length"


def _most_dropout(architecture: str, corpus: CorpusSize) -> tuple[float, str]:
    """The dropout rate of a long training, higher for a small corpus."""
    if architecture != "recurrent" and corpus.pairs < 100_000:
        return 0.3, f"for {corpus.counted}, each of which is seen dozens of times"
    return (0.2 if corpus.pairs < 500_000 else 0.1), f"for {corpus.counted}"


def adapt_dropout(choices: Choices, model: Network, corpus: CorpusSize, training: TrainingConfig) -> Network:
    """A new network with less dropout if its training is short: what is seen few times is not memorized.

    The number of epochs is an estimate, which a run with a budget does not revise. Recurrent networks keep the rate.
    """
    if model.architecture == "recurrent" or choices.reasons["dropout"] in (AS_ASKED, _PRESETS):
        return model
    cells = training.updates * training.batch_tokens * training.accumulate
    epochs = _FILLED * cells / max(corpus.target_tokens, 1)
    for most, rate in _SHORT_DROPOUTS:
        if epochs < most and rate < model.dropout:
            choices.reasons["dropout"] = f"for {corpus.counted}, each of which is seen {epochs:.0f} times"
            return cast("Network", model.model_copy(update={"dropout": rate}))
    return model


def narrowings(choices: Choices, architecture: str, pairs: int, updates: int) -> int:
    """How often a new Transformer is narrowed (`models.shrinking.narrower`) because few updates fit into its time.

    Only if time limits the number of updates, the user chose no size, and no head learns alignments, for which the
    depth counts. It was tried with 29,000 pairs.
    """
    free = all(choices.requested(name) is None for name in ("preset", *SIZES, "updates", "alignments"))
    if architecture != "transformer" or not free or pairs not in range(_FEWEST, FEW_PAIRS):
        return 0
    return sum(updates < most for most in _SHORT)


@dataclass(frozen=True)
class Pace:
    """The speed of updates on this machine, measured by `runs.pace`."""

    seconds_per_update: float
    tokens_per_update: float
    """Target tokens, without padding."""
    spent: float = 0.0
    """Seconds of the run before its first update."""


def choose_batch(choices: Choices, corpus: CorpusSize, machine: Machine) -> tuple[int, int]:
    """Tokens per batch, and batches per update."""
    largest = 4096 if machine.device == "cpu" else 16384
    size = max(256, min(largest, 1 << max(corpus.target_tokens // 32, 1).bit_length() - 1))
    reason = "fills the caches of a processor" if size == 4096 else "fills a GPU"
    if size < largest:
        reason = "a small corpus still gives some thirty batches an epoch"
    tokens = choices.take("batch_tokens", lambda: (size, reason))
    return tokens, choices.take("accumulate", lambda: (1, "the batch is large enough"))


def usual_epochs(pairs: int) -> float:
    """Epochs that improve a model of so many pairs."""
    return min(max(60 * float((30_000 / pairs) ** 0.5), 4.0), 150.0)


def relative_length(pairs: int) -> float:
    """The usual length of trainings with so many pairs, in relation to 30,000: it grows with their square root."""
    return min(max(float((pairs / 30_000) ** 0.5), 0.1), 100.0)


def usual_time(pairs: int) -> float:
    """Seconds of a training whose length is not given: 25 minutes for 30,000 pairs."""
    return 25 * 60 * relative_length(pairs)


def choose_updates(choices: Choices, corpus: CorpusSize, pace: Callable[[], Pace]) -> int:
    """Updates of the run: as many epochs as improve a model of such a corpus, or as fit into the time.

    ``pace`` is called only if the user did not give the number of updates.
    """

    def chosen() -> tuple[int, str]:
        measured = pace()
        share = _FINE_TUNING if choices.requested("from_model") is not None else 1.0
        epochs = share * usual_epochs(corpus.pairs)
        wanted = max(int(epochs * corpus.target_tokens / measured.tokens_per_update), 200)
        requested = choices.requested("budget")
        budget = share * usual_time(corpus.pairs) if requested is None else requested
        left = budget if requested is None else budget - measured.spent
        possible = min(max(int(_UPDATING * left / measured.seconds_per_update), 1), MOST_UPDATES)
        time = f"{format_duration(budget)} at {measured.seconds_per_update:.2f} s an update"
        if requested is not None:
            spent = f" after {format_duration(measured.spent)} of preparation"
            return possible, f"what fits into {time}{spent}; decided anew while the run goes on"
        if possible < wanted:
            return possible, f"what fits into {time}, the time set aside for {corpus.counted}"
        return wanted, f"{epochs:.0f} epochs, enough for {corpus.counted}, in about " + format_duration(
            wanted * measured.seconds_per_update / _UPDATING
        )

    return choices.take("updates", chosen)


def choose_training(
    choices: Choices,
    corpus: CorpusSize,
    model: NetworkConfig | DecoderConfig,
    machine: Machine,
    pace: Callable[[TrainingConfig], Pace],
    usual: Mapping[str, tuple[Any, str]] = MappingProxyType({}),
) -> TrainingConfig:
    """Choose the settings of training.

    Args:
        choices: the user's settings; collects the reason of each choice.
        corpus: the text.
        model: the network.
        machine: where it is trained.
        pace: measures the speed of updates, if that is needed.
        usual: values of this kind of run, with their reasons, in place of those that all others have.
    """
    take, own = choices.take, TrainingConfig.model_fields
    precision = "bfloat16" if machine.fast_bfloat16 else "float32"
    hardware = "the hardware multiplies it fastest" if machine.fast_bfloat16 else "there is no fast bfloat16 here"
    device = take("device", lambda: (machine.device, "the fastest device here"))
    values: dict[str, Any] = {
        "device": device,
        "precision": take("precision", lambda: (precision, hardware)),
        "threads": take("threads", lambda: (machine.threads, "what PyTorch uses here")),
        "seed": take("seed", lambda: (1, "any seed works")),
        "bpe_dropout": take("bpe_dropout", lambda: (own["bpe_dropout"].default, "the usual value")),
        "compile": take("compile", lambda: (False, "there are own kernels, and it was not tried on a GPU")),
    }
    if values["compile"] and model.architecture != "transformer":
        raise ConfigurationError(f"--compile: only a Transformer is compiled, and this model is {model.architecture}")
    values["gradient_checkpointing"] = take("gradient_checkpointing", lambda: (False, "costs a quarter more time"))
    if values["gradient_checkpointing"] and model.architecture != "transformer":
        raise ConfigurationError(
            f"--gradient-checkpointing: only a Transformer has it, and this model is {model.architecture}; leave it out"
        )
    if values["gradient_checkpointing"] and values["compile"]:
        raise ConfigurationError(
            "--gradient-checkpointing and --compile exclude each other: what PyTorch compiles decides itself what it "
            "keeps; leave out one of them"
        )
    if choices.requested("teacher") is not None and getattr(model, "alignment", None) == "sample":
        raise ConfigurationError(
            "--teacher: an alignment that samples positions is rewarded for the words of the text alone; leave out the "
            "teacher, or choose another alignment"
        )
    if choices.requested("weights") is not None and getattr(model, "alignment", None) == "sample":
        raise ConfigurationError(
            "--weights: an alignment that samples positions is rewarded for the words of the text alone; leave out the "
            "weights, or choose another alignment"
        )
    if choices.requested("alignments") is not None and model.architecture != "transformer":
        raise ConfigurationError(
            f"--alignments: only a Transformer has heads that learn them, and this model is {model.architecture}; "
            "leave them out"
        )
    if choices.requested("alignments") is None and choices.requested("alignment_layer") is not None:
        raise ConfigurationError("alignment_layer is given without alignments: name a file, or ibm1, or leave it out")
    values["lora"] = take("lora", lambda: (0, "every weight is trained"))
    values["lora_alpha"] = take("lora_alpha", lambda: choose_alpha(values["lora"]))
    values["batch_tokens"], values["accumulate"] = choose_batch(choices, corpus, machine)
    tokens = values["batch_tokens"] * values["accumulate"]
    values["optimizer"] = take("optimizer", lambda: choose_optimizer(choices, model, tokens))
    trial = build(TrainingConfig, {**values, "updates": 1, "average": 0.99}, "the settings of training")
    updates = choose_updates(choices, corpus, lambda: pace(trial))
    fast = is_fast(choices, values, model, corpus)
    values["muon_scale"] = take("muon_scale", lambda: choose_muon_scale(values["optimizer"], fast=fast))
    schedule = take("schedule", lambda: ("linear", "ends at 0 when the run ends, the best for a known length"))
    warmup = take("warmup", lambda: choose_warmup(choices, updates))
    often = usual_intervals(updates)
    values |= {
        "updates": updates,
        "budget": take("budget", lambda: (None, "the number of updates stays")),
        "schedule": schedule,
        "warmup": warmup,
        "learning_rate": take("learning_rate", lambda: choose_rate(choices, schedule, model.width, warmup, fast=fast)),
        "average": take("average", lambda: usual_average(updates)),
        "validate_every": take("validate_every", lambda: often["validate_every"]),
        "patience": take("patience", lambda: choose_patience(schedule)),
        "log_every": take("log_every", lambda: often["log_every"]),
    }
    if values["budget"] is not None:
        values["replanned"] = tuple(n for n in ("validate_every", "average") if choices.requested(n) is None)
        if choices.requested("from_model") is None:  # the given model is compared with the result on all sentences
            values["replanned"] += ("sentences",)
    values["weight_decay"] = take(
        "weight_decay", lambda: choose_weight_decay(choices, corpus, values["optimizer"], fast=fast)
    )
    alike = ("smoothing", "clip", "skip_above", "skip_limit", "best_by", "keep_checkpoints", "tensorboard")
    values["comet"] = take("comet", lambda: choose_comet(choices))
    values["teacher_weight"] = take("teacher_weight", lambda: choose_teacher_weight(choices))
    values["alignment_weight"] = take("alignment_weight", lambda: choose_alignment_weight(choices))
    for name in alike:
        found = usual.get(name, (own[name].default, "the usual value"))
        values[name] = take(name, lambda found=found: found)  # type: ignore[misc]
    return build(TrainingConfig, values, "the settings of training")


def choose_comet(choices: Choices) -> tuple[str, str]:
    """The COMET model that scores validations."""
    if choices.requested("best_by") == "comet":
        return "Unbabel/wmt22-comet-da", "COMET's own default"
    return "", "it is not asked for"


def choose_alignment_weight(choices: Choices) -> tuple[float, str]:
    """The factor of the loss of a guided head."""
    if choices.requested("alignments") is None:
        return 0.0, "there are no alignments"
    return 0.05, "as in Garg et al. (2019): enough for the head, and little for the others"


def choose_teacher_weight(choices: Choices) -> tuple[float, str]:
    """The share of the teachers in the loss."""
    if choices.requested("teacher") is None:
        return 0.0, "there is no teacher"
    return 0.5, "half from the teachers, half from the text, which corrects them"


def choose_alpha(rank: int) -> tuple[float, str]:
    """The factor of low-rank adapters (`models.adapters`)."""
    return (2.0 * rank, "twice the rank") if rank else (0.0, "there are no adapters")


def choose_optimizer(choices: Choices, model: NetworkConfig | DecoderConfig, tokens: int) -> tuple[str, str]:
    """Adam or Muon, whose cost does not depend on the ``tokens`` of an update."""
    if model.architecture == "recurrent":
        return "adam", "Muon was tried with the Transformer alone"
    if choices.requested("from_model") is not None:
        return "adam", "what was learned is kept"
    if choices.requested("schedule") == "noam":
        return "adam", "the paper's"
    if tokens < next((least for width, least in _MUON if model.width <= width), _MUON_WIDE) * model.width:
        return "adam", f"Muon's own products would be too much for updates of {tokens:,} tokens at width {model.width}"
    return "muon", "learns more from each sentence than Adam"


def choose_weight_decay(choices: Choices, corpus: CorpusSize, optimizer: str, *, fast: bool) -> tuple[float, str]:
    """Weight decay, for short runs with few pairs (docs/lab-notes.md, "Weight decay, vocabularies, students").

    With the higher rate of `is_fast`, in all runs: it also keeps the weights from growing.
    """
    if fast:
        return 0.25, "keeps the weights from growing at a high learning rate"
    new = choices.requested("budget") is not None and choices.requested("from_model") is None
    if new and optimizer == "muon" and corpus.pairs < FEW_PAIRS:
        return 0.5, f"{corpus.counted} are few"
    return 0.0, "the usual value"


def choose_warmup(choices: Choices, updates: int) -> tuple[int, str]:
    """Updates over which the learning rate rises."""
    if choices.requested("from_model") is not None:
        return max(min(100, updates // 8), 1), "Adam has to estimate its moments; the weights are already trained"
    if choices.requested("schedule") == "noam":
        return max(min(4000, updates // 8), 1), "the paper's 4,000, or an eighth of the run"
    return max(min(400, updates // 8), 1), "an eighth of the run, 400 at most"


def is_fast(
    choices: Choices, values: Mapping[str, Any], model: NetworkConfig | DecoderConfig, corpus: CorpusSize
) -> bool:
    """Whether a new translator is trained by Muon at a rate that is not given, with no more pairs than were tried."""
    if choices.requested("from_model") is not None or choices.requested("learning_rate") is not None:
        return False
    muon = values["optimizer"] == "muon" and choices.requested("schedule") != "noam"
    return muon and model.architecture == "transformer" and corpus.pairs < _FAST_PAIRS


def choose_muon_scale(optimizer: str, *, fast: bool) -> tuple[float, str]:
    """The length of Muon's steps relative to the learning rate; ``fast``: as `is_fast` says."""
    if optimizer != "muon":
        return USUAL_SCALE, "Adam moves every weight"
    if fast:
        return _FAST_SCALE, "embeddings learn at twice the rate of matrices"
    return USUAL_SCALE, "as long as Adam's steps"


def choose_rate(choices: Choices, schedule: str, width: int, warmup: int, *, fast: bool = False) -> tuple[float, str]:
    """The peak learning rate; for noam, the factor that gives this peak. ``fast``: as `is_fast` says."""
    rate, reason = 0.64 / width, f"for width {width}"
    if fast:
        rate, reason = min(_FAST_RATE / width, _HIGHEST_RATE), f"for width {width} and Muon"
    if schedule == "constant":
        share, part = (4, "a quarter") if fast else (2, "half")
        rate, reason = rate / share, f"{reason}: {part} of what a rate may be that falls"
    if choices.requested("lora") is not None:
        reason = f"a new model's of width {width}: adapters are new, and the rest stays"
    elif choices.requested("from_model") is not None:
        rate, reason = rate / 10, f"a tenth of a new model's of width {width}: what was learned is kept"
    if schedule == "noam":
        return rate * (width * max(warmup, 1)) ** 0.5, f"lr_mul: its peak is {rate:.2g}, {reason}"
    return rate, reason


def choose_patience(schedule: str) -> tuple[int, str]:
    """Validations without improvement before training ends."""
    if schedule in ("linear", "cosine", "trapezoid"):
        return 0, "the schedule has its best models at its end"
    return 10, "so many validations without a gain are not noise"


def choose_generation(choices: Choices, given: Search | None = None) -> Search:
    """The search settings of the finished model; ``given`` are those of the model that is fine-tuned."""
    usual = given or Search()
    reason = "the usual value" if given is None else "the given model's"
    reasons = {"beam": "wider ones gain nothing", "alpha": "the mean log-probability of a token"} if not given else {}
    values = {
        name: choices.take(name, lambda name=name: (getattr(usual, name), reasons.get(name, reason)))  # type: ignore[misc]
        for name in ("beam", "alpha", "min_length", "max_length")
    }
    return build(Search, {**usual.model_dump(), **values}, "the settings of search")


def rehearse(settings: TrainSettings, pairs: int, machine: Machine, model: NetworkConfig | None = None) -> None:
    """Decide everything for an imagined corpus, to refuse faulty settings before any work.

    Args:
        settings: the user's.
        pairs: approximate number of training pairs.
        machine: where the run will be.
        model: the network, if it is already decided, as in fine-tuning.

    Raises:
        ConfigurationError: a preset does not exist, a value is out of range, or sizes do not fit.
    """
    choices = Choices(settings)
    corpus = CorpusSize(pairs, 20 * pairs, 8000, 8000, 0, shared=settings.shared_vocabulary is not False)
    model = model or choose_model(choices, corpus, machine)
    choose_training(choices, corpus, model, machine, lambda _: Pace(1.0, 1000.0))
    choose_generation(choices)
