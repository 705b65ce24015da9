"""Alternatives to each word of a translation, found by changing one token.

A model chooses tokens, but people read words. For each word, the most probable single changes to its tokens are taken.
Each is continued greedily until a token ends with white space, or white space or the end follows; the resulting text is
an alternative word with its own probability. A change can be made

    at the start of the word     another word begins
    within the word              the word continues differently, or ends earlier
    right after the word         the word continues where the translation ended it: "dog" becomes "dogs"; not where its
                                 last token has the white space after it

In scripts without spaces a unit is a token, and so is its alternative. The decoder states of all changes branch off a
single pass through the translation and are batched, so the number of steps is about the number of its tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from heapq import nlargest
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.data.batching import collate_source
from multihead.judging.align import WordUnits, is_valid_utf8
from multihead.models.network import Network
from multihead.text.tokenizer import Tokenizer
from multihead.text.vocabulary import ends_word
from multihead.translating.forced import PairBatch

_MAX_TOKENS = 16
"""Maximum number of tokens added to a word; longer words are dropped."""
_ROWS = 256
"""Number of changes from which on they are continued together; each has its own decoder state."""
_CELLS = 1 << 15
"""The same for their source positions: a state holds keys and values of its source."""


class TopTokens(NamedTuple):
    """The most probable tokens at each position, in order."""

    values: Float[Tensor, "batch target candidates"]
    """Log-probabilities."""
    tokens: Int[Tensor, "batch target candidates"]


@dataclass(frozen=True, eq=False)
class ForcedPass:
    """Statistics of a teacher-forced pass, on the CPU; the last token of each target is the end symbol."""

    own: Float[Tensor, "batch target"]
    """log p(y_t | y_<t, x)."""
    breaking: Float[Tensor, "batch target"]
    """Log-probability that a word ends before position t."""
    ranks: Int[Tensor, "batch target"]
    """Rank of y_t; 1 is the most probable token."""
    likely: TopTokens
    """The most probable tokens that a search may choose."""
    beginning: TopTokens
    """The most probable of those that begin a word or end the sentence."""
    continuing: TopTokens
    """The most probable of all others."""


@dataclass
class _Change:
    """A changed word, possibly incomplete."""

    row: int
    """Index of the pair in the batch."""
    unit: int
    spaced: bool
    place: int
    """Position of the changed token."""
    token: int | None
    """The last token, at first the new one; None: any that begins with white space, so that the word ends here."""
    total: float
    """Log-probability of the word's tokens so far, including the last one."""
    raw: bytes
    """The bytes of these tokens."""


