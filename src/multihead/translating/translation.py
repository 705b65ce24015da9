"""What a translation is, and how a hypothesis of a search becomes one."""

from __future__ import annotations

from dataclasses import dataclass

from multihead.decoding.hypothesis import Hypothesis
from multihead.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Translation:
    """A translated sentence."""

    text: str
    score: float
    """log p(y | x) / penalty(|y|): comparable between translations of one sentence."""
    finished: bool
    """False where the length limit cut it; then the text is not whole."""
    warning: str | None = None
    """What else its reader should know: the sentence is longer than the positions that the model tells apart."""
    log_probability: float = 0.0
    """log p(y | x)."""
    tokens: int = 0
    """|y|, the end symbol counted where it was reached; 0 of an empty sentence, which is not translated."""


def spelt(hypothesis: Hypothesis, tokenizer: Tokenizer, source_tokens: int, reach: int | None) -> Translation:
    """What a search found, as text.

    Args:
        hypothesis: what it found.
        tokenizer: of the target side.
        source_tokens: of its sentence, the end symbol counted.
        reach: positions that the model tells apart; None: any number.
    """
    tokens = hypothesis.tokens
    return Translation(
        tokenizer.decode(tokens),
        hypothesis.score,
        hypothesis.finished,
        _beyond(reach, source_tokens, len(tokens) + 1),
        hypothesis.log_probability,
        len(tokens) + hypothesis.finished,
    )


def _beyond(most: int | None, source_tokens: int, target_tokens: int) -> str | None:
    """What to say where a side has more tokens (the begin or end symbol counted) than positions were learned."""
    if most is None or max(source_tokens, target_tokens) <= most:
        return None
    side, tokens = ("source", source_tokens) if source_tokens > most else ("translation", target_tokens)
    return f"the {side} has {tokens} tokens, but the model learned {most} positions: beyond them it sees no order"
