"""A parallel corpus generated from CLDR: dates, times, units, currencies.

It is the data of the demo: a realistic translation task (word order, plurals, separators, 12-hour clocks and month
names all change) that needs no download and has known correct translations. Every text is what Babel renders from CLDR
(https://cldr.unicode.org), character for character: CLDR puts a narrow no-break space (U+202F) before ``PM`` and a
no-break space (U+00A0) between some German numbers and units, and so do these texts.

Each source has one correct target: it determines the value it was written from (tested). What CLDR offers that does not
(numeric dates, two-digit years, abbreviated dates, which equal full ones in Chinese) is left out, as are units and
currencies that share a name in any of the languages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Literal

from multihead.errors import ConfigurationError, require_package

if TYPE_CHECKING:
    from babel import Locale

LOCALES = {"de": "de_DE", "en": "en_US", "zh": "zh_Hans_CN"}
"""The languages, each with its CLDR locale."""

UNITS = (
    "length-kilometer",
    "length-meter",
    "length-centimeter",
    "length-mile",
    "length-inch",
    "length-foot",
    "mass-kilogram",
    "mass-gram",
    "mass-ounce",
    "mass-tonne",
    "volume-liter",
    "area-square-meter",
    "area-hectare",
    "duration-day",
    "duration-hour",
    "duration-minute",
    "duration-second",
    "temperature-celsius",
    "speed-kilometer-per-hour",
    "power-kilowatt",
)
"""CLDR identifiers of the units: common ones, each with a distinct name in every language."""

CURRENCIES = (
    "EUR",
    "USD",
    "GBP",
    "CHF",
    "JPY",
    "CNY",
    "SEK",
    "NOK",
    "DKK",
    "PLN",
    "CZK",
    "CAD",
    "AUD",
    "INR",
    "KRW",
)
"""ISO 4217 codes of the currencies."""

Value = tuple[int, ...]
"""Everything that a text depends on, as integers; the methods of `Writer` define their meaning."""

_FIRST_DAY, _LAST_DAY = date(1900, 1, 1).toordinal(), date(2099, 12, 31).toordinal()
_DAYS = _LAST_DAY - _FIRST_DAY + 1
_TIMES = 24 * 60 * 60 + 24 * 60  # with and without seconds
_DIGITS = 7  # of the longest number
_DECIMALS = (0, 0, 1, 2)  # half of the numbers with a unit are integers
_TRIES = 1_000  # consecutive draws without a new source until a pattern counts as exhausted


@dataclass(frozen=True, slots=True)
class Example:
    """A sentence pair, and the name of its pattern."""

    pattern: str
    source: str
    target: str


class Writer:
    """Writes values in one language.

    Args:
        language: a key of `LOCALES`.

    Raises:
        ConfigurationError: the language is not in `LOCALES`.
        MissingDependencyError: Babel is not installed.
    """

    def __init__(self, language: str) -> None:
        if language not in LOCALES:
            raise ConfigurationError(
                f"the language of the synthetic corpus is {language!r}; expected one of {', '.join(LOCALES)}"
            )
        require_package("babel", "demo", "writing the synthetic corpus")
        from babel import Locale

        self.locale: Locale = Locale.parse(LOCALES[language])
        self._unit_lengths: dict[str, Literal["long", "short"]] = {unit: self._unit_length(unit) for unit in UNITS}

    def _unit_length(self, unit: str) -> Literal["long", "short"]:
        """The CLDR length that holds the full name of ``unit`` in this language.

        In CLDR a missing long name is inherited from the short one (as most Chinese ones are); Babel does not follow
        that link and prints the identifier instead.
        """
        from babel.units import format_unit

        return "short" if unit in format_unit(1, unit, "long", locale=self.locale) else "long"

    def date(self, value: Value) -> str:
        """Write (day, with its weekday?): ``Friday, November 20, 2026``."""
        from babel.dates import format_date

        day, weekday = value
        return format_date(date.fromordinal(day), "full" if weekday else "long", locale=self.locale)

    def time(self, value: Value) -> str:
        """Write (second of the day, with seconds?): ``2:30:05 PM``."""
        from babel.dates import format_time

        second, seconds = value
        moment = time(second // 3600, second // 60 % 60, second % 60)
        return format_time(moment, "medium" if seconds else "short", locale=self.locale)

    def datetime(self, value: Value) -> str:
        """Write (day, with its weekday?, second of the day, with seconds?): ``May 20, 2026, 2:30 PM``."""
        from babel.dates import get_datetime_format

        # In CLDR the length of the date determines how the two are joined; quotes mark literal text in patterns.
        glue = str(get_datetime_format("full" if value[1] else "long", locale=self.locale)).replace("'", "")
        return glue.replace("{0}", self.time(value[2:])).replace("{1}", self.date(value[:2]))

    def unit(self, value: Value) -> str:
        """Write (index of the unit, number without its point, decimals): ``3,512.75 kilometers``."""
        from babel.units import format_unit

        unit, number, decimals = UNITS[value[0]], value[1], value[2]
        return format_unit(Decimal(number).scaleb(-decimals), unit, self._unit_lengths[unit], locale=self.locale)

    def currency(self, value: Value) -> str:
        """Write (index of the currency, amount in its smallest unit): ``1,234.50 euros``."""
        from babel.numbers import format_currency, get_currency_precision

        currency, amount = CURRENCIES[value[0]], Decimal(value[1])
        amount = amount.scaleb(-get_currency_precision(currency))
        return format_currency(amount, currency, locale=self.locale, format_type="name")


def _draw_date(random: Random) -> Value:
    return random.randint(_FIRST_DAY, _LAST_DAY), random.randrange(2)


def _draw_time(random: Random) -> Value:
    # There are sixty times as many times with seconds; drawing one in ten without leaves some for the test set.
    seconds = random.randrange(10) > 0
    return (random.randrange(86_400), 1) if seconds else (random.randrange(1_440) * 60, 0)


def _draw_datetime(random: Random) -> Value:
    return *_draw_date(random), *_draw_time(random)


def _draw_number(random: Random) -> int:
    """A number whose number of digits is uniform, so that short numbers are as frequent as long ones."""
    highest: int = 10 ** random.randint(1, _DIGITS)
    return random.randrange(highest // 10, highest)


def _draw_unit(random: Random) -> Value:
    unit, number, decimals = random.randrange(len(UNITS)), _draw_number(random), random.choice(_DECIMALS)
    # A last decimal of 0 is not written, but 1.0 and 1 are different plurals: two targets for one source.
    while decimals and number % 10 == 0:
        number = _draw_number(random)
    return unit, number, decimals


def _draw_currency(random: Random) -> Value:
    return random.randrange(len(CURRENCIES)), _draw_number(random)


def numbers_with_a_unit(digits: int) -> int:
    """Number of different numbers of at most ``digits`` digits, of which 0, 1 or 2 are decimals.

    There are 10^digits - 1 integers (without 0), and for each number of decimals those that do not end in 0.
    """
    whole: int = 10**digits - 1
    return whole + (len(set(_DECIMALS)) - 1) * (whole - whole // 10)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A kind of text.

    Attributes:
        name: name of the pattern.
        size: number of different values, each with a distinct source.
        draw: draws a random value.
        write: the method of `Writer` that writes such values.
    """

    name: str
    size: int
    draw: Callable[[Random], Value]
    write: Callable[[Writer, Value], str]


