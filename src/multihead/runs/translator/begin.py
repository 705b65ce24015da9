"""The beginning of a run: look at the text and the machine, decide everything, freeze it in ``run.json``.

Of several processes the first one does it; the others `follow`, and take part where it is measured how fast all of them
train together.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from multihead import work_folder
from multihead.bundle import Bundle, build_network, load_bundle
from multihead.diagnosis.doctor import log_quick_check
from multihead.engine.native import decoding
from multihead.errors import ConfigurationError, Interrupted
from multihead.kernels.native import native
from multihead.machine import Machine, inspect_machine, require_device
from multihead.models.config import NetworkConfig
from multihead.models.network import Network
from multihead.models.transformer import Transformer
from multihead.planning.choices import (
    CorpusSize,
    Pace,
    choose_generation,
    choose_given_model,
    choose_model,
    choose_training,
    rehearse,
)
from multihead.planning.settings import Choices, DataConfig, RunConfig, TrainSettings
from multihead.preparing.corpora import scan_files
from multihead.preparing.prepare import keep_vocabulary, write_data
from multihead.preparing.prepared import PreparedText, open_training_text, use_folder
from multihead.runs.run import given_model, versions
from multihead.text.tokenizer import Tokenizer
from multihead.training import tensorboard
from multihead.training.checkpoint import Checkpoint, RunState, save
from multihead.training.config import TrainingConfig
from multihead.training.context import RunContext
from multihead.training.loss import retry_in_pieces
from multihead.training.optimizer import Average, build_optimizer
from multihead.training.parallel import SINGLE_PROCESS, Processes
from multihead.training.progress import RunLog, format_lines
from multihead.training.step import train_step


def begin(
    settings: TrainSettings,
    folder: Path,
    say: Callable[[str], None],
    stop_signal: Callable[[], int | None],
    use_threads: Callable[[int], None],
    processes: Processes,
) -> tuple[RunConfig, PreparedText]:
    """Prepares a new run and decides everything about it; leaves nothing behind where that cannot be done."""
    machine, choices = _machine(processes), Choices(settings)
    for build in (native, decoding):  # where that has not been done, before anything is timed
        build(say)
    require_device(settings.device or machine.device)
    processes.require_devices(settings.device or machine.device)
    if settings.tensorboard:
        tensorboard.require_tensorboard()
    given = None if settings.from_model is None else load_bundle(settings.from_model)
    shape = None if given is None else choose_given_model(Choices(settings), given.model.config)
    make, pairs = _text(choices, folder, given, say, stop_signal)
    rehearse(settings, pairs, machine, shape)
    with work_folder.preparing(folder):
        prepared = make()
        if (number := stop_signal()) is not None:
            raise Interrupted(number, "stopped while the data were prepared; the same command starts again")
        config = _decide(choices, prepared, given, machine, say, use_threads, processes)
        if given is not None:
            _write_start(folder, given, averages=config.training.average > 0)
        work_folder.write(folder, config)
    log = RunLog(folder, say)
    _show(config, machine.name, log)
    log_quick_check(settings, config, prepared, folder, log.say)
    return config, prepared


def follow(
    settings: TrainSettings, folder: Path, use_threads: Callable[[int], None], processes: Processes
) -> tuple[RunConfig, PreparedText]:
    """What the other processes do while the first one begins a run, or finds one to go on with."""
    told: Any
    while not isinstance(told := processes.broadcast(None), RunConfig):
        model, trial, data = told
        use_threads(processes.threads_per_process(trial.threads))
        measure(model, trial, reopened(data, folder, settings), processes)
    return told, reopened(told.data, folder, settings)


def reopened(data: DataConfig, folder: Path, settings: TrainSettings) -> PreparedText:
    """The text of a run that has begun: its own, or that of a prepared folder, which may have moved."""
    return open_training_text(folder, data, settings.data)


def _machine(processes: Processes) -> Machine:
    """The machine that all processes have together."""
    own = inspect_machine()
    if processes.size == 1:
        return own
    name = f"{processes.size} processes with {own.name} each"
    return replace(own, threads=own.threads * processes.launch.local_size, name=name)


def _text(
    choices: Choices,
    folder: Path,
    given: Bundle | None,
    say: Callable[[str], None],
    stop_signal: Callable[[], int | None],
) -> tuple[Callable[[], PreparedText], int]:
    """How to come by what is trained on, and about how many pairs it has: looked at, nothing made yet."""
    data = choices.requested("data")
    if data is not None:
        prepared = use_folder(data, choices)
        if given is not None:
            _check_tokenizers(given, prepared, choices)
        return lambda: prepared, prepared.config.pairs
    vocabulary = None if given is None else keep_vocabulary(choices, given.source_tokenizer, given.target_tokenizer)
    assert isinstance(choices.settings, TrainSettings)
    files = scan_files(choices.settings)
    return lambda: write_data(choices, files, folder, RunContext(say, stop_signal), vocabulary), files.lines


def _decide(
    choices: Choices,
    prepared: PreparedText,
    given: Bundle | None,
    machine: Machine,
    say: Callable[[str], None],
    use_threads: Callable[[int], None],
    processes: Processes,
) -> RunConfig:
    """Everything that the user left open, from what was prepared."""
    settings = choices.settings
    assert isinstance(settings, TrainSettings)
    corpus = _corpus(prepared)
    if given is None:
        model = choose_model(choices, corpus, machine)
    else:
        model = choose_given_model(choices, given.model.config)
        prepared = _with_languages(choices, prepared, given)

    def pace(trial: TrainingConfig) -> Pace:
        say("measuring how fast this machine trains the model")
        use_threads(processes.threads_per_process(trial.threads))
        if processes.size > 1:
            processes.all_gather((model, trial, prepared.config))
        return measure(model, trial, prepared, processes)

    training = choose_training(choices, corpus, model, machine, pace)
    return RunConfig(
        versions=versions(),
        asked=work_folder.given_settings(settings),
        data=prepared.config,
        from_model=None if settings.from_model is None else given_model(settings.from_model),
        model=model,
        training=training,
        generation=choose_generation(choices, None if given is None else given.generation),
        reasons=choices.reasons,
    )


def _corpus(prepared: PreparedText) -> CorpusSize:
    lengths, tokens, start = prepared.train.target.lengths, 0.0, 0
    for record in prepared.config.corpora:
        own = lengths[start : start + record.pairs]
        tokens, start = tokens + record.weight * (int(own.sum()) + len(own)), start + record.pairs
    return CorpusSize(
        pairs=len(prepared.train),
        target_tokens=round(tokens),
        source_vocab=len(prepared.source_tokenizer),
        target_vocab=len(prepared.target_tokenizer),
        padding_id=Tokenizer.pad_id,
    )


def _with_languages(choices: Choices, prepared: PreparedText, given: Bundle) -> PreparedText:
    """What the files do not say of their languages, the given model may."""
    config = prepared.config
    known = {
        name: code
        for name, code in (("source_language", given.source_language), ("target_language", given.target_language))
        if code is not None and getattr(config, name) is None
    }
    choices.reasons |= dict.fromkeys(known, "the given model's")
    return replace(prepared, config=config.model_copy(update=known))


def network_for(model: NetworkConfig, training: TrainingConfig) -> Network:
    """A new network, drawn from PyTorch's current generator, where and as it is trained."""
    network = build_network(model).to(training.device)
    if isinstance(network, Transformer):
        network.compiled = training.compile
    return network


