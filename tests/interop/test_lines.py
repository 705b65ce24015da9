"""The lines of a certificate: the user's, the run's, or random ones."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from multihead.errors import InputError
from multihead.interop.lines import certificate_lines, random_lines
from multihead.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.learn(["ein Hund rennt", "zwei Katzen schlafen"] * 5, 300)


def test_the_users_lines_come_first_without_empty_ones_and_word_marks(tmp_path: Path) -> None:
    file = tmp_path / "lines.gz"
    file.write_bytes(gzip.compress("eins\n\n  \nmit ▁ darin\nzwei\ndrei\n".encode()))
    found = certificate_lines(None, TOKENIZER, file, count=2)
    assert found.texts == ("eins", "zwei")
    assert found.origin == "the first 2 lines of lines.gz"


def test_a_model_of_a_run_has_the_validation_text_of_the_run(trained: Path) -> None:
    expected = (trained / "data" / "valid.source.txt").read_text(encoding="utf-8").split("\n")[:3]
    for place in (trained, trained / "best"):
        found = certificate_lines(place, TOKENIZER, count=3)
        assert list(found.texts) == expected
        assert "validation" in found.origin


def test_a_model_from_elsewhere_has_random_lines(tmp_path: Path) -> None:
    found = certificate_lines(tmp_path, TOKENIZER, count=50)
    assert found.texts == random_lines(TOKENIZER, 50, seed=1) != random_lines(TOKENIZER, 50, seed=2)
    assert "random" in found.origin
    for text in found.texts:
        assert text.strip() == text != ""
        assert text.isprintable()


def test_a_file_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "blank").write_text("\n \n", encoding="utf-8")
    with pytest.raises(InputError, match="no line has text"):
        certificate_lines(None, TOKENIZER, tmp_path / "blank")
