"""Word alignment from attention, and the words that tokens form.

With a_tj the weight of source token j while target token t is generated, averaged over the heads of one layer, and
words separated by white space:

    A_wv = 1/|w| sum_{t in w} sum_{j in v} a_tj        w a target word, v a source word
    w is linked to argmax_v A_wv

Weights *to* the tokens of a word are summed and weights *from* them averaged (Clark et al. 2019, "What does BERT look
at?", section 4.1). The end symbol, on which attention rests when nothing is relevant, is not a word and takes no link.

The default layer is the last but one, which aligns best in a Transformer's decoder (Garg et al. 2019, "Jointly learning
to align and translate with Transformer models", section 4.1). ``shift`` uses the weights of the next step, when the
token is already the decoder's input (Chen et al. 2020, "Accurate word alignment induction from neural machine
translation", who find it better in the lower layers).

A model that was trained with word alignments (`kernels.guided`) has a head that learned them, which is used instead.

`split_units` groups tokens into the units shown to users: words, or in scripts without spaces (Chinese, Japanese)
single tokens, or as many as form whole characters. It works on tokens, not on a text, because a search
may spell a text with other tokens than the tokenizer.

White space belongs to the word that is in the same token: most vocabularies have it before a word, and mark where one
begins; lists of pieces (`text.word_pieces`) have it after a word, and mark where one ends.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.errors import ConfigurationError
from multihead.judging.score import check_pairs, teacher_forced
from multihead.models.config import NetworkConfig, TransformerConfig
from multihead.models.guidance import HEAD
from multihead.models.layers import Weights
from multihead.models.network import AttentionWeights
from multihead.text.spans import Span
from multihead.text.tokenizer import Tokenizer
from multihead.text.vocabulary import ends_word
from multihead.translating.forced import pair_batches
from multihead.translating.translator import Translator

Link = tuple[int, int]
"""A source word and a target word, both counted from 0."""


@dataclass(frozen=True)
class AlignmentSettings:
    """How links are extracted from attention weights."""

    layer: int | None = None
    """Decoder layer, counted from 1; None: that of the guided head, else the last but one, or the only one."""
    shift: bool = False
    """Use the weights of the next step."""
    mutual: bool = False
    """Keep only links that are also the best of their source word: fewer, but more reliable."""
    head: int | None = None
    """Head of that layer, counted from 1; None: the guided head if no layer is named, else the mean of all."""

    def of(self, config: NetworkConfig) -> AlignmentSettings:
        """These settings for a model; of one with guided alignment the guided head, unless a layer is named."""
        guided = config.alignment_layer if isinstance(config, TransformerConfig) else None
        if guided is None or self.layer is not None:
            return self
        return replace(self, layer=guided, head=self.head or HEAD + 1)


def pharaoh(links: Sequence[Link]) -> str:
    """Links in Pharaoh format: ``0-0 1-2``."""
    return " ".join(f"{source}-{target}" for source, target in links)


def align(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[str],
    settings: AlignmentSettings | None = None,
    *,
    batch_tokens: int = 4096,
    progress: Callable[[int], None] | None = None,
) -> list[list[Link]]:
    """Word alignments of given translations, in order; the links of each pair are sorted.

    A target word has one link, or none if it attends to no source word or if the link is not mutual. A pair with an
    empty side has no links.

    Args:
        translator: a model with attention to the source.
        sources: one sentence per item.
        targets: their translations.
        settings: how links are extracted; see `AlignmentSettings` for the defaults.
        batch_tokens: maximum number of padded tokens of the longer side per batch. Memory also holds the weights of all
            heads: ``batch_tokens`` times the longest side times the number of heads of all layers.
        progress: called with the number of newly aligned pairs.

    Raises:
        InputError: the numbers of sources and targets differ, or a text contains a lone surrogate.
        ConfigurationError: the layer does not exist, the model has no attention to the source, or ``batch_tokens`` is
            below 1.
    """
    check_pairs(sources, targets)
    settings = (settings or AlignmentSettings()).of(translator.bundle.model.config)
    work = [place for place, pair in enumerate(zip(sources, targets, strict=True)) if all(map(str.strip, pair))]
    if progress is not None and len(work) < len(sources):
        progress(len(sources) - len(work))
    bundle = translator.bundle
    tokenizers = bundle.source_tokenizer, bundle.target_tokenizer
    texts = [[side[place] for place in work] for side in (sources, targets)]
    read, written = tokenizers[0].encode_batch(texts[0]), tokenizers[1].answers(texts[1], texts[0])
    words = [
        [_text_matrix(tokenizers[0], text, ids) for text, ids in zip(texts[0], read, strict=True)],
        [
            _text_matrix(tokenizers[1], text, ids, source)
            for text, ids, source in zip(texts[1], written, texts[0], strict=True)
        ],
    ]
    results: list[list[Link]] = [[] for _ in sources]
    for batch in pair_batches(bundle.model, bundle.target_tokenizer, read, written, batch_tokens):
        _, recorded = teacher_forced(bundle.model, batch)
        weights = layer_attention(recorded, settings)
        for row, place in zip(weights, batch.places, strict=True):
            source, target = (side[place] for side in words)
            between = word_attention(row[: len(target), : len(source)], source, target)
            results[work[place]] = extract_links(between, settings.mutual)
        if progress is not None:
            progress(len(batch.places))
    return results


def layer_attention(recorded: AttentionWeights, settings: AlignmentSettings) -> Float[Tensor, "batch target source"]:
    """The weights of a head, or the mean of a layer's heads, on the CPU; row t belongs to target token t.

    Raises:
        ConfigurationError: layer or head do not exist, or the model has no attention to the source.
    """
    layer, head = _select_layer(recorded.cross, settings.layer), settings.head
    if head is not None and not 1 <= head <= layer.shape[1]:
        raise ConfigurationError(f"head: expected 1 to {layer.shape[1]}, got {head}")
    weights = layer.mean(1) if head is None else layer[:, head - 1]
    return (weights[:, 1:] if settings.shift else weights).cpu()


def _select_layer(recorded: tuple[Weights, ...], layer: int | None) -> Weights:
    if not recorded:
        raise ConfigurationError("this model has no attention to the source, which alignment needs")
    chosen = max(len(recorded) - 1, 1) if layer is None else layer
    if not 1 <= chosen <= len(recorded):
        raise ConfigurationError(f"layer: expected 1 to {len(recorded)}, got {chosen}")
    return recorded[chosen - 1]


def word_attention(
    weights: Float[Tensor, "target source"],
    source: Float[Tensor, "source source_words"],
    target: Float[Tensor, "target target_words"],
) -> Float[Tensor, "target_words source_words"]:
    """A_wv: how much each target word attends to each source word; a word without tokens attends to none."""
    return (target / target.sum(0).clamp(min=1)).T @ weights @ source


def extract_links(words: Float[Tensor, "target_words source_words"], mutual: bool = False) -> list[Link]:
    """The link of each target word that attends to any source word."""
    if not words.numel():
        return []
    best, chosen = words.max(1)
    links = [(place, word) for word, place in enumerate(chosen.tolist()) if best[word] > 0]
    best_targets = words.argmax(0).tolist()
    return sorted(link for link in links if not mutual or best_targets[link[0]] == link[1])


def _text_matrix(
    tokenizer: Tokenizer, text: str, ids: Sequence[int], source: str | None = None
) -> Float[Tensor, "tokens words"]:
    """`word_matrix`, or `span_matrix` where the tokenizer changes the text before it cuts it.

    ``source``: that of a translation.
    """
    entries = tokenizer.entries
    if not tokenizer.backwards and b"".join([entries[index] for index in ids]) == f" {text}".encode():
        return word_matrix(entries, text, ids)
    spans = tokenizer.spans(text) if source is None else tokenizer.answer_spans(text, source)
    return span_matrix(spans, text, len(tokenizer.prefix))


def span_matrix(spans: Sequence[Span], text: str, before: int = 0) -> Float[Tensor, "tokens words"]:
    """1 where a token stands for a character of a word or for the space before it, otherwise 0.

    The space after a word, in the same token, is not one before the next word.

    Args:
        spans: the characters of each token.
        text: the text, whose words are separated by white space.
        before: number of tokens at the start that belong to no word, such as that of a language.
    """
    numbers, count = [-1] * len(text), 0
    for place, character in enumerate(text):
        if not character.isspace():
            if place == 0 or text[place - 1].isspace():
                numbers[max(place - 1, 0)] = count
                count += 1
            numbers[place] = count - 1
    words = torch.zeros(len(spans), count)
    for token, (start, stop) in enumerate(spans):
        if token >= before:  # a mark in front of a character stands for nothing, and goes with it
            length = max(len(text[start:stop].rstrip()) or stop - start, 1)
            words[token, [number for number in numbers[start : start + length] if number >= 0]] = 1
    return words


def word_matrix(entries: Sequence[bytes], text: str, ids: Sequence[int]) -> Float[Tensor, "tokens words"]:
    """1 where a token has a byte of a word or of the space before it, otherwise 0.

    The space counts because tokens begin with it: a token that is only a space says that a word follows. Where a token
    ends a word, the space after that is not one before the next word.

    Args:
        entries: the bytes of each vocabulary entry (`text.vocabulary.bytes_of_entries`).
        text: the text, whose words are separated by white space.
        ids: its tokens.
    """
    # The word number of each byte of the text, -1 for white space. Every line begins with a mark that acts as a space.
    numbers, count, before = [-1], 0, " "
    for character in text:
        if character.isspace():
            numbers += [-1] * len(character.encode())
        else:
            if before.isspace():
                numbers[-1] = count if before == " " else -1
                count += 1
            numbers += [count - 1] * len(character.encode())
        before = character
    words = torch.zeros(len(ids), count)
    start = 0
    for token, index in enumerate(ids):
        entry = entries[index]
        own = start + len(entry.rstrip(b" ") if ends_word(entry) else entry)
        words[token, [number for number in numbers[start:own] if number >= 0]] = 1
        start += len(entry)
    assert start == len(numbers), "the tokens do not spell the text"
    return words


@dataclass(frozen=True, eq=False)
class WordUnits:
    """The units of a token sequence."""

    texts: list[str]
    matrix: Float[Tensor, "tokens units"]
    """1 where a token has a byte of a unit or of the space before it, otherwise 0."""
    spaced: list[bool]
    """Whether a unit ends at white space, not at the next token."""
    ended: list[bool]
    """Whether a unit's last token has the white space after it; otherwise the next token says that the unit ends."""

    def span(self, unit: int) -> range:
        """The tokens of a unit, which are contiguous."""
        tokens = self.matrix[:, unit].nonzero().flatten().tolist()
        return range(tokens[0], tokens[-1] + 1)


