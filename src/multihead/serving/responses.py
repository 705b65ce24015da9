"""From search results to translated texts.

Sentences are joined to lines, and lines to texts. Some models choose among the hypotheses of the beam
(`choose_results`). On request, translations are judged (`judge_results`), and their attention and alternatives are
computed (`inspect_results`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pydantic import BaseModel
from pydantic_core import to_json

from multihead.decoding.hypothesis import Hypothesis
from multihead.judging.analysis import PairAnalysis, analyze_tokens, with_copies, without_context
from multihead.judging.guard import GuardedTranslation, assess, retry
from multihead.judging.guard_signs import GuardMode, GuardSettings
from multihead.serving.error_responses import ApiError
from multihead.serving.queue import Job, Sentence
from multihead.serving.requests import PreparedRequest, TextLine
from multihead.serving.schema import (
    Alternative,
    ApiRequest,
    Candidate,
    GuardVerdict,
    TranslatedText,
    WordAlignment,
)
from multihead.serving.settings import ServeSettings
from multihead.text.sentences import join_translations
from multihead.translating.choosing import rank
from multihead.translating.lengths import SplitLine, join_parts
from multihead.translating.request import TranslationRequest, Weights
from multihead.translating.searching import Constraints, Translation
from multihead.translating.translator import Translator

_INLINE_BYTES = 20_000
"""Size of texts that are written as JSON in the event loop's thread; more would delay other requests."""

_ALTERNATIVE = len('{"text":"","probability":0.0123456789012},')


def partial_text(prepared: PreparedRequest, job: Job, translator: Translator) -> str:
    """The translation of the first text as far as it is known."""
    tokenizer = translator.bundle.target_tokenizer
    best = [one.hypotheses[0].tokens if one.hypotheses else one.partial for one in job.sentences]
    sources = (text for line in prepared.lines for text in line.texts)
    sentences = iter(
        [
            tokenizer.filled(tokenizer.decode(tokens), text, whole=False)
            for tokens, text in zip(best, sources, strict=True)
        ]
    )
    texts: list[str] = []
    for line in prepared.lines:
        own = [next(sentences) for _ in line.texts]
        texts.append(join_translations(own, line.parts) if line.parts else own[0])
    return _join_non_empty(prepared.text_lines[0], texts).rstrip()


@dataclass(frozen=True)
class SentenceResult:
    """The translations of a sentence."""

    translations: list[Translation]
    """The n best; the first one is the answer."""
    tokens: list[int]
    """Tokens of the first translation."""
    verdict: GuardedTranslation | None = None


def search_placeholders(prepared: PreparedRequest, job: Job, translator: Translator, part: slice) -> list[Sentence]:
    """Search sentences of a slice again in which a placeholder is missing or written twice."""
    from multihead.translating.copying import with_placeholders

    asked = TranslationRequest(prepared.key.search, n_best=prepared.key.n_best)
    for place in range(*part.indices(len(job.sentences))):
        sentence, row, text = job.sentences[place], prepared.rows[place], prepared.sentences[place]
        own = Constraints([prepared.prefix] if prepared.prefix else [], prepared.phrases[place : place + 1])
        (sentence.hypotheses,) = with_placeholders(translator, [sentence.hypotheses], [row[:-1]], [text], asked, own)
    return job.sentences[part]


def collect_results(prepared: PreparedRequest, job: Job, translator: Translator) -> list[SentenceResult]:
    """Decode the hypotheses of every sentence of a finished job."""
    results = []
    for sentence, row, text in zip(job.sentences, prepared.rows, prepared.sentences, strict=True):
        translations = [translator.translation_of(one, len(row), text) for one in sentence.hypotheses]
        results.append(SentenceResult(translations, list(sentence.hypotheses[0].tokens)))
    return results


