"""Properties of all image attention modules: shapes, sizes, gradients, memory layouts, errors."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from multihead.attention.vision import (
    BAM,
    CBAM,
    ECA,
    CoordinateAttention,
    ImageAttention,
    PolarizedSelfAttention,
    ShuffleAttention,
    SpatialGroupEnhance,
    SqueezeExcitation,
)
from multihead.errors import ConfigurationError, ShapeError

CHANNELS = 12
MAKERS: dict[str, Callable[[], ImageAttention]] = {
    "SE": lambda: SqueezeExcitation(CHANNELS, 4),
    "ECA": lambda: ECA(CHANNELS),
    "CBAM": lambda: CBAM(CHANNELS, 4),
    "BAM": lambda: BAM(CHANNELS, 4),
    "shuffle": lambda: ShuffleAttention(CHANNELS, 3),
    "SGE": lambda: SpatialGroupEnhance(CHANNELS, 4),
    "polarized": lambda: PolarizedSelfAttention(CHANNELS),
    "polarized, sequential": lambda: PolarizedSelfAttention(CHANNELS, "sequential"),
    "coordinate": lambda: CoordinateAttention(CHANNELS),
}


def make(name: str) -> ImageAttention:
    """The module in double precision, with no parameter equal to 0 or 1, which would hide errors."""
    module = MAKERS[name]().double()
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module.eval()


def image(height: int = 5, width: int = 4, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(height * 10 + width)
    return torch.randn(batch, CHANNELS, height, width, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("size", [(5, 4), (1, 1), (1, 6), (7, 1), (8, 8)], ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_any_height_and_width(name: str, size: tuple[int, int], training: bool) -> None:
    module, x = make(name).train(training), image(*size).requires_grad_()
    output, gate = module(x), module.gate(x)
    assert output.shape == x.shape
    assert torch.broadcast_shapes(gate.shape, x.shape) == x.shape
    assert gate.dim() == 4
    (output**2).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert all(parameter.grad is not None for parameter in module.parameters())


@pytest.mark.parametrize("name", MAKERS)
def test_a_map_of_nothing_but_one_number_is_finite(name: str) -> None:
    module, x = make(name), torch.full((2, CHANNELS, 3, 3), 2.0).double().requires_grad_()
    module(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("name", MAKERS)
def test_the_gate_is_what_multiplies(name: str) -> None:
    module, x = make(name), image()
    gate = module.gate(x)
    factor = 1 + gate if name == "BAM" else gate
    expected = x * factor
    if name == "shuffle":
        expected = torch.nn.functional.channel_shuffle(expected, 2)
    torch.testing.assert_close(module(x), expected)
    assert gate.gt(0).all()
    assert gate.lt(2 if name == "polarized" else 1).all()


@pytest.mark.parametrize("name", MAKERS)
def test_images_of_a_batch_do_not_talk(name: str) -> None:
    module, x = make(name), image(batch=3)
    torch.testing.assert_close(module(x)[1:2], module(x[1:2]))


@pytest.mark.parametrize("name", MAKERS)
def test_the_layout_in_memory_does_not_matter(name: str) -> None:
    module, x = make(name), image()
    torch.testing.assert_close(module(x.contiguous(memory_format=torch.channels_last)), module(x))
    torch.testing.assert_close(module(x.transpose(2, 3).contiguous().transpose(2, 3)), module(x))


@pytest.mark.parametrize("name", MAKERS)
def test_the_state_is_all_there_is(name: str) -> None:
    module, x = make(name), image()
    twin = MAKERS[name]().double().eval()
    twin.load_state_dict(module.state_dict())
    assert torch.equal(twin(x), module(x))
    assert torch.equal(copy.deepcopy(module)(x), module(x))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", MAKERS)
def test_other_channels_or_axes_are_an_error(name: str) -> None:
    module = make(name)
    for shape in ((2, CHANNELS + 1, 3, 3), (CHANNELS, 3, 3), (2, CHANNELS)):
        with pytest.raises(ShapeError, match=rf"expects \[batch, {CHANNELS}, height, width\], got \[{shape[0]}, "):
            module(torch.zeros(shape).double())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SqueezeExcitation(0), "channels=0: expected at least one"),
        (lambda: SqueezeExcitation(8, 0), "reduction=0"),
        (lambda: ECA(8, 4), "kernel_size=4: expected an odd size"),
        (lambda: CBAM(8, kernel_size=6), "kernel_size=6: expected an odd size"),
        (lambda: BAM(8, dilation=0), "dilation=0"),
        (
            lambda: ShuffleAttention(12, 4),
            r"channels=12 is not a multiple of 2 \* groups = 8: groups may be 1, 2, 3, 6",
        ),
        (lambda: ShuffleAttention(5, 1), "no number, because the channels are odd"),
        (lambda: SpatialGroupEnhance(6, 4), "channels=6 is not a multiple of groups = 4: groups may be 1, 2, 3, 6"),
        (lambda: SpatialGroupEnhance(6, 0), "channels=6 is not a multiple of groups = 0"),
        (lambda: PolarizedSelfAttention(8, "serial"), "arrangement='serial': expected 'parallel' or 'sequential'"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_impossible_settings(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        call()


def test_one_image_cannot_be_normalized_over_the_batch() -> None:
    with pytest.raises(ShapeError, match="train with two or more"):
        BAM(4)(torch.zeros(1, 4, 3, 3))
    BAM(4).eval()(torch.zeros(1, 4, 3, 3))


@pytest.mark.parametrize("channels", [1, 3, 7])
def test_odd_and_few_channels(channels: int) -> None:
    x = torch.randn(2, channels, 3, 4)
    modules = [SqueezeExcitation(channels), ECA(channels), CBAM(channels), BAM(channels), CoordinateAttention(channels)]
    modules += [PolarizedSelfAttention(channels), PolarizedSelfAttention(channels, "sequential")]
    modules += [SpatialGroupEnhance(channels, 1)]
    for module in modules:
        assert module(x).shape == x.shape
