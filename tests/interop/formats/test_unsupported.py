"""Folders that no reader recognizes: the error says what they are and what is lacking."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from multihead.errors import FormatError
from multihead.interop.formats.opening import FORMATS, is_foreign, read_foreign
from multihead.interop.formats.parts import Languages


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"model_type": "umt5", "architectures": ["UMT5ForConditionalGeneration"], "is_encoder_decoder": True},
            r"type 'umt5' \(UMT5ForConditionalGeneration\); multihead lacks relative positions of each layer",
        ),
        ({"model_type": "whisper", "is_encoder_decoder": True}, "multihead lacks an encoder of speech"),
        ({"model_type": "novel", "is_encoder_decoder": True}, "multihead lacks a reader for it"),
        ({"model_type": "gpt2"}, "this network has one stack only"),
    ],
)
def test_a_model_of_transformers_is_refused_by_its_type(tmp_path: Path, config: object, message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert is_foreign(tmp_path)
    with pytest.raises(FormatError, match=message) as caught:
        read_foreign(tmp_path, Languages())
    assert "\n" not in str(caught.value)
    assert all(one.name in str(caught.value) for one in FORMATS)


@pytest.mark.parametrize(("file", "message"), [("model.bin", "a folder of CTranslate2"), ("x.gguf", "of llama.cpp")])
def test_files_of_other_runtimes_are_named(tmp_path: Path, file: str, message: str) -> None:
    (tmp_path / file).touch()
    with pytest.raises(FormatError, match=message):
        read_foreign(tmp_path, Languages())


def test_any_other_folder_is_not_foreign(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert not is_foreign(tmp_path)
    assert not is_foreign(tmp_path / "nothing")
    with pytest.raises(FormatError, match="not a model folder of multihead or of another program"):
        read_foreign(tmp_path, Languages())
