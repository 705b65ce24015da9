"""Checks a ``tokenizer.json`` before the library builds and runs it.

The library ``tokenizers`` believes its file. A table of characters whose first number is wrong makes it allocate
gigabytes, or read beyond its end; a pattern may be searched for without an end (`text.patterns`); replacements one
after the other can make a text of gigabytes from a word; a word of any length is cut by a search that grows with its
square. `check_content` refuses such files. What it accepts costs about as much as the text is long.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from multihead.errors import FormatError, shown
from multihead.text.patterns import check_pattern

_MOST_GROWTH = 256
"""Characters that one character may become, by all replacements together. Unicode's longest are 18."""
_LONGEST_WORD = 10_000
"""Characters of a word that WordPiece cuts; usual are 100."""
_FEW_UNUSED = 1 << 16
_BLOCK = 256
"""Entries of a table's node: one for each byte."""


def check_content(content: Mapping[str, Any], known: Collection[str]) -> None:
    """Check the content of a ``tokenizer.json``.

    Args:
        content: the object in the file.
        known: patterns that need no check.

    Raises:
        FormatError: it may take too long or too much memory to load or to use, or would end the process.
    """
    _check_merges(content.get("model"))
    growth = 1
    for part in _parts(content):
        match part:
            case {"Regex": pattern} if pattern not in known:
                _check_regex(pattern)
            case {"type": "Precompiled", **rest}:
                growth *= _check_table(rest.get("precompiled_charsmap"))
            case {"type": "Replace" | "Prepend" | "Append", **rest}:
                written = next((rest[name] for name in ("content", "prepend", "append") if name in rest), "")
                growth *= max(1, len(written)) if isinstance(written, str) else 1
            case {"type": "WordPiece", "max_input_chars_per_word": int(longest)} if longest > _LONGEST_WORD:
                raise FormatError(
                    f"max_input_chars_per_word is {shown(longest)}, and {_LONGEST_WORD:,} at most are read"
                )
        if growth > _MOST_GROWTH:
            raise FormatError(
                f"its replacements can make more than {_MOST_GROWTH} characters of one: the file is damaged, or made "
                "to exhaust memory"
            )


def _check_merges(model: object) -> None:
    """Check that the second part of each merge has the prefix that the library cuts off it.

    Raises:
        FormatError: one has not.
    """
    match model:
        case {"continuing_subword_prefix": str(prefix), "merges": list(merges)} if prefix:
            rights = (str(merge).split(" ")[-1] if isinstance(merge, str) else (merge or [""])[-1] for merge in merges)
            if not all(isinstance(right, str) and right.startswith(prefix) for right in rights):
                raise FormatError(f"continuing_subword_prefix is {shown(prefix)}, and a merge lacks it")


def check_size(size: int, named: int) -> None:
    """Check the number of entries against those that have a name; an embedding has few rows without one.

    Raises:
        FormatError: there are too many without.
    """
    if size - named > max(_FEW_UNUSED, named):
        raise FormatError(f"it has {named:,} entries, but ids up to {size - 1:,}: the ids or the size are damaged")


def _parts(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """All objects in the content, except for the vocabulary of the model."""
    model = content.get("model")
    rest: list[Any] = [content[name] for name in content if name != "model"]
    if isinstance(model, dict):
        rest.append({name: value for name, value in model.items() if name not in ("vocab", "merges")})
    while rest:
        part = rest.pop()
        if isinstance(part, dict):
            yield part
            rest.extend(part.values())
        elif isinstance(part, list):
            rest.extend(part)


def _check_regex(pattern: object) -> None:
    if not isinstance(pattern, str):
        raise FormatError(f"a pattern is {shown(pattern)}, expected text")
    try:
        check_pattern(pattern)
    except ValueError as error:
        raise FormatError(f"{error}; it is not run") from None


def _check_table(encoded: object) -> int:
    """Check SentencePiece's table of characters; return the bytes of its longest replacement.

    The table is a trie of 32-bit units in an array, after its size in bytes, and before the replacements, each of which
    ends with a zero. A unit leads to a block of units, one for each byte; a unit with the highest bit is the place of a
    replacement.

    Raises:
        FormatError: a unit leads out of the array, or a replacement is not where one begins.
    """
    damaged = FormatError("its table of characters (precompiled_charsmap) is damaged; copy the file again")
    try:
        table = base64.b64decode(encoded if isinstance(encoded, str) else "", validate=True)
    except (binascii.Error, ValueError):
        raise damaged from None
    size = int.from_bytes(table[:4], "little")
    if len(table) < 4 or size > len(table) - 4 or size % 4 or not size:
        raise damaged
    units = np.frombuffer(table, "<u4", size // 4, 4).astype(np.int64)
    texts = table[4 + size :]
    try:
        texts.decode("utf-8")
    except UnicodeDecodeError:
        raise damaged from None
    places = units[units >> 31 == 1] & 0x7FFFFFFF
    inner = units >> 31 == 0
    offsets = (units >> 10) << ((units & (1 << 9)) >> 6)
    reached = (np.arange(len(units)) ^ offsets) | (_BLOCK - 1)
    starts = np.frombuffer(texts + b"\0", np.uint8)
    if (reached[inner] >= len(units)).any() or (places >= len(starts)).any() or (starts[places] & 0xC0 == 0x80).any():
        raise damaged
    return max(1, max(map(len, texts.split(b"\0"))) // 3)
