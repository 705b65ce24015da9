"""Text files become a translator: a run begins or goes on, and everything it needs is joined together here.

A run is a folder (contract 8 of the design; see ARCHITECTURE.md):

    run.json            everything decided, with reasons: a `RunConfig`; written once, before the first update
    data/               what training reads (`preparing.preparation`), unless it was prepared in a folder of its own
    log.txt, log.jsonl, timing.jsonl
    checkpoints/        where the run can go on; of a fine-tuned one also where it began
    best/               the model folder of the best validation so far
    left-out.tsv        pairs that could not be used

How a new run is decided stands in `runs.translator.begin`, how models are judged and kept in
`runs.translator.validation`. Several
processes can train one run (`training.parallel`): the first one holds the folder, decides, writes and speaks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from multihead import work_folder as run_folder
from multihead.configuration import build
from multihead.machine import require_device
from multihead.models.network import Network
from multihead.planning.settings import RunConfig, TrainSettings, begun
from multihead.preparing.preparation import Prepared
from multihead.runs.run import Finished, train_to_the_end
from multihead.runs.translator.batches import largest, lines_of, stream_of
from multihead.runs.translator.begin import begin, follow, network_for, reopened
from multihead.runs.translator.validation import Best
from multihead.training.checkpoint import RunState
from multihead.training.parallel import SINGLE_PROCESS, Processes
from multihead.training.progress import ModelFlops, measure_flops
from multihead.training.trainer import TrainerInputs
from multihead.translating.translator import Translator


class Result(Finished):
    """A finished run; its score is the BLEU of greedy search on the validation set."""

    def translator(self) -> Translator:
        """The best model."""
        return Translator.load(self.folder)


def train(
    *,
    say: Callable[[str], None] = print,
    stop_signal: Callable[[], int | None] = lambda: None,
    use_threads: Callable[[int], None] = lambda _: None,
    processes: Processes = SINGLE_PROCESS,
    **wishes: Any,
) -> Result:
    """Trains a translator, or goes on with one that was stopped.

    Args:
        say: is told each line of progress.
        stop_signal: is asked between updates for the number of a signal that wants the run to stop.
        use_threads: is told how many threads the run is frozen to. Commands set them for their process; a library
            call leaves them alone, and results on another number than the run began with differ in the last bits.
        processes: those that train this run together, all of which call this: ``training.parallel.join_processes()``.
        **wishes: fields of `TrainSettings`: ``source``, ``target`` and ``output`` are needed for a new run.

    Raises:
        InputError: files, settings or the output folder are not what they should be; nothing was overwritten.
        Interrupted: ``stop_signal`` gave one, in whichever process; the run can go on.
        Elsewhere: another process has ended; the run can go on.
    """
    settings = build(TrainSettings, wishes, "the settings")
    folder = run_folder.named(settings.output)
    with run_folder.holding(folder) if processes.is_first else contextlib.nullcontext():
        if processes.is_first:
            config, prepared = _begin_or_go_on(settings, folder, say, stop_signal, use_threads, processes)
        else:
            config, prepared = follow(settings, folder, use_threads, processes)
        require_device(config.training.device)
        processes.require_devices(config.training.device)
        use_threads(processes.threads_per_process(config.training.threads))
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            return _train(config, prepared, folder, say, stop_signal, processes)


def _begin_or_go_on(
    settings: TrainSettings,
    folder: Path,
    say: Callable[[str], None],
    stop_signal: Callable[[], int | None],
    use_threads: Callable[[int], None],
    processes: Processes,
) -> tuple[RunConfig, Prepared]:
    """What the first process does while the others `follow`."""
    config = begun(folder)
    if config is None:
        config, prepared = begin(settings, folder, say, stop_signal, use_threads, processes)
    else:
        asked = run_folder.asked_for(settings)
        if config.data.prepared is not None:
            asked.pop("data", None)  # that folder may have moved: what is in it is checked when it is read
        run_folder.check_same(folder, asked, config.asked)
        run_folder.clear_up(folder)
        prepared = reopened(config.data, folder, settings)
    processes.broadcast(config)
    return config, prepared


def _train(
    config: RunConfig,
    prepared: Prepared,
    folder: Path,
    say: Callable[[str], None],
    stop_signal: Callable[[], int | None],
    processes: Processes,
) -> Result:
    training = config.training
    torch.manual_seed(training.seed)
    model = network_for(config.model, training)

    def around(state: RunState) -> TrainerInputs[Network]:
        stream, best = stream_of(prepared, training, state.position), Best(config, prepared, folder, processes)
        return TrainerInputs(
            stream.take,
            lambda: stream.position,
            best.evaluate,
            best.keep,
            stop_signal,
            source_lines=lambda pairs: lines_of(prepared, pairs),
            largest_batches=lambda: largest(prepared, training),
            flops=_effort(model, config, processes),
        )

    done = train_to_the_end(
        model,
        config.model.width,
        config,
        folder,
        say,
        around,
        merit=" with a validation BLEU of {:.2f} (greedy), is in",
        start=None if config.from_model is None else f"fine-tuning the model of {config.from_model.path}",
        processes=processes,
    )
    return Result(**vars(done))


def _effort(model: Network, config: RunConfig, processes: Processes) -> ModelFlops:
    """What all processes could do is what each can while the others do, too."""
    own = measure_flops(model, model.output, config.training.device, config.training.precision)
    return replace(own, peak_flops=sum(processes.all_gather(own.peak_flops)))
