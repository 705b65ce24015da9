"""Shapes on textures: small pictures drawn from numbers, and which of six shapes is on each.

    background   c_0 + (c_1 - c_0) (1 + w(p)) / 2,    w = stripes, checks or bumps, made of waves sin(k . p + phase)
    shape        disc, ring, square, triangle, cross or half a disc: any place, size and turn, in one ink
    scraps       specks of the same ink elsewhere: the colour alone does not say where the shape is

Whatever is drawn is kept as numbers (`Picture`), and only `Pictures.batch` makes pixels of it; a pixel has as much ink
as the shape covers of it, from the distance to its edge. So it is known for each pixel whether the shape is there,
which is what maps of attention are held against. Everything is a function of the seed. Learning is left to others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import cos, pi, sin, sqrt
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from multihead.data.order import Array
from multihead.errors import ConfigurationError

SHAPES = ("disc", "ring", "square", "triangle", "cross", "half")
"""What can be on a picture; the label is the place in this list, counted from 0."""
TEXTURES = ("stripes", "checks", "bumps")
"""What can be behind it."""

HOLE, ARM = 0.55, 0.3
"""The hole of a ring and half the width of a cross's arm, as shares of the radius."""
_SPECK = 1.6
"""Radius of a scrap, in pixels."""
_DARK, _LIGHT = 0.6, 0.5
"""Red, green and blue are at most so large behind, and at least so large in ink: light on dark, but not by much."""

Colour = tuple[float, float, float]
Place = tuple[float, float]


class Picture(NamedTuple):
    """All that is on one picture. Lengths are pixels, x to the right and y down from the upper left corner."""

    shape: int
    """Which of `SHAPES`."""
    centre: Place
    radius: float
    """Of the circle around the shape."""
    angle: float
    """By which it is turned, in radians."""
    scraps: tuple[Place, ...]
    """Centres of the specks."""
    texture: int
    """Which of `TEXTURES`."""
    wave: Place
    """k: radians a pixel to the right and down. The second wave, of checks and bumps, is at a right angle to it."""
    phase: float
    colours: tuple[Colour, Colour]
    """c_0 and c_1: red, green, blue, between 0 and 1."""
    ink: Colour


@dataclass(frozen=True)
class PictureBatch:
    """Pictures as tensors: a batch as training sees it (`training.loss.Examples`)."""

    images: Float[Tensor, "batch 3 side side"]
    """Between 0 and 1."""
    labels: Int64[Tensor, " batch"]
    cover: Float[Tensor, "batch side side"]
    """How much of each pixel the shape covers, from 0 to 1; scraps are not counted."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What a classifier's ``loss`` reads."""
        return self.images, self.labels

    @property
    def target_tokens(self) -> int:
        """One label a picture."""
        return len(self)

    @property
    def source_tokens(self) -> int:
        """Pictures."""
        return len(self)

    @property
    def indices(self) -> Array:
        """The rows, since these pictures are in no store."""
        return np.arange(len(self))

    @property
    def cells(self) -> int:
        """Pixels."""
        return self.cover.numel()

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, stop: int) -> PictureBatch:
        """Some rows."""
        return PictureBatch(self.images[start:stop], self.labels[start:stop], self.cover[start:stop])

    def to(self, device: torch.device | str) -> PictureBatch:
        """The same with its tensors on ``device``."""
        return PictureBatch(self.images.to(device), self.labels.to(device), self.cover.to(device))


