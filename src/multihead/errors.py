"""The exceptions of multihead, with one common base class.

    MultiheadError                  anything below
    ├── InputError                  invalid input; a command exits with status 2
    │   ├── DataError               a text file: names file and line
    │   ├── ConfigurationError      a setting: names the setting and its allowed values
    │   ├── ShapeError              tensors whose shapes do not match: names both shapes
    │   ├── MaskError               an attention mask of the wrong kind: says how to write it
    │   └── FormatError             a damaged or wrong model folder, run folder or tokenizer file
    ├── SurroundingsError           a failure of the machine (no space, missing package); exit status 1
    │   └── MissingDependencyError  an optional package is missing: says what to install
    ├── DivergenceError             training diverged; exit status 1
    └── Interrupted                 stopped by a signal, after saving; exit status 128 + signal

A message says what was got, what was expected and what to do about it. ``assert`` is used only for invariants
that a bug of this package would break.
"""

from __future__ import annotations

import signal
from pathlib import Path


class MultiheadError(Exception):
    """Base class of all errors that multihead raises on purpose."""

    exit_status = 1


class InputError(MultiheadError):
    """Invalid input from the caller."""

    exit_status = 2


class DataError(InputError):
    """An error in a text file.

    Args:
        message: what is wrong and what to do.
        path: the file; prefixed to the message.
        line: the line, counted from 1; prefixed to the message.
    """

    def __init__(self, message: str, path: str | Path | None = None, line: int | None = None) -> None:
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(where + message)
        self.path = path
        self.line = line


class ConfigurationError(InputError):
    """An unknown setting, or an invalid value."""


class ShapeError(InputError, ValueError):
    """Tensors whose shapes do not match."""


class MaskError(InputError, TypeError):
    """An attention mask of the wrong kind or meaning."""


class FormatError(InputError):
    """A model folder, run folder or tokenizer file that is damaged or of another kind."""


class SurroundingsError(MultiheadError):
    """The machine failed: no space left, no permission, a lost file."""


class MissingDependencyError(SurroundingsError):
    """An optional package is not installed.

    Args:
        package: the package that could not be imported.
        extra: the extra of multihead that installs it.
        purpose: what needs the package.
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install 'multihead[{extra}]'")


class DivergenceError(MultiheadError):
    """The loss or its gradient is not finite, or too large."""


class Interrupted(MultiheadError):  # noqa: N818 - not an error: the work so far is saved
    """Stopped by a signal; the work so far is saved and can be resumed."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(f"{message} ({signal.Signals(number).name})")
        self.exit_status = 128 + number


def shortened(text: str, most: int = 100) -> str:
    """The beginning of a text that comes from a file, for a message."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def shown(value: object) -> str:
    """A value that comes from a file, as Python writes it, shortened for a message."""
    try:
        return shortened(repr(value))
    except (ValueError, RecursionError):  # a number of thousands of digits, or a value of thousands of levels
        return f"a {type(value).__name__} too long to show"
