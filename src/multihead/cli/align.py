"""``multihead align``: word alignments in Pharaoh format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from multihead.cli.options import Command
from multihead.cli.pairs import PairFlags, PairFunction, pair_command, write_pair_lines

if TYPE_CHECKING:
    from multihead.translating.translator import Translator


@click.command(
    cls=Command,
    examples=(
        "multihead align run --source test.de --target test.en > links.txt",
        "multihead align run --mutual < pairs.tsv > links.txt",
    ),
)
@pair_command
@click.option(
    "--layer",
    type=int,
    metavar="NUMBER",
    help="Decoder layer, counted from 1. [that of the guided head, or last but one]",
)
@click.option("--shift", is_flag=True, help="Use the weights of the next step (Chen et al. 2020).")
@click.option("--mutual", is_flag=True, help="Keep only links that are also the best of their source word.")
def align(layer: int | None, shift: bool, mutual: bool, **asked: Any) -> None:
    """Align the words of each translation with those of its source, by MODEL's attention.

    Pairs are read from --source and --target, or as source TAB target lines from standard input. One line is written
    per pair, in order: links source word-target word, counted from 0, such as 0-0 1-2. The line is empty if a side is
    empty. Words are separated by white space.
    """
    flags = PairFlags(**asked)

    def make(translator: Translator) -> PairFunction:
        from multihead.judging import align as workflow

        settings = workflow.AlignmentSettings(layer, shift, mutual)

        def align_lines(sources: list[str], targets: list[str], count: Any) -> list[str]:
            links = workflow.align(
                translator, sources, targets, settings, batch_tokens=flags.batch_tokens, progress=count
            )
            return [workflow.pharaoh(one) for one in links]

        return align_lines

    write_pair_lines(flags, "aligned", make, computed=all)
