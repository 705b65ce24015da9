"""Each model option changes only what it describes.

test_transformer_equations.py tests that the change follows the option's equation.
"""

from __future__ import annotations

import copy
import math
import pickle
import random
import re
from collections.abc import Callable, Set
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import pytest
import torch

from multihead.attention import Causal, MultiHeadAttention, Padding, choose
from multihead.kernels.random import Dropout
from multihead.models.config import TransformerConfig
from multihead.models.layers import Residual
from multihead.models.parallel_blocks import ParallelEncoderLayer
from multihead.models.transformer import Transformer

WithoutChecks = Callable[[], AbstractContextManager[None]]

ATTENTIONS = ("encoder.self_attention", "decoder.self_attention", "decoder.cross_attention")
FEED_FORWARDS = ("encoder.feed_forward", "decoder.feed_forward")


def of(owners: tuple[str, ...], *names: str) -> set[str]:
    return {f"{owner}.{name}" for owner in owners for name in names}


class Option(NamedTuple):
    """Settings, and what they change compared with the defaults, for one layer."""

    changes: dict[str, Any]
    new: Set[str] = frozenset()
    gone: Set[str] = frozenset()
    reshaped: Set[str] = frozenset()
    drawn_alike: bool = False
    """Parameters of both models get the same initial values from the same seed."""


GATED = of(FEED_FORWARDS, "gate.weight", "gate.bias")
NORMS = {f"{side}_norm.{name}" for side in ("encoder", "decoder") for name in ("weight", "bias")}
SHIFTS = of(("encoder", "decoder"), "self_residual.norm.bias", "feed_forward_residual.norm.bias")
SHIFTS |= {"decoder.cross_residual.norm.bias"}
OWN_NORMS = of(("encoder", "decoder"), "feed_forward_residual.norm.weight", "feed_forward_residual.norm.bias")
OWN_NORMS |= {"decoder.cross_residual.norm.weight", "decoder.cross_residual.norm.bias"}
HEAD_NORMS = of(ATTENTIONS, "query_norm.weight", "key_norm.weight")
DISTANCES = of(
    ("encoder", "decoder"), "self_attention.relative_positions.keys", "self_attention.relative_positions.values"
)
TABLES = {"encoder_positions.table", "decoder_positions.table"}
OF_EMBEDDINGS = ("source_embedding", "target_embedding")
PACKED, OUTPUT = (
    of(ATTENTIONS, "in_projection.weight", "in_projection.bias"),
    of(ATTENTIONS, "output_projection.weight"),
)

