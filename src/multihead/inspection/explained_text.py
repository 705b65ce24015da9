"""An explanation for a terminal: the translation, and a row a word. `inspection.explained` has it all."""

from __future__ import annotations

from typing import Any

from multihead.attention.drawing import display_width
from multihead.text.tokenizer import visible

_OTHERS = 3  # a word, of those that could have been


def explained_text(content: dict[str, Any]) -> str:
    """The translation, then of each word how probable it was, where it looked most, and what it could have been.

    Args:
        content: as `multihead.judging.explain.Explanation.content` gives it.
    """
    links = {target: source for source, target in content["links"]}
    rows = [("word", "", "looked at", "", "could have been")]
    for place, word in enumerate(content["words"]):
        source = links.get(place)
        looked = ("", "")
        if source is not None:
            looked = content["source_words"][source], percent(content["word_attention"][place][source])
        others = (f"{other['text']} {percent(other['probability'])}" for other in word["alternatives"][:_OTHERS])
        rows.append((word["text"], percent(word["probability"]), *looked, " · ".join(others)))
    shown = [[visible(cell) for cell in row] for row in rows]
    widths = [max(display_width(row[column]) for row in shown) for column in range(len(rows[0]))]
    lines = (
        "  ".join(_placed(cell, width, at) for at, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in shown
    )
    return "\n".join([visible(content["translation"]), "", *(line.rstrip() for line in lines)])


def percent(share: float) -> str:
    """Whole percents, and what is nearly nothing not as 0."""
    return f"{share:.0%}" if share >= 0.005 else "<1%"


def _placed(cell: str, width: int, column: int) -> str:
    """Percentages on the right of their column."""
    space = " " * (width - display_width(cell))
    return space + cell if column in (1, 3) else cell + space
