"""The checks of `multihead doctor` on a network: what holds of every sound one, tried on one batch.

    causality            logits[:, :t] do not depend on target[:, t:]
    padding              a row's logits do not depend on what fills it up, nor on the rows beside it
    one function         the loss that is minimised is that of the logits that a search sees
    first loss           of untrained weights about ln V: a uniform guess among V entries
    by heart             every part has a gradient, and a few pairs can be learned without rest

They ask for nothing but `Network`: a network of yours is checked like ours. What makes the batch and the network is
for `diagnosis.doctor`.

The checks of `multihead doctor` on subwords: does the text come back, is it spelt in bytes, how long are pieces?

A character without an entry of its own becomes its bytes (Kudo & Richardson 2018): nothing is lost, but a model has to
learn three tokens or four for it. That a text comes back from its ids is promised of every tokenizer (`text.tokenizer`)
and is tried here on a sample of the very text. How text is read is for `doctor_text`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from multihead.data.batching import Batch, collate
from multihead.data.store import ParallelStore
from multihead.diagnosis.corpus import MAX_LINES, Characters, Sample
from multihead.diagnosis.findings import Finding, make_finding
from multihead.errors import MultiheadError
from multihead.models.network import Network
from multihead.text.tokenizer import Tokenizer
from multihead.text.vocabulary import FIRST_CHARACTER, MARK
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import build_optimizer
from multihead.training.step import train_step

ROWS, LONGEST = 6, 16
"""Of the batch."""
_BOUND = 1e-3
"""What rounding may do, as a share of the largest logit."""
_FIRST_LOSS = 1.5
"""Nats that the first loss may be above ln V."""
_BY_HEART = 0.1
"""Nats a token, below which a few pairs are known by heart."""
_FALLEN = 0.75
"""The share of the first loss, above which nothing was learned at all."""
_UPDATES = 60


def small_batch(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Batch:
    """A batch of pairs of ids, cut to 16 tokens a side; every pair another one, and of different lengths if there are.

    Args:
        sources: ids without begin and end; not empty.
        targets: likewise.
    """
    pairs = {(tuple(s[:LONGEST]), tuple(t[:LONGEST])) for s, t in zip(sources, targets, strict=True)}
    ordered = sorted(pairs, key=lambda pair: (len(pair[1]), pair))
    step = max(len(ordered) // ROWS, 1)
    chosen = ordered[::-1][::step][:ROWS]
    store = ParallelStore.from_lists([list(s) for s, _ in chosen], [list(t) for _, t in chosen])
    ids = {"pad_id": Tokenizer.pad_id, "bos_id": Tokenizer.bos_id, "eos_id": Tokenizer.eos_id}
    return collate(store, np.arange(len(chosen)), **ids)


def random_pairs(source_vocab: int, target_vocab: int) -> tuple[list[list[int]], list[list[int]]]:
    """Ids for where there is no text; the same each time."""
    draw = torch.Generator().manual_seed(0)

    def rows(size: int) -> list[list[int]]:
        lengths = range(3, 3 + 2 * ROWS, 2)
        return [torch.randint(min(4, size - 1), size, (n,), generator=draw).tolist() for n in lengths]

    return rows(source_vocab), rows(target_vocab)


def check_network(model: Network, batch: Batch, name: str) -> list[Finding]:
    """Causality, padding and the loss of a network, whose mode is left as it was.

    Args:
        model: any weights.
        batch: as `small_batch` makes it, on the model's device.
        name: of the model, for people.
    """
    before = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits = _logits(model, batch)
        if not bool(logits.isfinite().all()):
            bad = int((~logits.isfinite()).sum())
            what = f"{bad:,} of {logits.numel():,} logits are no finite numbers"
            return [make_finding("not-finite", name, bad, logits.numel(), what)]
        bound = _BOUND * max(float(logits.abs().max()), 1.0)
        with torch.no_grad():
            every = [*_causality(model, batch, logits, bound, name), *_padding(model, batch, logits, bound, name)]
        return every or _loss(model, batch, logits, name)
    finally:
        model.train(before)


def _logits(model: Network, batch: Batch) -> Float[Tensor, "batch target vocab"]:
    return model(batch.source, batch.source_lengths, batch.target_input).logits  # type: ignore[no-any-return]


def _others(model: Network, ids: Tensor, vocab: int) -> Tensor:
    """Other ids in place of each, none of them padding."""
    first = min(Tokenizer.eos_id + 1, vocab - 1)
    shifted = first + (ids - first + 1) % max(vocab - first, 1)
    return torch.where(shifted == model.config.padding_id, first, shifted)


def _causality(model: Network, batch: Batch, logits: Tensor, bound: float, name: str) -> list[Finding]:
    width = batch.target_input.shape[1]
    changed = []
    for place in sorted({1, width // 2, width - 1} & set(range(1, width))):
        target = batch.target_input.clone()
        target[:, place:] = _others(model, target[:, place:], model.config.target_vocab)
        found_logits = model(batch.source, batch.source_lengths, target).logits
        change = (found_logits[:, :place] - logits[:, :place]).abs().amax()
        if float(change) > bound:
            changed.append((place, float(change)))
    if not changed:
        return []
    place, change = changed[0]
    what = f"other target tokens from position {place + 1} on change logits before it by {change:.2g}"
    return [make_finding("sees-the-future", name, len(changed), min(3, width - 1), what)]


def _padding(model: Network, batch: Batch, logits: Tensor, bound: float, name: str) -> list[Finding]:
    real = torch.arange(batch.target_input.shape[1], device=logits.device) < batch.target_lengths[:, None]
    outside = torch.arange(batch.source.shape[1], device=logits.device) >= batch.source_lengths[:, None]
    filled = torch.where(outside, _others(model, batch.source, model.config.source_vocab), batch.source)
    other = model(filled, batch.source_lengths, batch.target_input).logits
    change = float((other - logits)[real].abs().amax())
    if change > bound:
        what = f"other ids behind the end of a source change logits by {change:.2g}"
        return [make_finding("sees-padding", name, 1, 1, what)]
    alone = []
    for row in range(len(batch)):
        one = batch.part(row, row + 1)
        length = one.target_input.shape[1]
        alone.append(float((_logits(model, one)[0] - logits[row, :length]).abs().amax()))
    wrong = [row for row, change in enumerate(alone) if change > bound]
    if not wrong:
        return []
    what = f"{len(wrong)} of {len(batch)} pairs have other logits alone than in a batch, by up to {max(alone):.2g}"
    return [make_finding("sees-padding", name, len(wrong), len(batch), what)]


def _loss(model: Network, batch: Batch, logits: Tensor, name: str) -> list[Finding]:
    """With gradients, as in training, where other kernels may compute it."""
    real = batch.target_output != model.config.padding_id
    expected = torch.nn.functional.cross_entropy(logits[real], batch.target_output[real], reduction="sum")
    with torch.enable_grad():
        got = float(model.loss(*batch.inputs, smoothing=0.0).nll.detach())
    difference = abs(got - float(expected)) / batch.target_tokens
    if difference <= _BOUND * max(float(expected) / batch.target_tokens, 1.0):
        return []
    what = (
        f"the loss is {got / batch.target_tokens:.4f} nats a token, that of the logits "
        f"{float(expected) / batch.target_tokens:.4f}"
    )
    return [make_finding("loss-differs", name, 1, 1, what)]


def loss_per_token(model: Network, batch: Batch) -> float:
    """Nats a token, without smoothing and dropout."""
    model.eval()
    with torch.no_grad():
        return float(model.loss(*batch.inputs, smoothing=0.0).nll) / batch.target_tokens


def check_first_loss(model: Network, batch: Batch, name: str) -> tuple[list[Finding], float]:
    """The loss of untrained weights, in nats a token, against ln V; V: entries of the target vocabulary."""
    got, uniform = loss_per_token(model, batch), math.log(model.config.target_vocab)
    if abs(got - uniform) <= _FIRST_LOSS:
        return [], got
    what = f"the loss of untrained weights is {got:.2f} nats a token, a uniform guess has ln V = {uniform:.2f}"
    return [make_finding("initial-loss", name, 1, 1, what)], got


def check_trained(model: Network, batch: Batch, name: str) -> tuple[list[Finding], float]:
    """The loss of a trained network on text like its own, in nats a token, against ln V."""
    got, uniform = loss_per_token(model, batch), math.log(model.config.target_vocab)
    if got < uniform:
        return [], got
    what = f"its loss is {got:.2f} nats a token, no better than a uniform guess, ln V = {uniform:.2f}"
    return [make_finding("learned-nothing", name, 1, 1, what)], got


def check_learning(make: Callable[[], Network], batch: Batch, name: str) -> tuple[list[Finding], float, int]:
    """Whether every part has a gradient, and whether a few pairs are learned by heart.

    Args:
        make: a new network without dropout, on the device of the batch.
        batch: as `small_batch` makes it.
        name: of the model, for people.

    Returns:
        The findings, the loss at the end in nats a token, and the updates that were made.
    """
    model = make()
    config = TrainingConfig(updates=_UPDATES, batch_tokens=batch.cells, smoothing=0.0)
    optimizer, rate = build_optimizer(model, config), min(0.64 / model.config.width, 0.01)
    first = loss = math.inf
    for step in range(1, _UPDATES + 1):
        try:
            sums = train_step(model, optimizer, [batch], config, step, rate * min(step / 10, 1.0))
        except MultiheadError as error:
            return [make_finding("does-not-learn", name, 1, 1, f"update {step} cannot be made: {error}")], loss, step
        loss = sums.nll / sums.tokens
        if step == 1:
            first = loss
            if dead := _dead(model):
                what = f"{len(dead)} parameters have no gradient: {', '.join(dead[:4])}{', ...' * (len(dead) > 4)}"
                return [make_finding("no-gradient", name, len(dead), len(list(model.parameters())), what)], loss, step
        if loss < _BY_HEART:
            return [], loss, step
    code = "learns-slowly" if loss < _FALLEN * first else "does-not-learn"
    what = f"{len(batch)} pairs cost {first:.2f} nats a token, and {loss:.2f} after {_UPDATES} updates on them"
    return [make_finding(code, name, 1, 1, what)], loss, _UPDATES


def _dead(model: Network) -> list[str]:
    """Parameters that are to be learned, and got nothing to learn from."""
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not bool(parameter.grad.any()))
    ]


_SIDES = "source", "target"
_PER_WORD = 3.0
"""Tokens of a word, beyond which the subwords were hardly learned from such text."""
_PER_CHARACTER = 1.5
"""The same of a character, where words are not separated."""
_WORDS_OF = 15
"""Characters for which there is a word at least, where words are separated."""
_FEWEST = 100
"""Words or characters, of which that is not said."""
_SHOWN = 5


def check_tokens(
    tokenizers: Sequence[Tokenizer], characters: Characters, sample: Sample, name: str
) -> tuple[list[Finding], dict[str, float]]:
    """What the subwords do to a corpus.

    Args:
        tokenizers: of source and target.
        characters: all of the corpus.
        sample: pairs of it.
        name: of the corpus, for people.

    Returns:
        The findings; and for each side ``source_tokens_per_word`` and the share ``source_bytes_share`` of characters
        that are spelt in bytes.
    """
    every: list[Finding] = []
    figures: dict[str, float] = {}
    for side, tokenizer in enumerate(tokenizers):
        where, side_name = f"{_SIDES[side]} of {name}", _SIDES[side]
        spelt, share = _bytes(tokenizer, characters, side, where)
        ids = tokenizer.encode_batch(sample.side(side))
        every += [*spelt, *_round_trip(tokenizer, sample, side, ids, where), *_sizes(sample.side(side), ids, where)]
        words = sum(len(text.split()) for text in sample.side(side))
        figures[f"{side_name}_tokens_per_word"] = sum(map(len, ids)) / max(words, 1)
        figures[f"{side_name}_bytes_share"] = share
    return every, figures


def _bytes(tokenizer: Tokenizer, characters: Characters, side: int, where: str) -> tuple[list[Finding], float]:
    entries = {entry for entry in tokenizer.parts.vocabulary[FIRST_CHARACTER:] if len(entry) == 1} - {MARK} | {" "}
    counts = characters.counts[side]
    there = np.flatnonzero(counts)
    broken = [code for code in there.tolist() if chr(code) not in entries]
    total, count = int(counts.sum()), int(counts[broken].sum())
    if not broken:
        return [], 0.0
    broken.sort(key=lambda code: -counts[code])
    first = characters.first[side]
    shown = [f"{_named(code)} ({_times(int(counts[code]))}, first on line {first[code]})" for code in broken[:_SHOWN]]
    more = f", and {len(broken) - _SHOWN:,} more" if len(broken) > _SHOWN else ""
    what = f"{count:,} of {total:,} characters are spelt in bytes: {', '.join(shown)}{more}"
    lines = sorted({first[code] for code in broken[:MAX_LINES]})
    return [make_finding("byte-characters", where, count, total, what, lines)], count / total


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _named(code: int) -> str:
    character = chr(code)
    return f"U+{code:04X}" + (f" {character}" if character.isprintable() else "")


def _round_trip(tokenizer: Tokenizer, sample: Sample, side: int, ids: list[list[int]], where: str) -> list[Finding]:
    texts = sample.side(side)
    wrong = [place for place, text in enumerate(tokenizer.decode_batch(ids)) if text != texts[place]]
    if not wrong:
        return []
    what = f"{len(wrong):,} of {len(texts):,} lines do not come back from their tokens"
    lines = [sample.lines[place] for place in wrong[:MAX_LINES]]
    return [make_finding("round-trip", where, len(wrong), len(texts), what, lines)]


def _sizes(texts: list[str], ids: list[list[int]], where: str) -> list[Finding]:
    words, letters = sum(len(text.split()) for text in texts), sum(map(len, texts))
    tokens = sum(map(len, ids))
    separated = words * _WORDS_OF > letters
    of, unit, limit = (words, "word", _PER_WORD) if separated else (letters, "character", _PER_CHARACTER)
    if of < _FEWEST or tokens <= limit * of:
        return []
    what = f"{tokens / of:.1f} tokens a {unit}; text like that of the subwords has less than {limit:g}"
    return [make_finding("many-tokens", where, tokens, of, what)]
