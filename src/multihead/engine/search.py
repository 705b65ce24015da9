"""Greedy and beam search of a Transformer as compiled code.

Sentences join and leave the running batch at any step. Hypotheses of different sentences are at different positions,
and nothing is padded. The result for a sentence does not depend, to the last bit, on the other sentences, their order
or the number of threads. In float32 it equals that of `decoding.beam.beam_search` except for rounding: of two
hypotheses whose probabilities differ less than that, the other one may win. bfloat16 and int8 round the weights and
embeddings once, and the inputs of products; sums are float32, those of integers exact. The decoder's keys and values
are then stored in bfloat16.

engine/native/ computes a step (network.h, attention.h, products.h). `engine.ensemble` lets several models search as
one, `engine.drafting` lets a small model guess what a large one then checks, `engine.neighbours` mixes in what followed
similar states in a text, and `engine.sampling` draws translations instead of searching the best. Other searches,
restrictions, other networks and devices are left to `multihead.decoding`.
"""

from __future__ import annotations

import ctypes
import math
import operator
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from multihead.decoding.hypothesis import Hypothesis, make_hypothesis, refuse_nan
from multihead.decoding.search import MEANS, Mean, Search, patience_count
from multihead.decoding.task import SearchTask
from multihead.engine.stored import StoredTransformer
from multihead.engine.weights import PackedModel, Precision, Source, integers, require_handle
from multihead.errors import ConfigurationError, ShapeError, SurroundingsError
from multihead.kernels.native import thread_count

if TYPE_CHECKING:
    from multihead.decoding.shortlist import Shortlist
    from multihead.decoding.stepper import Stepper
    from multihead.engine.datastore import PackedDatastore
    from multihead.engine.graphs import Capture, Graphs
    from multihead.models.network import Network

WIDEST = 255
"""The widest beam: the number of a hypothesis is a byte."""

_ROWS, MANY_ROWS = 64, 192
"""Maximum number of hypotheses in the batch of a thread, of a small and of a large network."""

_LARGE = 8_000_000
"""Decoder weights from which on they do not stay in a core's cache: more rows share each reading of them."""

MOST_WORKERS = 1024
"""The largest number of threads of a search."""

LONGEST = 1 << 30
"""The highest length limit of a translation."""

SLICE = 0.3
"""Seconds of compiled code between two returns to Python, which reports progress and handles interrupts."""

_MOST_SECONDS = 1e6

_STOPPING = ("exact", "ahead", "patience")
"""By number, as ``decoding_search`` takes them."""


class Together(NamedTuple):
    """The models of a search."""

    engines: Sequence[Engine]
    shares: Sequence[float]
    """A weight of each; their sum is 1."""
    mean: Mean
    """What is averaged if there are several."""
    draft: Draft | None = None
    """The model that guesses."""
    neighbours: Neighbours | None = None
    """The text that the first model remembers (`engine.neighbours`)."""

    @property
    def all(self) -> list[Engine]:
        """The models, and the draft."""
        return [*self.engines, *([] if self.draft is None else [self.draft.engine])]


class Draft(NamedTuple):
    """A model that guesses symbols, which those of the search then check."""

    engine: Engine
    most: int
    """Guesses in a row."""
    least: float
    """Probability of all guesses in a row, by the draft, from which on one more is made."""


class Neighbours(NamedTuple):
    """A datastore, and what is done with it."""

    datastore: PackedDatastore
    nearest: int
    """How many entries of a state."""
    share: float
    """Their part of the probabilities, above 0 and below 1."""
    temperature: float
    """Of the distances, above 0."""
    probes: int = 0
    """Cells that are looked into; 0 for all."""


