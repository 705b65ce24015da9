"""A network's weights for the compiled search, or why it has none."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from multihead.attention import MultiHeadAttention, RelativeBias
from multihead.engine.stored import StoredTransformer
from multihead.engine.weights import Precision, load_search_library
from multihead.errors import ShapeError
from multihead.kernels.native import thread_count
from multihead.kernels.native.tensors import pointer
from multihead.model_folder import round_matrix
from multihead.models.config import TransformerConfig
from multihead.models.layers import LinearPositions
from multihead.models.network import Network
from multihead.models.transformer import Transformer
from multihead.skeletons import without_values


def why_not(model: Network) -> str | None:
    """Why compiled code cannot search a model here; None if it can."""
    return _unsupported(model) or (None if load_search_library().library is not None else load_search_library().reason)


def _unsupported(model: Network) -> str | None:
    if type(model) is not Transformer:
        return f"a {type(model).__name__} is not compiled, only a Transformer is"
    if any(p.device.type != "cpu" or p.dtype != torch.float32 for p in model.parameters()):
        return "the weights are not float32 on a CPU"
    if has_hooks(model):
        return "hooks watch its modules, which compiled code would not call"
    found, expected = _parts_of(model), _parts_of_settings(model.config)
    if found.types != expected.types:
        return "modules in it are not a Transformer's own"
    for name in (*expected.shapes, *found.shapes):
        if expected.shapes.get(name) != found.shapes.get(name):
            shape, settings = (list(parts.shapes.get(name, ())) or "no weight" for parts in (found, expected))
            return f"{name} is {shape}, and the model's settings say {settings}"
    if found.heads != expected.heads:
        return f"its attentions have heads of {found.heads}, and the model's settings say {expected.heads}"
    if not all(_finite(p) for p in model.parameters()):
        return "a weight is not a finite number"
    return None


class _Parts(NamedTuple):
    """What the weights of a network are read by."""

    types: list[tuple[str, type[nn.Module]]]
    """The modules."""
    shapes: dict[str, torch.Size]
    """The weights; a shared one under each of its names."""
    heads: list[tuple[int, int, int, int]]
    """Heads and widths of all attentions."""


def _parts_of(model: nn.Module) -> _Parts:
    attentions = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    return _Parts(
        [(name, type(module)) for name, module in model.named_modules()],
        {name: weight.shape for name, weight in model.named_parameters(remove_duplicate=False)},
        [(one.heads, one.kv_heads, one.key_width, one.value_width) for one in attentions],
    )


@lru_cache(maxsize=16)
def _parts_of_settings(config: TransformerConfig) -> _Parts:
    """The parts of a new network; to make one, even without values, takes longer than to translate a line."""
    return _parts_of(without_values(lambda: Transformer(config)))


def weights_version(model: Network) -> tuple[bool, tuple[tuple[int, int], ...]]:
    """Differs after a weight was changed in place or replaced, and after a hook was added.

    PyTorch does not count in-place changes of weights that were made in inference mode.
    """
    modules = _modules(model)
    weights = [weight for module in modules for weight in module._parameters.values() if weight is not None]
    return _hooked(modules), tuple([(w.data_ptr(), 0 if w.is_inference() else w._version) for w in weights])


def has_hooks(model: nn.Module) -> bool:
    """Whether hooks watch a module, which neither compiled code nor a graph would call."""
    return _hooked(_modules(model))


def _hooked(modules: list[nn.Module]) -> bool:
    return any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def _modules(model: nn.Module) -> list[nn.Module]:
    """The modules of a network; one that is shared stands there several times.

    Every search asks for them, and `nn.Module.modules` takes a third of the time in which a small model translates a
    line, since it puts the names of all modules together.
    """
    found = [model]
    for module in found:
        found += [child for child in module._modules.values() if child is not None]
    return found


class NetworkWeights:
    """The weights that a network has at the moment (`weights.Source`).

    Args:
        model: a Transformer; `why_not` says what is wrong with any other network.
    """

    def __init__(self, model: Transformer) -> None:
        self.model, self.config = model, model.config

    def scales(self) -> tuple[float, float]:
        """What the embeddings of the source, and the states before the output projection, are multiplied by."""
        return self.model.source_embedding.scale, self.model.output_scale

    def weight(self, name: str, *shape: int) -> Tensor | None:
        """A weight, not copied if it is contiguous.

        Raises:
            ShapeError: it has another shape or type, or is not on the CPU.
        """
        module, _, own = name.rpartition(".")
        found = getattr(self.model.get_submodule(module), own, None)
        return None if found is None else _checked(found, *shape)

    def rounded(self, table: Tensor, precision: Precision) -> Tensor:
        """A matrix after rounding, in float32."""
        return table if precision == "float32" else round_matrix(table, precision)

    def biases(self) -> list[Tensor]:
        """Relative biases by distance: of the encoder [heads, 2 reach + 1], of the decoder [reach + 1, heads].

        If positions are linear, their slopes [heads] instead, which encoder and decoder share.
        """
        encoder, decoder, config = self.model.encoder_positions, self.model.decoder_positions, self.config
        if isinstance(decoder, LinearPositions):
            return [_checked(decoder.slopes, config.heads)]
        if not (isinstance(encoder, RelativeBias) and isinstance(decoder, RelativeBias)):
            return []
        heads, reach = config.heads, config.reach
        tables = [_checked(side.table, config.relative_buckets, heads) for side in (encoder, decoder)]
        distances = torch.arange(-reach, reach + 1)
        return [
            _checked(tables[0][encoder.bucket(distances)].t(), heads, 2 * reach + 1),
            _checked(tables[1][decoder.bucket(distances[: reach + 1])], reach + 1, heads),
        ]

    def taken(self, array: npt.NDArray[np.float32]) -> Tensor:
        """A computed array as a tensor."""
        return torch.from_numpy(array)

    def address(self, tensor: Tensor) -> int:
        """Where the numbers of a tensor begin."""
        found = pointer(tensor, tensor.numel(), torch.float32)
        assert found is not None
        return found


def network_of(stored: StoredTransformer) -> Transformer:
    """The network with weights that were read from its folder."""
    thread_count()  # PyTorch takes the number that was set before it was imported
    model = Transformer(stored.config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(stored.weights[name]))
    return model


def _checked(weight: Tensor, *shape: int) -> Tensor:
    """A weight as contiguous float32 numbers on the CPU.

    Raises:
        ShapeError: it has another shape or type, or is elsewhere.
    """
    if tuple(weight.shape) != shape or weight.dtype != torch.float32 or weight.device.type != "cpu":
        raise ShapeError(
            f"the compiled search expected a float32 weight {list(shape)} on the CPU, got {weight.dtype} "
            f"{list(weight.shape)} on {weight.device}"
        )
    return weight.detach().resolve_neg().contiguous()


def _finite(x: Tensor) -> bool:
    """Whether all elements are finite. Minimum and maximum are NaN if any element is; this needs no copy."""
    return all(bool(extreme.isfinite()) for extreme in x.detach().aminmax())
