"""Structured attention, trained: marginals of chains and trees next to a softmax, on tasks that are made for them.

    python examples/structured_attention.py [--task span|tree] [--updates N] [--rates R ...] [--layers N]
                                            [--seed N] [--quick]

Two tasks for one small recurrent translator without a recurrent encoder: what the source offers is each word and its
place. In the first, a span of the source carries the answer, and the decoder attends by softmax, by a sigmoid for each
word alone, or by the marginals of a chain. In the second, the answer is a way up the tree of an arithmetic expression,
and each word of the source is told nothing more, what a softmax chooses for it, or its head in a projective tree.
Networks of a task differ in that setting alone; seed, batches, updates and rates to choose from are the same.
`docs/structured-attention.md` explains it all.
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
from multihead.decoding.stepper import Symbols
from multihead.models.config import RecurrentConfig
from multihead.models.recurrent.network import RecurrentTranslator
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import build_optimizer, learning_rate
from multihead.training.step import train_step
from tasks.expressions import OPERATORS, Expressions, Question, by_operand, heads
from tasks.reordering import BEGIN, END, PADDING
from tasks.spans import Planted, PlantedSpans, covered

Scores = dict[str, float | None]
"""What a network is judged by: the share of right answers first. None where there is nothing to judge."""

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
"""What is compared, by task: the only settings in which the networks differ."""

ROWS = 64
"""Examples of an update."""


@dataclass(frozen=True)
class Task:
    """Something to learn, and how well it was learned."""

    title: str
    build: Callable[[str], RecurrentTranslator]
    """A network of that name, drawn from PyTorch's generator."""
    names: tuple[str, ...]
    batches: list[Batch]
    """What is trained on, one an update: the same for all."""
    judge: Callable[[RecurrentTranslator, bool], Scores]
    """On the examples that a rate is chosen by (False), or on those for the table (True); none of them trained on."""


def span_task(
    spans: PlantedSpans, updates: int, seed: int, width: int = 32, layers: int = 0, examples: int = 500
) -> Task:
    """Which letter is the planted one? (`tasks.spans`)"""
    vocabularies = {"source_vocab": spans.source_vocab, "target_vocab": spans.target_vocab}
    shared = {**vocabularies, "width": width, "encoder_layers": layers}
    valid, test = (spans.held_out(examples, part) for part in (1, 2))
    return Task(
        f"{spans}",
        partial(span_network, **shared),
        tuple(SPAN),
        list(islice(spans.batches(ROWS, seed), updates)),
        lambda network, final: judge_spans(network, spans, valid, test if final else valid),
    )


def span_network(name: str, **shared: int) -> RecurrentTranslator:
    """With the scores of Kim et al. 2017, section 4.2. Their sigmoid is a chain whose transitions stay 0."""
    found = network(score="bilinear", **shared, **SPAN[name])
    if name == "sigmoid":
        alignment = found.decoder.attention.align
        assert isinstance(alignment, SegmentationAlignment)
        alignment.transition.requires_grad_(False)
    return found


def tree_task(
    expressions: Expressions, updates: int, seed: int, width: int = 64, layers: int = 0, examples: int = 500
) -> Task:
    """What is done to an operand? (`tasks.expressions`)"""
    vocabularies = {"source_vocab": expressions.vocabulary, "target_vocab": expressions.vocabulary}
    shared = {**vocabularies, "width": width, "encoder_layers": layers}
    held_out = expressions.held_out(2 * examples, 0)
    longer = replace(expressions, fewest=expressions.most + 1, most=expressions.operands - 1).held_out(examples, 0)
    return Task(
        f"{expressions}",
        # The question is the begin symbol, so the state that has read it asks.
        lambda name: network(attend="after", input_feeding=True, score="bilinear", tie=True, **shared, **TREE[name]),
        tuple(TREE),
        list(islice(expressions.batches(ROWS, seed, without=held_out), updates)),
        lambda network, final: (
            judge_trees(network, expressions, held_out[:examples], longer)
            if final
            else answered(network, expressions, held_out[examples:])
        ),
    )


