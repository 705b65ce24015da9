"""The shape of a Transformer as settings, the presets of the literature, and how a model is searched; no torch here.

What a field does stands under it; which of them suit a corpus is decided in `planning.choices`.

The shape of a recurrent translator as settings, and the presets of the literature; no torch here.

What a field does stands under it; the network is `models.recurrent.network`.

Which networks there are, by their settings: what a model folder, a run and a command tell apart. No torch here.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from multihead.configuration import Settings, nearest
from multihead.errors import ConfigurationError


class TransformerConfig(Settings):
    """Everything that fixes the parameters of a Transformer and what they compute (Vaswani et al. 2017)."""

    in_summary: ClassVar[tuple[str, ...]] = ("width", "heads", "inner", "encoder_layers", "decoder_layers", "norm")
    """The fields that `summary` tells."""
    free: ClassVar[tuple[str, ...]] = (
        "dropout",
        "embedding_dropout",
        "residual_dropout",
        "feed_forward_dropout",
        "attention_dropout",
    )
    """The fields that change neither weights nor what a finished model computes: fine-tuning may set them anew."""

    architecture: Literal["transformer"] = "transformer"
    """Which network this is."""
    source_vocab: int = Field(ge=1)
    """Entries of the source vocabulary."""
    target_vocab: int = Field(ge=1)
    """Entries of the target vocabulary."""
    padding_id: int = Field(default=0, ge=0)
    """The id that fills short rows; its embedding is zero and stays zero."""
    width: int = Field(default=512, ge=2)
    """D: the size of every state."""
    heads: int = Field(default=8, ge=1)
    """H: attention heads."""
    kv_heads: int | None = Field(default=None, ge=1)
    """Heads of keys and values, each shared by H / kv_heads heads of queries (Ainslie et al. 2023); H by default."""
    key_dim: int | None = Field(default=None, ge=1)
    """d_k: how wide a head's queries and keys are; D / H by default."""
    value_dim: int | None = Field(default=None, ge=1)
    """d_v: how wide a head's values are; D / H by default."""
    attention_bias: bool = True
    """The projections to queries, keys and values and the one behind the heads have biases."""
    inner: int = Field(default=2048, ge=1)
    """Width of the hidden layer of the position-wise feed-forward network, in each of its two or three matrices."""
    feed_forward: Literal["relu", "gelu", "reglu", "geglu", "swiglu"] = "relu"
    """Its activation; the last three are gated (Shazeer 2020): a third matrix, so 2/3 of ``inner`` costs the same."""
    encoder_layers: int = Field(default=6, ge=1)
    """Layers of the encoder."""
    decoder_layers: int = Field(default=6, ge=1)
    """Layers of the decoder."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """The encoding of positions: computed, for any length, or one trained vector each, source and target apart."""
    max_positions: int = Field(default=512, ge=1)
    """Learned positions; those beyond share the last one's vector. Sinusoidal ones have no limit."""
    embedding_scale: Literal["embedding", "projection", "none"] = "embedding"
    """sqrt(D) times the embeddings (the paper), 1 / sqrt(D) times what the output projection is given, or neither."""
    embedding_norm: bool = False
    """A layer norm behind the embeddings of the source and one behind those of the target."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropped from the embeddings, from each sub-layer's output and inside the feed-forward network."""
    embedding_dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropped from the sum of embedding and position; ``dropout`` by default."""
    residual_dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropped from each sub-layer's output; ``dropout`` by default."""
    feed_forward_dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropped from the hidden layer of the feed-forward network; ``dropout`` by default."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropped from the attention weights; above 0 it costs the fused kernel."""
    norm: Literal["post", "pre"] = "post"
    """Where layer norm stands: after the residual sum (the paper) or before each sub-layer."""
    final_norm: bool | None = None
    """A last norm after encoder and decoder; by default where the norm is 'pre', which needs it."""
    norm_eps: float = Field(default=1e-6, gt=0)
    """Added to the variance in layer norm."""
    tie_embeddings: bool = True
    """Source and target share one embedding (needs one vocabulary)."""
    tie_output: bool = True
    """The output projection is the target embedding."""
    initialization: Literal["normal", "xavier"] = "normal"
    """First values of the embeddings: N(0, 1/D), or Xavier uniform like every other matrix."""

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
        check_vocabularies(self.source_vocab, self.target_vocab, self.padding_id, self.tie_embeddings)
        return self

    @property
    def summary(self) -> str:
        """What it is, in a line for people."""
        return (
            f"Transformer, {self.encoder_layers}+{self.decoder_layers} layers, width {self.width}, "
            f"inner {self.inner}, {self.heads} {'head' if self.heads == 1 else 'heads'}, {self.norm}-norm"
        )

    @property
    def has_final_norm(self) -> bool:
        """Whether encoder and decoder end in a norm."""
        return self.norm == "pre" if self.final_norm is None else self.final_norm

    @property
    def key_width(self) -> int:
        """H d_k: what the queries of all heads have together."""
        return self.width if self.key_dim is None else self.heads * self.key_dim

    @property
    def value_width(self) -> int:
        """H d_v: what the outputs of all heads have together."""
        return self.width if self.value_dim is None else self.heads * self.value_dim

    def dropout_of(self, place: Literal["embedding", "residual", "feed_forward"]) -> float:
        """The dropout of one place: its own, or ``dropout``."""
        own = {
            "embedding": self.embedding_dropout,
            "residual": self.residual_dropout,
            "feed_forward": self.feed_forward_dropout,
        }[place]
        return self.dropout if own is None else own


