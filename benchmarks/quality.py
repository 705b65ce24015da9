"""BLEU after a given training time: ``train --best``, or a single training of the same time.

Trains on Multi30k (or any folder with train, val and test_2016_flickr in two languages). Then it scores each use that
the run offers (the student, ensembles, choosing by a reverse model), the forward models and the small one, on the
validation set and on the test set, which no choice depends on. If it is interrupted, the same command continues; a
finished run is only scored.

    python benchmarks/quality.py --output runs/de-en
    python benchmarks/quality.py --output runs/en-de --source en --target de
    python benchmarks/quality.py --output runs/lower --source en --target de --lowercase
    python benchmarks/quality.py --output runs/ten --budget 10m
    python benchmarks/quality.py --output runs/plain --plain       a single training instead
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import MULTI30K, describe_machine, multihead, parser, write_figures
from sacrebleu.metrics import BLEU, CHRF

from multihead.data.text_files import read_lines
from multihead.data.toy.numbers import split
from multihead.files import write_text

TRAIN, VALID, TEST = SETS = "train", "val", "test_2016_flickr"
"""The names of the files, without the language."""

Texts = dict[str, list[list[str]]]
"""The source lines and target lines of each set."""


def main() -> None:
    """Train, score, and print a row for each model."""
    made = parser(__doc__)
    made.add_argument("--output", type=Path, default=Path("run"), help="the run folder (run)")
    made.add_argument("--budget", default="60m", help="training time (60m)")
    made.add_argument("--plain", action="store_true", help="a single training instead of --best")
    made.add_argument(
        "--lowercase",
        action="store_true",
        help="train and score with lower-cased text, as published systems from English to German do",
    )
    made.add_argument(
        "--more",
        nargs="*",
        default=[],
        type=setting,
        help="further flags of `multihead train`, without dashes: updates=9",
    )
    measure_text(made, use_toy, measure)


def setting(text: str) -> str:
    """A NAME=VALUE of the command line, as it is."""
    if "=" not in text:
        raise ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return text


def measure_text(
    made: ArgumentParser, use_toy: Callable[[Namespace, Path], None], measure: Callable[[Namespace], None]
) -> None:
    """Measure with the text that the command line names, or with a toy text in a temporary folder."""
    made.add_argument("--data", type=Path, default=MULTI30K, help=f"folder of the text ({MULTI30K})")
    made.add_argument("--source", default="de", help="source language (de)")
    made.add_argument("--target", default="en", help="target language (en)")
    made.add_argument("--toy", action="store_true", help="a few generated sentences and updates, to test the program")
    arguments = made.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.toy:
            use_toy(arguments, Path(folder))
        measure(arguments)


def use_toy(arguments: Namespace, folder: Path) -> None:
    """Train on generated numbers, in ``folder``."""
    write_toy(folder)
    arguments.data, arguments.output = folder, folder / "run"
    arguments.more = ["updates=2", "preset=tiny", "width=16", "inner=16", "vocab-size=400", *arguments.more]


def write_toy(folder: Path) -> None:
    """Write generated numbers in German and English as training, validation and test text."""
    parts = split("de", "en", train=300, valid=6, test=6, seed=1)
    for name, examples in zip(SETS, parts, strict=True):
        for side, language in (("source", "de"), ("target", "en")):
            text = "".join(f"{getattr(example, side)}\n" for example in examples)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")


def measure(arguments: Namespace) -> None:
    """Train and score."""
    print(describe_machine())
    if arguments.lowercase:
        arguments.data = lowercased(arguments)
    seconds = train(arguments)
    found = systems(arguments.output)
    if arguments.toy:  # each system takes a process
        found = {name: words for name, words in found.items() if not name.startswith(("forward", "small"))}
    texts = {
        part: [list(read_lines(text_of(side, file, arguments))) for side in ("source", "target")]
        for part, file in (("val", VALID), ("test", TEST))
    }
    rows = [score(name, words, texts, arguments) for name, words in found.items()]
    for row in rows:
        print(f"{row['case']:<28} {row['seconds']:6.1f} s for both")
        for part in ("val", "test"):
            print(f"  {part:<5}" + "  ".join(f"{name} {value:.2f}" for name, value in row[part].items()))
    print(f"trained in {'an unknown time' if seconds is None else f'{seconds:.0f} s'}; {rows[0]['signature']}")
    write_figures(arguments, {"rows": rows, "seconds": seconds})


def lowercased(arguments: Namespace) -> Path:
    """A folder beside the run, with all text in lower case."""
    folder: Path = arguments.output.with_name(f"{arguments.output.name}-lowercase")
    folder.mkdir(parents=True, exist_ok=True)
    for name in SETS:
        for side in ("source", "target"):
            path = folder / f"{name}.{getattr(arguments, side)}"
            if not path.exists():  # so that an interrupted run finds the same files
                lines = read_lines(text_of(side, name, arguments))
                write_text(path, "".join(f"{line.lower()}\n" for line in lines))
    return folder


def train(arguments: Namespace) -> float | None:
    """Run ``multihead train``; returns the seconds of all starts, or None if a resumed run does not record them."""
    words = ["train", "--output", arguments.output, *([] if arguments.plain else ["--best"])]
    for side in ("source", "target"):
        words += [f"--{side}", text_of(side, TRAIN, arguments), f"--valid-{side}", text_of(side, VALID, arguments)]
    more = dict(one.split("=", 1) for one in arguments.more)
    length = {} if "updates" in more else {"budget": arguments.budget}
    for name, value in {**length, **more}.items():
        words += [f"--{name}", value]
    if arguments.threads:
        words += ["--threads", arguments.threads]
    new, started = not arguments.output.exists(), time.monotonic()
    multihead(*words)
    return time.monotonic() - started if new else spent(arguments.output)


def spent(run: Path) -> float | None:
    """The seconds of all starts, which a run in stages or with a budget records; None for other runs."""
    for journal in (run / "stages.jsonl", run / "plan.jsonl"):
        if journal.exists():
            return max(json.loads(line)["spent"] for line in journal.read_text(encoding="utf-8").splitlines())
    return None


def find(folder: Path, name: str, language: str) -> Path:
    """A text file, compressed or not."""
    found = [path for path in (folder / f"{name}.{language}.gz", folder / f"{name}.{language}") if path.exists()]
    if not found:
        raise SystemExit(
            f"{folder}: there is no {name}.{language}.gz or {name}.{language}; name the folder with --data"
        )
    return found[0]


def systems(run: Path) -> dict[str, list[str]]:
    """The systems to score: names, and the arguments of `multihead translate`, the run folder first."""
    if not (run / "uses.json").exists():
        return {"single training": [str(run)]}
    uses = json.loads((run / "uses.json").read_text(encoding="utf-8"))["uses"]
    others = {path.name: [str(path)] for path in [*sorted(run.glob("forward-*")), run / "small"] if path.exists()}
    return {use["use"]: [str(run), *use["flags"]] for use in uses} | others


def score(name: str, words: list[str], texts: Texts, arguments: Namespace) -> dict[str, Any]:
    """BLEU, lower-cased BLEU and chrF of both sets, translated with `multihead translate` as users run it."""
    threads = ["--threads", str(arguments.threads)] if arguments.threads else []
    started = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "multihead", "translate", *words, *threads],
        input="".join(f"{line}\n" for source, _ in texts.values() for line in source).encode("utf-8"),
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    row: dict[str, Any] = {"case": name, "seconds": round(time.monotonic() - started, 2)}
    found = iter(ended.stdout.decode("utf-8").split("\n"))
    for part, (source, target) in texts.items():
        translations = [next(found) for _ in source]
        metrics = {"BLEU": BLEU(), "lower-cased": BLEU(lowercase=True), "chrF": CHRF()}
        row[part] = {one: round(m.corpus_score(translations, [target]).score, 2) for one, m in metrics.items()}
        row["signature"] = str(metrics["BLEU"].get_signature())
    return row


def text_of(side: str, name: str, arguments: Namespace) -> str:
    """The file of one side of a set."""
    return str(find(arguments.data, name, getattr(arguments, side)))


if __name__ == "__main__":
    main()
