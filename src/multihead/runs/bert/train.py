"""A plain corpus becomes a BERT: a run begins or goes on, and everything it needs is joined together here.

A run is a folder, as a translator's is (`runs.translator.train`):

    run.json            everything decided, with reasons: a `PretrainRun`; written once, before the first update
    data/               subwords and stored documents (`runs.bert.text`)
    log.txt, log.jsonl, timing.jsonl
    checkpoints/        where the run can go on
    best/               the model folder of the best validation so far (`runs.bert.model`)

What the model answers says `runs.bert.fill_mask`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from multihead import work_folder
from multihead.configuration import build
from multihead.data.bert.batches import Batches, Corruption, MaskedBatch, MaskedStream
from multihead.data.bert.documents import DocumentStore
from multihead.data.bert.sentence_pairs import SentencePairs
from multihead.files import write_text
from multihead.machine import Machine, inspect_machine, require_device
from multihead.models.bert.network import Bert
from multihead.runs.bert import text as pretrain_text
from multihead.runs.bert.model import PretrainedBert
from multihead.runs.bert.settings import (
    RUN_VERSION,
    Facts,
    PretrainRun,
    PretrainSettings,
    PretrainText,
    Reasons,
    decide,
    decide_batch,
)
from multihead.runs.bert.text import Stored
from multihead.runs.run import Finished, Kind, carry_out, show, train_to_the_end, versions
from multihead.text.bert_words import BertWords
from multihead.training import tensorboard
from multihead.training.checkpoint import RunState
from multihead.training.progress import RunLog
from multihead.training.trainer import TrainerInputs, Validation


class Result(Finished):
    """A finished run; its score is the percentage of hidden words of the validation set that are told right."""

    def bert(self) -> PretrainedBert:
        """The best model."""
        return PretrainedBert.load(self.folder)


def pretrain(
    *,
    say: Callable[[str], None] = print,
    stop_signal: Callable[[], int | None] = lambda: None,
    use_threads: Callable[[int], None] = lambda _: None,
    **wishes: Any,
) -> Result:
    """Pre-trains a BERT, or goes on with one that was stopped.

    Args:
        say: is told each line of progress.
        stop_signal: is asked between updates for the number of a signal that wants the run to stop.
        use_threads: is told how many threads the run is frozen to: see `runs.translator.train.train`.
        **wishes: fields of `PretrainSettings`: ``text`` and ``output`` are needed for a new run.

    Raises:
        InputError: files, settings or the output folder are not what they should be; nothing was overwritten.
        Interrupted: ``stop_signal`` gave one; the run can go on.
    """
    settings = build(PretrainSettings, wishes, "the settings")
    folder = work_folder.require_output(settings.output)
    return carry_out(
        folder,
        Kind(work_folder.PRETRAIN, PretrainRun, RUN_VERSION),
        work_folder.given_settings(settings),
        begin=lambda: _begin(settings, folder, say, stop_signal),
        work=lambda config: _train(config, folder, say, stop_signal),
        use_threads=use_threads,
    )


# --------------------------------------------------------------------------- a run begins


def _begin(
    settings: PretrainSettings, folder: Path, say: Callable[[str], None], stop_signal: Callable[[], int | None]
) -> PretrainRun:
    """Stores the text, decides everything, says so, and freezes it."""
    machine, reasons = inspect_machine(), Reasons()
    require_device(settings.device or machine.device)
    if settings.tensorboard:
        tensorboard.require_tensorboard()
    imagined = Facts(
        sentences=1, vocab=1000, padding_id=0, batches=1, threads=1, device=machine.device, fast_bfloat16=False
    )
    decide(settings, imagined, settings.max_tokens or 128, Reasons())  # what cannot be is said before the work
    with work_folder.preparing(folder):
        text = pretrain_text.write_text(settings, folder, say, stop_signal, reasons)
        config = _decide(settings, text, pretrain_text.open_text(folder), machine, reasons)
        write_text(folder / work_folder.RUN, config.model_dump_json(indent=2) + "\n")
    _show(config, RunLog(folder, say))
    return config


def _decide(
    settings: PretrainSettings, text: PretrainText, stored: Stored, machine: Machine, reasons: Reasons
) -> PretrainRun:
    device = settings.device or machine.device
    seed = 1 if settings.seed is None else settings.seed
    rows = _rows(stored.words, stored.train, text, seed)
    _rows(stored.words, stored.valid, text, seed)  # so that what cannot be validated on is said now
    facts = Facts(
        sentences=text.sentences,
        vocab=len(stored.words),
        padding_id=stored.words.symbols.pad,
        batches=len(Batches(*rows, 0, decide_batch(settings, device, reasons))),
        threads=machine.threads,
        device=device,
        fast_bfloat16=machine.fast_bfloat16 and device == machine.device,
    )
    model, training = decide(settings, facts, text.max_tokens, reasons)
    return PretrainRun(
        kind="pretrain",
        versions=versions(),
        asked=work_folder.given_settings(settings),
        text=text,
        model=model,
        training=training,
        reasons=reasons,
    )


def _show(config: PretrainRun, log: RunLog) -> None:
    """Says what was decided and why."""
    text, training = config.text, config.training
    log.say(f"{text.sentences:,} sentences in {text.documents:,} documents; decided (run.json has it all):")
    shown: dict[str, object] = {
        **{name: getattr(text, name) for name in ("vocab_size", "max_tokens", "next_sentence", "held_out")},
        "preset": config.model.summary,
        **{
            name: getattr(training, name)
            for name in ("batch_tokens", "updates", "learning_rate", "warmup", "average", "precision", "threads")
        },
    }
    show(config, shown, log)


# --------------------------------------------------------------------------- a run goes on


def _train(
    config: PretrainRun, folder: Path, say: Callable[[str], None], stop_signal: Callable[[], int | None]
) -> Result:
    training, stored = config.training, pretrain_text.open_text(folder)
    torch.manual_seed(training.seed)
    model = Bert(config.model).to(training.device)

    def around(state: RunState) -> TrainerInputs[Bert]:
        rows = _rows(stored.words, stored.train, config.text, training.seed)
        stream, best = MaskedStream(*rows, training.batch_tokens, state.position), Best(config, stored, folder)
        return TrainerInputs(
            stream.take,
            lambda: stream.position,
            best.evaluate,
            best.keep,
            stop_signal,
            source_lines=lambda sentences: {config.text.text.path: stored.train.lines_of(sentences)},
            largest_batches=lambda: [Batches(*rows, 0, training.batch_tokens).largest],
        )

    merit = ", tells {:.2f}% of the hidden words of the validation set and is in"
    done = train_to_the_end(model, config.model.width, config, folder, say, around, merit=merit)
    return Result(**vars(done))


def _rows(words: BertWords, store: DocumentStore, text: PretrainText, seed: int) -> tuple[SentencePairs, Corruption]:
    """The rows of a store as the run has them, and what is hidden of them."""
    symbols = words.symbols
    return (
        SentencePairs(store, symbols, text.max_tokens, seed, paired=text.next_sentence),
        Corruption(symbols.hidden, words.special, words.begins_word, seed, whole_words=text.whole_words),
    )


class Best:
    """Judges the models of a run on its validation set, and writes the best one to the folder ``best``.

    What is hidden there, and which passages make a pair, is drawn once for the whole run.

    Args:
        config: the run.
        stored: its text.
        folder: its folder.
    """

    def __init__(self, config: PretrainRun, stored: Stored, folder: Path) -> None:
        self.config, self.words, self.folder = config, stored.words, folder
        rows = _rows(stored.words, stored.valid, config.text, config.training.seed)
        batches = Batches(*rows, 0, config.training.batch_tokens)
        self._batches: list[MaskedBatch] = [batches[place] for place in range(len(batches))]

    def evaluate(self, model: Bert) -> Validation:
        """The share of hidden words that are told right, in percent; their loss, and how often what follows is told."""
        measured = judge(model, self._batches, self.config.training.device)
        perplexity = torch.tensor(measured["loss"]).clamp(max=100.0).exp().item()
        summary = (
            f"loss {measured['loss']:.3f}  perplexity {perplexity:.2f}  hidden words {measured['accuracy']:.1%}"
            + (f"  next sentence {measured['next_sentence']:.1%}" if "next_sentence" in measured else "")
        )
        return Validation(100 * measured["accuracy"], measured["loss"], dict(measured), summary)

    def keep(self, model: Bert, metrics: dict[str, Any]) -> None:
        """Writes the folder ``best`` of the run."""
        PretrainedBert(model, self.words).save(self.folder / "best", metrics)


@torch.no_grad()
def judge(model: Bert, batches: list[MaskedBatch], device: str) -> dict[str, float]:
    """Of the hidden words the mean loss in nats and the share told right; of the pairs the share told right."""
    loss, hits, words, right, pairs = 0.0, 0, 0, 0, 0
    for batch in batches:
        tokens, lengths, segments, chosen, originals, follows = batch.to(device).inputs
        states, pooled = model.encode(tokens, lengths, segments)
        logits, targets = model.word_logits(states[chosen]), originals[chosen]
        loss += F.cross_entropy(logits, targets, reduction="sum").item()
        hits += int((logits.argmax(-1) == targets).sum())
        words += batch.target_tokens
        asked = follows >= 0
        right += int((model.follows(pooled).argmax(-1) == 1 - follows)[asked].sum())
        pairs += int(asked.sum())
    found = {"loss": loss / words, "accuracy": hits / words}
    return found | ({"next_sentence": right / pairs} if pairs else {})
