"""Learn characters and merges from text: byte-pair encoding.

Sennrich, Haddow and Birch 2016, section 3.2. The ``tokenizers`` library counts and merges; this module prepares its
input and checks its result. The same lines give the same merges, on any number of threads.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from multihead.errors import ConfigurationError, InputError
from multihead.text.vocabulary import (
    BYTE_TOKENS,
    FIRST_CHARACTER,
    MARK,
    PATTERN,
    Parts,
    Specials,
    check_unicode,
    spaces_to_marks,
)

LONGEST = 24
"""Maximum number of characters per token: longer ones are repetitions (a row of dashes, a whole sentence)."""

LONGEST_PIECE = 1000
"""Maximum number of characters that are counted as one piece. The library's time grows with the square of a piece's
length, so a longer one is cut; only the pairs at the cuts are lost."""

_COUNTED = 2_000
"""Lines whose characters are counted at a time."""

NEVER_LEARNED = frozenset(f" {MARK}\r\n")
"""Characters without entries: a space becomes a mark; a literal mark and line breaks become bytes, so that forbidding
the bytes LF and CR prevents a search from emitting line breaks."""


def learn(
    lines: Iterable[str], vocab_size: int, specials: Specials, coverage: float, min_frequency: int, others: int = 0
) -> Parts:
    """Learn the parts of a tokenizer; see ``Tokenizer.learn``. ``others``: entries that are added to them."""
    if not 0.0 < coverage <= 1.0:
        raise ConfigurationError(f"coverage is {coverage}: it is a share of characters, above 0 and at most 1")
    if min_frequency < 1:
        raise ConfigurationError(f"min_frequency is {min_frequency}: it is a count, at least 1")
    corpus = list(lines)
    counts = count_characters(corpus)
    kept = characters_to_keep(counts, coverage)
    before = FIRST_CHARACTER + others
    room = vocab_size - before
    if room < len(kept):
        named = "special and user-defined symbols and bytes" if others else "special symbols and bytes"
        raise ConfigurationError(
            f"vocab_size is {vocab_size}, but {before} {named} and {len(kept)} "
            f"characters need {before + len(kept)}: raise vocab_size{other_remedy(counts, coverage, room)}"
        )
    long = any(len(line) >= LONGEST_PIECE for line in corpus)
    learned = learn_merges(without(corpus, counts.keys() - set(kept)), room, min_frequency, long)
    reserved = (*specials.strings, *BYTE_TOKENS)
    merges = possible_merges(learned, kept, frozenset(reserved))
    # Two merges can have the same result ("a"+"bc", "ab"+"c"); the dictionary keeps the first place.
    vocabulary = dict.fromkeys((*reserved, *kept, *(left + right for left, right in merges)))
    return Parts(tuple(vocabulary), tuple(merges))


def count_characters(corpus: Sequence[str]) -> Counter[str]:
    """The frequency of each character.

    Raises:
        DataError: a line has a lone surrogate.
        InputError: there is no text but spaces.
    """
    found = np.zeros(sys.maxunicode + 1, np.int64)
    for start in range(0, len(corpus), _COUNTED):
        points = "".join(corpus[start : start + _COUNTED]).encode("utf-32-le", "surrogatepass")
        part = np.bincount(np.frombuffer(points, "<u4"))
        found[: len(part)] += part
    counts = Counter({chr(point): int(found[point]) for point in np.flatnonzero(found)})
    if any("\ud800" <= character <= "\udfff" for character in counts):
        for number, line in enumerate(corpus, 1):
            check_unicode(line, f"line {number}")
    if counts.keys() <= NEVER_LEARNED:
        raise InputError(
            f"there is nothing to learn a vocabulary from: got {len(corpus)} lines without any text, "
            "expected the training text"
        )
    return counts


def characters_to_keep(counts: Counter[str], coverage: float) -> list[str]:
    """The word mark and the most frequent other characters that cover the share ``coverage`` of a text, sorted."""
    candidates = sorted(counts.keys() - NEVER_LEARNED, key=lambda character: (-counts[character], character))
    wanted = coverage * sum(counts[character] for character in candidates)
    kept, covered = [MARK], 0
    for character in candidates:
        if covered >= wanted:
            break
        kept.append(character)
        covered += counts[character]
    return sorted(kept)


def other_remedy(counts: Counter[str], coverage: float, room: int) -> str:
    """Advice on lowering the coverage so that the characters fit into ``room``; empty if that does not help."""
    frequencies = sorted((counts[character] for character in counts.keys() - NEVER_LEARNED), reverse=True)
    # One place is needed for the word mark. The share is rounded down to three decimals.
    share = math.floor(sum(frequencies[: max(room - 1, 0)]) / sum(frequencies) * 1000) / 1000
    if not share:
        return ""
    return (
        f", or lower coverage from {coverage:g} to {share:g}, so that more of the rare characters are spelled in bytes"
    )


def without(corpus: Sequence[str], characters: Iterable[str]) -> Iterator[str]:
    """The lines with these characters (except spaces) replaced by LF, at which pieces are cut."""
    unwanted = sorted({*characters, *NEVER_LEARNED} - {" "})
    pattern = re.compile(f"[{re.escape(''.join(unwanted))}]")
    return (pattern.sub("\n", line) for line in corpus)


def learn_merges(
    lines: Iterable[str], vocab_size: int, min_frequency: int, long: bool = False
) -> list[tuple[str, str]]:
    """The merges for a vocabulary of this size, which includes the characters of the lines.

    ``long``: whether a line has `LONGEST_PIECE` characters.
    """
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = spaces_to_marks()
    splits = [pre_tokenizers.Split("\n", "removed"), pre_tokenizers.Split(tokenizers.Regex(PATTERN), "isolated")]
    if long:
        splits.append(pre_tokenizers.Split(tokenizers.Regex(rf"[\s\S]{{1,{LONGEST_PIECE}}}"), "isolated"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, max_token_length=LONGEST, show_progress=False
    )
    backend.train_from_iterator(lines, trainer)
    # The library exposes merges only in its file format.
    merges = json.loads(backend.to_str())["model"]["merges"]
    return [(left, right) for left, right in merges]


def possible_merges(
    merges: Iterable[tuple[str, str]], characters: Iterable[str], reserved: frozenset[str]
) -> list[tuple[str, str]]:
    """The merges that do not spell a reserved string, directly or indirectly, so that no text becomes one."""
    known = set(characters)
    possible = []
    for left, right in merges:
        if left in known and right in known and left + right not in reserved:
            known.add(left + right)
            possible.append((left, right))
    return possible
