r"""Attention sinks and registers: where weight goes that nothing needs.

    learned sink    a_n = exp s_n / (exp z_h + sum_m exp s_m)     a logit z_h for each head; gpt-oss (OpenAI 2025)
    registers       x_1 .. x_N -> r_1 .. r_R x_1 .. x_N           learned tokens r; Darcet et al. 2024, section 2.2

A softmax must spend a weight of 1. Trained models spend it on tokens that say little, the first ones or the background,
when there is nothing to attend to (Xiao et al. 2024). The mask that keeps the first keys in a sliding window is
`multihead.attention.masks.FirstKeys`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from multihead.attention.backends.call import dense_bias, describe_call
from multihead.attention.backends.long import MANY, Long, LongPlan
from multihead.attention.biases import Bias, ScoreRule
from multihead.attention.functional import BackendName, attention, plan_of, run_plan
from multihead.attention.masks import Mask, Padding, Rule
from multihead.attention.masks.algebra import Derived
from multihead.attention.masks.standard import KnownPadding
from multihead.errors import ConfigurationError, MaskError, ShapeError


def sink_attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    sink: Float[Tensor, " heads"],
    *,
    mask: Mask | None = None,
    bias: Float[Tensor, ...] | Bias | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = False,
    soft_cap: float | None = None,
    backend: BackendName = "auto",
) -> tuple[Float[Tensor, "batch heads query value_dim"], Float[Tensor, "batch heads query key"] | None]:
    r"""Scaled dot-product attention with one more term in the denominator of the softmax.

    .. math::
        a_n = \frac{\exp s_n}{\exp z_h + \sum_m \exp s_m}

    It is `multihead.attention.attention` with one more key, whose score is z_h and whose value is 0, so every backend
    that takes a bias computes it. z_h = 0 is "softmax one"; z_h = -inf is no sink.

    Long sequences on a CPU, with masks that our compiled kernel takes (``backend="long"``), need memory linear in the
    length, and so does ``backend="flex"``. For other backends the logits are a bias, and a kernel takes mask and bias
    as one tensor. With a mask that differs from query to query, such as ``Causal()``, its shape is [1 or batch, heads,
    queries, keys + 1].

    Args:
        query: Q.
        key: K.
        value: V.
        sink: z, one logit for each head, usually a parameter.
        mask: as there. The sink is always seen, and a query that sees nothing else yields zeros.
        bias: as there.
        scale: as there.
        dropout_p: as there.
        need_weights: return the weights too.
        soft_cap: as there, of the scores of keys; the sink's is z.
        backend: as there.

    Returns:
        The output, and the weights of the keys, whose rows sum to less than 1, or None.

    Raises:
        ShapeError: tensors, sink, mask or bias do not fit together.
    """
    heads, kv_len = query.shape[1], key.shape[2]
    if sink.shape != (heads,):
        raise ShapeError(f"the sink has shape {list(sink.shape)}; give one logit for each of the {heads} heads")
    # Before both are put together, so that errors name what was given.
    call = describe_call(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        dropout_p=dropout_p,
        need_weights=need_weights,
        soft_cap=soft_cap,
    )
    long = backend == "auto" and Long().refuse(call) is None and query.shape[2] * kv_len >= MANY
    if long or backend == "long":
        plan = plan_of(call, "long")
        assert isinstance(plan, LongPlan)
        return run_plan(replace(plan, sink=sink), query, key, value, mask, bias, scale, dropout_p)[0], None
    if mask is not None:
        query, key, value = KnownPadding(mask).hide(query, key, value)
    logits = sink.to(query.dtype)
    given: Tensor | Bias
    if backend in ("flex", "flex_eager") and not isinstance(bias, Tensor):
        given = _SinkRule(logits if torch.is_grad_enabled() else logits.detach(), bias, kv_len)
    else:
        given = _with_sink(logits, bias, query, key)
    output, weights = attention(
        query,
        F.pad(key, (0, 0, 0, 1)),
        F.pad(value, (0, 0, 0, 1)),
        mask=None if mask is None else _AndOneMore(mask),
        bias=given,
        scale=scale,
        dropout_p=dropout_p,
        need_weights=need_weights,
        soft_cap=soft_cap,
        backend=backend,
    )
    return output, None if weights is None else weights[..., :-1]


def _with_sink(
    sink: Float[Tensor, " heads"], bias: Tensor | Bias | None, query: Tensor, key: Tensor
) -> Float[Tensor, "rows heads queries keys_and_sink"]:
    """The bias as a tensor, with the sink's logits as the last column."""
    term = query.new_zeros(1, 1, 1, 1) if bias is None else dense_bias(bias, query, key)
    assert term is not None
    term = (term[None, None] if term.dim() == 2 else term).to(query.dtype)
    (rows, _, queries, _), heads = term.shape, len(sink)
    columns = term.expand(rows, heads, queries, key.shape[2])
    return torch.cat((columns, sink.view(1, heads, 1, 1).expand(rows, heads, queries, 1)), dim=-1)


