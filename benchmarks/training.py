"""Training speed: ours, transformers' MarianMT and torch.nn.Transformer.

All contenders have the same sizes and batches (of Multi30k if it is found, otherwise random). Each is a process, and
they take turns of a few updates, so that other load on the machine affects all of them alike. Peers run as their users
run them (float32, PyTorch's defaults). If the processor has bfloat16 instructions, they also run with bfloat16 autocast
and the allocator settings of our commands; on other processors such contenders take minutes per update and need
`--emulated`. MULTIHEAD_PEERS names a folder where `transformers` is installed; without it, that peer is left out.

If a peer runs at a share p of the peak of matrix products, an update of nothing but products at the peak would be 1/p
times as fast. No contender in the same precision can be faster, so this bound is printed below the table.

    python benchmarks/training.py --size tiny
    python benchmarks/training.py --size base --rounds 5 --updates 2
    python benchmarks/training.py --size tiny --losses 300      compares our losses in bfloat16 and float32
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from common import describe_machine, importable, multi30k, parser, write_figures

from multihead.configuration import inspect_machine
from multihead.data.batching import Batch, BatchStream
from multihead.data.store import ParallelStore
from multihead.text.tokenizer import Tokenizer

HERE = Path(__file__).resolve().parent
VOCAB = 10_000

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 4, "inner": 256, "encoder_layers": 4, "decoder_layers": 4, "dropout": 0.3},
    "base": {"width": 512, "heads": 8, "inner": 2048, "encoder_layers": 6, "decoder_layers": 6, "dropout": 0.1},
    "toy": {"width": 16, "heads": 2, "inner": 32, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.1},
}


@dataclass
class Contender:
    """A process and its measurements."""

    name: str
    precision: str
    plain: bool
    """Whether the process runs without our allocator settings."""
    process: subprocess.Popen[str]
    speeds: list[float] = field(default_factory=list)
    by_processor: list[float] = field(default_factory=list)
    """Tokens per second of processor time, which depends less on other work on the machine."""
    losses: list[float] = field(default_factory=list)
    memory: float = 0.0
    peak: float = 0.0
    processor_peak: float = 0.0
    """Operations of matrix products per second of processor time."""

    @property
    def case(self) -> str:
        """Its name in the table."""
        return f"{self.name}, {self.precision}{'' if self.plain else ', allocator'}"

    def ask(self, line: str) -> dict[str, Any]:
        """Send one line and read one back."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.case}: its process ended")
        found: dict[str, Any] = json.loads(answer)
        return found

    def run(self, updates: int) -> dict[str, Any]:
        """Make this many updates."""
        found = self.ask(f"run {updates}")
        self.losses += found["losses"]
        self.memory = found["memory"]
        return found


def batches(chosen: Namespace) -> tuple[list[Batch], int]:
    """Batches of at most this many tokens per side, and the size of the vocabulary."""
    source, target = multi30k("train", "de"), multi30k("train", "en")
    if chosen.size == "toy" or source is None or target is None:
        draw = random.Random(1)
        vocab = 50 if chosen.size == "toy" else VOCAB
        rows = [[draw.randrange(4, vocab) for _ in range(draw.randint(4, 30))] for _ in range(4000)]
        store = ParallelStore.from_lists(rows[:2000], rows[2000:])
    else:
        tokenizer = Tokenizer.learn([*source, *target], VOCAB)
        store, vocab = ParallelStore.from_lists(*(tokenizer.encode_batch(s) for s in (source, target))), len(tokenizer)
    tokens = 256 if chosen.size == "toy" else 4096
    stream = BatchStream(store, tokens, 1, pad_id=0, bos_id=2, eos_id=3)
    return [stream.take() for _ in range(chosen.batches)], vocab


def operations(sizes: dict[str, Any], found: list[Batch]) -> float:
    """Multiplications and additions of an average update: three times the forward pass, without padding."""
    d, inner, total = sizes["width"], sizes["inner"], 0.0
    for batch in found:
        s, t = float(batch.source_lengths.sum()), float(batch.target_tokens)
        pairs = batch.source_lengths.double(), batch.target_lengths.double()
        own_s, own_t, cross = (float((a * b).sum()) for a, b in ((pairs[0],) * 2, (pairs[1],) * 2, pairs))
        encoder = 2 * s * (4 * d * d + 2 * d * inner) + 4 * own_s * d
        decoder = 2 * t * (6 * d * d + 2 * d * inner) + 4 * s * d * d + 2 * own_t * d + 4 * cross * d
        total += 3 * (
            sizes["encoder_layers"] * encoder + sizes["decoder_layers"] * decoder + 2 * t * d * sizes["target_vocab"]
        )
    return total / len(found)


def wanted(chosen: Namespace, fast_bfloat16: bool, has_marian: bool) -> list[tuple[str, str, bool]]:
    """Name, precision and `Contender.plain` of the contenders."""
    low = fast_bfloat16 or chosen.emulated
    found = [("multihead", "bfloat16", False)] if low else []
    if chosen.size != "toy" or chosen.losses or not low:
        found.append(("multihead", "float32", False))
    if not chosen.losses:
        peers = ["torch.nn.Transformer", *(["MarianMT"] if has_marian else [])]
        found += [(peer, "float32", True) for peer in peers]
        if chosen.size != "toy" and low:
            found += [(peer, "bfloat16", False) for peer in peers]
    return found


