"""Sentence pairs: two aligned files, language codes, report of faults.

Two files are scanned once before anything is made from them (`check_parallel`), so that unequal line counts, binary
data or another encoding are reported at the start. A single bad line costs its pair, not the corpus; a `Report` names
the pairs that were left out, with file, line and reason.

Lines come from `text_files`. Pairs that stand in one file (a table, JSON lines, TMX) are read by `records` and `tmx`,
and `readers` chooses among all of these. Tokens and the limit of their number belong to `preparing`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from multihead.data.text_files import NOT_UTF8, TextScan, open_text, place_in_line, scan, split_lines
from multihead.errors import DataError

EMPTY = "empty or only white space"
EMPTY_BOTH = "empty on both sides"

_NAMED_LINES = 5  # line numbers that a line of the summary names


# --------------------------------------------------------------------------- language codes

Languages = tuple[str | None, str | None]
"""Codes of source and target language; None where a code is not given."""


def normalize_code(code: str) -> str:
    """A language code in lower case, its parts joined by hyphens: "de-de" for "de_DE"."""
    return code.strip().replace("_", "-").casefold()


def primary_language(code: str | None) -> str:
    """The language without script and region: "zh" for "zh-TW"; "" for None."""
    return normalize_code(code or "").split("-")[0]


def language_of(path: str | Path) -> str | None:
    """The language code at the end of a file name ("train.en", "test.zh.xz", "val.de.txt").

    Known codes are the two-letter codes of ISO 639-1; None otherwise.
    """
    suffixes = [suffix[1:].lower() for suffix in Path(path).suffixes]
    while suffixes and suffixes[-1] in ("gz", "xz", "zst", "txt"):
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in _LANGUAGES.split() else None


# ISO 639-1
_LANGUAGES = """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee
el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is
it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms
mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk
sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi
yo za zh zu
"""


# --------------------------------------------------------------------------- pairs that were left out


class Fault(NamedTuple):
    """Why a pair was left out: file and line, the kind of fault, and its details."""

    path: Path
    line: int
    reason: str
    detail: str


@dataclass
class _Group:
    first: Fault
    lines: list[int] = field(default_factory=list)
    count: int = 0


class Report:
    """The pairs that were left out: how many for each reason, and where.

    A pair has at most one fault, so ``pairs kept + report.left_out`` is the number of lines of two aligned files, or of
    records or translation units in one file. A report may cover several corpora.

    Args:
        limit: maximum number of faults kept in ``faults``; counting goes on beyond it.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self.faults: list[Fault] = []
        self._limit = limit
        self._groups: dict[tuple[Path, str], _Group] = {}

    def add(self, path: str | Path, line: int, reason: str, detail: str = "") -> None:
        """Record a pair that is left out.

        Args:
            path: the file at fault.
            line: the line at fault, from 1.
            reason: the kind of fault, such as "more than 512 tokens".
            detail: details of this pair, such as "811".
        """
        fault = Fault(Path(path), line, reason, detail)
        if len(self.faults) < self._limit:
            self.faults.append(fault)
        group = self._groups.setdefault((fault.path, reason), _Group(fault))
        group.count += 1
        if len(group.lines) < _NAMED_LINES:
            group.lines.append(line)

    def lines_left_out(self) -> str | None:
        """The first fault and their number in words, of a text whose lines are no pairs; None without faults."""
        if not self.faults:
            return None
        first = self.faults[0]
        return f"{first.path}:{first.line}: {first.reason} ({first.detail}); {self.left_out:,} such lines are left out"

    def merge(self, later: Report) -> None:
        """Record what another report has, as if it had been recorded here."""
        self.faults.extend(later.faults[: max(self._limit - len(self.faults), 0)])
        for key, group in later._groups.items():
            own = self._groups.setdefault(key, _Group(group.first))
            own.count += group.count
            own.lines.extend(group.lines[: _NAMED_LINES - len(own.lines)])

    def state(self) -> dict[str, list[Any]]:
        """The report in the types of JSON; `restored` is the inverse."""
        groups = [[_row(group.first), group.lines, group.count] for group in self._groups.values()]
        return {"faults": [_row(fault) for fault in self.faults], "groups": groups}

    @classmethod
    def restored(cls, state: dict[str, list[Any]]) -> Report:
        """The report of a `state`."""
        report = cls()
        report.faults = [_fault(row) for row in state["faults"]]
        for row, lines, count in state["groups"]:
            first = _fault(row)
            report._groups[first.path, first.reason] = _Group(first, lines, count)
        return report

    @property
    def left_out(self) -> int:
        """Number of pairs that were left out."""
        return sum(group.count for group in self._groups.values())

    @property
    def counts(self) -> dict[str, int]:
        """Number of pairs that were left out for each reason, over all files."""
        counts: Counter[str] = Counter()
        for (_, reason), group in self._groups.items():
            counts[reason] += group.count
        return dict(counts)

    def summary(self) -> str:
        """One line of text for each file and reason; empty if nothing was left out."""
        return "\n".join(_summary_line(group) for group in self._groups.values())


