"""Tensors as arguments of compiled kernels, each checked.

Kernels read and write memory without bounds. Every tensor that they get passes through `pointer`, which checks its
size, its type and its place; tensors with strides pass through `addresses`. Where the types of a computation are
settled, `without_autocast` keeps autocast from changing them.
"""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _are_functorch_transforms_active, _get_tracing_state
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from multihead.errors import ShapeError
from multihead.kernels.native import load_kernels

TYPES = {torch.float32: 0, torch.bfloat16: 1}
"""Numbers of the element types in kernels.cpp."""


def library_for(*tensors: Tensor | None) -> ctypes.CDLL | None:
    """The compiled kernels, if they support these tensors: plain ones on the CPU, in float32 or bfloat16."""
    # Called several times for each operation, so names are looked up once.
    if is_compiling() or _are_functorch_transforms_active() or _get_tracing_state() is not None:
        return None
    if forward_ad._current_level >= 0:  # forward-mode differentiation
        return None
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) not in _PLAIN or not tensor.is_cpu or tensor.dtype not in TYPES or tensor.is_nested:
            return None
        if tensor.layout is not torch.strided or tensor.is_neg():
            return None
    return load_kernels().library


_PLAIN = (Tensor, nn.Parameter)


def in_half(x: Tensor, weight: Tensor) -> bool:
    """Whether PyTorch would multiply these tensors of a CPU in bfloat16: it is their type, or autocast's."""
    if torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu") is torch.bfloat16
    return x.dtype is weight.dtype is torch.bfloat16


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Switch autocast off, where the device has it and it is on: entering `torch.autocast` takes as long as a small
    operation."""
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def pointer(tensor: Tensor | None, count: int, dtype: torch.dtype) -> int | None:
    """The address of a tensor as an argument of a kernel; None for None.

    Args:
        tensor: what the kernel reads or writes.
        count: how many numbers.
        dtype: their type.

    Raises:
        ShapeError: the tensor is not so many numbers of this type, one after the other on the CPU.
    """
    if tensor is None:
        return None
    if tensor.dtype is not dtype or tensor.numel() != count or not tensor.is_cpu or not tensor.is_contiguous():
        raise ShapeError(
            f"a compiled kernel takes {count} contiguous numbers of {dtype} on the CPU, got a {tensor.dtype} tensor "
            f"{list(tensor.shape)} on {tensor.device}"
        )
    return tensor.data_ptr()


def addresses(shape: torch.Size, dtype: torch.dtype, *tensors: Tensor) -> tuple[int, ...]:
    """The addresses of tensors of one shape and type on the CPU, whose last axis is contiguous.

    Raises:
        ShapeError: one of them is another tensor.
    """
    for x in tensors:
        dense = x.stride(-1) == 1 or x.shape[-1] == 1
        if x.shape != shape or x.dtype is not dtype or not x.is_cpu or not dense:
            raise ShapeError(
                f"a compiled kernel takes {dtype} {list(shape)} here, got {x.dtype} {list(x.shape)} on {x.device}"
            )
    return tuple(x.data_ptr() for x in tensors)


def dense_rows(x: Tensor) -> Tensor:
    """``x`` with the last axis contiguous, as kernels need it."""
    return x if x.stride(-1) == 1 else x.contiguous()


def int64_array(*values: int) -> Any:
    """The values as a C array."""
    return (ctypes.c_int64 * len(values))(*values)


def strides_of(*tensors: Tensor) -> Any:
    """The first three strides of each tensor, as a C array."""
    return int64_array(*(stride for tensor in tensors for stride in tensor.stride()[:3]))


def empty_joined(like: Tensor, *count: int) -> Tensor:
    """An empty [batch, heads, length, dim], laid out as [batch, length, heads, dim]; or ``count`` of them in one."""
    batch, heads, length, width = like.shape
    return like.new_empty(*count, batch, length, heads, width).transpose(-2, -3)