def check_vocabularies(source: int, target: int, padding_id: int, tied: bool) -> None:
    """What the vocabularies of a translator's network have to be, whichever network it is.

    Raises:
        ValueError: two sizes for one tied embedding, or a padding id that is not in both.
    """
    if tied and source != target:
        raise ValueError(f"tie_embeddings needs one vocabulary, got {source} source and {target} target entries")
    if padding_id >= min(source, target):
        raise ValueError(
            f"padding_id must be an entry of both vocabularies, got {padding_id} with {source} source and {target} "
            "target entries"
        )


def check_heads(width: int, heads: int, or_else: str = "") -> None:
    """What width and heads of a network with heads have to be.

    Raises:
        ValueError: the width cannot be shared among the heads; says which would do, ``or_else``.
    """
    if width % heads:
        raise ValueError(
            f"width must be a multiple of heads, got width {width} and {heads} heads: take "
            f"{(width // heads + 1) * heads}{or_else}"
        )


def check_vocabulary(vocab: int, padding_id: int) -> None:
    """What the vocabulary of a network that reads one text has to be.

    Raises:
        ValueError: the padding id is not in it.
    """
    if padding_id >= vocab:
        raise ValueError(f"padding_id must be an entry of the vocabulary, got {padding_id} of {vocab}")


class GenerationConfig(Settings):
    """How a model is searched."""

    beam: int = Field(default=5, ge=1)
    """Hypotheses a sentence; 1 is greedy search."""
    alpha: float = Field(default=1.0, ge=0)
    """Length penalty: a hypothesis y is ranked by log p(y | x) / |y|^alpha."""
    length_factor: float = Field(default=3.0, gt=0)
    """A translation has at most ``length_factor * source tokens + length_margin`` tokens."""
    length_margin: int = Field(default=20, ge=1)
    """See ``length_factor``."""
    min_length: int = Field(default=0, ge=0)
    """A translation ends after so many tokens at the earliest."""
    max_length: int | None = Field(default=None, ge=1)
    """A translation has at most so many tokens, end symbol included, however long the source is."""

    @model_validator(mode="after")
    def _fits(self) -> GenerationConfig:
        if self.max_length is not None and self.max_length <= self.min_length:
            raise ValueError(
                f"max_length counts the end symbol too, so it must be above min_length, got max_length "
                f"{self.max_length} and min_length {self.min_length}"
            )
        return self

    def limit(self, source_tokens: int) -> int:
        """The most tokens, end symbol included, that a translation of so many may have.

        It is min(length_factor * source_tokens + length_margin, max_length), but never too few for ``min_length``.
        """
        limit = int(self.length_factor * source_tokens) + self.length_margin
        limit = limit if self.max_length is None else min(limit, self.max_length)
        return max(limit, self.min_length + 1)


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
"""Named shapes. ``base`` and ``big`` are the paper's (table 3); ``tiny`` is Wu et al. (2021), ACL, for Multi30k.

``attention-is-all-you-need-pytorch`` is the network of jadore801120's repository of that name with its defaults, and
fixes more than sizes. Where its projection is not tied to the target embedding that repository scales neither: with
``tie_output`` False set ``embedding_scale`` to 'none' to be like it.
"""


