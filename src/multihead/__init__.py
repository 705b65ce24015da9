"""Attention and sequence-to-sequence Transformers in PyTorch.

    from multihead import Translator, train

    train(source="train.de", target="train.en", output="run")
    Translator.load("run").translate(["Ein Hund rennt."])

The attention library is `multihead.attention`; ARCHITECTURE.md follows one sentence pair through the rest. The names
below are imported on first use, so that ``import multihead`` does not wait for PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multihead.diagnosis.doctor import doctor
    from multihead.judging.compare import compare
    from multihead.judging.evaluate import evaluate
    from multihead.judging.explain import explain
    from multihead.preparing.prepare import prepare
    from multihead.runs.average import average
    from multihead.runs.translator.train import train
    from multihead.translating.translator import Translator

__version__ = "0.6.0"
__all__ = ["Translator", "__version__", "average", "compare", "doctor", "evaluate", "explain", "prepare", "train"]

_MODULES = {
    "Translator": "multihead.translating.translator",
    "average": "multihead.runs.average",
    "compare": "multihead.judging.compare",
    "doctor": "multihead.diagnosis.doctor",
    "evaluate": "multihead.judging.evaluate",
    "explain": "multihead.judging.explain",
    "prepare": "multihead.preparing.prepare",
    "train": "multihead.runs.translator.train",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'multihead' has no attribute '{name}'; it has {', '.join(__all__)}")
    return getattr(import_module(_MODULES[name]), name)
