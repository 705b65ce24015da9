"""Random bits: reproducibility and statistical quality."""

from __future__ import annotations

import itertools

import pytest
import torch

from multihead.errors import ShapeError
from multihead.kernels.native import load_kernels
from multihead.kernels.random import (
    Dropout,
    Key,
    Stream,
    current_stream,
    dropout,
    keep_mask,
    next_key,
    packed_at,
    random_bytes,
    resume,
    step,
    words,
)

KEYS = [Key(0, 0), Key(2**32 - 1, 2**31), Key(0x12345678, 0x9ABCDEF0, first_row=2**33 + 5, row_stride=3)]


def by_hand(x: int) -> int:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> shift)) * factor % 2**32
    return x ^ (x >> 16)


@pytest.mark.parametrize("key", KEYS)
def test_words_are_the_equation_in_whole_numbers(key: Key) -> None:
    drawn = words(key, 3, 4, 5)
    for row, position, j in itertools.product(range(3), range(4), range(5)):
        number = (key.low + key.first_row + key.row_stride * row) % 2**32
        base = by_hand(by_hand(number) ^ position)
        expected = by_hand((base + by_hand((key.high + j) % 2**32)) % 2**32)
        assert int(drawn[row, position, j]) % 2**32 == expected


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("shape", [(7, 5, 37), (2, 3, 4, 8), (6, 1), (9,), (4, 4096)])
def test_the_compiled_kernels_draw_the_same_bits(key: Key, shape: tuple[int, ...], compiled) -> None:
    library = load_kernels().library
    assert library is not None
    rows, positions, width = (shape[0], 1, shape[1]) if len(shape) == 2 else (1, 1, shape[0])
    if len(shape) > 2:
        rows, positions, width = shape[0], torch.Size(shape[1:-1]).numel(), shape[-1]
    for level, threads in ((1, 1), (100, 2), (255, 2)):
        mask = torch.empty(shape, dtype=torch.bool)
        library.keep_mask(
            mask.data_ptr(), rows * positions, width, key.low, key.high, key.first_row, key.row_stride, positions,
            *(None, level, threads),
        )  # fmt: skip
        assert torch.equal(mask, keep_mask(key, torch.Size(shape), level))


def test_packed_tokens_draw_what_they_draw_in_their_batch(compiled) -> None:
    whole = torch.ones(4, 6, 10)
    rows, positions = torch.tensor([0, 0, 2, 3, 3, 3]), torch.tensor([0, 1, 0, 0, 2, 5])

    def drawn(x: torch.Tensor, seed: int) -> torch.Tensor:
        with step(seed, first_row=7, row_stride=2):
            return dropout(x, 0.5)

    for seed in range(3):
        with packed_at(rows, positions):
            packed = drawn(torch.ones(1, 6, 10), seed)
            with compiled():
                plain = drawn(torch.ones(6, 10), seed)
            with pytest.raises(ShapeError, match="6 packed tokens are known"):
                drawn(torch.ones(5, 10), seed)
        want = drawn(whole, seed)[rows, positions]
        assert torch.equal(packed[0], want)
        assert torch.equal(plain, want)


def test_a_batch_may_be_cut_into_rows_and_positions() -> None:
    whole = random_bytes(Key(3, 4), torch.Size([8, 6, 10]))
    assert torch.equal(random_bytes(Key(3, 4, first_row=2), torch.Size([5, 6, 10])), whole[2:7])
    assert torch.equal(random_bytes(Key(3, 4, first_row=1, row_stride=2), torch.Size([4, 6, 10])), whole[1::2])
    assert torch.equal(random_bytes(Key(3, 4), torch.Size([8, 3, 10])), whole[:, :3])
    assert torch.equal(random_bytes(Key(3, 4), torch.Size([8, 6, 7])), whole[:, :, :7])


def test_bytes_are_uniform_and_independent_of_their_neighbours_in_every_direction() -> None:
    """Chi-square over the values; correlations between features, positions, rows, sites and steps."""
    with step(11):
        first, second = (random_bytes(next_key(), torch.Size([64, 64, 256])) for _ in range(2))
    with step(12):
        other = random_bytes(next_key(), torch.Size([64, 64, 256]))
    counts = torch.bincount(first.flatten(), minlength=256).double()
    expected = first.numel() / 256
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi_square - 255) < 5 * (2 * 255) ** 0.5
    x = first.double() - 127.5
    pairs = {
        "feature": (x[..., 1:], x[..., :-1]),
        "word": (x[..., 4:], x[..., :-4]),
        "position": (x[:, 1:], x[:, :-1]),
        "row": (x[1:], x[:-1]),
        "site": (x, second.double() - 127.5),
        "step": (x, other.double() - 127.5),
    }
    variance = (256**2 - 1) / 12
    for name, (a, b) in pairs.items():
        correlation = float((a * b).mean()) / variance
        assert abs(correlation) < 5 / a.numel() ** 0.5, name


def test_rows_differ_in_about_as_many_bits_as_chance_has_it() -> None:
    drawn = random_bytes(Key(5, 6), torch.Size([512, 1, 256]))[:, 0] & 1
    different = (drawn[:, None] ^ drawn[None]).double().mean(-1)[~torch.eye(512, dtype=torch.bool)]
    assert abs(different.mean() - 0.5) < 0.001
    assert (different - 0.5).abs().max() < 6 * 0.5 / 256**0.5


def test_a_step_decides_everything_inside_it() -> None:
    x = torch.ones(4, 5, 6)
    with step(7) as stream:
        first = [dropout(x, 0.5) for _ in range(3)]
        assert current_stream() is stream
        assert stream.site == 3
    assert current_stream() is None
    torch.manual_seed(99)
    with step(7):
        assert all(torch.equal(dropout(x, 0.5), before) for before in first)
    assert not torch.equal(first[0], first[1])
    with step(8):
        assert not torch.equal(dropout(x, 0.5), first[0])
    with resume(stream, 1):
        assert torch.equal(dropout(x, 0.5), first[1])
    with resume(Stream(7)):
        assert torch.equal(dropout(x, 0.5), first[0])


def test_pieces_of_a_batch_draw_what_the_whole_draws() -> None:
    layer, x = Dropout(0.3), torch.randn(6, 5, 4)
    with step(1):
        whole = layer(x)
    with step(1, first_row=4):
        assert torch.equal(layer(x[4:]), whole[4:])
    with step(1, first_row=1, row_stride=2):
        assert torch.equal(layer(x[1::2]), whole[1::2])


def test_outside_a_step_pytorchs_generator_decides() -> None:
    torch.manual_seed(5)
    first, second = next_key(), next_key()
    torch.manual_seed(5)
    assert next_key() == first
    assert next_key() == second != first


def test_a_step_within_a_step_ends_with_it_and_an_error_ends_both() -> None:
    with step(1) as outer:
        with step(2) as inner:
            assert current_stream() is inner
        assert current_stream() is outer
    with pytest.raises(ZeroDivisionError), step(3):
        _ = 1 // 0
    assert current_stream() is None


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0), (0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_dropout_of_no_elements_is_the_same_with_and_without_kernels(shape: tuple[int, ...], compiled) -> None:
    def result() -> tuple[torch.Tensor, torch.Tensor | None]:
        x = torch.ones(shape, requires_grad=True)
        y = dropout(x, 0.3)
        y.sum().backward()
        return y, x.grad

    native = result()
    with compiled():
        plain = result()
    for one, other in zip(native, plain, strict=True):
        assert one is not None
        assert other is not None
        assert one.shape == other.shape == torch.Size(shape)
