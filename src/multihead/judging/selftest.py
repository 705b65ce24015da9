"""Self-test: translations must not depend on the batch, up to rounding.

Matrix products of different sizes sum in a different order, so log-probabilities differ in their last bits. Where two
hypotheses are equally good up to that, a search may find either. Such a near tie is *proved* in one of two ways, with e
the bound on the effect of rounding on a log-probability or a score:

* equal scores: the scores of both hypotheses, each from forced decoding of the sentence alone (`decoding.scoring`),
  differ by at most e; or
* a close decision: the search of the sentence alone finds the other hypothesis once every log-probability except those
  along that hypothesis is lowered by e (`PathFavoringNetwork`). This is the backward error of the search. It is needed
  because a near tie early in a greedy search, or at the edge of a beam, can lead to scores that are far apart.

A line that differs without such a proof depends on the other lines of its batch, which is a fault.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.errors import ConfigurationError
from multihead.models.network import Network, Output
from multihead.text.tokenizer import WrappedTokenizer
from multihead.translating.forced import forced_log_probabilities
from multihead.translating.translator import Translator

BOUND = 1e-4
"""Largest effect of rounding on a log-probability or a score in float32."""

SIZES = (2, 8, 32)
"""Numbers of lines per batch."""


class SearchOutcome(NamedTuple):
    """The hypothesis that a search returns."""

    tokens: tuple[int, ...]
    finished: bool
    """Whether it ends with the end symbol."""


@dataclass(frozen=True)
class Difference:
    """A line that is translated differently in a batch."""

    line: int
    """Line number, counted from 1."""
    where: str
    """The first pass in which it differed."""
    alone: str
    """Translation of the line alone."""
    other: str
    """Translation in that pass."""
    scores: tuple[float, float]
    """log p(y | x) / penalty(|y|) of both, from forced decoding of the line alone."""
    proof: str | None
    """Why this is a near tie; None if it is not."""


@dataclass(frozen=True)
class BatchReport:
    """Result of `check_batches`."""

    lines: int
    compiled: bool
    """Whether the search is compiled."""
    bound: float
    passes: dict[str, int]
    """Number of lines that differ from their translation alone, by pass."""
    differences: list[Difference]
    """One per line and different translation."""

    @property
    def differing(self) -> list[int]:
        """Lines that are translated differently in any pass."""
        return sorted({one.line for one in self.differences})

    @property
    def unproved(self) -> list[int]:
        """Those of them for which rounding is not proved to be the reason."""
        return sorted({one.line for one in self.differences if one.proof is None})


def check_batches(
    translator: Translator,
    texts: Sequence[str],
    *,
    sizes: Sequence[int] = SIZES,
    seed: int = 0,
    bound: float = BOUND,
    plain: bool = False,
    progress: Callable[[int], None] | None = None,
) -> BatchReport:
    """Translate each text alone, in batches of each size, all together, and all in another order.

    Args:
        translator: the translator under test.
        texts: one sentence per item.
        sizes: numbers of consecutive texts per batch.
        seed: seed of the other order.
        bound: largest effect of rounding, see the module's docstring.
        plain: search with PyTorch instead of compiled code.
        progress: called with the number of new translations, ``len(sizes) + 3`` per text in total.

    Raises:
        ConfigurationError: a size is below 1, or the bound is negative.
    """
    if any(size < 1 for size in sizes) or not bound >= 0:
        raise ConfigurationError(f"expected sizes of at least 1 and a bound of at least 0, got {list(sizes)}, {bound}")
    model = translator.bundle.model
    searcher = _search_ids(translator, NetworkWrapper(model) if plain else model)
    order = list(range(len(texts)))
    alone = _translate(searcher, texts, order, 1, progress)
    shuffled = random.Random(seed).sample(order, len(order))
    passes = [(f"in batches of {size}", order, size) for size in sizes]
    passes += [("all together", order, len(order)), ("all in another order", shuffled, len(order))]
    counts: dict[str, int] = {}
    first: dict[tuple[int, SearchOutcome], str] = {}
    for name, places, size in passes:
        found = _translate(searcher, texts, places, size, progress)
        differing = [place for place in order if found[place] != alone[place]]
        counts[name] = len(differing)
        for place in differing:
            first.setdefault((place, found[place]), name)
    differences = [
        _explain_difference(translator, texts[place], bound, place + 1, name, alone[place], other)
        for (place, other), name in sorted(first.items())
    ]
    return BatchReport(len(texts), searcher.compiled, bound, counts, differences)


def _translate(
    translator: Translator,
    texts: Sequence[str],
    places: Sequence[int],
    size: int,
    progress: Callable[[int], None] | None = None,
) -> list[SearchOutcome]:
    """Translate all texts, ``size`` at a time in the order ``places``; the results are in the order of the texts."""
    found: dict[int, SearchOutcome] = {}
    for start in range(0, len(places), max(size, 1)):
        group = places[start : start + size]
        for place, one in zip(group, translator.translations([texts[place] for place in group]), strict=True):
            found[place] = SearchOutcome(tuple(map(int, one.text.split())), one.finished)
        if progress is not None:
            progress(len(group))
    return [found[place] for place in range(len(texts))]


def _explain_difference(
    translator: Translator, text: str, bound: float, line: int, where: str, alone: SearchOutcome, other: SearchOutcome
) -> Difference:
    """A difference, with its proof if there is one."""
    one, another = _score(translator, text, alone), _score(translator, text, other)
    proof = None
    if abs(one - another) <= bound:
        proof = "equal scores"
    elif _found_if_favored(translator, text, other, bound):
        proof = "close decision"
    decode = translator.bundle.target_tokenizer.decode
    return Difference(line, where, decode(alone.tokens), decode(other.tokens), (one, another), proof)


def _score(translator: Translator, text: str, found: SearchOutcome) -> float:
    """The score by which a search ranks a hypothesis, computed for the sentence alone."""
    bundle = translator.bundle
    source = bundle.source_tokenizer.encode(text)
    (values,) = forced_log_probabilities(bundle.model, bundle.target_tokenizer, [source], [list(found.tokens)])
    values = values if found.finished else values[:-1]
    search = translator.search_settings()
    return sum(values) / search.penalty(len(values), search.alpha)


def _found_if_favored(translator: Translator, text: str, other: SearchOutcome, bound: float) -> bool:
    """Whether the search of this text alone finds the other hypothesis when it is favored by ``bound``."""
    tokenizer = translator.bundle.target_tokenizer
    path = [tokenizer.bos_id, *other.tokens, *[tokenizer.eos_id] * other.finished]
    favoring = _search_ids(translator, PathFavoringNetwork(translator.bundle.model, path, bound), precision="float32")
    return _translate(favoring, [text], [0], 1) == [other]


def _search_ids(translator: Translator, model: Network, **settings: Any) -> Translator:
    """A translator with the same search but another model, which writes ids instead of text."""
    tokenizer = _IdTokenizer(translator.bundle.target_tokenizer)
    own = translator.search_settings().model_dump()
    return Translator(replace(translator.bundle, model=model, target_tokenizer=tokenizer)).searching(**own | settings)


class _IdTokenizer(WrappedTokenizer):
    """Decodes to ids, so that different token sequences of the same text are told apart."""

    def decode(self, ids: Sequence[int]) -> str:
        """The ids in decimal, separated by spaces."""
        return " ".join(map(str, ids))


class NetworkWrapper(Network):
    """Delegates to another network. Compiled code does not recognize it, so searches use PyTorch.

    Args:
        inner: the network that does the work.
    """

    def __init__(self, inner: Network) -> None:
        super().__init__()
        self.inner = inner
        self.config, self.output = inner.config, inner.output

    @property
    def max_positions(self) -> int | None:
        return self.inner.max_positions

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        target: Int[Tensor, "batch target"],
        *,
        need_weights: bool = False,
    ) -> Output:
        output: Output = self.inner(source, source_lengths, target, need_weights=need_weights)
        return output

    def hidden(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        target: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target width"]:
        return self.inner.hidden(source, source_lengths, target)

    def start(self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, " batch"]) -> Any:
        return self.inner.start(source, lengths)

    def step(self, tokens: Int[Tensor, " rows"], state: Any) -> tuple[Float[Tensor, "rows vocab"], Any]:
        return self.inner.step(tokens, state)


@dataclass(frozen=True)
class PathState:
    """The state of the inner network, and how far each row follows the path; -1 if it has left it."""

    state: Any
    reached: Int[Tensor, " rows"]

    @property
    def rows(self) -> int:
        return len(self.reached)

    def select(self, rows: Int[Tensor, " rows"]) -> PathState:
        return PathState(self.state.select(rows), self.reached[rows])

    def join(self, other: PathState) -> PathState:
        return PathState(self.state.join(other.state), torch.cat((self.reached, other.reached)))


class PathFavoringNetwork(NetworkWrapper):
    """Lowers every log-probability by ``bound``, except that of the next symbol on a given path.

    Among all changes that alter no difference between two log-probabilities of a step by more than ``bound``, this one
    favors the path's hypothesis most.

    Args:
        inner: the network.
        path: begin symbol, tokens, and end symbol if the hypothesis is finished.
        bound: amount by which log-probabilities are lowered.
    """

    def __init__(self, inner: Network, path: Sequence[int], bound: float) -> None:
        super().__init__(inner)
        self.path, self.bound = list(path), bound

    def start(self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, " batch"]) -> PathState:
        return PathState(self.inner.start(source, lengths), torch.zeros_like(lengths))

    def step(self, tokens: Int[Tensor, " rows"], state: PathState) -> tuple[Float[Tensor, "rows vocab"], PathState]:
        log_probabilities, inner = self.inner.step(tokens, state.state)
        path = torch.tensor([*self.path, -1], device=tokens.device)
        on_path = (state.reached >= 0) & (tokens == path[state.reached])
        reached = torch.where(on_path, state.reached + 1, -1)
        lowered = log_probabilities - self.bound
        following = path[reached]  # -1 for rows off the path, as path[-1] is -1, and at its end
        rows = (following >= 0).nonzero().squeeze(1)
        lowered[rows, following[rows]] = log_probabilities[rows, following[rows]]
        return lowered, PathState(inner, reached)
