"""Which word of a translation comes from which word of its source, as the attention to the source has it.

With a_tj the weight of source token j while target token t is written, the mean over the heads of one layer, and words
what white space separates:

    A_wv = 1/|w| sum_{t in w} sum_{j in v} a_tj        w a word of the target, v one of the source
    w is linked to argmax_v A_wv

Weights *to* the pieces of a word are added and those *from* them averaged (Clark et al. 2019, "What does BERT look
at?", section 4.1). The end symbol, which attention rests on where it looks for nothing, is no word and takes no link.

Which layer: the last but one by default, which aligns best of a Transformer's decoder (Garg et al. 2019, "Jointly
learning to align and translate with Transformer models", section 4.1). With ``shift`` the weights are those of one step
later, when the token is the decoder's input and no longer to be found out (Chen et al. 2020, "Accurate word alignment
induction from neural machine translation"; there it is the better choice in the lower layers).

What people read as words in a row of tokens: the units that `judging.analysis` tells of.

Words are what white space separates, grouped from tokens as `judging.align` does it. Scripts that put no white space
between words (Chinese, Japanese) would make one word of a sentence: there a unit is a token, or as many as it takes to
have whole characters. Everything is read off the tokens, not off a text: a search may have spelt a text otherwise than
the tokenizer would.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.errors import ConfigurationError
from multihead.judging.score import check_pairs, pair_batches, teacher_forced
from multihead.models.layers import Weights
from multihead.models.network import AttentionWeights
from multihead.translating.translator import Translator

Link = tuple[int, int]
"""A word of the source and one of the target, both counted from 0."""


@dataclass(frozen=True)
class AlignmentSettings:
    """How links are read from the weights."""

    layer: int | None = None
    """Of the decoder, counted from 1; None: the last but one, or the only one."""
    shift: bool = False
    """Take the weights of one step later."""
    mutual: bool = False
    """Keep only links that are the best of their source word, too: fewer, and surer."""


def pharaoh(links: Sequence[Link]) -> str:
    """Links as the tools of the field write them: ``0-0 1-2``."""
    return " ".join(f"{source}-{target}" for source, target in links)


def align(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[str],
    aligning: AlignmentSettings | None = None,
    *,
    batch_tokens: int = 4096,
    progress: Callable[[int], None] | None = None,
) -> list[list[Link]]:
    """The links of each pair, sorted; as many lists come back, in order.

    A target word has one link, or none if it looked at no word of the source or the link was not mutual. A pair with an
    empty side has none.

    Args:
        translator: any model with attention to the source.
        sources: a sentence each.
        targets: their translations.
        aligning: how; by default as it stands at the top of this file.
        batch_tokens: padded tokens of the longer side in a batch: memory against speed. The weights of all heads are
            held at once: ``batch_tokens`` times the longest side times the heads of all layers.
        progress: is told how many more pairs are done, whenever some are.

    Raises:
        InputError: not one target a source; a lone surrogate.
        ConfigurationError: a layer that there is not, a model without attention to the source, a budget below 1.
    """
    check_pairs(sources, targets)
    aligning = aligning or AlignmentSettings()
    work = [place for place, pair in enumerate(zip(sources, targets, strict=True)) if all(map(str.strip, pair))]
    if progress is not None and len(work) < len(sources):
        progress(len(sources) - len(work))
    bundle = translator.bundle
    tokenizers = bundle.source_tokenizer, bundle.target_tokenizer
    texts = [[side[place] for place in work] for side in (sources, targets)]
    read, written = (tokenizer.encode_batch(side) for tokenizer, side in zip(tokenizers, texts, strict=True))
    words = [
        [word_matrix(tokenizer.entries, text, ids) for text, ids in zip(side, encoded, strict=True)]
        for tokenizer, side, encoded in zip(tokenizers, texts, (read, written), strict=True)
    ]
    results: list[list[Link]] = [[] for _ in sources]
    for batch in pair_batches(bundle.model, read, written, batch_tokens):
        _, recorded = teacher_forced(bundle.model, batch)
        weights = layer_attention(recorded, aligning)
        for row, place in zip(weights, batch.places, strict=True):
            source, target = (side[place] for side in words)
            of_words = word_attention(row[: len(target), : len(source)], source, target)
            results[work[place]] = extract_links(of_words, aligning.mutual)
        if progress is not None:
            progress(len(batch.places))
    return results


def layer_attention(recorded: AttentionWeights, aligning: AlignmentSettings) -> Float[Tensor, "batch target source"]:
    """The mean over the heads of the layer, on the host; row t wrote target token t.

    Raises:
        ConfigurationError: a layer that there is not, a model without attention to the source.
    """
    weights = _layer(recorded.cross, aligning.layer).mean(1)
    return (weights[:, 1:] if aligning.shift else weights).cpu()


def _layer(recorded: tuple[Weights, ...], layer: int | None) -> Weights:
    if not recorded:
        raise ConfigurationError("this model has no attention to the source: there is nothing to align by")
    chosen = max(len(recorded) - 1, 1) if layer is None else layer
    if not 1 <= chosen <= len(recorded):
        raise ConfigurationError(f"layer: there are {len(recorded)}, counted from 1, got {chosen}")
    return recorded[chosen - 1]


def word_attention(
    weights: Float[Tensor, "target source"],
    source: Float[Tensor, "source source_words"],
    target: Float[Tensor, "target target_words"],
) -> Float[Tensor, "target_words source_words"]:
    """A_wv: how much each word of the target looked at each of the source."""
    return (target / target.sum(0)).T @ weights @ source


def extract_links(words: Float[Tensor, "target_words source_words"], mutual: bool = False) -> list[Link]:
    """The link of each target word that looked at anything; none where the source has no words."""
    if not words.numel():
        return []
    best, chosen = words.max(1)
    links = [(place, word) for word, place in enumerate(chosen.tolist()) if best[word] > 0]
    favourites = words.argmax(0).tolist()
    return sorted(link for link in links if not mutual or favourites[link[0]] == link[1])


def word_matrix(entries: Sequence[bytes], text: str, ids: Sequence[int]) -> Float[Tensor, "tokens words"]:
    """1 where a token has a byte of a word, or of the blank in front of it; otherwise 0.

    The blank counts because a tokenizer's pieces begin with it: one that is nothing else says that a word follows.

    Args:
        entries: what each entry of the vocabulary adds to a text (`text.tokenizer.bytes_of_entries`).
        text: the words: what white space separates.
        ids: its tokens.
    """
    numbers, count, before = [-1], 0, " "  # the mark that begins every line stands for a blank
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
        stop = start + len(entries[index])
        words[token, [number for number in numbers[start:stop] if number >= 0]] = 1
        start = stop
    assert start == len(numbers), "the tokens do not spell the text"
    return words


@dataclass(frozen=True, eq=False)
class WordUnits:
    """The units of a row of tokens."""

    texts: list[str]
    matrix: Float[Tensor, "tokens units"]
    """1 where a token has a byte of a unit, or of the blank in front of it; otherwise 0."""
    spaced: list[bool]
    """Which of them white space ends, and not the next token."""

    def span(self, unit: int) -> range:
        """The tokens of a unit, which stand together."""
        tokens = self.matrix[:, unit].nonzero().flatten().tolist()
        return range(tokens[0], tokens[-1] + 1)


def split_units(entries: Sequence[bytes], ids: Sequence[int]) -> WordUnits:
    """The units of these tokens.

    Args:
        entries: what each entry of the vocabulary adds to a text.
        ids: tokens without begin and end.
    """
    pieces = [entries[index] for index in ids]
    raw = b"".join(pieces)
    mark = 0 if raw.startswith(b" ") else 1  # the mark that begins every line, if a search left it out
    words = word_matrix(
        pieces + [b" "] * mark, _as_long(raw).removeprefix(" "), [*[len(pieces)] * mark, *range(len(ids))]
    )
    found = list(zip(raw.decode(errors="replace").split(), words[mark:].T, strict=True))
    texts: list[str] = []
    columns: list[Tensor] = []
    spaced: list[bool] = []
    for text, column in found:
        tokens = column.nonzero().flatten().tolist()
        cuts = _cuts([pieces[token] for token in tokens]) if has_unspaced_script(text) else [(0, len(tokens))]
        for start, stop in cuts:
            of_unit = torch.zeros_like(column)
            of_unit[tokens[start:stop]] = 1
            own = b"".join(pieces[token] for token in tokens[start:stop]).decode(errors="replace").strip()
            texts.append(own if len(cuts) > 1 else text)
            columns.append(of_unit)
            spaced.append(not has_unspaced_script(text))
    return WordUnits(texts, torch.stack(columns, 1) if columns else torch.zeros(len(ids), 0), spaced)


def has_unspaced_script(text: str) -> bool:
    """Whether a text has a character of a script without white space between words.

    Korean has white space; full-width signs alone do not make a script.
    """
    return any(unicodedata.name(character, "").startswith(_WITHOUT_SPACES) for character in text)


_WITHOUT_SPACES = ("CJK UNIFIED", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")


def _as_long(raw: bytes) -> str:
    """A text of as many bytes, with question marks in the place of those that are not UTF-8."""
    return re.sub("[\udc80-\udcff]", "?", raw.decode(errors="surrogateescape"))


def _cuts(pieces: Sequence[bytes]) -> list[tuple[int, int]]:
    """The tokens of a word without white space, cut after each that ends a character and after nothing but a blank."""
    ends = [place for place, text in enumerate(accumulate(pieces), 1) if text.strip() and is_valid_utf8(text)]
    ends = [*ends[:-1], len(pieces)] if ends else [len(pieces)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def is_valid_utf8(raw: bytes) -> bool:
    """Whether bytes are UTF-8: no character is cut."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def starts_with_space(entries: Sequence[bytes]) -> Iterator[bool]:
    """Whether each entry begins with white space: the word before it is then at its end."""
    return (entry.startswith(_SPACES) for entry in entries)


_SPACES = tuple(chr(number).encode() for number in range(0x3001) if chr(number).isspace())
