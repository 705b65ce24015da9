"""Placeholders: numbers, addresses and markup that are copied exactly.

A span of a text that matches a rule is replaced by an indexed symbol, ``⟨num1⟩``, ``⟨num2⟩``, ..., which is one entry
of the vocabulary (`text.user_symbols`):

    source         Call 555-1234 by 17:30.      Call ⟨num1⟩ by ⟨num2⟩.
    target         Bis 17:30 Uhr 555-1234.      Bis ⟨num2⟩ Uhr ⟨num1⟩.

* In training, spans of kind k and text v are replaced where they occur equally often in source and target. Others stay
  as they are, so that the model also learns what is not copied (3 - drei).
* In translation, the spans of the source are replaced, the first `COUNT` of each kind. The search writes each of their
  symbols exactly once (`translating.copying`), and each becomes the text that it stands for.

The rules are part of the tokenizer's file, so every command applies them. A `PlaceholderTokenizer` of sources
(`Tokenizer.reading`) replaces by itself, so that ids are what the network reads; `answers` encodes the translation of
a source, and `filled` puts the texts back. A typed ``⟨num1⟩`` is a span of its kind like any other.

The file of a tokenizer has these fields besides those of `text.user_symbols`:

    multihead_tokenizer   "placeholders"
    rules                 name and regular expression of each kind, the first that matches at a place counts
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from multihead.errors import ConfigurationError, shown
from multihead.text.patterns import check_pattern
from multihead.text.spans import Span, find_spans
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer
from multihead.text.user_symbols import SymbolTokenizer, learn_with_symbols

COUNT = 10
"""Symbols of a kind: spans beyond in a sentence are translated like other text."""

KINDS = {
    "markup": ("tag", r"</?[A-Za-z][^<>]{0,500}>|&(?:[A-Za-z]{2,12}|#\d{1,6});|\{[\w.]{0,40}\}"),
    "urls": ("url", r"(?:https?://|www\.)[^\s<>\"]{0,500}[^\s<>\".,;:!?)\]}'。，；：！？）]"),
    "emails": ("mail", r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"),
    "numbers": ("num", r"(?<![^\W_])\d+(?:[.,:/'’-]\d+){0,40}"),
}
"""The kinds that have a name: of their symbols, and what they match. Their order decides where several match."""

_NAME = re.compile(r"[a-z]{1,20}")
_MOST = 20

_WITHOUT_BREAKS = str.maketrans("\r\n", "  ")

Rule = tuple[str, str]
"""Name of the symbols, and regular expression."""


def parse_rules(words: Sequence[str]) -> tuple[Rule, ...]:
    """The rules of ``numbers,urls`` and ``name=REGEX``; the user's come first.

    Raises:
        ConfigurationError: an unknown kind, one that is named twice, an impossible name or expression.
    """
    own, named = [], []
    for word in words:
        name, sign, pattern = word.partition("=")
        if sign:
            own.append((name, pattern))
            continue
        for kind in word.split(","):
            if kind not in KINDS:
                expected = ", ".join(KINDS)
                raise ConfigurationError(f"there are no placeholders {kind!r}: expected {expected}, or name=REGEX")
            named.append(kind)
    if len(set(named)) < len(named):
        raise ConfigurationError(f"placeholders are named twice: {', '.join(named)}")
    rules = (*own, *(KINDS[kind] for kind in KINDS if kind in named))
    if rules:
        check_rules(rules)
    return rules


def check_rules(rules: Sequence[Rule]) -> None:
    """Check that texts can be searched for these rules.

    Raises:
        ConfigurationError: they cannot, or names are not different.
    """
    if not 0 < len(rules) <= _MOST:
        raise ConfigurationError(f"got {len(rules)} kinds of placeholders; expected 1 to {_MOST}")
    if len({name for name, _ in rules}) < len(rules):
        raise ConfigurationError(f"placeholders have equal names: {', '.join(name for name, _ in rules)}")
    for name, pattern in rules:
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"placeholders cannot be named {name!r:.100}: expected 1 to 20 letters a to z")
        if (name, pattern) in KINDS.values():
            continue
        try:
            check_pattern(pattern)
            compiled = re.compile(pattern)
        except (ValueError, re.error, RecursionError) as error:
            raise ConfigurationError(
                f"placeholders {name}: {shown(pattern)} cannot be searched for ({error})"
            ) from None
        if compiled.groups or compiled.flags & re.VERBOSE or compiled.search("") is not None:
            raise ConfigurationError(
                f"placeholders {name}: {shown(pattern)} keeps a group or matches an empty text; write (?:...), "
                "and what has at least one character"
            )


def symbol(name: str, number: int) -> str:
    """The symbol of the span of a kind with a number from 1."""
    return f"⟨{name}{number}⟩"


@lru_cache(maxsize=32)
def _pattern(rules: tuple[Rule, ...]) -> re.Pattern[str]:
    """Matches spans; the name of the group is that of the rule. Typed symbols come first."""
    names = "|".join(
        [f"(?P<{name}>⟨{name}(?:[1-9]|10)⟩|{pattern})" for name, pattern in rules]  # COUNT is 10
    )
    return re.compile(names)


@dataclass(frozen=True)
class Masked:
    """A text with symbols in place of spans."""

    text: str
    values: dict[str, str]
    """The text that each symbol stands for."""
    places: tuple[tuple[Span, Span], ...]
    """For each symbol, in order: its characters in the masked text, and those of the span."""
    missed: int = 0
    """Spans beyond `COUNT`."""

    def original(self, place: Span) -> Span:
        """The characters of the given text that some of the masked text stand for."""
        begin, end = place
        moved = [begin, end]
        for (start, stop), (first, last) in self.places:
            if begin >= stop:
                moved[0] = begin + last - stop
            elif begin >= start:
                moved[0] = first
            if end >= stop:
                moved[1] = end + last - stop
            elif end > start:
                moved[1] = last
        return moved[0], moved[1]


@dataclass(frozen=True)
class Spans:
    """The spans of a text that match rules."""

    text: str
    found: tuple[tuple[str, Span], ...]
    """Name of the rule and characters of each span."""

    def masked(self, chosen: Sequence[str | None]) -> Masked:
        """The text with symbols; None leaves a span as it is, but a typed symbol without its brackets."""
        parts, values, places, end, length, missed = [], {}, [], 0, 0, 0
        for (_, (start, stop)), own in zip(self.found, chosen, strict=True):
            value = self.text[start:stop]
            if own is None:
                missed += 1
                if not value.startswith("⟨"):
                    continue
                written = value[1:-1]
            else:
                written, values[own] = own, value
            parts += [self.text[end:start], written]
            length += start - end
            places.append(((length, length + len(written)), (start, stop)))
            length, end = length + len(written), stop
        return Masked("".join([*parts, self.text[end:]]), values, tuple(places), missed)

    @property
    def keys(self) -> list[tuple[str, str]]:
        """Kind and text of each span."""
        return [(name, self.text[start:stop]) for name, (start, stop) in self.found]


def find(rules: tuple[Rule, ...], text: str) -> Spans:
    """The spans of a text, from the left."""
    matches = _pattern(rules).finditer(text)
    return Spans(text, tuple((str(match.lastgroup), match.span()) for match in matches if match.end() > match.start()))


@lru_cache(maxsize=4096)
def mask(rules: tuple[Rule, ...], text: str) -> Masked:
    """A source to translate: all spans are replaced, of each kind the first `COUNT`.

    It is cached, since a source is read when it is encoded, searched for and filled in again.
    """
    spans, counts = find(rules, text), Counter[str]()
    chosen: list[str | None] = []
    for name, _ in spans.found:
        counts[name] += 1
        chosen.append(symbol(name, counts[name]) if counts[name] <= COUNT else None)
    return spans.masked(chosen)


def mask_answer(rules: tuple[Rule, ...], text: str, source: Masked) -> Masked:
    """A translation of a masked source: its spans that equal one of the source get that one's symbol, each once."""
    spans, left = find(rules, text), dict[tuple[str, str], list[str]]()
    for own, value in source.values.items():
        left.setdefault((_kind(own), value), []).append(own)
    return spans.masked([left[key].pop(0) if left.get(key) else None for key in spans.keys])


