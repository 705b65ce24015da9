"""Steps before a tokenizer of another program: case, Unicode, Moses.

Models of fairseq and JoeyNMT may expect lowercased text, or text that the Moses tokenizer cut, which the library
``sacremoses`` does and undoes. A `Preparation` is what is done to a text before it is encoded, and undone after it is
decoded; a `PreparedTokenizer` does both around another tokenizer. Lowercasing and normalization are not undone.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from multihead.errors import require_package
from multihead.text.tokenizer import Tokenizer, WrappedTokenizer
from multihead.text.vocabulary import check_unicode

_QUOTES = str.maketrans({"’": "'", "“": '"', "”": '"'})
_BEFORE_PUNCTUATION = re.compile(r" ([?!,.:])")


@dataclass(frozen=True)
class Preparation:
    """What is done to a text before it is encoded.

    Args:
        normalize: Unicode's NFKC, plain quotes, single spaces, none before ``? ! , . :`` (JoeyNMT's ``normalize``).
        moses: language code of the Moses tokenizer; None: not used.
        detokenize: language code of Moses' detokenizer; None: that of ``moses``.
        moses_punctuation: language code of Moses' normalizer of punctuation, which comes first; None: not used.
        moses_unicode: let that normalizer also replace full-width punctuation and drop control characters.
        split_dashes: Moses' ``aggressive_dash_splits``.
        escape: write ``&``, ``'`` and others as Moses' entities, such as ``&apos;``.
        lowercase: lowercase the text, after Moses.
    """

    normalize: bool = False
    moses: str | None = None
    detokenize: str | None = None
    moses_punctuation: str | None = None
    moses_unicode: bool = False
    split_dashes: bool = False
    escape: bool = True
    lowercase: bool = False

    def apply(self, text: str) -> str:
        """The text as the tokenizer expects it.

        Raises:
            MissingDependencyError: ``sacremoses`` is needed and not installed.
        """
        if self.normalize:
            text = _tidy(unicodedata.normalize("NFKC", text).translate(_QUOTES))
        if self.moses is not None:
            if self.moses_punctuation is not None:
                text = self._normalizer.normalize(text)
            text = self._tokenizer.tokenize(
                text, aggressive_dash_splits=self.split_dashes, return_str=True, escape=self.escape
            )
        return text.lower() if self.lowercase else text

    def undo(self, text: str) -> str:
        """The text that was decoded, with Moses undone.

        Raises:
            MissingDependencyError: as `apply`.
        """
        if self.moses is not None:
            text = self._detokenizer.detokenize(text.split())
        return _tidy(text) if self.normalize else text

    @cached_property
    def _moses(self) -> Any:
        require_package("sacremoses", "interop", "a model of text that Moses tokenized")
        import sacremoses

        return sacremoses

    @cached_property
    def _tokenizer(self) -> Any:
        return self._moses.MosesTokenizer(lang=self.moses)

    @cached_property
    def _detokenizer(self) -> Any:
        return self._moses.MosesDetokenizer(lang=self.detokenize or self.moses)

    @cached_property
    def _normalizer(self) -> Any:
        more = {"pre_replace_unicode_punct": self.moses_unicode, "post_remove_control_chars": self.moses_unicode}
        return self._moses.MosesPunctNormalizer(lang=self.moses_punctuation, **more)


class PreparedTokenizer(WrappedTokenizer):
    """A tokenizer whose texts are prepared.

    Args:
        inner: encodes prepared texts.
        preparation: the steps.
    """

    kind = "prepared"

    def __init__(self, inner: Tokenizer, preparation: Preparation) -> None:
        super().__init__(inner)
        self.preparation = preparation

    @classmethod
    def from_json(cls, text: str) -> PreparedTokenizer:
        """The tokenizer of a string written by `to_json`.

        Raises:
            FormatError: the string is damaged.
        """
        name = "prepared tokenizer"
        preparation, inner = cls.read_file(text, name, lambda fields: Preparation(**fields["preparation"]))
        return cls(Tokenizer.from_json(inner), preparation)

    def to_json(self) -> str:
        """The content of the file."""
        return self.file(self.kind, preparation=asdict(self.preparation))

    @cached_property
    def digest(self) -> str:
        """That of the inner tokenizer and of the steps."""
        content = self.inner.digest + json.dumps(asdict(self.preparation), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """The ids of a text after `prefix`.

        Raises:
            DataError: the text has a lone surrogate.
        """
        check_unicode(text, "the text")
        return self.inner.encode(self.preparation.apply(text))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """``[encode(text) for text in texts]``.

        Raises:
            DataError: a text has a lone surrogate; the message gives its number, from 1.
        """
        for number, text in enumerate(texts, 1):
            check_unicode(text, f"text {number} of {len(texts)}")
        return self.inner.encode_batch([self.preparation.apply(text) for text in texts])

    def encode_phrase(self, text: str) -> list[int]:
        """The ids of words inside a text: as `encode`, without `prefix`."""
        return self.inner.encode_phrase(self.preparation.apply(text))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids.

        Raises:
            InputError: an id is not in the vocabulary.
        """
        return self.preparation.undo(self.inner.decode(ids))

    def spell(self, ids: Iterable[int]) -> str:
        """The inner tokenizer's line of pieces."""
        return self.inner.spell(ids)


def _tidy(text: str) -> str:
    """The text with single spaces, and none before punctuation."""
    return _BEFORE_PUNCTUATION.sub(r"\1", re.sub("[ \u3000]+", " ", text.replace("\u200b", ""))).strip()
