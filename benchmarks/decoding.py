"""Translations per second: our compiled engine and PyTorch code, CTranslate2, and `transformers.generate`.

All contenders use the same converted weights, the same beam, length penalty 1, and the same stopping rule (as many
finished hypotheses as the beam is wide). With ``--model``, they translate text with the same tokenizer. Each contender
is a process, and they take turns, so that other load on the machine affects all of them alike. Before anything is
timed, their outputs are compared; the table shows the share that equals the output of the first contender. Wall time
and CPU time are reported separately: on a busy machine, CPU time is more reliable. For our engine, the table also shows
the share of the decoder steps' time that is spent on reordering the hypotheses of a beam.

With ``--model``, a German-English model translates Multi30k's test set of 2016. Without it, weights and sources are
random. Such a model never ends a sentence, so every translation has ``--steps`` symbols. MULTIHEAD_PEERS names a folder
where `ctranslate2` and `transformers` are installed; a peer that is not installed is left out.

    python benchmarks/decoding.py --size tiny
    python benchmarks/decoding.py --model run --json figures.json        also reports BLEU
"""

from __future__ import annotations

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
from common import MULTI30K, describe_machine, importable, multi30k, parser, write_figures

from multihead.bundle import load_bundle
from multihead.metrics.scores import score
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from training import SIZES, Contender

HERE = Path(__file__).resolve().parent
VOCAB = 10_000


@dataclass
class Runs:
    """The measurements of one contender with one beam."""

    contender: Contender
    beam: int
    outputs: list[Any] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    single: dict[str, list[float]] = field(default_factory=dict)
    """The minimum milliseconds of each sentence translated alone, in wall time and in CPU time."""
    reordering: float | None = None
    same: float = 1.0
    """The share of translations that equal those of the first contender."""

    @property
    def case(self) -> str:
        """Its name in the table."""
        return f"{self.contender.name} {self.contender.precision}, beam {self.beam}"

    def translate(self, first: Runs) -> None:
        """Translate all sentences once without timing: to warm up, and to compare the outputs with another's."""
        self.outputs = self.contender.ask(f"batch {self.beam}")["outputs"]
        self.same = statistics.fmean(a == b for a, b in zip(self.outputs, first.outputs, strict=True))
        if first is not self:
            print(f"{self.case}: {self.same:.1%} of the translations are those of {first.case}", flush=True)

    def batch(self) -> None:
        """Translate all sentences once, timed."""
        found = self.contender.ask(f"batch {self.beam}")
        self.seconds.append(found["seconds"])
        self.cpu.append(found["cpu"])

    def one_by_one(self, count: int) -> None:
        """Translate each of the first sentences alone, once."""
        for name, taken in self.contender.ask(f"single {self.beam} {count}").items():
            self.single[name] = [*map(min, taken, self.single.get(name, taken))]

    @property
    def percentiles(self) -> dict[str, float]:
        """Percentiles of the time of a sentence translated alone."""
        return {
            f"{name}{part}": float(np.percentile(taken, part))
            for name, taken in self.single.items()
            for part in (50, 99)
        }


def work_of(chosen: Namespace) -> tuple[dict[str, Any], list[str] | None]:
    """The input of every contender: a model, sources as text or ids, and limits of length; and the references."""
    if chosen.model:
        bundle = load_bundle(chosen.model)
        model, sources = bundle.model, multi30k("test_2016_flickr", "de")
        if not isinstance(model, Transformer) or sources is None:
            raise SystemExit(f"--model needs a Transformer, and test_2016_flickr.de.gz in {MULTI30K}")
        references = (multi30k("test_2016_flickr", "en") or [])[: chosen.sentences]
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
    """Start our engine in float32 and the contenders whose names contain ``only``, and wait until they are ready."""
    path = os.pathsep.join(filter(None, (os.environ.get("MULTIHEAD_PEERS"), *sys.path)))
    environment = {**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        environment.setdefault("CT2_FORCE_CPU_ISA", "AVX512")  # the fastest; it selects it only on Intel
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
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        contender = Contender(name, precision, True, process)
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit(f"{name} {precision}: its process did not start")
        found.append(contender)
    return found


def rows_of(runs: list[Runs], references: list[str] | None) -> Iterator[dict[str, Any]]:
    """The figures of each contender, for the table and the file."""
    for one in runs:
        sentences, seconds, cpu = len(one.outputs), statistics.median(one.seconds), statistics.median(one.cpu)
        bleu = score(one.outputs, references, "en").bleu if references else None
        yield {"case": one.case, "sentences_per_second": sentences / seconds, "per_cpu_second": sentences / cpu,
               "same": one.same, "bleu": bleu, "reordering": one.reordering, **one.percentiles}  # fmt: skip


def main() -> None:
    """Let the contenders take turns, and print a table."""
    arguments = parser(__doc__, rounds=5)
    arguments.add_argument("--size", choices=SIZES, default="tiny", help="size of the model with random weights (tiny)")
    arguments.add_argument("--model", type=lambda text: Path(text).resolve(), help="a German-English model instead")
    arguments.add_argument("--beams", type=int, nargs="+", default=[1, 5], help="beam widths; 1 is greedy (1 5)")
    arguments.add_argument("--steps", type=int, default=15, help="symbols per translation with random weights (15)")
    arguments.add_argument("--sentences", type=int, default=1000)
    arguments.add_argument("--single", type=int, default=100, help="sentences also translated one by one (100)")
    arguments.add_argument("--times", type=int, default=1, help="repetitions of these; the minimum counts (1)")
    arguments.add_argument("--only", default="", help="only the first contender and those with this in the name")
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
            contender.process.communicate()  # the end of its input ends the process
    write_figures(chosen, {"size": chosen.size, "rows": rows})


def turns(contenders: list[Contender], chosen: Namespace, references: list[str] | None) -> list[dict[str, Any]]:
    """Measure the speed of each in batches and one by one, and compare its translations with the first one's."""
    runs = [Runs(contender, beam) for beam in chosen.beams for contender in contenders]
    for one in runs:
        one.translate(next(other for other in runs if other.beam == one.beam))
    for turn in range(chosen.rounds):
        for one in runs[turn % len(runs) :] + runs[: turn % len(runs)]:
            one.batch()
    for turn in range(chosen.times if chosen.single else 0):
        for one in runs[turn % len(runs) :] + runs[: turn % len(runs)]:
            one.one_by_one(chosen.single)
    for one in runs:
        one.reordering = one.contender.ask(f"reordering {one.beam}")["reordering"] if one.beam > 1 else None
    rows = list(rows_of(runs, references))
    threads = describe_machine()["threads"]
    sentences = len(runs[0].outputs)
    print(f"{chosen.model or chosen.size}, {threads} threads, {sentences} sentences; medians of {chosen.rounds} turns")
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
