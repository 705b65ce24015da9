"""The batches of a run from its stored text: corpora by weight, subwords cut anew in each epoch where asked for."""

from __future__ import annotations

import numpy as np

from multihead.data.batching import Batch, BatchStream, collate
from multihead.data.order import Array, batch_order
from multihead.preparing.preparation import Prepared
from multihead.text.segment import Segmenter
from multihead.text.tokenizer import Tokenizer
from multihead.training.config import TrainingConfig


class Resegmentation:
    """BPE-dropout for both sides: a function of seed, epoch, side and pair alone.

    Args:
        prepared: whose subwords.
        training: the share of merges that are passed over, and the seed.
    """

    def __init__(self, prepared: Prepared, training: TrainingConfig) -> None:
        tokenizers = (prepared.source_tokenizer, prepared.target_tokenizer)
        self._sides = tuple(Segmenter(tokenizer, training.bpe_dropout, training.seed) for tokenizer in tokenizers)

    def __call__(self, side: int, ids: list[list[int]], pairs: list[int], epoch: int) -> list[list[int]]:
        """The sentences of one side of a batch, cut anew; ``pairs`` are their places in the store."""
        return self._sides[side].segment(ids, pairs, epoch, side)


def stream_of(prepared: Prepared, training: TrainingConfig, position: tuple[int, int]) -> BatchStream:
    """Batches without end, from ``position`` (epoch and place) on."""
    return BatchStream(
        prepared.train,
        training.batch_tokens,
        training.seed,
        pad_id=Tokenizer.pad_id,
        bos_id=Tokenizer.bos_id,
        eos_id=Tokenizer.eos_id,
        position=position,
        shares=prepared.shares,
        segment=Resegmentation(prepared, training) if training.bpe_dropout else None,
    )


def lines_of(prepared: Prepared, pairs: Array) -> dict[str, list[int]]:
    """Where pairs of the store come from: under the names of the files of each corpus, the lines, counted from 1."""
    found, start = {}, 0
    for corpus in prepared.config.corpora:
        own = pairs[(pairs >= start) & (pairs < start + corpus.pairs)]
        if len(own):
            found[" + ".join(file.path for file in corpus.files)] = sorted(prepared.train.lines[own].tolist())
        start += corpus.pairs
    return found


def largest(prepared: Prepared, training: TrainingConfig) -> list[Batch]:
    """Of the first epoch: the batch with most tokens, padding included, and the one with most pairs of tokens.

    The first needs most memory in all but attention, the second there.
    """
    store = prepared.train
    sides = store.source.lengths + 1, store.target.lengths + 1
    order = batch_order(*sides, training.batch_tokens, training.seed, 0)
    sizes = np.array([[sum(len(b) * int(s[b].max()) ** p for s in sides) for p in (1, 2)] for b in order])
    ids = {"pad_id": Tokenizer.pad_id, "bos_id": Tokenizer.bos_id, "eos_id": Tokenizer.eos_id}
    return [collate(store, order[index], **ids) for index in sorted(set(sizes.argmax(0).tolist()))]
