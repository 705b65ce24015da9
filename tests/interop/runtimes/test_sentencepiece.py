"""The tokenizers in a folder of SentencePiece models, each for its side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from multihead.decoding.search import Search
from multihead.interop.formats import sentencepiece
from multihead.interop.formats.opening import read_foreign
from multihead.interop.formats.parts import Languages, TranslatorParts
from multihead.interop.runtimes import Runtime, TokenizerRuntime
from multihead.interop.runtimes.sentencepiece import open_folder
from multihead.models.config import TransformerConfig
from multihead.text.tokenizer import Tokenizer


def test_each_side_has_its_own(tmp_path: Path) -> None:
    source, target = (Tokenizer.learn([line] * 2, 275) for line in ("ein Hund", "a big dog"))
    config = TransformerConfig(source_vocab=len(source), target_vocab=len(target), tie_embeddings=False)
    parts = TranslatorParts(config, {}, source, target, Search())
    sentencepiece.write(parts, tmp_path)
    runtime = open_folder(tmp_path, parts, "")
    assert isinstance(runtime, TokenizerRuntime)
    assert not isinstance(runtime, Runtime)
    assert runtime.encode(["Hund ein"]) == source.encode_batch(["Hund ein"])
    assert runtime.decode(target.encode_batch(["dog </s>"])) == ["dog </s>"]


def test_imported_models_keep_their_ids(foreign: Any, tmp_path: Path) -> None:
    folder = tmp_path / "spm"
    folder.mkdir()
    foreign.marian(tmp_path, languages=["fr"])
    parts = read_foreign(tmp_path, Languages(target="fr"))
    assert sentencepiece.inexact(parts) is None
    sentencepiece.write(parts, folder)
    runtime = open_folder(folder, parts, "")
    texts, target = foreign.sentences(9), parts.target_tokenizer
    assert runtime.encode(texts) == parts.source_tokenizer.encode_batch(texts)
    rows = target.encode_batch(foreign.sentences(9, english=True))
    assert runtime.decode([[*row, target.eos_id] for row in rows]) == target.decode_batch(rows)
