"""Adam with decoupled weight decay, alone or for what Muon (`training.muon`) leaves to it, and the moving average.

    theta' <- d theta' + (1 - d) theta,    d = min(decay, (1 + t) / (10 + t))

The average (Polyak & Juditsky 1992) is what is validated and kept. Its decay is small in the beginning, so that the
initial values are soon forgotten.
"""

from __future__ import annotations

import copy
from typing import Generic

import torch
from torch import Tensor

from multihead.training.config import TrainingConfig
from multihead.training.loss import Model, Trainable
from multihead.training.muon import Muon, linear_maps


def build_optimizer(model: Trainable, config: TrainingConfig) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter 2019) or Muon with it; vectors (biases, norms) do not decay."""
    maps = linear_maps(model) if config.optimizer == "muon" else {}
    parameters = [p for p in model.parameters() if p.requires_grad and p not in maps]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=0.0,
        betas=(config.beta1, config.beta2),
        eps=1e-9,
        fused=True,
    )
    if not maps:
        return adam
    products = torch.bfloat16 if config.precision == "bfloat16" else torch.float32
    return Muon(maps, adam, weight_decay=config.weight_decay, dtype=products)


def optimizer_tensors(model: Trainable, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as named tensors: ``<parameter>/<exp_avg|exp_avg_sq|step|momentum>``."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{name}/{key}"] = value
    return tensors


def restore_optimizer(model: Trainable, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Puts back what `optimizer_tensors` took out, each where its parameter is: a checkpoint is read on the host."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, _, field = key.rpartition("/")
        parameter = parameters[name]
        optimizer.state[parameter][field] = value.to(parameter.device, copy=True)


class Average(Generic[Model]):
    """A second copy of the model whose weights follow the first one's.

    Args:
        model: what is trained.
        decay: d above; 0 makes the average the model itself, at no cost.
    """

    def __init__(self, model: Model, decay: float) -> None:
        self.decay = decay
        self.model: Model = copy.deepcopy(model) if decay else model
        self._ours: list[Tensor] = list(self.model.parameters())
        self._theirs: list[Tensor] = list(model.parameters())

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Follows the weights after update ``step`` (from 1)."""
        if self.decay:
            decay = min(self.decay, (1 + step) / (10 + step))
            torch._foreach_lerp_(self._ours, self._theirs, 1 - decay)
