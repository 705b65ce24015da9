"""``multihead compare``: compare systems on a test set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from multihead.cli.options import (
    FILE,
    NUMBER,
    Command,
    check_positive,
    flag_name,
    language_flags,
    load_translator,
    machine_flags,
    parse_search_flags,
    quiet_flag,
    scoring_flags,
    search_flags,
    warn_about_cut,
    warn_about_preprocessing,
)
from multihead.errors import ConfigurationError
from multihead.text.languages import Languages


@click.command(
    cls=Command,
    examples=(
        "multihead compare run other --source test.de --target test.en",
        "multihead compare theirs.en ours.en --target test.en",
    ),
)
@click.argument("systems", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--source",
    **FILE,
    help="Text to translate; plain or compressed (gz, xz, zst). Not needed if all SYSTEMS are files.",
)
@click.option("--target", required=True, **FILE, help="Its translation, line by line.")
@click.option(
    "--test",
    type=click.Choice(["randomization", "bootstrap"]),
    default="randomization",
    show_default=True,
    help="Significance test: paired approximate randomization, or the paired bootstrap.",
)
@click.option("--trials", **NUMBER, help="Number of randomization trials. [10000, fewer above 6,400 sentences]")
@click.option(
    "--show", **NUMBER, default=5, show_default=True, help="How many of the most different sentences to print."
)
@quiet_flag
@scoring_flags
@search_flags
@machine_flags
@language_flags
def compare(
    systems: tuple[Path, ...],
    source: Path | None,
    target: Path,
    test: Any,
    trials: int | None,
    show: int,
    language: str | None,
    tokenize: Any,
    resamples: int | None,
    comet: str | None,
    as_json: bool,
    batch_tokens: int,
    threads: int | None,
    device: str,
    languages: Languages,
    **asked: Any,
) -> None:
    """Compare translations of one test set: SYSTEMS are runs, model folders, or files with one translation per line.

    Each system is compared with the first. BLEU, chrF and TER are printed with 95% confidence intervals and with p, the
    probability that a difference this large arises by chance; then statistics of lengths and repetitions, and the
    sentences that differ most. The search flags apply to every model.
    """
    from multihead.cli.process import configure_process
    from multihead.cli.streams import counter
    from multihead.data.text_files import scan

    wishes = parse_search_flags(asked)
    check_positive(batch_tokens=batch_tokens, threads=threads)
    if trials is not None and test != "randomization":
        raise ConfigurationError(f"--trials does nothing with --test {test}: leave it out, or give --resamples")
    lines = scan(target).lines
    configure_process()
    from multihead.judging.compare import compare as run
    from multihead.judging.compare import count_models

    models = count_models(systems)
    sides = {"source_language": languages.source, "target_language": languages.target}
    of_models = [*wishes, *(name for name, code in sides.items() if code is not None)]
    if of_models and not models and all(map(Path.exists, systems)):
        raise ConfigurationError(f"{flag_name(of_models[0])} is for models, and all SYSTEMS are files: leave it out")
    with counter("translated", "sentences", lines * models) as count:
        result = run(
            *systems,
            target=target,
            source=source,
            language=language,
            tokenize=tokenize,
            test=test,
            resamples=resamples,
            trials=trials,
            show=show,
            batch_tokens=batch_tokens,
            load=lambda folder: load_translator(folder, wishes, threads, device, languages),
            progress=count,
            comet=comet,
        )
    click.echo(json.dumps(result.as_dict(), ensure_ascii=False) if as_json else str(result))
    warn_about_preprocessing("the references", result.remarks)
    for system in result.systems:
        warn_about_preprocessing(f"{system.name}: the translations", system.remarks)
        warn_about_cut(system.name, system.cut)
