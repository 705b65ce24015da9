"""Which of two or more systems is better on a test set, whether that is more than chance, and where they differ.

A system is a run or model folder, which translates the test set first, or a file with its translations, whoever made
them. The first is what all others are compared with. Tests and intervals are `metrics.significance`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from multihead.data.corpus import check_parallel, read_lines
from multihead.errors import ConfigurationError, DataError
from multihead.metrics.scores import language_of, sentence_scores
from multihead.metrics.significance import Test, check_measuring, measure
from multihead.metrics.suspicion import suspicions
from multihead.metrics.tokenisation import Tokenizer
from multihead.workflows.comparison import Comparison, Contrast, SentencePair, System
from multihead.workflows.text_statistics import text_statistics
from multihead.workflows.translate import Translator
from multihead.workflows.translation import Translation

SHOWN = 5
"""Sentences that are shown of each system."""


def compare(
    *systems: str | Path | Translator,
    target: str | Path,
    source: str | Path | None = None,
    language: str | None = None,
    tokenize: Tokenizer | None = None,
    test: Test = "randomization",
    resamples: int | None = None,
    trials: int | None = None,
    show: int = SHOWN,
    batch_tokens: int = 4096,
    load: Callable[[Path], Translator] = Translator.load,
    progress: Callable[[int], None] | None = None,
) -> Comparison:
    """Compares translations of one test set.

    Args:
        systems: two or more: run or model folders, loaded translators, or files with a translation a line.
        target: the reference translations; plain or compressed.
        source: the test set; needed where a model is to translate it.
        language: of the translations; the models' own by default, else what the name of ``target`` ends in.
        tokenize: how BLEU tells words apart; by default as the language needs it.
        test: "randomization" (paired approximate randomization) or "bootstrap" (paired bootstrap).
        resamples: of the bootstrap: 1,000.
        trials: of the randomization: 10,000.
        show: how many of the sentences that differ most are kept.
        batch_tokens: as in `Translator.translate`.
        load: makes a translator of a folder.
        progress: is told how many more sentences are translated.

    Raises:
        DataError: a file cannot be read, or has another number of lines than ``target``.
        FormatError: a folder that is no model.
        ConfigurationError: fewer than two systems; a model without ``source``; numbers that cannot be.
    """
    _check(systems, source, target, show)
    references = list(read_lines(target))
    check_measuring(tokenize, resamples=resamples, trials=trials, lines=len(references))
    sources = None if source is None else list(read_lines(source))
    if not any(reference.strip() for reference in references):
        raise DataError("every line is empty: there is nothing to compare with", target)
    outputs, cuts = [], []
    for system in systems:
        translator = system if isinstance(system, Translator) else load(Path(system)) if _is_model(system) else None
        if translator is None:
            found = [Translation(line, 0.0, True) for line in read_lines(str(system))]
        else:
            assert sources is not None
            found = translator.translations(sources, batch_tokens=batch_tokens, progress=progress)
            language = language or translator.bundle.target_language
        outputs.append([one.text for one in found])
        cuts.append([number for number, one in enumerate(found, start=1) if not one.finished])
    language = language or language_of(target)
    return Comparison(
        [
            System(
                f"system {number}" if isinstance(system, Translator) else str(system),
                lines,
                cut,
                text_statistics(lines, references, sources),
                suspicions(lines, language),
            )
            for number, (system, lines, cut) in enumerate(zip(systems, outputs, cuts, strict=True), start=1)
        ],
        measure(outputs, references, language, tokenize=tokenize, test=test, resamples=resamples, trials=trials),
        _contrasts(outputs, references, sources, show),
        text_statistics(references, references, sources),
        suspicions(references, language),
        language,
    )


def models_among(systems: Sequence[str | Path | Translator]) -> int:
    """How many of them translate; the others are files."""
    return sum(map(_is_model, systems))


def _is_model(system: str | Path | Translator) -> bool:
    return isinstance(system, Translator) or Path(system).is_dir()


def _check(
    systems: Sequence[str | Path | Translator], source: str | Path | None, target: str | Path, show: int
) -> None:
    """Before a model is loaded."""
    if len(systems) < 2:
        raise ConfigurationError(f"expected two systems to compare or more, got {len(systems)}")
    if show < 0:
        raise ConfigurationError(f"show: expected 0 sentences or more, got {show}")
    if source is None and models_among(systems):
        raise ConfigurationError("source: needed, as there is a model among the systems, which is to translate it")
    files = [str(system) for system in systems if not _is_model(system)]
    for path in (*files, *([] if source is None else [source])):
        check_parallel(path, target)


def _contrasts(
    outputs: Sequence[list[str]], references: list[str], sources: list[str] | None, show: int
) -> list[Contrast]:
    """Each of the others beside the first."""
    scores = [sentence_scores(lines, references) for lines in outputs]
    contrasts = []
    for lines, own in zip(outputs[1:], scores[1:], strict=True):
        gains = [mine - first for mine, first in zip(own, scores[0], strict=True)]
        places = [place for place, gain in enumerate(gains) if gain]
        places.sort(key=lambda place: (-abs(gains[place]), place))
        contrasts.append(
            Contrast(
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