def choose_results(
    prepared: PreparedRequest,
    job: Job,
    results: Sequence[SentenceResult],
    translator: Translator,
    weights: Weights,
    part: slice,
) -> list[SentenceResult]:
    """Order the hypotheses of a slice of the results by the weighted sum of their features, and keep the n best."""
    search, results = prepared.key.search, results[part]
    asked = TranslationRequest(search, prepared.read[part], weights=weights if search.beam > 1 else None)
    ranked = rank(translator, asked, [result.translations for result in results], weights)
    chosen = []
    for result, order, sentence in zip(results, ranked, job.sentences[part], strict=True):
        place = next(place for place, one in enumerate(result.translations) if one is order[0])
        tokens = list(sentence.hypotheses[place].tokens)
        chosen.append(SentenceResult(order[: prepared.request.n_best], tokens))
    return chosen


def judge_results(
    prepared: PreparedRequest, results: Sequence[SentenceResult], translator: Translator, mode: GuardMode, part: slice
) -> list[SentenceResult]:
    """Judge a slice of the results; ``retry`` searches suspicious ones again and keeps the better translation."""
    settings = GuardSettings(mode=mode)
    own = translator.searching(beam=prepared.key.search.beam, alpha=prepared.key.search.alpha)
    sentences, results = prepared.read[part], results[part]
    judged = assess(own, sentences, [result.translations[0] for result in results], settings)
    if mode == "retry":
        # A request with a prefix has a single sentence.
        prefixes = [prepared.request.prefix] if prepared.request.prefix else None
        wanted = prepared.wanted[part] or None
        judged = retry(own, TranslationRequest(own.search_settings(), sentences, prefixes, wanted), judged, settings)
    made = []
    for result, verdict, text in zip(results, judged, sentences, strict=True):
        if verdict.translation == result.translations[0]:
            made.append(replace(result, verdict=verdict))
            continue
        others = [one for one in result.translations if one.text != verdict.translation.text]
        ranked = [verdict.translation, *others][: max(len(result.translations), 1)]
        (tokens,) = translator.bundle.target_tokenizer.answers([verdict.translation.text], [text])
        made.append(SentenceResult(ranked, tokens, verdict))
    return made


def inspect_results(
    prepared: PreparedRequest, results: Sequence[SentenceResult], translator: Translator, part: slice
) -> list[PairAnalysis]:
    """Attention and alternatives for a slice of the results; runs the model once per sentence."""
    rows = [row[:-1] for row in prepared.rows[part]]
    tokens = [result.tokens for result in results[part]]
    found = analyze_tokens(translator, rows, tokens, prepared.request.alternatives)
    if translator.bundle.source_tokenizer.context:
        found = [without_context(*one, translator.bundle.source_tokenizer) for one in zip(found, rows, strict=True)]
    tokenizer = translator.bundle.target_tokenizer
    return [with_copies(one, tokenizer, text) for one, text in zip(found, prepared.sentences[part], strict=True)]


def check_size(size: int, limit: int) -> None:
    """Check the size of an answer.

    Raises:
        ApiError: 422.
    """
    if size > limit:
        message = f"the answer would take more than {limit:,} bytes: send less, or request fewer details"
        raise ApiError(422, "answer_too_large", message)


async def dump_texts(content: BaseModel, texts: Sequence[TranslatedText], settings: ServeSettings) -> bytes:
    """The JSON of an answer with these texts, made in a thread if it is large.

    Raises:
        ApiError: 422, it is too large.
    """
    size = sum(len(one.text) * (1 + len(one.n_best)) + len(one.source) for one in texts)
    if size <= _INLINE_BYTES and not any(one.alignment or one.alternatives for one in texts):
        dumped = to_json(content)
    else:
        dumped = await asyncio.to_thread(to_json, content)
    check_size(len(dumped), settings.max_answer)
    return dumped


def text_bytes(request: ApiRequest, results: Sequence[SentenceResult]) -> int:
    """About the bytes of an answer without alignment and alternatives: texts, and their translations."""
    written = sum(len(one.text) for result in results for one in result.translations)
    return sum(map(len, request.texts)) + 2 * written  # the first translation is there twice


