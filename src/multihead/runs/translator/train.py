"""Train a translator, and judge its models: `multihead.train`.

A run is a folder:

    run.json            every decision with its reason: a `RunConfig`; written once, before the first update
    run.copy.json       a copy of it, in case it is lost (`work_folder.restore`)
    data/               what training reads (`preparing.prepared`), unless it was prepared in another folder
    log.txt, log.jsonl, timing.jsonl
    plan.jsonl          of a run with a budget: its decisions on the way, and the time spent (`training.budget`)
    teachers/           with teachers, what they predict in the training text (`preparing.teachers`)
    weights/            with weights of the pairs, these (`preparing.weights`)
    alignments/         with word alignments of the pairs, these (`preparing.alignments`)
    checkpoints/        where the run resumes; of a fine-tuned run also where it started
    best/               the model folder of the best validation so far
    left-out.tsv        pairs that could not be used

How a new run is decided is in `runs.translator.begin`, what happens in which order in `runs.run`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from multihead import work_folder
from multihead.bundle import Bundle, save_bundle
from multihead.configuration import build
from multihead.data.attached import Attach, AttachedStream, attached
from multihead.data.batching import Batch, collate
from multihead.data.order import batches_by_tokens
from multihead.metrics.comet import DEFAULT, Comet
from multihead.metrics.scores import score
from multihead.models.network import Network
from multihead.planning.settings import RunConfig, TrainSettings
from multihead.preparing.prepared import PreparedText, open_training_text
from multihead.runs.run import BatchSource, Judge, RunKind, RunResult, execute
from multihead.runs.translator.begin import (
    NewTranslatorRun,
    assist_measurement,
    build_network_for,
    new_network,
    take_ahead,
    without_adapters,
)
from multihead.skeletons import without_values
from multihead.text.context import own_text
from multihead.text.languages import Direction, Languages, common_languages
from multihead.training.context import RunContext, Validation
from multihead.training.progress import ModelFlops, measure_flops
from multihead.training.splitting import SINGLE_PROCESS, Processes, interleave, sequence_loss
from multihead.translating.translator import Translator

if TYPE_CHECKING:
    from multihead.data.ahead import Stream

SENTENCES = 1000
"""Sentences translated at each validation; the loss is that of all."""
_REHEARSED = 16
"""Part of a validation that is timed to estimate a whole one."""


class TrainResult(RunResult):
    """A finished run; its score is BLEU, chrF or COMET of greedy search on the validation set, or the negative loss."""

    def translator(self, languages: Languages | None = None) -> Translator:
        """The best model; ``languages`` say which direction, if it has several."""
        return Translator.load(self.folder, languages=languages)


def train(
    *,
    say: Callable[[str], None] = print,
    stop_signal: Callable[[], int | None] = lambda: None,
    use_threads: Callable[[int], None] = lambda _: None,
    processes: Processes = SINGLE_PROCESS,
    started: float | None = None,
    soft_targets_of: Path | None = None,
    **settings: Any,
) -> TrainResult:
    """Train a translator, or resume a run that was stopped.

    Args:
        say: called with each line of output.
        stop_signal: called between updates; returns the number of a signal that asks the run to stop.
        use_threads: called with the number of threads that the run is frozen to. Commands set the threads of their
            process; a library call leaves them alone, and results computed with another number than the run began
            with differ in the last bits.
        processes: the processes that train this run together, each of which calls this function:
            ``training.parallel.join_processes()``.
        started: when the budget begins, by `time.monotonic`; now if ``None``.
        soft_targets_of: another run of the same text and teachers, whose soft targets are copied if it has them.
        **settings: fields of `TrainSettings`; ``source``, ``target`` and ``output`` are needed for a new run.

    Raises:
        InputError: files, settings or the output folder are invalid; nothing was overwritten.
        Interrupted: ``stop_signal`` returned a signal in one of the processes; the same call resumes the run.
        PeerEnded: another process has ended; the same call resumes the run.
    """
    given = build(TrainSettings, settings, "the settings")
    folder = work_folder.require_output(given.output)
    started = time.monotonic() if started is None else started
    context = RunContext(say, stop_signal, use_threads, processes, given.parallel, soft_targets_of, started)
    kind = TranslatorRun(given, folder, context)
    try:
        return execute(kind, TrainResult)
    finally:
        kind.close()


class TranslatorRun(RunKind[TrainSettings, RunConfig, PreparedText, Network]):
    """A run that trains a translator, in one or several processes."""

    config_class = RunConfig
    outcome = " with a validation {}, is in"
    _comet: Comet | None = None
    """Scores validations, in the first process, if COMET is asked for."""

    def outcome_of(self, config: RunConfig, score: float) -> str:
        """`outcome` with the score that chooses the best model."""
        scored = {
            "bleu": f"BLEU of {score:.2f} (greedy)",
            "chrf": f"chrF of {score:.2f} (greedy)",
            "comet": f"COMET of {score:.4f} (greedy)",
            "loss": f"loss of {-score:.3f}",
        }
        return self.outcome.format(scored[config.training.best_by])

    def begin(self) -> NewTranslatorRun:
        new = NewTranslatorRun(self.settings, self.folder, self.context)
        model = self.settings.comet or (DEFAULT if self.settings.best_by == "comet" else "")
        self._start_comet(model, new.device, self.settings.threads)
        return new

    def _start_comet(self, model: str, device: str, threads: int | None) -> None:
        """Start COMET in the first process, so that what is missing is said before the first update."""
        if model and self._comet is None and self.context.processes.is_first:
            self._comet = Comet(model, threads=threads, device=device)
            self.context.say(f"COMET by {model}: loading it in a process of its own")
            self._comet.start()

    def close(self) -> None:
        """End what was started for this run."""
        if self._comet is not None:
            self._comet.close()

    def open(self, config: RunConfig) -> PreparedText:
        """Open the stored text, in the run or in a prepared folder, which may have moved."""
        return open_training_text(self.folder, config.data, self.settings.data)

    def network(self, config: RunConfig) -> Network:
        return build_network_for(config.model, config.training)

    def batches(self, config: RunConfig, data: PreparedText, position: tuple[int, int]) -> BatchSource:
        attach: list[Attach] = []
        divisor = None
        if config.teachers and (share := config.training.teacher_weight):
            from multihead.preparing.teachers import soft_targets, with_soft_targets

            store = soft_targets(self.folder, config, data, self.context)
            attach.append(partial(with_soft_targets, store=store, weight=share))
        if config.weights is not None:
            from multihead.preparing.weights import pair_weights

            weights = pair_weights(self.folder, config.weights, data, self.context)
            attach.append(weights.attached)
            divisor = weights.divisor
        if config.alignments is not None and (factor := config.training.alignment_weight):
            from multihead.preparing.alignments import pair_links

            attach.append(pair_links(self.folder, config.alignments, factor, data, self.context).attached)
        stream: Stream = data.batches(config.training, position)
        if attach:
            stream = AttachedStream(stream, attach, divisor)

        def largest() -> list[Batch]:
            found = data.largest(config.training)
            return [attached(batch, attach) for batch in found] if attach else found

        ahead = take_ahead(stream, self.context.processes, config.training.device)
        if ahead is None:
            return BatchSource(stream, data.lines, largest)
        return BatchSource(ahead, data.lines, largest, ahead.close)

    def judge(self, config: RunConfig, data: PreparedText) -> TranslatorJudge:
        training = config.training
        self._start_comet(training.comet, training.device, training.threads)
        return TranslatorJudge(config, data, self.context.processes, self._comet)

    def given_again(self, config: RunConfig) -> dict[str, object]:
        """All given settings but those that may change.

        These are how processes combine gradients, and a prepared folder, whose content is checked when it is opened.
        """
        moved = ("parallel", "data") if config.data.prepared is not None else ("parallel",)
        return {name: value for name, value in self.given.items() if name not in moved}

    def start_message(self, config: RunConfig) -> str | None:
        if config.from_model is None:
            return None
        model, frozen = config.model, f"frozen is the embedding of padding, id {config.model.padding_id}"
        if config.training.lora:
            weights = list(without_values(lambda: new_network(model, config.training)).parameters())
            trained, given = (sum(w.numel() for w in weights if w.requires_grad is flag) for flag in (True, False))
            share = 100 * trained / given
            frozen = f"frozen are its {given:,} weights, trained are {trained:,} of adapters ({share:.2g}% of them)"
        return (
            f"fine-tuning the model of {config.from_model.path}: its vocabulary of {model.target_vocab:,} subwords and "
            f"its sizes are kept, nothing is resized; {frozen}"
        )

    def flops(self, config: RunConfig, model: Network) -> ModelFlops:
        """The cost of a token, and the summed speed of all processes, measured while all of them compute."""
        own = measure_flops(model, model.output, config.training.device, config.training.precision)
        return replace(own, peak_flops=sum(self.context.processes.all_gather(own.peak_flops)))

    def follow(self) -> tuple[RunConfig, PreparedText]:
        """Receive the decisions of the first process, and take part in its measurement of the pace."""
        config = assist_measurement(self.settings, self.folder, self.context)
        return config, self.open(config)


class TranslatorJudge(Judge[Network]):
    """Judges models on the validation set, whose work the processes share.

    Args:
        config: the decisions of the run.
        prepared: its text.
        processes: the processes that train together; each gets the result of all.
        comet: scores translations, in the first process, if the run has a COMET model.
    """

    def __init__(
        self,
        config: RunConfig,
        prepared: PreparedText,
        processes: Processes = SINGLE_PROCESS,
        comet: Comet | None = None,
    ) -> None:
        self.config, self.prepared, self._comet = config, prepared, comet
        self._processes, self._share = processes, slice(processes.rank, None, processes.size)
        lengths = [
            int(a) + int(b) + 2
            for a, b in zip(prepared.valid.source.lengths, prepared.valid.target.lengths, strict=True)
        ]
        groups = batches_by_tokens(lengths, 2 * config.training.batch_tokens)
        ids = prepared.target_tokenizer.special_ids
        self._batches = [collate(prepared.valid, np.array(group), **ids) for group in groups]

    def evaluate(self, model: Network) -> Validation:
        """The loss of all pairs; BLEU and chrF of greedy translations of the first `SENTENCES`."""
        return self.evaluate_part(model, 1)

    def evaluate_part(self, model: Network, part: int) -> Validation:
        """The loss of all pairs; BLEU and chrF of one in ``part`` of those sentences."""
        model = without_adapters(model, self.config.training)
        places, sources = self._places(part), self.prepared.valid_sources
        mine = [[sources[i] for i in own][self._share] for own in places]
        pairs = zip(self._translators(model), mine, strict=True)
        shares = self._processes.all_gather(
            (
                self._losses(model, self._batches[self._share]),
                [translator.translate(texts, beam=1, batch_tokens=8192) for translator, texts in pairs],
            )
        )
        nll, correct, tokens = 0.0, 0, 0
        for batch in interleave([losses for losses, _ in shares]):
            nll, correct, tokens = nll + batch[0], correct + batch[1], tokens + batch[2]
        hypotheses = [interleave([found[number] for _, found in shares]) for number in range(len(places))]
        perplexity = float(torch.tensor(nll / tokens).clamp(max=100.0).exp())
        scores = self._score(hypotheses, places) | self._score_by_comet(hypotheses, places)
        first = places[0][0]
        sample = sources[first], hypotheses[0][0], self.prepared.valid_targets[first]
        values = {
            "loss": nll / tokens,
            "perplexity": perplexity,
            "accuracy": correct / tokens,
            "sentences": sum(map(len, places)),
            **scores,
            "sample": dict(zip(("source", "translation", "reference"), sample, strict=True)),
        }
        each = "  ".join(f"{name} {scores[f'bleu_{name}']:.2f}" for name in self._names)
        summary = (
            f"loss {nll / tokens:.3f}  perplexity {perplexity:.2f}  accuracy {100 * correct / tokens:.1f}%  "
            f"BLEU {scores['bleu']:.2f}  chrF {scores['chrf']:.2f}" + (f"  (BLEU {each})" if each else "")
        )
        measured: dict[str, float] = {"bleu": scores["bleu"], "chrf": scores["chrf"], "loss": -nll / tokens}
        if "comet" in scores:
            measured["comet"] = scores["comet"]
            summary += f"  COMET {scores['comet']:.4f}"
        return Validation(measured[self.config.training.best_by], nll / tokens, values, summary)

    @property
    def _names(self) -> list[str]:
        """Of the directions, if there are several."""
        return [str(direction) for direction, _ in self.prepared.valid_parts if direction is not None]

    def _places(self, part: int) -> list[range]:
        """The sentences to translate: the first ones, in equal numbers of each direction."""
        parts = [place for _, place in self.prepared.valid_parts]
        most = max(SENTENCES // len(parts), 1)
        return [range(place.start, min(place.stop, place.start + most), part) for place in parts]

    def _translators(self, model: Network) -> list[Translator]:
        """A translator for each direction, with one network."""
        translator = Translator(self._bundle(model))
        return [
            translator if direction is None else translator.toward(Languages(*direction))
            for direction, _ in self.prepared.valid_parts
        ]

    def _score(self, hypotheses: list[list[str]], places: list[range]) -> dict[str, Any]:
        """BLEU and chrF; of several directions the means, which can choose the best model, and those of each."""
        found = []
        for (direction, _), texts, place in zip(self.prepared.valid_parts, hypotheses, places, strict=True):
            language = self.config.data.target_language if direction is None else direction.target
            found.append(score(texts, [self.prepared.valid_targets[i] for i in place], language))
        if not self._names:
            return found[0].as_dict()
        values: dict[str, Any] = {
            name: statistics.fmean(getattr(one, name) for one in found) for name in ("bleu", "chrf")
        }
        for name, one in zip(self._names, found, strict=True):
            values |= {f"{key}_{name}": value for key, value in one.as_dict().items()}
        return values

    def _score_by_comet(self, hypotheses: list[list[str]], places: list[range]) -> dict[str, Any]:
        """COMET; of several directions the mean, and that of each."""
        if not self.config.training.comet:
            return {}
        found, signature = [], ""
        if self._comet is not None:
            for texts, place in zip(hypotheses, places, strict=True):
                sources = [own_text(self.prepared.valid_sources[i]) for i in place]
                references = [self.prepared.valid_targets[i] for i in place]
                found.append(statistics.fmean(self._comet.score(sources, texts, references)))
            signature = self._comet.signature
        found, signature = self._processes.all_gather((found, signature))[0]
        each = {f"comet_{name}": value for name, value in zip(self._names, found, strict=False)}
        return {"comet": statistics.fmean(found), **each, "comet_signature": signature}

    def rehearse(self, model: Network) -> float:
        """Do a sixteenth of an evaluation; the estimate is rather high, because small batches are slow."""
        model = without_adapters(model, self.config.training)
        sources, batches = self.prepared.valid_sources, self._batches[self._share]
        places = [own[self._share] for own in self._places(1)]
        started = time.perf_counter()
        some = [own[::_REHEARSED] for own in places]
        for translator, own in zip(self._translators(model), some, strict=True):
            texts = translator.translate([sources[i] for i in own], beam=1, batch_tokens=8192)
            if self._comet is not None and texts:  # one process scores what all translate
                times = self._processes.size
                lists = [sources[i] for i in own], texts, [self.prepared.valid_targets[i] for i in own]
                self._comet.score(*(times * one for one in lists))
        translated = time.perf_counter()
        few = batches[::_REHEARSED]
        self._losses(model, few)
        whole = sum(map(len, places)) / max(sum(map(len, some)), 1), len(batches) / max(len(few), 1)
        return whole[0] * (translated - started) + whole[1] * (time.perf_counter() - translated)

    @torch.no_grad()
    def _losses(self, model: Network, batches: Sequence[Batch]) -> list[tuple[float, int, int]]:
        """For each batch: the loss, and how many tokens are correct, of how many."""
        losses = []
        for batch in batches:
            sums = sequence_loss(model, batch.to(self.config.training.device), 0.0)
            losses.append((sums.nll.item(), int(sums.correct.item()), batch.target_tokens))
        return losses

    def save(self, model: Network, folder: Path, metrics: dict[str, Any]) -> None:
        shown = {name: value for name, value in metrics.items() if name != "sample"}
        plain = self._bundle(without_adapters(model, self.config.training))
        save_bundle(folder, plain, shown, self._origin(), others=self._adapter(model))

    def _adapter(self, model: Network) -> dict[str, bytes]:
        """What is trained of a model with adapters, as a file beside the merged weights."""
        training, given = self.config.training, self.config.from_model
        if not training.lora or given is None:
            return {}
        from multihead.models.adapters import ADAPTER, write_adapter

        return {ADAPTER: write_adapter(model, training.lora_alpha, given.weights)}

    def _origin(self) -> str:
        """A sentence for the model card."""
        tool, pairs, given = f"multihead {version('multihead')}", self.config.data.pairs, self.config.from_model
        weights = ", ".join(teacher.weights[:12] for teacher in self.config.teachers)
        taught = f" Its teachers were models whose weights are {weights}." if weights else ""
        if given is None:
            return f"Trained by {tool} on {pairs:,} sentence pairs.{taught}"
        origin = f"from a model whose weights are {given.weights[:12]}"
        if rank := self.config.training.lora:
            origin += f", by low-rank adapters of rank {rank}, which are merged into these"
        return f"Fine-tuned by {tool} on {pairs:,} sentence pairs, {origin}.{taught}"

    def _bundle(self, model: Network) -> Bundle:
        prepared, data = self.prepared, self.config.data
        directions = tuple(Direction(record.source, record.target) for record in data.directions)
        languages = common_languages(directions) if directions else (data.source_language, data.target_language)
        return Bundle(
            model,
            prepared.source_tokenizer,
            prepared.target_tokenizer,
            self.config.generation,
            languages[0],
            languages[1],
            directions,
        )
