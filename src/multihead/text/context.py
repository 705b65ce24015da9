"""Document context: a source with the sentences before it

    Die Katze schläft.⟨break⟩ Sie ist müde.

A model that reads the sentences before knows what a pronoun stands for (Tiedemann and Scherrer 2017, "Neural machine
translation with extended context": "2+1", more source and one target sentence). Each source has one target as
ever, so batches and searches are as ever, and a line has one translation, whatever else is translated with it.

* `Documents` puts before a line the lines before it, up to N, in the same document. A blank line ends a document.
* A `ContextTokenizer` encodes such texts, and knows N and how much context there is room for:

    encode(a ⟨break⟩ b) = encode(a), id of ⟨break⟩, encode(b);   of too long a text without the first sentences

Its file is one JSON object:

    multihead_tokenizer   "context"
    sentences             N
    longest               most ids of a text with context; a sentence alone may have more
    symbols               the user's, before ⟨break⟩
    inner                 the byte-pair encoding
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from multihead.errors import ConfigurationError
from multihead.text.placeholders import Rule, learn_with_placeholders
from multihead.text.spans import Span, find_spans
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer
from multihead.text.user_symbols import SymbolTokenizer, learn_with_symbols

BREAK = "⟨break⟩"
"""Stands behind each sentence of the context."""

MOST = 20
"""Sentences of context."""


class Documents:
    """Puts before each line the lines before it in its document.

    Args:
        sentences: how many; with 0 lines stay as they are.
    """

    def __init__(self, sentences: int) -> None:
        self._before: deque[str] = deque(maxlen=sentences)

    def end(self) -> None:
        """End the document: the next line is the first of another one."""
        self._before.clear()

    def add(self, line: str) -> str:
        """The next line with its context; a blank one stays as it is, and ends the document."""
        if not line.strip():
            self.end()
            return line
        text = "".join(f"{one}{BREAK} " for one in self._before) + line
        self._before.append(line)
        return text

    def add_parts(self, line: str, parts: Sequence[str]) -> list[str]:
        """The parts that the next line was cut into, each with its context; those after the first have others in it."""
        if len(parts) == 1:
            return [self.add(parts[0])]
        own = Documents(self._before.maxlen or 0)
        own._before.extend(self._before)
        self.add(line)
        return [own.add(part) for part in parts]


def in_context(tokenizer: Tokenizer, lines: Iterable[str]) -> list[str]:
    """The lines of documents as a model with this tokenizer of sources reads them; as they are without context."""
    documents = Documents(tokenizer.context)
    return [documents.add(line) for line in lines]


def own_text(text: str) -> str:
    """A text without its context."""
    _, found, own = text.rpartition(BREAK)
    return own.removeprefix(" ") if found else text


class ContextTokenizer(SymbolTokenizer):
    """Our byte-pair encoding of sources with context.

    Args:
        inner: cuts the text between symbols.
        symbols: the user's; there may be none.
        sentences: of the context.
        longest: most ids of a text with context.

    Raises:
        ConfigurationError: a symbol or a number is not possible.
    """

    kind = "context"

    def __init__(self, inner: BytePairTokenizer, symbols: Sequence[str], sentences: int, longest: int) -> None:
        if not (0 < sentences <= MOST and longest > 0):
            raise ConfigurationError(
                f"context: expected 1 to {MOST} sentences, and room for 1 subword or more, got {sentences}, {longest}"
            )
        super().__init__(inner, (*symbols, BREAK))
        self.own_symbols, self.context, self.longest = tuple(symbols), sentences, longest

    @classmethod
    def from_json(cls, text: str) -> ContextTokenizer:
        """The tokenizer of a string written by `to_json`.

        Raises:
            FormatError: the string is damaged.
        """

        def own(fields: dict[str, Any]) -> tuple[list[str], int, int]:
            return list(map(str, fields["symbols"])), int(fields["sentences"]), int(fields["longest"])

        name = "tokenizer with context"
        settings, inner = cls.read_file(text, name, own)
        return cls._around(inner, name, lambda pairs: cls(pairs, *settings))

    def to_json(self) -> str:
        """The content of the file."""
        return self.file(self.kind, sentences=self.context, longest=self.longest, symbols=self.own_symbols)

    @cached_property
    def digest(self) -> str:
        """Of the inner tokenizer, the symbols and the numbers."""
        content = json.dumps([self.own_symbols, self.context, self.longest])
        return hashlib.sha256((self.pairs.digest + content).encode()).hexdigest()

    @cached_property
    def forbidden_in_output(self) -> tuple[int, ...]:
        """What is forbidden without context, and the break."""
        return (*super().forbidden_in_output, self.id_of(BREAK))

    def spans(self, text: str) -> list[Span]:
        """For each id of ``encode(text)``, the characters of the text that it stands for."""
        ((ids, _),) = super()._encode([text])
        return find_spans([self.entries[i] for i in ids], text)[self._start(ids) :]

    def _encode(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        found = []
        for ids, numbers in super()._encode(texts):
            start = self._start(ids)
            found.append((ids[start:], [number - numbers[start] for number in numbers[start:]]))
        return found

    def _start(self, ids: Sequence[int]) -> int:
        """How many of the first ids there is no room for: whole sentences of the context."""
        own, start = self.id_of(BREAK), 0
        while len(ids) - start > self.longest and own in ids[start:-1]:
            start = ids.index(own, start) + 1
        return start


def learn_with_context(
    lines: Iterable[str],
    vocab_size: int,
    sentences: int,
    longest: int,
    *,
    symbols: Sequence[str] = (),
    rules: Sequence[Rule] = (),
    **options: Any,
) -> Tokenizer:
    """As `placeholders.learn_with_placeholders`, for sources with context; with no sentences of it there is none.

    Args:
        lines: the text, each line without its context.
        vocab_size: number of entries, which the break is among.
        sentences: of the context.
        longest: most ids of a text with context.
        symbols: the user's.
        rules: what is copied; none with context.
        **options: ``specials``, ``coverage``, ``min_frequency``.
    """
    if not sentences:
        return learn_with_placeholders(lines, vocab_size, symbols=symbols, rules=rules, **options)
    assert not rules
    learned = learn_with_symbols(lines, vocab_size, (*symbols, BREAK), **options)
    assert isinstance(learned, SymbolTokenizer)
    return ContextTokenizer(learned.pairs, symbols, sentences, longest)
