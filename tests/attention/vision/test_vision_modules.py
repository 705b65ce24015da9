"""Image attention modules equal their papers' equations, computed element by element, and keep invariances."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multihead.attention.vision import (
    BAM,
    CBAM,
    ECA,
    CoordinateAttention,
    PolarizedSelfAttention,
    ShuffleAttention,
    SpatialGroupEnhance,
    SqueezeExcitation,
)

B, C, H, W = 2, 8, 4, 3
AT_INIT = 1 / (1 + math.exp(-1))  # sigma(1)


def random(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module.double().eval()


def image(height: int = H, width: int = W) -> Tensor:
    return torch.randn(B, C, height, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


def relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, torch.zeros_like(x))


def convolve(x: Tensor, weight: Tensor, bias: Tensor, dilation: int = 1) -> Tensor:
    """A zero-padded convolution [in, H, W] -> [out, H, W] as explicit sums."""
    out, _, size, _ = weight.shape
    middle = (size - 1) // 2
    result = torch.zeros(out, *x.shape[1:], dtype=x.dtype)
    for i in range(x.shape[1]):
        for j in range(x.shape[2]):
            for a in range(size):
                for b in range(size):
                    row, column = i + (a - middle) * dilation, j + (b - middle) * dilation
                    if 0 <= row < x.shape[1] and 0 <= column < x.shape[2]:
                        result[:, i, j] += weight[:, :, a, b] @ x[:, row, column]
            result[:, i, j] += bias
    return result


def normalize(x: Tensor, norm: nn.Module) -> Tensor:
    """A batch norm in evaluation mode, channels first."""
    shape = (-1,) + (1,) * (x.dim() - 1)
    mean, variance, weight, bias = (
        getattr(norm, name).view(shape) for name in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / (variance + norm.eps).sqrt() * weight + bias


@pytest.mark.parametrize("bias", [False, True])
def test_squeeze_excitation(bias: bool) -> None:
    module, x = random(SqueezeExcitation(C, 4, bias=bias)), image()
    first, second = (layer.bias if bias else 0 for layer in (module.reduce, module.expand))
    for n in range(B):
        z = torch.stack([x[n, c].sum() / (H * W) for c in range(C)])
        s = sigmoid(module.expand.weight @ relu(module.reduce.weight @ z + first) + second)
        for c in range(C):
            torch.testing.assert_close(module(x)[n, c], s[c] * x[n, c])


def test_squeeze_excitation_ignores_where() -> None:
    module, x = random(SqueezeExcitation(C, 4)), image()
    order = torch.randperm(H * W, generator=torch.Generator().manual_seed(2))
    shuffled = x.flatten(2)[..., order].view_as(x)
    torch.testing.assert_close(module(shuffled), module(x).flatten(2)[..., order].view_as(x))


def test_squeeze_excitation_has_two_matrices() -> None:
    assert sum(p.numel() for p in SqueezeExcitation(64, 16).parameters()) == 2 * 64 * 64 // 16


def test_eca() -> None:
    module, x = random(ECA(C, 5)), image()
    filter_ = module.convolution.weight.flatten()
    for n in range(B):
        z = [float(x[n, c].mean()) for c in range(C)]
        for c in range(C):
            total = sum(filter_[k] * z[c + k - 2] for k in range(5) if 0 <= c + k - 2 < C)
            torch.testing.assert_close(module(x)[n, c], sigmoid(total) * x[n, c])


def test_eca_has_a_filter_of_the_papers_size_and_nothing_else() -> None:
    sizes = {channels: ECA(channels).convolution.kernel_size[0] for channels in (2**power for power in range(4, 12))}
    assert list(sizes.values()) == [3, 3, 3, 5, 5, 5, 5, 7]
    for channels, size in sizes.items():
        assert sum(p.numel() for p in ECA(channels).parameters()) == size


def test_eca_follows_channels_that_move() -> None:
    module, x = random(ECA(C, 3)), image()
    moved = torch.roll(x, 1, dims=1)
    torch.testing.assert_close(module(moved)[:, 2:-1], torch.roll(module(x), 1, dims=1)[:, 2:-1])


def test_cbam() -> None:
    module, x = random(CBAM(C, 4, kernel_size=3)), image()
    first, second = module.channel.reduce.weight, module.channel.expand.weight
    for n in range(B):
        mean, maximum = x[n].flatten(1).mean(1), x[n].flatten(1).max(1).values
        channel = sigmoid(second @ relu(first @ mean) + second @ relu(first @ maximum))
        once = channel[:, None, None] * x[n]
        both = torch.stack([once.mean(0), once.max(0).values])
        place = sigmoid(convolve(both, module.spatial.convolution.weight, torch.zeros(1).double()))
        torch.testing.assert_close(module(x)[n], place * once)
        torch.testing.assert_close(module.gate(x)[n], place * channel[:, None, None])
        torch.testing.assert_close(module.channel.gate(x)[n, :, 0, 0], channel)


def test_bam() -> None:
    module, x = random(BAM(C, 4, dilation=2)), image()
    for norm in (module.channel[3], module.spatial[7]):
        norm.running_mean.normal_(generator=torch.Generator().manual_seed(3))
        norm.running_var.uniform_(0.5, 2.0, generator=torch.Generator().manual_seed(4))
    w0, _, w1, channel_norm = module.channel
    f0, f1, f2, f3, spatial_norm = (module.spatial[i] for i in (0, 2, 4, 6, 7))
    for n in range(B):
        means = x[n].flatten(1).mean(1)
        channel = normalize(w1.weight @ relu(w0.weight @ means + w0.bias) + w1.bias, channel_norm)
        place = relu(convolve(x[n], f0.weight, f0.bias))
        place = relu(convolve(place, f1.weight, f1.bias, dilation=2))
        place = relu(convolve(place, f2.weight, f2.bias, dilation=2))
        place = normalize(convolve(place, f3.weight, f3.bias), spatial_norm)
        attention = sigmoid(channel[:, None, None] + place)
        torch.testing.assert_close(module.gate(x)[n], attention)
        torch.testing.assert_close(module(x)[n], x[n] + x[n] * attention)


def test_bam_keeps_and_at_most_doubles() -> None:
    module, x = random(BAM(C, 4)), image().abs()
    output = module(x)
    assert (output >= x).all()
    assert (output <= 2 * x).all()


def test_shuffle_attention() -> None:
    groups = 2
    module, x = random(ShuffleAttention(C, groups)), image()
    size, half = C // groups, C // groups // 2
    for n in range(B):
        weighted = []
        for g in range(groups):
            for c in range(half):
                part = x[n, g * size + c]
                s = module.channel_weight[c] * part.mean() + module.channel_bias[c]
                weighted.append(part * sigmoid(s))
            for c in range(half):
                part = x[n, g * size + half + c]
                standard = (part - part.mean()) / (part.var(correction=0) + 1e-5).sqrt()
                standard = standard * module.norm_weight[c] + module.norm_bias[c]
                weighted.append(part * sigmoid(module.spatial_weight[c] * standard + module.spatial_bias[c]))
        output = module(x)[n]
        for c in range(C):
            to = 2 * c if c < C // 2 else 2 * (c - C // 2) + 1
            torch.testing.assert_close(output[to], weighted[c])


def test_shuffle_attention_at_first() -> None:
    module, x = ShuffleAttention(C, 2).double(), image()
    torch.testing.assert_close(module.gate(x), torch.full_like(x, AT_INIT))
    torch.testing.assert_close(module(x), F.channel_shuffle(x, 2) * AT_INIT)
    assert sum(p.numel() for p in ShuffleAttention(64, 8).parameters()) == 3 * 64 // 8


def test_spatial_group_enhance() -> None:
    groups = 4
    module, x = random(SpatialGroupEnhance(C, groups)), image()
    size = C // groups
    for n in range(B):
        for g in range(groups):
            part = x[n, g * size : (g + 1) * size].flatten(1)
            mean = part.mean(1)
            c = torch.stack([mean @ part[:, i] for i in range(H * W)])
            deviation = ((c - c.mean()) ** 2).mean().sqrt()
            a = module.weight[g].squeeze() * (c - c.mean()) / (deviation + 1e-5) + module.bias[g].squeeze()
            expected = (part * sigmoid(a)).view(size, H, W)
            torch.testing.assert_close(module(x)[n, g * size : (g + 1) * size], expected)


def test_spatial_group_enhance_at_first() -> None:
    module, x = SpatialGroupEnhance(C, 4).double(), image()
    torch.testing.assert_close(module(x), x * AT_INIT)
    assert sum(p.numel() for p in module.parameters()) == 2 * 4


def test_spatial_group_enhance_follows_places_that_move() -> None:
    module, x = random(SpatialGroupEnhance(C, 2)), image()
    order = torch.randperm(H * W, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(module(x.flatten(2)[..., order].view_as(x)), module(x).flatten(2)[..., order].view_as(x))


def polarized_maps(module: PolarizedSelfAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """A_ch [C, 1, 1] and A_sp [1, H, W] of one image [C, H, W]."""
    flat, channel, spatial = x.flatten(1), module.channel, module.spatial
    scores = channel.query.weight[0, :, 0, 0] @ flat
    weights = scores.exp() / scores.exp().sum()
    mixed = channel.output.weight @ (channel.value.weight[:, :, 0, 0] @ flat @ weights)
    standard = (mixed - mixed.mean()) / (mixed.var(correction=0) + channel.norm.eps).sqrt()
    channel_map = sigmoid(standard * channel.norm.weight + channel.norm.bias)
    pooled = (spatial.query.weight[:, :, 0, 0] @ flat).mean(1)
    folded = pooled.exp() / pooled.exp().sum()
    spatial_map = sigmoid(folded @ (spatial.value.weight[:, :, 0, 0] @ flat))
    return channel_map[:, None, None], spatial_map.view(1, *x.shape[1:])


@pytest.mark.parametrize("channels", [C, C - 1])
def test_polarized_self_attention(channels: int) -> None:
    parallel = random(PolarizedSelfAttention(channels))
    sequential = PolarizedSelfAttention(channels, "sequential").double()
    sequential.load_state_dict(parallel.state_dict())
    x = image()[:, :channels]
    for n in range(B):
        channel, spatial = polarized_maps(parallel, x[n])
        torch.testing.assert_close(parallel(x)[n], channel * x[n] + spatial * x[n])
        z = channel * x[n]
        torch.testing.assert_close(sequential(x)[n], polarized_maps(parallel, z)[1] * z)


def test_coordinate_attention() -> None:
    module, x = random(CoordinateAttention(C)), image()
    module.norm.running_mean.normal_(generator=torch.Generator().manual_seed(3))
    module.norm.running_var.uniform_(0.5, 2.0, generator=torch.Generator().manual_seed(4))
    assert module.shared.weight.shape[0] == 8

    def weigh(strip: Tensor, layer: nn.Conv1d) -> Tensor:  # [C, length] -> [C, length]
        f = normalize(module.shared.weight[:, :, 0] @ strip, module.norm)
        f = f * relu(f + 3).clamp(max=6) / 6
        return sigmoid(layer.weight[:, :, 0] @ f + layer.bias[:, None])

    for n in range(B):
        rows, columns = weigh(x[n].mean(2), module.rows), weigh(x[n].mean(1), module.columns)
        torch.testing.assert_close(module(x)[n], x[n] * rows[:, :, None] * columns[:, None, :])


@pytest.mark.parametrize("training", [False, True])
def test_coordinate_attention_follows_rows_and_columns(training: bool) -> None:
    module, x = random(CoordinateAttention(C)).train(training), image()
    for axis, size in ((2, H), (3, W)):
        order = torch.randperm(size, generator=torch.Generator().manual_seed(2))
        torch.testing.assert_close(module(x.index_select(axis, order)), module(x).index_select(axis, order))


@pytest.mark.parametrize("width", [16, 512])
def test_the_bottleneck_of_coordinate_attention(width: int) -> None:
    assert CoordinateAttention(width).shared.out_channels == max(8, width // 32)
