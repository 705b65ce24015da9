"""The server under load: throughput, latency, overload, invalid requests, disconnects.

`multihead serve` runs in one process, its clients (`serving_load.py`) in another. The weights are random; such a model
never ends a sentence, so every translation has ``--steps`` symbols. Capacity is the throughput of 32 clients that send
the next request as soon as they have a response. Then requests arrive at random times (a Poisson process), at half of
the capacity and at 1.2 times the capacity. Every translation is compared with that of the same text alone. The
throughput of the library without a server, for single texts and for all texts at once, shows how much sharing batches
can gain.

    python benchmarks/serving.py                                both models, all phases: five minutes each
    python benchmarks/serving.py --sizes tiny --phases load
    python benchmarks/serving.py --phases fuzz kill             6 x 10,000 requests; 50 clients at a time, 40 times
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from common import describe_machine, multi30k, parser, write_figures

from multihead import Translator
from multihead.bundle import Bundle, save_bundle
from multihead.decoding.search import Search
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.text.tokenizer import Tokenizer
from training import SIZES, Contender

HERE = Path(__file__).resolve().parent
VOCAB = 10_000
CLIENTS = 32


def sentences(count: int) -> list[str]:
    """Sentences of Multi30k if it is found, otherwise random ones."""
    draw = random.Random(1)
    made = ["".join(draw.choices("aeinrst", k=draw.randint(2, 7))) for _ in range(400)]
    random_ones = [" ".join(draw.choices(made, k=draw.randint(4, 20))) for _ in range(1000)]
    return (multi30k("test_2016_flickr", "de") or random_ones)[:count]


def write_model(folder: Path, size: str, steps: int) -> None:
    """Write a model folder with random weights."""
    lines = sentences(1000)
    tokenizer = Tokenizer.learn(lines, VOCAB)
    torch.manual_seed(1)
    config = TransformerConfig(source_vocab=len(tokenizer), target_vocab=len(tokenizer), **SIZES[size])
    generation = Search(beam=5, min_length=steps - 1, max_length=steps)
    bundle = Bundle(Transformer(config).eval(), tokenizer, tokenizer, generation, "de", "en")
    save_bundle(folder, bundle, {}, "Random weights, for measurements.")


class Served:
    """A server and its clients; both are stopped at the end of the ``with`` block, also after an error."""

    def __init__(self, model: Path, texts: list[str], threads: int, beam: int, queue: int, precision: str) -> None:
        words = [sys.executable, "-m", "multihead", "serve", str(model), "--port", "0", "--threads", str(threads)]
        words += ["--beam", str(beam), "--queue", str(queue), "--precision", precision]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment, cwd=HERE)
        assert self.process.stderr is not None
        listening, self.loaded = self.process.stderr.readline(), self.process.stderr.readline()
        if not self.loaded.startswith("serving model 1"):
            raise SystemExit(f"the server did not start: {listening}{self.loaded}{self.process.stderr.read()}")
        self.port = int(listening.rstrip("/\n").rpartition(":")[2])
        file = model / "texts.json"
        file.write_text(json.dumps(texts), encoding="utf-8")
        clients = subprocess.Popen(
            [sys.executable, str(HERE / "serving_load.py"), str(self.port), str(file)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.clients = Contender("clients", "", True, clients)
        assert clients.stdout is not None
        if not clients.stdout.readline():
            self.process.kill()
            raise SystemExit("the clients did not start")

    def __enter__(self) -> Served:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.clients.process.communicate()  # the end of their input ends them
        self.process.terminate()
        self.process.communicate()
        if self.process.returncode and error is None:
            raise SystemExit(f"the server ended with status {self.process.returncode}")

    def do(self, what: str, **wish: Any) -> dict[str, Any]:
        """Results of the clients, with the processor time and memory of the server."""
        before = self.figures()
        found = self.clients.ask(json.dumps({"do": what, **wish}))
        after = self.at_rest()
        found["cpu"] = after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]
        found["memory"] = after["process_resident_memory_bytes"]
        found["left"] = _left(after)
        return found

    def at_rest(self) -> dict[str, float]:
        """Metrics once the server is idle, or after three seconds; disconnects take a moment to be noticed."""
        until = time.monotonic() + 3
        while _left(after := self.figures()) and time.monotonic() < until:
            time.sleep(0.05)
        return after

    def figures(self) -> dict[str, float]:
        """The metrics of the server."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def _left(figures: dict[str, float]) -> float:
    """Requests, rows and sentences in the server, which should be 0 without clients."""
    return sum(figures[f"multihead_{name}"] for name in ("requests_in_hand", "batch_rows", "queue_sentences"))


