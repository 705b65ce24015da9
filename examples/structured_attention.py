"""Train structured attention: chains and trees compared with a softmax.

    python examples/structured_attention.py [--task span|tree] [--updates N] [--rates R ...] [--layers N]
                                            [--seed N] [--quick]

A small recurrent translator without a recurrent encoder learns two tasks; its encoder states hold only words and their
positions. In the first task a span of the source carries the answer, and the decoder attends by softmax, by a sigmoid
for each word alone, or by the marginals of a chain. In the second task the answer is a path up the tree of an
arithmetic expression, and the encoder has no attention, a softmax, or attention to the head of each word in a
projective tree. Within a task the networks differ in this setting only; seed, batches, updates and candidate rates are
the same.
`docs/structured-attention.md` explains the results.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from multihead.attention.structured import SegmentationAlignment
from multihead.data.batching import Batch
from multihead.decoding.greedy import greedy_search
from multihead.decoding.search import Symbols
from multihead.decoding.task import SearchTask
from multihead.models.config import RecurrentConfig
from multihead.models.recurrent.network import RecurrentTranslator
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import build_optimizer, learning_rate
from multihead.training.step import train_step
from tasks.expressions import OPERATORS, Expressions, Question, by_operand, heads
from tasks.reordering import BEGIN, END, PADDING
from tasks.spans import Planted, PlantedSpans, covered

Scores = dict[str, float | None]
"""Measures of a network, the share of correct answers first. None where a measure does not apply."""

SPAN: dict[str, dict[str, Any]] = {
    "softmax": {"alignment": "softmax"},
    "sigmoid": {"alignment": "segmentation"},
    "segmentation": {"alignment": "segmentation"},
}
TREE: dict[str, dict[str, Any]] = {
    "none": {"encoder_attention": "none"},
    "softmax": {"encoder_attention": "softmax"},
    "tree": {"encoder_attention": "tree"},
}
"""The networks to compare; within a task they differ in these settings only."""

ROWS = 64
"""Examples per update."""


@dataclass(frozen=True)
class Task:
    """A task: its networks, its data and its measures."""

    title: str
    build: Callable[[str], RecurrentTranslator]
    """Build the named network, initialized from PyTorch's default generator."""
    names: tuple[str, ...]
    batches: list[Batch]
    """The training data, one batch per update, the same for all networks."""
    measure: Callable[[RecurrentTranslator, bool], Scores]
    """Measure a network on validation examples, which select a rate (False), or on test examples (True)."""


def span_task(
    spans: PlantedSpans, updates: int, seed: int, width: int = 32, layers: int = 0, examples: int = 500
) -> Task:
    """Find the most frequent letter of a planted span (`tasks.spans`)."""
    vocabularies = {"source_vocab": spans.source_vocab, "target_vocab": spans.target_vocab}
    shared = {**vocabularies, "width": width, "encoder_layers": layers}
    valid, test = (spans.held_out(examples, part) for part in (1, 2))
    return Task(
        f"{spans}",
        partial(span_network, **shared),
        tuple(SPAN),
        list(islice(spans.batches(ROWS, seed), updates)),
        lambda network, final: measure_spans(network, spans, valid, test if final else valid),
    )


def span_network(name: str, **shared: int) -> RecurrentTranslator:
    """A network with the scores of Kim et al. 2017, section 4.2. Their sigmoid is a chain with zero transitions."""
    found = network(score="bilinear", **shared, **SPAN[name])
    if name == "sigmoid":
        alignment = found.decoder.attention.align
        assert isinstance(alignment, SegmentationAlignment)
        alignment.transition.requires_grad_(False)
    return found


def tree_task(
    expressions: Expressions, updates: int, seed: int, width: int = 64, layers: int = 0, examples: int = 500
) -> Task:
    """List the operators applied to an operand (`tasks.expressions`)."""
    vocabularies = {"source_vocab": expressions.vocabulary, "target_vocab": expressions.vocabulary}
    shared = {**vocabularies, "width": width, "encoder_layers": layers}
    held_out = expressions.held_out(2 * examples, 0)
    longer = replace(expressions, fewest=expressions.most + 1, most=expressions.operands - 1).held_out(examples, 0)
    return Task(
        f"{expressions}",
        # The question is the begin symbol, so attention must follow the state that has read it.
        lambda name: network(attend="after", input_feeding=True, score="bilinear", tie=True, **shared, **TREE[name]),
        tuple(TREE),
        list(islice(expressions.batches(ROWS, seed, without=held_out), updates)),
        lambda network, final: (
            measure_trees(network, expressions, held_out[:examples], longer)
            if final
            else accuracy(network, expressions, held_out[examples:])
        ),
    )


