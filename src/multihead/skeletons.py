"""Networks without values: the shapes of their parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

NetworkType = TypeVar("NetworkType", bound=nn.Module)


def parameter_shapes(build: Callable[[], Any]) -> dict[str, torch.Size]:
    """The shape of each parameter of a network, for which no memory is allocated and nothing is drawn."""
    return {name: parameter.shape for name, parameter in without_values(build).named_parameters()}


def without_values(build: Callable[[], NetworkType]) -> NetworkType:
    """A network on the device ``meta``: with the shapes of its parameters, but neither memory nor values."""
    with torch.device("meta"), _WithoutValues():
        return build()


class _WithoutValues(TorchFunctionMode):
    """Builds networks on the device ``meta`` without computing values.

    What would draw or compute them does nothing: some of it is implemented in Python for this device, and the first
    such call imports PyTorch's compiler, which takes seconds.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func``, unless it sets values."""
        kwargs = kwargs or {}
        if func is torch.arange:
            return torch.empty(len(range(*args)), dtype=torch.long)
        if func in (torch.rand, torch.randn):
            return torch.empty(*args, **kwargs)
        if func is torch.linalg.qr:
            return args[0], args[0]
        name = getattr(func, "__name__", "")
        if name.endswith("_") and not name.endswith(("__", "requires_grad_", "detach_")):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
