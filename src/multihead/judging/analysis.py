"""Analyze given translations: attention, probabilities, alternatives.

A teacher-forced pass over batches of pairs gives, for each word and token, the attention of `judging.align` with its
links, probabilities, and the most probable alternatives (`judging.alternatives`). `judging.explain` and `serving` show
the result.

The probability of a word w is that of its tokens, and that white space or the end follows them:

    p(w | x, prefix) = prod_{t in w} p(y_t | y_<t, x) * sum_{v begins a word, or ends} p(v | y_<=w, x)

In scripts without spaces a unit is a token, not a word, and the sum is omitted. So it is where the last token of a word
has the white space after it, as in lists of pieces (`text.word_pieces`): that token says that the word ends, and the
probabilities of the words and of the end symbol multiply to p(y | x).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.data.batching import collate_source
from multihead.errors import ConfigurationError
from multihead.judging.align import (
    AlignmentSettings,
    Link,
    WordUnits,
    extract_links,
    layer_attention,
    split_units,
    word_attention,
)
from multihead.judging.alternatives import AlternativeFinder, ForcedPass, TopTokens
from multihead.judging.score import check_pairs, teacher_forced
from multihead.models.network import AttentionWeights
from multihead.text.backwards import require_forwards
from multihead.text.tokenizer import Tokenizer
from multihead.text.vocabulary import starts_with_space
from multihead.translating.forced import PairBatch, pair_batches
from multihead.translating.translator import Translator


@dataclass(frozen=True)
class Alternative:
    """A word or token that could have been chosen instead."""

    text: str
    probability: float


@dataclass(frozen=True)
class Word:
    """A word of a translation."""

    text: str
    probability: float
    """Probability given everything before it."""
    alternatives: list[Alternative]
    """Other words for its place, most probable first."""


@dataclass(frozen=True)
class Piece:
    """A token of a translation, or its end symbol."""

    text: str
    """Readable form of the token."""
    probability: float
    rank: int
    """Rank of the token by probability; 1 is the most probable."""
    word: int | None
    """Index of the word that it belongs to or begins; None for the end symbol and for trailing white space."""
    candidates: list[Alternative]
    """The most probable tokens at this position, usually including this one."""


@dataclass(frozen=True)
class PairAnalysis:
    """The words and tokens of a pair, as the model sees them."""

    source_words: list[str]
    words: list[Word]
    weights: list[list[float]] | None
    """Attention of each target word to each source word; what is missing from 1 went to the end symbol. None if the
    model has no attention to the source."""
    links: list[Link]
    """Source word and target word, counted from 0; empty if the model has no attention to the source."""
    pieces: list[Piece]


def analyze_pairs(
    translator: Translator,
    sources: Sequence[str],
    translations: Sequence[str],
    alternatives: int = 5,
    *,
    alignment: AlignmentSettings | None = None,
    batch_tokens: int = 1024,
    progress: Callable[[int], None] | None = None,
) -> list[PairAnalysis]:
    """Analyze each pair, in order.

    Args:
        translator: any translator.
        sources: one sentence per item.
        translations: their translations, by this model or anyone; they are tokenized here.
        alternatives: number of alternatives per word and per token; 0 saves the time for alternative words.
        alignment: how links are extracted from attention.
        batch_tokens: maximum number of padded tokens of the longer side per batch.
        progress: called with the number of newly analyzed pairs.

    Raises:
        InputError: the numbers of sources and translations differ, or a text contains a lone surrogate.
        ConfigurationError: the layer does not exist, ``batch_tokens`` is below 1, or ``alternatives`` is negative.
    """
    check_pairs(sources, translations)
    tokenizers = translator.bundle.source_tokenizer, translator.bundle.target_tokenizer
    read, written = tokenizers[0].encode_batch(sources), tokenizers[1].answers(translations, sources)
    found = analyze_tokens(
        translator, read, written, alternatives, alignment=alignment, batch_tokens=batch_tokens, progress=progress
    )
    return [with_copies(one, tokenizers[1], text) for one, text in zip(found, sources, strict=True)]


def with_copies(analysis: PairAnalysis, tokenizer: Tokenizer, source: str) -> PairAnalysis:
    """The analysis with the texts of placeholders in its words; pieces keep their symbols."""
    if not tokenizer.copied:
        return analysis

    def filled(text: str) -> str:
        return tokenizer.filled(text, source, whole=False)

    return replace(
        analysis,
        source_words=[filled(word) for word in analysis.source_words],
        words=[
            replace(
                word,
                text=filled(word.text),
                alternatives=[replace(other, text=filled(other.text)) for other in word.alternatives],
            )
            for word in analysis.words
        ],
    )


def without_context(analysis: PairAnalysis, ids: Sequence[int], tokenizer: Tokenizer) -> PairAnalysis:
    """The analysis without the words of the context; what these received of the attention is missing from 1.

    Args:
        analysis: of a source with these ids.
        ids: without end symbol.
        tokenizer: of sources.
    """
    from multihead.text.context import BREAK

    pieces = [tokenizer.vocabulary[i] for i in ids]
    if BREAK not in pieces:
        return analysis
    end = len(pieces) - pieces[::-1].index(BREAK)
    words = len(split_units(tokenizer.entries, ids[:end]).texts)
    weights = None if analysis.weights is None else [row[words:] for row in analysis.weights]
    links = [(source - words, target) for source, target in analysis.links if source >= words]
    return replace(analysis, source_words=analysis.source_words[words:], weights=weights, links=links)


def analyze_tokens(
    translator: Translator,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    alternatives: int = 5,
    *,
    alignment: AlignmentSettings | None = None,
    batch_tokens: int = 1024,
    progress: Callable[[int], None] | None = None,
) -> list[PairAnalysis]:
    """As `analyze_pairs`, for ids without begin and end symbols: a search may use other tokens than the tokenizer."""
    if alternatives < 0:
        raise ConfigurationError(f"alternatives: expected a number of at least 0, got {alternatives}")
    require_forwards(translator.bundle.target_tokenizer, "analyses of words")
    alignment = (alignment or AlignmentSettings()).of(translator.bundle.model.config)
    bundle = translator.bundle
    entries = bundle.source_tokenizer.entries, bundle.target_tokenizer.entries
    breaks = torch.tensor(list(starts_with_space(entries[1])))
    breaks[bundle.target_tokenizer.eos_id] = True
    finder = AlternativeFinder(bundle.model, bundle.target_tokenizer, breaks, alternatives)
    results: dict[int, PairAnalysis] = {}
    for batch in pair_batches(bundle.model, bundle.target_tokenizer, sources, targets, batch_tokens):
        read, written = (
            [split_units(own, side[place]) for place in batch.places]
            for own, side in zip(entries, (sources, targets), strict=True)
        )
        logits, recorded = teacher_forced(bundle.model, batch)
        forced = _forced_pass(logits, batch, breaks, bundle.target_tokenizer.forbidden_in_output, alternatives)
        others = finder.find(batch, written, forced)
        between = _word_attention(recorded, read, written, alignment)
        for row, place in enumerate(batch.places):
            results[place] = PairAnalysis(
                read[row].texts,
                _words(written[row], forced, row, others[row]),
                None if between is None else between[row].tolist(),
                [] if between is None else extract_links(between[row], alignment.mutual),
                _pieces(bundle.target_tokenizer, written[row], forced, row, targets[place], alternatives),
            )
        if progress is not None:
            progress(len(batch.places))
    return [results[place] for place in range(len(sources))]


def _forced_pass(
    logits: Float[Tensor, "batch target vocab"], batch: PairBatch, breaks: Tensor, forbidden: Sequence[int], count: int
) -> ForcedPass:
    """Statistics of the target tokens and of the most probable others."""
    logits = logits.float()
    total = logits.logsumexp(2)
    targets, _ = collate_source(batch.targets, batch.tokenizer.pad_id, batch.tokenizer.eos_id)
    own = logits.gather(2, targets.to(logits.device)[:, :, None])
    begins = breaks.to(logits.device)
    allowed = logits.index_fill(2, torch.tensor(forbidden, device=logits.device), -torch.inf)
    return ForcedPass(
        own=(own[:, :, 0] - total).cpu(),
        breaking=(logits[:, :, begins].logsumexp(2) - total).cpu(),
        ranks=((logits > own).sum(2) + 1).cpu(),
        likely=_top_tokens(allowed, total, count),
        beginning=_top_tokens(allowed.masked_fill(~begins, -torch.inf), total, count),
        continuing=_top_tokens(allowed.masked_fill(begins, -torch.inf), total, count),
    )


def _top_tokens(
    logits: Float[Tensor, "batch target vocab"], total: Float[Tensor, "batch target"], count: int
) -> TopTokens:
    # Two more than requested, because the target token and the end symbol may be among them.
    values, tokens = logits.topk(min(count + 2, logits.shape[2]), dim=2)
    return TopTokens((values - total[:, :, None]).cpu(), tokens.cpu())


def _word_attention(
    recorded: AttentionWeights, read: Sequence[WordUnits], written: Sequence[WordUnits], alignment: AlignmentSettings
) -> list[Tensor] | None:
    """Attention from words to words for each pair; None if the model has no attention to the source."""
    if not recorded.cross:
        return None
    return [
        word_attention(row[: len(target.matrix), : len(source.matrix)], source.matrix, target.matrix)
        for row, source, target in zip(layer_attention(recorded, alignment).float(), read, written, strict=True)
    ]


def _words(units: WordUnits, forced: ForcedPass, row: int, others: Sequence[dict[str, float]]) -> list[Word]:
    words: list[Word] = []
    for number, text in enumerate(units.texts):
        span = units.span(number)
        total = float(forced.own[row, span.start : span.stop].double().sum())
        total += float(forced.breaking[row, span.stop]) if units.spaced[number] and not units.ended[number] else 0.0
        alternatives = [Alternative(other, math.exp(value)) for other, value in others[number].items()]
        words.append(Word(text, math.exp(total), alternatives))
    return words


def _pieces(
    tokenizer: Tokenizer, units: WordUnits, forced: ForcedPass, row: int, ids: Sequence[int], count: int
) -> list[Piece]:
    words = {token: number for number in range(len(units.texts)) for token in units.span(number)}  # the last one wins
    likely = forced.likely
    pieces: list[Piece] = []
    for place, text in enumerate(tokenizer.pieces([*ids, tokenizer.eos_id])):
        names = tokenizer.pieces(likely.tokens[row, place, :count].tolist())
        candidates = [
            Alternative(name, math.exp(value))
            for name, value in zip(names, likely.values[row, place, :count].tolist(), strict=True)
            if value > -math.inf
        ]
        probability = math.exp(float(forced.own[row, place]))
        pieces.append(Piece(text, probability, int(forced.ranks[row, place]), words.get(place), candidates))
    return pieces
