"""``multihead datastore``: see `translating.remember`."""

from __future__ import annotations

from pathlib import Path

import click

from multihead.cli.help import tell
from multihead.cli.options import Command, language_flags
from multihead.errors import ConfigurationError
from multihead.text.languages import Languages

_FILE = click.Path(path_type=Path)


@click.command(
    cls=Command,
    examples=(
        "multihead datastore run --output store",
        "multihead translate run --datastore store < input.de > output.en",
    ),
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), required=True, metavar="FOLDER", help="A new folder.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="A run, or a folder of `multihead prepare`, with the text to remember. [MODEL]",
)
@click.option("--source", type=_FILE, metavar="FILE", help="Text to remember instead, one sentence per line.")
@click.option("--target", type=_FILE, metavar="FILE", help="Its translations.")
@click.option(
    "--valid-source",
    type=_FILE,
    metavar="FILE",
    help="Text by which the share of the neighbors is chosen. [the validation text of --data]",
)
@click.option("--valid-target", type=_FILE, metavar="FILE", help="Its translations.")
@click.option(
    "--with",
    "others",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="MODEL",
    help="Another model of the ensemble that the share is chosen for. May be repeated.",
)
@click.option(
    "--neighbors",
    "--neighbours",
    "neighbours",
    type=int,
    default=64,
    show_default=True,
    metavar="NUMBER",
    help="How many of the nearest entries count at each word.",
)
@click.option(
    "--most",
    type=int,
    default=2_000_000,
    show_default=True,
    metavar="NUMBER",
    help="Approximate maximum number of entries, one per target token; of a longer text, evenly spaced pairs are used.",
)
@language_flags
def datastore(
    model: Path,
    output: Path,
    data: Path | None,
    source: Path | None,
    target: Path | None,
    valid_source: Path | None,
    valid_target: Path | None,
    others: tuple[Path, ...],
    neighbours: int,
    most: int,
    languages: Languages,
) -> None:
    """Build a datastore of MODEL, for `translate --datastore`, from its training text or from other translations.

    At each word of a translation, the words that followed the most similar states in that text count, too.
    """
    from multihead.cli.process import configure_process

    configure_process()
    from multihead.translating.remember import remember

    if data is not None and source is not None:
        raise ConfigurationError("--data and --source both name the text to remember: leave one of them out")
    remember(
        model,
        output=output,
        data=data,
        text=_read(source, target, "--source", "--target"),
        valid=_read(valid_source, valid_target, "--valid-source", "--valid-target"),
        others=others,
        languages=languages,
        neighbours=neighbours,
        most=most,
        say=tell,
    )


def _read(source: Path | None, target: Path | None, *names: str) -> tuple[list[str], list[str]] | None:
    """Both sides of a text; None if it was not named.

    Raises:
        ConfigurationError: one side alone; a different number of lines.
        FormatError: a file that cannot be read.
    """
    from multihead.data.text_files import read_lines

    if source is None and target is None:
        return None
    if source is None or target is None:
        raise ConfigurationError(f"{names[0]} and {names[1]} need each other")
    sides = list(read_lines(source)), list(read_lines(target))
    if len(sides[0]) != len(sides[1]):
        raise ConfigurationError(
            f"{source} has {len(sides[0])} lines and {target} {len(sides[1])}: line N of one is the "
            "translation of line N of the other"
        )
    return sides
