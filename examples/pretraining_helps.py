"""Measure the gain of a pre-trained BERT on a few labeled captions.

    python examples/pretraining_helps.py ../shared/data/multi30k --output pretraining [--labelled 96] [--seeds 3]

Multi30k has captions of pictures in German and English. The label of a German caption comes from words of its English
side, which the classifier does not see: a topic (water, music, ...), indicated by many words, or with `--task activity`
an activity (sitting, riding, ...), indicated by one. Captions whose English side has words of no label or of several
labels are left out. A BERT is pre-trained on the German captions of the training set, without labels. Then three
classifiers learn from the same labeled captions:

    fresh           own subwords and randomly initialized weights, of the sizes of the pre-trained BERT
    drawn           subwords and settings of the pre-trained BERT, with randomly initialized weights
    pre-trained     the pre-trained BERT

The classifiers are evaluated on captions of the validation and test sets. `docs/classification.md` shows the results.
An interrupted run continues when the same command is run again.

With `--documents`, the program instead writes documents for a hierarchical network and trains nothing. A document is a
labeled caption among four captions without a label; no file says which of the five it is.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from multihead.metrics.classification import Classification
from multihead.models.bert.network import Bert
from multihead.runs.bert.model import PretrainedBert
from multihead.runs.bert.train import pretrain
from multihead.runs.classifier.train import evaluate, train

VERBS = ("climbing", "jumping", "playing", "riding", "running", "sitting", "standing", "walking")
TASKS: dict[str, dict[str, str]] = {
    "topic": {
        "ball": "soccer football basketball baseball tennis volleyball rugby hockey golf",
        "food": "food eating eats kitchen restaurant cooking cook meal dinner cake chef fruit vegetables",
        "music": "guitar band singing sings microphone drums drum piano instrument instruments violin concert musician",
        "traffic": "car cars bus taxi truck motorcycle bicycle bike train subway traffic",
        "water": "beach water pool ocean lake river surfer surfing swimming boat canoe waves",
        "winter": "snow snowy skiing skier ski skis snowboard snowboarder ice sled",
    },
    "activity": {verb: verb for verb in VERBS},
}
"""The words that indicate each label, by task."""

Rows = list[tuple[str, str]]
Runs = dict[str, Path]


def captions(folder: Path, part: str) -> list[tuple[str, str]]:
    """The German and English captions of a part of Multi30k."""
    sides = []
    for code in ("de", "en"):
        with gzip.open(folder / f"{part}.{code}.gz", "rt", encoding="utf-8") as stream:
            sides.append(stream.read().splitlines())
    return list(zip(*sides, strict=True))


def find_labels(english: str, task: str) -> set[str]:
    """The labels whose words occur in a caption."""
    words = set(re.findall(r"[a-z]+", english.lower()))
    return {label for label, indicators in TASKS[task].items() if not words.isdisjoint(indicators.split())}


def select_labeled(pairs: list[tuple[str, str]], task: str) -> Rows:
    """The label and German caption of the pairs whose English side indicates exactly one label."""
    rows = []
    for german, english in pairs:
        labels = find_labels(english, task)
        if len(labels) == 1:
            rows.append((labels.pop(), german.replace("\t", " ").strip()))
    return rows


def documents(pairs: list[tuple[str, str]], task: str, seed: int, others: int = 4) -> Rows:
    """Each labeled caption at a random position among captions without a label, separated by " || "."""
    draw = random.Random(f"documents {seed}")
    unlabeled = [german.replace("\t", " ").strip() for german, english in pairs if not find_labels(english, task)]
    rows = []
    for label, text in select_labeled(pairs, task):
        sentences = draw.sample(unlabeled, others)
        sentences.insert(draw.randint(0, others), text)
        rows.append((label, " || ".join(sentences)))
    draw.shuffle(rows)
    return rows


def sample(rows: Rows, count: int, seed: int) -> Rows:
    """A random sample of ``count`` rows with equally many of each label."""
    draw = random.Random(f"few {seed}")
    chosen: Rows = []
    labels = sorted({label for label, _ in rows})
    for label in labels:
        candidates = [row for row in rows if row[0] == label]
        chosen += draw.sample(candidates, count // len(labels))
    draw.shuffle(chosen)
    return chosen


def write(path: Path, rows: Rows) -> Path:
    """Write a file in the format of `multihead classify train`."""
    path.write_text("".join(f"{label}\t{text}\n" for label, text in rows), encoding="utf-8")
    return path


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("multi30k", type=Path, help="folder of Multi30k")
    parser.add_argument("--output", type=Path, required=True, help="folder for all results")
    parser.add_argument("--labelled", type=int, default=96, help="labeled captions, a fourth of them held out")
    parser.add_argument("--seeds", type=int, default=3, help="repetitions with other captions and initial values")
    parser.add_argument("--task", choices=TASKS, default="topic", help="kind of labels")
    parser.add_argument("--documents", action="store_true", help="only write documents.tsv and documents-test.tsv")
    parser.add_argument("--updates", type=int, help="updates of pre-training; default: 40 epochs")
    parser.add_argument("--quick", action="store_true", help="a few updates of everything; the figures mean nothing")
    return parser.parse_args(argv)


def train_classifiers(args: argparse.Namespace, bert: PretrainedBert, pairs: list[tuple[str, str]], seed: int) -> Runs:
    """Train the three classifiers on the same labeled captions, and return their run folders."""
    folder: Path = args.output
    prefix = f"{args.task}-{args.labelled}-{seed}"
    data = write(folder / f"{prefix}.tsv", sample(select_labeled(pairs, args.task), args.labelled, seed))
    sizes = bert.model.config
    torch.manual_seed(seed)
    PretrainedBert(Bert(sizes), bert.words).save(folder / f"drawn-{seed}")
    contenders: dict[str, dict[str, Any]] = {
        "fresh": {"model": "bert", **{name: getattr(sizes, name) for name in ("width", "layers", "heads", "inner")}},
        "drawn": {"from_model": folder / f"drawn-{seed}"},
        "pre-trained": {"from_model": folder / "bert"},
    }
    common: dict[str, Any] = {"updates": 4} if args.quick else {}
    common |= {"held_out": args.labelled // 4, "seed": seed, "threads": 1, "say": lambda _: None}
    for name, settings in contenders.items():
        train(data=data, output=folder / f"{prefix}-{name}", **common, **settings)
    return {name: folder / f"{prefix}-{name}" for name in contenders}


def main(argv: Sequence[str] | None = None) -> None:
    """Pre-train, train and evaluate the classifiers, and print the results."""
    args = parse_arguments(argv)
    torch.set_num_threads(1)
    folder: Path = args.output
    folder.mkdir(parents=True, exist_ok=True)
    pairs = captions(args.multi30k, "train")
    held_back = captions(args.multi30k, "val") + captions(args.multi30k, "test_2016_flickr")
    if args.documents:
        write(folder / "documents.tsv", documents(pairs, args.task, 1))
        write(folder / "documents-test.tsv", documents(held_back, args.task, 2))
        return
    text = folder / "german.txt"
    text.write_text("\n\n".join(german.strip() for german, _ in pairs) + "\n", encoding="utf-8")
    test = write(folder / f"{args.task}-test.tsv", select_labeled(held_back, args.task))
    started = time.process_time()
    length = {"updates": 4 if args.quick else args.updates} if args.quick or args.updates else {}
    bert = pretrain(text=text, output=folder / "bert", threads=1, **length).bert()
    print(f"pre-trained in {time.process_time() - started:.0f} s of processor time", flush=True)
    scores: dict[str, list[Classification]] = {}
    for seed in range(1, args.seeds + 1):
        for name, run in train_classifiers(args, bert, pairs, seed).items():
            scores.setdefault(name, []).append(evaluate(run, test))
    print(f"{args.labelled} labeled captions, {scores['fresh'][0].documents} for evaluation, {args.seeds} seeds")
    for name, results in scores.items():
        accuracies = [result.accuracy for result in results]
        each = "  ".join(f"{accuracy:.1%}" for accuracy in accuracies)
        macro = statistics.fmean(result.macro_f1 for result in results)
        print(f"{name:<12} accuracy {statistics.fmean(accuracies):.1%} ({each})  macro-F1 {macro:.1%}")


if __name__ == "__main__":
    main()