class CompiledSearch(ABC):
    """The compiled search of one model, an `Engine`, or of several as one (`engine.ensemble`)."""

    @property
    @abstractmethod
    def together(self) -> Together:
        """The models that search together."""

    @property
    def undrafted(self) -> CompiledSearch:
        """The same models without a draft."""
        return self

    @property
    def rows(self) -> int:
        """Maximum number of hypotheses in the batch of a thread."""
        return max(engine.own_rows for engine in self.together.engines)

    @property
    def current(self) -> bool:
        """Whether every model still has the weights that were copied."""
        return all(engine.version == version_of(engine.model) for engine in self.together.all)

    def search(
        self,
        sources: Sequence[Sequence[int]],
        task: SearchTask,
        search: Search | None = None,
        *,
        workers: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Hypothesis]]:
        """The n best hypotheses of each sentence, as `decoding.beam.beam_search` finds them.

        Args:
            sources: ids of each sentence, including the end symbol, without padding.
            task, search: as `decoding.beam.beam_search` has them; see `open` for what is not compiled. With a beam of 1
                and exact stopping it is greedy search.
            workers: threads, each with a batch of its own; by default PyTorch's number.
            progress: called with the number of newly finished sentences.

        Raises:
            ShapeError, ConfigurationError: as `decoding.beam.beam_search` and `open`.
            MultiheadError: as `decoding.beam.beam_search`.
        """
        search = search or Search()
        limits, minimums = task.length_lists(search, [len(source) for source in sources])
        found: dict[int, list[Hypothesis]] = {}
        order = sorted(range(len(sources)), key=lambda number: -len(sources[number]))
        with self.open(task, search, max(limits, default=1), workers) as running:
            rows, most = [sources[number] for number in order], [limits[number] for number in order]
            running.add_all(order, rows, most, [minimums[number] for number in order])
            while running.left:
                for number, hypotheses in running.run(SLICE):
                    found[number] = hypotheses
                    if progress is not None:
                        progress(1)
        return [found[number] for number in range(len(sources))]

    def open(self, task: SearchTask, search: Search, longest: int, workers: int | None = None) -> RunningSearch:
        """A search to which sentences can be added while it runs.

        Args:
            task: its symbols, ``n_best`` and penalty; without restrictions, stopping rule and recorder. Each sentence
                is added with its lengths.
            search: without groups, coverage and ``no_repeat``.
            longest: the highest length limit of a sentence.
            workers: threads; by default PyTorch's number. In a child that os.fork() made there is one.

        Raises:
            ConfigurationError: something that is not compiled; ``n_best`` exceeds the beam; an impossible number of
                threads or longest length; the model's embeddings were moved.
            SurroundingsError: not enough memory.
        """
        return RunningSearch(self, task, search, longest, self.check(task, search, longest, workers))

    def check(self, task: SearchTask, search: Search, longest: int, workers: int | None) -> int:
        """The number of threads of a search; arguments and errors as those of `open`."""
        task.check_n_best(search)
        threads = threads_of(workers)
        if longest < 1 or longest > LONGEST:
            raise ConfigurationError(f"a length limit is from 1 to {LONGEST}, got {longest}")
        others = search.no_repeat or task.restrictions or task.stop is not None or task.recorder is not None
        if search.beam > WIDEST or search.groups > 1 or search.coverage or others:
            raise ConfigurationError(
                f"the compiled search has beams up to {WIDEST}, one group, no restrictions, coverage or recorder, and "
                f"stops by {', '.join(_STOPPING)}; use decoding.beam"
            )
        for engine in self.together.all:
            engine.packed.check_tables()
        return threads


