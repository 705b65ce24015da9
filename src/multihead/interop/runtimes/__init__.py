"""Programs that run an exported or imported model, for certificates.

One file for each program. A runtime works on token ids, so that a certificate compares models and not texts: sources
end with the end symbol, targets and translations have no begin symbol and end with the end symbol, unless the length
limit cut them. `multihead.interop.certificate` compares a runtime with our own model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.search import Search
from multihead.text.languages import Direction


@dataclass(frozen=True)
class Rules:
    """How a program searches, in terms of our search: with these rules both find the same, up to rounding."""

    search: Search
    """Beam, length penalty, stopping rule, and ``max_length`` for all sentences."""
    forbidden: tuple[int, ...] = ()
    """The ids that the program never emits."""
    unfinished_compete: bool = False
    """Whether hypotheses that the length limit cuts are ranked with the finished ones; ours come after them."""
    differences: tuple[str, ...] = ()
    """How its search by default differs from ours by default, one sentence each."""


@runtime_checkable
class TokenizerRuntime(Protocol):
    """A program that cuts text into tokens."""

    name: str
    version: str

    def encode(self, texts: Sequence[str]) -> list[list[int]] | None:
        """The ids of each text as `Tokenizer.encode` gives them; None if the program has no tokenizer of its own."""

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str] | None:
        """The text of each row as `Tokenizer.decode` gives it; None if the program has no tokenizer of its own."""


@runtime_checkable
class Runtime(TokenizerRuntime, Protocol):
    """A program that runs a translation model."""

    @property
    def positions(self) -> int | None:
        """The positions that the model has there, for a text with its end symbol; None if they have no end."""

    def rules(self, search: Search) -> Rules:
        """The rules of the program's search where it is asked for this beam, length penalty and ``max_length``."""

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """log p(y_t | y_<t, x) of every id of each target (teacher forcing)."""

    def translate(self, sources: Sequence[Sequence[int]], search: Search) -> list[list[int]]:
        """The best translation of each source; a beam of 1 is greedy search."""


def positions_of(runtime: TokenizerRuntime) -> int | None:
    """`Runtime.positions`; None also where only tokenizers, or engines with our rules, are compared."""
    return runtime.positions if isinstance(runtime, Runtime) else None


@runtime_checkable
class IntegerRuntime(Runtime, Protocol):
    """A program that computes with integers; as a `Runtime` it has them in float32."""

    def wrong_products(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[str]:
        """The products of integers that differ from float32 by more than their rounding, one sentence each."""


@runtime_checkable
class TextRuntime(Protocol):
    """A program that translates whole texts by rules that cannot be changed."""

    @property
    def text_rules(self) -> Rules:
        """The rules of its search."""

    def encode(self, texts: Sequence[str]) -> list[list[int]] | None:
        """As `TokenizerRuntime.encode`."""

    def translate_texts(self, texts: Sequence[str]) -> list[tuple[list[str], str]]:
        """The sentences that it finds in each text, and its translation of the text."""

    def finished_text(self, text: str) -> str:
        """What it makes of a detokenized translation."""


@runtime_checkable
class EngineRuntime(TokenizerRuntime, Protocol):
    """A program that translates texts with the arithmetic and the rules of our engine with int8 products."""

    def translations(self, texts: Sequence[str], search: Search) -> list[Hypothesis]:
        """The best hypothesis of each text, by the model's own settings with this beam and this alpha."""


@runtime_checkable
class DirectedRuntime(TokenizerRuntime, Protocol):
    """A program that runs a model of several directions."""

    def toward(self, direction: Direction) -> TokenizerRuntime:
        """The program, asked for one of them."""
