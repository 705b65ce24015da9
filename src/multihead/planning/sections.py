"""Sections of settings; each field is a flag and a TOML key.

Every field may be left open. `planning.settings` combines the sections into the settings of a command and checks which
fields exclude each other; values are checked by the settings they end in: `TransformerConfig`, `TrainingConfig`,
`Search`. No torch here: ``--help`` reads this file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from multihead.configuration import (
    LAST_SEED,
    MOST_BATCH,
    MOST_ENTRIES,
    MOST_FACTOR,
    MOST_TOKENS,
    MOST_UPDATES,
    Settings,
)
from multihead.errors import ConfigurationError
from multihead.models.stack_config import Activation, Positions
from multihead.planning.corpus_settings import CorpusSettings, parse_corpus
from multihead.platforms import Device
from multihead.training.config import Combination

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _parse_seconds(value: object) -> object:
    """Parse "25m", "1h30m", "90s" or plain seconds."""
    if not isinstance(value, str) or re.fullmatch(r"\d+(?:\.\d+)?", value):
        return value
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", value)
    if not parts or "".join(number + unit for number, unit in parts) != value:
        raise ValueError("expected a duration such as 25m, 1h30m or 90s")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


Duration = Annotated[float, BeforeValidator(_parse_seconds), Field(gt=0, le=MOST_UPDATES)]


def _split_words(value: object) -> object:
    return value.split() if isinstance(value, str) else value


def _as_symbols(symbols: tuple[str, ...]) -> tuple[str, ...]:
    """Check the texts, before anything is read."""
    from multihead.text.user_symbols import check_symbols

    try:
        check_symbols(symbols)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    return symbols


# --------------------------------------------------------------------------- fields that several commands share

Schedule = Literal["linear", "cosine", "trapezoid", "inverse_sqrt", "noam", "constant"]
_HELP = {
    "vocab_size": "Entries of the subword vocabulary.",
    "width": "Model width D.",
    "encoder_layers": "Layers of the encoder.",
    "heads": "Attention heads.",
    "inner": "Width of the feed-forward network's hidden layer.",
    "attention_dropout": "Dropout of attention weights.",
    "updates": "Number of updates.",
    "accumulate": "Batches per update.",
    "schedule": "Course of the learning rate after the warm-up.",
    "learning_rate": "The highest learning rate.",
    "warmup": "Updates over which the learning rate rises.",
    "smoothing": "Label smoothing.",
    "weight_decay": "Decoupled weight decay of matrices.",
    "average": "Decay of the moving average of the weights; 0 disables it.",
    "validate_every": "Updates between validations.",
    "patience": "Validations without improvement before training ends; 0 for never.",
    "threads": "Processor threads.",
    "device": "Where to train.",
    "log_every": "Updates between lines of the log.",
    "output": "The folder to write: new, empty, or of a stopped run, which is resumed.",
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
    """The training and validation text."""

    heading: ClassVar[str] = "Text"

    source: Path | None = None
    """Text in the source language, one sentence per line; or, without a target, a file of pairs (.tsv, .csv, .jsonl,
    .parquet, .tmx, .xlf, .po), a pattern or a folder. Plain, gzip, xz or zstd."""
    target: Path | None = None
    """Its translation, line by line."""
    corpus: tuple[Annotated[CorpusSettings, BeforeValidator(parse_corpus)], ...] | None = None
    """Instead of source and target: "FILE [FILE] [weight=0.5]"; repeat it for more corpora (in TOML: [[corpus]]).
    On average, each pair is seen weight times per epoch."""
    temperature: float | None = Field(default=None, ge=1, le=MOST_FACTOR)
    """Sample corpora of n pairs in proportion to n^(1/T): 1 keeps their sizes, 5 is usual for many languages."""
    temperature_over: Literal["corpora", "directions"] | None = None
    """What temperature applies to; by default directions of translation if there are several, else corpora."""
    valid_source: Path | None = None
    """Source sentences, or pairs, for validation; without them, some training pairs are held out."""
    valid_target: Path | None = None
    """Their translations."""
    valid: tuple[Annotated[CorpusSettings, BeforeValidator(parse_corpus)], ...] | None = None
    """Instead of valid-source and valid-target, in the form of corpus: validation pairs of several directions."""
    held_out: int | None = Field(default=None, ge=1, le=MOST_BATCH)
    """Pairs to hold out for validation if there are no validation files."""
    source_language: str | None = None
    """Code of the source language (de); by default the ending of the file name."""
    target_language: str | None = None
    """Code of the target language; decides how BLEU tokenizes."""
    terms: Path | None = None
    """Learn to use wanted translations: a file with a term per line, source words TAB base form of the translation."""
    min_tokens: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """Training pairs with fewer subwords on a side are left out, and named."""
    max_tokens: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """Training pairs with more subwords on a side are left out, and named."""


class Subwords(Settings):
    """The vocabulary."""

    heading: ClassVar[str] = "Subwords"

    vocab_size: int | None = shared("vocab_size", ge=1, le=MOST_ENTRIES)
    shared_vocabulary: bool | None = None
    """One vocabulary for both languages (the default for most texts), or one each (for 10,000 to 50,000 pairs)."""
    min_frequency: int | None = Field(default=None, ge=1, le=MOST_BATCH)
    """How often two neighboring subwords must occur together to be merged into one."""
    coverage: float | None = Field(default=None, gt=0, le=1)
    """Share of the text whose characters get entries of their own; rare characters are spelled in bytes."""
    symbols: Annotated[tuple[str, str, str, str], BeforeValidator(_split_words)] | None = None
    """Names of the symbols for padding, unknown, begin and end: "<blank> <unk> <s> </s>"."""
    user_symbols: Annotated[tuple[str, ...], BeforeValidator(_split_words), AfterValidator(_as_symbols)] | None = None
    """Texts that are always one subword, never cut or merged, with spaces between them: "<b> </b>"."""
    placeholders: tuple[str, ...] | None = None
    """What is copied exactly: numbers, urls, emails or markup, several with commas between them; or name=REGEX. May be
    repeated."""

    context: int | None = Field(default=None, ge=1, le=20)
    """Number of preceding sentences of the document that are read with each one; lines that are blank on both sides end
    a document.
    """

    right_to_left: bool | None = None
    """Write targets from right to left, the last subword first: for a model that judges what others write (--judge)."""

    source_factors: Literal["case"] | None = None
    """Segment sources in lower case, and add an embedding of its case to each subword."""

    @field_validator("placeholders", mode="before")
    @classmethod
    def _list(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("placeholders")
    @classmethod
    def _possible(cls, words: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Check the rules, before anything is read."""
        from multihead.text.placeholders import parse_rules

        try:
            parse_rules(words or ())
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        return words


