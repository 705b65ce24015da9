"""Texts with hidden words in, the most probable words out: the `MaskFiller` that a program holds.

Every "[MASK]" of a text is told at once, each as if the others were still hidden: P(w_i | text), not the probability of
all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from multihead.data.order import batches_by_tokens
from multihead.errors import ConfigurationError, FormatError, InputError
from multihead.runs.bert.model import PretrainedBert

_AT_ONCE = 1 << 13
"""Tokens, padding counted, that are read together."""


class Candidate(NamedTuple):
    """What may stand in a hidden place."""

    word: str
    """A word; "##" in front says that it goes on with the one before it."""
    probability: float
    """Among all entries of the vocabulary but special symbols."""


@dataclass(frozen=True)
class Filled:
    """A text with its hidden words told."""

    text: str
    """With the most probable word in each place."""
    candidates: tuple[tuple[Candidate, ...], ...]
    """Of each hidden place in order, the most probable first."""


class MaskFiller:
    """Tells hidden words.

    Args:
        bert: a model whose word head was trained.

    Raises:
        FormatError: it was not.

    Example:
        ``MaskFiller.load("run").fill(["A dog [MASK] in the grass."])[0].text``
    """

    def __init__(self, bert: PretrainedBert) -> None:
        if "words" in bert.missing:
            raise FormatError(
                "this model has no head that tells words: take one that was saved with it (BertForMaskedLM or "
                "BertForPreTraining)"
            )
        self.bert, self.model, self.words = bert, bert.model.eval(), bert.words
        usable = torch.zeros(self.model.config.vocab, dtype=torch.bool)
        usable[: len(self.words)] = True
        usable[list(self.words.special)] = False
        self._usable = usable.to(self.model.pooler.weight.device)

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> MaskFiller:
        """Reads a model as `PretrainedBert.load`, whose errors it has."""
        return cls(PretrainedBert.load(path, device))

    def count(self, text: str) -> int:
        """Tokens of a row with this text, symbols included: `fill` takes as many as there are positions."""
        return len(self.words.encode_with_hidden(text)) + 2

    @torch.no_grad()
    def fill(self, texts: Sequence[str], top: int = 5) -> list[Filled]:
        """The most probable words for each hidden place of each text; a text without one stays as it is.

        Args:
            texts: a sentence each, or several; "[MASK]" stands for what is to be told.
            top: candidates of each place.

        Raises:
            InputError: a text is longer than the model can read; names it by its place.
            DataError: a text has a lone surrogate.
            ConfigurationError: a number of candidates below 1.
        """
        if top < 1:
            raise ConfigurationError(f"top is {top}: the number of candidates is at least 1")
        hidden, limit = self.words.symbols.hidden, self.model.config.max_positions
        rows = [self.words.encode_with_hidden(text) for text in texts]
        for number, row in enumerate(rows, start=1):
            if len(row) + 2 > limit:
                raise InputError(
                    f"text {number} has {len(row) + 2} tokens, but this model reads {limit} at most: shorten it"
                )
        results = [Filled(text, ()) for text in texts]
        work = [place for place, row in enumerate(rows) if hidden in row]
        for group in batches_by_tokens([len(rows[place]) + 2 for place in work], _AT_ONCE):
            members = [work[place] for place in group]
            tokens, lengths = self.bert.rows([rows[place] for place in members])
            states = self.model.encode(tokens, lengths, torch.zeros_like(tokens)).states
            for place, of_row, read in zip(members, states, tokens, strict=True):
                results[place] = self._filled(rows[place], of_row[read == hidden], top)
        return results

    def _filled(self, ids: list[int], states: Tensor, top: int) -> Filled:
        """One text, from the states of its hidden places."""
        logits = self.model.word_logits(states).masked_fill(~self._usable, -torch.inf)
        found = logits.softmax(-1).topk(min(top, int(self._usable.sum())), dim=-1)
        chosen = iter(found.indices[:, 0].tolist())
        hidden = self.words.symbols.hidden
        whole = [next(chosen) if index == hidden else index for index in ids]
        candidates = tuple(
            tuple(Candidate(self.words.show(index), value) for index, value in zip(indices, values, strict=True))
            for indices, values in zip(found.indices.tolist(), found.values.tolist(), strict=True)
        )
        return Filled(self.words.decode(whole), candidates)
