"""Small Transformers in float64 with random biases and norms, and batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import signatures
import torch
from torch import Tensor

from multihead.decoding.search import Symbols
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer, TransformerState

PAD, BEGIN, END = 0, 1, 2
Ids = tuple[int, ...]

UNUSUAL: dict[str, Any] = {
    "norm": "pre",
    "positions": "learned",
    "max_positions": 6,
    "embedding_scale": "projection",
    "embedding_norm": True,
    "kv_heads": 2,
    "key_dim": 6,
    "value_dim": 3,
    "attention_bias": False,
    "feed_forward": "swiglu",
    "initialization": "xavier",
}
"""All options at values other than their defaults."""


def config(**changes: Any) -> TransformerConfig:
    """Two encoder and two decoder layers, two vocabularies, no dropout."""
    sizes: dict[str, Any] = {
        "source_vocab": 13,
        "target_vocab": 11,
        "tie_embeddings": False,
        "width": 16,
        "heads": 4,
        "inner": 24,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "dropout": 0.0,
    }
    return TransformerConfig(**(sizes | changes))


def model(seed: int = 0, dtype: torch.dtype = torch.float64, noise: float = 0.1, **changes: Any) -> Transformer:
    """A model in evaluation mode; ``noise`` is added to biases and norms."""
    torch.manual_seed(seed)
    made = Transformer(config(**changes)).to(dtype).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += noise * torch.randn_like(parameter)
        for embedding in (made.source_embedding, made.target_embedding):
            embedding.table.weight[PAD].zero_()
    return made


def padded(rows: list[Ids], extra: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of ids with ``extra`` positions of padding after the longest, and their lengths."""
    width = max(map(len, rows)) + extra
    ids = torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows])
    return ids, torch.tensor([len(row) for row in rows])


SOURCES: tuple[Ids, ...] = ((5, 7, 3, 12, 2), (9, 2), (4, 4, 10, 2), (11, 3, 6, 8, 12, 7, 2))
TARGETS: tuple[Ids, ...] = ((1, 6, 4), (1, 9, 9, 3, 5), (1, 10), (1, 3, 8, 7))


_KNOWN: WeakKeyDictionary[Transformer, dict[tuple[Ids, Ids], Tensor]] = WeakKeyDictionary()


@dataclass
class Checked:
    """A state, and the source and the target so far of each row."""

    model: Transformer
    state: TransformerState
    rows: list[tuple[Ids, Ids]]
    known: dict[tuple[Ids, Ids], Tensor]
    """What the forward pass says of each row, as long as the model is used unchanged."""

    @classmethod
    def begin(cls, model: Transformer, *which: int, extra: int = 0) -> Checked:
        """A state of some of the sources, before the first step."""
        known = _KNOWN.setdefault(model, {})
        sources = [SOURCES[index] for index in which]
        with torch.no_grad():
            return cls(model, model.start(*padded(sources, extra)), [(source, ()) for source in sources], known)

    def step(self, tokens: Sequence[int]) -> Checked:
        """Make a step, and compare every row with a forward pass over that row alone."""
        before, state = self.state.positions.clone(), self.state
        log_probabilities, following = self.model.step(torch.tensor(tokens, dtype=torch.long), state)
        rows = [(source, (*target, token)) for (source, target), token in zip(self.rows, tokens, strict=True)]
        expected = [self._alone(row) for row in rows]
        assert log_probabilities.shape == (len(rows), self.model.config.target_vocab)
        torch.testing.assert_close(list(log_probabilities), expected, rtol=1e-10, atol=1e-10)
        assert following.rows == len(rows)
        assert following.positions.tolist() == [len(target) for _, target in rows]
        assert torch.equal(state.positions, before)
        return Checked(self.model, following, rows, self.known)

    def select(self, *rows: int) -> Checked:
        state = self.state.select(torch.tensor(rows, dtype=torch.long))
        return Checked(self.model, state, [self.rows[row] for row in rows], self.known)

    def join(self, other: Checked) -> Checked:
        return Checked(self.model, self.state.join(other.state), self.rows + other.rows, self.known)

    def _alone(self, row: tuple[Ids, Ids]) -> Tensor:
        if row not in self.known:
            source, target = (torch.tensor([ids]) for ids in row)
            with signatures.disabled():  # the steps are checked
                logits = self.model(source, torch.tensor([source.size(1)]), target).logits
            self.known[row] = logits[0, -1].log_softmax(-1)
        return self.known[row]


class Small:
    """Helpers of the tests in this folder."""

    config = staticmethod(config)
    model = staticmethod(model)
    padded = staticmethod(padded)
    begin = staticmethod(Checked.begin)
    symbols = Symbols(begin=BEGIN, end=END, forbidden=(PAD, BEGIN))
    sources = SOURCES
    targets = TARGETS
    unusual = UNUSUAL


@pytest.fixture(scope="session")
def small() -> Small:
    return Small()
