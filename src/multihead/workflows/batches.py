"""The batches of a run from its stored text: corpora by weight, subwords cut anew in each epoch where asked for."""

from __future__ import annotations

from multihead.data.batching import BatchStream
from multihead.text.segment import Segmenter
from multihead.text.tokenizer import Tokenizer
from multihead.training.config import TrainingConfig
from multihead.workflows.preparation import Prepared


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
