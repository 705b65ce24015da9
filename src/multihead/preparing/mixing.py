"""Sampling by temperature: weights that make small corpora count more.

Arivazhagan et al. 2019, "Massively multilingual neural machine translation in the wild", section 4.2. With n_g the
pairs of a group in an epoch, a corpus or all corpora of a direction,

    p_g = n_g^(1/T) / sum_h n_h^(1/T)

is the group's share of the pairs that training sees: its share of the text for T = 1, the same for all groups as T
grows. A weight says how often a pair is seen in an epoch (`data.order.epoch_pairs`, where shares are exact and depend
on nothing but the seed), so the pairs of a group get their weight times c n_g^(1/T - 1).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from multihead.configuration import MOST_FACTOR


def tempered(
    sizes: Sequence[int], weights: Sequence[float], groups: Sequence[Hashable], temperature: float
) -> list[float]:
    """The weights of corpora for a temperature.

    c keeps the number of pairs of an epoch, unless a weight would exceed `MOST_FACTOR`: then epochs are shorter.

    Args:
        sizes: pairs of each corpus.
        weights: how often each pair would be seen in an epoch without a temperature.
        groups: to which group each corpus belongs.
        temperature: T, at least 1.
    """
    seen = [size * weight for size, weight in zip(sizes, weights, strict=True)]
    members: dict[Hashable, list[float]] = {}
    for group, pairs in zip(groups, seen, strict=True):
        members.setdefault(group, []).append(pairs)
    totals = {group: math.fsum(own) for group, own in members.items()}
    power = 1 / temperature - 1
    found = [
        weight * totals[group] ** power if totals[group] else 0.0 for weight, group in zip(weights, groups, strict=True)
    ]
    unscaled = math.fsum(size * weight for size, weight in zip(sizes, found, strict=True))
    if not unscaled:
        return list(weights)
    scale = min(math.fsum(seen) / unscaled, MOST_FACTOR / max(found))
    # A product of the limit can be rounded above it. A corpus without pairs has no share, whatever its weight.
    return [min(scale * new, MOST_FACTOR) or old for new, old in zip(found, weights, strict=True)]
