"""``multihead attention``: show attention; see `translating.attention`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from multihead.cli.options import Command, language_flags
from multihead.errors import ConfigurationError
from multihead.files import check_new_file
from multihead.text.languages import Languages

if TYPE_CHECKING:
    from multihead.translating.attention import AttentionMap, AttentionView, Kind


@click.command(
    cls=Command,
    examples=(
        'multihead attention run "Ein Hund rennt." -o heads.png',
        'multihead attention run "Ein Hund rennt." --text --heads mean',
    ),
)
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("sentence")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw the weights; FILE ends in .png, .svg or .pdf.",
)
@click.option("--text", is_flag=True, help="Print the weights as percentages.")
@click.option("--json", "as_json", is_flag=True, help="Print the weights as JSON.")
@click.option("--translation", metavar="TEXT", help="Show this translation instead of the model's own.")
@click.option(
    "--kind",
    type=click.Choice(["cross", "encoder", "decoder"]),
    default="cross",
    show_default=True,
    help="From translation to source (cross), within the source (encoder), or within the translation (decoder).",
)
@click.option("--layer", type=int, metavar="NUMBER", help="Which layer, counted from 1. [the last]")
@click.option(
    "--heads",
    default="all",
    show_default=True,
    metavar="all|mean|NUMBER",
    help="One panel per head, their mean, or one head, counted from 1.",
)
@language_flags
def attention(
    model: Path,
    sentence: str,
    output: Path | None,
    text: bool,
    as_json: bool,
    translation: str | None,
    kind: Kind,
    layer: int | None,
    heads: str,
    languages: Languages,
) -> None:
    """Show what MODEL (a run or model folder) attends to while it translates SENTENCE.

    A row is a subword that attends (in a translation, the one being written), a column a subword that is attended to.
    """
    from multihead.cli.process import configure_process

    chosen = _heads(heads)
    if output is None and not text and not as_json:
        raise ConfigurationError("no output was chosen: give -o FILE for a picture, --text or --json")
    if text and as_json:
        raise ConfigurationError("--text and --json both write to standard output: give one of them")
    configure_process()
    if output is not None:
        _check_output(output)
    from multihead.translating.translator import Translator

    seen = Translator.load(model, languages=languages).attention(sentence, translation)
    view = seen.view(kind, layer, chosen)
    if output is not None:
        _draw(view, output)
    if text:
        click.echo(_as_text(seen, view))
    if as_json:
        click.echo(_as_json(sentence, seen, view))


def _heads(word: str) -> int | Literal["all", "mean"]:
    match word:
        case "all" | "mean":
            return word
        case _ if word.isdecimal():
            return int(word)
        case _:
            raise ConfigurationError(f"--heads: expected all, mean or the number of a head, got {word}")


def _check_output(path: Path) -> None:
    """Refuses, before a model is loaded, what cannot be drawn."""
    from multihead.inspection.fonts import default_font
    from multihead.inspection.plots import check_path

    default_font()  # says what to install where nothing can be drawn
    check_new_file(check_path(path))


def _draw(view: AttentionView, path: Path) -> None:
    from multihead.inspection.plots import attention_map, attention_panels

    draw = attention_map if len(view.panels) == 1 else attention_panels
    draw(view.weights, view.columns, view.rows, path, title=view.title)


def _as_text(seen: AttentionMap, view: AttentionView) -> str:
    from multihead.inspection.plots import attention_text

    width = shutil.get_terminal_size().columns
    tables = [
        f"{panel}\n{attention_text(weights, view.rows, view.columns, width)}"
        for panel, weights in zip(view.panels, view.weights, strict=True)
    ]
    return "\n\n".join([f"{seen.translation}\n{view.title}, in percent", *tables])


def _as_json(sentence: str, seen: AttentionMap, view: AttentionView) -> str:
    content = {
        "source": sentence,
        "translation": seen.translation,
        "title": view.title,
        "panels": view.panels,
        "rows": view.rows,
        "columns": view.columns,
        "weights": view.weights.tolist(),
    }
    return json.dumps(content, ensure_ascii=False)
