"""How good a translator is on a test set: BLEU, chrF and TER with signatures and intervals, raw text against raw text.

Whether one is better than another is asked of `judging.compare`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multihead.data.corpus import check_parallel
from multihead.data.text_files import read_lines
from multihead.errors import DataError
from multihead.metrics.preprocessing import PreprocessingRemark, find_preprocessing
from multihead.metrics.scores import Scores, Tokenizer, language_of
from multihead.metrics.significance import SystemScores, check_score_settings, score_systems
from multihead.models.config import GenerationConfig
from multihead.translating.translator import Translator


@dataclass(frozen=True)
class Evaluation:
    """A score and what it is of."""

    scores: Scores
    """BLEU and chrF alone."""
    sentences: int
    seconds: float
    """Of the translation."""
    hypotheses: list[str]
    cut: list[int]
    """Lines (from 1) whose translation reached the length limit."""
    measured: SystemScores
    """BLEU, chrF and TER with intervals."""
    remarks: list[PreprocessingRemark]
    """What the references look like, where that is not as people write."""
    language: str | None
    """Of the translations; decided how words are told apart."""
    search: GenerationConfig
    """How was searched."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON; without the translations."""
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
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Translates ``source`` and compares with ``target``, line by line.

    Args:
        model: a model or run folder, or a loaded translator; `Translator.searching` gives one any other search.
        source: text file, plain or compressed.
        target: its reference translation.
        beam: hypotheses; the model's own setting by default.
        alpha: length penalty; the model's own by default.
        min_length: the least tokens of a translation; the model's own by default.
        max_length: the most, the end symbol counted; the model's own by default.
        language: of the translations; the model's own by default, else what the name of ``target`` ends in.
        tokenize: how BLEU tells words apart; by default as the language needs it.
        resamples: of the bootstrap; by default 1,000 (`metrics.significance.score_systems`).
        batch_tokens: as in `Translator.translate`.
        progress: is told how many more sentences are done.

    Raises:
        DataError: a file cannot be read, or the numbers of lines differ.
        FormatError: no model.
        ConfigurationError: settings of the search or of the scores that cannot be.
    """
    check_score_settings(tokenize, resamples=resamples, lines=check_parallel(source, target).lines)
    sources, references = list(read_lines(source)), list(read_lines(target))
    if not any(text.strip() for text in sources):
        raise DataError("every line is empty: there is nothing to evaluate", source)
    translator = model if isinstance(model, Translator) else Translator.load(model)
    search: dict[str, Any] = {"beam": beam, "alpha": alpha, "min_length": min_length, "max_length": max_length}
    started = time.monotonic()
    found = translator.translations(sources, **search, batch_tokens=batch_tokens, progress=progress)
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
        translator.search_settings(**search),
    )
