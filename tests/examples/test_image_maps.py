"""Plots of image attention maps: file, columns, and errors that leave no file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from images.maps import _flat, image_maps
from multihead.errors import InputError, ShapeError

pytest.importorskip("matplotlib")
IMAGES = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
MAPS = {"places": torch.rand(2, 4, 5, 5), "channels": torch.rand(2, 7, 1, 1)}


def test_a_picture_is_written_and_decodes(tmp_path: Path) -> None:
    from matplotlib.image import imread

    image_maps(IMAGES, MAPS, tmp_path / "maps.png", names=["one", "two"])
    found = imread(tmp_path / "maps.png")
    assert found.ndim == 3
    assert found[..., :3].std() > 0.05
    image_maps(IMAGES, MAPS, tmp_path / "again.png", names=["one", "two"])
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "maps.png").read_bytes()
    image_maps(IMAGES, {"channels": MAPS["channels"]}, tmp_path / "few.png", names=["one", "two"])
    assert imread(tmp_path / "few.png").shape[1] < found.shape[1]


def test_places_are_drawn_as_the_mean_of_channels_and_channels_in_rows() -> None:
    assert torch.equal(_flat(MAPS["places"][0]), MAPS["places"][0].mean(0))
    drawn = _flat(MAPS["channels"][0])
    assert drawn.shape == (3, 3)
    assert torch.equal(drawn.flatten()[:7], MAPS["channels"][0].flatten())
    assert drawn.flatten()[7:].isnan().all()


def test_what_cannot_be_drawn_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match="2 images, 1 names"):
        image_maps(IMAGES, MAPS, tmp_path / "maps.png", names=["one"])
    with pytest.raises(ShapeError, match="expected the same number of each"):
        image_maps(IMAGES, {"one": torch.rand(1, 4, 5, 5)}, tmp_path / "maps.png", names=["one", "two"])
    with pytest.raises(InputError, match=r"\.png"):
        image_maps(IMAGES, MAPS, tmp_path / "maps.bmp", names=["one", "two"])
    assert list(tmp_path.iterdir()) == []
