"""The subwords of prepared text: learned from a sample, or a model's.

The sample is bounded in pairs and characters and is the same for the same text, so memory does not grow with the text.
How merges are learned is in `text.learning`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from multihead.data.corpus import Pair, Report
from multihead.data.text_files import read_lines
from multihead.errors import ConfigurationError
from multihead.files import write_errors
from multihead.planning.choices import choose_sharing, choose_vocabulary
from multihead.planning.settings import Choices
from multihead.preparing.corpora import TextFiles, apportion
from multihead.text.backwards import BackwardsTokenizer, have_one_vocabulary
from multihead.text.case_factors import CaseTokenizer, lowered
from multihead.text.context import learn_with_context, own_text
from multihead.text.language_tokens import with_languages
from multihead.text.learning import LONGEST
from multihead.text.placeholders import learn_with_placeholders, mask_pairs, parse_rules
from multihead.text.terms import OF_SOURCES, Terms, knows_terms, parse_terms
from multihead.text.tokenizer import Tokenizer
from multihead.text.vocabulary import Specials

_SAMPLE = 1_000_000
"""Pairs that a vocabulary is learned from; more take longer and change little."""
SAMPLE_CHARACTERS = 400_000_000
"""Characters of those pairs: they are held in memory."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizers of both sides; the same one twice if they share a vocabulary."""

    source: Tokenizer
    target: Tokenizer
    decisions: dict[str, Any] = field(default_factory=dict)
    """How the vocabulary was learned: fields of `DataConfig`."""

    def with_symbols(self, languages: Sequence[str]) -> Vocabulary:
        """The vocabulary with symbols of languages for sources, and for targets if both sides share it."""
        source = with_languages(self.source, languages)
        return replace(self, source=source, target=source if self.target is self.source else self.target)

    def backwards(self) -> Vocabulary:
        """The vocabulary whose targets are written from right to left."""
        decisions = {**self.decisions, "right_to_left": True}
        return replace(self, target=BackwardsTokenizer(self.target), decisions=decisions)

    def save(self, data: Path) -> None:
        """Create the folder of what training reads, and write the tokenizers there."""
        with write_errors(data):
            data.mkdir()
        self.source.save(data / "source.tokenizer.json")
        self.target.save(data / "target.tokenizer.json")


def choose_terms(choices: Choices, tokenizer: Tokenizer) -> Terms | None:
    """The terms to annotate in training sources, if the user gives any.

    Args:
        choices: the user's settings; collects how many there are.
        tokenizer: of sources.

    Raises:
        DataError: the file cannot be read, or has no terms.
        ConfigurationError: the tokenizer is of a model that was trained without terms.
    """
    path = choices.requested("terms")
    if path is None:
        return None
    terms = read_terms(path)
    if not knows_terms(tokenizer):
        raise ConfigurationError(
            f"terms: the given model was trained without, so its vocabulary lacks {' '.join(OF_SOURCES)}: leave terms "
            "out, or train a new model"
        )
    choices.reasons["terms"] = f"{len(terms.entries):,} terms, SHA-256 {terms_digest(terms)}"
    return terms


def read_terms(path: Path) -> Terms:
    """The terms in a file; errors as `text.terms.parse_terms`, or if it cannot be read."""
    return parse_terms(read_lines(path), path)


def terms_digest(terms: Terms) -> str:
    """What the reason of a preparation says of its terms, and identifies them."""
    return terms.digest[:12]


def keep_vocabulary(choices: Choices, source: Tokenizer, target: Tokenizer) -> Vocabulary:
    """The vocabulary of a given model; how it was learned is unknown."""
    decisions = {"vocab_size": len(target), "shared_vocabulary": have_one_vocabulary(source, target)}
    decisions |= {"right_to_left": True} if target.backwards else {}
    kept = ["vocab_size", "shared_vocabulary", "right_to_left", *(["context"] if source.context else [])]
    kept += ["source_factors"] if source.factors > 1 else []
    choices.reasons |= dict.fromkeys(kept, "the given model's")
    return Vocabulary(source.plain, target.plain, decisions)


