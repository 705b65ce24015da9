"""The standard masks: padding, causal, sliding window, prefix.

``Padding(lengths)`` is the usual mask of a batch. Lengths given as plain numbers stay known on the host, where backends
that skip the padding find them without asking a device. `KnownPadding` keeps what stands in the padding from spreading.

If there are more keys than queries, the queries are the last positions: query q is at key q + kv_len - q_len, as in a
decoder with a cache of keys. Only ``Causal(align="start")`` differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.attention.masks.algebra import Device, Mask, Not, Rule
from multihead.attention.masks.intervals import Intervals, band
from multihead.errors import ConfigurationError, MaskError, ShapeError


class Padding(Mask):
    """Only the first ``lengths[b]`` keys of sentence b are words; what follows is padding on the right.

    Args:
        lengths: [batch], integers, as a tensor or as plain numbers. Plain numbers stay known on the host
            (``host_lengths``), where backends can use them without asking the device. A tensor is copied, because a
            mask is a value.
        q_lengths: [batch], the same for the queries: those beyond attend to nothing and yield exact zeros. Without it
            the output of padded queries is meaningless.

    Raises:
        MaskError: the lengths are not integers.
        ShapeError: they do not have one axis, or their numbers differ.
    """

    def __init__(self, lengths: Tensor | Sequence[int], q_lengths: Tensor | Sequence[int] | None = None) -> None:
        self.lengths, self.host_lengths = as_lengths(lengths, "lengths")
        self.q_lengths: Tensor | None = None
        self.host_q_lengths: tuple[int, ...] | None = None
        if q_lengths is not None:
            self.q_lengths, self.host_q_lengths = as_lengths(q_lengths, "q_lengths")
            if self.q_lengths.shape != self.lengths.shape:
                raise ShapeError(
                    f"lengths has shape {list(self.lengths.shape)} and q_lengths "
                    f"{list(self.q_lengths.shape)}: give one of each for every sentence"
                )

    @classmethod
    def from_ids(cls, ids: Int[Tensor, "batch length"], pad_id: int) -> Padding:
        """The padding of a batch of token ids. Reads the values, to check that the padding is on the right.

        Raises:
            MaskError: ``pad_id`` occurs before or between words.
        """
        return cls(_right_padded_lengths(ids != pad_id))

    @classmethod
    def from_key_padding_mask(cls, mask: Tensor) -> Padding:
        """The mask of a ``key_padding_mask`` of ``torch.nn.MultiheadAttention``: Bool [batch, length], True = ignore.

        Raises:
            MaskError: not boolean, not two axes, or the ignored keys are not all on the right.
        """
        if mask.dtype != torch.bool or mask.dim() != 2:
            raise MaskError(
                f"got a {mask.dtype} mask of shape {list(mask.shape)}; a key padding mask is boolean "
                "[batch, length] with True = ignore (for integers where 1 means ignore: mask == 1)"
            )
        return cls(_right_padded_lengths(~mask))

    @property
    def device(self) -> torch.device | None:
        """The device of ``lengths``."""
        return self.lengths.device

    @property
    def sizes(self) -> tuple[int | None, int | None]:
        """One sentence per length; any number of heads."""
        return self.lengths.shape[0], 1

    def rule(self, q_len: int, kv_len: int, device: Device = None) -> Rule:  # noqa: ARG002
        """k < lengths[b], and q < q_lengths[b] if those are given."""
        device = self.device if device is None else device
        lengths, many = self.lengths.to(device), int(len(self.lengths) > 1)  # a single length is that of every sentence
        if self.q_lengths is None:
            return lambda b, h, q, k: k < lengths[b * many]  # noqa: ARG005
        q_lengths = self.q_lengths.to(device)
        return lambda b, h, q, k: (k < lengths[b * many]) & (q < q_lengths[b * many])  # noqa: ARG005

    def dense(
        self,
        q_len: int,
        kv_len: int,
        device: Device = None,
        *,
        batch: int = 1,  # noqa: ARG002
        heads: int = 1,  # noqa: ARG002
    ) -> Bool[Tensor, "b h q k"]:
        """[batch, 1, 1, kv_len]; with ``q_lengths`` [batch, 1, q_len, kv_len]."""
        keys = self.words(kv_len, device)
        queries = self.query_words(q_len, device)
        return keys if queries is None else keys & queries

    def words(self, kv_len: int, device: Device = None) -> Bool[Tensor, "batch 1 1 {kv_len}"]:
        """Which keys are words."""
        device = self.device if device is None else device
        return sequence_mask(self.lengths.to(device), kv_len)[:, None, None, :]

    def query_words(self, q_len: int, device: Device = None) -> Bool[Tensor, "batch 1 {q_len} 1"] | None:
        """Which queries are words; None without ``q_lengths``."""
        if self.q_lengths is None:
            return None
        device = self.device if device is None else device
        return sequence_mask(self.q_lengths.to(device), q_len)[:, None, :, None]

    def intervals(self, q_len: int, kv_len: int) -> Intervals | None:  # noqa: ARG002
        """[0, length), and nothing from ``q_lengths`` on, if all of them are known on the host."""
        if self.host_lengths is None or (self.q_lengths is not None and self.host_q_lengths is None):
            return None
        high = np.array(self.host_lengths, dtype=np.int64)[:, None]
        if self.host_q_lengths is not None:
            high = np.where(np.arange(q_len) < np.array(self.host_q_lengths)[:, None], high, 0)
        return Intervals(np.zeros((1, 1), np.int64), high)

    def __repr__(self) -> str:
        numbers = self.lengths.tolist() if self.host_lengths is None else list(self.host_lengths)
        if self.q_lengths is None:
            return f"Padding({numbers})"
        return f"Padding({numbers}, q_lengths={self.q_lengths.tolist()})"


def sequence_mask(lengths: Int[Tensor, " batch"], max_len: int | None = None) -> Bool[Tensor, "batch length"]:
    """The padding mask as a tensor: True at the first ``lengths[b]`` of ``max_len`` positions.

    By default ``max_len`` is the largest length, which is read from the device.
    """
    size = int(lengths.max()) if max_len is None else max_len
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def zero_padding(
    x: Float[Tensor, "batch length *axes"], lengths: Int[Tensor, " batch"]
) -> Float[Tensor, "batch length *axes"]:
    """``x`` with zeros from position ``lengths[b]`` on, whatever was there (NaN and infinity too); the same shape.

    For the *inputs* of a network in training. Attention keeps garbage in the padding out of its own outputs and
    gradients, but the weight gradient x^T y' of a projection is NaN if x holds a NaN, even where y' = 0.
    """
    words = sequence_mask(lengths, x.shape[1])
    return x.masked_fill(~words.view(*words.shape, *([1] * (x.dim() - 2))), 0)


class KnownPadding:
    """Where keys and queries are padding, as far as lengths in a mask say so: Padding and ~Padding under ``&``.

    Args:
        mask: any mask.
    """

    def __init__(self, mask: Mask | None) -> None:
        parts = () if mask is None else mask.conjuncts
        self.right = [part for part in parts if isinstance(part, Padding)]
        # The complement is padding on the left; with q_lengths it does not concern the keys alone.
        inner = [part.inner for part in parts if isinstance(part, Not)]
        self.left = [part for part in inner if isinstance(part, Padding) and part.q_lengths is None]

    @property
    def exists(self) -> bool:
        """Whether the mask has lengths."""
        return bool(self.right or self.left)

    @property
    def of_queries(self) -> bool:
        """Whether the mask has lengths of queries too."""
        return any(part.q_lengths is not None for part in self.right)

    def hide(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value [batch, heads, length, dim] with zeros in place of the padding. Differentiable."""
        kv_len, q_len, device = key.shape[2], query.shape[2], key.device
        words_left = [~part.words(kv_len, device) for part in self.left]
        for words in [part.words(kv_len, device) for part in self.right] + words_left:
            absent = ~words.transpose(2, 3)  # [batch, 1, key, 1]
            key, value = key.masked_fill(absent, 0), value.masked_fill(absent, 0)
        for part in self.right:
            q_words = part.query_words(q_len, device)
            query = query if q_words is None else query.masked_fill(~q_words, 0)
        return query, key, value


