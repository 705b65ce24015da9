"""Marks for tests that fail with older versions of other programs."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from packaging.version import Version


def _before(package: str, number: str) -> bool:
    return Version(version(package)) < Version(number)


_BEFORE_2_7 = _before("torch", "2.7")
_BEFORE_5_18 = _before("transformers", "5.18")

AUTOCAST_IS_NOT_COMPILED = _BEFORE_2_7
"""PyTorch 2.6 cannot compile the check whether a device has autocast; it splits the code around it into two graphs."""

SURPLUS_TOKENS = int(_before("transformers", "5.3"))
"""Tokens that ``generate`` adds beyond the ``max_length`` of a folder: before 5.3, the start symbol does not count."""

combined_masks = pytest.mark.skipif(_BEFORE_2_7, reason="PyTorch 2.6 does not compile & between objects, such as masks")
lone_bias = pytest.mark.skipif(_BEFORE_2_7, reason="PyTorch 2.6 has no message if only one of two biases is given")

nllb_languages = pytest.mark.skipif(
    _before("transformers", "5.1"),
    reason="transformers 5.0 omits the languages when it builds an NLLB tokenizer from a SentencePiece model",
)
language_prefix = pytest.mark.skipif(
    _before("transformers", "5.6"),
    reason="transformers before 5.6 begins every text with the language that the folder was saved with",
)
tied_marian = pytest.mark.skipif(
    _BEFORE_5_18,
    reason="transformers before 5.18 does not tie the output of a MarianMT model with two vocabularies",
)
searched_vocabulary = pytest.mark.skipif(
    _BEFORE_5_18,
    reason="transformers before 5.18 uses the source vocabulary size in a search with two vocabularies",
)
fsmt_positions = pytest.mark.skipif(
    _BEFORE_5_18,
    reason="transformers before 5.18 gives every token the first position when it generates with FSMT",
)
