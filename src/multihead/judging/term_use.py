"""How many wanted translations came out: the share of a list's terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from multihead.text.terms import Terms, has_form, words_of


@dataclass(frozen=True)
class TermUse:
    """The terms of some sources, and what became of them.

    share = used / found, where a term of a source is used if its translation has a form of the wanted one
    """

    found: int
    """Terms in the sources, as often as they occur."""
    missing: tuple[tuple[int, str, str], ...]
    """Those that did not come out: line, from 1, words of the list, and base form of the translation."""

    @property
    def used(self) -> int:
        """Terms whose translation came out."""
        return self.found - len(self.missing)

    def as_dict(self) -> dict[str, Any]:
        """The counts as JSON data."""
        return {"found": self.found, "used": self.used, "missing": list(map(list, self.missing))}

    def __str__(self) -> str:
        share = f" ({self.used / self.found:.1%})" if self.found else ""
        return f"{self.used:,} of {self.found:,} terms came out{share}"


def term_use(terms: Terms, sources: Sequence[str], translations: Sequence[str]) -> TermUse:
    """Count the terms of sources that came out in their translations, in any form (`text.terms.is_form`).

    Two terms of a source with the same translation both count as used if it is there once.

    Args:
        terms: the list.
        sources: the texts.
        translations: of each.
    """
    found, missing = 0, []
    for number, (source, translation) in enumerate(zip(sources, translations, strict=True), start=1):
        words = words_of(translation)
        for term in terms.found_in(source):
            found += 1
            if not has_form(words, term):
                missing.append((number, term.source, term.lemma))
    return TermUse(found, tuple(missing))