OPTIONS = {
    "positions=learned": Option({"positions": "learned"}, of(OF_EMBEDDINGS, "positions.table.weight")),
    "max_positions": Option({"positions": "learned", "max_positions": 4}, of(OF_EMBEDDINGS, "positions.table.weight")),
    "embedding_scale=projection": Option({"embedding_scale": "projection"}, drawn_alike=True),
    "embedding_scale=none": Option({"embedding_scale": "none"}, drawn_alike=True),
    "embedding_norm": Option({"embedding_norm": True}, of(OF_EMBEDDINGS, "norm.weight", "norm.bias"), drawn_alike=True),
    "kv_heads=1": Option({"kv_heads": 1}, reshaped=PACKED),
    "kv_heads=2": Option({"kv_heads": 2}, reshaped=PACKED),
    "key_dim": Option({"key_dim": 6}, reshaped=PACKED),
    "value_dim": Option({"value_dim": 3}, reshaped=PACKED | OUTPUT),
    "attention_bias": Option(
        {"attention_bias": False}, gone=of(ATTENTIONS, "in_projection.bias", "output_projection.bias")
    ),
    "feed_forward=gelu": Option({"feed_forward": "gelu"}, drawn_alike=True),
    "feed_forward=silu": Option({"feed_forward": "silu"}, drawn_alike=True),
    "feed_forward=gelu_tanh": Option({"feed_forward": "gelu_tanh"}, drawn_alike=True),
    "feed_forward_bias": Option({"feed_forward_bias": False}, gone=of(FEED_FORWARDS, "expand.bias", "contract.bias")),
    "feed_forward=geglu_tanh": Option({"feed_forward": "geglu_tanh"}, GATED),
    "positions=relative": Option({"positions": "relative"}, TABLES, drawn_alike=True),
    "relative_buckets": Option({"positions": "relative", "relative_buckets": 6}, TABLES, drawn_alike=True),
    "relative_distance": Option({"positions": "relative", "relative_distance": 20}, TABLES, drawn_alike=True),
    "positions=shaw": Option({"positions": "shaw"}, DISTANCES),
    "relative_distance of shaw": Option({"positions": "shaw", "relative_distance": 20}, DISTANCES),
    "positions=alibi": Option({"positions": "alibi"}, drawn_alike=True),
    "positions=none": Option({"positions": "none"}, drawn_alike=True),
    "norm_kind=rms": Option({"norm_kind": "rms"}, gone=SHIFTS, drawn_alike=True),
    "encoder_window": Option({"encoder_window": 1}, drawn_alike=True),
    "query_key_norm=rms": Option({"query_key_norm": "rms"}, HEAD_NORMS, drawn_alike=True),
    "query_key_norm=layer": Option({"query_key_norm": "layer"}, HEAD_NORMS, drawn_alike=True),
    "sinusoid=halves": Option({"sinusoid": "halves"}, drawn_alike=True),
    "sinusoid=marian": Option({"sinusoid": "marian"}, drawn_alike=True),
    "sinusoid=fairseq": Option({"sinusoid": "fairseq"}, drawn_alike=True),
    "output_bias": Option({"output_bias": True}, {"output.bias"}),
    "source_end=False": Option({"source_end": False}, drawn_alike=True),
    "feed_forward=reglu": Option({"feed_forward": "reglu"}, GATED),
    "feed_forward=geglu": Option({"feed_forward": "geglu"}, GATED),
    "feed_forward=swiglu": Option({"feed_forward": "swiglu"}, GATED),
    "norm=pre": Option({"norm": "pre"}, NORMS, drawn_alike=True),
    "block=parallel": Option({"norm": "pre", "block": "parallel"}, NORMS, OWN_NORMS, drawn_alike=True),
    "norm=pre, final_norm=False": Option({"norm": "pre", "final_norm": False}, drawn_alike=True),
    "final_norm": Option({"final_norm": True}, NORMS, drawn_alike=True),
    "norm_eps": Option({"norm_eps": 1e-3}, drawn_alike=True),
    "tie_output=False": Option({"tie_output": False}, {"output.weight"}, drawn_alike=True),
    "tie_embeddings": Option({"target_vocab": 13, "tie_embeddings": True}, gone={"target_embedding.table.weight"}),
    "tie_embeddings, tie_output=False": Option(
        {"target_vocab": 13, "tie_embeddings": True, "tie_output": False},
        new={"output.weight"},
        gone={"target_embedding.table.weight"},
    ),
    "initialization=xavier": Option({"initialization": "xavier"}),
    "embedding_dropout": Option({"embedding_dropout": 0.4}, drawn_alike=True),
    "residual_dropout": Option({"residual_dropout": 0.4}, drawn_alike=True),
    "feed_forward_dropout": Option({"feed_forward_dropout": 0.4}, drawn_alike=True),
    "attention_dropout": Option({"attention_dropout": 0.4}, drawn_alike=True),
    "dropout": Option({"dropout": 0.4}, drawn_alike=True),
}
DROPOUTS = {
    "embedding_dropout": of(OF_EMBEDDINGS, "dropout"),
    "residual_dropout": of(("encoder", "decoder"), "self_residual.dropout", "feed_forward_residual.dropout")
    | {"decoder.cross_residual.dropout"},
    "feed_forward_dropout": of(FEED_FORWARDS, "dropout"),
    "attention_dropout": set(ATTENTIONS),
}


def without_layers(name: str) -> str:
    return re.sub(r"\.\d+\.", ".", name)


def shapes(model: Transformer) -> dict[str, torch.Size]:
    return {without_layers(name): parameter.shape for name, parameter in model.named_parameters()}


