"""From a request to sentences, and from what was found for them to its answer.

What a request may be is checked here, before anything is searched; each refusal says what was got and what is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from multihead.decoding.hypothesis import Hypothesis
from multihead.errors import MultiheadError
from multihead.judging.analysis import Inspected, inspect_tokens
from multihead.judging.guard import Guarded, again, judge
from multihead.judging.guard_signs import GuardSettings, Mode
from multihead.lines.long_lines import Line, in_parts, most_tokens, together
from multihead.serving.error_responses import Refusal
from multihead.serving.pieces import Piece, block_diagonal, joined, pieces_of
from multihead.serving.queue import Job, Kind
from multihead.serving.schema import Alternative, Answer, Asked, Candidate, Link, Verdict
from multihead.serving.settings import ServeSettings
from multihead.text import sentences as cutting
from multihead.text.tokenizer import Tokenizer
from multihead.translating.search_settings import SearchSettings
from multihead.translating.searching import check_n_best, check_room, demands
from multihead.translating.translation import Translation
from multihead.translating.translator import Translator

MOST_WEIGHTS = 4_000_000
"""Of all alignments of a request, about: each is a number in memory and in JSON."""


@dataclass(frozen=True)
class Prepared:
    """A request, found fit to be searched."""

    asked: Asked
    kind: Kind
    pieces: list[list[Piece]]
    """Of each text: its lines."""
    lines: list[Line]
    """Those that are not empty, in order, cut where they are too long."""
    rows: list[list[int]]
    """Tokens of each sentence: a line, or a part of one; the end symbol included."""
    prefix: list[int]

    @property
    def sentences(self) -> list[str]:
        """What is searched."""
        return [text for line in self.lines for text in line.texts]


def check_counts(asked: Asked, settings: ServeSettings) -> None:
    """Refuses what is too much, from what can be told without the model.

    Raises:
        Refusal: 422.
    """
    texts = asked.texts
    if len(texts) > settings.max_texts:
        raise Refusal(
            422, "too_many_texts", f"got {len(texts):,} texts; at most {settings.max_texts:,} are taken at once"
        )
    named = [(f"text {place}", text) for place, text in enumerate(texts, start=1)]
    for name, text in [*named, ("the prefix", asked.prefix or "")]:
        if len(text) > settings.max_characters:
            raise Refusal(
                422,
                "text_too_long",
                f"{name} has {len(text):,} characters; at most {settings.max_characters:,} are taken: cut it",
            )
    if asked.beam is not None and asked.beam > settings.max_beam:
        raise Refusal(422, "beam_too_wide", f"beam: got {asked.beam}; at most {settings.max_beam} is taken")


def prepare(asked: Asked, translator: Translator, settings: ServeSettings) -> Prepared:
    """What is to be searched.

    Raises:
        Refusal: 422.
    """
    try:
        search = translator.search_settings(asked.beam, asked.alpha)
        assert isinstance(search, SearchSettings)
        check_n_best(asked.n_best, search.beam)
        pieces = [pieces_of(text) for text in asked.texts]
        lines = _lines([piece.text for own in pieces for piece in own if not piece.empty], translator, asked)
        sentences = [text for line in lines for text in line.texts]
        if len(sentences) > settings.max_sentences:
            raise Refusal(
                422,
                "too_many_sentences",
                f"got {len(sentences):,} sentences; at most {settings.max_sentences:,} are taken at once",
            )
        rows = _rows(sentences, translator, settings.max_tokens)
        if asked.alignment:
            _check_alignment(pieces, lines, rows)
        prefix = _prefix(asked, translator, sentences, rows, search)
    except MultiheadError as error:
        raise Refusal(422, "invalid_request", str(error)) from None
    return Prepared(asked, Kind(search, asked.n_best), pieces, lines, rows, prefix)


def _lines(texts: Sequence[str], translator: Translator, asked: Asked) -> list[Line]:
    """Cut as `multihead translate` cuts them, where they are longer than the model is used to."""
    most, longest = most_tokens(translator)
    return in_parts(translator.bundle.source_tokenizer, texts, most, lambda _: bool(asked.prefix), longest)


def _rows(sentences: Sequence[str], translator: Translator, most: int) -> list[list[int]]:
    tokenizer = translator.bundle.source_tokenizer
    encoded = tokenizer.encode_batch(sentences)
    for place, ids in enumerate(encoded, start=1):
        if len(ids) > most:
            raise Refusal(
                422,
                "text_too_long",
                f"sentence {place} has {len(ids):,} subwords; at most {most:,} are taken: cut it",
            )
    return [[*ids, Tokenizer.eos_id] for ids in encoded]


def _check_alignment(pieces: Sequence[Sequence[Piece]], lines: Sequence[Line], rows: Sequence[list[int]]) -> None:
    """Each text has a matrix of all its words to all its words, so its size is that of the text squared."""
    lengths, cut, weights = map(len, rows), iter(lines), 0
    for own in pieces:
        weights += sum(next(lengths) for piece in own if not piece.empty for _ in next(cut).texts) ** 2
    if weights > MOST_WEIGHTS:
        raise Refusal(
            422,
            "invalid_request",
            f"alignment: the squares of the texts' subwords add up to {weights:,}; at most {MOST_WEIGHTS:,} are taken: "
            "send shorter texts, or fewer at once",
        )


def _prefix(
    asked: Asked, translator: Translator, work: Sequence[str], rows: Sequence[list[int]], search: SearchSettings
) -> list[int]:
    if not asked.prefix:
        return []
    wanted = demands(translator.bundle.target_tokenizer, work or [""], [asked.prefix], None)
    check_room(wanted, [search.limit(len(row)) for row in rows])
    return wanted.prefixes[0]


def so_far(prepared: Prepared, job: Job, translator: Translator) -> str:
    """What there is of the first text's translation."""
    decode = translator.bundle.target_tokenizer.decode
    tokens = [sentence.found[0].tokens if sentence.found else sentence.leading for sentence in job.sentences]
    parts, texts = map(decode, tokens), []
    for line in prepared.lines:
        own = [next(parts) for _ in line.texts]
        texts.append(cutting.joined(own, line.parts) if line.parts else own[0])
    return _laid_out(prepared.pieces[0], texts).rstrip()


