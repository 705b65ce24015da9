r"""Read sentence pairs from gettext catalogs (``.po``).

    #, fuzzy
    msgctxt "menu"
    msgid "Open %s"
    msgstr "%s öffnen"

The source is ``msgid`` and the target ``msgstr``, or the reverse if the catalog's header names the source language.
Entries without a translation and fuzzy ones, which a person has yet to check, are left out and named; obsolete ones
(``#~``) are comments. Of a plural, the singular and the plural are an entry each: ``msgid`` with the form for one, and
``msgid_plural`` with the form for five, by the header's rule (``Plural-Forms``). Line breaks become spaces
(`text_files.one_line`); ``%s`` and ``&`` stay as they are.

The encoding is the one that the header declares, UTF-8 otherwise. Files are streamed, and what is not a catalog's line
costs its entry only; Babel and polib hold a catalog in memory and refuse it for one such line.

GNU gettext manual, section 3, "The Format of PO Files".
"""

from __future__ import annotations

import codecs
import gettext
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from multihead.data.corpus import Languages, normalize_code, primary_language
from multihead.data.entries import Entry, EntryScan, Sides, Unusable, digest, usable
from multihead.data.text_files import LONGEST_LINE, NOT_UTF8, one_line, open_text, split_lines
from multihead.errors import DataError

FUZZY = "fuzzy: a person has yet to check it"
NOT_GETTEXT = "not gettext's syntax"

_LINE = re.compile(r'(msgctxt|msgid_plural|msgid|msgstr(?:\[\d{1,2}\])?)?\s*"((?:[^"\\]|\\.)*)"\s*$')
_ESCAPE = re.compile(r"((?:\\(?:[0-7]{1,3}|x[0-9a-fA-F]{1,2}))+)|\\(.)")
"""Bytes in the encoding of the catalog, one or several, or another character."""
_BYTE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2}))")
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_PLURAL = re.compile(r"plural\s*=\s*([^;]+)")
_MANY = 5
"""A number whose form is that of a plural wherever there is one."""


@dataclass
class _Header:
    """What the first entry says."""

    language: str | None = None
    charset: str = "utf-8"
    forms: tuple[int, int] = (0, 1)
    """The forms for one and for `_MANY`."""

    def read(self, text: str, path: Path, line: int) -> None:
        """Take over the fields of the first entry."""
        fields = dict(re.findall(r"^([\w-]+):[ \t]*(.*)$", text, re.MULTILINE))
        self.language = normalize_code(fields.get("Language", "")) or None
        charset = re.search(r"charset=([\w.:-]+)", fields.get("Content-Type", ""))
        if charset is not None and charset[1] != "CHARSET":  # a template's
            self.charset = _known(charset[1], path, line)
        plural = _PLURAL.search(fields.get("Plural-Forms", ""))
        if plural is not None:
            try:
                form = gettext.c2py(plural[1])
                self.forms = int(form(1)), int(form(_MANY))
            except (ValueError, RecursionError, ZeroDivisionError):
                raise DataError(
                    f"declares a rule for plural forms that cannot be used: {plural[1]:.60}; correct Plural-Forms",
                    path,
                    line,
                ) from None


@dataclass
class _Draft:
    """An entry while it is read."""

    line: int = 0
    texts: dict[str, list[str]] = field(default_factory=dict)  # by keyword
    fuzzy: bool = False
    fault: Unusable | None = None
    keyword: str = ""  # to which further strings belong
    size: int = 0

    def ends_before(self, line: str) -> bool:
        """Whether a line belongs to the next entry."""
        if line.startswith("#") or not line.strip():
            return self._finished
        own = line.startswith(("msgctxt", "msgid")) and not line.startswith("msgid_plural")
        return own and (self._finished or "msgid" in self.texts)

    @property
    def _finished(self) -> bool:
        return self.fault is not None or any(keyword.startswith("msgstr") for keyword in self.texts)


def scan_catalog(path: Path, languages: Languages) -> EntryScan:
    """Scan a gettext catalog.

    Raises:
        DataError: as `entries.digest`; or no entry is a pair; the header names an unknown encoding, or a language that
            is neither of the two.
    """
    text = digest(path)
    header = _Header()
    entries = sum(1 for _ in _entries(path, False, header))
    turned, languages = _direction(path, header, languages)
    return EntryScan(text, entries, languages, "entries", partial(_entries, path, turned)).with_a_pair()


def read_catalog(path: Path, languages: Languages, first: int) -> Iterator[Entry]:
    """The entries of a catalog that is not scanned; see `readers.read_entries`."""
    header = _Header()
    for _ in islice(_entries(path, False, header), first):
        pass
    turned, _ = _direction(path, header, languages)
    return _entries(path, turned)


def _direction(path: Path, header: _Header, languages: Languages) -> tuple[bool, Languages]:
    """Whether ``msgid`` is the target, and the languages of source and target.

    Raises:
        DataError: the header names a language that is neither of the two.
    """
    source, target = languages
    found = primary_language(header.language) or None
    if found is None:
        turned = False
    else:
        turned = source is not None and primary_language(source) == found
        named = source if turned else target
        if named is not None and primary_language(named) != found:
            raise DataError(f"is a translation into {header.language!r}, but {_asked(languages)} were requested", path)
        source, target = (source or found, target) if turned else (source, target or found)
    return turned, (source, target)


