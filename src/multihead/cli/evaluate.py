"""``multihead evaluate``: score translations of a test set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from multihead.cli.choosing import choosing_flags, ensemble_flags
from multihead.cli.options import (
    FILE,
    check_positive,
    language_flags,
    load_translator,
    machine_flags,
    parse_search_flags,
    scoring_flags,
    search_flags,
    warn_about_cut,
    warn_about_preprocessing,
)
from multihead.cli.translate import ChoosingFlags, TranslateFlags
from multihead.text.languages import Languages


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--source", required=True, **FILE, help="Text to translate; plain or compressed (gz, xz, zst).")
@click.option("--target", required=True, **FILE, help="Its translation, line by line.")
@click.option("--save", **FILE, help="Also write the translations here.")
@scoring_flags
@choosing_flags()
@ensemble_flags
@search_flags
@machine_flags
@language_flags
def evaluate(
    model: Path,
    source: Path,
    target: Path,
    save: Path | None,
    language: str | None,
    tokenize: Any,
    resamples: int | None,
    as_json: bool,
    batch_tokens: int,
    threads: int | None,
    device: str,
    languages: Languages,
    **asked: Any,
) -> None:
    """Translate --source with MODEL and score the result against --target.

    BLEU, chrF and TER are printed with their 95% intervals and signatures. If the references look tokenized or
    lower-cased, a remark is written to standard error. To compare models, see multihead compare; to choose weights for
    --reverse, multihead tune.
    """
    from multihead.cli.process import configure_process
    from multihead.cli.streams import counter
    from multihead.data.corpus import check_parallel
    from multihead.files import check_new_file, write_text

    if save is not None:
        check_new_file(save)
    choosing = ChoosingFlags.parse(asked)
    wishes = parse_search_flags(TranslateFlags.search_wishes(asked))
    check_positive(batch_tokens=batch_tokens, threads=threads)
    lines = check_parallel(source, target).lines
    configure_process()
    from multihead.judging.evaluate import evaluate as run

    translator = choosing.join(load_translator(model, wishes, threads, device, languages), device)
    with counter("translated", "sentences", lines) as count:
        result = run(
            translator,
            source,
            target,
            language=language,
            tokenize=tokenize,
            resamples=resamples,
            request=choosing.request(translator, batch_tokens),
            progress=count,
        )
    if save is not None:
        write_text(save, "".join(line + "\n" for line in result.hypotheses))
    if as_json:
        click.echo(json.dumps({"model": str(model), **result.as_dict()}, ensure_ascii=False))
    else:
        speed = result.sentences / result.seconds
        click.echo(f"{result}\n{result.sentences:,} sentences in {result.seconds:.1f} s, {speed:,.0f} a second")
    warn_about_preprocessing("the references", result.remarks)
    warn_about_cut(str(model), result.cut)
