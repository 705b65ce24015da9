"""The exceptions of multihead, with one common base class.

    MultiheadError                  anything below
    ├── InputError                  invalid input; a command exits with status 2
    │   ├── DataError               a text file: names file and line
    │   ├── ConfigurationError      a setting: names the setting and its allowed values
    │   │   └── SettingsError       an object of settings in Python: names all that is wrong with its arguments
    │   ├── ShapeError              tensors whose shapes do not match: names both shapes
    │   ├── MaskError               an attention mask of the wrong kind: says how to write it
    │   └── FormatError             a damaged or wrong model folder, run folder or tokenizer file
    ├── SurroundingsError           a failure of the machine (no space, missing package); exit status 1
    │   └── MissingDependencyError  an optional package is missing: says what to install
    ├── DivergenceError             training diverged; exit status 1
    ├── Interrupted                 stopped by a signal, after saving; exit status 128 + signal
    └── OutputClosedError           the reader of standard output has closed it; exit status 141, without a message

A message says what was got, what was expected and what to do about it. ``assert`` is used only for invariants
that a bug of this package would break.
"""

from __future__ import annotations

import signal
from importlib import import_module
from pathlib import Path
from typing import Any

from multihead.urls import url_of


class MultiheadError(Exception):
    """Base class of all errors that multihead raises on purpose. They can be pickled."""

    exit_status = 1

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, vars(self))


def _restored(cls: type[MultiheadError], arguments: tuple[Any, ...], attributes: dict[str, Any]) -> MultiheadError:
    """An error as it was pickled: the initializers of some classes have other arguments than its message."""
    error = cls.__new__(cls, *arguments)
    error.__dict__.update(attributes)
    return error


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
        name = None if path is None else url_of(path) or path
        where = "" if name is None else f"{name}: " if line is None else f"{name}:{line}: "
        super().__init__(where + message)
        self.path = path
        self.line = line


class ConfigurationError(InputError):
    """An unknown setting, or an invalid value."""


class SettingsError(ConfigurationError, ValueError):
    """Settings that cannot be constructed. A ValueError, as pydantic's ValidationError is, which is its context."""


class ShapeError(InputError, ValueError):
    """Tensors whose shapes do not match."""


class MaskError(InputError, TypeError):
    """An attention mask of the wrong kind or meaning."""


class FormatError(InputError):
    """A model folder, run folder or tokenizer file that is damaged or of another kind."""


class SurroundingsError(MultiheadError):
    """The machine failed: no space left, no permission, a lost file."""


class MissingDependencyError(SurroundingsError):
    """An optional package is not installed, or cannot be imported.

    Args:
        package: the package that could not be imported.
        extra: the extra of multihead that installs it.
        purpose: what needs the package.
        reason: why a package that is installed cannot be imported; None if it is not installed.
    """

    def __init__(self, package: str, extra: str, purpose: str, reason: str | None = None) -> None:
        problem, remedy = "is not installed", f'"multihead[{extra}]"'
        if reason is not None:
            problem, remedy = f"cannot be imported ({reason})", f"--force-reinstall {package}"
        super().__init__(f"{purpose} needs {package}, which {problem}: pip install {remedy}")


_PACKAGES = {"google": "protobuf", "yaml": "PyYAML"}
"""Packages whose modules have another name."""


def require_package(module: str, extra: str, purpose: str) -> None:
    """Import a module of an optional package, so that the statements after it can.

    Args:
        module: the module, such as "pyarrow.parquet".
        extra: the extra of multihead that installs its package.
        purpose: what needs it, for the message.

    Raises:
        MissingDependencyError: it, or a package that it imports, is not installed or is broken.
    """
    package = module.partition(".")[0]
    try:
        import_module(package)
        import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        raise MissingDependencyError(_PACKAGES.get(package, package), extra, purpose) from error
    except Exception as error:  # packages with compiled parts raise all kinds
        reason = shortened(" ".join(f"{type(error).__name__}: {error}".split()), 300)
        raise MissingDependencyError(_PACKAGES.get(package, package), extra, purpose, reason) from error


class DivergenceError(MultiheadError):
    """The loss or its gradient is not finite, or too large."""


class Interrupted(MultiheadError):  # noqa: N818 - not an error: the work so far is saved
    """Stopped by a signal; the work so far is saved and can be resumed."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(f"{message} ({signal.Signals(number).name})")
        self.exit_status = 128 + number


class OutputClosedError(MultiheadError):
    """The reader of standard output has closed it, as ``head`` does; like other filters, the command ends silently."""

    exit_status = 141  # 128 + SIGPIPE, which a shell shows for a program that the signal has ended


def shortened(text: str, most: int = 100) -> str:
    """The beginning of a text that comes from a file, for a message."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def shown(value: object) -> str:
    """A value that comes from a file, as Python writes it, shortened for a message."""
    try:
        return shortened(repr(value))
    except (ValueError, RecursionError):  # a number of thousands of digits, or a value of thousands of levels
        return f"a {type(value).__name__} too long to show"
