"""The shape of a recurrent translator as settings, and the presets of the literature; no torch here.

What a field does stands under it; the network is `models.recurrent.network`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from multihead.configuration import Settings
from multihead.models.config import check_vocabularies


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
