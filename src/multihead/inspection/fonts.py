"""Choose a font that can draw a text, and replacements where none can.

matplotlib draws an empty box, with a warning, for a character that a font lacks. Here every text gets a font *file*
that has its characters: DejaVu Sans, which comes with matplotlib, a font of the system, or one of the optional package
``mplfonts`` (which has Chinese, Japanese and Korean). Invisible characters are spelled out first. Neither matplotlib's
settings nor its list of fonts are changed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from multihead.errors import MissingDependencyError, require_package

_SHORT_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t", " ": "␣"}
_CHINESE_JAPANESE_KOREAN = ("CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "FULLWIDTH")


@dataclass(frozen=True, slots=True)
class Label:
    """A text to draw, and a font file that can draw it."""

    text: str
    font: Path


class Fonts:
    """The fonts for a set of texts.

    Args:
        texts: everything that will be drawn.

    Raises:
        MissingDependencyError: matplotlib is missing; or a Chinese, Japanese or Korean character has no font on this
            machine, and ``mplfonts``, which has one, is not installed.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.default = default_font()
        drawn = set(chain.from_iterable(readable(text) for text in texts))
        lacking = missing(self.default, drawn)
        installed = find_spec("mplfonts") if lacking else None
        shipped = _shipped_fonts(installed.submodule_search_locations) if installed else []
        found = _fonts_with(lacking, chain(system_fonts(), shipped)) if lacking else []
        self._lacks = {font: missing(font, drawn) for font in (self.default, *found)}
        absent = set.intersection(*self._lacks.values())
        unreadable = "".join(sorted(filter(_is_chinese_japanese_or_korean, absent)))
        if unreadable and not installed:
            purpose = f"no font on this machine has {unreadable[:10]!r}; drawing it"
            raise MissingDependencyError("mplfonts", "zh", purpose)

    def label(self, text: str) -> Label:
        """A text, made `readable`, in the font that has most of it.

        A character missing from that font is written as its number: ``U+1F600``.
        """
        shown = readable(text)
        font = min(self._lacks, key=lambda font: len(self._lacks[font].intersection(shown)))
        return Label("".join(_number(c) if c in self._lacks[font] else c for c in shown), font)

    def runs(self, text: str) -> list[Label]:
        """Running text in as many fonts as necessary; white space becomes single spaces."""
        runs: list[Label] = []
        for word in text.split():
            for index, character in enumerate(readable(word)):
                space = " " if index == 0 and runs else ""
                label = self.label(character)
                if runs and runs[-1].font == label.font:
                    runs[-1] = Label(runs[-1].text + space + label.text, label.font)
                else:
                    runs.append(Label(space + label.text, label.font))
        return runs


def default_font() -> Path:
    """DejaVu Sans, which is part of matplotlib.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    require_package("matplotlib", "plot", "drawing")
    from matplotlib import get_data_path

    return Path(get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")


def missing(font: Path, characters: Iterable[str]) -> set[str]:
    """The characters that a font file has no glyph for."""
    from matplotlib.ft2font import FT2Font

    glyphs = FT2Font(str(font)).get_charmap()
    return {character for character in characters if ord(character) not in glyphs}


def readable(text: str) -> str:
    r"""Make every character of a text visible: ``\n`` for a newline, ``U+202F`` for a narrow no-break space.

    An empty text is written ``∅``, and a combining mark at the beginning is placed on a dotted circle.
    """
    if not text:
        return "∅"
    shown = "".join(_SHORT_ESCAPES.get(c, c if unicodedata.category(c)[0] not in "CZ" else _number(c)) for c in text)
    return "◌" + shown if unicodedata.category(shown[0]).startswith("M") else shown


def system_fonts() -> Iterator[Path]:
    """The upright fonts of regular weight that matplotlib found on the system, those without serifs first.

    Excluded are its own fonts, which are for formulas and give characters other meanings, and fonts of last resort,
    which have a box for every character.
    """
    from matplotlib import get_data_path
    from matplotlib.font_manager import fontManager

    own = get_data_path()
    found = {
        ("serif" in font.name.lower(), font.fname)
        for font in fontManager.ttflist
        if font.style == "normal" and font.weight in (400, "normal", "regular")
        if "lastresort" not in font.name.lower().replace(" ", "")
    }
    paths = (Path(name) for _, name in sorted(found))
    return (path for path in paths if path.is_file() and not path.is_relative_to(own))


def _shipped_fonts(folders: Sequence[str] | None) -> list[Path]:
    """The font files of the package ``mplfonts``, smallest first; importing it would change matplotlib's settings."""
    files = [file for folder in folders or () for file in Path(folder, "fonts").glob("*.[ot]tf")]
    return sorted(files, key=lambda file: (file.stat().st_size, file.name))


def _fonts_with(characters: set[str], candidates: Iterable[Path]) -> list[Path]:
    """The first font that has all of the characters; if none has, each that adds some."""
    useful: list[Path] = []
    remaining = set(characters)
    for font in candidates:
        lacking = missing(font, characters)
        if not lacking:
            return [font]
        if not remaining <= lacking:
            useful.append(font)
            remaining &= lacking
    return useful


def _is_chinese_japanese_or_korean(character: str) -> bool:
    return unicodedata.name(character, "").startswith(_CHINESE_JAPANESE_KOREAN)


def _number(character: str) -> str:
    return f"U+{ord(character):04X}"
