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
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from multihead import work_folder
from multihead.configuration import build
from multihead.data.corpus import check_parallel
from multihead.data.text_files import read_lines
from multihead.errors import ConfigurationError, Interrupted, MissingDependencyError
from multihead.files import sha256_of, write_text
from multihead.inspection.curves import draw_curves
from multihead.judging.errors import Errors, count_words, find_errors
from multihead.planning.settings import RunConfig, read_begun_run
from multihead.preparing.prepared import PreparedText, open_training_text
from multihead.runs.best.plan import BEST, FORWARD, STUDENT
from multihead.runs.curves import Log, panels_of, read_curves, read_log
from multihead.runs.report import plan
from multihead.runs.report.card import PICTURE, Report
from multihead.runs.report.parts import kept_record, measure_gain, own_outcome, require_finished
from multihead.runs.report.plan import ReportConfig, ReportSettings
from multihead.runs.run import installed_versions
from multihead.text.context import in_context
from multihead.text.languages import Direction, Languages, find_directions, listed
from multihead.training.context import RunContext
from multihead.translating.translator import Translator
from multihead.uses_file import read_uses_file

_COUNTED = 100_000
"""Training sentences whose words are counted, evenly spread."""
_BATCH = 8192


def report(
    run: str | Path,
    *,
    output: str | Path,
    source: str | Path | None = None,
    target: str | Path | None = None,
    languages: Languages | None = None,
    against: Sequence[str | Path] = (),
    budget: float | str | None = None,
    data: str | Path | None = None,
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
        languages: of a model of several directions: those whose errors are examined; by default all that were
            validated, or, with ``source`` and ``target``, the only one that fits.
        against: run folders, and tables of other programs (`runs.curves`), whose curves are shown as well.
        budget: seconds, or a duration such as "10m", of trainings that estimate the gain of more data; none without.
        data: where the prepared text of the run is now, if it was moved.
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
    used = Path(run) if (Path(run) / BEST).is_dir() else final  # a run in stages may use a student's last weights
    config = read_begun_run(base)
    started_alone = base == Path(run) or config.from_model is None
    if not started_alone:  # the model that it began as has seen all pairs
        config = config.model_copy(update={"from_model": None})
    others = [Path(path) for path in against]
    if final != base and base.resolve() not in {path.resolve() for path in others}:
        others.insert(0, base)  # a student begins as one of these: their curves belong together
    logs = read_curves([final, *others])
    kept_record(read_log(base), base)
    if source is not None and target is not None:
        check_parallel(source, target)
    wishes = {"run": str(Path(run).absolute())} | ({} if budget is None else {"budget": budget})
    given = build(ReportSettings, wishes, "the settings of the report")
    text = open_training_text(base, config.data, None if data is None else Path(data))
    examined = _parts_of(text, languages or Languages(), source, target)
    with work_folder.locked(folder):
        work_folder.restore(folder, ReportConfig, say)
        decided = work_folder.read(folder, ReportConfig)
        if decided is None:
            decided = _begin(given, folder, base, config, started_alone)
        else:
            work_folder.check_same_settings(folder, work_folder.given_settings(given), decided.asked)
            work_folder.remove_leftovers(folder)
        if decided.settings_sha256 != sha256_of(base / work_folder.RUN):
            raise ConfigurationError(f"{folder}: was begun with another run in {base}; choose a new folder")
        gain = measure_gain(base, folder, decided, config, text, context)
        errors = _examine(used, text, examined, context)
        picture = _draw(logs, folder, say)
        found = Report(str(run), config.data.pairs, logs, gain, errors, examined.name, picture)
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
            f"{run}: is not a run: there is no {work_folder.RUN} in it; give a folder of `multihead train`"
        )
    if work_folder.kind_of(run) == "best":
        first, student = run / FORWARD.format(1), run / STUDENT
        usual = student if student.is_dir() else first
        uses = read_uses_file(run) or {}
        return run / Path(str(uses.get("model", usual.name))).name, first
    return run, run


