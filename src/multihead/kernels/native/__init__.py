"""The compiled kernels: whether they are there, and why not if they are not. How they are built is in `build`.

Nothing depends on them: each operation of `multihead.kernels` has a plain form of PyTorch's operations, which is taken
where no compiler is, on other devices, for other types, under compilers and function transforms; and the compiled
search (`multihead.engine`) has the searches of `multihead.decoding` beside it. The environment variable
MULTIHEAD_NATIVE says what is wished: ``0`` never, ``1`` always (an error where it cannot be), unset: where it can be.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from multihead.errors import ConfigurationError
from multihead.kernels.native.build import CannotBuild, load

VARIABLE = "MULTIHEAD_NATIVE"

Announce = Callable[[str], None]

TYPES = {torch.float32: 0, torch.bfloat16: 1}
"""The numbers of the types of elements in kernels.cpp."""


class Native(NamedTuple):
    """The compiled kernels, or the reason why there are none."""

    library: ctypes.CDLL | None
    reason: str
    """For a log: one line without a full stop."""


_found: list[Native] = []
_decoding: list[Native] = []


def native(announce: Announce | None = None) -> Native:
    """Loads the kernels, building them if need be; looks once in a process.

    Args:
        announce: told in one line before a build begins, which takes some seconds.

    Raises:
        ConfigurationError: MULTIHEAD_NATIVE is 1 and they cannot be had, or is neither 0 nor 1.
    """
    if not _found:
        _found.append(_find(announce, "kernels"))
    return _found[0]


def decoding(announce: Announce | None = None) -> Native:
    """As `native`, the compiled search."""
    if not _decoding:
        _decoding.append(_find(announce, "decoding"))
    return _decoding[0]


def forget() -> None:
    """Lets the next call of `native` or `decoding` look again: for tests of the variable."""
    _found.clear()
    _decoding.clear()


def _find(announce: Announce | None, name: str) -> Native:
    wish = os.environ.get(VARIABLE, "")
    if wish not in ("", "0", "1"):
        raise ConfigurationError(f"{VARIABLE}={wish!r}: write 0 (never), 1 (always), or nothing (if possible)")
    if wish == "0":
        return Native(None, f"plain {name}: {VARIABLE}=0")
    try:
        library, how = load(announce, name)
    except CannotBuild as error:
        if wish == "1":
            raise ConfigurationError(f"{VARIABLE}=1, but {error}") from error
        return Native(None, f"plain {name}: {error}")
    _declare(library, _SIGNATURES[name])
    return Native(library, f"compiled {name} ({how})")


def library_for(*tensors: Tensor | None) -> ctypes.CDLL | None:
    """The compiled kernels if they can be had for these tensors: plain ones on the CPU, float32 or bfloat16."""
    if torch.compiler.is_compiling() or _transformed():
        return None
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) not in _PLAIN or tensor.device.type != "cpu" or tensor.dtype not in TYPES or tensor.is_nested:
            return None
    return native().library


_PLAIN = (Tensor, nn.Parameter)


def _transformed() -> bool:
    """Inside torch.func's transforms, torch.jit's tracer or forward-mode differentiation."""
    return bool(
        torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def pointer(tensor: Tensor | None) -> int | None:
    """What a kernel is handed for a (contiguous) tensor."""
    return None if tensor is None else tensor.data_ptr()


_LETTERS = {
    "p": ctypes.c_void_p,
    "i": ctypes.c_int,
    "l": ctypes.c_int64,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
    "u": ctypes.c_uint32,
}
_KEY = "uulllp"
_KERNELS = {
    "dropout": "pipill" + _KEY + "ifl",
    "keep_mask": "pll" + _KEY + "il",
    "add_norm": "ppipp" + "ppipp" + "llf" + _KEY + "ifl",
    "add_norm_backward": "pipppp" + "pppipp" + "ll" + _KEY + "ifl",
    "activation": "pppiill" + _KEY + "ifl",
    "activation_backward": "pppppiill" + _KEY + "ifl",
    "cross_entropy": "pipllfipppl",
    "attention": "pppppp" + "ippppifl",
    "attention_backward": "ppppppppp" + "ippppifl",
}
_SEARCH = {
    "decoding_model": "ppp:p",
    "decoding_model_free": "p",
    "decoding_positions": "pplpl",
    "decoding_shortlist": "pplpp:p",
    "decoding_shortlist_free": "p",
    "decoding_search": "ppdplplp:p",
    "decoding_search_free": "p",
    "decoding_add": "plplll",
    "decoding_drop": "pl:l",
    "decoding_leading": "plp:l",
    "decoding_run": "pd:l",
    "decoding_seconds": "pp",
    "decoding_matrix_unit": "l:l",
    "decoding_next": "pp:l",
    "decoding_take": "pppppp",
}
_SIGNATURES = {"kernels": _KERNELS, "decoding": _SEARCH}
"""Argument types, a letter each: pointer, int, 64-bit integer, float, double, unsigned 32-bit integer; behind a colon
that of the result, where there is one."""

_BRIEF = {
    "decoding_add", "decoding_drop", "decoding_leading", "decoding_next", "decoding_positions", "decoding_seconds",
    "decoding_take",
}  # fmt: skip
"""Done in a microsecond: Python's lock is kept meanwhile. Who gives it up waits for the other threads to return it."""


def _declare(library: ctypes.CDLL, signatures: dict[str, str]) -> None:
    keeping = ctypes.PyDLL(library._name)
    for name, letters in signatures.items():
        arguments, _, result = letters.partition(":")
        if name in _BRIEF:
            setattr(library, name, getattr(keeping, name))
        function = getattr(library, name)
        function.argtypes = [_LETTERS[letter] for letter in arguments]
        function.restype = _LETTERS[result] if result else None
