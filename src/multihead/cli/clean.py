"""``multihead clean``: remove faulty pairs; see `cleaning.clean`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from multihead.cleaning.settings import CleanSettings
from multihead.cli.engines import engine_flag, parse_engine
from multihead.cli.help import tell
from multihead.cli.options import FILE, FILTERS, Command, flags_of, merge_config_file, quiet_flag


@click.command(
    cls=Command,
    examples=(
        "multihead clean --source pairs.tsv --output clean.tsv",
        "multihead clean --source pairs.tsv --output clean.tsv --held-out test.tsv",
        "multihead clean --source de --target en --output de.ok --output-target en.ok",
    ),
)
@click.option("--source", **FILE, required=True, help="Sentences, one per line; or a file of pairs.")
@click.option("--target", **FILE, help="Their translations, line by line.")
@click.option(
    "--output",
    **FILE,
    required=True,
    help="Kept sources with --output-target, else kept pairs (.tsv, .jsonl); .gz, .xz or .zst compresses.",
)
@click.option("--output-target", **FILE, help="Kept targets.")
@click.option("--removed", **FILE, help="Removed pairs with line, reason and score. [OUTPUT.removed.tsv]")
@click.option("--report", **FILE, help="Counts, distributions and examples as a web page. [OUTPUT.report.html]")
@click.option(
    "--held-out",
    multiple=True,
    metavar="FILES",
    help='A test set whose pairs must not remain: FILE.tsv or "FILE FILE". Repeatable.',
)
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="A run or model folder: pairs that it finds improbable are removed (filter alignment).",
)
@click.option(
    "--source-language", metavar="CODE", help="Code of the source language, such as de. [from the file or its name]"
)
@click.option(
    "--target-language", metavar="CODE", help="Code of the target language, such as en. [from the file or its name]"
)
@click.option("--config", **FILE, help="TOML file with any of the settings below.")
@quiet_flag
@flags_of(CleanSettings, heading=FILTERS)
@engine_flag
def clean(
    source: Path,
    target: Path | None,
    output: Path,
    output_target: Path | None,
    removed: Path | None,
    report: Path | None,
    config: Path | None,
    engine: str | None,
    **flags: Any,
) -> None:
    """Remove faulty pairs from a corpus, and record the reason of each.

    Filters: broken characters, length, ratio of lengths, copied sources, numbers and URLs that differ, exchanged sides,
    test sets (--held-out), wrong languages, translations that --model finds improbable, duplicates and near duplicates.
    Kept pairs stay in order. If stopped, the same command continues.
    """
    named = ("held_out", "model", "source_language", "target_language")
    given = {name: flags.pop(name) for name in named}
    chosen = None if engine is None else parse_engine(engine, 1, "cpu")
    settings = CleanSettings(**merge_config_file(CleanSettings, config, flags))
    from multihead.cleaning.clean import Outputs
    from multihead.cleaning.clean import clean as work
    from multihead.cli.process import configure_process, remark
    from multihead.cli.streams import counter

    configure_process()
    found = work(
        source,
        target,
        Outputs.named(output, output_target, removed, report),
        held_out=given["held_out"],
        model=given["model"],
        languages=(given["source_language"], given["target_language"]),
        settings=settings,
        engine=chosen,
        watch=lambda verb, total: counter(verb, "bytes" if verb == "uploaded" else "pairs", total),
    )
    for name, why in found.idle.items():
        remark(f"not applied: {name} ({why})")
    for reason, count in found.counts.items():
        if reason and count:
            remark(f"{count:>12,}  {reason}")
    tell(f"{found.kept:,} of {found.read:,} pairs kept, {found.removed:,} removed")
