"""The attention of models of `transformers`, for `inspection.capture`.

Its modules look up a function by the name in their settings, "eager", "sdpa" and so on. While a model is captured, the
name is one of ours, whose function calls the eager one of the module's own file: only that one has weights.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

NAME = "multihead_capture"
"""The implementation of attention that a watched model names in its settings."""

See = Callable[[Tensor, Tensor, Tensor], Any]
"""Takes the weights, the outputs of the heads and the values, and returns both of the first after replacements."""

_watched: dict[nn.Module, See] = {}


def is_attention(module: nn.Module) -> bool:
    """Whether a module is an attention of `transformers` whose function can be chosen, and that has an eager one."""
    if "transformers" not in sys.modules:
        return False
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names and _eager(module) is not None


@contextmanager
def eager(model: nn.Module) -> Iterator[None]:
    """While the block runs, all attention of a model is eager, and masks are made for that."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, eager_mask)
    found: dict[int, Any] = {}
    for part in model.modules():
        config = getattr(part, "config", None)
        for one in (config, *_parts(config)):
            if hasattr(one, "_attn_implementation"):
                found.setdefault(id(one), one)
    before = [(config, config._attn_implementation) for config in found.values()]
    try:
        for config in found.values():
            config._attn_implementation = NAME
        yield
    finally:
        for config, implementation in before:  # settings come before their parts, which they set too
            config._attn_implementation = implementation


def _parts(config: Any) -> list[Any]:
    """The settings within settings, such as those of an encoder and a decoder."""
    parts = [getattr(config, name, None) for name in getattr(config, "sub_configs", ())]
    return [one for part in parts if part is not None for one in (part, *_parts(part))]


@contextmanager
def watching(module: nn.Module, see: See) -> Iterator[None]:
    """While the block runs, pass what a module computes to ``see``, and go on with what it returns."""
    _watched[module] = see
    try:
        yield
    finally:
        del _watched[module]


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor]:
    """The module's own eager function, and what is to be seen of it."""
    compute = _eager(module)
    assert compute is not None
    output, weights = compute(module, query, key, value, mask, **options)
    if module not in _watched:
        return output, weights
    seen = _watched[module](weights, output.transpose(1, 2), value)
    return seen.heads.transpose(1, 2).contiguous(), seen.weights


def _eager(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """The eager function of the file that defines a module or one of its bases."""
    files = (sys.modules.get(base.__module__) for base in type(module).__mro__)
    return next((vars(file)["eager_attention_forward"] for file in files if _has_eager(file)), None)


def _has_eager(file: Any) -> bool:
    return file is not None and "eager_attention_forward" in vars(file)
