"""The flag ``--engine``: work in processes or on Ray, and their setup

`lines.translate_shards` says what is written, `workers` and `shards.ray_engine` where it is computed.
"""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from multihead.cli.options import ENGINES, complete_as, flag_under, is_table
from multihead.cli.process import remark
from multihead.configuration import MOST_THREADS
from multihead.errors import ConfigurationError, Interrupted

if TYPE_CHECKING:
    from multihead.lines.translate_shards import Models, ShardedText, TranslatedShard
    from multihead.lines.windows import LineOptions
    from multihead.translating.request import TranslationRequest
    from multihead.translating.searching import Translation
    from multihead.translating.translator import Translator
    from multihead.workers import Engine

F = TypeVar("F", bound=Callable[..., Any])


_HERE = "local:1"
"""The engine that is this process."""

engine_flag = click.option(
    "--engine",
    cls=flag_under(ENGINES),
    metavar="ENGINE",
    help="Where to run: local:N in N processes, ray on the nodes of a Ray cluster (docs/engines.md).",
)


def engine_flags(function: F) -> F:
    """Decorator that adds ``engine`` and ``column``."""
    column = click.option(
        "--column",
        cls=flag_under(ENGINES),
        metavar="NAME",
        help="Column of a Parquet input that has the text. [the only column of text]",
    )
    return engine_flag(column(function))


def texts_option(spelling: str, help_text: str, **options: Any) -> Callable[[F], F]:
    """The option of an input: a file or, for an engine, several files, patterns and URLs."""
    more = " With --engine, or an --output in .parquet, also a pattern or a URL; may then be repeated."
    options |= {"metavar": "FILE", "help": help_text + more, "shell_complete": complete_as("file")}
    return click.option(spelling, "sources", multiple=True, **options)


def count_lines(place: str) -> int:
    """The number of lines, or rows, of an output."""
    from multihead.data.text_files import scan_stream
    from multihead.shards.storage import open_bytes, open_decompressed, size

    if not size(place):
        return 0
    if is_table(place):
        from multihead.lines.translation_tables import count_rows

        with open_bytes(place) as raw:
            return count_rows(raw)
    with open_decompressed(place) as stream:
        return scan_stream(stream, place).lines


def parse_engine(text: str, threads: int | None, device: str) -> Engine:
    """The engine that a user names.

    Raises:
        ConfigurationError: there is no such engine.
    """
    name, _, number = text.partition(":")
    if name == "local" and number.isascii() and number.isdecimal() and 1 <= int(number) <= MOST_THREADS:
        from multihead.workers import InProcess, LocalWorkers

        return LocalWorkers(int(number), threads or 1) if int(number) > 1 else InProcess()
    if text == "ray":
        from multihead.shards.ray_engine import RayEngine

        return RayEngine(remark, gpus=int(device == "cuda"))
    raise ConfigurationError(f"--engine: expected local:N, with N processes, or ray, got {text!r}")


