"""The peers in training benchmarks: their networks and their training loop.

The networks are imported from PyTorch and `transformers`. This module adds what they leave to their users: embeddings
and positions for `torch.nn.Transformer`, a configuration, and the loop with Adam. Nothing here changes process-wide
settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multihead.data.batching import Batch
from multihead.models.layers import sinusoid
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import learning_rate

PAD, BEGIN, END = 0, 2, 3
SMOOTHING, CLIP = 0.1, 1.0
Update = Callable[[Batch, int], float]
"""Makes one update on a batch, at a step counted from 1; returns the loss per token."""
Logits = Callable[[Batch], Tensor]
"""What a network predicts at each position of a batch: [batch, target, vocabulary]."""


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer`, with the tied embedding and the positions that it leaves to its users."""

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


def peer(name: str, sizes: dict[str, Any]) -> tuple[nn.Module, Logits]:
    """A peer's network and its logits."""
    if name == "torch.nn.Transformer":
        own = TorchTransformer(sizes)
        return own, lambda batch: own(batch.source, batch.source_lengths, batch.target_input)
    model = marian(sizes)

    def logits(batch: Batch) -> Tensor:
        found: Tensor = model(
            input_ids=batch.source,
            attention_mask=source_mask(batch),
            decoder_input_ids=batch.target_input,
            use_cache=False,
        ).logits
        return found

    return model, logits


def source_mask(batch: Batch) -> Tensor:
    """1 for each token of the sources, 0 for padding."""
    return (torch.arange(batch.source.shape[1]) < batch.source_lengths[:, None]).long()


def adam(model: nn.Module, settings: TrainingConfig) -> torch.optim.Optimizer:
    """The optimizer of `common_loop`, which sets its learning rate."""
    return torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=settings.weight_decay)


def common_loop(model: nn.Module, logits: Logits, optimizer: torch.optim.Optimizer, settings: TrainingConfig) -> Update:
    """The training loop that users of a peer write: AdamW, label smoothing, clipping, autocast for bfloat16."""
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