@dataclass(frozen=True)
class Result:
    """What becomes of a sentence."""

    translations: list[Translation]
    """The n best; the first is the answer."""
    tokens: list[int]
    """Of the answer."""
    verdict: Guarded | None = None


def results_of(prepared: Prepared, job: Job, translator: Translator) -> list[Result]:
    """What was found for each sentence of a job that is done, as text."""
    return [
        Result([translator.translation_of(one, len(row)) for one in sentence.found], list(sentence.found[0].tokens))
        for sentence, row in zip(job.sentences, prepared.rows, strict=True)
    ]


def guarded(
    prepared: Prepared, results: Sequence[Result], translator: Translator, mode: Mode, part: slice
) -> list[Result]:
    """Some of the results, with a verdict each; ``retry`` searches again what looks wrong, and keeps what is better."""
    settings = GuardSettings(mode=mode)
    own = translator.searching(beam=prepared.kind.settings.beam, alpha=prepared.kind.settings.alpha)
    sentences, results = prepared.sentences[part], results[part]
    judged = judge(own, sentences, [result.translations[0] for result in results], settings)
    if mode == "retry":
        prefixes = [prepared.asked.prefix] if prepared.asked.prefix else None  # there is one sentence then
        judged = again(own, sentences, judged, settings, prefixes=prefixes)
    made = []
    for result, verdict in zip(results, judged, strict=True):
        if verdict.translation == result.translations[0]:
            made.append(replace(result, verdict=verdict))
            continue
        others = [one for one in result.translations if one.text != verdict.translation.text]
        ranked = [verdict.translation, *others][: max(len(result.translations), 1)]
        tokens = translator.bundle.target_tokenizer.encode(verdict.translation.text)
        made.append(Result(ranked, tokens, verdict))
    return made


