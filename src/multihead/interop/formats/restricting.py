"""SentencePiece models that use a part of their pieces only.

JoeyNMT and ``spm_encode --vocabulary`` cut a text into the pieces of a vocabulary, where others would take a piece that
is not in it for unknown. The library no longer offers this in Python, so the model itself is changed: the type of the
other pieces becomes 'unused'.

A model is a message of protocol buffers (https://protobuf.dev/programming-guides/encoding): a row of fields, each a
number that holds its name and wire type, then its content. Pieces are messages in field 1, with the text in field 1 and
the type in field 3. The last of several values of a field counts, so the new type is put at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from multihead.errors import FormatError

_PIECE, _TEXT, _TYPE = 1, 1, 3
_NORMAL, _UNUSED = 1, 5

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types."""


class _Field(NamedTuple):
    """A field of a message."""

    name: int
    value: int
    """Of a varint."""
    content: bytes
    """Of a string or message."""
    whole: bytes
    """The field as it is in the message."""


def restrict(model: bytes, vocabulary: Collection[str]) -> bytes:
    """The model with all pieces unused that are neither in the vocabulary nor single characters nor special.

    Args:
        model: content of a ``.model`` file.
        vocabulary: the pieces to keep.

    Raises:
        FormatError: the bytes are no SentencePiece model.
    """
    known = frozenset(vocabulary)
    unused = bytes([_TYPE << 3 | _VARINT, _UNUSED])
    parts = []
    try:
        for field in _fields(model):
            keep = field.name != _PIECE or _is_kept(field.content, known)
            changed = field.content + unused
            parts.append(field.whole if keep else bytes([_PIECE << 3 | _BYTES]) + _varint(len(changed)) + changed)
    except (IndexError, ValueError):
        raise FormatError("not a SentencePiece model, or damaged; copy the file again") from None
    return b"".join(parts)


def _is_kept(piece: bytes, known: Collection[str]) -> bool:
    text, kind = "", _NORMAL
    for field in _fields(piece):
        if field.name == _TEXT:
            text = field.content.decode()
        elif field.name == _TYPE:
            kind = field.value
    return kind != _NORMAL or len(text) == 1 or text in known


def _fields(message: bytes) -> Iterator[_Field]:
    """The fields of a message.

    Raises:
        IndexError: the message ends within a field.
        ValueError: it is no message.
    """
    start = 0
    while start < len(message):
        tag, stop = _read_varint(message, start)
        name, wire = tag >> 3, tag & 7
        value, content = 0, b""
        if wire == _VARINT:
            value, stop = _read_varint(message, stop)
        elif wire in (_FIXED64, _FIXED32):
            stop += 8 if wire == _FIXED64 else 4
        elif wire == _BYTES:
            length, begin = _read_varint(message, stop)
            stop = begin + length
            content = message[begin:stop]
        else:
            raise ValueError(f"wire type {wire}")
        if stop > len(message):
            raise IndexError("the message ends within a field")
        yield _Field(name, value, content, message[start:stop])
        start = stop


def _read_varint(message: bytes, start: int) -> tuple[int, int]:
    """A number in groups of 7 bits, the lowest first, and the place after it."""
    value, shift = 0, 0
    while True:
        byte = message[start]
        value |= (byte & 127) << shift
        start, shift = start + 1, shift + 7
        if byte < 128:
            return value, start


def _varint(value: int) -> bytes:
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])