def measure(
    model: NetworkConfig, trial: TrainingConfig, prepared: PreparedText, processes: Processes = SINGLE_PROCESS
) -> Pace:
    """Times updates of a throw-away model on real batches, every kind of length among them; all processes take part."""
    with torch.random.fork_rng():
        network = network_for(model, trial)
        optimizer, stream = build_optimizer(network, trial), prepared.batches(trial, (0, 0))
        average: Average[Network] = Average(network, trial.average)
        seconds, tokens, max_cells = [], [], None
        for step in range(1, 16):
            started = time.perf_counter()
            batches = [stream.take().to(trial.device) for _ in range(trial.accumulate)]
            sums, max_cells = retry_in_pieces(
                lambda max_cells: train_step(
                    *(network, optimizer, batches, trial, step, 1e-5),  # noqa: B023
                    max_cells=max_cells,
                    processes=processes,
                ),
                [part for batch in batches for part in processes.split_rows(batch)],
                max_cells,
                lambda batch: format_lines(prepared.lines(batch.indices)),
            )
            average.update(step)
            seconds.append(time.perf_counter() - started)
            tokens.append(sums.tokens)
    return Pace(statistics.median(seconds[3:]), statistics.fmean(tokens))  # the first ones warm up


def _show(config: RunConfig, machine: str, log: RunLog) -> None:
    """Says what was decided and why."""
    data, model, training = config.data, config.model, config.training
    log.say(f"{data.pairs:,} training pairs, {machine}, {native().reason}; decided (run.json has it all):")
    if len(data.corpora) > 1:
        for corpus in data.corpora:
            names = " + ".join(file.path for file in corpus.files)
            log.say(f"  {'corpus':<14} {names}: {corpus.pairs:,} pairs, each {corpus.weight:g} times an epoch")
    shown: dict[str, object] = {
        "vocab_size": data.vocab_size,
        "preset": model.summary,
        **{name: getattr(model, name) for name in ("norm", "dropout") if name in type(model).model_fields},
        **{
            name: getattr(training, name)
            for name in (
                "batch_tokens",
                "updates",
                "optimizer",
                "schedule",
                "learning_rate",
                "warmup",
                "average",
                "precision",
                "threads",
            )
        },
        "held_out": data.held_out,
    }
    for name, value in shown.items():
        log.say(f"  {name:<14} {value}  ({config.reasons.get(name, 'the usual value')})")


def _check_tokenizers(given: Bundle, prepared: PreparedText, choices: Choices) -> None:
    """Refuses text that was prepared with other subwords than those of the given model.

    Raises:
        ConfigurationError: says how to prepare it.
    """
    for side in ("source", "target"):
        if getattr(given, f"{side}_tokenizer").digest != getattr(prepared, f"{side}_tokenizer").digest:
            raise ConfigurationError(
                f"{choices.requested('data')}: its {side} subwords are not those of the model "
                f"{choices.requested('from_model')}; prepare the text with them: "
                f"multihead prepare --from-model {choices.requested('from_model')} ..."
            )


def _write_start(folder: Path, given: Bundle, averages: bool) -> None:
    """The checkpoint of update 0: the given weights, not yet validated, and an optimiser that knows nothing.

    Args:
        folder: the run.
        given: the model.
        averages: whether the run has a moving average of its weights; it begins with the same.
    """
    weights = {name: parameter.detach() for name, parameter in given.model.named_parameters()}
    start = Checkpoint(RunState(validated_at=-1), weights, weights if averages else {}, {})
    save(folder / "checkpoints", start, keep=1)
