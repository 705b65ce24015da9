"""Pre-train a BERT on plain text: ``multihead pretrain``.

A run is a folder:

    run.json            every decision with its reason: a `PretrainRunConfig`; written once, before the first update
    run.copy.json       a copy of it, in case it is lost (`work_folder.restore`)
    data/               subwords and stored documents (`runs.bert.text`)
    log.txt, log.jsonl, timing.jsonl
    checkpoints/        where the run resumes
    best/               the model folder of the best validation so far (`runs.bert.model`)

What happens in which order is in `runs.run`; what the finished model is used for, in `runs.bert.fill_mask`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from multihead import work_folder
from multihead.configuration import build, inspect_machine, require_device
from multihead.data.bert.batches import Batches, Corruption, MaskedBatch, MaskedStream
from multihead.data.bert.documents import DocumentStore
from multihead.data.bert.sentence_pairs import SentencePairs
from multihead.models.bert.network import Bert
from multihead.planning.settings import Choices
from multihead.runs.bert.model import PretrainedBert
from multihead.runs.bert.settings import (
    PretrainFacts,
    PretrainRunConfig,
    PretrainSettings,
    PretrainText,
    choose_batch,
    decide,
)
from multihead.runs.bert.text import StoredText, open_text, store_text
from multihead.runs.run import (
    BatchSource,
    Judge,
    NewRun,
    RunKind,
    RunResult,
    execute,
    installed_versions,
    log_decisions,
)
from multihead.text.bert_words import BertWords
from multihead.training.context import RunContext, Validation
from multihead.training.progress import RunLog
from multihead.training.tensorboard import require_tensorboard


class PretrainResult(RunResult):
    """A finished run; its score is the percentage of hidden words of the validation set that are predicted right."""

    def bert(self) -> PretrainedBert:
        return PretrainedBert.load(self.folder)


def pretrain(
    *,
    say: Callable[[str], None] = print,
    stop_signal: Callable[[], int | None] = lambda: None,
    use_threads: Callable[[int], None] = lambda _: None,
    **settings: Any,
) -> PretrainResult:
    """Pre-train a BERT, or resume a run that was stopped.

    Args:
        say: called with each line of output.
        stop_signal: called between updates; returns the number of a signal that asks the run to stop.
        use_threads: called with the number of threads that the run is frozen to: see `runs.translator.train.train`.
        **settings: fields of `PretrainSettings`; ``text`` and ``output`` are needed for a new run.

    Raises:
        InputError: files, settings or the output folder are invalid; nothing was overwritten.
        Interrupted: ``stop_signal`` returned a signal; the same call resumes the run.
    """
    given = build(PretrainSettings, settings, "the settings")
    folder = work_folder.require_output(given.output)
    return execute(PretrainRun(given, folder, RunContext(say, stop_signal, use_threads)), PretrainResult)


class NewPretrainRun(NewRun[PretrainRunConfig, StoredText]):
    """A pre-training that begins."""

    def __init__(self, settings: PretrainSettings, folder: Path, context: RunContext) -> None:
        self._settings, self._folder, self._context = settings, folder, context
        self._choices = Choices(settings)
        self._machine = inspect_machine(settings.device)
        require_device(self._machine.device, settings.precision)
        if settings.tensorboard:
            require_tensorboard()
        # Deciding for an imagined text finds most faulty settings before the work.
        imagined = PretrainFacts(
            sentences=1,
            vocab=1000,
            padding_id=0,
            batches=1,
            threads=1,
            device=self._machine.device,
            fast_bfloat16=False,
        )
        decide(Choices(settings), imagined, settings.max_tokens or 128)

    def prepare(self) -> StoredText:
        self._text = store_text(self._settings, self._folder, self._choices, self._context)
        return open_text(self._folder)

    def decide(self, data: StoredText) -> PretrainRunConfig:
        text, machine = self._text, self._machine
        seed = 1 if self._settings.seed is None else self._settings.seed
        rows = _rows(data.words, data.train, text, seed)
        _rows(data.words, data.valid, text, seed)  # raises now if the validation text has no rows
        facts = PretrainFacts(
            sentences=text.sentences,
            vocab=len(data.words),
            padding_id=data.words.symbols.pad,
            batches=len(Batches(*rows, 0, choose_batch(self._choices, machine.device))),
            threads=machine.threads,
            device=machine.device,
            fast_bfloat16=machine.fast_bfloat16,
        )
        model, training = decide(self._choices, facts, text.max_tokens)
        return PretrainRunConfig(
            kind="pretrain",
            versions=installed_versions(),
            asked=work_folder.given_settings(self._settings),
            text=text,
            model=model,
            training=training,
            reasons=self._choices.reasons,
        )

    def report(self, config: PretrainRunConfig, data: StoredText, log: RunLog) -> None:
        del data
        text, training = config.text, config.training
        log.say(f"{text.sentences:,} sentences in {text.documents:,} documents; decided (run.json has it all):")
        fields = ("batch_tokens", "updates", "learning_rate", "warmup", "average", "precision", "threads")
        shown: dict[str, object] = {
            **{name: getattr(text, name) for name in ("vocab_size", "max_tokens", "next_sentence", "held_out")},
            "preset": config.model.summary,
            **{name: getattr(training, name) for name in fields},
        }
        log_decisions(config.reasons, shown, log)


class PretrainRun(RunKind[PretrainSettings, PretrainRunConfig, StoredText, Bert]):
    """A run that pre-trains a BERT."""

    config_class = PretrainRunConfig
    outcome = ", predicts {:.2f}% of the hidden words of the validation set right and is in"

    def begin(self) -> NewPretrainRun:
        return NewPretrainRun(self.settings, self.folder, self.context)

    def open(self, config: PretrainRunConfig) -> StoredText:
        del config
        return open_text(self.folder)

    def network(self, config: PretrainRunConfig) -> Bert:
        return Bert(config.model).to(config.training.device)

    def batches(self, config: PretrainRunConfig, data: StoredText, position: tuple[int, int]) -> BatchSource:
        training = config.training
        rows = _rows(data.words, data.train, config.text, training.seed)
        return BatchSource(
            MaskedStream(*rows, training.batch_tokens, position),
            lambda sentences: {config.text.text.path: data.train.lines_of(sentences)},
            lambda: [Batches(*rows, 0, training.batch_tokens).largest],
        )

    def judge(self, config: PretrainRunConfig, data: StoredText) -> PretrainJudge:
        return PretrainJudge(config, data)


def _rows(words: BertWords, store: DocumentStore, text: PretrainText, seed: int) -> tuple[SentencePairs, Corruption]:
    """The rows of a store as the run has them, and what is hidden in them."""
    symbols = words.symbols
    return (
        SentencePairs(store, symbols, text.max_tokens, seed, paired=text.next_sentence),
        Corruption(symbols.hidden, words.special, words.begins_word, seed, whole_words=text.whole_words),
    )


class PretrainJudge(Judge[Bert]):
    """Judges models on rows whose hidden words and passages are drawn once for the whole run."""

    def __init__(self, config: PretrainRunConfig, stored: StoredText) -> None:
        self.config, self.words = config, stored.words
        rows = _rows(stored.words, stored.valid, config.text, config.training.seed)
        batches = Batches(*rows, 0, config.training.batch_tokens)
        self._batches: list[MaskedBatch] = [batches[index] for index in range(len(batches))]

    def evaluate(self, model: Bert) -> Validation:
        """The percentage of hidden words predicted right, their loss, and the accuracy on next sentences."""
        measured = measure(model, self._batches, self.config.training.device)
        perplexity = torch.tensor(measured["loss"]).clamp(max=100.0).exp().item()
        summary = (
            f"loss {measured['loss']:.3f}  perplexity {perplexity:.2f}  hidden words {measured['accuracy']:.1%}"
            + (f"  next sentence {measured['next_sentence']:.1%}" if "next_sentence" in measured else "")
        )
        return Validation(100 * measured["accuracy"], measured["loss"], dict(measured), summary)

    def save(self, model: Bert, folder: Path, metrics: dict[str, Any]) -> None:
        PretrainedBert(model, self.words).save(folder, metrics)


@torch.no_grad()
def measure(model: Bert, batches: list[MaskedBatch], device: str) -> dict[str, float]:
    """Mean loss (nats) and accuracy on the hidden words; accuracy on the next sentences, if rows are pairs."""
    loss, hits, words, right, pairs = 0.0, 0, 0, 0, 0
    for batch in batches:
        tokens, lengths, segments, chosen, originals, follows = batch.to(device).inputs
        states, pooled = model.encode(tokens, lengths, segments)
        logits, targets = model.word_logits(states[chosen]), originals[chosen]
        loss += F.cross_entropy(logits, targets, reduction="sum").item()
        hits += int((logits.argmax(-1) == targets).sum())
        words += batch.target_tokens
        paired = follows >= 0  # -1: the row is a single passage
        right += int((model.follows(pooled).argmax(-1) == 1 - follows)[paired].sum())
        pairs += int(paired.sum())
    measured = {"loss": loss / words, "accuracy": hits / words}
    return measured | ({"next_sentence": right / pairs} if pairs else {})