def learn_vocabulary(
    choices: Choices,
    files: TextFiles,
    held_out: Sequence[Set[int]],
    say: Callable[[str], None],
    *,
    directions: bool = False,
    count: int | None = None,
) -> Vocabulary:
    """Learn one vocabulary from both sides of the text, or one from each, without the held-out pairs.

    ``directions`` tells that there are several; ``count`` is the number of pairs if the files are a sample of them.
    From more than a million pairs it takes the beginning of each corpus, in proportion to its share of an epoch. Pairs
    that have more than max_tokens subwords in any vocabulary teach nothing, unless there are no others.
    """
    found, most = list(_sample(files, held_out)), choose_longest(choices) * LONGEST
    pairs = [pair for pair in found if max(len(pair.source), len(pair.target)) <= most] or found
    count = count or len(pairs)
    size = choose_vocabulary(choices, count)
    factors = choices.take("source_factors", lambda: (None, "case is a part of subwords by default"))
    shared = choose_sharing(choices, count, lambda: _share_of_common_words(pairs), directions=directions)
    options, specials, own = choose_merging(choices)
    decisions = {"vocab_size": size, "shared_vocabulary": shared, **options}
    options["specials"] = specials
    own = (*own, *(OF_SOURCES if choices.requested("terms") else ()))
    rules = parse_rules(choices.take("placeholders", lambda: ((), "nothing is copied by default")))
    options |= {"symbols": own, "rules": rules}
    of_sources = choose_context(choices), max(choose_longest(choices) - 1, 1)  # one for the symbol of a language
    sides: list[Sequence[str]] = [[own_text(pair.source) for pair in pairs], [pair.target for pair in pairs]]
    if rules:
        sides = [*mask_pairs(rules, *sides)]
    if factors is not None:
        sides[0] = list(map(lowered, sides[0]))
    if shared:
        say(f"learning a vocabulary of {size:,} subwords from {len(pairs):,} pairs")
        both = learn_with_context(chain.from_iterable(zip(*sides, strict=True)), size, *of_sources, **options)
        return Vocabulary(both, both, decisions)
    say(f"learning two vocabularies of {size:,} subwords from {len(pairs):,} pairs")
    source = learn_with_context(sides[0], size, *of_sources, **options)
    source = source if factors is None else CaseTokenizer(source)
    return Vocabulary(source, learn_with_placeholders(sides[1], size, **options), decisions)


def _share_of_common_words(pairs: Sequence[Pair]) -> float:
    """The share of target words that also occur in their source; words are what is between blanks."""
    targets = [pair.target.split() for pair in pairs]
    common = (set(pair.source.split()) for pair in pairs)
    found = sum(word in source for source, words in zip(common, targets, strict=True) for word in words)
    return found / max(sum(map(len, targets)), 1)


def choose_merging(choices: Choices) -> tuple[dict[str, Any], Specials, tuple[str, ...]]:
    """How merges are learned: fields of `DataConfig`; the special symbols, and those of the user."""
    options = {
        "min_frequency": choices.take("min_frequency", lambda: (2, "what occurs once teaches nothing")),
        "coverage": choices.take("coverage", lambda: (0.9999, "the usual value")),
    }
    specials = Specials(*choices.take("symbols", lambda: (Specials().strings, "the usual ones")))
    return options, specials, choices.take("user_symbols", lambda: ((), "there are none by default"))


def choose_context(choices: Choices) -> int:
    return choices.take("context", lambda: (0, "sentences are translated by themselves by default"))


def choose_longest(choices: Choices) -> int:
    return choices.take("max_tokens", lambda: (256, "longer ones cost much and teach little"))


def _sample(files: TextFiles, held_out: Sequence[Set[int]]) -> Iterator[Pair]:
    """The pairs to learn from: as many as fit into `_SAMPLE` and, of each corpus, its part of `SAMPLE_CHARACTERS`."""
    sizes = [corpus.scan.lines for corpus in files.train]
    shares = [size * corpus.weight for size, corpus in zip(sizes, files.train, strict=True)]
    parts = sizes if sum(sizes) <= _SAMPLE else apportion(_SAMPLE, shares, sizes)
    for corpus, held, part in zip(files.train, held_out, parts, strict=True):
        room = SAMPLE_CHARACTERS * part // sum(parts)
        pairs = (pair for index, pair in enumerate(corpus.scan.read(Report())) if index not in held)
        for pair in islice(pairs, part):
            room -= len(pair.source) + len(pair.target)
            yield pair
            if room < 0:
                break
