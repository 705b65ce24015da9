"""Hard attention, trained: a recurrent network that looks at one source position for each target symbol.

    python examples/hard_attention.py [--task copy] [--wiring before] [--updates 1500] [--seed 2] [--quick]

The same small network learns to reverse (or to copy) with each alignment: soft attention, hard attention by REINFORCE
with and without its baseline, the straight-through estimator, and the Gumbel-softmax. What is attended to is a symbol
and its place and nothing else, and it is known where each target symbol stands in the source: so one can count how
often a network looks at the right place. On the way the gradient of the hard network is drawn many times at the same
parameters: how much does the baseline lower its variance? `docs/hard-attention.md` explains it all.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from multihead.data.batching import Batch
from multihead.decoding.greedy import greedy_search
from multihead.decoding.stepper import Symbols
from multihead.models.config import RecurrentConfig
from multihead.models.network import AttentionWeights
from multihead.models.recurrent.network import RecurrentTranslator
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import build_optimizer, learning_rate
from multihead.training.step import train_step
from tasks.reordering import BEGIN, END, FIRST, PADDING, Ids, Reordering, share_right

ALIGNMENTS: dict[str, dict[str, Any]] = {
    "soft": {"alignment": "softmax"},
    "hard": {"alignment": "sample", "baseline": "moving"},
    "hard, no baseline": {"alignment": "sample", "baseline": "none"},
    "straight-through": {"alignment": "straight_through"},
    "Gumbel": {"alignment": "gumbel"},
}
"""What is compared: the only settings in which the networks differ."""

WIRINGS: dict[str, dict[str, Any]] = {
    "fed": {"attend": "after", "input_feeding": True},
    "after": {"attend": "after"},
    "before": {"attend": "before"},
}
"""Luong's network with input feeding and without it, and Bahdanau's. Only ``after`` forgets what it looked at."""


@dataclass(frozen=True)
class Sizes:
    """Everything else, the same for all of them."""

    task: Reordering
    wiring: str = "fed"
    width: int = 64
    entropy_weight: float = 0.1
    rows: int = 128
    updates: int = 500
    rate: float = 5e-3
    seed: int = 1
    looked_at: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4)
    """When the variance is measured, as shares of the updates."""
    draws: int = 100
    """Gradients that a variance is measured from."""

    def network(self, name: str) -> RecurrentTranslator:
        """Drawn from the same seed, whatever the alignment."""
        torch.manual_seed(self.seed)
        config = RecurrentConfig(
            source_vocab=self.task.vocabulary,
            target_vocab=self.task.vocabulary,
            width=self.width,
            encoder_layers=0,
            score="bilinear",
            entropy_weight=self.entropy_weight,
            dropout=0.0,
            tie_embeddings=False,
            tie_output=False,
            **WIRINGS[self.wiring],
            **ALIGNMENTS[name],
        )
        return RecurrentTranslator(config)


class Judged(NamedTuple):
    """How a network does on sequences that it did not see."""

    sequences: float
    """The share that is written without a fault."""
    positions: float
    """The share of their symbols for which the highest weight is at the right source position."""


class Variance(NamedTuple):
    """Of the estimates of one gradient at fixed parameters: the trace of their covariance."""

    update: int
    positions: float
    without: float
    with_it: float


@dataclass
class Trained:
    """A network, what it took, and what was seen on the way."""

    network: RecurrentTranslator
    seconds: float
    """Of processor time, in its updates."""
    judged: Judged
    variances: list[Variance] = field(default_factory=list)


def train(name: str, sizes: Sizes, held_out: list[Ids]) -> Trained:
    """A network with the alignment of that name, from nothing; of ``"hard"`` the variance on the way, too."""
    config = TrainingConfig(
        seed=sizes.seed, updates=sizes.updates, learning_rate=sizes.rate, warmup=sizes.updates // 5, smoothing=0.0
    )
    network = sizes.network(name)
    optimizer = build_optimizer(network, config)
    batches = sizes.task.batches(sizes.rows, sizes.seed, without=held_out)
    looked_at = {round(share * sizes.updates) for share in sizes.looked_at} if name == "hard" else set()
    variances, seconds = [], 0.0
    for step in range(1, sizes.updates + 1):
        began = time.process_time()
        train_step(network, optimizer, [next(batches)], config, step, learning_rate(config, step, sizes.width))
        seconds += time.process_time() - began
        if step in looked_at:
            variances.append(variance(step, network, sizes, held_out))
    return Trained(network, seconds, judge(network, sizes.task, held_out), variances)


@torch.no_grad()
def judge(network: RecurrentTranslator, task: Reordering, sources: list[Ids]) -> Judged:
    """Searches greedily, and looks at the weights with which the right targets are read."""
    network.eval()
    batch = task.batch(sources)
    symbols = Symbols(BEGIN, END, forbidden=(PADDING, BEGIN))
    found = greedy_search(network, batch.source, batch.source_lengths, symbols, max_lengths=task.longest + 3)
    exact = sum(hypothesis.tokens == task.target(source) for hypothesis, source in zip(found, sources, strict=True))
    right, all_of_them = share_right(weights_of(network, batch), task.alignment(batch))
    return Judged(exact / len(sources), right / all_of_them)


def weights_of(network: RecurrentTranslator, batch: Batch) -> Tensor:
    """What each target position attends to, [batch, target, source]; evaluating, so of a draw the arg-max."""
    weights: AttentionWeights = network(
        batch.source, batch.source_lengths, batch.target_input, need_weights=True
    ).weights
    return weights.cross[0][:, 0]


def variance(update: int, network: RecurrentTranslator, sizes: Sizes, held_out: list[Ids]) -> Variance:
    """Of the estimated gradient of the score's parameters, on one batch, with the parameters as they stand.

    With and without the baseline the same positions are drawn.
    """
    (batch,) = islice(sizes.task.batches(sizes.rows, sizes.seed + 1, without=held_out), 1)
    network, plain = copy.deepcopy(network), sizes.network("hard, no baseline")
    plain.load_state_dict(network.state_dict())
    gradients = [drawn_gradients(one, batch, sizes.draws) for one in (plain, network)]
    without, with_it = (float(found.var(0).sum()) for found in gradients)
    return Variance(update, judge(network, sizes.task, held_out).positions, without, with_it)


def drawn_gradients(network: RecurrentTranslator, batch: Batch, draws: int) -> Tensor:
    """So many estimates, [draws, parameters of the score]; the baseline does not move."""
    network.train()
    level = None if network.baseline is None else network.baseline.clone()
    parameters = list(network.decoder.attention.score.parameters())
    found = []
    for draw in range(draws):
        torch.manual_seed(draw)
        total = network.loss(
            batch.source, batch.source_lengths, batch.target_input, batch.target_output, smoothing=0.0
        ).total
        gradients = torch.autograd.grad(total / batch.target_tokens, parameters)
        found.append(nn.utils.parameters_to_vector(gradients))
        if network.baseline is not None and level is not None:
            network.baseline.copy_(level)
    return torch.stack(found)


def reading(network: RecurrentTranslator, task: Reordering, source: Ids) -> str:
    """Three lines: the source, what is written, and the place in the source that is looked at for each symbol."""
    batch = task.batch([source])
    (places,) = weights_of(network.eval(), batch).argmax(-1).tolist()
    target = task.target(source)
    rows = {
        "place": range(len(source)),
        "source": map(letter, source),
        "target": map(letter, target),
        "read at": places,
    }
    lines = (f"{name:10}" + "".join(f"{entry:>3}" for entry in list(row)[: len(source)]) for name, row in rows.items())
    return "\n".join(lines)


def letter(symbol: int) -> str:
    """A symbol as people read it."""
    return chr(ord("a") + symbol - FIRST)


def options(words: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    asked.add_argument("--task", choices=("reverse", "copy"), default="reverse")
    asked.add_argument("--wiring", choices=tuple(WIRINGS), default="fed", help="of recurrence and attention")
    asked.add_argument("--updates", type=int, help="default: 500, with --quick 150")
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--draws", type=int, default=100, help="gradients that a variance is measured from")
    asked.add_argument("--quick", action="store_true", help="short sequences of few symbols")
    return asked.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Trains, judges, prints."""
    asked = options(words)
    small = {"symbols": 8, "longest": 5} if asked.quick else {}
    updates = asked.updates or (150 if asked.quick else 500)
    sizes = Sizes(
        Reordering(asked.task, **small), wiring=asked.wiring, updates=updates, seed=asked.seed, draws=asked.draws
    )
    task, held_out = sizes.task, sizes.task.held_out(200, sizes.seed)
    print(f"{task}\n{updates} updates of {sizes.rows} rows; judged on {len(held_out)} sequences that are held out\n")
    print(f"{'alignment':20}{'exact sequences':>18}{'right positions':>18}{'CPU seconds':>14}", flush=True)
    trained = {}
    for name in ALIGNMENTS:
        trained[name] = found = train(name, sizes, held_out)
        shares = f"{found.judged.sequences:18.1%}{found.judged.positions:18.1%}"
        print(f"{name:20}{shares}{found.seconds:14.0f}", flush=True)
    print(f"\nhard attention: variance of the gradient of the score's parameters, {sizes.draws} draws of one batch\n")
    print(f"{'update':>8}{'right positions':>18}{'no baseline':>14}{'baseline':>12}{'times':>8}")
    for seen in trained["hard"].variances:
        columns = f"{seen.without:14.2e}{seen.with_it:12.2e}{seen.without / seen.with_it:8.1f}"
        print(f"{seen.update:8}{seen.positions:18.1%}{columns}")
    print(f"\nhard attention reads\n\n{reading(trained['hard'].network, task, max(held_out, key=len))}")


if __name__ == "__main__":
    torch.set_num_threads(1)  # matrices as small as these are multiplied faster by one
    main()
