"""``multihead fill-mask``: hidden words; see `runs.bert.fill_mask`.

Texts are given on the command line, or read from standard input and answered line by line.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from multihead.cli.options import Command
from multihead.errors import DataError, InputError
from multihead.platforms import DEVICES

if TYPE_CHECKING:
    from multihead.runs.bert.fill_mask import Candidate, MaskFiller


@click.command(
    "fill-mask",
    cls=Command,
    examples=(
        'multihead fill-mask run "A dog [MASK] in the grass."',
        "multihead fill-mask run --top 3 < texts.txt > words.tsv",
    ),
)
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option(
    "--top", type=click.IntRange(min=1), default=5, show_default=True, metavar="NUMBER", help="Words for each [MASK]."
)
@click.option("--device", type=click.Choice(DEVICES), default="cpu", show_default=True, help="Where to compute.")
def fill_mask(model: Path, texts: tuple[str, ...], top: int, device: str) -> None:
    """Predict the most probable words for each [MASK] of a TEXT, with their probabilities.

    MODEL is a folder of `multihead pretrain`, or a BERT in the format of Hugging Face. Without a TEXT, lines are read
    from standard input, and one line is printed for each: the text with the most probable words, then, after a TAB, the
    candidates of each [MASK] with their probabilities.
    """
    from multihead.cli.process import configure_process
    from multihead.text.bert_words import HIDDEN

    for text in texts:
        if HIDDEN not in text:
            raise InputError(f"there is no {HIDDEN} in '{text}': write it in place of the word to predict")
    configure_process()
    from multihead.cli.streams import filter_lines
    from multihead.runs.bert.fill_mask import MaskFiller

    filler = MaskFiller.load(model, device)
    if not texts:
        filter_lines(lambda lines, number: _fill_lines(filler, lines, number, top))
        return
    for filled in filler.fill(texts, top):
        click.echo(filled.text)
        for candidates in filled.candidates:
            click.echo("  " + "  ".join(f"{word} {probability:.1%}" for word, probability in candidates))


def _fill_lines(filler: MaskFiller, lines: list[str], number: int, top: int) -> list[str]:
    """Fill lines; raises if one is too long."""
    from multihead.cli.streams import STDIN_NAME

    limit = filler.model.config.max_positions
    for place, line in enumerate(lines):
        count = filler.count(line)
        if count > limit:
            raise DataError(
                f"{count} tokens, but this model reads {limit} at most; shorten it", STDIN_NAME, number + place
            )
    return ["\t".join([filled.text, *map(_format_candidates, filled.candidates)]) for filled in filler.fill(lines, top)]


def _format_candidates(candidates: tuple[Candidate, ...]) -> str:
    return " ".join(f"{word} {probability:.4f}" for word, probability in candidates)
