"""SentencePiece as the other side of a certificate: a tokenizer only."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from multihead.errors import require_package
from multihead.interop.formats.parts import TranslatorParts
from multihead.interop.formats.sentencepiece import SEPARATE, SHARED
from multihead.text.sentencepiece import SentencePieceTokenizer


class SentencePieceRuntime:
    """The models in a folder that `multihead.interop.formats.sentencepiece` wrote, run by sentencepiece.

    The ids of our own tokenizers are those of the models. Others have a list of pieces, which is looked up here.

    Args:
        folder: the folder.
        parts: our side, for such lists.

    Raises:
        MissingDependencyError: sentencepiece is not installed.
    """

    name = "sentencepiece"

    def __init__(self, folder: Path, parts: TranslatorParts) -> None:
        require_package("sentencepiece", "interop", "running a SentencePiece model")
        from sentencepiece import SentencePieceProcessor

        self.version = version("sentencepiece")
        names = SHARED if (folder / SHARED[0]).exists() else SEPARATE
        self._source, self._target = (SentencePieceProcessor(model_file=str(folder / names[i])) for i in (0, -1))
        self._tokenizers = parts.source_tokenizer, parts.target_tokenizer

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without begin and end symbols."""
        tokenizer = self._tokenizers[0]
        if not isinstance(tokenizer, SentencePieceTokenizer):
            found: list[list[int]] = self._source.encode(list(texts))
            return found
        ids = {piece: i for i, piece in enumerate(tokenizer.vocabulary) if i not in tokenizer.control}
        rows = [
            [ids.get(piece, tokenizer.unk_id) for piece in self._source.encode(text, out_type=str)] for text in texts
        ]
        return [[*tokenizer.prefix, *row] if row else row for row in rows]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row."""
        tokenizer = self._tokenizers[1]
        if not isinstance(tokenizer, SentencePieceTokenizer):
            return [self._target.decode(list(row)) for row in rows]
        names, control = tokenizer.vocabulary, tokenizer.control
        return [self._target.decode_pieces([names[i] for i in row if i not in control]).strip() for row in rows]


def open_folder(folder: Path, parts: TranslatorParts, _quantization: str) -> SentencePieceRuntime:
    """The runtime of a folder.

    Raises:
        MissingDependencyError: sentencepiece is not installed.
    """
    return SentencePieceRuntime(folder, parts)
