"""Any ``tokenizer.json`` of the library ``tokenizers``.

The library normalizes, segments and decodes. Which ids are special says the folder of the model, so they are arguments
here. The template that the library would put around a text is not used: `Tokenizer.prefix` and the end symbol, which
callers add, replace it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import tokenizers

from multihead.errors import FormatError
from multihead.text.components import check_content, check_size
from multihead.text.foreign import ForeignTokenizer, SpecialIds, damaged, read_fields
from multihead.text.spans import Span
from multihead.text.tokenizer import FEW
from multihead.text.vocabulary import BYTE_TOKENS, OUR_PATTERNS, library_error


class HuggingFaceTokenizer(ForeignTokenizer):
    """A ``tokenizer.json``.

    Args:
        content: the object in the file.
        specials: ids of the special symbols.
        control: ids that no text is encoded into and no search emits, besides the special ones and those that the file
            marks as special.
        prefix: ids before every text, such as the token of a language.
        size: number of entries of the model, which may have more than the file; these are control symbols.

    Raises:
        FormatError: the library cannot read the file, or an id is not in the vocabulary.
    """

    kind = "hugging-face"

    def __init__(
        self,
        content: dict[str, Any],
        specials: SpecialIds,
        control: Collection[int] = (),
        prefix: Sequence[int] = (),
        size: int = 0,
    ) -> None:
        self.content = content
        self._backend = backend = _open(content)
        names = {i: token for token, i in backend.get_vocab(with_added_tokens=True).items()}
        size = max(size, max(names, default=-1) + 1)
        check_size(size, len(names))
        marked = [i for i, token in backend.get_added_tokens_decoder().items() if token.special]
        unused = [i for i in range(size) if i not in names]
        vocabulary = [names.get(i, f"<unused {i}>") for i in range(size)]
        super().__init__(vocabulary, specials, [*control, *marked, *unused], prefix)

    @classmethod
    def from_json(cls, text: str) -> HuggingFaceTokenizer:
        """The tokenizer of a string written by `to_json`.

        Raises:
            FormatError: the string is damaged.
        """
        match read_fields(text, cls.kind):
            case {"tokenizer": dict(content), "size": int(size), **fields}:
                return cls(content, fields["specials"], fields["control"], fields["prefix"], size)
        raise damaged(cls.kind)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, as the library decodes it; control symbols are skipped.

        Raises:
            InputError: an id is not in the vocabulary.
        """
        self._check_range(ids)
        with _library_errors("cannot decode this"):
            text: str = self._backend.decode([i for i in ids if i not in self.control], skip_special_tokens=True)
        return text

    def _segment(self, texts: Sequence[str]) -> list[list[int]]:
        with _library_errors("cannot cut this text"):
            if len(texts) <= FEW:
                found = [self._backend.encode(text, add_special_tokens=False) for text in texts]
            else:
                found = self._backend.encode_batch(list(texts), add_special_tokens=False)
        # Unigram models have the special symbols among their pieces, so a text can spell one.
        return [[self.unk_id if i in self.control else i for i in encoding.ids] for encoding in found]

    def _segment_spans(self, text: str) -> list[Span]:
        with _library_errors("cannot cut this text"):
            return [(start, stop) for start, stop in self._backend.encode(text, add_special_tokens=False).offsets]

    def _bytes_of_entries(self) -> list[bytes]:
        kinds = set(_kinds(self.content.get("decoder")))
        if "ByteLevel" in kinds:
            table = _byte_level()
            return [b"".join(table.get(c, c.encode()) for c in token) for token in self._vocabulary]
        names = {name: bytes([byte]) for byte, name in enumerate(BYTE_TOKENS)} if "ByteFallback" in kinds else {}
        # What an entry adds shows after another one, since decoders treat the start of a text in another way; and one
        # that drops the space after the last word, before another one.
        anchor = self._anchor()
        last = [anchor] if "BPEDecoder" in kinds else []
        with _library_errors("cannot decode its entries"):
            before = self._backend.decode([anchor])
            behind = self._backend.decode([anchor, *last]).removeprefix(before)
            found = self._backend.decode_batch([[anchor, i, *last] for i in range(len(self))])
        return [
            names.get(token) or text.removeprefix(before).removesuffix(behind).encode()
            for token, text in zip(self._vocabulary, found, strict=True)
        ]

    def _anchor(self) -> int:
        """An entry that adds an ASCII letter or digit at its end."""
        for index in range(len(self)):
            if index not in self.control and self._vocabulary[index][-1:].isalnum():
                return index
        return self.eos_id

    def _own_fields(self) -> dict[str, Any]:
        return {"size": len(self), "tokenizer": self.content}


@contextlib.contextmanager
def _library_errors(what: str) -> Iterator[None]:
    """Raise an exception of the library as a FormatError."""
    try:
        yield
    except BaseException as error:
        raise FormatError(f"the tokenizers library {what} ({library_error(error)})") from None


def _open(content: dict[str, Any]) -> tokenizers.Tokenizer:
    """The library's tokenizer, which neither cuts nor fills texts, nor recognizes special symbols in them.

    Raises:
        FormatError: the library cannot read the file.
    """
    check_content(content, OUR_PATTERNS)
    with _library_errors("cannot read this tokenizer.json"):
        backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    return backend


def _kinds(decoder: Any) -> Iterator[str]:
    """The kinds of a decoder and of its parts."""
    if isinstance(decoder, dict):
        yield str(decoder.get("type"))
        for part in decoder.get("decoders", ()):
            yield from _kinds(part)


def _byte_level() -> dict[str, bytes]:
    """The byte that each character stands for in byte-level vocabularies (GPT-2).

    Printable characters of Latin-1 stand for their own byte; the other bytes have the characters from 256 on, in order.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): bytes([byte]) for byte in printable}
    return table | {chr(256 + place): bytes([byte]) for place, byte in enumerate(others)}
