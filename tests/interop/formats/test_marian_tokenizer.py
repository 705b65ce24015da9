"""An imported MarianMT model goes back to a folder with the same ids, logits and translations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from multihead.interop.certificate import Terms, certify
from multihead.interop.formats import sentencepiece, transformers
from multihead.interop.formats.opening import read_foreign
from multihead.interop.formats.parts import Languages
from multihead.interop.lines import Lines
from multihead.interop.runtimes.transformers import open_folder


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize(
    "settings", [{}, {"separate": True, "languages": ["de", "fr"]}, {"tie_word_embeddings": False}]
)
def test_there_and_back(foreign: Any, tmp_path: Path, settings: dict[str, Any]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    foreign.marian(first, **settings)
    parts = read_foreign(first, Languages(target="fr") if "languages" in settings else Languages())
    parts = replace(parts, generation=parts.generation.model_copy(update={"length_factor": 1.0, "length_margin": 3}))
    assert transformers.refusals(parts) == []
    transformers.write(parts, second)
    for name in ("source.spm", "target.spm"):
        assert (second / name).read_bytes() == (first / name).read_bytes()
    lines = Lines((*foreign.sentences(3), "Ein Hund </s>"), "four lines")
    certificate = certify(parts, open_folder(second, parts, ""), Terms("transformers", lines, beam=2, allowed=1e-4))
    assert certificate.state == "passed", certificate.reason
    again = read_foreign(second, Languages(target="fr") if "languages" in settings else Languages())
    assert again.config == parts.config
    assert again.source_tokenizer.digest == parts.source_tokenizer.digest
    assert all(again.weights[name].equal(tensor) for name, tensor in parts.weights.items())


def test_a_sentencepiece_tokenizer_goes_out_unchanged(foreign: Any, tmp_path: Path) -> None:
    foreign.marian(tmp_path)
    parts = read_foreign(tmp_path, Languages())
    assert sentencepiece.model_of(parts.target_tokenizer) == (tmp_path / "target.spm").read_bytes()
