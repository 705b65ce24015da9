"""Imports what multihead needs, step by step, and prints what it finds.

``python -m multihead.diagnosis.probe`` prints a line of JSON for each step, ``[step, facts]``, as soon as it is done:
what ends this process ends it at the next step. `diagnosis.environment` starts it and reads the lines. Compiled code is
loaded as by every command that computes, and built where that is still to be done.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

Facts = dict[str, Any]

PACKAGES = ("numpy", "tokenizers", "safetensors", "sacrebleu", "pydantic", "click", "rich", "jaxtyping", "sentencex")
"""The modules of the packages that multihead cannot do without, other than torch."""


def main() -> None:
    """Print the facts of each step."""
    for step, find in STEPS.items():
        try:
            facts = find()
        except Exception as error:  # a broken package raises anything
            facts = {"error": described(error)}
        print(json.dumps([step, facts]), flush=True)  # noqa: T201


def described(error: Exception) -> str:
    """An error as one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def each(facts: Mapping[str, Callable[[], Any]]) -> Facts:
    """The value of each fact, or its error."""
    found: Facts = {}
    for name, find in facts.items():
        try:
            found[name] = find()
        except Exception as error:
            found[name] = {"error": described(error)}
    return found


def packages() -> Facts:
    """The packages that are broken or missing, each with its error."""
    found = each({name: partial(importlib.import_module, name) for name in PACKAGES})
    return {name: value for name, value in found.items() if isinstance(value, dict)}


def torch_facts() -> Facts:
    """PyTorch: its build, and what it finds of the processor."""
    import torch

    return each(
        {
            "version": lambda: str(torch.__version__),
            "cuda": lambda: torch.version.cuda,
            "hip": lambda: torch.version.hip,
            "capability": lambda: torch.backends.cpu.get_cpu_capability(),
            "threads": lambda: torch.get_num_threads(),
            "mkl": lambda: torch.backends.mkl.is_available(),  # type: ignore[no-untyped-call]
            "onednn": lambda: torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
            "openmp": lambda: torch.backends.openmp.is_available(),  # type: ignore[no-untyped-call]
            "place": lambda: next(iter(torch.__path__)),
        }
    )


def devices() -> Facts:
    """The accelerators that PyTorch can use; of a build with CUDA that finds none, why."""
    import torch

    def cuda() -> list[Facts] | str | None:
        if not torch.cuda.is_available():
            return None if torch.version.cuda is None and torch.version.hip is None else _why_no_cuda(torch)
        return [_cuda_device(torch, number) for number in range(torch.cuda.device_count())]

    return each({"cuda": cuda, "mps": lambda: torch.backends.mps.is_available()})


def _cuda_device(torch: Any, number: int) -> Facts:
    facts = torch.cuda.get_device_properties(number)
    free, total = torch.cuda.mem_get_info(number)
    return {"name": facts.name, "capability": f"{facts.major}.{facts.minor}", "total": total, "free": free}


def _why_no_cuda(torch: Any) -> str:
    try:
        torch.cuda.init()
    except Exception as error:
        return described(error)
    return "no device was found"


def kernels() -> Facts:
    """Whether the kernels of training are compiled, and why or why not."""
    from multihead.kernels.native import load_kernels

    found = load_kernels(_announce)
    return {"compiled": found.library is not None, "reason": found.reason}


def search() -> Facts:
    """Whether the search is compiled, and why or why not."""
    from multihead.engine.weights import load_search_library

    found = load_search_library(_announce)
    return {"compiled": found.library is not None, "reason": found.reason}


def products() -> Facts:
    """The libraries of large matrix products in float32 and bfloat16."""
    from multihead.kernels.linear import library_for_this_processor

    return {"library": library_for_this_processor(), "half": library_for_this_processor(True)}


def _announce(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


STEPS: dict[str, Callable[[], Facts]] = {
    "packages": packages,
    "torch": torch_facts,
    "devices": devices,
    "kernels": kernels,
    "search": search,
    "products": products,
}


if __name__ == "__main__":
    main()
