"""Marks for tests that older versions of other programs cannot pass."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from packaging.version import Version


def _before(package: str, number: str) -> bool:
    return Version(version(package)) < Version(number)


_BEFORE_2_7 = _before("torch", "2.7")
_BEFORE_5_18 = _before("transformers", "5.18")

AUTOCAST_IS_NOT_COMPILED = _BEFORE_2_7
"""PyTorch 2.6 does not compile the question whether a device has autocast: it runs what is around it in two parts."""

SURPLUS_TOKENS = int(_before("transformers", "5.3"))
"""Tokens that ``generate`` makes beyond the ``max_length`` of a folder: before 5.3, the start symbol does not count."""

combined_masks = pytest.mark.skipif(_BEFORE_2_7, reason="PyTorch 2.6 does not compile & between objects, such as masks")
lone_bias = pytest.mark.skipif(_BEFORE_2_7, reason="PyTorch 2.6 has no message where only one of two biases is given")

nllb_languages = pytest.mark.skipif(
    _before("transformers", "5.1"),
    reason="transformers 5.0 leaves the languages out when it makes an NLLB tokenizer of a SentencePiece model",
)
language_prefix = pytest.mark.skipif(
    _before("transformers", "5.6"),
    reason="transformers before 5.6 puts the language that a folder was written with before every text",
)
tied_marian = pytest.mark.skipif(
    _BEFORE_5_18,
    reason="transformers before 5.18 does not tie the output of a MarianMT model that has two vocabularies",
)
searched_vocabulary = pytest.mark.skipif(
    _BEFORE_5_18,
    reason="transformers before 5.18 searches with the number of source entries where there are two vocabularies",
)
fsmt_positions = pytest.mark.skipif(
    _BEFORE_5_18,
    reason="transformers before 5.18 generates with FSMT as if every token stood at the first position",
)
