"""SentencePiece models (unigram, BPE) with the ids of another program.

Kudo and Richardson (2018), "SentencePiece". The library ``sentencepiece`` normalizes and segments; the ids come from a
vocabulary, which can be the model's own list, that list with other special symbols in front (fairseq, M2M-100, NLLB,
mBART), or a separate file (Marian's ``vocab.yml``, which covers the models of two languages).

Encoding is not exact, unlike our own: a model normalizes (NFKC, runs of spaces), and a character without an entry
becomes the unknown symbol unless the model falls back to bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from multihead.errors import FormatError, require_package
from multihead.sealed import read_file
from multihead.text.foreign import ForeignTokenizer, SpecialIds, damaged, read_fields
from multihead.text.spans import Span
from multihead.text.vocabulary import BYTE_TOKENS, MARK

_BYTES = {name: bytes([byte]) for byte, name in enumerate(BYTE_TOKENS)}


class SentencePieceTokenizer(ForeignTokenizer):
    """A SentencePiece model with a vocabulary.

    Args:
        model: content of the ``.model`` or ``.spm`` file.
        vocabulary: the piece of each id; pieces of the model that it lacks become the unknown symbol.
        specials: ids of the special symbols.
        control: ids that no text is encoded into and no search emits, besides the special ones.
        prefix: ids before every text, such as the token of a language.

    Raises:
        FormatError: the model is damaged, or an id is not in the vocabulary.
        MissingDependencyError: ``sentencepiece`` is not installed.
    """

    kind = "sentencepiece"

    def __init__(
        self,
        model: bytes,
        vocabulary: Sequence[str],
        specials: SpecialIds,
        control: Collection[int] = (),
        prefix: Sequence[int] = (),
    ) -> None:
        super().__init__(vocabulary, specials, control, prefix)
        self.model = model
        self._processor = open_model(model)
        own = range(self._processor.get_piece_size())
        self._byte_fallback = any(self._processor.is_byte(i) for i in own)
        self._names = names = {piece: i for i, piece in enumerate(self._vocabulary) if i not in self.control}
        self._ids = [
            self.unk_id
            if self._processor.is_control(i) or self._processor.is_unknown(i)
            else names.get(self._processor.id_to_piece(i), self.unk_id)
            for i in own
        ]
        self._own_unknown = self._processor.unk_id()

    @classmethod
    def from_json(cls, text: str) -> SentencePieceTokenizer:
        """The tokenizer of a string written by `to_json`.

        Raises:
            FormatError: the string is damaged.
        """
        fields = read_fields(text, cls.kind)
        try:
            model = base64.b64decode(fields["model"], validate=True)
            vocabulary = [str(piece) for piece in fields["vocabulary"]]
        except (KeyError, TypeError, ValueError):
            raise damaged(cls.kind) from None
        return cls(model, vocabulary, fields["specials"], fields["control"], fields["prefix"])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without white space around it.

        Control symbols are skipped; bytes that are not valid UTF-8 become U+FFFD.

        Raises:
            InputError: an id is not in the vocabulary.
        """
        self._check_range(ids)
        entries = self.entries
        return b"".join([entries[i] for i in ids]).decode("utf-8", errors="replace").strip()

    def _segment(self, texts: Sequence[str]) -> list[list[int]]:
        ids, unknown = self._ids, self._own_unknown
        rows: list[list[int]] = []
        for text, found in zip(texts, self._processor.encode(list(texts)), strict=True):
            if unknown in found:  # a separate vocabulary may have an entry for what the model does not know
                rows.append([self._look_up(piece) for piece in self._processor.encode(text, out_type=str)])
            else:
                rows.append([ids[i] for i in found])
        return rows

    def _look_up(self, piece: str) -> int:
        """The id of a piece, which may be text that the model does not know; it never names a control symbol."""
        own = self._processor.piece_to_id(piece)
        return self._names.get(piece, self.unk_id) if own == self._own_unknown else self._ids[own]

    def _segment_spans(self, text: str) -> list[Span]:
        return [(start, stop) for start, stop in self._processor.encode_as_offset_mapping(text)["offsets"]]

    def _bytes_of_entries(self) -> list[bytes]:
        names = _BYTES if self._byte_fallback else {}
        return [names.get(piece) or piece.replace(MARK, " ").encode() for piece in self._vocabulary]

    def _own_fields(self) -> dict[str, Any]:
        return {"vocabulary": self._vocabulary, "model": base64.b64encode(self.model).decode()}


def open_model(model: bytes) -> Any:
    """The library's processor of a serialized model.

    Raises:
        FormatError: the bytes are no SentencePiece model.
        MissingDependencyError: ``sentencepiece`` is not installed.
    """
    require_package("sentencepiece", "interop", "a model with a SentencePiece vocabulary")
    import sentencepiece

    problem = FormatError("not a SentencePiece model, or damaged; copy the file again")
    if not model:
        raise problem
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    except (RuntimeError, OSError):
        raise problem from None
    if not processor.get_piece_size():
        raise problem
    return processor


def read_model(path: Path) -> bytes:
    """The content of a ``.model`` or ``.spm`` file, which is a valid model.

    Raises:
        FormatError: there is no such file, or it is damaged.
        MissingDependencyError: ``sentencepiece`` is not installed.
    """
    model = read_file(path)
    try:
        open_model(model)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
    return model


def own_pieces(model: bytes) -> list[str]:
    """The pieces of a model in the order of its own ids."""
    processor = open_model(model)
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
