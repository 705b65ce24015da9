"""Searches of a certificate, in pieces, with lines about their progress.

The searches themselves are those of `our_side` and of the `runtimes`, which take any number of sources at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from multihead.training.progress import format_duration

Given = TypeVar("Given", bound=Sequence[int] | str)
Found = TypeVar("Found")

PIECE = 64
"""Sources in a piece: two batches."""

EVERY = 15.0
"""Seconds between two lines about the progress."""


def in_pieces(
    search: Callable[[list[Given]], Sequence[Found]], sources: Sequence[Given], what: str, say: Callable[[str], None]
) -> list[Found]:
    """What a search finds for each source, in their order.

    Args:
        search: called with sources of similar lengths, long ones first; finds as many results.
        sources: rows of ids, or texts.
        what: searches how, such as "CTranslate2, beam 5".
        say: called with a line every `EVERY` seconds.
    """
    order = sorted(range(len(sources)), key=lambda place: -len(sources[place]))
    found: dict[int, Found] = {}
    started = last = time.monotonic()
    for start in range(0, len(order), PIECE):
        places = order[start : start + PIECE]
        found.update(zip(places, search([sources[place] for place in places]), strict=True))
        now = time.monotonic()
        if now - last >= EVERY and len(found) < len(order):
            last, left = now, (now - started) / len(found) * (len(order) - len(found))
            say(f"{what}: {len(found):,} of {len(order):,} lines, about {format_duration(left)} left")
    return [found[place] for place in range(len(order))]
