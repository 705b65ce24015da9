"""Say what a run has learned: ``multihead report``.

A report is a folder:

    run.json           which trainings measure the gain of more data: a `ReportConfig`; run.copy.json is a copy of it
    trainings.jsonl    their outcomes, and the time spent (`training.budget.Journal`)
    trainings/         their texts and runs; not needed once the report is finished
    report.md          the card, with the picture curves.svg; report.json has the same as data

The card is written anew by each call: curves to compare with, and the text of which errors are shown, may change.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from multihead import work_folder
from multihead.configuration import build
from multihead.data.corpus import check_parallel
from multihead.data.text_files import read_lines
from multihead.errors import ConfigurationError, Interrupted, MissingDependencyError
from multihead.files import sha256_of, write_text
from multihead.inspection.curves import draw_curves
from multihead.judging.errors import Errors, count_words, find_errors
from multihead.planning.settings import RunConfig, read_run
from multihead.preparing.prepared import PreparedText, open_training_text
from multihead.runs.best.plan import FORWARD, STUDENT
from multihead.runs.curves import Log, panels_of, read_curves, read_log
from multihead.runs.report import plan
from multihead.runs.report.card import PICTURE, Report
from multihead.runs.report.parts import kept_record, measure_gain
from multihead.runs.report.plan import ReportConfig, ReportSettings
from multihead.runs.run import installed_versions
from multihead.training.context import RunContext
from multihead.translating.translator import Translator

_COUNTED = 100_000
"""Training sentences whose words are counted, evenly spread."""
_BATCH = 8192


def report(
    run: str | Path,
    *,
    output: str | Path,
    source: str | Path | None = None,
    target: str | Path | None = None,
    against: Sequence[str | Path] = (),
    budget: float | str | None = None,
    say: Callable[[str], None] = print,
    stop_signal: Callable[[], int | None] = lambda: None,
    use_threads: Callable[[int], None] = lambda _: None,
    started: float | None = None,
) -> Report:
    """Write a report of a translator's run, or go on with one that was stopped.

    Args:
        run: the run folder, also of a run in stages.
        output: the folder of the report.
        source: text whose translations are examined; by default the validation text of the run.
        target: its reference translation.
        against: run folders, and tables of other programs (`runs.curves`), whose curves are shown as well.
        budget: seconds, or a duration such as "10m", of trainings that estimate the gain of more data; none without.
        say: called with each line of output.
        stop_signal: called now and then; returns the number of a signal that asks to stop.
        use_threads: called with the number of threads of each training.
        started: when the budget begins, by `time.monotonic`; now if ``None``.

    Raises:
        InputError: a file, a folder or the budget is invalid; nothing was overwritten.
        Interrupted: ``stop_signal`` returned a signal; the same call goes on.
    """
    context = RunContext(say, stop_signal, use_threads, started=time.monotonic() if started is None else started)
    if (source is None) != (target is None):
        raise ConfigurationError("source and target: give both, or none for the validation text of the run")
    folder, (final, base) = Path(output), _runs(Path(run))
    config = read_run(base)
    assert config is not None
    others = [Path(path) for path in against]
    if final != base and base.resolve() not in {path.resolve() for path in others}:
        others.insert(0, base)  # a student begins as one of these: their curves belong together
    logs = read_curves([final, *others])
    kept_record(read_log(base), base)
    if source is not None and target is not None:
        check_parallel(source, target)
    wishes = {"run": str(Path(run).absolute())} | ({} if budget is None else {"budget": budget})
    given = build(ReportSettings, wishes, "the settings of the report")
    text = open_training_text(base, config.data, None)
    with work_folder.locked(folder):
        work_folder.restore(folder, ReportConfig, say)
        decided = work_folder.read(folder, ReportConfig)
        if decided is None:
            decided = _begin(given, folder, base, config)
        else:
            work_folder.check_same_settings(folder, work_folder.given_settings(given), decided.asked)
            work_folder.remove_leftovers(folder)
        if decided.settings_sha256 != sha256_of(base / work_folder.RUN):
            raise ConfigurationError(f"{folder}: was begun with another run in {base}; choose a new folder")
        gain = measure_gain(base, folder, decided, config, text, context)
        name, errors = _examine(final, text, source, target, context)
        picture = _draw(logs, folder, say)
        found = Report(str(run), config.data.pairs, logs, gain, errors, name, picture)
        write_text(folder / "report.json", json.dumps(found.as_dict(), ensure_ascii=False, indent=2) + "\n")
        write_text(folder / "report.md", str(found))
    return found


def _runs(run: Path) -> tuple[Path, Path]:
    """The run whose model is used, and the run whose text is the user's: two parts of a run in stages.

    Raises:
        ConfigurationError: there is no run.
    """
    if not (run / work_folder.RUN).is_file():
        raise ConfigurationError(
            f"{run}: is no run: there is no {work_folder.RUN} in it; give a folder of `multihead train`"
        )
    if work_folder.kind_of(run) == "best":
        first, student = run / FORWARD.format(1), run / STUDENT
        return (student if student.is_dir() else first), first
    return run, run


def _begin(given: ReportSettings, folder: Path, base: Path, config: RunConfig) -> ReportConfig:
    """Decide the trainings; if that fails, leave the folder as it was."""
    log = read_log(base)
    updates = max(record["step"] for record in log)
    seconds = max(record["seconds"] or 0.0 for record in log)
    digest = sha256_of(base / work_folder.RUN)
    with work_folder.preparing(folder):
        decided = plan.decide(given, config, updates, seconds / max(updates, 1), installed_versions(), digest)
        work_folder.write(folder, decided)
    return decided


def _examine(
    run: Path, text: PreparedText, source: str | Path | None, target: str | Path | None, context: RunContext
) -> tuple[str, Errors]:
    """Translate a text and find the errors; returns the name of the text as well.

    Raises:
        Interrupted: a signal asked to stop.
    """
    sources, references, name = text.valid_sources, text.valid_targets, "the validation text"
    if source is not None and target is not None:
        sources, references, name = list(read_lines(source)), list(read_lines(target)), str(target)
    translator = Translator.load(run)

    def progress(_: int) -> None:
        if (number := context.stop_signal()) is not None:
            raise Interrupted(number, "stopped while the text was translated; the same command goes on")

    context.say(f"translating {len(sources):,} lines")
    found = translator.translate(sources, batch_tokens=_BATCH, progress=progress)
    language = text.config.target_language
    return name, find_errors(found, references, sources, frequencies=_training_words(text), language=language)


def _training_words(text: PreparedText) -> Counter[str]:
    """How often each word occurs in the targets of the training text."""
    store, step = text.train.target, -(-len(text.train) // _COUNTED)
    return count_words(text.target_tokenizer.decode(store[i].tolist()) for i in range(0, len(store), step))


def _draw(logs: dict[str, Log], folder: Path, say: Callable[[str], None]) -> bool:
    """Draw the curves over updates and over time; without matplotlib the card has their tables alone."""
    panels = [panel for over in ("step", "seconds") for panel in panels_of(logs, over)[:2]]
    if not any(line.points for panel in panels for line in panel.lines):
        return False
    try:
        draw_curves(panels, folder / PICTURE)
    except MissingDependencyError as error:
        say(str(error))
        return False
    return True
