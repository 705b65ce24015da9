"""ALiBi, relative positions and learned tensors follow their papers, for any length, on every backend."""

from __future__ import annotations

import math

import pytest
import torch

from multihead.attention import ALiBi, Bias, Causal, MultiHeadAttention, RelativeBias, attention
from multihead.errors import ConfigurationError, MaskError, ShapeError


def relative(**settings: object) -> RelativeBias:
    module = RelativeBias(4, **settings)  # type: ignore[arg-type]
    with torch.no_grad():
        module.table.normal_(generator=torch.Generator().manual_seed(0))
    return module


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16, 64])
def test_slopes_are_a_geometric_sequence(heads: int) -> None:
    """Section 3: both the first slope and the ratio of slopes are 2^(-8/n)."""
    ratio = 2 ** (-8 / heads)
    assert ALiBi(heads).slopes == pytest.approx([ratio ** (h + 1) for h in range(heads)])


@pytest.mark.parametrize("heads", [3, 5, 6, 7, 12, 20])
def test_other_numbers_of_heads_interleave(heads: int) -> None:
    power = 2 ** int(math.log2(heads))
    slopes = ALiBi(heads).slopes
    assert slopes[:power] == ALiBi(power).slopes
    assert slopes[power:] == pytest.approx(ALiBi(2 * power).slopes[: 2 * (heads - power) : 2])
    assert len(set(slopes)) == heads


def test_alibi_is_the_distance_times_the_slope() -> None:
    bias, both = ALiBi(3).dense(4, 6)[0], ALiBi(3, symmetric=True).dense(4, 6)[0]
    for h, slope in enumerate(ALiBi(3).slopes):
        for q in range(4):
            for k in range(6):
                assert bias[h, q, k] == pytest.approx(slope * (k - (q + 2)))
                assert both[h, q, k] == pytest.approx(-slope * abs(k - (q + 2)))


