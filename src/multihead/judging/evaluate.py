"""Evaluate a translator on a test set: BLEU, chrF and TER of raw text.

Scores come with signatures and confidence intervals. `judging.compare` compares systems.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multihead.data.corpus import check_parallel, language_of
from multihead.data.text_files import read_lines
from multihead.decoding.search import Search
from multihead.errors import ConfigurationError, DataError
from multihead.metrics.preprocessing import PreprocessingRemark, find_preprocessing
from multihead.metrics.scores import Scores, Tokenizer
from multihead.metrics.significance import SystemScores, check_score_settings, score_systems
from multihead.translating.request import TranslationRequest
from multihead.translating.searching import Translation
from multihead.translating.translator import Translator


@dataclass(frozen=True)
class Evaluation:
    """The scores of a translator on a test set, and its translations."""

    scores: Scores
    """BLEU and chrF only."""
    sentences: int
    seconds: float
    """Translation time in seconds."""
    hypotheses: list[str]
    cut: list[int]
    """Lines (from 1) whose translation reached the length limit."""
    measured: SystemScores
    """BLEU, chrF and TER with confidence intervals."""
    remarks: list[PreprocessingRemark]
    """Signs that the references are tokenized or lower-cased."""
    language: str | None
    """Language of the translations, which decides how BLEU and TER tokenize."""
    search: Search
    """Settings of the search."""

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON data, without the translations."""
        return {
            "sentences": self.sentences,
            "seconds": self.seconds,
            "language": self.language,
            "measures": [one.as_dict() for one in self.measured.systems[0]],
            "resamples": self.measured.resamples,
            "seed": self.measured.seed,
            "search": self.search.model_dump(mode="json"),
            "cut": self.cut,
            "remarks": [remark.as_dict() for remark in self.remarks],
        }

    def __str__(self) -> str:
        return "\n".join([*map(str, self.measured.systems[0]), self.measured.how])


def evaluate(
    model: str | Path | Translator,
    source: str | Path,
    target: str | Path,
    *,
    beam: int | None = None,
    alpha: float | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    language: str | None = None,
    tokenize: Tokenizer | None = None,
    resamples: int | None = None,
    batch_tokens: int = 4096,
    request: TranslationRequest | None = None,
    progress: Callable[[int], None] | None = None,
    run: Callable[[TranslationRequest, Callable[[int], None] | None], list[list[Translation]]] | None = None,
) -> Evaluation:
    """Translate ``source`` and score the result against ``target``, line by line.

    Args:
        model: a model or run folder, or a loaded translator; for other searches see `Translator.searching`.
        source: text file, plain or compressed.
        target: its reference translation.
        beam: number of hypotheses; by default the model's own setting.
        alpha: length penalty; by default the model's own.
        min_length: minimum number of tokens per translation; by default the model's own.
        max_length: maximum number of tokens, including the end symbol; by default the model's own.
        language: language of the translations; by default the model's own, else from the file name of ``target``.
        tokenize: BLEU's tokenization; by default chosen by language.
        resamples: number of bootstrap resamples; by default 1,000 (`metrics.significance.score_systems`).
        batch_tokens: see `Translator.translate`.
        request: how candidates are made and chosen, instead of the search and ``batch_tokens``; its texts are replaced.
        progress: called with the number of newly translated sentences.
        run: translates the request in place of ``model``: in other processes.

    Raises:
        DataError: a file cannot be read, or the numbers of lines differ.
        FormatError: the folder contains no model.
        ConfigurationError: invalid settings of the search or the scores.
    """
    check_score_settings(tokenize, resamples=resamples, lines=check_parallel(source, target).lines)
    sources, references = list(read_lines(source)), list(read_lines(target))
    if not any(text.strip() for text in sources):
        raise DataError("every line is empty: there is nothing to evaluate", source)
    translator = model if isinstance(model, Translator) else Translator.load(model)
    search: dict[str, Any] = {"beam": beam, "alpha": alpha, "min_length": min_length, "max_length": max_length}
    started = time.monotonic()
    if request is None:
        request = TranslationRequest(translator.search_settings(**search), batch_tokens=batch_tokens)
    if request.several:
        raise ConfigurationError("one translation of each line is scored: choose among several (mbr or weights)")
    found = [row[0] for row in (run or translator.run)(request.with_texts(sources, request.weights), progress)]
    seconds = time.monotonic() - started
    hypotheses = [translation.text for translation in found]
    language = language or translator.bundle.target_language or language_of(target)
    measured = score_systems([hypotheses], references, language, tokenize=tokenize, resamples=resamples)
    bleu, chrf, _ = measured.systems[0]
    return Evaluation(
        Scores(bleu.score, chrf.score, bleu.plain_signature, chrf.plain_signature),
        len(sources),
        seconds,
        hypotheses,
        [number for number, translation in enumerate(found, start=1) if not translation.finished],
        measured,
        find_preprocessing(references, language),
        language,
        request.search,
    )
