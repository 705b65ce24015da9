"""A folder of prepared text as `multihead train --data` finds it: read in place, and only if nothing in it changed.

Its manifest, ``prepared.json``, has the SHA-256 of every file of its data; a run keeps that of the manifest. Both are
checked when a run begins and each time it goes on. What else is in the folder is said in `workflows.prepare`.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from multihead.configuration import Settings
from multihead.errors import ConfigurationError, FormatError
from multihead.files import sha256_of, write_text
from multihead.workflows.planning import Choices
from multihead.workflows.preparation import Prepared, reopen
from multihead.workflows.run_folder import PREPARED, asked_for
from multihead.workflows.settings import DataConfig, PreparedText, PrepareSettings

VERSION = 1
"""Of prepared.json: newer code reads older ones."""

_AGAIN = "prepare the text again into a new folder"


class Manifest(Settings):
    """prepared.json."""

    format_version: int = VERSION
    multihead: str
    """The version that wrote it."""
    asked: dict[str, object]
    """The settings that were given, rather than chosen."""
    data: DataConfig
    reasons: dict[str, str]
    """Why each choice was made."""
    files: dict[str, str]
    """The SHA-256 of each file below data."""


def write_manifest(folder: Path, settings: PrepareSettings, choices: Choices, config: DataConfig) -> None:
    """Ends the preparation: from here on the folder can be trained from."""
    manifest = Manifest(
        multihead=version("multihead"),
        asked=asked_for(settings),
        data=config,
        reasons=choices.reasons,
        files=_digests(folder),
    )
    write_text(folder / PREPARED, manifest.model_dump_json(indent=2) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of ``folder``.

    Raises:
        FormatError: there is none, or it is damaged or from a newer version.
    """
    path = folder / PREPARED
    if not path.is_file():
        why = "was prepared here to the end" if folder.is_dir() else "is there: no such folder"
        raise FormatError(f"{folder}: nothing {why}; give as --data what `multihead prepare --output` made")
    try:
        manifest = Manifest.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: damaged or from another version: {str(error).splitlines()[0]}; {_AGAIN}") from None
    if not 1 <= manifest.format_version <= VERSION:
        raise FormatError(f"{path}: format version {manifest.format_version}; this multihead reads 1 to {VERSION}")
    return manifest


def use(folder: Path, choices: Choices) -> Prepared:
    """The text of ``folder`` for a new run; takes over the reasons of what was decided there.

    Raises:
        FormatError: something in it is missing, damaged or not what was written.
        ConfigurationError: a wish about the text is not what it was prepared with.
    """
    manifest = read_manifest(folder)
    _check_wishes(folder, manifest, choices.settings)
    _check_files(folder, manifest)
    choices.reasons |= manifest.reasons
    mark = PreparedText(path=str(folder.absolute()), sha256=sha256_of(folder / PREPARED))
    return reopen(folder, manifest.data.model_copy(update={"prepared": mark}))


def use_again(config: DataConfig, moved: Path | None) -> Prepared:
    """The text of a run that goes on, from where it was or from where it has ``moved``.

    Raises:
        FormatError: it is not there, or no longer what the run was begun with.
    """
    assert config.prepared is not None
    folder = moved or Path(config.prepared.path)
    manifest = read_manifest(folder)
    if sha256_of(folder / PREPARED) != config.prepared.sha256:
        raise FormatError(
            f"{folder}: not the text that this run was begun with: {PREPARED} has changed. Give the right folder as "
            "--data, or start a new run"
        )
    _check_files(folder, manifest)
    return reopen(folder, config)


def _check_wishes(folder: Path, manifest: Manifest, settings: PrepareSettings) -> None:
    decided = {**manifest.data.model_dump(mode="json"), **manifest.asked}
    wishes = asked_for(settings)
    differing = [
        f"{name} is {decided.get(name, 'not given')} there, asked for was {wishes[name]}"
        for name in PrepareSettings.model_fields
        if name not in ("from_model", "seed") and name in wishes and decided.get(name) != wishes[name]
    ]
    if differing:
        raise ConfigurationError(
            f"{folder}: was prepared with other settings ({', '.join(differing)}); leave them out, or {_AGAIN}"
        )


def _check_files(folder: Path, manifest: Manifest) -> None:
    found = _digests(folder)
    for name, digest in manifest.files.items():
        if found.get(name) != digest:
            what = "has changed since it was written" if name in found else "is missing"
            raise FormatError(f"{folder / name}: {what} (its SHA-256 stands in {PREPARED}); {_AGAIN}")


def _digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): sha256_of(path)
        for path in sorted((folder / "data").rglob("*"))
        if path.is_file()
    }
