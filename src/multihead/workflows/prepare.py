"""Text made ready ahead of training, once for any number of runs; ``multihead train --data FOLDER`` starts from it.

    FOLDER/
        prepared.json    what was asked, what was decided and why, and the SHA-256 of each file below data: the end
        data/            what training reads: see `workflows.preparation`, which a new run uses too
        left-out.tsv     every pair that could not be used, and why

A run reads the folder where it stands and copies nothing; `workflows.prepared_folder` refuses one that has changed.
A command that was stopped or killed is started again and makes everything anew; a finished folder is never changed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from multihead.configuration import build
from multihead.errors import ConfigurationError
from multihead.workflows import prepared_folder, run_folder
from multihead.workflows.corpora import look_through
from multihead.workflows.planning import Choices
from multihead.workflows.preparation import Prepared, reopen, write_data
from multihead.workflows.settings import PrepareSettings
from multihead.workflows.vocabulary import Vocabulary, keep


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
            prepared_folder.write_manifest(folder, settings, choices, prepared.config)
    say(f"{prepared.config.pairs:,} training pairs are prepared: multihead train --data {folder} --output RUN")
    return prepared


def given_vocabulary(choices: Choices) -> Vocabulary | None:
    """The subwords of the model that is to be fine-tuned, if there is one."""
    if choices.settings.from_model is None:
        return None
    from multihead.bundle import load

    bundle = load(choices.settings.from_model)
    return keep(choices, bundle.source_tokenizer, bundle.target_tokenizer)


def _found(folder: Path, settings: PrepareSettings, say: Callable[[str], None]) -> Prepared:
    manifest = prepared_folder.read_manifest(folder)
    changes = run_folder.changed(run_folder.asked_for(settings), manifest.asked)
    if changes:
        raise ConfigurationError(
            f"{folder}: holds text that was prepared with other settings ({changes}); choose a new folder"
        )
    say(f"{folder}: is prepared, with {manifest.data.pairs:,} training pairs")
    return reopen(folder, manifest.data)
