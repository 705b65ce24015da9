"""As many lines out as in, in order, whatever they contain: through windows, parts, samples and the guard.

`Echo` returns the text that it is asked to translate. Everything between the bytes of the input file and the bytes of
the output file must then keep every line unchanged.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multihead import Translator
from multihead.data.text_files import decode_line, split_lines
from multihead.errors import DataError, InputError
from multihead.judging.guard_signs import GuardSettings
from multihead.lines import windows as module
from multihead.lines.side_files import SideFiles
from multihead.lines.translate_file import check_input
from multihead.lines.windows import LineOptions, translated
from multihead.translating.lengths import join_parts, most_tokens, split_long_lines
from multihead.translating.request import Sampling, TranslationRequest
from multihead.translating.searching import Translation

pytestmark = pytest.mark.usefixtures("one_thread")

LINE = st.one_of(
    st.text(alphabet=st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=40),
    st.text(alphabet=st.sampled_from("ab. ,!\r\0\u2028\u2029\x85\x0b\x0c\x1c\ufeff\t。é▁"), max_size=60),
    st.just(""),
)


class Echo(Translator):
    """Translates each text to itself, as often as translations are requested."""

    def run(
        self, request: TranslationRequest, progress: Callable[[int], None] | None = None
    ) -> list[list[Translation]]:
        texts, n = request.texts, request.candidates
        if progress is not None:
            progress(len(texts))
        return [[Translation(text, -1.0, True, None, -1.0, 1)] * (n if text.strip() else 1) for text in texts]


@pytest.fixture(scope="module")
def echo(trained: Path) -> Echo:
    found = Translator.load(trained)
    return Echo(found.bundle, found.folder)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(LINE, max_size=12),
    window=st.integers(1, 5),
    most=st.sampled_from([0, 2, 3, 8, 40]),
    crlf=st.booleans(),
    ended=st.booleans(),
)
def test_every_line_comes_out_where_it_went_in(
    echo: Echo, lines: list[str], window: int, most: int, crlf: bool, ended: bool
) -> None:
    """White space around a line that is split is removed. Nothing else changes, except for a CR at the end of a line.

    In a line that is split, a CR becomes a space.
    """
    end = "\r\n" if crlf else "\n"
    content = (end.join(lines) + end * (ended and bool(lines))).encode()
    given_lines = [decode_line(raw, "file", 1) for raw in split_lines(io.BytesIO(content))]
    assert len(given_lines) == content.count(b"\n") + (content != b"" and not content.endswith(b"\n"))
    told: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WINDOW", window)
        options = LineOptions(TranslationRequest(echo.search_settings()), max_source=most)
        windows = list(translated(echo, iter(given_lines), options, progress=told.append))
    rows = [row for window in windows for row in window.rows]
    assert len(rows) == sum(window.lines for window in windows) == len(given_lines) == sum(told)
    for row, line in zip(rows, given_lines, strict=True):
        assert row == line or (most and row.replace("\r", " ") == line.strip().replace("\r", " "))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(LINE, min_size=1, max_size=5), most=st.integers(2, 20), more=st.integers(0, 20))
def test_parts_fit_and_are_the_line(echo: Echo, lines: list[str], most: int, more: int) -> None:
    tokenizer = echo.bundle.source_tokenizer
    for line, split in zip(lines, split_long_lines(tokenizer, lines, most, lambda _: False, most + more), strict=True):
        counts = [len(tokenizer.encode(text)) + 1 for text in split.texts]
        assert (len(split.texts) > 1) == bool(split.parts)
        if not split.parts:
            assert split.texts == [line]
            assert counts[0] <= most + more or not line.strip() or len(line.strip()) <= 1 or not split.remark
        for text, count in zip(split.texts, counts, strict=True):
            assert count <= most + more or len(text) <= 1 or not split.parts
        found = [[Translation(text, -2.0, True, None, -4.0, 2)] for text in split.texts]
        (whole,) = join_parts(split, found)
        between = "".join(blank for _, blank in split.parts)
        assert not ("\r" in between and whole.text.count("\r") >= line.count("\r"))
        assert whole.text.replace("\r", " ") == (line.strip() if split.parts else line).replace("\r", " ")
        assert (whole.score, whole.tokens) == (-2.0, 2 * len(split.texts))


def test_what_is_no_text_is_refused(echo: Echo) -> None:
    with pytest.raises(InputError, match="surrogate"):
        split_long_lines(echo.bundle.source_tokenizer, ["\ud800 eins zwei"], 2, lambda _: False)


def test_a_line_is_cut_by_the_rules_of_its_language(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `multihead translate` searches are whole sentences: no abbreviation or date ends one."""
    sentences = ["Wir treffen Dr. Smith z. B. am 3. Mai.", "Das 19. Jahrhundert war lang (vgl. S. 5).", "Gut!"] * 4
    seen: list[str] = []
    run = Echo.run
    monkeypatch.setattr(Echo, "run", lambda self, request, told: seen.extend(request.texts) or run(self, request, told))
    german = Echo(replace(echo.bundle, source_language="de-AT"), echo.folder)
    options = LineOptions(TranslationRequest(german.search_settings()), max_source=2, max_sentence=500)
    (window,) = translated(german, iter([" ".join(sentences)]), options)
    assert seen == sentences
    assert window.rows == [" ".join(sentences)]


