"""Initial values of a Transformer's parameters, in one place.

every matrix        Xavier uniform: U(-a, a), a = sqrt(6 / (fan_in + fan_out))   (Glorot & Bengio 2010)
embeddings          N(0, 1/D), so that sqrt(D) E[x] has unit variance and tied logits start small; or Xavier too
padding row         zero, and it stays zero: its gradient is never used
biases, norms       zero; one and zero
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from multihead.attention import PackedLinear


def initialize(model: nn.Module, embeddings: Literal["normal", "xavier"] = "normal") -> None:
    """Draws every parameter of ``model`` from PyTorch's current generator.

    Args:
        model: whose layers are drawn, in their order.
        embeddings: how the embeddings are, those of learned positions too.
    """
    for module in model.modules():
        if isinstance(module, PackedLinear):
            module.reset_parameters()
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            if embeddings == "xavier":
                nn.init.xavier_uniform_(module.weight)
            else:
                nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
            if module.padding_idx is not None:
                with torch.no_grad():
                    module.weight[module.padding_idx].zero_()
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
