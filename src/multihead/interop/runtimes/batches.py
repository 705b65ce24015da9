"""Batches of sentences of similar lengths, padded, for runtimes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

_ROWS = 32


class Sources(NamedTuple):
    """Some sources as a batch."""

    places: list[int]
    """Of the sources in the list."""
    ids: Tensor
    """[rows, longest], padded at the end."""
    lengths: Tensor
    """Ids of each."""

    @property
    def mask(self) -> Tensor:
        """[rows, longest]: 1 for ids, 0 for padding."""
        return (torch.arange(self.ids.shape[1]) < self.lengths[:, None]).long()


def batches(sources: Sequence[Sequence[int]], pad_id: int) -> Iterator[Sources]:
    """All sources, long ones first."""
    order = sorted(range(len(sources)), key=lambda place: -len(sources[place]))
    for start in range(0, len(order), _ROWS):
        places = order[start : start + _ROWS]
        rows = [sources[place] for place in places]
        yield Sources(places, pad(rows, pad_id), torch.tensor([len(row) for row in rows]))


def pad(rows: Sequence[Sequence[int]], pad_id: int) -> Tensor:
    """Rows of ids as a tensor, padded at the end."""
    return pad_sequence([torch.tensor(list(row)) for row in rows], batch_first=True, padding_value=pad_id)


def chosen(rows: Tensor, ids: Sequence[int]) -> list[float]:
    """The entry of each id in its row of log-probabilities; rows behind the last id are ignored."""
    found: list[float] = rows[: len(ids)].gather(1, torch.tensor(list(ids))[:, None])[:, 0].tolist()
    return found
