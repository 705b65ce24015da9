"""Folders of runs and of prepared text, and who may write there.

A run has begun once its ``run.json`` exists, and a folder of `multihead prepare` is finished once its ``prepared.json``
does. Before that file the manifest is written, which lists it and all data (`multihead.sealed`); a run also gets a copy
of it, from which `restore` writes it again. Until then a marker in the folder says that everything in it will be made
again; an error during that time leaves nothing behind, not even the folder. Long preparations keep what their journal
lists, and go on from there (`preparing.journal`). Only one process at a time works in a
folder (`locked`), and a folder that holds anything else is not touched. What a run consists of is in `runs.run`, what
prepared text consists of in `preparing.prepared`.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TypeVar, get_args

from multihead.configuration import Settings
from multihead.errors import ConfigurationError, FormatError, Interrupted
from multihead.files import (
    atomic_file,
    is_unfinished,
    lock_holder,
    lock_stands_for,
    open_lock,
    refuse_url,
    remove,
    remove_unfinished,
    take_lock,
    write_chunks,
    write_errors,
    write_text,
)
from multihead.sealed import MANIFEST, OpenFolder, manifest_of, open_folder, read_file

_MARKER = ".multihead-preparing"
RUN, PREPARED = "run.json", "prepared.json"
JOURNAL = "preparing.jsonl"
"""What a preparation has done so far; in no finished folder."""
_COPY = "run.copy.json"
_DEFAULT_KIND = "translator"
"""The kind of a run whose ``run.json`` names none."""
_KINDS = {
    _DEFAULT_KIND: ("`multihead train`", "translator"),
    "pointer": ("`multihead pointer train`", "pointer network"),
    "classifier": ("`multihead classify train`", "classifier"),
    "pretrain": ("`multihead pretrain`", "BERT"),
    "best": ("`multihead train --best`", "translator in stages"),
    "language-model": ("`multihead train --model decoder`", "language model"),
    "report": ("`multihead report`", "report"),
}
"""For each ``kind`` of run: the command that makes it, and the name of what it trains."""

Config = TypeVar("Config", bound=Settings)
_SEALED = ("data", "left-out.tsv", _COPY)
"""Names besides the description that the manifest lists."""
_UNFINISHED_CONTENT = (_MARKER, JOURNAL, *_SEALED, "checkpoints", "text", MANIFEST)
"""Names that may exist in a folder under construction."""
_DESCRIPTIONS = {RUN: "a run", PREPARED: "what `multihead prepare` wrote"}
_REMEDIES = {RUN: "Continue it with `multihead train`", PREPARED: "Train from it with --data"}


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock ``folder`` for this process until the block or the process ends; create it if necessary.

    If the block raises, folders that were created and are still empty are removed.

    Raises:
        ConfigurationError: another process works in the folder, or it is a file.
        SurroundingsError: it cannot be created.
    """
    nearest_existing(folder)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    descriptor = _open_locked(folder)
    try:
        yield
    except BaseException:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise
    finally:
        os.close(descriptor)


def _open_locked(folder: Path) -> int:
    """The descriptor of the folder, locked."""
    while True:
        try:
            # Another process may remove the folder between mkdir and its check of what exists.
            with write_errors(folder), contextlib.suppress(FileExistsError):
                folder.mkdir(parents=True, exist_ok=True)
            descriptor = open_lock(folder)
        except FileNotFoundError:  # removed since by the process that created it
            continue
        if not take_lock(descriptor):
            who = lock_holder(descriptor)
            os.close(descriptor)
            raise ConfigurationError(
                f"{folder}: another process{who} is working in it; wait until that one has ended, or choose another "
                "folder"
            )
        if lock_stands_for(descriptor, folder):
            return descriptor
        os.close(descriptor)  # removed before it was locked


def nearest_existing(folder: Path) -> Path:
    """``folder`` or its nearest ancestor that exists.

    Raises:
        ConfigurationError: that is a file, or ``folder`` is a URL.
    """
    refuse_url(folder)
    for path in (folder, *folder.absolute().parents):
        try:
            mode = path.stat().st_mode  # asked once: another process may make or remove it meanwhile
        except PermissionError:
            raise
        except OSError:  # it does not exist, or cannot under such a name
            if path.is_symlink():
                raise ConfigurationError(f"{path}: is a link to {path.readlink()}, which does not exist") from None
            continue
        if not stat.S_ISDIR(mode):
            raise ConfigurationError(f"{path}: is a file; --output names a folder")
        return path
    raise ConfigurationError(f"{folder}: not even {folder.absolute().anchor} exists; choose another folder")


