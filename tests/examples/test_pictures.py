"""Generated pictures: rendering matches the description, and the seed determines both."""

from __future__ import annotations

from itertools import islice, product
from math import cos, hypot, pi, sin, sqrt, tanh
from random import Random

import pytest
import torch

from images.pictures import ARM, HOLE, SHAPES, TEXTURES, Picture, PictureBatch, Pictures
from multihead.errors import ConfigurationError
from multihead.training.splitting import Examples

AREAS = {
    "disc": pi,
    "ring": pi * (1 - HOLE**2),
    "square": 2.0,
    "triangle": 3 * sqrt(3) / 4,
    "cross": 8 * ARM * sqrt(1 - ARM**2) - 4 * ARM**2,
    "half": pi / 2,
}
"""Areas of shapes with radius 1."""


def drawn(task: Pictures, count: int = 200, seed: int = 0) -> list[Picture]:
    random = Random(seed)
    return [task.draw(random) for _ in range(count)]


def same(one: PictureBatch, other: PictureBatch) -> bool:
    return all(torch.equal(ours, theirs) for ours, theirs in zip(vars(one).values(), vars(other).values(), strict=True))


def test_one_seed_one_set_of_pictures() -> None:
    task = Pictures()
    first, again, other = (list(islice(task.batches(5, seed), 2)) for seed in (1, 1, 2))
    assert all(same(*pair) for pair in zip(first, again, strict=True))
    assert not torch.equal(first[0].images, first[1].images)
    assert not torch.equal(first[0].images, other[0].images)
    assert not torch.equal(first[0].images, task.held_out(5, 1).images)
    assert same(task.held_out(7, 1).part(0, 5), task.held_out(5, 1))


def test_a_picture_does_not_depend_on_its_neighbors() -> None:
    task = Pictures()
    pictures = drawn(task, 20)
    whole = task.batch(pictures)
    assert all(same(task.batch([picture]), whole.part(n, n + 1)) for n, picture in enumerate(pictures))


def test_a_batch_is_one_to_train_with() -> None:
    batch = Pictures(side=12, smallest=3.0, largest=4.0).held_out(6, 0)
    assert isinstance(batch, Examples)
    assert (len(batch), batch.target_tokens, batch.cells) == (6, 6, 6 * 12 * 12)
    assert [part.shape for part in batch.inputs] == [(6, 3, 12, 12), (6,)]
    assert same(batch.to("cpu"), batch)


def test_every_shape_and_texture_comes_about_as_often() -> None:
    pictures = drawn(Pictures(), 1200)
    for field, kinds in (("shape", SHAPES), ("texture", TEXTURES)):
        counts = torch.tensor([getattr(picture, field) for picture in pictures]).bincount(minlength=len(kinds))
        assert len(counts) == len(kinds)
        # Four standard deviations of a Poisson count.
        expected = 1200 / len(kinds)
        assert (counts - expected).abs().max() < 4 * expected**0.5


@pytest.mark.parametrize("shape", range(len(SHAPES)), ids=SHAPES)
def test_a_shape_covers_its_area(shape: int) -> None:
    """At any angle and position; corners and pixels with two edges deviate slightly."""
    task = Pictures(side=96, smallest=20.0, largest=30.0)
    pictures = [picture._replace(shape=shape) for picture in drawn(task, 20)]
    for picture, found in zip(pictures, task.batch(pictures).cover.sum((1, 2)), strict=True):
        assert found.item() == pytest.approx(AREAS[SHAPES[shape]] * picture.radius**2, rel=0.01)


@pytest.mark.parametrize("shape", range(len(SHAPES)), ids=SHAPES)
def test_a_shape_lies_on_its_picture_and_within_its_circle(shape: int) -> None:
    task = Pictures()
    pictures = [picture._replace(shape=shape) for picture in drawn(task)]
    middle = torch.arange(task.side) + 0.5
    for picture, cover in zip(pictures, task.batch(pictures).cover, strict=True):
        (x, y), radius = picture.center, picture.radius
        assert radius <= min(x, y, task.side - x, task.side - y)
        away = torch.hypot(middle[None] - x, middle[:, None] - y)
        # Distances are to lines; outside an acute corner that is about half of the distance to the corner.
        assert not cover[away > radius + 1.5].any()


