"""Translations as Parquet, in the layout of Hugging Face's data sets.

    translation: struct<de: string, en: string>      source and target, by the codes of their languages
    source: string, target: string                   in its place, where these are not known
    line: int64, score: double, suspicion: double    before it, if rows are written (`lines.windows`)

pyarrow (extra `parquet`) writes them. A shard is written by whoever translates it, as a file of its own; the output has
the rows of all, a row group for each. `data.parquet` reads such a file as pairs, `shards.parquet` as lines.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from multihead.bundle import Bundle
from multihead.errors import require_package
from multihead.lines.synthetic_pairs import PairOptions
from multihead.lines.windows import LineOptions
from multihead.text.languages import Languages


@dataclass(frozen=True)
class TranslationTable:
    """How the rows of `lines.windows` become those of a table.

    Args:
        languages: of source and target.
        pairs: whether rows are pairs (`lines.synthetic_pairs`).
        numbers: the columns of numbers before the text of a row, after that of the line; None: rows are texts alone.
    """

    languages: Languages
    pairs: bool = False
    numbers: tuple[str, ...] | None = None

    @classmethod
    def of(cls, bundle: Bundle, options: LineOptions) -> TranslationTable:
        """The table of what a model's lines are written with.

        Raises:
            MissingDependencyError: pyarrow is not installed.
        """
        _pyarrow()
        languages, request = Languages(bundle.source_language, bundle.target_language), options.request
        if isinstance(options, PairOptions):
            return cls(Languages(languages.target, languages.source) if options.backwards else languages, pairs=True)
        if request.n_best is None and not options.scores and not request.several:
            return cls(languages)
        return cls(languages, numbers=("score",) if options.guard is None else ("score", "suspicion"))

    @property
    def columns(self) -> list[str]:
        """The names of the columns, with those of the fields."""
        return [str(field) for field in self._table((), (), 0).schema]

    def encode(self, rows: Sequence[str], lines: Sequence[str], done: int) -> bytes:
        """A file with the rows of some lines.

        Args:
            rows: what is written for the lines, as text.
            lines: the lines.
            done: number of lines before them.
        """
        parquet = _pyarrow().parquet
        content = io.BytesIO()
        parquet.write_table(self._table(rows, lines, done), content)
        return content.getvalue()

    def _table(self, rows: Sequence[str], lines: Sequence[str], done: int) -> Any:
        pa = _pyarrow()
        beside: dict[str, Any] = {}
        if self.pairs:
            sources, targets = _columns(rows, 1)
        elif self.numbers is None:
            sources, targets = list(lines), list(rows)
        else:
            numbers, *others, targets = _columns(rows, 1 + len(self.numbers))
            beside = {"line": pa.array(map(int, numbers), pa.int64())}
            beside |= {
                name: pa.array(map(float, own), pa.float64()) for name, own in zip(self.numbers, others, strict=True)
            }
            sources = [lines[int(number) - done - 1] for number in numbers]
        sides = [pa.array(side, pa.string()) for side in (sources, targets)]
        source, target = self.languages.source, self.languages.target
        if source is None or target is None or source == target:
            return pa.table({**beside, "source": sides[0], "target": sides[1]})
        return pa.table({**beside, "translation": pa.StructArray.from_arrays(sides, [source, target])})

    def assemble(self, shards: Iterable[bytes]) -> Iterator[bytes]:
        """One file of the rows of several, in order, as `shards.folder.ShardFolder` wants it."""
        parquet, sink = _pyarrow().parquet, _Sink()
        with parquet.ParquetWriter(sink, self._table((), (), 0).schema) as writer:
            for content in shards:
                writer.write_table(parquet.read_table(io.BytesIO(content)))
                yield sink.take()
        yield sink.take()


def _columns(rows: Sequence[str], tabs: int) -> list[list[str]]:
    """The columns of rows, divided at their first tabs."""
    cells = [row.split("\t", tabs) for row in rows]
    return [[row[place] for row in cells] for place in range(tabs + 1)]


def count_rows(raw: Any) -> int:
    """The number of rows of an open file."""
    return int(_pyarrow().parquet.ParquetFile(raw).metadata.num_rows)


class _Sink(io.RawIOBase):
    """Bytes that are taken as they are written."""

    def __init__(self) -> None:
        self._waiting, self._written = bytearray(), 0

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        size = len(memoryview(content))
        self._waiting += content
        self._written += size
        return size

    def tell(self) -> int:
        return self._written

    def take(self) -> bytes:
        """What was written since the last call."""
        taken, self._waiting = bytes(self._waiting), bytearray()
        return taken


def _pyarrow() -> Any:
    require_package("pyarrow.parquet", "parquet", "writing Parquet")
    import pyarrow
    import pyarrow.parquet

    return pyarrow
