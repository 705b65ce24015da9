"""Several models as one: whether they fit together. What is averaged, and how, is `decoding.ensemble`'s."""

from __future__ import annotations

from collections.abc import Sequence

from multihead.bundle import Bundle
from multihead.decoding.ensemble import Ensemble
from multihead.errors import ConfigurationError
from multihead.translating.search_settings import Mean


def ensemble_of(bundles: Sequence[Bundle], mean: Mean = "probabilities") -> Ensemble:
    """The models of these as one; each counts as much as any other.

    Args:
        bundles: two or more, of any kind and size.
        mean: of what.

    Raises:
        ConfigurationError: one has another vocabulary than the first, or stands on another device; fewer than two.
    """
    if len(bundles) < 2:
        raise ConfigurationError("an ensemble needs another model")
    for number, bundle in enumerate(bundles[1:], start=2):
        _check(bundles[0], bundle, number)
    return Ensemble([bundle.model.eval() for bundle in bundles], mean)


def _check(first: Bundle, other: Bundle, number: int) -> None:
    """Refuses model ``number`` where it does not fit the first."""
    sides = {
        "source": (first.source_tokenizer, other.source_tokenizer),
        "target": (first.target_tokenizer, other.target_tokenizer),
    }
    for side, (one, two) in sides.items():
        if one.digest != two.digest:
            raise ConfigurationError(
                f"model {number} of the ensemble has another {side} vocabulary (SHA-256 {two.digest[:12]}..., "
                f"the first has {one.digest[:12]}...): train them from the same prepared text"
            )
    device = first.model.output.weight.device
    if other.model.output.weight.device != device:
        raise ConfigurationError(f"model {number} of the ensemble is not on {device}, where the first is")
