"""Text checks of `multihead doctor`: faults, languages, lengths, repeats.

`TextPass` reads a corpus once, in chunks (`diagnosis.corpus`), and keeps hashes, lengths and a sample, not the text;
`TextPass.findings` reports the faults. Held-out pairs (validation and test sets) are passed as `HeldOut` and matched
against every corpus that is read; `check_leaks` reports them. `diagnosis.model_checks` checks tokenizers and models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from multihead.data.corpus import EMPTY, EMPTY_BOTH, Languages
from multihead.data.order import Array
from multihead.data.text_files import NOT_UTF8, refuse_pipe
from multihead.diagnosis.corpus import (
    MAX_LINES,
    NUL,
    SAMPLE_SIZE,
    Characters,
    Chunk,
    FaultLines,
    HeldOut,
    ParallelReader,
    Sample,
    find_repeated,
    hash_pairs,
    hash_texts,
    multiple_targets,
)
from multihead.diagnosis.findings import FINDING_KINDS, Finding, make_finding
from multihead.diagnosis.heuristics import (
    Scores,
    SideClassifier,
    find_misalignments,
    guess_languages,
    known_code,
    length_correlation,
    length_outliers,
)
from multihead.diagnosis.mojibake import mojibake_lines

_LEARN_PAIRS = 50_000
"""Number of pairs from which the side classifier learns."""
_MIN_PAIRS = 100
"""Minimum number of pairs for the side classifier."""
_SWAPPED = 0.4
"""Score, in nats per trigram on both sides, from which a pair counts as swapped."""
_UNRELATED = 0.15
"""Correlation of log lengths below which two sides are not translations of each other."""
_GUESS_PAIRS = 2_000
"""Number of pairs from which the language of a file is guessed."""

_CODES = {NOT_UTF8: "not-utf8", NUL: "nul", EMPTY: "empty", EMPTY_BOTH: "empty-both"}


class TextPass:
    """A single pass over one corpus, collecting what the checks need.

    Args:
        corpus: the corpus, not yet read.
        held_out: pairs that must not occur in this corpus.
        classifier: tells the sides apart; None trains one on this corpus.
        progress: called with the number of newly read pairs.
        sample: maximum number of pairs to sample.
    """

    def __init__(
        self,
        corpus: ParallelReader,
        held_out: Sequence[HeldOut] = (),
        classifier: SideClassifier | None = None,
        progress: Callable[[int], None] = lambda _: None,
        sample: int = SAMPLE_SIZE,
    ) -> None:
        self.corpus, self.held_out = corpus, held_out
        self.sample, self.characters = Sample(sample), Characters()
        self.classifier = classifier
        self._training, self._unscored = SideClassifier(), list[Chunk]()
        self._scores: list[tuple[Scores, Scores]] = []
        self._lines: list[Array] = []
        self._hashes: tuple[list[Array], list[Array]] = [], []
        self._lengths: tuple[list[Array], list[Array]] = [], []
        self._beginning: list[Chunk] = []
        self._equal, self._mojibake = FaultLines(), (FaultLines(), FaultLines())
        for chunk in corpus.chunks():
            self._add(chunk)
            progress(len(chunk.lines))
        if self.classifier is None and len(self) >= _MIN_PAIRS:
            self.classifier = self._training
        self._score_chunks()

    def __len__(self) -> int:
        """Number of usable pairs."""
        return sum(map(len, self._lines))

    def _add(self, chunk: Chunk) -> None:
        sides = chunk.sources, chunk.targets
        own = [hash_texts(side) for side in sides]
        for side in (0, 1):
            self._hashes[side].append(own[side])
            self._lengths[side].append(np.array(list(map(len, sides[side])), np.int32))
            for place, (text, meant) in mojibake_lines(sides[side]).items():
                self._mojibake[side].add(int(chunk.lines[place]), f"{text!r} for {meant!r}")
        equal = [p for p in np.flatnonzero(own[0] == own[1]).tolist() if _has_letters(chunk.sources[p])]
        self._equal.add_all(chunk.lines[equal])
        if self.held_out:
            keys = HeldOut.keys(chunk)
            for pairs in self.held_out:
                pairs.match(chunk.lines, keys, self.corpus.name)
        self.characters.add(chunk)
        self.sample.add(chunk)
        self._unscored.append(chunk)
        if len(self) < _GUESS_PAIRS:
            self._beginning.append(chunk)
        if self.classifier is None and len(self) < _LEARN_PAIRS:
            self._training.learn(*sides)
        self._lines.append(chunk.lines)
        if self.classifier is None and len(self) >= _LEARN_PAIRS:
            self.classifier = self._training
        if self.classifier is not None:
            self._score_chunks()

    def _score_chunks(self) -> None:
        if self.classifier is not None:
            for chunk in self._unscored:
                self._scores.append((self.classifier.score(chunk.sources), self.classifier.score(chunk.targets)))
        self._unscored.clear()

    def findings(self, languages: Languages = (None, None)) -> list[Finding]:
        """The faults of this corpus.

        Args:
            languages: expected language codes of both sides, where known.
        """
        every = [*self._check_lines(), *self._check_languages(languages)]
        if not len(self):
            return every
        lines = np.concatenate(self._lines)
        source, target = (np.concatenate(side) for side in self._hashes)
        return [*every, *self._check_lengths(lines), *self._check_repeats(lines, source, target)]

    def _check_lines(self) -> list[Finding]:
        corpus, every = self.corpus, []
        total = max(corpus.lines)
        if corpus.lines[0] != corpus.lines[1]:
            count = abs(corpus.lines[0] - corpus.lines[1])
            what = f"the source has {corpus.lines[0]:,} lines, the target {corpus.lines[1]:,}"
            every.append(make_finding("unequal-lines", corpus.name, count, total, what, [min(corpus.lines) + 1]))
        for (path, reason), fault in corpus.faults.locations.items():
            detail = f", first {fault.detail}" if fault.detail else ""
            what = f"{fault.count:,} of {total:,} lines: {reason}{detail}"
            # In UTF-16 most lines hold a NUL, and every other fault of the file follows from that.
            utf16 = 2 * self._nul_lines(path) > total
            code, remedy = _CODES.get(reason, "not-a-pair"), FINDING_KINDS["nul"].remedy if utf16 else None
            every.append(make_finding(code, path, fault.count, total, what, fault.lines, remedy))
        for side, fault in enumerate(self._mojibake):
            if fault.count:
                what = f"{fault.count:,} of {len(self):,} lines hold UTF-8 read as Windows-1252, first {fault.detail}"
                every.append(make_finding("mojibake", corpus.path(side), fault.count, len(self), what, fault.lines))
        if self._equal.count:
            count, lines = self._equal.count, self._equal.lines
            what = f"{count:,} of {len(self):,} pairs have the same text on both sides"
            every.append(make_finding("equal-sides", corpus.name, count, len(self), what, lines))
        return every

    def _nul_lines(self, path: Path) -> int:
        return self.corpus.faults.locations.get((path, NUL), FaultLines()).count

    def _check_languages(self, languages: Languages) -> list[Finding]:
        if 2 * len(self) < max(self.corpus.lines):  # mostly unusable: the few usable lines prove nothing
            return []
        if (finding := _check_language_codes(self.corpus, self._beginning, languages)) is not None:
            return [finding]
        if not self._scores:
            return []
        source, target = (np.concatenate(side) for side in zip(*self._scores, strict=True))
        lengths = [np.concatenate(side) for side in self._lengths]
        away = np.minimum(-source, target)  # how strongly both sides resemble the opposite side
        away[np.minimum(*lengths) < 8] = 0  # too short to tell
        swapped = np.flatnonzero(away > _SWAPPED)
        if len(swapped) > 0.5 * len(away):
            what = "source and target stand the other way round than in the training text"
            return [make_finding("swapped-files", self.corpus.name, len(swapped), len(away), what)]
        if not len(swapped):
            return []
        what = f"{len(swapped):,} of {len(away):,} pairs have their sides exchanged"
        lines = np.concatenate(self._lines)[swapped[:MAX_LINES]].tolist()
        return [make_finding("swapped-pairs", self.corpus.name, len(swapped), len(away), what, lines)]

    def _check_lengths(self, lines: Array) -> list[Finding]:
        source, target = (np.concatenate(side).astype(np.float64) for side in self._lengths)
        name, every = self.corpus.name, []
        reach = min(max(abs(self.corpus.lines[0] - self.corpus.lines[1]), 5), 30)
        slipped = find_misalignments(source, target, reach)
        outliers = length_outliers(source, target)
        for one in slipped:
            outliers[one.start : one.stop] = False
        correlation = None if slipped else length_correlation(source, target)
        if correlation is not None and correlation < _UNRELATED:
            what = f"long sources do not stand beside long targets (correlation {correlation:.2f})"
            every.append(make_finding("unrelated", name, len(lines), len(lines), what))
        if slipped:
            count = sum(one.stop - one.start for one in slipped)
            one = slipped[0]
            what = (
                f"from about line {lines[one.start]} to {lines[one.stop - 1]} the target of line n seems to stand on "
                f"line n{one.offset:+d}"
            )
            starts = [int(lines[one.start]) for one in slipped][:MAX_LINES]
            every.append(make_finding("misaligned", name, count, len(lines), what, starts))
        places = np.flatnonzero(outliers)
        if len(places):
            what = f"{len(places):,} of {len(lines):,} pairs have sides of incompatible lengths"
            first = lines[places[:MAX_LINES]].tolist()
            every.append(make_finding("length-ratio", name, len(places), len(lines), what, first))
        return every

    def _check_repeats(self, lines: Array, source: Array, target: Array) -> list[Finding]:
        name, every = self.corpus.name, []
        repeated = find_repeated(hash_pairs(source, target))
        if len(repeated):
            what = f"{len(repeated):,} of {len(lines):,} pairs repeat an earlier one"
            first = lines[repeated[:MAX_LINES]].tolist()
            every.append(make_finding("duplicates", name, len(repeated), len(lines), what, first))
        several = multiple_targets(source, target)
        if len(several.places):
            count = len(several.places)
            what = (
                f"{count:,} of {several.sources:,} sources have more than one translation, up to "
                f"{several.targets.max()}"
            )
            first = lines[several.places[:MAX_LINES]].tolist()
            every.append(make_finding("many-targets", name, count, several.sources, what, first))
        return every


def _has_letters(text: str) -> bool:
    """Whether a text has letters: numbers and symbols alone may be equal in both languages."""
    return text.lower() != text.upper() or any(map(str.isalpha, text))


def _check_language_codes(corpus: ParallelReader, first: list[Chunk], languages: Languages) -> Finding | None:
    """A finding if a side is in another language than its code says."""
    wanted = [known_code(code) for code in languages]
    guesses = [guess_languages([text for chunk in first for text in chunk[1 + side]][:_GUESS_PAIRS]) for side in (0, 1)]
    wrong = [bool(code and guess and code not in guess) for code, guess in zip(wanted, guesses, strict=True)]
    if all(wrong) and wanted[0] in guesses[1] and wanted[1] in guesses[0]:
        what = f"the source should be {languages[0]!r} and the target {languages[1]!r}: it is the other way round"
        return make_finding("swapped-files", corpus.name, 1, 1, what)
    if any(wrong):
        side = wrong.index(True)
        seems = ", ".join(sorted(guesses[side]))
        what = f"the {('source', 'target')[side]} should be {languages[side]!r} and seems to be {seems}"
        return make_finding("wrong-language", corpus.path(side), 1, 1, what)
    return None


def read_held_out(corpus: ParallelReader) -> HeldOut:
    """Read pairs that must not occur in training text; their own faults are not reported here.

    Raises:
        DataError: a file is a pipe, which cannot be read a second time; otherwise as `ParallelReader.chunks`.
    """
    for side in (0, 1):
        refuse_pipe(corpus.path(side))
    pairs = HeldOut()
    for chunk in corpus.chunks():
        pairs.add(chunk)
    return pairs


_LEAKED = {
    "pair": ("leaked-pairs", "{} of {} pairs also occur in {}"),
    "normal": ("leaked-variants", "{} of {} pairs also occur in {} except for case, space and punctuation"),
    "source": ("leaked-sources", "{} of {} sources also occur in {} with another translation"),
}


def check_leaks(pairs: HeldOut, name: str, there: str, remedy: str | None = None) -> list[Finding]:
    """Findings for the held-out pairs that were seen.

    Args:
        pairs: held-out pairs, already matched by every `TextPass`.
        name: name of their files.
        there: name of the text they were matched against.
        remedy: replaces the usual remedy.
    """
    every = []
    for kind, leaked in pairs.leaked().items():
        if leaked:
            code, what = _LEAKED[kind]
            what = what.format(f"{len(leaked):,}", f"{len(pairs):,}", there)
            what += f": line {leaked[0].line} is line {leaked[0].found_line} of {leaked[0].corpus}"
            lines = [one.line for one in leaked[:MAX_LINES]]
            every.append(make_finding(code, name, len(leaked), len(pairs), what, lines, remedy))
    return every
