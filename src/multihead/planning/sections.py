"""Every wish that a user may have, by section as ``--help`` shows them: a field is a flag and a key of a TOML file.

Everything may be left open; `planning.settings` joins the sections to the settings of a command, and says which
wishes exclude each other. What a value may be is checked by the settings that it ends in: `TransformerConfig`,
`TrainingConfig`, `Search`. No torch here: ``--help`` reads this file.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from multihead.configuration import Settings

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _seconds(value: object) -> object:
    """Reads "25m", "1h30m", "90s" or plain seconds."""
    if not isinstance(value, str) or re.fullmatch(r"\d+(?:\.\d+)?", value):
        return value
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", value)
    if not parts or "".join(number + unit for number, unit in parts) != value:
        raise ValueError("expected a duration such as 25m, 1h30m or 90s")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


Duration = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]


class CorpusSettings(Settings):
    """One of several corpora."""

    source: Path
    """Text in the source language, or a file of pairs."""
    target: Path | None = None
    """Its translation, line by line; left out for a file of pairs."""
    weight: float = Field(default=1.0, gt=0)
    """How often each of its pairs is seen in an epoch, on average."""


def _corpus(value: object) -> object:
    """Reads "FILE", "FILE FILE" and "FILE FILE weight=0.5", quoted as in a shell where names have spaces."""
    if not isinstance(value, str):
        return value
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise ValueError(f"cannot be read ({error}); expected FILE [FILE] [weight=NUMBER]") from None
    weights = [word.removeprefix("weight=") for word in words if word.startswith("weight=")]
    files = [word for word in words if not word.startswith("weight=")]
    if not 1 <= len(files) <= 2 or len(weights) > 1:
        raise ValueError("expected FILE [FILE] [weight=NUMBER], names with spaces in quotes")
    found = dict(zip(("source", "target"), files, strict=False))
    return found | {"weight": weights[0]} if weights else found


def _words(value: object) -> object:
    return value.split() if isinstance(value, str) else value


# --------------------------------------------------------------------------- fields that several commands share

Schedule = Literal["linear", "cosine", "trapezoid", "inverse_sqrt", "noam", "constant"]
_HELP = {
    "vocab_size": "Entries of the subword vocabulary.",
    "width": "Model width D.",
    "encoder_layers": "Layers of the encoder.",
    "heads": "Attention heads.",
    "inner": "Width of the feed-forward network's hidden layer.",
    "attention_dropout": "Dropout of attention weights.",
    "updates": "Updates in all.",
    "accumulate": "Batches to an update.",
    "schedule": "How the learning rate goes on after the warm-up.",
    "learning_rate": "The highest learning rate.",
    "warmup": "Updates of rising learning rate.",
    "smoothing": "Label smoothing.",
    "weight_decay": "Decoupled weight decay of matrices.",
    "average": "Decay of the moving average of the weights; 0 for none.",
    "validate_every": "Updates between validations.",
    "patience": "Validations without gain before training ends; 0 for never.",
    "threads": "Processor threads.",
    "device": "Where to train.",
    "log_every": "Updates between lines of the log.",
    "output": "The folder to write: new, empty, or one that was begun, which then goes on.",
}


def shared(name: str, default: str = "", **constraints: Any) -> Any:
    """A field that is left open by default and has the same meaning in several commands.

    Args:
        name: of the help text.
        default: what is chosen if the field is left open, for the help text.
        **constraints: of the value, as for `pydantic.Field`.
    """
    help_text = f"{_HELP[name]} [{default}]" if default else _HELP[name]
    return Field(default=None, description=help_text, **constraints)


class Output(Settings):
    """Where to write."""

    heading: ClassVar[str] = "Folders"

    output: Path | None = shared("output")


# --------------------------------------------------------------------------- sections


class Text(Settings):
    """What is learned from."""

    heading: ClassVar[str] = "Text"

    source: Path | None = None
    """Text in the source language, a sentence a line; or a file of pairs (.tsv, .jsonl, .tmx), without a target.
    Plain, gzip, xz or zstd."""
    target: Path | None = None
    """Its translation, line by line."""
    corpus: tuple[Annotated[CorpusSettings, BeforeValidator(_corpus)], ...] | None = None
    """Instead of source and target: "FILE [FILE] [weight=0.5]"; repeat it for more corpora (in TOML: [[corpus]]).
    Each pair is seen weight times an epoch on average."""
    valid_source: Path | None = None
    """Source sentences, or pairs, to validate on; without them a part of the training pairs is held out."""
    valid_target: Path | None = None
    """Their translations."""
    held_out: int | None = Field(default=None, ge=1)
    """Pairs to hold out for validation where there are no validation files."""
    source_language: str | None = None
    """Code of the source language (de); read from the file name's ending where it has one."""
    target_language: str | None = None
    """Code of the target language; decides how BLEU is tokenised."""
    min_tokens: int | None = Field(default=None, ge=1)
    """Training pairs with fewer subwords on a side are left out, and named."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Training pairs with more subwords on a side are left out, and named."""


