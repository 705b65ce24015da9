"""Settings of a stack of layers, common to all models that have them.

Does not import torch. `models.layers` computes what is said here. Settings of whole models are in `models.config`,
`models.decoder.config` and `models.bert.config`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import Field, model_serializer, model_validator

from multihead.configuration import MOST_ENTRIES, MOST_INNER, MOST_LAYERS, MOST_TOKENS, MOST_WIDTH, Settings


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


Activation = Literal["relu", "gelu", "silu", "gelu_tanh", "reglu", "geglu", "swiglu", "geglu_tanh"]
"""See `StackConfig.feed_forward`."""

Positions = Literal["sinusoidal", "learned", "relative", "shaw", "rotary", "alibi", "none"]
"""See `StackConfig.positions`."""

Sinusoid = Literal["interleaved", "halves", "marian", "fairseq"]
"""See `StackConfig.sinusoid`."""

GATED: tuple[Activation, ...] = ("reglu", "geglu", "swiglu", "geglu_tanh")
"""Feed-forward networks with a third matrix, whose product is activated and multiplied with the others'."""


class StackConfig(Settings):
    """Settings that define the parameters and the computation of layers (Vaswani et al. 2017)."""

    training_only: ClassVar[tuple[str, ...]] = (
        "dropout",
        "embedding_dropout",
        "residual_dropout",
        "feed_forward_dropout",
        "attention_dropout",
    )
    """Fields that affect neither the weights nor the output of a trained model: fine-tuning may change them."""
    rare: ClassVar[frozenset[str]] = frozenset(
        (
            "feed_forward_bias",
            "relative_buckets",
            "relative_distance",
            "norm_kind",
            "query_key_norm",
            "block",
        )
    )
    """Fields that are written only if they differ from their defaults, so that older code reads all other models."""

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
    decoder_layers: int = Field(default=6, ge=1, le=MOST_LAYERS)
    """Number of decoder layers."""
    positions: Positions = "sinusoidal"
    """Position encoding: sinusoidal for any length; learned vectors, separate for source and target; or no vectors, but
    a learned bias of the scores of self-attention for each head and distance (Raffel et al. 2020, T5), queries and
    keys of self-attention that are rotated by angles t / 10000^{2i/d_k} (Su et al. 2021, RoFormer), or scores of
    self-attention that fall by a slope of each head per position between query and key (Press et al. 2022, ALiBi);
    or nothing: the decoder sees the order by its causal mask, the encoder does not (Kazemnejad et al. 2023, NoPE)."""
    sinusoid: Sinusoid = "interleaved"
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
    """Whether a norm follows the embeddings; of a translator, one for the source and one for the target."""
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
    """Whether a norm follows the last layer; default: with pre-norm only, which needs it."""
    norm_kind: Literal["layer", "rms"] = "layer"
    """Layer norm (Ba et al. 2016), or RMS norm, which has neither mean nor shift (Zhang & Sennrich 2019)."""
    query_key_norm: Literal["none", "layer", "rms"] = "none"
    """Norm of the queries and keys of every head before the score, with learned gains (Henry et al. 2020; Dehghani
    et al. 2023), in self-attention and in attention to the source (`attention.multihead.HeadNorm`)."""
    norm_eps: float = Field(default=1e-6, gt=0, le=1)
    """Epsilon added to the variance in layer norm, to the mean square in RMS norm."""
    tie_output: bool = True
    """Whether the output projection is the target embedding."""
    output_bias: bool = False
    """Whether the output projection has a bias."""
    initialization: Literal["normal", "xavier"] = "normal"
    """Initial values of the embeddings: N(0, 1/D), or Xavier uniform like all other matrices."""

    @model_validator(mode="after")
    def _layers_fit(self) -> StackConfig:
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
        return self

    @model_serializer(mode="wrap")
    def _without_rare_defaults(self, dump: Callable[[StackConfig], dict[str, Any]]) -> dict[str, Any]:
        """Without the ``rare`` fields that have their defaults."""
        return self.without_defaults(dump(self), self.rare)

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows the last layer."""
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
