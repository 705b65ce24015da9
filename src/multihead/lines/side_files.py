"""Files with a prefix or phrases for each line of a text.

    prefixes    how the translation of each line begins
    phrases     what the translation of each line contains: phrases with a TAB between them, and ``|||`` between
                alternatives, of which one must appear:  a dog ||| the dog TAB grass

An empty line has no constraint. The files are plain or compressed, and have as many lines as the text. Every error
names file and line. `translating.searching` enforces the constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NoReturn

from multihead.data.text_files import TextScan, read_lines
from multihead.errors import DataError
from multihead.translating.request import Phrases

BETWEEN, OR = "\t", "|||"
"""Separators between phrases, and between the alternatives of one."""


@dataclass(frozen=True)
class SideFiles:
    """The files, as `lines.translate_file.check_input` scanned them; None for a file that is not given."""

    prefixes: TextScan | None = None
    phrases: TextScan | None = None
    read: Callable[[str], Iterator[str]] | None = None
    """Reads the lines beside some lines of the text from a file, by its name here; None to read the file itself."""

    def check_lines(self, text: TextScan) -> None:
        """Raise DataError if a file does not have a line for each line of a text."""
        for scan in (self.prefixes, self.phrases):
            if scan is not None and scan.lines != text.lines:
                raise DataError(
                    f"has {scan.lines:,} lines, but {text.path} has {text.lines:,}: expected one for each, empty "
                    "where there is no constraint",
                    scan.path,
                )

    def open(self, done: int = 0) -> SideFileReader:
        """A reader of the constraints after the first ``done`` lines."""
        return SideFileReader(self, done)

    def lines(self, name: str, done: int) -> Iterator[str] | None:
        """The lines of a file after the first ``done``; None if it is not given."""
        scan = self.prefixes if name == "prefixes" else self.phrases
        if scan is None:
            return None
        return islice(read_lines(scan.path), done, None) if self.read is None else self.read(name)


@dataclass(frozen=True)
class LineConstraints:
    """The constraints of some lines; None for a file that is not given."""

    prefixes: list[str] | None = None
    phrases: list[Phrases] | None = None

    def any_at(self, place: int) -> bool:
        """Whether the line at this place has a prefix or phrases."""
        return any(bool(each[place]) for each in (self.prefixes, self.phrases) if each is not None)


class SideFileReader:
    """Reads the files in parallel with a text.

    Args:
        files: the files.
        done: number of lines to skip.
    """

    def __init__(self, files: SideFiles, done: int) -> None:
        self._files = files
        self._number = done
        self._prefixes, self._phrases = (files.lines(name, done) for name in ("prefixes", "phrases"))

    def read(self, lines: Sequence[str]) -> LineConstraints:
        """The constraints of the next lines.

        Raises:
            DataError: a file ends too soon; an empty line has a constraint; a phrase is empty; a constraint contains a
                carriage return, which no translation does.
        """
        number, self._number = self._number, self._number + len(lines)
        prefixes: list[str] | None = None
        phrases: list[Phrases] | None = None
        if self._prefixes is not None:
            prefixes = [
                self._checked("prefixes", given, line, at)
                for at, given, line in _beside(self._prefixes, lines, number, self._path("prefixes"))
            ]
        if self._phrases is not None:
            phrases = [
                self._parsed(self._checked("phrases", given, line, at), at)
                for at, given, line in _beside(self._phrases, lines, number, self._path("phrases"))
            ]
        return LineConstraints(prefixes, phrases)

    def end(self) -> None:
        """Raise DataError if a file has more lines than the text."""
        for name, rest in (("prefixes", self._prefixes), ("phrases", self._phrases)):
            if rest is not None and next(rest, None) is not None:
                raise DataError("the text has ended before this line", self._path(name), self._number + 1)

    def refuse(self, name: str, message: str, number: int) -> NoReturn:
        """Raise DataError for line ``number`` of the file ``name`` ("prefixes" or "phrases")."""
        raise DataError(message, self._path(name), number)

    def _path(self, name: str) -> str:
        scan = self._files.prefixes if name == "prefixes" else self._files.phrases
        assert scan is not None
        return str(scan.path)

    def _checked(self, name: str, given: str, line: str, number: int) -> str:
        given = given if given.strip() else ""
        if given and not line.strip():
            self.refuse(
                name, "the line of the text is empty and has no translation: leave this line empty, too", number
            )
        if "\r" in given:
            self.refuse(name, "has a carriage return, which no translation has", number)
        return given

    def _parsed(self, given: str, number: int) -> list[list[str]]:
        if not given:
            return []
        phrases = [[alternative.strip() for alternative in phrase.split(OR)] for phrase in given.split(BETWEEN)]
        if not all(alternative for phrase in phrases for alternative in phrase):
            self.refuse("phrases", f"a phrase has no characters: expected phrase TAB phrase {OR} alternative", number)
        return phrases


def _beside(rest: Iterator[str], lines: Sequence[str], number: int, path: str) -> Iterator[tuple[int, str, str]]:
    """(number, line of the file, line of the text) for each line of the text."""
    for at, line in enumerate(lines, start=number + 1):
        given = next(rest, None)
        if given is None:
            message = "ends here, but the text goes on: expected a line for each, empty where there is no constraint"
            raise DataError(message, path, at)
        yield at, given, line
