"""Texts as their UTF-8 bytes, one id each (Xue et al. 2022, "ByT5").

The first ids are special symbols; byte b has the id b + 3. Further ids are control symbols. Encoding is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from multihead.text.foreign import ForeignTokenizer, SpecialIds, damaged, read_fields
from multihead.text.spans import Span
from multihead.text.vocabulary import BYTE_TOKENS

FIRST = 3
"""The id of byte 0."""

_NAMES = ("<pad>", "</s>", "<unk>")


class ByteTokenizer(ForeignTokenizer):
    """A vocabulary of bytes.

    Args:
        size: number of entries: three special symbols, 256 bytes, unused ones.
        specials: ids of the special symbols.

    Raises:
        FormatError: an id is not in the vocabulary.
    """

    kind = "bytes"

    def __init__(self, size: int, specials: SpecialIds) -> None:
        unused = range(FIRST + 256, size)
        names = [*_NAMES, *BYTE_TOKENS, *(f"<unused {i}>" for i in unused)]
        super().__init__(names[:size], specials, [*range(FIRST), *unused])

    @classmethod
    def from_json(cls, text: str) -> ByteTokenizer:
        """The tokenizer of a string written by `to_json`.

        Raises:
            FormatError: the string is damaged.
        """
        fields = read_fields(text, cls.kind)
        if type(fields.get("size")) is not int or not FIRST + 256 <= fields["size"] <= MOST:
            raise damaged(cls.kind)
        return cls(fields["size"], fields["specials"])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids. Control symbols are skipped; bytes that are not valid UTF-8 become U+FFFD.

        Raises:
            InputError: an id is not in the vocabulary.
        """
        self._check_range(ids)
        return b"".join([self.entries[i] for i in ids]).decode("utf-8", errors="replace")

    def _segment(self, texts: Sequence[str]) -> list[list[int]]:
        return [[FIRST + byte for byte in text.encode()] for text in texts]

    def _segment_spans(self, text: str) -> list[Span]:
        return [(place, place + 1) for place, character in enumerate(text) for _ in character.encode()]

    def _bytes_of_entries(self) -> list[bytes]:
        return [bytes([i - FIRST]) if FIRST <= i < FIRST + 256 else b"" for i in range(len(self))]

    def _own_fields(self) -> dict[str, Any]:
        return {"size": len(self)}


MOST = 2**16
"""The largest number of entries of a file."""