def costs(prepared: PreparedRequest, results: Sequence[SentenceResult]) -> list[float]:
    """The relative cost of inspecting each sentence: its tokens, and those of the alternatives."""
    per_token = 1 + prepared.request.alternatives
    return [float(len(row) + len(one.tokens) * per_token) for row, one in zip(prepared.rows, results, strict=True)]


class InspectionSizes:
    """About the bytes of the alignments and alternatives of an answer, as far as they are known.

    The alignment of a text is a matrix of all its target words by all its source words.
    """

    def __init__(self, prepared: PreparedRequest) -> None:
        lines = iter(prepared.lines)
        counts = [sum(len(next(lines).texts) for line in own if not line.empty) for own in prepared.text_lines]
        self._text_of = [text for text, count in enumerate(counts) for _ in range(count)]
        self._sources, self._targets = [0] * len(counts), [0] * len(counts)
        self._aligned, self._known, self._size = prepared.request.alignment, 0, 0

    def add(self, inspected: Sequence[PairAnalysis]) -> int:
        """The bytes of the sentences so far.

        Args:
            inspected: the sentences so far, in order.
        """
        for one in inspected[self._known :]:
            text = self._text_of[self._known]
            self._known += 1
            self._sources[text] += len(one.source_words)
            self._targets[text] += len(one.words)
            self._size += sum(_ALTERNATIVE + len(other.text) for word in one.words for other in word.alternatives)
            self._size += 3 * sum(map(len, one.weights or ()))  # other weights than zero have more digits
        if not self._aligned:
            return self._size
        zeros = sum(source * target for source, target in zip(self._sources, self._targets, strict=True))
        return self._size + len(b"0.0,") * zeros


def build_texts(
    prepared: PreparedRequest, results: Sequence[SentenceResult], inspected: Sequence[PairAnalysis] | None
) -> list[TranslatedText]:
    """The translation of each text.

    Args:
        prepared: the request.
        results: one for each sentence.
        inspected: one for each sentence, if the request asks for alignment or alternatives.
    """
    texts, lines, start = [], iter(prepared.lines), 0
    for source, text_lines in zip(prepared.request.texts, prepared.text_lines, strict=True):
        own = [next(lines) for line in text_lines if not line.empty]
        end = start + sum(len(line.texts) for line in own)
        part = None if inspected is None else inspected[start:end]
        texts.append(_build_text(prepared.request, source, text_lines, own, results[start:end], part))
        start = end
    return texts


def _build_text(
    request: ApiRequest,
    source: str,
    text_lines: Sequence[TextLine],
    lines: Sequence[SplitLine],
    results: Sequence[SentenceResult],
    inspected: Sequence[PairAnalysis] | None,
) -> TranslatedText:
    sentences = iter(results)
    n_best = [join_parts(line, [next(sentences).translations for _ in line.texts]) for line in lines]
    count = max((len(own) for own in n_best), default=1)
    # A line with fewer translations than others repeats its last one.
    ranked = [[own[min(rank, len(own) - 1)] for own in n_best] for rank in range(count)]
    candidates = [_build_candidate(text_lines, translations) for translations in ranked]
    warnings = [*(one.warning for one in ranked[0]), *(line.remark for line in lines)]
    return TranslatedText(
        source=source,
        text=candidates[0].text,
        score=candidates[0].score,
        finished=all(one.finished for one in ranked[0]),
        warning=next((warning for warning in warnings if warning is not None), None),
        n_best=candidates,
        alignment=_merge_alignments(inspected) if inspected is not None and request.alignment else None,
        alternatives=_list_alternatives(inspected) if inspected is not None and request.alternatives else None,
        guard=_merge_verdicts([result.verdict for result in results if result.verdict is not None]),
    )


