"""Codes files of subword-nmt: merges in a text file, read and written.

A file (Sennrich, Haddow and Birch 2016) has one merge per line, two symbols separated by a space, in the order they
were learned. ``</w>`` ends a word. In version 0.2, named in the first line, it is part of the word's last character
from the start (``t</w>``); in version 0.1, the default without such a line, it is a symbol of its own.

A line that begins with ``#`` and is not a merge is a comment. The package refuses such lines, so none is written. Codes
are applied in `segmenting` and learned in `learning`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from multihead.errors import ConfigurationError, FormatError, SurroundingsError
from multihead.files import write_text

END = "</w>"
"""The end of a word."""
EDGES = "\r\n "
"""Characters stripped from both ends of lines; any other white space is part of a word."""
VERSIONS = ("0.1", "0.2")


@dataclass(frozen=True, slots=True)
class Codes:
    """The content of a codes file.

    Args:
        merges: the pairs to join, in the order they were learned.
        version: "0.1" or "0.2".
    """

    merges: tuple[tuple[str, str], ...]
    version: str = "0.2"

    @classmethod
    def read(cls, lines: Iterable[str], name: str | os.PathLike[str] = "codes", most: int | None = None) -> Codes:
        """Parse the lines of a file.

        Args:
            lines: the lines, without LF.
            name: the name of the file in error messages.
            most: maximum number of merges to use, from the first one.

        Raises:
            FormatError: a line is not two symbols, or the version is unknown; names the line.
            ConfigurationError: ``most`` is negative.
        """
        if most is not None and most < 0:
            raise ConfigurationError(f"merges is {most}; expected the number of codes to use, 0 or more")
        merges: list[tuple[str, str]] = []
        version = "0.1"
        blank = 0
        for number, line in enumerate(lines, 1):
            if number == 1 and line.startswith("#version:"):
                version = read_version(line, name)
                continue
            symbols = line.strip(EDGES).split(" ")
            if symbols == [""]:  # allowed at the end of the file only
                blank = blank or number
            elif blank:
                raise FormatError(f"{name}:{blank}: empty, expected two symbols with a space between them, as `t h`")
            elif len(symbols) == 2 and all(symbols):
                merges.append((symbols[0], symbols[1]))
            elif not line.startswith("#"):
                raise FormatError(
                    f"{name}:{number}: expected two symbols with a space between them, as `t h`, got {line[:80]!r}; "
                    "is this a codes file of subword-nmt?"
                )
        return cls(tuple(merges[:most]), version)

    @classmethod
    def load(cls, path: str | os.PathLike[str], most: int | None = None) -> Codes:
        """Read a file; see `read`.

        Raises:
            FormatError: as `read`; or there is no such file, or it is not UTF-8 text.
            SurroundingsError: the file cannot be read.
        """
        path = Path(path)
        try:
            text = path.read_bytes().decode("utf-8-sig")  # a byte order mark would hide the version
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise FormatError(f"{path}: there is no such codes file; check the name") from error
        except UnicodeDecodeError as error:
            raise FormatError(f"{path}: this is not a codes file, as it is not UTF-8 text") from error
        except OSError as error:
            raise SurroundingsError(f"{path}: the codes cannot be read ({error.strerror})") from error
        return cls.read(text.split("\n"), path, most)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file atomically, readable by the package.

        Raises:
            SurroundingsError: the folder does not exist, no space is left, or permission is missing.
        """
        write_text(Path(path), self.text())

    def text(self) -> str:
        """The content of the file."""
        lines = [f"#version: {self.version}", *(f"{left} {right}" for left, right in self.merges)]
        return "".join(f"{line}\n" for line in lines)

    def symbols(self, word: str) -> list[str]:
        """The symbols of a word before merging: its characters and its end."""
        return [*word, END] if self.version == "0.1" else [*word[:-1], word[-1] + END]


def read_version(line: str, name: str | os.PathLike[str]) -> str:
    """The version in the first line of a file.

    Raises:
        FormatError: the version is unknown.
    """
    written = line.removeprefix("#version:").strip()
    version = re.sub(r"(\.0+)+$", "", written)
    if version not in VERSIONS:
        raise FormatError(f"{name}:1: codes of version {written!r}; this multihead reads {' and '.join(VERSIONS)}")
    return version