class Model(Settings):
    """The network: fields of `TransformerConfig`, some of which other networks share."""

    heading: ClassVar[str] = "Model"

    model: Literal["transformer", "recurrent", "decoder"] | None = None
    """Which network: a Transformer; a recurrent encoder and decoder with attention; or a Transformer's decoder alone,
    a language model that is trained on the target."""
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
    feed_forward: Activation | None = None
    """Activation of the feed-forward network; the last four are gated and have a third matrix."""
    feed_forward_bias: bool | None = None
    """Biases in the feed-forward network."""
    encoder_layers: int | None = shared("encoder_layers")
    decoder_layers: int | None = None
    """Layers of the decoder."""
    encoder_window: int | None = None
    """Positions to either side that a position of the encoder attends to, for long inputs; all by default."""
    positions: Positions | None = None
    """Position encodings: computed, for any length; learned; learned biases of the attention for each distance; learned
    vectors of keys and values for each distance (shaw); rotated queries and keys; attention that falls linearly with
    the distance (alibi); or none."""
    sinusoid: Literal["interleaved", "halves", "marian", "fairseq"] | None = None
    """Layout of computed positions: the paper's, or that of another program."""
    max_positions: int | None = None
    """Number of learned positions; tokens beyond them share the last one."""
    relative_buckets: int | None = None
    """Number of ranges of distances, each with its relative bias."""
    relative_distance: int | None = None
    """From this distance on, all relative biases, or Shaw's vectors, are the same."""
    embedding_scale: Literal["embedding", "projection", "none"] | None = None
    """The embedding is multiplied by the root of D, or the output projection divided by it, or neither."""
    embedding_norm: bool | None = None
    """A layer norm after the embeddings."""
    dropout: float | None = None
    """Dropout of embeddings, residual branches and feed-forward networks, unless set separately."""
    embedding_dropout: float | None = None
    """Dropout of embeddings."""
    residual_dropout: float | None = None
    """Dropout of each sub-layer's output."""
    feed_forward_dropout: float | None = None
    """Dropout of the feed-forward network's hidden layer."""
    attention_dropout: float | None = shared("attention_dropout")
    norm: Literal["post", "pre"] | None = None
    """Layer norm after each residual sum (the paper) or before each sub-layer."""
    block: Literal["sequential", "parallel"] | None = None
    """The parts of a layer follow each other, or all read one normed input (parallel; with norm pre)."""
    final_norm: bool | None = None
    """A final norm after encoder and decoder; by default if norm is pre."""
    norm_kind: Literal["layer", "rms"] | None = None
    """Layer norm, or RMS norm, which has neither mean nor shift."""
    query_key_norm: Literal["none", "layer", "rms"] | None = None
    """Norm of the queries and keys of every head before the score."""
    norm_eps: float | None = None
    """Added to the variance in layer norm."""
    tie_embeddings: bool | None = None
    """Source and target share one embedding."""
    tie_output: bool | None = None
    """The output projection is the target embedding."""
    output_bias: bool | None = None
    """A bias of the output projection."""
    alignment_layer: int | None = None
    """With alignments: the decoder layer whose first head learns them; the last but one by default."""
    source_end: bool | None = None
    """The encoder reads the end symbol of a source."""
    initialization: Literal["normal", "xavier"] | None = None
    """Initialization of the embeddings."""


