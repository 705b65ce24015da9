"""The module equals PyTorch's with copied weights, and its call patterns agree."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from multihead.attention import Causal, Full, KeyValue, Mask, MultiHeadAttention, Padding, attention, join_heads, rotary
from multihead.errors import ConfigurationError, ShapeError
from multihead.models.layers import sinusoid

WIDTH, HEADS, BATCH, LENGTH = 12, 3, 3, 5
DOUBLE = {"rtol": 1e-10, "atol": 1e-12}


def module(heads: int = HEADS, **settings: object) -> MultiHeadAttention:
    torch.manual_seed(0)
    attention = MultiHeadAttention(WIDTH, heads, **settings).double()  # type: ignore[arg-type]
    for name, parameter in attention.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)  # zero biases would hide mistakes
    return attention


def pytorch_twin(ours: MultiHeadAttention, bias: bool) -> nn.MultiheadAttention:
    assert ours.in_projection is not None
    twin = nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=True, dtype=torch.float64)
    state = {
        "in_proj_weight": ours.in_projection.weight,
        "in_proj_bias": ours.in_projection.bias,
        "out_proj.weight": ours.output_projection.weight,
        "out_proj.bias": ours.output_projection.bias,
    }
    twin.load_state_dict({name: tensor for name, tensor in state.items() if tensor is not None})
    return twin


def sequence(length: int = LENGTH, seed: int = 1, width: int = WIDTH) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, length, width, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("mask", [Full(), Padding([5, 1, 3]), Causal(), Causal() & Padding([5, 1, 3])], ids=repr)
def test_equals_pytorch(mask: Mask, need_weights: bool, cross: bool, bias: bool) -> None:
    ours = module(bias=bias)
    theirs = pytorch_twin(ours, bias)
    query = sequence().requires_grad_()
    inputs = (query, sequence(seed=2).requires_grad_(), sequence(seed=3).requires_grad_()) if cross else (query,) * 3
    hidden = ~mask.dense(LENGTH, LENGTH).expand(BATCH, HEADS, LENGTH, LENGTH).flatten(0, 1)
    output, weights = ours(*inputs, mask=mask, need_weights=need_weights)
    reference, reference_weights = theirs(
        *inputs, attn_mask=hidden, need_weights=need_weights, average_attn_weights=False
    )
    torch.testing.assert_close(output, reference, **DOUBLE)
    if need_weights:
        torch.testing.assert_close(weights, reference_weights, **DOUBLE)
    else:
        assert weights is None
    seed = sequence(seed=4)
    leaves = inputs if cross else (query,)
    our_gradients = torch.autograd.grad(output, [*leaves, *ours.parameters()], seed)
    their_gradients = torch.autograd.grad(reference, [*leaves, *theirs.parameters()], seed)
    assert len(our_gradients) == len(their_gradients)
    for mine, other in zip(our_gradients, their_gradients, strict=True):
        torch.testing.assert_close(mine, other, **DOUBLE)


def test_memory_of_another_width_equals_pytorch() -> None:
    ours = module(memory_width=7)
    assert ours.in_projection is None
    assert ours.query_projection is not None
    assert ours.memory_projection is not None
    theirs = nn.MultiheadAttention(WIDTH, HEADS, kdim=7, vdim=7, batch_first=True, dtype=torch.float64)
    key, value = ours.memory_projection.weight.split([WIDTH, WIDTH])
    assert ours.query_projection.bias is not None
    assert ours.memory_projection.bias is not None
    theirs.load_state_dict(
        {
            "q_proj_weight": ours.query_projection.weight,
            "k_proj_weight": key,
            "v_proj_weight": value,
            "in_proj_bias": torch.cat([ours.query_projection.bias, ours.memory_projection.bias]),
            "out_proj.weight": ours.output_projection.weight,
            "out_proj.bias": ours.output_projection.bias,
        }
    )
    query, memory, lengths = sequence(), sequence(4, width=7), torch.tensor([4, 1, 3])
    output, weights = ours(query, memory, mask=Padding(lengths), need_weights=True)
    ignored = torch.arange(4) >= lengths[:, None]
    reference, reference_weights = theirs(query, memory, memory, key_padding_mask=ignored, average_attn_weights=False)
    torch.testing.assert_close(output, reference, **DOUBLE)
    torch.testing.assert_close(weights, reference_weights, **DOUBLE)
    with pytest.raises(ShapeError, match=r"width 12 and memory 7"):
        ours.step(query)


@pytest.mark.parametrize("kv_heads", [3, 1])
@pytest.mark.parametrize("widths", [(None, None), (6, 9)])
def test_one_product_equals_three(kv_heads: int, widths: tuple[int | None, int | None]) -> None:
    ours = module(kv_heads=kv_heads, key_width=widths[0], value_width=widths[1])
    x = sequence()
    fused, weights = ours(x, mask=Causal(), need_weights=True)
    apart, apart_weights = ours(x, x.clone(), x.clone(), mask=Causal(), need_weights=True)
    torch.testing.assert_close(fused, apart, **DOUBLE)
    torch.testing.assert_close(weights, apart_weights, **DOUBLE)
    same_key, _ = ours(x, x.clone(), mask=Causal())
    torch.testing.assert_close(fused, same_key, **DOUBLE)
    assert fused.shape == x.shape


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_queries_equal_repeated_key_heads(kv_heads: int) -> None:
    """Each key head serves adjacent query heads."""
    heads = 4
    grouped, whole = module(heads, kv_heads=kv_heads), module(heads)
    assert grouped.in_projection is not None
    assert whole.in_projection is not None
    head = WIDTH // heads
    with torch.no_grad():
        for mine, other in (
            (grouped.in_projection.weight, whole.in_projection.weight),
            (grouped.in_projection.bias, whole.in_projection.bias),
        ):
            assert mine is not None
            assert other is not None
            query, *shared = mine.split([WIDTH, kv_heads * head, kv_heads * head])
            repeated = [part for both in shared for part in both.split(head) for _ in range(heads // kv_heads)]
            other.copy_(torch.cat([query, *repeated]))
        whole.output_projection.load_state_dict(grouped.output_projection.state_dict())
    x = sequence()
    for need_weights in (False, True):
        outputs = [each(x, mask=Causal(), need_weights=need_weights)[0] for each in (grouped, whole)]
        torch.testing.assert_close(*outputs, **DOUBLE)


@pytest.mark.parametrize("kv_heads", [3, 1])
@pytest.mark.parametrize("sizes", [[1] * LENGTH, [2, 1, 2], [4, 1], [LENGTH]])
def test_step_by_step_equals_the_whole(sizes: list[int], kv_heads: int) -> None:
    ours = module(kv_heads=kv_heads)
    x = sequence()
    whole, whole_weights = ours(x, mask=Causal(), need_weights=True)
    cache: KeyValue | None = None
    position = 0
    for part in x.split(sizes, dim=1):
        output, weights, cache = ours.step(part, cache, mask=Causal(), need_weights=True)
        end = position + part.shape[1]
        torch.testing.assert_close(output, whole[:, position:end], **DOUBLE)
        torch.testing.assert_close(weights, whole_weights[:, :, position:end, :end], **DOUBLE)
        position = end
    assert cache is not None
    assert cache.length == LENGTH


def test_rows_selected_padded_and_joined_go_on_as_if_alone() -> None:
    """Two caches of different lengths in one batch, masked with ~Padding(pad), equal each row computed alone."""
    ours = module()
    long, short = sequence(4, seed=5), sequence(2, seed=6)
    rows = torch.tensor([2, 0])
    _, _, long_cache = ours.step(long, mask=Causal())
    _, _, short_cache = ours.step(short, mask=Causal())
    joined = long_cache.select(rows).join(short_cache)
    pad = torch.tensor([0] * 2 + [2] * BATCH)
    new = sequence(2, seed=7)
    for mask in (Causal() & ~Padding(pad), ~Padding(pad) & Causal()):
        output, _, after = ours.step(torch.cat([new[rows], new]), joined, mask=mask)
        assert after.length == 6
        long_alone, _ = ours(torch.cat([long, new], dim=1)[rows], mask=Causal())
        short_alone, _ = ours(torch.cat([short, new], dim=1), mask=Causal())
        torch.testing.assert_close(output, torch.cat([long_alone[:, 4:], short_alone[:, 2:]]), **DOUBLE)


def test_projecting_memory_once_equals_forward() -> None:
    ours = module(kv_heads=1)
    query, memory = sequence(), sequence(7, seed=2)
    kv = ours.project(memory)
    mask = Padding([7, 2, 4])
    whole, _ = ours(query, memory, mask=mask)
    for position in range(LENGTH):
        output, weights = ours.attend(query[:, position : position + 1], kv, mask=mask)
        torch.testing.assert_close(output, whole[:, position : position + 1], **DOUBLE)
        assert weights is None


def test_a_padded_batch_equals_its_sentences_one_by_one() -> None:
    ours = module()
    lengths = [5, 1, 3]
    x = sequence()
    for padding in (0.0, 1e3):
        filled = x.clone()
        for row, length in enumerate(lengths):
            filled[row, length:] = padding
        for mask, alone_mask in ((Padding(lengths), None), (Causal() & Padding(lengths), Causal())):
            batch, _ = ours(filled, mask=mask)
            for row, length in enumerate(lengths):
                alone, _ = ours(x[row : row + 1, :length], mask=alone_mask)
                torch.testing.assert_close(batch[row : row + 1, :length], alone, **DOUBLE)


def test_dropout_only_while_training_and_weights_before_it() -> None:
    ours = module(dropout=0.5)
    x = sequence()
    ours.train()
    torch.manual_seed(0)
    first, weights = ours(x, need_weights=True)
    second, _ = ours(x)
    assert not torch.allclose(first, second)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(BATCH, HEADS, LENGTH, dtype=torch.float64))
    ours.eval()
    torch.testing.assert_close(ours(x)[0], module()(x)[0], **DOUBLE)


def test_every_projection_is_drawn_by_itself() -> None:
    """Xavier-uniform's bound of each map, sqrt(6 / (in + out)), is wider than that of the packed matrix."""
    torch.manual_seed(0)
    width, kv_width = 64, 16
    ours = MultiHeadAttention(width, 4, kv_heads=1)
    assert ours.in_projection is not None
    parts = ours.in_projection.weight.split([width, kv_width, kv_width])
    for part in (*parts, ours.output_projection.weight):
        bound = math.sqrt(6 / (part.shape[0] + part.shape[1]))
        assert 0.95 * bound < part.abs().max() <= bound
        assert abs(part.std() - bound / math.sqrt(3)) < 0.05 * bound
    for name, parameter in ours.named_parameters():
        if name.endswith("bias"):
            assert parameter.eq(0).all()


