"""Toy models for searches: a wrong row, a lost prefix or a violated contract changes their predictions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Self

import pytest
import torch

from multihead.configuration import build
from multihead.decoding.search import Search, Symbols
from multihead.decoding.task import SearchTask

PAD, BEGIN, END = 0, 1, 2
VOCABULARY = 6  # three words: 3, 4, 5
SYMBOLS = Symbols(begin=BEGIN, end=END, forbidden=(PAD, BEGIN))

Prefix = tuple[int, ...]
Table = Callable[[Prefix, Prefix], torch.Tensor]


@dataclass
class ToyState:
    """The source and the symbols so far of each row, visible to tests; ``log`` records what a search does."""

    sources: list[Prefix]
    prefixes: list[Prefix]
    log: list[tuple[str, int]]

    @property
    def rows(self) -> int:
        return len(self.sources)

    def select(self, rows: torch.Tensor) -> Self:
        picked: list[int] = rows.tolist()
        assert picked != list(range(self.rows)), "selected although nothing changes"
        assert self.log[-1][0] == "step", "selected twice in a step"
        self.log.append(("select", len(picked)))
        return type(self)([self.sources[i] for i in picked], [self.prefixes[i] for i in picked], self.log)

    def join(self, other: Self) -> Self:
        return type(self)(self.sources + other.sources, self.prefixes + other.prefixes, self.log)


@dataclass
class ToyStepper:
    """log p(next | source, prefix) from a function of the two; begin is part of the prefix."""

    table: Table
    log: list[tuple[str, int]] = field(default_factory=list)

    def start(self, source: torch.Tensor, lengths: torch.Tensor) -> ToyState:
        sources = [tuple(row[:n]) for row, n in zip(source.tolist(), lengths.tolist(), strict=True)]
        return ToyState(sources, [()] * len(sources), self.log)

    def step(self, tokens: torch.Tensor, state: ToyState) -> tuple[torch.Tensor, ToyState]:
        assert len(tokens) == state.rows
        self.log.append(("step", state.rows))
        prefixes = [(*prefix, token) for prefix, token in zip(state.prefixes, tokens.tolist(), strict=True)]
        rows = [self.table(source, prefix) for source, prefix in zip(state.sources, prefixes, strict=True)]
        return torch.stack(rows), ToyState(state.sources, prefixes, self.log)

    @property
    def steps(self) -> list[int]:
        """The rows of each step."""
        return [rows for event, rows in self.log if event == "step"]


@functools.cache
def random_table(seed: int, dtype: torch.dtype = torch.float64, levels: int = 0) -> Table:
    """Random but fixed log-probabilities that depend on the whole source and prefix; ``levels`` make ties."""

    @functools.cache
    def drawn(source: Prefix, prefix: Prefix) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash((seed, source, prefix)) & 0x7FFFFFFF)
        if levels:
            return -torch.randint(1, levels + 1, (VOCABULARY,), generator=generator).to(dtype)
        logits = 2 * torch.randn(VOCABULARY, generator=generator, dtype=torch.float64)
        return torch.log_softmax(logits, dim=0).to(dtype)

    def table(source: Prefix, prefix: Prefix) -> torch.Tensor:
        return drawn(source, prefix).clone()  # tests change the rows that they are given

    return table


def spelled(target: Callable[[Prefix], Prefix]) -> Table:
    """A model that is certain of one target per source."""

    def table(source: Prefix, prefix: Prefix) -> torch.Tensor:
        wanted = (*target(source), END)
        at = len(prefix) - 1
        scores = torch.full((VOCABULARY,), -9.0)
        scores[END] = -20.0
        scores[wanted[at] if at < len(wanted) else END] = -0.01
        return scores

    return table


def padded(sources: list[Prefix], extra: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources as a search takes them."""
    width = max(map(len, sources)) + extra
    rows = [[*source, *[PAD] * (width - len(source))] for source in sources]
    return torch.tensor(rows), torch.tensor([len(source) for source in sources])


def split(symbols: Symbols, **settings: Any) -> tuple[SearchTask, Search]:
    """The settings of a search as a task and a `Search`."""
    names = {field.name for field in fields(SearchTask)} & settings.keys()
    task = SearchTask(symbols, **{name: settings.pop(name) for name in names})
    return task, build(Search, settings, "the search")


class Toys:
    """Helpers of the tests in this folder."""

    symbols = SYMBOLS
    sources = ((3, 4), (5,), (4, 4, 3, 5), (3,), (5, 3))
    stepper = ToyStepper
    random = staticmethod(random_table)
    spelled = staticmethod(spelled)
    padded = staticmethod(padded)
    split = staticmethod(split)


@pytest.fixture(scope="session")
def toys() -> Toys:
    return Toys()
