"""Traces show what happened in any module, and leave nothing behind."""

from __future__ import annotations

import contextlib
from typing import Any

import jaxtyping
import pytest
import torch
from torch import nn

from multihead.attention import Causal, MultiHeadAttention
from multihead.attention.torch_compatible.module import MultiheadAttention
from multihead.errors import InputError
from multihead.inspection.shapes import Row, Trace, trace
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer

STEPS = ["query", "W_q", "Q", "key", "W_k", "K", "value", "W_v", "V", "stacked", "W_o", "output"]


def steps(found: Trace, owner: Row | None = None) -> dict[str, tuple[int, ...]]:
    """Name and shape of the steps directly inside a row (by default the whole trace's first)."""
    start = 0 if owner is None else next(place for place, row in enumerate(found.rows) if row is owner)
    depth, inside = found.rows[start].depth, {}
    for row in found.rows[start + 1 :]:
        if row.depth <= depth:
            break
        if row.depth == depth + 1:
            inside[row.name] = row.outputs[0]
    return inside


@pytest.fixture(scope="module")
def model() -> Transformer:
    sizes: dict[str, Any] = {"source_vocab": 20, "target_vocab": 20, "width": 16, "heads": 4, "inner": 24}
    return Transformer(TransformerConfig(**sizes, encoder_layers=3, decoder_layers=2))


def traced(model: Transformer, **options: bool) -> Trace:
    source, target = torch.ones(2, 7, dtype=torch.long), torch.ones(2, 5, dtype=torch.long)
    return trace(model, source, torch.tensor([7, 4]), target, **options)


# --------------------------------------------------------------------------- attention, step by step


@pytest.mark.parametrize("kind", [nn.MultiheadAttention, MultiheadAttention])
def test_the_shapes_that_the_document_prints(kind: type[nn.MultiheadAttention]) -> None:
    """Five words, two sentences, width 32, one head, time first."""
    x, hidden = torch.rand(5, 2, 32), torch.tensor([[False, False, False, True, True], [False] * 4 + [True]])
    found = trace(kind(embed_dim=32, num_heads=1), x, x, x, key_padding_mask=hidden)
    weights = [(32, 32) if name.startswith("W") else (5, 2, 32) for name in STEPS]
    assert list(steps(found).items()) == list(zip(STEPS, weights, strict=True))
    assert found.rows[0].outputs == ((5, 2, 32), (2, 5, 5))
    assert "[query, batch, width]" in found.rows[1].what


def test_the_same_batch_first() -> None:
    for module in (MultiHeadAttention(32, 4), MultiheadAttention(32, 4, batch_first=True)):
        x = torch.rand(2, 5, 32)
        found = trace(module, x, x, x)
        weights = [(32, 32) if name.startswith("W") else (2, 5, 32) for name in STEPS]
        assert list(steps(found).items()) == list(zip(STEPS, weights, strict=True))
        assert "[batch, query, width]" in found.rows[1].what
        assert "4 heads" in found.rows[3].what


def test_each_matrix_is_the_part_that_makes_its_tensor() -> None:
    """All widths differ, so that a wrong slice has a wrong shape."""
    ours = MultiHeadAttention(16, 4, kv_heads=2, key_width=24, value_width=8, memory_width=10)
    found = steps(trace(ours, torch.rand(2, 5, 16), torch.rand(2, 6, 10), mask=Causal()))
    assert list(found) == [*STEPS[3:9], *STEPS[:3], *STEPS[9:]]  # in the order in which it happens
    assert found == {
        "key": (2, 6, 10), "W_k": (12, 10), "K": (2, 6, 12),
        "value": (2, 6, 10), "W_v": (4, 10), "V": (2, 6, 4),
        "query": (2, 5, 16), "W_q": (24, 16), "Q": (2, 5, 24),
        "stacked": (2, 5, 8), "W_o": (16, 8), "output": (2, 5, 16),
    }  # fmt: skip
    theirs = MultiheadAttention(16, 4, kdim=10, vdim=6, num_kv_heads=2)
    found = steps(trace(theirs, torch.rand(5, 2, 16), torch.rand(7, 2, 10), torch.rand(7, 2, 6)))
    assert found == {
        "query": (5, 2, 16), "W_q": (16, 16), "Q": (5, 2, 16),
        "key": (7, 2, 10), "W_k": (8, 10), "K": (7, 2, 8),
        "value": (7, 2, 6), "W_v": (8, 6), "V": (7, 2, 8),
        "stacked": (5, 2, 16), "W_o": (16, 16), "output": (5, 2, 16),
    }  # fmt: skip


def test_a_sentence_without_a_batch() -> None:
    found = trace(nn.MultiheadAttention(8, 2), *[torch.rand(5, 8)] * 3)
    assert steps(found)["Q"] == (5, 8)
    assert "[query, width]" in found.rows[1].what


# --------------------------------------------------------------------------- a whole network


