"""Targets that are written from right to left.

    encode(text)   the ids of the other tokenizer in reverse order, after its prefix
    decode(ids)    their text, as it is read

A model that writes the last subword first makes other mistakes than one that writes the first subword first, so either
can judge what the other one wrote (`translating.choosing`; Liu, Utiyama, Finch and Sumita 2016, "Agreement on
target-bidirectional neural machine translation"). The order is a property of the vocabulary: training, search and
scoring need not know it. Code that depends on the beginning of a translation, or on its words, checks
`Tokenizer.backwards`.

Its file is one JSON object:

    multihead_tokenizer   "backwards"
    inner                 the other tokenizer
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TypeVar

from multihead.errors import ConfigurationError
from multihead.text.spans import Span
from multihead.text.tokenizer import Tokenizer, WrappedTokenizer

T = TypeVar("T")


class BackwardsTokenizer(WrappedTokenizer):
    """A tokenizer whose ids are in reverse order.

    Args:
        inner: cuts the texts.
    """

    kind = "backwards"
    backwards = True

    def __init__(self, inner: Tokenizer) -> None:
        super().__init__(inner)
        self.languages = inner.languages

    @classmethod
    def from_json(cls, text: str) -> BackwardsTokenizer:
        """The tokenizer of a string written by `to_json`.

        Raises:
            FormatError: the string is damaged.
        """
        _, inner = cls.read_file(text, "tokenizer from right to left", lambda _: None)
        return cls(Tokenizer.from_json(inner))

    def to_json(self) -> str:
        """The content of the file."""
        return self.file(self.kind)

    @cached_property
    def digest(self) -> str:
        """Of the inner tokenizer and the order."""
        return hashlib.sha256(f"{self.kind} {self.inner.digest}".encode()).hexdigest()

    @property
    def plain(self) -> BackwardsTokenizer:
        """The tokenizer of texts as they are."""
        return self if self.inner.plain is self.inner else BackwardsTokenizer(self.inner.plain)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, the last one first."""
        return self.turned(self.inner.encode(text))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts."""
        return [self.turned(ids) for ids in self.inner.encode_batch(texts)]

    def encode_phrase(self, text: str) -> list[int]:
        """The ids of words inside a text, the last one first."""
        return self.inner.encode_phrase(text)[::-1]

    def spans(self, text: str) -> list[Span]:
        """The characters of each id of ``encode(text)``."""
        return self.turned(self.inner.spans(text))

    def training_pairs(self, sources: Sequence[str], targets: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
        """The texts of both sides that are encoded to train on."""
        return self.inner.training_pairs(sources, targets)

    def answers(self, texts: Sequence[str], sources: Sequence[str]) -> list[list[int]]:
        """The ids of translations of sources."""
        return [self.turned(ids) for ids in self.inner.answers(texts, sources)]

    def answer_spans(self, text: str, source: str) -> list[Span]:
        """The characters of each id of `answers`."""
        return self.turned(self.inner.answer_spans(text, source))

    def filled(self, text: str, source: str, *, whole: bool = True) -> str:
        """A decoded translation with the texts of its placeholders."""
        return self.inner.filled(text, source, whole=whole)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, as it is read."""
        return self.inner.decode(self.turned(ids))

    def spell(self, ids: Iterable[int]) -> str:
        """The ids as a line of pieces, as it is read."""
        return self.inner.spell(self.turned([*ids]))

    def turned(self, row: Sequence[T]) -> list[T]:
        """A row of something for each id in reverse order, after what belongs to the prefix."""
        own = len(self.prefix)
        return [*row[:own], *row[own:][::-1]]


def forwards(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer whose ids are in the order of the text."""
    return tokenizer.inner if isinstance(tokenizer, BackwardsTokenizer) else tokenizer


def have_one_vocabulary(source: Tokenizer, target: Tokenizer) -> bool:
    """Whether both sides of a text have the same subwords, in whichever order the target is written."""
    return source.digest == forwards(target).digest


def require_forwards(tokenizer: Tokenizer, what: str) -> None:
    """Refuse a model that writes from right to left.

    Args:
        tokenizer: of the targets.
        what: what needs another one, in words.

    Raises:
        ConfigurationError: it is one.
    """
    if tokenizer.backwards:
        raise ConfigurationError(f"the model writes from right to left: {what} need one that writes from left to right")
