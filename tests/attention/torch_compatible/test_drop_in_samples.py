"""PyTorch's samples, from the installed wheel, applied to our module and functions.

PyTorch tests its own module and operators with them. Our results equal PyTorch's, including dropout (same seed); those
of the module also equal PyTorch's reference function for the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multihead.attention import Causal, attention
from multihead.attention.torch_compatible.functional import multi_head_attention_forward
from multihead.attention.torch_compatible.module import MultiheadAttention

pytest.importorskip("expecttest", reason="PyTorch's test tools need it")
# Those tools are not imported at the top: that takes seconds, which every process of a test run would spend.

CPU = torch.device("cpu")


def operator_samples(name: str, requires_grad: bool) -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    (info,) = (info for info in op_db if info.name == name)
    torch.manual_seed(0)
    samples = list(info.sample_inputs(CPU, torch.float64, requires_grad=requires_grad))
    assert samples
    return samples


def seeded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    torch.manual_seed(0)
    return function(*args, **kwargs)


def same(ours: tuple[Tensor | None, ...], theirs: tuple[Tensor | None, ...]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


def module_samples(training: bool, dtype: torch.dtype) -> Iterator[Any]:
    from torch.testing._internal.common_modules import module_db

    (info,) = (info for info in module_db if info.module_cls is nn.MultiheadAttention)
    torch.manual_seed(0)
    yield from info.module_inputs_func(info, device=CPU, dtype=dtype, requires_grad=True, training=training)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_module_samples(dtype: torch.dtype, training: bool) -> None:
    samples = list(module_samples(training, dtype))
    assert samples
    for sample in samples:
        constructor, call = sample.constructor_input, sample.forward_input
        modules = [
            seeded(cls, *constructor.args, **constructor.kwargs, dtype=dtype).train(training)
            for cls in (MultiheadAttention, nn.MultiheadAttention)
        ]
        results = []
        for module in modules:
            for x in call.args:
                x.grad = None
            output, weights = module(*call.args, **call.kwargs)
            (output.sum() + (weights * weights).sum()).backward()
            results.append((output, weights, *(x.grad for x in call.args), *(p.grad for p in module.parameters())))
        same(*results)
        ours = modules[0]
        reference = sample.reference_fn(ours, *call.args, **call.kwargs)
        same(results[0][:2], reference)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_the_samples_of_the_function(requires_grad: bool) -> None:
    for sample in operator_samples("nn.functional.multi_head_attention_forward", requires_grad):
        call = (sample.input, *sample.args)
        for extra in ({}, {"need_weights": False}, {"average_attn_weights": False}):
            results = []
            for function in (multi_head_attention_forward, F.multi_head_attention_forward):
                result = seeded(function, *call, **sample.kwargs, **extra)
                leaves = [x for x in (*call, *sample.kwargs.values()) if isinstance(x, Tensor) and x.requires_grad]
                gradients = torch.autograd.grad(result[0].sum(), leaves, allow_unused=True) if leaves else ()
                results.append((*result, *gradients))
            same(*results)


def test_the_samples_of_scaled_dot_product_attention() -> None:
    """Our function takes four axes: [batch, length, width] becomes one head, heads without a batch axis a batch of one.

    PyTorch's is_causal is aligned at the start.
    """
    for sample in operator_samples("nn.functional.scaled_dot_product_attention", requires_grad=True):
        tensors, options = (sample.input, *sample.args), sample.kwargs
        expected = seeded(F.scaled_dot_product_attention, *tensors, **options)
        query, key, value = (x[:, None] if expected.dim() == 3 else x for x in tensors)
        query = query.expand(key.shape[0], -1, -1, -1)  # one sample has no batch axis for its queries
        call = {
            "mask": Causal(align="start") if options["is_causal"] else None,
            "bias": options.get("attn_mask"),
            "dropout_p": options["dropout_p"],
        }
        for backend in ("explicit", "sdpa"):
            output, _ = seeded(attention, query, key, value, backend=backend, **call)
            output = output[:, 0] if expected.dim() == 3 else output
            torch.testing.assert_close(output, expected)
            direction = torch.randn_like(expected)
            gradients = (torch.autograd.grad(x, tensors, direction, retain_graph=True) for x in (output, expected))
            same(*gradients)