def network(tie: bool = False, **settings: Any) -> RecurrentTranslator:
    """A small recurrent translator; without layers, the encoder's states are words and their places."""
    return RecurrentTranslator(RecurrentConfig(dropout=0.0, tie_embeddings=tie, tie_output=False, **settings))


def train(task: Task, name: str, rate: float, seed: int) -> tuple[RecurrentTranslator, float]:
    """A network from nothing, and the seconds it took."""
    torch.manual_seed(seed)
    found = task.build(name)
    config = TrainingConfig(seed=seed, updates=len(task.batches), learning_rate=rate, warmup=50, smoothing=0.0)
    optimizer, began = build_optimizer(found, config), time.process_time()
    for step, batch in enumerate(task.batches, 1):
        train_step(found, optimizer, [batch], config, step, learning_rate(config, step, found.config.width))
    return found.eval(), time.process_time() - began


def best(task: Task, name: str, rates: Sequence[float], seed: int) -> tuple[RecurrentTranslator, float, float]:
    """The network with the most right answers on the examples to choose by; its rate, and seconds of all of them."""
    found = [(*train(task, name, rate, seed), rate) for rate in rates]
    chosen = 0
    if len(found) > 1:
        chosen = max(range(len(found)), key=lambda index: next(iter(task.judge(found[index][0], False).values())) or 0)
    return found[chosen][0], found[chosen][2], sum(seconds for _, seconds, _ in found)


def answers(network: RecurrentTranslator, batch: Batch, begin: int) -> list[tuple[int, ...]]:
    """Greedy search; each answer with its end symbol, if it came to an end."""
    symbols = Symbols(begin, END, forbidden=(PADDING, BEGIN))
    found = greedy_search(network, batch.source, batch.source_lengths, symbols, max_lengths=batch.source.shape[1])
    return [(*hypothesis.tokens, END) if hypothesis.finished else hypothesis.tokens for hypothesis in found]


def judge_spans(network: RecurrentTranslator, spans: PlantedSpans, valid: list[Planted], test: list[Planted]) -> Scores:
    """The share of right answers, and how well the first symbol's weights mark the span.

    A place is marked if its weight is above a share of the largest weight; which share is best, ``valid`` decides.
    """
    batch = spans.batch(test)
    wanted = [(token, END) for token in batch.target_output[:, 0].tolist()]
    right = sum(one == other for one, other in zip(answers(network, batch, BEGIN), wanted, strict=True))
    shares = [step / 100 for step in range(1, 100)]
    chosen = max(shares, key=partial(overlap, *weights_and_spans(network, spans, valid)))
    return {"right answers": right / len(test), "F1 of span": overlap(*weights_and_spans(network, spans, test), chosen)}


@torch.no_grad()
def weights_and_spans(network: RecurrentTranslator, spans: PlantedSpans, texts: list[Planted]) -> tuple[Tensor, Tensor]:
    """With which weights the answer is read, as shares of the largest; and where it is planted."""
    batch = spans.batch(texts)
    found = network(batch.source, batch.source_lengths, batch.target_input, need_weights=True).weights
    assert found is not None
    weights = found.cross[0][:, 0, 0]
    return weights / weights.amax(1, keepdim=True), covered(texts, batch)


def overlap(weights: Tensor, planted: Tensor, share: float) -> float:
    """F1 of the places with weights above ``share``, all texts together."""
    marked = weights > share
    return float(2 * (marked & planted).sum() / (marked.sum() + planted.sum()))


def answered(network: RecurrentTranslator, expressions: Expressions, test: list[Question]) -> Scores:
    """The share of right answers, and of an answer before its first fault."""
    exact, before = 0, 0.0
    for operand, rows in by_operand(test).items():
        batch = expressions.batch([test[row] for row in rows])
        for found, row in zip(answers(network, batch, expressions.id_of(operand)), rows, strict=True):
            wanted = (*(expressions.id_of(symbol) for symbol in test[row].answer), END)
            exact += found == wanted
            before += agreeing(found, wanted) / len(wanted)
    return {"right answers": exact / len(test), "before 1st fault": before / len(test)}