def load(served: Served, model: str, seconds: float) -> list[dict[str, Any]]:
    """One client, 32 clients, half of their throughput, and 1.2 times their throughput."""
    served.do("closed", clients=CLIENTS, seconds=seconds / 4)  # warms up
    one = served.do("closed", clients=1, seconds=seconds)
    many = served.do("closed", clients=CLIENTS, seconds=seconds)
    capacity = many["done"] / many["seconds"]
    half = served.do("open", rate=capacity / 2, seconds=2 * seconds)
    over = served.do("open", rate=1.2 * capacity, seconds=2 * seconds)
    rows = [(f"{model}: one client", one), (f"{model}: {CLIENTS} clients", many), (f"{model}: half load", half)]
    return [{"case": case, **found} for case, found in [*rows, (f"{model}: 1.2 times capacity", over)]]


def library(folder: Path, texts: list[str], chosen: Namespace, beam: int, model: str) -> list[dict[str, Any]]:
    """The library without a server: texts one by one, and 32 times as many at once, alternating."""
    translator = Translator.load(folder).searching(beam=beam, precision=chosen.precision)
    done, seconds = [0, 0], [0.0, 0.0]
    translator.translate(texts)
    while min(seconds) < chosen.seconds:
        for place, wanted in enumerate([[[one] for one in texts], [texts * CLIENTS]]):
            began = time.perf_counter()
            for some in wanted:
                done[place] += len(translator.translate(some))
            seconds[place] += time.perf_counter() - began
    nothing = {"cpu": 0.0, "p50": None, "p99": None, "wrong": 0, "left": 0, "statuses": {}}
    names = "the library, one by one", "the library, all at once"
    return [
        {"case": f"{model}: {name}", "done": count, "seconds": spent, **nothing}
        for name, count, spent in zip(names, done, seconds, strict=True)
    ]


def fuzz(served: Served, size: str, requests: int, rounds: int) -> list[dict[str, Any]]:
    """Rounds of invalid requests. Memory rises until every cache is full, so only the last round counts as growth."""
    turns = [served.do("fuzz", requests=requests, clients=16, seed=seed) for seed in range(rounds, 0, -1)]
    levels = ", ".join(f"{turn['memory'] / 2**20:,.0f}" for turn in turns)
    print(f"{size}: {levels} MiB of memory after each {requests:,} requests, three in four bad")
    growth = _growth(turns[-2], turns[-1])
    sums = {name: sum(turn[name] for turn in turns) for name in ("wrong", "malformed", "left")}
    return [{"case": f"{size}: {requests} requests, three in four bad", **turns[-1], **sums, "growth": growth}]