def _asked(languages: Languages) -> str:
    return " and ".join(repr(language) for language in languages if language is not None)


def _entries(path: Path, turned: bool, header: _Header | None = None) -> Iterator[Entry]:
    header = header or _Header()
    for draft in _drafts(path, header):
        if draft.fault is None and draft.texts.get("msgid") == [""] and "msgctxt" not in draft.texts:
            header.read(_joined(draft, "msgstr"), path, draft.line)
            continue
        for source, target in _pairs(draft, header):
            yield draft.line, _sides(draft, source, target, turned)


def _pairs(draft: _Draft, header: _Header) -> list[tuple[str, str]]:
    """The keywords of source and target: one pair, or of a plural the two that differ."""
    if draft.fault is not None or "msgid_plural" not in draft.texts:
        return [("msgid", "msgstr")]
    one, many = (f"msgstr[{form}]" for form in header.forms)
    return [("msgid_plural", many)] if one == many else [("msgid", one), ("msgid_plural", many)]


def _sides(draft: _Draft, source: str, target: str, turned: bool) -> Sides:
    if draft.fault is not None:
        return draft.fault
    if draft.fuzzy:
        return Unusable(FUZZY)
    texts = one_line(_joined(draft, source)), one_line(_joined(draft, target))
    return usable(*(texts[::-1] if turned else texts))


def _joined(draft: _Draft, keyword: str) -> str:
    return "".join(draft.texts.get(keyword, ()))


def _drafts(path: Path, header: _Header) -> Iterator[_Draft]:
    """The entries as they end: where another begins."""
    draft = _Draft()
    with open_text(path) as stream:
        for number, raw in enumerate(split_lines(stream, path), start=1):
            text, fault = _decoded(raw, header)
            if draft.ends_before(text):
                yield draft
                draft = _Draft()
                text, fault = _decoded(raw, header)  # the entry may have been the header, which names the encoding
            _take(draft, number, text, fault, header)
    if draft.line:
        yield draft


def _take(draft: _Draft, number: int, text: str, fault: Unusable | None, header: _Header) -> None:
    """Add a line to an entry."""
    if text.startswith("#~"):
        draft.fuzzy = draft.fuzzy and bool(draft.texts)  # the flag was that of an obsolete entry
    elif text.startswith("#,"):
        draft.fuzzy = draft.fuzzy or "fuzzy" in re.split(r"[,\s]+", text[2:])
    elif not text.startswith("#") and text.strip() and draft.fault is None:
        draft.line = draft.line or number
        found = _LINE.match(text.strip())
        draft.size += len(text)
        if found is None or not (found[1] or draft.keyword) or found[1] in draft.texts:
            fault = fault or Unusable(NOT_GETTEXT, f"{text.strip():.40}")
        elif draft.size > LONGEST_LINE:
            fault = Unusable(f"an entry of more than {LONGEST_LINE >> 20} Mi characters")
        else:
            fault = _add(draft, number, found, header) or fault
        draft.fault = fault


def _add(draft: _Draft, number: int, found: re.Match[str], header: _Header) -> Unusable | None:
    """Add a string to the text of its keyword, or of the one before; returns what is wrong with it."""
    keyword, text = found.groups()
    if keyword:
        draft.keyword, draft.texts[keyword] = keyword, []
        draft.line = number if keyword == "msgid" else draft.line
    faults: list[Unusable] = []

    def unescaped(match: re.Match[str]) -> str:
        codes, letter = match.groups()
        if letter is not None:
            return _LETTERS.get(letter, letter)
        raw = bytes(0xFF & int(*(one[1], 8) if one[1] else (one[2], 16)) for one in _BYTE.finditer(codes))
        decoded, fault = _decoded(raw, header)
        if fault is not None:
            faults.append(fault)
        return decoded

    draft.texts[draft.keyword].append(_ESCAPE.sub(unescaped, text) if "\\" in text else text)
    return faults[0] if faults else None


def _decoded(raw: bytes, header: _Header) -> tuple[str, Unusable | None]:
    """The text of a line, or of escaped bytes in it, and what is wrong with it."""
    try:
        return raw.decode(header.charset), None
    except UnicodeDecodeError as error:
        reason = NOT_UTF8 if header.charset == "utf-8" else f"not valid {header.charset}"
        return raw.decode(header.charset, "replace"), Unusable(reason, f"byte 0x{raw[error.start]:02x}")


def _known(charset: str, path: Path, line: int) -> str:
    """The name of an encoding in which ASCII is written as in ASCII."""
    try:
        if 'msgid "'.encode(charset) == b'msgid "':
            return codecs.lookup(charset).name
    except (LookupError, ValueError):
        pass
    raise DataError(f"declares the charset {charset!r}, which is not known; convert it to UTF-8", path, line)
