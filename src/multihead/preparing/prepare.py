"""A folder of prepared text as `multihead train --data` finds it: read in place, and only if nothing in it changed.

Its manifest, ``prepared.json``, has the SHA-256 of every file of its data; a run keeps that of the manifest. Both are
checked when a run begins and each time it goes on. What else is in the folder is said in `preparing.prepare`.

Text made ready ahead of training, once for any number of runs; ``multihead train --data FOLDER`` starts from it.

    FOLDER/
        prepared.json    what was asked, what was decided and why, and the SHA-256 of each file below data: the end
        data/            what training reads: see `preparing.preparation`, which a new run uses too
        left-out.tsv     every pair that could not be used, and why

A run reads the folder where it stands and copies nothing; `preparing.prepare` refuses one that has changed.
A command that was stopped or killed is started again and makes everything anew; a finished folder is never changed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from multihead import work_folder as run_folder
from multihead.configuration import Settings, build
from multihead.errors import ConfigurationError, FormatError
from multihead.files import sha256_of, write_text
from multihead.planning.choices import Choices
from multihead.planning.settings import DataConfig, PreparedText, PrepareSettings
from multihead.preparing.corpora import look_through
from multihead.preparing.preparation import Prepared, reopen, write_data
from multihead.preparing.vocabulary import Vocabulary, keep
from multihead.work_folder import PREPARED, asked_for

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


def prepare(
    *,
    say: Callable[[str], None] = print,
    stop_signal: Callable[[], int | None] = lambda: None,
    **wishes: Any,
) -> Prepared:
    """Prepares text for training, or says that it is prepared.

    Args:
        say: is told each line of progress.
        stop_signal: is asked now and then for the number of a signal that wants the work to stop.
        **wishes: fields of `PrepareSettings`: ``source``, ``target`` and ``output`` are needed.

    Raises:
        InputError: files, settings or the output folder are not what they should be; nothing was overwritten.
        Interrupted: ``stop_signal`` gave one; nothing is left.
    """
    settings = build(PrepareSettings, wishes, "the settings")
    if settings.output is None:
        raise ConfigurationError("the folder is not named: output missing (--output FOLDER)")
    folder = settings.output
    with run_folder.holding(folder):
        if run_folder.is_begun(folder, run_folder.PREPARED):
            return _found(folder, settings, say)
        choices = Choices(settings)
        given = given_vocabulary(choices)
        files = look_through(settings)
        with run_folder.preparing(folder, run_folder.PREPARED):
            prepared = write_data(choices, files, folder, say, given, stop_signal)
            write_manifest(folder, settings, choices, prepared.config)
    say(f"{prepared.config.pairs:,} training pairs are prepared: multihead train --data {folder} --output RUN")
    return prepared


def given_vocabulary(choices: Choices) -> Vocabulary | None:
    """The subwords of the model that is to be fine-tuned, if there is one."""
    if choices.settings.from_model is None:
        return None
    from multihead.bundle import load_bundle

    bundle = load_bundle(choices.settings.from_model)
    return keep(choices, bundle.source_tokenizer, bundle.target_tokenizer)


def _found(folder: Path, settings: PrepareSettings, say: Callable[[str], None]) -> Prepared:
    manifest = read_manifest(folder)
    changes = run_folder.changed(run_folder.asked_for(settings), manifest.asked)
    if changes:
        raise ConfigurationError(
            f"{folder}: holds text that was prepared with other settings ({changes}); choose a new folder"
        )
    say(f"{folder}: is prepared, with {manifest.data.pairs:,} training pairs")
    return reopen(folder, manifest.data)
