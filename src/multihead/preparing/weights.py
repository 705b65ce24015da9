"""Weights of sentence pairs: how often each counts in the loss.

    L = sum_i w_i L_i / sum_i w_i n_i        L_i: the loss of the n_i target tokens of pair i, summed

The sums are over the pairs of an update. Weights are divided out: a pair of weight 2 counts like the same pair twice,
one of weight 0 as if it were not there, and weights that are all multiplied by the same number change nothing. The
statistics of the log and of validations are those of the text, without weights.

A file has a number a line (`preparing.side_files`); a run keeps the numbers in its folder ``weights``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from multihead.configuration import MOST_FACTOR
from multihead.data.batching import Batch
from multihead.data.side_store import Arrays, LinesOfPairs, open_side, write_side
from multihead.data.store import Int64, TokenStore
from multihead.data.text_files import open_text, split_lines
from multihead.errors import DataError, shown
from multihead.planning.settings import TextFile
from multihead.preparing.corpora import TextFiles
from multihead.preparing.prepared import PreparedText
from multihead.preparing.side_files import check_side_file, lines_of_pairs, require_same
from multihead.training.context import RunContext

FOLDER, _FILE, _TYPE = "weights", "weights.bin", "<f4"
_CHUNK = 1 << 16
"""Lines that are held in memory."""


def parse_weight(line: bytes, path: Path, number: int) -> float:
    """The weight on a line.

    Raises:
        DataError: it is not a number from 0 to `MOST_FACTOR`; names file and line.
    """
    try:
        value = float(line)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MOST_FACTOR:
        text = line.decode("utf-8", "replace")
        raise DataError(f"{shown(text)} is not a weight; expected a number from 0 to {MOST_FACTOR:g}", path, number)
    return value


def check_weights(path: Path, text: PreparedText | TextFiles) -> TextFile:
    """Read a file of weights once, to check and hash it; errors as `side_files.check_side_file`.

    Raises:
        DataError: all weights are 0.
    """
    largest = 0.0

    def parse(line: bytes, path: Path, number: int) -> None:
        nonlocal largest
        largest = max(largest, parse_weight(line, path, number))

    file = check_side_file(path, "weights", parse, text)
    if not largest:
        raise DataError("all weights are 0: nothing would be learned; give some pairs a weight above 0", path)
    return file


class PairWeights:
    """The weights of the pairs of a store.

    Args:
        values: the weight of each line.
        lines: which line belongs to which pair.
        targets: the store's, whose lengths are counted.
    """

    def __init__(self, values: np.ndarray, lines: LinesOfPairs, targets: TokenStore) -> None:
        self._values, self._lines, self._targets = values, lines, targets

    def of(self, pairs: Int64) -> Float32[Tensor, " pairs"]:
        """The weights of some pairs."""
        return torch.from_numpy(self._values[self._lines(pairs)].astype(np.float32))

    def attached(self, batch: Batch) -> Batch:
        """A batch with the weights of its pairs."""
        return replace(batch, weights=self.of(batch.indices))

    def divisor(self, pairs: Int64) -> float:
        """sum_i w_i n_i of some pairs as they are stored."""
        weights = self._values[self._lines(pairs)].astype(np.float64)
        return float((weights * (self._targets.lengths_of(pairs) + 1)).sum())


def pair_weights(folder: Path, file: TextFile, prepared: PreparedText, context: RunContext) -> PairWeights:
    """The weights of a run, which are read from their file if the run folder has none yet.

    Args:
        folder: the run folder.
        file: what run.json says of the file.
        prepared: the text.
        context: the processes; the first one writes.

    Raises:
        ConfigurationError: the file has changed since the run began.
        DataError: it cannot be read.
        FormatError: the stored weights are damaged.
    """
    processes = context.processes
    if processes.is_first and not (folder / FOLDER).is_dir():
        write_side(folder, FOLDER, file.sha256, _values(require_same(file)))
    processes.all_gather("written")
    values = open_side(folder, FOLDER, file.sha256, {_FILE: _TYPE})[_FILE]
    return PairWeights(values, lines_of_pairs(prepared), prepared.train.target)


def _values(path: Path) -> Iterator[Arrays]:
    found: list[float] = []
    with open_text(path) as stream:
        for number, line in enumerate(split_lines(stream, path), 1):
            found.append(parse_weight(line, path, number))
            if len(found) == _CHUNK:
                yield {_FILE: np.array(found, _TYPE)}
                found.clear()
    yield {_FILE: np.array(found, _TYPE)}
