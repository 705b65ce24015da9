"""``multihead classify``: document classifiers; see `runs.classifier`.

Texts are read from standard input, a document a line, and answered line by line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from multihead.cli.help import ExampleGroup
from multihead.cli.options import FILE, Command, flags_of, merge_config_file, quiet_flag
from multihead.errors import ConfigurationError, DataError, InputError
from multihead.files import check_new_file
from multihead.platforms import DEVICES
from multihead.runs.classifier.settings import ClassifyOptions, ClassifySettings, Files

if TYPE_CHECKING:
    from multihead.inspection.shades import ShadedDocument
    from multihead.runs.classifier.model import Classification, DocumentClassifier

F = TypeVar("F", bound=Callable[..., Any])


@click.group(
    cls=ExampleGroup,
    examples=(
        "multihead classify train --data train.tsv --output run",
        "multihead classify predict run --explain < documents.txt",
        "multihead classify evaluate run --data test.tsv",
    ),
)
def classify() -> None:
    """Classify documents with hierarchical attention, whose weights explain the answers, or with a BERT."""


def _file(name: str, metavar: str) -> Callable[[F], F]:
    """A flag for a field of `Files`."""
    text = " ".join((Files.model_fields[name].description or "").split())
    flag = f"--{name.replace('_', '-')}"
    return click.option(flag, name, type=click.Path(path_type=Path), metavar=metavar, help=text)


@classify.command(
    short_help="Train a classifier on labeled documents.",
    examples=(
        "multihead classify train --data train.tsv --output run",
        "multihead classify train --data train.tsv --from-model bert --output run",
    ),
    cls=Command,
)
@_file("data", "FILE")
@_file("valid", "FILE")
@_file("output", "FOLDER")
@_file("from_model", "FOLDER")
@click.option("--config", **FILE, help="TOML file with any of these settings.")
@quiet_flag
@flags_of(ClassifyOptions)
def train(config: Path | None, **flags: Any) -> None:
    """Train a classifier; the same command resumes a run that was stopped.

    Settings that are not given are chosen, printed and fixed for the run.
    """
    from multihead.cli.process import start_run

    settings = merge_config_file(ClassifySettings, config, flags)
    arguments = start_run()
    from multihead.runs.classifier.train import train as run

    run(**arguments, **settings)


_MODEL = click.argument("model", type=click.Path(path_type=Path))
_DEVICE = click.option(
    "--device", type=click.Choice(DEVICES), default="cpu", show_default=True, help="Where to compute."
)


@classify.command(
    short_help="Print the labels of documents.",
    examples=(
        "multihead classify predict run < documents.txt > labels.tsv",
        "multihead classify predict run --html page.html < documents.txt",
    ),
)
@_MODEL
@click.option(
    "--top",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Labels per document, the most probable first. [1]",
)
@click.option("--explain", is_flag=True, help="Show each document with its attention weights as shades.")
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write the documents with their shades as an HTML page.",
)
@_DEVICE
def predict(model: Path, top: int | None, explain: bool, html: Path | None, device: str) -> None:
    """Print label TAB probability for each document on standard input: one per line, TAB between paragraphs.

    Empty lines stay empty. Shades are colors if standard output is a terminal, and percentages otherwise.
    """
    from multihead.cli.process import configure_process

    if explain and top is not None:
        raise ConfigurationError("--explain shows the most probable label alone: leave out --top, or --explain")
    if html is not None:
        check_new_file(html)
    configure_process()
    from multihead.cli.streams import filter_lines
    from multihead.runs.classifier.model import DocumentClassifier

    classifier = DocumentClassifier.load(model, device)
    if not explain and html is None:
        filter_lines(lambda lines, number: _classify_lines(classifier, lines, number, top or 1))
        return
    if not classifier.explains:
        raise ConfigurationError(
            f"{model}: explain: only a hierarchical network weighs sentences and words; train with --model hierarchical"
        )
    _explain(classifier, explain, html, top or 1)


def _classify_lines(classifier: DocumentClassifier, lines: list[str], number: int, top: int) -> list[str]:
    from multihead.cli.streams import STDIN_NAME

    full = [place for place, line in enumerate(lines) if line.strip()]
    try:
        answers = classifier.classify([lines[place] for place in full])
    except InputError:
        for place in full:  # find out which one it is
            try:
                classifier.classify([lines[place]])
            except InputError as error:
                raise DataError(str(error), STDIN_NAME, number + place) from None
        raise
    written = [""] * len(lines)
    for place, answer in zip(full, answers, strict=True):
        written[place] = _format_answer(answer, top)
    return written


def _format_answer(answer: Classification, top: int) -> str:
    ranked = list(answer.probabilities.items())[:top]
    return "\t".join(f"{label}\t{probability:.4f}" for label, probability in ranked)


def _explain(classifier: DocumentClassifier, explain: bool, html: Path | None, top: int) -> None:
    """Print documents with their shades as they arrive; write the page at the end."""
    from multihead.cli.streams import filter_lines
    from multihead.files import write_text
    from multihead.inspection.shades import shaded_page, shaded_text

    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    documents: list[ShadedDocument] = []

    def show(lines: list[str], number: int) -> list[str]:
        shown = _classify_lines(classifier, lines, number, top)
        for place, line in enumerate(lines):
            if line.strip():
                explained = classifier.explained(line)
                if html is not None:
                    documents.append(explained)
                if explain:
                    shown[place] = f"{shaded_text(explained, color=color)}\n"
        return shown

    ended = False
    try:
        filter_lines(show)
        ended = True
    finally:  # if standard output was closed, or a line is wrong, the page has the documents before
        if html is not None and (documents or ended):
            write_text(html, shaded_page(documents))


@classify.command(
    short_help="Score a classifier on labeled documents.",
    examples=(
        "multihead classify evaluate run --data test.tsv",
        "multihead classify evaluate run --data test.tsv --json",
    ),
)
@_MODEL
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Labeled documents, in the format of the training file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON.")
@quiet_flag
@_DEVICE
def evaluate(model: Path, data: Path, as_json: bool, device: str) -> None:
    """Print accuracy, macro-F1, the scores of each label and the confusion matrix."""
    import json

    from multihead.cli.process import configure_process
    from multihead.cli.streams import counter

    configure_process()
    from multihead.runs.classifier.model import DocumentClassifier
    from multihead.runs.classifier.train import evaluate as run

    with counter("classified", "documents") as count:
        found = run(DocumentClassifier.load(model, device), data, progress=count)
    click.echo(json.dumps(found.as_dict(), ensure_ascii=False) if as_json else str(found))