class Engine(CompiledSearch):
    """A Transformer for the compiled search. It has a prepacked copy of the weights at the time of its construction.

    Args:
        model: the model; or its weights, which need no PyTorch.
        precision: of the matrix products.
        shortlist: restricts translations to its symbols for their source, as `decoding.shortlist.Shortlisted` does.

    Raises:
        ConfigurationError: the model is not supported, or the library cannot be built here.
        SurroundingsError: not enough memory for the copy.
    """

    def __init__(
        self,
        model: Network | StoredTransformer,
        precision: Precision = "float32",
        shortlist: Shortlist | None = None,
    ) -> None:
        reason = why_not(model)
        if reason is not None:
            raise ConfigurationError(f"the compiled search is not available: {reason}; use decoding.beam")
        self.model: Any = model
        self.precision, self.shortlist = precision, shortlist
        self.version, source = version_of(model), _source_of(model)
        self.packed, self.config = PackedModel(source, precision, shortlist), source.config
        self.own_rows = MANY_ROWS if self.packed.decoder_size >= _LARGE else _ROWS

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is built from the copied model."""
        return Engine, (self.model, self.precision, self.shortlist)

    @property
    def together(self) -> Together:
        """Itself alone."""
        return Together((self,), (1.0,), "probabilities")


class RunningSearch:
    """A search to which sentences are added, and which returns finished ones while it runs."""

    def __init__(self, compiled: CompiledSearch, task: SearchTask, search: Search, longest: int, workers: int) -> None:
        self._engines, shares, mean, self._draft, self._neighbours = compiled.together
        engine, self._symbols, self._longest = self._engines[0], task.symbols, longest
        self._library = library = engine.packed.library
        self.left = 0
        """Number of unfinished sentences."""
        self.beam = search.beam
        """Hypotheses of a sentence."""
        self._taken: deque[tuple[int, list[Hypothesis], int]] = deque()  # finished: number, hypotheses, fault
        self._process = os.getpid()
        self._lock = threading.RLock()  # the library holds a search in one thread at a time
        self._vocab = engine.config.source_vocab
        divisors = np.array(task.divisor_list(search, longest))  # [longest + 1], float64
        begin, end = task.symbols.begin, task.symbols.end
        target = engine.config.target_vocab
        forced = task.symbols.forced
        if engine.shortlist is not None:
            engine.shortlist.check_end(end)
        if max(begin, end, *forced) >= target:
            raise ConfigurationError(f"{task.symbols} are not of a vocabulary of {target} entries")
        forbidden = [symbol for symbol in task.symbols.forbidden if symbol < target]
        # A beam of 1 stops at its first end, so that it is greedy search.
        first_end = search.stopping == "exact" and search.beam == 1
        stopping, patience = ("patience", 1.0) if first_end else (search.stopping, search.patience)
        greedy = search.beam == 1 and stopping == "patience" and patience <= 1
        self._scored = task.scores or not greedy
        numbers = search.beam, task.n_best, _STOPPING.index(stopping), begin, end, workers, compiled.rows
        handles = [(one.packed.handle, one.packed.shortlist_handle) for one in self._engines]
        opened = library.decoding_search(
            *((ctypes.c_void_p * len(handles))(*some) for some in zip(*handles, strict=True)),
            (ctypes.c_double * len(shares))(*shares),
            integers([len(handles), *numbers, MEANS.index(mean), self._scored]),
            (patience_count(patience, search.beam) - 0.5) / search.beam,  # a factor without a rounded product
            integers(forbidden), len(forbidden), integers(forced), len(forced),
            divisors.ctypes.data, longest + 1,
        )  # fmt: skip
        self._search: int | None = require_handle(opened, "this search: use fewer threads or a lower length limit")
        self._reach = 0
        self._set_positions(longest)
        if self._neighbours is not None:
            self._set_neighbours(self._neighbours)
        if self._draft is not None:
            self._set_draft(self._draft, longest)

    def _set_positions(self, longest: int) -> None:
        """Pass the position vectors to the library, and keep them alive as long as the search."""
        self._positions, self._reach = [engine.packed.positions(longest) for engine in self._engines], longest
        for number, (engine, (one, other)) in enumerate(zip(self._engines, self._positions, strict=True)):
            addresses = engine.packed.addresses(one, other)
            if self._library.decoding_positions(self._search, number, addresses[0], len(one), addresses[1], len(other)):
                raise ShapeError(f"expected position vectors, got {list(one.shape)} and {list(other.shape)}")

    def _set_neighbours(self, neighbours: Neighbours) -> None:
        """Pass a datastore to the library."""
        store, nearest, share, temperature, probes = neighbours
        if self._library.decoding_neighbours(self._search, store.handle, nearest, probes, share, temperature):
            raise ConfigurationError(
                "this datastore does not fit the models: it is of another width or vocabulary, empty, or beside a "
                "shortlist or a draft"
            )

    def _set_draft(self, draft: Draft, longest: int) -> None:
        """Pass a draft to the library. Sentences beyond its positions share its last one: it guesses worse there."""
        packed = draft.engine.packed
        self._drafted = one, other = packed.positions(longest)
        source, target = packed.addresses(one, other)
        given = source, len(one), target, len(other)
        if self._library.decoding_draft(self._search, packed.handle, draft.most, draft.least, *given):
            raise SurroundingsError("there is not enough memory for a draft: translate without one")

    def __enter__(self) -> RunningSearch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._search is not None:
                self._library.decoding_search_free(self._search)
                self._search = None

    def add(self, number: int, source: Sequence[int], limit: int, minimum: int = 0) -> None:
        """Append a sentence to the queue; arguments and errors as those of `add_all`."""
        self.add_all([number], [source], [limit], [minimum])

    def add_all(
        self,
        numbers: Sequence[int],
        sources: Sequence[Sequence[int]],
        limits: Sequence[int],
        minimums: Sequence[int],
    ) -> None:
        """Append sentences to the queue.

        Args:
            numbers: identify their hypotheses in the results of `run`.
            sources: ids of each, including the end symbol.
            limits: maximum number of symbols of each translation, including the end symbol.
            minimums: minimum number of symbols before the end symbol.

        Raises:
            ConfigurationError: no ids, ids outside the model's vocabulary, an impossible limit or one above the
                longest. No sentence is appended.
        """
        self._append(self._library.decoding_add_all, numbers, sources, limits, minimums)

    def _append(
        self,
        append: Callable[..., int],
        numbers: Sequence[int],
        sources: Sequence[Sequence[int]],
        limits: Sequence[int],
        minimums: Sequence[int],
        *more: Any,
    ) -> None:
        """As `add_all`, by a function of the library, with what else it takes."""
        lengths = list(map(len, sources))
        words = list(map(operator.index, chain.from_iterable(sources)))
        if not all(lengths) or min(words, default=0) < 0 or max(words, default=0) >= self._vocab:
            wrong = next(one for one in sources if not one or min(one) < 0 or max(one) >= self._vocab)
            raise ConfigurationError(f"expected ids from 0 to {self._vocab - 1}, got {list(wrong[:20])}")
        for _, _, limit, minimum in zip(numbers, sources, limits, minimums, strict=True):
            if not 0 <= minimum < limit <= self._longest:
                raise ConfigurationError(
                    f"expected 0 <= minimum < limit <= {self._longest}, got a minimum of {minimum} and a limit of "
                    f"{limit}"
                )
        with self._opened():
            if max(lengths, default=0) > self._reach:
                self._set_positions(max(lengths))
            given = map(integers, (numbers, words, lengths, limits, minimums))
            added = int(append(self._search, len(lengths), *given, *more))
            self.left += added
            if added < len(lengths):
                raise SurroundingsError(f"there is not enough memory for a sentence of {lengths[added]} ids")

    def run(self, seconds: float) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Run for about this many seconds, at least one step; yield finished sentences with their hypotheses.

        Raises:
            MultiheadError: the model gave NaN, or a sentence has no permitted continuation.
            SurroundingsError: not enough memory; the search is closed.
        """
        if not seconds >= 0:
            raise ConfigurationError(f"expected a number of seconds, at least 0, got {seconds}")
        with self._opened():
            left = int(self._library.decoding_run(self._search, min(seconds, _MOST_SECONDS)))
            if left < 0:
                self.__exit__(None, None, None)
                raise SurroundingsError(
                    "there is not enough memory for this search: translate fewer or shorter sentences at once, "
                    "or with a narrower beam"
                )
            finished, self.left = self.left - left, left
            self._take(finished)
        while (found := self._next()) is not None:
            yield found

    def _next(self) -> tuple[int, list[Hypothesis]] | None:
        with self._opened():
            if not self._taken:
                return None
            number, hypotheses, fault = self._taken.popleft()
        if fault:
            self._refuse(fault)
        return number, hypotheses

    def _take(self, most: int) -> None:
        """Take finished sentences over from the library, all in one call."""
        facts = (ctypes.c_int64 * (4 * most))()
        count = int(self._library.decoding_next(self._search, most, facts))
        numbers, faults, counts, sizes = (facts[place : 4 * count : 4] for place in range(4))
        hypotheses = sum(counts)
        lengths, finished = (ctypes.c_int64 * hypotheses)(), (ctypes.c_int64 * hypotheses)()
        totals, scores = (ctypes.c_double * hypotheses)(), (ctypes.c_double * hypotheses)()
        symbols = (ctypes.c_int64 * sum(sizes))()
        self._library.decoding_take(self._search, count, lengths, finished, totals, scores, symbols)
        if not self._scored:
            totals[:] = scores[:] = [math.nan] * hypotheses
        rest, start = zip(lengths, totals, scores, finished, strict=True), 0
        all_of_them = symbols[:]
        for number, fault, some in zip(numbers, faults, counts, strict=True):
            made = []
            for length, total, score, whole in islice(rest, some):
                made.append(Hypothesis(tuple(all_of_them[start : start + length]), total, score, bool(whole)))
                start += length
            self._taken.append((number, made, fault))

    def _refuse(self, fault: int) -> None:
        """Raise the error of a sentence that could not be translated."""
        if fault == 1:
            refuse_nan(math.nan)
        end = self._symbols.end
        make_hypothesis([end], -math.inf, end=end, alpha=1.0)  # no permitted continuation

    def drop(self, number: int) -> bool:
        """Remove a sentence from the queue or the running batch; the others are not affected.

        Like `leading`, it must be called between two calls of `run`.

        Args:
            number: as given to `add`.

        Returns:
            Whether the sentence was there and had not been returned.
        """
        with self._opened():
            for one in self._taken:
                if one[0] == number:
                    self._taken.remove(one)
                    return True
            left = int(self._library.decoding_drop(self._search, number))
            self.left = self.left if left < 0 else left
            return left >= 0

    def leading(self, number: int) -> tuple[int, ...] | None:
        """The symbols so far of the most probable live hypothesis of a sentence, to show progress.

        Another hypothesis may win; with a beam of 1 the translation begins with these symbols. None if the sentence
        waits, is done, or does not exist.
        """
        with self._opened():
            count = int(self._library.decoding_leading(self._search, number, None))
            if count < 0:
                return None
            symbols = (ctypes.c_int64 * count)()
            self._library.decoding_leading(self._search, number, symbols)
            return tuple(symbols)

    @property
    def guesses(self) -> tuple[int, int]:
        """How many symbols a draft has guessed, and how many of these were right."""
        counts = (ctypes.c_int64 * 2)()
        with self._opened():
            self._library.decoding_guesses(self._search, counts)
        return counts[0], counts[1]

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds that all threads together spent on reordering beams, and on steps including the reordering."""
        seconds = (ctypes.c_double * 2)()
        with self._opened():
            self._library.decoding_seconds(self._search, seconds)
        return seconds[0], seconds[1]

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Hold the search for this thread.

        Raises:
            ConfigurationError: it was closed, or opened before os.fork() made this process.
        """
        if os.getpid() != self._process:  # another thread may have held the lock
            raise ConfigurationError("this search was opened before os.fork(): open one in the child")
        with self._lock:
            if self._search is None:
                raise ConfigurationError("this search was closed: open another one")
            yield


