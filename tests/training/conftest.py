"""A tiny Transformer and batches for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from multihead.data.batching import Batch, collate
from multihead.data.store import ParallelStore
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.training.config import TrainingConfig

PAD, BEGIN, END = 0, 2, 3


@dataclass(frozen=True)
class Toy:
    """A tiny model, its settings and its batches."""

    store: ParallelStore
    pad: int = PAD

    @staticmethod
    def model(seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> Transformer:
        sizes = {"width": 8, "heads": 2, "inner": 12, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
        torch.manual_seed(seed)
        return Transformer(TransformerConfig(**{"source_vocab": 20, "target_vocab": 20, **sizes, **changes})).to(dtype)

    @staticmethod
    def config(**changes: Any) -> TrainingConfig:
        return TrainingConfig(**{"updates": 20, "warmup": 2, "batch_tokens": 24, "log_every": 3, **changes})

    def batch(self, *indices: int) -> Batch:
        return collate(self.store, np.array(indices, np.int64), pad_id=PAD, bos_id=BEGIN, eos_id=END)


@pytest.fixture(scope="session")
def toy() -> Toy:
    draw = np.random.default_rng(0)
    rows = [draw.integers(4, 20, draw.integers(1, 9)).tolist() for _ in range(60)]
    return Toy(ParallelStore.from_lists(rows[:30], rows[30:]))
