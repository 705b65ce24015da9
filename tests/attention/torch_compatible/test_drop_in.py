"""The drop-in has the outputs, gradients and state dict of ``torch.nn.MultiheadAttention``."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from multihead.attention import Causal, Dense, MaskFunction, Padding
from multihead.attention.torch_compatible.functional import multi_head_attention_forward
from multihead.attention.torch_compatible.module import MultiheadAttention
from multihead.errors import ConfigurationError, ShapeError
from multihead.inspection.capture import capture

WIDTH, HEADS, BATCH, QUERIES, KEYS = 12, 4, 3, 4, 5
CLOSE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 4e-2}

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False, "batch_first": True},
    "learned key": {"add_bias_kv": True},
    "zero key": {"add_zero_attn": True, "batch_first": True},
    "both keys": {"add_bias_kv": True, "add_zero_attn": True},
    "other widths": {"kdim": 5, "vdim": 7, "batch_first": True},
    "all": {"kdim": 5, "vdim": WIDTH, "add_bias_kv": True, "add_zero_attn": True, "bias": False},
}


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def hidden(*shape: int, seed: int) -> Tensor:
    """A boolean mask in PyTorch's convention; the first key is visible to all queries."""
    mask = draw(*shape, seed=seed) > 0
    mask[..., 0] = False
    return mask


def numbers(mask: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """The same mask as numbers to add, not only 0 and -inf."""
    return draw(*mask.shape, seed=99).to(dtype).masked_fill(mask, -torch.inf)


ATTN, ATTN_EACH = hidden(QUERIES, KEYS, seed=1), hidden(BATCH * HEADS, QUERIES, KEYS, seed=2)
PADDING = hidden(BATCH, KEYS, seed=3)
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "padding": {"key_padding_mask": PADDING},
    "padding, numbers": {"key_padding_mask": numbers(PADDING)},
    "one for all": {"attn_mask": ATTN},
    "one for all, numbers": {"attn_mask": numbers(ATTN)},
    "one each": {"attn_mask": ATTN_EACH},
    "one each and padding": {"attn_mask": ATTN_EACH, "key_padding_mask": PADDING},
    "all in numbers": {"attn_mask": numbers(ATTN_EACH), "key_padding_mask": numbers(PADDING)},
}