SENTENCE = "Eins zwei drei vier."


def test_a_line_of_ten_thousand_words(echo: Echo, trained: Path) -> None:
    """The line becomes sentences like those in training, and their translations become a line again."""
    most = most_tokens(echo.lengths, echo.reach)
    limits = {"max_source": most[0], "max_sentence": most[1]}
    line = " ".join([SENTENCE] * 2500)
    (window,) = translated(echo, iter([line]), LineOptions(TranslationRequest(echo.search_settings()), **limits))
    tokens = len(echo.bundle.source_tokenizer.encode(line)) + 1
    assert window.rows == [line]
    assert window.remarks == (
        f"line 1: {tokens:,} tokens, more than the {most[0]} that this model is used to; translated in 2,500 parts",
    )
    real, short = Translator.load(trained), "  ".join([SENTENCE, "Fünf sechs!", SENTENCE])
    (window,) = translated(
        real, iter(["", short, "eins"]), LineOptions(TranslationRequest(real.search_settings(), n_best=2), **limits)
    )
    one, two = real.n_best([SENTENCE, "Fünf sechs!"], 2)
    expected = ["  ".join([one[place].text, two[place].text, one[place].text]) for place in range(2)]
    assert [row.split("\t", 2)[2] for row in window.rows[1:3]] == expected
    assert [row.split("\t")[0] for row in window.rows] == ["1", "2", "2", "3", "3"]


def test_a_cut_line_says_what_its_parts_say(trained: Path) -> None:
    real = Translator.load(trained)
    search = real.search_settings(max_length=2)
    options = LineOptions(TranslationRequest(search), scores=True, max_source=17, guard=GuardSettings(threshold=0.01))
    (window,) = translated(real, iter([SENTENCE, f"{SENTENCE} {SENTENCE}"]), options)
    rows = [row.split("\t") for row in window.rows]
    assert rows[0][2] == rows[1][2], "as suspicious as its most suspicious part"
    assert float(rows[0][1]) == pytest.approx(float(rows[1][1]), abs=1e-3), "the mean of the scores"
    assert [remark.split(":")[0] for remark in window.remarks] == (
        ["line 1", "line 1", "line 2", "line 2", "line 2, part 1", "line 2, part 2"]
    )


def test_a_carriage_return_between_sentences_is_not_written(trained: Path) -> None:
    real = Translator.load(trained)
    (window,) = translated(
        real, iter([f"{SENTENCE}\r{SENTENCE}"]), LineOptions(TranslationRequest(real.search_settings()), max_source=17)
    )
    (one,) = real.translate([SENTENCE])
    assert window.rows == [f"{one} {one}"]


def test_of_many_suspicious_parts_some_are_named(trained: Path) -> None:
    real = Translator.load(trained)
    options = LineOptions(
        TranslationRequest(real.search_settings(beam=1)),
        max_source=17,
        guard=GuardSettings(threshold=1e-9, closer=True),
    )
    (window,) = translated(real, iter([" ".join(["Qwertz!"] * 9)]), options)
    said = [remark for remark in window.remarks if "suspicious" in remark]
    assert [remark.split(":")[0] for remark in said[:-1]] == [f"line 1, part {part}" for part in range(1, 6)]
    assert said[-1] == "line 1: 4 more of its parts were suspicious"


