"""Other words in the place of each word of a translation: one other token, and then the most probable ones.

A model chooses tokens; people read words. For each word the most probable single departures from its tokens are taken;
each is gone on with greedily until white space or the end follows, and what can then be read is another word with a
probability of its own. Departures are

    in front of the word      another word begins
    inside it                 it goes on otherwise, or is at its end already
    just behind it            it goes on where the translation ended it: "dog" becomes "dogs"

Where no white space separates words, a unit is a token, and so is what could have stood in its place. States branch off
one walk through the translation and are joined, so that it takes about as many steps as the translation has tokens, and
a few more.
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
from multihead.judging.score import PairBatch
from multihead.models.network import Network
from multihead.text.tokenizer import Tokenizer

_LONGEST = 16  # tokens that a word may go on for: what has not ended by then is no word
_ROWS = 256  # that go on together: each has a state of its own


class TopTokens(NamedTuple):
    """The most probable tokens in each place, in order."""

    values: Float[Tensor, "batch target candidates"]
    """log p."""
    tokens: Int[Tensor, "batch target candidates"]


@dataclass(frozen=True, eq=False)
class ForcedPass:
    """What a forced pass over some pairs gives, on the host; the end symbol is the last token of each."""

    own: Float[Tensor, "batch target"]
    """log p(y_t | y_<t, x)."""
    breaking: Float[Tensor, "batch target"]
    """The log-probability that in the place of this token a word is at its end."""
    ranks: Int[Tensor, "batch target"]
    """1: no token was more probable."""
    likely: TopTokens
    """Of all tokens that a search may choose."""
    beginning: TopTokens
    """Of those that begin a word, or end the sentence."""
    continuing: TopTokens
    """Of the others."""


@dataclass
class _Departure:
    """Another word on its way."""

    row: int
    """Which pair."""
    unit: int
    spaced: bool
    place: int
    """The position whose token is another one."""
    token: int | None
    """Which one; None: white space, whatever comes then."""
    total: float
    """log p of the word's tokens so far, the other one among them."""
    raw: bytes
    """What they spell."""


class AlternativeFinder:
    """Finds other words.

    Args:
        model: whose words.
        tokenizer: of the target side.
        breaks: for each entry whether it begins another word, or ends the sentence.
        count: how many at most of each word.
    """

    def __init__(self, model: Network, tokenizer: Tokenizer, breaks: Bool[Tensor, " vocab"], count: int) -> None:
        self._model = model
        self._entries = tokenizer.entries
        self._breaks: list[bool] = breaks.tolist()
        self._device = model.output.weight.device
        self._forbidden = torch.tensor(tokenizer.forbidden_in_output, device=self._device)
        self._count = count

    @torch.no_grad()
    def find(self, batch: PairBatch, units: Sequence[WordUnits], forced: ForcedPass) -> list[list[dict[str, float]]]:
        """For each unit of each pair other texts in its place and their log-probabilities, most probable first.

        Args:
            batch: the pairs.
            units: of each target.
            forced: what the model thought of their tokens.
        """
        found: list[list[dict[str, float]]] = [[{} for _ in one.texts] for one in units]
        departures = [
            departure
            for row, one in enumerate(units)
            for unit in range(len(one.texts))
            for departure in nlargest(
                self._count, self._departures(batch.targets[row], one, row, unit, forced), key=lambda d: d.total
            )
        ]
        ready = [departure for departure in departures if self._is_ready(departure)]
        going = [departure for departure in departures if not self._is_ready(departure)]
        for done in (*ready, *self._gone_on(batch, going)):
            text = done.raw.decode(errors="replace").strip()
            texts = found[done.row][done.unit]
            if text and text != units[done.row].texts[done.unit]:
                texts[text] = max(done.total, texts.get(text, done.total))
        return [[dict(sorted(texts.items(), key=lambda item: -item[1])) for texts in row] for row in found]

    def _departures(
        self, target: Sequence[int], units: WordUnits, row: int, unit: int, forced: ForcedPass
    ) -> Iterator[_Departure]:
        """Every single other token in the place of one of the unit's, or just behind it."""
        span, spaced = units.span(unit), units.spaced[unit]
        fresh = self._breaks[target[span.start]]  # begins with white space, as all do that are not the first of a line
        own: list[float] = forced.own[row].tolist()
        for place in range(span.start, span.stop + spaced):
            before = b"".join(self._entries[token] for token in target[span.start : place])
            total = sum(own[span.start : place])
            if spaced and before.strip() and place < span.stop:
                yield _Departure(row, unit, spaced, place, None, total + float(forced.breaking[row, place]), before)
            likely = forced.continuing
            if place == span.start:
                likely = forced.likely if not spaced else forced.beginning if fresh else forced.continuing
            for value, token in zip(
                likely.values[row, place].tolist(), likely.tokens[row, place].tolist(), strict=True
            ):
                other = place == len(target) or token != target[place]
                if other and token != Tokenizer.eos_id and value > -torch.inf:
                    spelt = before + self._entries[token]
                    yield _Departure(row, unit, spaced, place, token, total + value, spelt)

    def _is_ready(self, departure: _Departure) -> bool:
        """Whether it can be read as it is."""
        if departure.spaced:
            return departure.token is None
        return bool(departure.raw.strip()) and is_valid_utf8(departure.raw)

    def _gone_on(self, batch: PairBatch, departures: list[_Departure]) -> Iterator[_Departure]:
        """Those that become words, at their ends: branches of one walk through the targets."""
        if not departures:
            return
        targets, _ = collate_source(batch.targets, Tokenizer.pad_id, Tokenizer.eos_id)
        tokens = torch.full((len(targets),), Tokenizer.bos_id, device=self._device)
        state = self._model.start(batch.source, batch.lengths)
        waiting: list[_Departure] = []
        states: list[Any] = []
        for place in range(max(departure.place for departure in departures) + 1):
            _, state = self._model.step(tokens, state)
            tokens = targets[:, place].to(self._device)
            here = [departure for departure in departures if departure.place == place]
            if here:
                waiting += here
                states.append(state.select(torch.tensor([departure.row for departure in here], device=self._device)))
            if len(waiting) >= _ROWS:
                yield from self._ended(waiting, states)
                waiting, states = [], []
        if waiting:
            yield from self._ended(waiting, states)

    def _ended(self, departures: list[_Departure], states: list[Any]) -> Iterator[_Departure]:
        """Greedily on until white space or the end follows; those that never end, or end in nothing, are left out."""
        state = reduce(lambda one, other: one.join(other), states)
        tokens = torch.tensor([departure.token for departure in departures], device=self._device)
        breaks = torch.tensor(self._breaks, device=self._device)
        for _ in range(_LONGEST):
            log_probabilities, state = self._model.step(tokens, state)
            ends = log_probabilities[:, breaks].logsumexp(1).tolist()
            values, tokens = log_probabilities.index_fill(1, self._forbidden, -torch.inf).max(1)
            kept: list[int] = []
            for row, (departure, end, value, token) in enumerate(
                zip(departures, ends, values.tolist(), tokens.tolist(), strict=True)
            ):
                if departure.spaced and self._breaks[token]:
                    departure.total += end
                    yield departure
                elif token != Tokenizer.eos_id:
                    departure.total += value
                    departure.raw += self._entries[token]
                    if not departure.spaced and self._is_ready(departure):
                        yield departure
                    else:
                        kept.append(row)
            if not kept:
                return
            departures = [departures[row] for row in kept]
            rows = torch.tensor(kept, device=self._device)
            tokens, state = tokens[rows], state.select(rows)
