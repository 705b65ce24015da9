"""Which characters of a text its tokens stand for, found by comparing.

For tokenizers whose entries do not spell the text exactly, because they change it first (letter case, punctuation,
compatibility characters). Libraries that know the places themselves are asked instead (`foreign.ForeignTokenizer`).
"""

from __future__ import annotations

from collections.abc import Sequence

Span = tuple[int, int]
"""First character of a stretch of text, and the first one after it."""

_REACH = 20
"""Characters that may be skipped before a token: what a tokenizer drops at once."""


def find_spans(entries: Sequence[bytes], text: str) -> list[Span]:
    """The characters of each token, in order.

    The characters of a token are searched from the end of the token before, without regard to letter case and spaces. A
    token that is not found stands for nothing between its neighbors.

    Args:
        entries: the bytes that each token adds to the text.
        text: the text.
    """
    lowered = _lower(text)
    spans: list[Span] = []
    place = 0
    for entry in entries:
        wanted = _lower(entry.decode(errors="ignore").strip())
        start = lowered.find(wanted, place, place + _REACH + len(wanted)) if wanted else -1
        if start < 0:
            spans.append((place, place))
        else:
            place = start + len(wanted)
            spans.append((start, place))
    return spans


def _lower(text: str) -> str:
    """In lower case, without the few characters that would become two."""
    return "".join(lower if len(lower := character.lower()) == 1 else character for character in text)
