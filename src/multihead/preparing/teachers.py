"""Compute what teachers predict in the training text, once.

Word-level knowledge distillation (Kim and Rush 2016, "Sequence-level knowledge distillation", section 3.1): at each
target position, a student learns the distribution that its teachers predict after the same words. That is the mean of
the teachers' probabilities. Teachers do not change, so their distributions are computed before the first update, once
for all epochs, and kept in the run folder (`data.soft_store`): the `SYMBOLS` most probable symbols of each position.
What they leave is spread over the vocabulary, as label smoothing taught the teachers to spread it. Other students of
the same teachers copy the folder.

A run that is stopped meanwhile goes on where it was: chunks of pairs are written one after the other. With several
processes, they compute chunks in turn, and the first one writes. The loss is in `kernels.soft_targets`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PureWindowsPath

import numpy as np
import torch
from torch import Tensor

from multihead.bundle import Bundle, load_bundle, weights_digests
from multihead.data.batching import Batch, collate
from multihead.data.order import batch_order
from multihead.data.soft_store import FOLDER, SoftDescription, SoftStore, SoftStoreWriter
from multihead.errors import ConfigurationError, Interrupted
from multihead.kernels.linear import linear
from multihead.models.network import Network
from multihead.planning.settings import RunConfig
from multihead.preparing.prepared import PreparedText
from multihead.text.languages import Languages
from multihead.text.tokenizer import Tokenizer
from multihead.training.budget import JOURNAL, Journal
from multihead.training.config import TrainingConfig
from multihead.training.context import RunContext
from multihead.training.progress import format_duration

SYMBOLS = 8
"""Symbols of a position that are kept."""
_CHUNK = 4096
"""Pairs between two points at which the computation can be resumed; sorted by length to waste little on padding."""
_ROWS = 256
"""Rows that are projected at a time: with more, the probabilities leave the caches and take twice as long."""
_SECONDS = 10.0
"""Seconds between lines of progress."""


def load_teacher(folder: Path, like: tuple[Tokenizer, Tokenizer] | None, name: str, languages: Languages) -> Bundle:
    """Load a teacher whose vocabularies are those of the student.

    Args:
        folder: the teacher's.
        like: the student's tokenizers of source and target; None = they will be those of this teacher.
        name: where those come from, for messages.
        languages: of the translation.

    Raises:
        ConfigurationError: it has other vocabularies.
        FormatError: there is no model, or it is damaged.
    """
    teacher = load_bundle(folder, languages=languages)
    own = teacher.source_tokenizer, teacher.target_tokenizer
    for side, one, other in zip(("source", "target"), own, like or own, strict=True):
        if one.digest != other.digest:
            raise ConfigurationError(
                f"{folder}: a teacher with another {side} vocabulary (SHA-256 {one.digest[:12]}...) than {name} "
                f"({other.digest[:12]}...); prepare the text with the teacher's, by multihead prepare --from-model "
                f"{folder}, and train student and teachers from that"
            )
    return teacher


def with_soft_targets(batch: Batch, store: SoftStore, weight: float) -> Batch:
    """A batch with the soft targets of its pairs, and their share in the loss; of pairs as they are stored."""
    return replace(batch, soft=store.gather(batch.indices, weight))


def soft_targets(folder: Path, config: RunConfig, prepared: PreparedText, context: RunContext) -> SoftStore:
    """The soft targets of a run; all processes compute them if neither it nor ``context.soft_targets_of`` has them.

    Args:
        folder: the run folder.
        config: the decisions of the run; there are teachers.
        prepared: its text.
        context: how to report, and what stops the computation.

    Raises:
        ConfigurationError: a teacher has changed since the run began.
        FormatError: the stored soft targets are damaged, or a teacher is.
        Interrupted: the run was asked to stop; it goes on from there.
        PeerEnded: another process has ended.
    """
    lengths, vocabulary = prepared.train.target.lengths.astype(np.int64) + 1, len(prepared.target_tokenizer)
    weights, symbols = tuple(teacher.weights for teacher in config.teachers), min(SYMBOLS, vocabulary)
    description = SoftDescription.of(weights, symbols, vocabulary, lengths)

    def stored() -> bool:
        other = context.soft_targets_of
        if (folder / FOLDER).is_dir() or other is None:
            return (folder / FOLDER).is_dir()
        copied = SoftStore.copy(folder, other, description, lengths, vocabulary)
        if copied:
            context.say(f"what the teachers predict is copied from {other}")
        return copied

    if not context.processes.broadcast(stored() if context.processes.is_first else None):
        _compute(folder, config, prepared, description, context)
    return SoftStore.open(folder, description, lengths, vocabulary)


def _compute(
    folder: Path, config: RunConfig, prepared: PreparedText, description: SoftDescription, context: RunContext
) -> None:
    models, processes, started = _load_again(folder, config, prepared), context.processes, time.monotonic()
    writer = SoftStoreWriter(folder, description) if processes.is_first else None
    first = done = processes.broadcast(None if writer is None else writer.pairs)
    size = description.positions * description.symbols * (np.dtype(description.ids).itemsize + 2) / 1e6
    who = "the teacher predicts" if len(models) == 1 else f"the {len(models)} teachers predict"
    _say(context, f"computing what {who} at {description.positions:,} positions, once ({size:,.0f} MB)")
    reported = started
    while done < description.pairs:
        chunks = [range(at, min(at + _CHUNK, description.pairs)) for at in _starts(done, processes.size)]
        own = chunks[processes.rank]
        found = predict_chunk(models, prepared, own, config.training, description.symbols) if own else None
        gathered = processes.all_gather((found, context.stop_signal()))
        for chunk, (made, _) in zip(chunks, gathered, strict=True):
            if writer is not None and made is not None:
                writer.append(*made, len(chunk))
            done += len(chunk)
        number = next((number for _, number in gathered if number is not None), None)
        if number is not None:
            _note_time(folder, config, context)
            raise Interrupted(
                number, f"stopped after {done:,} pairs of the teachers; run the same command again to continue"
            )
        now = time.monotonic()
        if now - reported > _SECONDS and done < description.pairs:
            pace = (done - first) / (now - started)
            left = format_duration((description.pairs - done) / pace)
            _say(context, f"  {done:,} of {description.pairs:,} pairs, {pace:,.0f} pairs/s, {left} left")
            reported = now
    if writer is not None:
        writer.finish()
    _say(context, f"  done in {format_duration(time.monotonic() - started)}")
    processes.all_gather("written")


def _starts(done: int, size: int) -> list[int]:
    """Where the next chunks of so many processes begin."""
    return [done + _CHUNK * rank for rank in range(size)]


def _say(context: RunContext, line: str) -> None:
    if context.processes.is_first:
        context.say(line)


def _note_time(folder: Path, config: RunConfig, context: RunContext) -> None:
    """Count the time until a stop before the first update to the budget."""
    if config.training.budget is not None and context.processes.is_first:
        journal = Journal(folder / JOURNAL, context.say)
        journal.append({"step": 0, "spent": round(journal.spent + time.monotonic() - context.started, 3)})


def _load_again(folder: Path, config: RunConfig, prepared: PreparedText) -> list[Network]:
    """The teachers with which the run began, on its device; of those that moved, the ones beside the run."""
    tokenizers = prepared.source_tokenizer, prepared.target_tokenizer
    languages = Languages(config.data.source_language, config.data.target_language)
    models = []
    for teacher in config.teachers:
        path = Path(teacher.path)
        moved = folder.absolute().parent / PureWindowsPath(teacher.path).name  # a run may come from Windows
        if not path.exists() and moved.exists() and teacher.weights in weights_digests(moved):
            path = moved
        if teacher.weights not in weights_digests(path):
            raise ConfigurationError(
                f"{path}: not the teacher with which this run began: its weights have changed; put that one back, or "
                "start a new run"
            )
        models.append(load_teacher(path, tokenizers, "this run", languages).model.to(config.training.device).eval())
    return models


def predict_chunk(
    models: Sequence[Network], prepared: PreparedText, pairs: range, training: TrainingConfig, symbols: int
) -> tuple[Tensor, Tensor]:
    """The best symbols of some pairs and their probabilities, each [positions, symbols], pair after pair.

    The products have the precision of the run. The result depends on nothing else than the arguments.
    """
    place = slice(pairs.start, pairs.stop)
    sources, lengths = prepared.train.source.lengths[place] + 1, prepared.train.target.lengths[place] + 1
    ends = np.cumsum(lengths)
    ids = torch.empty(int(ends[-1]), symbols, dtype=torch.int64)
    probabilities = torch.empty(int(ends[-1]), symbols)
    for rows in batch_order(sources, lengths, training.batch_tokens, 0, 0):
        batch = collate(prepared.train, rows + pairs.start, **prepared.target_tokenizer.special_ids)
        places = np.concatenate([np.arange(ends[row] - lengths[row], ends[row]) for row in rows])
        best, found = predict(models, batch.to(training.device), training.precision, symbols)
        ids[places], probabilities[places] = best.cpu(), found.cpu()
    return ids, probabilities


@torch.no_grad()
def predict(models: Sequence[Network], batch: Batch, precision: str, symbols: int) -> tuple[Tensor, Tensor]:
    """The best symbols at the positions of a batch, and the means of the models' probabilities for them.

    Args:
        models: the teachers, which do not drop out.
        batch: on their device.
        precision: of the products.
        symbols: how many of each position.

    Returns:
        Ids and probabilities [positions, symbols], the most probable symbol first.
    """
    best = []
    with torch.autocast(batch.source.device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
        real = batch.target_output != models[0].config.padding_id
        inputs = batch.source, batch.source_lengths, batch.target_input, real
        hidden = [model.states_at(*inputs) for model in models]
        for start in range(0, batch.target_tokens, _ROWS):
            total: Tensor | None = None
            for model, states in zip(models, hidden, strict=True):
                logits = linear(states[start : start + _ROWS], model.output.weight, model.output.bias)
                own = logits.softmax(-1, dtype=torch.float32)
                total = own if total is None else total.add_(own)
            assert total is not None
            best.append(total.div_(len(models)).topk(symbols))
    return torch.cat([found.indices for found in best]), torch.cat([found.values for found in best])