def built(small: Any, **changes: Any) -> Transformer:
    torch.manual_seed(3)
    return Transformer(small.config(**changes))


def logits(small: Any, model: Transformer) -> torch.Tensor:
    (source, lengths), (target, _) = small.padded(small.sources), small.padded(small.targets)
    found: torch.Tensor = model(source, lengths, target).logits
    return found


# ------------------------------------------------------------------------------------------ parameters


def test_every_field_that_is_no_size_is_an_option_here() -> None:
    sizes = {"width", "heads", "inner", "encoder_layers", "decoder_layers", "source_vocab", "target_vocab"}
    # alignment_layer says what is trained: it changes neither parameters nor outputs; factors are of the vocabulary
    others = {"architecture", "padding_id", "alignment_layer", "factors"}
    fields = TransformerConfig.model_fields.keys() - sizes - others
    assert fields == {name for option in OPTIONS.values() for name in option.changes} - sizes


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_has_the_parameters_that_it_says(small: Any, name: str) -> None:
    option = OPTIONS[name]
    sizes = {"target_vocab": option.changes.get("target_vocab", 11)}
    before, after = shapes(built(small, **sizes)), shapes(built(small, **option.changes))
    assert after.keys() - before.keys() == option.new
    assert before.keys() - after.keys() == option.gone
    assert {name for name in before.keys() & after.keys() if before[name] != after[name]} == option.reshaped


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.drawn_alike])
def test_what_an_option_does_not_mention_is_drawn_as_without_it(small: Any, name: str) -> None:
    before, after = (dict(built(small, **changes).named_parameters()) for changes in ({}, OPTIONS[name].changes))
    for key in before.keys() & after.keys():
        assert torch.equal(before[key], after[key]), key


def test_another_initialization_is_of_the_embeddings_alone(small: Any) -> None:
    options = {"positions": "learned", "width": 64, "tie_output": False}
    before, after = (
        dict(built(small, initialization=kind, **options).named_parameters()) for kind in ("normal", "xavier")
    )
    matrices = {name for name, value in before.items() if value.dim() == 2}
    changed = {name for name in matrices if not 0.9 < (after[name].std() / before[name].std()).item() < 1.1}
    assert changed == {name for name in matrices if "embedding" in name}
    assert all(torch.equal(before[name], after[name]) for name in before.keys() - matrices)


@pytest.mark.parametrize("name", DROPOUTS)
def test_each_dropout_is_in_its_own_place(small: Any, name: str) -> None:
    def places(**changes: Any) -> dict[str, float]:
        kinds = (Dropout, MultiHeadAttention)
        found = [(key, module) for key, module in built(small, **changes).named_modules() if isinstance(module, kinds)]
        return {without_layers(key): m.p if isinstance(m, Dropout) else m.dropout for key, m in found}

    assert set(places()) == set.union(*DROPOUTS.values())
    alone = places(**{name: 0.4})
    assert {key for key, p in alone.items() if p} == DROPOUTS[name]
    others = places(dropout=0.3, **{name: 0.0})
    assert {key for key, p in others.items() if p} == set(others) - DROPOUTS[name] - DROPOUTS["attention_dropout"]


# ------------------------------------------------------------------------------------------ results