def test_padding_hides_no_step_of_pytorchs_encoder():
    """Its fast path makes nested tensors of padded ones."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    x, padding = torch.zeros(2, 3, 8), torch.tensor([[False, False, True], [False, False, False]])
    assert torch.backends.mha.get_fastpath_enabled()
    plain, padded = trace(encoder, x), trace(encoder, x, src_key_padding_mask=padding)
    assert [row.outputs for row in padded.rows] == [row.outputs for row in plain.rows]
    assert {"Q", "K", "V"} < {row.name for row in padded.rows}
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_transformer_from_the_embedding_to_the_output(model: Transformer) -> None:
    found = traced(model)
    top = [row.name for row in found.rows if row.depth == 1]
    decoder = [f"decoder.{n // 2}" for n in range(4)]  # keys and values of the source come before the layer itself
    norms = [name for name in top if name.endswith("_norm")]
    layers = [name for name in top if name not in norms]
    assert layers == ["source_embedding", *[f"encoder.{n}" for n in range(3)], "target_embedding", *decoder, "output"]
    assert found.rows[0].inputs == (("source", (2, 7)), ("source_lengths", (2,)), ("target", (2, 5)))
    assert found.rows[0].outputs == ((2, 5, 20),)
    assert found.rows[-1].outputs == ((2, 5, 20),)
    assert found.rows[-1].parameters == (("weight", (20, 16)),)
    attentions = [row for row in found.rows if row.name.endswith("_attention")]
    assert len(attentions) == 3 + 2 * 3
    of_source, own, of_target = (steps(found, row) for row in attentions[3:6])
    assert list(of_source) == STEPS[3:9]
    assert of_source["K"] == (2, 7, 16)
    assert list(own) == STEPS
    assert list(of_target) == [*STEPS[:3], *STEPS[9:]]
    assert of_target["Q"] == (2, 5, 16)
    (expand, *_) = [row for row in found.rows if row.name == "expand"]
    assert expand.sentence == "Linear: project 16 to 24; from [2, 7, 16]; weight [24, 16], bias [24]"


def test_a_shared_part_stands_where_it_is_called_from(model: Transformer) -> None:
    found = traced(model)
    inside, names = "", []
    for row in found.rows:
        inside = row.name if row.depth == 1 else inside
        names += [inside] if row.name == "table" else []
    assert names == ["source_embedding", "target_embedding"]


def test_equal_layers_share_a_line(model: Transformer) -> None:
    lines = str(traced(model, need_weights=True)).splitlines()
    assert lines[0].split() == ["name", "shape", "what", "happened"]
    folded = [" ".join(line.split()) for line in lines if line.split()[-2] == "as"]
    assert folded[:1] == ["encoder.1 to 2 as encoder.0"]
    assert folded[-1:] == ["decoder.1 as decoder.0"]
    assert "[2, 4, 7, 7] x 3" in lines[1]
    assert len({line.index("[") for line in lines[1:] if line.split()[0] in ("Q", "table", "expand")}) == 1
    unequal = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 5), nn.Linear(5, 5))
    table = str(trace(unequal, torch.rand(1, 4))).splitlines()
    assert [line.split()[0] for line in table[2:]] == ["0", "1", "2", "3"]
    assert table[3].split()[1:] == ["as", "0"]


def test_any_module_of_any_library() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({"fold": nn.LSTM(3, 5, batch_first=True), "last": nn.Linear(5, 2)})
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, given: dict[str, torch.Tensor], times: int = 1) -> dict[str, Any]:
            states, (last, _) = self.parts["fold"](given["x"])
            return {"states": states, "sum": [self.parts["last"](last[0]) * self.scale * times]}

    found = trace(Own(), {"x": torch.rand(4, 6, 3)}, times=2)
    assert [(row.depth, row.name) for row in found.rows] == [(0, "Own"), (1, "parts.fold"), (1, "parts.last")]
    assert found.rows[0].outputs == ((4, 6, 5), (4, 2))
    assert found.rows[0].parameters == (("scale", (2,)),)
    assert found.rows[1].outputs == ((4, 6, 5), (1, 4, 5), (1, 4, 5))
    assert found.rows[1].what.startswith("LSTM(3, 5")


def test_what_is_no_module_is_refused() -> None:
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(InputError, match=r"torch.nn.Module.*got function"):
            trace(lambda x: x, torch.rand(1))  # type: ignore[arg-type]
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


# --------------------------------------------------------------------------- nothing stays behind


class Restless(nn.Module):
    """A module with everything that careless tracing would change; fails on request."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout, self.frozen = nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4)
        self.frozen.eval()

    def forward(self, x: torch.Tensor, fail: bool = False) -> torch.Tensor:
        y = self.frozen(self.dropout(self.norm(x))) + torch.rand(1)
        if fail:
            raise KeyError("as told")
        return y


@pytest.mark.parametrize("fail", [False, True])
def test_nothing_of_the_looking_stays(fail: bool) -> None:
    module, x = Restless(), torch.rand(3, 4, requires_grad=True)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    torch.manual_seed(1)
    drawn = torch.rand(3)
    torch.manual_seed(1)
    if fail:
        with pytest.raises(KeyError, match="as told"):
            trace(module, x, fail=True)
    else:
        assert trace(module, x).rows[0].outputs == ((3, 4),)
    assert torch.equal(torch.rand(3), drawn)
    assert [part.training for part in module.modules()] == [True, True, True, False]
    for part in module.modules():
        assert not part._forward_hooks
        assert not part._forward_pre_hooks
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert torch.is_grad_enabled()


def test_an_error_that_is_caught_inside_does_not_confuse() -> None:
    class Catching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.after = Restless(), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(KeyError):
                self.inner(x, fail=True)
            return self.after(x)

    found = trace(Catching(), torch.rand(3, 4))
    assert found.rows[0].outputs == ((3, 2),)
    assert {row.name: row.outputs for row in found.rows}["after"] == ((3, 2),)