def as_lengths(lengths: Tensor | Sequence[int], name: str) -> tuple[Tensor, tuple[int, ...] | None]:
    """The lengths as a tensor [batch], and as plain numbers if they were given so.

    Raises:
        MaskError: they are not integers.
        ShapeError: they do not have one axis.
    """
    host = None
    if not isinstance(lengths, Tensor):
        if not all(isinstance(length, Integral) for length in lengths):
            raise MaskError(f"{name} must be integers, got {list(lengths)}")
        host = tuple(int(length) for length in lengths)
        lengths = torch.tensor(host, dtype=torch.long)
    if lengths.dtype == torch.bool or lengths.is_floating_point() or lengths.is_complex():
        raise MaskError(
            f"{name} must be integers, one a sentence, got {lengths.dtype}; for a boolean mask [batch, keys] "
            "where True = may attend write Dense(mask[:, None, None, :])"
        )
    if lengths.dim() != 1:
        raise ShapeError(f"{name} must have the shape [batch], got {list(lengths.shape)}")
    return lengths if host is not None else lengths.clone(), host


def _right_padded_lengths(words: Bool[Tensor, "batch length"]) -> Int[Tensor, " batch"]:
    lengths = words.sum(dim=1)
    wrong = (sequence_mask(lengths, words.shape[1]) != words).any(dim=1)
    if bool(wrong.any()):
        raise MaskError(
            f"row {int(wrong.nonzero()[0])} has padding before or between words, but Padding is padding on "
            "the right. For `pad` positions of padding on the left write ~Padding(pad); for any other "
            "pattern Dense(words[:, None, None, :]) with True = word"
        )
    return lengths


