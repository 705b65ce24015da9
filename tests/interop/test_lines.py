"""The lines of a certificate: the user's, the run's, or random ones."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from multihead.errors import ConfigurationError, InputError
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
        translated = (trained / "data" / "valid.target.txt").read_text(encoding="utf-8").split("\n")[:3]
        assert list(found.references) == translated
        assert "validation" in found.origin


def test_a_model_from_elsewhere_has_random_lines(tmp_path: Path) -> None:
    found = certificate_lines(tmp_path, TOKENIZER, count=50)
    assert found.texts == random_lines(TOKENIZER, 50, seed=1) != random_lines(TOKENIZER, 50, seed=2)
    assert "random" in found.origin
    for text in found.texts:
        assert text.strip() == text != ""
        assert text.isprintable()


def test_references_go_with_the_lines_that_are_used(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("eins\n\nmit ▁ darin\nzwei\ndrei\n", encoding="utf-8")
    (tmp_path / "others").write_text("one\nempty\nmark\ntwo\nthree\n", encoding="utf-8")
    found = certificate_lines(None, TOKENIZER, tmp_path / "lines", count=2, references=tmp_path / "others")
    assert (found.texts, found.references) == (("eins", "zwei"), ("one", "two"))
    assert found.part(slice(1, None, 2)).references == ("two",)


def test_lines_of_more_tokens_than_positions_are_left_out(tmp_path: Path) -> None:
    texts = ["ein Hund", "ein Hund rennt " * 9, "zwei Katzen", "drei"]
    (tmp_path / "lines").write_text("\n".join(texts) + "\n", encoding="utf-8")
    (tmp_path / "others").write_text("a dog\nlong\ntwo cats\nthree\n", encoding="utf-8")
    longest = 1 + max(len(TOKENIZER.encode(text)) for text in (texts[0], texts[2]))  # with the end symbol
    for references in (None, tmp_path / "others"):
        found = certificate_lines(None, TOKENIZER, tmp_path / "lines", 2, references=references, longest=longest)
        assert found.texts == ("ein Hund", "zwei Katzen")
        assert found.references == (() if references is None else ("a dog", "two cats"))
        assert found.origin == f"the first 2 lines of lines, without 1 of more than {longest} tokens"
    (tmp_path / "lines").write_text(texts[1], encoding="utf-8")
    with pytest.raises(InputError, match=f"no line has text of at most {longest} tokens"):
        certificate_lines(None, TOKENIZER, tmp_path / "lines", longest=longest)


@pytest.mark.parametrize(("lines", "others"), [("eins\nzwei\n", "one\n"), ("eins\n", "one\ntwo\n")])
def test_fewer_references_than_lines_are_refused(tmp_path: Path, lines: str, others: str) -> None:
    (tmp_path / "lines").write_text(lines, encoding="utf-8")
    (tmp_path / "others").write_text(others, encoding="utf-8")
    with pytest.raises(InputError, match="ends before line 2"):
        certificate_lines(None, TOKENIZER, tmp_path / "lines", count=1, references=tmp_path / "others")


def test_references_without_lines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--lines"):
        certificate_lines(None, TOKENIZER, references=tmp_path / "others")


def test_a_file_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "blank").write_text("\n \n", encoding="utf-8")
    with pytest.raises(InputError, match="no line has text"):
        certificate_lines(None, TOKENIZER, tmp_path / "blank")
