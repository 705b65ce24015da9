"""Capture: record and replace the attention of any model.

`capture` reaches into the attention modules of a model while a ``with`` block runs:

    A_h = softmax(Q_h K_h^T / sqrt(d_k))    the weights of head h, [queries, keys]
    O_h = A_h V_h                           the output of head h, [queries, d_v]
    MultiHead = Concat(O_1, ..., O_H) W^O

and records A and O, or puts something else in their place. It knows this library's `MultiHeadAttention`, `Attention`
(one head; recurrent translators call it at every step) and drop-in `MultiheadAttention`, PyTorch's module of that name
(and so ``nn.TransformerEncoder`` and ``nn.TransformerDecoder``), and the attention of `transformers`
(`inspection.huggingface`). Replacements are in `inspection.replacements`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import torch
from jaxtyping import Float
from torch import Tensor, nn

from multihead.attention import Attention, Bias, Mask, MultiHeadAttention, RelativePositions
from multihead.attention.composition import masked_scores
from multihead.attention.torch_compatible.module import MultiheadAttention, keep_forward
from multihead.configuration import nearest
from multihead.errors import ConfigurationError, InputError, ShapeError
from multihead.inspection import huggingface

Replacement = Callable[[Tensor], Tensor] | Tensor
"""What takes the place of a tensor: a function of it, or another tensor of the same shape."""

_captured: WeakSet[nn.Module] = WeakSet()


@dataclass(frozen=True)
class Attended:
    """What an attention computed in one call, after replacements."""

    weights: Float[Tensor, "batch heads query key"]
    """A: the weights of every head, before dropout."""
    heads: Float[Tensor, "batch heads query dim"]
    """O: the output of every head, before W^O."""


@dataclass
class Watch:
    """The replacements of one module, and what it computed.

    Args:
        name: of the module.
        weights: takes the place of its weights.
        heads: takes the place of the outputs of its heads.
    """

    name: str
    weights: Replacement | None = None
    heads: Replacement | None = None
    calls: list[Attended] = field(default_factory=list)
    """Call by call."""

    def see(
        self,
        weights: Float[Tensor, "batch heads query key"],
        heads: Float[Tensor, "batch heads query dim"],
        value: Float[Tensor, "batch kv_heads key dim"],
        positions: RelativePositions | None = None,
    ) -> Attended:
        """Replace and record; replaced weights become outputs by ``value``, V, and by relative ``positions``.

        Raises:
            ShapeError: a replacement has another shape.
        """
        if self.weights is not None:
            weights = self._replaced("weights", self.weights, weights)
            heads = weights.to(value.dtype) @ value.repeat_interleave(weights.shape[1] // value.shape[1], dim=1)
            heads = heads if positions is None else heads + positions.sums(weights.to(value.dtype))
        if self.heads is not None:
            heads = self._replaced("heads", self.heads, heads)
        self.calls.append(Attended(weights, heads))
        return self.calls[-1]

    def _replaced(self, what: str, replacement: Replacement, own: Tensor) -> Tensor:
        new = replacement if isinstance(replacement, Tensor) else replacement(own)
        if new.shape != own.shape:
            raise ShapeError(
                f"{self.name}: the {what} have shape {list(own.shape)}, and those to put in their place "
                f"{list(new.shape)}: record them in a run with inputs of the same lengths"
            )
        return new.to(own)


class Captured(Mapping[str, Attended]):
    """What the modules computed, by their names; those that were not called are left out.

    Args:
        watches: by the name of the module.
    """

    def __init__(self, watches: Mapping[str, Watch]) -> None:
        self._watches = watches

    def __getitem__(self, name: str) -> Attended:
        """The last call of a module."""
        return self.calls(name)[-1]

    def __iter__(self) -> Iterator[str]:
        return (name for name, watch in self._watches.items() if watch.calls)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def calls(self, name: str) -> tuple[Attended, ...]:
        """All calls of a module in order: a search calls it at every step.

        Raises:
            KeyError: it was not called, or is not captured; the message has the names that are.
        """
        if name not in self._watches:
            raise KeyError(f"{name!r} is not captured{nearest(name, list(self._watches))}")
        if not self._watches[name].calls:
            raise KeyError(f"{name!r} has not been called yet: call the model inside the with block")
        return tuple(self._watches[name].calls)

    def whole(self, name: str) -> Attended:
        """All calls of a module as one, whose queries are those of the calls, in order.

        A decoder that calls its attention a step at a time has the queries of a whole target then.

        Raises:
            KeyError: as `calls`.
            ShapeError: the calls differ in more than the number of queries.
        """
        calls = self.calls(name)
        shapes = {(*one.weights.shape[:2], one.weights.shape[3]) for one in calls}
        if len(shapes) > 1:
            found = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
            raise ShapeError(f"{name}: its calls have different [batch, heads, keys], {found}: take calls({name!r})")
        return Attended(torch.cat([one.weights for one in calls], 2), torch.cat([one.heads for one in calls], 2))

    def weights_of(self, pattern: str) -> list[Float[Tensor, "batch heads query key"]]:
        """The weights of all modules whose name matches, in the model's order: ``encoder.*.self_attention``.

        Raises:
            KeyError: none of those that were called does.
        """
        found = [self[name].weights for name in self if fnmatch.fnmatchcase(name, pattern)]
        if not found:
            raise KeyError(f"no module that was called matches {pattern!r}{nearest(pattern, list(self))}")
        return found


@contextmanager
def capture(
    model: nn.Module,
    *,
    weights: Mapping[str, Replacement] | None = None,
    heads: Mapping[str, Replacement] | None = None,
    only: Iterable[str] | None = None,
) -> Iterator[Captured]:
    """Record the attention of a model inside a ``with`` block, and replace it where that is asked for.

    Modules have the names of ``model.named_modules()``; a model that is one attention has the name ``""``. A model that
    is only recorded computes what it does otherwise: bit for bit with this library's `MultiHeadAttention`, and up to
    rounding where another kernel has to run (in place of PyTorch's, and of any but the eager one of `transformers`).
    Compiled search, packed batches, CUDA graphs and gradient checkpointing are off inside the block. Tensors are
    recorded with their gradients, unless the block runs under ``torch.no_grad()``. After the block, even after an
    error, the model is as before.

    Args:
        model: any module.
        weights: by the name of a module, what takes the place of its weights [batch, heads, queries, keys]: a function
            of them, or a tensor such as the weights recorded in another run. The outputs of the heads follow, without
            dropout.
        heads: the same for the outputs of its heads [batch, heads, queries, d_v]; replaced after the weights.
        only: names of the modules to record, beside those with replacements; by default all.

    Example:
        with capture(model) as seen:
            model(source, lengths, target)
        seen["encoder.2.self_attention"].weights

        with capture(model, heads={"encoder.2.self_attention": zero_heads(5)}):
            model(source, lengths, target)

    Raises:
        InputError: ``model`` is not a module, or has no attention that can be captured.
        ConfigurationError: a name is not one of its attentions, or one of them is captured already; or a module of
            PyTorch is pruned or parametrized.
        ShapeError: in the block: a replacement has another shape than what it replaces.
    """
    found = attentions(model)
    chosen = dict.fromkeys([*(found if only is None else only), *(weights or {}), *(heads or {})])
    for name in chosen:
        if name not in found:
            raise ConfigurationError(f"{name!r} is not an attention of this model{nearest(name, list(found))}")
        if found[name] in _captured:
            raise ConfigurationError(f"{name!r} is captured already: leave the other with block first")
    watches = {
        name: Watch(name, (weights or {}).get(name), (heads or {}).get(name)) for name in found if name in chosen
    }
    with ExitStack() as undo:
        if any(huggingface.is_attention(found[name]) for name in watches):
            undo.enter_context(huggingface.eager(model))
        for name, watch in watches.items():
            _captured.add(found[name])
            undo.callback(_captured.discard, found[name])
            undo.enter_context(_watching(found[name], watch))
        yield Captured(watches)


def attentions(model: nn.Module) -> dict[str, nn.Module]:
    """The attention modules of a model that `capture` knows, by name, in the model's order.

    Raises:
        InputError: ``model`` is not a module, or has none.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"expected a module (torch.nn.Module), got {type(model).__name__}")
    found = {name: part for name, part in model.named_modules() if _is_attention(part)}
    if not found:
        raise InputError(
            f"{type(model).__name__} has no attention that can be captured: multihead's MultiHeadAttention or "
            "Attention, torch.nn.MultiheadAttention, or that of a model of transformers"
        )
    return found