def test_under_a_causal_mask_only_the_key_counts() -> None:
    """The softmax is invariant to a constant per row, so m (j - i) and m j are the same bias."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 4, 5, 4, dtype=torch.float64) for _ in range(3))
    place = torch.arange(5, dtype=torch.float64)
    alone = torch.tensor(ALiBi(4).slopes, dtype=torch.float64)[None, :, None, None] * place
    with_distance, _ = attention(query, key, value, mask=Causal(), bias=ALiBi(4))
    torch.testing.assert_close(with_distance, attention(query, key, value, mask=Causal(), bias=alone)[0])
    symmetric, _ = attention(query, key, value, mask=Causal(), bias=ALiBi(4, symmetric=True))
    torch.testing.assert_close(with_distance, symmetric)


@pytest.mark.parametrize("bias", [ALiBi(4), relative(), relative(causal=True)], ids=["alibi", "relative", "causal"])
def test_step_by_step_equals_the_whole(bias: Bias) -> None:
    torch.manual_seed(0)
    module = MultiHeadAttention(8, 4).double()
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    whole, _ = module(x, mask=Causal(), bias=bias)
    cache = None
    for start, stop in ((0, 3), (3, 4), (4, 6)):
        output, _, cache = module.step(x[:, start:stop], cache, mask=Causal(), bias=bias)
        torch.testing.assert_close(output, whole[:, start:stop])


@pytest.mark.parametrize("bias", [ALiBi(4), ALiBi(4, symmetric=True), relative(), relative(causal=True)])
def test_parts_and_rules_are_the_whole(bias: Bias) -> None:
    whole = bias.dense(5, 7)
    assert torch.equal(bias.part(range(1, 4), range(2, 7), 2), whole[:, :, 1:4, 2:7])
    rule = bias.score_rule(5, 7)
    places = (torch.arange(n).view([-1 if a == m else 1 for a in range(4)]) for m, n in enumerate((1, 4, 5, 7)))
    torch.testing.assert_close(rule(torch.zeros(()), *places), whole)
    assert bias.dense(5, 7, torch.bfloat16).dtype == torch.bfloat16


def test_buckets_near_are_exact_and_far_are_shared() -> None:
    both = RelativeBias(1, buckets=32, max_distance=128)
    near = both.bucket(torch.arange(-7, 8))
    assert near.tolist() == [7, 6, 5, 4, 3, 2, 1, 0, 17, 18, 19, 20, 21, 22, 23]
    far = both.bucket(torch.tensor([-8, -127, -128, -10_000, 128, 10_000]))
    assert far.tolist() == [8, 15, 15, 15, 31, 31]
    growing = both.bucket(-torch.arange(200))
    assert (growing.diff() >= 0).all()
    assert growing.unique().tolist() == list(range(16))
    causal = RelativeBias(1, buckets=32, max_distance=128, causal=True)
    assert causal.bucket(torch.tensor([5, 0, -1, -15, -16, -500])).tolist() == [0, 0, 1, 15, 16, 31]


def test_relative_bias_depends_on_the_distance_alone_and_learns() -> None:
    module = relative()
    term = module(6)
    assert torch.equal(term[:, :, 1:, 1:], term[:, :, :-1, :-1])
    assert torch.equal(module(4, 6), term[:, :, 2:])
    query = torch.randn(1, 4, 6, 4)
    for backend in ("explicit", "sdpa", "blockwise"):
        module.zero_grad()
        attention(query, query, query, bias=module, backend=backend)[0].square().sum().backward()  # type: ignore[arg-type]
        assert module.table.grad is not None
        used = module.bucket(torch.arange(-5, 6)).unique()
        assert module.table.grad[used].ne(0).any()
        unused = [row for row in range(32) if row not in used.tolist()]
        assert module.table.grad[unused].eq(0).all()
    assert "buckets=32" in repr(module)


def test_a_learned_tensor_gets_its_gradient() -> None:
    torch.manual_seed(0)
    query = torch.randn(2, 2, 3, 4, dtype=torch.float64)
    bias = torch.randn(1, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda term: attention(query, query, query, mask=Causal(), bias=term, backend="explicit")[0], bias
    )


def test_a_bias_takes_the_type_of_the_query() -> None:
    query = torch.randn(1, 2, 3, 4)
    for backend in ("explicit", "sdpa", "blockwise"):
        for dtype in (torch.float64, torch.float16, torch.bfloat16):
            bias = torch.ones(3, 3, dtype=dtype)
            output, _ = attention(query, query, query, bias=bias, backend=backend)  # type: ignore[arg-type]
            assert output.dtype == torch.float32
            torch.testing.assert_close(output, attention(query, query, query)[0])  # a constant changes nothing


def test_numbers_below_the_range_of_the_type_forbid() -> None:
    """-1e9 is -inf in float16: a row with nothing else yields zeros, as under a mask."""
    query = torch.randn(1, 2, 3, 4, dtype=torch.float16, requires_grad=True)
    bias = torch.tensor([[0.0, -1e9, -1e9], [-1e9, -1e9, -1e9], [0.0, 0.0, 0.0]])
    for backend in ("explicit", "sdpa", "blockwise"):
        output, _ = attention(query.half(), query, query, bias=bias, backend=backend)  # type: ignore[arg-type]
        with torch.no_grad():
            still, _ = attention(query, query, query, bias=bias, backend=backend)  # type: ignore[arg-type]
        assert still[:, :, 1].eq(0).all()
        torch.testing.assert_close(still[:, :, 0], query[:, :, 0])
        (gradient,) = torch.autograd.grad(output.float().sum(), query)
        assert gradient.isfinite().all()


def test_refusals(unchecked: None) -> None:
    query = torch.randn(2, 4, 3, 4)
    with pytest.raises(MaskError, match=r"mask=Dense\(bias\)"):
        attention(query, query, query, bias=torch.ones(3, 3, dtype=torch.bool))
    with pytest.raises(MaskError, match="int64"):
        attention(query, query, query, bias=torch.ones(3, 3, dtype=torch.long))
    with pytest.raises(ShapeError, match=r"ALiBi\(3\) has 3 heads, the query 4"):
        attention(query, query, query, bias=ALiBi(3))
    with pytest.raises(ConfigurationError, match="heads=0"):
        ALiBi(0)
    for settings in ({"heads": 0}, {"buckets": 5}, {"buckets": 2}, {"max_distance": 8}):
        with pytest.raises(ConfigurationError, match="are needed"):
            RelativeBias(**{"heads": 2, **settings})  # type: ignore[arg-type]