@pytest.mark.parametrize("name", OPTIONS)
def test_whatever_the_options_a_row_is_its_source_and_its_target(
    small: Any, name: str, without_checks: WithoutChecks
) -> None:
    """Steps equal the forward pass, padding has no effect, rows can be selected and joined."""
    model = small.model(**OPTIONS[name].changes).requires_grad_(False)
    rows = small.begin(model, 0, 3, 1, extra=1).step([1, 1, 1]).select(2, 2, 0, 0).step([3, 4, 5, 6])
    rows = rows.join(small.begin(model, 2)).step([7, 8, 9, 10, 1]).select(4, 1, 3).step([3, 4, 5]).step([6, 7, 8])
    whole = logits(small, model)
    for row, (source, target) in enumerate(zip(small.sources, small.targets, strict=True)):
        with without_checks():
            alone = model(*small.padded([source]), torch.tensor([target])).logits[0]
        torch.testing.assert_close(whole[row, : len(target)], alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_options_may_be_mixed(small: Any, seed: int) -> None:
    choose = random.Random(seed)
    changes: dict[str, Any] = {}
    for name in choose.sample(sorted(OPTIONS), 12):
        changes |= OPTIONS[name].changes
    model = small.model(seed, **changes).requires_grad_(False)
    rows = small.begin(model, 3, 0).step([1, 1]).select(1, 1, 0, 0).step([3, 4, 5, 6])
    rows.join(small.begin(model, 1, extra=2)).step([7, 8, 9, 10, 1]).select(4, 0, 2).step([3, 4, 5])


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if not option.reshaped])
def test_only_what_says_so_changes_the_results(small: Any, name: str) -> None:
    """With the same parameters, as far as both have them."""
    option = OPTIONS[name]
    plain = small.model(target_vocab=option.changes.get("target_vocab", 11))
    other = small.model(1, **option.changes)
    other.load_state_dict(plain.state_dict(), strict=False)
    same = "dropout" in name or name in ("initialization=xavier", "tie_output=False")
    assert torch.equal(logits(small, other), logits(small, plain)) == same
    training = "dropout" in name
    assert torch.equal(logits(small, other.train()), logits(small, plain.train())) == (same and not training)


def test_options_that_are_set_to_the_default_by_name_change_nothing(small: Any) -> None:
    spelt = {"kv_heads": 4, "key_dim": 4, "value_dim": 4, "final_norm": False, "embedding_dropout": 0.0}
    assert torch.equal(logits(small, small.model(**spelt)), logits(small, small.model()))


# ------------------------------------------------------------------------------------------ one option as another


def same_logits(small: Any, one: Transformer, other: Transformer) -> None:
    torch.testing.assert_close(logits(small, one), logits(small, other), rtol=1e-10, atol=1e-12)


def test_learned_positions_with_the_sinusoids_in_them_are_the_sinusoids(small: Any) -> None:
    plain, learned = small.model(), small.model(positions="learned", max_positions=20)
    learned.load_state_dict(plain.state_dict(), strict=False)
    with torch.no_grad():
        for side in ("source_embedding", "target_embedding"):
            table = plain.get_submodule(side).positions.table
            learned.get_submodule(side).positions.table.weight.copy_(table[:20])
    same_logits(small, plain, learned)


def test_positions_beyond_the_table_change_nothing_before_them(small: Any) -> None:
    long, short = (small.model(positions="learned", max_positions=count) for count in (20, 4))
    state = long.state_dict()
    short.load_state_dict({key: value[:4] if "positions" in key else value for key, value in state.items()})
    lengths = [(len(s), len(t)) for s, t in zip(small.sources, small.targets, strict=True)]
    for row, (one, other) in enumerate(zip(logits(small, short), logits(small, long), strict=True)):
        within = lengths[row][0] <= 4 and lengths[row][1] <= 4
        assert torch.allclose(one[: lengths[row][1]], other[: lengths[row][1]], rtol=1e-10, atol=1e-12) == within
    assert (long.max_positions, short.max_positions, small.model().max_positions) == (20, 4, None)


def test_grouped_queries_are_heads_whose_keys_and_values_are_equal(small: Any) -> None:
    """Ainslie et al. (2023): H heads, each group with one key head's matrices."""
    grouped, full = small.model(kv_heads=2), small.model()
    state = grouped.state_dict()
    for key, value in state.items():
        if "in_projection" in key:
            query, *shared = value.split([16, 8, 8])
            repeated = [part.unflatten(0, (2, 4)).repeat_interleave(2, 0).flatten(0, 1) for part in shared]
            state[key] = torch.cat([query, *repeated])
    full.load_state_dict(state)
    same_logits(small, grouped, full)


