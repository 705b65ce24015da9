"""The texts of a request, translated in pieces on an engine.

What `lines.translate_shards` is for files, this is for texts in memory: a test set. The compiled search finds the same
bits however a text is divided. Other searches, and choices by other models, are the same up to rounding, since other
sentences stand in a batch, and the same bits on every engine: the pieces depend on the text alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from multihead.lines.translate_shards import OnModels
from multihead.translating.request import TranslationRequest
from multihead.translating.searching import Translation
from multihead.workers import Engine

PIECE = 100
"""Texts of a piece: a test set of 1,000 lines keeps ten processes busy."""

Rows = list[list[Translation]]


@dataclass
class TranslatedPiece(OnModels):
    """The function that an engine applies: translates some texts."""

    def __call__(self, texts: Sequence[str]) -> Rows:
        return self._translator.run(replace(self.options.request, texts=texts))


def translate_pieces(
    engine: Engine,
    function: Callable[[Sequence[str]], Rows],
    request: TranslationRequest,
    progress: Callable[[int], None] | None = None,
) -> Rows:
    """The translations of each text, as `Translator.run`.

    Args:
        engine: where pieces are translated.
        function: a `TranslatedPiece` of the same request, or what calls one.
        request: with the texts, without constraints of single ones.
        progress: called with the number of newly finished texts.

    Raises:
        ConfigurationError: a process has another model.
        SurroundingsError: a machine failed.
    """
    pieces = [request.texts[start : start + PIECE] for start in range(0, len(request.texts), PIECE)]
    found: Rows = []
    with closing(engine.map(function, pieces)) as results:
        for rows in results:
            found += rows
            if progress is not None:
                progress(len(rows))
    return found
