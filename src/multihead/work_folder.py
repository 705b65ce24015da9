"""Whose folder is it: a run's, one in the making, an empty one, or somebody else's, which is not touched.

A run has begun once its ``run.json`` stands there; a folder of `multihead prepare` is finished once its
``prepared.json`` does. Before that a marker stands in the folder and says that all of it is to be made again; whoever
stops with an error in that time leaves nothing behind, not even the folder. One process at a time works in a folder:
whoever means to asks by `locked`, before anything else. What is in a run is said in `runs.translator.train`, what is
in the
other one in `preparing.prepare`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from multihead.configuration import Settings
from multihead.errors import ConfigurationError, FormatError
from multihead.files import is_unfinished, lock_holder, remove, remove_unfinished, take_lock, write_errors, write_text

_MARKER = ".multihead-preparing"
RUN, PREPARED = "run.json", "prepared.json"
TRANSLATOR, POINTER, CLASSIFIER, PRETRAIN = "translator", "pointer", "classifier", "pretrain"
"""What a run's ``kind`` can be; the runs of translators do not say theirs."""
_KINDS = {
    TRANSLATOR: ("`multihead train`", "translator"),
    POINTER: ("`multihead pointer train`", "pointer network"),
    CLASSIFIER: ("`multihead classify train`", "classifier"),
    PRETRAIN: ("`multihead pretrain`", "BERT"),
}
"""The command that makes a run of each, and the name of what is trained."""

