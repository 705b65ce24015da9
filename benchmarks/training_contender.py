"""One contender of `training.py`: trains on request and reports the time.

Contenders cannot share a process, since they differ in allocator settings, which apply to a whole process. Lines on
standard input: ``run N`` trains N updates on the next batches; ``peak N`` measures products of N x N
matrices in this process's precision. Each is answered by a line of JSON. The peers are in `peers.py`.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from multihead.cli.process import configure_process

if "--plain" not in sys.argv:
    configure_process()  # as our commands do, before PyTorch is imported

import torch
from peers import PAD, Update, adam, common_loop, peer

from multihead.data.batching import Batch
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import Average, build_optimizer, learning_rate
from multihead.training.step import train_step


def multihead(sizes: dict[str, Any], settings: TrainingConfig) -> Update:
    """Our update, as in `multihead train`, including the moving average of the weights."""
    model = Transformer(TransformerConfig(padding_id=PAD, norm="post", **sizes))
    optimizer = build_optimizer(model, settings)
    average: Average[Transformer] = Average(model, settings.average)

    def update(batch: Batch, step: int) -> float:
        rate = learning_rate(settings, step, model.config.width)
        sums = train_step(model, optimizer, [batch], settings, step, rate)
        average.update(step)
        return sums.loss / sums.tokens

    return update


def contender(name: str, sizes: dict[str, Any], settings: TrainingConfig) -> Update:
    """The contender with this name; all get initial values from the same seed."""
    torch.manual_seed(settings.seed)
    if name == "multihead":
        return multihead(sizes, settings)
    model, logits = peer(name, sizes)
    return common_loop(model, logits, adam(model, settings), settings)


def peak(precision: str, size: int, rounds: int = 5) -> dict[str, float]:
    """Operations per second, and per second of processor time, of a matrix product in this precision."""
    kind = torch.bfloat16 if precision == "bfloat16" else torch.float32
    one, other = torch.randn(size, size, dtype=kind), torch.randn(size, size, dtype=kind)
    torch.mm(one, other)
    started, worked, operations = time.perf_counter(), time.process_time(), 2 * size**3 * rounds
    for _ in range(rounds):
        torch.mm(one, other)
    seconds, processor = time.perf_counter() - started, time.process_time() - worked
    return {"peak": operations / seconds, "processor": operations / processor}


def main() -> None:
    """``training_contender.py NAME FILE PRECISION [--plain]``: FILE has sizes, settings and batches."""
    name, file = sys.argv[1], Path(sys.argv[2])
    work = torch.load(file, weights_only=False)
    precision = sys.argv[3]
    settings = TrainingConfig(**work["settings"], precision=precision)
    torch.set_num_threads(settings.threads)
    update = contender(name, work["sizes"], settings)
    batches: Iterator[Batch] = cycle(work["batches"])
    step = 0
    print(json.dumps({"ready": name}), flush=True)
    for line in sys.stdin:
        word, _, number = line.strip().partition(" ")
        if word == "peak":
            print(json.dumps(peak(precision, int(number))), flush=True)
            continue
        losses, tokens, started, worked = [], 0, time.perf_counter(), time.process_time()
        for _ in range(int(number)):
            step, batch = step + 1, next(batches)
            losses.append(update(batch, step))
            tokens += batch.target_tokens
        seconds, processor = time.perf_counter() - started, time.process_time() - worked
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        found = {"seconds": seconds, "processor": processor, "tokens": tokens, "losses": losses, "memory": memory}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