def network(tie: bool = False, **settings: Any) -> RecurrentTranslator:
    """A small recurrent translator; without layers, encoder states hold only words and their positions."""
    return RecurrentTranslator(RecurrentConfig(dropout=0.0, tie_embeddings=tie, tie_output=False, **settings))


def train(task: Task, name: str, rate: float, seed: int) -> tuple[RecurrentTranslator, float]:
    """A network trained from scratch, and the CPU seconds of training."""
    torch.manual_seed(seed)
    found = task.build(name)
    config = TrainingConfig(seed=seed, updates=len(task.batches), learning_rate=rate, warmup=50, smoothing=0.0)
    optimizer, began = build_optimizer(found, config), time.process_time()
    for step, batch in enumerate(task.batches, 1):
        train_step(found, optimizer, [batch], config, step, learning_rate(config, step, found.config.width))
    return found.eval(), time.process_time() - began


def train_best(task: Task, name: str, rates: Sequence[float], seed: int) -> tuple[RecurrentTranslator, float, float]:
    """The network with the most correct answers on validation examples, its rate, and the seconds of all rates."""
    found = [(*train(task, name, rate, seed), rate) for rate in rates]
    chosen = 0
    if len(found) > 1:
        accuracies = [next(iter(task.measure(network, False).values())) or 0 for network, _, _ in found]
        chosen = max(range(len(found)), key=accuracies.__getitem__)
    return found[chosen][0], found[chosen][2], sum(seconds for _, seconds, _ in found)


def answers(network: RecurrentTranslator, batch: Batch, begin: int) -> list[tuple[int, ...]]:
    """Answers by greedy search, with the end symbol if it was reached."""
    symbols = Symbols(begin, END, forbidden=(PADDING, BEGIN))
    found = greedy_search(
        network, batch.source, batch.source_lengths, SearchTask(symbols, max_lengths=batch.source.shape[1])
    )
    return [(*hypothesis.tokens, END) if hypothesis.finished else hypothesis.tokens for hypothesis in found]


def measure_spans(
    network: RecurrentTranslator, spans: PlantedSpans, valid: list[Planted], test: list[Planted]
) -> Scores:
    """The share of correct answers, and how well the weights of the first symbol mark the span.

    A position is marked if its weight is above a fraction of the largest weight; ``valid`` selects the fraction.
    """
    batch = spans.batch(test)
    wanted = [(token, END) for token in batch.target_output[:, 0].tolist()]
    right = sum(answer == want for answer, want in zip(answers(network, batch, BEGIN), wanted, strict=True))
    shares = [step / 100 for step in range(1, 100)]
    chosen = max(shares, key=partial(overlap, *weights_and_spans(network, spans, valid)))
    return {"right answers": right / len(test), "F1 of span": overlap(*weights_and_spans(network, spans, test), chosen)}


@torch.no_grad()
def weights_and_spans(network: RecurrentTranslator, spans: PlantedSpans, texts: list[Planted]) -> tuple[Tensor, Tensor]:
    """The attention weights of the answer, relative to the largest, and the positions of the span."""
    batch = spans.batch(texts)
    found = network(batch.source, batch.source_lengths, batch.target_input, need_weights=True).weights
    assert found is not None
    weights = found.cross[0][:, 0, 0]
    return weights / weights.amax(1, keepdim=True), covered(texts, batch)


def overlap(weights: Tensor, planted: Tensor, share: float) -> float:
    """F1 of the positions with weights above ``share``, over all texts."""
    marked = weights > share
    return float(2 * (marked & planted).sum() / (marked.sum() + planted.sum()))


