"""One contender of `training.py`: trains on request and reports the time.

The allocator's settings and the threads of a process belong to it alone, so contenders that differ in them cannot share
one. Lines on standard input: ``run N`` trains N updates on the next batches; ``peak N`` measures products of N x N
matrices in this process's precision. Each is answered by a line of JSON. The peers' own code is not here: they are
imported.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from multihead.cli.process import configure_process

if "--plain" not in sys.argv:
    configure_process()  # before PyTorch is imported, as the commands do

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multihead.data.batching import Batch
from multihead.models.config import TransformerConfig
from multihead.models.layers import sinusoid
from multihead.models.transformer import Transformer
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import Average, build_optimizer, learning_rate
from multihead.training.step import train_step

PAD, BEGIN, END = 0, 2, 3
SMOOTHING, CLIP = 0.1, 1.0
Update = Callable[[Batch, int], float]
"""One update on a batch, at a step counted from 1; returns the loss per token."""


def multihead(sizes: dict[str, Any], settings: TrainingConfig) -> Update:
    """Ours, as in `multihead train`, including the moving average of the weights."""
    model = Transformer(TransformerConfig(padding_id=PAD, norm="post", **sizes))
    optimizer = build_optimizer(model, settings)
    average: Average[Transformer] = Average(model, settings.average)

    def update(batch: Batch, step: int) -> float:
        rate = learning_rate(settings, step, model.config.width)
        sums = train_step(model, optimizer, [batch], settings, step, rate)
        average.update(step)
        return sums.loss / sums.tokens

    return update


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` with tied embedding and positions, which it leaves to its users."""

    def __init__(self, sizes: dict[str, Any]) -> None:
        super().__init__()
        width = sizes["width"]
        self.embedding = nn.Embedding(sizes["source_vocab"], width, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.register_buffer("positions", sinusoid(torch.arange(512), width))
        self.dropout = nn.Dropout(sizes["dropout"])
        self.transformer = nn.Transformer(
            width,
            sizes["heads"],
            sizes["encoder_layers"],
            sizes["decoder_layers"],
            sizes["inner"],
            sizes["dropout"],
            batch_first=True,
        )

    def embed(self, ids: Tensor) -> Tensor:
        """Scaled embeddings and positions."""
        width = self.embedding.embedding_dim
        return self.dropout(self.embedding(ids) * width**0.5 + self.positions[: ids.shape[1]])  # type: ignore[index, no-any-return]

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Logits."""
        padding = torch.arange(source.shape[1]) >= lengths[:, None]
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        states = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return F.linear(states, self.embedding.weight)


def marian(sizes: dict[str, Any]) -> nn.Module:
    """`transformers`' MarianMT of the same sizes, with its own initial values."""
    from transformers import MarianConfig, MarianMTModel

    layers = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {
            "layers": sizes[f"{side}_layers"],
            "attention_heads": sizes["heads"],
            "ffn_dim": sizes["inner"],
        }.items()
    }
    config = MarianConfig(
        vocab_size=sizes["source_vocab"], d_model=sizes["width"], dropout=sizes["dropout"], activation_function="relu",
        attention_dropout=0.0, activation_dropout=0.0, scale_embedding=True, max_position_embeddings=512,
        pad_token_id=PAD, decoder_start_token_id=BEGIN, eos_token_id=END, forced_eos_token_id=END, use_cache=False,
        init_std=sizes["width"] ** -0.5, **layers,
    )  # fmt: skip
    made: nn.Module = MarianMTModel(config)
    return made


def common_loop(model: nn.Module, logits: Callable[[Batch], Tensor], settings: TrainingConfig) -> Update:
    """A peer in the loop that its users write: AdamW, label smoothing, clipping, autocast for bfloat16."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
    model.train()

    def update(batch: Batch, step: int) -> float:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step, 0)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=settings.precision == "bfloat16"):
            scores = logits(batch)
        loss = F.cross_entropy(
            scores.flatten(0, 1).float(), batch.target_output.flatten(), ignore_index=PAD, label_smoothing=SMOOTHING
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return loss.item()

    return update


def contender(name: str, sizes: dict[str, Any], settings: TrainingConfig) -> Update:
    """A contender by name, with initial values from the same seed."""
    torch.manual_seed(settings.seed)
    if name == "multihead":
        return multihead(sizes, settings)
    if name == "torch.nn.Transformer":
        model: nn.Module = TorchTransformer(sizes)
        return common_loop(model, lambda b: model(b.source, b.source_lengths, b.target_input), settings)
    model = marian(sizes)

    def logits(batch: Batch) -> Tensor:
        mask = (torch.arange(batch.source.shape[1]) < batch.source_lengths[:, None]).long()
        found: Tensor = model(
            input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.target_input, use_cache=False
        ).logits
        return found

    return common_loop(model, logits, settings)


def peak(precision: str, size: int, rounds: int = 5) -> float:
    """Operations per second of a matrix product in this contender's precision."""
    kind = torch.bfloat16 if precision == "bfloat16" else torch.float32
    one, other = torch.randn(size, size, dtype=kind), torch.randn(size, size, dtype=kind)
    torch.mm(one, other)
    started = time.perf_counter()
    for _ in range(rounds):
        torch.mm(one, other)
    return 2 * size**3 * rounds / (time.perf_counter() - started)


def main() -> None:
    """``training_contender.py NAME FILE [--plain]``: FILE has sizes, settings and batches (`training.py` writes it)."""
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
            print(json.dumps({"peak": peak(precision, int(number))}), flush=True)
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