class AlternativeFinder:
    """Finds alternatives to the words of translations.

    Args:
        model: the translation model.
        tokenizer: the target tokenizer.
        breaks: for each vocabulary entry, whether it begins another word or ends the sentence.
        count: maximum number of alternatives per word.
    """

    def __init__(self, model: Network, tokenizer: Tokenizer, breaks: Bool[Tensor, " vocab"], count: int) -> None:
        self._model = model
        self._tokenizer, self._entries = tokenizer, tokenizer.entries
        self._breaks: list[bool] = breaks.tolist()
        self._device = model.output.weight.device
        self._forbidden = torch.tensor(tokenizer.forbidden_in_output, device=self._device)
        self._count = count

    @torch.no_grad()
    def find(self, batch: PairBatch, units: Sequence[WordUnits], forced: ForcedPass) -> list[list[dict[str, float]]]:
        """For each unit of each pair, other texts with their log-probabilities, most probable first.

        Args:
            batch: the pairs.
            units: the units of each target.
            forced: statistics of the teacher-forced pass over the pairs.
        """
        found: list[list[dict[str, float]]] = [[{} for _ in one.texts] for one in units]
        changes = [
            change
            for row, one in enumerate(units)
            for unit in range(len(one.texts))
            for change in nlargest(
                self._count, self._changes(batch.targets[row], one, row, unit, forced), key=lambda change: change.total
            )
        ]
        complete = [change for change in changes if self._is_complete(change)]
        incomplete = [change for change in changes if not self._is_complete(change)]
        for change in (*complete, *self._complete(batch, incomplete)):
            text = change.raw.decode(errors="replace").strip()
            texts = found[change.row][change.unit]
            if text and text != units[change.row].texts[change.unit]:
                texts[text] = max(change.total, texts.get(text, change.total))
        return [[dict(sorted(texts.items(), key=lambda item: -item[1])) for texts in row] for row in found]

    def _changes(
        self, target: Sequence[int], units: WordUnits, row: int, unit: int, forced: ForcedPass
    ) -> Iterator[_Change]:
        """Every single change to a token of the unit, or right after it."""
        span, spaced = units.span(unit), units.spaced[unit]
        # The first word of a line may begin without white space, and so does one whose predecessor ends with it.
        begins_with_space = self._breaks[target[span.start]]
        own: list[float] = forced.own[row].tolist()
        for place in range(span.start, span.stop + (spaced and not units.ended[unit])):
            before = b"".join(self._entries[token] for token in target[span.start : place])
            total = sum(own[span.start : place])
            if spaced and before.strip() and place < span.stop:
                yield _Change(row, unit, spaced, place, None, total + float(forced.breaking[row, place]), before)
            likely = forced.continuing
            if place == span.start:
                likely = forced.likely if not spaced else forced.beginning if begins_with_space else forced.continuing
            for value, token in zip(
                likely.values[row, place].tolist(), likely.tokens[row, place].tolist(), strict=True
            ):
                differs = place == len(target) or token != target[place]
                if differs and token != self._tokenizer.eos_id and value > -torch.inf:
                    raw = before + self._entries[token]
                    yield _Change(row, unit, spaced, place, token, total + value, raw)

    def _is_complete(self, change: _Change) -> bool:
        """Whether a change is a readable unit without further tokens."""
        if change.spaced:
            return change.token is None or ends_word(self._entries[change.token])
        return bool(change.raw.strip()) and is_valid_utf8(change.raw)

    def _complete(self, batch: PairBatch, changes: list[_Change]) -> Iterator[_Change]:
        """Complete changes to words, in decoder states that branch off a pass through the targets."""
        if not changes:
            return
        targets, _ = collate_source(batch.targets, self._tokenizer.pad_id, self._tokenizer.eos_id)
        tokens = torch.full((len(targets),), self._tokenizer.bos_id, device=self._device)
        state = self._model.start(batch.source, batch.lengths)
        waiting: list[_Change] = []
        states: list[Any] = []
        most = min(_ROWS, _CELLS // batch.source.size(1))
        for place in range(max(change.place for change in changes) + 1):
            _, state = self._model.step(tokens, state)
            tokens = targets[:, place].to(self._device)
            here = [change for change in changes if change.place == place]
            if here:
                waiting += here
                states.append(state.select(torch.tensor([change.row for change in here], device=self._device)))
            if waiting and len(waiting) >= most:
                yield from self._continue(waiting, states)
                waiting, states = [], []
        if waiting:
            yield from self._continue(waiting, states)

    def _continue(self, changes: list[_Change], states: list[Any]) -> Iterator[_Change]:
        """Continue greedily until the words end; changes that do not become a word are dropped."""
        while len(states) > 1:  # in pairs, so that none is copied once for each of the others
            states = [reduce(lambda one, other: one.join(other), states[n : n + 2]) for n in range(0, len(states), 2)]
        (state,) = states
        tokens = torch.tensor([change.token for change in changes], device=self._device)
        breaks = torch.tensor(self._breaks, device=self._device)
        for _ in range(_MAX_TOKENS):
            log_probabilities, state = self._model.step(tokens, state)
            ends = log_probabilities[:, breaks].logsumexp(1).tolist()
            values, tokens = log_probabilities.index_fill(1, self._forbidden, -torch.inf).max(1)
            kept: list[int] = []
            for row, (change, end, value, token) in enumerate(
                zip(changes, ends, values.tolist(), tokens.tolist(), strict=True)
            ):
                if change.spaced and self._breaks[token]:
                    change.total += end
                    yield change
                elif token != self._tokenizer.eos_id:
                    change.total += value
                    change.raw += self._entries[token]
                    change.token = token
                    if self._is_complete(change):
                        yield change
                    else:
                        kept.append(row)
            if not kept:
                return
            changes = [changes[row] for row in kept]
            rows = torch.tensor(kept, device=self._device)
            tokens, state = tokens[rows], state.select(rows)
