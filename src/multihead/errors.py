"""The exceptions of multihead: one tree, so that one ``except`` catches everything this package says.

    MultiheadError                  anything below
    ├── InputError                  the caller's mistake; a command exits with status 2
    │   ├── DataError               a text file: names file and line
    │   ├── ConfigurationError      a setting: names the setting and what it may be
    │   ├── ShapeError              tensors that do not fit together: names both shapes
    │   ├── MaskError               an attention mask of the wrong kind: says which line to write
    │   └── FormatError             a model or run folder that is not what it should be
    ├── SurroundingsError           not the caller's fault (no space, missing package); exit status 1
    │   └── MissingDependencyError  an optional package; says what to install
    ├── DivergenceError             training ran off to infinity; exit status 1
    └── Interrupted                 a signal asked us to stop; work is saved; exit status 128 + signal

A message says what was got, what was expected and what to do about it. ``assert`` is left for invariants
that only a mistake in this package can break.
"""

from __future__ import annotations

import signal
from pathlib import Path


class MultiheadError(Exception):
    """Anything that multihead reports on purpose."""

    exit_status = 1


class InputError(MultiheadError):
    """The caller handed over something that cannot be worked with."""

    exit_status = 2


class DataError(InputError):
    """A fault in a text file, with the place where it is.

    Args:
        message: what is wrong and what to do.
        path: the file (its name stands first in the message).
        line: the line, counted from 1.
    """

    def __init__(self, message: str, path: str | Path | None = None, line: int | None = None) -> None:
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(where + message)
        self.path = path
        self.line = line


class ConfigurationError(InputError):
    """A setting that does not exist, or a value that it cannot have."""


class ShapeError(InputError, ValueError):
    """Tensors whose shapes do not fit together."""


class MaskError(InputError, TypeError):
    """An attention mask of the wrong kind or meaning."""


class FormatError(InputError):
    """A model folder, run folder or tokenizer file that is not what it should be."""


class SurroundingsError(MultiheadError):
    """The machine could not do what was asked: no space left, no permission, a lost file."""


class MissingDependencyError(SurroundingsError):
    """An optional package is not installed.

    Args:
        package: what could not be imported.
        extra: the extra of multihead that brings it.
        purpose: what it is needed for.
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install 'multihead[{extra}]'")


class DivergenceError(MultiheadError):
    """The loss or its gradient is no longer a finite number."""


class Interrupted(MultiheadError):  # noqa: N818 - not an error: the work so far is saved
    """A signal asked the work to stop; what was done is on disk and can be continued."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(f"{message} ({signal.Signals(number).name})")
        self.exit_status = 128 + number
