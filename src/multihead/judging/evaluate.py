"""Evaluate a translator on a test set: BLEU, chrF and TER of raw text.

Scores come with signatures and confidence intervals, and beside a second system with a paired significance test.
`judging.compare` compares more systems, in more detail.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from multihead.data.corpus import check_parallel, language_of
from multihead.data.text_files import read_lines, refuse_undecodable
from multihead.decoding.search import Search
from multihead.errors import ConfigurationError, DataError
from multihead.judging.compare import format_scores, is_model, load_system
from multihead.judging.term_use import TermUse, term_use
from multihead.metrics.comet import with_comet
from multihead.metrics.preprocessing import PreprocessingRemark, find_preprocessing
from multihead.metrics.scores import Scores, Tokenizer
from multihead.metrics.significance import MetricScore, SystemScores, check_score_settings, score_systems
from multihead.text.context import in_context
from multihead.text.terms import for_sources
from multihead.translating.request import TranslationRequest
from multihead.translating.searching import Translation
from multihead.translating.translator import Translator


@dataclass(frozen=True)
class SecondSystem:
    """The system that an evaluated one is compared with."""

    name: str
    hypotheses: list[str]
    measures: tuple[MetricScore, ...]
    """BLEU, chrF and TER with confidence intervals."""

    def as_dict(self, measured: SystemScores) -> dict[str, Any]:
        """The system as JSON data, with the test that ``measured`` has the results of."""
        measures = [one.as_dict() for one in self.measures]
        return {"name": self.name, "measures": measures, "test": measured.test, "trials": measured.trials}


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
    """BLEU, chrF and TER with confidence intervals, and COMET if asked for."""
    remarks: list[PreprocessingRemark]
    """Signs that the references are tokenized or lower-cased."""
    language: str | None
    """Language of the translations, which decides how BLEU and TER tokenize."""
    search: Search
    """Settings of the search."""
    against: SecondSystem | None = None
    """The second system; with one, ``measured`` has p, the probability of so large a difference by chance."""
    name: str = "the model"
    """The model's folder, if it was given as one."""
    terms: tuple[TermUse, ...] = ()
    """With terms: how many came out, and with a second system, how many in its translations."""

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
            **({} if self.against is None else {"against": self.against.as_dict(self.measured)}),
            **({} if not self.terms else {"terms": [use.as_dict() for use in self.terms]}),
        }

    def __str__(self) -> str:
        if self.against is None:
            return "\n".join([*map(str, self.measured.systems[0]), *map(str, self.terms), self.measured.how])
        names = [self.against.name, self.name]
        columns = zip(self.against.measures, self.measured.systems[0], strict=True)
        shown = [f"{name}: {use}" for name, use in zip(names, reversed(self.terms), strict=False)]
        return "\n".join([*(format_scores(names, column) for column in columns), *shown, self.measured.how])


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
    comet: str | None = None,
    request: TranslationRequest | None = None,
    progress: Callable[[int], None] | None = None,
    run: Callable[[TranslationRequest, Callable[[int], None] | None], list[list[Translation]]] | None = None,
    against: str | Path | Translator | None = None,
    load: Callable[[Path], Translator] = Translator.load,
    translated: Callable[[list[str]], None] = lambda _: None,
) -> Evaluation:
    """Translate ``source`` and score the result against ``target``, line by line.

    With a second system, paired approximate randomization (`metrics.significance`) tests whether the model is better.

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
        comet: a COMET model, whose score is added (`metrics.comet`): a checkpoint file, or a name that it downloads.
        request: how candidates are made and chosen, instead of the search and ``batch_tokens``; its texts are replaced.
            Of its terms it is counted how many come out.
        progress: called with the number of newly translated sentences.
        run: translates the request in place of ``model``: in other processes.
        against: the second system: a model or run folder, a translator, or a file with one translation per line. A
            model has the search of the arguments above, and of ``request`` nothing.
        load: loads its translator.
        translated: called with the translations before they are scored.

    Raises:
        DataError: a file cannot be read, is not UTF-8, or the numbers of lines differ.
        FormatError: the folder contains no model.
        ConfigurationError: invalid settings of the search or the scores.
        SurroundingsError: COMET is asked for, and not installed.
    """
    check_score_settings(tokenize, resamples=resamples, lines=check_parallel(source, target).lines)
    if against is not None and not is_model(against):
        refuse_undecodable(check_parallel(str(against), target).source)
    sources, references = list(read_lines(source)), list(read_lines(target))
    if not any(text.strip() for text in sources):
        raise DataError("every line is empty: there is nothing to evaluate", source)
    with with_comet(comet) as further:
        translator = model if isinstance(model, Translator) else Translator.load(model)
        search: dict[str, Any] = {"beam": beam, "alpha": alpha, "min_length": min_length, "max_length": max_length}
        started = time.monotonic()
        if request is None:
            request = TranslationRequest(translator.search_settings(**search), batch_tokens=batch_tokens)
        if request.several:
            raise ConfigurationError("one translation of each line is scored: choose among several (mbr or weights)")
        terms = request.terms and for_sources(request.terms, translator.bundle.source_tokenizer)
        texts = in_context(translator.bundle.source_tokenizer, sources)
        asked = replace(request.with_texts(texts, request.weights), scores=False)
        found = [row[0] for row in (run or translator.run)(asked, progress)]
        seconds = time.monotonic() - started
        hypotheses = [translation.text for translation in found]
        translated(hypotheses)
        language = language or translator.bundle.target_language or language_of(target)
        others = [] if against is None else [_translations(against, sources, search, batch_tokens, load, progress)]
        settings: dict[str, Any] = {"tokenize": tokenize, "resamples": resamples, "others": further(sources)}
        found_scores = score_systems([*others, hypotheses], references, language, **settings)
    own, second = found_scores.systems[-1], None
    if against is not None:
        second = SecondSystem(_name(against, "the other"), others[0], found_scores.systems[0])
    measured = replace(found_scores, systems=(own,))
    bleu, chrf, *_ = own
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
        second,
        _name(model, "the model"),
        () if terms is None else tuple(term_use(terms, sources, lines) for lines in (hypotheses, *others)),
    )


def _name(system: str | Path | Translator, otherwise: str) -> str:
    return otherwise if isinstance(system, Translator) else str(system)


def _translations(
    system: str | Path | Translator,
    sources: list[str],
    search: dict[str, Any],
    batch_tokens: int,
    load: Callable[[Path], Translator],
    progress: Callable[[int], None] | None,
) -> list[str]:
    """The translations of a second system."""
    translator = load_system(system, load)
    if translator is None:
        return list(read_lines(str(system)))
    texts = in_context(translator.bundle.source_tokenizer, sources)
    request = TranslationRequest(translator.search_settings(**search), texts, scores=False, batch_tokens=batch_tokens)
    return [row[0].text for row in translator.run(request, progress)]
