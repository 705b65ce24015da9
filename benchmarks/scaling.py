"""Cost of training on several processes: time of sums, memory per process, and a prediction for many GPUs.

    python benchmarks/scaling.py [--processes 2 4] [--megabytes 0.01 1 16] [--rounds 20] [--json FILE]

Measured: the time that gloo takes to sum gradients over processes of this machine. The latency a and bandwidth b of a
ring are fitted to it by least squares of relative errors,

    t(N, B) = 2 (N - 1) a  +  2 (N - 1) / N * B / b

Computed, not measured: the bytes of weights, gradients, optimizer state and average that each process keeps for a
network of a billion parameters, from the shapes of the network on the device ``meta``; and the time of an update on 8
to 512 GPUs by the same formula, with the assumptions in `GPU` and `NETWORKS`.
"""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import time
from argparse import Namespace
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from common import parser, write_figures

BILLION = {"source_vocab": 64_000, "target_vocab": 64_000, "width": 1536, "heads": 24, "inner": 6144}
"""A network of 1.0 billion parameters with 14 + 14 layers."""


@dataclass(frozen=True)
class Gpu:
    """Assumptions about a GPU."""

    flops: float = 400e12
    """Operations per second that training reaches in bfloat16: 40% of the peak of an H100."""
    tokens: int = 16_384
    """Tokens per update."""
    inside: float = 300e9
    """Bytes per second between the GPUs of a machine."""
    each: int = 8
    """GPUs per machine."""


@dataclass(frozen=True)
class Network:
    """Assumptions about the network between machines."""

    name: str
    bandwidth: float
    """Bytes per second and machine."""
    latency: float
    """Seconds per step of a ring."""


GPU = Gpu()
NETWORKS = (Network("Ethernet, 25 Gbit/s", 3.1e9, 20e-6), Network("InfiniBand, 8 x 400 Gbit/s", 400e9, 5e-6))


def ring(count: int, size: float, latency: float, bandwidth: float) -> float:
    """Seconds to sum ``size`` bytes over ``count`` processes in a ring."""
    return 2 * (count - 1) * latency + 2 * (count - 1) / count * size / bandwidth


def all_reduce(gpus: int, size: float, network: Network) -> float:
    """Seconds to sum ``size`` bytes over GPUs of one machine, or of several machines and their network."""
    if gpus <= GPU.each:
        return ring(gpus, size, 3e-6, GPU.inside)
    machines = math.ceil(gpus / GPU.each)
    within = 2 * (GPU.each - 1) / GPU.each * size / GPU.inside
    return 2 * (gpus - 1) * network.latency + max(2 * (machines - 1) / machines * size / network.bandwidth, within)


def update(way: str, gpus: int, parameters: int, network: Network) -> tuple[float, float]:
    """Seconds of an update, and of its computation alone.

    A gradient or weight takes 4 bytes. Gathering or scattering takes half the time of a sum. DDP hides the sum behind
    the backward pass (two thirds of the computation), except for its last bucket of 25 MB; FSDP2 also hides gathering.
    """
    computing = 6 * parameters * GPU.tokens / GPU.flops
    forward, backward = computing / 3, 2 * computing / 3
    gradients = all_reduce(gpus, 4 * parameters, network)
    if way == "sum":
        return computing + gradients, computing
    if way == "replicated":
        return forward + max(backward, gradients) + all_reduce(gpus, 25e6, network), computing
    gather = gradients / 2
    return max(forward, gather) + max(backward, gather + gradients / 2), computing


