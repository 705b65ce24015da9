"""Initial values of a Transformer's parameters, in one place.

every matrix        Xavier uniform: U(-a, a), a = sqrt(6 / (fan_in + fan_out))   (Glorot & Bengio 2010)
embeddings          N(0, 1/D), so that sqrt(D) E[x] has unit variance and tied logits start small
padding row         zero, and it stays zero: its gradient is never used
biases, norms       zero; one and zero
"""

from __future__ import annotations

import torch
from torch import nn

from multihead.attention import PackedLinear


def initialize(model: nn.Module) -> None:
    """Draws every parameter of ``model`` from PyTorch's current generator."""
    for module in model.modules():
        if isinstance(module, PackedLinear):
            module.reset_parameters()
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
            if module.padding_idx is not None:
                with torch.no_grad():
                    module.weight[module.padding_idx].zero_()
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
