"""Compare eight image attention modules in one small classifier.

    python examples/image_attention.py [--attention NAME ...] [--updates N] [--rate R] [--widths N ...] [--seed N]
                                       [--block 1|2|3] [--maps FILE] [--quick]

The networks classify generated pictures of six shapes on textures. They see the same pictures in the same order and
differ only in the attention module of their blocks. The table shows the number of parameters, the multiply-adds per
picture, the accuracy on a thousand new pictures, and how much larger the first block's map is on the shape than beside
it. ``--maps`` plots the maps. `docs/images.md` explains the results.
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
"""The networks to compare, ``none`` first; they differ in this setting only."""

ROWS = 64
"""Pictures per update."""


@dataclass(frozen=True)
class Task:
    """The data and the settings of training, the same for all networks."""

    pictures: Pictures
    batches: list[PictureBatch]
    """One batch per update."""
    test: PictureBatch
    """Pictures that are not used in training."""
    rate: float
    """The peak learning rate."""
    seed: int
    """Seed of initialization and training."""
    widths: tuple[int, ...] = (8, 16, 32)
    """Channels of the blocks."""


@dataclass(frozen=True)
class Evaluation:
    """A row of the table."""

    parameters: int
    """Number of parameters of the whole network."""
    of_attention: int
    """Number of parameters of the attention modules."""
    multiply_adds: int
    """Multiply-adds per picture."""
    accuracy: float
    """Share of test pictures classified correctly."""
    on_shape: float | None
    """Mean of the map on the shape divided by its mean elsewhere; None for a map without places."""
    seconds: float
    """CPU time of training."""


def make_task(pictures: Pictures, updates: int, tested: int = 1000, rate: float = 0.004, seed: int = 1) -> Task:
    """The training and test pictures, determined by the arguments."""
    batches = list(islice(pictures.batches(ROWS, seed), updates))
    return Task(pictures, batches, pictures.held_out(tested, seed), rate, seed)


def train(task: Task, name: ImageAttentionName) -> tuple[ImageClassifier, float]:
    """A network trained from scratch, and the CPU seconds of training."""
    torch.manual_seed(task.seed)
    network = ImageClassifier(ImageConfig(classes=len(SHAPES), widths=task.widths, attention=name))
    config = TrainingConfig(
        seed=task.seed, updates=len(task.batches), learning_rate=task.rate, warmup=20, smoothing=0.0
    )
    optimizer, began = build_optimizer(network, config), time.process_time()
    for step, batch in enumerate(task.batches, 1):
        train_step(network, optimizer, [batch], config, step, learning_rate(config, step, task.widths[-1]))
    return network.eval(), time.process_time() - began


@torch.no_grad()
def evaluate(task: Task, network: ImageClassifier, seconds: float, block: int = 0) -> Evaluation:
    """Evaluate size, cost, accuracy and the map of a block."""
    pieces = [task.test.part(start, start + 250) for start in range(0, len(task.test), 250)]
    outputs = [network(piece.images, need_maps=True) for piece in pieces]
    predictions = torch.cat([output.logits.argmax(1) for output in outputs])
    return Evaluation(
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        of_attention=sum(p.numel() for module in network.attention for p in module.parameters()),
        multiply_adds=multiply_adds(network, task.test.images[:1]),
        accuracy=(predictions == task.test.labels).double().mean().item(),
        on_shape=on_shape(torch.cat([output.maps[block] for output in outputs]), task.test.cover)
        if outputs[0].maps
        else None,
        seconds=seconds,
    )


def on_shape(maps: Tensor, cover: Tensor) -> float | None:
    """Mean of the maps on the shapes divided by their mean elsewhere; None for maps without places."""
    if maps.shape[2:] == (1, 1):
        return None
    height, width = maps.shape[2:]
    share = F.adaptive_avg_pool2d(cover[:, None], (height, width))
    flat = maps.mean(1, keepdim=True)
    inside, outside = (flat * share).sum() / share.sum(), (flat * (1 - share)).sum() / (1 - share).sum()
    return (inside / outside).item()


@torch.no_grad()
def collect_maps(task: Task, networks: dict[str, ImageClassifier], block: int) -> tuple[list[int], dict[str, Tensor]]:
    """The first test picture of each shape, and the map of every module for it."""
    rows = [int((task.test.labels == shape).nonzero()[0]) for shape in range(len(SHAPES))]
    images = task.test.images[rows]
    found = {name: network(images, need_maps=True).maps for name, network in networks.items()}
    return rows, {name: maps[block] for name, maps in found.items() if maps}


def compare(task: Task, names: Sequence[ImageAttentionName], block: int) -> dict[str, ImageClassifier]:
    """Train, evaluate and print a row for each network."""
    print(f"{task.pictures}, {len(task.batches)} updates of {ROWS} pictures, widths {task.widths}, seed {task.seed}\n")
    print("attention   parameters  of attention  multiply-adds  accuracy  on shape  seconds")
    networks: dict[str, ImageClassifier] = {}
    for name in names:
        networks[name], seconds = train(task, name)
        row = evaluate(task, networks[name], seconds, block)
        ratio = "-" if row.on_shape is None else f"{row.on_shape:.2f}"
        print(
            f"{name:12}{row.parameters:10,}{row.of_attention:14,}{row.multiply_adds:15,}{row.accuracy:10.1%}{ratio:>10}"
            f"{row.seconds:9.0f}",
            flush=True,
        )
    return networks


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(description=summary, epilog=rest, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--attention", choices=NAMES, nargs="+", default=NAMES, help="default: all")
    parser.add_argument("--updates", type=int, help="updates of each network, default: 400")
    parser.add_argument("--rate", type=float, default=0.004, help="peak learning rate, default: 0.004")
    parser.add_argument(
        "--widths", type=int, nargs="+", default=(8, 16, 32), help="channels of the blocks, default: 8 16 32"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--block", type=int, default=1, choices=(1, 2, 3), help="block whose map is evaluated and plotted, default: 1"
    )
    parser.add_argument("--maps", metavar="FILE", help="plot of the maps: .png, .svg or .pdf")
    parser.add_argument("--quick", action="store_true", help="a quarter of the updates")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table, and plot the maps if requested."""
    args = parse_arguments(argv)
    updates = args.updates or (100 if args.quick else 400)
    task = replace(make_task(Pictures(), updates, rate=args.rate, seed=args.seed), widths=tuple(args.widths))
    networks = compare(task, args.attention, args.block - 1)
    if args.maps:
        rows, maps = collect_maps(task, networks, args.block - 1)
        image_maps(task.test.images[rows], maps, args.maps, names=SHAPES)


if __name__ == "__main__":
    torch.set_num_threads(1)  # one thread is fastest for networks this small
    main()
