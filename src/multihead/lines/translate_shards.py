"""A text of any size to an output of lines, shard by shard, on an engine

Shards are whole windows of `lines.windows`, so an output has the same bytes as by `lines.translate_file`, however many
processes and machines translate. Each process loads the model once. It first checks that everything that decides the
bytes is as where the work was begun: another model of the same name, or a machine without the compiled search, is an
error and not a difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from multihead.errors import ConfigurationError
from multihead.lines import windows
from multihead.lines.side_files import SideFiles
from multihead.lines.translate_file import of_the_translator
from multihead.lines.translation_tables import TranslationTable
from multihead.lines.windows import LineOptions, translated
from multihead.shards.cutting import CutText, Shard, cut, lines_a_shard, shards_of
from multihead.shards.folder import Assemble, in_a_row, shard_folder, write_shard
from multihead.text.languages import Languages
from multihead.translating.companions import Companions
from multihead.translating.translator import Translator
from multihead.workers import Engine

TEXT, PREFIXES, PHRASES = "text", "prefixes", "phrases"
"""Names of the texts of a shard."""


@dataclass(frozen=True)
class Models:
    """The models of a translator, and how they are loaded in each process.

    Args:
        model: the folder of the model.
        companions: what it works with.
        languages: of a model that has several.
        device: ``cpu``, ``cuda`` or ``mps``.
        threads: of PyTorch; None for all cores.
    """

    model: Path
    companions: Companions = field(default_factory=Companions)
    languages: Languages = field(default_factory=Languages)
    device: str = "cpu"
    threads: int | None = None

    def load(self) -> Translator:
        """The translator, in this process.

        Raises:
            FormatError: a folder is not a model.
            ConfigurationError: the models do not fit together.
        """
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        return self.companions.join(Translator.load(self.model, self.device, self.languages), self.device)

    @property
    def identity(self) -> str:
        """Identifies all models, their languages, and how they are averaged."""
        return self.companions.identity(self.model, self.languages)


@dataclass(frozen=True)
class ShardedText:
    """A text and its side files, cut into shards."""

    text: CutText
    files: SideFiles | None
    shards: list[Shard]

    @classmethod
    def read(
        cls, names: Sequence[str], column: str | None = None, prefixes: Path | None = None, phrases: Path | None = None
    ) -> ShardedText:
        """Read all files once.

        Args:
            names: the files of the text, in order.
            column: of Parquet files.
            prefixes, phrases: the side files.

        Raises:
            DataError: a file cannot be read or has a line that is not UTF-8; the side files do not fit.
            ConfigurationError: a Parquet file does not have the column.
        """
        lines = lines_a_shard(names, windows.WINDOW)
        texts = {TEXT: cut(names, lines, column)}
        for name, path in ((PREFIXES, prefixes), (PHRASES, phrases)):
            if path is not None:
                texts[name] = cut([str(path)], lines)
        files = None
        if len(texts) > 1:
            prefix_scan, phrase_scan = (texts[name].scan if name in texts else None for name in (PREFIXES, PHRASES))
            files = SideFiles(prefix_scan, phrase_scan)
            files.check_lines(texts[TEXT].scan)
        return cls(texts[TEXT], files, shards_of(texts))


@dataclass
class OnModels:
    """A function that an engine applies, with a translator that is loaded once in each process.

    Args:
        models: what to load.
        options: how to translate, and what to write.
        decided: what `decides` returned where the work began.
    """

    models: Models
    options: LineOptions
    decided: Mapping[str, Any]

    @cached_property
    def _translator(self) -> Translator:
        translator = self.models.load().searching(**self.options.request.search.model_dump())
        here = decides(self.models, translator, self.options)
        changes = [f"{name} is {here[name]}, not {was}" for name, was in self.decided.items() if here[name] != was]
        if changes:
            raise ConfigurationError(f"would not translate as the machine that began the work: {', '.join(changes)}")
        return translator

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_translator"}


@dataclass
class TranslatedShard(OnModels):
    """Translates and writes a shard.

    Args:
        files: the side files, if there are any.
        output: the place of the output.
        table: how rows are written as Parquet; None for lines.
    """

    files: SideFiles | None
    output: str
    table: TranslationTable | None = None

    def __call__(self, shard: Shard) -> Written:
        files = None if self.files is None else replace(self.files, read=shard.read)
        rows: list[str] = []
        remarks: list[str] = []
        lines = list(shard.read(TEXT))
        for window in translated(self._translator, iter(lines), self.options, done=shard.done, files=files):
            rows += window.rows
            remarks += window.remarks
        if self.table is None:
            content = "".join(f"{row}\n" for row in rows).encode()
        else:
            content = self.table.encode(rows, lines, shard.done)
        return Written(write_shard(self.output, shard.number, content), tuple(remarks))


class Written(NamedTuple):
    """What comes back for a shard."""

    name: str
    """Of its file."""
    remarks: tuple[str, ...]
    """Notes on its lines."""


def decides(models: Models, translator: Translator, options: LineOptions) -> dict[str, Any]:
    """What has to be equal in each process."""
    return {"models": models.identity, **json.loads(json.dumps(of_the_translator(translator, options)))}


def threads_matter(translator: Translator, options: LineOptions, files: SideFiles | None) -> bool:
    """Whether the number of threads can change a result in its last digits; the compiled search adds in one order."""
    request = options.request
    asked = options.guard is not None or request.sampling is not None or request.chooses or files is not None
    copies = bool(translator.bundle.target_tokenizer.copied)  # sentences without one are searched again step by step
    return asked or copies or not translator.compiled


def translate_shards(
    engine: Engine,
    function: Callable[[Shard], Written],
    text: ShardedText,
    output: str,
    made_from: Mapping[str, Any],
    *,
    table: TranslationTable | None = None,
    begin: Callable[[int], None] = lambda _: None,
    progress: Callable[[int], None] = lambda _: None,
    remark: Callable[[str], None] = lambda _: None,
) -> None:
    """Translate every line of a text; stopped at any moment and called again, it goes on with the shards left.

    Args:
        engine: where shards are translated.
        function: a `TranslatedShard`, or what calls one.
        text: the input.
        output: the place of the output, which must not exist.
        made_from: everything that decides its bytes.
        table: how it is written as Parquet; None for lines.
        begin: called with the number of lines that an earlier process has translated.
        progress: called with the number of newly finished lines.
        remark: called with each note for the reader of the translations, in the order of the lines.

    Raises:
        DataError: a file has changed since it was cut, or a side file does not fit it.
        ConfigurationError: the output exists, or was begun with other arguments; a process has another model.
        FormatError: a machine writes where this one cannot read.
        SurroundingsError: a machine failed.
    """
    assemble: Assemble = in_a_row if table is None else table.assemble
    with shard_folder(output, made_from, len(text.shards), assemble) as folder:
        if folder is None:
            return
        finished = folder.finished()
        left = [shard for shard in text.shards if shard.number not in finished]
        begin(text.text.scan.lines - sum(shard.lines for shard in left))
        with closing(engine.map(function, left)) as results:
            for shard, written in zip(left, results, strict=True):
                folder.check_written(written.name)
                progress(shard.lines)
                for one in written.remarks:
                    remark(one)
        folder.join()
