"""How good a translator is on a test set: sacreBLEU and chrF with their signatures, of raw text against raw text."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from multihead.data.corpus import check_parallel, read_lines
from multihead.errors import DataError
from multihead.metrics.scores import Scores, language_of, score
from multihead.workflows.translate import Translator


@dataclass(frozen=True)
class Evaluation:
    """A score and what it is of."""

    scores: Scores
    sentences: int
    seconds: float
    hypotheses: list[str]
    cut: list[int]
    """Lines (from 1) whose translation reached the length limit."""


def evaluate(
    model: str | Path | Translator,
    source: str | Path,
    target: str | Path,
    *,
    beam: int | None = None,
    alpha: float | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Translates ``source`` and compares with ``target``, line by line.

    Args:
        model: a model or run folder, or a loaded translator.
        source: text file, plain or compressed.
        target: its reference translation.
        beam: hypotheses; the model's own setting by default.
        alpha: length penalty; the model's own by default.
        min_length: the least tokens of a translation; the model's own by default.
        max_length: the most, the end symbol counted; the model's own by default.
        progress: is told how many more sentences are done.

    Raises:
        DataError: a file cannot be read, or the numbers of lines differ.
        FormatError: no model.
        ConfigurationError: settings of the search that cannot be.
    """
    check_parallel(source, target)
    sources, references = list(read_lines(source)), list(read_lines(target))
    if not any(text.strip() for text in sources):
        raise DataError("every line is empty: there is nothing to evaluate", source)
    translator = model if isinstance(model, Translator) else Translator.load(model)
    started = time.monotonic()
    found = translator.translations(
        sources, beam=beam, alpha=alpha, min_length=min_length, max_length=max_length, progress=progress
    )
    hypotheses = [translation.text for translation in found]
    language = translator.bundle.target_language or language_of(target)
    return Evaluation(
        score(hypotheses, references, language),
        len(sources),
        time.monotonic() - started,
        hypotheses,
        [number for number, translation in enumerate(found, start=1) if not translation.finished],
    )
