"""``multihead evaluate``: score translations of a test set."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from multihead.cli import language_models
from multihead.cli.choosing import choosing_flags, ensemble_flags
from multihead.cli.engines import Runner, engine_flag, parse_engine, run_on_engine
from multihead.cli.options import (
    FILE,
    Command,
    check_positive,
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
from multihead.cli.translate import ChoosingFlags, TranslateFlags
from multihead.errors import ConfigurationError
from multihead.text.languages import Languages

if TYPE_CHECKING:
    from multihead.translating.request import TranslationRequest
    from multihead.translating.translator import Translator


@click.command(
    cls=Command,
    examples=(
        "multihead evaluate run --source test.de --target test.en",
        "multihead evaluate run --source test.de --target test.en --save test.out.en",
        "multihead evaluate run --source test.de --target test.en --against other",
        "multihead evaluate language-model --target test.txt",
    ),
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--source", **FILE, help="Text to translate; plain or compressed (gz, xz, zst).")
@click.option("--target", required=True, **FILE, help="Its translation, line by line; a language model's only text.")
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="SYSTEM",
    help="Second system, for a paired significance test: a run, a model folder, or a file, one translation per line.",
)
@click.option("--save", **FILE, help="Also write the translations here.")
@click.option(
    "--terms",
    **FILE,
    help="Wanted translations, as for `multihead translate`; also prints how many of them appear, in any form.",
)
@quiet_flag
@scoring_flags
@choosing_flags("To choose among several, add --mbr, --reverse or --judge.")
@ensemble_flags
@search_flags
@machine_flags
@language_flags
@engine_flag
def evaluate(
    model: Path,
    source: Path | None,
    target: Path,
    against: Path | None,
    save: Path | None,
    terms: Path | None,
    language: str | None,
    tokenize: Any,
    resamples: int | None,
    comet: str | None,
    as_json: bool,
    batch_tokens: int,
    threads: int | None,
    device: str,
    languages: Languages,
    engine: str | None,
    **asked: Any,
) -> None:
    """Translate --source with MODEL and score the result against --target.

    BLEU, chrF and TER are printed with 95% confidence intervals and signatures; with --comet, so is COMET. With
    --against, a second system is scored as well, with p, the probability that a difference this large arises by chance.
    If the references look tokenized or lower-cased, a remark on standard error says so. `multihead compare` compares
    more systems, and sentence by sentence; `multihead tune` finds weights for --reverse and --judge.

    For a language model, which has no --source, the perplexity of --target is printed: per token, and per character and
    per byte, which are comparable between models with different vocabularies.
    """
    from multihead.cli.process import configure_process
    from multihead.cli.streams import counter
    from multihead.data.corpus import check_parallel
    from multihead.data.text_files import read_lines
    from multihead.files import check_new_file, write_text
    from multihead.text.terms import for_sources, parse_terms

    if save is not None:
        check_new_file(save)
    choosing = ChoosingFlags.parse(asked)
    wishes = parse_search_flags(TranslateFlags.search_wishes(asked))
    check_positive(batch_tokens=batch_tokens, threads=threads)
    if source is None:
        if not language_models.is_given(model):
            raise ConfigurationError("--source is missing: only a language model is evaluated on --target alone")
        own = {"against": against, "save": save, "language": language, "tokenize": tokenize, "resamples": resamples}
        asked["with"] = asked.pop("others")  # by the name of the flag
        language_models.refuse({**own, "comet": comet, "terms": terms, "engine": engine, **asked}, languages)
        language_models.evaluate_text(model, target, batch_tokens, threads, device, as_json)
        return
    if engine is not None:
        parse_engine(engine, 1, device)
    lines = check_parallel(source, target).lines
    configure_process()
    from multihead.judging.compare import count_models
    from multihead.judging.evaluate import evaluate as run

    wanted = None if terms is None else parse_terms(read_lines(terms), terms)

    def request_of(translator: Translator) -> TranslationRequest:
        if wanted is not None:
            for_sources(wanted, translator.bundle.source_tokenizer)  # refused before a line is translated
        return replace(choosing.request(translator, batch_tokens), terms=wanted)

    runner: Runner | None = None
    if engine is not None:
        models = choosing.models(model, languages, device, threads)
        translator, request, runner = run_on_engine(engine, models, wishes, request_of)
    else:
        translator = choosing.join(load_translator(model, wishes, threads, device, languages), device)
        request = request_of(translator)

    def keep(translations: list[str]) -> None:  # scoring may fail, and translating takes longer
        if save is not None:
            write_text(save, "".join(line + "\n" for line in translations))

    searched = 1 + count_models([] if against is None else [against])
    with counter("translated", "sentences", lines * searched) as count:
        result = run(
            translator,
            source,
            target,
            language=language,
            tokenize=tokenize,
            resamples=resamples,
            comet=comet,
            request=request,
            progress=count,
            run=runner,
            against=against,
            load=lambda folder: load_translator(folder, wishes, threads, device, languages),
            translated=keep,
        )
    result = replace(result, name=str(model))
    if as_json:
        click.echo(json.dumps({"model": str(model), **result.as_dict()}, ensure_ascii=False))
    else:
        speed = result.sentences / result.seconds
        click.echo(f"{result}\n{result.sentences:,} sentences in {result.seconds:.1f} s, {speed:,.0f} a second")
    warn_about_preprocessing("the references", result.remarks)
    warn_about_cut(str(model), result.cut)
