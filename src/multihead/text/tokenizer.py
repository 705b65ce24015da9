"""Text to subword ids and back: the interface, and our byte-pair encoding.

`Tokenizer` is what the toolkit asks of any subword vocabulary. Special ids are data of a tokenizer, because models of
other programs have others than ours. Kinds: `BytePairTokenizer` here, `sentencepiece.SentencePieceTokenizer`,
`hugging_face.HuggingFaceTokenizer`, and others in `FOREIGN_KINDS`.

`BytePairTokenizer` is exact: ``decode(encode(text)) == text`` for every valid Unicode string. It is byte-pair encoding
(Sennrich, Haddow and Birch 2016) with SentencePiece's word mark, and bytes for characters without an entry (Kudo and
Richardson 2018). The ``tokenizers`` library segments; the class adds what it cannot express: a literal U+2581 in a
text, which is written as its three bytes, and readable errors.

Learning is in `learning`, the fixed parts and the file format in `vocabulary`, BPE-dropout in `segment`. Begin and end
symbols are added by the caller: they are ids that no text produces.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import tokenizers

from multihead.errors import FormatError, InputError
from multihead.sealed import OpenFolder
from multihead.text import learning, vocabulary
from multihead.text.spans import Span, find_spans
from multihead.text.vocabulary import (
    FIRST_BYTE,
    MARK,
    Parts,
    Specials,
    assemble,
    bytes_of_entries,
    check_unicode,
    spelled_entries,
    visible,
)

T = TypeVar("T")

STANDARD = Specials()

FEW = 4
"""Texts up to which a batch is encoded in sequence: waking the library's threads takes longer (0.05 to 0.4 ms)."""

FOREIGN_KINDS = {
    "sentencepiece": ("multihead.text.sentencepiece", "SentencePieceTokenizer"),
    "hugging-face": ("multihead.text.hugging_face", "HuggingFaceTokenizer"),
    "prepared": ("multihead.text.preparation", "PreparedTokenizer"),
    "words": ("multihead.text.word_pieces", "WordPieceTokenizer"),
    "bytes": ("multihead.text.byte_ids", "ByteTokenizer"),
    "languages": ("multihead.text.language_tokens", "LanguageTokenizer"),
    "symbols": ("multihead.text.user_symbols", "SymbolTokenizer"),
    "placeholders": ("multihead.text.placeholders", "PlaceholderTokenizer"),
    "context": ("multihead.text.context", "ContextTokenizer"),
    "case": ("multihead.text.case_factors", "CaseTokenizer"),
    "backwards": ("multihead.text.backwards", "BackwardsTokenizer"),
}
"""Module and class of each kind but our own, imported when a file of it is read (`vocabulary.foreign_kind`)."""