def is_begun(folder: Path, final: str) -> bool:
    """Whether ``folder`` contains the file ``final``, `RUN` or `PREPARED`; if not, it can be made there.

    Raises:
        ConfigurationError: the folder is a file, or holds something else.
        FormatError: the file is missing in a folder whose manifest lists it.
    """
    if nearest_existing(folder) != folder:
        return False
    if (folder / final).exists():
        return True
    (other,) = {RUN, PREPARED} - {final}
    if (folder / other).exists():
        raise ConfigurationError(
            f"{folder}: holds {_DESCRIPTIONS[other]}, not {_DESCRIPTIONS[final]}; nothing was touched. "
            f"{_REMEDIES[other]}, or choose a new folder"
        )
    if (folder / MANIFEST).exists() and not (folder / _MARKER).exists():
        with open_work(folder) as opened:
            if final in opened:
                raise FormatError(f"{folder / final}: is missing; {opened.remedy}")
    expected = _UNFINISHED_CONTENT if (folder / _MARKER).exists() else ()
    if not all(path.name in expected or is_unfinished(path) for path in folder.iterdir()):
        raise ConfigurationError(
            f"{folder}: holds something that is not {_DESCRIPTIONS[final]}; nothing was touched. Choose a new folder"
        )
    return False


def require_output(folder: Path | None) -> Path:
    """The run folder in the settings.

    Raises:
        ConfigurationError: there is none.
    """
    if folder is None:
        raise ConfigurationError("the run folder is not named: output missing (--output FOLDER)")
    return folder


def read(folder: Path, cls: type[Config]) -> Config | None:
    """Read ``run.json``; ``None`` if a run can begin in ``folder``.

    Args:
        folder: the run folder.
        cls: the settings of the expected kind of run. The only value of its field ``kind`` names the kind, and the
            default of its ``format_version`` is the newest version that can be read.

    Raises:
        ConfigurationError: the folder is a file, or holds something that is not a run, or another kind of run.
        FormatError: run.json is damaged, or of a newer version.
    """
    if not is_begun(folder, RUN):
        return None
    field = cls.model_fields.get("kind")
    kind = _DEFAULT_KIND if field is None else get_args(field.annotation)[0]
    with open_work(folder) as opened:
        if _has_copy(opened):
            opened.remedy = _KEPT.format(copy=f"its copy {_COPY}")
        found = opened.read_json(RUN).get("kind", _DEFAULT_KIND)
        if found != kind and found in _KINDS:
            raise ConfigurationError(
                f"{folder}: holds a run of {_KINDS[found][0]}, not of a {_KINDS[kind][1]}; nothing was touched. "
                "Choose a new folder"
            )
        return parse(opened, RUN, cls, "a newer multihead began this run; continue it with that version")


def kind_of(folder: Path) -> str | None:
    """The kind of the run in a folder, by its description or the copy; None if neither can be read.

    `read` says what is wrong then.
    """
    if not folder.is_dir():
        return None
    for name in (RUN, _COPY):
        with contextlib.suppress(FormatError), open_work(folder) as opened:
            return str(opened.read_json(name).get("kind", _DEFAULT_KIND))
    return None


def restore(folder: Path, cls: type[Settings], say: Callable[[str], None]) -> None:
    """Write a ``run.json`` that is missing or cannot be read again, from its copy; the folder is locked.

    One that can be read but is not as it was written may be an edit of the user; `read` refuses it.

    Args:
        folder: what may be a run folder.
        cls: the settings of the expected kind of run.
        say: called with one line if the file is written.

    Raises:
        FormatError: the manifest is damaged.
        SurroundingsError: the file cannot be written.
    """
    if (folder / _MARKER).exists() or not (folder / MANIFEST).is_file():
        return
    with open_work(folder) as opened:
        if not _has_copy(opened) or _is_intact(opened, RUN) or not _is_intact(opened, _COPY):
            return
        try:
            cls.model_validate_json(read_file(folder / RUN))
        except (FormatError, ValueError, RecursionError):
            what = "is damaged" if (folder / RUN).exists() else "is missing"
            write_text(folder / RUN, opened.read_text(_COPY))
            say(f"{folder / RUN} {what}: written again from {_COPY}, the copy that {MANIFEST} lists")


def _is_intact(folder: OpenFolder, name: str) -> bool:
    try:
        folder.verify(name)
    except FormatError:
        return False
    return True


def _has_copy(folder: OpenFolder) -> bool:
    """Whether the manifest of a run lists a copy of its description; runs of version 0.6 and older have none."""
    entries = folder.entries or {}
    return _COPY in entries and entries[_COPY] == entries.get(RUN)


