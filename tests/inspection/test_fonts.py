"""Labels get a font with their characters, or say what to install."""

from __future__ import annotations

import importlib.machinery
import shutil
import sys
from pathlib import Path

import pytest
from matplotlib.ft2font import FT2Font

from multihead.errors import MissingDependencyError
from multihead.inspection import fonts
from multihead.inspection.fonts import Fonts, default_font, missing, readable

HAN = "年月日星期五"


def fake_package(folder: Path, **files: Path) -> importlib.machinery.ModuleSpec:
    """Install a fake `mplfonts` package with copies of ``files`` as fonts."""
    (folder / "fonts").mkdir()
    for name, source in files.items():
        shutil.copy(source, folder / "fonts" / f"{name}.ttf")
    spec = importlib.machinery.ModuleSpec("mplfonts", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    return spec


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with only matplotlib's own fonts and without optional packages."""
    monkeypatch.setattr(fonts, "system_fonts", lambda: iter(()))
    monkeypatch.setattr(fonts, "find_spec", lambda name: None)
    return monkeypatch


def test_a_missing_glyph_is_found() -> None:
    assert missing(default_font(), "▁Straße Złoty é →" + HAN) == set(HAN)
    assert FT2Font(str(default_font())).get_char_index(ord("年")) == 0  # matplotlib would warn
    assert FT2Font(str(default_font())).get_char_index(ord("▁")) != 0


def test_letters_need_no_other_font(bare_machine: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"looked for {name}")

    bare_machine.setattr(fonts, "find_spec", refuse)
    texts = ["▁Freitag", ",", "ß", "<0x0A>", "</s>", "▁Привет"]
    chosen = Fonts(texts)
    assert [chosen.label(text) for text in texts] == [fonts.Label(text, default_font()) for text in texts]


def test_chinese_without_a_font_says_what_to_install(bare_machine: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingDependencyError, match=r"'五年日星月期'.*mplfonts.*pip install \"multihead\[zh\]\""):
        Fonts(["▁2026", HAN])


def test_a_character_in_no_font_is_written_as_its_number(bare_machine: pytest.MonkeyPatch) -> None:
    text = "a\U0001fad6b"  # a teapot, which no recommended package has
    assert Fonts([text]).label(text).text == "aU+1FAD6b"


def test_even_chinese_is_when_the_package_lacks_it(bare_machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = fake_package(tmp_path, useless=default_font())
    bare_machine.setattr(fonts, "find_spec", lambda name: spec)
    assert Fonts(["年"]).label("年").text == "U+5E74"


def test_the_smallest_shipped_font_that_has_everything_is_taken(
    bare_machine: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Fonts of matplotlib stand in for others: STIX has 𝒜, DejaVu Sans and Computer Modern do not."""
    own = default_font().parent
    spec = fake_package(tmp_path, wrong=own / "cmr10.ttf", right=own / "STIXGeneral.ttf")
    large = tmp_path / "fonts" / "alarge.ttf"
    large.write_bytes((own / "STIXGeneral.ttf").read_bytes() + bytes(1000))
    bare_machine.setattr(fonts, "find_spec", lambda name: spec)
    bare_machine.setitem(sys.modules, "mplfonts", None)  # importing it would raise
    character = "\U0001d49c"
    assert missing(default_font(), character) == {character}
    chosen = Fonts(["plain", character])
    assert chosen.label(character) == fonts.Label(character, tmp_path / "fonts" / "right.ttf")
    assert chosen.label("plain").font == default_font()


def test_a_font_of_the_system_comes_before_the_package(bare_machine: pytest.MonkeyPatch) -> None:
    system = default_font().with_name("STIXGeneral.ttf")
    bare_machine.setattr(fonts, "system_fonts", lambda: iter([system]))
    text = "Ab \U0001d49c\U0001d4b5 c"
    chosen = Fonts([text])
    assert [(run.text, run.font) for run in chosen.runs(text)] == [
        ("Ab", default_font()), (" \U0001d49c\U0001d4b5", system), (" c", default_font()),
    ]  # fmt: skip


def test_runs_hold_the_text_with_plain_spaces() -> None:
    text = " 2:30\u202fPM  →\t14:30 $x$ "
    assert "".join(run.text for run in Fonts([text]).runs(text)) == "2:30 PM → 14:30 $x$"


def test_system_fonts_are_real_files_and_none_draws_boxes() -> None:
    for path in fonts.system_fonts():
        assert path.is_file()
        assert "LastResort" not in path.name
        assert not path.name.startswith(("cm", "STIX"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("▁Haus", "▁Haus"),
        ("", "∅"),
        ("\n", r"\n"),
        (" a", "␣a"),
        ("\u202fPM", "U+202FPM"),
        ("\x00\x7f", "U+0000U+007F"),
        ("\u200d", "U+200D"),
        ("\u0301", "◌\u0301"),
        ("e\u0301", "e\u0301"),
        ("<0xE2>", "<0xE2>"),
    ],
)
def test_what_cannot_be_seen_is_spelled_out(text: str, shown: str) -> None:
    assert readable(text) == shown
    assert missing(default_font(), shown) == set()


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"matplotlib.*multihead\[plot\]"):
        Fonts(["a"])
