"""Translations a second: ours, compiled and in PyTorch, against CTranslate2 and `transformers.generate`, in turn.

The same weights for all, converted; the same beam, length penalty 1 and stopping rule (so many finished hypotheses as
the beam is wide); words in and out where a model is named, by the same tokenizer. A process for each contender, which
take turns, so that whatever else the machine does meets all of them; outputs are compared before anything is timed.
Seconds of the clock and of the processor are told apart: on a busy machine the latter say more. Of our steps it is told
what share goes into reordering the hypotheses of a beam.

Without ``--model`` the weights are random, and as such a model never ends a sentence every translation has ``--steps``
symbols. The text is Multi30k's test set of 2016 where it is found, and made otherwise. MULTIHEAD_PEERS names a folder
into which `ctranslate2` and `transformers` were installed; those that are not there are left out.

    python benchmarks/decoding.py --size tiny
    python benchmarks/decoding.py --model run --json figures.json        BLEU of each, too
"""

from __future__ import annotations

import gzip
import os
import random
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import describe_machine, importable, parser, write_figures

from multihead.bundle import load_bundle
from multihead.metrics.scores import score
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from training import SIZES, Contender

HERE = Path(__file__).resolve().parent
VOCAB = 10_000


@dataclass
class Runs:
    """What one contender did with one beam."""

    contender: Contender
    beam: int
    outputs: list[Any] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    single: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds of each sentence that was translated alone, of the clock and of the processor: the least so far."""
    reordering: float | None = None

    @property
    def case(self) -> str:
        """How it is shown."""
        return f"{self.contender.name} {self.contender.precision}, beam {self.beam}"

    def batch(self) -> None:
        """All sentences once."""
        found = self.contender.ask(f"batch {self.beam}")
        self.seconds.append(found["seconds"])
        self.cpu.append(found["cpu"])
        self.outputs = found["outputs"]

    def one_by_one(self, count: int) -> None:
        """The first sentences once, each alone."""
        for name, taken in self.contender.ask(f"single {self.beam} {count}").items():
            self.single[name] = [*map(min, taken, self.single.get(name, taken))]

    @property
    def percentiles(self) -> dict[str, float]:
        """Of a sentence alone."""
        return {
            f"{name}{part}": float(np.percentile(taken, part))
            for name, taken in self.single.items()
            for part in (50, 99)
        }


def text(side: str) -> list[str] | None:
    """One side of Multi30k's test set of 2016, where it is."""
    path = HERE.parent.parent / "shared" / "data" / "multi30k" / f"test_2016_flickr.{side}.gz"
    return gzip.open(path, "rt", encoding="utf-8").read().split("\n")[:-1] if path.is_file() else None


def work_of(chosen: Namespace) -> tuple[dict[str, Any], list[str] | None]:
    """What every contender is given: a model, sources as text or ids, and how far to go; and the references."""
    if chosen.model:
        bundle = load_bundle(chosen.model)
        model, sources = bundle.model, text("de")
        if not isinstance(model, Transformer) or sources is None:
            raise SystemExit("--model needs a Transformer, and Multi30k's test set in shared/data/multi30k")
        references = (text("en") or [])[: chosen.sentences]
        given: dict[str, Any] = {"folder": str(chosen.model), "sources": sources[: chosen.sentences], "steps": 0}
    else:
        torch.manual_seed(1)
        draw, references = random.Random(1), None
        vocab = 50 if chosen.size == "toy" else VOCAB
        config = TransformerConfig(source_vocab=vocab, target_vocab=vocab, norm_eps=1e-5, **SIZES[chosen.size])
        model = Transformer(config)
        lengths = [min(max(round(draw.gauss(14, 4.5)), 4), 40) for _ in range(chosen.sentences)]
        rows = [[draw.randrange(4, vocab) for _ in range(length)] for length in lengths]
        given = {"folder": None, "sources": rows, "steps": chosen.steps}
    given |= {"config": model.config.model_dump(), "weights": model.state_dict(), "threads": torch.get_num_threads()}
    return given, references


