"""Language codes: matching in any spelling, and errors where the languages are ambiguous."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multihead.data.corpus import normalize_code
from multihead.data.entries import find_columns
from multihead.data.xml_units import choose_languages, covers, place_of, side_of
from multihead.errors import DataError

codes = st.sampled_from(["de", "en", "zh"]).flatmap(
    lambda language: st.sampled_from([language, f"{language}-AT", f"{language.upper()}_at", f"{language}-Latn-AT"])
)


@pytest.mark.parametrize("code", ["de", "DE", "de-AT", "de_at", " De-Latn-AT "])
def test_a_code_covers_its_variants(code: str) -> None:
    assert covers("de", code)


@pytest.mark.parametrize(
    ("wanted", "code"), [("de", "den"), ("de-AT", "de"), ("de-AT", "de-DE"), ("d", "de"), ("de", "")]
)
def test_and_nothing_else(wanted: str, code: str) -> None:
    assert not covers(wanted, code)


@given(st.lists(codes), codes, codes)
def test_the_wanted_code_itself_goes_before_its_variants_and_the_first_before_the_next(
    names: list[str], source: str, target: str
) -> None:
    for side, wanted in enumerate((source, target)):
        place = place_of(side, names, (source, target))
        fit = [p for p, name in enumerate(names) if side_of(name, (source, target)) == side]
        exact = [p for p in fit if normalize_code(names[p]) == normalize_code(wanted)]
        assert place == min(exact or fit, default=None)


def test_a_variant_stands_on_the_side_that_is_closer_to_it() -> None:
    names = ["en-GB", "en-US"]
    assert [place_of(side, names, ("en", "en-gb")) for side in (0, 1)] == [1, 0]
    assert [place_of(side, names, ("en-gb", "en")) for side in (0, 1)] == [0, 1]


@pytest.mark.parametrize(
    ("names", "languages", "found"),
    [
        (["source", "target"], (None, None), (0, 1)),
        (["id", "Target", "SOURCE "], ("de", "en"), (2, 1)),
        (["source", "target", "en", "DE"], ("de", "en"), (3, 2)),
        (["source", "target", "en", "de"], ("de", None), (0, 1)),
        (["zh_CN", "en"], ("zh-cn", "en"), (0, 1)),
        (["de_id", "en_id"], ("de", "en"), None),
        (["source", "text"], (None, None), None),
        ([], ("de", "en"), None),
    ],
)
def test_columns(names: list[str], languages: tuple[str | None, str | None], found: tuple[int, int] | None) -> None:
    assert find_columns(names, languages) == found


@pytest.mark.parametrize(
    ("counts", "first", "given", "chosen"),
    [
        (["de", "en"], "", (None, None), ("de", "en")),
        (["de", "en"], "*all*", (None, None), ("de", "en")),
        (["de", "en"], "EN-us", (None, None), ("en", "de")),
        (["de-DE", "en-US", "en-GB"], "", (None, None), ("de", "en")),
        (["zh-CN", "zh-TW"], "zh-TW", (None, None), ("zh-tw", "zh-cn")),
        (["de", "en"], "de", ("en", None), ("en", "de")),
        (["de", "en"], "de", (None, "de"), ("en", "de")),
        (["de-AT", "en"], "", (None, "de-AT"), ("en", "de-AT")),
        (["zh-CN", "zh-TW"], "", ("zh-TW", None), ("zh-TW", "zh-cn")),
        (["de", "en", "fr"], "de", ("fr", "de"), ("fr", "de")),
    ],
)
def test_choosing(counts: list[str], first: str, given: tuple[str | None, str | None], chosen: tuple[str, str]) -> None:
    assert choose_languages(dict.fromkeys(counts, 7), first, given) == chosen


@pytest.mark.parametrize(
    ("counts", "given", "message"),
    [
        ({"de": 1200, "en-US": 9}, ("de", "fr"), r"no segment in 'fr'; languages found: de \(1,200\), en-US \(9\)"),
        ({"de": 1, "en": 1, "fr": 1}, (None, None), "say which is the source and which the target"),
        ({"de": 1, "en": 1, "fr": 1}, ("de", None), "say which"),
        ({"de": 1}, (None, None), "say which"),
        ({}, (None, None), "languages found: none"),
    ],
)
def test_what_cannot_be_chosen(counts: dict[str, int], given: tuple[str | None, str | None], message: str) -> None:
    with pytest.raises(DataError, match=message):
        choose_languages(counts, "", given)