Decided = TypeVar("Decided", bound=Settings)
_MADE = (_MARKER, "data", "left-out.tsv", "checkpoints")
"""What stands in a folder in the making."""
_WHOSE = {RUN: "a run", PREPARED: "what `multihead prepare` wrote"}
_REMEDIES = {RUN: "Go on with it by `multihead train`", PREPARED: "Train from it by --data"}


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps ``folder``, which is made if need be, for this process until it leaves the block or ends, however it ends.

    Who leaves with an exception leaves no empty folder where there was none.

    Raises:
        ConfigurationError: another process works in the folder, or it is a file.
        SurroundingsError: it cannot be made.
    """
    _standing(folder)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    descriptor = None if os.name == "nt" else _locked(folder)
    try:
        yield
    except BaseException:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _locked(folder: Path) -> int:
    """The folder, open and locked."""
    while True:
        try:
            with (
                write_errors(folder),
                contextlib.suppress(FileExistsError),
            ):  # it may be gone again before it is looked at
                folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # its maker has given it up in this moment
            continue
        if not take_lock(descriptor):
            who = lock_holder(descriptor)
            os.close(descriptor)
            raise ConfigurationError(
                f"{folder}: another process{who} is working in it; wait until that one has ended, or choose another "
                "folder"
            )
        if folder.is_dir() and folder.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
        os.close(descriptor)  # given up and removed before it was ours


def _standing(folder: Path) -> Path:
    """``folder`` or the nearest above it that exists.

    Raises:
        ConfigurationError: that is a file.
    """
    standing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not standing.is_dir():
        raise ConfigurationError(f"{standing}: is a file; --output names a folder")
    return standing


def is_begun(folder: Path, final: str) -> bool:
    """Whether the file ``final``, `RUN` or `PREPARED`, stands in ``folder``; if not, it can be made there.

    Raises:
        ConfigurationError: the folder is a file, or holds something else.
    """
    if _standing(folder) != folder:
        return False
    if (folder / final).exists():
        return True
    (other,) = {RUN, PREPARED} - {final}
    if (folder / other).exists():
        raise ConfigurationError(
            f"{folder}: holds {_WHOSE[other]}, not {_WHOSE[final]}; nothing was touched. {_REMEDIES[other]}, "
            "or choose a new folder"
        )
    made = _MADE if (folder / _MARKER).exists() else ()
    if not all(path.name in made or is_unfinished(path) for path in folder.iterdir()):
        raise ConfigurationError(
            f"{folder}: holds something that is not {_WHOSE[final]}; nothing was touched. Choose a new folder"
        )
    return False


def require_output(folder: Path | None) -> Path:
    """The run folder that was asked for.

    Raises:
        ConfigurationError: none was.
    """
    if folder is None:
        raise ConfigurationError("the run folder is not named: output missing (--output FOLDER)")
    return folder


def read(folder: Path, cls: type[Decided], kind: str, newest: int) -> Decided | None:
    """What ``run.json`` says, of whichever kind of run; ``None`` where one can begin. Changes nothing.

    Args:
        folder: where the run stands.
        cls: what it is to be.
        kind: `TRANSLATOR`, or another of those above.
        newest: the version of this file that this multihead writes.

    Raises:
        ConfigurationError: the folder is a file, or holds something that is not a run, or another kind of run.
        FormatError: run.json is damaged, or from a newer version.
    """
    if not is_begun(folder, RUN):
        return None
    path = folder / RUN
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text).get("kind", TRANSLATOR)
        if found != kind and found in _KINDS:
            raise ConfigurationError(
                f"{folder}: holds a run of {_KINDS[found][0]}, not of a {_KINDS[kind][1]}; nothing was touched. "
                "Choose a new folder"
            )
        config = cls.model_validate_json(text)
    except (OSError, ValueError, AttributeError) as error:
        raise FormatError(f"{path}: damaged or from another version: {str(error).splitlines()[0]}") from None
    version: int = getattr(config, "format_version", 0)
    if not 1 <= version <= newest:
        known = "version 1" if newest == 1 else f"versions 1 to {newest}"
        raise FormatError(
            f"{path}: format version {version}; this multihead reads {known}: a newer multihead began this run, go on "
            "with that"
        )
    return config


def check_same_settings(folder: Path, asked: dict[str, object], begun_with: dict[str, object]) -> None:
    """Refuses to go on with a run whose settings are not those that it was begun with; fewer are as good.

    Raises:
        ConfigurationError: some differ; they are named.
    """
    changes = changed_settings(asked, begun_with)
    if changes:
        raise ConfigurationError(
            f"{folder}: holds a run with other settings ({changes}). To go on with it leave them as they were, "
            "or give --output alone; for a new run choose a new folder"
        )


def changed_settings(now: dict[str, object], before: dict[str, object]) -> str:
    """Which settings are others than before, in words; nothing where none is."""
    differing = [name for name, value in now.items() if before.get(name) != value]
    return ", ".join(f"{name} was {before.get(name, 'not given')}, now {now[name]}" for name in differing)


def given_settings(settings: Settings) -> dict[str, object]:
    """The settings that were given, as run.json keeps them."""
    return settings.model_dump(mode="json", exclude_none=True, exclude={"output"})


@contextlib.contextmanager
def preparing(folder: Path, final: str = RUN) -> Iterator[None]:
    """Marks ``folder`` as one in the making; it is left as it was found where the making ends in an exception."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / _MARKER, "This folder is being made; starting the same command again makes it anew.\n")
        _empty(folder)
        yield
    except BaseException:
        if folder.is_dir() and not (folder / final).exists():
            with contextlib.suppress(OSError):
                _empty(folder)
                (folder / _MARKER).unlink(missing_ok=True)
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise
    remove_leftovers(folder)


def _empty(folder: Path) -> None:
    """Removes everything but the marker: `is_begun` has seen that nothing else is anybody's."""
    for path in list(folder.iterdir()):
        if path.name != _MARKER:
            remove(path)


def write(folder: Path, config: Settings) -> None:
    """Freezes the decisions: from here on the run goes on instead of being prepared again."""
    write_text(folder / RUN, config.model_dump_json(indent=2) + "\n")


def remove_leftovers(folder: Path) -> None:
    """Removes what a killed process may have left in a run that has begun."""
    remove_unfinished(folder)
    with write_errors(folder):
        (folder / _MARKER).unlink(missing_ok=True)
