"""The attention weights of a translation with their subwords, and views.

`attention_of`, which `Translator.attention` calls, records them. `multihead.inspection.plots` draws them or prints them
as text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.bundle import Bundle
from multihead.data.batching import collate_source
from multihead.errors import ConfigurationError
from multihead.models.network import AttentionWeights

Kind = Literal["cross", "encoder", "decoder"]
"""Cross-attention, self-attention of the encoder, self-attention of the decoder."""

_WHERE: dict[Kind, str] = {
    "cross": "decoder to source",
    "encoder": "within the source",
    "decoder": "within the translation",
}


@dataclass(frozen=True)
class AttentionView:
    """The weights of one layer, for some heads or their mean, with labels."""

    weights: Float[Tensor, "panels rows columns"]
    """Each row is a distribution over the columns."""
    panels: list[str]
    """Titles of the panels: "head 1", or "mean of 8 heads"."""
    rows: list[str]
    """The subwords that attend (for the decoder, those that are written)."""
    columns: list[str]
    """The subwords that are attended to."""
    title: str


@dataclass(frozen=True)
class AttentionMap:
    """All attention weights of a translation."""

    translation: str
    """Its text."""
    source: list[str]
    """Subwords of the source, including the end symbol."""
    target: list[str]
    """Subwords of the translation, including the end symbol."""
    given: list[str]
    """The decoder's inputs: the begin symbol, then all subwords but the last."""
    weights: AttentionWeights
    """Per layer ``[1, heads, query, key]``; row t of ``cross`` and ``decoder`` predicts target subword t."""

    def view(
        self, kind: Kind = "cross", layer: int | None = None, heads: int | Literal["all", "mean"] = "all"
    ) -> AttentionView:
        """The weights of one layer.

        Args:
            kind: which attention.
            layer: counted from 1; by default the last.
            heads: all, their mean, or one head, counted from 1.

        Raises:
            ConfigurationError: the layer or head does not exist.
        """
        recorded = {"cross": self.weights.cross, "encoder": self.weights.encoder, "decoder": self.weights.decoder}[kind]
        if not recorded:
            raise ConfigurationError(f"this model has no attention {_WHERE[kind]}")
        layer = len(recorded) if layer is None else layer
        if not 1 <= layer <= len(recorded):
            raise ConfigurationError(f"layer: there are {len(recorded)}, counted from 1, got {layer}")
        weights = recorded[layer - 1][0]
        count = weights.shape[0]
        if isinstance(heads, int) and not 1 <= heads <= count:
            raise ConfigurationError(f"heads: there are {count}, counted from 1, got {heads}")
        if heads == "all":
            panels = [f"head {number}" for number in range(1, count + 1)]
        elif heads == "mean":
            weights, panels = weights.mean(0, keepdim=True), [f"mean of {count} heads"]
        else:
            weights, panels = weights[heads - 1 : heads], [f"head {heads}"]
        rows = self.source if kind == "encoder" else self.target
        columns = self.given if kind == "decoder" else self.source
        if weights.shape[-1] > len(columns):  # heads in dependency trees have ROOT as a column
            columns = ["ROOT", *columns]
        shown = panels[0] if len(panels) == 1 else f"{count} heads"
        return AttentionView(
            weights, panels, rows, columns, f"{_WHERE[kind]}, layer {layer} of {len(recorded)}, {shown}"
        )


@torch.no_grad()
def attention_of(bundle: Bundle, read: list[int], written: list[int]) -> AttentionMap:
    """Every head's weights for a source and a translation, both in tokens without begin and end."""
    tokenizer = bundle.target_tokenizer
    source, lengths = collate_source([read], tokenizer.pad_id, tokenizer.eos_id)
    device = bundle.model.output.weight.device
    target = torch.tensor([[tokenizer.bos_id, *written]], device=device)
    output = bundle.model.eval()(source.to(device), lengths.to(device), target, need_weights=True)
    return AttentionMap(
        tokenizer.decode(written),
        bundle.source_tokenizer.pieces([*read, tokenizer.eos_id]),
        tokenizer.pieces([*written, tokenizer.eos_id]),
        tokenizer.pieces([tokenizer.bos_id, *written]),
        output.weights,
    )
