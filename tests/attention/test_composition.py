"""Composed attention equals its equations on every path, and padding does not leak."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from multihead.attention.alignment import BY_NAME, Alignment, Gumbel, MovingBaseline, reinforce_loss
from multihead.attention.backends.explicit import masked_softmax
from multihead.attention.biases import ALiBi
from multihead.attention.composition import Attention
from multihead.attention.masks import Causal, Dense, Full, Mask, Padding
from multihead.attention.scores import Additive, Bilinear, Dot, LowRankBilinear, ScaledDot, Score, SoftCap
from multihead.attention.structured.layers import SegmentationAlignment
from multihead.errors import ConfigurationError, MaskError, ShapeError

BATCH, QUERIES, KEYS, DIM = 3, 4, 6, 5

SCORES: dict[str, Callable[[], Score]] = {
    "additive": lambda: Additive(DIM, DIM, 3),
    "dot": Dot,
    "scaled dot": ScaledDot,
    "bilinear": lambda: Bilinear(DIM, DIM),
    "low rank": lambda: LowRankBilinear(DIM, DIM, 2),
    "capped": lambda: SoftCap(ScaledDot(), cap=1.5),
}
ALIGNMENTS: dict[str, Callable[[], Alignment | str]] = {
    **{name: (lambda name=name: name) for name in BY_NAME},
    "hard gumbel": lambda: Gumbel(hard=True),
    "segmentation": SegmentationAlignment,
}
MASKS: dict[str, Callable[[], Mask | None]] = {
    "none": lambda: None,
    "full": Full,
    "causal": Causal,
    "padding": lambda: Padding([6, 0, 3]),
    "both sides": lambda: Padding([6, 2, 3], q_lengths=[4, 0, 1]),
    "causal & padding": lambda: Causal() & Padding([6, 4, 1]),
    "left padding": lambda: ~Padding([0, 6, 2]),
    "dense": lambda: Dense(torch.rand(BATCH, 1, QUERIES, KEYS, generator=seeded(3)) < 0.5),
    "nothing": lambda: ~Full(),
}


PAIRS = list(product(("additive", "low rank"), ALIGNMENTS))
"""A product score and an additive score with every alignment."""


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def inputs(value_dim: int = DIM) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((BATCH, QUERIES, DIM), (BATCH, KEYS, DIM), (BATCH, KEYS, value_dim))
    generator = seeded()
    query, key, value = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes
    )
    return query, key, value


def made(score: str, align: str = "softmax") -> Attention:
    torch.manual_seed(0)
    attention = Attention(SCORES[score](), ALIGNMENTS[align]()).double()  # type: ignore[arg-type]
    if isinstance(attention.align, SegmentationAlignment):
        torch.nn.init.normal_(attention.align.transition, generator=seeded())
    return attention


def allowed(mask: Mask | None) -> Tensor:
    dense = torch.ones(1, 1, 1, 1, dtype=torch.bool) if mask is None else mask.dense(QUERIES, KEYS)
    return dense.expand(BATCH, 1, QUERIES, KEYS)[:, 0]


def with_gradients(attention: Attention, tensors: tuple[Tensor, ...], output: Tensor) -> list[Tensor | None]:
    seed = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    wanted = (*tensors, *attention.parameters())
    return [output, *torch.autograd.grad(output, wanted, seed, allow_unused=True)]


@pytest.mark.parametrize(("score", "kind"), list(product(SCORES, MASKS)))
def test_soft_attention_is_the_equation_on_both_paths(score: str, kind: str) -> None:
    attention, tensors, mask = made(score), inputs(), MASKS[kind]()
    query, key, value = tensors
    weights = masked_softmax(attention.score(query, key), allowed(mask))
    expected = with_gradients(attention, tensors, weights @ value)
    output, returned = attention(*tensors, mask=mask, need_weights=True)
    torch.testing.assert_close(returned, weights, rtol=1e-12, atol=1e-13)
    fused, nothing = attention(*tensors, mask=mask)
    assert nothing is None
    for ours in (output, fused):
        for got, wanted in zip(with_gradients(attention, tensors, ours), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("score", "align"), PAIRS)
def test_nothing_to_attend_to_is_zero_forwards_and_backwards(score: str, align: str) -> None:
    attention, tensors = made(score, align), inputs()
    rows = torch.rand(BATCH, 1, QUERIES, KEYS, generator=seeded(1)) < 0.7
    rows[:, :, 1] = False
    with torch.autograd.set_detect_anomaly(True):
        output, weights = attention(*tensors, mask=Dense(rows), need_weights=True, generator=seeded())
        (of_query, *others) = torch.autograd.grad(output.sum(), tensors, allow_unused=True)
    assert weights is not None
    assert (output[:, 1] == 0).all()
    assert (weights[~rows[:, 0]] == 0).all()
    if of_query is not None:
        assert (of_query[:, 1] == 0).all()
    assert all(gradient is None or gradient.isfinite().all() for gradient in (of_query, *others))
    assert (attention(*tensors, mask=~Full(), generator=seeded())[0] == 0).all()


@pytest.mark.parametrize(("score", "align"), PAIRS)
@pytest.mark.parametrize("garbage", [float("nan"), float("inf")])
def test_garbage_in_the_padding_reaches_nothing(score: str, align: str, garbage: float) -> None:
    attention, tensors = made(score, align), inputs()
    mask = Padding([6, 2, 3], q_lengths=[4, 1, 2])
    words = allowed(mask)
    absent = (~words.any(2)[..., None], ~words.any(1)[..., None], ~words.any(1)[..., None])
    results = []
    for filling in (0.0, garbage):
        leaves = tuple(
            tensor.detach().masked_fill(hole, filling).requires_grad_()
            for tensor, hole in zip(tensors, absent, strict=True)
        )
        for need_weights in (True, False):
            output, _ = attention(*leaves, mask=mask, need_weights=need_weights, generator=seeded())
            results.append(with_gradients(attention, leaves, output) if output.requires_grad else [output])
        if align not in ("segmentation", "gumbel"):
            chosen = attention(*leaves, mask=mask, need_weights=True, generator=seeded())[1]
            for number in (
                attention.log_prob(chosen, *leaves[:2], mask=mask),
                attention.entropy(*leaves[:2], mask=mask),
            ):
                results[-1] += with_gradients(attention, leaves, number)
    for clean, dirty in zip(results[:2], results[2:], strict=True):
        for expected, got in zip(clean, dirty, strict=True):
            assert (expected is None and got is None) or torch.equal(got, expected)


@pytest.mark.parametrize(("score", "align"), PAIRS)
def test_keys_computed_once_and_a_query_at_a_time(score: str, align: str) -> None:
    attention, (query, key, value) = made(score, align).eval(), inputs()
    mask = Padding([6, 4, 3])
    whole, weights = attention(query, key, value, mask=mask, need_weights=True)
    keys = attention.score.keys(key)
    again, _ = attention.attend(query, keys, value, mask=mask, need_weights=True)
    torch.testing.assert_close(again, whole, rtol=1e-12, atol=1e-13)
    steps = [
        attention.attend(query[:, step : step + 1], keys, value, mask=mask, need_weights=True)
        for step in range(QUERIES)
    ]
    torch.testing.assert_close(torch.cat([output for output, _ in steps], 1), whole, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(torch.cat([w for _, w in steps], 1), weights, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("score", "align"), PAIRS)
def test_rows_and_padding_do_not_talk(score: str, align: str) -> None:
    attention, (query, key, value) = made(score, align).eval(), inputs()
    lengths = [6, 2, 3]
    batch, _ = attention(query, key, value, mask=Padding(lengths))
    for row, length in enumerate(lengths):
        alone, _ = attention(query[row, None], key[row, None, :length], value[row, None, :length])
        torch.testing.assert_close(batch[row, None], alone, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("score", "align"), [pair for pair in PAIRS if pair[1] != "segmentation"])
def test_keys_and_values_are_a_set(score: str, align: str) -> None:
    attention, (query, key, value) = made(score, align).eval(), inputs()
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    mask = MASKS["dense"]()
    assert mask is not None
    moved, _ = attention(query, key[:, order], value[:, order], mask=Dense(mask.dense(QUERIES, KEYS)[..., order]))
    torch.testing.assert_close(moved, attention(query, key, value, mask=mask)[0], rtol=1e-12, atol=1e-13)


def test_one_set_of_vectors_for_keys_and_values_is_plain_attention() -> None:
    attention, (query, key, _) = made("bilinear"), inputs()
    assert torch.equal(attention(query, key)[0], attention(query, key, key)[0])


def test_several_queries_joined_are_the_queries_one_by_one() -> None:
    """att((K, V), Q) = att((K, V), q_1) ⊕ ... ⊕ att((K, V), q_M)."""
    attention, (query, key, value) = made("scaled dot"), inputs()
    joined = attention(query, key, value)[0].flatten(1)
    one_by_one = [attention(query[:, m : m + 1], key, value)[0].squeeze(1) for m in range(QUERIES)]
    torch.testing.assert_close(joined, torch.cat(one_by_one, 1), rtol=1e-12, atol=1e-13)


def test_the_output_lies_among_the_values_that_are_seen() -> None:
    attention, (query, key, value) = made("additive"), inputs()
    seen = allowed(MASKS["dense"]())
    output, _ = attention(query, key, value, mask=MASKS["dense"]())
    spread = value[:, None].expand(-1, QUERIES, -1, -1)
    low = spread.masked_fill(~seen[..., None], torch.inf).amin(2)
    high = spread.masked_fill(~seen[..., None], -torch.inf).amax(2)
    there = seen.any(-1)
    assert (output[there] >= low[there] - 1e-12).all()
    assert (output[there] <= high[there] + 1e-12).all()
    uniform, _ = attention(torch.zeros_like(query), torch.zeros_like(key), value, mask=MASKS["dense"]())
    mean = (value[:, None] * seen[..., None]).sum(2) / seen.sum(-1).clamp(min=1)[..., None]
    torch.testing.assert_close(uniform, mean)


def test_soft_attention_is_the_mean_of_sampled_attention() -> None:
    """E over z ~ p(z | X, q) of x_z."""
    count = 20_000
    attention, (query, key, value) = made("scaled dot", "sample"), inputs()
    many = query[:1, :1].expand(1, count, DIM)
    draws, _ = attention(many, key[:1], value[:1], generator=seeded())
    expected, _ = Attention(attention.score)(query[:1, :1], key[:1], value[:1])
    error = draws.std(1) / count**0.5
    assert ((draws.mean(1) - expected[:, 0]).abs() < 4.5 * error).all()


def test_biases_are_added_and_minus_infinity_is_a_mask() -> None:
    for score in ("scaled dot", "additive"):
        attention, tensors = made(score), inputs()
        bias = torch.randn(BATCH, QUERIES, KEYS, generator=seeded(), dtype=torch.float64)
        expected = (attention.score(*tensors[:2]) + bias).softmax(-1) @ tensors[2]
        for need_weights in (True, False):
            torch.testing.assert_close(attention(*tensors, bias=bias, need_weights=need_weights)[0], expected)
            two = attention(*tensors, bias=bias[0], need_weights=need_weights)[0]
            torch.testing.assert_close(two[0], expected[0])
            seen = allowed(MASKS["dense"]()).clone()
            seen[0, 1] = False
            hiding = torch.zeros(()).double().where(seen, -torch.inf)
            hidden = attention(*tensors, bias=hiding, need_weights=need_weights)[0]
            masked = attention(*tensors, mask=Dense(seen[:, None]), need_weights=need_weights)[0]
            for ours, theirs in zip(
                with_gradients(attention, tensors, hidden), with_gradients(attention, tensors, masked), strict=True
            ):
                torch.testing.assert_close(ours, theirs)
            alibi = attention(*tensors, bias=ALiBi(1), need_weights=need_weights)[0]
            dense = ALiBi(1).dense(QUERIES, KEYS, torch.float64)[0]
            torch.testing.assert_close(alibi, attention(*tensors, bias=dense, need_weights=need_weights)[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("need_weights", [True, False])
def test_a_bias_below_the_range_of_a_half_type_forbids(dtype: torch.dtype, need_weights: bool) -> None:
    tensors = tuple(tensor.detach().to(dtype) for tensor in inputs())
    attention = made("scaled dot").to(dtype)
    bias = torch.zeros(QUERIES, KEYS)
    bias[1], bias[2, 2:] = torch.finfo(torch.float32).min, torch.finfo(torch.float32).min
    seen = bias == 0
    hidden = attention(*tensors, bias=bias, need_weights=need_weights)[0]
    assert (hidden[:, 1] == 0).all()
    torch.testing.assert_close(hidden, attention(*tensors, mask=Dense(seen), need_weights=need_weights)[0])


@pytest.mark.parametrize(("score", "align"), PAIRS)
def test_under_autocast_both_paths_have_the_type_of_the_query(score: str, align: str) -> None:
    attention = made(score, align).float().eval()
    query, key, value = (tensor.detach().float() for tensor in inputs())
    exact, exact_weights = attention(query, key, value, need_weights=True)
    assert exact_weights is not None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, weights = attention(query, key, value, need_weights=True)
        alone, nothing = attention(query, key, value)
    assert nothing is None
    assert weights is not None
    assert (output.dtype, weights.dtype, alone.dtype) == (torch.float32,) * 3
    if align in ("softmax", "sigmoid"):  # others may choose another key where two scores are rounded alike
        for found in (output, alone):
            torch.testing.assert_close(found, exact, rtol=0.1, atol=0.1)
        torch.testing.assert_close(weights, exact_weights, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("score", ["scaled dot", "additive"])
def test_a_bias_of_empty_axes_is_added(score: str) -> None:
    attention, (query, key, value) = made(score), inputs()
    for queries, keys in ((0, KEYS), (QUERIES, 0), (0, 0)):
        tensors = query[:, :queries], key[:, :keys], value[:, :keys]
        for bias in (torch.zeros(queries, keys), torch.zeros(BATCH, queries, keys), torch.zeros(1, queries, keys)):
            output, weights = attention(*tensors, bias=bias, need_weights=True)
            assert torch.equal(output, torch.zeros(BATCH, queries, DIM).double())
            assert weights is not None
            assert weights.shape == (BATCH, queries, keys)


def test_dropout_is_on_the_weights_and_only_in_training() -> None:
    query, key, value = inputs()
    attention = Attention(Dot(), dropout=0.5)
    output, weights = attention(query, key, value, need_weights=True)
    assert weights is not None
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))  # weights before dropout
    assert not torch.allclose(output, weights @ value)
    for need_weights in (True, False):
        torch.testing.assert_close(attention.eval()(query, key, value, need_weights=need_weights)[0], weights @ value)


def test_hard_attention_learns_by_reinforcement() -> None:
    """The value of the correct key identifies it; only the reward tells which key was correct."""
    torch.manual_seed(0)
    attention, generator = Attention(Bilinear(4, 4), "sample"), seeded()
    baseline = MovingBaseline()
    optimizer = torch.optim.Adam(attention.parameters(), lr=0.1)
    for _ in range(60):
        places = torch.randint(5, (48,), generator=generator)
        key = torch.randn(48, 5, 4, generator=generator)
        key[:, :, 0] = torch.nn.functional.one_hot(places, 5) * 2.0
        value = torch.nn.functional.one_hot(places, 5)[..., None].float()
        query = torch.ones(48, 1, 4)
        output, weights = attention(query, key, value, need_weights=True, generator=generator)
        reward = output[:, 0, 0]
        assert weights is not None
        log_prob, entropy = attention.log_prob(weights, query, key), attention.entropy(query, key)
        optimizer.zero_grad()
        reinforce_loss(log_prob, reward, baseline.value, entropy, 0.001).backward()
        optimizer.step()
        baseline = baseline.update(reward)
    assert baseline.value > 0.7  # by chance: 0.2


def test_what_does_not_fit_is_named(unchecked: None) -> None:
    query, key, value = (tensor.detach() for tensor in inputs())
    for attention in (made("additive"), made("dot")):
        with pytest.raises(MaskError, match=r"write Dense\(mask\)"):
            attention(query, key, value, mask=torch.ones(4, 6, dtype=torch.bool))
        with pytest.raises(ShapeError, match=r"values have shape \[3, 4, 5\].*\[3, 6, width\]"):
            attention(query, key, value[:, :4])
        with pytest.raises(ShapeError, match=r"\[2, 1, 1, 6\]"):
            attention(query, key, value, mask=Dense(torch.ones(2, 1, 1, 6, dtype=torch.bool)))
        with pytest.raises(ShapeError, match=r"\[1, 2, 4, 6\]"):
            attention(query, key, value, mask=Dense(torch.ones(1, 2, 4, 6, dtype=torch.bool)))
        with pytest.raises(ShapeError, match=r"bias has shape \[4, 5\]"):
            attention(query, key, value, bias=torch.zeros(4, 5))
        with pytest.raises(MaskError, match=r"bias of torch.bool"):
            attention(query, key, value, bias=torch.ones(4, 6, dtype=torch.bool))
        with pytest.raises(ShapeError, match="8 heads"):
            attention(query, key, value, bias=ALiBi(8))
    with pytest.raises(ConfigurationError, match="dropout=1"):
        Attention(Dot(), dropout=1.0)
