"""Generated pictures: one of six shapes on a textured background.

    background   c_0 + (c_1 - c_0) (1 + w(p)) / 2,    w = stripes, checks or bumps, made of waves sin(k . p + phase)
    shape        disc, ring, square, triangle, cross or half a disc, at any position, size and angle, in one ink
    scraps       specks of the same ink elsewhere, so that the color alone does not locate the shape

A `Picture` holds the numbers that describe a picture, and `Pictures.batch` renders them to pixels. The share of a pixel
that the shape covers follows from the distance to its edge. So the covered pixels are known, and attention maps can be
compared with them. All data are a function of the seed.
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
"""The shapes; a label is an index into this tuple."""
TEXTURES = ("stripes", "checks", "bumps")
"""The textures of the background."""

HOLE, ARM = 0.55, 0.3
"""Radius of a ring's hole and half the width of a cross's arm, as shares of the shape's radius."""
_SPECK = 1.6
"""Radius of a scrap in pixels."""
_DARK, _LIGHT = 0.6, 0.5
"""Maximum of each background color channel, and minimum of each ink channel: light on dark, with low contrast."""

Color = tuple[float, float, float]
Place = tuple[float, float]


class Picture(NamedTuple):
    """The description of one picture. Lengths are in pixels, x to the right and y down from the upper left corner."""

    shape: int
    """Index into `SHAPES`."""
    center: Place
    radius: float
    """Radius of the circle around the shape."""
    angle: float
    """Rotation in radians."""
    scraps: tuple[Place, ...]
    """Centres of the specks."""
    texture: int
    """Index into `TEXTURES`."""
    wave: Place
    """k, in radians per pixel to the right and down. The second wave of checks and bumps is perpendicular to it."""
    phase: float
    colors: tuple[Color, Color]
    """c_0 and c_1: red, green and blue between 0 and 1."""
    ink: Color


@dataclass(frozen=True)
class PictureBatch:
    """Pictures as tensors, a batch for training (`training.splitting.Examples`)."""

    images: Float[Tensor, "batch 3 side side"]
    """Between 0 and 1."""
    labels: Int64[Tensor, " batch"]
    cover: Float[Tensor, "batch side side"]
    """The share of each pixel that the shape covers, from 0 to 1, without scraps."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The arguments of a classifier's ``loss``."""
        return self.images, self.labels

    @property
    def target_tokens(self) -> int:
        """The number of labels, one per picture."""
        return len(self)

    @property
    def source_tokens(self) -> int:
        """The number of pictures."""
        return len(self)

    @property
    def indices(self) -> Array:
        """The row numbers, since these pictures are not stored."""
        return np.arange(len(self))

    @property
    def cells(self) -> int:
        """The number of pixels."""
        return self.cover.numel()

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, stop: int) -> PictureBatch:
        """The rows from ``start`` to ``stop``."""
        return PictureBatch(self.images[start:stop], self.labels[start:stop], self.cover[start:stop])

    def to(self, device: torch.device | str) -> PictureBatch:
        """The batch on ``device``."""
        return PictureBatch(self.images.to(device), self.labels.to(device), self.cover.to(device))


@dataclass(frozen=True)
class Pictures:
    """The task, with its sizes.

    Args:
        side: width and height of a picture in pixels.
        smallest: minimum radius of a shape; from 3 pixels on, a ring has a visible hole.
        largest: maximum radius of a shape; shapes are never cut off.
        scraps: number of specks of ink on each picture.

    Raises:
        ConfigurationError: the sizes do not make a task.
    """

    side: int = 32
    smallest: float = 5.0
    largest: float = 9.0
    scraps: int = 4

    def __post_init__(self) -> None:
        if not 3 <= self.smallest <= self.largest <= self.side / 2:
            raise ConfigurationError(
                f"smallest={self.smallest}, largest={self.largest}, side={self.side}: expected 3 <= smallest <= "
                "largest <= side / 2, so that shapes are distinguishable and not cut off"
            )
        if self.scraps < 0:
            raise ConfigurationError(f"scraps={self.scraps}: expected 0 or more")

    def draw(self, random: Random) -> Picture:
        """Draw a picture; every part is uniformly distributed."""
        radius = random.uniform(self.smallest, self.largest)
        turn, length = random.uniform(0, 2 * pi), random.uniform(4, 10)
        first, second = (
            (random.uniform(0, _DARK), random.uniform(0, _DARK), random.uniform(0, _DARK)) for _ in range(2)
        )
        ink = (random.uniform(_LIGHT, 1), random.uniform(_LIGHT, 1), random.uniform(_LIGHT, 1))
        return Picture(
            shape=random.randrange(len(SHAPES)),
            center=(random.uniform(radius, self.side - radius), random.uniform(radius, self.side - radius)),
            radius=radius,
            angle=random.uniform(0, 2 * pi),
            scraps=tuple((random.uniform(0, self.side), random.uniform(0, self.side)) for _ in range(self.scraps)),
            texture=random.randrange(len(TEXTURES)),
            wave=(2 * pi / length * cos(turn), 2 * pi / length * sin(turn)),
            phase=random.uniform(0, 2 * pi),
            colors=(first, second),
            ink=ink,
        )

    def batch(self, pictures: Sequence[Picture]) -> PictureBatch:
        """Render pictures to pixels, in the given order."""
        middle = torch.arange(self.side) + 0.5
        x, y = middle[None, None, :], middle[None, :, None]
        cover = _coverage(_distance(pictures, x, y))
        specks = [
            _coverage(_speck([picture.scraps[place] for picture in pictures], x, y)) for place in range(self.scraps)
        ]
        ink_cover = torch.stack([cover, *specks]).amax(0)[:, None]
        background = _background(pictures, x, y)
        images = torch.lerp(background, _colors([picture.ink for picture in pictures]).expand_as(background), ink_cover)
        return PictureBatch(images, torch.tensor([picture.shape for picture in pictures]), cover)

    def batches(self, rows: int, seed: int) -> Iterator[PictureBatch]:
        """An endless stream of batches of ``rows`` pictures, determined by the seed."""
        random = Random(f"pictures {seed}")
        while True:
            yield self.batch([self.draw(random) for _ in range(rows)])

    def held_out(self, count: int, seed: int) -> PictureBatch:
        """``count`` pictures for testing, from other random numbers than the batches."""
        random = Random(f"held out pictures {seed}")
        return self.batch([self.draw(random) for _ in range(count)])


