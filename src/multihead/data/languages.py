"""Codes of languages as files write them ("de", "de-DE", "EN_us"), and which of them are the two wanted ones.

Codes are compared in any letter case and with "_" for "-". A wanted code covers what equals it and what refines it:
"de" covers "de-AT", but "de-AT" does not cover "de" (the basic filtering of RFC 4647, section 3.3.1). Nothing is
known here about files and their formats; which language a file name speaks of is for the workflows to guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from multihead.errors import DataError

Languages = tuple[str | None, str | None]
"""Of source and target; None where it is not given."""

_SOURCE_AND_TARGET = "source", "target"


def normal(code: str) -> str:
    """The code in small letters, its parts joined by hyphens."""
    return code.strip().replace("_", "-").casefold()


def primary(code: str | None) -> str:
    """The language itself, without what refines it: "zh" of "zh-TW"; "" where there is none."""
    return normal(code or "").split("-")[0]


def covers(wanted: str, code: str) -> bool:
    """Whether ``code`` is the language ``wanted``, or a variant of it."""
    return f"{normal(code)}-".startswith(f"{normal(wanted)}-")


def side_of(code: str, languages: tuple[str, str]) -> int | None:
    """On which side a code stands: 0 source, 1 target, None neither; the closer one if both cover it."""
    sides = [side for side in (0, 1) if covers(languages[side], code)]
    return max(sides, key=lambda side: len(languages[side]), default=None)


def place_of(side: int, codes: Sequence[str], languages: tuple[str, str]) -> int | None:
    """Which of some codes is taken for a side: the first that is the wanted one itself, else its first variant."""
    places = [place for place, code in enumerate(codes) if side_of(code, languages) == side]
    return min(places, key=lambda place: normal(codes[place]) != normal(languages[side]), default=None)


def columns(names: Sequence[str], languages: Languages) -> tuple[int, int] | None:
    """Which of some names, of keys or of columns, are the two sides.

    The two languages if both are given and there, else the words "source" and "target"; None if neither. Variants
    do not count here: "de_id" is hardly the German of Indonesia.
    """
    normals = [normal(name) for name in names]
    for source, target in (languages, _SOURCE_AND_TARGET):
        if source is not None and target is not None and {normal(source), normal(target)} <= set(normals):
            return normals.index(normal(source)), normals.index(normal(target))
    return None


def choose(counts: Mapping[str, int], first: str, languages: Languages) -> tuple[str, str]:
    """Source and target language of a file of units in several languages.

    What is given has to be there. What is not given is known where the file has two languages, variants counted as
    one (or one language in two variants): the other one of the two; or, if nothing is given, ``first`` for the source.

    Args:
        counts: the codes in the file, in order of appearance, and how often each is there.
        first: the code that the file itself names as its source; without effect if it is none of the two.
        languages: what the caller gave.

    Raises:
        DataError: it is not there, or not clear; lists the languages of the file.
    """
    listed = ", ".join(f"{code} ({count:,})" for code, count in counts.items()) or "none"
    for wanted in languages:
        if wanted is not None and not any(covers(wanted, code) for code in counts):
            raise DataError(f"has no segment in {wanted!r}; languages found: {listed}")
    source, target = languages
    if source is not None and target is not None:
        return source, target
    two = list(dict.fromkeys(map(primary, counts)))
    if len(two) == 1:
        two = list(dict.fromkeys(normal(code) for code in counts))
    if len(two) != 2:
        raise DataError(f"languages found: {listed}; say which is the source and which the target language")
    given = source if source is not None else target
    if given is None:
        return (two[1], two[0]) if covers(two[1], first) else (two[0], two[1])
    other = two[1] if covers(two[0], given) or covers(given, two[0]) else two[0]
    return (given, other) if target is None else (other, given)
