"""Attention for images, trained: one small classifier with each of the eight modules, and with none.

    python examples/image_attention.py [--attention NAME ...] [--updates N] [--rate R] [--widths N ...] [--seed N]
                                       [--block 1|2|3] [--maps FILE] [--quick]

Pictures of six shapes on textures are drawn by the project, and what is on them is to be said. All networks see the
same pictures in the same order, and differ in what weights the features of their blocks, and in nothing else. For each
it is printed how large it is, what a picture costs, how many of a thousand new pictures are named rightly, and how
much more weight the first block's map has on the shape than beside it. ``--maps`` draws the maps themselves.
`docs/images.md` explains it all.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from images.classifier import ImageAttentionName, ImageClassifier, ImageConfig, multiply_adds
from images.maps import image_maps
from images.pictures import SHAPES, PictureBatch, Pictures
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import build_optimizer, learning_rate
from multihead.training.step import train_step

NAMES: tuple[ImageAttentionName, ...] = get_args(ImageAttentionName)
"""What is compared, ``none`` first: the only setting in which the networks differ."""

ROWS = 64
"""Pictures of an update."""


@dataclass(frozen=True)
class Task:
    """What is learned, and from what."""

    pictures: Pictures
    batches: list[PictureBatch]
    """One an update: the same for all."""
    test: PictureBatch
    """Pictures that no network was trained on."""
    rate: float
    """The highest learning rate."""
    seed: int
    """Of the first values of all parameters, too."""
    widths: tuple[int, ...] = (8, 16, 32)
    """Channels of the blocks."""


@dataclass(frozen=True)
class Judged:
    """A row of the table."""

    parameters: int
    """Of the whole network."""
    of_attention: int
    """Of its attention alone."""
    multiply_adds: int
    """For one picture."""
    accuracy: float
    """Share of the test's pictures that are named rightly."""
    on_shape: float | None
    """The mean of the map's numbers on the shape over their mean elsewhere; None: it knows no places."""
    seconds: float
    """Processor time of training."""


def task(pictures: Pictures, updates: int, tested: int = 1000, rate: float = 0.004, seed: int = 1) -> Task:
    """Pictures to train with and to test with; all of it a function of the arguments."""
    batches = list(islice(pictures.batches(ROWS, seed), updates))
    return Task(pictures, batches, pictures.held_out(tested, seed), rate, seed)


def train(given: Task, name: ImageAttentionName) -> tuple[ImageClassifier, float]:
    """A network from nothing, and the seconds it took."""
    torch.manual_seed(given.seed)
    network = ImageClassifier(ImageConfig(classes=len(SHAPES), widths=given.widths, attention=name))
    config = TrainingConfig(
        seed=given.seed, updates=len(given.batches), learning_rate=given.rate, warmup=20, smoothing=0.0
    )
    optimizer, began = build_optimizer(network, config), time.process_time()
    for step, batch in enumerate(given.batches, 1):
        train_step(network, optimizer, [batch], config, step, learning_rate(config, step, given.widths[-1]))
    return network.eval(), time.process_time() - began


@torch.no_grad()
def judge(given: Task, network: ImageClassifier, seconds: float, block: int = 0) -> Judged:
    """How large, how dear, how good it is, and where the map of a block is large."""
    pieces = [given.test.part(start, start + 250) for start in range(0, len(given.test), 250)]
    found = [network(piece.images, need_maps=True) for piece in pieces]
    guesses = torch.cat([piece.logits.argmax(1) for piece in found])
    return Judged(
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        of_attention=sum(p.numel() for module in network.attention for p in module.parameters()),
        multiply_adds=multiply_adds(network, given.test.images[:1]),
        accuracy=(guesses == given.test.labels).double().mean().item(),
        on_shape=on_shape(torch.cat([one.maps[block] for one in found]), given.test.cover) if found[0].maps else None,
        seconds=seconds,
    )


def on_shape(maps: Tensor, cover: Tensor) -> float | None:
    """The maps' mean on the shapes over their mean elsewhere; None if they have one number for all places."""
    if maps.shape[2:] == (1, 1):
        return None
    height, width = maps.shape[2:]
    share = F.adaptive_avg_pool2d(cover[:, None], (height, width))
    flat = maps.mean(1, keepdim=True)
    inside, outside = (flat * share).sum() / share.sum(), (flat * (1 - share)).sum() / (1 - share).sum()
    return (inside / outside).item()


@torch.no_grad()
def examples_of_maps(
    given: Task, networks: dict[str, ImageClassifier], block: int
) -> tuple[list[int], dict[str, Tensor]]:
    """The first of the test's pictures of each shape, and every module's map of them."""
    rows = [int((given.test.labels == shape).nonzero()[0]) for shape in range(len(SHAPES))]
    images = given.test.images[rows]
    found = {name: network(images, need_maps=True).maps for name, network in networks.items()}
    return rows, {name: maps[block] for name, maps in found.items() if maps}


def table(given: Task, names: Sequence[ImageAttentionName], block: int) -> dict[str, ImageClassifier]:
    """Trains, judges, prints."""
    print(
        f"{given.pictures}, {len(given.batches)} updates of {ROWS} pictures, widths {given.widths}, seed {given.seed}\n"
    )
    print("attention   parameters  of attention  multiply-adds  accuracy  on shape  seconds")
    networks: dict[str, ImageClassifier] = {}
    for name in names:
        networks[name], seconds = train(given, name)
        row = judge(given, networks[name], seconds, block)
        ratio = "-" if row.on_shape is None else f"{row.on_shape:.2f}"
        print(
            f"{name:12}{row.parameters:10,}{row.of_attention:14,}{row.multiply_adds:15,}{row.accuracy:10.1%}{ratio:>10}"
            f"{row.seconds:9.0f}",
            flush=True,
        )
    return networks


def options(words: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    described, _, rest = (__doc__ or "").partition("\n\n")
    asked = argparse.ArgumentParser(description=described, epilog=rest, formatter_class=argparse.RawTextHelpFormatter)
    asked.add_argument("--attention", choices=NAMES, nargs="+", default=NAMES, help="default: all")
    asked.add_argument("--updates", type=int, help="of each network, default: 400")
    asked.add_argument("--rate", type=float, default=0.004, help="the highest learning rate, default: 0.004")
    asked.add_argument(
        "--widths", type=int, nargs="+", default=(8, 16, 32), help="channels of blocks, default: 8 16 32"
    )
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument(
        "--block", type=int, default=1, choices=(1, 2, 3), help="whose map is judged and drawn, default: 1"
    )
    asked.add_argument("--maps", metavar="FILE", help="a picture of the maps: .png, .svg or .pdf")
    asked.add_argument("--quick", action="store_true", help="a quarter of the updates")
    return asked.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """The table, and the picture if it is asked for."""
    asked = options(words)
    updates = asked.updates or (100 if asked.quick else 400)
    given = replace(task(Pictures(), updates, rate=asked.rate, seed=asked.seed), widths=tuple(asked.widths))
    networks = table(given, asked.attention, asked.block - 1)
    if asked.maps:
        rows, maps = examples_of_maps(given, networks, asked.block - 1)
        image_maps(given.test.images[rows], maps, asked.maps, names=SHAPES)


if __name__ == "__main__":
    torch.set_num_threads(1)  # networks this small are trained fastest by one
    main()