def kill(served: Served, size: str, rounds: int) -> list[dict[str, Any]]:
    """Clients that disconnect; memory is compared after a quarter of the rounds and at the end."""
    first = served.do("kill", clients=50, rounds=max(rounds // 4, 1), seed=2)
    found = served.do("kill", clients=50, rounds=rounds)
    return [{"case": f"{size}: 50 clients killed, {rounds} times", **found, "growth": _growth(first, found)}]


def _growth(first: dict[str, Any], last: dict[str, Any]) -> float:
    return float(last["memory"] / first["memory"] - 1)


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table."""
    heads = ("a second", "a CPU-s", "p50 ms", "p99 ms", "wrong", "malformed", "growth")
    print(f"{'':44}" + "".join(f"{head:>10}" for head in heads) + "  statuses")
    for row in rows:
        worked = row["done"] / row["cpu"] if row["cpu"] else None
        numbers = [row["done"] / row["seconds"], worked, row["p50"], row["p99"]]
        shown = "".join("         -" if number is None else f"{number:10,.1f}" for number in numbers)
        growth = f"{row['growth']:10.1%}" if "growth" in row else "         -"
        statuses = {**row["statuses"], **{f"bad {status}": n for status, n in row.get("bad", {}).items()}}
        print(f"{row['case']:44}{shown}{row['wrong']:10}{row.get('malformed', 0):10}{growth}  {statuses}")


def verdict(rows: list[dict[str, Any]], model: str) -> None:
    """Print the ratios that docs/serving.md quotes."""
    found = {row["case"].removeprefix(f"{model}: "): row for row in rows if row["case"].startswith(f"{model}: ")}
    if "one client" not in found:
        return
    one, many = found["one client"], found[f"{CLIENTS} clients"]
    half, over = found["half load"], found["1.2 times capacity"]
    gain = (many["done"] / many["seconds"]) / (one["done"] / one["seconds"])
    alone, together = (found[f"the library, {how}"] for how in ("one by one", "all at once"))
    most = (together["done"] / together["seconds"]) / (alone["done"] / alone["seconds"])
    print(
        f"{model}: {CLIENTS} clients get {gain:.1f} times the throughput of one; without a server, all at once is "
        f"{most:.1f} times as fast as one by one"
    )
    if half["p99"] and over["p99"]:
        refused = over["statuses"].get("429", 0) / over["asked"]
        told = f"Retry-After {over['retry_after']}"
        print(
            f"{model}: at 1.2 times capacity {refused:.0%} are refused, {told}; p99 of the others is "
            f"{over['p99'] / half['p99']:.1f} times that at half load"
        )


def main() -> None:
    """Run the phases for each model."""
    arguments = parser(__doc__, seconds=10)
    arguments.add_argument("--sizes", choices=SIZES, nargs="+", default=["tiny", "base"], help="models (tiny base)")
    arguments.add_argument("--beams", type=int, nargs="+", default=[5, 1], help="beams under load; 1 is greedy (5 1)")
    arguments.add_argument("--phases", choices=["load", "fuzz", "kill"], nargs="+", default=["load", "fuzz", "kill"])
    arguments.add_argument("--precision", default="float32", help="float32, bfloat16 or int8 products (float32)")
    arguments.add_argument("--steps", type=int, default=15, help="symbols per translation (15)")
    arguments.add_argument("--queue", type=int, default=CLIENTS, help=f"maximum requests in flight ({CLIENTS})")
    arguments.add_argument("--requests", type=int, default=10_000, help="requests, three in four invalid (10000)")
    arguments.add_argument("--kills", type=int, default=40, help="how many times 50 clients are killed (40)")
    arguments.add_argument("--quick", action="store_true", help="tiny sizes, to check that it runs")
    chosen = arguments.parse_args()
    if chosen.quick:
        chosen.sizes, chosen.beams, chosen.seconds, chosen.requests, chosen.kills = ["toy"], [2], 0.2, 100, 1
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    rows: list[dict[str, Any]] = []
    for size in chosen.sizes:
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(chosen, size, Path(folder) / "model")
    how = f"{describe_machine()['threads']} threads, {chosen.precision}, {chosen.steps} symbols"
    print(f"{how}, at most {chosen.queue} requests in flight under load")
    show(rows)
    for size in chosen.sizes:
        for beam in chosen.beams:
            verdict(rows, f"{size}, beam {beam}")
    write_figures(chosen, {"rows": rows})
    if faults := [row["case"] for row in rows if _faulty(row)]:
        raise SystemExit(f"responses were lost or mixed up, or requests were left in the server: {faults}")


def _faulty(row: dict[str, Any]) -> bool:
    """Whether a response was wrong, malformed or missing, or a request was left in the server."""
    broken = row["statuses"].get("broken", 0) + row.get("bad", {}).get("broken", 0)
    return bool(row["wrong"] or row.get("malformed", 0) or broken or row["left"])


def measure(chosen: Namespace, size: str, folder: Path) -> list[dict[str, Any]]:
    """Rows of one model."""
    write_model(folder, size, chosen.steps)
    texts, threads, rows = sentences(8 if chosen.quick else 64), torch.get_num_threads(), []
    for beam in chosen.beams if "load" in chosen.phases else ():
        with Served(folder, texts, threads, beam, chosen.queue, chosen.precision) as served:
            rows += load(served, f"{size}, beam {beam}", chosen.seconds)
        rows += library(folder, texts, chosen, beam, f"{size}, beam {beam}")
    if {"fuzz", "kill"} & set(chosen.phases):
        with Served(folder, texts, threads, 5, 128, chosen.precision) as served:
            rows += fuzz(served, size, chosen.requests, 2 if chosen.quick else 6) if "fuzz" in chosen.phases else []
            rows += kill(served, size, chosen.kills) if "kill" in chosen.phases else []
    return rows


if __name__ == "__main__":
    main()
