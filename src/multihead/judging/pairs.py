"""Given translations as batches: what scoring and aligning have in common. Nothing is searched here.

Texts are encoded as they are, empty ones too: a side without characters is its end symbol (source) or begin symbol
(target) alone. Which lines are worth it is for `judging.score` and `judging.align` to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.data.batching import batches_by_tokens, collate_source
from multihead.errors import ConfigurationError, InputError
from multihead.models.network import AttentionWeights, Network, Output
from multihead.text.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class PairBatch:
    """Pairs of nearly equal lengths, on the model's device."""

    places: list[int]
    """Which pairs these are."""
    source: Int[Tensor, "batch source"]
    """Ids and end symbol, padded on the right."""
    lengths: Int[Tensor, " batch"]
    """How many of them are real."""
    targets: list[list[int]]
    """Ids, without begin and end."""


def check_pairs(sources: Sequence[str], targets: Sequence[str]) -> None:
    """Refuses what are not pairs.

    Raises:
        InputError: a string in the place of a list of them; not one target a source.
    """
    if isinstance(sources, str) or isinstance(targets, str):
        raise InputError("expected two lists of sentences, got one string; write [text]")
    if len(sources) != len(targets):
        raise InputError(f"got {len(targets)} targets for {len(sources)} sources; expected one target a source")


def pair_batches(
    model: Network, sources: Sequence[list[int]], targets: Sequence[list[int]], batch_tokens: int
) -> Iterator[PairBatch]:
    """Pairs of ids in batches, the longest first: rows times the longer side's longest is at most ``batch_tokens``.

    Args:
        model: for whom; tells the device.
        sources: ids without begin and end.
        targets: likewise, one a source.
        batch_tokens: a pair longer than that is a batch of its own.

    Raises:
        ConfigurationError: a budget below 1.
    """
    if batch_tokens < 1:
        raise ConfigurationError(f"batch_tokens must be a number of at least 1, got {batch_tokens}")
    device = model.output.weight.device
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
    for places in batches_by_tokens(lengths, batch_tokens):
        source, real = collate_source([sources[place] for place in places], Tokenizer.pad_id, Tokenizer.eos_id)
        yield PairBatch(places, source.to(device), real.to(device), [targets[place] for place in places])


@torch.no_grad()
def taught(model: Network, batch: PairBatch) -> tuple[Float[Tensor, "batch target vocab"], AttentionWeights]:
    """Logits and all weights while the targets are written: position t is for target token t, the end symbol last."""
    ended, _ = collate_source(batch.targets, Tokenizer.pad_id, Tokenizer.eos_id)
    given = ended.roll(1, dims=1)
    given[:, 0] = Tokenizer.bos_id
    output: Output = model.eval()(batch.source, batch.lengths, given.to(batch.source.device), need_weights=True)
    return output.logits, output.weights or AttentionWeights((), (), ())
