"""The most frequent errors of translations, with examples.

Every edit between a translation and its reference (`judging.word_edits`) is an error of exactly one of the kinds in
`KINDS`. A kind is weighed by the BLEU that the translations gain if all its errors are repaired. A reference is one of
many good translations: what is counted as an error may be another word for the same thing.

    lost share of a band      reference words that the translation lacks, by their frequency in the training text

Loops, empty lines and copies are those of `judging.compare`, which also compares several systems.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from multihead.judging.compare import TextStatistics, text_statistics
from multihead.judging.guard_signs import split_words
from multihead.judging.word_edits import Edit, align_words, repaired, shared_beginning, tokens
from multihead.metrics.scores import bleu_metric, check_lines

KINDS = {
    "number": "a number is wrong, missing or added",
    "punctuation": "a punctuation mark is wrong, missing or added",
    "case": "upper and lower case differ",
    "order": "the word stands elsewhere in the sentence",
    "repeated": "a word is said too often",
    "name": "a name, which the source has as well, is wrong or missing",
    "untranslated": "a word of the source is left as it is",
    "form": "another form of the word",
    "small word": "one of the most frequent words is wrong, missing or added",
    "rare word": "a word that is rare in the training text is wrong or missing",
    "wrong word": "another word",
    "missing word": "a word is missing",
    "added word": "a word is added",
}
"""The kinds of errors. An edit is of the first one that fits it."""

_SMALL, _SMALL_SHARE = 50, 10
"""Number of the most frequent words that are small, at most one in so many different words."""
_RARE = 10
"""Occurrences in the training text up to which a word is rare."""
_BANDS = ((0, "not in the training text"), (_RARE, "1 to 10 times"), (100, "11 to 100 times"))
_OFTEN = "more than 100 times"
_STEM, _SAME_STEM = 3, 0.5
_WORDS, _EXAMPLES, _QUARTERS = 5, 2, 4


@dataclass(frozen=True)
class Example:
    """A sentence with an error."""

    line: int
    """From 1."""
    source: str
    reference: str
    translation: str
    wanted: str
    """What the reference has; "" if nothing."""
    written: str
    """What the translation has instead; "" if nothing."""


@dataclass(frozen=True)
class ErrorKind:
    """All errors of a kind."""

    name: str
    cases: int
    gain: float
    """BLEU that the translations gain if all of them are repaired."""
    words: tuple[tuple[str, str, int], ...]
    """The most frequent ones: wanted, written, cases."""
    examples: tuple[Example, ...]
    """Sentences with few other errors."""


@dataclass(frozen=True)
class Band:
    """Words, or sentences, that have something in common."""

    name: str
    count: int
    value: float
    """The share of words that are lost, or the BLEU of the sentences."""


@dataclass(frozen=True)
class Errors:
    """What is wrong with translations of a test set."""

    lines: int
    bleu: float
    kinds: tuple[ErrorKind, ...]
    """The kind whose repair gains most BLEU first; kinds without errors are left out."""
    frequencies: tuple[Band, ...]
    """The share of reference words that are lost, by frequency in the training text; empty if that is not known."""
    lengths: tuple[Band, ...]
    """BLEU by the length of the source, shortest quarter first."""
    statistics: TextStatistics

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON data."""
        return {**asdict(self), "statistics": self.statistics.as_dict()}


