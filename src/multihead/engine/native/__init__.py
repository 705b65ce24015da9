"""The compiled search: its C++ sources and the signatures of its functions; `multihead.kernels.native` builds it.

`decoding.cpp` holds the search (queue, threads, hypotheses) and `network.h` what a step computes; `products.h`,
`packing.h` and `tiles.h` multiply matrices in each precision. `multihead.engine.search` calls them.
"""

from __future__ import annotations

from pathlib import Path

from multihead.kernels.native import Announce, Library, Native, find

_FILES = ("decoding.cpp", "network.h", "products.h", "packing.h", "tiles.h")
_SIGNATURES = {
    "decoding_model": "ppp:p",
    "decoding_model_free": "p",
    "decoding_positions": "pplpl",
    "decoding_shortlist": "pplpp:p",
    "decoding_shortlist_free": "p",
    "decoding_search": "ppdplplp:p",
    "decoding_search_free": "p",
    "decoding_add": "plplll",
    "decoding_drop": "pl:l",
    "decoding_leading": "plp:l",
    "decoding_run": "pd:l",
    "decoding_seconds": "pp",
    "decoding_matrix_unit": "l:l",
    "decoding_next": "pp:l",
    "decoding_take": "pppppp",
}
_BRIEF = {"add", "drop", "leading", "next", "positions", "seconds", "take"}

DECODING = Library(
    "decoding",
    tuple(Path(__file__).with_name(file) for file in _FILES),
    _SIGNATURES,
    frozenset(f"decoding_{name}" for name in _BRIEF),
)


def decoding(announce: Announce | None = None) -> Native:
    """The compiled search, or why there is none.

    Args:
        announce: told in one line before a build begins, which takes some seconds.

    Raises:
        ConfigurationError: MULTIHEAD_NATIVE is 1 and it cannot be built.
    """
    return find(DECODING, announce)
