"""Several directions in one model, and the languages with a symbol.

Corpora have a source and a target language each. If there is more than one target language, a source begins with a
symbol of the language into which it is translated (`text.language_tokens`), in training as in translation. A model that
is fine-tuned keeps the symbols that it has. Validation pairs are stored direction after direction, so that each can be
scored by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from itertools import accumulate

from multihead.data.corpus import Pair
from multihead.errors import ConfigurationError
from multihead.planning.settings import Choices, DirectionRecord
from multihead.preparing.corpora import TextFiles, WeightedCorpus
from multihead.text.languages import Direction
from multihead.text.tokenizer import Tokenizer

Part = tuple[WeightedCorpus, list[Pair]]
"""Validation pairs, and the corpus that says their languages."""


def choose_symbols(choices: Choices, files: TextFiles, kept: Tokenizer | None) -> tuple[str, ...]:
    """The languages that get a symbol at the start of a source; none if there is one target language.

    Args:
        choices: collects the reason.
        files: the scanned text.
        kept: the tokenizer of sources of a given model, which has the symbols that it has.

    Raises:
        ConfigurationError: the target language of a corpus is not known, or has no symbol in the given model.
    """
    corpora = (*files.train, *files.valid_parts)
    targets = tuple(dict.fromkeys(target for one in files.train if (target := one.languages[1]) is not None))
    symbols = targets if len(targets) > 1 else ()
    if symbols and (choices.requested("source_factors") is not None or (kept is not None and kept.factors > 1)):
        raise ConfigurationError(
            f"source_factors: the text has several target languages ({', '.join(targets)}), whose symbols have none: "
            "train a model of one, or leave source_factors out"
        )
    reason = f"there are {len(targets)} target languages"
    if kept is not None:
        if symbols and not kept.languages:
            raise ConfigurationError(
                f"the text has several target languages ({', '.join(targets)}), and the given model has no symbols to "
                "tell them apart: fine-tune it for one of them, or train a new model"
            )
        symbols, reason = kept.languages, "the given model's"
    if not symbols:
        return ()
    for corpus in corpora:
        if corpus.languages[1] not in symbols:
            raise ConfigurationError(
                f"{corpus.name}: its target language is {corpus.languages[1] or 'not known'}, expected one of "
                f"{', '.join(symbols)}; name it: target_language=... of the corpus"
            )
    choices.reasons["language_symbols"] = f"{', '.join(f'>>{code}<<' for code in symbols)}: {reason}"
    return symbols


def split_pairs(pairs: Sequence[Pair], corpora: Sequence[WeightedCorpus], held_out: Sequence[Sized]) -> list[Part]:
    """Held-out pairs, which follow each other as their corpora do, with the corpus of each."""
    ends = accumulate(map(len, held_out))
    return [
        (corpus, list(pairs[end - len(own) : end])) for corpus, own, end in zip(corpora, held_out, ends, strict=True)
    ]


def directions_of(corpora: Iterable[WeightedCorpus]) -> list[Direction]:
    """The directions of corpora with known targets, in the order of their first appearance."""
    found = (Direction(one.languages[0], one.languages[1]) for one in corpora if one.languages[1] is not None)
    return list(dict.fromkeys(found))


def by_direction(parts: Sequence[Part]) -> list[tuple[Direction, list[Pair]]]:
    """Validation pairs by direction; the pairs of each in the order of its parts."""
    found: dict[Direction, list[Pair]] = {}
    for corpus, pairs in parts:
        source, target = corpus.languages
        found.setdefault(Direction(source, target or ""), []).extend(pairs)
    return list(found.items())


def direction_records(
    train: Iterable[WeightedCorpus], valid: Iterable[tuple[Direction, list[Pair]]]
) -> tuple[DirectionRecord, ...]:
    """What run.json records of directions: those of validation in their order, then others that are trained on."""
    counts = {direction: len(pairs) for direction, pairs in valid}
    counts |= {direction: 0 for direction in directions_of(train) if direction not in counts}
    return tuple(DirectionRecord(source=d.source, target=d.target, valid=count) for d, count in counts.items())
