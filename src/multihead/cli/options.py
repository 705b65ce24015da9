"""Command-line flags: from settings, for searches and for scores.

`flags_of` gives a command one flag for each field of a settings class, with the same help, checks and errors as in a
TOML file. The flags of a search are the fields of `decoding.search.Search`, so every command that translates has all of
them; `load_translator` makes a `Translator` from them. Commands that score share `scoring_flags`.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import click

from multihead.cli.help import ExampleCommand
from multihead.cli.process import QUIET, remark
from multihead.configuration import MOST_BATCH, MOST_THREADS, Settings, build, read_toml
from multihead.decoding.search import Search
from multihead.errors import ConfigurationError, shown
from multihead.planning.sections import HEADINGS, section_of
from multihead.platforms import DEVICES
from multihead.text.languages import Languages

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from multihead.metrics.preprocessing import PreprocessingRemark
    from multihead.translating.translator import Translator

F = TypeVar("F", bound=Callable[..., Any])

FILE: Any = {"type": click.Path(path_type=Path), "metavar": "FILE"}
NUMBER: Any = {"type": int, "metavar": "NUMBER"}

_FOLDERS = ("output", "data", "from_model", "teacher")
_FILES = ("source", "target", "valid_source", "valid_target", "text", "valid_text", "weights", "alignments", "terms")
_METAVARS = {"budget": "TIME", "preset": "NAME", "corpus": "FILES", **dict.fromkeys(_FOLDERS, "FOLDER")}
_METAVARS |= dict.fromkeys(_FILES, "FILE")
_COMPLETED = {"FILE": "file", "FILES": "file", "FOLDER": "dir"}
"""What a shell completes for a flag with this value."""


FILTERS, CHOICE, GUARD, ENGINES = "Filters", "Samples and choice", "Guard", "Engines"
_LANGUAGES, _MACHINE = "Languages", "Machine"
"""Headings of flags that several commands have; those of settings are in `planning.sections`."""


class Flag(click.Option):
    """A flag with a heading in ``--help``."""

    heading = ""


class Command(ExampleCommand):
    """A command whose ``--help`` has examples, and lists flags under headings, those without a heading first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading in ("", FILTERS, *HEADINGS, CHOICE, GUARD, _LANGUAGES, _MACHINE, ENGINES):
            options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
            flags = [p for p in options if heading == (p.heading if isinstance(p, Flag) else "")]
            records = [record for record in (flag.get_help_record(ctx) for flag in flags) if record is not None]
            if records:
                with formatter.section(heading or "Options"):
                    formatter.write_dl(records)


def flags_of(
    cls: type[Settings], describe_default: Callable[[str], str] = lambda _: "", heading: str | None = None
) -> Callable[[F], F]:
    """A decorator that adds one flag for each field of ``cls``: ``vocab_size`` becomes ``--vocab-size``.

    A flag can be repeated if the field holds several values.

    Args:
        cls: the settings.
        describe_default: text on the value without the flag, from the name of a field; appended to the help.
        heading: the heading of the flags; by default that of the class that declares the field.
    """

    def decorate(function: F) -> F:
        for name, field in reversed(cls.model_fields.items()):
            under = section_of(cls, name) if heading is None else heading
            kind, repeatable = _click_type(field.annotation)
            flag = name.replace("_", "-")
            spelling = f"--{flag}/--no-{flag}" if kind is click.BOOL else f"--{flag}"
            options: dict[str, Any] = {} if kind is click.BOOL else {"type": kind, "metavar": _metavar(name, kind)}
            if options.get("metavar") in _COMPLETED:
                options["shell_complete"] = complete_as(_COMPLETED[options["metavar"]])
            if repeatable:
                options |= {"multiple": True, "callback": _none_if_empty}
            text = " ".join(f"{_as_help(cls, field.description or '')} {describe_default(name)}".split())
            function = click.option(spelling, name, default=None, help=text, cls=flag_under(under), **options)(function)
        return function

    return decorate


