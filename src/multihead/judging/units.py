"""What people read as words in a row of tokens: the units that `judging.inspecting` tells of.

Words are what white space separates, grouped from tokens as `judging.align` does it. Scripts that put no white space
between words (Chinese, Japanese) would make one word of a sentence: there a unit is a token, or as many as it takes to
have whole characters. Everything is read off the tokens, not off a text: a search may have spelt a text otherwise than
the tokenizer would.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.judging.align import words_of


@dataclass(frozen=True, eq=False)
class Units:
    """The units of a row of tokens."""

    texts: list[str]
    matrix: Float[Tensor, "tokens units"]
    """1 where a token has a byte of a unit, or of the blank in front of it; otherwise 0."""
    spaced: list[bool]
    """Which of them white space ends, and not the next token."""

    def span(self, unit: int) -> range:
        """The tokens of a unit, which stand together."""
        tokens = self.matrix[:, unit].nonzero().flatten().tolist()
        return range(tokens[0], tokens[-1] + 1)


def units_of(entries: Sequence[bytes], ids: Sequence[int]) -> Units:
    """The units of these tokens.

    Args:
        entries: what each entry of the vocabulary adds to a text.
        ids: tokens without begin and end.
    """
    pieces = [entries[index] for index in ids]
    raw = b"".join(pieces)
    mark = 0 if raw.startswith(b" ") else 1  # the mark that begins every line, if a search left it out
    words = words_of(pieces + [b" "] * mark, _as_long(raw).removeprefix(" "), [*[len(pieces)] * mark, *range(len(ids))])
    found = list(zip(raw.decode(errors="replace").split(), words[mark:].T, strict=True))
    texts: list[str] = []
    columns: list[Tensor] = []
    spaced: list[bool] = []
    for text, column in found:
        tokens = column.nonzero().flatten().tolist()
        cuts = _cuts([pieces[token] for token in tokens]) if wide(text) else [(0, len(tokens))]
        for start, stop in cuts:
            of_unit = torch.zeros_like(column)
            of_unit[tokens[start:stop]] = 1
            own = b"".join(pieces[token] for token in tokens[start:stop]).decode(errors="replace").strip()
            texts.append(own if len(cuts) > 1 else text)
            columns.append(of_unit)
            spaced.append(not wide(text))
    return Units(texts, torch.stack(columns, 1) if columns else torch.zeros(len(ids), 0), spaced)


def wide(text: str) -> bool:
    """Whether a text has a character of a script without white space between words.

    Korean has white space; full-width signs alone do not make a script.
    """
    return any(unicodedata.name(character, "").startswith(_WITHOUT_SPACES) for character in text)


_WITHOUT_SPACES = ("CJK UNIFIED", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")


def _as_long(raw: bytes) -> str:
    """A text of as many bytes, with question marks in the place of those that are not UTF-8."""
    return re.sub("[\udc80-\udcff]", "?", raw.decode(errors="surrogateescape"))


def _cuts(pieces: Sequence[bytes]) -> list[tuple[int, int]]:
    """The tokens of a word without white space, cut after each that ends a character and after nothing but a blank."""
    ends = [place for place, text in enumerate(accumulate(pieces), 1) if text.strip() and is_whole(text)]
    ends = [*ends[:-1], len(pieces)] if ends else [len(pieces)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def is_whole(raw: bytes) -> bool:
    """Whether bytes are UTF-8: no character is cut."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def begins_a_word(entries: Sequence[bytes]) -> Iterator[bool]:
    """Whether each entry begins with white space: the word before it is then at its end."""
    return (entry.startswith(_SPACES) for entry in entries)


_SPACES = tuple(chr(number).encode() for number in range(0x3001) if chr(number).isspace())