def kept(network: torch.nn.Module, count: int, copies: int) -> tuple[int, int]:
    """The bytes that the first of ``count`` processes keeps, and the maximum that it gathers at a time.

    Args:
        network: the network, on any device.
        count: number of processes; rows are divided as `torch.chunk` does.
        copies: number of tensors per parameter: weight, gradient, optimizer state, average.
    """
    own = sum(4 * -(-len(p) // count) * (p.numel() // len(p)) for p in network.parameters())
    from multihead.training.sharded import layers_of

    groups = [sum(4 * p.numel() for p in layer.parameters()) for layer in layers_of(network)]
    rest = sum(4 * p.numel() for p in network.parameters()) - sum(groups)
    return copies * own, 0 if count == 1 else rest + 2 * max(groups)


def memory(counts: list[int], layers: int = 14) -> list[dict[str, Any]]:
    """The table of memory for a network of a billion parameters, trained by Adam with an average."""
    from multihead.models.config import TransformerConfig
    from multihead.models.transformer import Transformer

    with torch.device("meta"):
        network = Transformer(TransformerConfig(**BILLION, encoder_layers=layers, decoder_layers=layers))
    parameters = sum(p.numel() for p in network.parameters())
    rows = []
    for count in counts:
        own, gathered = kept(network, count, 5)
        case = f"{parameters / 1e9:.2f} billion parameters, {count} processes"
        rows.append({"case": case, "own_gb": own / 1e9, "gathered_gb": gathered / 1e9})
    return rows


def worker(rank: int, size: int, port: int, sizes: list[float], rounds: int) -> None:
    """One of the processes; the first prints the minimum seconds for each size, the least disturbed measurement."""
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=size)
    found = []
    for megabytes in sizes:
        tensor = torch.zeros(max(int(megabytes * 250_000), 1))
        taken = []
        for _ in range(rounds + 1):
            dist.barrier()
            started = time.perf_counter()
            dist.all_reduce(tensor)
            taken.append(time.perf_counter() - started)
        found.append(min(taken[1:]))
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


def measure(size: int, flags: Namespace) -> list[float]:
    """The minimum seconds of a sum over ``size`` processes of this machine, for each number of bytes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    numbers = [str(megabytes) for megabytes in flags.megabytes]
    command = [sys.executable, __file__, "--rounds", str(flags.rounds), "--megabytes", *numbers, "--worker"]
    started = [
        subprocess.Popen([*command, str(rank), str(size), str(port)], stdout=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    outputs = [process.communicate()[0] for process in started]
    found: list[float] = json.loads(outputs[0])
    return found


def fit(times: dict[tuple[int, float], float]) -> tuple[float, float]:
    """The latency a and bandwidth b of `ring` that minimize the sum of squared relative errors."""
    rows = [(2 * (n - 1) / t, 2 * (n - 1) / n * size / t) for (n, size), t in times.items()]
    (latency, inverse), *_ = np.linalg.lstsq(np.array(rows), np.ones(len(rows)), rcond=None)
    return float(latency), 1 / float(inverse)


def main() -> None:
    flags = parser(__doc__, rounds=20, threads=None)
    flags.add_argument("--processes", type=int, nargs="+", default=[2, 4], help="numbers of processes to measure (2 4)")
    flags.add_argument("--megabytes", type=float, nargs="+", default=[0.01, 1.0, 16.0], help="sizes summed (0.01 1 16)")
    flags.add_argument("--worker", type=int, nargs=3, help="internal: rank, number of processes, port")
    given = flags.parse_args()
    if given.worker:
        worker(*given.worker, given.megabytes, given.rounds)
        return
    times = {
        (size, 1e6 * megabytes): seconds
        for size in given.processes
        for megabytes, seconds in zip(given.megabytes, measure(size, given), strict=True)
    }
    latency, bandwidth = fit(times)
    rows: list[dict[str, Any]] = []
    print(f"gloo on this machine: a = {1e6 * latency:.0f} microseconds, b = {bandwidth / 1e9:.2f} GB/s")
    for (size, bytes_), seconds in times.items():
        fitted = ring(size, bytes_, latency, bandwidth)
        rows.append(
            {"case": f"{size} processes, {bytes_ / 1e6:g} MB", "ms": 1000 * seconds, "fitted_ms": 1000 * fitted}
        )
        print(f"  {rows[-1]['case']}: {1000 * seconds:.2f} ms, fitted {1000 * fitted:.2f} ms")
    print("bytes per process for weights, gradients, Adam's state and average (computed):")
    for row in memory([1, 2, 4, 8, 64, 512]):
        rows.append(row)
        print(f"  {row['case']}: {row['own_gb']:.2f} GB, and {row['gathered_gb']:.2f} GB gathered at a time")
    print(f"updates of 1 billion parameters, {GPU.tokens:,} tokens per GPU (predicted): ms, and share of computation")
    for network in NETWORKS:
        for gpus in (8, 16, 32, 64, 128, 256, 512):
            row = {"case": f"{network.name}, {gpus} GPUs"}
            for way in ("sum", "replicated", "sharded"):
                seconds, computing = update(way, gpus, 10**9, network)
                row |= {way: 1000 * seconds, f"{way}_share": computing / seconds}
            rows.append(row)
            told = (f"{way} {row[way]:,.0f} ({row[f'{way}_share']:.0%})" for way in ("sum", "replicated", "sharded"))
            print(f"  {row['case']}: {', '.join(told)}")
    write_figures(given, {"rows": rows, "latency_us": 1e6 * latency, "bandwidth_gb_s": bandwidth / 1e9})


if __name__ == "__main__":
    main()
