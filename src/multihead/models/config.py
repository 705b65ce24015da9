"""Settings of the translation networks; named presets.

Does not import torch. `TransformerConfig` is for `models.transformer`, `RecurrentConfig` for `models.recurrent`.
`planning.choices` chooses values that suit a corpus.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_serializer, model_validator

from multihead.configuration import (
    MOST_ENTRIES,
    MOST_FACTOR,
    MOST_INNER,
    MOST_LAYERS,
    MOST_TOKENS,
    MOST_WIDTH,
    Settings,
    nearest,
)
from multihead.errors import ConfigurationError


def check_vocabularies(source: int, target: int, padding_id: int, tied: bool) -> None:
    """Check the vocabularies of a translation network.

    Raises:
        ValueError: tied embeddings with two sizes, or a padding id that is not in both vocabularies.
    """
    if tied and source != target:
        raise ValueError(f"tie_embeddings needs one vocabulary, got {source} source and {target} target entries")
    if padding_id >= min(source, target):
        raise ValueError(
            f"padding_id must be an entry of both vocabularies, got {padding_id} with {source} source and {target} "
            "target entries"
        )


def check_heads(width: int, heads: int, alternative: str = "") -> None:
    """Check that the heads divide the width.

    Raises:
        ValueError: they do not; the message names the next width that works, and the ``alternative``.
    """
    if width % heads:
        raise ValueError(
            f"width must be a multiple of heads, got width {width} and {heads} heads: take "
            f"{(width // heads + 1) * heads}{alternative}"
        )


def check_vocabulary(vocab: int, padding_id: int) -> None:
    """Check the vocabulary of a network that reads one text.

    Raises:
        ValueError: the padding id is not in the vocabulary.
    """
    if padding_id >= vocab:
        raise ValueError(f"padding_id must be an entry of the vocabulary, got {padding_id} of {vocab}")


Activation = Literal["relu", "gelu", "silu", "gelu_tanh", "reglu", "geglu", "swiglu", "geglu_tanh"]
"""See `TransformerConfig.feed_forward`."""

Positions = Literal["sinusoidal", "learned", "relative", "shaw", "rotary", "alibi", "none"]
"""See `TransformerConfig.positions`."""

GATED: tuple[Activation, ...] = ("reglu", "geglu", "swiglu", "geglu_tanh")
"""Feed-forward networks with a third matrix, whose product is activated and multiplied with the others'."""


