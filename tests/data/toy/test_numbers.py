"""The synthetic corpus: CLDR's text, one target per source, disjoint sets, determined by the seed."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import date, time
from decimal import Decimal
from itertools import permutations
from random import Random

import pytest
from babel.dates import format_date, format_datetime, format_time
from babel.numbers import format_currency, get_currency_name
from babel.units import format_unit

from multihead.data.toy import numbers as synthetic
from multihead.data.toy.numbers import CURRENCIES, LOCALES, PATTERNS, UNITS, Writer, generate, split
from multihead.errors import ConfigurationError, MissingDependencyError

PAIRS = list(permutations(LOCALES, 2))
BY_NAME = {pattern.name: pattern for pattern in PATTERNS}


@pytest.fixture(scope="module", params=LOCALES)
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_known_pairs_are_among_the_renderings() -> None:
    texts = {}
    for language in LOCALES:
        writer = Writer(language)
        day = date(2026, 11, 20).toordinal()
        texts[language] = [
            writer.date((day, 1)),
            writer.time((14 * 3600 + 30 * 60, 0)),
            writer.datetime((day, 0, 14 * 3600 + 30 * 60 + 5, 1)),
            writer.unit((UNITS.index("length-kilometer"), 351275, 2)),
            writer.unit((UNITS.index("length-mile"), 1, 0)),
            writer.currency((CURRENCIES.index("EUR"), 123450)),
            writer.currency((CURRENCIES.index("JPY"), 1)),
        ]
    assert texts["de"] == [
        "Freitag, 20. November 2026", "14:30", "20. November 2026, 14:30:05", "3.512,75 Kilometer", "1 Meile",
        "1.234,50 Euro", "1 Japanischer Yen",
    ]  # fmt: skip
    assert texts["en"] == [
        "Friday, November 20, 2026", "2:30\u202fPM", "November 20, 2026, 2:30:05\u202fPM",
        "3,512.75 kilometers", "1 mile", "1,234.50 euros", "1 Japanese yen",
    ]  # fmt: skip
    assert texts["zh"] == [
        "2026年11月20日星期五", "14:30", "2026年11月20日 14:30:05", "3,512.75公里", "1英里",
        "1,234.50欧元", "1日元",
    ]  # fmt: skip


def test_dates_and_times_are_babels(language: str) -> None:
    writer, random, locale = Writer(language), Random(1), LOCALES[language]
    for _ in range(200):
        day, weekday = BY_NAME["date"].draw(random)
        form = "full" if weekday else "long"
        assert writer.date((day, weekday)) == format_date(date.fromordinal(day), form, locale=locale)
        second, seconds = BY_NAME["time"].draw(random)
        moment = time(second // 3600, second % 3600 // 60, second % 60)
        form = "medium" if seconds else "short"
        assert writer.time((second, seconds)) == format_time(moment, form, locale=locale)
        both = writer.datetime((day, weekday, second, seconds))
        assert writer.date((day, weekday)) in both
        assert writer.time((second, seconds)) in both


def test_date_and_time_are_joined_as_babel_joins_them(language: str) -> None:
    """Babel's full format also writes the time zone; without it, the texts are equal."""
    from datetime import UTC, datetime

    writer, moment = Writer(language), datetime(2031, 5, 7, 23, 4, 9, tzinfo=UTC)
    seconds = moment.hour * 3600 + moment.minute * 60 + moment.second
    theirs = format_datetime(moment, "full", locale=LOCALES[language])
    zoned = format_time(moment, "full", locale=LOCALES[language])
    plain = writer.time((seconds, 1))
    assert writer.datetime((moment.toordinal(), 1, seconds, 1)) == theirs.replace(zoned, plain)


def test_numbers_with_a_unit_are_babels(language: str) -> None:
    writer, random, locale = Writer(language), Random(2), LOCALES[language]
    for _ in range(500):
        unit, number, decimals = BY_NAME["unit"].draw(random)
        amount = Decimal(number) / 10**decimals
        theirs = [format_unit(amount, UNITS[unit], form, locale=locale) for form in ("long", "short")]
        # Where CLDR inherits the long name from the short one, Babel has only the short one.
        expected = theirs[UNITS[unit] in theirs[0]]
        assert writer.unit((unit, number, decimals)) == expected
        assert UNITS[unit] not in expected


def test_amounts_are_babels(language: str) -> None:
    writer, random, locale = Writer(language), Random(3), LOCALES[language]
    for _ in range(200):
        index, minor = BY_NAME["currency"].draw(random)
        currency = CURRENCIES[index]
        amount = Decimal(minor) if currency in {"JPY", "KRW"} else Decimal(minor).scaleb(-2)
        text = writer.currency((index, minor))
        assert text == format_currency(amount, currency, locale=locale, format_type="name")
        assert get_currency_name(currency, amount, locale=locale) in text
        assert currency not in text  # CLDR has a name for it, not only the code


def test_every_name_of_a_unit_or_currency_is_its_own(language: str) -> None:
    """For any number, and so in singular and plural, no two units or currencies are written the same."""
    writer = Writer(language)
    for number, decimals in ((1, 0), (2, 0), (15, 1), (1000000, 0), (1, 1)):
        with_units = [writer.unit((unit, number, decimals)) for unit in range(len(UNITS))]
        amounts = [writer.currency((currency, number)) for currency in range(len(CURRENCIES))]
        assert len(set(with_units + amounts)) == len(UNITS) + len(CURRENCIES)
    for unit in range(len(UNITS)):  # the name adds no digit, so that the digits say the number
        assert [c for c in writer.unit((unit, 1234567, 0)) if c.isdigit()] == list("1234567")
    for currency in range(len(CURRENCIES)):
        assert [c for c in writer.currency((currency, 1234567)) if c.isdigit()] == list("1234567")