def test_a_turned_shape_is_the_shape_turned() -> None:
    """A rotation by a right angle around the center maps pixels to pixels."""
    task = Pictures(side=32, scraps=0)
    for picture in drawn(task, 30):
        middle = picture._replace(center=(16.0, 16.0))
        turned = middle._replace(angle=picture.angle + pi / 2)
        (upright, rotated) = task.batch([middle, turned]).cover
        torch.testing.assert_close(rotated, upright.rot90(-1), atol=1e-4, rtol=0)


def within(shape: str, u: float, v: float) -> bool:
    """Whether a point is inside a shape with radius 1 around 0, v downwards."""
    away, arm = hypot(u, v), sqrt(1 - ARM**2)
    sides = {"square": [n * pi / 2 for n in range(4)], "triangle": [-pi / 2 + n * 2 * pi / 3 for n in range(3)]}
    if shape in sides:
        apothem = cos(pi / len(sides[shape]))
        return all(u * cos(normal) + v * sin(normal) < apothem for normal in sides[shape])
    if shape == "cross":
        return (abs(u) < ARM and abs(v) < arm) or (abs(v) < ARM and abs(u) < arm)
    return away < 1 and (shape != "ring" or away > HOLE) and (shape != "half" or v > 0)


@pytest.mark.parametrize("shape", range(len(SHAPES)), ids=SHAPES)
def test_a_pixel_is_the_shapes_if_its_middle_is(shape: int) -> None:
    """Pixel by pixel; a pixel on an edge counts if more than half is covered."""
    task = Pictures()
    pictures = [picture._replace(shape=shape) for picture in drawn(task, 3, seed=shape)]
    for picture, cover in zip(pictures, task.batch(pictures).cover.tolist(), strict=True):
        for row, column in product(range(task.side), repeat=2):
            place = complex(column + 0.5 - picture.center[0], row + 0.5 - picture.center[1])
            own = place * complex(cos(picture.angle), -sin(picture.angle)) / picture.radius
            assert within(SHAPES[shape], own.real, own.imag) == (cover[row][column] > 0.5)


@pytest.mark.parametrize("texture", range(len(TEXTURES)), ids=TEXTURES)
def test_behind_are_the_waves(texture: int) -> None:
    task = Pictures(scraps=0)
    for picture in drawn(task, 5):
        batch = task.batch([picture._replace(texture=texture)])
        for row, column in (batch.cover[0] == 0).nonzero()[::97].tolist():
            (x, y), (right, down) = (column + 0.5, row + 0.5), picture.wave
            one, other = sin(right * x + down * y + picture.phase), sin(right * y - down * x + picture.phase)
            wave = {"stripes": one, "checks": tanh(8 * one * other), "bumps": (one + other) / 2}[TEXTURES[texture]]
            expected = [a + (b - a) * (1 + wave) / 2 for a, b in zip(*picture.colors, strict=True)]
            assert batch.images[0, :, row, column].tolist() == pytest.approx(expected, abs=1e-5)


def test_what_a_shape_covers_is_ink() -> None:
    task = Pictures()
    pictures = drawn(task, 30)
    batch = task.batch(pictures)
    assert 0 <= batch.images.min() <= batch.images.max() <= 1
    for picture, image, cover in zip(pictures, batch.images, batch.cover, strict=True):
        whole = image[:, cover == 1]
        torch.testing.assert_close(whole, torch.tensor(picture.ink)[:, None].expand_as(whole))


def test_scraps_are_ink_where_the_shape_is_not() -> None:
    task = Pictures(scraps=1)
    corner = drawn(task, 1)[0]._replace(center=(22.0, 22.0), radius=5.0, scraps=((4.5, 6.5),))
    batch = task.batch([corner])
    torch.testing.assert_close(batch.images[0, :, 6, 4], torch.tensor(corner.ink))
    assert batch.cover[0, 6, 4] == 0


def test_a_disc_turned_is_the_same_disc() -> None:
    task = Pictures()
    (picture,) = drawn(task, 1)
    round_ones = [picture._replace(shape=SHAPES.index("disc"), angle=angle) for angle in (0.0, 1.0, cos(3.0))]
    covers = task.batch(round_ones).cover
    torch.testing.assert_close(covers, covers[:1].expand_as(covers), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"smallest": 2.0}, "smallest=2.0"),
        ({"smallest": 9.0, "largest": 8.0}, "expected 3 <= smallest <= largest"),
        ({"side": 16}, "side=16"),
        ({"scraps": -1}, "scraps=-1"),
    ],
)
def test_numbers_that_make_no_task(numbers: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Pictures(**numbers)  # type: ignore[arg-type]