def mask_pair(rules: tuple[Rule, ...], source: str, target: str) -> tuple[str, str]:
    """A pair to train on: spans that occur equally often on both sides are replaced."""
    sides = find(rules, source), find(rules, target)
    counts = [Counter(side.keys) for side in sides]
    numbers, chosen, symbols = Counter[str](), list[str | None](), dict[tuple[str, str], list[str]]()
    for key in sides[0].keys:
        equal = counts[0][key] == counts[1][key] and numbers[key[0]] < COUNT
        numbers[key[0]] += equal
        own = symbol(key[0], numbers[key[0]]) if equal else None
        chosen.append(own)
        if own is not None:
            symbols.setdefault(key, []).append(own)
    others = [symbols[key].pop(0) if symbols.get(key) else None for key in sides[1].keys]
    return sides[0].masked(chosen).text, sides[1].masked(others).text


def mask_pairs(rules: tuple[Rule, ...], sources: Sequence[str], targets: Sequence[str]) -> tuple[list[str], list[str]]:
    """`mask_pair` of each pair."""
    masked = [mask_pair(rules, *pair) for pair in zip(sources, targets, strict=True)]
    return [source for source, _ in masked], [target for _, target in masked]


def fill(rules: tuple[Rule, ...], text: str, values: dict[str, str], *, whole: bool = True) -> str:
    """A masked text with the text of each symbol, exactly once.

    A symbol is left out where it stands again, or has no text; with ``whole`` the texts of missing ones follow at the
    end. A space is put where two of them touch, or one touches a character of the model's, if they would read as one:
    12 and 34 as 1234.
    """
    left = dict(values)
    parts = [(left.pop(part, "") if n % 2 else part, n % 2 == 1) for n, part in enumerate(_symbols(rules).split(text))]
    if whole:
        parts += [(f" {value}" if text else value, True) for value in left.values()]
    filled, before = "", False
    for part, own in parts:
        if filled and part and (own or before) and _joins(filled[-1], part[0]):
            filled += " "
        filled += part
        before = own if part else before
    return filled