def begin(chosen: Namespace, file: Path) -> list[Contender]:
    """Start the processes and wait until they are ready."""
    fast_bfloat16 = inspect_machine().fast_bfloat16
    if not (fast_bfloat16 or chosen.emulated):
        print("bfloat16 is left out: this processor has no instructions for it (--emulated includes it)", flush=True)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("MULTIHEAD_PEERS"), *sys.path))),
    }
    found = []
    for name, precision, plain in wanted(chosen, fast_bfloat16, importable("transformers", environment)):
        command = [sys.executable, str(HERE / "training_contender.py"), name, str(file), precision]
        process = subprocess.Popen(
            [*command, *(["--plain"] if plain else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        contender = Contender(name, precision, plain, process)
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit(f"{contender.case}: its process did not start")
        found.append(contender)
    return found


def main() -> None:
    """Let the contenders take turns and print a table."""
    arguments = parser(__doc__, rounds=8)
    arguments.add_argument("--size", choices=SIZES, default="tiny")
    arguments.add_argument("--updates", type=int, default=4, help="updates per turn (4)")
    arguments.add_argument("--batches", type=int, default=24, help="number of different batches (24)")
    arguments.add_argument("--losses", type=int, help="only compare our losses after this many updates")
    arguments.add_argument("--emulated", action="store_true", help="bfloat16 even if the processor emulates it")
    chosen = arguments.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    chosen.batches = max(chosen.batches, chosen.losses or 0)
    some, vocab = batches(chosen)
    sizes = {**SIZES[chosen.size], "source_vocab": vocab, "target_vocab": vocab}
    settings = {"updates": 2400, "warmup": 300, "learning_rate": 0.32 / sizes["width"], "average": 0.99}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "work.pt"
        work = {"sizes": sizes, "batches": some, "settings": {**settings, "threads": torch.get_num_threads()}}
        torch.save(work, file)
        contenders = begin(chosen, file)
        rows = compare_losses(contenders, chosen.losses) if chosen.losses else turns(contenders, chosen, sizes, some)
        for contender in contenders:
            contender.process.communicate()  # the end of its input ends the process
    write_figures(chosen, {"size": chosen.size, "rows": rows})


def turns(
    contenders: list[Contender], chosen: Namespace, sizes: dict[str, Any], some: list[Batch]
) -> list[dict[str, Any]]:
    """Measure and print the speed of each contender, and its ratio to the best peer as its users run it."""
    for contender in contenders:
        contender.run(max(2, min(chosen.updates, 4)))
        found = contender.ask(f"peak {256 if chosen.size == 'toy' else 2048}")
        contender.peak, contender.processor_peak = found["peak"], found["processor"]
    for turn in range(chosen.rounds):
        for contender in contenders[turn % len(contenders) :] + contenders[: turn % len(contenders)]:
            found = contender.run(chosen.updates)
            contender.speeds.append(found["tokens"] / found["seconds"])
            contender.by_processor.append(found["tokens"] / found["processor"])
    speeds = {contender.case: statistics.median(contender.speeds) for contender in contenders}
    floor = max(speeds[c.case] for c in contenders if c.plain)
    quiet = {contender.case: statistics.median(contender.by_processor) for contender in contenders}
    quiet_floor = max(quiet[c.case] for c in contenders if c.plain)
    needed = operations(sizes, some) / statistics.fmean(batch.target_tokens for batch in some)
    threads = describe_machine()["threads"]
    print(f"{chosen.size}, {threads} threads: real target tokens per second, medians of {chosen.rounds} turns")
    print(f"{'':42}{'tokens/s':>10}{'best peer':>11}{'of peak':>9}{'memory':>9}{'processor time':>17}{'of peak':>9}")
    rows, peers_share = [], 0.0
    for contender in contenders:
        speed = speeds[contender.case]
        share = speed * needed / contender.peak
        processor = quiet[contender.case] / quiet_floor
        worked_share = quiet[contender.case] * needed / contender.processor_peak
        peers_share = max(peers_share, worked_share if contender.plain else 0.0)
        print(
            f"{contender.case:42}{speed:10,.0f}{speed / floor:10.2f}x{share:9.0%}{contender.memory / 2**30:7.2f} G"
            f"{processor:16.2f}x{worked_share:9.0%}"
        )
        rows.append({"case": contender.case, "tokens_per_second": speed, "ratio": speed / floor, "of_peak": share,
                     "memory": contender.memory, "processor_ratio": processor,
                     "processor_of_peak": worked_share, "all": contender.speeds})  # fmt: skip
    print(
        f"by processor time, the best peer runs at {peers_share:.0%} of the float32 peak; at most "
        f"{1 / peers_share:.2f} times its speed is possible in float32"
    )
    return rows


def compare_losses(contenders: list[Contender], updates: int) -> list[dict[str, Any]]:
    """Print and return the mean loss of the last tenth of the same updates, in each precision."""
    rows, last = [], max(updates // 10, 1)
    for contender in contenders:
        contender.run(updates)
        loss = statistics.fmean(contender.losses[-last:])
        print(f"{contender.case:42} loss of updates {updates - last + 1} to {updates}: {loss:.4f}")
        rows.append({"case": contender.case, "loss": loss})
    return rows


if __name__ == "__main__":
    main()