class Tokenizer(ABC):
    """A subword vocabulary, applied to texts and undone. `learn`, `load` and `from_json` create one.

    Subclasses set the special ids, and their `encode` puts `prefix` before every text.
    """

    pad_id: int
    """Fills the end of short rows."""
    unk_id: int
    """Stands for text without an entry."""
    bos_id: int
    """The first input of the decoder; it may be the id of padding (Marian) or of the end symbol (M2M-100)."""
    eos_id: int
    """Ends a source or target."""
    prefix: tuple[int, ...] = ()
    """Ids before every text, such as the token of a language. A target begins with them after ``bos_id``."""
    symbols: tuple[str, ...] = ()
    """User-defined symbols (`user_symbols`)."""
    languages: tuple[str, ...] = ()
    """Codes of the languages that have a control symbol of ours (`language_tokens`)."""
    context: int = 0
    """Sentences before one that sources are read with (`context`)."""
    factors: int = 1
    """How many ids a piece has, one for each of its factors (`case_factors`)."""
    backwards: bool = False
    """Whether ids are in reverse order: targets are written from right to left (`backwards`)."""

    @staticmethod
    def learn(
        lines: Iterable[str],
        vocab_size: int,
        *,
        specials: Specials = STANDARD,
        coverage: float = 0.9999,
        min_frequency: int = 2,
    ) -> BytePairTokenizer:
        """Learn a byte-pair vocabulary; the same lines always give the same one.

        All lines are held in memory: pass a sample of a very large corpus (a million lines are plenty).

        Args:
            lines: the text, of all languages that share the vocabulary.
            vocab_size: number of entries: special symbols, bytes, characters and merges. A small corpus gives fewer.
            specials: the strings of the special symbols.
            coverage: share of the text whose characters get entries of their own, most frequent first. The rare rest
                is spelled in bytes. The word mark always has an entry.
            min_frequency: number of occurrences that a pair needs to be merged.

        Raises:
            InputError: no text, a vocabulary too small for the characters, an impossible setting.
            DataError: a lone surrogate in a line.
        """
        return BytePairTokenizer(learning.learn(lines, vocab_size, specials, coverage, min_frequency))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Tokenizer:
        """The tokenizer of a file written by `save`.

        Raises:
            FormatError: the file does not exist or was not written by multihead; the message names what is missing.
            SurroundingsError: the file cannot be read.
        """
        return vocabulary.load(Path(path), Tokenizer.from_json)

    @staticmethod
    def read(folder: OpenFolder, name: str) -> Tokenizer:
        """The tokenizer in a file of a folder of ours; errors as in `load`, and for what its manifest does not list."""
        return vocabulary.parse(folder.read_text(name), folder.path / name, Tokenizer.from_json)

    @staticmethod
    def from_json(text: str) -> Tokenizer:
        """The tokenizer of a string written by `to_json`; errors as in `load`."""
        kind = vocabulary.foreign_kind(text)
        if kind in FOREIGN_KINDS:
            module, name = FOREIGN_KINDS[kind]
            made: Tokenizer = getattr(import_module(module), name).from_json(text)
            return made
        return BytePairTokenizer(vocabulary.read(text))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tokenizer atomically as one JSON file.

        Raises:
            InputError: the folder does not exist, or the path is a folder.
            SurroundingsError: no space left, no permission.
        """
        vocabulary.save(self.to_json(), Path(path))

    @abstractmethod
    def to_json(self) -> str:
        """The content of the file."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """SHA-256 of what decides the ids: tokenizers with equal digests give equal ids."""

    @property
    @abstractmethod
    def vocabulary(self) -> tuple[str, ...]:
        """The string of each id."""

    @property
    @abstractmethod
    def entries(self) -> tuple[bytes, ...]:
        """The bytes that each id adds to a decoded text: none for a special symbol, a space for a word mark."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text after `prefix`, without begin and end symbols; no ids for an empty text.

        Raises:
            DataError: the text has a lone surrogate.
        """

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """``[encode(text) for text in texts]``, in parallel where the library can.

        Raises:
            DataError: a text has a lone surrogate; the message gives its number, from 1.
        """
        for number, text in enumerate(texts, 1):
            check_unicode(text, f"text {number} of {len(texts)}")
        return [self.encode(text) for text in texts]

    def encode_phrase(self, text: str) -> list[int]:
        """The ids of words inside a text: as `encode`, without `prefix`."""
        return self.encode(text)[len(self.prefix) :]

    def spans(self, text: str) -> list[Span]:
        """For each id of ``encode(text)``, the characters of the text that it stands for; none for `prefix`.

        Raises:
            DataError: the text has a lone surrogate.
        """
        return find_spans([self.entries[i] for i in self.encode(text)], text)

    @property
    def reading(self) -> Tokenizer:
        """The tokenizer as it reads sources to translate; another one with placeholders (`placeholders`) alone."""
        return self

    @property
    def plain(self) -> Tokenizer:
        """The tokenizer of texts as they are, for training."""
        return self

    @property
    def copied(self) -> frozenset[int]:
        """The ids of placeholders, which a translation has as often as its source."""
        return frozenset()

    def copies(self, source: str) -> list[int]:  # noqa: ARG002
        """The ids of the placeholders of a source, each of which its translation has exactly once."""
        return []

    def missed(self, source: str) -> int:  # noqa: ARG002
        """Number of spans of a source that rules match, but that are translated like other text."""
        return 0

    def training_pairs(self, sources: Sequence[str], targets: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
        """The texts of both sides that are encoded to train on; others than given with placeholders alone."""
        return sources, targets

    def answers(self, texts: Sequence[str], sources: Sequence[str]) -> list[list[int]]:  # noqa: ARG002
        """The ids of translations of sources: as `encode_batch`, with the placeholders of each source."""
        return self.encode_batch(texts)

    def answer_spans(self, text: str, source: str) -> list[Span]:  # noqa: ARG002
        """As `spans`, for the ids of a translation that `answers` gives."""
        return self.spans(text)

    def filled(self, text: str, source: str, *, whole: bool = True) -> str:  # noqa: ARG002
        """A decoded translation with the texts of its placeholders; ``whole``: it is not a part of one."""
        return text

    @cached_property
    def forbidden_in_output(self) -> tuple[int, ...]:
        """The ids that a search must not emit: padding, unknown, begin, and all entries with LF or CR."""
        breaks = (i for i, raw in enumerate(self.entries) if b"\n" in raw or b"\r" in raw)
        return tuple(dict.fromkeys(i for i in (self.pad_id, self.unk_id, self.bos_id, *breaks) if i != self.eos_id))

    @property
    def special_ids(self) -> dict[str, int]:
        """The ids that batches are made with, by the names of their parameters."""
        return {"pad_id": self.pad_id, "bos_id": self.bos_id, "eos_id": self.eos_id}

    def __len__(self) -> int:
        return len(self.vocabulary)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} entries, digest {self.digest[:12]})"

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids. Special symbols are skipped; bytes that are not valid UTF-8 become U+FFFD.

        Raises:
            InputError: an id is not in the vocabulary.
        """
        self._check_range(ids)
        entries = self.entries
        raw = b"".join([entries[i] for i in ids])
        return raw.removeprefix(b" ").decode("utf-8", errors="replace")

    def decode_batch(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """``[decode(ids) for ids in batch]``."""
        return [self.decode(ids) for ids in batch]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        r"""The entry of each id, for display: the axis of a plot, a message.

        Word marks are kept, invisible characters are escaped as in a Python string (``\t``). Use `spell` for pieces
        that lead back to the text.

        Raises:
            InputError: an id is not in the vocabulary.
        """
        self._check_range(ids)
        vocabulary = self.vocabulary
        return [visible(vocabulary[i]) for i in ids]

    def spell(self, ids: Iterable[int]) -> str:
        """The ids as a line of pieces, to be read and cut by other tools: ``▁A ▁man ▁rid es .``

        One space separates the pieces, ``▁`` in a piece is a space of the text, and ``<0xE2>`` is one byte of a
        character without an entry. `read_spelled` gives the text back exactly, and without the tokenizer: no entry
        contains a space, no text is cut into a piece that is the name of a byte (merges never spell one), and a
        literal U+2581 is written as its bytes.
        """
        return " ".join([self._spelled[i] for i in ids])

    @cached_property
    def _spelled(self) -> tuple[str, ...]:
        return tuple(spelled_entries(self.vocabulary))

    def _check_range(self, ids: Sequence[int]) -> None:
        size = len(self)
        for i in ids:
            if not 0 <= i < size:
                raise InputError(f"there is no id {i}: the vocabulary has the ids 0 to {size - 1}")


class WrappedTokenizer(Tokenizer):
    """A tokenizer with the entries and ids of another; subclasses change how texts are encoded or decoded.

    The file of one is a JSON object with its kind, fields of its own (`file`), and that of the other as ``inner``
    (`read_file`).

    Args:
        inner: the other tokenizer.
    """

    def __init__(self, inner: Tokenizer) -> None:
        self.inner, self.prefix, self.symbols, self.context = inner, inner.prefix, inner.symbols, inner.context
        self.factors = inner.factors
        self.pad_id, self.unk_id, self.bos_id, self.eos_id = inner.pad_id, inner.unk_id, inner.bos_id, inner.eos_id

    def to_json(self) -> str:
        return self.inner.to_json()

    def file(self, kind: str, **own: Any) -> str:
        """The content of a file of this kind, with its own fields."""
        fields = {"multihead_tokenizer": kind, **own, "inner": json.loads(self.inner.to_json())}
        return json.dumps(fields, ensure_ascii=False, indent=1) + "\n"

    @staticmethod
    def read_file(text: str, name: str, read: Callable[[dict[str, Any]], T]) -> tuple[T, str]:
        """The own fields of such a file, as ``read`` gives them, and the file of the inner tokenizer.

        Raises:
            FormatError: the file of this ``name`` is damaged; ``read`` may also raise what a missing or wrong field
                causes: KeyError, TypeError or ValueError.
        """
        try:
            fields = json.loads(text)
            return read(fields), json.dumps(fields["inner"], ensure_ascii=False)
        except (KeyError, TypeError, ValueError, RecursionError):
            raise FormatError(f"this {name} is damaged: fields are missing or wrong") from None

    @property
    def digest(self) -> str:
        return self.inner.digest

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return self.inner.vocabulary

    @property
    def entries(self) -> tuple[bytes, ...]:
        return self.inner.entries

    @property
    def forbidden_in_output(self) -> tuple[int, ...]:
        return self.inner.forbidden_in_output

    @property
    def copied(self) -> frozenset[int]:
        return self.inner.copied

    def copies(self, source: str) -> list[int]:
        return self.inner.copies(source)

    def missed(self, source: str) -> int:
        return self.inner.missed(source)

    def encode(self, text: str) -> list[int]:
        return self.inner.encode(text)


class BytePairTokenizer(Tokenizer):
    """Our byte-pair encoding.

    Ids: 0 to 3 special symbols, 4 to 259 bytes, then characters, then merges in the order they were learned.

    Args:
        parts: vocabulary, merges and pattern.
    """

    pad_id = 0
    unk_id = 1
    bos_id = 2
    eos_id = 3

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._backend = assemble(parts)
        self._bytes = tuple(bytes_of_entries(parts.vocabulary))
        self._literal_mark = [FIRST_BYTE + byte for byte in MARK.encode()]

    def to_json(self) -> str:
        """The content of the file: a ``tokenizer.json``, which the ``tokenizers`` library reads, too."""
        return self._backend.to_str(pretty=True)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over vocabulary, merges and pattern: tokenizers with equal digests give equal ids.

        The layout of the library's file, which changes with its version, does not matter.
        """
        content = [self._parts.vocabulary, self._parts.merges, self._parts.pattern]
        canonical = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def parts(self) -> Parts:
        """Vocabulary, merges and pattern."""
        return self._parts

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The entries by id: special symbols, byte tokens, characters, results of merges."""
        return self._parts.vocabulary

    @property
    def entries(self) -> tuple[bytes, ...]:
        """The bytes that each id adds to a decoded text (`bytes_of_entries`)."""
        return self._bytes

    @property
    def specials(self) -> Specials:
        """The strings of the special symbols."""
        return Specials(*self._parts.vocabulary[:FIRST_BYTE])

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without begin and end symbols; empty for an empty text.

        Raises:
            DataError: the text has a lone surrogate.
        """
        if MARK in text:
            return self._encode_with_literal_marks(text)
        try:
            ids: list[int] = self._backend.encode(text).ids
        except TypeError:
            check_unicode(text, "the text")
            raise
        return ids

    def encode_rest(self, text: str) -> list[int]:
        """The ids of a continuation of other text: it starts with a word mark only if it starts with a space.

        Raises:
            DataError: the text has a lone surrogate.
        """
        return [i for piece in self.split_rest(text) for i in piece]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """``[encode(text) for text in texts]``, in parallel.

        Raises:
            DataError: a text has a lone surrogate; the message gives its number, from 1.
        """
        return [
            self._encode_with_literal_marks(text) if MARK in text else encoding.ids
            for text, encoding in zip(texts, self._encodings(texts), strict=True)
        ]

    def encode_pieces(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """The ids of each text as in `encode_batch`, and for each id the number of its piece.

        The pattern cuts a text into pieces, which merges do not cross. They are numbered from 0 in each text.

        Raises:
            DataError: a text has a lone surrogate.
        """
        found: list[tuple[list[int], list[int]]] = []
        for text, encoding in zip(texts, self._encodings(texts), strict=True):
            if MARK in text:
                pieces = list(self.split_rest(f" {text}"))
                ids = [i for piece in pieces for i in piece]
                found.append((ids, [number for number, piece in enumerate(pieces) for _ in piece]))
            else:
                found.append((encoding.ids, [number for number in encoding.word_ids if number is not None]))
        return found

    def _encodings(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        """The library's encodings; empty for texts with a literal mark, which it cannot express."""
        try:
            given = ["" if MARK in text else text for text in texts]
            if len(given) <= FEW:
                return [self._backend.encode(text) for text in given]
            return list(self._backend.encode_batch(given))
        except TypeError:
            for number, text in enumerate(texts, 1):
                check_unicode(text, f"text {number} of {len(texts)}")
            raise

    def _encode_with_literal_marks(self, text: str) -> list[int]:
        return self.encode_rest(f" {text}")  # the space becomes the mark in front of every line

    def split_rest(self, text: str) -> Iterator[list[int]]:
        """The pieces of `encode_rest`: the library's steps between literal marks, which themselves become bytes.

        Raises:
            DataError: the text has a lone surrogate.
        """
        check_unicode(text, "the text")
        split, model = self._backend.pre_tokenizer, self._backend.model
        for number, segment in enumerate(text.split(MARK)):
            if number:
                yield self._literal_mark
            for piece, _ in split.pre_tokenize_str(segment.replace(" ", MARK)):
                yield [token.id for token in model.tokenize(piece)]
