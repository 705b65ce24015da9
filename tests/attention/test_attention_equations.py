"""The ten numbered equations of the introduction that the library follows, each as the call that computes it.

There inputs are columns, X = [x_1 .. x_N] in R^{D x N}; here they are rows, behind a batch axis.
"""

from __future__ import annotations

import torch
from torch import Tensor

from multihead.attention import Causal, PackedLinear, attention
from multihead.attention.composition import Attention
from multihead.attention.pointer import PointerAttention
from multihead.attention.scores import Additive, ScaledDot

N, D, M = 5, 4, 3


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def softmax(scores: Tensor) -> Tensor:
    return scores.exp() / scores.exp().sum()


def test_1_the_attention_distribution() -> None:
    x, q = normal(1, N, D), normal(1, 1, D)
    score = Additive(query_dim=D, key_dim=D, hidden_dim=8)
    _, alpha = Attention(score)(q, x, need_weights=True)
    w, u, v = score.key_projection.weight, score.query_projection.weight, score.energy
    expected = softmax(torch.stack([v @ torch.tanh(w @ x_n + u @ q[0, 0]) for x_n in x[0]]))
    torch.testing.assert_close(alpha, expected[None, None])


def test_2_soft_attention() -> None:
    x, q = normal(1, N, D), normal(1, 1, D)
    output, alpha = Attention(ScaledDot())(q, x, need_weights=True)
    assert alpha is not None
    torch.testing.assert_close(
        output[0, 0], torch.stack([a * x_n for a, x_n in zip(alpha[0, 0], x[0], strict=True)]).sum(0)
    )


def test_3_hard_attention() -> None:
    x, q = normal(1, N, D), normal(1, 1, D)
    output, _ = Attention(ScaledDot(), "argmax")(q, x)
    assert torch.equal(output[0, 0], x[0, (x[0] @ q[0, 0]).argmax()])
    drawn, weights = Attention(ScaledDot(), "sample")(q, x, need_weights=True)
    assert weights is not None
    assert torch.equal(drawn[0, 0], x[0, weights[0, 0].argmax()])


def test_4_key_value_attention() -> None:
    k, v, q = normal(1, N, D), normal(1, N, 6), normal(1, 1, D)
    output, _ = Attention(ScaledDot())(q, k, v)
    torch.testing.assert_close(output[0, 0], softmax(k[0] @ q[0, 0] / D**0.5) @ v[0])
    torch.testing.assert_close(Attention(ScaledDot())(q, k)[0], Attention(ScaledDot())(q, k, k)[0])


def test_5_several_queries() -> None:
    k, v, queries = normal(1, N, D), normal(1, N, 6), normal(1, M, D)
    att = Attention(ScaledDot())
    output, _ = att(queries, k, v)
    joined = torch.cat([att(queries[:, m, None], k, v)[0][:, 0] for m in range(M)], -1)
    torch.testing.assert_close(output.flatten(1), joined)


def test_6_7_8_the_pointer_network() -> None:
    x, h, c = normal(1, N, D), normal(1, M, 6), torch.tensor([[2, 0, 4]])
    pointer = PointerAttention(query_dim=6, key_dim=D, hidden_dim=8)
    s = pointer.score(h, x)
    w, u, v = pointer.score.key_projection.weight, pointer.score.query_projection.weight, pointer.score.energy
    torch.testing.assert_close(s[0, 1, 2], v @ torch.tanh(w @ x[0, 2] + u @ h[0, 1]))
    log_p = pointer(h, x)
    torch.testing.assert_close(log_p[0, 1].exp(), softmax(s[0, 1]))
    log_p_of_c = log_p.gather(2, c[..., None]).sum()
    torch.testing.assert_close(log_p_of_c.exp(), torch.stack([softmax(s[0, m])[c[0, m]] for m in range(M)]).prod())


def test_9_10_self_attention() -> None:
    x = normal(1, N, D)
    project = PackedLinear(D, (8, 8, 6), bias=False)
    query, key, value = project(x)
    w_q, w_k, w_v = project.weight.split((8, 8, 6))
    q, k, v = w_q @ x[0].T, w_k @ x[0].T, w_v @ x[0].T  # in columns
    h, _ = Attention(ScaledDot())(query, key, value)
    torch.testing.assert_close(h[0].T, v @ (k.T @ q / 8**0.5).softmax(0))
    heads, _ = attention(query[:, None], key[:, None], value[:, None])
    torch.testing.assert_close(heads[:, 0], h)
    masked, _ = Attention(ScaledDot())(query, key, value, mask=Causal())
    torch.testing.assert_close(masked[0, 0], value[0, 0])