class EngineCache:
    """Engines and CUDA graphs of one model, built on first use and again after the weights have changed.

    There is one engine for each precision, with and without a shortlist.

    Args:
        capture: captures graphs; by default PyTorch's.
    """

    def __init__(self, capture: Capture | None = None) -> None:
        self._capture = capture
        self._graphs: Graphs | None = None
        self._made: dict[tuple[Precision, bool], Engine] = {}
        self._refused: tuple[Any, Any, str] | None = None

    def get(
        self, model: Network | StoredTransformer, precision: Precision, shortlist: Shortlist | None = None
    ) -> Engine | str:
        """The compiled search of a model, or the reason why there is none."""
        kind = precision, shortlist is not None
        found = self._made.get(kind)
        if found is not None and found.model is model and found.current and same_shortlist(found.shortlist, shortlist):
            return found
        now = version_of(model)
        if self._refused is not None and self._refused[0] is model and self._refused[1] == now:
            return self._refused[2]
        self._made.pop(kind, None)
        reason = why_not(model)
        if reason is not None:
            self._refused = model, now, reason
            return reason
        self._made[kind] = engine = Engine(model, precision, shortlist)
        return engine

    def stepper(self, model: Network) -> Stepper[Any]:
        """The model for searches step by step: on a GPU, the steps of a Transformer without hooks are graphs."""
        if self._capture is None and not model.output.weight.is_cuda:
            return model
        from multihead.engine.graphs import Graphs
        from multihead.engine.networks import has_hooks
        from multihead.models.transformer import Transformer

        if not isinstance(model, Transformer) or has_hooks(model):
            return model
        if self._graphs is None or self._graphs.model is not model:
            self._graphs = Graphs(model, self._capture)
        return self._graphs


