"""Mojibake: UTF-8 that a program has read as Windows-1252, as "MÃ¤dchen".

The bytes of a character beyond ASCII then stand as two to four characters: one for its first byte (C2 to F4), and some
for the others (80 to BF). Correct text has such sequences, too ("été" before a closing "»"), so a line is taken for
mojibake if it has one of those that hardly occur otherwise, or three of any kind that touch:

    Â and Ã with a further byte      Latin letters and symbols, as in "FÃ¼r"; not one that may follow a word in
                                     capitals, such as the quote in "MAÇÃ”"
    à to ï with two further bytes    not two that may follow a word, such as a space and a quote; "â€" with any byte:
                                     quotes and dashes, as in "donâ€™t"
    ð with three further bytes       emoji
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_TOUCHING = 3
"""Sequences of any kind, without anything between them, from which a line is taken for mojibake."""
_MAY_FOLLOW = frozenset("\xa0«»‹›‘’“”…–—•·°®©™†‡‰€£¢§¶¹²³ªº")
"""Characters among those of further bytes that stand behind a word in correct text."""


def _characters() -> dict[str, int]:
    """The bytes 80 to FF by the characters that Windows-1252 and Latin-1 give them."""
    found = {chr(byte): byte for byte in range(0x80, 0x100)}
    return found | {text: byte for byte in range(0x80, 0xC0) if (text := bytes([byte]).decode("cp1252", "ignore"))}


_BYTES = _characters()
_FURTHER = f"[{re.escape(''.join(text for text, byte in _BYTES.items() if byte < 0xC0))}]"
_SEQUENCE = re.compile(rf"[\xc2-\xdf]{_FURTHER}|[\xe0-\xef]{_FURTHER}{{2}}|[\xf0-\xf4]{_FURTHER}{{3}}")


def find_mojibake(text: str) -> tuple[str, str] | None:
    """The first sequence of a line taken for mojibake, and the character that it stands for; None: no such line.

    >>> find_mojibake("ein MÃ¤dchen")
    ('Ã¤', 'ä')
    """
    run, end = list[tuple[str, str]](), -1
    for found in _SEQUENCE.finditer(text):
        try:
            meant = bytes(map(_BYTES.__getitem__, found[0])).decode()
        except UnicodeDecodeError:  # not UTF-8, such as a sequence that is too long for its character
            continue
        run, end = [*(run if found.start() == end else ()), (found[0], meant)], found.end()
        if _is_rare(found) or len(run) == _TOUCHING:
            return run[0]
    return None


def _is_rare(found: re.Match[str]) -> bool:
    """Whether correct text hardly ever has this sequence."""
    lead, further = found[0][0], found[0][1:]
    if len(further) == 1:
        before = found.string[max(found.start() - 1, 0) : found.start()]
        return lead in "ÂÃ" and not (before.isupper() and further[0] in _MAY_FOLLOW)
    return len(further) == 3 or not _MAY_FOLLOW.issuperset(further) or (lead == "â" and _BYTES[further[0]] == 0x80)


def mojibake_lines(texts: Sequence[str]) -> dict[int, tuple[str, str]]:
    """The places of the lines that `find_mojibake` finds, with what it finds."""
    found = {place: find_mojibake(text) for place, text in enumerate(texts) if not text.isascii()}
    return {place: pair for place, pair in found.items() if pair is not None}
