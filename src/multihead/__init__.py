"""multihead: attention and sequence-to-sequence Transformers in PyTorch, from the equation to a served translator.

    from multihead import Translator, train

    train(source="train.de", target="train.en", output="run")
    Translator.load("run").translate(["Ein Hund rennt."])

The attention library is `multihead.attention`; ARCHITECTURE.md follows one sentence through the rest. Names below are
imported when they are first used, so that ``import multihead`` does not wait for PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multihead.workflows.average import average
    from multihead.workflows.compare import compare
    from multihead.workflows.doctor import doctor
    from multihead.workflows.evaluate import evaluate
    from multihead.workflows.explain import explain
    from multihead.workflows.prepare import prepare
    from multihead.workflows.train import train
    from multihead.workflows.translate import Translator

__version__ = "0.6.0"
__all__ = ["Translator", "__version__", "average", "compare", "doctor", "evaluate", "explain", "prepare", "train"]

_HOMES = {
    "Translator": "multihead.workflows.translate",
    "average": "multihead.workflows.average",
    "compare": "multihead.workflows.compare",
    "doctor": "multihead.workflows.doctor",
    "evaluate": "multihead.workflows.evaluate",
    "explain": "multihead.workflows.explain",
    "prepare": "multihead.workflows.prepare",
    "train": "multihead.workflows.train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'multihead' has no attribute '{name}'; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)