def threads_of(workers: int | None) -> int:
    """How many threads compute; by default PyTorch's number.

    Raises:
        ConfigurationError: an impossible number.
    """
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise ConfigurationError(f"workers are threads, from 1 to {MOST_WORKERS}, got {workers}")
    return min(thread_count(workers), MOST_WORKERS)


def why_not(model: Network | StoredTransformer) -> str | None:
    """Why compiled code cannot search a model here; None if it can."""
    if isinstance(model, StoredTransformer):
        return model.why_not()
    from multihead.engine import networks

    return networks.why_not(model)


def version_of(model: Network | StoredTransformer) -> object:
    """Differs after a weight was changed."""
    if isinstance(model, StoredTransformer):
        return None
    from multihead.engine.networks import weights_version

    return weights_version(model)


def _source_of(model: Network | StoredTransformer) -> Source:
    """The weights of a model that `why_not` has nothing against."""
    if isinstance(model, StoredTransformer):
        return model
    from multihead.engine.networks import NetworkWeights
    from multihead.models.transformer import Transformer

    assert isinstance(model, Transformer)
    return NetworkWeights(model)


def same_shortlist(one: Shortlist | None, other: Shortlist | None) -> bool:
    """Whether two shortlists are equal; two can be read from the same file."""
    if one is None or other is None or one is other:
        return one is other
    return all(np.array_equal(mine, its) for mine, its in zip(one.arrays, other.arrays, strict=True))
