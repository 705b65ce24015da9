"""Forced decoding of whole targets: log-probabilities of their tokens.

    log p(y_t | y_<t, x),    t = 1 ... |y|, where y_|y| is the end symbol

A network computes all positions of a target in one pass, on a CPU from packed batches without padding
(`models.transformer`). That is several times as fast as `decoding.scoring.force`, which steps like a search, works for
every `Stepper`, and defines the result. `judging.score` scores texts with it. `translating.choosing` scores candidates
with `engine.forcing` where models are compiled, and otherwise with this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from multihead.data.batching import collate_source
from multihead.data.order import batches_by_tokens
from multihead.decoding.hypothesis import refuse_nan
from multihead.errors import ConfigurationError, InputError
from multihead.kernels.linear import LOSS_ROWS, linear
from multihead.models.network import Network
from multihead.text.tokenizer import Tokenizer

LONGEST = 1 << 14
"""Maximum number of tokens of a side of a pair. Its attention weights then take 1 GB in each head and layer."""


class LongPairError(InputError):
    """A pair of which a side has more than `LONGEST` tokens.

    Args:
        place: of the pair, counted from 0.
        source: its number of source tokens.
        target: likewise.
        pairs: number of pairs.
    """

    def __init__(self, place: int, source: int, target: int, pairs: int) -> None:
        self.place, self.side = place, "source" if source > LONGEST else "target"
        self.reason = (
            f"has {source:,} source and {target:,} target tokens, and a side may have {LONGEST:,}, as attention takes "
            "the square of that: split it into sentences"
        )
        super().__init__(f"pair {place + 1} of {pairs} {self.reason}")


@dataclass(frozen=True, eq=False)
class PairBatch:
    """Pairs of similar lengths, on the model's device."""

    places: list[int]
    """Index of each pair."""
    source: Int[Tensor, "batch source"]
    """Ids with the end symbol, padded on the right."""
    lengths: Int[Tensor, " batch"]
    """Number of ids without padding."""
    targets: list[list[int]]
    """Ids without begin and end symbols."""
    tokenizer: Tokenizer
    """Of the target side: the special ids."""


def pair_batches(
    model: Network,
    tokenizer: Tokenizer,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    batch_tokens: int,
) -> Iterator[PairBatch]:
    """Batches of pairs, longest first, with at most ``batch_tokens`` padded tokens on the longer side.

    Args:
        model: the model, which determines the device.
        tokenizer: of the target side.
        sources: ids without begin and end symbols.
        targets: likewise, one per source.
        batch_tokens: maximum size; a longer pair becomes a batch of its own.

    Raises:
        ConfigurationError: ``batch_tokens`` is below 1.
        InputError: a side has more than `LONGEST` tokens.
    """
    if batch_tokens < 1:
        raise ConfigurationError(f"batch_tokens must be a number of at least 1, got {batch_tokens}")
    for place, pair in enumerate(zip(sources, targets, strict=True)):
        if max(map(len, pair)) > LONGEST:
            raise LongPairError(place, len(pair[0]), len(pair[1]), len(sources))
    device = model.output.weight.device
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
    for places in batches_by_tokens(lengths, batch_tokens):
        source, real = collate_source([sources[place] for place in places], tokenizer.pad_id, tokenizer.eos_id)
        yield PairBatch(places, source.to(device), real.to(device), [targets[place] for place in places], tokenizer)


@torch.no_grad()
def forced_log_probabilities(
    model: Network | Sequence[Network],
    tokenizer: Tokenizer,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    batch_tokens: int = 4096,
    progress: Callable[[int], None] | None = None,
) -> list[list[float]]:
    """log p(y_t | y_<t, x) of each token of each target, and of the end symbol after it.

    Args:
        model: the model, or several with the same vocabularies, whose probabilities are averaged.
        tokenizer: of the target side.
        sources: ids without begin and end symbols.
        targets: likewise, one per source.
        batch_tokens: maximum number of padded tokens of the longer side per batch.
        progress: called with the number of newly scored pairs.

    Raises:
        ConfigurationError: ``batch_tokens`` is below 1.
        InputError: a side has more than `LONGEST` tokens.
        MultiheadError: the model computed NaN.
    """
    models = [model] if isinstance(model, Network) else model
    results: list[list[float]] = [[] for _ in sources]
    for batch in pair_batches(models[0], tokenizer, sources, targets, batch_tokens):
        values = [_forced(one, batch) for one in models]
        mean = values[0] if len(values) == 1 else torch.stack(values).logsumexp(0) - math.log(len(values))
        refuse_nan(float(mean.sum()))
        rest = iter(mean.tolist())
        for place, target in zip(batch.places, batch.targets, strict=True):
            results[place] = [next(rest) for _ in range(len(target) + 1)]
        if progress is not None:
            progress(len(batch.places))
    return results


def _forced(model: Network, batch: PairBatch) -> Float[Tensor, " tokens"]:
    """The log-probabilities of all tokens of a batch, target after target."""
    states, wanted = forced_states(model, batch)
    return token_log_probabilities(states, model.output, wanted.to(states.device))


def forced_states(model: Network, batch: PairBatch) -> tuple[Float[Tensor, "tokens width"], Int[Tensor, " tokens"]]:
    """The input of the output projection at each token of a batch, target after target, and the token."""
    ended, lengths = collate_source(batch.targets, batch.tokenizer.pad_id, batch.tokenizer.eos_id)
    given = ended.roll(1, dims=1)
    given[:, 0] = batch.tokenizer.bos_id
    device = batch.source.device
    real = torch.arange(ended.shape[1]) < lengths[:, None]
    return model.eval().states_at(batch.source, batch.lengths, given.to(device), real.to(device)), ended[real]


def token_log_probabilities(
    states: Float[Tensor, "tokens width"], output: nn.Linear, wanted: Int[Tensor, " tokens"]
) -> Float[Tensor, " tokens"]:
    """log softmax(output(states)) of one token at each place; at no time are there more than some rows of logits."""
    pieces = [
        -F.cross_entropy(
            _logits(output, states[start : start + LOSS_ROWS]), wanted[start : start + LOSS_ROWS], reduction="none"
        )
        for start in range(0, len(wanted), LOSS_ROWS)
    ]
    return torch.cat(pieces)


def _logits(output: nn.Linear, states: Float[Tensor, "tokens width"]) -> Float[Tensor, "tokens vocab"]:
    logits = linear(states, output.weight, output.bias)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
