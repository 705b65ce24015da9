"""Lines longer than what a model was trained on: translated part by part, and put together again.

A Transformer that has hardly seen sources of such a length leaves most of them out, or loops. Where a line is cut is
said in `text.sentences`; how long is too long in `translating.lengths`. A line of which something is demanded (a
prefix, phrases) stays whole: nobody said of which part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from multihead.text.sentences import Part, join_translations, split_text
from multihead.text.tokenizer import Tokenizer
from multihead.translating.translation import Translation
from multihead.translating.translator import Translator


@dataclass(frozen=True)
class Line:
    """A line as it is translated: whole, or in parts."""

    texts: list[str]
    """One, as it is, or several."""
    parts: list[Part]
    """The same with what stands between them; none of a line that is whole."""
    remark: str | None = None
    """What the reader of its translation should know."""


def most_tokens(translator: Translator, wanted: int | None = None) -> tuple[int, int]:
    """The tokens, end symbol counted, above which a line is cut into sentences, and a sentence halved; 0: never.

    Args:
        translator: the model. By default the first is what is usual in its training, and the second the longest source
            that it has seen there; never more than the positions that it tells apart.
        wanted: what a user says, of both.
    """
    usual = translator.lengths
    line, sentence = (usual.usual, usual.longest) if wanted is None else (wanted, wanted)
    reach = translator.reach
    if reach is None or not line:
        return line, sentence
    return min(line, reach), min(sentence, reach)


def in_parts(
    tokenizer: Tokenizer, lines: Sequence[str], most: int, whole: Callable[[int], bool], longest: int = 0
) -> list[Line]:
    """The lines, those cut that are too long.

    Args:
        tokenizer: of the source.
        lines: any.
        most: tokens of a line, the end symbol counted; 0: as many as there are.
        whole: says of a place whether that line must not be cut.
        longest: tokens of a sentence of a line that is cut; 0: ``most``.
    """

    def within(limit: int) -> Callable[[str], bool]:
        return lambda text: len(tokenizer.encode(text)) + 1 <= limit

    found = [Line([line], []) for line in lines]
    # A token is a byte of the text at least, or the mark before it.
    sizes = [len(line.encode(errors="surrogatepass")) + 2 for line in lines]
    suspects = [place for place, line in enumerate(lines) if most and line.strip() and sizes[place] > most]
    for place, ids in zip(suspects, tokenizer.encode_batch([lines[place] for place in suspects]), strict=True):
        tokens = len(ids) + 1
        if tokens <= most:
            continue
        length = f"{tokens:,} tokens, more than the {most:,} that this model is used to"
        if whole(place):
            found[place] = Line([lines[place]], [], f"{length}; translated whole, because of what is demanded of it")
            continue
        parts = split_text(lines[place], within(most), within(longest or most))
        if len(parts) > 1:
            found[place] = Line([text for text, _ in parts], parts, f"{length}; translated in {len(parts):,} parts")
    return found


def together(line: Line, found: Sequence[Sequence[Translation]]) -> list[Translation]:
    """The translations of a line, from those of its parts: of the first of each, of the second, and so on.

    Where a part has fewer, its last stands in. The score is the mean of the parts' by tokens, which is the score of the
    whole with a length penalty of 1.
    """
    if not line.parts:
        return list(found[0])
    count = max(map(len, found))
    rows = [[of_part[min(place, len(of_part) - 1)] for of_part in found] for place in range(count)]
    return [_one(line, row) for row in rows]


def _one(line: Line, row: Sequence[Translation]) -> Translation:
    tokens = sum(translation.tokens for translation in row)
    score = sum(translation.score * translation.tokens for translation in row) / max(tokens, 1)
    text = join_translations([translation.text for translation in row], line.parts)
    return Translation(
        text.replace("\r", " "),  # which stood between parts: what is written has none
        score,
        all(translation.finished for translation in row),
        next((translation.warning for translation in row if translation.warning is not None), None),
        sum(translation.log_probability for translation in row),
        tokens,
    )
