"""``multihead tune``: weights of a choice; see `judging.tune`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from multihead.cli.choosing import choosing_flags, ensemble_flags
from multihead.cli.options import (
    FILE,
    Command,
    check_positive,
    language_flags,
    load_translator,
    machine_flags,
    parse_search_flags,
    quiet_flag,
    search_flags,
)
from multihead.cli.translate import ChoosingFlags, TranslateFlags
from multihead.text.languages import Languages


@click.command(
    cls=Command,
    examples=(
        "multihead tune run --source val.de --target val.en --reverse back",
        "multihead tune run --source val.de --target val.en --mbr chrf --sample 20",
    ),
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--source", required=True, **FILE, help="Text of a validation set; plain or compressed (gz, xz, zst).")
@click.option("--target", required=True, **FILE, help="Its translation, line by line. Never use a test set.")
@choosing_flags("They are the candidates.", weights=False)
@ensemble_flags
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@quiet_flag
@search_flags
@machine_flags
@language_flags
def tune(
    model: Path,
    source: Path,
    target: Path,
    as_json: bool,
    batch_tokens: int,
    threads: int | None,
    device: str,
    languages: Languages,
    **asked: Any,
) -> None:
    """Find the weights by which translate and evaluate choose among candidates of MODEL.

    For several sets of features, BLEU is printed on the lines that the weights were found on, and on held-out lines;
    then the flags to copy. BLEU is compared at equal length, so that merely longer or shorter translations are no gain.
    Give translate and evaluate the same flags for candidates: --beam, --sample, --with, --reverse, --judge.
    """
    from multihead.cli.process import configure_process
    from multihead.cli.streams import counter
    from multihead.data.corpus import check_parallel

    choosing = ChoosingFlags.parse(asked, tuning=True)
    wishes = parse_search_flags(TranslateFlags.search_wishes(asked))
    check_positive(batch_tokens=batch_tokens, threads=threads)
    lines = check_parallel(source, target).lines
    configure_process()
    from multihead.judging.tune import tune as run

    translator = choosing.join(load_translator(model, wishes, threads, device, languages), device)
    with counter("translated", "sentences", lines) as count:
        found = run(translator, source, target, choosing.request(translator, batch_tokens), progress=count)
    if as_json:
        click.echo(json.dumps({"model": str(model), **found.as_dict()}, ensure_ascii=False))
    else:
        click.echo(
            f"{found}\n\nthe highest held-out BLEU at equal length: {choosing.flags_of_choice(found.best.weights)}"
        )
