"""Smaller networks that begin with parts of a trained one."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from multihead.errors import ConfigurationError
from multihead.models.config import PRESETS, TransformerConfig
from multihead.models.shrinking import half_of, narrow_half_of, narrower, parameters_of, shrunk
from multihead.models.transformer import Transformer

SIZES: dict[str, Any] = {"source_vocab": 20, "target_vocab": 20, "width": 16, "heads": 2, "inner": 64, "dropout": 0.0}
SOURCE, TARGET = torch.tensor([[4, 5, 6, 3], [7, 8, 3, 0]]), torch.tensor([[2, 9, 10], [2, 11, 12]])
LENGTHS = torch.tensor([4, 3])
EVERY = slice(None)


def network(**changes: Any) -> Transformer:
    torch.manual_seed(1)
    made = Transformer(TransformerConfig(**{**SIZES, "encoder_layers": 3, "decoder_layers": 3, **changes})).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made


def logits(model: Transformer) -> torch.Tensor:
    with torch.no_grad():
        return model(SOURCE, LENGTHS, TARGET).logits


def silence(layer: torch.nn.Module, units: slice = EVERY, attention: bool = True) -> None:
    """Let a layer, or some of its feed-forward units, add nothing."""
    with torch.no_grad():
        layer.feed_forward.contract.weight[:, units] = 0
        if attention:
            layer.feed_forward.contract.bias.zero_()
            for name, part in layer.named_modules():
                if name.endswith("attention"):
                    for tensor in part.output_projection.parameters():
                        tensor.zero_()


@pytest.mark.parametrize("kind", ["relu", "swiglu"])
def test_one_that_keeps_everything_computes_the_same(kind: str) -> None:
    model = network(feed_forward=kind)
    copy = shrunk(model)
    assert copy.config == model.config
    assert torch.equal(logits(copy), logits(model))
    copy.output.weight.data += 1
    assert not torch.equal(copy.output.weight, model.output.weight)


@pytest.mark.parametrize("kind", ["relu", "swiglu"])
def test_units_that_add_nothing_go_first(kind: str) -> None:
    model = network(feed_forward=kind)
    for layer in (*model.encoder, *model.decoder):
        silence(layer, slice(3, 35), attention=False)
    smaller = shrunk(model, inner=32)
    assert smaller.config.inner == 32
    torch.testing.assert_close(logits(smaller), logits(model))


def test_layers_are_kept_from_the_first_to_the_last() -> None:
    """Layers that add nothing to the states of a pre-norm network can go."""
    model = network(norm="pre")
    silence(model.encoder[1])
    silence(model.decoder[1])
    silence(model.decoder[2])
    smaller = shrunk(model, encoder_layers=2, decoder_layers=1)
    assert (len(smaller.encoder), len(smaller.decoder)) == (2, 1)
    torch.testing.assert_close(logits(smaller), logits(model))


@pytest.mark.parametrize(("layers", "guided", "kept"), [(3, 5, None), (3, 3, 2), (1, 1, 1), (4, 1, 1), (6, 5, 5)])
def test_the_layer_that_aligns_keeps_its_number_or_is_gone(layers: int, guided: int, kept: int | None) -> None:
    """Of six layers, three are the first, the third (round to even) and the last."""
    model = network(decoder_layers=6, alignment_layer=guided)
    assert shrunk(model, decoder_layers=layers).config.alignment_layer == kept


@pytest.mark.usefixtures("unchecked")
def test_a_half_is_at_most_half() -> None:
    vocabularies, layers = (300, 2_000), ((3, 3), (6, 6), (12, 2))
    for name, vocabulary, (encoder, decoder) in product(("tiny", "base"), vocabularies, layers):
        sizes = PRESETS[name] | {"encoder_layers": encoder, "decoder_layers": decoder}
        config = TransformerConfig(source_vocab=vocabulary, target_vocab=vocabulary, **sizes)
        half = half_of(config)
        assert (
            parameters_of(half) <= parameters_of(config) / 2 == sum(p.numel() for p in _meta(config).parameters()) / 2
        )
        assert (half.width, half.heads, half.source_vocab) == (config.width, config.heads, vocabulary)
        more = half.model_copy(update={"inner": half.inner + 32})
        assert half.inner == config.inner or parameters_of(more) > parameters_of(config) / 2


@pytest.mark.usefixtures("unchecked")
def test_a_narrow_half_is_at_most_half() -> None:
    for name, vocabulary, (encoder, decoder) in product(PRESETS, (300, 4_000), ((3, 3), (6, 6), (1, 1))):
        sizes = PRESETS[name] | {"encoder_layers": encoder, "decoder_layers": decoder}
        config = TransformerConfig(source_vocab=vocabulary, target_vocab=vocabulary, **sizes)
        narrow = narrow_half_of(config)
        if narrow is None:
            assert (encoder, decoder) == (1, 1), config
            continue
        assert parameters_of(narrow) <= parameters_of(config) / 2
        assert narrow.width == 3 * config.width / 4
        assert (narrow.heads, narrow.encoder_layers) == (config.heads, encoder)
        assert decoder * 2 / 3 <= narrow.decoder_layers < decoder * 2 / 3 + 1
        more = narrow.model_copy(update={"inner": narrow.inner + 32})
        assert narrow.inner == config.inner or parameters_of(more) > parameters_of(config) / 2


def test_heads_must_divide_the_width_of_a_narrow_half() -> None:
    config = TransformerConfig(source_vocab=20, target_vocab=20, **PRESETS["tiny"])
    found = [narrow_half_of(config.model_copy(update={"heads": heads})) for heads in (1, 2, 16, 64)]
    assert [narrow and narrow.width for narrow in found] == [96, 96, 96, None]


def test_a_narrower_network_has_the_same_shape_whatever_its_vocabularies() -> None:
    for name, vocabularies in product(PRESETS, ((300, 300), (4_000, 4_000), (100, 32_000))):
        sizes = {**PRESETS[name], "tie_embeddings": vocabularies == (300, 300)}
        config = TransformerConfig(source_vocab=vocabularies[0], target_vocab=vocabularies[1], **sizes)
        found = narrower(config)
        assert found is not None
        assert (found.width, found.inner) == (3 * config.width / 4, 5 * config.inner / 8)
        assert (found.heads, found.encoder_layers) == (config.heads, config.encoder_layers)
        assert found.decoder_layers == -(-2 * config.decoder_layers // 3)
        assert (found.source_vocab, found.target_vocab) == vocabularies
    one = config.model_copy(update={"width": 32, "inner": 32, "heads": 1})
    assert narrower(one) is None


def test_embeddings_that_are_most_of_a_network_leave_no_half() -> None:
    sizes = PRESETS["tiny"] | {"encoder_layers": 2, "decoder_layers": 2}
    with pytest.raises(ConfigurationError, match=r"2\+2 layers, width 128, .*: no network of half its"):
        half_of(TransformerConfig(source_vocab=8_000, target_vocab=8_000, **sizes))


def _meta(config: TransformerConfig) -> Transformer:
    with torch.device("meta"):
        return Transformer(config)


@pytest.mark.parametrize("wrong", [{"inner": 65}, {"encoder_layers": 0}, {"decoder_layers": 4}])
def test_more_than_there_is_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(
        ConfigurationError, match=f"{next(iter(wrong))} is {next(iter(wrong.values()))}: expected a number from 1"
    ):
        shrunk(network(), **wrong)