class TransformerConfig(Settings):
    """Settings that define a Transformer's parameters and its computation (Vaswani et al. 2017)."""

    summary_fields: ClassVar[tuple[str, ...]] = ("width", "heads", "inner", "encoder_layers", "decoder_layers", "norm")
    """The fields in `summary`."""
    training_only: ClassVar[tuple[str, ...]] = (
        "dropout",
        "embedding_dropout",
        "residual_dropout",
        "feed_forward_dropout",
        "attention_dropout",
        "alignment_layer",
    )
    """Fields that affect neither the weights nor the output of a trained model: fine-tuning may change them."""
    rare: ClassVar[frozenset[str]] = frozenset(
        (
            "feed_forward_bias",
            "relative_buckets",
            "relative_distance",
            "norm_kind",
            "query_key_norm",
            "encoder_window",
            "block",
            "alignment_layer",
        )
    )
    """Fields that are written only if they differ from their defaults, so that older code reads all other models."""

    architecture: Literal["transformer"] = "transformer"
    """Kind of network."""
    source_vocab: int = Field(ge=1, le=MOST_ENTRIES)
    """Size of the source vocabulary."""
    target_vocab: int = Field(ge=1, le=MOST_ENTRIES)
    """Size of the target vocabulary."""
    padding_id: int = Field(default=0, ge=0, le=MOST_ENTRIES)
    """Id of padding; its embedding is zero and is not trained."""
    width: int = Field(default=512, ge=2, le=MOST_WIDTH)
    """D: size of every state."""
    heads: int = Field(default=8, ge=1, le=MOST_WIDTH)
    """H: number of attention heads."""
    kv_heads: int | None = Field(default=None, ge=1, le=MOST_WIDTH)
    """Heads of keys and values, each shared by H / kv_heads query heads (Ainslie et al. 2023); default H."""
    key_dim: int | None = Field(default=None, ge=1, le=MOST_WIDTH)
    """d_k: width of the queries and keys of a head; default D / H."""
    value_dim: int | None = Field(default=None, ge=1, le=MOST_WIDTH)
    """d_v: width of the values of a head; default D / H."""
    attention_bias: bool = True
    """Whether the projections to queries, keys and values and the output projection have biases."""
    inner: int = Field(default=2048, ge=1, le=MOST_INNER)
    """Hidden width of the position-wise feed-forward network, of each of its two or three matrices."""
    feed_forward: Activation = "relu"
    """Activation; the last four are gated (Shazeer 2020) with a third matrix, so 2/3 of ``inner`` costs the same.
    ``gelu_tanh`` and ``geglu_tanh`` approximate GELU by a hyperbolic tangent, as T5 1.1 does."""
    feed_forward_bias: bool = True
    """Whether the matrices of the feed-forward network have biases."""
    encoder_layers: int = Field(default=6, ge=1, le=MOST_LAYERS)
    """Number of encoder layers."""
    decoder_layers: int = Field(default=6, ge=1, le=MOST_LAYERS)
    """Number of decoder layers."""
    encoder_window: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """W: position t of the encoder attends to t - W ... t + W alone (Beltagy et al. 2020), so that attention costs
    2 W + 1 scores a position; default: to all."""
    positions: Positions = "sinusoidal"
    """Position encoding: sinusoidal for any length; learned vectors, separate for source and target; or no vectors, but
    a learned bias of the scores of self-attention for each head and distance (Raffel et al. 2020, T5), queries and
    keys of self-attention that are rotated by angles t / 10000^{2i/d_k} (Su et al. 2021, RoFormer), or scores of
    self-attention that fall by a slope of each head per position between query and key (Press et al. 2022, ALiBi);
    or nothing: the decoder sees the order by its causal mask, the encoder does not (Kazemnejad et al. 2023, NoPE)."""
    sinusoid: Literal["interleaved", "halves", "marian", "fairseq"] = "interleaved"
    """Channels and frequencies of sinusoidal positions (`models.layers.sinusoid`): the paper's, or other programs'."""
    max_positions: int = Field(default=512, ge=1, le=MOST_TOKENS)
    """Number of learned positions; later positions share the last vector. Other positions have no limit."""
    relative_buckets: int = Field(default=32, ge=4, le=1 << 16)
    """Number of relative biases of a head, each for a range of distances (`attention.biases.RelativeBias`)."""
    relative_distance: int | None = Field(default=None, ge=1, le=1 << 16)
    """Distance from which on all relative biases, or Shaw's vectors, are the same; default 128, of Shaw's 16."""
    embedding_scale: Literal["embedding", "projection", "none"] = "embedding"
    """Scale the embeddings by sqrt(D) (the paper), the input of the output projection by 1 / sqrt(D), or neither."""
    embedding_norm: bool = False
    """Whether a layer norm follows the embeddings, one for the source and one for the target."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of the embeddings, of each sub-layer's output and of the feed-forward network's hidden layer."""
    embedding_dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout of the sum of embedding and position; default ``dropout``."""
    residual_dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout of each sub-layer's output; default ``dropout``."""
    feed_forward_dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout of the hidden layer of the feed-forward network; default ``dropout``."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of the attention weights; above 0 the fused kernel cannot be used."""
    norm: Literal["post", "pre"] = "post"
    """Layer norm after the residual sum (the paper) or before each sub-layer."""
    block: Literal["sequential", "parallel"] = "sequential"
    """The parts of a layer follow each other (the paper), or all read one normed input and are added, which needs
    ``norm`` 'pre' (`models.parallel_blocks`)."""
    final_norm: bool | None = None
    """Whether a norm follows the encoder and the decoder; default: with pre-norm only, which needs it."""
    norm_kind: Literal["layer", "rms"] = "layer"
    """Layer norm (Ba et al. 2016), or RMS norm, which has neither mean nor shift (Zhang & Sennrich 2019)."""
    query_key_norm: Literal["none", "layer", "rms"] = "none"
    """Norm of the queries and keys of every head before the score, with learned gains (Henry et al. 2020; Dehghani
    et al. 2023), in self-attention and in attention to the source (`attention.multihead.HeadNorm`)."""
    norm_eps: float = Field(default=1e-6, gt=0, le=1)
    """Epsilon added to the variance in layer norm, to the mean square in RMS norm."""
    tie_embeddings: bool = True
    """Whether source and target share one embedding (needs a shared vocabulary)."""
    tie_output: bool = True
    """Whether the output projection is the target embedding."""
    output_bias: bool = False
    """Whether the output projection has a bias."""
    alignment_layer: int | None = Field(default=None, ge=1, le=MOST_LAYERS)
    """The layer of the decoder, counted from 1, whose first head of the attention to the source has learned word
    alignments (`kernels.guided`); default: none."""
    source_end: bool = True
    """Whether the encoder reads the end symbol of a source; without it, an empty source is its end symbol alone."""
    initialization: Literal["normal", "xavier"] = "normal"
    """Initial values of the embeddings: N(0, 1/D), or Xavier uniform like all other matrices."""

    @model_validator(mode="after")
    def _fits(self) -> TransformerConfig:
        if None in (self.key_dim, self.value_dim):
            check_heads(self.width, self.heads, ", or set key_dim and value_dim")
        if self.width % 2 and self.positions == "sinusoidal":
            raise ValueError(f"width must be even for sinusoidal positions, got {self.width}: take {self.width + 1}")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(
                f"heads must be a multiple of kv_heads, got {self.heads} heads and {self.kv_heads} kv_heads: "
                "each head of keys and values serves as many heads of queries"
            )
        if self.positions == "rotary" and self.key_width // self.heads % 2:
            raise ValueError(
                f"rotary positions rotate pairs of features, got {self.key_width // self.heads} in a head: "
                "set key_dim to an even number"
            )
        if self.positions != "shaw" and (self.relative_buckets % 2 or self.reach <= self.relative_buckets // 2):
            raise ValueError(
                "relative_buckets must be even and half of it below relative_distance, got "
                f"{self.relative_buckets} buckets and a distance of {self.reach}"
            )
        if self.block == "parallel" and self.norm != "pre":
            raise ValueError(f"block 'parallel' needs norm 'pre', got '{self.norm}': its parts read one normed input")
        if self.alignment_layer is not None and self.alignment_layer > self.decoder_layers:
            raise ValueError(
                f"alignment_layer must be a layer of the decoder, which has {self.decoder_layers}, got "
                f"{self.alignment_layer}"
            )
        check_vocabularies(self.source_vocab, self.target_vocab, self.padding_id, self.tie_embeddings)
        return self

    @model_serializer(mode="wrap")
    def _without_rare_defaults(self, dump: Callable[[TransformerConfig], dict[str, Any]]) -> dict[str, Any]:
        """Without the ``rare`` fields that have their defaults."""
        fields = type(self).model_fields
        return {
            name: value
            for name, value in dump(self).items()
            if name not in self.rare or getattr(self, name) != fields[name].default
        }

    @property
    def summary(self) -> str:
        """One line for people."""
        return (
            f"Transformer, {self.encoder_layers}+{self.decoder_layers} layers, width {self.width}, "
            f"inner {self.inner}, {self.heads} {'head' if self.heads == 1 else 'heads'}, {self.norm}-norm"
        )

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows the encoder and the decoder."""
        return self.norm == "pre" if self.final_norm is None else self.final_norm

    @property
    def key_width(self) -> int:
        """H d_k: total width of the queries."""
        return self.width if self.key_dim is None else self.heads * self.key_dim

    @property
    def value_width(self) -> int:
        """H d_v: total width of the values."""
        return self.width if self.value_dim is None else self.heads * self.value_dim

    @property
    def reach(self) -> int:
        """The distance from which on relative positions are the same."""
        usual = 16 if self.positions == "shaw" else 128
        return usual if self.relative_distance is None else self.relative_distance

    def dropout_of(self, place: Literal["embedding", "residual", "feed_forward"]) -> float:
        """The dropout of one place, which defaults to ``dropout``."""
        specific = {
            "embedding": self.embedding_dropout,
            "residual": self.residual_dropout,
            "feed_forward": self.feed_forward_dropout,
        }[place]
        return self.dropout if specific is None else specific


class RecurrentConfig(Settings):
    """Settings that define the parameters and the computation of a recurrent encoder-decoder with attention.

    Bahdanau et al. (2015) is ``attend`` 'before' with the 'additive' score, Luong et al. (2015) 'after' with 'dot' or
    'bilinear'; every score goes with every alignment.
    """

    summary_fields: ClassVar[tuple[str, ...]] = (
        "cell",
        "width",
        "encoder_layers",
        "decoder_layers",
        "attend",
        "score",
        "alignment",
    )
    """The fields in `summary`."""
    training_only: ClassVar[tuple[str, ...]] = ("dropout", "baseline", "entropy_weight")
    """Fields that affect neither the weights nor the output of a trained model: fine-tuning may change them."""

    architecture: Literal["recurrent"] = "recurrent"
    """Kind of network."""
    source_vocab: int = Field(ge=1, le=MOST_ENTRIES)
    """Size of the source vocabulary."""
    target_vocab: int = Field(ge=1, le=MOST_ENTRIES)
    """Size of the target vocabulary."""
    padding_id: int = Field(default=0, ge=0, le=MOST_ENTRIES)
    """Id of padding; its embedding is zero and is not trained."""
    width: int = Field(default=512, ge=2, le=MOST_WIDTH)
    """D: size of embeddings, of encoder outputs and of decoder states; each direction of the encoder has D / 2."""
    cell: Literal["gru", "lstm"] = "gru"
    """The recurrent unit: GRU (Cho et al. 2014) or LSTM (Hochreiter & Schmidhuber 1997)."""
    encoder_layers: int = Field(default=1, ge=0, le=MOST_LAYERS)
    """Number of bidirectional encoder layers; with 0 the decoder attends to embeddings plus positions."""
    decoder_layers: int = Field(default=1, ge=1, le=MOST_LAYERS)
    """Number of recurrent decoder layers."""
    attend: Literal["before", "after"] = "before"
    """Attend before the recurrent step, so that the context enters the cell (Bahdanau), or after it, so that the
    context is joined to the new state (Luong)."""
    input_feeding: bool = False
    """Whether the last joined state enters the cell with the next token (Luong, 3.3); only with ``attend`` 'after'."""
    score: Literal["additive", "dot", "scaled_dot", "bilinear", "low_rank"] = "additive"
    """Score between a decoder state and an encoder state; 'low_rank' is bilinear with rank D / 4."""
    alignment: Literal[
        "softmax", "sample", "straight_through", "gumbel", "segmentation", "sparsemax", "entmax15", "sigmoid"
    ] = "softmax"
    """How scores become weights: softmax; sampling of one position, trained with REINFORCE ('sample'), the
    straight-through estimator or Gumbel noise; marginals of a linear chain ('segmentation', Kim et al. 2017);
    distributions with exact zeros ('sparsemax', 'entmax15'); or a sigmoid of each score."""
    baseline: Literal["none", "moving"] = "moving"
    """With 'sample': baseline of the rewards, none or their moving average (Xu et al. 2015, 4.1)."""
    entropy_weight: float = Field(default=0.1, ge=0, le=MOST_FACTOR)
    """With 'sample': weight of the entropy bonus in the loss of a token."""
    encoder_attention: Literal["none", "softmax", "tree"] = "none"
    """Self-attention over the encoder's states, joined to each: none, softmax, or marginals of dependency trees
    (Kim et al. 2017, 4.4)."""
    dropout: float = Field(default=0.2, ge=0, lt=1)
    """Dropout of the embeddings, between layers and before the output projection; none in the recurrence itself."""
    tie_embeddings: bool = True
    """Whether source and target share one embedding (needs a shared vocabulary)."""
    tie_output: bool = True
    """Whether the output projection is the target embedding."""

    @model_validator(mode="after")
    def _fits(self) -> RecurrentConfig:
        if self.width % 2:
            raise ValueError(
                f"width must be even, half a direction of the encoder, got {self.width}: take {self.width + 1}"
            )
        if self.input_feeding and self.attend == "before":
            raise ValueError(
                "input_feeding needs attend 'after', got 'before': there the context enters the cell already"
            )
        check_vocabularies(self.source_vocab, self.target_vocab, self.padding_id, self.tie_embeddings)
        return self

    @property
    def summary(self) -> str:
        """One line for people."""
        return (
            f"Recurrent network ({self.cell.upper()}), {self.encoder_layers}+{self.decoder_layers} layers, "
            f"width {self.width}, attends {self.attend} the step, {self.score} score, {self.alignment} alignment"
        )

    @property
    def feeds_context(self) -> bool:
        """Whether earlier attention affects later states, through the context or through input feeding."""
        return self.attend == "before" or self.input_feeding


NetworkConfig = TransformerConfig | RecurrentConfig
"""Settings of a translation network."""

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 4, "inner": 256, "encoder_layers": 4, "decoder_layers": 4},
    "small": {"width": 256, "heads": 4, "inner": 512, "encoder_layers": 3, "decoder_layers": 3},
    "base": {"width": 512, "heads": 8, "inner": 2048, "encoder_layers": 6, "decoder_layers": 6},
    "big": {"width": 1024, "heads": 16, "inner": 4096, "encoder_layers": 6, "decoder_layers": 6},
    "attention-is-all-you-need-pytorch": {
        "width": 512,
        "heads": 8,
        "key_dim": 64,
        "value_dim": 64,
        "attention_bias": False,
        "inner": 2048,
        "encoder_layers": 6,
        "decoder_layers": 6,
        "positions": "sinusoidal",
        "embedding_scale": "projection",
        "embedding_norm": True,
        "dropout": 0.1,
        "feed_forward_dropout": 0.0,
        "attention_dropout": 0.1,
        "norm": "post",
        "norm_eps": 1e-6,
        "initialization": "xavier",
    },
}
"""Presets of the Transformer. ``base`` and ``big`` are the paper's (table 3); ``tiny`` is Wu et al. (2021), ACL, for
Multi30k.

``attention-is-all-you-need-pytorch`` is the network of jadore801120's repository of that name with its defaults;
it sets more than sizes. If its projection is not tied to the target embedding, that repository scales neither: for
the same network with ``tie_output`` False set ``embedding_scale`` to 'none'.
"""

_LUONG: dict[str, Any] = {"cell": "lstm", "attend": "after", "input_feeding": True, "score": "bilinear"}

RECURRENT_PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128},
    "small": {"width": 256},
    "bahdanau": {"width": 1000, "cell": "gru", "attend": "before", "score": "additive"},
    "luong": {"width": 1000, "encoder_layers": 4, "decoder_layers": 4, **_LUONG},
}
"""Presets of the recurrent network. ``bahdanau`` is RNNsearch (Bahdanau et al. 2015, appendix A.2 and B.1), except that
the paper's embeddings have width 620 and its encoder has 1,000 units per direction instead of 500. ``luong`` has the
four layers of Luong et al. (2015), 4.1, with "general" scores, input feeding and global attention, but a bidirectional
encoder. ``tiny`` and ``small`` are Bahdanau's network in sizes for a small corpus."""

Architecture = Literal["transformer", "recurrent"]

ARCHITECTURES: dict[Architecture, type[TransformerConfig] | type[RecurrentConfig]] = {
    "transformer": TransformerConfig,
    "recurrent": RecurrentConfig,
}
"""Settings class of each network, by its name in ``--model`` and in the field ``architecture``."""

PRESETS_OF: dict[Architecture, dict[str, dict[str, Any]]] = {
    "transformer": PRESETS,
    "recurrent": RECURRENT_PRESETS,
}
"""Presets of each network."""


def preset(name: str, architecture: Architecture = "transformer") -> dict[str, Any]:
    """The fields that a preset sets: sizes, and in some presets more.

    Raises:
        ConfigurationError: the network has no such preset.
    """
    known = PRESETS_OF[architecture]
    if name not in known:
        raise ConfigurationError(f"the {architecture} model has no preset '{name}'{nearest(name, list(known))}")
    return dict(known[name])


def _default_architecture(value: object) -> object:
    """Settings without an architecture are of version 1, which had Transformers only."""
    if isinstance(value, dict) and "architecture" not in value:
        return {"architecture": "transformer", **value}
    return value


AnyNetworkConfig = Annotated[
    Annotated[NetworkConfig, Field(discriminator="architecture")], BeforeValidator(_default_architecture)
]
"""`NetworkConfig` as a field of other settings; ``architecture`` selects the class."""