def _as_help(cls: type[Settings], description: str) -> str:
    """The description of a field for ``--help``, which has flags instead of fields, and no marks of code."""
    return re.sub("``(.+?)``", lambda code: flag_name(code[1]) if code[1] in cls.model_fields else code[1], description)


def complete_as(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """For a value that is a text to click: what lets a shell complete files (``file``) or folders (``dir``)."""

    def complete(_context: click.Context, _flag: click.Parameter, begun: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(begun, type=kind)]

    return complete


def flag_under(heading: str) -> type[Flag]:
    """The class of flags under a heading, for ``cls`` of `click.option`."""
    return type("Flag", (Flag,), {"heading": heading})


def _none_if_empty(_context: click.Context, _flag: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...] | None:
    return values or None


def _click_type(annotation: Any) -> tuple[click.ParamType[Any], bool]:
    """The click type of a field, and whether its flag can be repeated. The settings class checks ranges."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    parts = typing.get_args(annotation) if is_union else (annotation,)
    (kind,) = [part for part in parts if part is not type(None)]
    if typing.get_origin(kind) is tuple and typing.get_args(kind)[-1] is Ellipsis:
        return click.STRING, True
    if typing.get_origin(kind) is Literal:
        return click.Choice(typing.get_args(kind)), False
    simple: dict[Any, click.ParamType[Any]] = {int: click.INT, float: click.FLOAT, bool: click.BOOL}
    return simple.get(kind, click.STRING), False


def _metavar(name: str, kind: click.ParamType[Any]) -> str | None:
    if isinstance(kind, click.Choice):
        return None
    return _METAVARS.get(name, "NUMBER" if kind in (click.INT, click.FLOAT) else "TEXT")


def merge_config_file(
    cls: type[Settings], config: Path | None, flags: dict[str, Any], within: type[Settings] | None = None
) -> dict[str, Any]:
    """Settings of a TOML file, overridden by flags; both are checked.

    Args:
        cls: the settings.
        config: the file.
        flags: values from the command line; None if a flag was not given.
        within: a larger settings class the file may be for; fields not in ``cls`` are checked and dropped.

    Raises:
        ConfigurationError: an unknown key or an invalid value; the message names the file or the command line.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    values = given if config is None else {**read_toml(config), **given}
    origins = [str(config)] if config is not None else []
    origin = " and ".join([*origins, "the command line"] if given else origins) or "the settings"
    build(within or cls, values, origin)
    values = {name: value for name, value in values.items() if name in cls.model_fields}
    build(cls, values, origin)
    return values


def check_search(
    beam: int | None, alpha: float | None, min_length: int | None = None, max_length: int | None = None
) -> None:
    """Check settings of a search before a model is loaded.

    Raises:
        ConfigurationError: a beam below 1, a length penalty below 0 or not finite, a minimum length above the maximum.
    """
    values = {"beam": beam, "alpha": alpha, "min_length": min_length, "max_length": max_length}
    build(Search, {name: value for name, value in values.items() if value is not None}, "the command line")


def quiet_flag(function: F) -> F:
    """A decorator that adds ``--quiet``, for the functions of `cli.process` and for `streams.counter`."""

    def note(context: click.Context, _flag: click.Parameter, given: bool) -> None:
        if given:
            context.meta[QUIET] = True

    return click.option(
        "-q",
        "--quiet",
        is_flag=True,
        expose_value=False,
        callback=note,
        help="No progress and no remarks: only errors and the result.",
    )(function)


def decorated(function: F, decorations: Iterable[Callable[[Any], Any]]) -> F:
    """The function of a command with several decorators, the first of them outermost, as if they stood above it."""
    for decoration in reversed([*decorations]):
        function = decoration(function)
    return function


def search_flags(function: F) -> F:
    """A decorator that adds a flag for each field of `Search`; `parse_search_flags` reads them."""
    return flags_of(Search, _describe_default, "Search")(function)


def machine_flags(function: F) -> F:
    """A decorator that adds ``batch_tokens``, ``threads`` and ``device``."""
    flag = partial(click.option, cls=flag_under(_MACHINE))
    batch = (
        "Maximum padded tokens in a batch; larger batches need more memory and are faster, up to a point. The compiled "
        "search, which has no padding, ignores it."
    )
    devices = click.Choice(DEVICES)
    decorations = (
        flag("--batch-tokens", **NUMBER, default=4096, show_default=True, help=batch),
        flag("--threads", **NUMBER, help="Processor threads. [every core]"),
        flag("--device", type=devices, default="cpu", show_default=True, help="Where to compute."),
    )
    return decorated(function, decorations)


def check_positive(**numbers: int | None) -> None:
    """Check that numbers given on the command line are at least 1, and can be had.

    Raises:
        ConfigurationError: one is not; the message names its flag.
    """
    for name, value in numbers.items():
        most = MOST_THREADS if name == "threads" else MOST_BATCH
        if value is not None and value < 1:
            raise ConfigurationError(f"{flag_name(name)}: expected at least 1, got {value}")
        if value is not None and value > most:
            raise ConfigurationError(f"{flag_name(name)}: expected at most {most}, got {shown(value)}")


def parse_search_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The search settings given on the command line, checked as far as possible before a model is loaded.

    Raises:
        ConfigurationError: an invalid value, or a flag that does nothing without another one.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    # Groups must divide the beam; the model's own beam is not known yet.
    known = {name: value for name, value in given.items() if name != "groups" or "beam" in given}
    build(Search, known, "the command line")
    require_flag("--groups, of 2 or more", given.get("groups", 1) > 1, {"diversity"} & given.keys())
    require_flag("--stopping patience", given.get("stopping") == "patience", {"patience"} & given.keys())
    return given


def require_flag(flag: str, present: bool, dependents: Iterable[str]) -> None:
    """Check flags that do nothing without another one.

    Args:
        flag: the flag they need, for the message.
        present: whether it was given.
        dependents: names of the settings that need it and were given.

    Raises:
        ConfigurationError: it was not given.
    """
    for name in dependents:
        if not present:
            raise ConfigurationError(f"{flag_name(name)} needs {flag}")


def single_file(places: Sequence[str], flag: str) -> Path | None:
    """The only file of an input or output without an engine.

    Raises:
        ConfigurationError: there are several, or it is a URL or a Parquet file.
    """
    if len(places) > 1 or any("://" in place for place in places):
        raise ConfigurationError(f"{flag}: several files and URLs need an engine: add --engine local:1 or ray")
    if any(map(is_table, places)):
        raise ConfigurationError(f"{flag}: Parquet needs an engine: add --engine local:1 or ray, got {places[0]}")
    return Path(places[0]) if places else None


def is_table(name: str | None) -> bool:
    """Whether a file is Parquet by its name (`lines.translation_tables`)."""
    return name is not None and name.lower().endswith(".parquet")


def flag_name(name: str) -> str:
    """The flag of a setting."""
    return f"--{name.replace('_', '-')}"


def language_flags(function: F) -> F:
    """Decorator that adds ``--source-language`` and ``--target-language``, passed as ``languages``."""

    flag = partial(click.option, metavar="CODE", cls=flag_under(_LANGUAGES))

    @flag(
        "--source-language",
        help="Language of the source, by its code in a model with several languages (deu_Latn). [the model's]",
    )
    @flag("--target-language", help="Language of the translation, likewise. [the model's]")
    @wraps(function)
    def command(*arguments: Any, source_language: str | None, target_language: str | None, **flags: Any) -> Any:
        return function(*arguments, languages=Languages(source_language, target_language), **flags)

    return cast(F, command)


def certificate_flags(lines: str, when: str) -> Callable[[F], F]:
    """Decorator that adds the flags of a certificate.

    They are ``lines``, ``references``, ``count``, ``beam`` and ``certificate``.

    Args:
        lines: the lines by default, for the help.
        when: when both sides are compared, for the help.
    """
    number = partial(click.option, metavar="NUMBER", show_default=True)
    decorations = (
        click.option("--lines", **FILE, help=f"Source lines for the certificate. [{lines}]"),
        click.option(
            "--references", **FILE, help="Reference translations of --lines, to compare BLEU of both sides, too."
        ),
        number("--count", type=click.IntRange(min=1), default=200, help="Lines to compare."),
        number("--beam", type=click.IntRange(min=2), default=5, help="Beam of the comparison."),
        click.option("--certificate/--no-certificate", default=True, help=f"Compare both sides {when}. [yes]"),
    )

    def decorate(function: F) -> F:
        @wraps(function)
        def command(*arguments: Any, certificate: bool, **flags: Any) -> Any:
            context = click.get_current_context()
            for name in ("lines", "references", "count", "beam"):
                if not certificate and context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
                    raise ConfigurationError(
                        f"{flag_name(name)} does nothing with --no-certificate: leave out one of them"
                    )
            return function(*arguments, certificate=certificate, **flags)

        return decorated(cast(F, command), decorations)

    return decorate


def load_translator(
    model: Path,
    search: Mapping[str, Any],
    threads: int | None = None,
    device: str = "cpu",
    languages: Languages | None = None,
    *,
    lazily: bool = False,
) -> Translator:
    """Load a model and set its search; prints a line if the compiled search must be built first.

    Args:
        model: a run or model folder.
        search: settings from `parse_search_flags`.
        threads: of PyTorch; None leaves its default.
        device: ``cpu`` or ``cuda``.
        languages: of a model that has several.
        lazily: as of `Translator.load`.

    Raises:
        FormatError: the folder is not a model.
        ConfigurationError: the device does not exist, or the settings contradict those of the model.
    """
    from multihead.engine.weights import load_search_library
    from multihead.kernels.native import set_thread_count
    from multihead.models.config import TransformerConfig
    from multihead.translating.translator import Translator

    if threads is not None:
        set_thread_count(threads)
    translator = Translator.load(model, device, languages, lazily=lazily)
    if device == "cpu" and isinstance(translator.bundle.searched.config, TransformerConfig):
        load_search_library(remark)  # built once per machine, within seconds
    return translator.searching(**search)


def _describe_default(name: str) -> str:
    """The value of a search setting without its flag, for the help."""
    if name in Search.stored:
        return "[the model's own]"
    default = Search.model_fields[name].default
    return "" if default == () or default is False else f"[{default}]"


_LINES_NAMED = 20


def scoring_flags(function: F) -> F:
    """Decorator that adds the flags of scores: ``language``, ``tokenize``, ``resamples``, ``comet``, ``as_json``."""
    decorations = (
        click.option(
            "--language",
            metavar="CODE",
            help="Language of the translations; decides the tokenization. [the model's, or from the name of --target]",
        ),
        click.option(
            "--tokenize",
            type=click.Choice(["13a", "intl", "zh", "char", "none", "ja-mecab", "ko-mecab"]),
            help="BLEU's tokenization, as sacreBLEU names it. [chosen by language]",
        ),
        click.option(
            "--resamples", **NUMBER, help="Number of bootstrap resamples. [1000, fewer above 20,000 sentences]"
        ),
        click.option(
            "--comet",
            metavar="MODEL",
            help="Also score with this COMET model: a checkpoint, or a name that COMET downloads, such as "
            "Unbabel/wmt22-comet-da. Needs `pipx install unbabel-comet`.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    )
    return decorated(function, decorations)


def warn_about_preprocessing(name: str, remarks: Iterable[PreprocessingRemark]) -> None:
    """Write remarks on a text that looks tokenized or lower-cased to standard error."""
    from multihead.metrics.preprocessing import ADVICE

    for found in remarks:
        remark(f"{name} {found}; {ADVICE}")


def warn_about_cut(name: str, lines: list[int]) -> None:
    """Write the lines whose translations reached the length limit to standard error."""
    if lines:
        more = f" and {len(lines) - _LINES_NAMED:,} more" if len(lines) > _LINES_NAMED else ""
        named = ", ".join(map(str, lines[:_LINES_NAMED]))
        remark(f"{name}: the length limit was reached in lines {named}{more}")
