"""``multihead backtranslate``, ``distill``: see `lines.synthetic_pairs`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from multihead.cli.choosing import ensemble_flags
from multihead.cli.options import (
    FILE,
    check_positive,
    decorated,
    flags_of,
    language_flags,
    load_translator,
    machine_flags,
    parse_search_flags,
    search_flags,
)
from multihead.cli.translate import TranslateFlags, write_to_file
from multihead.data.readers import format_of
from multihead.data.text_files import scan
from multihead.errors import ConfigurationError
from multihead.text.languages import Languages
from multihead.translating.request import Sampling

F = TypeVar("F", bound=Callable[..., Any])

_NOT_HERE = {
    "scores": False,
    "max_source": None,
    "prefixes": None,
    "phrases": None,
    "guard_closer": False,
    "mbr": None,
    "reverse": (),
    "weights": None,
}
"""Flags of `translate` that these commands do not have."""


def _pair_flags(function: F) -> F:
    """Decorator that adds MODEL and the flags of both commands."""
    decorations = (
        click.argument("model", type=click.Path(path_type=Path)),
        click.option(
            "--output", **FILE, required=True, help="Write the pairs here (.tsv); if stopped, the same command goes on."
        ),
        click.option(
            "--n-best", type=int, metavar="NUMBER", help="So many pairs of each line, with its best translations. [1]"
        ),
        flags_of(Sampling, lambda name: "Pairs of each line, with samples." if name == "sample" else ""),
        ensemble_flags,
        click.option(
            "--guard/--no-guard",
            "guarded",
            default=True,
            show_default=True,
            help="Leave out suspicious translations (docs/guard.md).",
        ),
        click.option(
            "--guard-threshold", type=float, metavar="NUMBER", help="Lowest score of a suspicious translation. [0.5]"
        ),
        search_flags,
        machine_flags,
        language_flags,
    )
    return decorated(function, decorations)


@click.command()
@click.option("--monolingual", **FILE, required=True, help="Text in the target language, a sentence a line.")
@click.option(
    "--tag", default="<bt>", show_default=True, metavar="WORD", help='First word of each synthetic source; "" for none.'
)
@_pair_flags
def backtranslate(monolingual: Path, tag: str, **flags: Any) -> None:
    """Make training pairs from text in the target language alone.

    MODEL (a run or model folder) translates from the target to the source language: trained with --source and --target
    exchanged. Train with the result beside your own pairs: --corpus "train.de train.en" --corpus synthetic.tsv.
    """
    _write_pairs(monolingual, {"backwards": True, "tag": tag}, **flags)


@click.command()
@click.option("--source", **FILE, required=True, help="Text in the source language, a sentence a line.")
@_pair_flags
def distill(source: Path, **flags: Any) -> None:
    """Make training pairs for a student: source text with the translations of MODEL, the teacher.

    With --with the teacher is an ensemble. A smaller model trained with the result comes closer to the teacher than one
    trained with the references, and gets by with a narrower beam.
    """
    _write_pairs(source, {}, **flags)


def _write_pairs(
    path: Path,
    side: dict[str, Any],
    *,
    model: Path,
    output: Path,
    guarded: bool,
    batch_tokens: int,
    threads: int | None,
    device: str,
    languages: Languages,
    **flags: Any,
) -> None:
    from multihead.cli.process import configure_process
    from multihead.lines.growing_file import check_free

    parsed = TranslateFlags.parse({**flags, **_NOT_HERE, "guard": "mark" if guarded else "off"})
    wishes = parse_search_flags(TranslateFlags.search_wishes(flags))
    check_positive(batch_tokens=batch_tokens, threads=threads, n_best=parsed.n_best)
    if format_of(output) != ".tsv":
        raise ConfigurationError(f"{output}: the pairs are written as TSV: expected a name that ends in .tsv")
    check_free(output)
    configure_process()
    from multihead.lines.synthetic_pairs import PairOptions, check_tag
    from multihead.lines.translate_file import check_input

    check_tag(side.get("tag", ""))
    text = check_input(path)
    translator = parsed.choosing.join(load_translator(model, wishes, threads, device, languages), device)
    options = PairOptions(**{**vars(parsed.options(translator, batch_tokens)), **side})
    digest = parsed.choosing.digest(model, languages)
    write_to_file(translator, options, None, digest, text, output, remarks=False)
    click.echo(f"{scan(output).lines:,} pairs from {text.lines:,} lines are in {output}", err=True)