def join_pivoted(pivoted: Sequence[TranslatedText], texts: Sequence[TranslatedText]) -> list[TranslatedText]:
    """The translations of texts through a pivot, with what concerns both steps.

    Args:
        pivoted: the translations of the texts into the pivot.
        texts: the translations of those.
    """
    joined = []
    for first, second in zip(pivoted, texts, strict=True):
        verdicts = [one.guard for one in (first, second) if one.guard is not None]
        update = {
            "source": first.source,
            "finished": first.finished and second.finished,
            "warning": first.warning or second.warning,
            "guard": _worst_verdict(verdicts) if verdicts else None,
        }
        joined.append(second.model_copy(update=update))
    return joined


def _worst_verdict(verdicts: Sequence[GuardVerdict]) -> GuardVerdict:
    return GuardVerdict(
        suspicious=any(one.suspicious for one in verdicts),
        score=max(one.score for one in verdicts),
        reasons=list(dict.fromkeys(reason for one in verdicts for reason in one.reasons)),
        retried=any(one.retried for one in verdicts),
    )


def _merge_verdicts(verdicts: Sequence[GuardedTranslation]) -> GuardVerdict | None:
    """A text is as suspicious as its most suspicious sentence."""
    if not verdicts:
        return None
    return _worst_verdict(
        [
            GuardVerdict(
                suspicious=one.marked, score=one.score, reasons=list(one.reasons), retried=one.first is not None
            )
            for one in verdicts
        ]
    )


def _build_candidate(text_lines: Sequence[TextLine], translations: Sequence[Translation]) -> Candidate:
    text = _join_non_empty(text_lines, [one.text for one in translations])
    return Candidate(text=text, score=sum(one.score for one in translations) / max(len(translations), 1))


def _join_non_empty(lines: Sequence[TextLine], translations: Sequence[str]) -> str:
    """Join the translations of the lines that are not empty; empty lines stay empty."""
    texts = iter(translations)
    return join_lines(lines, ["" if line.empty else next(texts) for line in lines])


def join_lines(lines: Sequence[TextLine], translations: Sequence[str]) -> str:
    """The translation of a text from those of its lines."""
    return "".join(text + line.ending for line, text in zip(lines, translations, strict=True))


def _merge_alignments(inspected: Sequence[PairAnalysis]) -> WordAlignment | None:
    """One alignment for the sentences of a text; None if the model has no attention to the source."""
    blocks = [one.weights for one in inspected]
    if any(block is None for block in blocks):
        return None
    links, sources, targets = [], 0, 0
    for one in inspected:
        links += [(sources + source, targets + target) for source, target in one.links]
        sources, targets = sources + len(one.source_words), targets + len(one.words)
    return WordAlignment(
        source_words=[word for one in inspected for word in one.source_words],
        target_words=[word.text for one in inspected for word in one.words],
        weights=block_diagonal(
            [[[round(weight, 4) for weight in row] for row in block or []] for block in blocks],
            [len(one.source_words) for one in inspected],
        ),
        links=links,
    )


def block_diagonal(blocks: Sequence[list[list[float]]], widths: Sequence[int]) -> list[list[float]]:
    """A block-diagonal matrix, zero elsewhere.

    Args:
        blocks: rows of each block.
        widths: number of columns of each block, which may have no rows.
    """
    total, rows = sum(widths), []
    starts = [sum(widths[:place]) for place in range(len(widths) + 1)]
    for block, (start, end) in zip(blocks, pairwise(starts), strict=True):
        rows += [[0.0] * start + row + [0.0] * (total - end) for row in block]
    return rows


def _list_alternatives(inspected: Sequence[PairAnalysis]) -> list[list[Alternative]]:
    return [
        [Alternative(text=other.text, probability=other.probability) for other in word.alternatives]
        for one in inspected
        for word in one.words
    ]


def count_tokens(hypotheses: Sequence[Hypothesis]) -> int:
    """Tokens of the best hypothesis, including the end symbol."""
    return len(hypotheses[0].tokens) + hypotheses[0].finished
