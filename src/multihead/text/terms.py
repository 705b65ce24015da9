"""Terms: wanted translations in the source, which the model inflects.

    Der Vater ruft die Hunde.        Der Vater ruft die⟨term⟩ Hunde⟨as⟩ dog⟨/term⟩.
                                     The father calls the dogs.

The model learns from such sources what the symbols mean, and writes the form of the lemma that the sentence needs
(Dinu et al. 2019, "Training neural machine translation to apply terminology constraints", section 3; Bergmanis and
Pinnis 2021, "Facilitating terminology translation with target lemma annotations", section 3, for the lemma). Nothing is
forced; phrases that must appear as they are given are in `decoding.lexical`.

A list has a term a line: words of the source, a TAB, the lemma in the target language, and after further TABs, forms of
it. A word is taken for a form of another one if both begin alike (`is_form`), so regular forms need not be given.

* In training, a term of the source whose lemma or a form of it is in the target is annotated in every second case,
  as a hash of the pair decides, so that the model also learns to translate without.
* In translation, every term of the source is annotated.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from multihead.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from multihead.text.tokenizer import Tokenizer

TERM, AS, END = OF_SOURCES = ("⟨term⟩", "⟨as⟩", "⟨/term⟩")
"""Before the words of the source, between them and the lemma, and after it."""

MOST = 8
"""Terms of a sentence that are annotated."""

_WORD = re.compile(r"\w+(?:[-'’]\w+)*")
_KEY = 3
_LONGEST_ENDING = 4


@dataclass(frozen=True)
class Term:
    """A term of the source, with the lemma of its translation."""

    source: str
    lemma: str
    forms: tuple[str, ...] = ()
    """Of the lemma, besides those that begin as it does."""


def is_form(word: str, lemma: str) -> bool:
    """Whether a word is taken for a form of a lemma, without regard to letter case.

    It is if both are equal, or begin with the same p characters, p at least 3 and two thirds of the lemma, and at most
    4 more follow in the word.
    """
    word, lemma = word.casefold(), lemma.casefold()
    if word == lemma:
        return True
    common = next((n for n, (a, b) in enumerate(zip(word, lemma, strict=False)) if a != b), min(len(word), len(lemma)))
    return common >= max(_KEY, 2 * len(lemma) / 3) and len(word) - common <= _LONGEST_ENDING


def words_of(text: str) -> list[str]:
    """The words of a text: letters and digits, with hyphens and apostrophes inside."""
    return _WORD.findall(text)


@dataclass(frozen=True)
class Terms:
    """A list of terms; of several with the same words the first one counts."""

    entries: tuple[Term, ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the terms."""
        return hashlib.sha256(repr(self.entries).encode()).hexdigest()

    @cached_property
    def _index(self) -> dict[str, list[tuple[list[str], Term]]]:
        """The terms by the beginning of their first word, the longest first."""
        index: dict[str, list[tuple[list[str], Term]]] = {}
        for term in self.entries:
            words = words_of(term.source)
            index.setdefault(_key(words[0]), []).append((words, term))
        for rows in index.values():
            rows.sort(key=lambda row: -len(row[0]))  # stable: as in the list
        return index

    @cached_property
    def _kept(self) -> dict[str, Terms]:
        """What `without_copies` has found, by the digest of the tokenizer: every request asks again."""
        return {}

    def without_copies(self, tokenizer: Tokenizer) -> Terms:
        """The terms in which this tokenizer copies nothing."""
        if tokenizer.digest not in self._kept:
            own = (one for one in self.entries if not any(map(tokenizer.copies, (one.source, one.lemma))))
            self._kept[tokenizer.digest] = Terms(tuple(own))
        return self._kept[tokenizer.digest]

    def annotate(self, source: str, wanted: Callable[[Term, int], bool] = lambda _term, _place: True) -> str:
        """The source with its terms annotated, the first `MOST`.

        Args:
            source: the text.
            wanted: whether to annotate a term, whose words begin at a character.
        """
        parts, end = [], 0
        for start, stop, term in islice(self._find(source, wanted), MOST):
            begin = start - source[:start].endswith(" ")
            parts += [source[end:begin], TERM, source[begin:stop], f"{AS} {term.lemma}{END}"]
            end = stop
        return "".join([*parts, source[end:]])

    def found_in(self, source: str) -> list[Term]:
        """The terms of a source that `annotate` annotates."""
        return [term for _, _, term in islice(self._find(source, lambda _term, _place: True), MOST)]

    def annotate_pair(self, source: str, target: str) -> str:
        """The source of a training pair, with every second term annotated whose lemma is in the target."""
        words, known = words_of(target), dict[Term, bool]()

        def wanted(term: Term, place: int) -> bool:
            if term not in known:
                known[term] = has_form(words, term)
            # The hash reads the whole pair: it is only computed for terms of which some are annotated, up to `MOST`.
            return known[term] and bool(zlib.crc32(f"{place}\t{source}\t{target}".encode("utf-8", "surrogatepass")) & 1)

        return self.annotate(source, wanted)

    def _find(self, source: str, wanted: Callable[[Term, int], bool]) -> Iterator[tuple[int, int, Term]]:
        """First and last character of each term in a text, from the left, the longest at each place."""
        found, place = list(_WORD.finditer(source)), 0
        while place < len(found):
            first = place
            place += 1
            candidates = self._index.get(_key(found[first][0]), ())
            for exact in (True, False):
                term = next(
                    (
                        (len(words), term)
                        for words, term in candidates
                        if _matches([match[0] for match in found[first : first + len(words)]], words, exact=exact)
                        and wanted(term, found[first].start())
                    ),
                    None,
                )
                if term is not None:
                    place = first + term[0]
                    yield found[first].start(), found[place - 1].end(), term[1]
                    break


