"""Leave out attention heads, and measure what each is worth.

A head reaches the model through its columns of W^O only:

    MultiHead = sum_h O_h W^O_h    (+ bias),    W^O = [W^O_1, ..., W^O_H]

so zeros in W^O_h leave out head h and nothing else (Voita et al. 2019, Michel et al. 2019). The result is a model like
any other, which the compiled search runs too. `head_importance` leaves out one head after the other and measures

    loss = - sum log p(y | x) / sum |y|    of given translations (`judging.score`),

and for the heads with the largest change, or for all, BLEU of the model's own translations.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, get_args

import torch
from torch import nn

from multihead.attention import MultiHeadAttention
from multihead.attention.drawing import format_table
from multihead.errors import ConfigurationError, InputError
from multihead.judging.score import Perplexity, check_pairs, score
from multihead.metrics.scores import bleu_metric
from multihead.models.network import Network
from multihead.models.transformer import Transformer
from multihead.translating.attention import Kind
from multihead.translating.translator import Translator

_PARTS: dict[Kind, tuple[str, str]] = {
    "encoder": ("encoder", "self_attention"),
    "decoder": ("decoder", "self_attention"),
    "cross": ("decoder", "cross_attention"),
}


class Head(NamedTuple):
    """A head of a Transformer, by its place; as text ``encoder.2.head.5``."""

    kind: Kind
    """Of which attention: `cross` is from the decoder to the source."""
    layer: int
    """Counted from 1, as everywhere on the command line."""
    head: int
    """Counted from 1."""

    def __str__(self) -> str:
        return f"{self.kind}.{self.layer}.head.{self.head}"

    @property
    def module(self) -> str:
        """The name of its module, which `inspection.capture` takes; it counts from 0: ``encoder.1.self_attention``."""
        stack, part = _PARTS[self.kind]
        return f"{stack}.{self.layer - 1}.{part}"


def parse_head(text: str) -> Head:
    """The head that a text such as ``encoder.2.head.5`` names.

    Raises:
        ConfigurationError: it names none.
    """
    found = re.fullmatch(rf"({'|'.join(get_args(Kind))})\.([0-9]+)\.head\.([0-9]+)", text)
    if found is None:
        raise ConfigurationError(
            f"expected a head as encoder.2.head.5, decoder.2.head.5 or cross.2.head.5, counted from 1, got {text!r}"
        )
    kind: Any = found[1]
    return Head(kind, int(found[2]), int(found[3]))


def all_heads(model: Network) -> list[Head]:
    """All heads of a Transformer: encoder, decoder, then cross-attention.

    Raises:
        ConfigurationError: the model is none.
    """
    if not isinstance(model, Transformer):
        raise ConfigurationError(f"a {type(model).__name__} has no heads that can be left out, only a Transformer has")
    return [
        Head(kind, layer, head)
        for kind, (stack, part) in _PARTS.items()
        for layer, one in enumerate(model.get_submodule(stack).children(), start=1)
        for head in range(1, _attention(one, part).heads + 1)
    ]


def without_heads(translator: Translator, heads: Iterable[Head]) -> Translator:
    """A translator with a copy of the model, in which W^O has zeros in the columns of ``heads``.

    Raises:
        ConfigurationError: the model has no such head, or is an ensemble or no Transformer.
    """
    if len(translator.networks) > 1:
        raise ConfigurationError(
            "heads are left out of one model, and this is an ensemble: take its members one by one"
        )
    own = translator.bundle.model
    known = all_heads(own)
    model = copy.deepcopy(own)
    for one in heads:
        if one not in known:
            layers = max((other.layer for other in known if other.kind == one.kind), default=0)
            count = max((other.head for other in known if other.kind == one.kind), default=0)
            raise ConfigurationError(f"{one}: there are layers 1 to {layers} with heads 1 to {count}")
        stack, part = _PARTS[one.kind]
        attention = _attention([*model.get_submodule(stack).children()][one.layer - 1], part)
        width = attention.value_width // attention.heads
        with torch.no_grad():
            attention.output_projection.weight[:, (one.head - 1) * width : one.head * width] = 0
    made = Translator(replace(translator.bundle, model=model), translator.folder)
    return made.searching(**translator.search_settings().model_dump())


def _attention(layer: nn.Module, part: str) -> MultiHeadAttention:
    attention = layer.get_submodule(part)
    assert isinstance(attention, MultiHeadAttention)
    return attention


@dataclass(frozen=True)
class LeftOut:
    """What changes without one head."""

    head: str
    loss: float
    loss_change: float
    """Above 0: the head is of use."""
    bleu: float | None = None
    """None if it was not computed."""
    bleu_change: float | None = None
    """Below 0: the head is of use."""


@dataclass(frozen=True)
class HeadImportance:
    """What each head of a model is worth on a test set."""

    sentences: int
    tokens: int
    """Number of target tokens, including end symbols."""
    loss: float
    """Of the whole model, per token, in nats."""
    bleu: float | None
    """Of the whole model; None if it was computed for no head."""
    signature: str | None
    """Of BLEU."""
    heads: list[LeftOut]
    """The largest change of the loss first."""

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON data."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [["without", "loss", "change"], ["no head", f"{self.loss:.4f}", ""]]
        rows += [[one.head, f"{one.loss:.4f}", f"{one.loss_change:+.4f}"] for one in self.heads]
        if self.bleu is not None:
            rows[0] += ["BLEU", "change"]
            rows[1] += [f"{self.bleu:.2f}", ""]
            for row, one in zip(rows[2:], self.heads, strict=True):
                row += ["", ""] if one.bleu is None else [f"{one.bleu:.2f}", f"{one.bleu_change:+.2f}"]
        below = [] if self.signature is None else [self.signature]
        counted = f"{self.sentences:,} sentences, {self.tokens:,} target tokens; loss: nats per token"
        return "\n".join([format_table(rows), "", counted, *below])


def head_importance(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    heads: Sequence[Head] | None = None,
    *,
    bleu: int = 0,
    language: str | None = None,
    batch_tokens: int = 4096,
    progress: Callable[[int], None] | None = None,
) -> HeadImportance:
    """The change of loss, and of BLEU, without each head.

    Args:
        translator: one Transformer; its search settings are those for BLEU.
        sources: sentences of a test set.
        references: their translations.
        heads: which heads; by default all.
        bleu: for how many of them BLEU is computed, those with the largest change of the loss.
        language: of the translations, which decides how BLEU tokenizes; by default the model's own.
        batch_tokens: as in `judging.score.score`.
        progress: called with the number of sentences that were newly scored or translated, of `work` in all.

    Raises:
        InputError: no sentences, only empty ones, or not as many references.
        ConfigurationError: a head does not exist, ``bleu`` is negative, or the model is no Transformer.
    """
    check_pairs(sources, references)
    if not sources:
        raise InputError("expected at least one pair of sentences, got none")
    if bleu < 0:
        raise ConfigurationError(f"bleu: expected a number of heads of at least 0, got {bleu}")
    chosen = list(dict.fromkeys(all_heads(translator.bundle.model) if heads is None else heads))
    without_heads(translator, chosen)  # a head that does not exist is found before the work

    def loss_of(one: Translator) -> Perplexity:
        total = Perplexity()
        total.add(score(one, sources, references, batch_tokens=batch_tokens, progress=progress))
        return total

    whole = loss_of(translator)
    if not whole.tokens:
        raise InputError("every line is empty: there is nothing to measure")
    losses = {head: loss_of(without_heads(translator, [head])).loss for head in chosen}
    ordered = sorted(chosen, key=lambda head: -losses[head])
    metric = bleu_metric(language or translator.bundle.target_language)

    def bleu_of(one: Translator) -> float:
        found = one.translate(sources, batch_tokens=batch_tokens, progress=progress)
        return float(metric.corpus_score(found, [list(references)]).score)

    rows = [LeftOut(str(head), losses[head], losses[head] - whole.loss) for head in ordered]
    if not bleu or not rows:
        return HeadImportance(len(sources), whole.tokens, whole.loss, None, None, rows)
    best = bleu_of(translator)
    for place, head in enumerate(ordered[:bleu]):
        found = bleu_of(without_heads(translator, [head]))
        rows[place] = replace(rows[place], bleu=found, bleu_change=found - best)
    return HeadImportance(len(sources), whole.tokens, whole.loss, best, str(metric.get_signature()), rows)


def work(sentences: int, heads: int, bleu: int) -> int:
    """The number of sentences that `head_importance` scores and translates."""
    return sentences * (1 + heads + (1 + min(bleu, heads) if bleu and heads else 0))
