"""Which words of a row are hidden from a BERT, and what it is shown in their place (Devlin et al. 2019, 3.1 and A.1).

15% of a row's tokens are chosen. Of those, 80% are shown as [MASK], 10% as some other entry of the vocabulary, and 10%
as they are, so that a state cannot rely on being told which words are right. Special symbols are neither chosen nor
drawn. What is chosen is a function of seed, epoch and example alone: anew in each epoch, and the same in whatever
batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from multihead.data.order import Array
from multihead.errors import ConfigurationError, InputError

Booleans = npt.NDArray[np.bool_]

SHARE, HIDDEN, OTHER = 0.15, 0.8, 0.1
"""Of the tokens that are chosen; of the chosen that are hidden; and that are shown as others."""


class Corrupted(NamedTuple):
    """What becomes of a row."""

    shown: Array
    """The ids that the model reads."""
    chosen: Booleans
    """Where it is to tell what stood there."""


class Corruption:
    """Draws what is hidden.

    Args:
        hidden_id: the symbol [MASK].
        special: ids that are never chosen and never drawn.
        begins_word: of each entry of the vocabulary, whether a word begins with it.
        seed: of the random numbers.
        share: of a row's words that are chosen, rounded to whole tokens, but one at least.
        whole_words: words are chosen as a whole, as many of them as the share has room for; what becomes of each of
            their tokens is still drawn one by one.

    Raises:
        ConfigurationError: a share that is none, or a vocabulary without words.
    """

    def __init__(
        self,
        hidden_id: int,
        special: Sequence[int],
        begins_word: Booleans,
        seed: int,
        *,
        share: float = SHARE,
        whole_words: bool = False,
    ) -> None:
        if not 0 < share <= 1:
            raise ConfigurationError(f"the share of words to be hidden is {share}; expected above 0 and at most 1")
        self.hidden_id, self.seed, self.share, self.whole_words = hidden_id, seed, share, whole_words
        self._begins_word = begins_word
        self._is_word = np.ones(len(begins_word), np.bool_)
        self._is_word[list(special)] = False
        self._words = self._is_word.nonzero()[0]
        if not len(self._words):
            raise ConfigurationError("a vocabulary of special symbols alone; expected words to hide")

    def corrupt(self, ids: Array, epoch: int, example: int) -> Corrupted:
        """Hides words of one row.

        Args:
            ids: all of it, symbols too, without padding.
            epoch: from 0.
            example: its number within the epoch.

        Raises:
            InputError: there is no word in it.
        """
        random = np.random.Generator(np.random.Philox(np.random.SeedSequence(self.seed, spawn_key=(epoch, example))))
        chosen = self._choose(ids, random)
        draws = random.random(len(chosen))
        shown = ids.copy()
        shown[chosen[draws < HIDDEN]] = self.hidden_id
        others = chosen[(draws >= HIDDEN) & (draws < HIDDEN + OTHER)]
        shown[others] = self._words[random.integers(0, len(self._words), len(others))]
        mask = np.zeros(len(ids), np.bool_)
        mask[chosen] = True
        return Corrupted(shown, mask)

    def _choose(self, ids: Array, random: np.random.Generator) -> Array:
        """The places of the chosen tokens."""
        candidates = self._is_word[ids].nonzero()[0]
        if not len(candidates):
            raise InputError("a row without words; expected at least one between its symbols")
        wanted = max(1, round(self.share * len(candidates)))
        if not self.whole_words:
            return random.permutation(candidates)[:wanted]
        # A word begins where an entry says so, and behind whatever is no word.
        begins = self._begins_word[ids[candidates]] | (np.diff(candidates, prepend=-2) > 1)
        words = np.split(candidates, begins.nonzero()[0][1:])
        shuffled = [words[place] for place in random.permutation(len(words))]
        return np.concatenate(_that_fit(shuffled, wanted))


def _that_fit(words: list[npt.NDArray[Any]], room: int) -> list[npt.NDArray[Any]]:
    """Words in their order, without those for which there is no room any more; one at least, the shortest then."""
    taken = []
    for word in words:
        if len(word) <= room:
            taken.append(word)
            room -= len(word)
    return taken or [min(words, key=len)]
