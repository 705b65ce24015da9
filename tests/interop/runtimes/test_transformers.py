"""transformers as a runtime: forced prefixes, and what a missing package says."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from multihead.decoding.search import Search
from multihead.errors import ConfigurationError, MissingDependencyError, SurroundingsError
from multihead.interop.formats.opening import read_foreign
from multihead.interop.formats.parts import Languages, TranslatorParts
from multihead.interop.our_side import OurSide
from multihead.interop.runtimes.transformers import TransformersRuntime, _tokenizer
from multihead.models.config import TransformerConfig
from multihead.text.tokenizer import Tokenizer


def test_a_forced_language_costs_nothing(foreign: Any, tmp_path: Path) -> None:
    foreign.m2m100(tmp_path)
    parts = read_foreign(tmp_path, Languages("de", "en"))
    runtime = TransformersRuntime(tmp_path, parts, with_tokenizers=False)
    search = parts.generation.model_copy(update={"beam": 3, "max_length": 9, "min_length": 0})
    sources = [
        [*ids, parts.source_tokenizer.eos_id] for ids in parts.source_tokenizer.encode_batch(foreign.sentences(5))
    ]
    rows = runtime.translate(sources, search)
    assert {tuple(row[:1]) for row in rows} == {parts.target_tokenizer.prefix}
    assert rows == OurSide(parts).translate(sources, runtime.rules(search))
    with pytest.raises(ConfigurationError, match="power"):
        runtime.rules(search.model_copy(update={"length_penalty": "wu"}))


def test_a_package_that_a_tokenizer_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for Marian's, which needs sentencepiece; an import goes on without a certificate then."""

    def load(*_: object, **__: object) -> None:
        raise ImportError("\nMarianTokenizer requires the SentencePiece library but it was not found.\nInstall it.")

    library = pytest.importorskip("transformers")
    monkeypatch.setattr(library.AutoTokenizer, "from_pretrained", load)
    with pytest.raises(SurroundingsError, match=r"cannot load the tokenizer in .*: MarianTokenizer requires the Sent"):
        _tokenizer(tmp_path, {})


@pytest.mark.parametrize(
    ("module", "package"),
    [("transformers", "transformers"), ("onnxruntime", "onnxruntime"), ("sentencepiece", "sentencepiece")],
)
def test_a_missing_package_is_named(tmp_path: Path, module: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.learn(["ein Hund"] * 2, 270)
    config = TransformerConfig(source_vocab=len(tokenizer), target_vocab=len(tokenizer))
    parts = TranslatorParts(config, {}, tokenizer, tokenizer, Search())
    monkeypatch.setitem(sys.modules, package, None)
    runtime = importlib.import_module(f"multihead.interop.runtimes.{module}")
    with pytest.raises(MissingDependencyError, match=rf'{package}, which is not installed: pip install "multihead\['):
        runtime.open_folder(tmp_path, parts, "float32")