class Subwords(Settings):
    """The vocabulary."""

    heading: ClassVar[str] = "Subwords"

    vocab_size: int | None = shared("vocab_size", ge=1)
    shared_vocabulary: bool | None = None
    """One vocabulary for both languages (the default), or one each."""
    min_frequency: int | None = Field(default=None, ge=1)
    """How often two neighbours must occur together to become one subword."""
    coverage: float | None = Field(default=None, gt=0, le=1)
    """Share of the text whose characters get entries of their own; the rare rest is spelt in bytes."""
    symbols: Annotated[tuple[str, str, str, str], BeforeValidator(_words)] | None = None
    """How padding, unknown, begin and end are written: "<blank> <unk> <s> </s>"."""


class Model(Settings):
    """The network: fields of `TransformerConfig`, some of which others have too."""

    heading: ClassVar[str] = "Model"

    model: Literal["transformer", "recurrent"] | None = None
    """Which network: a Transformer, or recurrent encoder and decoder with attention between them."""
    preset: str | None = None
    """Model size: tiny, small, base or big; or attention-is-all-you-need-pytorch, which fixes more than sizes. Of
    recurrent networks: tiny, small, bahdanau or luong."""
    width: int | None = shared("width")
    heads: int | None = shared("heads")
    kv_heads: int | None = None
    """Heads of keys and values, each shared by a group of the attention heads; as many as those by default."""
    key_dim: int | None = None
    """Width of a head's queries and keys; D / heads by default."""
    value_dim: int | None = None
    """Width of a head's values; D / heads by default."""
    attention_bias: bool | None = None
    """Biases in the projections of attention."""
    inner: int | None = shared("inner")
    feed_forward: Literal["relu", "gelu", "reglu", "geglu", "swiglu"] | None = None
    """Its activation; the last three are gated and have a third matrix."""
    encoder_layers: int | None = shared("encoder_layers")
    decoder_layers: int | None = None
    """Layers of the decoder."""
    positions: Literal["sinusoidal", "learned"] | None = None
    """How a place in the sentence is told: computed, for any length, or learned."""
    max_positions: int | None = None
    """Learned positions; what stands beyond shares the last one."""
    embedding_scale: Literal["embedding", "projection", "none"] | None = None
    """The embedding is multiplied by the root of D, or the output projection divided by it, or neither."""
    embedding_norm: bool | None = None
    """A layer norm behind the embeddings."""
    dropout: float | None = None
    """Dropout of embeddings, residual branches and feed-forward networks, where they have no own one."""
    embedding_dropout: float | None = None
    """Dropout of embeddings."""
    residual_dropout: float | None = None
    """Dropout of each sub-layer's output."""
    feed_forward_dropout: float | None = None
    """Dropout of the feed-forward network's hidden layer."""
    attention_dropout: float | None = shared("attention_dropout")
    norm: Literal["post", "pre"] | None = None
    """Layer norm after each residual sum (the paper) or before each sub-layer."""
    final_norm: bool | None = None
    """A last norm behind encoder and decoder; by default where norm is pre."""
    norm_eps: float | None = None
    """Added to the variance in layer norm."""
    tie_embeddings: bool | None = None
    """Source and target share one embedding."""
    tie_output: bool | None = None
    """The output projection is the target embedding."""
    initialization: Literal["normal", "xavier"] | None = None
    """First values of the embeddings."""