def _begin(given: ReportSettings, folder: Path, base: Path, config: RunConfig, comparable: bool) -> ReportConfig:
    """Decide the trainings; if that fails, leave the folder as it was."""
    log = read_log(base)
    updates = max(record["step"] for record in log)
    seconds = max(record["seconds"] or 0.0 for record in log)
    digest = sha256_of(base / work_folder.RUN)
    if given.budget is not None:
        require_finished(log, config.training, base)
    with work_folder.preparing(folder):
        pace = seconds / max(updates, 1)
        decided = plan.decide(given, config, updates, pace, installed_versions(), digest, comparable=comparable)
        if decided.parts:
            decided = decided.model_copy(update={"own": own_outcome(log, base)})
        work_folder.write(folder, decided)
    return decided


@dataclass(frozen=True)
class _Examined:
    """The text whose errors are found, in parts of one direction each."""

    name: str
    parts: tuple[tuple[Languages, list[str], list[str]], ...]
    """Languages to load the model with, sources and references."""
    targets: frozenset[str] | None
    """The target languages, if the model has several directions."""
    language: str | None
    """Of all references; None if they have several, or it is not known."""


def _parts_of(text: PreparedText, asked: Languages, source: str | Path | None, target: str | Path | None) -> _Examined:
    """What is examined: a given text, or the validation text, of the directions that are asked for.

    Raises:
        ConfigurationError: the model has no such direction; a given text could be of several; the validation text has
            none.
    """
    config = text.config
    directions = tuple(Direction(record.source, record.target) for record in config.directions)
    if not directions and config.target_language is not None:
        find_directions((Direction(config.source_language, config.target_language),), asked)
    fitting = find_directions(directions, asked) if directions else []
    targets = {direction.target for direction in fitting}
    language = config.target_language if not fitting else (*targets,)[0] if len(targets) == 1 else None
    several = frozenset(targets) if fitting else None
    if source is not None and target is not None:
        if len(targets) > 1:
            raise ConfigurationError(
                f"{source}: this model translates {listed(directions)}; say which, by --target-language (and "
                "--source-language)"
            )
        given = in_context(text.source_tokenizer, read_lines(source)), list(read_lines(target))
        return _Examined(str(target), ((asked, *given),), several, language)
    chosen = [(one, place) for one, place in text.valid_parts if one is None or one in fitting]
    if not chosen:
        raise ConfigurationError(
            f"no validation text translates {listed(tuple(fitting))}: give a text, by --source and --target"
        )
    named = ", ".join(str(one) for one, _ in chosen if one is not None)
    parts = tuple(
        (asked if one is None else Languages(*one), text.valid_sources[place], text.valid_targets[place])
        for one, place in chosen
    )
    return _Examined("the validation text" + (f" ({named})" if named else ""), parts, several, language)


def _examine(run: Path, text: PreparedText, examined: _Examined, context: RunContext) -> Errors:
    """Translate a text and find the errors.

    Raises:
        Interrupted: a signal asked to stop.
    """

    def progress(_: int) -> None:
        if (number := context.stop_signal()) is not None:
            raise Interrupted(number, "stopped while the text was translated; run the same command again to continue")

    context.say(f"translating {sum(len(sources) for _, sources, _ in examined.parts):,} lines")
    found, all_sources, references = list[str](), list[str](), list[str]()
    for languages, sources, targets in examined.parts:
        translator = Translator.load(run, languages=languages)
        found += translator.translate(sources, batch_tokens=_BATCH, progress=progress)
        all_sources += sources
        references += targets
    words = _training_words(text, examined.targets)
    return find_errors(found, references, all_sources, frequencies=words, language=examined.language)


def _training_words(text: PreparedText, languages: frozenset[str] | None) -> Counter[str]:
    """How often each word occurs in the targets of the training text, of all corpora or those into some languages."""
    indices, start = [], 0
    for corpus in text.config.corpora:
        if languages is None or corpus.target_language in languages:
            indices.append(range(start, start + corpus.pairs))
        start += corpus.pairs
    step = max(-(-sum(map(len, indices)) // _COUNTED), 1)
    store = text.train.target
    return count_words(
        text.target_tokenizer.decode(store[i].tolist()) for i in islice(chain.from_iterable(indices), 0, None, step)
    )


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
