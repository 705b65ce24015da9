"""Settings of the translation networks; named presets.

Does not import torch. `TransformerConfig` is for `models.transformer`, `RecurrentConfig` for `models.recurrent`.
`planning.choices` chooses values that suit a corpus.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from multihead.configuration import (
    MOST_ENTRIES,
    MOST_FACTOR,
    MOST_LAYERS,
    MOST_TOKENS,
    MOST_WIDTH,
    Settings,
    nearest,
)
from multihead.errors import ConfigurationError
from multihead.models.stack_config import StackConfig


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


def check_vocabulary(vocab: int, padding_id: int) -> None:
    """Check the vocabulary of a network that reads one text.

    Raises:
        ValueError: the padding id is not in the vocabulary.
    """
    if padding_id >= vocab:
        raise ValueError(f"padding_id must be an entry of the vocabulary, got {padding_id} of {vocab}")


class TransformerConfig(StackConfig):
    """Settings that define a Transformer's parameters and its computation (Vaswani et al. 2017)."""

    summary_fields: ClassVar[tuple[str, ...]] = ("width", "heads", "inner", "encoder_layers", "decoder_layers", "norm")
    """The fields in `summary`."""
    training_only: ClassVar[tuple[str, ...]] = (*StackConfig.training_only, "alignment_layer")
    """Fields that affect neither the weights nor the output of a trained model: fine-tuning may change them."""
    rare: ClassVar[frozenset[str]] = StackConfig.rare | {"encoder_window", "alignment_layer", "factors"}
    """Fields that are written only if they differ from their defaults, so that older code reads all other models."""

    architecture: Literal["transformer"] = "transformer"
    """Kind of network."""
    source_vocab: int = Field(ge=1, le=MOST_ENTRIES)
    """Size of the source vocabulary, each piece in each of its factors."""
    target_vocab: int = Field(ge=1, le=MOST_ENTRIES)
    """Size of the target vocabulary."""
    factors: int = Field(default=1, ge=1, le=256)
    """F: factors of a piece of the source, each with an embedding that is added (`models.factors`)."""
    encoder_layers: int = Field(default=6, ge=1, le=MOST_LAYERS)
    """Number of encoder layers."""
    encoder_window: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """W: position t of the encoder attends to t - W ... t + W alone (Beltagy et al. 2020), so that attention costs
    2 W + 1 scores a position; default: to all."""
    tie_embeddings: bool = True
    """Whether source and target share one embedding (needs a shared vocabulary)."""
    alignment_layer: int | None = Field(default=None, ge=1, le=MOST_LAYERS)
    """The layer of the decoder, counted from 1, whose first head of the attention to the source has learned word
    alignments (`kernels.guided`); default: none."""
    source_end: bool = True
    """Whether the encoder reads the end symbol of a source; without it, an empty source is its end symbol alone."""

    @model_validator(mode="after")
    def _fits(self) -> TransformerConfig:
        if self.alignment_layer is not None and self.alignment_layer > self.decoder_layers:
            raise ValueError(
                f"alignment_layer must be a layer of the decoder, which has {self.decoder_layers}, got "
                f"{self.alignment_layer}"
            )
        if self.source_vocab % self.factors or (self.factors > 1 and self.tie_embeddings):
            raise ValueError(
                f"factors must divide the {self.source_vocab} entries of a source vocabulary that is not tied to the "
                f"target's, got {self.factors}"
            )
        pieces = self.source_vocab // self.factors
        check_vocabularies(pieces, self.target_vocab, self.padding_id, self.tie_embeddings)
        return self

    @property
    def summary(self) -> str:
        """One line for people."""
        return (
            f"Transformer, {self.encoder_layers}+{self.decoder_layers} layers, width {self.width}, "
            f"inner {self.inner}, {self.heads} {'head' if self.heads == 1 else 'heads'}, {self.norm}-norm"
        )


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
