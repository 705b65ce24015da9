"""Small Transformers in double precision, with nothing in them left at zero or one, and batches for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from multihead.decoding.stepper import Symbols
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer

PAD, BEGIN, END = 0, 1, 2


def config(**changes: Any) -> TransformerConfig:
    """Two layers a side, two vocabularies, no dropout."""
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
    """A model to evaluate; ``noise`` moves biases and norms away from zero and one."""
    torch.manual_seed(seed)
    made = Transformer(config(**changes)).to(dtype).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += noise * torch.randn_like(parameter)
        for embedding in (made.source_embedding, made.target_embedding):
            embedding.table.weight[PAD].zero_()
    return made


def padded(rows: list[tuple[int, ...]], extra: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of ids with ``extra`` positions of padding behind the longest; and their lengths."""
    width = max(map(len, rows)) + extra
    ids = torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows])
    return ids, torch.tensor([len(row) for row in rows])


class Small:
    """What the tests of this folder share."""

    config = staticmethod(config)
    model = staticmethod(model)
    padded = staticmethod(padded)
    symbols = Symbols(begin=BEGIN, end=END, forbidden=(PAD, BEGIN))
    sources = ((5, 7, 3, 12, 2), (9, 2), (4, 4, 10, 2), (11, 3, 6, 8, 12, 7, 2))
    targets = ((1, 6, 4), (1, 9, 9, 3, 5), (1, 10), (1, 3, 8, 7))


@pytest.fixture(scope="session")
def small() -> Small:
    return Small()
