"""Low-rank adapters (LoRA): fine-tuning that trains few parameters.

To each linear map of attention and feed-forward networks, with its weight W [m, n] as it was given, rank r and factor
alpha, two small matrices are added (Hu et al. 2022, section 4.1):

    W' = W + (alpha / r) B A        A [r, n] ~ N(0, 1/n),    B [m, r] = 0

Only A and B are trained; B = 0, so that training begins with exactly the given network. Queries, keys and values are
three maps in one matrix (`PackedLinear`): each gets an A and a B of its own, as if they were apart. One pair for all of
them would have to share r directions of its input.

    y = x W^T + (alpha / r) (x A^T) B^T

is how most maps compute, without W', so that the backward pass has no gradient of W: a third of the products of a map.
The first map of an ungated feed-forward network, whose kernel takes a matrix, computes with W' instead, which is also
the attribute ``weight`` of each.

`merged` returns a plain Transformer with the weights W', which is all that search, validation and model folders see.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from multihead.attention.multihead import MultiHeadAttention, PackedLinear
from multihead.errors import ConfigurationError, FormatError
from multihead.files import serialize_tensors
from multihead.kernels.linear import Linear, linear
from multihead.kernels.native.tensors import without_autocast
from multihead.models.layers import FeedForward
from multihead.models.network import Network
from multihead.models.transformer import Transformer

ADAPTER = "adapter.safetensors"
"""The adapters alone, in the folder of a model into which they are merged."""

_KIND = "low-rank adapter"
"""What the metadata of such a file says that it is."""

NetworkType = TypeVar("NetworkType", bound=Network)


class _Adapted(nn.Module):
    """What an adapted linear map adds to its plain one."""

    plain: ClassVar[type[nn.Module]]
    """The class of the map without its adapter."""
    base: nn.Parameter
    """W, frozen."""
    a: nn.Parameter
    """A of each part, one below the other [parts * r, n]."""
    b: nn.Parameter
    """B of each part, one below the other [m, r]."""
    factor: float
    """alpha / r."""

    @property
    def weight(self) -> Float[Tensor, "out in"]:
        """W', differentiable with respect to A and B, in the type of W also under autocast."""
        sizes = _sizes(self)
        with without_autocast(self.base.device.type):
            parts = zip(self.b.split_with_sizes(sizes), self.a.chunk(len(sizes)), strict=True)
            return torch.add(self.base, torch.cat([b @ a for b, a in parts]), alpha=self.factor)

    def _add(self, outputs: tuple[Tensor, ...], x: Tensor, first: int = 0) -> tuple[Tensor, ...]:
        """Add (alpha / r) (x A^T) B^T to the outputs x W^T of the parts from ``first`` on."""
        rank, last = self.b.shape[1], first + len(outputs)
        lows = F.linear(x, self.a[first * rank : last * rank]).chunk(len(outputs), -1)
        ups = self.b.split_with_sizes(_sizes(self))[first:last]
        return tuple(
            torch.addmm(y.flatten(0, -2), low.flatten(0, -2), b.t(), alpha=self.factor).view(y.shape)
            for y, low, b in zip(outputs, lows, ups, strict=True)
        )

    def merge(self) -> None:
        """Become the plain map with the weight W'."""
        weight = self.weight.detach()
        del self.base, self.a, self.b, self.factor
        self.__class__ = self.plain  # type: ignore[assignment]
        self.weight = nn.Parameter(weight)  # type: ignore[misc]


class _AdaptedPlain(_Adapted, nn.Linear):  # type: ignore[override]
    plain = nn.Linear
    product: ClassVar[Callable[..., Tensor]] = F.linear

    def forward(self, input: Float[Tensor, "*axes in_features"]) -> Float[Tensor, "*axes out_features"]:
        return self._add((type(self).product(input, self.base, self.bias),), input)[0]


class _AdaptedLinear(_AdaptedPlain, Linear):  # type: ignore[override]
    plain, product = Linear, linear


class _AdaptedPacked(_Adapted, PackedLinear):  # type: ignore[misc]
    plain = PackedLinear

    def forward(
        self, x: Float[Tensor, "*axes width"], first: int = 0, last: int | None = None
    ) -> tuple[Float[Tensor, "*axes _"], ...]:
        """As the plain map."""
        return self._add(self.project(x, self.base, first, last), x, first)


_ADAPTED: dict[type[nn.Module], type[_Adapted]] = {
    cls.plain: cls for cls in (_AdaptedPlain, _AdaptedLinear, _AdaptedPacked)
}


def _sizes(module: nn.Module) -> tuple[int, ...]:
    """The numbers of rows of the maps in a weight."""
    return module.sizes if isinstance(module, PackedLinear) else (cast(nn.Linear, module).out_features,)


