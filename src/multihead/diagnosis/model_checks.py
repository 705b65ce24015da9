"""The network and tokenizer checks of `multihead doctor`.

A sound network passes these checks on one small batch. They need only the interface `Network`, so a network of your own
can be checked like ours.

    causality       logits[:, :t] do not depend on target[:, t:]
    padding         the logits of a row depend neither on padding ids nor on the other rows of the batch
    same function   the training loss is that of the logits a search sees
    first loss      untrained weights have a loss of about ln V, a uniform guess among V entries
    learning        every parameter has a gradient, and a few pairs can be learned by heart

`check_tokens` checks on a sample of the text that decoding restores it, how many characters have no entry of their own
and become bytes (Kudo & Richardson 2018: nothing is lost, but a model must learn three or four tokens for one
character), and how many tokens a word has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from multihead.data.batching import Batch, collate
from multihead.data.store import Int64, ParallelStore
from multihead.diagnosis.corpus import MAX_LINES, Characters, Sample
from multihead.diagnosis.findings import Finding, make_finding
from multihead.errors import MultiheadError
from multihead.models.network import Network
from multihead.text.case_factors import lowered
from multihead.text.tokenizer import Tokenizer
from multihead.text.user_symbols import pattern_of
from multihead.text.vocabulary import MARK
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import build_optimizer
from multihead.training.step import train_step

ROWS, MAX_TOKENS = 6, 16
"""Size of the batch."""

_FIRST = 4
"""Random ids are at least this: smaller ones are special in most vocabularies."""
_BOUND = 1e-3
"""Largest effect of rounding, as a share of the largest logit."""
_FIRST_LOSS = 1.5
"""Largest deviation of the first loss from ln V, in nats."""
_BY_HEART = 0.1
"""Loss, in nats per token, below which a few pairs count as learned by heart."""
_FALLEN = 0.75
"""Share of the first loss above which nothing was learned at all."""
_UPDATES = 60


def small_batch(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], special_ids: dict[str, int]
) -> Batch:
    """A batch of distinct pairs, cut to 16 tokens per side, of different lengths if possible.

    Args:
        sources: ids without begin and end symbols; not empty.
        targets: likewise.
        special_ids: `Tokenizer.special_ids` of the target side.
    """
    pairs = {(tuple(s[:MAX_TOKENS]), tuple(t[:MAX_TOKENS])) for s, t in zip(sources, targets, strict=True)}
    ordered = sorted(pairs, key=lambda pair: (len(pair[1]), pair))
    step = max(len(ordered) // ROWS, 1)
    chosen = ordered[::-1][::step][:ROWS]
    store = ParallelStore.from_lists([list(s) for s, _ in chosen], [list(t) for _, t in chosen])
    return collate(store, np.arange(len(chosen)), **special_ids)


def random_pairs(source_vocab: int, target_vocab: int) -> tuple[list[list[int]], list[list[int]]]:
    """Random ids, for use without text; the same at each call."""
    draw = torch.Generator().manual_seed(0)

    def rows(size: int) -> list[list[int]]:
        lengths = range(3, 3 + 2 * ROWS, 2)
        return [torch.randint(min(_FIRST, size - 1), size, (n,), generator=draw).tolist() for n in lengths]

    return rows(source_vocab), rows(target_vocab)


def check_network(model: Network, batch: Batch, name: str) -> list[Finding]:
    """Check causality, padding and the loss of a network; restores its training mode.

    Args:
        model: a network with any weights.
        batch: a batch from `small_batch`, on the model's device.
        name: name of the model.
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
            every = [
                *_check_causality(model, batch, logits, bound, name),
                *_check_padding(model, batch, logits, bound, name),
            ]
        return every or _check_loss(model, batch, logits, name)
    finally:
        model.train(before)


def _logits(model: Network, batch: Batch) -> Float[Tensor, "batch target vocab"]:
    return model(batch.source, batch.source_lengths, batch.target_input).logits  # type: ignore[no-any-return]


def _replace_ids(model: Network, ids: Tensor, vocab: int) -> Tensor:
    """Replace every id by another one that is not padding."""
    first = min(_FIRST, vocab - 1)
    shifted = first + (ids - first + 1) % max(vocab - first, 1)
    return torch.where(shifted == model.config.padding_id, first, shifted)


