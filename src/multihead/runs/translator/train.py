"""Text files become a translator: a run begins or goes on, and everything it needs is joined together here.

A run is a folder (contract 8 of the design; see ARCHITECTURE.md):

    run.json            everything decided, with reasons: a `RunConfig`; written once, before the first update
    data/               what training reads (`preparing.prepare`), unless it was prepared in a folder of its own
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
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from multihead import work_folder
from multihead.bundle import Bundle, save_bundle
from multihead.configuration import build
from multihead.data.batching import collate
from multihead.data.order import batches_by_tokens
from multihead.machine import require_device
from multihead.metrics.scores import score
from multihead.models.network import Network
from multihead.planning.settings import RunConfig, TrainSettings, read_run
from multihead.preparing.prepared import PreparedText
from multihead.runs.run import Finished, train_to_the_end
from multihead.runs.translator.begin import begin, follow, network_for, reopened
from multihead.text.tokenizer import Tokenizer
from multihead.training.checkpoint import RunState
from multihead.training.loss import sequence_loss
from multihead.training.parallel import SINGLE_PROCESS, Processes, interleave
from multihead.training.progress import ModelFlops, measure_flops
from multihead.training.trainer import TrainerInputs, Validation
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
    folder = work_folder.require_output(settings.output)
    with work_folder.locked(folder) if processes.is_first else contextlib.nullcontext():
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
) -> tuple[RunConfig, PreparedText]:
    """What the first process does while the others `follow`."""
    config = read_run(folder)
    if config is None:
        config, prepared = begin(settings, folder, say, stop_signal, use_threads, processes)
    else:
        asked = work_folder.given_settings(settings)
        if config.data.prepared is not None:
            asked.pop("data", None)  # that folder may have moved: what is in it is checked when it is read
        work_folder.check_same_settings(folder, asked, config.asked)
        work_folder.remove_leftovers(folder)
        prepared = reopened(config.data, folder, settings)
    processes.broadcast(config)
    return config, prepared


def _train(
    config: RunConfig,
    prepared: PreparedText,
    folder: Path,
    say: Callable[[str], None],
    stop_signal: Callable[[], int | None],
    processes: Processes,
) -> Result:
    training = config.training
    torch.manual_seed(training.seed)
    model = network_for(config.model, training)

    def around(state: RunState) -> TrainerInputs[Network]:
        stream, best = prepared.batches(training, state.position), Best(config, prepared, folder, processes)
        return TrainerInputs(
            stream.take,
            lambda: stream.position,
            best.evaluate,
            best.keep,
            stop_signal,
            source_lines=prepared.lines,
            largest_batches=lambda: prepared.largest(training),
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


_SENTENCES = 1000
"""Sentences decoded at each validation; the loss is of all."""


class Best:
    """Judges models on the validation set and keeps the best one.

    Args:
        config: everything decided about the run.
        prepared: its text.
        folder: the run folder; the best model goes to ``folder/best``.
        processes: those that train together.
    """

    def __init__(
        self, config: RunConfig, prepared: PreparedText, folder: Path, processes: Processes = SINGLE_PROCESS
    ) -> None:
        self.config, self.prepared, self.folder = config, prepared, folder
        self._processes, self._share = processes, slice(processes.rank, None, processes.size)
        lengths = [
            int(a) + int(b) + 2
            for a, b in zip(prepared.valid.source.lengths, prepared.valid.target.lengths, strict=True)
        ]
        groups = batches_by_tokens(lengths, 2 * config.training.batch_tokens)
        ids = {"pad_id": Tokenizer.pad_id, "bos_id": Tokenizer.bos_id, "eos_id": Tokenizer.eos_id}
        self._batches = [collate(prepared.valid, np.array(group), **ids) for group in groups]

    def evaluate(self, model: Network) -> Validation:
        """Loss of all pairs; BLEU and chrF of greedy translations of the first ones."""
        sources = self.prepared.valid_sources[:_SENTENCES]
        translator = Translator(self._bundle(model))
        shares = self._processes.all_gather(
            (self._losses(model), translator.translate(sources[self._share], beam=1, batch_tokens=8192))
        )
        nll, correct, tokens = 0.0, 0, 0
        for batch in interleave([losses for losses, _ in shares]):
            nll, correct, tokens = nll + batch[0], correct + batch[1], tokens + batch[2]
        hypotheses = interleave([translations for _, translations in shares])
        references = self.prepared.valid_targets[:_SENTENCES]
        scores = score(hypotheses, references, self.config.data.target_language)
        perplexity = float(torch.tensor(nll / tokens).clamp(max=100.0).exp())
        values = {
            "loss": nll / tokens,
            "perplexity": perplexity,
            "accuracy": correct / tokens,
            "sentences": len(sources),
            **scores.as_dict(),
            "sample": {"source": sources[0], "translation": hypotheses[0], "reference": references[0]},
        }
        summary = (
            f"loss {nll / tokens:.3f}  perplexity {perplexity:.2f}  accuracy {100 * correct / tokens:.1f}%  "
            f"BLEU {scores.bleu:.2f}  chrF {scores.chrf:.2f}"
        )
        return Validation(scores.bleu, nll / tokens, values, summary)

    @torch.no_grad()
    def _losses(self, model: Network) -> list[tuple[float, int, int]]:
        """Of each batch of this process: the loss, the tokens guessed right, and all of them."""
        found = []
        for batch in self._batches[self._share]:
            sums = sequence_loss(model, batch.to(self.config.training.device), 0.0)
            found.append((sums.nll.item(), int(sums.correct.item()), batch.target_tokens))
        return found

    def keep(self, model: Network, metrics: dict[str, Any]) -> None:
        """Writes run/best."""
        shown = {name: value for name, value in metrics.items() if name != "sample"}
        save_bundle(self.folder / "best", self._bundle(model), shown, self._made_by())

    def _made_by(self) -> str:
        """A sentence for the card."""
        tool, pairs, given = f"multihead {version('multihead')}", self.config.data.pairs, self.config.from_model
        if given is None:
            return f"Trained by {tool} on {pairs:,} sentence pairs."
        return f"Fine-tuned by {tool} on {pairs:,} sentence pairs, from a model whose weights are {given.weights[:12]}."

    def _bundle(self, model: Network) -> Bundle:
        prepared, data = self.prepared, self.config.data
        return Bundle(
            model,
            prepared.source_tokenizer,
            prepared.target_tokenizer,
            self.config.generation,
            data.source_language,
            data.target_language,
        )
