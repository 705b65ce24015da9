"""Does pre-training help? The same few labelled captions, with a BERT that has read German before and without.

    python examples/pretraining_helps.py ../shared/data/multi30k --output pretraining [--labelled 96] [--seeds 3]

Multi30k has captions of pictures in German and in English. The label of a German caption comes from words of its
English side, so from other words than those that are read: a topic (water, music, ...), which many words tell, or with
`--task activity` what somebody is doing (sitting, riding, ...), which is told by one. Captions whose English side has
words of no label, or of several, are left out. A BERT is pre-trained on the German captions of the training set,
without labels; then three classifiers learn from the same labelled ones:

    fresh           subwords and weights of its own, of the pre-trained one's sizes
    drawn           the pre-trained one's subwords and settings; its weights are drawn anew
    pre-trained     the pre-trained one

and are measured on captions of the validation and test sets, which nobody has read before. `docs/classification.md` has
what it printed. Stopped, the same command goes on.

With `--documents` it writes documents instead, for a hierarchical network, and trains nothing: a labelled caption
among four others whose English sides say none of the labels. Which of the five it is, no file says.
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
"""The words of each label, by task."""

Rows = list[tuple[str, str]]


def captions(folder: Path, part: str) -> list[tuple[str, str]]:
    """German and English captions of a part of Multi30k."""
    sides = []
    for code in ("de", "en"):
        with gzip.open(folder / f"{part}.{code}.gz", "rt", encoding="utf-8") as stream:
            sides.append(stream.read().splitlines())
    return list(zip(*sides, strict=True))


def said(english: str, task: str) -> set[str]:
    """The labels of which a caption has words."""
    words = set(re.findall(r"[a-z]+", english.lower()))
    return {label for label, own in TASKS[task].items() if not words.isdisjoint(own.split())}


def labelled(pairs: list[tuple[str, str]], task: str) -> Rows:
    """Label and German caption of those pairs whose English side has words of one label, and of no other."""
    rows = []
    for german, english in pairs:
        labels = said(english, task)
        if len(labels) == 1:
            rows.append((labels.pop(), german.replace("\t", " ").strip()))
    return rows


def documents(pairs: list[tuple[str, str]], task: str, seed: int, others: int = 4) -> Rows:
    """Each labelled caption at a place of its own among others that have no label; sentences end with " || "."""
    drawn = random.Random(f"documents {seed}")
    silent = [german.replace("\t", " ").strip() for german, english in pairs if not said(english, task)]
    rows = []
    for label, text in labelled(pairs, task):
        sentences = drawn.sample(silent, others)
        sentences.insert(drawn.randint(0, others), text)
        rows.append((label, " || ".join(sentences)))
    drawn.shuffle(rows)
    return rows


def few(rows: Rows, count: int, seed: int) -> Rows:
    """As many of each label, ``count`` together, drawn."""
    drawn = random.Random(f"few {seed}")
    found: Rows = []
    labels = sorted({label for label, _ in rows})
    for label in labels:
        own = [row for row in rows if row[0] == label]
        found += drawn.sample(own, count // len(labels))
    drawn.shuffle(found)
    return found


def write(path: Path, rows: Rows) -> Path:
    """A file as `multihead classify train` reads it."""
    path.write_text("".join(f"{label}\t{text}\n" for label, text in rows), encoding="utf-8")
    return path


def main(words: Sequence[str] | None = None) -> None:
    """Pre-trains, trains, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("multi30k", type=Path, help="the folder of Multi30k")
    parser.add_argument("--output", type=Path, required=True, help="a folder for everything that is made")
    parser.add_argument("--labelled", type=int, default=96, help="captions to learn from, a fourth of them held out")
    parser.add_argument("--seeds", type=int, default=3, help="how often, with other captions and first values")
    parser.add_argument("--task", choices=TASKS, default="topic", help="what the labels are")
    parser.add_argument("--documents", action="store_true", help="write documents.tsv and documents-test.tsv, no more")
    parser.add_argument("--updates", type=int, help="of the pre-training; 40 epochs by default")
    parser.add_argument("--quick", action="store_true", help="a few updates of everything: figures that say nothing")
    asked = parser.parse_args(words)
    torch.set_num_threads(1)
    folder: Path = asked.output
    folder.mkdir(parents=True, exist_ok=True)
    pairs = captions(asked.multi30k, "train")
    held_back = captions(asked.multi30k, "val") + captions(asked.multi30k, "test_2016_flickr")
    if asked.documents:
        write(folder / "documents.tsv", documents(pairs, asked.task, 1))
        write(folder / "documents-test.tsv", documents(held_back, asked.task, 2))
        return
    text = folder / "german.txt"
    text.write_text("\n\n".join(german.strip() for german, _ in pairs) + "\n", encoding="utf-8")
    test = write(folder / f"{asked.task}-test.tsv", labelled(held_back, asked.task))
    started = time.process_time()
    length = {"updates": 4 if asked.quick else asked.updates} if asked.quick or asked.updates else {}
    given = pretrain(text=text, output=folder / "bert", threads=1, **length).bert()
    print(f"pre-trained in {time.process_time() - started:.0f} s of processor time", flush=True)
    sizes = given.model.config
    shape = {name: getattr(sizes, name) for name in ("width", "layers", "heads", "inner")}
    scores: dict[str, list[Classification]] = {}
    for seed in range(1, asked.seeds + 1):
        data = write(
            folder / f"{asked.task}-{asked.labelled}-{seed}.tsv", few(labelled(pairs, asked.task), asked.labelled, seed)
        )
        torch.manual_seed(seed)
        PretrainedBert(Bert(sizes), given.words).save(folder / f"drawn-{seed}")
        contenders = {
            "fresh": {"model": "bert", **shape},
            "drawn": {"from_model": folder / f"drawn-{seed}"},
            "pre-trained": {"from_model": folder / "bert"},
        }
        for name, wishes in contenders.items():
            run = folder / f"{asked.task}-{asked.labelled}-{seed}-{name}"
            common: dict[str, Any] = {"updates": 4} if asked.quick else {}
            common |= {"held_out": asked.labelled // 4, "seed": seed, "threads": 1, "say": lambda _: None}
            train(data=data, output=run, **common, **wishes)
            scores.setdefault(name, []).append(evaluate(run, test))
    print(f"{asked.labelled} labelled captions, {scores['fresh'][0].documents} to measure on, {asked.seeds} seeds")
    for name, found in scores.items():
        accuracies, macro = [one.accuracy for one in found], statistics.fmean(one.macro_f1 for one in found)
        each = "  ".join(f"{accuracy:.1%}" for accuracy in accuracies)
        print(f"{name:<12} accuracy {statistics.fmean(accuracies):.1%} ({each})  macro-F1 {macro:.1%}")


if __name__ == "__main__":
    main()
