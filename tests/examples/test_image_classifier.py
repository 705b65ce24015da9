"""The image classifier: its equation, its maps, its initial state and its cost."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from images.classifier import Block, ImageAttentionName, ImageClassifier, ImageConfig, multiply_adds
from multihead.attention.vision import ImageAttention
from multihead.configuration import build
from multihead.errors import ConfigurationError, ShapeError
from multihead.training.splitting import Trainable

NAMES = get_args(ImageAttentionName)
MODULES = [name for name in NAMES if name != "none"]


def network(name: str, seed: int = 0) -> ImageClassifier:
    """A network in double precision and evaluation mode, with random norm statistics."""
    torch.manual_seed(seed)
    found = ImageClassifier(build(ImageConfig, {"classes": 5, "widths": (8, 16), "attention": name}, "test")).double()
    for module in found.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return found.eval()


def blocks(model: ImageClassifier) -> list[Block]:
    return [block for block in model.blocks if isinstance(block, Block)]


def last_norm(block: Block) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """The second convolution and its norm, which precede the attention module."""
    convolution, norm = block.second
    assert isinstance(convolution, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    return convolution, norm


def images(count: int = 3, side: int = 12) -> Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(count)).double()


@pytest.mark.parametrize("name", NAMES)
def test_it_computes_its_equation(name: str) -> None:
    model, x = network(name), images()
    expected = F.relu(model.stem(x))
    for block in blocks(model):
        features = block.second(F.relu(block.first(expected)))
        weighted = features if block.attention is None else block.attention(features)
        expected = F.relu(block.shortcut(expected) + weighted)
    torch.testing.assert_close(model(x).logits, expected.mean((2, 3)) @ model.output.weight.T)
    assert [part.shape[2] for part in model(x, need_maps=True).maps if part.shape[2] > 1] in ([6, 3], [])


@pytest.mark.parametrize("name", MODULES)
def test_the_maps_are_what_multiplies(name: str) -> None:
    """The map of each block is the gate of the features that reach its module, within its range."""
    model, x = network(name), images()
    reached: list[Tensor] = []
    hooks = [module.register_forward_pre_hook(lambda _, given: reached.append(given[0])) for module in model.attention]
    maps = model(x, need_maps=True).maps
    for hook in hooks:
        hook.remove()
    assert len(maps) == len(model.attention) == len(reached) == 2
    for module, features, found in zip(model.attention, reached, maps, strict=True):
        assert isinstance(module, ImageAttention)
        assert torch.equal(found, module.gate(features))
        assert torch.broadcast_tensors(found, features)[0].shape == features.shape
        assert 0 < found.min() <= found.max() < (2 if name == "polarized" else 1)
    assert torch.equal(model(x, need_maps=True).logits, model(x).logits)
    assert model(x).maps == ()


def test_without_attention_there_is_no_map() -> None:
    assert network("none")(images(), need_maps=True).maps == ()
    assert network("none").attention == ()


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_its_images_one_by_one(name: str) -> None:
    model, x = network(name), images(4)
    torch.testing.assert_close(model(x).logits, torch.cat([model(one[None]).logits for one in x]))


@pytest.mark.parametrize("name", NAMES)
def test_its_loss_is_the_cross_entropy_of_its_logits(name: str) -> None:
    model, x, labels = network(name), images(4), torch.tensor([0, 4, 2, 2])
    found = model.loss(x, labels, smoothing=0.1)
    logits = model(x).logits
    torch.testing.assert_close(found.total, F.cross_entropy(logits, labels, reduction="sum", label_smoothing=0.1))
    torch.testing.assert_close(found.nll, F.cross_entropy(logits, labels, reduction="sum").detach())
    assert found.correct == (logits.argmax(1) == labels).sum()
    assert isinstance(model, Trainable)


@pytest.mark.parametrize("name", MODULES)
def test_every_parameter_of_every_module_learns(name: str) -> None:
    model = network(name).train()
    model.loss(images(4), torch.tensor([0, 1, 2, 3]), smoothing=0.0).total.backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
    assert all(any(p.grad.any() for p in module.parameters()) for module in model.attention)  # type: ignore[union-attr]


def test_spatial_group_enhance_begins_as_one_number_for_all() -> None:
    """gamma = 0, beta = 1: the network without attention, with its branches scaled by sigma(1)."""
    enhanced, plain = network("sge"), network("none")
    plain.load_state_dict(enhanced.state_dict(), strict=False)
    for block in blocks(plain):
        _, norm = last_norm(block)
        norm.weight.data *= torch.sigmoid(torch.tensor(1.0))
        norm.bias.data *= torch.sigmoid(torch.tensor(1.0))
    x = images()
    torch.testing.assert_close(enhanced(x).logits, plain(x).logits, rtol=1e-6, atol=1e-7)
    for found in enhanced(x, need_maps=True).maps:
        torch.testing.assert_close(found, torch.full_like(found, torch.sigmoid(torch.tensor(1.0)).item()))


def test_shuffle_attention_begins_as_one_number_and_another_order() -> None:
    """Channels are shuffled after the multiplication: the network without attention, with permuted norms."""
    shuffled, plain = network("shuffle"), network("none")
    plain.load_state_dict(shuffled.state_dict(), strict=False)
    for block in blocks(plain):
        convolution, norm = last_norm(block)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        order = torch.arange(len(norm.weight)).view(2, -1).T.flatten()
        convolution.weight.data = convolution.weight.data[order]
        norm.running_mean, norm.running_var = norm.running_mean[order], norm.running_var[order]
        for parameter in (norm.weight, norm.bias):
            parameter.data = parameter.data[order] * torch.sigmoid(torch.tensor(1.0))
    x = images()
    torch.testing.assert_close(shuffled(x).logits, plain(x).logits, rtol=1e-6, atol=1e-7)


# --------------------------------------------------------------------------- cost


def test_multiply_adds_by_hand() -> None:
    """Multiply-adds of a convolution: outputs x inputs per output."""
    stem = 12 * 12 * 8 * 3 * 9
    first = 6 * 6 * (8 * 8 * 9 + 8 * 8 * 9 + 8 * 8)
    second = 3 * 3 * (16 * 8 * 9 + 16 * 16 * 9 + 16 * 8)
    plain = stem + first + second + 16 * 5
    assert multiply_adds(network("none"), images(1)) == plain
    assert multiply_adds(network("none"), images(3)) == 3 * plain
    # Two fully connected layers, through a quarter of the channels.
    assert multiply_adds(network("se"), images(1)) == plain + 2 * 8 * 2 + 2 * 16 * 4
    # Mean and maximum through the first layer, their sum through the second; a 7 x 7 convolution of 2 maps.
    cbam = 3 * 8 * 2 + 3 * 16 * 4 + (6 * 6 + 3 * 3) * 2 * 49
    assert multiply_adds(network("cbam"), images(1)) == plain + cbam
    # Elementwise operations only.
    assert multiply_adds(network("sge"), images(1)) == multiply_adds(network("shuffle"), images(1)) == plain


def test_counting_changes_nothing() -> None:
    model = network("bam").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    multiply_adds(model, images(1))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# --------------------------------------------------------------------------- settings and errors


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": "cbma"}, "attention"),
        ({"classes": 1}, "classes"),
        ({"widths": ()}, "widths"),
        ({"attention": "shuffle", "widths": (8, 12)}, "multiple of 8 for attention = 'shuffle'.*got 12: take 16"),
        ({"attention": "sge", "widths": (6,)}, "multiple of 4 for attention = 'sge'.*got 6: take 8"),
        ({"widths": (0,)}, "got 0: take 1"),
        ({"width": 4}, "there is no setting 'width'"),
    ],
    ids=str,
)
def test_settings_that_make_no_network(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build(ImageConfig, {"classes": 6, **settings}, "test")


def test_images_of_other_channels_are_an_error() -> None:
    for shape in ((2, 1, 8, 8), (3, 8, 8)):
        with pytest.raises(ShapeError, match=r"images \[batch, 3, height, width\]"):
            network("none")._blocks(torch.zeros(shape), need_maps=False)