def _column(numbers: Sequence[float]) -> Tensor:
    """One number per picture, [batch, 1, 1]."""
    return torch.tensor(numbers, dtype=torch.float32)[:, None, None]


def _colors(colors: Sequence[Color]) -> Tensor:
    """One color per picture, [batch, 3, 1, 1]."""
    return torch.tensor(colors, dtype=torch.float32)[:, :, None, None]


def _coverage(distance: Tensor) -> Tensor:
    """The covered share of pixels whose centers are ``distance`` pixels from an edge, negative inside."""
    return (0.5 - distance).clamp(0, 1)


def _speck(centers: Sequence[Place], x: Tensor, y: Tensor) -> Tensor:
    """Distance of each pixel to the edge of a speck, negative inside."""
    across, down = (x - _column([center[0] for center in centers])), (y - _column([center[1] for center in centers]))
    return torch.hypot(across, down) - _SPECK


def _distance(pictures: Sequence[Picture], x: Tensor, y: Tensor) -> Tensor:
    """Distance of each pixel to the edge of its picture's shape, negative inside; a lower bound outside of corners."""
    across = x - _column([picture.center[0] for picture in pictures])
    down = y - _column([picture.center[1] for picture in pictures])
    radius = _column([picture.radius for picture in pictures])
    cosine = _column([cos(picture.angle) for picture in pictures])
    sine = _column([sin(picture.angle) for picture in pictures])
    # Coordinates of the shape: rotated, and scaled to radius 1.
    u, v = (cosine * across + sine * down) / radius, (cosine * down - sine * across) / radius
    from_center, wide, high = torch.hypot(u, v), u.abs(), v.abs()
    length = sqrt(1 - ARM**2)
    edges = {
        "disc": from_center - 1,
        "ring": (from_center - (1 + HOLE) / 2).abs() - (1 - HOLE) / 2,
        "square": torch.maximum(wide, high) - sqrt(0.5),
        "triangle": torch.maximum(wide * sqrt(0.75) + v / 2, -v) - 0.5,
        "cross": torch.minimum(torch.maximum(wide - ARM, high - length), torch.maximum(wide - length, high - ARM)),
        "half": torch.maximum(from_center - 1, -v),
    }
    chosen = torch.tensor([picture.shape for picture in pictures])[None, :, None, None]
    distances = torch.stack([edges[name] for name in SHAPES])
    return distances.gather(0, chosen.expand(1, *u.shape))[0] * radius


def _background(pictures: Sequence[Picture], x: Tensor, y: Tensor) -> Tensor:
    """The background colors, [batch, 3, side, side]."""
    right, down = (_column([picture.wave[axis] for picture in pictures]) for axis in (0, 1))
    phase = _column([picture.phase for picture in pictures])
    first, second = torch.sin(right * x + down * y + phase), torch.sin(right * y - down * x + phase)
    waves = {"stripes": first, "checks": (8 * first * second).tanh(), "bumps": (first + second) / 2}
    chosen = torch.tensor([picture.texture for picture in pictures])[None, :, None, None]
    wave = torch.stack([waves[name] for name in TEXTURES]).gather(0, chosen.expand(1, *first.shape))[0]
    start, end = (_colors([picture.colors[place] for picture in pictures]) for place in (0, 1))
    return torch.lerp(start, end, (1 + wave[:, None]) / 2)
