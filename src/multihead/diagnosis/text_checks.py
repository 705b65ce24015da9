"""The checks of `multihead doctor` on text: one pass over a corpus, hashes and lengths kept of it, a sample, no lines.

A corpus is read once, in chunks (`diagnosis.corpus`); what each chunk tells is added up in `TextPass`, and `findings`
says what it comes to. Other sets of pairs, on which a model will be judged, are given as `HeldOut`, to be looked for
among what is learned from. Tokens and models are for `doctor_tokens` and `doctor_model`.
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

_LEARN = 50_000
"""Pairs from which it is learned what the two sides look like."""
_FEWEST = 100
"""Pairs, without which it is not."""
_APART = 0.4
"""Nats for a run of three bytes, on both sides: from there on a pair counts as the wrong way round."""
_UNRELATED = 0.15
"""The correlation of the lengths of both sides, below which they are not translations of each other."""
_HINTS = 2_000
"""Pairs by which the language of a file is guessed."""

_CODES = {NOT_UTF8: "not-utf8", NUL: "nul", EMPTY: "empty", EMPTY_BOTH: "empty-both"}


class TextPass:
    """One corpus, read from front to end.

    Args:
        corpus: not read yet.
        held_out: those that must not stand in this corpus.
        likeness: of a corpus that these pairs should be like; None to learn it from this one.
        progress: is told how many more pairs are done.
        sample: pairs that are kept, at most.
    """

    def __init__(
        self,
        corpus: ParallelReader,
        held_out: Sequence[HeldOut] = (),
        likeness: SideClassifier | None = None,
        progress: Callable[[int], None] = lambda _: None,
        sample: int = SAMPLE_SIZE,
    ) -> None:
        self.corpus, self.held_out = corpus, held_out
        self.sample, self.characters = Sample(sample), Characters()
        self.likeness = likeness
        self._learning, self._waiting = SideClassifier(), list[Chunk]()
        self._scores: list[tuple[Scores, Scores]] = []
        self._lines: list[Array] = []
        self._hashes: tuple[list[Array], list[Array]] = [], []
        self._lengths: tuple[list[Array], list[Array]] = [], []
        self._first: list[Chunk] = []
        self._equal = FaultLines()
        for chunk in corpus.chunks():
            self._take(chunk)
            progress(len(chunk.lines))
        if self.likeness is None and len(self) >= _FEWEST:
            self.likeness = self._learning
        self._score_waiting()

    def __len__(self) -> int:
        """Usable pairs."""
        return sum(map(len, self._lines))

    def _take(self, chunk: Chunk) -> None:
        sides = chunk.sources, chunk.targets
        own = [hash_texts(side) for side in sides]
        for side in (0, 1):
            self._hashes[side].append(own[side])
            self._lengths[side].append(np.array(list(map(len, sides[side])), np.int32))
        equal = [p for p in np.flatnonzero(own[0] == own[1]).tolist() if _has_letters(chunk.sources[p])]
        self._equal.add_all(chunk.lines[equal])
        if self.held_out:
            keys = HeldOut.keys(chunk)
            for pairs in self.held_out:
                pairs.look(chunk.lines, keys, self.corpus.name)
        self.characters.add(chunk)
        self.sample.add(chunk)
        self._waiting.append(chunk)
        if len(self) < _HINTS:
            self._first.append(chunk)
        if self.likeness is None and len(self) < _LEARN:
            self._learning.learn(*sides)
        self._lines.append(chunk.lines)
        if self.likeness is None and len(self) >= _LEARN:
            self.likeness = self._learning
        if self.likeness is not None:
            self._score_waiting()

    def _score_waiting(self) -> None:
        if self.likeness is not None:
            for chunk in self._waiting:
                self._scores.append((self.likeness.score(chunk.sources), self.likeness.score(chunk.targets)))
        self._waiting.clear()

    def findings(self, languages: Languages = (None, None)) -> list[Finding]:
        """What is wrong with this corpus.

        Args:
            languages: the codes that its sides should have, where they are known.
        """
        every = [*self._of_lines(), *self._of_languages(languages)]
        if not len(self):
            return every
        lines = np.concatenate(self._lines)
        source, target = (np.concatenate(side) for side in self._hashes)
        return [*every, *self._of_lengths(lines), *self._of_repeats(lines, source, target)]

    def _of_lines(self) -> list[Finding]:
        corpus, every = self.corpus, []
        total = max(corpus.lines)
        if corpus.lines[0] != corpus.lines[1]:
            count = abs(corpus.lines[0] - corpus.lines[1])
            what = f"the source has {corpus.lines[0]:,} lines, the target {corpus.lines[1]:,}"
            every.append(make_finding("unequal-lines", corpus.name, count, total, what, [min(corpus.lines) + 1]))
        for (path, reason), spots in corpus.faults.spots.items():
            detail = f", first {spots.detail}" if spots.detail else ""
            what = f"{spots.count:,} of {total:,} lines: {reason}{detail}"
            remedy = (
                FINDING_KINDS["nul"].remedy if 2 * self._nul(path) > total else None
            )  # of whatever UTF-16 looks like
            every.append(
                make_finding(_CODES.get(reason, "not-a-pair"), path, spots.count, total, what, spots.lines, remedy)
            )
        if self._equal.count:
            what = f"{self._equal.count:,} of {len(self):,} pairs have the same text on both sides"
            every.append(
                make_finding("equal-sides", corpus.name, self._equal.count, len(self), what, self._equal.lines)
            )
        return every

    def _nul(self, path: Path) -> int:
        """Lines of a file that hold a NUL."""
        return self.corpus.faults.spots.get((path, NUL), FaultLines()).count

    def _of_languages(self, languages: Languages) -> list[Finding]:
        if 2 * len(self) < max(self.corpus.lines):  # hardly text; what is left over of it says nothing
            return []
        if (files := _files_against_codes(self.corpus, self._first, languages)) is not None:
            return [files]
        if not self._scores:
            return []
        source, target = (np.concatenate(side) for side in zip(*self._scores, strict=True))
        lengths = [np.concatenate(side) for side in self._lengths]
        away = np.minimum(-source, target)
        away[np.minimum(*lengths) < 8] = 0
        swapped = np.flatnonzero(away > _APART)
        if len(swapped) > 0.5 * len(away):
            what = "source and target stand the other way round than in the training text"
            return [make_finding("swapped-files", self.corpus.name, len(swapped), len(away), what)]
        if not len(swapped):
            return []
        what = f"{len(swapped):,} of {len(away):,} pairs have their sides exchanged"
        lines = np.concatenate(self._lines)[swapped[:MAX_LINES]].tolist()
        return [make_finding("swapped-pairs", self.corpus.name, len(swapped), len(away), what, lines)]

    def _of_lengths(self, lines: Array) -> list[Finding]:
        source, target = (np.concatenate(side).astype(np.float64) for side in self._lengths)
        name, every = self.corpus.name, []
        reach = min(max(abs(self.corpus.lines[0] - self.corpus.lines[1]), 5), 30)
        slipped = find_misalignments(source, target, reach)
        apart = length_outliers(source, target)
        for one in slipped:
            apart[one.start : one.stop] = False
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
            every.append(
                make_finding(
                    "misaligned", name, count, len(lines), what, [int(lines[s.start]) for s in slipped][:MAX_LINES]
                )
            )
        places = np.flatnonzero(apart)
        if len(places):
            what = f"{len(places):,} of {len(lines):,} pairs have sides whose lengths do not go together"
            every.append(
                make_finding("length-ratio", name, len(places), len(lines), what, lines[places[:MAX_LINES]].tolist())
            )
        return every

    def _of_repeats(self, lines: Array, source: Array, target: Array) -> list[Finding]:
        name, every = self.corpus.name, []
        again = find_repeated(hash_pairs(source, target))
        if len(again):
            what = f"{len(again):,} of {len(lines):,} pairs stand at an earlier line, too"
            every.append(
                make_finding("duplicates", name, len(again), len(lines), what, lines[again[:MAX_LINES]].tolist())
            )
        several = multiple_targets(source, target)
        if len(several.places):
            what = (
                f"{len(several.places):,} of {several.sources:,} sources have more than one translation, up to "
                f"{several.targets.max()}"
            )
            places = several.places[:MAX_LINES]
            every.append(
                make_finding("many-targets", name, len(several.places), several.sources, what, lines[places].tolist())
            )
        return every


def _has_letters(text: str) -> bool:
    """Numbers and signs are the same in both languages, as they should be."""
    return text.lower() != text.upper() or any(map(str.isalpha, text))


def _files_against_codes(corpus: ParallelReader, first: list[Chunk], languages: Languages) -> Finding | None:
    """Whether the sides are in other languages than the codes say."""
    wanted = [known_code(code) for code in languages]
    guesses = [guess_languages([text for chunk in first for text in chunk[1 + side]][:_HINTS]) for side in (0, 1)]
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
    """Its pairs, to be looked for in what is learned from; what is wrong with them is not told here.

    Raises:
        DataError: a file is a pipe, which could not be read again to be looked at itself; as `ParallelReader.chunks`.
    """
    for side in (0, 1):
        refuse_pipe(corpus.path(side))
    pairs = HeldOut()
    for chunk in corpus.chunks():
        pairs.add(chunk)
    return pairs


_LEAKED = {
    "pair": ("leaked-pairs", "{} of {} pairs stand in {}"),
    "normal": ("leaked-variants", "{} of {} pairs stand in {} but for case, space and punctuation"),
    "source": ("leaked-sources", "{} of {} sources stand in {} with another translation"),
}


def check_leaks(pairs: HeldOut, name: str, there: str, remedy: str | None = None) -> list[Finding]:
    """Which of the pairs that are held out were seen.

    Args:
        pairs: that were looked for in each `TextPass` that is over.
        name: of their files.
        there: what they were looked for in, for people.
        remedy: what to do, if it is not the usual.
    """
    every = []
    for kind, leaked in pairs.leaked().items():
        if leaked:
            code, what = _LEAKED[kind]
            what = what.format(f"{len(leaked):,}", f"{len(pairs):,}", there)
            what += f": line {leaked[0].line} is line {leaked[0].there} of {leaked[0].corpus}"
            lines = [one.line for one in leaked[:MAX_LINES]]
            every.append(make_finding(code, name, len(leaked), len(pairs), what, lines, remedy))
    return every
