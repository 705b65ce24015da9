"""What a search must produce: symbols, lengths, restrictions, n best.

`decoding.search.Search` says how to search; a `SearchTask` has what only the running program knows. Every search takes
both. The compiled search takes them as Python's numbers, so nothing here imports torch until a tensor is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from multihead.decoding.search import LengthPenalty, Search, Symbols, check_forced, divisor
from multihead.errors import ConfigurationError, ShapeError
from multihead.platforms import widest_float

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float, Int
    from torch import Tensor

    from multihead.decoding.ranking import Stop
    from multihead.decoding.recording import Recorder
    from multihead.decoding.restrictions import Restriction

    Limits: TypeAlias = int | Sequence[int] | Int[Tensor, " batch"]
    """A length for all sentences, or one for each."""


@dataclass(frozen=True)
class SearchTask:
    """What a search must produce for a batch of sentences.

    Args:
        symbols: begin, end, and the symbols that are never chosen.
        max_lengths: maximum number of symbols per hypothesis, including the end symbol: one number, or one per
            sentence. By default `Search.limit` of each source's length.
        min_lengths: minimum number of symbols before the end symbol, which is forbidden until then. By default
            `Search.least` of each source's length; 0 where ``max_lengths`` is given.
        n_best: number of hypotheses per sentence, at most the beam.
        restrictions: what no hypothesis may contain, and what each must begin with; after `Search.no_repeat`.
        penalty: a length penalty other than the ones that `Search.length_penalty` names.
        stop: a stopping rule other than the ones that `Search.stopping` names.
        recorder: records what a beam search does; None disables recording.
        scores: False if only the symbols are needed. The compiled greedy search then leaves out the sum of exponentials
            at each step, chooses the same symbols, and returns NaN for log-probabilities and scores.
    """

    symbols: Symbols
    max_lengths: Limits | None = None
    min_lengths: Limits | None = None
    n_best: int = 1
    restrictions: Sequence[Restriction] = ()
    penalty: LengthPenalty | None = None
    stop: Stop | None = None
    recorder: Recorder | None = None
    scores: bool = True

    def check_n_best(self, search: Search) -> None:
        """Raise ConfigurationError if ``n_best`` exceeds the beam."""
        if not 1 <= self.n_best <= search.beam:
            raise ConfigurationError(
                f"n_best must be from 1 to the beam of {search.beam}, got {self.n_best}: widen the beam or ask for "
                "fewer"
            )

    def effective_restrictions(self, search: Search) -> list[Restriction]:
        """All restrictions of a search, in the order in which they apply."""
        if not (search.no_repeat or self.symbols.forced):
            return list(self.restrictions)
        from multihead.decoding.restrictions import Forced, NoRepeat

        forced = [Forced(self.symbols.forced)] if self.symbols.forced else []
        return [*([NoRepeat(search.no_repeat)] if search.no_repeat else []), *self.restrictions, *forced]

    def lengths(
        self, search: Search, sources: Sequence[int] | Int[Tensor, " batch"], device: torch.device | None = None
    ) -> tuple[Int[Tensor, " batch"], Int[Tensor, " batch"]]:
        """As `length_lists`, as tensors on a device."""
        import torch

        limits, minimums = self.length_lists(search, sources)
        most, least = (torch.tensor(row, dtype=torch.long, device=device) for row in (limits, minimums))
        return most, least

    def length_lists(
        self, search: Search, sources: Sequence[int] | Int[Tensor, " batch"]
    ) -> tuple[list[int], list[int]]:
        """The maximum and the minimum length of each sentence.

        Args:
            search: decides where the task has no lengths of its own.
            sources: number of symbols of each source.

        Raises:
            ShapeError: not one length per sentence.
            ConfigurationError: lengths outside their range, or without room for the end symbol after the minimum.
        """
        sizes = list(sources) if isinstance(sources, Sequence) else sources.tolist()
        most, least = self.max_lengths, self.min_lengths
        if least is None:
            least = [search.least(size) for size in sizes] if most is None else 0
        limits = _limits([search.limit(size) for size in sizes] if most is None else most, len(sizes))
        minimums = _minimums(least, limits)
        check_forced(self.symbols.forced, limits)
        if self.restrictions:  # those of the search and of the symbols need no further check, so none needs torch
            import torch

            for restriction in self.restrictions:
                restriction.check(torch.tensor(limits, dtype=torch.long), self.symbols)
        return limits, minimums

    def divisors(self, search: Search, longest: int, device: torch.device | None = None) -> Float[Tensor, " lengths"]:
        """As `divisor_list`, in the device's widest type."""
        import torch

        row = self.divisor_list(search, longest)
        return torch.tensor(row, dtype=torch.float64 if device is None else widest_float(device), device=device)

    def divisor_list(self, search: Search, longest: int) -> list[float]:
        """penalty(n, alpha) for n = 0 ... longest; 1 for n = 0.

        Raises:
            ConfigurationError: alpha is too large for such lengths.
        """
        penalty = self.penalty or search.penalty
        return [1.0, *(divisor(penalty, length, search.alpha) for length in range(1, longest + 1))]


def _limits(limits: Limits, batch: int) -> list[int]:
    """The maximum length of each sentence.

    Raises:
        ShapeError: neither one number nor one per sentence.
        ConfigurationError: a limit below 1.
    """
    found = _of_each_sentence("length limits", limits, batch)
    if found and min(found) < 1:
        raise ConfigurationError(f"a length limit counts the end symbol and must be at least 1, got {min(found)}")
    return found


def _minimums(minimums: Limits, limits: Sequence[int]) -> list[int]:
    """The minimum length of each sentence, excluding the end symbol.

    Raises:
        ShapeError: neither one number nor one per sentence.
        ConfigurationError: one is negative, or leaves no room for the end symbol within the sentence's limit.
    """
    found = _of_each_sentence("minimum lengths", minimums, len(limits))
    if found and min(found) < 0:
        raise ConfigurationError(f"a minimum length cannot be negative, got {min(found)}")
    for least, limit in zip(found, limits, strict=True):
        if least >= limit:
            raise ConfigurationError(
                f"a minimum of {least} symbols and the end symbol do not fit into a length limit of {limit}: lower the "
                f"minimum to {limit - 1}, or raise the limit to {least + 1}"
            )
    return found


def _of_each_sentence(name: str, lengths: Limits, batch: int) -> list[int]:
    if isinstance(lengths, int):
        return [lengths] * batch
    if len(lengths) != batch:
        raise ShapeError(f"got {name} of shape ({len(lengths)},) for {batch} sentences: give one number, or one each")
    given = list(lengths) if isinstance(lengths, Sequence) else lengths.tolist()
    return [int(length) for length in given]