def _is_attention(module: nn.Module) -> bool:
    if isinstance(module, nn.MultiheadAttention):  # a subclass may compute something else
        return isinstance(module, MultiheadAttention) or type(module).forward is nn.MultiheadAttention.forward
    if isinstance(module, Attention):
        return type(module).attend is Attention.attend
    return isinstance(module, MultiHeadAttention) or huggingface.is_attention(module)


def _watching(module: nn.Module, watch: Watch) -> AbstractContextManager[None]:
    if isinstance(module, (MultiHeadAttention, MultiheadAttention)):
        return _watching_ours(module, watch)
    if isinstance(module, nn.MultiheadAttention):
        return _watching_pytorch(module, watch)
    if isinstance(module, Attention):
        return _watching_one_head(module, watch)
    return huggingface.watching(module, watch.see)


@contextmanager
def _watching_ours(module: MultiHeadAttention | MultiheadAttention, watch: Watch) -> Iterator[None]:
    """Another function in place of the module's `mix`; the hook keeps compiled code away."""

    compute = module.mix
    positions = module.relative_positions if isinstance(module, MultiHeadAttention) else None

    def mix(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
        output, own = compute(query, key, value, **options)
        if own is None:
            plain = {**options, "dropout_p": 0.0, "need_weights": True, "backend": "explicit"}
            few = value[..., :0] if positions is None else value  # values without numbers: only weights are missing
            _, own = compute(query, key, few, **plain)
        assert own is not None
        seen = watch.see(own, output, value, positions)
        return seen.heads, seen.weights if options["need_weights"] else None

    hook = module.register_forward_pre_hook(keep_forward)
    module.mix = mix  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.mix
        hook.remove()


@contextmanager
def _watching_one_head(module: Attention, watch: Watch) -> Iterator[None]:
    """Another function in place of the module's `attend`, which has one head and no axis of heads."""
    compute = module.attend

    def attend(
        query: Tensor,
        keys: Tensor,
        value: Tensor,
        *,
        mask: Mask | None = None,
        bias: Tensor | Bias | None = None,
        need_weights: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        separate = module.fuses and not need_weights  # otherwise the weights are computed anyway; some are drawn
        output, own = compute(query, keys, value, mask=mask, bias=bias, need_weights=not separate, generator=generator)
        if own is None:
            own = module.align(*masked_scores(module.score.from_keys(query, keys), mask, bias)).to(query.dtype)
        seen = watch.see(own[:, None], output[:, None], value[:, None])
        return seen.heads.squeeze(1), seen.weights.squeeze(1) if need_weights else None

    hook = module.register_forward_pre_hook(keep_forward)
    module.attend = attend  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.attend
        hook.remove()


@contextmanager
def _watching_pytorch(module: nn.MultiheadAttention, watch: Watch) -> Iterator[None]:
    """The drop-in with the same parameters; the hook keeps the fast path of PyTorch's layers away."""
    twin = MultiheadAttention.from_torch(module)
    before = vars(module).get("forward")

    def forward(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        found: tuple[Tensor, Tensor | None] = twin.train(module.training)(*arguments, **options)
        return found

    hook = module.register_forward_pre_hook(keep_forward)
    with _watching_ours(twin, watch):
        module.forward = forward  # type: ignore[method-assign]
        try:
            yield
        finally:
            del module.forward
            if before is not None:
                module.forward = before  # type: ignore[method-assign]
            hook.remove()