@dataclass(frozen=True)
class OnEngine:
    """What ``translate``, ``backtranslate`` and ``distill`` do on an engine, or to write Parquet.

    Args:
        engine, column: the flags; without an engine this process works, on all cores.
        sources: the files, patterns and URLs of the input.
        output: the place of the output.
        models: arguments of `lines.translate_shards.Models`.
        prefixes, phrases: files with a line for each line of the input.
    """

    engine: str | None
    column: str | None
    sources: Sequence[str]
    output: str
    models: dict[str, Any]
    prefixes: Path | None = None
    phrases: Path | None = None

    def check(self, resume: bool = False) -> None:
        """Raise ConfigurationError if the output cannot be begun, or with ``resume`` continued."""
        from multihead.shards.folder import check_begun, check_free

        parse_engine(self.engine or _HERE, 1, "cpu")
        if not self.sources or not self.output:
            what = f"{self.output}: Parquet" if self.engine is None else "--engine"
            raise ConfigurationError(f"{what} needs --input and --output: shards are read and written, not streams")
        check_free(self.output)
        if resume:
            check_begun(self.output)

    def run(
        self,
        wishes: Mapping[str, Any],
        options_of: Callable[[Translator], LineOptions],
        *,
        remarks: bool = True,
    ) -> int:
        """Translate; returns the number of input lines.

        Args:
            wishes: settings of the search.
            options_of: how a translator translates.
            remarks: print notes on single lines.
        """
        from multihead.cli.process import configure_process

        configure_process()
        from multihead.lines.translate_file import of_the_input
        from multihead.lines.translate_shards import Models, ShardedText, TranslatedShard, decides, threads_matter
        from multihead.lines.translation_tables import TranslationTable
        from multihead.shards import storage

        models = Models(**self.models)
        names = [name for source in self.sources for name in storage.expand(source)]
        text = ShardedText.read(names, self.column, self.prefixes, self.phrases)
        translator = _load(models).searching(**wishes)
        if translator.bundle.source_tokenizer.context:
            raise ConfigurationError(
                "a model with context reads the lines before each one, which the other processes of --engine and the "
                "rows of a table do not have: leave --engine out, and write lines"
            )
        options = options_of(translator)
        table = TranslationTable.of(translator.bundle, options) if is_table(self.output) else None
        matter = threads_matter(translator, options, text.files)
        if models.threads is None:
            models = replace(models, threads=_threads(self.engine, matter=matter))
        made_from = {
            **of_the_input(models.identity, text.text.scan, text.files),
            "column": self.column,
            **(decided := decides(models, translator, options)),
            "threads": models.threads if matter else None,
            **({} if table is None else {"columns": table.columns}),
        }
        output = storage.absolute(self.output)
        function = TranslatedShard(models, options, decided, text.files, output, table)
        self._translate(function, text, made_from, remarks)
        return text.text.scan.lines

    def _translate(
        self, function: TranslatedShard, text: ShardedText, made_from: dict[str, Any], remarks: bool
    ) -> None:
        from multihead.cli.process import configure_process
        from multihead.cli.streams import counter
        from multihead.lines.translate_shards import translate_shards

        told: Callable[[str], None] = remark if remarks else lambda _: None
        engine = parse_engine(self.engine or _HERE, function.models.threads, function.models.device)
        configured, total, done = Configured(configure_process, pickle.dumps(function)), text.text.scan.lines, 0
        with counter("translated", "lines", total) as count:

            def progress(more: int) -> None:
                nonlocal done
                done += more
                count(more)

            def begin(before: int) -> None:
                nonlocal done
                done = before
                count.begin(before)

            try:
                translate_shards(
                    *(engine, configured, text, function.output, made_from),
                    table=function.table,
                    begin=begin,
                    progress=progress,
                    remark=told,
                )
            except KeyboardInterrupt:
                message = f"stopped after {done:,} of {total:,} lines; run the same command again to continue"
                raise Interrupted(signal.SIGINT, message if done else "stopped before anything was done") from None


def _threads(engine: str | None, *, matter: bool) -> int | None:
    """Threads of a process if nobody says: one of those beside each other, and where their number matters."""
    if engine is not None:
        return 1 if matter or engine != "ray" else None
    import torch

    return torch.get_num_threads()


def _load(models: Models) -> Translator:
    """The translator here; the compiled search is built before processes ask for it."""
    from multihead.engine.weights import load_search_library

    if models.device == "cpu":
        load_search_library(remark)  # built once per machine
    return models.load()


Runner = Callable[["TranslationRequest", Callable[[int], None] | None], "list[list[Translation]]"]
"""Translates the texts of a request, as `Translator.run`."""


def run_on_engine(
    engine: str,
    models: dict[str, Any],
    wishes: Mapping[str, Any],
    request_of: Callable[[Translator], TranslationRequest],
) -> tuple[Translator, TranslationRequest, Runner]:
    """A translator, its request, and what translates the texts of one on an engine.

    Args:
        engine: the flag.
        models: arguments of `lines.translate_shards.Models`.
        wishes: settings of the search.
        request_of: how a translator translates; without texts.
    """
    from multihead.cli.process import configure_process
    from multihead.lines.translate_pieces import TranslatedPiece, translate_pieces
    from multihead.lines.translate_shards import Models, decides, threads_matter
    from multihead.lines.windows import LineOptions

    loaded = Models(**models)
    translator = _load(loaded).searching(**wishes)
    request = request_of(translator)
    options = LineOptions(request)
    if loaded.threads is None:
        loaded = replace(loaded, threads=_threads(engine, matter=threads_matter(translator, options, None)))
    piece = TranslatedPiece(loaded, options, decides(loaded, translator, options))
    function = Configured(configure_process, pickle.dumps(piece))
    made = parse_engine(engine, loaded.threads, loaded.device)
    return translator, request, lambda asked, progress: translate_pieces(made, function, asked, progress)


@dataclass
class Configured:
    """A function for engines: its process is set up as that of a command before its modules are imported.

    Args:
        configure: called once in each process.
        function: the pickled function.
    """

    configure: Callable[[], None]
    function: bytes

    def __call__(self, item: Any) -> Any:
        return self._loaded(item)

    @cached_property
    def _loaded(self) -> Callable[[Any], Any]:
        self.configure()
        function: Callable[[Any], Any] = pickle.loads(self.function)
        return function
