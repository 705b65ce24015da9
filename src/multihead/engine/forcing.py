"""Log-probabilities of given translations of a Transformer, compiled.

    log p(y_t | y_<t, x),    t = 1 ... |y|

`decoding.scoring.force` defines them, and the results are the same except for rounding. A source with several targets
is encoded once, and of targets that begin alike the beginning is computed once, as for the hypotheses of a beam. So the
candidates of a beam take a part of the time that they take one by one. A result does not depend, to the last bit, on
the other pairs or on the number of threads. `translating.choosing` scores candidates with this; `translating.forced`
is for every network.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, groupby, pairwise

from multihead.engine.search import WIDEST, Engine, threads_of
from multihead.engine.weights import integers
from multihead.errors import ConfigurationError, ShapeError, SurroundingsError

LONGEST = 1 << 20
"""Maximum number of ids of a side of a pair."""

_AT_A_TIME = 1 << 15  # ids of both sides between two returns to Python, which handles interrupts

Ids = Sequence[int]


def force(
    engine: Engine, sources: Sequence[Ids], targets: Sequence[Ids], begin: int, *, workers: int | None = None
) -> list[list[float]]:
    """The log-probability of each id of each target.

    Args:
        engine: the model; its shortlist is not used.
        sources: ids of each source, including the end symbol. Equal sources that follow one another share their states.
        targets: ids of each target, including the end symbol.
        begin: the symbol before each target.
        workers: threads; by default PyTorch's number.

    Raises:
        ShapeError: not one target for each source.
        ConfigurationError: an empty or too long side, ids outside the model's vocabularies, an impossible number of
            threads, or the model's embeddings were moved.
        SurroundingsError: not enough memory.
    """
    if len(sources) != len(targets):
        raise ShapeError(f"got {len(targets)} targets for {len(sources)} sources: give one each")
    config, threads = engine.config, threads_of(workers)
    for side, rows, vocabulary in (("source", sources, config.source_vocab), ("target", targets, config.target_vocab)):
        for row in rows:
            if not 1 <= len(row) <= LONGEST or min(row) < 0 or max(row) >= vocabulary:
                raise ConfigurationError(
                    f"expected 1 to {LONGEST:,} ids of a {side}, from 0 to {vocabulary - 1}, got {len(row)}: "
                    f"{list(row[:20])}"
                )
    if not 0 <= begin < config.target_vocab:
        raise ConfigurationError(f"expected a begin symbol from 0 to {config.target_vocab - 1}, got {begin}")
    engine.packed.check_tables()
    found: list[list[float]] = []
    for part in _parts(sources, targets):
        end = len(found) + sum(count for _, count in part)
        found += _force(engine, part, targets[len(found) : end], begin, threads)
    return found


def _parts(sources: Sequence[Ids], targets: Sequence[Ids]) -> Iterator[list[tuple[Ids, int]]]:
    """Sources with their numbers of targets, in parts that take a fraction of a second."""
    part: list[tuple[Ids, int]] = []
    size = place = 0
    for source, equal in groupby(sources):
        left = sum(1 for _ in equal)
        while left:
            count = min(left, WIDEST)  # as many as the hypotheses of a beam
            part.append((source, count))
            size += len(source) + sum(map(len, targets[place : place + count]))
            place, left = place + count, left - count
            if size >= _AT_A_TIME:
                yield part
                part, size = [], 0
    if part:
        yield part


def _force(
    engine: Engine, sources: list[tuple[Ids, int]], targets: Sequence[Ids], begin: int, workers: int
) -> list[list[float]]:
    """The results of the targets of sources, of which each has a number of targets."""
    counts = [count for _, count in sources]
    lengths, sizes = [len(source) for source, _ in sources], list(map(len, targets))
    positions = engine.packed.positions(max(*lengths, *sizes))
    one, other = engine.packed.addresses(*positions)
    values = (ctypes.c_float * sum(sizes))()
    words = integers(list(chain.from_iterable(source for source, _ in sources)))
    failed = engine.packed.library.decoding_force(
        engine.packed.handle, one, len(positions[0]), other, len(positions[1]), len(sources), words, integers(lengths),
        integers(counts), integers(list(chain.from_iterable(targets))), integers(sizes), begin, workers, values,
    )  # fmt: skip
    if failed:
        raise SurroundingsError("there is not enough memory to score these translations: score fewer at once")
    every = values[:]
    return [every[start:end] for start, end in pairwise(accumulate(sizes, initial=0))]