def find_errors(
    translations: Sequence[str],
    references: Sequence[str],
    sources: Sequence[str],
    *,
    frequencies: Mapping[str, int] | None = None,
    language: str | None = None,
) -> Errors:
    """Find the errors of translations.

    Args:
        translations: one sentence each.
        references: of the same sentences.
        sources: of the same sentences.
        frequencies: how often each word occurs in the training text, from `count_words`.
        language: of the translations, which decides BLEU's tokenization.

    Raises:
        InputError: there is nothing to compare, or the numbers of lines differ.
    """
    check_lines(translations, references)
    check_lines(sources, references)
    known = count_words(references) if frequencies is None else frequencies
    small = {word for word, _ in Counter(known).most_common(min(_SMALL, len(known) // _SMALL_SHARE))}
    sentences = [
        _Sentence.read(number, *texts, known, small, frequencies is not None)
        for number, texts in enumerate(zip(sources, references, translations, strict=True), start=1)
    ]
    metric = bleu_metric(language)

    def bleu(outputs: Sequence[str], goals: Sequence[str] = references) -> float:
        return float(metric.corpus_score(list(outputs), [list(goals)]).score)

    own = bleu(translations)
    cases = Counter(kind for sentence in sentences for _, kind in sentence.errors)
    found = [
        ErrorKind(name, cases[name], bleu([one.without(name) for one in sentences]) - own, *_details(name, sentences))
        for name in KINDS
        if cases[name]
    ]
    return Errors(
        len(references),
        own,
        tuple(sorted(found, key=lambda kind: (-kind.gain, -kind.cases))),
        () if frequencies is None else _frequency_bands(sentences, frequencies),
        tuple(
            Band(name, len(part), bleu([one.translation for one in part], [one.reference for one in part]))
            for name, part in _quarters(sentences)
        ),
        text_statistics(translations, references, sources),
    )


def count_words(texts: Iterable[str]) -> Counter[str]:
    """How often each word, case-folded, occurs."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(split_words(text))
    return counts


@dataclass(frozen=True)
class _Sentence:
    line: int
    source: str
    reference: str
    translation: str
    edits: list[Edit]
    errors: list[tuple[Edit, str]]
    """The edits that change something, with their kinds."""

    @classmethod
    def read(
        cls, line: int, source: str, reference: str, translation: str, known: Mapping[str, int], small: set[str],
        trained: bool,
    ) -> _Sentence:  # fmt: skip
        written, wanted = tokens(translation), tokens(reference)
        edits = align_words(written, wanted)
        kinds = _Kinds(
            set(tokens(source)), Counter(written) - Counter(wanted), Counter(wanted) - Counter(written), set(wanted),
            known, small, _RARE if trained else -1,
        )  # fmt: skip
        return cls(line, source, reference, translation, edits, [(e, kinds.of(e)) for e in edits if not e.kept])

    def without(self, kind: str) -> str:
        """The translation with the errors of a kind repaired."""
        wrong = {edit for edit, other in self.errors if other == kind}
        return repaired(self.translation, self.reference, self.edits, wrong.__contains__) if wrong else self.translation


@dataclass(frozen=True)
class _Kinds:
    """Decides the kinds of the edits of a sentence."""

    source: set[str]
    surplus: Counter[str]
    """Tokens that the translation has too often."""
    lacking: Counter[str]
    wanted: set[str]
    known: Mapping[str, int]
    small: set[str]
    rare: int

    def of(self, edit: Edit) -> str:
        """The first of `KINDS` that fits."""
        written, wanted = edit.written, edit.wanted
        both = [token for token in (written, wanted) if token is not None]
        if any(character.isdigit() for token in both for character in token):
            return "number"
        if not any(character.isalnum() for token in both for character in token):
            return "punctuation"
        if len(both) > 1 and both[0].casefold() == both[1].casefold():
            return "case"
        return self._of_words(written, wanted, both)

    def _of_words(self, written: str | None, wanted: str | None, both: list[str]) -> str:
        if not (written is not None and self.surplus[written]) and not (wanted is not None and self.lacking[wanted]):
            return "order"
        if wanted is None and written in self.wanted:
            return "repeated"
        if wanted is not None and wanted[0].isupper() and wanted in self.source:
            return "name"
        if written is not None and written in self.source and not self.known.get(written.casefold()):
            return "untranslated"
        if written is not None and wanted is not None and _same_stem(written.casefold(), wanted.casefold()):
            return "form"
        if all(token.casefold() in self.small or not token.isalnum() for token in both):
            return "small word"
        if wanted is not None and wanted.isalnum() and self.known.get(wanted.casefold(), 0) <= self.rare:
            return "rare word"
        if wanted is None:
            return "added word"
        return "missing word" if written is None else "wrong word"


def _same_stem(one: str, other: str) -> bool:
    shorter, longer = sorted((one, other), key=len)
    if shorter[:_STEM] != longer[:_STEM] or len(shorter) < _STEM:
        return False
    return longer.startswith(shorter) or shared_beginning(one, other) >= _SAME_STEM


def _details(kind: str, sentences: Sequence[_Sentence]) -> tuple[tuple[tuple[str, str, int], ...], tuple[Example, ...]]:
    """The most frequent errors of a kind, and examples, which have few other errors."""
    errors = [(s, edit) for s in sentences for edit, other in s.errors if other == kind]
    counts = Counter((edit.wanted or "", edit.written or "") for _, edit in errors)
    order = sorted(errors, key=lambda one: (len(one[0].errors), -counts[one[1].wanted or "", one[1].written or ""]))
    first: dict[int, tuple[_Sentence, Edit]] = {}
    for sentence, edit in order:
        first.setdefault(sentence.line, (sentence, edit))
    examples = [
        Example(s.line, s.source, s.reference, s.translation, edit.wanted or "", edit.written or "")
        for s, edit in [*first.values()][:_EXAMPLES]
    ]
    return tuple((*pair, count) for pair, count in counts.most_common(_WORDS)), tuple(examples)


def _frequency_bands(sentences: Sequence[_Sentence], frequencies: Mapping[str, int]) -> tuple[Band, ...]:
    counts, lost = Counter[str](), Counter[str]()
    for sentence in sentences:
        words = Counter(split_words(sentence.reference))
        for word in words.elements():
            counts[_band(frequencies.get(word, 0))] += 1
        for word in (words - Counter(split_words(sentence.translation))).elements():
            lost[_band(frequencies.get(word, 0))] += 1
    names = [*(name for _, name in _BANDS), _OFTEN]
    return tuple(Band(name, counts[name], lost[name] / counts[name]) for name in names if counts[name])


def _band(frequency: int) -> str:
    return next((name for most, name in _BANDS if frequency <= most), _OFTEN)


def _quarters(sentences: Sequence[_Sentence]) -> list[tuple[str, list[_Sentence]]]:
    """The sentences in four parts of about equal size, by the number of source words."""
    lengths = {one.line: len(split_words(one.source)) for one in sentences}
    order = sorted(sentences, key=lambda one: (lengths[one.line], one.line))
    parts = [order[len(order) * i // _QUARTERS : len(order) * (i + 1) // _QUARTERS] for i in range(_QUARTERS)]
    return [(f"{lengths[p[0].line]} to {lengths[p[-1].line]} words", p) for p in parts if p]
