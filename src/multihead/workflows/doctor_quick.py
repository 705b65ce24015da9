"""The quick part of `multihead doctor`, as ``train`` does it by itself before the first update of a new run.

It reads the beginning of each corpus and the validation files, with the subwords that were made, and tries the network
that was decided on one batch, on the processor. It takes a second or two, draws none of the run's random numbers and
never stops a run: what it finds is said, and which command tells more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from multihead.errors import MultiheadError
from multihead.workflows.doctor import QUICK, examine
from multihead.workflows.doctor_findings import Diagnosis
from multihead.workflows.doctor_subject import of_data
from multihead.workflows.preparation import Prepared
from multihead.workflows.settings import RunConfig, TrainSettings


def tell_findings(
    settings: TrainSettings, config: RunConfig, prepared: Prepared, folder: Path, say: Callable[[str], None]
) -> None:
    """Says what the quick part finds in a run that was just decided.

    Args:
        settings: the wishes.
        config: what was decided.
        prepared: what training reads.
        folder: of the run.
        say: is told each line.
    """
    subject = replace(
        of_data(config.data, settings.model_copy(update={"device": "cpu", "seed": config.training.seed})),
        tokenizers=(prepared.source_tokenizer, prepared.target_tokenizer),
        network=config.model,
    )
    try:
        diagnosis = examine(subject, quick=True)
    except MultiheadError as error:  # the files may have gone since; training has its own copy
        say(f"not looked for faults: {error}")
        return
    for line in _lines(diagnosis, folder):
        say(line)


def _lines(diagnosis: Diagnosis, folder: Path) -> list[str]:
    grave = [one for one in diagnosis.findings if one.severity != "note"]
    looked = f"looked for faults (up to {QUICK:,} pairs of a corpus, subwords, model): {diagnosis.counted()}"
    command = f"; all of it: multihead doctor {folder}"
    return [looked + command, *(f"  {one.headline}" for one in grave)]
