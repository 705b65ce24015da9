"""``multihead explain``: why a sentence is translated as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from multihead.cli.options import Command, check_positive, language_flags, parse_search_flags, search_flags
from multihead.errors import ConfigurationError
from multihead.files import check_new_file
from multihead.text.languages import Languages

if TYPE_CHECKING:
    from multihead.judging.explain import Explanation


@click.command(
    cls=Command,
    examples=(
        'multihead explain run "Ein Hund rennt."',
        'multihead explain run "Ein Hund rennt." -o page.html',
        'multihead explain run "Ein Hund rennt." --without-head encoder.2.head.5',
    ),
)
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("sentence")
@click.option(
    "-o",
    "--output",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a self-contained HTML page to this file.",
)
@click.option(
    "--png",
    "picture",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw the attention between words; FILE ends in .png, .svg or .pdf.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON; docs/explain.md describes the fields.")
@click.option("--translation", metavar="TEXT", help="Explain this translation instead of the model's own.")
@click.option(
    "--alternatives",
    type=int,
    default=5,
    show_default=True,
    metavar="NUMBER",
    help="Alternatives to show for each word and each token.",
)
@click.option(
    "--n-best", type=int, default=1, show_default=True, metavar="NUMBER", help="Translations to search and show."
)
@click.option(
    "--layer",
    type=int,
    metavar="NUMBER",
    help="Decoder layer by which words are linked, counted from 1. [that of the guided head, or last but one]",
)
@click.option(
    "--without-head",
    "heads",
    multiple=True,
    metavar="HEAD",
    help="Leave out a head, such as encoder.2.head.5, decoder.2.head.5 or cross.2.head.5, counted from 1; repeatable.",
)
@search_flags
@language_flags
def explain(
    model: Path,
    sentence: str,
    page: Path | None,
    picture: Path | None,
    as_json: bool,
    translation: str | None,
    alternatives: int,
    n_best: int,
    layer: int | None,
    heads: tuple[str, ...],
    languages: Languages,
    **asked: Any,
) -> None:
    """Show why MODEL (a run or model folder) translates SENTENCE as it does.

    Without an output file, a table is printed: the probability of each word, the source word it attends to, and its
    alternatives. The page also has the attention of every head, the tokens, the search tree, and the tensor shapes.
    """
    from multihead.cli.process import configure_process

    wishes = parse_search_flags(asked)
    check_positive(n_best=n_best)
    configure_process()
    _check_files(page, picture)
    from multihead.judging.align import AlignmentSettings
    from multihead.judging.explain import explain as workflow
    from multihead.judging.heads import parse_head
    from multihead.translating.translator import Translator

    left_out = [parse_head(name) for name in heads]
    translator = Translator.load(model, languages=languages).searching(**wishes)
    explained = workflow(
        translator,
        sentence,
        translation,
        alternatives=alternatives,
        n_best=n_best,
        aligning=AlignmentSettings(layer),
        left_out=left_out,
    )
    _show(explained, page, picture, as_json)


def _check_files(page: Path | None, picture: Path | None) -> None:
    """Check output files before a model is loaded."""
    if picture is not None:
        from multihead.inspection.fonts import default_font
        from multihead.inspection.plots import check_path

        default_font()  # names the package to install if nothing can be drawn
        check_path(picture)
    if page is not None and picture is not None and page.resolve() == picture.resolve():
        raise ConfigurationError(f"{page}: given as both page and picture; choose different names")
    for path in (page, picture):
        if path is not None:
            check_new_file(path)


def _show(explained: Explanation, page: Path | None, picture: Path | None, as_json: bool) -> None:
    from multihead.files import write_text
    from multihead.inspection.explanation import explanation_text

    if picture is not None:  # first, as it fails if there is nothing to draw
        explained.picture(picture)
    if page is not None:
        write_text(page, explained.page())
    if as_json:
        click.echo(json.dumps(explained.content(), ensure_ascii=False, allow_nan=False))
    elif page is None and picture is None:
        click.echo(explanation_text(explained.content()))