class _SinkRule(Bias):
    """Another bias, and the sink's logits for one more key, the last one: a rule without a tensor of scores."""

    def __init__(self, sink: Float[Tensor, " heads"], inner: Bias | None, last: int) -> None:
        self.heads, self.sink, self.inner, self.last = len(sink), sink, inner, last

    def at(self, queries: Int[Tensor, " query"], keys: Int[Tensor, " key"]) -> Float[Tensor, "1 heads query key"]:
        """Queries are one place farther than in the other bias, which has one key less."""
        own = self.sink.view(1, -1, 1, 1).expand(1, -1, len(queries), len(keys))
        if self.inner is None:
            return torch.where(keys == self.last, own, torch.zeros_like(own))
        return torch.where(keys == self.last, own, self.inner.at(queries - 1, keys.clamp(max=self.last - 1)))

    @property
    def learned(self) -> bool:
        return self.sink.requires_grad or (self.inner is not None and self.inner.learned)

    def score_rule(self, q_len: int, kv_len: int, device: torch.device | str | None = None) -> ScoreRule:
        sink, last = self.sink, torch.full((), kv_len - 1, device=device)  # a tensor, as in the mask
        if self.inner is None:
            return lambda score, b, h, q, k: torch.where(k == last, sink[h].to(score.dtype), score)  # noqa: ARG005
        inner = self.inner.score_rule(q_len, kv_len - 1, device)
        return lambda score, b, h, q, k: torch.where(
            k == last, sink[h].to(score.dtype), inner(score, b, h, q, torch.minimum(k, last - 1))
        )

    def __repr__(self) -> str:
        return "a sink" if self.inner is None else f"{self.inner!r} and a sink"


class _AndOneMore(Derived):
    """Another mask, and one more key, the last one, that every query sees."""

    def rule(self, q_len: int, kv_len: int, device: torch.device | str | None = None) -> Rule:
        inner = self.inner.rule(q_len, kv_len - 1, device)
        last = torch.full((), kv_len - 1, device=device)  # a tensor, so that no length is compiled into a kernel
        return lambda b, h, q, k: (k == last) | inner(b, h, q, torch.minimum(k, last - 1))

    def dense(
        self, q_len: int, kv_len: int, device: torch.device | str | None = None, *, batch: int = 1, heads: int = 1
    ) -> Bool[Tensor, "b h q k"]:
        known = self.inner.dense(q_len, kv_len - 1, device, batch=batch, heads=heads)
        return F.pad(known.expand(*known.shape[:3], kv_len - 1), (0, 1), value=True)

    def __repr__(self) -> str:
        return f"{self.inner!r} and a sink"


class Registers(nn.Module):
    """Learned tokens in front of a sequence, which an encoder may write to and read from.

    ``tokens`` are the registers, [count, width]. They take part in every layer and are left out of the result::

        states = encoder(registers(x), mask=registers.mask(Padding(lengths)))
        read, states = registers.split(states)

    Args:
        count: the number of registers.
        width: of the sequence.

    Raises:
        ConfigurationError: a size is below 1.
    """

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        if count < 1 or width < 1:
            raise ConfigurationError(f"count={count}, width={width}: expected at least one register of at least 1")
        self.tokens = nn.Parameter(torch.empty(count, width))
        nn.init.normal_(self.tokens, std=0.02)

    def forward(self, x: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch longer width"]:
        """The registers, then the sequence."""
        count, width = self.tokens.shape
        if x.shape[-1] != width:
            raise ShapeError(f"the sequence has shape {list(x.shape)}, but the registers have the width {width}")
        return torch.cat((self.tokens.to(x.dtype).expand(len(x), count, width), x), dim=1)

    def mask(self, padding: Padding | None) -> Padding | None:
        """The mask of the longer sequence, for the padding of the sequence; every query sees the registers.

        Raises:
            MaskError: it is no `Padding`.
        """
        if padding is None:
            return None
        if not isinstance(padding, Padding):
            raise MaskError(
                f"got {padding!r}; registers stand in front of an encoder's sequence, whose mask is Padding"
            )
        count = len(self.tokens)

        def longer(lengths: Tensor, host: tuple[int, ...] | None) -> Tensor | list[int]:
            return lengths + count if host is None else [length + count for length in host]

        queries = None if padding.q_lengths is None else longer(padding.q_lengths, padding.host_q_lengths)
        return Padding(longer(padding.lengths, padding.host_lengths), queries)

    def split(
        self, y: Float[Tensor, "batch longer out"]
    ) -> tuple[Float[Tensor, "batch count out"], Float[Tensor, "batch length out"]]:
        """What stands at the registers, and what stands at the sequence."""
        count = len(self.tokens)
        return y[:, :count], y[:, count:]

    def extra_repr(self) -> str:
        return f"count={len(self.tokens)}, width={self.tokens.shape[1]}"
