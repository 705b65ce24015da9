"""Marks for tests that older versions of other programs cannot pass."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from packaging.version import Version

_BEFORE_5_18 = Version(version("transformers")) < Version("5.18")

tied_marian = pytest.mark.skipif(
    _BEFORE_5_18,
    reason="transformers before 5.18 does not tie the output of a MarianMT model that has two vocabularies",
)
fsmt_positions = pytest.mark.skipif(
    _BEFORE_5_18,
    reason="transformers before 5.18 generates with FSMT as if every token stood at the first position",
)
