"""Validation of model settings, and presets of the literature."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from multihead.configuration import build
from multihead.decoding.search import Search
from multihead.errors import ConfigurationError
from multihead.models.config import PRESETS, TransformerConfig, preset
from multihead.models.transformer import Transformer

VOCAB = {"source_vocab": 50, "target_vocab": 50}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"width": 30, "heads": 4},
            "width must be a multiple of heads, got width 30 and 4 heads: take 32, or set key_dim and value_dim",
        ),
        ({"width": 30, "heads": 4, "key_dim": 8}, "width must be a multiple of heads"),
        ({"width": 9, "heads": 3}, "width must be even for sinusoidal positions, got 9: take 10"),
        ({"heads": 8, "kv_heads": 3}, "heads must be a multiple of kv_heads, got 8 heads and 3 kv_heads"),
        ({"heads": 2, "kv_heads": 4}, "heads must be a multiple of kv_heads, got 2 heads and 4 kv_heads"),
        ({"kv_heads": 0}, "kv_heads: .*greater than or equal to 1, got 0"),
        ({"key_dim": 0}, "key_dim: .*greater than or equal to 1, got 0"),
        ({"value_dim": -1}, "value_dim: .*greater than or equal to 1, got -1"),
        ({"max_positions": 0}, "max_positions: .*greater than or equal to 1, got 0"),
        ({"positions": "sine"}, "positions: .*'sinusoidal', 'learned', .*'alibi' or 'none'.*got 'sine'"),
        ({"positions": "rotary", "key_dim": 5}, "rotary positions rotate pairs of features, got 5 in a head"),
        ({"embedding_scale": "prj"}, "embedding_scale: .*'embedding', 'projection' or 'none'.*got 'prj'"),
        (
            {"feed_forward": "swish"},
            "feed_forward: .*'relu', 'gelu', 'silu', .*'swiglu' or 'geglu_tanh'.*got 'swish'",
        ),
        ({"initialization": "zero"}, "initialization: .*'normal' or 'xavier'.*got 'zero'"),
        ({"embedding_dropout": 1.0}, "embedding_dropout: .*less than 1, got 1.0"),
        ({"residual_dropout": -0.1}, "residual_dropout: .*greater than or equal to 0, got -0.1"),
        ({"feed_forward_dropout": 2.0}, "feed_forward_dropout: .*less than 1, got 2.0"),
        ({"target_vocab": 40}, "tie_embeddings needs one vocabulary, got 50 source and 40 target entries"),
        ({"padding_id": 50}, "padding_id must be an entry of both vocabularies, got 50"),
        ({"target_vocab": 40, "tie_embeddings": False, "padding_id": 45}, "padding_id must be an entry of both"),
        ({"widht": 64}, "there is no setting 'widht'; did you mean 'width'\\?"),
        ({"block": "parallel"}, "block 'parallel' needs norm 'pre', got 'post': its parts read one normed input"),
        ({"norm": "both"}, "norm: .*'post' or 'pre'.*got 'both'"),
        ({"dropout": 1.0}, "dropout: .*less than 1, got 1.0"),
        ({"encoder_layers": 0}, "encoder_layers: .*greater than or equal to 1, got 0"),
        ({"norm_eps": 0.0}, "norm_eps: .*greater than 0"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^run.toml: .*{message}"):
        build(TransformerConfig, VOCAB | wrong, "run.toml")


def test_a_missing_vocabulary_is_named() -> None:
    with pytest.raises(ConfigurationError, match="target_vocab: field required"):
        build(TransformerConfig, {"source_vocab": 50}, "run.toml")


def test_what_can_be_is_accepted() -> None:
    assert build(TransformerConfig, {**VOCAB, "width": 10, "heads": 5, "padding_id": 49}, "run.toml").padding_id == 49
    free = {**VOCAB, "width": 9, "heads": 2, "key_dim": 5, "value_dim": 3, "positions": "learned"}
    own = build(TransformerConfig, free, "run.toml")
    assert (own.key_width, own.value_width) == (10, 6)
    assert build(TransformerConfig, {**VOCAB, "width": 12, "heads": 3}, "run.toml").key_width == 12
    two = build(TransformerConfig, {**VOCAB, "target_vocab": 40, "tie_embeddings": False}, "run.toml")
    assert (two.source_vocab, two.target_vocab) == (50, 40)


@pytest.mark.parametrize(
    ("norm", "asked", "there"),
    [("post", None, False), ("pre", None, True), ("post", True, True), ("pre", False, False)],
)
def test_the_final_norm_follows_the_norm_unless_asked_for(norm: str, asked: bool | None, there: bool) -> None:
    assert build(TransformerConfig, {**VOCAB, "norm": norm, "final_norm": asked}, "x").has_final_norm is there


def test_each_place_has_its_own_dropout_or_that_of_all() -> None:
    places = ("embedding", "residual", "feed_forward")
    common = TransformerConfig(**VOCAB, dropout=0.3)
    assert [common.dropout_of(place) for place in places] == [0.3, 0.3, 0.3]
    assert common.attention_dropout == 0.0
    for place in places:
        own = TransformerConfig(**VOCAB, dropout=0.3, **{f"{place}_dropout": 0.0})
        assert [own.dropout_of(other) for other in places] == [0.0 if other == place else 0.3 for other in places]


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match=r"no preset 'bsae'; did you mean 'base'\?"):
        preset("bsae")
    with pytest.raises(
        ConfigurationError,
        match=r"no preset 'x'; there are: attention-is-all-you-need-pytorch, base, big, small, tiny",
    ):
        preset("x")


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_copy_of_valid_sizes(name: str) -> None:
    sizes = preset(name)
    assert build(TransformerConfig, VOCAB | sizes, name).model_dump().items() >= sizes.items()
    sizes["width"] = 1
    assert preset(name)["width"] != 1


def layer_and_model_size(config: TransformerConfig) -> int:
    """Parameters of Figure 1, counted from the sizes: one table."""
    wide, inner = config.width, config.inner
    attention = 4 * (wide * wide + wide * config.attention_bias)
    feed_forward = 2 * wide * inner + inner + wide
    norm = 2 * wide
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    last = 2 * norm * (config.has_final_norm + config.embedding_norm)
    table = config.source_vocab * wide
    return config.encoder_layers * encoder_layer + config.decoder_layers * decoder_layer + last + table


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_model_has_the_parameters_of_figure_1(name: str, norm: str) -> None:
    config = TransformerConfig(**(VOCAB | preset(name) | {"norm": norm}))
    with torch.device("meta"):
        model = Transformer(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == layer_and_model_size(config)


@pytest.mark.parametrize(("name", "millions"), [("base", 65), ("big", 213)])
def test_the_papers_presets_have_the_papers_size(name: str, millions: int) -> None:
    config = TransformerConfig(source_vocab=37_000, target_vocab=37_000, **preset(name))  # 5.1: about 37,000 tokens
    assert layer_and_model_size(config) == pytest.approx(millions * 1e6, rel=0.03)  # table 3
    assert config.width // config.heads == 64
    assert config.inner == 4 * config.width
    assert config.encoder_layers == config.decoder_layers == 6


def test_the_small_presets_are_the_stated_ones() -> None:
    tiny, small = preset("tiny"), preset("small")
    assert (tiny["encoder_layers"], tiny["decoder_layers"], tiny["width"]) == (4, 4, 128)
    assert small["width"] == 256


def test_the_sizes_of_a_preset_are_all_that_most_of_them_fix() -> None:
    sizes = {"width", "heads", "inner", "encoder_layers", "decoder_layers"}
    more = {name for name in PRESETS if PRESETS[name].keys() != sizes}
    assert more == {"attention-is-all-you-need-pytorch"}
    assert all(PRESETS[name].keys() > sizes for name in more)


def test_the_length_limit_of_a_search() -> None:
    search = Search(length_factor=1.5, length_margin=4)
    assert [search.limit(tokens) for tokens in (0, 1, 2, 5)] == [4, 5, 7, 11]
    bounded = Search(length_factor=1.5, length_margin=4, max_length=6)
    assert [bounded.limit(tokens) for tokens in (0, 1, 2, 5)] == [4, 5, 6, 6]
    long = Search(length_factor=1.5, length_margin=4, min_length=5)
    assert [long.limit(tokens) for tokens in (0, 1, 2, 5)] == [6, 6, 7, 11]  # room for five tokens and the end symbol


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"beam": 0}, "beam: .*got 0"),
        ({"min_length": -1}, "min_length: .*greater than or equal to 0, got -1"),
        ({"max_length": 0}, "max_length: .*greater than or equal to 1, got 0"),
        ({"min_length": 5, "max_length": 5}, "must be above min_length, got max_length 5 and min_length 5"),
    ],
)
def test_a_search_that_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build(Search, wrong, "the command line")
    assert build(Search, {"min_length": 5, "max_length": 6}, "the command line").limit(100) == 6