def test_a_text_says_from_which_value_it_was_written(language: str) -> None:
    """Different values never share a text, over all patterns: so each source has one target."""
    writer, random = Writer(language), Random(4)
    values_of: dict[str, set[tuple[str, tuple[int, ...]]]] = {}
    for pattern in PATTERNS:
        for _ in range(3_000):
            value = pattern.draw(random)
            values_of.setdefault(pattern.write(writer, value), set()).add((pattern.name, value))
    assert all(len(values) == 1 for values in values_of.values())


def test_all_short_numbers_with_a_unit_are_counted_and_differ(language: str) -> None:
    """The formula of the count equals the number of all numbers of at most three digits."""
    writer = Writer(language)
    values = [(0, n, d) for n in range(1, 1000) for d in (0, 1, 2) if d == 0 or n % 10]
    assert len({writer.unit(value) for value in values}) == synthetic.numbers_with_a_unit(3)


def test_all_times_and_days_are_counted_and_differ() -> None:
    writer, sizes = Writer("en"), synthetic.possible_sources()
    times = [(s, 1) for s in range(86_400)] + [(60 * m, 0) for m in range(1_440)]
    assert len({writer.time(value) for value in times}) == sizes["time"]
    assert sizes["date"] == 2 * (date(2100, 1, 1) - date(1900, 1, 1)).days
    assert sizes["datetime"] == sizes["date"] * sizes["time"]


def test_there_are_at_least_ten_million_sources() -> None:
    sizes = synthetic.possible_sources()
    assert sizes.keys() == BY_NAME.keys()
    assert sum(sizes.values()) >= 10_000_000
    assert sizes["unit"] >= 10_000_000  # even without any date
    assert sizes["currency"] == len(CURRENCIES) * 9_999_999


def test_draws_stay_within_what_is_counted() -> None:
    random = Random(5)
    for _ in range(5_000):
        day, weekday, second, seconds = BY_NAME["datetime"].draw(random)
        assert 1900 <= date.fromordinal(day).year <= 2099
        assert weekday in (0, 1)
        assert 0 <= second < 86_400
        assert seconds == 1 or (seconds == 0 and second % 60 == 0)
        unit, number, decimals = BY_NAME["unit"].draw(random)
        assert 0 <= unit < len(UNITS)
        assert 1 <= number < 10**7
        assert decimals == 0 or (decimals <= 2 and number % 10)
        currency, minor = BY_NAME["currency"].draw(random)
        assert 0 <= currency < len(CURRENCIES)
        assert 1 <= minor < 10**7


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_each_pair_of_languages_is_split_without_overlap(source: str, target: str) -> None:
    parts = split(source, target, train=1_001, valid=101, test=103, seed=7)
    assert [len(part) for part in parts] == [1_001, 101, 103]
    sources = [example.source for part in parts for example in part]
    assert len(set(sources)) == len(sources)
    for part in parts:
        shares = Counter(example.pattern for example in part)
        assert shares.keys() == BY_NAME.keys()
        assert max(shares.values()) - min(shares.values()) <= 1
        assert all(text and text == text.strip() for e in part for text in (e.source, e.target))
        assert not any(c in text for e in part for text in (e.source, e.target) for c in "\n\r{}'")


def test_the_test_set_is_a_function_of_seed_and_size_alone() -> None:
    small = split("de", "en", train=50, valid=20, test=60, seed=3)
    large = split("de", "en", train=500, valid=20, test=60, seed=3)
    assert small[1:] == large[1:]
    assert small == split("de", "en", train=50, valid=20, test=60, seed=3)
    assert small[2] != split("de", "en", train=50, valid=20, test=60, seed=4)[2]


def test_both_directions_hold_the_same_pairs() -> None:
    there, back = generate("de", "zh", 300, 11), generate("zh", "de", 300, 11)
    assert [(e.source, e.target) for e in there] == [(e.target, e.source) for e in back]


def test_generate_depends_on_the_seed_and_leaves_out_what_is_excluded() -> None:
    first = generate("en", "de", 200, seed=1)
    assert first == generate("en", "de", 200, seed=1)
    assert first != generate("en", "de", 200, seed=-1)
    excluded = {example.source for example in first}
    others = generate("en", "de", 200, seed=1, exclude=excluded)
    assert excluded.isdisjoint(example.source for example in others)
    assert generate("en", "de", 0, seed=1) == []


def test_faults_are_named() -> None:
    with pytest.raises(ConfigurationError, match="'fr'; expected one of de, en, zh"):
        generate("de", "fr", 1, 1)
    with pytest.raises(ConfigurationError, match="both 'de'"):
        split("de", "de", train=1, valid=1, test=1, seed=1)
    with pytest.raises(ConfigurationError, match="-1 synthetic pairs"):
        generate("de", "en", -1, 1)


def test_more_than_there_is_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    few = synthetic.Pattern("few", 3, lambda random: (random.randrange(3), 1), Writer.time)
    monkeypatch.setattr(synthetic, "PATTERNS", (few,))
    assert len(generate("de", "en", 3, 1)) == 3
    with pytest.raises(ConfigurationError, match="'few' has 3 sources"):
        generate("de", "en", 4, 1)


def test_without_babel_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "babel", None)
    with pytest.raises(MissingDependencyError, match=r"babel.*multihead\[demo\]"):
        generate("de", "en", 1, 1)
