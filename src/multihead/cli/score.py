"""``multihead score``: how probable a model finds given translations; see `judging.score`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from multihead.cli.pairs import Asked, Change, pair_command, write_for_pairs
from multihead.configuration import build
from multihead.decoding.search import Search

if TYPE_CHECKING:
    from multihead.judging.score import Perplexity, ScoredPair
    from multihead.translating.translator import Translator


@click.command()
@pair_command
@click.option("--tokens", is_flag=True, help="Also each token and its log-probability: score TAB token TAB number ...")
@click.option("--perplexity", is_flag=True, help="At the end, on standard error, the perplexity of all pairs.")
@click.option("--normalize", is_flag=True, help="Divide by the length penalty, as translate --scores does.")
@click.option(
    "--alpha", type=float, metavar="NUMBER", help="Of the length penalty; says --normalize, too. [the model's own]"
)
@click.option(
    "--length-penalty",
    type=click.Choice(["power", "wu"]),
    help="Its form: |y|^alpha, or that of Wu et al. 2016; says --normalize, too. [power]",
)
def score(
    tokens: bool,
    perplexity: bool,
    normalize: bool,
    alpha: float | None,
    length_penalty: Literal["power", "wu"] | None,
    **asked: Any,
) -> None:
    """Write the log-probability that MODEL (a run or model folder) gives to each translation, a number a line.

    Pairs are read from --source and --target, or as source TAB target lines from standard input. As many lines come out
    as go in, in order. A pair of empty sides scores 0; one empty side is read as it is.
    """
    given = Asked(**asked)
    wishes: dict[str, Any] = {"alpha": alpha, "length_penalty": length_penalty}
    wishes = {name: value for name, value in wishes.items() if value is not None}
    build(Search, wishes, "the command line")
    found: list[Perplexity] = []

    def make(translator: Translator) -> Change:
        from multihead.judging import score as workflow

        own = translator.search_settings().alpha if normalize or wishes else 0.0
        settings = build(Search, {"alpha": own, **wishes}, "the search")
        total = workflow.Perplexity()
        found.append(total)

        def rendered(one: ScoredPair) -> str:
            row = [f"{one.score(settings.alpha, settings.penalty):.4f}"]
            if tokens:
                for token, value in zip(one.tokens, one.log_probabilities, strict=True):
                    row += [token, f"{value:.4f}"]
            return "\t".join(row)

        def change(sources: list[str], targets: list[str], count: Any) -> list[str]:
            scored = workflow.score(translator, sources, targets, batch_tokens=given.batch_tokens, progress=count)
            total.add(scored)
            return [rendered(one) for one in scored]

        return change

    write_for_pairs(given, "scored", make)
    if perplexity:
        total = found[0]
        click.echo(f"perplexity {total.value:.4f} ({total.tokens:,} tokens, end symbols counted)", err=True)
