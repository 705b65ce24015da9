"""Prepared text made from prepared text: sides exchanged, pairs added."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from multihead.data.store import TokenStore
from multihead.errors import DataError, Interrupted
from multihead.planning.corpus_settings import CorpusSettings
from multihead.planning.settings import are_twins
from multihead.preparing.derived import derive
from multihead.preparing.prepare import prepare
from multihead.preparing.prepared import PreparedText, open_prepared, read_manifest
from multihead.training.context import RunContext

if TYPE_CHECKING:
    from tests.conftest import Numbers

QUIET = RunContext(lambda _: None)


@pytest.fixture(scope="module", autouse=True)
def small_parts() -> Iterator[None]:
    """Several parts, the last one shorter."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("shards", "derived"):
            patch.setattr(f"multihead.preparing.{module}.SHARD", 250)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the text."""
    return tmp_path_factory.mktemp("prepared") / "text"


@pytest.fixture(scope="module")
def text(numbers: Numbers, folder: Path) -> PreparedText:
    settings: dict[str, Any] = {**numbers.train, **numbers.valid, "vocab_size": 320, "shared_vocabulary": False}
    return prepare(**settings, output=folder, say=lambda _: None)


def opened(folder: Path) -> PreparedText:
    return open_prepared(folder, read_manifest(folder).data)


def rows(store: TokenStore) -> list[list[int]]:
    return [store[i].tolist() for i in range(len(store))]


def test_exchanged_text_has_the_sides_exchanged(text: PreparedText, tmp_path: Path) -> None:
    derive(text, tmp_path / "back", QUIET, direction="reverse")
    back = opened(tmp_path / "back")
    for name in ("train", "valid"):
        ours, theirs = getattr(text, name), getattr(back, name)
        assert rows(ours.source) == rows(theirs.target)
        assert rows(ours.target) == rows(theirs.source)
        assert ours.lines.tolist() == theirs.lines.tolist()
    assert (back.valid_sources, back.valid_targets) == (text.valid_targets, text.valid_sources)
    assert back.source_tokenizer.digest == text.target_tokenizer.digest != text.source_tokenizer.digest
    assert (back.config.source_language, back.config.target_language) == ("en", "de")
    reasons = read_manifest(tmp_path / "back").reasons
    assert reasons["vocab_size"] == reasons["shared_vocabulary"] == "that of the text it was made from"


def test_every_validation_file_is_exchanged(text: PreparedText, tmp_path: Path) -> None:
    valid = text.config.valid
    assert valid is not None
    config = text.config.model_copy(update={"valid_more": (valid, valid)})
    derive(replace(text, config=config), tmp_path / "back", QUIET, direction="reverse")
    back = read_manifest(tmp_path / "back").data
    assert (back.valid, *back.valid_more) == (valid.exchanged(),) * 3
    derive(replace(text, config=config), tmp_path / "same", QUIET)
    assert read_manifest(tmp_path / "same").data.valid_more == (valid, valid)


def test_exchanged_twice_it_is_the_same_text(
    text: PreparedText, folder: Path, tmp_path: Path, numbers: Numbers
) -> None:
    derive(text, tmp_path / "back", QUIET, direction="reverse")
    derive(opened(tmp_path / "back"), tmp_path / "again", QUIET, direction="reverse")
    assert numbers.contents(tmp_path / "again/data") == numbers.contents(folder / "data")
    assert opened(tmp_path / "again").config == text.config


def test_text_from_right_to_left_is_what_is_prepared_so(text: PreparedText, tmp_path: Path, numbers: Numbers) -> None:
    derive(text, tmp_path / "turned", QUIET, direction="backwards")
    settings: dict[str, Any] = {**numbers.train, **numbers.valid, "vocab_size": 320, "shared_vocabulary": False}
    prepare(**settings, right_to_left=True, output=tmp_path / "prepared", say=lambda _: None)
    assert numbers.contents(tmp_path / "turned/data") == numbers.contents(tmp_path / "prepared/data")
    turned = opened(tmp_path / "turned")
    assert turned.config == opened(tmp_path / "prepared").config
    for name in ("train", "valid"):
        ours, theirs = getattr(text, name), getattr(turned, name)
        assert rows(ours.source) == rows(theirs.source)
        assert [row[::-1] for row in rows(ours.target)] == rows(theirs.target)
    assert (turned.config.right_to_left, text.config.right_to_left) == (True, False)


def test_text_of_both_directions_is_the_text_and_then_the_exchanged_text(numbers: Numbers, tmp_path: Path) -> None:
    settings: dict[str, Any] = {**numbers.train, **numbers.valid, "vocab_size": 320}
    text = prepare(**settings, output=tmp_path / "text", say=lambda _: None)
    for direction in ("reverse", "both"):
        derive(text, tmp_path / direction, QUIET, direction=direction)
    back, both = opened(tmp_path / "reverse"), opened(tmp_path / "both")
    for side in ("source", "target"):
        assert rows(getattr(both.train, side)) == rows(getattr(text.train, side)) + rows(getattr(back.train, side))
        assert rows(getattr(both.valid, side)) == rows(getattr(text.valid, side))
    assert [corpus.pairs for corpus in both.config.corpora] == 2 * [len(text.train)]
    assert are_twins(both.config.corpora) == [False, True]
    assert both.config.pairs == len(both.train)


def test_added_pairs_follow_as_they_would_in_a_corpus_of_all(
    text: PreparedText, tmp_path: Path, numbers: Numbers
) -> None:
    pairs = numbers.pairs(300, seed=7)
    more = tmp_path / "more.tsv"
    more.write_text("".join(f"{source}\t{target}\n" for source, target in [*pairs, ("", "zero")]), encoding="utf-8")
    derive(text, tmp_path / "longer", QUIET, added=[CorpusSettings(source=more, weight=0.5)])
    longer, count = opened(tmp_path / "longer"), len(text.train)
    for side, ours in enumerate(("source", "target")):
        cut = getattr(text, f"{ours}_tokenizer").encode_batch([pair[side] for pair in pairs])
        assert rows(getattr(longer.train, ours)) == [*rows(getattr(text.train, ours)), *cut]
    assert [(c.pairs, c.weight, c.left_out) for c in longer.config.corpora] == [(count, 1.0, 0), (300, 0.5, 1)]
    assert longer.config.pairs == count + 300
    assert rows(longer.valid.source) == rows(text.valid.source)


def test_a_finished_folder_stays_as_it_is(text: PreparedText, tmp_path: Path, numbers: Numbers) -> None:
    derive(text, tmp_path / "back", QUIET, direction="reverse")
    before = numbers.contents(tmp_path / "back")
    derive(text, tmp_path / "back", QUIET)
    assert numbers.contents(tmp_path / "back") == before


def test_what_fails_leaves_nothing(text: PreparedText, tmp_path: Path) -> None:
    empty = tmp_path / "empty.tsv"
    empty.write_text("", encoding="utf-8")
    with pytest.raises(DataError, match=r"empty\.tsv"):
        derive(text, tmp_path / "new", QUIET, added=[CorpusSettings(source=empty)])
    assert not (tmp_path / "new").exists()
    more = tmp_path / "more.tsv"
    more.write_text("eins\tone\n" * 600, encoding="utf-8")
    with pytest.raises(Interrupted):
        derive(text, tmp_path / "new", RunContext(lambda _: None, lambda: 15), added=[CorpusSettings(source=more)])
    assert not (tmp_path / "new").exists()
