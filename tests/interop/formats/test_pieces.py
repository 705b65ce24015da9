"""Files of vocabularies: found by name, read line by line, damage named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from multihead.errors import FormatError, MissingDependencyError
from multihead.interop.formats.pieces import find, read_codes, read_lines, read_yaml, with_sentencepiece
from multihead.text.foreign import SpecialIds


def test_the_first_name_that_exists_counts(tmp_path: Path) -> None:
    for name in ("b.model", "a.model", "codes"):
        (tmp_path / name).touch()
    (tmp_path / "best").mkdir()
    assert find(tmp_path, ["best", "spm.model", "*.model", "codes"], "it") == tmp_path / "a.model"
    assert find(tmp_path, ["x"], "it", optional=True) is None
    with pytest.raises(FormatError, match="the model is missing: expected x or y"):
        find(tmp_path, ["x", "y"], "the model")


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.txt"
    path.write_bytes("a\u2028b\nc\x85\n\nd".encode())
    assert read_lines(path) == ["a\u2028b", "c\x85", "", "d"]
    path.write_bytes(b"a\n\xff\n")
    with pytest.raises(FormatError, match="not UTF-8 text"):
        read_lines(path)
    with pytest.raises(FormatError, match="the vocabulary is missing"):
        read_lines(tmp_path / "other.txt")


def test_codes_of_fastbpe_are_version_2(tmp_path: Path) -> None:
    path = tmp_path / "codes"
    path.write_text("e r</w> 120\nl o 9\n", encoding="utf-8")
    codes = read_codes(path)
    assert (codes.merges, codes.version) == ((("e", "r</w>"), ("l", "o")), "0.2")
    path.write_text("e r\nl o\n", encoding="utf-8")
    assert read_codes(path).version == "0.1"
    path.write_text("e r 1\nl\n", encoding="utf-8")
    with pytest.raises(FormatError, match=":2: expected two symbols and a count"):
        read_codes(path)


def test_yaml_is_plain_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("a: {b: [1, 2.5, 'x', true]}\n", encoding="utf-8")
    assert read_yaml(path) == {"a": {"b": [1, 2.5, "x", True]}}
    for text in ("a: !!python/name:os.system ''\n", "a: [1\n", "a: b: c\n"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(FormatError, match="not YAML with plain data") as caught:
            read_yaml(path)
        assert "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingDependencyError, match=r"needs PyYAML.*multihead\[interop\]"):
        read_yaml(path)


def test_a_damaged_sentencepiece_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "spm.model"
    path.write_bytes(b"no model")
    with pytest.raises(FormatError, match=r"spm.model: not a SentencePiece model"):
        with_sentencepiece(path, ["<s>", "<pad>", "</s>", "<unk>"], SpecialIds(1, 3, 2, 2))