def adapt(network: Network, rank: int, alpha: float, generator: torch.Generator | None = None) -> None:
    """Add adapters to a network, in place, and freeze everything else.

    Args:
        network: a Transformer without adapters.
        rank: r.
        alpha: the factor of B A is alpha / r.
        generator: draws A; None = PyTorch's current one.

    Raises:
        ConfigurationError: the network is no Transformer, or the rank exceeds a side of a matrix.
    """
    if not isinstance(network, Transformer):
        raise ConfigurationError("--lora: only Transformers have adapters, and this model is recurrent; leave it out")
    found = list(_maps(network))
    largest, name = min(((_largest_rank(module), name) for name, module in found), key=lambda one: one[0])
    if rank > largest:
        raise ConfigurationError(
            f"--lora {rank}: a rank is at most the smaller side of each matrix, {largest} in {name}; 4 to 32 are usual"
        )
    network.requires_grad_(False)
    for _, module in found:
        weight = cast(nn.Parameter, module.weight)
        outputs, inputs = weight.shape
        del module.weight
        module.__class__ = _ADAPTED[type(module)]
        adapted = cast(_Adapted, module)
        adapted.base, adapted.factor = weight, alpha / rank
        a = weight.new_empty(rank * len(_sizes(module)), inputs)
        adapted.a = nn.Parameter(a.normal_(std=inputs**-0.5, generator=generator))
        adapted.b = nn.Parameter(weight.new_zeros(outputs, rank))


def _maps(network: Transformer) -> Iterator[tuple[str, nn.Module]]:
    """The linear maps of attention and feed-forward networks, by name."""
    for name, module in network.named_modules():
        if isinstance(module, (MultiHeadAttention, FeedForward)):
            for part, child in module.named_children():
                if type(child) in _ADAPTED:
                    yield f"{name}.{part}", child


def _largest_rank(module: nn.Module) -> int:
    return min(*_sizes(module), cast(nn.Linear, module).in_features)


def merged(network: NetworkType) -> NetworkType:
    """A copy of an adapted network without adapters, with the weights W'.

    None of them is frozen. The copy computes what the network computes, but for rounding; with B = 0 exactly that.
    """
    plain = copy.deepcopy(network)
    for module in list(plain.modules()):
        if isinstance(module, _Adapted):
            module.merge()
    plain.requires_grad_(True)
    plain.guard_padding()
    return plain


def write_adapter(network: Network, alpha: float, base: str) -> bytes:
    """The content of `ADAPTER`: A and B of each adapted map, as ``encoder.0.feed_forward.expand.a`` and ``.b``.

    Args:
        network: an adapted one.
        alpha: its factor.
        base: SHA-256 of the weights that the adapters were made for.

    Returns:
        A safetensors file, whose metadata has ``rank``, ``alpha`` and ``base``.
    """
    tensors = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    rank = next(b.shape[1] for name, b in tensors.items() if name.endswith(".b"))
    facts = {"multihead": _KIND, "rank": str(rank), "alpha": f"{alpha:g}", "base": base}
    return b"".join(serialize_tensors(tensors, facts))


class Adapter(NamedTuple):
    """What `ADAPTER` holds."""

    rank: int
    alpha: float
    base: str
    """SHA-256 of the weights that it was made for."""
    tensors: Mapping[str, Tensor]
    """A and B of each adapted map, by name."""


def read_adapter(path: Path) -> Adapter:
    """The adapter in a file that `write_adapter` has made.

    Raises:
        FormatError: there is no such file, or it is damaged or something else.
    """
    try:
        with safe_open(path, "pt") as file:
            facts = {**(file.metadata() or {})}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise FormatError(f"{path}: cannot be read as an adapter ({said}); copy the file again") from None
    if facts.get("multihead") != _KIND:
        raise FormatError(f"{path}: not an adapter; `multihead train --lora` writes {ADAPTER} beside the best model")
    try:
        rank, alpha = int(facts["rank"]), float(facts["alpha"])
        sound = rank > 0 and 0 < alpha < math.inf and len(facts["base"]) == 64
    except (KeyError, ValueError):
        sound = False
    if not sound or not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise FormatError(f"{path}: damaged: its rank, alpha, base or numbers are impossible; copy the file again")
    return Adapter(rank, alpha, facts["base"], tensors)


def with_adapter(network: Network, adapter: Adapter) -> Network:
    """A network with the weights W' = W + (alpha / r) B A; the given one is changed and must not be used again.

    Raises:
        ConfigurationError: the network is no Transformer, or the matrices are not those of its maps.
    """
    if isinstance(network, Transformer):
        _check_shapes(network, adapter)
    adapt(network, adapter.rank, adapter.alpha)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(adapter.tensors[name])
    return merged(network)


def _check_shapes(network: Transformer, adapter: Adapter) -> None:
    expected: dict[str, tuple[int, ...]] = {}
    for name, module in _maps(network):
        outputs, inputs = cast(nn.Parameter, module.weight).shape
        expected[f"{name}.a"] = len(_sizes(module)) * adapter.rank, inputs
        expected[f"{name}.b"] = outputs, adapter.rank
    found = {name: tuple(tensor.shape) for name, tensor in adapter.tensors.items()}
    for name in (*expected, *found):
        if expected.get(name) != found.get(name):
            one, other = (list(shapes[name]) if name in shapes else "missing" for shapes in (found, expected))
            raise ConfigurationError(f"the adapter belongs to another network: {name} is {one}, expected {other}")
