"""Whose folder is it: a run's, one in the making, an empty one, or somebody else's, which is not touched.

A run has begun once its ``run.json`` stands there. Before that a marker stands in the folder and says that all of it
is to be made again; whoever stops with an error in that time leaves nothing behind, not even the folder. What is in a
run is said in `workflows.train`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from multihead.errors import ConfigurationError, FormatError
from multihead.files import explained, is_unfinished, remove, remove_unfinished, write_text
from multihead.workflows.settings import RunConfig, TrainSettings

_MARKER = ".multihead-preparing"
_RUN = "run.json"
_PREPARED = (_MARKER, "data", "left-out.tsv")
"""What stands in a run in the making."""


def begun(folder: Path) -> RunConfig | None:
    """The decisions of the run that stands in ``folder``; ``None`` where one can begin. Changes nothing.

    Raises:
        ConfigurationError: the folder is a file, or holds something that is not a run.
        FormatError: run.json is damaged.
    """
    standing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not standing.is_dir():
        raise ConfigurationError(f"{standing}: is a file; --output names a folder")
    if standing != folder:
        return None
    path = folder / _RUN
    if path.exists():
        try:
            return RunConfig.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FormatError(f"{path}: damaged or from another version: {str(error).splitlines()[0]}") from None
    made = _PREPARED if (folder / _MARKER).exists() else ()
    if not all(path.name in made or is_unfinished(path) for path in folder.iterdir()):
        raise ConfigurationError(
            f"{folder}: holds something that is not a run; nothing was touched. Choose a new folder"
        )
    return None


def check_same(folder: Path, config: RunConfig, settings: TrainSettings) -> None:
    """Refuses to go on with a run whose settings are not those that it was begun with; fewer are as good.

    Raises:
        ConfigurationError: names each setting that differs, as it was and as it is now.
    """
    asked = asked_for(settings)
    differing = [name for name, value in asked.items() if config.asked.get(name) != value]
    if differing:
        changes = ", ".join(
            f"{name} was {config.asked.get(name, 'not given')}, now {asked[name]}" for name in differing
        )
        raise ConfigurationError(
            f"{folder}: holds a run with other settings ({changes}). To go on with it leave them as they were, "
            "or give --output alone; for a new run choose a new folder"
        )


def asked_for(settings: TrainSettings) -> dict[str, object]:
    """The settings that were given, as run.json keeps them."""
    return settings.model_dump(mode="json", exclude_none=True, exclude={"output"})


@contextlib.contextmanager
def preparing(folder: Path) -> Iterator[None]:
    """Marks ``folder`` as a run in the making; it is left as it was found where the making ends in an exception."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / _MARKER, "A run is being prepared here; starting it again prepares it anew.\n")
        _empty(folder)
        yield
    except BaseException:
        if folder.is_dir() and not (folder / _RUN).exists():
            with contextlib.suppress(OSError):
                _empty(folder)
                (folder / _MARKER).unlink(missing_ok=True)
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise
    clear_up(folder)


def _empty(folder: Path) -> None:
    """Removes everything but the marker: `begun` has seen that nothing else is anybody's."""
    for path in list(folder.iterdir()):
        if path.name != _MARKER:
            remove(path)


def write(folder: Path, config: RunConfig) -> None:
    """Freezes the decisions: from here on the run goes on instead of being prepared again."""
    write_text(folder / _RUN, config.model_dump_json(indent=2) + "\n")


def clear_up(folder: Path) -> None:
    """Removes what a killed process may have left in a run that has begun."""
    remove_unfinished(folder)
    with explained(folder):
        (folder / _MARKER).unlink(missing_ok=True)