def split_units(entries: Sequence[bytes], ids: Sequence[int]) -> WordUnits:
    """Group tokens into units.

    Args:
        entries: the bytes of each vocabulary entry.
        ids: tokens without begin and end symbols.
    """
    pieces = [entries[index] for index in ids]
    raw = b"".join(pieces)
    mark = 0 if raw.startswith(b" ") else 1  # a search may omit the mark that begins every line
    words = word_matrix(
        pieces + [b" "] * mark,
        _replace_invalid(raw).removeprefix(" "),
        [*[len(pieces)] * mark, *range(len(ids))],
    )
    found = list(zip(raw.decode(errors="replace").split(), words[mark:].T, strict=True))
    texts: list[str] = []
    columns: list[Tensor] = []
    spaced: list[bool] = []
    ended: list[bool] = []
    for text, column in found:
        tokens = column.nonzero().flatten().tolist()
        unspaced = has_unspaced_script(text)
        cuts = _character_cuts([pieces[token] for token in tokens]) if unspaced else [(0, len(tokens))]
        for start, stop in cuts:
            unit = torch.zeros_like(column)
            unit[tokens[start:stop]] = 1
            part = b"".join(pieces[token] for token in tokens[start:stop]).decode(errors="replace").strip()
            texts.append(part if len(cuts) > 1 else text)
            columns.append(unit)
            spaced.append(not unspaced)
            ended.append(ends_word(pieces[tokens[stop - 1]]))
    return WordUnits(texts, torch.stack(columns, 1) if columns else torch.zeros(len(ids), 0), spaced, ended)


def has_unspaced_script(text: str) -> bool:
    """Whether a text contains a character of a script without spaces between words.

    Korean has spaces; full-width punctuation alone does not count.
    """
    return any(unicodedata.name(character, "").startswith(_WITHOUT_SPACES) for character in text)


_WITHOUT_SPACES = ("CJK UNIFIED", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")


def _replace_invalid(raw: bytes) -> str:
    """Decode bytes, with one question mark for each byte that is not UTF-8, so that lengths stay equal."""
    return re.sub("[\udc80-\udcff]", "?", raw.decode(errors="surrogateescape"))


def _character_cuts(pieces: Sequence[bytes]) -> list[tuple[int, int]]:
    """Split the tokens of an unspaced word after each token that completes a character, but not after a mere space."""
    ends = [place for place, text in enumerate(accumulate(pieces), 1) if text.strip() and is_valid_utf8(text)]
    ends = [*ends[:-1], len(pieces)] if ends else [len(pieces)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def is_valid_utf8(raw: bytes) -> bool:
    """Whether bytes are valid UTF-8, so that no character is cut."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
