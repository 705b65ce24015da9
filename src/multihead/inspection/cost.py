"""What a pass through a module costs: multiply-adds of its products, counted while it runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def multiply_adds(module: nn.Module, *inputs: Any) -> int:
    """How many products are multiplied and added up by ``module(*inputs)``: convolutions and matrix products.

    What is done to each number by itself (norms, activations, a map times features) and sums without products are not
    counted, as is usual in tables of vision papers; they take time all the same. Batch norms are not trained by it.

    Args:
        module: any module; it is run once, as in evaluation and without gradients.
        inputs: what it is called with.
    """
    training = module.training
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            module.eval()(*inputs)
    finally:
        module.train(training)
    # Two operations each: a multiplication and an addition.
    return int(counter.get_total_flops()) // 2
