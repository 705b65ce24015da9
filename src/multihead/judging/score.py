"""Score given translations: forced decoding in batches, and perplexity.

    log p(y | x) = sum_t log p(y_t | y_<t, x),    t = 1 ... |y|, where y_|y| is the end symbol
    perplexity = exp(- sum log p(y | x) / sum |y|),    both sums over the pairs

with natural logarithms. Translations are tokenized by the model's tokenizer, and p(y | x) is the probability of that
token sequence. (Other token sequences of the same text have probabilities of their own; a model trained on one
segmentation gives them little.)

`teacher_forced` is shared with `judging.align` and `judging.analysis`; `translating.forced` makes the batches. An empty
source is its end symbol alone, an empty target its begin symbol alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.data.batching import collate_source
from multihead.decoding.search import LengthPenalty, divisor, power
from multihead.errors import InputError
from multihead.models.network import AttentionWeights, Network, Output
from multihead.translating.forced import PairBatch, forced_log_probabilities
from multihead.translating.translator import Translator


def check_pairs(sources: Sequence[str], targets: Sequence[str]) -> None:
    """Check that there is one target for each source.

    Raises:
        InputError: the numbers differ, or a single string is passed instead of a list.
    """
    if isinstance(sources, str) or isinstance(targets, str):
        raise InputError("expected two lists of sentences, got one string; write [text]")
    if len(sources) != len(targets):
        raise InputError(f"got {len(targets)} targets for {len(sources)} sources; expected one target per source")


@torch.no_grad()
def teacher_forced(model: Network, batch: PairBatch) -> tuple[Float[Tensor, "batch target vocab"], AttentionWeights]:
    """Logits and attention weights with the targets as decoder input; row t predicts target token t, then the end."""
    ended, _ = collate_source(batch.targets, batch.tokenizer.pad_id, batch.tokenizer.eos_id)
    given = ended.roll(1, dims=1)
    given[:, 0] = batch.tokenizer.bos_id
    output: Output = model.eval()(batch.source, batch.lengths, given.to(batch.source.device), need_weights=True)
    return output.logits, output.weights or AttentionWeights((), (), ())


@dataclass(frozen=True)
class ScoredPair:
    """The log-probabilities of a translation."""

    tokens: list[str]
    """Its tokens in readable form, with the end symbol; empty if both sides are empty."""
    log_probabilities: list[float]
    """log p(y_t | y_<t, x) of each token."""

    @property
    def log_probability(self) -> float:
        """log p(y | x)."""
        return math.fsum(self.log_probabilities)

    def score(self, alpha: float, penalty: LengthPenalty = power) -> float:
        """log p(y | x) / penalty(|y|), by which a search ranks; 0 if both sides are empty.

        Raises:
            ConfigurationError: alpha is too large for this length.
        """
        return self.log_probability / divisor(penalty, len(self.tokens), alpha) if self.tokens else 0.0


@dataclass
class Perplexity:
    """Perplexity, accumulated over pairs."""

    log_probability: float = 0.0
    tokens: int = 0
    """Number of tokens, including end symbols."""

    def add(self, scored: Sequence[ScoredPair]) -> None:
        """Add pairs; those without tokens change nothing."""
        self.log_probability += math.fsum(one.log_probability for one in scored)
        self.tokens += sum(len(one.tokens) for one in scored)

    @property
    def loss(self) -> float:
        """The mean negative log-probability per token; NaN without tokens."""
        return -self.log_probability / self.tokens if self.tokens else math.nan

    @property
    def value(self) -> float:
        """exp of the loss."""
        return math.exp(self.loss) if not self.loss >= 700 else math.inf


def score(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    batch_tokens: int = 4096,
    progress: Callable[[int], None] | None = None,
) -> list[ScoredPair]:
    """Log-probabilities of each target given its source, in order.

    An empty side is scored as it is: an empty target consists of its end symbol, an empty source likewise. Only a pair
    with nothing but white space on both sides has no tokens and the score 0, as in `Translator.translations`.

    Args:
        translator: a translator whose model can decode step by step.
        sources: one sentence per item.
        targets: their translations.
        batch_tokens: maximum number of padded tokens of the longer side per batch.
        progress: called with the number of newly scored pairs.

    Raises:
        InputError: the numbers of sources and targets differ, or a text contains a lone surrogate.
        ConfigurationError: ``batch_tokens`` is below 1.
        MultiheadError: the model computed NaN.
    """
    check_pairs(sources, targets)
    work = [place for place, pair in enumerate(zip(sources, targets, strict=True)) if any(map(str.strip, pair))]
    if progress is not None and len(work) < len(sources):
        progress(len(sources) - len(work))
    bundle = translator.bundle
    read = bundle.source_tokenizer.encode_batch([sources[place] for place in work])
    written = bundle.target_tokenizer.answers([targets[i] for i in work], [sources[i] for i in work])
    found = forced_log_probabilities(bundle.model, bundle.target_tokenizer, read, written, batch_tokens, progress)
    results = [ScoredPair([], []) for _ in sources]
    for place, ids, values in zip(work, written, found, strict=True):
        results[place] = ScoredPair(bundle.target_tokenizer.pieces([*ids, bundle.target_tokenizer.eos_id]), values)
    return results