class RecurrentModel(Settings):
    """The recurrent network: fields that `RecurrentConfig` has and `TransformerConfig` has not."""

    heading: ClassVar[str] = "Recurrent model"

    cell: Literal["gru", "lstm"] | None = None
    """What carries the state from token to token."""
    attend: Literal["before", "after"] | None = None
    """Attention asks before the decoder's state moves on (Bahdanau et al. 2015) or after (Luong et al. 2015)."""
    input_feeding: bool | None = None
    """What was attended to enters the next state, where attention asks after (Luong et al. 2015, 3.3)."""
    score: Literal["additive", "dot", "scaled_dot", "bilinear", "low_rank"] | None = None
    """How well a source position answers the decoder."""
    alignment: Literal["softmax", "sample", "straight_through", "gumbel", "segmentation"] | None = None
    """How scores become weights: softly, by one position drawn (hard attention, trained with REINFORCE; or straight
    through, or with Gumbel noise), or by runs of positions."""
    baseline: Literal["none", "moving"] | None = None
    """What REINFORCE subtracts from the rewards."""
    entropy_weight: float | None = None
    """How much REINFORCE rewards not being sure yet."""
    encoder_attention: Literal["none", "softmax", "tree"] | None = None
    """Attention within the source: none, softmax, or the marginals of dependency trees."""


class Training(Settings):
    """How long, how fast, how regularised."""

    heading: ClassVar[str] = "Training"

    updates: int | None = shared("updates")
    budget: Duration | None = None
    """Time to train for (25m, 1h30m): the number of updates is set by a measurement at the start."""
    batch_tokens: int | None = None
    """Padded tokens a side in a batch."""
    accumulate: int | None = shared("accumulate")
    optimizer: Literal["adam", "muon"] | None = None
    """What moves the weights: Adam, or Muon, which learns more from each sentence."""
    schedule: Schedule | None = shared("schedule")
    learning_rate: float | None = None
    """The highest learning rate; lr_mul for noam."""
    warmup: int | None = shared("warmup")
    smoothing: float | None = shared("smoothing")
    bpe_dropout: float | None = None
    """How often a merge of subwords is passed over, so that each epoch sees other segmentations (0.1 for small
    corpora)."""
    clip: float | None = None
    """Largest gradient norm; 0 for no clipping."""
    skip_above: float | None = None
    """An update whose gradient norm is this many times the usual one is skipped, and the lines in it are named; 0 skips
    only what is no finite number."""
    skip_limit: int | None = None
    """Updates of the last 100 that may have been skipped before the run stops."""
    weight_decay: float | None = shared("weight_decay")
    average: float | None = shared("average")
    validate_every: int | None = shared("validate_every")
    patience: int | None = shared("patience")
    compile: bool | None = None
    """Let PyTorch compile the Transformer (torch.compile), for GPUs; a minute at the start."""


class Search(Settings):
    """How the finished model is searched."""

    heading: ClassVar[str] = "Search"

    beam: int | None = None
    """Hypotheses of the beam search that the finished model uses."""
    alpha: float | None = None
    """Length penalty of that search."""
    min_length: int | None = None
    """Tokens that a translation has at least."""
    max_length: int | None = None
    """Tokens that a translation has at most, however long its source is."""


class Place(Output):
    """Folders to write and to start from."""

    heading: ClassVar[str] = "Folders"

    from_model: Path | None = None
    """Fine-tuning: the model or run folder that training starts from, with its weights, sizes and subwords."""


class Machine(Settings):
    """What it runs on, and what it says."""

    heading: ClassVar[str] = "Run"

    precision: Literal["float32", "bfloat16"] | None = None
    """Type of the matrix products in training."""
    threads: int | None = None
    """Processor threads, of all processes of a machine together."""
    device: Literal["cpu", "cuda"] | None = shared("device")
    log_every: int | None = shared("log_every")
    keep_checkpoints: int | None = None
    """Checkpoints to keep; `multihead average` can make one model of them."""
    tensorboard: bool | None = None
    """Also write the log for TensorBoard, into the folder tensorboard of the run."""


class Chance(Settings):
    """Randomness."""

    heading: ClassVar[str] = "Run"

    seed: int | None = Field(default=None, ge=0)
    """Of every random number."""


HEADINGS = ("Folders", "Text", "Subwords", "Model", "Recurrent model", "Training", "Search", "Run")
"""In the order in which ``--help`` has them."""


def section_of(cls: type[Settings], name: str) -> str:
    """The heading under which a field stands: that of the class which declares it; "" if that has none."""
    headings = (
        str(vars(base)["heading"])
        for base in cls.__mro__
        if name in vars(base).get("__annotations__", {}) and "heading" in vars(base)
    )
    return next(headings, "")
