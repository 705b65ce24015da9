"""Symbols that the user defines: always one piece, never cut or merged.

A `SymbolTokenizer` adds entries behind those of our byte-pair encoding, whose ids stay as they are. A text is cut at
the symbols in it, at each place the longest; what is between them is encoded as ever:

    encode(a S b) = encode(a), id of S, encode_rest(b)

A space beside a symbol belongs to the text beside it, so the text comes back exactly, with and without spaces. Symbols
are entries of source and target, and a search may write them. (SentencePiece calls them user-defined symbols.)

Its file is one JSON object:

    multihead_tokenizer   "symbols"
    symbols               the symbols, in the order of their ids
    inner                 the byte-pair encoding
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TypeVar

import tokenizers

from multihead.errors import ConfigurationError, FormatError
from multihead.text import learning
from multihead.text.terms import OF_SOURCES
from multihead.text.tokenizer import STANDARD, BytePairTokenizer, Tokenizer, WrappedTokenizer
from multihead.text.vocabulary import MARK, Specials, assemble, check_unicode

T = TypeVar("T")

_LONGEST = 100
_MOST = 10_000


def check_symbols(symbols: Sequence[str]) -> None:
    """Check that texts can be cut at these symbols.

    Raises:
        ConfigurationError: one is empty, longer than 100 characters, has white space, an unprintable character or
            U+2581; two are equal; there are more than 10,000.
    """
    if len(symbols) > _MOST:
        raise ConfigurationError(f"got {len(symbols):,} user-defined symbols; expected {_MOST:,} at most")
    for symbol in symbols:
        plain = symbol.isprintable() and not any(c.isspace() or c == MARK for c in symbol)
        if not 0 < len(symbol) <= _LONGEST or not plain:
            raise ConfigurationError(
                f"{symbol!r:.200} cannot be a user-defined symbol: expected 1 to {_LONGEST} printable characters "
                "without white space and U+2581"
            )
    twice = [symbol for symbol, count in Counter(symbols).items() if count > 1]
    if twice:
        raise ConfigurationError(f"the user-defined symbol {twice[0]!r} is given twice: leave one out")


def pattern_of(symbols: Iterable[str]) -> re.Pattern[str]:
    """Finds symbols in a text, at each place the longest; one or more symbols."""
    return re.compile("|".join(map(re.escape, sorted(symbols, key=lambda symbol: (-len(symbol), symbol)))))


def without_symbols(lines: Iterable[str], symbols: Sequence[str]) -> Iterable[str]:
    """The lines with LF for each symbol: no merge is learned across one, or within."""
    pattern = pattern_of(symbols)
    return (pattern.sub("\n", line) for line in lines)


class SymbolTokenizer(WrappedTokenizer):
    """Our byte-pair encoding with user-defined symbols.

    Args:
        inner: cuts the text between symbols.
        symbols: one or more, different ones; see `check_symbols`.

    Raises:
        ConfigurationError: a symbol is not possible, or is an entry of the inner vocabulary already.
    """

    kind = "symbols"

    def __init__(self, inner: BytePairTokenizer, symbols: Sequence[str]) -> None:
        super().__init__(inner)
        check_symbols(symbols)
        known = frozenset(inner.vocabulary)
        for symbol in symbols:
            if symbol in known:
                raise ConfigurationError(
                    f"{symbol!r} cannot be a user-defined symbol, as it is an entry of the vocabulary already: leave "
                    "it out, or learn a vocabulary with it"
                )
        self.pairs = inner
        self.symbols = tuple(symbols)
        self._ids = {symbol: len(inner) + place for place, symbol in enumerate(symbols)}
        self._pattern = pattern_of(symbols)

    @classmethod
    def from_json(cls, text: str) -> SymbolTokenizer:
        """The tokenizer of a string written by `to_json`.

        Raises:
            FormatError: the string is damaged.
        """
        name = "tokenizer with symbols"
        symbols, inner = cls.read_file(text, name, lambda fields: fields["symbols"])
        if not isinstance(symbols, list) or not symbols or not all(isinstance(symbol, str) for symbol in symbols):
            raise FormatError(f"this {name} is damaged: its symbols are no list of texts")
        return cls._around(inner, name, lambda pairs: cls(pairs, symbols))

    @staticmethod
    def _around(inner: str, name: str, make: Callable[[BytePairTokenizer], T]) -> T:
        """What ``make`` makes of the inner tokenizer of a file.

        Raises:
            FormatError: the file of this ``name`` is damaged.
        """
        pairs = Tokenizer.from_json(inner)
        if not isinstance(pairs, BytePairTokenizer):
            raise FormatError(f"this {name} is damaged: its inner one is a {type(pairs).__name__}")
        try:
            return make(pairs)
        except ConfigurationError as error:
            raise FormatError(f"this {name} is damaged: {error}") from None

    def to_json(self) -> str:
        """The content of the file."""
        return self.file(self.kind, symbols=self.symbols)

    @cached_property
    def digest(self) -> str:
        """Of the inner tokenizer and the symbols."""
        return hashlib.sha256((self.pairs.digest + json.dumps(self.symbols)).encode()).hexdigest()

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """The entries of the inner tokenizer, then the symbols."""
        return (*self.pairs.vocabulary, *self.symbols)

    @cached_property
    def entries(self) -> tuple[bytes, ...]:
        """The bytes of each id; those of a symbol are its text."""
        return (*self.pairs.entries, *(symbol.encode() for symbol in self.symbols))

    @cached_property
    def forbidden_in_output(self) -> tuple[int, ...]:
        """What the inner tokenizer forbids, and the symbols of annotations, which sources alone have (`text.terms`)."""
        return (*self.pairs.forbidden_in_output, *(self._ids[own] for own in OF_SOURCES if own in self._ids))

    def id_of(self, symbol: str) -> int:
        """The id of a symbol."""
        return self._ids[symbol]

    def encode(self, text: str) -> list[int]:
        """The ids of a text, one for each symbol in it.

        Raises:
            DataError: the text has a lone surrogate.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """``[encode(text) for text in texts]``, in parallel."""
        return [ids for ids, _ in self._encode(texts)]

    def encode_pieces(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """As `BytePairTokenizer.encode_pieces`; a symbol is a piece of its own."""
        return self._encode(texts)

    def _encode(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """The ids of each text, and the number of each id's piece."""
        cut = [self._pattern.search(text) is not None for text in texts]
        for number, text in enumerate(texts, 1):
            if cut[number - 1]:
                check_unicode(text, f"text {number} of {len(texts)}")
        found = self.pairs.encode_pieces(["" if own else text for text, own in zip(texts, cut, strict=True)])
        places = [place for place, own in enumerate(cut) if own]
        rows = [list(self._segments(f" {texts[place]}")) for place in places]
        rest = iter(self._encode_segments([text for row in rows for text, symbol in row if symbol is None and text]))
        for place, row in zip(places, rows, strict=True):
            ids: list[int] = []
            numbers: list[int] = []
            for text, symbol in row:
                own, pieces = ([symbol], [0]) if symbol is not None else next(rest) if text else ([], [])
                first = numbers[-1] + 1 if numbers else 0
                ids += own
                numbers += [first + piece for piece in pieces]
            found[place] = ids, numbers
        return found

    def _segments(self, text: str) -> Iterator[tuple[str, int | None]]:
        """The text between symbols, and their ids."""
        start = 0
        for match in self._pattern.finditer(text):
            yield text[start : match.start()], None
            yield match[0], self._ids[match[0]]
            start = match.end()
        yield text[start:], None

    def _encode_segments(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """As `BytePairTokenizer.encode_pieces`, without a word mark in front."""
        plain = ["" if MARK in text else text for text in texts]
        return [
            self._with_literal_marks(text)
            if MARK in text
            else (encoding.ids, [number for number in encoding.word_ids if number is not None])
            for text, encoding in zip(texts, self._continuing.encode_batch(plain), strict=True)
        ]

    def _with_literal_marks(self, text: str) -> tuple[list[int], list[int]]:
        pieces = list(self.pairs.split_rest(text))
        return [i for piece in pieces for i in piece], [number for number, piece in enumerate(pieces) for _ in piece]

    @cached_property
    def _continuing(self) -> tokenizers.Tokenizer:
        """The inner tokenizer without the word mark in front of a text."""
        backend = assemble(self.pairs.parts)
        backend.normalizer = tokenizers.normalizers.Replace(" ", MARK)
        return backend


def learn_with_symbols(
    lines: Iterable[str],
    vocab_size: int,
    symbols: Sequence[str],
    *,
    specials: Specials = STANDARD,
    coverage: float = 0.9999,
    min_frequency: int = 2,
) -> Tokenizer:
    """As `Tokenizer.learn`, with user-defined symbols, which count as entries; none are possible.

    Raises:
        InputError, DataError: as `Tokenizer.learn`.
        ConfigurationError: a symbol is not possible.
    """
    if not symbols:
        return Tokenizer.learn(lines, vocab_size, specials=specials, coverage=coverage, min_frequency=min_frequency)
    check_symbols(symbols)
    lines, others = without_symbols(lines, symbols), len(symbols)
    parts = learning.learn(lines, vocab_size, specials, coverage, min_frequency, others)
    return SymbolTokenizer(BytePairTokenizer(parts), symbols)