def open_work(folder: Path) -> OpenFolder:
    """Open a run folder or a folder of prepared text.

    Raises:
        FormatError: it does not exist, or its manifest is damaged.
    """
    return open_folder(folder, _KEPT.format(copy="a copy"))


_KEPT = (
    "the settings and data of a run must not change once it has begun: restore the file from {copy}, or begin anew in "
    "another folder, where settings may differ (`multihead train --from-model` continues from a trained model)"
)


def parse(folder: OpenFolder, name: str, cls: type[Config], newer: str) -> Config:
    """Read `RUN` or `PREPARED`.

    Args:
        folder: the folder.
        name: the file.
        cls: its content; the default of ``format_version`` is the newest version that can be read, and since version
            ``sealed_since`` the folder has a manifest.
        newer: the end of the message for a newer version.

    Raises:
        FormatError: the file is damaged or of a newer version, or the folder has lost its manifest.
    """
    path, content = folder.path / name, folder.read_text(name)
    try:
        config = cls.model_validate_json(content)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: damaged or from another version: {str(error).splitlines()[0]}") from None
    version: int = getattr(config, "format_version", 0)
    newest: int = cls.model_fields["format_version"].default
    if not 1 <= version <= newest:
        known = "version 1" if newest == 1 else f"versions 1 to {newest}"
        raise FormatError(f"{path}: format version {version}; this multihead reads {known}: {newer}")
    since: int = getattr(cls, "sealed_since", newest)
    if version >= since and folder.entries is None:
        raise FormatError(f"{folder.path / MANIFEST}: is missing or damaged; {folder.remedy}")
    return config


def check_same_settings(folder: Path, given: dict[str, object], begun_with: dict[str, object]) -> None:
    """Check that every given setting equals the one with which the run began; settings may be left out.

    Raises:
        ConfigurationError: some differ; the message names each.
    """
    changes = changed_settings(given, begun_with)
    if changes:
        raise ConfigurationError(
            f"{folder}: holds a run with other settings ({changes}). To continue it, leave them as they were, "
            "or give --output alone; for a new run, choose a new folder"
        )


def changed_settings(now: dict[str, object], before: dict[str, object]) -> str:
    """A list of the settings that differ from those before, in words; empty if none does."""
    differing = [name for name, value in now.items() if before.get(name) != value]
    return ", ".join(f"{name} was {before.get(name, 'not given')}, now {now[name]}" for name in differing)


def given_settings(settings: Settings) -> dict[str, object]:
    """The settings given by the user, as run.json records them."""
    return settings.model_dump(mode="json", exclude_none=True, exclude={"output"})


@contextlib.contextmanager
def preparing(
    folder: Path, final: str = RUN, *, resumed: Collection[str] = (), kept: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Mark ``folder`` as under construction; if the block raises, the folder is left as it was found.

    Args:
        folder: the folder.
        final: the file that says that it is finished.
        resumed: names in the folder that an interrupted attempt left and this one uses; all others are removed.
        kept: called when the block was interrupted; whether what it has done stays, for the next attempt.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / _MARKER, "This folder is being made; start the same command again.\n")
        _empty(folder, resumed)
        yield
    except BaseException as error:
        if isinstance(error, Interrupted) and kept():
            raise
        if folder.is_dir() and not (folder / final).exists():
            with contextlib.suppress(OSError):
                _empty(folder)
                if {path.name for path in folder.iterdir()} <= {_MARKER}:  # text that is mapped may have to stay
                    (folder / _MARKER).unlink(missing_ok=True)
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise
    remove_leftovers(folder)


def _empty(folder: Path, kept: Collection[str] = ()) -> None:
    """Remove all but the marker and what is kept; `is_begun` has checked that nothing else is in the folder."""
    for path in list(folder.iterdir()):
        if path.name != _MARKER and path.name not in kept:
            remove(path)


def write(folder: Path, config: Settings, final: str = RUN, known: Mapping[str, str] | None = None) -> None:
    """Write ``run.json`` (or `PREPARED`), after its copy and the manifest that lists it and all data.

    From here on a run resumes instead of being prepared again.

    Args:
        folder: the folder.
        config: the content of the file.
        final: the file.
        known: the SHA-256 of data files that were hashed before.
    """
    text = config.model_dump_json(indent=2) + "\n"
    if final == RUN:
        write_text(folder / _COPY, text)
    with atomic_file(folder / MANIFEST) as draft:
        write_chunks(draft, [manifest_of(folder, known, {final: text.encode()}, _SEALED)])
    write_text(folder / final, text)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process may have left in a run that has begun."""
    remove_unfinished(folder)
    with write_errors(folder):
        (folder / JOURNAL).unlink(missing_ok=True)
        (folder / _MARKER).unlink(missing_ok=True)
