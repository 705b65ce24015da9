"""From words to a search, and from hypotheses to translations.

Words become the tokens that the tokenizer writes them with. Both forbidden and required phrases are matched on these
tokens: a forbidden word in another segmentation, which a model has no reason to produce, counts as another word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from multihead.bundle import Bundle
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.search import Search, Symbols
from multihead.decoding.task import SearchTask
from multihead.engine.search import WIDEST
from multihead.engine.stored import StoredTransformer
from multihead.errors import ConfigurationError, InputError
from multihead.text.backwards import require_forwards
from multihead.text.tokenizer import Tokenizer
from multihead.translating.request import TranslationRequest

if TYPE_CHECKING:
    from torch import Tensor

    from multihead.decoding.restrictions import Restriction
    from multihead.decoding.stepper import Stepper


@dataclass(frozen=True)
class Translation:
    """A translated sentence."""

    text: str
    score: float
    """log p(y | x) / penalty(|y|): comparable between translations of one sentence."""
    finished: bool
    """False if the length limit cut it, so that the text is incomplete."""
    warning: str | None = None
    """A note for the reader: the sentence is longer than the number of learned positions, or has more placeholders than
    are copied."""
    log_probability: float = 0.0
    """log p(y | x)."""
    tokens: int = 0
    """|y|, including the end symbol if it was reached; 0 for an empty sentence, which is not translated."""


def make_translation(
    hypothesis: Hypothesis, tokenizer: Tokenizer, source_tokens: int, max_positions: int | None, source: str = ""
) -> Translation:
    """The text of a hypothesis.

    Args:
        hypothesis: what a search found.
        tokenizer: of the target side.
        source_tokens: tokens of the source, including the end symbol.
        max_positions: number of positions that the model tells apart; None for any number.
        source: the text of the source, which placeholders of the hypothesis are filled from.
    """
    tokens = hypothesis.tokens
    return Translation(
        tokenizer.filled(tokenizer.decode(tokens), source),
        hypothesis.score,
        hypothesis.finished,
        _positions_warning(max_positions, source_tokens, len(tokens) + 1) or _copies_warning(tokenizer, source),
        hypothesis.log_probability,
        len(tokens) + hypothesis.finished,
    )


def _copies_warning(tokenizer: Tokenizer, source: str) -> str | None:
    """A warning if a source has more spans of a kind than there are placeholders."""
    if not (missed := tokenizer.missed(source)):
        return None
    return f"it has {missed} numbers, addresses or the like beyond those that are copied: they are translated as text"


def _positions_warning(most: int | None, source_tokens: int, target_tokens: int) -> str | None:
    """A warning if a side has more tokens (including the begin or end symbol) than learned positions."""
    if most is None or max(source_tokens, target_tokens) <= most:
        return None
    side, tokens = ("source", source_tokens) if source_tokens > most else ("translation", target_tokens)
    return f"the {side} has {tokens} tokens, but the model learned {most} positions: beyond them it sees no order"


@dataclass(frozen=True)
class Constraints:
    """Prefixes and phrases of each sentence, in tokens; an empty list if no sentence has any."""

    prefixes: list[list[int]] = field(default_factory=list)
    phrases: list[list[list[list[int]]]] = field(default_factory=list)

    def select(self, places: Sequence[int]) -> Constraints:
        """The constraints of some sentences."""
        return Constraints(
            [self.prefixes[place] for place in places] if self.prefixes else [],
            [self.phrases[place] for place in places] if self.phrases else [],
        )


def encode_constraints(tokenizer: Tokenizer, request: TranslationRequest) -> Constraints:
    """The prefixes and phrases of a request in tokens.

    Raises:
        InputError: not one prefix, or list of phrases, for each text; a string in place of a list of phrases; an empty
            text, which is not translated, with either; a phrase without characters.
        ConfigurationError: a prefix, and the model writes from right to left.
    """
    texts = request.texts
    for name, given in (("prefixes", request.prefixes), ("phrases", request.phrases)):
        if given is not None and (isinstance(given, str) or len(given) != len(texts)):
            raise InputError(f"{name}: expected one for each of {len(texts)} texts, got {len(given)}")
        if name == "phrases" and any(isinstance(own, str) for own in given or ()):
            raise InputError("phrases: expected a list of phrases for each text, got a string; write [[phrase], ...]")
        for number, (text, wanted) in enumerate(zip(texts, given or (), strict=False), 1):
            if wanted and not text.strip():
                raise InputError(f"text {number} is empty, so it cannot have {name}")
    if any(request.prefixes or ()):
        require_forwards(tokenizer, "prefixes")
    phrases = [
        [[_phrase(tokenizer, word, text) for word in _alternatives(phrase, number)] for phrase in own]
        for number, (own, text) in enumerate(zip(request.phrases or (), texts, strict=False), 1)
    ]
    prefixes = tokenizer.answers(list(request.prefixes or ()), list(texts) if request.prefixes else [])
    return Constraints(prefixes, phrases if any(phrases) else [])


def _phrase(tokenizer: Tokenizer, phrase: str, source: str) -> list[int]:
    """The tokens of a phrase, with the placeholders of its source."""
    if not tokenizer.copied:
        return tokenizer.encode_phrase(phrase)
    return tokenizer.answers([phrase], [source])[0][len(tokenizer.prefix) :]


def _alternatives(phrase: str | Sequence[str], number: int) -> list[str]:
    alternatives = [phrase] if isinstance(phrase, str) else list(phrase)
    if not alternatives or not all(alternative.strip() for alternative in alternatives):
        raise InputError(f"text {number}: a phrase that must appear has no characters: {phrase!r}")
    return alternatives


class ConstraintError(ConfigurationError):
    """A prefix or phrases that no translation of their text can have.

    Args:
        place: of the text, counted from 0.
        name: "prefix", "phrases", or "prefix and phrases", which fit only one without the other.
        reason: what is wrong with them.
    """

    def __init__(self, place: int, name: str, reason: str) -> None:
        self.place, self.name, self.reason = place, name, reason
        super().__init__(f"text {place + 1}: its {reason}")


def _no_room(place: int, name: str, needed: int, limit: int) -> ConstraintError:
    """The error of constraints that need more tokens, including the end symbol, than the limit of their text."""
    return ConstraintError(
        place,
        name,
        f"{name} and the end symbol need {needed} tokens, more than the limit of {limit}: raise max_length or "
        "length_margin",
    )


def check_room(constraints: Constraints, limits: Sequence[int | None], forced: Sequence[int] = ()) -> None:
    """Check that constraints fit into the length limits of their texts, and that phrases are not too many.

    Args:
        constraints: prefixes and phrases.
        limits: of each text; None: a text that is not translated.
        forced: symbols with which every translation begins (`Tokenizer.prefix`); a prefix has them.

    Raises:
        ConstraintError: they do not.
    """
    from multihead.decoding.lexical import TooManyPhrasesError, fewest_symbols

    for place, limit in enumerate(limits):
        if limit is None:
            continue
        prefix = constraints.prefixes[place] if constraints.prefixes else []
        phrases = constraints.phrases[place] if constraints.phrases else []
        before, name = (prefix, "prefix and phrases") if prefix else (forced, "phrases")
        if len(prefix) >= limit:
            raise _no_room(place, "prefix", len(prefix) + 1, limit)
        try:
            needed = len(before) + (fewest_symbols(phrases, limit - 1 - len(before), before) if phrases else 0)
        except TooManyPhrasesError as error:
            raise ConstraintError(place, "phrases", str(error)) from None
        if phrases and needed >= limit:
            raise _no_room(place, name, needed + 1, limit)


_MOST_STATES = 1 << 24
"""Entries of the tables of a batch, of 8 bytes each."""


def within_tables(group: Sequence[int], phrases: Sequence[Sequence[Sequence[Sequence[int]]]]) -> Iterator[list[int]]:
    """A batch in parts whose tables of phrases fit into memory; each sentence has as much room as the largest one.

    Args:
        group: the sentences.
        phrases: of all sentences.
    """
    from multihead.decoding.lexical import table_size

    part: list[int] = []
    largest = 0
    for place in group:
        most = max(largest, table_size(phrases[place]))
        if part and most * (len(part) + 1) > _MOST_STATES:
            yield part
            part, most = [], table_size(phrases[place])
        part.append(place)
        largest = most
    yield part


def build_restrictions(search: Search, tokenizer: Tokenizer, constraints: Constraints) -> list[Restriction]:
    """The forbidden words of a search, then the prefixes."""
    from multihead.decoding.restrictions import Prefix, Without

    restrictions: list[Restriction] = []
    if search.without:
        restrictions.append(Without([tokenizer.encode_phrase(word) for word in search.without]))
    if constraints.prefixes:
        restrictions.append(Prefix(constraints.prefixes))
    return restrictions


def search_batch(
    stepper: Stepper[Any],
    source: Tensor,
    lengths: Tensor,
    task: SearchTask,
    search: Search,
    phrases: Sequence[Sequence[Sequence[Sequence[int]]]] = (),
) -> list[list[Hypothesis]]:
    """The n best of each sentence by the search that the settings describe, step by step.

    With a recorder, a beam of 1 runs as beam search; the result is the same.

    Raises:
        ConfigurationError: phrases and groups together.
    """
    from multihead.decoding.beam import beam_search
    from multihead.decoding.diverse import diverse_beam_search
    from multihead.decoding.greedy import greedy_search
    from multihead.decoding.lexical import lexical_beam_search

    plain = not (phrases or search.coverage or task.recorder)
    if search.beam == 1 and search.stopping == "exact" and plain:
        return [[hypothesis] for hypothesis in greedy_search(stepper, source, lengths, task, search)]
    if phrases and search.groups > 1:
        raise ConfigurationError("phrases that must appear cannot be combined with groups: leave one of them out")
    if phrases:
        return lexical_beam_search(stepper, source, lengths, phrases, task, search)
    if search.groups > 1:
        return diverse_beam_search(stepper, source, lengths, task, search)
    return beam_search(stepper, source, lengths, task, search)


def lacking(tokenizer: Tokenizer, hypotheses: Sequence[Hypothesis], wanted: Sequence[int]) -> bool:
    """Whether one of the hypotheses lacks a placeholder of its source, or has another or one twice."""
    if not tokenizer.copied:
        return False
    want = sorted(wanted)
    return any(sorted(i for i in one.tokens if i in tokenizer.copied) != want for one in hypotheses)


def uncompiled_reason(search: Search, constraints: Constraints) -> str | None:
    """Why the compiled search cannot run this search; None if it can."""
    if search.no_repeat or search.without:
        return "no_repeat and without are not compiled"
    if any(constraints.prefixes) or constraints.phrases:
        return "prefixes and phrases are not compiled"
    if search.groups > 1:
        return "groups are not compiled"
    if search.coverage:
        return "coverage is not compiled"
    return f"beams above {WIDEST} are not compiled" if search.beam > WIDEST else None


def symbols_of(tokenizer: Tokenizer) -> Symbols:
    """The symbols of a vocabulary that a search must know."""
    return Symbols(tokenizer.bos_id, tokenizer.eos_id, tokenizer.forbidden_in_output, tokenizer.prefix)


def require_same_vocabularies(first: Bundle, other: Bundle, what: str) -> None:
    """Raise ConfigurationError if two models have different vocabularies; ``what``: the other one, for the message."""
    sides = {
        "source": (first.source_tokenizer, other.source_tokenizer),
        "target": (first.target_tokenizer, other.target_tokenizer),
    }
    for side, (one, two) in sides.items():
        if one.digest != two.digest:
            raise ConfigurationError(
                f"{what} has another {side} vocabulary (SHA-256 {two.digest[:12]}..., the first has "
                f"{one.digest[:12]}...): train them from the same prepared text"
            )


def check_ensemble(bundles: Sequence[Bundle]) -> None:
    """Check that several models, of any kind and size, can translate as one.

    Raises:
        ConfigurationError: fewer than two; one has another vocabulary than the first, or is on another device.
    """
    if len(bundles) < 2:
        raise ConfigurationError("an ensemble needs at least two models")
    first = bundles[0]
    for number, other in enumerate(bundles[1:], start=2):
        require_same_vocabularies(first, other, f"model {number} of the ensemble")
        if _device_of(other) != _device_of(first):
            raise ConfigurationError(
                f"model {number} of the ensemble is not on {_device_of(first)}, where the first is"
            )


def _device_of(bundle: Bundle) -> str:
    searched = bundle.searched
    return "cpu" if isinstance(searched, StoredTransformer) else str(searched.output.weight.device)