class Causal(Mask):
    """No query sees a later key.

    Args:
        align: which ends of queries and keys coincide when there are more keys than queries. ``"end"``: the last query
            is at the last key (k <= q + kv_len - q_len), which cached decoding needs. ``"start"``: the first query is
            at the first key (k <= q), as with PyTorch's ``is_causal``. Equal when q_len == kv_len.
    """

    def __init__(self, align: Literal["end", "start"] = "end") -> None:
        if align not in ("end", "start"):
            raise ConfigurationError(f"align={align!r}: a causal mask is aligned at 'end' or at 'start'")
        self.align = align

    def _offset(self, q_len: int, kv_len: int) -> int:
        return kv_len - q_len if self.align == "end" else 0

    def rule(self, q_len: int, kv_len: int, device: Device = None) -> Rule:
        """k <= q + offset."""
        offset = _captured(self._offset(q_len, kv_len), device)
        return lambda b, h, q, k: k <= q + offset  # noqa: ARG005

    def dense(
        self,
        q_len: int,
        kv_len: int,
        device: Device = None,
        *,
        batch: int = 1,  # noqa: ARG002
        heads: int = 1,  # noqa: ARG002
    ) -> Bool[Tensor, "b h q k"]:
        """[1, 1, q_len, kv_len]."""
        offset = self._offset(q_len, kv_len)
        return torch.ones(1, 1, q_len, kv_len, dtype=torch.bool, device=device).tril(offset)

    def intervals(self, q_len: int, kv_len: int) -> Intervals:
        """[0, q + offset]."""
        if self.align == "end":
            return band(q_len, kv_len, None, 0)
        return Intervals(np.zeros((1, 1), np.int64), np.arange(1, q_len + 1, dtype=np.int64)[None, :])

    def __repr__(self) -> str:
        return "Causal()" if self.align == "end" else "Causal(align='start')"


class SlidingWindow(Mask):
    """A query sees itself, ``left`` keys before it and ``right`` after it (Beltagy et al. 2020, section 3.1).

    The sizes are those of FlashAttention and of PyTorch's ``varlen_attn``: ``SlidingWindow(w)`` has w + 1 keys.
    The ``sliding_window=w`` of Hugging Face and Mistral counts the query itself: it is ``SlidingWindow(w - 1)``.

    Args:
        left: the number of keys before the query.
        right: the number of keys after it; 0 = none of the future.

    Raises:
        ConfigurationError: a size is not a whole number, or is negative.
    """

    def __init__(self, left: int, right: int = 0) -> None:
        for name, size in (("left", left), ("right", right)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                raise ConfigurationError(
                    f"{name}={size!r}: a window reaches a whole number of keys, 0 or more. For one without a left "
                    "end write Causal(), for one without any Full()"
                )
        self.left, self.right = left, right

    def rule(self, q_len: int, kv_len: int, device: Device = None) -> Rule:
        """q + offset - left <= k <= q + offset + right."""
        offset, left, right = _captured(kv_len - q_len, device), self.left, self.right
        return lambda b, h, q, k: (k >= q + offset - left) & (k <= q + offset + right)  # noqa: ARG005

    def intervals(self, q_len: int, kv_len: int) -> Intervals:
        """[q + offset - left, q + offset + right]."""
        return band(q_len, kv_len, self.left, self.right)

    def __repr__(self) -> str:
        return f"SlidingWindow({self.left})" if self.right == 0 else f"SlidingWindow({self.left}, {self.right})"


class PrefixLM(Mask):
    """All queries see the first ``lengths[b]`` keys, and no other later key (Raffel et al. 2020, section 3.2.1).

    With padding: ``PrefixLM(prefix) & Padding(lengths)``.

    Args:
        lengths: [batch], the length of each sentence's prefix, as a tensor or as plain numbers.

    Raises:
        MaskError: the lengths are not integers.
        ShapeError: they do not have one axis.
    """

    def __init__(self, lengths: Tensor | Sequence[int]) -> None:
        self.lengths, self.host_lengths = as_lengths(lengths, "lengths")

    @property
    def device(self) -> torch.device | None:
        """The device of ``lengths``."""
        return self.lengths.device

    @property
    def sizes(self) -> tuple[int | None, int | None]:
        """One sentence per length; any number of heads."""
        return self.lengths.shape[0], 1

    def rule(self, q_len: int, kv_len: int, device: Device = None) -> Rule:
        """k < lengths[b], or k <= q + offset."""
        device = self.device if device is None else device
        lengths, offset = self.lengths.to(device), _captured(kv_len - q_len, device)
        many = int(len(self.lengths) > 1)
        return lambda b, h, q, k: (k < lengths[b * many]) | (k <= q + offset)  # noqa: ARG005

    def intervals(self, q_len: int, kv_len: int) -> Intervals | None:
        """[0, max(prefix, q + offset + 1)), if the prefixes are known on the host."""
        if self.host_lengths is None:
            return None
        causal = band(q_len, kv_len, None, 0)
        return Intervals(causal.low, np.maximum(np.array(self.host_lengths, dtype=np.int64)[:, None], causal.high))

    def __repr__(self) -> str:
        return f"PrefixLM({self.lengths.tolist() if self.host_lengths is None else list(self.host_lengths)})"


def _captured(offset: int, device: Device) -> Tensor:
    """The offset as a tensor: compiled kernels are specialized to plain numbers that a rule captures."""
    return torch.full((), offset, device=device)
