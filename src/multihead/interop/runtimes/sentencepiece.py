"""SentencePiece as the other side of a certificate: a tokenizer only."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from multihead.errors import MissingDependencyError
from multihead.interop.formats.parts import TranslatorParts
from multihead.interop.formats.sentencepiece import SEPARATE, SHARED


class SentencePieceRuntime:
    """The models in a folder that `multihead.interop.formats.sentencepiece` wrote, run by sentencepiece.

    Args:
        folder: the folder.

    Raises:
        MissingDependencyError: sentencepiece is not installed.
    """

    name = "sentencepiece"

    def __init__(self, folder: Path) -> None:
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            raise MissingDependencyError("sentencepiece", "interop", "running a SentencePiece model") from error
        self.version = version("sentencepiece")
        names = SHARED if (folder / SHARED[0]).exists() else SEPARATE
        self._source, self._target = (SentencePieceProcessor(model_file=str(folder / names[i])) for i in (0, -1))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without begin and end symbols."""
        found: list[list[int]] = self._source.encode(list(texts))
        return found

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row."""
        return [self._target.decode(list(row)) for row in rows]


def open_folder(folder: Path, _parts: TranslatorParts, _quantization: str) -> SentencePieceRuntime:
    """The runtime of a folder.

    Raises:
        MissingDependencyError: sentencepiece is not installed.
    """
    return SentencePieceRuntime(folder)
