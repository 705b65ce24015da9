"""``multihead score``: log-probabilities of given translations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from multihead.cli import language_models
from multihead.cli.help import tell
from multihead.cli.options import Command, check_positive
from multihead.cli.pairs import PairFlags, PairFunction, pair_command, write_pair_lines
from multihead.cli.streams import write_lines
from multihead.configuration import build
from multihead.decoding.search import Search

if TYPE_CHECKING:
    from multihead.judging.score import Perplexity, ScoredPair
    from multihead.translating.translator import Translator


@click.command(
    cls=Command,
    examples=(
        "multihead score run --source test.de --target test.en > scores.txt",
        "multihead score run --perplexity < pairs.tsv > scores.txt",
        "multihead score language-model --target text.txt > scores.txt",
    ),
)
@pair_command
@click.option("--tokens", is_flag=True, help="Add each token and its log-probability: score TAB token TAB number ...")
@click.option("--perplexity", is_flag=True, help="Write the perplexity of all pairs to standard error at the end.")
@click.option("--normalize", is_flag=True, help="Divide by the length penalty, like translate --scores.")
@click.option(
    "--alpha",
    type=float,
    metavar="NUMBER",
    help="Length penalty; implies --normalize. [the model's own]",
)
@click.option(
    "--length-penalty",
    type=click.Choice(["power", "wu"]),
    help="Form of the length penalty: |y|^alpha, or that of Wu et al. 2016; implies --normalize. [the model's own]",
)
def score(
    tokens: bool,
    perplexity: bool,
    normalize: bool,
    alpha: float | None,
    length_penalty: Literal["power", "wu"] | None,
    **asked: Any,
) -> None:
    """Write the log-probability that MODEL (a run or model folder) gives each translation, one number per line.

    Pairs are read from --source and --target, or as source TAB target lines from standard input. One line is written
    per pair, in order. If both sides are empty, the score is 0; if only one is empty, the pair is scored as it is. A
    language model scores each line of --target, or of standard input; an empty line has the score 0.
    """
    flags = PairFlags(**asked)
    wishes: dict[str, Any] = {"alpha": alpha, "length_penalty": length_penalty}
    wishes = {name: value for name, value in wishes.items() if value is not None}
    build(Search, wishes, "the command line")

    def row_of(one: ScoredPair, settings: Search) -> str:
        row = [f"{one.score(settings.alpha, settings.penalty):.4f}"]
        if tokens:
            for token, value in zip(one.tokens, one.log_probabilities, strict=True):
                row += [token, f"{value:.4f}"]
        return "\t".join(row)

    check_positive(batch_tokens=flags.batch_tokens, threads=flags.threads)
    if flags.source is None and language_models.is_given(flags.model):
        language_models.refuse({}, flags.languages)
        settings = build(Search, {"alpha": 1.0 if normalize or wishes else 0.0, **wishes}, "the search")
        model = language_models.load(flags.model, flags.device, flags.threads)
        found = language_models.score_texts(
            *(model, flags.target, flags.batch_tokens),
            lambda scored: write_lines([row_of(one, settings) for one in scored]),
        )
        if perplexity:
            _say_perplexity(str(found), found.tokens)
        return
    totals: list[Perplexity] = []

    def make(translator: Translator) -> PairFunction:
        from multihead.judging import score as workflow
        from multihead.text.context import Documents

        own = translator.search_settings()
        usual = {"alpha": own.alpha if normalize or wishes else 0.0, "length_penalty": own.length_penalty}
        settings = build(Search, {**usual, **wishes}, "the search")
        total, documents = workflow.Perplexity(), Documents(translator.bundle.source_tokenizer.context)
        totals.append(total)

        def score_lines(sources: list[str], targets: list[str], count: Any) -> list[str]:
            sources = list(map(documents.add, sources))
            scored = workflow.score(translator, sources, targets, batch_tokens=flags.batch_tokens, progress=count)
            total.add(scored)
            return [row_of(one, settings) for one in scored]

        return score_lines

    write_pair_lines(flags, "scored", make)
    if perplexity:
        _say_perplexity(f"perplexity {totals[0].value:.4f}", totals[0].tokens)


def _say_perplexity(found: str, tokens: int) -> None:
    counted = f"{found} ({tokens:,} tokens, end symbols counted)"
    tell(counted if tokens else "no perplexity: every line is empty")
