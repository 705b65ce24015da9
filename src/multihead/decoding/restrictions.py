"""Restrictions: repeated n-grams, forbidden words, prefixes, forced ones.

A restriction is a function of what each row has written so far, so it has no state to update when a search selects,
repeats or drops rows. Every search takes a sequence of restrictions and applies them in order, after the forbidden
symbols and the minimum length. The probabilities of the remaining symbols are not renormalized.

If restrictions leave no symbol, the hypothesis is dead; if all hypotheses of a sentence are dead, the search raises an
error. Sampling cannot backtrack, so it raises the error at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.decoding.search import Symbols, check_forced
from multihead.errors import ConfigurationError, ShapeError


@dataclass(frozen=True)
class Rows:
    """The input of a restriction."""

    written: Int[Tensor, "rows time"]
    """y_1 ... y_t of each row, without begin."""
    sentences: Int[Tensor, " rows"]
    """The place of each row's sentence in the original batch."""
    log_probabilities: Float[Tensor, "rows vocab"]
    """As the model computed them."""


@runtime_checkable
class Restriction(Protocol):
    """Removes candidates."""

    def check(self, limits: Int[Tensor, " batch"], symbols: Symbols) -> None:
        """Raise ShapeError or ConfigurationError before the first step if the restriction does not fit the batch."""

    def restrict(self, permitted: Float[Tensor, "rows vocab"], rows: Rows) -> Float[Tensor, "rows vocab"]:
        """The permitted log-probabilities with -inf for what is excluded; the input is not changed."""


def restrict(
    permitted: Float[Tensor, "rows vocab"], rows: Rows, restrictions: Sequence[Restriction]
) -> Float[Tensor, "rows vocab"]:
    """Apply all restrictions, one after the other."""
    for restriction in restrictions:
        permitted = restriction.restrict(permitted, rows)
    return permitted


@dataclass(frozen=True)
class NoRepeat:
    """No n-gram twice: y_t is not what followed an earlier occurrence of y_{t-n+1} ... y_{t-1} (Paulus, Xiong and
    Socher 2018, "A deep reinforced model for abstractive summarization", section 2.5, with n = 3).

    Args:
        size: n, at least 1; with 1 no symbol occurs twice.

    Raises:
        ConfigurationError: a size below 1.
    """

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigurationError(f"an n-gram has at least 1 symbol, got {self.size}")

    def check(self, limits: Int[Tensor, " batch"], symbols: Symbols) -> None:
        """Fits every batch."""

    def restrict(self, permitted: Float[Tensor, "rows vocab"], rows: Rows) -> Float[Tensor, "rows vocab"]:
        """Exclude symbols that would complete an n-gram again."""
        time = rows.written.shape[1]
        if time < self.size:
            return permitted
        grams = rows.written.unfold(1, self.size, 1)
        last = rows.written[:, time - self.size + 1 :]
        row, place = (grams[:, :, :-1] == last[:, None]).all(dim=2).nonzero(as_tuple=True)
        return permitted.index_put((row, grams[row, place, -1]), permitted.new_tensor(-torch.inf))


class Without:
    """No hypothesis contains any of these sequences of symbols.

    A word has one sequence for each way in which the tokenizer can write it; the caller must give all of them.

    Args:
        sequences: non-empty sequences of symbols. The end symbol may stand last: no translation ends like that.

    Raises:
        ConfigurationError: an empty sequence.
    """

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        if not all(sequences):
            raise ConfigurationError("a forbidden sequence has no symbols: leave it out")
        by_length: dict[int, list[Sequence[int]]] = {}
        for sequence in sequences:
            by_length.setdefault(len(sequence), []).append(sequence)
        self._tables = [torch.tensor(same) for same in by_length.values()]

    def check(self, limits: Int[Tensor, " batch"], symbols: Symbols) -> None:
        """Fits every batch."""

    def restrict(self, permitted: Float[Tensor, "rows vocab"], rows: Rows) -> Float[Tensor, "rows vocab"]:
        """Exclude symbols that would complete one of the sequences."""
        time = rows.written.shape[1]
        for table in self._tables:
            before = table.shape[1] - 1
            if before > time:
                continue
            table = table.to(permitted.device)
            last = rows.written[:, time - before :]
            row, which = (last[:, None] == table[None, :, :before]).all(dim=2).nonzero(as_tuple=True)
            permitted = permitted.index_put((row, table[which, before]), permitted.new_tensor(-torch.inf))
        return permitted