@dataclass(frozen=True)
class Pictures:
    """The task in one size.

    Args:
        side: pixels a side.
        smallest: the least radius of a shape; with 3 pixels a ring has a hole.
        largest: the largest; a shape lies wholly on its picture.
        scraps: specks of ink on each picture.

    Raises:
        ConfigurationError: numbers that make no task.
    """

    side: int = 32
    smallest: float = 5.0
    largest: float = 9.0
    scraps: int = 4

    def __post_init__(self) -> None:
        if not 3 <= self.smallest <= self.largest <= self.side / 2:
            raise ConfigurationError(
                f"smallest={self.smallest}, largest={self.largest}, side={self.side}: expected 3 <= smallest <= "
                "largest <= side / 2, so that shapes can be told apart and lie on their picture"
            )
        if self.scraps < 0:
            raise ConfigurationError(f"scraps={self.scraps}: a picture has 0 specks of ink or more")

    def draw(self, random: Random) -> Picture:
        """What is on one picture: each part drawn evenly."""
        radius = random.uniform(self.smallest, self.largest)
        turn, length = random.uniform(0, 2 * pi), random.uniform(4, 10)
        first, second = (
            (random.uniform(0, _DARK), random.uniform(0, _DARK), random.uniform(0, _DARK)) for _ in range(2)
        )
        ink = (random.uniform(_LIGHT, 1), random.uniform(_LIGHT, 1), random.uniform(_LIGHT, 1))
        return Picture(
            shape=random.randrange(len(SHAPES)),
            centre=(random.uniform(radius, self.side - radius), random.uniform(radius, self.side - radius)),
            radius=radius,
            angle=random.uniform(0, 2 * pi),
            scraps=tuple((random.uniform(0, self.side), random.uniform(0, self.side)) for _ in range(self.scraps)),
            texture=random.randrange(len(TEXTURES)),
            wave=(2 * pi / length * cos(turn), 2 * pi / length * sin(turn)),
            phase=random.uniform(0, 2 * pi),
            colours=(first, second),
            ink=ink,
        )

    def batch(self, pictures: Sequence[Picture]) -> PictureBatch:
        """These pictures as pixels, in this order."""
        middle = torch.arange(self.side) + 0.5
        x, y = middle[None, None, :], middle[None, :, None]
        cover = _inside(_distance(pictures, x, y))
        specks = [
            _inside(_speck([picture.scraps[place] for picture in pictures], x, y)) for place in range(self.scraps)
        ]
        inked = torch.stack([cover, *specks]).amax(0)[:, None]
        behind = _behind(pictures, x, y)
        images = torch.lerp(behind, _colours([picture.ink for picture in pictures]).expand_as(behind), inked)
        return PictureBatch(images, torch.tensor([picture.shape for picture in pictures]), cover)

    def batches(self, rows: int, seed: int) -> Iterator[PictureBatch]:
        """Batches of so many pictures, without end: the same ones for the same seed."""
        random = Random(f"pictures {seed}")
        while True:
            yield self.batch([self.draw(random) for _ in range(rows)])

    def held_out(self, count: int, seed: int) -> PictureBatch:
        """So many pictures to test with, from other random numbers than the batches': no two pictures are alike."""
        random = Random(f"held out pictures {seed}")
        return self.batch([self.draw(random) for _ in range(count)])


def _column(numbers: Sequence[float]) -> Tensor:
    """One number a picture, [batch, 1, 1]."""
    return torch.tensor(numbers, dtype=torch.float32)[:, None, None]


def _colours(colours: Sequence[Colour]) -> Tensor:
    """One colour a picture, [batch, 3, 1, 1]."""
    return torch.tensor(colours, dtype=torch.float32)[:, :, None, None]


def _inside(distance: Tensor) -> Tensor:
    """How much of a pixel lies within an edge that is ``distance`` pixels away from its middle, negative inside."""
    return (0.5 - distance).clamp(0, 1)


def _speck(centres: Sequence[Place], x: Tensor, y: Tensor) -> Tensor:
    """Distance to the edge of a disc of `_SPECK` pixels."""
    across, down = (x - _column([centre[0] for centre in centres])), (y - _column([centre[1] for centre in centres]))
    return torch.hypot(across, down) - _SPECK


def _distance(pictures: Sequence[Picture], x: Tensor, y: Tensor) -> Tensor:
    """Distance of each pixel to the edge of its picture's shape, negative inside; outside of corners it is less."""
    across = x - _column([picture.centre[0] for picture in pictures])
    down = y - _column([picture.centre[1] for picture in pictures])
    radius = _column([picture.radius for picture in pictures])
    cosine = _column([cos(picture.angle) for picture in pictures])
    sine = _column([sin(picture.angle) for picture in pictures])
    # The shape's own coordinates: turned, and its radius is 1.
    u, v = (cosine * across + sine * down) / radius, (cosine * down - sine * across) / radius
    from_centre, wide, high = torch.hypot(u, v), u.abs(), v.abs()
    length = sqrt(1 - ARM**2)
    edges = {
        "disc": from_centre - 1,
        "ring": (from_centre - (1 + HOLE) / 2).abs() - (1 - HOLE) / 2,
        "square": torch.maximum(wide, high) - sqrt(0.5),
        "triangle": torch.maximum(wide * sqrt(0.75) + v / 2, -v) - 0.5,
        "cross": torch.minimum(torch.maximum(wide - ARM, high - length), torch.maximum(wide - length, high - ARM)),
        "half": torch.maximum(from_centre - 1, -v),
    }
    chosen = torch.tensor([picture.shape for picture in pictures])[None, :, None, None]
    of_all = torch.stack([edges[name] for name in SHAPES])
    return of_all.gather(0, chosen.expand(1, *u.shape))[0] * radius


def _behind(pictures: Sequence[Picture], x: Tensor, y: Tensor) -> Tensor:
    """The textures, [batch, 3, side, side]."""
    right, down = (_column([picture.wave[axis] for picture in pictures]) for axis in (0, 1))
    phase = _column([picture.phase for picture in pictures])
    first, second = torch.sin(right * x + down * y + phase), torch.sin(right * y - down * x + phase)
    waves = {"stripes": first, "checks": (8 * first * second).tanh(), "bumps": (first + second) / 2}
    chosen = torch.tensor([picture.texture for picture in pictures])[None, :, None, None]
    wave = torch.stack([waves[name] for name in TEXTURES]).gather(0, chosen.expand(1, *first.shape))[0]
    one, other = (_colours([picture.colours[place] for picture in pictures]) for place in (0, 1))
    return torch.lerp(one, other, (1 + wave[:, None]) / 2)
