"""From settings and words to a search: which of `multihead.decoding`'s is run, or the compiled one, and on what.

Words become the tokens that the tokenizer writes them with. What must not come out, and what must, is settled on those:
a forbidden word spelt in other pieces, which a model has no reason to do, is another word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from multihead.decoding.beam import beam_search
from multihead.decoding.diverse import diverse_beam_search
from multihead.decoding.greedy import greedy_search
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.length_penalty import LengthPenalty, power, wu
from multihead.decoding.lexical import lexical_beam_search
from multihead.decoding.phrases import automaton
from multihead.decoding.recording import Recorder
from multihead.decoding.restrictions import NoRepeat, Prefix, Restriction, Without
from multihead.decoding.stepper import Stepper, Symbols
from multihead.decoding.stopping import Ahead, Patience, Stop
from multihead.engine.search import WIDEST, Engine
from multihead.errors import ConfigurationError, InputError
from multihead.text.tokenizer import Tokenizer
from multihead.translating.search_settings import SearchSettings

Phrases = Sequence[str | Sequence[str]]
"""What must appear in a translation: words or phrases, each in one spelling or as alternatives."""


@dataclass(frozen=True)
class Demands:
    """What is asked of each sentence of its own, in tokens; an empty list where nothing is."""

    prefixes: list[list[int]] = field(default_factory=list)
    phrases: list[list[list[list[int]]]] = field(default_factory=list)

    def of(self, places: Sequence[int]) -> Demands:
        """Those of some sentences."""
        return Demands(
            [self.prefixes[place] for place in places] if self.prefixes else [],
            [self.phrases[place] for place in places] if self.phrases else [],
        )


def demands(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    prefixes: Sequence[str] | None,
    phrases: Sequence[Phrases] | None,
) -> Demands:
    """The demands on translations of ``texts`` in tokens.

    Raises:
        InputError: not one prefix, or list of phrases, for each text; an empty text, which is not translated, with
            either; a phrase without characters.
    """
    for name, given in (("prefixes", prefixes), ("phrases", phrases)):
        if given is not None and (isinstance(given, str) or len(given) != len(texts)):
            raise InputError(f"{name}: expected one for each of {len(texts)} texts, got {len(given)}")
        for number, (text, wanted) in enumerate(zip(texts, given or (), strict=False), 1):
            if wanted and not text.strip():
                raise InputError(f"text {number} is empty and stays so: it cannot have {name}")
    encoded = [
        [[tokenizer.encode(word) for word in _alternatives(phrase, number)] for phrase in own]
        for number, own in enumerate(phrases or (), 1)
    ]
    return Demands([tokenizer.encode(prefix) for prefix in prefixes or ()], encoded if any(encoded) else [])


def _alternatives(phrase: str | Sequence[str], number: int) -> list[str]:
    alternatives = [phrase] if isinstance(phrase, str) else list(phrase)
    if not alternatives or not all(alternative.strip() for alternative in alternatives):
        raise InputError(f"text {number}: a phrase that must appear has no characters: {phrase!r}")
    return alternatives


class RoomError(ConfigurationError):
    """A demand that does not fit into the length limit of its text.

    Args:
        place: of the text, counted from 0.
        name: what is demanded: "prefix" or "phrases".
        needed: tokens, the end symbol counted.
        limit: what the text may have.
    """

    def __init__(self, place: int, name: str, needed: int, limit: int) -> None:
        self.place, self.name = place, name
        self.reason = (
            f"{name} and the end symbol need {needed} tokens, more than the limit of {limit}: raise max_length or "
            "length_margin"
        )
        super().__init__(f"text {place + 1}: its {self.reason}")


def check_room(wanted: Demands, limits: Sequence[int | None]) -> None:
    """Refuse demands that do not fit into the length limits; None: a text that is not translated.

    Raises:
        RoomError: one does not; names the text, counted from 1.
    """
    for place, limit in enumerate(limits):
        if limit is None:
            continue
        needs = {"prefix": len(wanted.prefixes[place]) if wanted.prefixes else 0}
        needs["phrases"] = int(automaton(wanted.phrases[place]).needed[0]) if wanted.phrases else 0
        for name, needed in needs.items():
            if needed >= limit:
                raise RoomError(place, name, needed + 1, limit)


def restrictions_of(settings: SearchSettings, tokenizer: Tokenizer, wanted: Demands) -> list[Restriction]:
    """What the settings forbid, and then what is demanded at the beginning."""
    restrictions: list[Restriction] = []
    if settings.no_repeat:
        restrictions.append(NoRepeat(settings.no_repeat))
    if settings.without:
        restrictions.append(Without([tokenizer.encode(word) for word in settings.without]))
    if wanted.prefixes:
        restrictions.append(Prefix(wanted.prefixes))
    return restrictions


def find(
    model: Stepper[Any],
    source: Tensor,
    lengths: Tensor,
    symbols: Symbols,
    settings: SearchSettings,
    n: int,
    restrictions: Sequence[Restriction] = (),
    phrases: Sequence[Sequence[Sequence[Sequence[int]]]] = (),
    recorder: Recorder | None = None,
) -> list[list[Hypothesis]]:
    """The n best of each sentence by the search that the settings describe.

    With a recorder a beam of 1 is searched as a beam: what is found is the same.

    Raises:
        ConfigurationError: phrases and groups together.
    """
    shared: dict[str, Any] = {
        "max_lengths": [settings.limit(int(length)) for length in lengths],
        "min_lengths": [settings.least(int(length)) for length in lengths],
        "restrictions": restrictions,
    }
    penalty = penalty_of(settings)
    if settings.beam == 1 and settings.stopping == "exact" and not (phrases or settings.coverage or recorder):
        greedy = greedy_search(model, source, lengths, symbols, **shared)
        return [[scored(hypothesis, penalty, settings.alpha)] for hypothesis in greedy]
    shared |= {"beam": settings.beam, "alpha": settings.alpha, "penalty": penalty, "n_best": n}
    shared |= {"stop": stop_of(settings), "coverage": settings.coverage, "recorder": recorder}
    if phrases and settings.groups > 1:
        raise ConfigurationError("phrases that must appear cannot be had with groups: leave one of them out")
    if phrases:
        return lexical_beam_search(model, source, lengths, symbols, phrases, **shared)
    if settings.groups > 1:
        shared |= {"groups": settings.groups, "strength": settings.diversity}
        return diverse_beam_search(model, source, lengths, symbols, **shared)
    return beam_search(model, source, lengths, symbols, **shared)


def not_compiled(settings: SearchSettings, wanted: Demands) -> str | None:
    """Why this search is not the compiled one's; None if it is."""
    if settings.no_repeat or settings.without:
        return "no_repeat and without are not compiled"
    if any(wanted.prefixes) or wanted.phrases:
        return "prefixes and phrases are not compiled"
    if settings.groups > 1:
        return "groups are not compiled"
    if settings.coverage:
        return "coverage is not compiled"
    return f"beams above {WIDEST} are not compiled" if settings.beam > WIDEST else None


