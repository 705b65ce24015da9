"""What tokenizers of other programs have in common: ids, guards, a file.

Their vocabularies are lists of strings, their special symbols have any ids, and some of the entries are *control*
symbols: languages, masks, unused rows of an embedding. No text is encoded into a control symbol, whatever it contains,
and no search emits one. The library that segments is the business of `sentencepiece` and `hugging_face`.

A file of such a tokenizer is one JSON object, whose first field names the kind:

    multihead_tokenizer   "sentencepiece" or "hugging-face"
    specials              ids of padding, unknown, begin and end
    control               ids of the other control symbols
    prefix                ids before every text
    ...                   what the kind adds
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from multihead.errors import FormatError
from multihead.text.spans import Span
from multihead.text.tokenizer import Tokenizer
from multihead.text.vocabulary import check_unicode


class SpecialIds(NamedTuple):
    """The ids of the special symbols; several of them may be one id."""

    pad: int
    unk: int
    bos: int
    """The first input of the decoder."""
    eos: int


class ForeignTokenizer(Tokenizer):
    """A vocabulary of another program.

    Args:
        vocabulary: the string of each id, for display.
        specials: ids of the special symbols.
        control: ids that no text is encoded into and no search emits, besides the special ones.
        prefix: ids before every text: control symbols, or words that tell the model what to do.

    Raises:
        FormatError: an id is not in the vocabulary.
    """

    kind: ClassVar[str]
    """Name of the kind in files."""

    def __init__(
        self,
        vocabulary: Sequence[str],
        specials: SpecialIds,
        control: Collection[int] = (),
        prefix: Sequence[int] = (),
    ) -> None:
        self._vocabulary = tuple(vocabulary)
        self.specials = specials
        self.pad_id, self.unk_id, self.bos_id, self.eos_id = specials
        self.prefix = tuple(prefix)
        self.control = frozenset(control) | frozenset(specials)
        wrong = sorted(i for i in self.control | frozenset(prefix) if not 0 <= i < len(self._vocabulary))
        if wrong:
            raise FormatError(f"a special symbol has the id {wrong[0]}, but there are {len(self._vocabulary)} entries")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The string of each id."""
        return self._vocabulary

    @cached_property
    def entries(self) -> tuple[bytes, ...]:
        """The bytes that each id adds to a decoded text; none for a control symbol."""
        found = list(self._bytes_of_entries())
        for index in self.control:
            found[index] = b""
        return tuple(found)

    @cached_property
    def forbidden_in_output(self) -> tuple[int, ...]:
        """All control symbols except the end, and all entries with LF or CR."""
        breaks = {i for i, raw in enumerate(self.entries) if b"\n" in raw or b"\r" in raw}
        return tuple(sorted((self.control | breaks) - {self.eos_id}))

    def encode(self, text: str) -> list[int]:
        """The ids of a text after `prefix`; none if nothing is left of the text after normalization.

        Raises:
            DataError: the text has a lone surrogate.
        """
        return self._with_prefix(self.encode_phrase(text))

    def encode_phrase(self, text: str) -> list[int]:
        """The ids of words inside a text: as `encode`, without `prefix`."""
        check_unicode(text, "the text")
        return self._segment([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """``[encode(text) for text in texts]``.

        Raises:
            DataError: a text has a lone surrogate; the message gives its number, from 1.
        """
        for number, text in enumerate(texts, 1):
            check_unicode(text, f"text {number} of {len(texts)}")
        return [self._with_prefix(ids) for ids in self._segment(texts)]

    def spans(self, text: str) -> list[Span]:
        """For each id of ``encode(text)``, the characters of the text that it stands for; (0, 0) for the prefix.

        Raises:
            DataError: the text has a lone surrogate.
        """
        check_unicode(text, "the text")
        found = self._segment_spans(text)
        return [*[(0, 0)] * len(self.prefix), *found] if found else []

    def to_json(self) -> str:
        """The content of the file."""
        fields = {"multihead_tokenizer": self.kind, **self._fields(), **self._own_fields()}
        return json.dumps(fields, ensure_ascii=False, indent=1) + "\n"

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the content of the file."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def _with_prefix(self, ids: list[int]) -> list[int]:
        return [*self.prefix, *ids] if ids else []

    def _fields(self) -> dict[str, Any]:
        return {"specials": self.specials._asdict(), "control": sorted(self.control), "prefix": self.prefix}

    @abstractmethod
    def _segment(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of valid texts, without prefix and without control symbols."""

    @abstractmethod
    def _segment_spans(self, text: str) -> list[Span]:
        """The characters of each id that `_segment` gives."""

    @abstractmethod
    def _bytes_of_entries(self) -> Sequence[bytes]:
        """The bytes that each id adds to a text; any for control symbols."""

    @abstractmethod
    def _own_fields(self) -> dict[str, Any]:
        """What the kind adds to the file."""


def read_fields(text: str, kind: str) -> dict[str, Any]:
    """The fields of a file of this kind, with the common ones checked.

    Raises:
        FormatError: the file is damaged.
    """
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"this {kind} tokenizer is damaged: not JSON ({error})") from None
    match content:
        case {"specials": dict(specials), "control": list(control), "prefix": list(prefix)}:
            whole = all(type(i) is int for i in [*specials.values(), *control, *prefix])
            if whole and specials.keys() == set(SpecialIds._fields):
                return {**content, "specials": SpecialIds(**specials)}
    raise damaged(kind)


def damaged(kind: str) -> FormatError:
    """The error for a file of this kind with missing or wrong fields."""
    return FormatError(f"this {kind} tokenizer is damaged: fields are missing or wrong; copy the file again")