def _row(fault: Fault) -> list[Any]:
    return [str(fault.path), *fault[1:]]


def _fault(row: list[Any]) -> Fault:
    path, line, reason, detail = row
    return Fault(Path(path), line, reason, detail)


def _summary_line(group: _Group) -> str:
    path, line, reason, detail = group.first
    what = f"{path}:{line}: {reason}" + (f" ({detail})" if detail else "")
    if group.count == 1:
        return f"{what}; 1 pair left out for this reason"
    numbers = ", ".join(map(str, group.lines))
    which = "lines" if group.count == len(group.lines) else "first lines"
    return f"{what}; {group.count:,} pairs left out for this reason, {which} {numbers}"


# --------------------------------------------------------------------------- pairs of two aligned files


class Pair(NamedTuple):
    """A sentence and its translation.

    ``line`` counts from 1 and holds for both files. In a file of pairs it is the line on which the record begins; in
    TMX several records may begin on one line.
    """

    line: int
    source: str
    target: str


@dataclass(frozen=True)
class ParallelScan:
    """Two files with equally many lines, checked by `check_parallel`; a `readers.CorpusScan`."""

    source: TextScan
    target: TextScan

    @property
    def lines(self) -> int:
        """Number of lines of each file."""
        return self.source.lines

    @property
    def files(self) -> tuple[TextScan, ...]:
        """Source and target."""
        return self.source, self.target

    @property
    def languages(self) -> Languages:
        """Unknown: plain lines do not name their language."""
        return None, None

    def path(self, side: int) -> Path:
        """The file of side 0, the source, or 1, the target."""
        return self.files[side].path

    def read(self, report: Report) -> Iterator[Pair]:
        """The pairs in which both sides are UTF-8 and contain more than white space, unchanged and with duplicates.

        The other pairs go to ``report``, each with one fault; a fault of the source is reported before the target's.

        Raises:
            DataError: no pair is valid, or a file has changed since it was checked.
        """
        paths = (self.source.path, self.target.path)
        number = kept = 0
        with open_text(paths[0]) as source, open_text(paths[1]) as target:
            raws = zip(split_lines(source, paths[0]), split_lines(target, paths[1]), strict=False)
            for number, (raw_source, raw_target) in enumerate(raws, start=1):
                pair = _valid_pair(paths, number, raw_source, raw_target, report)
                if pair is not None:
                    kept += 1
                    yield pair
        check_complete(paths, "lines", self.lines, number, kept, report)


def check_parallel(source: str | Path, target: str | Path) -> ParallelScan:
    """Scan two files of aligned lines.

    Raises:
        DataError: as `scan`, or the files have different numbers of lines.
    """
    scans = ParallelScan(scan(source), scan(target))
    if scans.source.lines != scans.target.lines:
        counts = f"{source} has {scans.source.lines:,} lines but {target} has {scans.target.lines:,}"
        remedy = "line n of the one must translate line n of the other (a line ends at LF alone)"
        raise DataError(f"{counts}; {remedy}. Nothing was read; find where they part and align them")
    return scans


def check_complete(paths: Sequence[Path], what: str, expected: int, number: int, kept: int, report: Report) -> None:
    """Check the counts after reading ``number`` candidates, of which ``kept`` are pairs.

    Args:
        paths: the files that were read.
        what: what a candidate is: "lines", "records".
        expected: number of candidates that the scan counted.
        number: number of candidates that were read.
        kept: number of pairs among them.
        report: the pairs that were left out.

    Raises:
        DataError: the counts differ, or no pair is valid.
    """
    if number != expected:
        message = f"has changed: {expected:,} {what} were counted, {number:,} are there now; start again"
        raise DataError(message, " or ".join(map(str, paths)))
    if not kept:
        why = report.summary()
        raise DataError(f"no pair can be used out of {number:,}" + (f":\n{why}" if why else ""), paths[0])


def decoded_lines(path: str | Path, report: Report) -> Iterator[tuple[int, str]]:
    """The lines of one plain or compressed file and their numbers, from 1; what is not UTF-8 is left out and reported.

    Raises:
        DataError: the file cannot be read (`open_text`, `split_lines`).
    """
    with open_text(path) as stream:
        for number, raw in enumerate(split_lines(stream, path), start=1):
            try:
                yield number, raw.decode("utf-8")
            except UnicodeDecodeError as error:
                report.add(path, number, NOT_UTF8, place_in_line(error))


def _valid_pair(
    paths: tuple[Path, Path], number: int, raw_source: bytes, raw_target: bytes, report: Report
) -> Pair | None:
    texts = []
    for path, raw in zip(paths, (raw_source, raw_target), strict=True):
        try:
            texts.append(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            report.add(path, number, NOT_UTF8, place_in_line(error))
            return None
    empty = [not text.strip() for text in texts]
    if any(empty):
        report.add(paths[0] if empty[0] else paths[1], number, EMPTY_BOTH if all(empty) else EMPTY)
        return None
    return Pair(number, *texts)