def pair(dtype: torch.dtype = torch.float64, **options: Any) -> tuple[nn.MultiheadAttention, MultiheadAttention]:
    """PyTorch's module and ours with the same weights; no bias is zero, which would hide errors."""
    theirs = nn.MultiheadAttention(WIDTH, HEADS, **options, dtype=dtype)
    for seed, parameter in enumerate(theirs.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed).to(dtype) / 2
    ours = MultiheadAttention(WIDTH, HEADS, **options, dtype=dtype)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def inputs(module: nn.MultiheadAttention, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((QUERIES, WIDTH), (KEYS, module.kdim), (KEYS, module.vdim))
    tensors = [draw(BATCH, *shape, seed=seed).to(dtype) for seed, shape in enumerate(shapes)]
    if not module.batch_first:
        tensors = [tensor.transpose(0, 1) for tensor in tensors]
    query, key, value = (tensor.clone().requires_grad_() for tensor in tensors)
    return query, key, value


def run(module: nn.Module, tensors: tuple[Tensor, ...], **call: Any) -> list[Tensor]:
    """The results and all gradients of one call."""
    module.zero_grad()
    for tensor in tensors:
        tensor.grad = None
    output, weights = module(*tensors, **call)
    loss = (output.double() * draw(*output.shape, seed=5)).sum()
    if weights is not None:
        loss = loss + (weights.double() * draw(*weights.shape, seed=6)).sum()
    loss.backward()
    results = [output, weights, *(tensor.grad for tensor in tensors), *(p.grad for p in module.parameters())]
    return [result.detach().clone() for result in results if result is not None]


def same(ours: list[Tensor], theirs: list[Tensor], dtype: torch.dtype = torch.float64) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("options", OPTIONS)
def test_equals_pytorch(options: str, mask: str) -> None:
    theirs, ours = pair(**OPTIONS[options])
    tensors = inputs(theirs)
    for call in ({"need_weights": False}, {}, {"average_attn_weights": False}):
        same(run(ours, tensors, **MASKS[mask], **call), run(theirs, tensors, **MASKS[mask], **call))


class Together(nn.Module):
    """One tensor is passed as query, key and value, or as key and value."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, query: Tensor, memory: Tensor | None = None, need_weights: bool = True) -> Any:
        key = query if memory is None else memory
        return self.module(query, key, key, need_weights=need_weights)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("options", ["plain", "batch first", "both keys"])
def test_equals_pytorch_when_inputs_are_one_tensor(options: str, need_weights: bool) -> None:
    theirs, ours = (Together(module) for module in pair(**OPTIONS[options]))
    x, memory, _ = inputs(theirs.module)
    for tensors in ((x,), (x, memory)):
        same(run(ours, tensors, need_weights=need_weights), run(theirs, tensors, need_weights=need_weights))


@pytest.mark.parametrize("mask", ["padding", "one for all, numbers"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_pytorch_in_other_types(dtype: torch.dtype, mask: str) -> None:
    theirs, ours = pair(dtype, **OPTIONS["batch first"])
    call = {name: m.to(dtype) if m.is_floating_point() else m for name, m in MASKS[mask].items()}
    for need_weights in (False, True):
        results = run(ours, inputs(theirs, dtype), need_weights=need_weights, **call)
        assert all(result.dtype == dtype for result in results)
        if dtype == torch.float32:
            same(results, run(theirs, inputs(theirs, dtype), need_weights=need_weights, **call), dtype)
        else:  # compare with double: in half precision two correct results may differ by more than the error of either
            exact, _ = pair(**OPTIONS["batch first"])
            output, _ = exact(*inputs(exact), need_weights=need_weights, **MASKS[mask])
            torch.testing.assert_close(results[0].double(), output, rtol=5e-2, atol=1e-1)


@pytest.mark.parametrize("options", ["plain", "batch first", "other widths"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_bias_of_a_narrower_type(dtype: torch.dtype, options: str) -> None:
    """Equal to PyTorch's module with batch-first inputs; for other inputs PyTorch's raises an error."""
    theirs, ours = pair(**OPTIONS[options])
    for module in (theirs, ours):
        module.in_proj_bias = nn.Parameter(draw(3 * WIDTH, seed=7).to(dtype))
    exact, _ = pair(**OPTIONS[options])
    exact.in_proj_bias = nn.Parameter(draw(3 * WIDTH, seed=7).to(dtype).double())
    for need_weights in (False, True):
        results = run(ours, inputs(ours), need_weights=need_weights)
        expected = run(exact, inputs(exact), need_weights=need_weights)
        grads = dict(ours.named_parameters())["in_proj_bias"].grad, exact.in_proj_bias.grad
        torch.testing.assert_close(grads[0], grads[1].to(dtype))
        same([r for r in results if r.dtype == torch.float64], [e for e in expected if e.shape != (3 * WIDTH,)])
        if ours.batch_first:
            torch.testing.assert_close(results[0], theirs(*inputs(theirs), need_weights=need_weights)[0])
    together = Together(ours)
    if options != "other widths":
        same(run(together, inputs(ours)[:1])[:1], run(Together(exact), inputs(exact)[:1])[:1])


@pytest.mark.parametrize("need_weights", [False, True])
def test_autocast_gives_pytorchs_types(need_weights: bool) -> None:
    theirs, ours = pair(torch.float32, batch_first=True, add_bias_kv=True)
    tensors = inputs(theirs, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        expected = theirs(*tensors, key_padding_mask=PADDING, need_weights=need_weights)
        got = ours(*tensors, key_padding_mask=PADDING, need_weights=need_weights)
    for one, other in zip(got, expected, strict=True):
        if other is not None:
            assert one.dtype == other.dtype == torch.bfloat16
            torch.testing.assert_close(one, other, rtol=3e-2, atol=3e-2)
    got[0].sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in ours.parameters())


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_first_values_and_dropout_are_the_same_seed_for_seed(options: str, need_weights: bool) -> None:
    torch.manual_seed(1)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, 0.4, **OPTIONS[options])
    torch.manual_seed(1)
    ours = MultiheadAttention(WIDTH, HEADS, 0.4, **OPTIONS[options])
    for (name, parameter), (their_name, theirs_too) in zip(
        ours.state_dict().items(), theirs.state_dict().items(), strict=True
    ):
        assert name == their_name
        assert torch.equal(parameter, theirs_too), name
    tensors, call = inputs(theirs, torch.float32), {"key_padding_mask": PADDING, "need_weights": need_weights}
    torch.manual_seed(2)
    expected = run(theirs, tensors, **call)
    torch.manual_seed(2)
    same(run(ours, tensors, **call), expected, torch.float32)
    if need_weights:
        assert not torch.allclose(expected[1].sum(-1), torch.ones(()))  # weights after dropout


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("options", ["plain", "batch first", "both keys"])
def test_a_dropout_of_one_drops_all_as_in_pytorch(options: str, need_weights: bool) -> None:
    theirs, ours = pair(dropout=1.0, **OPTIONS[options])
    tensors = inputs(theirs)
    results = run(ours, tensors, need_weights=need_weights)
    same(results, run(theirs, tensors, need_weights=need_weights))
    assert torch.equal(results[0], ours.out_proj.bias.detach().expand(results[0].shape))
    assert not need_weights or not results[1].any()


def test_a_dropout_of_one_is_captured_too() -> None:
    theirs, ours = pair(dropout=1.0, batch_first=True)
    tensors = inputs(ours)
    expected = run(theirs, tensors, need_weights=False)
    for module in (theirs, ours):
        with capture(module) as seen:
            same(run(module, tensors, need_weights=False), expected)
        assert not seen[""].heads.any()
        torch.testing.assert_close(seen[""].weights.sum(-1), torch.ones_like(seen[""].weights[..., 0]))


@pytest.mark.parametrize("options", OPTIONS)
def test_a_sentence_without_its_batch_axis(options: str) -> None:
    theirs, ours = pair(**OPTIONS[options])
    query, key, value = (x.detach().select(0 if ours.batch_first else 1, 1) for x in inputs(theirs))
    for mask in ({}, {"key_padding_mask": PADDING[1]}, {"attn_mask": ATTN_EACH[:HEADS]}, {"attn_mask": ATTN}):
        for call in ({"need_weights": False}, {}, {"average_attn_weights": False}):
            expected, got = theirs(query, key, value, **mask, **call), ours(query, key, value, **mask, **call)
            for one, other in zip(got, expected, strict=True):
                assert (one is None) == (other is None)
                if one is not None:
                    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_mask_of_three_axes_is_a_mask_for_each_head_of_each_sentence() -> None:
    _, ours = pair(batch_first=True)
    query, key, value = inputs(ours)
    together, _ = ours(query, key, value, attn_mask=ATTN_EACH, need_weights=False)
    for number in range(BATCH):
        rows = slice(number, number + 1)
        alone = ATTN_EACH[number * HEADS : (number + 1) * HEADS]
        one, _ = ours(query[rows], key[rows], value[rows], attn_mask=alone, need_weights=False)
        torch.testing.assert_close(one, together[rows])


def test_the_state_goes_both_ways_and_into_files() -> None:
    for options in OPTIONS.values():
        theirs, ours = pair(**options)
        theirs.load_state_dict(ours.state_dict(), strict=True)
        file = io.BytesIO()
        torch.save(ours, file)
        file.seek(0)
        tensors = inputs(ours)
        for twin in (copy.deepcopy(ours), torch.load(file, weights_only=False)):
            assert type(twin) is MultiheadAttention
            same(run(twin, tensors), run(ours, tensors))


def test_the_positions_of_the_arguments_are_pytorchs() -> None:
    arguments = (WIDTH, HEADS, 0.0, False, True, True, 5, 7, True, None, torch.float64)
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(*arguments)
    torch.manual_seed(0)
    ours = MultiheadAttention(*arguments)
    query, key, value = inputs(theirs)
    call = (query, key, value, PADDING, True, ATTN, False, False)
    for one, other in zip(ours(*call), theirs(*call), strict=True):
        torch.testing.assert_close(one, other)


def test_from_torch_takes_the_parameters_themselves() -> None:
    for options in OPTIONS.values():
        theirs, _ = pair(**options)
        ours = MultiheadAttention.from_torch(theirs.eval())
        assert not ours.training
        assert [id(p) for p in ours.parameters()] == [id(p) for p in theirs.parameters()]
        tensors = inputs(theirs)
        same(run(ours, tensors), run(theirs, tensors))
        assert MultiheadAttention.from_torch(ours) is ours


def test_from_torch_keeps_what_is_tied() -> None:
    theirs, _ = pair(**OPTIONS["learned key"])
    theirs.bias_v = theirs.bias_k
    ours = MultiheadAttention.from_torch(theirs)
    assert ours.bias_v is ours.bias_k is theirs.bias_k
    assert [id(p) for p in ours.parameters()] == [id(p) for p in theirs.parameters()]
    tensors = inputs(theirs)
    same(run(ours, tensors), run(theirs, tensors))


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


@pytest.mark.parametrize("name", ["in_proj_weight", "bias_v"])
def test_from_torch_refuses_what_is_computed_and_takes_it_once_it_is_a_parameter(name: str) -> None:
    pruned, parametrized = (pair(**OPTIONS["learned key"])[0] for _ in range(2))
    prune.random_unstructured(pruned, name, amount=0.5)
    parametrize.register_parametrization(parametrized, name, Twice())
    for theirs in (pruned, parametrized):
        with pytest.raises(ConfigurationError, match=rf"{name} is a Tensor.*prune\.remove\(module, '{name}'\)"):
            MultiheadAttention.from_torch(theirs)
    prune.remove(pruned, name)
    parametrize.remove_parametrizations(parametrized, name)
    for theirs in (pruned, parametrized):
        ours = MultiheadAttention.from_torch(theirs)
        tensors = inputs(theirs)
        torch.testing.assert_close(ours(*tensors)[0], theirs(*tensors)[0])


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("options", OPTIONS)
def test_grouped_heads_are_repeated_heads(options: str, kv_heads: int) -> None:
    """The grouped module equals PyTorch's module with every key head repeated for its group of queries."""
    theirs, _ = pair(**OPTIONS[options])
    ours = MultiheadAttention(WIDTH, HEADS, **OPTIONS[options], num_kv_heads=kv_heads, dtype=torch.float64)
    for seed, parameter in enumerate(ours.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed) / 2
    dim = WIDTH // HEADS

    def repeat(tensor: Tensor) -> Tensor:  # rows of kv_heads * dim -> rows of HEADS * dim
        apart = tensor.reshape(kv_heads, dim, -1).repeat_interleave(HEADS // kv_heads, dim=0)
        return apart.reshape(WIDTH, *tensor.shape[1:])

    state = ours.state_dict()
    assert state.keys() == theirs.state_dict().keys()
    for name, tensor in state.items():
        if name.startswith("in_proj"):
            q, k, v = tensor.split([WIDTH, kv_heads * dim, kv_heads * dim])
            state[name] = torch.cat([q, repeat(k), repeat(v)])
        elif name in ("k_proj_weight", "v_proj_weight"):
            state[name] = repeat(tensor)
        elif name in ("bias_k", "bias_v"):
            state[name] = repeat(tensor.flatten()).view(1, 1, -1)
    theirs.load_state_dict(state)
    tensors = inputs(theirs)
    for call in ({"need_weights": False}, {"average_attn_weights": False}):
        got, expected = (run(module, tensors, key_padding_mask=PADDING, **call) for module in (ours, theirs))
        results = 4 if "need_weights" in call else 5  # the gradients of the parameters have other shapes
        same(got[:results], expected[:results])


def test_key_heads_must_serve_equally_many_queries() -> None:
    for wrong in (0, 3, 8):
        with pytest.raises(ConfigurationError, match=f"num_heads=4 is not a multiple of num_kv_heads={wrong}"):
            MultiheadAttention(WIDTH, HEADS, num_kv_heads=wrong)


@pytest.mark.parametrize("options", ["batch first", "both keys"])
@pytest.mark.parametrize("need_weights", [False, True])
def test_our_masks_are_pytorchs_turned_round(options: str, need_weights: bool) -> None:
    _, ours = pair(**OPTIONS[options])
    tensors = inputs(ours)
    term = numbers(ATTN)
    four, added = ATTN_EACH.view(BATCH, HEADS, QUERIES, KEYS), numbers(PADDING)[:, None, None]
    both = added.expand(four.shape).masked_fill(four, -torch.inf).flatten(0, 1)
    equals = [
        ({"mask": Dense(~PADDING[:, None, None])}, {"key_padding_mask": PADDING}),
        ({"mask": Dense(~ATTN)}, {"attn_mask": ATTN}),
        ({"mask": Padding([5, 1, 3])}, {"key_padding_mask": torch.arange(5) >= torch.tensor([5, 1, 3])[:, None]}),
        ({"mask": Causal()}, {"attn_mask": torch.ones(QUERIES, KEYS, dtype=torch.bool).triu(KEYS - QUERIES + 1)}),
        ({"bias": term}, {"attn_mask": term}),
        ({"mask": Dense(~four), "bias": added}, {"attn_mask": both}),
        ({"mask": Dense(~ATTN), "key_padding_mask": PADDING}, {"attn_mask": ATTN, "key_padding_mask": PADDING}),
    ]
    for call, expected in equals:
        got = run(ours, tensors, need_weights=need_weights, **call)
        same(got, run(ours, tensors, need_weights=need_weights, **expected))


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("options", ["batch first", "zero key", "both keys"])
def test_nothing_spreads_from_the_padding(options: str, need_weights: bool, dropout: float) -> None:
    """Not even NaN, where the mask has lengths: with added keys, and with weights that are dropped."""
    _, ours = pair(dropout=dropout, **OPTIONS[options])
    query, *memory = inputs(ours)
    lengths = torch.tensor([5, 1, 3])
    behind = torch.arange(KEYS) >= lengths[:, None]
    behind = (behind if ours.batch_first else behind.T)[..., None]
    found = []
    for filling in (0.0, torch.nan):
        leaves = query, *(x.detach().masked_fill(behind, filling).requires_grad_() for x in memory)
        torch.manual_seed(2)
        output, weights = ours(*leaves, mask=Padding(lengths), need_weights=need_weights)
        gradients = torch.autograd.grad(output.square().sum(), leaves)
        found.append([output, *gradients, *([] if weights is None else [weights])])
    for clean, spoilt in zip(*found, strict=True):
        assert spoilt.isfinite().all()
        if need_weights or not dropout or options != "batch first":  # else the weights are drawn again without the NaN
            torch.testing.assert_close(spoilt, clean)


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_rule_knows_its_sentence_and_head_beside_added_keys(need_weights: bool) -> None:
    _, ours = pair(add_zero_attn=True, batch_first=True)
    tensors = inputs(ours)
    rule = MaskFunction(lambda b, h, q, k: k <= q % 2 + b + h)
    dense = rule.dense(QUERIES, KEYS, batch=BATCH, heads=HEADS)
    for ruled, given in ((rule, dense), (rule & Padding([5, 1, 3]), dense & Padding([5, 1, 3]).dense(QUERIES, KEYS))):
        got = run(ours, tensors, need_weights=need_weights, mask=ruled)
        same(got, run(ours, tensors, need_weights=need_weights, mask=Dense(given)))


def test_static_keys_and_values() -> None:
    """Arguments that only the function has."""
    theirs, _ = pair(**OPTIONS["plain"])
    query, key, value = inputs(theirs)
    kept = [draw(BATCH * HEADS, KEYS, WIDTH // HEADS, seed=seed) for seed in (7, 8)]
    call = (query, key, value, WIDTH, HEADS, theirs.in_proj_weight, theirs.in_proj_bias, None, None)
    rest = (True, 0.0, theirs.out_proj.weight, theirs.out_proj.bias)
    for static in ({"static_k": kept[0]}, {"static_v": kept[1]}, {"static_k": kept[0], "static_v": kept[1]}):
        named = {**static, "key_padding_mask": PADDING}
        expected = torch.nn.functional.multi_head_attention_forward(*call, *rest, **named)
        for one, other in zip(multi_head_attention_forward(*call, *rest, **named), expected, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("zero", [False, True])
def test_static_keys_may_be_more_than_those_of_the_call(zero: bool, need_weights: bool) -> None:
    theirs, _ = pair(**OPTIONS["plain"])
    longer = KEYS + 2
    static = {
        name: draw(BATCH * HEADS, longer, WIDTH // HEADS, seed=seed)
        for name, seed in (("static_k", 7), ("static_v", 8))
    }
    call = (*inputs(theirs), WIDTH, HEADS, theirs.in_proj_weight, theirs.in_proj_bias, None, None)
    rest = (zero, 0.0, theirs.out_proj.weight, theirs.out_proj.bias)
    lengths = torch.tensor([longer, 1, 3])
    behind = torch.arange(longer) >= lengths[:, None]
    named = {**static, "need_weights": need_weights, "key_padding_mask": behind}
    expected = torch.nn.functional.multi_head_attention_forward(*call, *rest, **named)
    ours = {**static, "need_weights": need_weights, "mask": Padding(lengths)}
    for got in (multi_head_attention_forward(*call, *rest, **given) for given in (named, ours)):
        for one, other in zip(got, expected, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other)
    wrong = {**static, "attn_mask": ATTN}  # of the keys of the call, as PyTorch wants it, and so of no use
    for function in (multi_head_attention_forward, torch.nn.functional.multi_head_attention_forward):
        with pytest.raises(RuntimeError):
            function(*call, *rest, **wrong)
    with pytest.raises(ShapeError, match=r"attn_mask covers the 5 keys of the call, but static_k has 7"):
        multi_head_attention_forward(*call, *rest, **wrong)


def test_empty_batches_and_sequences() -> None:
    theirs, ours = pair(batch_first=True)
    for batch, queries, keys in ((0, 2, 3), (2, 0, 3)):
        call = (draw(batch, queries, WIDTH), *(draw(batch, keys, WIDTH),) * 2)
        for need_weights in (False, True):
            results = (module(*call, need_weights=need_weights) for module in (ours, theirs))
            for one, other in zip(*results, strict=True):
                assert one is None or one.shape == other.shape


def test_the_layout_is_said_aloud() -> None:
    assert "batch_first=False: takes [LENGTH, BATCH, width]" in repr(MultiheadAttention(WIDTH, HEADS))
    assert "batch_first=True: takes [BATCH, LENGTH, width]" in repr(MultiheadAttention(WIDTH, HEADS, batch_first=True))
    assert "heads=4/2" in repr(MultiheadAttention(WIDTH, HEADS, num_kv_heads=2))
    assert "heads=4," in repr(MultiheadAttention(WIDTH, HEADS))


COMPILED = """
import torch
from multihead.attention.torch_compatible.module import MultiheadAttention

module = MultiheadAttention(12, 4, batch_first=True).eval()
inputs = torch.randn(3, 4, 12), torch.randn(3, 5, 12), torch.randn(3, 5, 12)
for need_weights in (False, True):
    call = {"key_padding_mask": torch.rand(3, 5) > 0.7, "need_weights": need_weights}
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    for made in (compiled, torch.export.export(module, inputs, call).module()):
        for one, other in zip(made(*inputs, **call), module(*inputs, **call), strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other)

layer = torch.nn.TransformerEncoderLayer(12, 4, 16, batch_first=True)
layer.self_attn = module
encoder = torch.nn.TransformerEncoder(layer, 2).eval()
x, padding = torch.randn(3, 5, 12), torch.arange(5) >= torch.tensor([5, 2, 3])[:, None]
with torch.no_grad():
    call = {"src_key_padding_mask": padding}
    expected = encoder(x, **call)
    compiled = torch.compile(encoder, backend="aot_eager", fullgraph=True)
    for made in (compiled, torch.export.export(encoder, (x,), call).module()):
        torch.testing.assert_close(made(x, **call)[~padding], expected[~padding])
"""


@pytest.mark.proof
def test_compiled_and_exported() -> None:
    """In a new interpreter, since shape checks cannot be compiled."""
    result = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
