"""Masks as text and as pictures have the same cells and labels."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from matplotlib import get_data_path
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multihead.attention import Causal, Dense, Full, Mask, Padding, SlidingWindow, drawing
from multihead.errors import MissingDependencyError, ShapeError

TOKENS = ["我", "是", "谁", "P", "P"]
LETTERS = ["w", "s", "sh", "P", "P"]


def cells(axes: Axes) -> list[list[int]]:
    (mesh,) = axes.collections
    return [[int(cell) for cell in row] for row in mesh.get_array()]


def labels(axes: Axes) -> tuple[list[str], list[str]]:
    return [t.get_text() for t in axes.get_yticklabels()], [t.get_text() for t in axes.get_xticklabels()]


def test_the_figures_of_document_000() -> None:
    """3: no word sees a later one. 4 and 5: no word sees the padding of 我 是 谁 P P."""
    assert Causal().show(5, query_labels=TOKENS, key_labels=TOKENS).splitlines() == [
        "   我 是 谁 P P",
        "我 ■  ·  ·  · ·",
        "是 ■  ■  ·  · ·",
        "谁 ■  ■  ■  · ·",
        "P  ■  ■  ■  ■ ·",
        "P  ■  ■  ■  ■ ■",
    ]
    assert Padding([3]).show(1, 5, key_labels=TOKENS).splitlines() == ["我 是 谁 P P", "■  ■  ■  · ·"]
    assert Padding([3]).show(5, query_labels=TOKENS, key_labels=TOKENS).splitlines()[1:] == [
        f"{token:{1 if token in '我是谁' else 2}} ■  ■  ■  · ·" for token in TOKENS
    ]


@pytest.mark.parametrize("mask", [Causal(), Causal() & Padding([3]), SlidingWindow(1, 1), ~Full()], ids=repr)
def test_the_picture_has_the_cells_of_the_text(mask: Mask) -> None:
    axes = mask.plot(5, query_labels=LETTERS, key_labels=LETTERS)
    shown = [line.split() for line in mask.show(5).splitlines()]
    assert cells(axes) == [[int(cell == "■") for cell in line] for line in shown]
    assert labels(axes) == (LETTERS, LETTERS)
    assert axes.yaxis_inverted()  # the first query on top


def test_a_picture_can_be_saved_and_put_beside_others(tmp_path: Path) -> None:
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert Causal().plot(3, ax=left) is left
    Padding([1, 2]).plot(2, 3, ax=right, batch=1)
    assert cells(right) == [[1, 1, 0], [1, 1, 0]]
    alone = Causal().plot(4, key_labels=list("abcd"))
    assert isinstance(alone.figure, Figure)
    alone.figure.savefig(tmp_path / "mask.png")
    assert (tmp_path / "mask.png").stat().st_size > 1000
    Causal().plot(0)


def test_a_label_gets_a_font_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """ᴥ is in Serif but not in Sans; a font of last resort does not count."""
    folder = Path(get_data_path(), "fonts", "ttf")
    axes = Causal().plot(1, query_labels=["ᴥ"])
    assert axes.get_yticklabels()[0].get_fontproperties().get_file() != str(folder / "DejaVuSans.ttf")
    assert not any("LastResort" in str(path) for path in drawing._fonts())
    plain = Causal().plot(1, query_labels=["$a$"])
    assert plain.get_yticklabels()[0].get_fontproperties().get_file() == str(folder / "DejaVuSans.ttf")
    assert not plain.get_yticklabels()[0].get_parse_math()
    monkeypatch.setattr(drawing, "_fonts", lambda: iter([folder / "DejaVuSans.ttf"]))
    with pytest.raises(MissingDependencyError, match=r"'我是谁PP'.*mplfonts.*multihead\[zh\]"):
        Causal().plot(5, key_labels=TOKENS)


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.colors", None)
    with pytest.raises(MissingDependencyError, match=r"drawing a mask needs matplotlib.*multihead\[plot\]"):
        Causal().plot(3)


def test_marks_take_no_column() -> None:
    """Those of Thai, for example, have no combining class, and a joiner is no mark."""
    assert [drawing.display_width(text) for text in ("ก็", "นํ้า", "e\u0301", "\u200d", "한국", "a")] == [1, 2, 1, 0, 4, 1]


def test_which_sentence_and_head() -> None:
    per_head = Dense(Causal().dense(2, 2).expand(3, 2, 2, 2))
    assert cells(per_head.plot(2, batch=2, head=1)) == [[1, 0], [1, 1]]
    with pytest.raises(ShapeError, match="head=2"):
        per_head.plot(2, head=2)
    with pytest.raises(ShapeError, match="1 query labels for 2"):
        per_head.plot(2, query_labels=["a"])