def accuracy(network: RecurrentTranslator, expressions: Expressions, test: list[Question]) -> Scores:
    """The share of correct answers, and the share of an answer before its first error."""
    exact, before = 0, 0.0
    for operand, rows in by_operand(test).items():
        batch = expressions.batch([test[row] for row in rows])
        for found, row in zip(answers(network, batch, expressions.id_of(operand)), rows, strict=True):
            wanted = (*(expressions.id_of(symbol) for symbol in test[row].answer), END)
            exact += found == wanted
            before += correct_prefix(found, wanted) / len(wanted)
    return {"right answers": exact / len(test), "before 1st fault": before / len(test)}


def measure_trees(
    network: RecurrentTranslator, expressions: Expressions, test: list[Question], longer: list[Question]
) -> Scores:
    """Accuracy, accuracy on expressions longer than in training, and how often the arg-max is the head."""
    beyond = accuracy(network, expressions, longer)
    return {
        **accuracy(network, expressions, test),
        "right if longer": beyond["right answers"],
        **right_heads(network, expressions, test),
    }


def correct_prefix(found: Sequence[int], wanted: Sequence[int]) -> int:
    """Number of correct symbols before the first error (Grefenstette et al. 2015; Kim et al. 2017, 4.1)."""
    pairs = enumerate(zip(found, wanted, strict=False))
    return next((place for place, (answer, want) in pairs if answer != want), min(len(found), len(wanted)))


@torch.no_grad()
def right_heads(network: RecurrentTranslator, expressions: Expressions, test: list[Question]) -> Scores:
    """How often the arg-max is the head, for operands and for operators (except the root of each expression)."""
    batch = expressions.batch(test)
    found = network(batch.source, batch.source_lengths, batch.target_input, need_weights=True).weights
    assert found is not None
    if not found.encoder:
        return {"heads of operands": None, "heads of operators": None}
    # A tree has a column for ROOT before the first word, a softmax does not.
    root = found.encoder[0].shape[3] - batch.source.shape[1]
    chosen = (found.encoder[0][:, 0].argmax(-1) + 1 - root).tolist()
    right: dict[str, list[bool]] = {"heads of operands": [], "heads of operators": []}
    for question, row in zip(test, chosen, strict=True):
        for symbol, head, guess in zip(question.symbols, heads(question.symbols), row, strict=False):
            if head:
                right[f"heads of {'operators' if symbol in OPERATORS else 'operands'}"].append(guess == head)
    return {kind: sum(hits) / len(hits) for kind, hits in right.items()}


def compare(task: Task, rates: Sequence[float], seed: int) -> dict[str, Scores]:
    """Train, evaluate and print all networks of a task."""
    print(f"{task.title}, {len(task.batches)} updates of {ROWS} rows, seed {seed}\n")
    scores: dict[str, Scores] = {}
    for name in task.names:
        found, rate, seconds = train_best(task, name, rates, seed)
        scores[name] = task.measure(found, True)
        if len(scores) == 1:
            print(f"{'attention':14}" + "".join(f"{column:>20}" for column in scores[name]) + "     rate  seconds")
        shares = "".join(f"{'-' if share is None else format(share, '.1%'):>20}" for share in scores[name].values())
        print(f"{name:14}{shares}{rate:9}{seconds:9.0f}", flush=True)
    print()
    return scores


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(description=summary, epilog=rest, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--task", choices=("span", "tree"), help="default: both")
    parser.add_argument("--updates", type=int, help="updates of each network, default: 800")
    parser.add_argument("--rates", type=float, nargs="+", help="candidates, default: 0.008 (span), 0.004 (tree)")
    parser.add_argument("--layers", type=int, default=0, help="recurrent layers of the encoder, default: 0")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="half of the updates")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Run both tasks, or the selected one."""
    args = parse_arguments(argv)
    updates = args.updates or (400 if args.quick else 800)
    if args.task != "tree":
        task = span_task(PlantedSpans(), updates, args.seed, layers=args.layers)
        compare(task, args.rates or [0.008], args.seed)
    if args.task != "span":
        task = tree_task(Expressions(), updates, args.seed, layers=args.layers)
        compare(task, args.rates or [0.004], args.seed)


if __name__ == "__main__":
    torch.set_num_threads(1)  # one thread is fastest for matrices this small
    main()
