"""Source factors: the case of each token beside the token in lower case

    Die DNA der Maus      ▁die ▁dna ▁der ▁maus      factors Title, upper, none, Title

A word in another case is another word to a model that reads subwords: it has few examples of headlines. With case as a
factor (Sennrich and Haddow 2016, "Linguistic input features improve neural machine translation") all of them have the
same tokens, and a second embedding is added for the case (`models.factors`):

    e(token, factor) = E[token] + F[factor],    F[0] = 0

Token i with factor f is the id f V + i, with V the entries of the inner vocabulary, so that a source is a list of ids
as ever. Factors are those of a token's own letters:

    0   no letter in upper case
    1   the first letter is, and no other
    2   all of two or more letters are
    3   others are: the mixed case, which is lost when ids become text again, as is that of letters spelled in bytes

A `CaseTokenizer` is of sources alone. Its file is one JSON object:

    multihead_tokenizer   "case"
    inner                 the tokenizer of texts in lower case
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from itertools import chain

from multihead.errors import ConfigurationError, FormatError
from multihead.text.context import ContextTokenizer
from multihead.text.spans import Span
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer, WrappedTokenizer
from multihead.text.user_symbols import SymbolTokenizer
from multihead.text.vocabulary import MARK

NONE, TITLE, UPPER, MIXED = range(4)
FACTORS = 4


def lowered(text: str) -> str:
    """A text in lower case, with as many characters."""
    return text.replace("İ", "i").lower()  # İ is the one character that would become two


def case_of(text: str) -> int:
    """The factor of some characters of a text."""
    lower = lowered(text)
    if lower == text:
        return NONE
    upper = [a != b for a, b in zip(text, lower, strict=True) if a != b or b.upper() != b]
    if all(upper) and len(upper) > 1:
        return UPPER
    return TITLE if upper[0] and not any(upper[1:]) else MIXED


def in_case(text: str, factor: int) -> str:
    """A text in lower case with the case of a factor; as it is if this is mixed."""
    if factor == UPPER:
        return "".join(map(_upper, text))
    if factor == TITLE:
        first = next((place for place, one in enumerate(text) if _upper(one) != one), None)
        if first is not None:
            return f"{text[:first]}{_upper(text[first])}{text[first + 1 :]}"
    return text


def _upper(character: str) -> str:
    """In upper case, unless it would become two characters."""
    return upper if len(upper := character.upper()) == 1 else character


class CaseTokenizer(WrappedTokenizer):
    """A tokenizer of texts in lower case, with case as a factor of each token.

    Args:
        inner: cuts the text in lower case; our byte-pair encoding, with or without symbols and context.

    Raises:
        ConfigurationError: the inner tokenizer is of another kind, or has a symbol with letters in upper case.
    """

    kind = "case"

    def __init__(self, inner: Tokenizer) -> None:
        if type(inner) not in (BytePairTokenizer, SymbolTokenizer, ContextTokenizer):
            raise ConfigurationError(
                f"source_factors: expected byte-pair merges learned by multihead, got a {type(inner).__name__}"
            )
        raised = [symbol for symbol in inner.symbols if lowered(symbol) != symbol]
        if raised:
            raise ConfigurationError(
                f"source_factors: the text is in lower case, where {raised[0]!r} does not occur: give user-defined "
                "symbols without letters in upper case"
            )
        super().__init__(inner)
        self.factors = FACTORS

    @classmethod
    def from_json(cls, text: str) -> CaseTokenizer:
        """The tokenizer of a string written by `to_json`.

        Raises:
            FormatError: the string is damaged.
        """
        name = "tokenizer with case factors"
        _, inner = cls.read_file(text, name, lambda _: None)
        try:
            return cls(Tokenizer.from_json(inner))
        except ConfigurationError as error:
            raise FormatError(f"this {name} is damaged: {error}") from None

    def to_json(self) -> str:
        """The content of the file."""
        return self.file(self.kind)

    @cached_property
    def digest(self) -> str:
        """Of the inner tokenizer, and that there are factors."""
        return hashlib.sha256(f"case {self.inner.digest}".encode()).hexdigest()

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """The entries of the inner tokenizer, once in each case; where there is no case, four times the same."""
        inner, entries = self.inner.vocabulary, self.inner.entries
        letters = [one.replace(MARK, " ").encode() == raw for one, raw in zip(inner, entries, strict=True)]

        def cased(factor: int) -> list[str]:
            return [in_case(one, factor) if own else one for one, own in zip(inner, letters, strict=True)]

        return tuple(chain.from_iterable(cased(factor) for factor in range(FACTORS)))

    @cached_property
    def entries(self) -> tuple[bytes, ...]:
        """The bytes of each id, in its case."""
        return tuple(_bytes_in_case(raw, factor) for factor in range(FACTORS) for raw in self.inner.entries)

    def encode(self, text: str) -> list[int]:
        """The ids of a text.

        Raises:
            DataError: the text has a lone surrogate.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """``[encode(text) for text in texts]``, as the inner tokenizer does it."""
        lower = list(map(lowered, texts))
        rows = self.inner.encode_batch(lower)
        return [
            ids if text == other else self._with_factors(ids, text)
            for ids, text, other in zip(rows, texts, lower, strict=True)
        ]

    def spans(self, text: str) -> list[Span]:
        """For each id of ``encode(text)``, the characters of the text that it stands for."""
        return self.inner.spans(lowered(text))

    def _with_factors(self, ids: Sequence[int], text: str) -> list[int]:
        """The ids with the factors of a text, whose end they spell."""
        size, spelled = len(self.inner), f" {text}"  # the mark in front of every text
        place = len(spelled) - sum(self._characters[i] for i in ids)
        found = []
        for i in ids:
            end = place + self._characters[i]
            found.append(size * case_of(spelled[place:end]) + i)
            place = end
        return found

    @cached_property
    def _characters(self) -> list[int]:
        """How many characters begin in each entry."""
        return [sum(byte & 0xC0 != 0x80 for byte in raw) for raw in self.inner.entries]


def _bytes_in_case(raw: bytes, factor: int) -> bytes:
    try:
        return in_case(raw.decode(), factor).encode()
    except UnicodeDecodeError:  # a part of a character
        return raw
