"""Initial values of a network's parameters, in one place.

every matrix        Xavier uniform: U(-a, a), a = sqrt(6 / (fan_in + fan_out))   (Glorot & Bengio 2010)
of a state's past   orthogonal, each gate by itself (Saxe et al. 2014), in GRU and LSTM
embeddings          N(0, 1/D), so that sqrt(D) E[x] has unit variance and tied logits start small; or Xavier too
padding row         zero, and it stays zero: its gradient is never used
biases, norms       zero; one and zero; an LSTM forgets with a bias of 1 (Jozefowicz et al. 2015)
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

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
        elif isinstance(module, (nn.GRU, nn.LSTM)):
            _initialize_recurrent(module)


@torch.no_grad()
def _initialize_recurrent(layers: nn.GRU | nn.LSTM) -> None:
    """Each gate's matrices by themselves: stored as one, they would be drawn as one."""
    for name, parameter in layers.named_parameters():
        gates = parameter.split(layers.hidden_size)  # type: ignore[no-untyped-call]
        if name.startswith("weight_ih"):
            for gate in gates:
                nn.init.xavier_uniform_(gate)
        elif name.startswith("weight_hh"):
            for gate in gates:
                nn.init.orthogonal_(gate)
        else:
            parameter.zero_()
            if isinstance(layers, nn.LSTM) and name.startswith("bias_ih"):
                gates[1].fill_(1.0)


def keep_row_zero(weight: Tensor, row: int) -> None:
    """A row that is zero stays zero: its gradient is dropped, whoever uses the matrix.

    An embedding drops the gradient of its padding row by itself, but not what comes from an output projection that is
    the same matrix. Copies of the parameter have to be told again.
    """
    weight.register_post_accumulate_grad_hook(partial(_drop_gradient, row=row))  # type: ignore[no-untyped-call]


def _drop_gradient(weight: Tensor, row: int) -> None:
    assert weight.grad is not None
    weight.grad[row].zero_()
