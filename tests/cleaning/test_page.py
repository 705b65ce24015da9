"""The report: self-contained, escaped, with every reason and its examples."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
from faulty_pairs import faulty, sentences, write_sides

from multihead.cleaning.clean import Outputs, clean
from multihead.cleaning.page import WORDS
from multihead.cleaning.settings import FILTERS, REASONS
from multihead.cleaning.statistics import BORDERLINE, EXAMPLES


class _Page(HTMLParser):
    """The names of the elements, and what they link to."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.links += [value for name, value in attrs if name in ("href", "src", "xlink:href") and value]


def test_every_reason_has_words() -> None:
    assert list(WORDS) == list(REASONS[1:])


def test_the_page_shows_what_was_removed(text: tuple[Path, Path], held_out: list[str]) -> None:
    made = Outputs.named(text[0].parent / "kept.tsv", None, None, None)
    found = clean(*text, made, held_out=held_out)
    page = made.report.read_text("utf-8")
    assert f"{found.kept:,} of {found.read:,} pairs kept" in page
    rows = faulty()[0]
    for line, reason in faulty()[1].items():
        assert f'<section id="{reason}">' in page
        assert reason == "unusable" or rows[line - 1][1][:30] in page
    parsed = _Page()
    parsed.feed(page)
    assert {"script", "img", "iframe", "link"}.isdisjoint(parsed.names)
    assert all(link.startswith("#") for link in parsed.links)


def test_text_is_never_markup(tmp_path: Path) -> None:
    rows = sentences(120)
    attack = "<script>alert(1)</script> & \u202e <b>"
    rows[5] = attack, attack
    made = Outputs.named(tmp_path / "kept.tsv", None, None, None)
    clean(*write_sides(tmp_path, rows), made)
    page = made.report.read_text("utf-8")
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert "\u202e" not in page


def test_figures_add_up(text: tuple[Path, Path], held_out: list[str]) -> None:
    made = Outputs.named(text[0].parent / "kept.tsv", None, None, None)
    found = clean(*text, made, held_out=held_out)
    for name, histogram in found.histograms.items():
        assert histogram.removed.sum() == found.counts[name]
        limit = found.settings.threshold(name)
        borderline = [one.score for one in found.borderline(name)]
        assert len(borderline) <= BORDERLINE
        assert all(score is not None and np.float32(score) <= np.float32(limit) for score in borderline)
        assert borderline == sorted(borderline, key=lambda score: -(score or 0))
    for reason in REASONS[1:]:
        assert len(found.examples(reason)) == min(found.counts[reason], EXAMPLES)
    assert set(found.histograms) == {name for name in FILTERS if "duplicate" not in name and name != "similar"}
