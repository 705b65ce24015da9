r"""Perplexity of texts: per token, and per character and byte.

    perplexity per token      exp(- log p / tokens)
    perplexity per character  exp(- log p / characters)
    bits per byte             - log_2 p / bytes

where log p is the log-probability of all texts. Tokens depend on the vocabulary; characters and bytes do not, so models
with different vocabularies are compared by these. The end of a text counts as a token, a character and a byte.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class TextPerplexity:
    """Sums over texts, from which perplexities follow.

    Args:
        log_probability: log p, with the natural logarithm.
        texts: number of texts.
        tokens: including end symbols.
        characters: Unicode characters, and one for each end.
        bytes: of UTF-8, and one for each end.
    """

    log_probability: float = 0.0
    texts: int = 0
    tokens: int = 0
    characters: int = 0
    bytes: int = 0

    def add(self, text: str, log_probabilities: list[float]) -> None:
        """Add a text with the log-probabilities of its tokens; one without tokens changes nothing."""
        if log_probabilities:
            self.log_probability += math.fsum(log_probabilities)
            self.texts += 1
            self.tokens += len(log_probabilities)
            self.characters += len(text) + 1
            self.bytes += len(text.encode()) + 1

    @property
    def loss(self) -> float:
        """The mean negative log-probability of a token; NaN without texts."""
        return self._mean(self.tokens)

    @property
    def per_token(self) -> float:
        """Perplexity per token."""
        return _exp(self.loss)

    @property
    def per_character(self) -> float:
        """Perplexity per character."""
        return _exp(self._mean(self.characters))

    @property
    def bits_per_byte(self) -> float:
        """Bits with which an arithmetic coder would write a byte."""
        return self._mean(self.bytes) / math.log(2)

    def as_dict(self) -> dict[str, float]:
        """Everything, for JSON."""
        return {
            "perplexity": self.per_token,
            "perplexity_per_character": self.per_character,
            "bits_per_byte": self.bits_per_byte,
            "loss": self.loss,
            "lines": self.texts,
            "tokens": self.tokens,
            "characters": self.characters,
            "bytes": self.bytes,
        }

    def __str__(self) -> str:
        return (
            f"perplexity {self.per_token:.4f} a token, {self.per_character:.4f} a character; "
            f"{self.bits_per_byte:.4f} bits a byte"
        )

    def _mean(self, count: int) -> float:
        return -self.log_probability / count if count else math.nan


def _exp(loss: float) -> float:
    return math.exp(loss) if not loss >= 700 else math.inf
