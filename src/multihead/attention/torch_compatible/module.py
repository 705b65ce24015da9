"""`MultiheadAttention`: PyTorch's module on this library.

For existing networks. New networks should use :class:`multihead.attention.multihead.MultiHeadAttention`, which is batch
first, has one meaning of masks and a cache for decoding. :mod:`multihead.attention.torch_compatible.functional` has the
computation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from multihead.attention.masks import Mask, Padding
from multihead.attention.torch_compatible.arguments import Masks, check_ranks, check_types, expect
from multihead.attention.torch_compatible.functional import AttentionParameters, attend, insert_batch, mix_heads
from multihead.attention.torch_compatible.projection import ExtraKeys, InProjection
from multihead.errors import ConfigurationError


def keep_forward(module: nn.Module, args: tuple[Any, ...]) -> None:
    """A pre-hook that does nothing: where a hook is, PyTorch's layers call the module instead of a kernel."""


class MultiheadAttention(nn.MultiheadAttention):
    r"""A drop-in replacement for ``torch.nn.MultiheadAttention``.

    .. math::
        \mathrm{MultiHead}(Q, K, V) &= \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h) W^O \\
        \mathrm{head}_i &= \mathrm{Attention}(Q W_i^Q, K W_i^K, V W_i^V)

    Constructor, call, state dict, initialization and dropout (seed for seed) and errors are PyTorch's. So are the
    layout (**length first** unless ``batch_first=True``) and the meaning of PyTorch's mask arguments (**True =
    ignore**). Masks of this library, with True = may attend, go to ``mask=``.

    Intended differences:

    * A query that may attend to nothing yields zeros (before the bias of W^O), zero weights and zero gradients. PyTorch
      yields zeros or NaN, depending on ``need_weights``, the gradient mode and ``training``.
    * ``is_causal=True`` without ``attn_mask`` means causal. PyTorch raises an error, or ignores it in evaluation mode
      without gradients. Keys added by ``add_bias_kv`` and ``add_zero_attn`` stay visible.
    * :meth:`forward` always runs. ``torch.nn.TransformerEncoderLayer`` bypasses its attention module in evaluation mode
      without gradients unless a module in the layer has a forward hook, so this one has a pre-hook that does nothing.
    * W^O is called as the module ``out_proj``, so that hooks on it, or another layer in its place, take effect.
    * Nested tensors work in training mode too; the returned weights are padded.
    * Boolean and floating masks of any type may be combined without a warning.
    * ``torch.compile`` and ``torch.export`` work; TorchScript does not.

    With a boolean key padding mask and ``need_weights=False``, the fused kernel gets a mask of [batch, 1, 1, keys].
    With ``need_weights=True``, PyTorch's default, all scores are computed in memory.

    Args:
        embed_dim: width of queries and output.
        num_heads: number of query heads.
        dropout: probability of dropping a weight during training.
        bias: whether the projections have biases.
        add_bias_kv: whether a learned key and value follow the others.
        add_zero_attn: whether a zero key and a zero value follow.
        kdim: width of the keys (default: ``embed_dim``).
        vdim: width of the values (default: ``embed_dim``).
        batch_first: True: [batch, length, width]; False: [length, batch, width].
        device: device of the parameters.
        dtype: type of the parameters.
        num_kv_heads: number of key and value heads (default: ``num_heads``); fewer = grouped queries (Ainslie et al.
            2023). The parameters of keys and values are then num_kv_heads * head_dim wide, the only difference in the
            state dict.
        qkv_bias: whether W^Q, W^K and W^V have biases (default: ``bias``, which otherwise affects W^O alone).

    Raises:
        AssertionError: ``embed_dim`` is not a multiple of ``num_heads`` (raised by PyTorch).
        ValueError: one of them is not positive (raised by PyTorch).
        ConfigurationError: ``num_heads`` is not a multiple of ``num_kv_heads``.
    """

    mix: Callable[..., tuple[Tensor, Tensor | None]] = staticmethod(mix_heads)
    """Computes the heads; inside :func:`multihead.inspection.capture.capture`, another function does."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float | int = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        num_kv_heads: int | None = None,
        qkv_bias: bool | None = None,
    ) -> None:
        super().__init__(
            embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        )
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if self.num_kv_heads < 1 or num_heads % self.num_kv_heads:
            raise ConfigurationError(
                f"num_heads={num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}: every key head serves "
                "the same number of query heads"
            )
        if self.num_kv_heads != num_heads:
            self._narrow_keys()
        if qkv_bias is not None and qkv_bias != bias:
            width = embed_dim + 2 * self.head_dim * self.num_kv_heads
            new = nn.Parameter(self.out_proj.weight.new_zeros(width)) if qkv_bias else None
            self.register_parameter("in_proj_bias", new)
        self.register_forward_pre_hook(keep_forward)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copied or pickled module; one of version 0.1 has another flag, and no hook."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        if keep_forward not in self._forward_pre_hooks.values():
            self.register_forward_pre_hook(keep_forward)

    def _narrow_keys(self) -> None:
        """Replace the parameters of keys and values with smaller ones, newly initialized."""
        kv_width = self.head_dim * self.num_kv_heads
        packed = self.embed_dim + 2 * kv_width
        sizes = {"in_proj_weight": packed, "in_proj_bias": packed, "k_proj_weight": kv_width, "v_proj_weight": kv_width}
        for name, rows in sizes.items():
            if getattr(self, name) is not None:
                setattr(self, name, nn.Parameter(getattr(self, name).data[:rows].clone()))
        for name in ("bias_k", "bias_v"):
            if getattr(self, name) is not None:
                setattr(self, name, nn.Parameter(getattr(self, name).data[..., :kv_width].clone()))
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        """Initialize like PyTorch: Xavier-uniform for each stored matrix, zero biases, Xavier-normal extra keys."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                nn.init.zeros_(bias)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                nn.init.xavier_normal_(extra)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> MultiheadAttention:
        """A drop-in that shares the parameters (no copies) and the settings of PyTorch's module.

        A module that is a drop-in already is returned as it is.

        ``layer.self_attn = MultiheadAttention.from_torch(layer.self_attn)`` replaces the module of an existing network;
        an optimizer that holds its parameters stays valid.

        Raises:
            ConfigurationError: a matrix is pruned or parametrized, so it is computed and no parameter.
        """
        if isinstance(module, cls):
            return module
        new = cls(
            module.embed_dim,
            module.num_heads,
            module.dropout,
            bias=module.out_proj.bias is not None,
            add_bias_kv=module.bias_k is not None,
            add_zero_attn=module.add_zero_attn,
            kdim=module.kdim,
            vdim=module.vdim,
            batch_first=module.batch_first,
            device="meta",
            qkv_bias=module.in_proj_bias is not None,
        )
        for name, _ in list(new.named_parameters(recurse=False)):
            setattr(new, name, _own_parameter(module, name))
        new.out_proj = module.out_proj
        return new.train(module.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        mask: Mask | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention with PyTorch's arguments, and two further ones.

        Args:
            query: [queries, batch, embed_dim], or [batch, queries, embed_dim] with ``batch_first``. All inputs may lack
                the batch axis; they are then one sentence.
            key: [keys, batch, kdim].
            value: [keys, batch, vdim].
            key_padding_mask: [batch, keys], **True = ignore**; a floating mask is added to the scores.
            need_weights: return the weights.
            attn_mask: [queries, keys] or [batch * heads, queries, keys], **True = ignore**; a floating mask is added to
                the scores.
            average_attn_weights: return the mean over heads instead of the weights of every head.
            is_causal: without ``attn_mask``: no query attends to a later key. With ``attn_mask``: PyTorch's hint, a
                promise that ``attn_mask`` is the causal mask, which is then not read unless weights are returned or
                there is a key padding mask.
            mask: a mask of this library, **True = may attend**; a key must be allowed by all masks.
            bias: added to the scores, [queries, keys] or four axes that broadcast to [batch, heads, queries, keys].

        Returns:
            The output, laid out like the query, and the weights after dropout, [batch, queries, keys] or [batch,
            heads, queries, keys], or None.

        Raises:
            DropInError: where PyTorch raises an AssertionError; a subclass of it and of ShapeError.
            DropInSizeError: where PyTorch raises a RuntimeError; a subclass of it and of ShapeError.
            MaskError: a `Mask` is passed in place of a tensor.
        """
        masks = Masks(key_padding_mask, attn_mask, is_causal, mask, bias)
        check_types(masks)
        if query.is_nested or key.is_nested or value.is_nested:
            expect(
                key_padding_mask is None and attn_mask is None,
                "nested tensors know their lengths: pass neither key_padding_mask nor attn_mask",
            )
            return self._nested((query, key, value), masks, need_weights, average_attn_weights)
        return self._dense((query, key, value), masks, need_weights, average_attn_weights)

    def _dense(
        self, inputs: tuple[Tensor, Tensor, Tensor], masks: Masks, need_weights: bool, average_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        check_ranks(*inputs, masks, self.num_heads)
        batched, batch_axis = inputs[0].dim() == 3, 0 if self.batch_first else 1
        if not batched:
            inputs, masks = insert_batch(*inputs, axis=batch_axis), masks.unsqueeze()
        heads, weights = attend(
            *inputs,
            self._collect(),
            masks,
            batch_first=self.batch_first,
            dropout_p=float(self.dropout) if self.training else 0.0,
            need_weights=need_weights,
            mix=self.mix,
        )
        output: Tensor = self.out_proj(heads)
        if weights is not None and average_weights:
            weights = weights.mean(1)
        if batched:
            return output, weights
        return output.squeeze(batch_axis), None if weights is None else weights.squeeze(0)

    def _collect(self) -> AttentionParameters:
        packed, separate = self.in_proj_weight, None
        if packed is None:
            separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        projection = InProjection(packed, separate, self.in_proj_bias)
        extra = ExtraKeys(self.bias_k, self.bias_v, self.add_zero_attn)
        return AttentionParameters(self.embed_dim, self.num_heads, self.num_kv_heads, projection, extra)

    def _nested(
        self, inputs: tuple[Tensor, Tensor, Tensor], masks: Masks, need_weights: bool, average_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Nested tensors: padded, attended to with a `Padding` mask, and nested again."""
        query, key, value = inputs
        expect(all(x.is_nested for x in inputs), "query, key and value must all be nested tensors, or none of them")
        expect(self.batch_first, "nested tensors are batch first: construct the module with batch_first=True")
        check_ranks(*inputs, masks, self.num_heads)
        queries, q_lengths = _pad(query)
        keys, lengths = (queries, q_lengths) if key is query else _pad(key)
        values = keys if value is key else _pad(value)[0]
        padding = Padding(lengths, q_lengths)
        masks = masks._replace(mask=padding if masks.mask is None else padding & masks.mask)
        output, weights = self._dense((queries, keys, values), masks, need_weights, average_weights)
        rows = [row[:length] for row, length in zip(output, q_lengths, strict=True)]
        if query.layout == torch.jagged:  # keep the offsets of the query: without them the two cannot be added
            offsets: Tensor = query.offsets()  # type: ignore[attr-defined]
            return torch.nested.nested_tensor_from_jagged(torch.cat(rows), offsets=offsets), weights
        return torch.nested.as_nested_tensor(rows), weights

    def extra_repr(self) -> str:
        layout = "[BATCH, LENGTH, width]" if self.batch_first else "[LENGTH, BATCH, width], length first"
        heads = f"{self.num_heads}" if self.num_kv_heads == self.num_heads else f"{self.num_heads}/{self.num_kv_heads}"
        return (
            f"{self.embed_dim}, heads={heads}, dropout={self.dropout}, batch_first={self.batch_first}: takes {layout}"
        )


def _own_parameter(module: nn.MultiheadAttention, name: str) -> nn.Parameter:
    """A parameter by its name; ``named_parameters`` would leave out the second name of a tied one.

    Raises:
        ConfigurationError: there is another tensor.
    """
    own = getattr(module, name)
    if not isinstance(own, nn.Parameter):
        raise ConfigurationError(
            f"{name} is a {type(own).__name__}, expected a parameter to share: remove the pruning or parametrization "
            f"first, by torch.nn.utils.prune.remove(module, {name!r}) or "
            f"torch.nn.utils.parametrize.remove_parametrizations(module, {name!r})"
        )
    return own


def _pad(nested: Tensor) -> tuple[Tensor, list[int]]:
    sentences = nested.unbind()
    return pad_sequence(list(sentences), batch_first=True), [sentence.size(0) for sentence in sentences]