def _key(word: str) -> str:
    return word.casefold()[:_KEY]


def _matches(found: Sequence[str], words: Sequence[str], *, exact: bool) -> bool:
    """Whether words are those of a term, or forms of them."""
    if len(found) < len(words):
        return False
    if exact:
        return all(one.casefold() == other.casefold() for one, other in zip(found, words, strict=True))
    return all(is_form(one, other) for one, other in zip(found, words, strict=True))


def has_form(words: Sequence[str], term: Term) -> bool:
    """Whether the words of a target have the lemma of a term, or a form of it."""
    lemma = words_of(term.lemma)
    given = [words_of(form.casefold()) for form in term.forms]
    folded = [word.casefold() for word in words]
    starts = range(len(words))
    return any(_matches(words[i : i + len(lemma)], lemma, exact=False) for i in starts) or any(
        folded[i : i + len(form)] == form for form in given for i in starts
    )


def parse_terms(lines: Iterable[str], name: object = "the terms") -> Terms:
    """The terms of a list: source, TAB, lemma, and further TABs and forms; empty lines and those with # are skipped.

    Args:
        lines: of the list.
        name: of the file, for messages.

    Raises:
        DataError: a line is no term; there is none.
    """
    entries = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        source, *rest = (part.strip() for part in line.split("\t"))
        if not rest or not all(words_of(part) for part in (source, *rest)) or "⟨" in line:
            raise DataError(f"expected a term, a TAB and its translation, got {line[:80]!r}", str(name), number)
        entries.append(Term(source, rest[0], tuple(rest[1:])))
    if not entries:
        raise DataError("has no terms: expected a line for each, a term, a TAB and its translation", str(name))
    return Terms(tuple(entries))


def knows_terms(tokenizer: Tokenizer) -> bool:
    """Whether a model with this tokenizer of sources was trained with terms."""
    return set(OF_SOURCES) <= set(tokenizer.symbols)


def for_sources(terms: Terms, tokenizer: Tokenizer) -> Terms:
    """The terms that can be written into sources: those without anything that is copied (`text.placeholders`).

    Raises:
        ConfigurationError: the model of this tokenizer was trained without terms.
    """
    if not knows_terms(tokenizer):
        raise ConfigurationError(
            "terms: this model was trained without them (train --terms FILE), so it cannot inflect any; give phrases "
            "that must appear as they are (--phrases), or leave terms out"
        )
    return terms.without_copies(tokenizer) if tokenizer.copied else terms
