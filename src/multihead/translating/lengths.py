"""Usual lengths of a model's sentences, and lines that are too long.

With |x| and |y| the tokens of the two sides of a training pair, including end symbols,

    rho = sum |y| / sum |x|        sigma = deviation of ln((|y| + 3) / (rho |x| + 3)), 0.1 at least

A model folder outside its run does not know them. Then rho = 1 and sigma = 0.35: with a vocabulary for each language,
or one for both, a sentence has about as many subwords as its translation, whatever the languages. The longest source
is then the longest that `multihead train` keeps by default, and half of it is usual.

A Transformer that has hardly seen sources of a length omits most of their content, or loops. So longer lines are
translated part by part and joined; `text.sentences` decides where to cut. A line with a prefix or phrases is not cut,
because they do not say which part they belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from multihead.data.store import MAKE_AGAIN, Int32, read_lengths
from multihead.sealed import open_folder
from multihead.text.sentences import Part, join_translations, split_text
from multihead.text.tokenizer import Tokenizer
from multihead.translating.searching import Translation

_PAIRS = 100_000
"""Maximum number of pairs that are counted, evenly spread."""
_PAIRS_OF_A_RUN = "data/train"
_LEAST_SPREAD = 0.1
_USUAL = 0.99


@dataclass(frozen=True)
class Lengths:
    """Lengths of the sentences in a model's training data."""

    ratio: float = 1.0
    """rho: tokens of a translation per token of its source."""
    spread: float = 0.35
    """sigma."""
    usual: int = 128
    """Tokens that 99% of the training sources do not exceed, including end symbols."""
    longest: int = 256
    """Tokens of the longest training source, including the end symbol."""
    known: bool = False
    """Whether they were counted; otherwise they are defaults."""


def lengths_of(folder: Path | None) -> Lengths:
    """The lengths of the run that a folder is, or whose best model it is.

    Raises:
        FormatError: the run's data is damaged.
    """
    for place in () if folder is None else (folder, folder.resolve().parent):
        if not ((place / "run.json").is_file() and (place / _PAIRS_OF_A_RUN).is_dir()):
            continue  # no run, or it used a folder of prepared text, or its data was removed
        with open_folder(place, MAKE_AGAIN) as run:
            source, target = (read_lengths(run.part(f"{_PAIRS_OF_A_RUN}/{side}")) for side in ("source", "target"))
        if len(source) == len(target) > 0:
            return counted(source + 1, target + 1)
    return Lengths()


def counted(source: Int32, target: Int32) -> Lengths:
    """The lengths of pairs, including end symbols."""
    step = -(-len(source) // _PAIRS)
    x, y = source[::step].astype(np.float64), target[::step].astype(np.float64)
    ratio = float(y.sum() / x.sum())
    spread = float(np.log((y + 3) / (ratio * x + 3)).std())
    usual = int(np.quantile(x, _USUAL, method="higher"))
    return Lengths(ratio, max(spread, _LEAST_SPREAD), usual, int(source.max()), known=True)


@dataclass(frozen=True)
class SplitLine:
    """A line that is translated whole or in parts."""

    texts: list[str]
    """The whole line, or its parts."""
    parts: list[Part]
    """The parts with the text between them; empty for a whole line."""
    remark: str | None = None
    """A note for the reader of its translation."""


def most_tokens(lengths: Lengths, reach: int | None, wanted: int | None = None) -> tuple[int, int]:
    """Maximum tokens, including the end symbol, of a line and of a sentence before they are cut; 0 for no maximum.

    Args:
        lengths: of the model's training data. By default a line is cut above the usual length, and its sentences above
            the longest one.
        reach: number of positions that the model tells apart, which neither exceeds; None for any number.
        wanted: a maximum for both instead.
    """
    line, sentence = (lengths.usual, lengths.longest) if wanted is None else (wanted, wanted)
    if reach is None or not line:
        return line, sentence
    return min(line, reach), min(sentence, reach)


def split_long_lines(
    tokenizer: Tokenizer,
    lines: Sequence[str],
    most: int,
    whole: Callable[[int], bool],
    longest: int = 0,
    language: str | None = None,
) -> list[SplitLine]:
    """Cut lines that are too long.

    Args:
        tokenizer: of the source.
        lines: the lines.
        most: maximum tokens of a line, including the end symbol; 0 for no maximum.
        whole: whether the line at a place must not be cut.
        longest: maximum tokens of a sentence of a line that is cut; 0 for ``most``.
        language: the code of the lines' language, if it is known: its rules say where sentences end.
    """

    def within(limit: int) -> Callable[[str], bool]:
        return lambda text: len(tokenizer.encode(text)) + 1 <= limit

    found = [SplitLine([line], []) for line in lines]
    # A token has at least one byte of the text, or is the mark before it.
    sizes = [len(line.encode(errors="surrogatepass")) + 2 for line in lines]
    suspects = [place for place, line in enumerate(lines) if most and line.strip() and sizes[place] > most]
    for place, ids in zip(suspects, tokenizer.encode_batch([lines[place] for place in suspects]), strict=True):
        tokens = len(ids) + 1
        if tokens <= most:
            continue
        length = f"{tokens:,} tokens, more than the {most:,} that this model is used to"
        if whole(place):
            remark = f"{length}; translated whole, because it has a prefix or phrases"
            found[place] = SplitLine([lines[place]], [], remark)
            continue
        parts = split_text(lines[place], within(most), within(longest or most), language)
        if len(parts) > 1:
            remark = f"{length}; translated in {len(parts):,} parts"
            found[place] = SplitLine([text for text, _ in parts], parts, remark)
    return found


def join_parts(line: SplitLine, found: Sequence[Sequence[Translation]]) -> list[Translation]:
    """The translations of a line: the first ones of all its parts joined, the second ones, and so on.

    A part with fewer translations repeats its last one. The score is the mean of the parts' scores, weighted by tokens:
    the score of the whole with a length penalty of 1.
    """
    if not line.parts:
        return list(found[0])
    count = max(map(len, found))
    rows = [[of_part[min(place, len(of_part) - 1)] for of_part in found] for place in range(count)]
    return [_join_row(line, row) for row in rows]


def _join_row(line: SplitLine, row: Sequence[Translation]) -> Translation:
    tokens = sum(translation.tokens for translation in row)
    score = sum(translation.score * translation.tokens for translation in row) / max(tokens, 1)
    text = join_translations([translation.text for translation in row], line.parts)
    return Translation(
        text.replace("\r", " "),  # from the text between parts: no output line contains one
        score,
        all(translation.finished for translation in row),
        next((translation.warning for translation in row if translation.warning is not None), None),
        sum(translation.log_probability for translation in row),
        tokens,
    )