def inspected(prepared: Prepared, results: Sequence[Result], translator: Translator, part: slice) -> list[Inspected]:
    """Attention and alternatives of some of the results, sentence by sentence; takes a pass of the model."""
    rows = [row[:-1] for row in prepared.rows[part]]
    return inspect_tokens(translator, rows, [result.tokens for result in results[part]], prepared.asked.alternatives)


def answers(prepared: Prepared, results: Sequence[Result], seen: Sequence[Inspected] | None) -> list[Answer]:
    """The translations of each text.

    Args:
        prepared: the request.
        results: of each sentence.
        seen: of each sentence, where the request asks for it.
    """
    made, lines, start = [], iter(prepared.lines), 0
    for source, pieces in zip(prepared.asked.texts, prepared.pieces, strict=True):
        own = [next(lines) for piece in pieces if not piece.empty]
        end = start + sum(len(line.texts) for line in own)
        part = None if seen is None else seen[start:end]
        made.append(_answer(prepared.asked, source, pieces, own, results[start:end], part))
        start = end
    return made


def _answer(
    asked: Asked,
    source: str,
    pieces: Sequence[Piece],
    lines: Sequence[Line],
    results: Sequence[Result],
    seen: Sequence[Inspected] | None,
) -> Answer:
    sentences = iter(results)
    found = [together(line, [next(sentences).translations for _ in line.texts]) for line in lines]
    count = max((len(own) for own in found), default=1)
    ranked = [[own[min(rank, len(own) - 1)] for own in found] for rank in range(count)]
    candidates = [_candidate(pieces, one) for one in ranked]
    warnings = [*(one.warning for one in ranked[0]), *(line.remark for line in lines)]
    return Answer(
        source=source,
        text=candidates[0].text,
        score=candidates[0].score,
        finished=all(one.finished for one in ranked[0]),
        warning=next((warning for warning in warnings if warning is not None), None),
        n_best=candidates,
        alignment=_link(seen) if seen is not None and asked.alignment else None,
        alternatives=_alternatives(seen) if seen is not None and asked.alternatives else None,
        guard=_verdict([result.verdict for result in results if result.verdict is not None]),
    )


def _verdict(verdicts: Sequence[Guarded]) -> Verdict | None:
    """Of a text: as suspicious as its most suspicious sentence."""
    if not verdicts:
        return None
    return Verdict(
        suspicious=any(one.marked for one in verdicts),
        score=max(one.score for one in verdicts),
        reasons=list(dict.fromkeys(reason for one in verdicts for reason in one.reasons)),
        retried=any(one.first is not None for one in verdicts),
    )


def _candidate(pieces: Sequence[Piece], found: Sequence[Translation]) -> Candidate:
    text = _laid_out(pieces, [one.text for one in found])
    return Candidate(text=text, score=sum(one.score for one in found) / max(len(found), 1))


def _laid_out(pieces: Sequence[Piece], translations: Sequence[str]) -> str:
    """Those of the pieces that are not empty, where they belong."""
    texts = iter(translations)
    return joined(pieces, ["" if piece.empty else next(texts) for piece in pieces])


def _link(seen: Sequence[Inspected]) -> Link | None:
    """Sentences of a text one after the other; None where the model has no attention to the source."""
    blocks = [one.weights for one in seen]
    if any(block is None for block in blocks):
        return None
    links, sources, targets = [], 0, 0
    for one in seen:
        links += [(sources + source, targets + target) for source, target in one.links]
        sources, targets = sources + len(one.source_words), targets + len(one.words)
    return Link(
        source_words=[word for one in seen for word in one.source_words],
        target_words=[word.text for one in seen for word in one.words],
        weights=block_diagonal(
            [[[round(weight, 4) for weight in row] for row in block or []] for block in blocks],
            [len(one.source_words) for one in seen],
        ),
        links=links,
    )


def _alternatives(seen: Sequence[Inspected]) -> list[list[Alternative]]:
    return [
        [Alternative(text=other.text, probability=other.probability) for other in word.alternatives]
        for one in seen
        for word in one.words
    ]


def tokens_of(found: Sequence[Hypothesis]) -> int:
    """Of a translation, the end symbol counted."""
    return len(found[0].tokens) + found[0].finished
