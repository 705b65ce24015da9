"""Whether a sentence is translated alike alone, in any batch and in any order; where it is not, whether by rounding.

Matrix products of other sizes add up in another order, so that log-probabilities differ in their last bits; where two
hypotheses are equally good up to that, a search may find the one or the other. Such a near-tie is *proved*, in one of
two ways, e being the bound on what rounding does to a log-probability or a score:

* equal scores: those of the two hypotheses, each forced alone (`decoding.scoring`), differ by at most e; or
* a close decision: the search of the sentence alone finds the other hypothesis once every log-probability but those
  along that hypothesis is lowered by e (`PathFavoringNetwork`). That is the backward error of the search. It is
  needed because a near-tie early in a greedy search, or at the edge of a beam, leads to distant scores.

A line that differs without such a proof depends on what it is translated with, and that is a fault.
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
from multihead.judging.score import forced_log_probabilities
from multihead.models.network import Network, Output
from multihead.text.tokenizer import Tokenizer
from multihead.translating.search_settings import SearchSettings
from multihead.translating.searching import penalty_of
from multihead.translating.translator import Translator

BOUND = 1e-4
"""What rounding may do to a log-probability or a score in float32."""

SIZES = (2, 8, 32)
"""Lines that are translated together."""


class SearchOutcome(NamedTuple):
    """What a search found."""

    tokens: tuple[int, ...]
    finished: bool
    """Whether the end symbol followed."""


@dataclass(frozen=True)
class Difference:
    """A line that has another translation in company."""

    line: int
    """Counted from 1."""
    where: str
    """What it was translated with, where it differed first."""
    alone: str
    """Its translation alone."""
    other: str
    """The other one."""
    scores: tuple[float, float]
    """log p(y | x) / penalty(|y|) of both, each forced alone."""
    proof: str | None
    """Why this is a near-tie; None: it is not."""


@dataclass(frozen=True)
class BatchReport:
    """What came out."""

    lines: int
    compiled: bool
    """Whether the search is the compiled one."""
    bound: float
    passes: dict[str, int]
    """What the lines were translated with -> how many differed from what they are alone."""
    differences: list[Difference]
    """One for each line and other translation."""

    @property
    def differing(self) -> list[int]:
        """Lines with another translation somewhere."""
        return sorted({one.line for one in self.differences})

    @property
    def unproved(self) -> list[int]:
        """Those of them of which it is not proved that rounding is the reason."""
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
    """Translates each text alone, in batches of each size, all together, and all in another order.

    Args:
        translator: searches as it would for anybody.
        texts: a sentence each.
        sizes: texts in a batch, in the order in which they stand.
        seed: of the other order.
        bound: see the top of this file.
        plain: search by PyTorch where compiled code would do it.
        progress: is told how many more translations are made, ``len(sizes) + 3`` of each text.

    Raises:
        ConfigurationError: a size or bound that cannot be.
    """
    if any(size < 1 for size in sizes) or not bound >= 0:
        raise ConfigurationError(f"expected sizes of at least 1 and a bound of at least 0, got {list(sizes)}, {bound}")
    own = translator.bundle.model
    twin = _spelling(translator, NetworkWrapper(own) if plain else own)
    order = list(range(len(texts)))
    alone = _together(twin, texts, order, 1, progress)
    shuffled = random.Random(seed).sample(order, len(order))
    passes = [(f"in batches of {size}", order, size) for size in sizes]
    passes += [("all together", order, len(order)), ("all in another order", shuffled, len(order))]
    counts: dict[str, int] = {}
    first: dict[tuple[int, SearchOutcome], str] = {}
    for name, places, size in passes:
        found = _together(twin, texts, places, size, progress)
        differing = [place for place in order if found[place] != alone[place]]
        counts[name] = len(differing)
        for place in differing:
            first.setdefault((place, found[place]), name)
    differences = [
        _difference(translator, texts[place], bound, place + 1, name, alone[place], other)
        for (place, other), name in sorted(first.items())
    ]
    return BatchReport(len(texts), twin.compiled, bound, counts, differences)


def _together(
    translator: Translator,
    texts: Sequence[str],
    places: Sequence[int],
    size: int,
    progress: Callable[[int], None] | None = None,
) -> list[SearchOutcome]:
    """What is found of all texts, ``size`` at a time as ``places`` has them; in the order of the texts."""
    found: dict[int, SearchOutcome] = {}
    for start in range(0, len(places), max(size, 1)):
        group = places[start : start + size]
        for place, one in zip(group, translator.translations([texts[place] for place in group]), strict=True):
            found[place] = SearchOutcome(tuple(map(int, one.text.split())), one.finished)
        if progress is not None:
            progress(len(group))
    return [found[place] for place in range(len(texts))]


def _difference(
    translator: Translator, text: str, bound: float, line: int, where: str, alone: SearchOutcome, other: SearchOutcome
) -> Difference:
    """One difference, with its proof if there is one."""
    one, another = _score(translator, text, alone), _score(translator, text, other)
    proof = None
    if abs(one - another) <= bound:
        proof = "equal scores"
    elif _reached(translator, text, other, bound):
        proof = "close decision"
    decode = translator.bundle.target_tokenizer.decode
    return Difference(line, where, decode(alone.tokens), decode(other.tokens), (one, another), proof)


def _score(translator: Translator, text: str, found: SearchOutcome) -> float:
    """What a search ranks this by, computed alone."""
    bundle = translator.bundle
    source = bundle.source_tokenizer.encode(text)
    (values,) = forced_log_probabilities(bundle.model, bundle.target_tokenizer, [source], [list(found.tokens)])
    values = values if found.finished else values[:-1]
    settings = SearchSettings(**translator.search_settings().model_dump())
    return sum(values) / penalty_of(settings)(len(values), settings.alpha)


def _reached(translator: Translator, text: str, other: SearchOutcome, bound: float) -> bool:
    """Whether the search of this text alone finds the other hypothesis when it is helped by so much."""
    symbols = [Tokenizer.bos_id, *other.tokens, *[Tokenizer.eos_id] * other.finished]
    helped = _spelling(translator, PathFavoringNetwork(translator.bundle.model, symbols, bound), precision="float32")
    return _together(helped, [text], [0], 1) == [other]


def _spelling(translator: Translator, model: Network, **settings: Any) -> Translator:
    """The same search of another model, with ids in the place of texts."""
    spelt = _Spelt(translator.bundle.target_tokenizer.parts)
    own = translator.search_settings().model_dump()
    return Translator(replace(translator.bundle, model=model, target_tokenizer=spelt)).searching(**own | settings)


class _Spelt(Tokenizer):
    """Writes ids, so that what a search found can be told from what reads the same."""

    def decode(self, ids: Sequence[int]) -> str:
        """The ids themselves, in decimal."""
        return " ".join(map(str, ids))


class NetworkWrapper(Network):
    """A network as it is, around another; compiled code does not know it.

    Args:
        inner: the network that does the work.
    """

    def __init__(self, inner: Network) -> None:
        super().__init__()
        self.inner = inner
        self.config, self.output = inner.config, inner.output

    @property
    def max_positions(self) -> int | None:
        """As the network inside."""
        return self.inner.max_positions

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        target: Int[Tensor, "batch target"],
        *,
        need_weights: bool = False,
    ) -> Output:
        """As the network inside."""
        output: Output = self.inner(source, source_lengths, target, need_weights=need_weights)
        return output

    def hidden(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        target: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target width"]:
        """As the network inside."""
        return self.inner.hidden(source, source_lengths, target)

    def start(self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, " batch"]) -> Any:
        """As the network inside."""
        return self.inner.start(source, lengths)

    def step(self, tokens: Int[Tensor, " rows"], state: Any) -> tuple[Float[Tensor, "rows vocab"], Any]:
        """As the network inside."""
        return self.inner.step(tokens, state)


@dataclass(frozen=True)
class PathState:
    """The state of the network inside, and how far each row follows the path: -1 once it has left it."""

    state: Any
    reached: Int[Tensor, " rows"]

    @property
    def rows(self) -> int:
        """Hypotheses."""
        return len(self.reached)

    def select(self, rows: Int[Tensor, " rows"]) -> PathState:
        """The state of these rows, in this order."""
        return PathState(self.state.select(rows), self.reached[rows])

    def join(self, other: PathState) -> PathState:
        """The rows of both."""
        return PathState(self.state.join(other.state), torch.cat((self.reached, other.reached)))


class PathFavoringNetwork(NetworkWrapper):
    """A network of which every log-probability is lowered by ``bound``, but for the next symbol on a given path.

    This is what helps the path's hypothesis most of all that changes no difference between two log-probabilities of a
    step by more than ``bound``.

    Args:
        inner: the network.
        path: begin symbol, tokens, and end symbol if the hypothesis has one.
        bound: by how much.
    """

    def __init__(self, inner: Network, path: Sequence[int], bound: float) -> None:
        super().__init__(inner)
        self.path, self.bound = list(path), bound

    def start(self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, " batch"]) -> PathState:
        """All rows at the beginning of the path."""
        return PathState(self.inner.start(source, lengths), torch.zeros_like(lengths))

    def step(self, tokens: Int[Tensor, " rows"], state: PathState) -> tuple[Float[Tensor, "rows vocab"], PathState]:
        """One symbol further, on the path or off it."""
        log_probabilities, inner = self.inner.step(tokens, state.state)
        path = torch.tensor([*self.path, -1], device=tokens.device)
        on = (state.reached >= 0) & (tokens == path[state.reached])
        reached = torch.where(on, state.reached + 1, -1)
        lowered = log_probabilities - self.bound
        wanted = path[reached]
        rows = (wanted >= 0).nonzero().squeeze(1)  # where the path goes on, and the row is on it: path[-1] is -1
        lowered[rows, wanted[rows]] = log_probabilities[rows, wanted[rows]]
        return lowered, PathState(inner, reached)
