"""What training needs of an optimizer, and AdamW.

PyTorch's own classes fit `Optimizer`, too. They are not used here, because making the first one imports PyTorch's
compiler (`torch._dynamo`), which takes more than a second at the start of every run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import MutableMapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.optim.adamw import adamw


@runtime_checkable
class Optimizer(Protocol):
    """What training needs of an optimizer; `torch.optim.Optimizer` has it."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameters (``params``) with the settings that they share; ``lr`` is set before each update."""
        ...

    @property
    def state(self) -> MutableMapping[Any, Any]:
        """The state of each parameter: tensors by name."""
        ...

    def step(self) -> Any:
        """Update all parameters that have a gradient."""
        ...

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        ...


class Groups:
    """Groups of parameters and their state.

    Args:
        groups: of parameters (``params``) that share settings.
        state: of each parameter; None = there is none yet.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], state: MutableMapping[Any, Any] | None = None) -> None:
        self.param_groups: list[dict[str, Any]] = list(groups)
        self.state: MutableMapping[Any, Any] = defaultdict(dict) if state is None else state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if set_to_none:
                    parameter.grad = None
                elif parameter.grad is not None:
                    parameter.grad = torch.zeros_like(parameter)


class AdamW(Groups):
    """AdamW (Loshchilov & Hutter 2019) by PyTorch's function, in one pass over each parameter.

    Args:
        groups: of parameters (``params``), each with its ``weight_decay``.
        betas: decay of the two moments.
        eps: added to the root of the second moment.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], *, betas: tuple[float, float], eps: float) -> None:
        super().__init__([{"lr": 0.0, **group} for group in groups])
        self._betas, self._eps = betas, eps

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            parameters: list[Any] = [parameter for parameter in group["params"] if parameter.grad is not None]
            states = [self._state_of(parameter) for parameter in parameters]
            adamw(
                *(parameters, [parameter.grad for parameter in parameters]),
                *([state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]),
                *([], [state["step"] for state in states]),
                fused=True, amsgrad=False, maximize=False, beta1=self._betas[0], beta2=self._betas[1], eps=self._eps,
                lr=group["lr"], weight_decay=group["weight_decay"],
            )  # fmt: skip

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(parameter) for _ in range(2))
        return state