@pytest.mark.parametrize(
    ("asked", "rows"),
    [
        ({"sampling": Sampling()}, 4),
        ({"sampling": Sampling(sample=3)}, 8),
        ({"sampling": Sampling(sample=3), "metric": "chrf"}, 4),
        ({"metric": "chrf", "guard": GuardSettings(mode="retry", samples=2)}, 4),
        ({"n_best": 3, "guard": GuardSettings()}, 8),
    ],
)
def test_whatever_is_asked_the_lines_stay_in_order(trained: Path, asked: dict[str, Any], rows: int) -> None:
    real = Translator.load(trained)
    guard = asked.pop("guard", None)
    request = TranslationRequest(real.search_settings(beam=3), **asked)
    options = LineOptions(request, guard=guard, max_source=9)
    (window,) = translated(real, iter(["eins", "", f"{SENTENCE} sieben", " "]), options)
    assert len(window.rows) == rows
    if request.several:
        assert [row.split("\t")[0] for row in window.rows] == ["1"] * 3 + ["2"] + ["3"] * 3 + ["4"]
    else:
        assert [bool(row) for row in window.rows] == [True, False, True, False]


# ------------------------------------------------------------------------------------------ side files


def files(folder: Path, **contents: str) -> SideFiles:
    scans = {}
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="utf-8", newline="")
        scans[name] = check_input(folder / name)
    return SideFiles(**scans)


TEXT = ["eins zwei", "", "drei", "vier fünf"]


def test_side_files_are_demands_line_by_line(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restrictions in windows, and from any line on, equal the same restrictions on all lines at once."""
    real = Translator.load(trained).searching(beam=2, max_length=7)
    demanded = files(tmp_path, prefixes="two\n\n  \nseven eight\n", phrases="zero\tsix ||| ten\n\n\nsix\n")
    wanted: dict[str, Any] = {
        "prefixes": ["two", "", "", "seven eight"],
        "phrases": [["zero", ("six", "ten")], [], [], ["six"]],
    }
    expected = real.translate(TEXT, **wanted)
    assert expected[0].startswith("two")
    assert "zero" in expected[0]
    assert expected[2] == real.translate(["drei"])[0]
    monkeypatch.setattr(module, "WINDOW", 2)
    options = LineOptions(TranslationRequest(real.search_settings()))
    for done in range(3):
        windows = translated(real, iter(TEXT[done:]), options, done=done, files=demanded)
        assert [row for window in windows for row in window.rows] == expected[done:]


def test_what_something_is_demanded_of_is_not_cut(trained: Path, tmp_path: Path) -> None:
    real = Translator.load(trained).searching(beam=2, max_length=9)
    demanded = files(tmp_path, prefixes="two\n\n")
    options = LineOptions(TranslationRequest(real.search_settings()), max_source=11)
    (window,) = translated(real, iter(["Eins zwei. Drei vier."] * 2), options, files=demanded)
    assert window.rows[0] == real.translate(["Eins zwei. Drei vier."], prefixes=["two"])[0]
    said = [remark for remark in window.remarks if "more than the 11" in remark]
    assert [remark.split(":")[0] for remark in said] == ["line 1", "line 2"]
    assert said[0].endswith("translated whole, because it has a prefix or phrases")
    assert said[1].endswith("translated in 2 parts")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("prefixes", "a\n\n\n", r"prefixes:4: ends here, but the text goes on"),
        ("prefixes", "a\n\n\n\nb\n", r"prefixes:5: the text has ended before this line"),
        ("prefixes", "\na\n\n\n", r"prefixes:2: the line of the text is empty"),
        ("prefixes", "\n\n\na\rb\n", r"prefixes:4: has a carriage return"),
        ("phrases", "\n\na\t\tb\n\n", r"phrases:3: a phrase has no characters"),
        ("phrases", "\n\na ||| \n\n", r"phrases:3: a phrase has no characters"),
        ("phrases", "\n\n\none two three four five six seven\n", r"phrases:4: its phrases and the end symbol need"),
        ("phrases", "\n\n" + "\t".join(["one"] * 30) + "\n\n", r"phrases:3: its 30 phrases .* are too many"),
        ("prefixes", "\n\n\none two three four five six seven\n", r"prefixes:4: its prefix and the end symbol need"),
    ],
)
def test_a_fault_is_named_with_file_and_line(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str, said: str
) -> None:
    monkeypatch.setattr(module, "WINDOW", 3)
    real, demanded = Translator.load(trained), files(tmp_path, **{name: content})
    options = LineOptions(TranslationRequest(real.search_settings(beam=1, max_length=5)))
    with pytest.raises(DataError, match=said):
        list(translated(real, iter(TEXT), options, files=demanded))


def test_unequal_lines_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a\nb\n")
    with pytest.raises(DataError, match=r"phrases: has 1 lines, but .*text has 2"):
        files(tmp_path, phrases="a\n").check_lines(check_input(tmp_path / "text"))
