"""Directions of prepared text: what is read both ways, held out on both sides, and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from multihead.data.corpus import Report
from multihead.data.readers import CorpusScan, ReversedScan, scan_corpus
from multihead.errors import ConfigurationError
from multihead.planning.settings import Choices, PrepareSettings
from multihead.preparing.corpora import scan_files
from multihead.preparing.directions import choose_symbols, directions_of
from multihead.preparing.prepare import write_data
from multihead.preparing.prepared import PreparedText
from multihead.preparing.subwords import keep_vocabulary
from multihead.text.language_tokens import LanguageTokenizer
from multihead.training.context import RunContext


def write(folder: Path, name: str, count: int = 60) -> Path:
    path = folder / name
    path.write_text("".join(f"eins zwei {n}\tone two {n}\n" for n in range(count)), encoding="utf-8")
    return path


def stored(folder: Path, given: PreparedText | None = None, **wishes: Any) -> PreparedText:
    folder.mkdir()
    asked = PrepareSettings(**({} if given is not None else {"vocab_size": 300}), **wishes)
    choices = Choices(asked)
    kept = None if given is None else keep_vocabulary(choices, given.source_tokenizer, given.target_tokenizer)
    return write_data(choices, scan_files(asked), folder, RunContext(say=lambda _: None), kept)


def corpus(source: Path, languages: str = "de en", **more: Any) -> dict[str, Any]:
    codes = dict(zip(("source_language", "target_language"), languages.split(), strict=True))
    return {"source": source, **codes, **more}


def test_a_corpus_backwards_is_the_corpus_with_its_sides_exchanged(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("a\tb\nc\t\nd\te\n")
    scan = scan_corpus(path, None, "de", "en")
    found, report = ReversedScan(scan), Report()
    assert isinstance(found, CorpusScan)
    assert (found.lines, found.languages, found.path(0), found.files) == (3, ("en", "de"), path, scan.files)
    assert [tuple(pair) for pair in found.read(report)] == [(1, "b", "a"), (3, "e", "d")]
    assert [fault.line for fault in report.faults] == [2]
    for name, text in (("t.de", "a\n"), ("t.en", "b\n")):
        (tmp_path / name).write_text(text)
    two = ReversedScan(scan_corpus(tmp_path / "t.de", tmp_path / "t.en"))
    assert [two.path(side).name for side in (0, 1)] == [text.path.name for text in two.files] == ["t.en", "t.de"]


def test_a_pair_is_held_out_in_both_directions(tmp_path: Path) -> None:
    found = stored(tmp_path / "run", corpus=[corpus(write(tmp_path, "t.tsv"), both_ways=True)], held_out=7)
    first, second = found.config.directions
    assert [(one.source, one.target, one.valid) for one in (first, second)] == [("de", "en", 7), ("en", "de", 7)]
    (_, there), (_, back) = found.valid_parts
    assert found.valid_sources[there] == found.valid_targets[back]
    assert found.valid_targets[there] == found.valid_sources[back]
    held = {*found.valid_sources, *found.valid_targets}
    tokenizer = found.source_tokenizer
    texts = [tokenizer.decode(side[i].tolist()) for side in (found.train.source, found.train.target)
             for i in range(len(found.train))]  # fmt: skip
    assert not held & {*texts}
    assert len(found.train) == 2 * (60 - 7)
    assert len(tokenizer) == len(found.target_tokenizer)  # one vocabulary, with the symbols


def test_one_target_needs_no_symbol_and_changes_nothing(tmp_path: Path) -> None:
    rows = [corpus(write(tmp_path, "a.tsv")), corpus(write(tmp_path, "b.tsv"), "fr en")]
    found = stored(tmp_path / "run", corpus=rows, held_out=4)
    assert found.source_tokenizer.languages == found.config.directions == ()
    assert not {"directions", "valid_more"} & found.config.model_dump().keys()
    assert found.config.target_language == "en"


def test_symbols_without_a_shared_vocabulary(tmp_path: Path) -> None:
    rows = [corpus(write(tmp_path, "t.tsv"), both_ways=True)]
    found = stored(tmp_path / "run", corpus=rows, held_out=4, shared_vocabulary=False)
    assert found.source_tokenizer.languages == ("en", "de")
    assert found.target_tokenizer.languages == ()


def test_a_given_vocabulary_keeps_its_symbols(tmp_path: Path) -> None:
    path = write(tmp_path, "t.tsv")
    many = stored(tmp_path / "many", corpus=[corpus(path, both_ways=True)], held_out=4)
    one = stored(tmp_path / "one", many, corpus=[corpus(path)], held_out=4)
    assert isinstance(one.source_tokenizer, LanguageTokenizer)
    assert one.source_tokenizer.digest == many.source_tokenizer.digest
    symbol = one.source_tokenizer.id_of("en")
    assert {int(one.train.source[i][0]) for i in range(len(one.train))} == {symbol}
    assert [(d.source, d.target) for d in one.config.directions] == [("de", "en")]
    with pytest.raises(ConfigurationError, match=r"t\.tsv: its target language is fr, expected one of en, de; name it"):
        stored(tmp_path / "none", many, corpus=[corpus(path, "de fr")], held_out=4)
    plain = stored(tmp_path / "plain", corpus=[corpus(path)], held_out=4)
    with pytest.raises(ConfigurationError, match=r"several target languages \(en, de\), and the given model has no"):
        stored(tmp_path / "no symbols", plain, corpus=[corpus(path, both_ways=True)], held_out=4)


def test_validation_files_of_several_directions(tmp_path: Path) -> None:
    path, valid = write(tmp_path, "t.tsv"), write(tmp_path, "v.tsv", 5)
    rows = [corpus(path, both_ways=True), corpus(path, "fr en")]
    wishes = {"corpus": rows, "valid": [corpus(valid, both_ways=True), corpus(write(tmp_path, "w.tsv", 3))]}
    found = stored(tmp_path / "run", **wishes)
    # Files of one direction are scored together; a direction without validation pairs is still one.
    assert [(d.source, d.target, d.valid) for d in found.config.directions] == [
        ("de", "en", 8), ("en", "de", 5), ("fr", "en", 0),
    ]  # fmt: skip
    assert len(found.valid_parts) == 2
    assert found.config.valid is not None
    records = [found.config.valid, *found.config.valid_more]
    assert [(Path(r.files[0].path).name, r.pairs, r.reversed) for r in records] == [
        ("v.tsv", 5, False), ("v.tsv", 5, True), ("w.tsv", 3, False),
    ]  # fmt: skip


def test_one_language_in_two_spellings_has_one_symbol(tmp_path: Path) -> None:
    rows = [
        corpus(write(tmp_path, "a.tsv"), "de en"),
        corpus(write(tmp_path, "b.tsv"), "DE EN"),
        corpus(write(tmp_path, "c.tsv"), "en fr_FR"),
    ]
    settings = PrepareSettings(corpus=rows, valid=[corpus(write(tmp_path, "v.tsv", 3), "En FR-fr")])
    files = scan_files(settings)
    assert choose_symbols(Choices(settings), files, None) == ("en", "fr_FR")
    assert [tuple(one) for one in directions_of(files.train)] == [("de", "en"), ("en", "fr_FR")]
    assert [one.languages for one in files.valid_parts] == [("en", "fr_FR")]


def test_languages_that_are_not_known(tmp_path: Path) -> None:
    path = write(tmp_path, "t.tsv")
    with pytest.raises(ConfigurationError, match=r"t\.tsv: to read it in both directions.*they are de and unknown"):
        scan_files(PrepareSettings(corpus=[{"source": path, "source_language": "de", "both_ways": True}]))
    settings = PrepareSettings(corpus=[corpus(path), corpus(path, "de fr"), {"source": path}])
    with pytest.raises(ConfigurationError, match=r"t\.tsv: its target language is not known, expected one of en, fr"):
        choose_symbols(Choices(settings), scan_files(settings), None)
