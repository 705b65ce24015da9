"""A model that writes from right to left learns and judges, and refuses options for the beginning of its text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from multihead import Translator
from multihead.errors import ConfigurationError
from multihead.judging.align import _text_matrix, align
from multihead.judging.analysis import analyze_pairs
from multihead.text.backwards import forwards
from multihead.translating.shortlist import shortlist

if TYPE_CHECKING:
    from tests.conftest import Numbers

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["eins zwei drei", "", "sieben acht", "zehn neun acht eins", "sieben"]
READ = ["one two three", "", "seven eight", "ten nine eight one", "seven"]


@pytest.fixture(scope="module")
def turned(numbers: Numbers, tmp_path_factory: pytest.TempPathFactory, without_checks: Any) -> Path:
    """A run that has learned number words, the last one first."""
    folder = tmp_path_factory.mktemp("turned") / "run"
    options = {"updates": 400, "validate_every": 400, "log_every": 400, "dropout": 0.0, "smoothing": 0.0}
    files = {**numbers.train, **numbers.valid}
    with without_checks():
        numbers.learn(folder, **files, **{**numbers.settings, **options, "right_to_left": True})
    return folder


def test_it_learns_and_its_translations_are_read_from_left_to_right(turned: Path) -> None:
    translator = Translator.load(turned)
    for search in ({}, {"beam": 1}, {"precision": "int8"}, {"no_repeat": 9}):
        assert translator.searching(**search).translate(TEXTS) == READ
    tokenizer = translator.bundle.target_tokenizer
    assert tokenizer.decode(tokenizer.encode("one two")[:1]) != "one two"
    assert translator.translate(["eins zwei"], phrases=[["one two"]]) == ["one two"]


def test_words_are_where_they_are_for_a_model_from_left_to_right(turned: Path) -> None:
    """The row of each token shows its words; also for a text that reads the same both ways."""
    tokenizer = Translator.load(turned).bundle.target_tokenizer
    for text in ("one two three", "one one", "ten"):
        ids = forwards(tokenizer).encode(text)
        wanted = _text_matrix(forwards(tokenizer), text, ids)
        assert torch.equal(_text_matrix(tokenizer, text, ids[::-1], "eins"), wanted.flip(0))
    (links,) = align(Translator.load(turned), ["sieben acht"], ["seven eight"])
    assert {word for _, word in links} == {0, 1}


def test_source_and_target_share_subwords_in_a_shortlist(turned: Path) -> None:
    shortlist(turned, always=1, candidates=12, say=lambda _: None)
    translator = Translator.load(turned).searching(shortlist=True)
    tokenizer = translator.bundle.source_tokenizer
    named = set(translator.shortlist.of([*tokenizer.encode(TEXTS[0]), tokenizer.eos_id]).tolist())
    assert set(tokenizer.encode(TEXTS[0])) <= named
    assert translator.translate(TEXTS) == READ


def test_what_needs_the_first_word_is_refused(turned: Path, trained: Path) -> None:
    translator = Translator.load(turned)
    with pytest.raises(ConfigurationError, match="from right to left: prefixes need one"):
        translator.translate(TEXTS[:1], prefixes=["one"])
    assert translator.translate(TEXTS[:1], prefixes=[""]) == READ[:1]
    with pytest.raises(ConfigurationError, match="from right to left: analyses of words need one"):
        analyze_pairs(translator, TEXTS[:1], READ[:1])
    with pytest.raises(ConfigurationError, match="another target vocabulary"):
        translator.ensemble([Translator.load(trained)])


def test_commands_know_the_order_of_a_model(
    turned: Path, trained: Path, numbers: Numbers, call: Any, tmp_path: Path
) -> None:
    files = [word for name, path in {**numbers.train, **numbers.valid}.items()
             for word in (f"--{name.replace('_', '-')}", path)]  # fmt: skip
    given = b"eins zwei\n\nsieben\n"
    assert call("translate", turned, given=given).text == "one two\n\nseven\n"
    judged = call("translate", trained, "--judge", turned, "--weights", "forward=0.5,judge=0.5", given=given)
    assert judged.text == "one two\n\nseven\n"
    more = ("train", *files, "--updates", 1, "--threads", 1)
    tuned = call(*more, "--from-model", turned, "--output", tmp_path / "tuned")
    assert tuned.status == 0, tuned.err
    assert Translator.load(tmp_path / "tuned").bundle.target_tokenizer.backwards
    for words, message in (
        (
            (*more, "--right-to-left", "--alignments", "ibm1", "--output", tmp_path / "a"),
            "right_to_left and alignments",
        ),
        ((*more, "--from-model", turned, "--alignments", "ibm1", "--output", tmp_path / "b"), "alignments need one"),
        ((*more, "--from-model", turned, "--right-to-left", "--output", tmp_path / "c"), "brings its own subwords"),
        ((*more, "--best", "--right-to-left", "--output", tmp_path / "d"), "trains such a model itself"),
        (("explain", turned, "eins"), "explanations need one"),
        (("export", turned, "--format", "web", "--output", tmp_path / "e"), "from right to left, which only multihead"),
    ):
        refused = call(*words)
        assert refused.status == 2, refused.err
        assert message in refused.err.strip().split("\n")[-1]
