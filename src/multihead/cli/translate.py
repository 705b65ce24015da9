"""``multihead translate``: lines in, lines out; flags for choosing.

`ChoosingFlags` are also those of ``evaluate``, ``tune``, ``backtranslate`` and ``distill``.

`lines.windows` says what is written, `lines.translate_file` what happens when it is stopped. An impossible request is
refused before a model is loaded; nothing here imports torch until then.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from multihead.cli.choosing import choosing_flags, ensemble_flags, parse_weights
from multihead.cli.engines import OnEngine, engine_flags, texts_option
from multihead.cli.options import (
    GUARD,
    Command,
    check_positive,
    decorated,
    flag_name,
    flag_under,
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
from multihead.cli.streams import STDIN_NAME, decode_lines, write_lines
from multihead.configuration import build
from multihead.data.text_files import LineStream, TextScan, open_text, read_lines
from multihead.decoding.search import Search
from multihead.errors import ConfigurationError, DataError, Interrupted
from multihead.judging.guard_signs import GuardMode, GuardSettings
from multihead.platforms import join_words
from multihead.text.languages import Languages
from multihead.translating.companions import Companions
from multihead.translating.request import USUAL, Metric, Sampling, TranslationRequest, Weights

if TYPE_CHECKING:
    from multihead.lines.side_files import SideFiles
    from multihead.lines.windows import LineOptions
    from multihead.text.terms import Terms
    from multihead.translating.translator import Translator

F = TypeVar("F", bound=Callable[..., Any])

_FILE: Any = {"type": click.Path(path_type=Path), "metavar": "FILE"}
_IDLE = ("beam", "stopping", "patience", "groups", "diversity", "coverage")
"""Settings of a search that have no effect on samples."""


def translate_flags(function: F) -> F:
    """Decorator that adds the flags beyond those of the search; `TranslateFlags.parse` reads them."""
    guarding = partial(click.option, cls=flag_under(GUARD))
    decorations: tuple[Callable[[Any], Any], ...] = (
        click.option(
            "--n-best",
            type=int,
            metavar="NUMBER",
            help="Write this many translations of each line as rows: line TAB score TAB text, best first.",
        ),
        click.option("--scores", is_flag=True, help="Write the best translation of each line as such a row."),
        click.option(
            "--max-source",
            type=int,
            metavar="NUMBER",
            help="Translate a line of more tokens, including the end symbol, sentence by sentence, and split sentences "
            "of more tokens in two; 0: never. [the usual and the longest length in the model's training text]",
        ),
        click.option("--prefixes", **_FILE, help="How each translation begins: a file with one line per input line."),
        click.option(
            "--phrases",
            **_FILE,
            help="What each translation contains: a file with one line per input line, TAB between phrases, ||| "
            "between alternatives of a phrase.",
        ),
        click.option(
            "--terms",
            **_FILE,
            help="Wanted translations, which the model inflects: a file with a term per line, source words TAB base "
            "form. The model must have been trained with `train --terms`.",
        ),
        choosing_flags("One is written as a line, several as rows."),
        ensemble_flags,
        guarding(
            "--guard",
            type=click.Choice(["off", *get_args(GuardMode)]),
            default="off",
            show_default=True,
            help="Report suspicious translations (mark), or search for them again more safely (retry).",
        ),
        guarding(
            "--guard-threshold",
            type=float,
            metavar="NUMBER",
            help="A translation is suspicious from this score on. [0.5]",
        ),
        guarding("--guard-closer", is_flag=True, help="Find more by also scoring each translation with the model."),
    )
    return decorated(function, decorations)


@dataclass(frozen=True)
class ChoosingFlags:
    """The flags of `choosing_flags` and `ensemble_flags`."""

    sampling: Sampling | None
    mbr: Metric | None
    weights: Weights | None
    both: bool
    companions: Companions

    @classmethod
    def parse(cls, flags: Mapping[str, Any], tuning: bool = False) -> ChoosingFlags:
        """Parse the flags, of which ``beam`` decides whether there are hypotheses beside samples.

        Args:
            flags: all flags of the command.
            tuning: whether the weights are sought, so that there is a choice in any case.

        Raises:
            ConfigurationError: an impossible value; flags that exclude or need each other.
        """
        drawing = {name: flags[name] for name in Sampling.model_fields if flags[name] is not None}
        sampling = build(Sampling, drawing, "the command line") if "sample" in drawing else None
        require_flag("--sample", sampling is not None, drawing)
        require_flag("--with", bool(flags["others"]), ["mean"] if flags["mean"] else [])
        mbr, models = flags["mbr"], {name: tuple(flags[name]) for name in ("others", "reverse", "judge")}
        weights = USUAL if tuning else parse_weights(flags.get("weights"), models["reverse"], models["judge"])
        chooses = mbr is not None or weights is not None
        both = sampling is not None and chooses and flags["beam"] is not None
        if sampling is not None:
            names = ("n_best", "phrases") if both else (*_IDLE, "n_best", "phrases")
            idle = [name for name in names if flags.get(name) is not None]
            if idle:
                raise ConfigurationError(f"{flag_name(idle[0])} does nothing for samples: leave it out, or --sample")
        companions = Companions(**models, mean=flags["mean"] or "probabilities", datastore=flags["datastore"])
        return cls(sampling, mbr, weights, both, companions)

    @property
    def asked(self) -> dict[str, Any]:
        """The fields of a `TranslationRequest`."""
        return {"sampling": self.sampling, "metric": self.mbr, "weights": self.weights, "both": self.both}

    def flags_of_choice(self, weights: Weights) -> str:
        """The flags that choose by these weights."""
        if not any(value for name, value in weights.model_dump().items() if name != "forward"):
            if self.sampling is not None:  # samples among which nothing chooses are written as rows
                return f"--weights {weights}"
            return "leave out --mbr, --reverse, --judge and --weights"
        models = [f"--reverse {join_words([str(path)])}" for path in self.companions.reverse if weights.reverse]
        models += [f"--judge {join_words([str(path)])}" for path in self.companions.judge if weights.judge]
        metric = [] if self.mbr is None else [f"--mbr {self.mbr}"]
        return " ".join([*models, *metric, f"--weights {weights}"])

    def request(self, translator: Translator, batch_tokens: int) -> TranslationRequest:
        """The request of a command, without texts."""
        return TranslationRequest(translator.search_settings(), **self.asked, batch_tokens=batch_tokens)

    def join(self, translator: Translator, device: str) -> Translator:
        """The translator with the models and the datastore of the flags; errors as of `Companions.join`."""
        return translator if self.companions == Companions() else self.companions.join(translator, device)

    def models(self, model: Path, languages: Languages, device: str, threads: int | None) -> dict[str, Any]:
        """The arguments of `lines.translate_shards.Models`."""
        return {
            "model": model.absolute(),
            "companions": self.companions.absolute(),
            "languages": languages,
            "device": device,
            "threads": threads,
        }

    def digest(self, model: Path, languages: Languages) -> str:
        """Identifies all models, their languages, and how they are averaged."""
        return self.companions.identity(model, languages)


@dataclass(frozen=True)
class TranslateFlags:
    """The flags of `translate_flags`."""

    n_best: int | None
    scores: bool
    max_source: int | None
    prefixes: Path | None
    phrases: Path | None
    terms: Terms | None
    choosing: ChoosingFlags
    guard: GuardSettings | None

    @classmethod
    def parse(cls, flags: Mapping[str, Any]) -> TranslateFlags:
        """Parse all flags of the command.

        Raises:
            ConfigurationError: an impossible value; flags that exclude or need each other.
        """
        choosing = ChoosingFlags.parse(flags)
        told = {"threshold": flags["guard_threshold"], "closer": flags["guard_closer"] or None}
        guarding = {name: value for name, value in told.items() if value is not None}
        off = flags["guard"] == "off"
        guard = None if off else build(GuardSettings, {"mode": flags["guard"], **guarding}, "the command line")
        require_flag("--guard mark or --guard retry", not off, [f"guard_{name}" for name in guarding])
        if (flags["groups"] or 1) > 1 and flags["phrases"] is not None:
            raise ConfigurationError("--phrases does not work with --groups: leave out one of them")
        names = ("n_best", "scores", "max_source", "prefixes", "phrases")
        terms = None
        if (path := flags["terms"]) is not None:
            from multihead.text.terms import parse_terms

            terms = parse_terms(read_lines(path), path)
        return cls(**{name: flags[name] for name in names}, terms=terms, choosing=choosing, guard=guard)

    @staticmethod
    def search_wishes(flags: Mapping[str, Any]) -> dict[str, Any]:
        """The flags of the search."""
        return {name: flags[name] for name in Search.model_fields}

    def options(self, translator: Translator, batch_tokens: int) -> LineOptions:
        """How this translator translates lines, and what is written."""
        from multihead.lines.windows import LineOptions
        from multihead.translating.lengths import most_tokens

        request = TranslationRequest(
            translator.search_settings(),
            n_best=self.n_best,
            **self.choosing.asked,
            terms=self.terms,
            scores=self.scores or self.n_best is not None or self.guard is not None,
            batch_tokens=batch_tokens,
        )
        if self.terms is not None:
            from multihead.text.terms import for_sources

            for_sources(self.terms, translator.bundle.source_tokenizer)  # refused before a line is read
        maxima = most_tokens(translator.lengths, translator.reach, self.max_source)
        return LineOptions(request, self.scores, self.guard, *maxima)

    def files(self) -> SideFiles | None:
        """The side files, if there are any.

        Raises:
            DataError: one cannot be read, or is not text.
        """
        if self.prefixes is None and self.phrases is None:
            return None
        from multihead.lines.side_files import SideFiles
        from multihead.lines.translate_file import check_input

        prefixes, phrases = (None if path is None else check_input(path) for path in (self.prefixes, self.phrases))
        return SideFiles(prefixes, phrases)


@click.command(
    cls=Command,
    examples=(
        "multihead translate run < input.de > output.en",
        "multihead translate run --input book.de.xz --output book.en",
        "multihead translate run --n-best 3 --beam 8 < input.de",
    ),
)
@click.argument("model", type=click.Path(path_type=Path))
@texts_option("--input", "Read this instead of standard input; plain or compressed (gz, xz, zst).")
@click.option(
    "--output",
    metavar="FILE",
    help="Write here instead of to standard output; if stopped, the same command continues. A name that ends in "
    ".parquet gives a table of sources and translations. Needs --input.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Continue an unfinished --output of an earlier command; never begin a new one.",
)
@click.option(
    "--draft",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="With --beam 1: a much smaller model with the same vocabulary, whose guesses MODEL checks. The translations "
    "are the same, and come faster if MODEL is large and sentences arrive one by one.",
)
@quiet_flag
@translate_flags
@search_flags
@machine_flags
@language_flags
@engine_flags
def translate(
    model: Path,
    sources: tuple[str, ...],
    output: str | None,
    resume: bool,
    draft: Path | None,
    batch_tokens: int,
    threads: int | None,
    device: str,
    languages: Languages,
    engine: str | None,
    column: str | None,
    **flags: Any,
) -> None:
    """Translate standard input, or a file, with MODEL (a run or model folder), one sentence per line.

    One line is written for each input line, in order; an empty line stays empty.
    """
    from multihead.cli.process import configure_process

    parsed = TranslateFlags.parse(flags)
    wishes = parse_search_flags(TranslateFlags.search_wishes(flags))
    check_positive(batch_tokens=batch_tokens, threads=threads, n_best=parsed.n_best)
    for name in ("prefixes", "phrases") if draft is not None else ():
        if getattr(parsed, name) is not None:
            raise ConfigurationError(
                f"--draft guesses for the compiled search, which has no {flag_name(name)}: leave out one of them"
            )
    if engine is not None or is_table(output):
        if draft is not None:
            raise ConfigurationError("--draft works in this process only: leave it out, or --engine and .parquet")
        models = parsed.choosing.models(model, languages, device, threads)
        on_engine = OnEngine(engine, column, sources, output or "", models, parsed.prefixes, parsed.phrases)
        on_engine.check(resume)
        on_engine.run(wishes, lambda translator: parsed.options(translator, batch_tokens))
        return
    require_flag("--engine", False, ["column"] if column else [])
    source, file = single_file(sources, "--input"), single_file([] if output is None else [output], "--output")
    _check_output(source, file, resume)
    configure_process()
    from multihead.lines.translate_file import check_input

    text, files = None if source is None else check_input(source), parsed.files()
    if text is not None and files is not None:
        files.check_lines(text)
    loaded = load_translator(model, wishes, threads, device, languages, lazily=True)
    translator = parsed.choosing.join(loaded, device)
    if draft is not None:
        translator = _with_draft(translator, draft, parsed.choosing.sampling is not None)
    options = parsed.options(translator, batch_tokens)
    if text is None:
        _through_pipe(translator, options, files, sys.stdin.buffer)
    elif file is None:
        with open_text(text.path) as stream:
            _through_pipe(translator, options, files, stream, text)
    else:
        write_to_file(translator, options, files, parsed.choosing.digest(model, languages), text, file)


def _with_draft(translator: Translator, draft: Path, samples: bool) -> Translator:
    """The translator with a draft.

    Raises:
        FormatError: the folder is not a model.
        ConfigurationError: it does not fit, or the search is not a compiled greedy one.
    """
    from multihead.translating.translator import Translator

    beam = translator.search_settings().beam
    if samples:
        raise ConfigurationError(
            "--draft guesses for greedy search, and --sample was given: leave out --draft or --sample"
        )
    if beam > 1:
        raise ConfigurationError(
            f"--draft guesses for greedy search, and the beam is {beam}: add --beam 1, or leave out --draft"
        )
    if not translator.compiled:
        raise ConfigurationError(
            f"--draft guesses for the compiled search, and {translator.uncompiled}: leave out --draft"
        )
    if translator.datastore is not None:
        raise ConfigurationError("--draft does not work with a datastore: leave out --draft or --datastore")
    bundle = translator.bundle
    languages = Languages(bundle.source_language, bundle.target_language) if bundle.directions else Languages()
    return translator.with_draft(Translator.load(draft, languages=languages, lazily=True))


def _check_output(source: Path | None, output: Path | None, resume: bool) -> None:
    """Raise ConfigurationError if an output cannot be begun, or with ``resume`` continued."""
    from multihead.lines.growing_file import check_begun, check_free

    if output is None:
        if resume:
            raise ConfigurationError("--resume needs --output: only a file can be resumed")
        return
    if source is None:
        raise ConfigurationError(
            "--output needs --input: a pipe cannot be read again to resume the output. "
            "To write a file from standard input write '> FILE'"
        )
    check_free(output)
    if resume:
        check_begun(output)


def _through_pipe(
    translator: Translator,
    options: LineOptions,
    files: SideFiles | None,
    stream: LineStream,
    text: TextScan | None = None,
) -> None:
    """Write to standard output, window by window, up to the first line that is not text."""
    from multihead.cli.process import remark
    from multihead.cli.streams import counter
    from multihead.lines.windows import translated

    fault: list[DataError] = []
    name, total = (STDIN_NAME, None) if text is None else (text.path, text.lines)
    with counter("translated", "lines", total) as count:
        lines = decode_lines(stream, name, fault)
        try:
            for window in translated(translator, lines, options, files=files, progress=count):
                write_lines(window.rows)
                for line in window.remarks:
                    remark(line)
        except DataError as error:  # of a side file: the text ended too soon, at the line that is not text
            if not fault or (error.line or 0) < (fault[0].line or 0):
                raise
    if fault:
        raise fault[0]


def write_to_file(
    translator: Translator,
    options: LineOptions,
    files: SideFiles | None,
    model: str,
    text: TextScan,
    output: Path,
    *,
    remarks: bool = True,
) -> None:
    """Write to a file; if stopped, say where the same command will continue.

    Args:
        translator, options, files, model, output: as `lines.translate_file.translate_file` has them.
        text: the input.
        remarks: print notes on single lines.
    """
    from multihead.cli.process import remark
    from multihead.cli.streams import counter
    from multihead.lines.growing_file import lines_done
    from multihead.lines.translate_file import translate_file

    with counter("translated", "lines", text.lines) as count:
        try:
            translate_file(
                translator,
                model,
                text,
                output,
                options,
                files=files,
                begin=count.begin,
                progress=count,
                remark=remark if remarks else lambda _: None,
            )
        except KeyboardInterrupt:
            done = lines_done(output)
            message = f"stopped after line {done:,} of {text.lines:,}; run the same command again to continue"
            raise Interrupted(signal.SIGINT, message if done else "stopped before anything was done") from None