def test_trains_in_bfloat16_with_autocast() -> None:
    ours = module().float()
    x = sequence().float()
    exact, exact_weights = ours(x, mask=Causal(), need_weights=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain, _ = ours(x, mask=Causal())
        explicit, weights = ours(x, mask=Causal(), need_weights=True)
    for output in (plain, explicit):
        torch.testing.assert_close(output.float(), exact, rtol=0, atol=0.05)
    torch.testing.assert_close(weights.float(), exact_weights, rtol=0, atol=0.02)
    plain.float().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in ours.parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 5}, "width=12 cannot be divided among 5 heads.*15"),
        ({"heads": 0}, "heads=0"),
        ({"heads": 1, "width": 0}, "^width=0: must be at least 1"),
        ({"heads": 2, "width": -4}, "^width=-4: must be at least 1"),
        ({"heads": 3, "key_width": 0}, "^key_width=0: must be at least 1"),
        ({"heads": 3, "value_width": 0}, "^value_width=0: must be at least 1"),
        ({"heads": 3, "memory_width": 0}, "^memory_width=0: must be at least 1"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads=3"),
        ({"heads": 3, "key_width": 8}, "key_width=8"),
        ({"heads": 3, "value_width": 8}, "value_width=8"),
        ({"heads": 3, "dropout": 1.0}, r"dropout=1\.0"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        MultiHeadAttention(**{"width": WIDTH, **settings})  # type: ignore[arg-type]


def test_input_of_another_width_is_named() -> None:
    with pytest.raises(ShapeError, match=r"\[3, 5, 11\].*12"):
        module()(sequence(width=11))


def test_print_shows_the_sizes() -> None:
    assert "heads=3, kv_heads=1" in repr(module(kv_heads=1))
    assert "12 -> 12 + 4 + 4" in repr(module(kv_heads=1))


@pytest.mark.parametrize("kv_heads", [1, 3])
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_norms_of_queries_and_keys_are_the_equation(kind: str, kv_heads: int) -> None:
    """Dehghani et al. (2023): in self-attention with rotary positions and a cache, and to another sequence."""
    ours = module(qk_norm=kind, norm_eps=0.1, kv_heads=kv_heads)
    plain = module(kv_heads=kv_heads)
    assert ours.query_norm is not None
    assert ours.key_norm is not None
    with torch.no_grad():
        ours.query_norm.weight.normal_()
        ours.key_norm.weight.normal_()
    plain.load_state_dict(ours.state_dict(), strict=False)

    def normed(heads: Tensor, gain: Tensor) -> Tensor:
        rows = []
        for x in heads.reshape(-1, heads.shape[-1]):
            x = x - sum(x) / len(x) if kind == "layer" else x
            rows.append(x / (sum(x * x) / len(x) + 0.1) ** 0.5 * gain)
        return torch.stack(rows).view(heads.shape)

    def expected(x: Tensor, memory: Tensor, turned: bool) -> Tensor:
        kv = plain.project(memory)
        query = normed(plain.project_query(x), ours.query_norm.weight)  # type: ignore[union-attr]
        key = normed(kv.key, ours.key_norm.weight)  # type: ignore[union-attr]
        if turned:
            query, key = rotary(query, layout="halves"), rotary(key, layout="halves")
        mask = Causal() if turned else None
        return plain.output_projection(join_heads(attention(query, key, kv.value, mask=mask)[0]))

    x, memory = sequence(), sequence(LENGTH + 2, seed=2)
    turns = sinusoid(torch.arange(LENGTH), WIDTH // HEADS, "halves").double()
    near = {"rtol": 1e-6, "atol": 1e-7}  # the angles are float32
    output, _ = ours(x, mask=Causal(), turns=turns)
    torch.testing.assert_close(output, expected(x, x, True), **near)
    cache, steps = None, []
    for time in range(LENGTH):
        step, _, cache = ours.step(x[:, time : time + 1], cache, turns=turns[time : time + 1])
        steps.append(step)
    torch.testing.assert_close(torch.cat(steps, 1), output, **DOUBLE)
    torch.testing.assert_close(ours(x, memory)[0], expected(x, memory, False), **DOUBLE)
    torch.testing.assert_close(ours.attend(x, ours.project(memory))[0], expected(x, memory, False), **DOUBLE)


def test_an_unknown_norm_is_named(unchecked: None) -> None:
    with pytest.raises(ConfigurationError, match="qk_norm='batch': norms of queries and keys are 'layer' or 'rms'"):
        module(qk_norm="batch")
