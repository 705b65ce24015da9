"""Masks: which query may attend to which key. True = may attend.

A mask is an object with structure (``Causal()``, ``Padding(lengths)``) that has no shape until it is used, so the
choice of a backend can depend on its kind: ``Causal() & Padding(lengths)`` is recognizable, a boolean tensor is not.
Masks are combined with ``&``, ``|`` and ``~``. They have no truth value, because ``Causal() and Padding(lengths)``
would silently drop one of the two. A query that may attend to nothing yields zeros.

:mod:`multihead.attention.functional` chooses the backend for a mask. Planning a call reads no values on a device; only
the ``from_...`` constructors, ``show``, ``plot`` and ``repr`` do. Reading order: `algebra`, `standard`, `sinks`,
`documents`, `custom`; then `intervals` (what the host knows of a mask) and `pytorch` (PyTorch's mask arguments).
"""

from multihead.attention.masks.algebra import And, Full, Mask, Not, Or, Rule
from multihead.attention.masks.custom import Dense, MaskFunction
from multihead.attention.masks.documents import Document, EndToEnd
from multihead.attention.masks.intervals import Intervals
from multihead.attention.masks.pytorch import TorchMasks, from_torch, generate_square_subsequent_mask, to_torch
from multihead.attention.masks.sinks import FirstKeys
from multihead.attention.masks.standard import Causal, Padding, PrefixLM, SlidingWindow, sequence_mask, zero_padding

__all__ = [
    "And",
    "Causal",
    "Dense",
    "Document",
    "EndToEnd",
    "FirstKeys",
    "Full",
    "Intervals",
    "Mask",
    "MaskFunction",
    "Not",
    "Or",
    "Padding",
    "PrefixLM",
    "Rule",
    "SlidingWindow",
    "TorchMasks",
    "from_torch",
    "generate_square_subsequent_mask",
    "sequence_mask",
    "to_torch",
    "zero_padding",
]
