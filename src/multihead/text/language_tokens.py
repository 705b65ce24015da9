"""Symbols that say into which language to translate: ``>>de<<``.

A model of several target languages reads the token of the language at the start of the source (Johnson et al. 2017,
"Google's multilingual neural machine translation system", section 3; OPUS-MT writes it so). A `LanguageTokenizer` adds
one control symbol per language behind the entries of another tokenizer, whose ids stay as they are. No text is encoded
into a control symbol, whatever it contains, and no search emits one: a typed ``>>de<<`` is text like any other.

Its file is one JSON object:

    multihead_tokenizer   "languages"
    languages             codes, in the order of their ids
    inner                 the other tokenizer

Toward which language a source is marked is not in the file: one vocabulary serves all directions, and its targets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property

from multihead.errors import ConfigurationError, FormatError
from multihead.text.spans import Span
from multihead.text.tokenizer import Tokenizer, WrappedTokenizer

_LONGEST_CODE = 100


class LanguageTokenizer(WrappedTokenizer):
    """A tokenizer with a control symbol for each of several languages.

    Args:
        inner: cuts the texts; has no prefix.
        languages: codes such as "de", different ones.
        toward: the language whose symbol begins every text; None: no symbol does, as on the target side.

    Raises:
        ConfigurationError: a code is empty, has spaces, or occurs twice; there is no symbol for ``toward``.
    """

    kind = "languages"

    def __init__(self, inner: Tokenizer, languages: Sequence[str], toward: str | None = None) -> None:
        super().__init__(inner)
        for code in languages:
            if not code.isprintable() or not code or " " in code or len(code) > _LONGEST_CODE:
                raise ConfigurationError(f"{code!r:.200} is not a language code; expected one such as de or pt-BR")
        if len(set(languages)) < len(languages):
            raise ConfigurationError(f"the languages {', '.join(languages)} are not all different")
        self.languages = tuple(languages)
        self.prefix = () if toward is None else (self.id_of(toward),)

    def id_of(self, language: str) -> int:
        """The id of a language's symbol.

        Raises:
            ConfigurationError: it has none.
        """
        if language not in self.languages:
            known = ", ".join(self.languages)
            raise ConfigurationError(f"the vocabulary has no token for the language {language!r}; it has {known}")
        return len(self.inner) + self.languages.index(language)

    def toward(self, language: str | None) -> LanguageTokenizer:
        """The same vocabulary, whose sources are marked with another language, or with none."""
        return LanguageTokenizer(self.inner, self.languages, language)

    @property
    def reading(self) -> LanguageTokenizer:
        """The tokenizer as it reads sources to translate."""
        return self._around(self.inner.reading)

    @property
    def plain(self) -> LanguageTokenizer:
        """The tokenizer of texts as they are."""
        return self._around(self.inner.plain)

    def _around(self, inner: Tokenizer) -> LanguageTokenizer:
        if inner is self.inner:
            return self
        other = LanguageTokenizer(inner, self.languages)
        other.prefix = self.prefix
        return other

    def training_pairs(self, sources: Sequence[str], targets: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
        """The texts of both sides that are encoded to train on."""
        return self.inner.training_pairs(sources, targets)

    def answers(self, texts: Sequence[str], sources: Sequence[str]) -> list[list[int]]:
        """The ids of translations of sources, after the symbol."""
        return [self._marked(ids) for ids in self.inner.answers(texts, sources)]

    def answer_spans(self, text: str, source: str) -> list[Span]:
        """The characters of each id of `answers`."""
        found = self.inner.answer_spans(text, source)
        return [*[(0, 0)] * len(self.prefix), *found] if found else []

    def filled(self, text: str, source: str, *, whole: bool = True) -> str:
        """A decoded translation with the texts of its placeholders."""
        return self.inner.filled(text, source, whole=whole)

    @classmethod
    def from_json(cls, text: str) -> LanguageTokenizer:
        """The tokenizer of a string written by `to_json`.

        Raises:
            FormatError: the string is damaged.
        """
        name = "tokenizer with languages"
        languages, inner = cls.read_file(text, name, lambda fields: fields["languages"])
        if not isinstance(languages, list) or not all(isinstance(code, str) for code in languages):
            raise FormatError(f"this {name} is damaged: its languages are no list of codes")
        try:
            return cls(Tokenizer.from_json(inner), languages)
        except ConfigurationError as error:
            raise FormatError(f"this {name} is damaged: {error}") from None

    def to_json(self) -> str:
        """The content of the file."""
        return self.file(self.kind, languages=self.languages)

    @cached_property
    def digest(self) -> str:
        """Of the inner tokenizer and the languages; the same for every direction."""
        content = self.inner.digest + json.dumps(self.languages)
        return hashlib.sha256(content.encode()).hexdigest()

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """The entries of the inner tokenizer, then the symbols."""
        return (*self.inner.vocabulary, *(f">>{code}<<" for code in self.languages))

    @cached_property
    def entries(self) -> tuple[bytes, ...]:
        """The bytes of each id; none for a symbol."""
        return (*self.inner.entries, *(b"" for _ in self.languages))

    @cached_property
    def forbidden_in_output(self) -> tuple[int, ...]:
        """What the inner tokenizer forbids, and the symbols."""
        return (*self.inner.forbidden_in_output, *range(len(self.inner), len(self)))

    def encode(self, text: str) -> list[int]:
        """The ids of a text after the symbol; none for an empty text.

        Raises:
            DataError: the text has a lone surrogate.
        """
        return self._marked(self.inner.encode(text))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """``[encode(text) for text in texts]``, as the inner tokenizer does it."""
        return [self._marked(ids) for ids in self.inner.encode_batch(texts)]

    def encode_phrase(self, text: str) -> list[int]:
        """The ids of words inside a text, without the symbol."""
        return self.inner.encode_phrase(text)

    def spans(self, text: str) -> list[Span]:
        """The characters of each id; (0, 0) for the symbol."""
        found = self.inner.spans(text)
        return [*[(0, 0)] * len(self.prefix), *found] if found else []

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without symbols.

        Raises:
            InputError: an id is not in the vocabulary.
        """
        self._check_range(ids)
        return self.inner.decode([i for i in ids if i < len(self.inner)])

    def _marked(self, ids: list[int]) -> list[int]:
        return [*self.prefix, *ids] if ids and self.prefix else ids


def with_languages(tokenizer: Tokenizer, languages: Sequence[str]) -> Tokenizer:
    """The tokenizer with symbols for languages, or as it is if there are none."""
    return LanguageTokenizer(tokenizer, languages) if languages else tokenizer


def toward(tokenizer: Tokenizer, language: str | None) -> Tokenizer:
    """The tokenizer of sources that are translated into a language; as it is if it has no symbols of languages.

    Raises:
        ConfigurationError: it has symbols, and none for this language.
    """
    return tokenizer.toward(language) if isinstance(tokenizer, LanguageTokenizer) else tokenizer