def judge_trees(
    network: RecurrentTranslator, expressions: Expressions, test: list[Question], longer: list[Question]
) -> Scores:
    """How it answers; also for expressions longer than any it was trained on; and how often it looks at the head."""
    beyond = answered(network, expressions, longer)
    return {
        **answered(network, expressions, test),
        "right if longer": beyond["right answers"],
        **right_heads(network, expressions, test),
    }


def agreeing(found: Sequence[int], wanted: Sequence[int]) -> int:
    """How many symbols are right up to the first that is not (Grefenstette et al. 2015; Kim et al. 2017, 4.1)."""
    pairs = enumerate(zip(found, wanted, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(found), len(wanted)))


@torch.no_grad()
def right_heads(network: RecurrentTranslator, expressions: Expressions, test: list[Question]) -> Scores:
    """Of operands and of operators, the loosest of each expression left out: the arg-max is the head."""
    batch = expressions.batch(test)
    found = network(batch.source, batch.source_lengths, batch.target_input, need_weights=True).weights
    assert found is not None
    if not found.encoder:
        return {"heads of operands": None, "heads of operators": None}
    # A tree has a column for ROOT before the first word.
    root = found.encoder[0].shape[3] - batch.source.shape[1]
    chosen = (found.encoder[0][:, 0].argmax(-1) + 1 - root).tolist()
    right: dict[str, list[bool]] = {"heads of operands": [], "heads of operators": []}
    for question, row in zip(test, chosen, strict=True):
        for symbol, head, guess in zip(question.symbols, heads(question.symbols), row, strict=False):
            if head:
                right[f"heads of {'operators' if symbol in OPERATORS else 'operands'}"].append(guess == head)
    return {kind: sum(hits) / len(hits) for kind, hits in right.items()}


def table(task: Task, rates: Sequence[float], seed: int) -> dict[str, Scores]:
    """Trains, judges, prints."""
    print(f"{task.title}, {len(task.batches)} updates of {ROWS} rows, seed {seed}\n")
    scores: dict[str, Scores] = {}
    for name in task.names:
        found, rate, seconds = best(task, name, rates, seed)
        scores[name] = task.judge(found, True)
        if len(scores) == 1:
            print(f"{'attention':14}" + "".join(f"{column:>20}" for column in scores[name]) + "     rate  seconds")
        shares = "".join(f"{'-' if share is None else format(share, '.1%'):>20}" for share in scores[name].values())
        print(f"{name:14}{shares}{rate:9}{seconds:9.0f}", flush=True)
    print()
    return scores


def options(words: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    described, _, rest = (__doc__ or "").partition("\n\n")
    asked = argparse.ArgumentParser(description=described, epilog=rest, formatter_class=argparse.RawTextHelpFormatter)
    asked.add_argument("--task", choices=("span", "tree"), help="default: both")
    asked.add_argument("--updates", type=int, help="of each network, default: 800")
    asked.add_argument("--rates", type=float, nargs="+", help="to choose from, default: 0.008 (span), 0.004 (tree)")
    asked.add_argument("--layers", type=int, default=0, help="recurrent layers of the encoder, default: 0")
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--quick", action="store_true", help="half of the updates")
    return asked.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Both tasks, or the one asked for."""
    asked = options(words)
    updates = asked.updates or (400 if asked.quick else 800)
    if asked.task != "tree":
        task = span_task(PlantedSpans(), updates, asked.seed, layers=asked.layers)
        table(task, asked.rates or [0.008], asked.seed)
    if asked.task != "span":
        task = tree_task(Expressions(), updates, asked.seed, layers=asked.layers)
        table(task, asked.rates or [0.004], asked.seed)


if __name__ == "__main__":
    torch.set_num_threads(1)  # matrices this small are multiplied fastest by one
    main()
