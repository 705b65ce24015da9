"""Predict hidden words with a pre-trained BERT: `MaskFiller`.

Every "[MASK]" of a text is predicted independently, as if the others stayed hidden: the probabilities are
P(w_i | text), not those of all hidden words together.
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
"""Tokens per batch, including padding."""


class Candidate(NamedTuple):
    """A word that may replace a "[MASK]"."""

    word: str
    """A word; "##" in front marks the continuation of the previous word."""
    probability: float
    """Among all entries of the vocabulary except special symbols."""


@dataclass(frozen=True)
class Filled:
    """A text with its hidden words predicted."""

    text: str
    """With the most probable word in each hidden place, otherwise as it was given."""
    candidates: tuple[tuple[Candidate, ...], ...]
    """For each hidden place in order, the most probable first."""


class MaskFiller:
    """Predicts hidden words.

    Args:
        bert: a model with a trained word head.

    Raises:
        FormatError: the model has none.

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
        """Load a model; the arguments and errors are those of `PretrainedBert.load`."""
        return cls(PretrainedBert.load(path, device))

    def count(self, text: str) -> int:
        """The tokens of a row with this text, including symbols; `fill` accepts up to the model's ``max_positions``."""
        return len(self.words.encode_with_hidden(text)) + 2

    @torch.no_grad()
    def fill(self, texts: Sequence[str], top: int = 5) -> list[Filled]:
        """Predict the most probable words for each hidden place; texts without one are returned unchanged.

        Args:
            texts: texts of one or several sentences, with "[MASK]" for each hidden word.
            top: candidates per hidden place.

        Raises:
            InputError: a text is longer than the model can read; the message gives its number.
            DataError: a text contains a lone surrogate.
            ConfigurationError: ``top`` is below 1.
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
            for place, row_states, row_tokens in zip(members, states, tokens, strict=True):
                results[place] = self._fill_one(texts[place], row_states[row_tokens == hidden], top)
        return results

    def _fill_one(self, text: str, states: Tensor, top: int) -> Filled:
        """Fill one text, given the states of its hidden places: (hidden places, D)."""
        logits = self.model.word_logits(states).masked_fill(~self._usable, -torch.inf)
        found = logits.softmax(-1).topk(min(top, int(self._usable.sum())), dim=-1)
        candidates = tuple(
            tuple(Candidate(self.words.show(index), value) for index, value in zip(indices, values, strict=True))
            for indices, values in zip(found.indices.tolist(), found.values.tolist(), strict=True)
        )
        return Filled(self.words.fill(text, found.indices[:, 0].tolist()), candidates)
