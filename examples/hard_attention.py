"""Train hard attention, which reads one source position per target symbol.

    python examples/hard_attention.py [--task copy] [--wiring before] [--updates 1500] [--seed 2] [--quick]

A small recurrent network learns to reverse (or to copy) sequences with each alignment: soft attention, hard attention
by REINFORCE with and without a baseline, the straight-through estimator, and the Gumbel-softmax. The encoder states
hold only a symbol and its position, and the correct source position of each target symbol is known, so the share of
correct positions can be counted. During training, the gradient of the hard network is estimated many times at the same
parameters, to measure how much the baseline reduces its variance. `docs/hard-attention.md` explains the results.
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
from multihead.decoding.search import Symbols
from multihead.decoding.task import SearchTask
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
"""The networks to compare; they differ in these settings only."""

WIRINGS: dict[str, dict[str, Any]] = {
    "fed": {"attend": "after", "input_feeding": True},
    "after": {"attend": "after"},
    "before": {"attend": "before"},
}
"""Luong's network with and without input feeding, and Bahdanau's. Only ``after`` does not feed back its context."""


@dataclass(frozen=True)
class Sizes:
    """All other settings, the same for all networks."""

    task: Reordering
    wiring: str = "fed"
    width: int = 64
    entropy_weight: float = 0.1
    rows: int = 128
    updates: int = 500
    rate: float = 5e-3
    seed: int = 1
    measured_at: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4)
    """When the variance is measured, as fractions of the updates."""
    draws: int = 100
    """Number of gradient samples for a variance."""

    def network(self, name: str) -> RecurrentTranslator:
        """A network with the named alignment, initialized from the same seed for all alignments."""
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


class Evaluation(NamedTuple):
    """The quality of a network on held-out sequences."""

    sequences: float
    """The share of sequences without an error."""
    positions: float
    """The share of symbols whose highest weight is at the correct source position."""


class Variance(NamedTuple):
    """The trace of the covariance of gradient estimates at fixed parameters, with and without the baseline."""

    update: int
    positions: float
    without: float
    with_it: float


@dataclass
class Trained:
    """A trained network, its training time and its measurements."""

    network: RecurrentTranslator
    seconds: float
    """CPU time of the updates."""
    evaluation: Evaluation
    variances: list[Variance] = field(default_factory=list)


def train(name: str, sizes: Sizes, held_out: list[Ids]) -> Trained:
    """Train a network with the named alignment from scratch; for ``"hard"``, also measure variances."""
    config = TrainingConfig(
        seed=sizes.seed, updates=sizes.updates, learning_rate=sizes.rate, warmup=sizes.updates // 5, smoothing=0.0
    )
    network = sizes.network(name)
    optimizer = build_optimizer(network, config)
    batches = sizes.task.batches(sizes.rows, sizes.seed, without=held_out)
    measured_at = {round(share * sizes.updates) for share in sizes.measured_at} if name == "hard" else set()
    variances, seconds = [], 0.0
    for step in range(1, sizes.updates + 1):
        began = time.process_time()
        train_step(network, optimizer, [next(batches)], config, step, learning_rate(config, step, sizes.width))
        seconds += time.process_time() - began
        if step in measured_at:
            variances.append(measure_variance(step, network, sizes, held_out))
    return Trained(network, seconds, evaluate(network, sizes.task, held_out), variances)


@torch.no_grad()
def evaluate(network: RecurrentTranslator, task: Reordering, sources: list[Ids]) -> Evaluation:
    """Evaluate greedy search, and the attention weights for the correct targets."""
    network.eval()
    batch = task.batch(sources)
    symbols = Symbols(BEGIN, END, forbidden=(PADDING, BEGIN))
    found = greedy_search(
        network, batch.source, batch.source_lengths, SearchTask(symbols, max_lengths=task.longest + 3)
    )
    exact = sum(hypothesis.tokens == task.target(source) for hypothesis, source in zip(found, sources, strict=True))
    right, known = share_right(attention_weights(network, batch), task.alignment(batch))
    return Evaluation(exact / len(sources), right / known)


def attention_weights(network: RecurrentTranslator, batch: Batch) -> Tensor:
    """The attention weights in evaluation mode (arg-max instead of samples), [batch, target, source]."""
    weights: AttentionWeights = network(
        batch.source, batch.source_lengths, batch.target_input, need_weights=True
    ).weights
    return weights.cross[0][:, 0]


def measure_variance(update: int, network: RecurrentTranslator, sizes: Sizes, held_out: list[Ids]) -> Variance:
    """The variance of the estimated gradient of the score's parameters, on one batch at the current parameters.

    The same positions are drawn with and without the baseline.
    """
    (batch,) = islice(sizes.task.batches(sizes.rows, sizes.seed + 1, without=held_out), 1)
    network, plain = copy.deepcopy(network), sizes.network("hard, no baseline")
    plain.load_state_dict(network.state_dict())
    estimates = [sample_gradients(each, batch, sizes.draws) for each in (plain, network)]
    without, with_it = (float(each.var(0).sum()) for each in estimates)
    return Variance(update, evaluate(network, sizes.task, held_out).positions, without, with_it)


def sample_gradients(network: RecurrentTranslator, batch: Batch, draws: int) -> Tensor:
    """Gradient estimates [draws, parameters of the score]."""
    network.train()
    parameters = list(network.decoder.attention.score.parameters())
    estimates = []
    for draw in range(draws):
        torch.manual_seed(draw)
        total = network.loss(
            batch.source, batch.source_lengths, batch.target_input, batch.target_output, smoothing=0.0
        ).total
        gradients = torch.autograd.grad(total / batch.target_tokens, parameters)
        estimates.append(nn.utils.parameters_to_vector(gradients))
    return torch.stack(estimates)


def draw_reading(network: RecurrentTranslator, task: Reordering, source: Ids) -> str:
    """A drawing of the source, the target, and the source position with the highest weight for each target symbol."""
    batch = task.batch([source])
    (places,) = attention_weights(network.eval(), batch).argmax(-1).tolist()
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
    """The letter that represents a symbol."""
    return chr(ord("a") + symbol - FIRST)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--task", choices=("reverse", "copy"), default="reverse")
    parser.add_argument("--wiring", choices=tuple(WIRINGS), default="fed", help="order of recurrence and attention")
    parser.add_argument("--updates", type=int, help="default: 500, with --quick 150")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draws", type=int, default=100, help="gradient samples for a variance")
    parser.add_argument("--quick", action="store_true", help="short sequences of few symbols")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Train, evaluate and print all alignments."""
    args = parse_arguments(argv)
    small = {"symbols": 8, "longest": 5} if args.quick else {}
    updates = args.updates or (150 if args.quick else 500)
    sizes = Sizes(Reordering(args.task, **small), wiring=args.wiring, updates=updates, seed=args.seed, draws=args.draws)
    task, held_out = sizes.task, sizes.task.held_out(200, sizes.seed)
    print(f"{task}\n{updates} updates of {sizes.rows} rows; evaluated on {len(held_out)} held-out sequences\n")
    print(f"{'alignment':20}{'exact sequences':>18}{'right positions':>18}{'CPU seconds':>14}", flush=True)
    trained = {}
    for name in ALIGNMENTS:
        trained[name] = found = train(name, sizes, held_out)
        shares = f"{found.evaluation.sequences:18.1%}{found.evaluation.positions:18.1%}"
        print(f"{name:20}{shares}{found.seconds:14.0f}", flush=True)
    print(f"\nhard attention: variance of the gradient of the score's parameters, {sizes.draws} draws of one batch\n")
    print(f"{'update':>8}{'right positions':>18}{'no baseline':>14}{'baseline':>12}{'times':>8}")
    for seen in trained["hard"].variances:
        columns = f"{seen.without:14.2e}{seen.with_it:12.2e}{seen.without / seen.with_it:8.1f}"
        print(f"{seen.update:8}{seen.positions:18.1%}{columns}")
    print(f"\nhard attention reads\n\n{draw_reading(trained['hard'].network, task, max(held_out, key=len))}")


if __name__ == "__main__":
    torch.set_num_threads(1)  # one thread is fastest for matrices this small
    main()
