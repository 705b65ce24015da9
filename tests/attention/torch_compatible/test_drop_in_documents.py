"""The four multi-head modules of the documents are calls of one implementation.

The reference follows their equations, one sentence and one head at a time. Our module gets the weights of a document,
its input in its layout and its mask in its convention, and must return the same result. Each test shows the call.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multihead.attention import Dense, MultiHeadAttention, Padding, attention
from multihead.attention.torch_compatible.functional import multi_head_attention_forward
from multihead.attention.torch_compatible.module import MultiheadAttention

WIDTH, HEADS, BATCH, QUERIES, KEYS = 12, 3, 2, 4, 5
WORDS = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]])  # 1 = a word, 0 = padding


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    return draw(BATCH, QUERIES, WIDTH, seed=1), draw(BATCH, KEYS, WIDTH, seed=2), draw(BATCH, KEYS, WIDTH, seed=3)


def matrices(key_width: int = WIDTH, value_width: int = WIDTH) -> list[Tensor]:
    """W_q, W_k, W_v and W_o, as `nn.Linear` stores them: [outputs, inputs]."""
    rows = [(key_width, WIDTH), (key_width, WIDTH), (value_width, WIDTH), (WIDTH, value_width)]
    return [draw(*shape, seed=seed) / 3 for seed, shape in enumerate(rows, start=4)]


def by_hand(
    query: Tensor, key: Tensor, value: Tensor, weights: list[Tensor], biases: list[Tensor], added: Tensor
) -> tuple[Tensor, Tensor]:
    """softmax(Q K^T / sqrt(d_k) + added) V of each head and sentence, concatenated, times W_o."""
    projected = [F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=False)]
    outputs, all_weights = [], []
    for sentence in range(BATCH):
        heads = []
        for head, (q, k, v) in enumerate(zip(*(x[sentence].chunk(HEADS, -1) for x in projected), strict=True)):
            scores = q @ k.T / math.sqrt(q.shape[-1]) + added[sentence, head]
            all_weights.append(scores.softmax(-1))
            heads.append(all_weights[-1] @ v)
        outputs.append(F.linear(torch.cat(heads, -1), weights[3], biases[3]))
    return torch.stack(outputs), torch.stack(all_weights).view(BATCH, HEADS, *all_weights[0].shape)


def hide(visible: Tensor) -> Tensor:
    """-inf where a mask of 0 and 1 is 0."""
    hidden = torch.zeros(BATCH, HEADS, QUERIES, KEYS).double()
    return hidden.masked_fill(visible.expand(hidden.shape) == 0, -torch.inf)


def biases(*widths: int) -> list[Tensor]:
    return [draw(width, seed=seed) for seed, width in enumerate(widths, start=20)]


def with_weights(
    module: MultiHeadAttention, weights: list[Tensor], bias: list[Tensor] | None = None
) -> MultiHeadAttention:
    """Copy the matrices of a document's module; the first three are stacked."""
    state = {"in_projection.weight": torch.cat(weights[:3]), "output_projection.weight": weights[3]}
    if bias is not None:
        state |= {"in_projection.bias": torch.cat(bias[:3]), "output_projection.bias": bias[3]}
    module.double().load_state_dict(state)
    return module


# Document 000: length first, a bias in the output projection only, padding True = hidden, an additive attn_mask.


