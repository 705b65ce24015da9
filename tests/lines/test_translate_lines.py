"""Lines and rows: any text that is written can be read back, and a stream is not read ahead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from multihead import Translator
from multihead.decoding.search import Search
from multihead.errors import ConfigurationError
from multihead.lines import windows as module
from multihead.lines.windows import LineOptions, in_chunks, translated
from multihead.translating.request import TranslationRequest
from multihead.translating.searching import Translation

SEARCH = Search(beam=3)


@pytest.fixture(scope="module")
def translator(trained: Any) -> Translator:
    return Translator.load(trained)


@pytest.mark.parametrize(("count", "sizes"), [(0, []), (1, [1]), (3, [3]), (7, [3, 3, 1]), (9, [3, 3, 3])])
def test_chunks_hold_all_lines_in_order(count: int, sizes: list[int]) -> None:
    chunks = list(in_chunks(iter(map(str, range(count))), 3))
    assert [len(chunk) for chunk in chunks] == sizes
    assert [line for chunk in chunks for line in chunk] == list(map(str, range(count)))


@pytest.mark.parametrize("text", ["", "\t", "a\tb\t\tc", "1\t2.0\t", " x ", "\u2028\x85\0", "▁👩‍👩‍👧‍👦"])
def test_a_row_survives_any_text(text: str) -> None:
    found = [Translation(text, -1.25, True), Translation(text * 2, -2.0, False)]
    for options, count in (
        (LineOptions(TranslationRequest(SEARCH, n_best=2)), 2),
        (LineOptions(TranslationRequest(SEARCH), scores=True), 1),
    ):
        rows = options.rows(17, "its text", found[:count])
        read = [row.split("\t", 2) for row in "".join(row + "\n" for row in rows).split("\n")[:-1]]
        assert [(int(line), float(score), rest) for line, score, rest in read] == [
            (17, translation.score, translation.text) for translation in found[:count]
        ]
    assert LineOptions(TranslationRequest(SEARCH)).rows(17, "its text", found[:1]) == [text]


@pytest.mark.parametrize("n", [0, 4])
def test_more_than_the_beam_holds_cannot_be_wanted(n: int) -> None:
    remedy = "; widen the beam" if n > 3 else ""
    with pytest.raises(ConfigurationError, match=f"n_best: expected 1 to the beam, which is 3, got {n}{remedy}$"):
        LineOptions(TranslationRequest(SEARCH, n_best=n))


def test_windows_are_translated_as_they_come(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window is returned before the next one is read, so memory holds one window, however many there are."""
    monkeypatch.setattr(module, "WINDOW", 3)
    asked: list[int] = []

    def endless() -> Iterator[str]:
        number = 0
        while True:
            number += 1
            asked.append(number)
            yield "eins" if number % 2 else ""

    windows = translated(
        translator, endless(), LineOptions(TranslationRequest(translator.search_settings(beam=1)), scores=True), done=6
    )
    for times in (1, 2):
        window = next(windows)
        assert len(asked) == 3 * times
        assert [row.split("\t")[0] for row in window.rows] == [str(3 + 3 * times + n) for n in (1, 2, 3)]
        assert [row.split("\t")[2] for row in window.rows] == (["one", "", "one"] if times == 1 else ["", "one", ""])


def test_progress_and_remarks_have_their_lines(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 2)
    told: list[int] = []
    search = translator.search_settings(beam=2, max_length=1)
    given = ["", "eins zwei", "drei", "", "vier"]
    windows = list(
        translated(translator, iter(given), LineOptions(TranslationRequest(search, n_best=2)), progress=told.append)
    )
    assert sum(told) == len(given)
    assert [window.lines for window in windows] == [2, 2, 1]
    remarks = [remark for window in windows for remark in window.remarks]
    cut = "reached the length limit and may be cut"
    assert [remark.split(":")[0] for remark in remarks] == ["line 2"] * 2 + ["line 3"] * 2 + ["line 5"] * 2
    assert [remark.split(": ")[1] for remark in remarks[:2]] == [f"translation 1 {cut}", f"translation 2 {cut}"]