class RecurrentModel(Settings):
    """The recurrent network: fields of `RecurrentConfig` that `TransformerConfig` lacks."""

    heading: ClassVar[str] = "Recurrent model"

    cell: Literal["gru", "lstm"] | None = None
    """The recurrent cell."""
    attend: Literal["before", "after"] | None = None
    """Attention is computed before the update of the decoder's state (Bahdanau et al. 2015) or after it (Luong et al.
    2015)."""
    input_feeding: bool | None = None
    """The output of attention enters the next state, if attention is computed after (Luong et al. 2015, 3.3)."""
    score: Literal["additive", "dot", "scaled_dot", "bilinear", "low_rank"] | None = None
    """Scoring function of attention."""
    alignment: (
        Literal["softmax", "sample", "straight_through", "gumbel", "segmentation", "sparsemax", "entmax15", "sigmoid"]
        | None
    ) = None
    """How scores become weights: by softmax, by sampling one position (hard attention, trained with REINFORCE; or
    straight-through, or with Gumbel noise), by segmentation into runs of positions, by sparse distributions
    (sparsemax, entmax15), or by a sigmoid of each score."""
    baseline: Literal["none", "moving"] | None = None
    """What REINFORCE subtracts from the rewards."""
    entropy_weight: float | None = None
    """Weight of the entropy bonus of REINFORCE."""
    encoder_attention: Literal["none", "softmax", "tree"] | None = None
    """Attention within the source: none, softmax, or the marginals of dependency trees."""


