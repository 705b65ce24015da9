"""Texts of a language model: lines, windows of tokens, batches.

Each line is a text; lines of white space are none. A text is stored as windows: pieces of begin, ids and end of at most
``size + 1`` tokens, of which each begins with the last token of the one before. So a model that predicts all tokens of
a window but the first predicts every token of the text once, and its end.

Windows are the sources of a `ParallelStore` with empty targets, which also has the line of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from multihead.data.corpus import Report, decoded_lines
from multihead.data.order import Array
from multihead.data.store import ParallelStore, TokenStore
from multihead.data.store_writers import ParallelWriter
from multihead.text.tokenizer import Tokenizer

_CHUNK = 1_000
"""Texts that are encoded together."""


class Text(NamedTuple):
    """A text, and its line, from 1."""

    line: int
    text: str


def read_texts(path: str | Path, report: Report) -> Iterator[Text]:
    """The texts of a plain or compressed file; lines that are not UTF-8 are left out and reported.

    Raises:
        DataError: the file cannot be read.
    """
    for number, text in decoded_lines(path, report):
        if text.strip():
            yield Text(number, text)


def windows(ids: Sequence[int], tokenizer: Tokenizer, size: int) -> list[list[int]]:
    """The windows of a text: each has at most ``size`` tokens besides its first, which is not predicted."""
    whole = [tokenizer.bos_id, *ids, tokenizer.eos_id]
    return [whole[start : start + size + 1] for start in range(0, len(whole) - 1, size)]


def write_windows(path: Path, texts: Iterable[Text], tokenizer: Tokenizer, size: int) -> ParallelStore:
    """Store the windows of texts; the store appears whole or not at all.

    Raises:
        FormatError: the folder exists.
        SurroundingsError: the disk is full or not writable.
    """
    left = iter(texts)
    with ParallelWriter(path, len(tokenizer), 1) as writer:
        while chunk := list(islice(left, _CHUNK)):
            encoded = tokenizer.encode_batch([one.text for one in chunk])
            for one, ids in zip(chunk, encoded, strict=True):
                rows = windows(ids, tokenizer, size)
                writer.append(rows, [[]] * len(rows), [one.line] * len(rows))
    return ParallelStore.open(path)


@dataclass(frozen=True, eq=False)
class TextBatch:
    """Windows of texts, padded on the right. Its ``inputs`` are those of `models.decoder.network.DecoderLM.loss`.

    Attributes:
        tokens: the windows.
        lengths: number of predicted tokens of each window: all but the first.
        target_tokens: the sum of ``lengths``.
        indices: the window of the store that each row holds.
    """

    tokens: Int64[Tensor, "batch time"]
    lengths: Int64[Tensor, " batch"]
    target_tokens: int
    indices: Array

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def inputs(self) -> tuple[Tensor, Tensor]:
        """All tokens but the last, and all but the first."""
        return self.tokens[:, :-1], self.tokens[:, 1:]

    @property
    def source_tokens(self) -> int:
        """There is no source."""
        return 0

    @property
    def cells(self) -> int:
        """Rows times width, padding included."""
        return len(self) * (self.tokens.shape[1] - 1)

    def part(self, start: int, stop: int) -> TextBatch:
        """The rows from ``start`` to ``stop``, without columns that are padding in all of them."""
        lengths = self.lengths[start:stop]
        tokens = self.tokens[start:stop, : int(lengths.max()) + 1]
        return TextBatch(tokens, lengths, int(lengths.sum()), self.indices[start:stop])

    def to(self, device: torch.device | str) -> TextBatch:
        """The same batch with its tensors on ``device``."""
        return replace(self, tokens=self.tokens.to(device), lengths=self.lengths.to(device))


def collate_windows(store: TokenStore, indices: Array, pad_id: int) -> TextBatch:
    """The batch of the windows of a store at ``indices``, in this order."""
    flat, lengths = store.gather(indices)
    tokens = np.full((len(lengths), int(lengths.max())), pad_id, np.int64)
    tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = flat
    predicted = lengths - 1
    return TextBatch(torch.from_numpy(tokens), torch.from_numpy(predicted), int(predicted.sum()), indices)