def test_wider_heads_may_hold_narrower_ones(small: Any) -> None:
    """Zeros appended to keys and values have no effect; the queries compensate for the larger d_k in the scale."""
    plain, wide = small.model(), small.model(key_dim=9, value_dim=6)
    state = plain.state_dict()

    def widen(part: torch.Tensor, to: int, axis: int = 0) -> torch.Tensor:
        heads = part.unflatten(axis, (4, 4))
        zeros = heads.new_zeros([to - 4 if size == axis + 1 else n for size, n in enumerate(heads.shape)])
        return torch.cat([heads, zeros], axis + 1).flatten(axis, axis + 1)

    for key, value in state.items():
        if "in_projection" in key:
            query, keys, values = value.split(16)
            state[key] = torch.cat([widen(query, 9) * math.sqrt(9 / 4), widen(keys, 9), widen(values, 6)])
        elif "output_projection.weight" in key:
            state[key] = widen(value, 6, axis=1)
    wide.load_state_dict(state)
    same_logits(small, plain, wide)


def test_no_biases_are_biases_of_zero(small: Any) -> None:
    without, zero = small.model(attention_bias=False), small.model()
    zero.load_state_dict(without.state_dict(), strict=False)
    with torch.no_grad():
        for name, parameter in zero.named_parameters():
            if "attention" in name and name.endswith("bias"):
                parameter.zero_()
    same_logits(small, without, zero)


def test_a_gate_that_is_one_leaves_the_other_matrix_alone(small: Any) -> None:
    """ReGLU with gate 1, and ReLU where nothing is negative: W_2 (W_1 z + b_1) + b_2."""
    gated, plain = small.model(feed_forward="reglu"), small.model()
    with torch.no_grad():
        for name, parameter in gated.named_parameters():
            if ".gate." in name:
                parameter.fill_(float(name.endswith("bias")))
            elif name.endswith("expand.bias"):
                parameter.fill_(100.0)
    plain.load_state_dict({k: v for k, v in gated.state_dict().items() if ".gate." not in k})
    torch.testing.assert_close(logits(small, gated), logits(small, plain), rtol=1e-9, atol=1e-9)


def test_a_scale_may_stand_in_the_parameters(small: Any) -> None:
    """sqrt(D) in the embeddings and 1 / sqrt(D) in the projection are equivalent if they are not tied."""
    models = {kind: small.model(tie_output=False, embedding_scale=kind) for kind in ("embedding", "projection", "none")}
    plain = models["none"].state_dict()
    scaled = {key: value / 4 for key, value in plain.items() if "embedding.table" in key}
    models["embedding"].load_state_dict(plain | scaled)
    models["projection"].load_state_dict(plain | {"output.weight": plain["output.weight"] * 4})
    same_logits(small, models["none"], models["embedding"])
    same_logits(small, models["none"], models["projection"])


@pytest.mark.parametrize("scale", ["embedding", "projection", "none"])
@pytest.mark.parametrize(("tie_embeddings", "tie_output"), [(True, True), (True, False), (False, True)])
def test_tied_parameters_are_equal_ones_whose_gradients_are_added(
    small: Any, tie_embeddings: bool, tie_output: bool, scale: str
) -> None:
    options = {"target_vocab": 13, "embedding_scale": scale}
    tied = small.model(tie_embeddings=tie_embeddings, tie_output=tie_output, **options)
    apart = small.model(tie_embeddings=False, tie_output=False, **options)
    apart.load_state_dict(tied.state_dict())  # every name is in it, tied or not
    same_logits(small, tied, apart)
    for model in (tied, apart):
        logits(small, model).square().sum().backward()
    tables = (apart.source_embedding.table, apart.target_embedding.table, apart.output)
    source, target, output = (table.weight.grad for table in tables)
    groups = {(True, True): source + target + output, (True, False): source + target, (False, True): target + output}
    expected = groups[tie_embeddings, tie_output].clone()
    expected[0] *= 0  # the padding row of a tied table is never trained
    torch.testing.assert_close(tied.target_embedding.table.weight.grad, expected, rtol=1e-9, atol=1e-11)


def test_a_window_as_wide_as_the_longest_source_is_none(small: Any) -> None:
    longest = max(map(len, small.sources))
    plain, wide, narrow = (small.model(encoder_window=window) for window in (None, longest - 1, longest - 2))
    assert torch.equal(logits(small, wide), logits(small, plain))
    assert not torch.equal(logits(small, narrow), logits(small, plain))