@lru_cache(maxsize=32)
def _symbols(rules: tuple[Rule, ...]) -> re.Pattern[str]:
    """Matches the symbols of rules."""
    return re.compile(f"({'|'.join(map(re.escape, symbols_of_rules(rules)))})")


def _kind(own: str) -> str:
    return own.strip("⟨⟩0123456789")


def _joins(one: str, other: str) -> bool:
    """Whether two characters read as one number or word: both digits, or both Latin letters."""
    return (one.isdigit() and other.isdigit()) or all(c.isascii() and c.isalpha() for c in (one, other))


class PlaceholderTokenizer(SymbolTokenizer):
    """Our byte-pair encoding with user-defined symbols and placeholders.

    Args:
        inner: cuts the text between symbols.
        symbols: the user's; those of the placeholders follow them.
        rules: what is replaced.
        reads: whether a text is a source to translate, whose spans are replaced.

    Raises:
        ConfigurationError: a rule or a symbol is not possible.
    """

    kind = "placeholders"

    def __init__(
        self, inner: BytePairTokenizer, symbols: Sequence[str], rules: Sequence[Rule], *, reads: bool = False
    ) -> None:
        check_rules(rules)
        self.rules, self.own_symbols, self.reads = tuple(rules), tuple(symbols), reads
        super().__init__(inner, (*symbols, *symbols_of_rules(rules)))

    @classmethod
    def from_json(cls, text: str) -> PlaceholderTokenizer:
        """The tokenizer of a string written by `to_json`.

        Raises:
            FormatError: the string is damaged.
        """

        def own(fields: dict[str, Any]) -> tuple[list[str], list[Rule]]:
            rules = [(str(name), str(pattern)) for name, pattern in fields["rules"]]
            return list(map(str, fields["symbols"])), rules

        name = "tokenizer with placeholders"
        (symbols, rules), inner = cls.read_file(text, name, own)
        return cls._around(inner, name, lambda pairs: cls(pairs, symbols, rules))

    def to_json(self) -> str:
        """The content of the file."""
        return self.file(self.kind, rules=self.rules, symbols=self.own_symbols)

    @cached_property
    def digest(self) -> str:
        """Of the inner tokenizer, the symbols and the rules."""
        content = json.dumps([self.own_symbols, self.rules])
        return hashlib.sha256((self.pairs.digest + content).encode()).hexdigest()

    @property
    def reading(self) -> PlaceholderTokenizer:
        """The tokenizer of sources to translate."""
        return self if self.reads else PlaceholderTokenizer(self.pairs, self.own_symbols, self.rules, reads=True)

    @property
    def plain(self) -> PlaceholderTokenizer:
        """The tokenizer of texts as they are."""
        return PlaceholderTokenizer(self.pairs, self.own_symbols, self.rules) if self.reads else self

    @cached_property
    def copied(self) -> frozenset[int]:
        """The ids of placeholders."""
        return frozenset(map(self.id_of, symbols_of_rules(self.rules)))

    def _encode(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        return super()._encode([mask(self.rules, text).text for text in texts] if self.reads else texts)

    def spans(self, text: str) -> list[Span]:
        """For each id of ``encode(text)``, the characters of the text that it stands for."""
        return self._spans(mask(self.rules, text)) if self.reads else super().spans(text)

    def _spans(self, masked: Masked) -> list[Span]:
        ((ids, _),) = super()._encode([masked.text])
        return [masked.original(place) for place in find_spans([self.entries[i] for i in ids], masked.text)]

    def copies(self, source: str) -> list[int]:
        """The ids of the placeholders of a source, each of which its translation has exactly once."""
        return [self.id_of(own) for own in mask(self.rules, source).values]

    def missed(self, source: str) -> int:
        """Spans of a source beyond `COUNT` of their kind, which are translated like other text."""
        return mask(self.rules, source).missed

    def answers(self, texts: Sequence[str], sources: Sequence[str]) -> list[list[int]]:
        """The ids of translations of sources: what equals a span of the source is its symbol.

        Raises:
            DataError: a text has a lone surrogate.
        """
        masked = [self._answer(text, source).text for text, source in zip(texts, sources, strict=True)]
        return [ids for ids, _ in super()._encode(masked)]

    def answer_spans(self, text: str, source: str) -> list[Span]:
        """For each id of a translation, the characters that it stands for."""
        return self._spans(self._answer(text, source))

    def _answer(self, text: str, source: str) -> Masked:
        return mask_answer(self.rules, text, mask(self.rules, source))

    def filled(self, text: str, source: str, *, whole: bool = True) -> str:
        """A decoded translation with the texts of its placeholders; of a whole one all.

        A line break in such a text becomes a space: no translation has one (`Tokenizer.forbidden_in_output`).
        """
        return fill(self.rules, text, mask(self.rules, source).values, whole=whole).translate(_WITHOUT_BREAKS)

    def training_pairs(self, sources: Sequence[str], targets: Sequence[str]) -> tuple[list[str], list[str]]:
        """Pairs to train on, with equal spans replaced."""
        return mask_pairs(self.rules, sources, targets)


def learn_with_placeholders(
    lines: Iterable[str],
    vocab_size: int,
    *,
    symbols: Sequence[str] = (),
    rules: Sequence[Rule] = (),
    **options: Any,
) -> Tokenizer:
    """As `user_symbols.learn_with_symbols`, with placeholders; without rules there are none.

    Args:
        lines: the text, whose spans are replaced already (`mask_pairs`).
        vocab_size: number of entries, which the symbols of placeholders are among.
        symbols: the user's.
        rules: what is replaced.
        **options: ``specials``, ``coverage``, ``min_frequency``.
    """
    learned = learn_with_symbols(lines, vocab_size, (*symbols, *symbols_of_rules(rules)), **options)
    if not rules:
        return learned
    assert isinstance(learned, SymbolTokenizer)
    return PlaceholderTokenizer(learned.pairs, symbols, rules)


def symbols_of_rules(rules: Iterable[Rule]) -> tuple[str, ...]:
    """The symbols of placeholders, in the order of their ids."""
    return tuple(symbol(name, number) for name, _ in rules for number in range(1, COUNT + 1))