def begin(file: Path, folder: Path, only: str) -> list[Contender]:
    """The processes of those whose names hold a word, and of ours in float32; each ready."""
    path = os.pathsep.join(filter(None, (os.environ.get("MULTIHEAD_PEERS"), *sys.path)))
    environment = {**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        environment.setdefault("CT2_FORCE_CPU_ISA", "AVX512")  # its best; by itself it takes it on Intel's alone
    there = [name for name in ("ctranslate2", "transformers") if importable(name, environment)]
    wanted = [("multihead", precision) for precision in ("float32", "bfloat16", "int8")]
    wanted += [("multihead eager", "float32")]
    if "ctranslate2" in there:
        wanted += [(f"ctranslate2 {split}", kind) for kind in ("float32", "int8") for split in ("workers", "threads")]
    if "transformers" in there:
        wanted += [("transformers", "float32")]
    found = []
    for name, precision in [wanted[0], *(one for one in wanted[1:] if only in " ".join(one))]:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "decoding_contender.py"), name, precision, str(file), str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=HERE,
        )  # fmt: skip
        contender = Contender(name, precision, True, process)
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit(f"{name} {precision}: did not begin")
        found.append(contender)
    return found


def rows_of(runs: list[Runs], references: list[str] | None, sentences: int) -> Iterator[dict[str, Any]]:
    """What is printed and written of each."""
    for one in runs:
        first = next(other for other in runs if other.beam == one.beam)
        seconds, cpu = statistics.median(one.seconds), statistics.median(one.cpu)
        same = sum(a == b for a, b in zip(one.outputs, first.outputs, strict=True)) / sentences
        bleu = score(one.outputs, references, "en").bleu if references else None
        yield {"case": one.case, "sentences_per_second": sentences / seconds, "per_cpu_second": sentences / cpu,
               "same": same, "bleu": bleu, "reordering": one.reordering, **one.percentiles}  # fmt: skip


def main() -> None:
    """Turns, and a table."""
    arguments = parser(__doc__, 5)
    arguments.add_argument("--size", choices=SIZES, default="tiny", help="of the model with random weights (tiny)")
    arguments.add_argument("--model", type=lambda text: Path(text).resolve(), help="a model folder, instead")
    arguments.add_argument("--beams", type=int, nargs="+", default=[1, 5], help="1 is greedy (1 5)")
    arguments.add_argument("--steps", type=int, default=15, help="symbols a translation has with random weights (15)")
    arguments.add_argument("--sentences", type=int, default=1000)
    arguments.add_argument("--single", type=int, default=100, help="how many are also translated one by one (100)")
    arguments.add_argument("--times", type=int, default=1, help="how often; the least time of each counts (1)")
    arguments.add_argument("--only", default="", help="only contenders whose name holds this, and the first")
    chosen = arguments.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    given, references = work_of(chosen)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "work.pt"
        torch.save(given, file)
        contenders = begin(file, Path(folder), chosen.only)
        rows = turns(contenders, chosen, references)
        for contender in contenders:
            contender.process.communicate()  # no more lines: it ends
    write_figures(chosen, {"size": chosen.size, "rows": rows})


def turns(contenders: list[Contender], chosen: Namespace, references: list[str] | None) -> list[dict[str, Any]]:
    """Speed of each in batches and one by one, and whether its translations are the first one's."""
    runs = [Runs(contender, beam) for beam in chosen.beams for contender in contenders]
    for one in runs:
        one.contender.ask(f"batch {one.beam}")  # warms up
    for turn in range(chosen.rounds):
        for one in runs[turn % len(runs) :] + runs[: turn % len(runs)]:
            one.batch()
    for turn in range(chosen.times if chosen.single else 0):
        for one in runs[turn % len(runs) :] + runs[: turn % len(runs)]:
            one.one_by_one(chosen.single)
    for one in runs:
        one.reordering = one.contender.ask(f"reordering {one.beam}")["reordering"] if one.beam > 1 else None
    rows = list(rows_of(runs, references, chosen.sentences))
    threads = describe_machine()["threads"]
    print(f"{chosen.model or chosen.size}, {threads} threads, {chosen.sentences} sentences; medians of "
          f"{chosen.rounds} turns")  # fmt: skip
    heads = ("sent/s", "per CPU-s", "p50 ms", "p99 ms", "p50 CPU-ms", "p99 CPU-ms", "same", "reorder", "BLEU")
    print(f"{'':40}" + "".join(f"{head:>11}" for head in heads))
    for row in rows:
        single = [row.get(name) for name in ("p50", "p99", "cpu_p50", "cpu_p99")]
        numbers = [row["sentences_per_second"], row["per_cpu_second"], *single]
        shown = "".join("          -" if number is None else f"{number:11,.1f}" for number in numbers)
        share = "          -" if row["reordering"] is None else f"{row['reordering']:11.1%}"
        bleu = "" if row["bleu"] is None else f"{row['bleu']:11.2f}"
        print(f"{row['case']:40}{shown}{row['same']:11.1%}{share}{bleu}")
    return rows


if __name__ == "__main__":
    main()
