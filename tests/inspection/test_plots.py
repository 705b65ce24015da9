"""Pictures show the given weights and are written completely or not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.image import imread

from multihead.errors import InputError, ShapeError, SurroundingsError
from multihead.inspection import fonts, plots
from multihead.inspection.plots import attention_map, attention_panels

SOURCE = ["▁Freitag", ",", "▁", "2", "0", ".", "▁November", "</s>"]
TARGET = ["▁Friday", ",", "▁November", "▁", "2", "0", "<0xE2>", "</s>"]
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def diagonal(size: int = len(SOURCE)) -> torch.Tensor:
    return torch.eye(size) * 0.7 + 0.3 / size


def drawn(path: Path, weights: torch.Tensor, **options: str) -> bytes:
    attention_map(weights, SOURCE, TARGET, path, **options)
    return path.read_bytes()


def picture(folder: Path, weights: torch.Tensor) -> np.ndarray:
    drawn(folder / "read.png", weights)
    return imread(folder / "read.png")


def test_a_png_is_written_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings are errors in the tests: a missing glyph would fail this one."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would raise
    assert drawn(tmp_path / "map.png", diagonal(), title="Freitag → Friday").startswith(SIGNATURE)
    assert os.listdir(tmp_path) == ["map.png"]  # noqa: PTH208 - hidden files too


def test_the_picture_is_a_function_of_the_weights(tmp_path: Path) -> None:
    first = drawn(tmp_path / "1.png", diagonal())
    assert first == drawn(tmp_path / "2.png", diagonal())
    assert first != drawn(tmp_path / "3.png", diagonal().flip(0))
    assert first != drawn(tmp_path / "4.png", diagonal() / 2)  # the color key differs
    assert first != drawn(tmp_path / "5.png", diagonal(), title="another")


def test_rows_are_the_targets_and_columns_the_sources(tmp_path: Path) -> None:
    """A weight changes one cell; three rows down and four columns left, the change moves by as much."""
    base = torch.zeros(8, 8)
    base[0, 0] = 0.9  # keeps the scale the same
    empty = picture(tmp_path, base)
    boxes = []
    for row, column in ((1, 6), (4, 2)):
        weights = base.clone()
        weights[row, column] = 0.9
        changed = (picture(tmp_path, weights) != empty).any(-1)
        rows, columns = (torch.tensor(changed).any(axis).nonzero() for axis in (1, 0))
        boxes.append((int(rows.min()), int(columns.min()), int(rows.max() - rows.min())))
    cell = plots._CELL * plots._DOTS_PER_INCH
    assert boxes[1][0] - boxes[0][0] == pytest.approx(3 * cell, abs=2)
    assert boxes[1][1] - boxes[0][1] == pytest.approx(-4 * cell, abs=2)
    assert boxes[0][2] == pytest.approx(cell, abs=2)


def test_heads_are_averaged(tmp_path: Path) -> None:
    heads = torch.stack([diagonal(), diagonal().flip(0)])
    mean = drawn(tmp_path / "mean.png", heads.mean(0))
    assert drawn(tmp_path / "heads.png", heads) == mean
    assert drawn(tmp_path / "layers.png", heads.expand(3, 2, 8, 8)) == mean
    assert drawn(tmp_path / "gradient.png", heads.clone().requires_grad_()) == mean


def test_half_precision_and_no_weight_at_all_can_be_drawn(tmp_path: Path) -> None:
    assert drawn(tmp_path / "half.png", diagonal().bfloat16()).startswith(SIGNATURE)
    assert drawn(tmp_path / "zero.png", torch.zeros(8, 8)).startswith(SIGNATURE)


def test_panels_show_every_head(tmp_path: Path) -> None:
    heads = torch.stack([diagonal(), diagonal().flip(0), diagonal()])
    attention_panels(heads, SOURCE, TARGET, tmp_path / "heads.png", title="layer 1")
    first = (tmp_path / "heads.png").read_bytes()
    assert first.startswith(SIGNATURE)
    attention_panels(heads.flip(0)[[1, 0, 2]], SOURCE, TARGET, tmp_path / "order.png", title="layer 1")
    assert (tmp_path / "order.png").read_bytes() != first


def test_odd_pieces_are_drawn_as_they_stand(tmp_path: Path) -> None:
    """Formulas, control characters, a lone accent, an empty text, a character that no font may have."""
    pieces = ["$x^2$", "\\frac", "\n", "\u0301", "", "\U0001fad6", "_a", "{}"]
    attention_map(diagonal(), pieces, TARGET, tmp_path / "odd.png", title="100 $ and 200 $")
    assert (tmp_path / "odd.png").read_bytes().startswith(SIGNATURE)


def test_the_callers_settings_neither_matter_nor_change(tmp_path: Path) -> None:
    plain = drawn(tmp_path / "plain.png", diagonal(), title="t")
    with mpl.rc_context(
        {"font.family": "no such font", "text.usetex": True, "figure.dpi": 20, "image.origin": "lower"}
    ):
        before = dict(mpl.rcParams)
        assert drawn(tmp_path / "other.png", diagonal(), title="t") == plain
        assert dict(mpl.rcParams) == before


def test_sixty_subwords_stay_apart_and_more_do_not_make_the_picture_larger(tmp_path: Path) -> None:
    for count in (60, 100):
        pieces = [f"▁word{number}" for number in range(count)]
        attention_map(torch.ones(4, count) / count, pieces, TARGET[:4], tmp_path / "wide.png")
        width = imread(tmp_path / "wide.png").shape[1]
        assert min(count, 80) * 0.3 * 150 <= width <= 26 * 150


def test_faults_are_named_and_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    good = diagonal()
    with pytest.raises(ShapeError, match=r"\(8, 7\), but there are 8 target and 8 source"):
        drawn(tmp_path / "map.png", good[:, :7])
    with pytest.raises(ShapeError, match="expected at least one weight"):
        attention_map(good[:0], SOURCE, [], tmp_path / "map.png")
    for bad in (float("nan"), float("inf"), -0.1):
        with pytest.raises(InputError, match="finite and at least 0"):
            drawn(tmp_path / "map.png", good + bad)
    with pytest.raises(InputError, match=r"ends in \.png, \.svg or \.pdf"):
        drawn(tmp_path / "map.jpg", good)
    with pytest.raises(InputError, match="is a folder"):
        drawn(tmp_path / "folder.png", good)
    with pytest.raises(InputError, match="does not exist; create it"):
        drawn(tmp_path / "nowhere" / "map.png", good)
    assert os.listdir(tmp_path) == ["folder.png"]  # noqa: PTH208


@pytest.mark.parametrize(("ending", "begins"), [(".svg", b"<?xml"), (".PDF", b"%PDF-")])
def test_drawings_to_print(tmp_path: Path, ending: str, begins: bytes) -> None:
    """Text is drawn as paths, so that it looks the same everywhere; equal pictures are equal files."""
    first = drawn(tmp_path / f"1{ending}", diagonal(), title="Freitag → Friday, пятница, день")
    assert first.startswith(begins)
    assert first == drawn(tmp_path / f"2{ending}", diagonal(), title="Freitag → Friday, пятница, день")
    assert first != drawn(tmp_path / f"3{ending}", diagonal().flip(0))
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "theirs", "pdf.compression": 0}):
        assert drawn(tmp_path / f"4{ending}", diagonal(), title="Freitag → Friday, пятница, день") == first
    assert b"<text" not in first


def test_a_failed_drawing_keeps_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "map.png"
    before = drawn(path, diagonal())

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(fonts, "missing", lambda font, characters: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            drawn(path, diagonal().flip(0))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(SurroundingsError, match=r"map\.png.*no space left"):
            drawn(path, diagonal().flip(0))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["map.png"]  # noqa: PTH208
