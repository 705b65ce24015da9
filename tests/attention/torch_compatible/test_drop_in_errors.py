"""Errors have PyTorch's types and messages; where PyTorch has none, ours say what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from versions import lone_bias

from multihead.attention import Causal, Dense, Padding
from multihead.attention.torch_compatible.functional import multi_head_attention_forward
from multihead.attention.torch_compatible.module import MultiheadAttention
from multihead.errors import InputError, MaskError, ShapeError

pytestmark = pytest.mark.usefixtures("unchecked")


def zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape)


def no(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.bool)


X, Y = zeros(4, 4, 4), zeros(4, 4)

CALLS: dict[str, tuple[tuple[Tensor, ...], dict[str, Any]]] = {
    "query 1-D": ((zeros(4),) * 3, {}),
    "query 4-D": ((zeros(1, 4, 4, 4),) * 3, {}),
    "batched, key 2-D": ((X, Y, X), {}),
    "batched, value 2-D": ((X, X, Y), {}),
    "batched, padding 1-D": ((X, X, X), {"key_padding_mask": no(4)}),
    "batched, mask 1-D": ((X, X, X), {"attn_mask": no(4)}),
    "batched, mask 4-D": ((X, X, X), {"attn_mask": no(1, 1, 4, 4)}),
    "unbatched, key 3-D": ((Y, X, Y), {}),
    "unbatched, value 3-D": ((Y, Y, X), {}),
    "unbatched, padding 2-D": ((Y, Y, Y), {"key_padding_mask": no(2, 4)}),
    "unbatched, mask 1-D": ((Y, Y, Y), {"attn_mask": no(4)}),
    "unbatched, mask for other heads": ((Y, Y, Y), {"attn_mask": no(5, 4, 4)}),
    "mask 2-D of another size": ((X, X, X), {"attn_mask": no(4, 3)}),
    "mask 3-D of another size": ((X, X, X), {"attn_mask": no(4, 4, 4)}),
    "padding of another batch": ((X, X, X), {"key_padding_mask": no(3, 4)}),
    "padding of another length": ((X, X, X), {"key_padding_mask": no(4, 3)}),
    "padding of integers": ((X, X, X), {"key_padding_mask": no(4, 4).long()}),
    "mask of integers": ((X, X, X), {"attn_mask": no(4, 4).byte()}),
    "another width": ((zeros(4, 4, 3), X, X), {}),
    "key and value of different lengths": ((X, zeros(3, 4, 4), X), {}),
    "queries and keys of different batches": ((zeros(4, 2, 4), X, X), {}),
    "keys of another width": ((X, zeros(4, 4, 3), zeros(4, 4, 3)), {}),
}


def failure(function: Any, *args: Any, **kwargs: Any) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the test determines the type
        function(*args, **kwargs)
    return caught.value


@pytest.mark.parametrize("evaluating", [False, True])
@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_the_errors_are_pytorchs(name: str, extra: bool, evaluating: bool) -> None:
    tensors, call = CALLS[name]
    modules = [
        cls(4, 4, add_zero_attn=extra).train(not evaluating) for cls in (MultiheadAttention, nn.MultiheadAttention)
    ]
    with torch.set_grad_enabled(not evaluating):
        for need_weights in (False, True):
            ours, theirs = (failure(module, *tensors, need_weights=need_weights, **call) for module in modules)
            assert isinstance(ours, type(theirs)), (ours, theirs)
            if name == "queries and keys of different batches":  # PyTorch's message names a shape that was not passed
                assert "query has a batch of 2 and key one of 4" in str(ours)
            elif name.endswith("of integers"):
                assert str(ours).startswith(f"{theirs}; got torch.")
            else:
                assert str(ours) == str(theirs)
            assert isinstance(ours, InputError) or name == "keys of another width"  # raised by PyTorch's matrix product


@pytest.mark.parametrize("width", [{"kdim": 5}, {"vdim": 5}])
def test_the_errors_are_pytorchs_with_other_widths(width: dict[str, int]) -> None:
    modules = [cls(4, 4, **width) for cls in (MultiheadAttention, nn.MultiheadAttention)]
    for tensors in ((X, zeros(4, 4, 3), zeros(4, 4, 3)), (X, zeros(3, 4, 5), zeros(4, 4, 5))):
        ours, theirs = (failure(module, *tensors) for module in modules)
        assert isinstance(ours, type(theirs))
        assert str(ours) == str(theirs)


@pytest.mark.parametrize("arguments", [(5, 2), (0, 1), (4, 0), (-4, 2)])
def test_the_errors_of_the_constructor_are_pytorchs(arguments: tuple[int, int]) -> None:
    ours, theirs = (failure(cls, *arguments) for cls in (MultiheadAttention, nn.MultiheadAttention))
    assert (type(ours), str(ours)) == (type(theirs), str(theirs))


def function_call(**changes: Any) -> dict[str, Any]:
    """The arguments of the function, with some replaced."""
    call = {
        "query": X, "key": X, "value": X, "embed_dim_to_check": 4, "num_heads": 2, "in_proj_weight": zeros(12, 4),
        "in_proj_bias": zeros(12), "bias_k": None, "bias_v": None, "add_zero_attn": False, "dropout_p": 0.0,
        "out_proj_weight": Y, "out_proj_bias": None,
    }  # fmt: skip
    return {**call, **changes}


APART = {"use_separate_proj_weight": True, "q_proj_weight": Y, "k_proj_weight": Y, "v_proj_weight": Y}


@pytest.mark.parametrize(
    "changes",
    [
        {"in_proj_weight": None},
        {"embed_dim_to_check": 3},
        {"num_heads": 3},
        pytest.param({"bias_k": zeros(4)}, marks=lone_bias),
        pytest.param({"bias_v": zeros(4)}, marks=lone_bias),
        {"bias_k": zeros(4), "bias_v": zeros(4), "static_k": zeros(8, 4, 2)},
        {"bias_k": zeros(4), "bias_v": zeros(4), "static_v": zeros(8, 4, 2)},
        {"static_k": zeros(7, 4, 2)},
        {"static_k": zeros(8, 4, 3)},
        {"static_v": zeros(7, 4, 2)},
        {"static_v": zeros(8, 4, 3)},
        {**APART, "q_proj_weight": None},
        {**APART, "k_proj_weight": None},
        {**APART, "v_proj_weight": None},
        {**APART, "q_proj_weight": zeros(4, 3)},
        {**APART, "k_proj_weight": zeros(3, 4)},
        {**APART, "v_proj_weight": zeros(3, 4)},
        {**APART, "key": zeros(3, 4, 4)},
    ],
    ids=str,
)
def test_the_errors_of_the_function_are_pytorchs(changes: dict[str, Any]) -> None:
    call = function_call(**changes)
    ours = failure(multi_head_attention_forward, **call)
    theirs = failure(F.multi_head_attention_forward, **call)
    assert isinstance(ours, type(theirs))
    assert isinstance(ours, ShapeError)
    assert str(ours) == str(theirs)


@pytest.mark.parametrize("name", ["attn_mask", "key_padding_mask"])
def test_the_lines_that_the_refusal_of_integers_names(name: str) -> None:
    """Both calls run, and do what the message says."""
    module = MultiheadAttention(4, 2)
    x, attend = torch.randn(4, 4, 4), torch.ones(4, 4, dtype=torch.long).tril()
    message = str(failure(module, x, x, x, **{name: attend}))
    lines = [f"{name}={name} == 0", f"{name}={name}.bool()"]
    assert f"if 1 means attend, write {lines[0]}; if 1 means ignore, {lines[1]}" in message
    for line, integers in zip(lines, (attend, 1 - attend), strict=True):
        output, _ = eval(f"module(x, x, x, {line})", {"module": module, "x": x, name: integers})
        assert torch.equal(output, module(x, x, x, **{name: ~attend.bool()})[0])


def test_our_mask_in_pytorchs_place() -> None:
    module = MultiheadAttention(4, 2)
    for name in ("attn_mask", "key_padding_mask"):
        with pytest.raises(MaskError, match=rf"{name} takes PyTorch's tensors: write mask=Causal\(\)"):
            module(X, X, X, **{name: Causal()})


def test_pytorchs_mask_in_our_place() -> None:
    module = MultiheadAttention(4, 2)
    with pytest.raises(MaskError, match=r"True = may attend, write Dense\(mask\)"):
        module(X, X, X, mask=no(4, 4))


def test_our_masks_and_biases_must_fit() -> None:
    module = MultiheadAttention(4, 2)
    for call in ({"mask": Padding([1, 2])}, {"mask": Dense(no(3, 4))}, {"bias": zeros(3, 4)}):
        with pytest.raises(ShapeError):
            module(X, X, X, **call)


def test_nested_tensors_have_no_other_masks() -> None:
    nested = torch.nested.nested_tensor([zeros(2, 4), zeros(3, 4)], layout=torch.jagged)
    batch_first = MultiheadAttention(4, 2, batch_first=True)
    with pytest.raises(AssertionError, match="neither key_padding_mask nor attn_mask"):
        batch_first(nested, nested, nested, key_padding_mask=no(2, 3))
    with pytest.raises(AssertionError, match="must all be nested"):
        batch_first(nested, X, X)
    with pytest.raises(AssertionError, match="batch_first=True"):
        MultiheadAttention(4, 2)(nested, nested, nested)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_empty_nested_tensor() -> None:
    """PyTorch 2.13 says that nested tensors need its fast path; in its main branch the message is this one."""
    empty = torch.nested.nested_tensor([])
    with pytest.raises(
        AssertionError, match=r"^query should be unbatched 2D or batched 3D tensor but received 1-D query"
    ):
        MultiheadAttention(4, 2, batch_first=True)(empty, empty, empty)
