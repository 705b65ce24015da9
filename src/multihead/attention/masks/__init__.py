"""Which query may attend to which key: a small algebra with one meaning, True = may attend.

A mask is a structural object (``Causal()``, ``Padding(lengths)``) that knows no shape until it is lowered, so
the choice of a kernel can see what it *is*: ``Causal() & Padding(lengths)`` stays recognisable, a boolean
tensor would not. Masks are combined with ``&``, ``|`` and ``~``; they have no truth value, because ``Causal()
and Padding(lengths)`` would silently drop one of the two. A query that may attend to nothing yields zeros.

Which kernel a mask leads to is decided in :mod:`multihead.attention.functional`. Nothing here reads values on
a device while a mask is lowered; only the ``from_...`` constructors, ``show``, ``plot`` and ``repr`` look at them.
Reading order: algebra · positions · lengths · documents · written; intervals (what the host knows of a mask)
and pytorch (the same in PyTorch's arguments) stand beside them.
"""

from multihead.attention.masks.algebra import And, Full, Mask, Not, Or, Rule
from multihead.attention.masks.documents import Document, EndToEnd
from multihead.attention.masks.intervals import Intervals
from multihead.attention.masks.lengths import Padding, sequence_mask, zero_padding
from multihead.attention.masks.positions import Causal, PrefixLM, SlidingWindow
from multihead.attention.masks.pytorch import TorchMasks, from_torch, generate_square_subsequent_mask, to_torch
from multihead.attention.masks.written import Dense, MaskFunction

__all__ = [
    "And",
    "Causal",
    "Dense",
    "Document",
    "EndToEnd",
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