@dataclass(frozen=True)
class Prefix:
    """Each hypothesis begins with the symbols given for its sentence, which count towards its probability and length.

    It must be the last restriction but `Forced`: it permits a symbol of the prefix even if earlier ones exclude it. A
    symbol with probability 0 remains impossible.

    Args:
        prefixes: one per sentence of the batch, possibly empty, without begin and end.
    """

    prefixes: Sequence[Sequence[int]]
    _table: Int[Tensor, "batch longest"] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        longest = max(map(len, self.prefixes), default=0)
        table = torch.full((len(self.prefixes), longest), -1)
        for row, prefix in zip(table, self.prefixes, strict=True):
            row[: len(prefix)] = torch.tensor(prefix, dtype=torch.long)
        object.__setattr__(self, "_table", table)

    def check(self, limits: Int[Tensor, " batch"], symbols: Symbols) -> None:
        """Check the prefixes.

        Raises:
            ShapeError: not one prefix per sentence.
            ConfigurationError: a prefix contains begin or end, or leaves no room for the end symbol.
        """
        if len(limits) != len(self.prefixes):
            raise ShapeError(f"got {len(self.prefixes)} prefixes for {len(limits)} sentences: give one each, or []")
        for number, (prefix, limit) in enumerate(zip(self.prefixes, limits.tolist(), strict=True), 1):
            if len(prefix) >= limit:
                raise ConfigurationError(
                    f"sentence {number}: a prefix of {len(prefix)} symbols and the end symbol do not fit into a length "
                    f"limit of {limit}: raise the limit to {len(prefix) + 1}"
                )
            if symbols.begin in prefix or symbols.end in prefix or min(prefix, default=0) < 0:
                raise ConfigurationError(
                    f"sentence {number}: a prefix is written without begin and end, in ids counted from 0, got "
                    f"{list(prefix)}"
                )

    def restrict(self, permitted: Float[Tensor, "rows vocab"], rows: Rows) -> Float[Tensor, "rows vocab"]:
        """While the prefix is incomplete, permit its next symbol only."""
        time = rows.written.shape[1]
        if time >= self._table.shape[1]:
            return permitted
        wanted = self._table[:, time].to(permitted.device)[rows.sentences]
        row = (wanted >= 0).nonzero().squeeze(1)
        permitted = permitted.index_fill(0, row, -torch.inf)
        return permitted.index_put((row, wanted[row]), rows.log_probabilities[row, wanted[row]])


@dataclass(frozen=True)
class Forced:
    """Every hypothesis begins with the same symbols, at no cost: `Symbols.forced`.

    It must be the last restriction.

    Args:
        symbols: not empty.
    """

    symbols: tuple[int, ...]

    def check(self, limits: Int[Tensor, " batch"], symbols: Symbols) -> None:  # noqa: ARG002
        """Raise ConfigurationError if a length limit leaves no room for the end symbol."""
        check_forced(self.symbols, limits.tolist())

    def restrict(self, permitted: Float[Tensor, "rows vocab"], rows: Rows) -> Float[Tensor, "rows vocab"]:
        """While the symbols are incomplete, permit the next one only, with log-probability 0."""
        time = rows.written.shape[1]
        if time >= len(self.symbols):
            return permitted
        only = torch.full_like(permitted, -torch.inf)
        only[:, self.symbols[time]] = 0.0
        return only
