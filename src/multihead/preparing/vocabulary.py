"""The subwords of a run: learned from its text, or those of the model that is fine-tuned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from multihead.data.corpus import Pair, Report
from multihead.planning.choices import Choices, choose_vocabulary
from multihead.preparing.corpora import Corpus, Files, apportion
from multihead.text.tokenizer import Tokenizer
from multihead.text.vocabulary import Specials

_SAMPLE = 1_000_000
"""Pairs that a vocabulary is learned from; more change nothing but the time."""


@dataclass(frozen=True)
class Vocabulary:
    """The subwords of both sides: one tokenizer twice where they share one."""

    source: Tokenizer
    target: Tokenizer
    decided: dict[str, Any] = field(default_factory=dict)
    """How it was learned: fields of `DataConfig`."""

    def of(self, side: int) -> Tokenizer:
        """That of side 0, the source, or 1, the target."""
        return (self.source, self.target)[side]


def keep(choices: Choices, source: Tokenizer, target: Tokenizer) -> Vocabulary:
    """Another model's; how it was learned is not known."""
    decided = {"vocab_size": len(target), "shared_vocabulary": source.digest == target.digest}
    choices.reasons |= dict.fromkeys(("vocab_size", "shared_vocabulary"), "the given model's")
    return Vocabulary(source, target, decided)


def learn(choices: Choices, files: Files, held_out: Sequence[Set[int]], say: Callable[[str], None]) -> Vocabulary:
    """One vocabulary from both sides of the text, or one from each; what is held out teaches nothing.

    Of text of more than a million pairs the beginning of each corpus is taken, as much as its share of an epoch.
    """
    pairs = list(_sample(files, held_out))
    size = choose_vocabulary(choices, len(pairs))
    shared = choices.take("shared_vocabulary", lambda: (True, "names and numbers are alike on both sides"))
    options: dict[str, Any] = {
        "min_frequency": choices.take("min_frequency", lambda: (2, "what occurs once teaches nothing")),
        "coverage": choices.take("coverage", lambda: (0.9999, "the usual value")),
    }
    strings = choices.take("symbols", lambda: (Specials().strings, "the usual ones"))
    decided = {"vocab_size": size, "shared_vocabulary": shared, **options}
    options["specials"] = Specials(*strings)
    sides: list[Iterable[str]] = [(pair.source for pair in pairs), (pair.target for pair in pairs)]
    if shared:
        say(f"learning a vocabulary of {size:,} subwords from {len(pairs):,} pairs")
        both = Tokenizer.learn(chain.from_iterable(zip(*sides, strict=True)), size, **options)
        return Vocabulary(both, both, decided)
    say(f"learning two vocabularies of {size:,} subwords from {len(pairs):,} pairs")
    source, target = (Tokenizer.learn(side, size, **options) for side in sides)
    return Vocabulary(source, target, decided)


def _sample(files: Files, held_out: Sequence[Set[int]]) -> Iterator[Pair]:
    sizes = [corpus.scan.lines for corpus in files.train]
    shares = [size * corpus.weight for size, corpus in zip(sizes, files.train, strict=True)]
    parts = sizes if sum(sizes) <= _SAMPLE else apportion(_SAMPLE, shares, sizes)
    for corpus, held, part in zip(files.train, held_out, parts, strict=True):
        yield from islice((pair for pair, is_held in split(corpus, held, Report()) if not is_held), part)


def split(corpus: Corpus, held: Set[int], report: Report) -> Iterator[tuple[Pair, bool]]:
    """The usable pairs of a corpus, and whether each is held out."""
    return ((pair, place in held) for place, pair in enumerate(corpus.scan.read(report)))
