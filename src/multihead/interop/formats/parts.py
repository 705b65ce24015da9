"""What every format reads and writes: the parts of a translator

A reader turns a folder of another program into `TranslatorParts`; a writer does the reverse. `multihead.bundle` makes a
translator of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from multihead.decoding.search import Search
from multihead.errors import FormatError
from multihead.model_folder import differing_shapes
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.text.language_tokens import LanguageTokenizer, toward
from multihead.text.languages import Direction, Languages
from multihead.text.tokenizer import Tokenizer
from multihead.text.user_symbols import SymbolTokenizer

__all__ = ["Languages", "TranslatorParts", "network_refusals", "search_refusals"]


def network_refusals(config: TransformerConfig, *, rotary: bool = False, native: bool = False) -> list[str]:
    """What a network may have that a format into which we write lacks: the parts of T5, and positions.

    Args:
        config: settings of the network.
        rotary: whether the format has rotary positions.
        native: whether it runs our compiled search, which has linear positions, norms of queries and keys, windows and
            parallel blocks.
    """
    reasons = []
    if config.norm_kind == "rms":
        reasons.append("RMS norms")
    if config.positions == "relative":
        reasons.append("relative positions")
    if config.positions == "shaw":
        reasons.append("relative positions of keys and values (train with --positions sinusoidal)")
    if config.positions == "rotary" and not rotary:
        reasons.append("rotary positions (train with --positions sinusoidal)")
    if config.positions == "alibi" and not native:
        reasons.append("linear positions, ALiBi (train with --positions sinusoidal)")
    if config.query_key_norm != "none" and not native:
        reasons.append(f"norms of queries and keys (query_key_norm {config.query_key_norm})")
    if config.encoder_window is not None and not native:
        reasons.append(f"an encoder that attends within a window (encoder_window {config.encoder_window})")
    if config.block == "parallel" and not native:
        reasons.append("parallel blocks (train with --block sequential)")
    if config.feed_forward in ("gelu_tanh", "geglu_tanh"):
        reasons.append(f"GELU by its tanh formula ({config.feed_forward})")
    return reasons


def _kind_of(tokenizer: Tokenizer) -> str:
    """What is particular about a tokenizer, for refusals."""
    inner = tokenizer.inner if isinstance(tokenizer, LanguageTokenizer) else tokenizer
    if tokenizer.backwards:
        return "from right to left, which only multihead writes"
    if tokenizer.copied:
        return "with placeholders, which only multihead copies"
    if tokenizer.factors > 1:
        return "with case as a source factor, which only multihead reads"
    if tokenizer.context:
        return "with context, the lines before, which only multihead reads"
    if isinstance(inner, SymbolTokenizer):
        return "with user-defined symbols"
    return f"of the kind {type(tokenizer).__name__}"


def search_refusals(search: Search) -> list[str]:
    """What a search may have that a format with settings of a search lacks: another length penalty than |y|^alpha."""
    if search.divides_by_power:
        return []
    return [
        f"a search that divides by ((5 + |y|) / 6)^{search.alpha:g} (Wu et al. 2016), where this format has |y|^alpha: "
        "add --length-penalty power, and an --alpha for it, as the best alpha of one form is not that of the other"
    ]


@dataclass(frozen=True)
class TranslatorParts:
    """A Transformer and what belongs to it, independent of any format."""

    config: TransformerConfig
    weights: Mapping[str, Tensor]
    """By the names of ``Transformer(config).named_parameters()``: a shared tensor once, under its first name."""
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    generation: Search
    """How it is searched by default; only the fields of `Search.stored` are kept."""
    source_language: str | None = None
    target_language: str | None = None
    directions: tuple[Direction, ...] = ()
    """Those among which the other program chooses; the source tokenizer has a symbol for each target language."""

    def toward(self, direction: Direction) -> TranslatorParts:
        """The same translator for one of its directions."""
        tokenizer = toward(self.source_tokenizer, direction.target)
        return replace(
            self,
            source_tokenizer=tokenizer,
            source_language=direction.source,
            target_language=direction.target,
            directions=(),
        )

    def build(self, origin: Path) -> Transformer:
        """The network with these weights, in evaluation mode.

        Args:
            origin: the folder that the parts were read from, for messages.

        Raises:
            FormatError: names or shapes are not those of the network, or the tokenizers do not fit it.
        """
        self._check_tokenizers(origin)
        stored = {name: tensor.shape for name, tensor in self.weights.items()}
        problem = differing_shapes(self.config, lambda: Transformer(self.config), stored)
        if problem is not None:
            raise FormatError(
                f"{origin}: these are not the weights of the network that its settings describe: {problem}"
            )
        model = Transformer(self.config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(self.weights[name])
        return model.eval()

    def _check_tokenizers(self, origin: Path) -> None:
        """Check the sizes of the vocabularies, and the special ids that both sides share."""
        source, target = self.source_tokenizer, self.target_tokenizer
        sides = (("source", source, self.config.source_vocab), ("target", target, self.config.target_vocab))
        for side, tokenizer, size in sides:
            if len(tokenizer) != size:
                raise FormatError(
                    f"{origin}: the {side} vocabulary has {len(tokenizer)} entries, but the network has {size}"
                )
        if (source.pad_id, source.eos_id) != (target.pad_id, target.eos_id) or target.pad_id != self.config.padding_id:
            raise FormatError(
                f"{origin}: padding and end symbol have the ids {source.pad_id} and {source.eos_id} in the source "
                f"vocabulary, {target.pad_id} and {target.eos_id} in the target vocabulary, and the network pads with "
                f"{self.config.padding_id}: they must be the same"
            )


def refused_tokenizers(parts: TranslatorParts, is_supported: Callable[[Tokenizer], bool]) -> list[str]:
    """The tokenizers that a format does not support, as reasons: both in one if they are alike."""
    sides = {"source": parts.source_tokenizer, "target": parts.target_tokenizer}
    kinds = {side: _kind_of(tokenizer) for side, tokenizer in sides.items() if not is_supported(tokenizer)}
    if len(kinds) == len(sides) and len(set(kinds.values())) == 1:
        return [f"tokenizers {kinds['source']}"]
    return [f"a {side} tokenizer {kind}" for side, kind in kinds.items()]
