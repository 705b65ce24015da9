"""The checks of `multihead doctor` on subwords: does the text come back, is it spelt in bytes, how long are pieces?

A character without an entry of its own becomes its bytes (Kudo & Richardson 2018): nothing is lost, but a model has to
learn three tokens or four for it. That a text comes back from its ids is promised of every tokenizer (`text.tokenizer`)
and is tried here on a sample of the very text. How text is read is for `doctor_text`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from multihead.diagnosis.findings import Finding, found
from multihead.diagnosis.pairs import NAMED, Characters, Sample
from multihead.text.tokenizer import Tokenizer
from multihead.text.vocabulary import FIRST_CHARACTER, MARK

_SIDES = "source", "target"
_PER_WORD = 3.0
"""Tokens of a word, beyond which the subwords were hardly learned from such text."""
_PER_CHARACTER = 1.5
"""The same of a character, where words are not separated."""
_WORDS_OF = 15
"""Characters for which there is a word at least, where words are separated."""
_FEWEST = 100
"""Words or characters, of which that is not said."""
_SHOWN = 5


def check_tokens(
    tokenizers: Sequence[Tokenizer], characters: Characters, sample: Sample, name: str
) -> tuple[list[Finding], dict[str, float]]:
    """What the subwords do to a corpus.

    Args:
        tokenizers: of source and target.
        characters: all of the corpus.
        sample: pairs of it.
        name: of the corpus, for people.

    Returns:
        The findings; and for each side ``source_tokens_per_word`` and the share ``source_bytes_share`` of characters
        that are spelt in bytes.
    """
    every: list[Finding] = []
    figures: dict[str, float] = {}
    for side, tokenizer in enumerate(tokenizers):
        where, side_name = f"{_SIDES[side]} of {name}", _SIDES[side]
        spelt, share = _bytes(tokenizer, characters, side, where)
        ids = tokenizer.encode_batch(sample.side(side))
        every += [*spelt, *_round_trip(tokenizer, sample, side, ids, where), *_sizes(sample.side(side), ids, where)]
        words = sum(len(text.split()) for text in sample.side(side))
        figures[f"{side_name}_tokens_per_word"] = sum(map(len, ids)) / max(words, 1)
        figures[f"{side_name}_bytes_share"] = share
    return every, figures


def _bytes(tokenizer: Tokenizer, characters: Characters, side: int, where: str) -> tuple[list[Finding], float]:
    entries = {entry for entry in tokenizer.parts.vocabulary[FIRST_CHARACTER:] if len(entry) == 1} - {MARK} | {" "}
    counts = characters.counts[side]
    there = np.flatnonzero(counts)
    broken = [code for code in there.tolist() if chr(code) not in entries]
    total, count = int(counts.sum()), int(counts[broken].sum())
    if not broken:
        return [], 0.0
    broken.sort(key=lambda code: -counts[code])
    first = characters.first[side]
    shown = [f"{_named(code)} ({_times(int(counts[code]))}, first on line {first[code]})" for code in broken[:_SHOWN]]
    more = f", and {len(broken) - _SHOWN:,} more" if len(broken) > _SHOWN else ""
    what = f"{count:,} of {total:,} characters are spelt in bytes: {', '.join(shown)}{more}"
    lines = sorted({first[code] for code in broken[:NAMED]})
    return [found("byte-characters", where, count, total, what, lines)], count / total


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _named(code: int) -> str:
    character = chr(code)
    return f"U+{code:04X}" + (f" {character}" if character.isprintable() else "")


def _round_trip(tokenizer: Tokenizer, sample: Sample, side: int, ids: list[list[int]], where: str) -> list[Finding]:
    texts = sample.side(side)
    wrong = [place for place, text in enumerate(tokenizer.decode_batch(ids)) if text != texts[place]]
    if not wrong:
        return []
    what = f"{len(wrong):,} of {len(texts):,} lines do not come back from their tokens"
    lines = [sample.lines[place] for place in wrong[:NAMED]]
    return [found("round-trip", where, len(wrong), len(texts), what, lines)]


def _sizes(texts: list[str], ids: list[list[int]], where: str) -> list[Finding]:
    words, letters = sum(len(text.split()) for text in texts), sum(map(len, texts))
    tokens = sum(map(len, ids))
    separated = words * _WORDS_OF > letters
    of, unit, limit = (words, "word", _PER_WORD) if separated else (letters, "character", _PER_CHARACTER)
    if of < _FEWEST or tokens <= limit * of:
        return []
    what = f"{tokens / of:.1f} tokens a {unit}; text like that of the subwords has less than {limit:g}"
    return [found("many-tokens", where, tokens, of, what)]
