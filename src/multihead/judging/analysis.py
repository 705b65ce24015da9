"""What a model thought while it wrote given translations: where each word looked, how sure it was, what else it had.

One forced pass over pairs in batches gives, word by word and token by token: the attention of `judging.align` with
its links, probabilities, and the most probable alternatives. Pages and servers show it (`judging.explain`,
`serving`); words come from `judging.align`, words in the place of others from `judging.alternatives`.

The probability of a word w at its place is that of its tokens, and that white space or the end follows:

    p(w | x, what stands before) = prod_{t in w} p(y_t | y_<t, x) * sum_{v begins a word, or ends} p(v | y_<=w, x)

Where no white space separates words, that sum is left out: a unit is then a token, not a word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    starts_with_space,
    word_attention,
)
from multihead.judging.alternatives import AlternativeFinder, ForcedPass, TopTokens
from multihead.judging.score import PairBatch, check_pairs, pair_batches, teacher_forced
from multihead.models.network import AttentionWeights
from multihead.text.tokenizer import Tokenizer
from multihead.translating.translator import Translator


@dataclass(frozen=True)
class Alternative:
    """What could have stood in a place."""

    text: str
    probability: float


@dataclass(frozen=True)
class Word:
    """A word of a translation."""

    text: str
    probability: float
    """Given everything before it."""
    alternatives: list[Alternative]
    """Other words in its place, most probable first; each found by one other token and then the most probable ones."""


@dataclass(frozen=True)
class Piece:
    """A token of a translation."""

    text: str
    """To be read by people; the end symbol is one, too."""
    probability: float
    rank: int
    """1: no token was more probable."""
    word: int | None
    """The word that it belongs to, or begins; none of the end symbol, and of white space that ends a translation."""
    candidates: list[Alternative]
    """The most probable tokens in this place, this one among them if it is one."""


@dataclass(frozen=True)
class PairAnalysis:
    """A pair, and what the model thought."""

    source_words: list[str]
    words: list[Word]
    weights: list[list[float]] | None
    """Of each word of the translation to each of the source; what is missing from 1 went to the end symbol. None where
    the model has no attention to the source."""
    links: list[Link]
    """Source word and word of the translation, counted from 0; none where the model has no attention to the source."""
    pieces: list[Piece]


def analyze_pairs(
    translator: Translator,
    sources: Sequence[str],
    translations: Sequence[str],
    alternatives: int = 5,
    *,
    aligning: AlignmentSettings | None = None,
    batch_tokens: int = 1024,
    progress: Callable[[int], None] | None = None,
) -> list[PairAnalysis]:
    """What the model thinks of each pair; as many come back, in order.

    Args:
        translator: any.
        sources: a sentence each.
        translations: theirs, the model's own or others; cut into tokens as the tokenizer does it.
        alternatives: how many of each word and of each token; 0 saves the time that other words take.
        aligning: how links are read from the weights.
        batch_tokens: padded tokens of the longer side in a batch: memory against speed.
        progress: is told how many more pairs are done, whenever some are.

    Raises:
        InputError: not one translation a source; a lone surrogate.
        ConfigurationError: a layer that there is not, a budget below 1, fewer than no alternatives.
    """
    check_pairs(sources, translations)
    tokenizers = translator.bundle.source_tokenizer, translator.bundle.target_tokenizer
    read, written = (t.encode_batch(side) for t, side in zip(tokenizers, (sources, translations), strict=True))
    return analyze_tokens(
        translator, read, written, alternatives, aligning=aligning, batch_tokens=batch_tokens, progress=progress
    )


def analyze_tokens(
    translator: Translator,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    alternatives: int = 5,
    *,
    aligning: AlignmentSettings | None = None,
    batch_tokens: int = 1024,
    progress: Callable[[int], None] | None = None,
) -> list[PairAnalysis]:
    """As `analyze_pairs`, of ids without begin and end: as a search found them, however it spelt the text."""
    if alternatives < 0:
        raise ConfigurationError(f"alternatives: expected how many, 0 for none, got {alternatives}")
    bundle = translator.bundle
    entries = bundle.source_tokenizer.entries, bundle.target_tokenizer.entries
    breaks = torch.tensor(list(starts_with_space(entries[1])))
    breaks[Tokenizer.eos_id] = True
    others = AlternativeFinder(bundle.model, bundle.target_tokenizer, breaks, alternatives)
    results: dict[int, PairAnalysis] = {}
    for batch in pair_batches(bundle.model, sources, targets, batch_tokens):
        read, written = (
            [split_units(own, side[place]) for place in batch.places]
            for own, side in zip(entries, (sources, targets), strict=True)
        )
        logits, recorded = teacher_forced(bundle.model, batch)
        forced = _forced(logits, batch, breaks, bundle.target_tokenizer.forbidden_in_output, alternatives)
        found = others.find(batch, written, forced)
        between = _between(recorded, read, written, aligning or AlignmentSettings())
        for row, place in enumerate(batch.places):
            links = [] if between is None else extract_links(between[row], (aligning or AlignmentSettings()).mutual)
            results[place] = PairAnalysis(
                read[row].texts,
                _words(written[row], forced, row, found[row]),
                None if between is None else between[row].tolist(),
                links,
                _pieces(bundle.target_tokenizer, written[row], forced, row, targets[place], alternatives),
            )
        if progress is not None:
            progress(len(batch.places))
    return [results[place] for place in range(len(sources))]


def _forced(
    logits: Float[Tensor, "batch target vocab"], batch: PairBatch, breaks: Tensor, forbidden: Sequence[int], count: int
) -> ForcedPass:
    """What the logits say of the tokens that stand there, and of others."""
    logits = logits.float()
    total = logits.logsumexp(2)
    wanted, _ = collate_source(batch.targets, Tokenizer.pad_id, Tokenizer.eos_id)
    own = logits.gather(2, wanted.to(logits.device)[:, :, None])
    never = torch.tensor(forbidden, device=logits.device)
    begins = breaks.to(logits.device)
    return ForcedPass(
        own=(own[:, :, 0] - total).cpu(),
        breaking=(logits[:, :, begins].logsumexp(2) - total).cpu(),
        ranks=((logits > own).sum(2) + 1).cpu(),
        likely=_likely(logits.index_fill(2, never, -torch.inf), total, count),
        beginning=_likely(logits.masked_fill(~begins, -torch.inf).index_fill(2, never, -torch.inf), total, count),
        continuing=_likely(logits.masked_fill(begins, -torch.inf).index_fill(2, never, -torch.inf), total, count),
    )


def _likely(logits: Float[Tensor, "batch target vocab"], total: Float[Tensor, "batch target"], count: int) -> TopTokens:
    # Two more than asked for: the token that stands there is among them, as a rule, and the end may be.
    values, tokens = logits.topk(min(count + 2, logits.shape[2]), dim=2)
    return TopTokens((values - total[:, :, None]).cpu(), tokens.cpu())


def _between(
    recorded: AttentionWeights, read: Sequence[WordUnits], written: Sequence[WordUnits], aligning: AlignmentSettings
) -> list[Tensor] | None:
    """From words to words, for each pair; None where there is no attention to the source."""
    if not recorded.cross:
        return None
    return [
        word_attention(row[: len(target.matrix), : len(source.matrix)], source.matrix, target.matrix)
        for row, source, target in zip(layer_attention(recorded, aligning).float(), read, written, strict=True)
    ]


def _words(units: WordUnits, forced: ForcedPass, row: int, others: Sequence[dict[str, float]]) -> list[Word]:
    words: list[Word] = []
    for number, text in enumerate(units.texts):
        span = units.span(number)
        total = float(forced.own[row, span.start : span.stop].double().sum())
        total += float(forced.breaking[row, span.stop]) if units.spaced[number] else 0.0
        alternatives = [Alternative(other, math.exp(value)) for other, value in others[number].items()]
        words.append(Word(text, math.exp(total), alternatives))
    return words


def _pieces(
    tokenizer: Tokenizer, units: WordUnits, forced: ForcedPass, row: int, ids: Sequence[int], count: int
) -> list[Piece]:
    owners = {token: number for number in range(len(units.texts)) for token in units.span(number)}  # the last counts
    likely = forced.likely
    pieces: list[Piece] = []
    for place, text in enumerate(tokenizer.pieces([*ids, Tokenizer.eos_id])):
        names = tokenizer.pieces(likely.tokens[row, place, :count].tolist())
        candidates = [
            Alternative(name, math.exp(value))
            for name, value in zip(names, likely.values[row, place, :count].tolist(), strict=True)
            if value > -math.inf
        ]
        probability = math.exp(float(forced.own[row, place]))
        pieces.append(Piece(text, probability, int(forced.ranks[row, place]), owners.get(place), candidates))
    return pieces