def _check_causality(model: Network, batch: Batch, logits: Tensor, bound: float, name: str) -> list[Finding]:
    width = batch.target_input.shape[1]
    changed = []
    for place in sorted({1, width // 2, width - 1} & set(range(1, width))):
        target = batch.target_input.clone()
        target[:, place:] = _replace_ids(model, target[:, place:], model.config.target_vocab)
        other = model(batch.source, batch.source_lengths, target).logits
        change = (other[:, :place] - logits[:, :place]).abs().amax()
        if float(change) > bound:
            changed.append((place, float(change)))
    if not changed:
        return []
    place, change = changed[0]
    what = f"other target tokens from position {place + 1} on change logits before it by {change:.2g}"
    return [make_finding("sees-the-future", name, len(changed), min(3, width - 1), what)]


def _check_padding(model: Network, batch: Batch, logits: Tensor, bound: float, name: str) -> list[Finding]:
    real = torch.arange(batch.target_input.shape[1], device=logits.device) < batch.target_lengths[:, None]
    outside = torch.arange(batch.source.shape[1], device=logits.device) >= batch.source_lengths[:, None]
    filled = torch.where(outside, _replace_ids(model, batch.source, model.config.source_vocab), batch.source)
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


def _check_loss(model: Network, batch: Batch, logits: Tensor, name: str) -> list[Finding]:
    """Compare the loss with that of the logits; gradients are enabled because training may use other kernels."""
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
    """The loss in nats per token, without label smoothing and dropout."""
    model.eval()
    with torch.no_grad():
        return float(model.loss(*batch.inputs, smoothing=0.0).nll) / batch.target_tokens


def check_first_loss(model: Network, batch: Batch, name: str) -> tuple[list[Finding], float]:
    """Compare the loss of untrained weights with ln V, in nats per token; V is the size of the target vocabulary."""
    got, uniform = loss_per_token(model, batch), math.log(model.config.target_vocab)
    if abs(got - uniform) <= _FIRST_LOSS:
        return [], got
    what = f"the loss of untrained weights is {got:.2f} nats a token, a uniform guess has ln V = {uniform:.2f}"
    return [make_finding("initial-loss", name, 1, 1, what)], got


def check_trained(model: Network, batch: Batch, name: str) -> tuple[list[Finding], float]:
    """Compare the loss of a trained network on text like its own with ln V, in nats per token."""
    got, uniform = loss_per_token(model, batch), math.log(model.config.target_vocab)
    if got < uniform:
        return [], got
    what = f"its loss is {got:.2f} nats a token, no better than a uniform guess, ln V = {uniform:.2f}"
    return [make_finding("learned-nothing", name, 1, 1, what)], got


def check_learning(make: Callable[[], Network], batch: Batch, name: str) -> tuple[list[Finding], float, int]:
    """Check that every parameter has a gradient and that a few pairs can be learned by heart.

    Args:
        make: makes a new network without dropout on the device of the batch.
        batch: a batch from `small_batch`.
        name: name of the model.

    Returns:
        The findings, the final loss in nats per token, and the number of updates.
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
            if dead := _without_gradient(model):
                what = f"{len(dead)} parameters have no gradient: {', '.join(dead[:4])}{', ...' * (len(dead) > 4)}"
                return [make_finding("no-gradient", name, len(dead), len(list(model.parameters())), what)], loss, step
        if loss < _BY_HEART:
            return [], loss, step
    code = "learns-slowly" if loss < _FALLEN * first else "does-not-learn"
    what = f"{len(batch)} pairs cost {first:.2f} nats a token, and {loss:.2f} after {_UPDATES} updates on them"
    return [make_finding(code, name, 1, 1, what)], loss, _UPDATES


def _without_gradient(model: Network) -> list[str]:
    """Names of trainable parameters whose gradient is missing or zero."""
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not bool(parameter.grad.any()))
    ]


_SIDES = "source", "target"
_PER_WORD = 3.0
"""Tokens per word above which the tokenizer was hardly learned from such text."""
_PER_CHARACTER = 1.5
"""Tokens per character above which the same holds for text without spaces between words."""
_WORDS_OF = 15
"""Characters per word below which words count as separated by spaces."""
_MIN_UNITS = 100
"""Minimum number of words or characters for this check."""
_SHOWN = 5


def check_tokens(
    tokenizers: Sequence[Tokenizer], characters: Characters, sample: Sample, name: str
) -> tuple[list[Finding], dict[str, float]]:
    """Check what the tokenizers do to a corpus.

    Args:
        tokenizers: the source and target tokenizers.
        characters: character counts of the whole corpus.
        sample: a sample of its pairs.
        name: name of the corpus.

    Returns:
        The findings; and for each side the tokens per word (``source_tokens_per_word``) and the share of characters
        that become bytes (``source_bytes_share``).
    """
    every: list[Finding] = []
    figures: dict[str, float] = {}
    trained = tokenizers[0].training_pairs(sample.sources, sample.targets)
    for side, tokenizer in enumerate(tokenizers):
        side_name, texts = _SIDES[side], list(trained[side])
        where = f"{side_name} of {name}"
        counts = _outside_of_symbols(tokenizer, texts) if tokenizer.symbols else characters.counts[side]
        byte_findings, share = _check_bytes(tokenizer, counts, characters.first[side], where)
        ids = tokenizer.encode_batch(texts)
        every += [*byte_findings, *_check_round_trip(tokenizer, texts, sample.lines, ids, where)]
        every += _check_lengths(texts, ids, where)
        words = sum(len(text.split()) for text in texts)
        figures[f"{side_name}_tokens_per_word"] = sum(map(len, ids)) / max(words, 1)
        figures[f"{side_name}_bytes_share"] = share
    return every, figures


def _outside_of_symbols(tokenizer: Tokenizer, texts: Sequence[str]) -> Int64:
    """How often each character occurs in texts outside of user-defined symbols."""
    rest = "".join(map(partial(pattern_of(tokenizer.symbols).sub, ""), texts))
    return np.bincount(np.frombuffer(rest.encode("utf-32-le", "replace"), np.uint32))


def _check_bytes(
    tokenizer: Tokenizer, counts: Int64, first: Mapping[int, int], where: str
) -> tuple[list[Finding], float]:
    entries = {entry for entry in tokenizer.vocabulary if len(entry) == 1} - {MARK} | {" "}
    occurring = np.flatnonzero(counts)
    broken = [code for code in occurring.tolist() if chr(code) not in entries]
    total, count = int(counts.sum()), int(counts[broken].sum())
    if not broken:
        return [], 0.0
    broken.sort(key=lambda code: -counts[code])
    shown = [
        f"{_describe_character(code)} ({_times(int(counts[code]))}, first on line {first[code]})"
        for code in broken[:_SHOWN]
    ]
    more = f", and {len(broken) - _SHOWN:,} more" if len(broken) > _SHOWN else ""
    what = f"{count:,} of {total:,} characters are spelled as bytes: {', '.join(shown)}{more}"
    lines = sorted({first[code] for code in broken[:MAX_LINES]})
    return [make_finding("byte-characters", where, count, total, what, lines)], count / total


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _describe_character(code: int) -> str:
    character = chr(code)
    return f"U+{code:04X}" + (f" {character}" if character.isprintable() else "")


def _check_round_trip(
    tokenizer: Tokenizer, texts: Sequence[str], numbers: Sequence[int], ids: list[list[int]], where: str
) -> list[Finding]:
    found, given = tokenizer.decode_batch(ids), texts
    if tokenizer.factors > 1:  # which lose mixed case alone
        found, given = list(map(lowered, found)), list(map(lowered, texts))
    wrong = [place for place, text in enumerate(found) if text != given[place]]
    if not wrong:
        return []
    what = f"{len(wrong):,} of {len(texts):,} lines do not come back from their tokens"
    lines = [numbers[place] for place in wrong[:MAX_LINES]]
    return [make_finding("round-trip", where, len(wrong), len(texts), what, lines)]


def _check_lengths(texts: list[str], ids: list[list[int]], where: str) -> list[Finding]:
    words, letters = sum(len(text.split()) for text in texts), sum(map(len, texts))
    tokens = sum(map(len, ids))
    separated = words * _WORDS_OF > letters
    count, unit, limit = (words, "word", _PER_WORD) if separated else (letters, "character", _PER_CHARACTER)
    if count < _MIN_UNITS or tokens <= limit * count:
        return []
    what = f"{tokens / count:.1f} tokens a {unit}; text like that of the subwords has less than {limit:g}"
    return [make_finding("many-tokens", where, tokens, count, what)]
