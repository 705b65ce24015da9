"""Detect text that was tokenized, cut into subwords, or lower-cased.

Scores of such text belong to another test set: BLEU of tokenized, lower-cased German is some points above that of the
original. A sign is reported only if a fair share of lines shows it, counted among those lines that could show it ("a
space before the comma" among lines with a comma), so that clean text with few commas stays clean. This is a heuristic;
the text is not changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from multihead.data.corpus import primary_language

_LEAST_SHARE = 0.05
"""Minimum share of the lines that could show a sign. In clean text 1 line of 500 has such slips (Multi30k)."""
_LEAST_OF_ALL = 0.01
"""Minimum share of all lines: two slips in two possible places mean nothing in a thousand lines."""
_LOWER_SHARE = 0.2
"""Minimum share of lines that begin with a cased letter; some lines continue the sentence of another line."""

_HAN_KANA = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"


@dataclass(frozen=True)
class PreprocessingSign:
    """A sign of preprocessing and how it is recognized."""

    what: str
    """Description, which completes "lines have ..."."""
    seen: re.Pattern[str]
    possible: re.Pattern[str]
    """Matches lines that could show the sign."""


@dataclass(frozen=True)
class PreprocessingRemark:
    """A sign of preprocessing found in a text."""

    kind: Literal["tokenised", "subwords", "lower-cased"]
    what: str
    """What the lines have, such as "a space before a punctuation mark"."""
    lines: int
    possible: int
    """Number of lines that could show it."""
    first: int
    """Number of the first line with it, counted from 1."""
    example: str
    """Text of that line."""

    def as_dict(self) -> dict[str, Any]:
        """The remark as JSON data."""
        return dict(vars(self))

    def __str__(self) -> str:
        looks = {
            "tokenised": "tokenized",
            "subwords": "cut into subwords",
            "lower-cased": "lower-cased",
        }[self.kind]
        count = f"{self.lines:,} of {self.possible:,} lines where it can be seen have {self.what}"
        return f"look {looks}: {count}, first line {self.first}: {_shorten(self.example)!r}"


ADVICE = "scores of such text cannot be compared with those of the original text; score that"
"""What to do about any remark."""


def find_preprocessing(lines: Sequence[str], language: str | None = None) -> list[PreprocessingRemark]:
    """Signs that a text was preprocessed; empty if it looks as people write.

    Args:
        lines: references or translations.
        language: language code; in French a space before "?" is correct, in English "'s" is part of a word.
    """
    code = primary_language(language)
    found = [_count_sign(lines, "subwords", _SUBWORDS)]
    found += [_count_sign(lines, "tokenised", sign) for sign in _signs(code)]
    if code != "ka":  # Georgian capitals do not begin sentences
        found.append(_check_lower_case(lines))
    return [one for one in found if one is not None]


def _sign(what: str, seen: str, possible: str) -> PreprocessingSign:
    return PreprocessingSign(what, re.compile(seen), re.compile(possible))


_SUBWORDS = _sign("marks of subwords (@@, \u2581, </w>)", r"\S@@(?:\s|$)|\u2581|</w>", r"\S")
_ESCAPED = _sign(
    "escaped characters (&apos;, -LRB-, @-@)",
    r"&(?:apos|quot|amp|lt|gt|bar|#9[13]|#124);|-[LR][RSC]B-|(?<=\s)@[-/.,]@(?=\s)",
    r"['\"&<>()\[\]|-]|@",
)
_SPACED_HAN = _sign("spaces between characters", rf"[{_HAN_KANA}] +[{_HAN_KANA}]", rf"[{_HAN_KANA}]\s*[{_HAN_KANA}]")
_SPACE_BEFORE = "a space before a punctuation mark"
_CLITICS = _sign(
    "'s, n't and the like as words of their own",
    r"\w +(?:n['\u2019]t|['\u2019](?:s|re|ve|ll|d|m))(?:\s|$)",
    r"\w *(?:n['\u2019]t|['\u2019](?:s|re|ve|ll|d|m))(?:\W|$)",
)
_ELISIONS = _sign(
    "l', d' and the like as words of their own",
    r"(?i)(?:^|\s)(?:[cdjlmnst]|qu|dell|nell|all|un)['\u2019] +\w",
    r"(?i)(?:^|\W)(?:[cdjlmnst]|qu|dell|nell|all|un)['\u2019]",
)


def _signs(code: str) -> list[PreprocessingSign]:
    """The signs of tokenization in a language."""
    # In French a space before ? ! ; : is correct.
    marks = r"[.,)\]]" if code == "fr" else r"[.,!?;:)\]\u3001\u3002\uff0c\uff01\uff1f\u0964\u061f\u060c]"
    signs = [_ESCAPED, _sign(_SPACE_BEFORE, rf"\S\s+{marks}(?=\s|$)", rf"\S\s*{marks}(?=\s|$)")]
    if code in ("en", ""):
        signs.append(_CLITICS)
    if code in ("fr", "it", "ca"):
        signs.append(_ELISIONS)
    if code in ("zh", "ja", ""):
        signs.append(_SPACED_HAN)
    return signs


def _count_sign(
    lines: Sequence[str], kind: Literal["tokenised", "subwords"], sign: PreprocessingSign
) -> PreprocessingRemark | None:
    seen = [number for number, line in enumerate(lines, 1) if sign.seen.search(line)]
    possible = len(seen) + sum(bool(sign.possible.search(line)) and not sign.seen.search(line) for line in lines)
    if not seen or len(seen) < _LEAST_SHARE * possible or len(seen) < _LEAST_OF_ALL * len(lines):
        return None
    return PreprocessingRemark(kind, sign.what, len(seen), possible, seen[0], lines[seen[0] - 1])


def _check_lower_case(lines: Sequence[str]) -> PreprocessingRemark | None:
    """Lines without capitals, among those whose first letter or digit is a letter with case."""
    with_case = [(number, line) for number, line in enumerate(lines, 1) if _could_begin_with_capital(line)]
    without = [number for number, line in with_case if line.lower() == line]
    if not without or len(without) < _LOWER_SHARE * len(with_case) or len(without) < _LEAST_OF_ALL * len(lines):
        return None
    return PreprocessingRemark(
        "lower-cased", "no capital letter", len(without), len(with_case), without[0], lines[without[0] - 1]
    )


def _could_begin_with_capital(line: str) -> bool:
    first = next((character for character in line if character.isalnum()), "")
    return first.upper() != first.lower()


def _shorten(line: str, most: int = 60) -> str:
    return line if len(line) <= most else line[: most - 3] + "..."
