r"""Refuses regular expressions of tokenizers whose search may not end.

The library ``tokenizers`` searches with Oniguruma, which backtracks: where a pattern can divide a text in many ways, as
``(x+x+)+y`` can, it may try all of them. `check_pattern` counts, from the pattern alone, in how many ways it can divide
a text of n characters:

    paths(one character)      = 1
    paths(A B)                = paths(A) paths(B)
    paths(A | B)              = paths(A) + paths(B)
    paths(A{i,j})             = paths(A)^i + ... + paths(A)^j
    paths(A*), paths(A+)      = n if paths(A) = 1, and without a limit otherwise

A search tries at most so many from each place. Patterns with more than `_MOST_PATHS` for n = 1000 are refused; the
patterns of published tokenizers have between 1 and 40,000,000. So are patterns with parts that cannot be counted,
such as references to groups. Patterns of our own tokenizers need no check (`text.vocabulary.PATTERN`).
"""

from __future__ import annotations

import math
import re

from multihead.errors import shown

_LENGTH = 1000.0
_MOST_PATHS = 1e8
_LONGEST, _DEEPEST = 1 << 20, 100

_SINGLE = frozenset("dDsSwWhHrntfvae")
"""Letters that stand for one character after a backslash."""
_PLACES = frozenset("bBAzZG")
"""Letters that stand for a place in the text."""
_INTERVAL = re.compile(r"\{(?=\d|,\d)(\d{0,6})(,?)(\d{0,6})\}")
_GROUP = re.compile(r"\((\?(?:[ims]*(?:-[ims]+)?:|<?[=!]|>|<[A-Za-z_]\w*>))?")
_OPTIONS = re.compile(r"\(\?[ims]*(?:-[ims]+)?\)")
_CODE = re.compile(r"x(?:\{[0-9A-Fa-f]{1,8}\}|[0-9A-Fa-f]{1,2})|u[0-9A-Fa-f]{4}|[pP]\{\^?[\w ]{1,60}\}")


def check_pattern(pattern: str) -> None:
    """Check that a pattern can be searched for in any text.

    Raises:
        ValueError: it has too many paths, or parts that cannot be counted; the message shows the pattern.
    """
    if len(pattern) > _LONGEST:
        raise ValueError(f"a pattern of {len(pattern):,} characters; {_LONGEST:,} at most are read")
    counter = _Counter(pattern)
    paths = counter.alternatives()
    if counter.rest:
        counter.refuse("a parenthesis too many")
    if paths > _MOST_PATHS:
        raise ValueError(
            f"the pattern {shown(pattern)} can divide a text in too many ways, so a search for it may not end"
        )


class _Counter:
    """Reads a pattern from the left, and counts its paths."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._place, self._depth = pattern, 0, 0

    @property
    def rest(self) -> bool:
        """Whether some of the pattern has not been read."""
        return self._place < len(self._pattern)

    def refuse(self, what: str) -> None:
        """Raise the error for a pattern that cannot be counted."""
        raise ValueError(f"the pattern {shown(self._pattern)} has {what} at {self._place}, and cannot be checked")

    def alternatives(self) -> float:
        """The paths up to the end of the pattern or of its group."""
        total, product = 0.0, 1.0
        while self.rest and not self._at(")"):
            if self._skip("|"):
                total, product = total + product, 1.0
            else:
                product *= self._repeated(self._atom())
        return total + product

    def _at(self, text: str) -> bool:
        return self._pattern.startswith(text, self._place)

    def _skip(self, text: str) -> bool:
        found = self._at(text)
        self._place += len(text) * found
        return found

    def _match(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        found = expression.match(self._pattern, self._place)
        self._place = found.end() if found else self._place
        return found

    def _atom(self) -> float:
        """The paths of one character or group."""
        if self._match(_OPTIONS):
            return 1.0
        if self._at("("):
            return self._group()
        if self._at("["):
            self._set()
        elif self._skip("\\"):
            return self._escape()
        elif self._pattern[self._place] in "?*+":
            self.refuse("a repetition of nothing")
        else:
            self._place += 1
        return 1.0

    def _group(self) -> float:
        if not self._match(_GROUP) or self._at("?"):
            self.refuse("a group of a rare kind")
        self._depth += 1
        if self._depth > _DEEPEST:
            self.refuse("too many groups in each other")
        paths = self.alternatives()
        self._depth -= 1
        if not self._skip(")"):
            self.refuse("a parenthesis too few")
        return paths

    def _set(self) -> None:
        """Read a set of characters, which may hold others."""
        depth = 0
        while self.rest:
            if self._skip("["):
                depth += 1
                self._skip("^")
                if self._at("]"):
                    self.refuse("an empty set")
            elif self._skip("]"):
                depth -= 1
                if not depth:
                    return
            else:
                self._place += 2 if self._at("\\") else 1
        self.refuse("a bracket too few")

    def _escape(self) -> float:
        if self._match(_CODE):
            return 1.0
        if self._skip("R"):
            return 2.0  # one line break, or CR LF
        if not self.rest:
            self.refuse("a backslash")
        letter = self._pattern[self._place]
        if letter.isalnum() and letter not in _SINGLE | _PLACES:
            self.refuse(f"\\{letter}")
        self._place += 1
        return 1.0

    def _repeated(self, paths: float) -> float:
        """The paths of an atom with what says how often it is repeated."""
        while self.rest:
            if found := self._match(_INTERVAL):
                paths = self._interval(paths, found)
                continue
            if self._skip("?"):
                paths += 1.0
            elif self._skip("*") or self._skip("+"):
                paths = _LENGTH if paths == 1.0 else math.inf
            else:
                return paths
            if self._at("?") or self._at("+"):
                self._place += 1  # lazy or possessive: another order of the paths, or fewer
        return paths

    def _interval(self, paths: float, found: re.Match[str]) -> float:
        least = int(found[1] or 0)
        if found[2] and not found[3]:
            return _LENGTH if paths == 1.0 else math.inf
        most = int(found[3] or 0) if found[2] else least
        if paths == 1.0:
            return float(abs(most - least) + 1)
        try:
            return float(paths ** max(most, least) * (abs(most - least) + 1))
        except OverflowError:
            return math.inf
