"""Compare translations of a test set by two or more systems.

A system is a run or model folder, which translates the test set first, or a file of translations. All others are
compared with the first: scores with significance tests (`metrics.significance`), statistics of the text, and the
sentences that differ most.

Words, loops and repetition are those of `judging.guard_signs`; the statistics of the references show how much of them
is normal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from multihead.attention.drawing import display_width, format_table
from multihead.data.corpus import check_parallel, language_of
from multihead.data.text_files import read_lines, refuse_undecodable
from multihead.errors import ConfigurationError, DataError
from multihead.judging.guard_signs import SIGNS, loop, repetition, split_words
from multihead.metrics.comet import with_comet
from multihead.metrics.preprocessing import PreprocessingRemark, find_preprocessing
from multihead.metrics.scores import Tokenizer, sentence_chrf
from multihead.metrics.significance import (
    LEVEL,
    MetricScore,
    SignificanceTest,
    SystemScores,
    check_score_settings,
    score_systems,
)
from multihead.text.context import in_context
from multihead.text.vocabulary import visible
from multihead.translating.searching import Translation
from multihead.translating.translator import Translator


@dataclass(frozen=True)
class TextStatistics:
    """Statistics of a text."""

    lines: int
    words: int
    """Number of words; in scripts without spaces, of characters."""
    length_ratio: float
    """Number of words, divided by that of the references."""
    repetition: float
    """Share of three-word sequences that already occurred in their line, averaged over the lines."""
    loops: tuple[int, ...]
    """Lines (from 1) with an immediate repetition of more than one word."""
    empty: tuple[int, ...]
    """Lines (from 1) without words where the reference has some."""
    copies: tuple[int, ...]
    """Lines (from 1) equal to their source where the reference is not; empty without sources."""

    def as_dict(self) -> dict[str, Any]:
        """The statistics as JSON data."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


def text_statistics(
    lines: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
) -> TextStatistics:
    """Compute the statistics of a text.

    Args:
        lines: translations, or the references themselves.
        references: reference translations, line by line.
        sources: source sentences, line by line.
    """
    words = [split_words(line) for line in lines]
    wanted = [split_words(reference) for reference in references]
    total, right = sum(map(len, words)), sum(map(len, wanted))
    copied = (
        [line == source != reference for line, source, reference in zip(lines, sources, references, strict=True)]
        if sources is not None
        else []
    )
    return TextStatistics(
        lines=len(lines),
        words=total,
        length_ratio=total / right if right else 1.0,
        repetition=fmean(map(repetition, words)),
        loops=_line_numbers(loop(own) > SIGNS["loop"].ordinary for own in words),
        empty=_line_numbers(bool(reference and not own) for own, reference in zip(words, wanted, strict=True)),
        copies=_line_numbers(copied),
    )


def _line_numbers(flags: Iterable[bool]) -> tuple[int, ...]:
    return tuple(number for number, flag in enumerate(flags, start=1) if flag)


@dataclass(frozen=True)
class System:
    """A system and its translations."""

    name: str
    outputs: list[str]
    cut: list[int]
    """Lines (from 1) whose translation reached the length limit; empty for a file."""
    statistics: TextStatistics
    remarks: list[PreprocessingRemark]
    """Signs that the translations are tokenized or lower-cased."""


@dataclass(frozen=True)
class SentencePair:
    """A sentence and its translations by the first and another system."""

    line: int
    source: str | None
    reference: str
    outputs: tuple[str, str]
    """Translations by the first system and the other."""
    scores: tuple[float, float]
    """chrF of both."""


@dataclass(frozen=True)
class SystemContrast:
    """A system compared with the first one, sentence by sentence."""

    equal: int
    """Number of identical lines."""
    better: int
    """Number of lines with a higher chrF than the first system's."""
    worse: int
    sentences: list[SentencePair]
    """The sentences whose chrF differs most, largest difference first."""