def test_a_parallel_layer_with_a_cache_is_the_layer() -> None:
    """As a decoder without a source has it."""
    torch.manual_seed(4)
    config = TransformerConfig(source_vocab=9, target_vocab=9, width=16, heads=4, norm="pre", block="parallel")
    layer, x = ParallelEncoderLayer(config).eval(), torch.randn(2, 6, 16)
    whole, _ = layer(x, Causal())
    cache = None
    for start, stop in ((0, 3), (3, 4), (4, 6)):
        states, cache = layer.step(x[:, start:stop], cache, Causal())
        torch.testing.assert_close(states, whole[:, start:stop], rtol=1e-5, atol=1e-6)


def test_a_long_source_within_a_window_is_what_the_weights_say() -> None:
    """The weights lie within the window, and requesting them does not change the result."""
    torch.manual_seed(2)
    sizes = {"width": 16, "heads": 2, "inner": 16, "encoder_layers": 2, "decoder_layers": 1}
    model = Transformer(TransformerConfig(source_vocab=30, target_vocab=30, encoder_window=20, **sizes)).eval()
    source, lengths = torch.randint(4, 30, (2, 600)), torch.tensor([600, 333])
    mask = model._windowed(Padding(lengths), 600)
    query = torch.zeros(2, 2, 600, 8)
    assert choose(query, query, query, mask=mask).kernel in ("long", "blockwise")
    states, weights = model.encode(source, lengths, need_weights=True)
    distance = (torch.arange(600) - torch.arange(600)[:, None]).abs()
    seen = (distance <= 20) & (torch.arange(600) < lengths[:, None])[:, None]
    for layer in weights:
        assert torch.equal((layer > 0).all(1), seen)
    real = torch.arange(600) < lengths[:, None]
    torch.testing.assert_close(model.encode(source, lengths)[0][real], states[real], rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------ what else there is


def test_weights_are_returned_before_dropout(small: Any) -> None:
    model = small.model(attention_dropout=0.5).train()
    (source, lengths), (target, _) = small.padded(small.sources), small.padded(small.targets)
    weights = model(source, lengths, target, need_weights=True).weights
    for layer in (*weights.encoder, *weights.decoder, *weights.cross):
        torch.testing.assert_close(layer.sum(-1), torch.ones(layer.shape[:-1]).double())


def test_hidden_states_carry_the_scale_of_the_projection(small: Any) -> None:
    """The loss multiplies them by the projection's weight only."""
    model = small.model(embedding_scale="projection")
    (source, lengths), (target, _) = small.padded(small.sources), small.padded(small.targets)
    hidden = model.hidden(source, lengths, target)
    assert torch.equal(hidden @ model.output.weight.t(), logits(small, model))
    model.load_state_dict(small.model(embedding_scale="none").state_dict())
    plain = small.model(embedding_scale="none").hidden(source, lengths, target)
    torch.testing.assert_close(model.hidden(source, lengths, target) * 4, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("embedding_norm", [False, True])
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_under_autocast_every_residual_sum_is_in_float32(
    small: Any, monkeypatch: pytest.MonkeyPatch, norm: str, kind: str, embedding_norm: bool
) -> None:
    """The state that enters a sum, and the one that leaves it, in two layers of each stack."""
    found, add = list[torch.dtype](), Residual.add

    def noted(residual: Residual, x: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        states = add(residual, x, output)
        found.extend((x.dtype, states.dtype))
        return states

    monkeypatch.setattr(Residual, "add", noted)
    model = small.model(dtype=torch.float32, norm=norm, norm_kind=kind, embedding_norm=embedding_norm)
    with torch.autocast("cpu", torch.bfloat16):
        logits(small, model)
    assert found == [torch.float32] * 2 * (2 * 2 + 2 * 3)


def test_a_model_can_be_copied_and_pickled(small: Any) -> None:
    model = small.model(**small.unusual)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(logits(small, again), logits(small, model))