class Training(Settings):
    """Length, speed and regularization."""

    heading: ClassVar[str] = "Training"

    updates: int | None = shared("updates")
    budget: Duration | None = None
    """Time of the whole run (25m, 1h30m), including validations; the number of updates follows during the run."""
    batch_tokens: int | None = None
    """Tokens per side in a batch, including padding."""
    accumulate: int | None = shared("accumulate")
    optimizer: Literal["adam", "muon"] | None = None
    """The optimizer: Adam, or Muon, which learns more from each sentence."""
    muon_scale: float | None = None
    """Size of Muon's steps; with 0.2 they are as large as Adam's."""
    schedule: Schedule | None = shared("schedule")
    learning_rate: float | None = None
    """The highest learning rate; lr_mul for noam."""
    warmup: int | None = shared("warmup")
    smoothing: float | None = shared("smoothing")
    teacher: tuple[Path, ...] | None = None
    """Word-level distillation: a model or run folder with the same subwords, whose predictions the new model learns at
    each position, besides the text; if repeated, the mean of several."""
    teacher_weight: float | None = None
    """Share of the teachers in the loss, from 0 to 1 (only the teachers count); 0.5 by default."""
    weights: Path | None = None
    """How often each pair counts in the loss: a file with one number per line of the text. Plain, gzip, xz or zstd."""
    alignments: Path | None = None
    """Guided alignment: a file with the word alignment of each pair on its line, such as 0-0 1-2, which an attention
    head learns; or ibm1, to align the words of the text by IBM Model 1 and keep the links that both directions
    find; or ibm1-grow, to grow these by grow-diag-final-and."""
    alignment_weight: float | None = None
    """Weight of the loss of that head, relative to the loss of the translation; 0.05 by default."""
    lora: int | None = Field(default=None, ge=1, le=MOST_ENTRIES)
    """Fine-tune only low-rank matrices of this rank (LoRA), usually 4 to 32, in attention and feed-forward networks;
    they are merged into the finished model."""
    lora_alpha: float | None = Field(default=None, gt=0, le=MOST_ENTRIES)
    """Scale of LoRA: the product of the matrices is multiplied by lora_alpha / lora; twice the rank by default."""
    bpe_dropout: float | None = None
    """Probability of skipping a merge of subwords, so that every epoch segments differently (0.1 for small corpora);
    with teachers, only of the source."""
    clip: float | None = None
    """Maximum gradient norm; 0 disables clipping."""
    skip_above: float | None = None
    """Skip an update whose gradient norm exceeds this many times the usual one and clip, and name its lines; 0 skips
    only norms that are not finite."""
    skip_limit: int | None = None
    """Maximum number of skipped updates among the last 100; above it the run stops."""
    weight_decay: float | None = shared("weight_decay")
    average: float | None = shared("average")
    validate_every: int | None = shared("validate_every")
    patience: int | None = shared("patience")
    best_by: Literal["bleu", "chrf", "loss", "comet"] | None = None
    """The validation score that decides which model is best, and when patience ends training."""
    comet: str | None = Field(default=None, min_length=1)
    """Also score validations with this COMET model: a checkpoint, or a name that COMET downloads; with best-by comet,
    Unbabel/wmt22-comet-da by default. Needs `pipx install unbabel-comet`."""
    compile: bool | None = None
    """Compile the Transformer with PyTorch (torch.compile), for GPUs; takes a minute at the start."""
    gradient_checkpointing: bool | None = None
    """Keep only the inputs of each layer for the backward pass, which recomputes the layer: less memory, a quarter more
    time, the same result."""

    @field_validator("teacher", mode="before")
    @classmethod
    def _one_or_more(cls, value: object) -> object:
        return (value,) if isinstance(value, (str, Path)) else value


class Search(Settings):
    """How the finished model is searched."""

    heading: ClassVar[str] = "Search"

    beam: int | None = None
    """Beam width of the finished model."""
    alpha: float | None = None
    """Length penalty of the finished model."""
    min_length: int | None = None
    """Minimum number of tokens of a translation."""
    max_length: int | None = None
    """Maximum number of tokens of a translation, however long its source is."""


class Place(Output):
    """Folders to write and to start from."""

    heading: ClassVar[str] = "Folders"

    from_model: Path | None = None
    """Fine-tuning: the model or run folder that training starts from, with its weights, sizes and subwords."""


class Machine(Settings):
    """Hardware, and what is reported."""

    heading: ClassVar[str] = "Run"

    precision: Literal["float32", "bfloat16"] | None = None
    """Type of the matrix products in training."""
    threads: int | None = None
    """Processor threads of all processes on a machine together."""
    device: Device | None = shared("device")
    log_every: int | None = shared("log_every")
    keep_checkpoints: int | None = None
    """Number of checkpoints to keep; `multihead average` can average those of a translator."""
    tensorboard: bool | None = None
    """Also write the log for TensorBoard, into the folder tensorboard of the run."""


class SeveralProcesses(Settings):
    """How processes train one model together."""

    heading: ClassVar[str] = "Run"

    parallel: Combination | None = None
    """How several processes combine gradients: sum (after the backward pass), replicated (during it) or sharded
    (each also keeps only a part of weights and optimizer state). May change when a run is resumed."""


class Chance(Settings):
    """Randomness."""

    heading: ClassVar[str] = "Run"

    seed: int | None = Field(default=None, ge=0, le=LAST_SEED)
    """Seed of all random numbers."""


HEADINGS = ("Folders", "Text", "Subwords", "Model", "Recurrent model", "Training", "Search", "Run")
"""The headings of ``--help``, in order."""


def section_of(cls: type[Settings], name: str) -> str:
    """The heading of a field: that of the class that declares it, or "" if that has none."""
    headings = (
        str(vars(base)["heading"])
        for base in cls.__mro__
        if name in vars(base).get("__annotations__", {}) and "heading" in vars(base)
    )
    return next(headings, "")