@dataclass(frozen=True)
class Comparison:
    """The systems compared on one test set; all are compared with the first."""

    systems: list[System]
    measured: SystemScores
    contrasts: list[SystemContrast]
    """One per system except the first."""
    references: TextStatistics
    remarks: list[PreprocessingRemark]
    """Signs that the references are tokenized or lower-cased."""
    language: str | None

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON data; of the translations only those of the sentences that differ most."""
        systems = [
            {
                "name": system.name,
                "measures": [score.as_dict() for score in measures],
                "statistics": system.statistics.as_dict(),
                "cut": system.cut,
                "remarks": [remark.as_dict() for remark in system.remarks],
            }
            for system, measures in zip(self.systems, self.measured.systems, strict=True)
        ]
        for row, contrast in zip(systems[1:], self.contrasts, strict=True):
            row["against_first"] = asdict(contrast)
        return {
            "lines": self.references.lines,
            "language": self.language,
            "test": self.measured.test,
            "trials": self.measured.trials,
            "resamples": self.measured.resamples,
            "seed": self.measured.seed,
            "systems": systems,
            "references": {
                "statistics": self.references.as_dict(),
                "remarks": [remark.as_dict() for remark in self.remarks],
            },
        }

    def __str__(self) -> str:
        names = [system.name for system in self.systems]
        parts = [format_scores(names, column) for column in zip(*self.measured.systems, strict=True)]
        parts += [self.measured.how, self._format_statistics()]
        sentences = (_format_sentences(names[0], *one) for one in zip(names[1:], self.contrasts, strict=True))
        return "\n\n".join([*parts, *filter(None, sentences)])

    def _format_statistics(self) -> str:
        head = ["", "words", "of references'", "repetition", "loops", "empty", "copies", "cut", "equal to first"]
        rows = [[*head, "better", "worse"]]
        rows.append(["references", *_format_counts(self.references), *[""] * 4])
        for place, system in enumerate(self.systems):
            contrast = self.contrasts[place - 1] if place else None
            against = [f"{n:,}" for n in (contrast.equal, contrast.better, contrast.worse)] if contrast else [""] * 3
            rows.append([system.name, *_format_counts(system.statistics), f"{len(system.cut):,}", *against])
        return format_table(rows)


def format_scores(names: Sequence[str], measures: Sequence[MetricScore]) -> str:
    """One score of all systems, below its signature; of all but the first with the difference to it, and p."""
    first = measures[0]
    rows = []
    for name, one in zip(names, measures, strict=True):
        score, low, high = (f"{value:.{one.decimals}f}" for value in (one.score, one.low, one.high))
        row = [f"  {name}", score, f"[{low}, {high}]"]
        if one.p is None:
            rows.append([*row, "", "", ""])
            continue
        verdict = f"significant at {LEVEL}" if one.significant else f"not significant at {LEVEL}"
        rows.append([*row, f"{one.score - first.score:+.{one.decimals}f}", f"p = {one.p:.4f}", verdict])
    return f"{first.name}  {first.signature}\n{format_table(rows)}"


def _format_counts(text: TextStatistics) -> list[str]:
    lines = [f"{len(numbers):,}" for numbers in (text.loops, text.empty, text.copies)]
    return [f"{text.words:,}", f"{text.length_ratio:.3f}", f"{text.repetition:.2%}", *lines]


def _format_sentences(first: str, other: str, contrast: SystemContrast) -> str:
    """The sentences that differ most; empty if none are to be shown."""
    if not contrast.better + contrast.worse:
        return f"{first} and {other}: no sentence has another chrF"
    if not contrast.sentences:
        return ""
    parts = [f"{first} and {other}: the sentences whose chrF differs most"]
    for one in contrast.sentences:
        outputs = zip((first, other), one.outputs, strict=True)
        texts = [("source", one.source), ("reference", one.reference), *outputs]
        width = max(display_width(name) for name, _ in texts)
        rows = [f"line {one.line}: {one.scores[0]:.1f} and {one.scores[1]:.1f}"]
        rows += [
            f"  {name}{' ' * (width - display_width(name))}  {visible(text)}"
            for name, text in texts
            if text is not None
        ]
        parts.append("\n".join(rows))
    return "\n".join(parts)


SHOWN_SENTENCES = 5
"""Number of sentences shown per system."""


def compare(
    *systems: str | Path | Translator,
    target: str | Path,
    source: str | Path | None = None,
    language: str | None = None,
    tokenize: Tokenizer | None = None,
    test: SignificanceTest = "randomization",
    resamples: int | None = None,
    trials: int | None = None,
    show: int = SHOWN_SENTENCES,
    batch_tokens: int = 4096,
    load: Callable[[Path], Translator] = Translator.load,
    progress: Callable[[int], None] | None = None,
    comet: str | None = None,
) -> Comparison:
    """Compare translations of one test set.

    Args:
        systems: two or more run or model folders, loaded translators, or files with one translation per line.
        target: the reference translations, plain or compressed.
        source: the test set; required if a system has to translate it.
        language: language of the translations; by default that of the models, else from the file name of ``target``.
        tokenize: BLEU's tokenization; by default chosen by language.
        test: "randomization" (paired approximate randomization) or "bootstrap" (paired bootstrap).
        resamples: number of bootstrap resamples; by default 1,000.
        trials: number of randomization trials; by default 10,000.
        show: number of the most different sentences to keep.
        batch_tokens: see `Translator.translate`.
        load: loads a translator from a folder.
        progress: called with the number of newly translated sentences.
        comet: a COMET model, whose scores are added; it needs ``source``.

    Raises:
        DataError: a file cannot be read, is not UTF-8, or its number of lines differs from that of ``target``.
        FormatError: a folder contains no model.
        ConfigurationError: fewer than two systems, a model without ``source``, or a number out of range.
        SurroundingsError: COMET is asked for, and not installed.
    """
    _check_arguments(systems, source, target, show)
    if comet is not None and source is None:
        raise ConfigurationError("comet needs the source of the translations: give source")
    references = list(read_lines(target))
    check_score_settings(tokenize, resamples=resamples, trials=trials, lines=len(references))
    sources = None if source is None else list(read_lines(source))
    if not any(reference.strip() for reference in references):
        raise DataError("every line is empty: there is nothing to compare with", target)
    outputs, cuts = [], []
    with with_comet(comet) as further:
        for system in systems:
            translator = load_system(system, load)
            if translator is None:
                found = [Translation(line, 0.0, True) for line in read_lines(str(system))]
            else:
                assert sources is not None
                texts = in_context(translator.bundle.source_tokenizer, sources)
                found = translator.translations(texts, batch_tokens=batch_tokens, progress=progress)
                language = language or translator.bundle.target_language
            outputs.append([one.text for one in found])
            cuts.append([number for number, one in enumerate(found, start=1) if not one.finished])
        language = language or language_of(target)
        settings: dict[str, Any] = {"tokenize": tokenize, "test": test, "resamples": resamples, "trials": trials}
        measured = score_systems(outputs, references, language, **settings, others=further(sources or []))
    return Comparison(
        [
            System(
                f"system {number}" if isinstance(system, Translator) else str(system),
                lines,
                cut,
                text_statistics(lines, references, sources),
                find_preprocessing(lines, language),
            )
            for number, (system, lines, cut) in enumerate(zip(systems, outputs, cuts, strict=True), start=1)
        ],
        measured,
        _compare_with_first(outputs, references, sources, show),
        text_statistics(references, references, sources),
        find_preprocessing(references, language),
        language,
    )


def count_models(systems: Sequence[str | Path | Translator]) -> int:
    """The number of systems that have to translate the test set; the others are files."""
    return sum(map(is_model, systems))


def is_model(system: str | Path | Translator) -> bool:
    """Whether a system is a model, not a file of translations."""
    return isinstance(system, Translator) or Path(system).is_dir()


def load_system(system: str | Path | Translator, load: Callable[[Path], Translator]) -> Translator | None:
    """The translator of a system; None for a file."""
    if isinstance(system, Translator):
        return system
    return load(Path(system)) if is_model(system) else None


def _check_arguments(
    systems: Sequence[str | Path | Translator], source: str | Path | None, target: str | Path, show: int
) -> None:
    """Check arguments and files before any model is loaded."""
    if len(systems) < 2:
        raise ConfigurationError(f"expected two or more systems to compare, got {len(systems)}")
    if show < 0:
        raise ConfigurationError(f"show: expected 0 sentences or more, got {show}")
    if source is None and count_models(systems):
        raise ConfigurationError("source: required, because a system is a model that has to translate it")
    files = [str(system) for system in systems if not is_model(system)]
    for path in (*files, *([] if source is None else [source])):
        refuse_undecodable(check_parallel(path, target).source)


def _compare_with_first(
    outputs: Sequence[list[str]], references: list[str], sources: list[str] | None, show: int
) -> list[SystemContrast]:
    """Compare every other system with the first."""
    scores = [sentence_chrf(lines, references) for lines in outputs]
    contrasts = []
    for lines, own in zip(outputs[1:], scores[1:], strict=True):
        gains = [mine - first for mine, first in zip(own, scores[0], strict=True)]
        places = [place for place, gain in enumerate(gains) if gain]
        places.sort(key=lambda place: (-abs(gains[place]), place))
        contrasts.append(
            SystemContrast(
                sum(one == other for one, other in zip(lines, outputs[0], strict=True)),
                sum(gain > 0 for gain in gains),
                sum(gain < 0 for gain in gains),
                [
                    SentencePair(
                        place + 1,
                        None if sources is None else sources[place],
                        references[place],
                        (outputs[0][place], lines[place]),
                        (scores[0][place], own[place]),
                    )
                    for place in places[:show]
                ],
            )
        )
    return contrasts