def find_compiled(
    engine: Engine,
    sources: Sequence[Sequence[int]],
    symbols: Symbols,
    settings: SearchSettings,
    n: int,
    progress: Callable[[int], None] | None = None,
) -> list[list[Hypothesis]]:
    """As `find`, of ids with their end symbols, by compiled code; `not_compiled` says of what settings."""
    return engine.search(
        sources,
        symbols,
        max_lengths=[settings.limit(len(source)) for source in sources],
        min_lengths=[settings.least(len(source)) for source in sources],
        beam=settings.beam,
        alpha=settings.alpha,
        penalty=penalty_of(settings),
        n_best=n,
        stop=stop_of(settings),
        progress=progress,
    )


def symbols_of(tokenizer: Tokenizer) -> Symbols:
    """What a search must know of a vocabulary."""
    return Symbols(tokenizer.bos_id, tokenizer.eos_id, tokenizer.forbidden_in_output)


def check_n_best(n: int, beam: int) -> None:
    """Refuses what no beam can hold.

    Raises:
        ConfigurationError: fewer than 1, or more than the beam.
    """
    if not 1 <= n <= beam:
        remedy = "; widen the beam" if n > beam else ""
        raise ConfigurationError(f"n_best: expected 1 to the beam, which is {beam}, got {n}{remedy}")


def penalty_of(settings: SearchSettings) -> LengthPenalty:
    """The length penalty of that name."""
    return {"power": power, "wu": wu}[settings.length_penalty]


def scored(hypothesis: Hypothesis, penalty: LengthPenalty, alpha: float) -> Hypothesis:
    """With the score of this penalty."""
    length = len(hypothesis.tokens) + hypothesis.finished
    return replace(hypothesis, score=hypothesis.log_probability / penalty(length, alpha))


def stop_of(settings: SearchSettings) -> Stop | None:
    """The rule of that name; None: the search's own."""
    rules: dict[str, Stop | None] = {"exact": None, "ahead": Ahead(), "patience": Patience(settings.patience)}
    return rules[settings.stopping]
