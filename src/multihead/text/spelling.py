"""A line of pieces to be read, stored and cut by other tools, and the way back: ``▁A ▁man ▁rid es .``

One space stands between two pieces, ``▁`` in a piece is a space of the text, and ``<0xE2>`` is one byte of a character
without an entry. The text comes back exactly, and without the tokenizer: no entry holds a space, no text is cut
into a piece that is the name of a byte (merges never spell one), and a literal U+2581 is written as its bytes.

`Tokenizer.pieces` is for people's eyes (it shows a tab as ``\\t``) and does not lead back.
"""

from __future__ import annotations

from collections.abc import Iterable

from multihead.text.tokenizer import Tokenizer
from multihead.text.vocabulary import BYTE_TOKENS, FIRST_CHARACTER, MARK

_BYTES = {token: bytes([byte]) for byte, token in enumerate(BYTE_TOKENS)}


class Spelling:
    """Writes ids as pieces.

    Args:
        tokenizer: whose ids they are.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._pieces = tuple(written(tokenizer.parts.vocabulary))

    def line(self, ids: Iterable[int]) -> str:
        """The pieces of a sentence, with a space between them."""
        return " ".join([self._pieces[i] for i in ids])


def read(line: str) -> str:
    """The text of a line of pieces. What is no piece of ours is taken as text; bytes that are not UTF-8 become U+FFFD.

    One space at the beginning, the mark that every line begins with, is left away.
    """
    pieces = (_BYTES.get(piece) or piece.replace(MARK, " ").encode() for piece in line.split(" "))
    return b"".join(pieces).removeprefix(b" ").decode("utf-8", errors="replace")


def written(vocabulary: Iterable[str]) -> Iterable[str]:
    """Each entry as a piece: itself, or bytes where it holds what would cut or end a line.

    Ours hold nothing of the kind; a file that somebody else made may.
    """
    for index, token in enumerate(vocabulary):
        if index >= FIRST_CHARACTER and any(character in token for character in " \r\n"):
            yield " ".join(BYTE_TOKENS[byte] for byte in token.replace(MARK, " ").encode())
        else:
            yield token