PATTERNS = (
    Pattern("date", 2 * _DAYS, _draw_date, Writer.date),
    Pattern("time", _TIMES, _draw_time, Writer.time),
    Pattern("datetime", 2 * _DAYS * _TIMES, _draw_datetime, Writer.datetime),
    Pattern("unit", len(UNITS) * numbers_with_a_unit(_DIGITS), _draw_unit, Writer.unit),
    Pattern("currency", len(CURRENCIES) * (10**_DIGITS - 1), _draw_currency, Writer.currency),
)
"""All patterns of the corpus."""


def possible_sources() -> dict[str, int]:
    """Number of different sources of each pattern, in any of the languages."""
    return {pattern.name: pattern.size for pattern in PATTERNS}


def generate(
    source_language: str,
    target_language: str,
    count: int,
    seed: int,
    exclude: Collection[str] = frozenset(),
) -> list[Example]:
    """Generate sentence pairs: equally many of each pattern (within one), shuffled, without duplicate sources.

    Args:
        source_language: a key of `LOCALES`.
        target_language: another key of `LOCALES`.
        count: number of pairs.
        seed: seed of the random numbers; equal arguments give equal pairs.
        exclude: sources that must not appear.

    Raises:
        ConfigurationError: a language is unknown, both are the same, or there are fewer pairs than requested.
        MissingDependencyError: Babel is not installed.
    """
    writers = _writers(source_language, target_language)
    return _generate(writers, count, Random(f"{seed}"), set(exclude))


def split(
    source_language: str, target_language: str, *, train: int, valid: int, test: int, seed: int
) -> tuple[list[Example], list[Example], list[Example]]:
    """Generate a training, a validation and a test set (in this order) without common sources.

    The test set is drawn first and the training set last, so that the test set does not depend on the size of the
    others. Otherwise as `generate`, with the same errors.
    """
    writers = _writers(source_language, target_language)
    random, taken = Random(f"{seed}"), set[str]()
    test_set, valid_set, train_set = (_generate(writers, n, random, taken) for n in (test, valid, train))
    return train_set, valid_set, test_set


def _writers(source_language: str, target_language: str) -> tuple[Writer, Writer]:
    if source_language == target_language:
        raise ConfigurationError(
            f"the source and the target language are both {source_language!r}; "
            f"expected two different ones of {', '.join(LOCALES)}"
        )
    return Writer(source_language), Writer(target_language)


def _generate(writers: tuple[Writer, Writer], count: int, random: Random, taken: set[str]) -> list[Example]:
    """Generate ``count`` pairs whose sources are not in ``taken``, and add their sources to it."""
    if count < 0:
        raise ConfigurationError(f"{count} synthetic pairs were asked for; expected 0 or more")
    examples: list[Example] = []
    for index, pattern in enumerate(PATTERNS):
        share = count // len(PATTERNS) + (index < count % len(PATTERNS))
        examples += [_new_example(pattern, writers, random, taken) for _ in range(share)]
    random.shuffle(examples)
    return examples


def _new_example(pattern: Pattern, writers: tuple[Writer, Writer], random: Random, taken: set[str]) -> Example:
    for _ in range(_TRIES):
        value = pattern.draw(random)
        source = pattern.write(writers[0], value)
        if source not in taken:
            taken.add(source)
            return Example(pattern.name, source, pattern.write(writers[1], value))
    raise ConfigurationError(
        f"the pattern {pattern.name!r} has {pattern.size:,} sources in all, and hardly one is left that is "
        "not used or excluded already: ask for fewer synthetic pairs"
    )
