"""A parallel corpus made from CLDR: dates, times, units and currencies in one language and in another.

It is the data of the demo: a translation task that is real (word order, plurals, separators, 12-hour clocks
and month names all change), that needs no download, and whose right answer is known. Every text is what Babel
renders from CLDR (https://cldr.unicode.org) for the same value, character for character: CLDR puts a narrow
no-break space (U+202F) before ``PM`` and a no-break space (U+00A0) between some German numbers and
units, and so do these texts. Splitting into subwords, training and scoring are left to other layers.

One right target for each source: a source determines the value that it was written from (a test checks this),
so what CLDR offers that does not (numeric dates, years of two digits, abbreviated dates, which Chinese
writes like full ones) is left out, as are units and currencies that share a name in any of the languages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Literal

from multihead.errors import ConfigurationError, MissingDependencyError

if TYPE_CHECKING:
    from babel import Locale

LOCALES = {"de": "de_DE", "en": "en_US", "zh": "zh_Hans_CN"}
"""The languages, each with the locale whose CLDR data writes it."""

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
"""CLDR's identifiers of the units: everyday ones, each with a name of its own in every language."""

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
"""Everything that a text depends on, as whole numbers; what each means is said where it is drawn."""

_FIRST_DAY, _LAST_DAY = date(1900, 1, 1).toordinal(), date(2099, 12, 31).toordinal()
_DAYS = _LAST_DAY - _FIRST_DAY + 1
_TIMES = 24 * 60 * 60 + 24 * 60  # with seconds, and without
_DIGITS = 7  # the longest number
_DECIMALS = (0, 0, 1, 2)  # every second number with a unit is a whole one
_TRIES = 1_000  # draws in a row without a new source, after which a pattern counts as used up


@dataclass(frozen=True, slots=True)
class Example:
    """One sentence pair, and the name of the pattern that it follows."""

    pattern: str
    source: str
    target: str


class Writer:
    """Writes values in one language.

    Args:
        language: a key of `LOCALES`.

    Raises:
        ConfigurationError: there is no such language here.
        MissingDependencyError: Babel is not installed.
    """

    def __init__(self, language: str) -> None:
        if language not in LOCALES:
            raise ConfigurationError(
                f"the language of the synthetic corpus is {language!r}; expected one of {', '.join(LOCALES)}"
            )
        try:
            from babel import Locale
        except ImportError as error:
            raise MissingDependencyError("babel", "demo", "writing the synthetic corpus") from error
        self.locale: Locale = Locale.parse(LOCALES[language])
        self._unit_lengths: dict[str, Literal["long", "short"]] = {unit: self._unit_length(unit) for unit in UNITS}

    def _unit_length(self, unit: str) -> Literal["long", "short"]:
        """The length under which this language keeps the full name of ``unit``.

        In CLDR a long name that is not given is inherited from the short one (as most Chinese ones are);
        Babel does not follow that link and prints the identifier instead.
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

        # CLDR: the length of the date says how the two are joined; quotes mark literal text in its patterns.
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
    # Sixty times as many times have seconds; one in ten without leaves some of those for the test set.
    seconds = random.randrange(10) > 0
    return (random.randrange(86_400), 1) if seconds else (random.randrange(1_440) * 60, 0)


def _draw_datetime(random: Random) -> Value:
    return *_draw_date(random), *_draw_time(random)


def _draw_number(random: Random) -> int:
    """Short numbers as often as long ones: the number of digits is uniform, then the number is."""
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
    """How many different numbers of at most ``digits`` digits, 0, 1 or 2 of them decimals, a unit may have.

    10^digits - 1 whole ones (there is no 0); with decimals, those among them that do not end in 0.
    """
    whole: int = 10**digits - 1
    return whole + (len(set(_DECIMALS)) - 1) * (whole - whole // 10)


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of text.

    Attributes:
        name: what it is called.
        size: how many values can be drawn; each is a source of its own.
        draw: draws a value.
        write: the method of `Writer` that writes such a value.
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
"""Every pattern of the corpus."""


def possible_sources() -> dict[str, int]:
    """How many different sources each pattern has, in any of the languages."""
    return {pattern.name: pattern.size for pattern in PATTERNS}


def generate(
    source_language: str,
    target_language: str,
    count: int,
    seed: int,
    exclude: Collection[str] = frozenset(),
) -> list[Example]:
    """Make sentence pairs: as many of each pattern (give or take one), mixed, no source twice.

    Args:
        source_language: a key of `LOCALES`.
        target_language: another one.
        count: how many pairs.
        seed: the pairs are a function of the arguments and of nothing else.
        exclude: sources that must not appear.

    Raises:
        ConfigurationError: a language that is not known, the same one twice, or more pairs than there are.
        MissingDependencyError: Babel is not installed.
    """
    writers = _writers(source_language, target_language)
    return _generate(writers, count, Random(f"{seed}"), set(exclude))


def split(
    source_language: str, target_language: str, *, train: int, valid: int, test: int, seed: int
) -> tuple[list[Example], list[Example], list[Example]]:
    """Make a training, a validation and a test set (in this order): no source occurs twice in all of them.

    The test set is drawn first and the training set last, so that the test set does not change with
    the size of the others. Otherwise as `generate`, with the same errors.
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
    """Make ``count`` pairs whose sources are not in ``taken``, and add them to it."""
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
