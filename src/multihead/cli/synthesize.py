"""``multihead backtranslate``, ``distill``: see `lines.synthetic_pairs`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from multihead.cli.choosing import default_of_samples, ensemble_flags
from multihead.cli.engines import OnEngine, count_lines, engine_flags, texts_option
from multihead.cli.help import tell
from multihead.cli.options import (
    CHOICE,
    GUARD,
    Command,
    check_positive,
    decorated,
    flag_under,
    flags_of,
    is_table,
    language_flags,
    load_translator,
    machine_flags,
    parse_search_flags,
    quiet_flag,
    require_flag,
    search_flags,
    single_file,
)
from multihead.cli.translate import TranslateFlags, write_to_file
from multihead.errors import ConfigurationError
from multihead.text.languages import Languages
from multihead.translating.request import Sampling

if TYPE_CHECKING:
    from multihead.lines.windows import LineOptions
    from multihead.translating.translator import Translator

F = TypeVar("F", bound=Callable[..., Any])

_NOT_HERE = {
    "scores": False,
    "max_source": None,
    "prefixes": None,
    "phrases": None,
    "terms": None,
    "guard_closer": False,
    "mbr": None,
    "reverse": (),
    "judge": (),
    "weights": None,
}
"""Flags of `translate` that these commands do not have."""


def _default_of_samples(name: str) -> str:
    return "Each of them makes a pair." if name == "sample" else default_of_samples(name)


def _pair_flags(function: F) -> F:
    """Decorator that adds MODEL and the flags of both commands."""
    decorations = (
        click.argument("model", type=click.Path(path_type=Path)),
        click.option(
            "--output",
            metavar="FILE",
            required=True,
            help="Write the pairs here (.tsv or .parquet); if stopped, the same command continues.",
        ),
        click.option(
            "--n-best",
            type=int,
            metavar="NUMBER",
            help="Make this many pairs from each line, with its best translations. [1]",
        ),
        flags_of(Sampling, _default_of_samples, CHOICE),
        ensemble_flags,
        click.option(
            "--guard/--no-guard",
            "guarded",
            cls=flag_under(GUARD),
            default=True,
            show_default=True,
            help="Leave out suspicious translations (docs/guard.md).",
        ),
        click.option(
            "--guard-threshold",
            cls=flag_under(GUARD),
            type=float,
            metavar="NUMBER",
            help="A translation is suspicious from this score on. [0.5]",
        ),
        quiet_flag,
        search_flags,
        machine_flags,
        language_flags,
        engine_flags,
    )
    return decorated(function, decorations)


@click.command(
    cls=Command,
    examples=(
        "multihead backtranslate back --monolingual news.en --output synthetic.tsv",
        "multihead backtranslate back --monolingual news.en --output b.tsv --sample 3",
    ),
)
@texts_option("--monolingual", "Text in the target language, one sentence per line.", required=True)
@click.option(
    "--tag", default="<bt>", show_default=True, metavar="WORD", help='First word of each synthetic source; "" for none.'
)
@_pair_flags
def backtranslate(tag: str, **flags: Any) -> None:
    """Make training pairs from text in the target language alone.

    MODEL (a run or model folder) translates from the target to the source language: it was trained with --source and
    --target exchanged. Train on the result beside your own pairs: --corpus "train.de train.en" --corpus synthetic.tsv.
    """
    _write_pairs("--monolingual", {"backwards": True, "tag": tag}, **flags)


@click.command(
    cls=Command,
    examples=(
        "multihead distill run --source train.de --output taught.tsv",
        "multihead distill run --with other --source train.de --output taught.tsv",
    ),
)
@texts_option("--source", "Text in the source language, one sentence per line.", required=True)
@_pair_flags
def distill(**flags: Any) -> None:
    """Make training pairs for a student: source text with the translations of MODEL, the teacher.

    With --with, the teacher is an ensemble. A smaller model trained on the result comes closer to the teacher than one
    trained on the references, and needs a narrower beam.
    """
    _write_pairs("--source", {}, **flags)


def _write_pairs(
    input_flag: str,
    side: dict[str, Any],
    *,
    model: Path,
    sources: tuple[str, ...],
    output: str,
    guarded: bool,
    batch_tokens: int,
    threads: int | None,
    device: str,
    languages: Languages,
    engine: str | None,
    column: str | None,
    **flags: Any,
) -> None:
    from multihead.cli.process import configure_process
    from multihead.lines.growing_file import check_free

    if not guarded and flags["guard_threshold"] is not None:
        raise ConfigurationError("--guard-threshold does nothing with --no-guard: leave out one of them")
    parsed = TranslateFlags.parse({**flags, **_NOT_HERE, "guard": "mark" if guarded else "off"})
    wishes = parse_search_flags(TranslateFlags.search_wishes(flags))
    check_positive(batch_tokens=batch_tokens, threads=threads, n_best=parsed.n_best)
    if Path(output).suffix.lower() not in (".tsv", ".parquet"):
        raise ConfigurationError(
            f"{output}: the pairs are written as TSV or Parquet: expected a name that ends in .tsv or .parquet"
        )

    def options_of(translator: Translator) -> LineOptions:
        from multihead.lines.synthetic_pairs import PairOptions

        return PairOptions(**{**vars(parsed.options(translator, batch_tokens)), **side})

    if engine is not None or is_table(output):
        on_engine = OnEngine(engine, column, sources, output, parsed.choosing.models(model, languages, device, threads))
        on_engine.check()
        lines = on_engine.run(wishes, options_of, remarks=False)
    else:
        require_flag("--engine", False, ["column"] if column else [])
        path, file = single_file(sources, input_flag), single_file([output], "--output")
        assert path is not None
        assert file is not None
        check_free(file)
        configure_process()
        from multihead.lines.synthetic_pairs import check_tag
        from multihead.lines.translate_file import check_input

        check_tag(side.get("tag", ""))
        text = check_input(path)
        translator = parsed.choosing.join(load_translator(model, wishes, threads, device, languages), device)
        digest = parsed.choosing.digest(model, languages)
        write_to_file(translator, options_of(translator), None, digest, text, file, remarks=False)
        lines = text.lines
    tell(f"{count_lines(output):,} pairs from {lines:,} lines are in {output}")
