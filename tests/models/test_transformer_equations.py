"""The Transformer against its equations, written out sentence by sentence.

The reference takes the parameters by name and a sentence at a time, without padding, masks or batches; each
query and each position is computed separately. Positions are `sinusoid`, whose formula test_embedding.py tests.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from multihead.models.layers import sinusoid
from multihead.models.transformer import Transformer

Ids = tuple[int, ...]

OPTIONS: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "pre-norm": {"norm": "pre"},
    "pre-norm without a last one": {"norm": "pre", "final_norm": False},
    "post-norm with a last one": {"final_norm": True},
    "another epsilon": {"norm_eps": 0.1, "embedding_norm": True},
    "learned positions": {"positions": "learned", "max_positions": 9},
    "too few learned positions": {"positions": "learned", "max_positions": 3},
    "scaled projection": {"embedding_scale": "projection"},
    "nothing scaled": {"embedding_scale": "none"},
    "norm of embeddings": {"embedding_norm": True},
    "grouped queries": {"kv_heads": 2},
    "one head of keys": {"kv_heads": 1},
    "wide keys": {"key_dim": 7},
    "wide values": {"value_dim": 5},
    "heads that do not divide": {"heads": 3, "key_dim": 2, "value_dim": 6},
    "no biases in attention": {"attention_bias": False},
    "GELU": {"feed_forward": "gelu"},
    "SiLU": {"feed_forward": "silu"},
    "a biased output": {"output_bias": True},
    "sines, then cosines": {"sinusoid": "halves"},
    "ReGLU": {"feed_forward": "reglu"},
    "GEGLU": {"feed_forward": "geglu"},
    "SwiGLU": {"feed_forward": "swiglu"},
    "all tied": {"target_vocab": 13, "tie_embeddings": True},
    "embeddings tied": {"target_vocab": 13, "tie_embeddings": True, "tie_output": False},
    "GELU by its tanh formula": {"feed_forward": "gelu_tanh"},
    "GEGLU by its tanh formula, no biases": {"feed_forward": "geglu_tanh", "feed_forward_bias": False},
    "RMS norms": {"norm_kind": "rms", "norm_eps": 0.1, "embedding_norm": True},
    "pre-norm by RMS": {"norm": "pre", "norm_kind": "rms"},
    "relative positions": {"positions": "relative", "relative_buckets": 4, "relative_distance": 3},
    "positions of keys and values": {"positions": "shaw", "relative_distance": 2},
    "positions of keys and wide values": {"positions": "shaw", "kv_heads": 2, "key_dim": 3, "value_dim": 5},
    "parallel blocks": {"norm": "pre", "block": "parallel"},
    "parallel blocks, gated, RMS": {"norm": "pre", "block": "parallel", "norm_kind": "rms", "feed_forward": "swiglu"},
    "rotary positions": {"positions": "rotary"},
    "rotary positions, one head of keys": {"positions": "rotary", "kv_heads": 1, "key_dim": 6},
    "linear positions": {"positions": "alibi"},
    "linear positions, six heads": {"positions": "alibi", "heads": 6, "key_dim": 3, "value_dim": 2},
    "no positions": {"positions": "none"},
    "norms of queries and keys": {"query_key_norm": "rms", "norm_eps": 0.1, "positions": "rotary", "kv_heads": 2},
    "layer norms of queries and keys": {"query_key_norm": "layer", "norm_eps": 0.1, "key_dim": 7},
    "a window": {"encoder_window": 1},
    "a window and distances": {"encoder_window": 2, "positions": "alibi", "kv_heads": 1},
    "nothing tied": {"tie_output": False, "embedding_scale": "projection"},
}


SLOPES = {4: [2**-2, 2**-4, 2**-6, 2**-8], 6: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]}
"""Press et al. (2022), section 3: of four heads; of six, those of four and every other one of eight."""


class Written:
    """The network of `model`, written out."""

    def __init__(self, model: Transformer) -> None:
        self.config = model.config
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        self.weights: dict[str, list[Tensor]] = {"encoder": [], "decoder": [], "cross": []}

    def logits(self, source: Ids, target: Ids) -> Tensor:
        x = self.embedded("source", source)
        if self.config.block == "parallel":
            return self.parallel_logits(source, target)
        for layer in range(self.config.encoder_layers):
            x = self.sub_layer(f"encoder.{layer}.self", x, lambda z, name: self.attention(name, z, z, "encoder"))
            x = self.sub_layer(f"encoder.{layer}.feed_forward", x, self.feed_forward)
        memory = self.last_norm("encoder", x)
        y = self.embedded("target", target)
        for layer in range(self.config.decoder_layers):
            y = self.sub_layer(f"decoder.{layer}.self", y, lambda z, name: self.attention(name, z, z, "decoder"))
            y = self.sub_layer(f"decoder.{layer}.cross", y, lambda z, name: self.attention(name, z, memory, "cross"))
            y = self.sub_layer(f"decoder.{layer}.feed_forward", y, self.feed_forward)
        logits = self.linear("output", self.last_norm("decoder", y))
        return logits / math.sqrt(self.config.width) if self.config.embedding_scale == "projection" else logits

    def parallel_logits(self, source: Ids, target: Ids) -> Tensor:
        """PaLM (Chowdhery et al. 2022), section 2: y = x + MLP(norm(x)) + Attention(norm(x))."""
        x = self.embedded("source", source)
        for name in (f"encoder.{layer}" for layer in range(self.config.encoder_layers)):
            z = self.norm(f"{name}.self_residual.norm", x)
            x = x + self.attention(f"{name}.self_attention", z, z, "encoder")
            x = x + self.feed_forward(z, f"{name}.feed_forward")
        memory, y = self.last_norm("encoder", x), self.embedded("target", target)
        for name in (f"decoder.{layer}" for layer in range(self.config.decoder_layers)):
            z = self.norm(f"{name}.self_residual.norm", y)
            y = y + self.attention(f"{name}.self_attention", z, z, "decoder")
            y = y + self.attention(f"{name}.cross_attention", z, memory, "cross")
            y = y + self.feed_forward(z, f"{name}.feed_forward")
        return self.linear("output", self.last_norm("decoder", y))

    def embedded(self, side: str, ids: Ids) -> Tensor:
        """3.4 and 3.5."""
        name, width = f"{side}_embedding", self.config.width
        states = []
        for time, token in enumerate(ids):
            if self.config.positions in ("relative", "shaw", "rotary", "alibi", "none"):
                place = torch.zeros(width).double()
            elif self.config.positions == "learned":
                place = self.parameters[f"{name}.positions.table.weight"][min(time, self.config.max_positions - 1)]
            else:
                place = sinusoid(torch.tensor([time]), width, self.config.sinusoid)[0].double()
            scale = math.sqrt(width) if self.config.embedding_scale == "embedding" else 1
            states.append(scale * self.parameters[f"{name}.table.weight"][token] + place)
        return self.norm(f"{name}.norm", torch.stack(states)) if self.config.embedding_norm else torch.stack(states)

    def sub_layer(self, name: str, x: Tensor, function: Any) -> Tensor:
        """norm(x + f(x)), or x + f(norm(x))."""
        inner = name if name.endswith("feed_forward") else f"{name}_attention"
        if self.config.norm == "pre":
            return x + function(self.norm(f"{name}_residual.norm", x), inner)
        return self.norm(f"{name}_residual.norm", x + function(x, inner))

    def last_norm(self, side: str, x: Tensor) -> Tensor:
        return self.norm(f"{side}_norm", x) if self.config.has_final_norm else x

    def norm(self, name: str, x: Tensor) -> Tensor:
        """Ba, Kiros & Hinton (2016)."""
        if self.config.norm_kind == "rms":  # Zhang & Sennrich (2019)
            square = (x * x).sum(-1, keepdim=True) / x.size(-1)
            return x / torch.sqrt(square + self.config.norm_eps) * self.parameters[f"{name}.weight"]
        mean = x.sum(-1, keepdim=True) / x.size(-1)
        variance = ((x - mean) ** 2).sum(-1, keepdim=True) / x.size(-1)
        unit = (x - mean) / torch.sqrt(variance + self.config.norm_eps)
        return unit * self.parameters[f"{name}.weight"] + self.parameters[f"{name}.bias"]

    def attention(self, name: str, x: Tensor, memory: Tensor, kind: str) -> Tensor:
        """Section 3.2: each query by itself, over the keys that it sees."""
        heads = self.config.heads
        kv_heads = self.config.kv_heads or heads
        d_k = self.config.key_dim or self.config.width // heads
        d_v = self.config.value_dim or self.config.width // heads
        sizes = (heads * d_k, kv_heads * d_k, kv_heads * d_v)
        queries, keys, values = self.project(name, (x, memory, memory), sizes)
        shared = [head * kv_heads // heads for head in range(heads)]
        keys, values = keys.unflatten(1, (kv_heads, d_k))[:, shared], values.unflatten(1, (kv_heads, d_v))[:, shared]
        queries = queries.unflatten(1, (heads, d_k))
        queries, keys = self.head_norm(f"{name}.query_norm", queries), self.head_norm(f"{name}.key_norm", keys)
        if self.config.positions == "rotary" and kind != "cross":
            queries, keys = self.rotated(queries), self.rotated(keys)
        outputs, weights = [], []
        for time, query in enumerate(queries):
            first, seen = 0, time + 1 if kind == "decoder" else len(memory)
            if kind == "encoder" and self.config.encoder_window:  # Beltagy et al. (2020), 3.1
                first, seen = (
                    max(0, time - self.config.encoder_window),
                    min(seen, time + self.config.encoder_window + 1),
                )
            scores = (query * keys[first:seen]).sum(-1) / math.sqrt(d_k)
            if self.config.positions == "relative" and kind != "cross":
                table = self.parameters[f"{kind}_positions.table"]
                scores = scores + torch.stack(
                    [table[self.bucket(key - time, kind == "decoder")] for key in range(first, seen)]
                )
            if self.config.positions == "alibi" and kind != "cross":  # Press et al. (2022), with |i - j|
                distances = torch.tensor([abs(time - key) for key in range(first, seen)]).double()
                scores = scores - distances[:, None] * torch.tensor(SLOPES[heads]).double()
            seen_values = values[first:seen]
            if self.config.positions == "shaw" and kind != "cross":
                apart = [self.clipped(key - time, kind == "decoder") for key in range(first, seen)]
                of_keys, of_values = (
                    self.parameters[f"{name}.relative_positions.{part}"] for part in ("keys", "values")
                )
                scores = scores + torch.stack([query @ of_keys[row] for row in apart]) / math.sqrt(d_k)
                seen_values = seen_values + torch.stack([of_values[row] for row in apart])[:, None]
            weight = scores.exp() / scores.exp().sum(0)
            outputs.append((weight[:, :, None] * seen_values).sum(0).flatten())
            hidden = weight.new_zeros(first, heads), weight.new_zeros(len(memory) - seen, heads)
            weights.append(torch.cat((hidden[0], weight, hidden[1])))
        self.weights[kind].append(torch.stack(weights).permute(2, 0, 1))
        return self.linear(f"{name}.output_projection", torch.stack(outputs))

    def head_norm(self, name: str, x: Tensor) -> Tensor:
        """Dehghani et al. (2023): every head by itself, with a gain that the heads share."""
        if self.config.query_key_norm == "none":
            return x
        x = x if self.config.query_key_norm == "rms" else x - x.mean(-1, keepdim=True)
        square = (x * x).sum(-1, keepdim=True) / x.size(-1)
        return x / torch.sqrt(square + self.config.norm_eps) * self.parameters[f"{name}.weight"]

    @staticmethod
    def rotated(x: Tensor) -> Tensor:
        """Su et al. (2021), 3.2: features j and j + d/2 as the number x_j + i x_{j + d/2}, times e^{i t theta}."""
        half = x.size(-1) // 2
        turns = sinusoid(torch.arange(len(x)), x.size(-1), "halves").double()[:, None]  # e^{i t theta}, in float32
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.complex(turns[..., half:], turns[..., :half])
        return torch.cat((turned.real, turned.imag), -1)

    def project(self, name: str, inputs: tuple[Tensor, ...], sizes: tuple[int, ...]) -> list[Tensor]:
        """Q, K and V; their matrices are stored one below the other."""
        matrices = self.parameters[f"{name}.in_projection.weight"].split(sizes)
        products = [x @ w.t() for x, w in zip(inputs, matrices, strict=True)]
        if not self.config.attention_bias:
            return products
        biases = self.parameters[f"{name}.in_projection.bias"].split(sizes)
        return [product + bias for product, bias in zip(products, biases, strict=True)]

    def feed_forward(self, z: Tensor, name: str) -> Tensor:
        """3.3, or Shazeer (2020)."""
        first = self.linear(f"{name}.expand", z)
        kind = self.config.feed_forward
        gated = "glu" in kind
        activated = self.linear(f"{name}.gate", z) if gated else first
        if kind in ("relu", "reglu"):
            activated = activated * (activated > 0)
        elif kind in ("gelu", "geglu"):
            activated = activated * (1 + torch.erf(activated / math.sqrt(2))) / 2
        elif kind.endswith("tanh"):
            inner = math.sqrt(2 / math.pi) * (activated + 0.044715 * activated**3)
            activated = activated * (1 + torch.tanh(inner)) / 2
        else:
            activated = activated / (1 + torch.exp(-activated))
        return self.linear(f"{name}.contract", activated * first if gated else activated)

    def bucket(self, distance: int, causal: bool) -> int:
        """Raffel et al. (2020), 2.1: one bucket for each small distance, then logarithmically growing ranges."""
        side = self.config.relative_buckets if causal else self.config.relative_buckets // 2
        first, away = (side if distance > 0 and not causal else 0), abs(distance)
        exact = side // 2
        if away < exact:
            return first + away
        growth = math.log(away / exact) / math.log(self.config.relative_distance / exact)
        return first + min(exact + int(growth * (side - exact)), side - 1)

    def clipped(self, distance: int, causal: bool) -> int:
        """Shaw et al. (2018), 3.2: the row of a distance; the first is that of -k, and k is 16 if not given."""
        most = self.config.relative_distance or 16
        return most + max(-most, min(0 if causal else most, distance))

    def linear(self, name: str, x: Tensor) -> Tensor:
        product = x @ self.parameters[f"{name}.weight"].t()
        bias = self.parameters.get(f"{name}.bias")
        return product if bias is None else product + bias


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_network_is_the_equations(small: Any, name: str) -> None:
    """Logits, all weights of all heads, and the gradient of every parameter; in a batch with padding."""
    model = small.model(decoder_layers=1, **OPTIONS[name])
    sources, targets = small.sources[:2], small.targets[:2]
    (source, lengths), (target, _) = small.padded(sources, 1), small.padded(targets, 1)
    output = model(source, lengths, target, need_weights=True)

    written = [Written(model) for _ in sources]
    expected = [one.logits(*ids) for one, *ids in zip(written, sources, targets, strict=True)]
    for row, (one, theirs) in enumerate(zip(written, expected, strict=True)):
        long, short = len(sources[row]), len(targets[row])
        close(output.logits[row, :short], theirs)
        for kind, queries, keys in (("encoder", long, long), ("decoder", short, short), ("cross", short, long)):
            ours = getattr(output.weights, kind)
            assert len(ours) == len(one.weights[kind])
            for found, weights in zip(ours, one.weights[kind], strict=True):
                close(found[row, :, :queries, :keys], weights)
                assert not found[row, :, :queries, keys:].any()

    direction = [torch.randn_like(theirs) for theirs in expected]
    names, parameters = zip(*model.named_parameters(), strict=True)
    ours = sum((output.logits[row, : len(d)] * d).sum() for row, d in enumerate(direction))
    theirs = sum((logits * d).sum() for logits, d in zip(expected, direction, strict=True))
    gradients = (torch.autograd.grad(total, parameters) for total in (ours, theirs))
    for _, found, wanted in zip(names, *gradients, strict=True):
        close(found, wanted)


def test_without_the_source_end_the_encoder_reads_one_symbol_less(small: Any) -> None:
    """The result is that of the source without its last symbol; a single symbol is always read."""
    model, other = (small.model(source_end=read) for read in (False, True))
    other.load_state_dict(model.state_dict())
    sources, targets = [*small.sources[:2], small.sources[0][:1]], [*small.targets[:2], small.targets[0]]
    target, _ = small.padded(targets, 1)
    found = model(*small.padded(sources, 1), target).logits
    expected = other(*small.padded([row[:-1] or row for row in sources], 1), target).logits
    for row, theirs in enumerate(targets):
        close(found[row, : len(theirs)], expected[row, : len(theirs)])