def shorter_form(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_heads: int,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    attn_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The `multi_head_attention_forward` of document 000, argument by argument."""
    return multi_head_attention_forward(
        query, key, value, query.shape[-1], num_heads, None, None, None, None, False, dropout_p,
        out_proj_weight, out_proj_bias, training, key_padding_mask, attn_mask=attn_mask,
        use_separate_proj_weight=True, q_proj_weight=q_proj_weight, k_proj_weight=k_proj_weight,
        v_proj_weight=v_proj_weight,
    )  # fmt: skip


@pytest.mark.parametrize("look_ahead", [None, "one for all", "one each"])
def test_000_the_module_and_the_function(look_ahead: str | None) -> None:
    query, key, value = inputs()
    weights, (bias,) = matrices(), biases(WIDTH)
    added = hide(WORDS[:, None, None])
    mask = None
    if look_ahead is not None:
        later = torch.full((QUERIES, KEYS), -torch.inf, dtype=torch.float64).triu(1)
        mask = later if look_ahead == "one for all" else later + draw(BATCH * HEADS, QUERIES, KEYS, seed=9)
        added = added + mask.view(-1, HEADS if mask.dim() == 3 else 1, QUERIES, KEYS)
    expected, expected_weights = by_hand(query, key, value, weights, [None, None, None, bias], added)

    module = MultiheadAttention(WIDTH, HEADS, qkv_bias=False, dtype=torch.float64)
    module.load_state_dict(
        {"in_proj_weight": torch.cat(weights[:3]), "out_proj.weight": weights[3], "out_proj.bias": bias}
    )
    time_first = [x.transpose(0, 1) for x in (query, key, value)]
    hidden = WORDS == 0  # 000 prints True = word but hides where the mask is True, so it means ~mask
    named = dict(zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), weights, strict=False))
    for output, average in (
        module(*time_first, attn_mask=mask, key_padding_mask=hidden),
        shorter_form(*time_first, HEADS, 0.0, weights[3], bias, key_padding_mask=hidden, attn_mask=mask, **named),
    ):
        torch.testing.assert_close(output, expected.transpose(0, 1))
        torch.testing.assert_close(average, expected_weights.mean(1))


def test_000_its_example() -> None:
    """The call of section 4.4 with its printed mask inverted, and the shapes it prints."""
    src, words = draw(5, 2, 32, seed=1).float(), WORDS == 1
    module = MultiheadAttention(embed_dim=32, num_heads=1, qkv_bias=False)
    output, weights = module(src, src, src, key_padding_mask=~words)
    assert output.shape == (5, 2, 32)
    assert weights.shape == (2, 5, 5)
    assert torch.equal(weights == 0, ~words[:, None].expand(2, 5, 5))
    batch_first = MultiheadAttention(32, 1, qkv_bias=False, batch_first=True)
    batch_first.load_state_dict(module.state_dict())
    again, _ = batch_first(*(src.transpose(0, 1),) * 3, mask=Padding(words.sum(1)))
    torch.testing.assert_close(again.transpose(0, 1), output)


# Document 002: separate d_k and d_v, no biases, residual sum and norm inside, a mask [batch, 1 | queries, keys].


class ResidualAttention(nn.Module):
    """The layer of document 002 with our attention: norm(q + dropout(attention(q, k, v)))."""

    def __init__(self, n_head: int, d_model: int, d_k: int, d_v: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(
            d_model, n_head, key_width=n_head * d_k, value_width=n_head * d_v, bias=False, dropout=dropout
        )
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(d_model, eps=1e-6)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Any:
        visible = None if mask is None else Dense(mask[:, None] != 0)
        output, weights = self.attention(q, k, v, mask=visible, need_weights=True)
        return self.norm(q + self.dropout(output)), weights


@pytest.mark.parametrize("shape", [(BATCH, 1, KEYS), (BATCH, QUERIES, KEYS)])
def test_002(shape: tuple[int, ...]) -> None:
    d_k, d_v = 7, 2  # n_head * d_k is not d_model
    mask = WORDS[:, None].expand(shape).clone()
    if shape[1] > 1:
        mask = mask & torch.ones(QUERIES, KEYS, dtype=torch.long).tril()
    query, key, value = inputs()
    weights = matrices(HEADS * d_k, HEADS * d_v)
    layer = ResidualAttention(HEADS, WIDTH, d_k, d_v).double().eval()
    with_weights(layer.attention, weights)
    nn.init.normal_(layer.norm.weight)
    mixed, expected_weights = by_hand(query, key, value, weights, [None] * 4, hide(mask[:, None]))
    total = query + mixed
    centred = total - total.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.norm.weight + layer.norm.bias
    output, got_weights = layer(query, key, value, mask)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(got_weights, expected_weights)


# Document 003 (BERT): biases everywhere, hidden where the mask is 0, output only; the same function for one head.


def test_003() -> None:
    query, key, value = inputs()
    weights, bias = matrices(), biases(*(WIDTH,) * 4)
    module = with_weights(MultiHeadAttention(WIDTH, HEADS, dropout=0.1), weights, bias).eval()
    mask = WORDS[:, None, None].expand(BATCH, 1, QUERIES, KEYS)
    expected, _ = by_hand(query, key, value, weights, bias, hide(mask))
    output, _ = module(query, key, value, mask=Dense(mask != 0))
    torch.testing.assert_close(output, expected)


def test_003_one_head_or_many_through_one_function() -> None:
    """Its `Attention` accepts any leading axes; ours expects [batch, heads]."""
    query, key, value = inputs()
    mask = WORDS[:, None].expand(BATCH, QUERIES, KEYS)
    scores = (query @ key.transpose(-2, -1) / math.sqrt(WIDTH)).masked_fill(mask == 0, -torch.inf)
    output, weights = attention(
        query[:, None], key[:, None], value[:, None], mask=Dense(mask[:, None] != 0), need_weights=True
    )
    torch.testing.assert_close(weights[:, 0], scores.softmax(-1))
    torch.testing.assert_close(output[:, 0], scores.softmax(-1) @ value)
    many = [x.unflatten(-1, (HEADS, -1)).transpose(1, 2) for x in (query, key, value)]
    together, _ = attention(*many, mask=Dense(mask[:, None] != 0))
    for head, parts in enumerate(zip(*(x.unbind(1) for x in many), strict=True)):
        alone, _ = attention(*(part[:, None] for part in parts), mask=Dense(mask[:, None] != 0))
        torch.testing.assert_close(together[:, head], alone[:, 0])


# Document 004: values, keys and query in this order; hidden where the mask is 0.


def test_004() -> None:
    query, keys, values = inputs()
    weights, bias = matrices(), biases(*(WIDTH,) * 4)
    module = with_weights(MultiHeadAttention(WIDTH, HEADS), weights, bias)

    def call(values: Tensor, keys: Tensor, query: Tensor, mask: Tensor | None = None) -> Tensor:
        visible = None if mask is None else Dense(mask != 0)
        return module(query, keys, values, mask=visible)[0]

    mask = WORDS[:, None, None]
    for given, added in ((mask, hide(mask)), (None, hide(torch.ones(1)))):
        expected, _ = by_hand(query, keys, values, weights, bias, added)
        torch.testing.assert_close(call(values, keys, query, given), expected)
    assert not torch.allclose(call(keys, values, query, mask), call(values, keys, query, mask))
