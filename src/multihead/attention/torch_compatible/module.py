"""`MultiheadAttention`: what ``torch.nn.MultiheadAttention`` is, on our attention.

For networks that exist already. New ones are better built with
:class:`multihead.attention.multihead.MultiHeadAttention`, which is batch first, has one meaning of masks and keeps a
decoder's cache. The computation is in :mod:`multihead.attention.torch_compatible.functional`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from multihead.attention.masks import Mask, Padding
from multihead.attention.torch_compatible.arguments import check_mask_types, check_ranks, expect
from multihead.attention.torch_compatible.functional import Heads, attend, insert_batch
from multihead.attention.torch_compatible.projection import ExtraKeys, InProjection
from multihead.errors import ConfigurationError


class MultiheadAttention(nn.MultiheadAttention):
    r"""A drop-in for ``torch.nn.MultiheadAttention``: put it in that class's place and change nothing else.

    .. math::
        \mathrm{MultiHead}(Q, K, V) &= \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h) W^O \\
        \mathrm{head}_i &= \mathrm{Attention}(Q W_i^Q, K W_i^K, V W_i^V)

    Constructor, call, state dict, first values (seed for seed), dropout (seed for seed) and errors are PyTorch's, and
    so are, at this door only, its layout (**length first** unless ``batch_first=True``) and the meaning of its masks
    (**True = ignore**). Our own masks, with True = may attend, go to ``mask=``.

    What differs, on purpose:

    * A query that may attend to nothing yields zeros (before W^O's bias), zero weights and zero gradients. PyTorch
      yields zeros or NaN, depending on ``need_weights``, the gradient mode and ``training``.
    * ``is_causal=True`` without ``attn_mask`` means causal. PyTorch raises an error, or ignores it when evaluating
      without gradients. Keys that ``add_bias_kv`` and ``add_zero_attn`` add stay visible.
    * It is always our :meth:`forward` that computes. ``torch.nn.TransformerEncoderLayer`` goes around its attention
      module when evaluating without gradients, unless that module says ``_qkv_same_embed_dim=False``: this one says
      so, whatever its widths. (``torch.nn.TransformerEncoder`` remarks on it with a warning, unless it is given
      ``enable_nested_tensor=False``; whether the matrices are packed is ``in_proj_weight is not None``.)
    * W^O is called as the module ``out_proj``, so that hooks on it, or another layer in its place, take effect.
    * Nested tensors are taken while training too; the weights come back padded.
    * Boolean and floating masks may be given together without a warning, in any floating type.
    * TorchScript cannot compile it; ``torch.compile`` and ``torch.export`` can.

    With a key padding mask of True and False and ``need_weights=False`` the fused kernel gets a mask of
    [batch, 1, 1, keys], the least there is; with ``need_weights=True``, PyTorch's default, scores are written out.

    Args:
        embed_dim: width of queries and output.
        num_heads: heads of the queries.
        dropout: the probability with which a weight is dropped while training.
        bias: whether the projections add one.
        add_bias_kv: whether a learned key and value follow the others.
        add_zero_attn: whether a key and a value of zeros follow.
        kdim: width of the keys (default: ``embed_dim``).
        vdim: width of the values (default: ``embed_dim``).
        batch_first: True: [batch, length, width]; False: [length, batch, width].
        device: where the parameters are made.
        dtype: their type.
        num_kv_heads: heads of keys and values (default: as many); fewer = grouped queries (Ainslie et al. 2023).
            The parameters of keys and values are then num_kv_heads * head_dim wide, and the state dict differs in
            that alone.
        qkv_bias: whether W^Q, W^K and W^V add a bias (default: as ``bias``, which then is W^O's alone).

    Raises:
        AssertionError: ``embed_dim`` is not a multiple of ``num_heads`` (PyTorch's own).
        ValueError: one of them is not positive (PyTorch's own).
        ConfigurationError: ``num_heads`` is not a multiple of ``num_kv_heads``.
    """

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
        # What makes PyTorch's layers call `forward` (see above). The base class reads it in its own forward only.
        self._qkv_same_embed_dim = False

    def _narrow_keys(self) -> None:
        """Parameters of keys and values for fewer heads, with first values of their own."""
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
        """PyTorch's first values: Xavier-uniform of each stored matrix, biases zero, extra keys Xavier-normal."""
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
        """The drop-in with the very parameters (not copies) and the settings of PyTorch's module.

        A module that is the drop-in already is handed back.

        ``layer.self_attn = MultiheadAttention.from_torch(layer.self_attn)`` exchanges the one in an existing network;
        an optimiser that holds its parameters goes on with them.
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
        for name, parameter in module.named_parameters(recurse=False):
            setattr(new, name, parameter)
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
        """Attention, with PyTorch's arguments, and two of ours.

        Args:
            query: [queries, batch, embed_dim], or [batch, queries, embed_dim] with ``batch_first``; without the batch
                axis it is one sentence (this holds for all inputs).
            key: [keys, batch, kdim].
            value: [keys, batch, vdim].
            key_padding_mask: [batch, keys], **True = ignore**; numbers are added to the scores.
            need_weights: return the weights.
            attn_mask: [queries, keys] or [batch * heads, queries, keys], **True = ignore**; numbers are added.
            average_attn_weights: whether to return the mean over heads or every head's weights.
            is_causal: alone: no query sees a later key. With ``attn_mask``: PyTorch's hint, the promise that it is
                that very mask, which is then not read if neither weights nor a key padding mask are wanted.
            mask: one of our masks, **True = may attend**; what it forbids is forbidden whatever the others say.
            bias: added to the scores, [queries, keys] or four axes that broadcast to [batch, heads, queries, keys].

        Returns:
            The output, laid out like the query, and the weights after dropout, [batch, queries, keys] or [batch,
            heads, queries, keys], or None.

        Raises:
            DropInError: where PyTorch raises an AssertionError; it is one, and a ShapeError.
            DropInSizeError: where PyTorch raises a RuntimeError; it is one, and a ShapeError.
            MaskError: a mask in the wrong place.
        """
        check_mask_types(key_padding_mask=key_padding_mask, attn_mask=attn_mask)
        if query.is_nested or key.is_nested or value.is_nested:
            expect(
                key_padding_mask is None and attn_mask is None,
                "nested tensors know their lengths: neither key_padding_mask nor attn_mask goes with them",
            )
            return self._nested((query, key, value), need_weights, average_attn_weights, is_causal, mask, bias)
        return self._dense(
            (query, key, value),
            need_weights,
            average_attn_weights,
            is_causal,
            mask,
            bias,
            key_padding_mask=key_padding_mask,
            attn_mask=attn_mask,
        )

    def _dense(
        self,
        inputs: tuple[Tensor, Tensor, Tensor],
        need_weights: bool,
        average_attn_weights: bool,
        is_causal: bool,
        mask: Mask | None,
        bias: Tensor | None,
        *,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        batched = check_ranks(*inputs, key_padding_mask, attn_mask, self.num_heads)
        batch_axis = 0 if self.batch_first else 1
        if not batched:
            inputs = insert_batch(*inputs, axis=batch_axis)
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        heads, weights = attend(
            *inputs,
            self._projection(),
            ExtraKeys(self.bias_k, self.bias_v, self.add_zero_attn),
            Heads(self.num_heads, self.num_kv_heads),
            width=self.embed_dim,
            batch_first=self.batch_first,
            dropout_p=float(self.dropout) if self.training else 0.0,
            key_padding_mask=key_padding_mask,
            attn_mask=attn_mask,
            is_causal=is_causal,
            mask=mask,
            bias=bias,
            need_weights=need_weights,
        )
        output: Tensor = self.out_proj(heads)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if batched:
            return output, weights
        return output.squeeze(batch_axis), None if weights is None else weights.squeeze(0)

    def _projection(self) -> InProjection:
        if self.in_proj_weight is not None:
            return InProjection(self.in_proj_weight, None, self.in_proj_bias)
        return InProjection(None, (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight), self.in_proj_bias)

    def _nested(
        self,
        inputs: tuple[Tensor, Tensor, Tensor],
        need_weights: bool,
        average_attn_weights: bool,
        is_causal: bool,
        mask: Mask | None,
        bias: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Sentences of their own lengths: padded, attended to with a `Padding` mask, and packed again."""
        query, key, value = inputs
        expect(all(x.is_nested for x in inputs), "query, key and value must all be nested tensors, or none of them")
        expect(self.batch_first, "nested tensors are batch first: make the module with batch_first=True")
        queries, q_lengths = _pad(query)
        keys, lengths = (queries, q_lengths) if key is query else _pad(key)
        values = keys if value is key else _pad(value)[0]
        words = Padding(lengths, q_lengths)
        mask = words if mask is None else words & mask
        output, weights = self._dense(
            (queries, keys, values), need_weights, average_attn_weights, is_causal, mask, bias
        )
        rows = [row[:length] for row, length in zip(output, q_lengths, strict=True)]
        if query.layout == torch.jagged:  # with the query's own offsets: only then may the two be added
            offsets: Tensor = query.offsets()  # type: ignore[attr-defined]
            return torch.nested.nested_tensor_from_jagged(torch.cat(rows), offsets=offsets), weights
        return torch.nested.as_nested_tensor(rows), weights

    def extra_repr(self) -> str:
        """What ``print(module)`` shows; the layout above all."""
        layout = "[BATCH, LENGTH, width]" if self.batch_first else "[LENGTH, BATCH, width], length first"
        heads = f"{self.num_heads}" if self.num_kv_heads == self.num_heads else f"{self.num_heads}/{self.num_kv_heads}"
        return (
            f"{self.embed_dim}, heads={heads}, dropout={self.dropout}, batch_first={self.batch_first}: takes {layout}"
        )


def _pad(nested: Tensor) -> tuple[Tensor, list[int]]:
    sentences = nested.unbind()
    return pad_sequence(list(sentences), batch_first=True), [sentence.size(0) for sentence in sentences]
