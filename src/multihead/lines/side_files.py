"""What is demanded of single lines, from files beside them: how a translation begins, which phrases it contains.

    prefixes    a line for each line: what its translation begins with
    phrases     a line for each line: phrases that its translation contains, a TAB between them; and ``|||`` between
                alternatives, of which one must appear:  a dog ||| the dog TAB grass

An empty line demands nothing. Files are plain or compressed, and have as many lines as the text; every fault names file
and line. What becomes of the demands is `translating.searching`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NoReturn

from multihead.data.text_files import TextScan, read_lines
from multihead.errors import DataError
from multihead.translating.request import Phrases

BETWEEN, OR = "\t", "|||"
"""What stands between phrases, and between the alternatives of one."""


@dataclass(frozen=True)
class SideFiles:
    """The files, as `lines.translate_file.check_input` saw them; None where there is none."""

    prefixes: TextScan | None = None
    phrases: TextScan | None = None

    def check_lines(self, text: TextScan) -> None:
        """Refuses files that do not have a line for each line of a text.

        Raises:
            DataError: one does not.
        """
        for scan in (self.prefixes, self.phrases):
            if scan is not None and scan.lines != text.lines:
                raise DataError(
                    f"has {scan.lines:,} lines, but {text.path} has {text.lines:,}: expected one for each, empty where "
                    "nothing is demanded",
                    scan.path,
                )

    def open(self, done: int = 0) -> SideFileReader:
        """What they demand, from behind the first ``done`` lines on."""
        return SideFileReader(self, done)


@dataclass(frozen=True)
class LineConstraints:
    """Of some lines; None where there is no such file."""

    prefixes: list[str] | None
    phrases: list[Phrases] | None

    def any_at(self, place: int) -> bool:
        """Whether something is demanded of one of them."""
        return any(bool(each[place]) for each in (self.prefixes, self.phrases) if each is not None)


class SideFileReader:
    """The files while they are read beside a text.

    Args:
        files: which.
        done: how many lines of theirs are left out.
    """

    def __init__(self, files: SideFiles, done: int) -> None:
        self._files = files
        self._number = done
        self._prefixes, self._phrases = (
            None if scan is None else islice(read_lines(scan.path), done, None)
            for scan in (files.prefixes, files.phrases)
        )

    def read(self, lines: Sequence[str]) -> LineConstraints:
        """What is demanded of the next lines.

        Raises:
            DataError: the file ends too soon; something is demanded of an empty line; a phrase without characters; a
                carriage return, which no translation has.
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
        """The text has no more lines.

        Raises:
            DataError: a file has.
        """
        for name, rest in (("prefixes", self._prefixes), ("phrases", self._phrases)):
            if rest is not None and next(rest, None) is not None:
                raise DataError("the text has ended before this line", self._path(name), self._number + 1)

    def refuse(self, name: str, message: str, number: int) -> NoReturn:
        """Refuses what is demanded of a line.

        Raises:
            DataError: with the file of that name ("prefixes", "phrases") and the line.
        """
        raise DataError(message, self._path(name), number)

    def _path(self, name: str) -> str:
        scan = self._files.prefixes if name == "prefixes" else self._files.phrases
        assert scan is not None
        return str(scan.path)

    def _checked(self, name: str, given: str, line: str, number: int) -> str:
        given = given if given.strip() else ""
        if given and not line.strip():
            self.refuse(name, "the line of the text is empty and stays so: leave this one empty, too", number)
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
            message = "ends here, but the text goes on: expected a line for each, empty where nothing is demanded"
            raise DataError(message, path, at)
        yield at, given, line
