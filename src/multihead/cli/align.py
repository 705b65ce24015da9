"""``multihead align``: word alignments of given translations, in Pharaoh format; see `judging.align`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from multihead.cli.pairs import Asked, Change, pair_command, write_for_pairs

if TYPE_CHECKING:
    from multihead.translating.translator import Translator


@click.command()
@pair_command
@click.option("--layer", type=int, metavar="NUMBER", help="Of the decoder, counted from 1. [the last but one]")
@click.option("--shift", is_flag=True, help="Weights of one step later, when the word is known (Chen et al. 2020).")
@click.option("--mutual", is_flag=True, help="Only links that are the best of their source word, too.")
def align(layer: int | None, shift: bool, mutual: bool, **asked: Any) -> None:
    """Write which words of each translation come from which of its source, as MODEL's attention has it.

    Pairs are read from --source and --target, or as source TAB target lines from standard input. A line is a list of
    links, source word - target word, counted from 0: 0-0 1-2. As many lines come out as go in, in order; a pair with an
    empty side has an empty one. Words are what white space separates.
    """

    given = Asked(**asked)

    def make(translator: Translator) -> Change:
        from multihead.judging import align as workflow

        aligning = workflow.AlignmentSettings(layer, shift, mutual)

        def change(sources: list[str], targets: list[str], count: Any) -> list[str]:
            found = workflow.align(
                translator, sources, targets, aligning, batch_tokens=given.batch_tokens, progress=count
            )
            return [workflow.pharaoh(links) for links in found]

        return change

    write_for_pairs(given, "aligned", make)