class RecurrentConfig(Settings):
    """Everything that fixes the parameters of a recurrent encoder-decoder with attention and what they compute.

    Bahdanau et al. (2015) is ``attend`` 'before' with the 'additive' score, Luong et al. (2015) 'after' with 'dot' or
    'bilinear'; every score goes with every alignment.
    """

    in_summary: ClassVar[tuple[str, ...]] = (
        "cell",
        "width",
        "encoder_layers",
        "decoder_layers",
        "attend",
        "score",
        "alignment",
    )
    """The fields that `summary` tells."""
    free: ClassVar[tuple[str, ...]] = ("dropout", "baseline", "entropy_weight")
    """The fields that change neither weights nor what a finished model computes: fine-tuning may set them anew."""

    architecture: Literal["recurrent"] = "recurrent"
    """Which network this is."""
    source_vocab: int = Field(ge=1)
    """Entries of the source vocabulary."""
    target_vocab: int = Field(ge=1)
    """Entries of the target vocabulary."""
    padding_id: int = Field(default=0, ge=0)
    """The id that fills short rows; its embedding is zero and stays zero."""
    width: int = Field(default=512, ge=2)
    """D: the size of embeddings, of what is attended to and of the decoder's states; half of it a direction in the
    encoder."""
    cell: Literal["gru", "lstm"] = "gru"
    """The recurrent unit: GRU (Cho et al. 2014) or LSTM (Hochreiter & Schmidhuber 1997)."""
    encoder_layers: int = Field(default=1, ge=0)
    """Bidirectional layers of the encoder; with 0 the embeddings themselves are attended to, their positions added."""
    decoder_layers: int = Field(default=1, ge=1)
    """Recurrent layers of the decoder."""
    attend: Literal["before", "after"] = "before"
    """Who asks: the state before the token is read, and the answer enters the new one (Bahdanau); or the new state,
    whose answer is joined to it (Luong)."""
    input_feeding: bool = False
    """The last joined state enters the cell with the next token (Luong, section 3.3); with ``attend`` 'after' only."""
    score: Literal["additive", "dot", "scaled_dot", "bilinear", "low_rank"] = "additive"
    """How a state of the decoder and one of the encoder are compared; 'low_rank' is bilinear with a rank of D / 4."""
    alignment: Literal["softmax", "sample", "straight_through", "gumbel", "segmentation"] = "softmax"
    """How scores become weights: softly; by a draw, trained with REINFORCE ('sample'), the straight-through estimator
    or Gumbel noise; or as marginals of a chain, which chooses runs ('segmentation', Kim et al. 2017)."""
    baseline: Literal["none", "moving"] = "moving"
    """With 'sample': what rewards are compared with, nothing or their moving average (Xu et al. 2015, 4.1)."""
    entropy_weight: float = Field(default=0.1, ge=0)
    """With 'sample': how much the entropy of the choices is worth, in nats of the loss a token."""
    encoder_attention: Literal["none", "softmax", "tree"] = "none"
    """A self-attention over the encoder's states, joined to each: none, soft, or the marginals of dependency trees
    (Kim et al. 2017, 4.4)."""
    dropout: float = Field(default=0.2, ge=0, lt=1)
    """Dropped from the embeddings, between layers and before the output projection; never from a state's own past."""
    tie_embeddings: bool = True
    """Source and target share one embedding (needs one vocabulary)."""
    tie_output: bool = True
    """The output projection is the target embedding."""

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
        """What it is, in a line for people."""
        return (
            f"Recurrent network ({self.cell.upper()}), {self.encoder_layers}+{self.decoder_layers} layers, "
            f"width {self.width}, attends {self.attend} the step, {self.score} score, {self.alignment} alignment"
        )

    @property
    def remembers_choices(self) -> bool:
        """Whether what was attended to changes later states: through the context, or through input feeding."""
        return self.attend == "before" or self.input_feeding


_LUONG: dict[str, Any] = {"cell": "lstm", "attend": "after", "input_feeding": True, "score": "bilinear"}

RECURRENT_PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128},
    "small": {"width": 256},
    "bahdanau": {"width": 1000, "cell": "gru", "attend": "before", "score": "additive"},
    "luong": {"width": 1000, "encoder_layers": 4, "decoder_layers": 4, **_LUONG},
}
"""Named shapes. ``bahdanau`` is RNNsearch (Bahdanau et al. 2015, appendix A.2 and B.1) but for its embeddings of 620
and its encoder, which has 1,000 units a direction there and 500 here; ``luong`` are the four layers of Luong et al.
(2015), 4.1, with "general" scores, input feeding and global attention, the encoder reading both ways. ``tiny`` and
``small`` are Bahdanau's network in the sizes of a small corpus."""


NetworkConfig = TransformerConfig | RecurrentConfig
"""The settings of a translator's network."""

Architecture = Literal["transformer", "recurrent"]

ARCHITECTURES: dict[Architecture, type[TransformerConfig] | type[RecurrentConfig]] = {
    "transformer": TransformerConfig,
    "recurrent": RecurrentConfig,
}
"""Their names, as ``--model`` and the field ``architecture`` have them."""

PRESETS_OF: dict[Architecture, dict[str, dict[str, Any]]] = {
    "transformer": PRESETS,
    "recurrent": RECURRENT_PRESETS,
}
"""The named shapes of each."""


def preset(name: str, architecture: Architecture = "transformer") -> dict[str, Any]:
    """The fields that a preset fixes: sizes, and in some cases more.

    Raises:
        ConfigurationError: this network has no such preset.
    """
    known = PRESETS_OF[architecture]
    if name not in known:
        raise ConfigurationError(f"the {architecture} model has no preset '{name}'{nearest(name, list(known))}")
    return dict(known[name])


def _name_the_first(value: object) -> object:
    """Before there was a second network, settings need not say which one they are of."""
    if isinstance(value, dict) and "architecture" not in value:
        return {"architecture": "transformer", **value}
    return value


AnyNetworkConfig = Annotated[
    Annotated[NetworkConfig, Field(discriminator="architecture")], BeforeValidator(_name_the_first)
]
"""`NetworkConfig` as the field of other settings: read by what ``architecture`` says."""
