"""Transformers of every shape with random weights, sentences for them, and the criterion for equal searches."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import pytest
import torch

from multihead.configuration import build
from multihead.data.batching import collate_source
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.search import Search, Symbols
from multihead.decoding.task import SearchTask
from multihead.engine.weights import load_search_library
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer

VOCAB = 90
SYMBOLS = Symbols(begin=2, end=3, forbidden=(0, 1, 2))
NEAR = 1e-4
"""Log-probabilities that differ by less than this are equal up to rounding."""

MODELS: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "pre-norm": {"norm": "pre"},
    "learned positions, gelu": {"positions": "learned", "max_positions": 7, "feed_forward": "gelu"},
    "one head of keys, swiglu": {"kv_heads": 1, "feed_forward": "swiglu", "final_norm": True},
    "two heads of keys, reglu": {"width": 64, "heads": 4, "kv_heads": 2, "feed_forward": "reglu"},
    "odd widths, no biases": {
        "width": 42, "heads": 3, "key_dim": 5, "value_dim": 7, "attention_bias": False, "inner": 33,
        "tie_output": False, "tie_embeddings": False, "embedding_scale": "none",
    },
    "geglu, normed embeddings": {
        "feed_forward": "geglu", "embedding_norm": True, "embedding_scale": "projection", "norm": "pre",
    },
    "silu, halves, biased output": {"feed_forward": "silu", "sinusoid": "halves", "output_bias": True},
    "fairseq's positions": {"norm": "pre", "sinusoid": "fairseq", "tie_output": False, "output_bias": True},
    "no source end": {"source_end": False, "embedding_norm": True},
    "RMS norms, tanh GELU": {"norm_kind": "rms", "feed_forward": "gelu_tanh", "embedding_norm": True},
    "T5": {
        "norm": "pre", "norm_kind": "rms", "feed_forward": "geglu_tanh", "feed_forward_bias": False, "key_dim": 8,
        "attention_bias": False, "positions": "relative", "embedding_scale": "projection", "value_dim": 8,
    },
    "relative positions, few buckets, vectors": {
        "width": 64, "heads": 4, "positions": "relative", "relative_buckets": 6, "relative_distance": 5,
    },
    "rotary": {"norm": "pre", "positions": "rotary", "width": 64, "heads": 4},
    "rotary, two heads of keys, odd values": {
        "positions": "rotary", "heads": 4, "kv_heads": 2, "key_dim": 6, "value_dim": 7, "embedding_norm": True,
    },
    "linear positions, vectors": {"norm": "pre", "positions": "alibi", "width": 64, "heads": 4},
    "linear positions, three heads": {"positions": "alibi", "width": 30, "heads": 3, "embedding_norm": True},
    "no positions": {"norm": "pre", "positions": "none"},
    "query-key norm, rotary, vectors": {
        "positions": "rotary", "query_key_norm": "rms", "width": 64, "heads": 4, "kv_heads": 2, "norm": "pre",
    },
    "query-key layer norm, odd widths": {"query_key_norm": "layer", "key_dim": 5, "value_dim": 7, "norm_eps": 1e-2},
    "encoder window": {"encoder_window": 2, "positions": "relative", "relative_distance": 20, "norm": "pre"},
    "positions of keys and values, vectors": {
        "positions": "shaw", "relative_distance": 3, "width": 64, "heads": 4, "norm": "pre", "block": "parallel",
    },
    "positions of keys and values, odd widths": {
        "positions": "shaw", "heads": 4, "kv_heads": 2, "key_dim": 5, "value_dim": 7, "encoder_window": 4,
    },
    "parallel blocks": {"norm": "pre", "block": "parallel", "positions": "relative", "relative_distance": 20},
    "parallel blocks, gated, RMS": {
        "norm": "pre", "block": "parallel", "feed_forward": "swiglu", "norm_kind": "rms", "kv_heads": 1,
        "positions": "rotary", "query_key_norm": "rms", "tie_output": False,
    },
    "heads of 48": {"width": 96, "heads": 2, "positions": "rotary", "norm": "pre"},
    "three heads, vectors": {"positions": "shaw", "relative_distance": 3, "width": 96, "heads": 3, "kv_heads": 1},
    "wide heads": {"width": 128, "heads": 2, "norm_eps": 1e-3},
}  # fmt: skip


def model_of(name: str = "post-norm", seed: int = 1) -> Transformer:
    """A model with random parameters, including gains, shifts and biases."""
    torch.manual_seed(seed)
    sizes = {"width": 32, "heads": 2, "inner": 48, "encoder_layers": 2, "decoder_layers": 2}
    model = Transformer(TransformerConfig(source_vocab=VOCAB, target_vocab=VOCAB, **{**sizes, **MODELS[name]})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return model


def sentences(count: int = 8, longest: int = 16, seed: int = 1) -> list[list[int]]:
    """Ids with the end symbol."""
    draw = random.Random(seed)
    return [[*(draw.randrange(4, VOCAB) for _ in range(draw.randint(1, longest))), 3] for _ in range(count)]


def limits_of(sources: list[list[int]]) -> tuple[list[int], list[int]]:
    """The maximum and the minimum length of the output of each sentence.

    The first output has at least 17 symbols, so that the engine's cache, which starts with room for 16, must grow.
    """
    draw = random.Random(2)
    most, least = [draw.randint(4, 12) for _ in sources], [draw.randint(0, 3) for _ in sources]
    return [18, *most[1:]], [17, *least[1:]]


def padded(sources: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    return collate_source([row[:-1] for row in sources], 0, 3)


def alike(got: list[Hypothesis], expected: list[Hypothesis], near: float = NEAR) -> bool:
    """Check scores and ends up to rounding; returns whether the symbols are equal, which near ties can prevent."""
    assert len(got) == len(expected)
    assert [h.score for h in got] == pytest.approx([h.score for h in expected], abs=near)
    assert [h.finished for h in got] == [h.finished for h in expected]
    return [h.tokens for h in got] == [h.tokens for h in expected]


@pytest.fixture(autouse=True)
def _compiled() -> None:
    found = load_search_library()
    if found.library is None:
        pytest.skip(found.reason)


def split(symbols: Symbols, **settings: Any) -> tuple[SearchTask, Search]:
    """The settings of a search as a task and a `Search`."""
    names = {field.name for field in fields(SearchTask)} & settings.keys()
    task = SearchTask(symbols, **{name: settings.pop(name) for name in names})
    return task, build(Search, settings, "the search")


class Drawn:
    """Helpers of the tests in this folder."""

    vocab = VOCAB
    symbols = SYMBOLS
    near = NEAR
    model = staticmethod(model_of)
    sentences = staticmethod(sentences)
    limits = staticmethod(limits_of)
    padded = staticmethod(padded)
    split = staticmethod(split)
    alike = staticmethod(alike)


@pytest.fixture(scope="session")
def drawn() -> Drawn:
    return Drawn()


@pytest.fixture(params=list(MODELS))
def kind(request: pytest.FixtureRequest) -> str:
    """The name of each model in turn."""
    name: str = request.param
    return name
