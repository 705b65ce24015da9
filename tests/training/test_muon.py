"""Muon: orthogonal steps, comparison with PyTorch's, packed maps."""

import copy

import pytest
import torch
from torch import nn

from multihead.attention.multihead import PackedLinear
from multihead.bundle import build_network
from multihead.models.config import TransformerConfig
from multihead.training import optimizer as muon
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import Muon, build_optimizer, linear_maps, orthogonal


def with_singular_values(*values, rows=6, columns=9, seed=0):
    """P S Q^T and P Q^T."""
    torch.manual_seed(seed)
    p, _ = torch.linalg.qr(torch.randn(rows, len(values)))
    q, _ = torch.linalg.qr(torch.randn(columns, len(values)))
    return p @ torch.diag(torch.tensor(values)) @ q.T, p @ q.T


def only_maps(weights, **settings):
    """A Muon of these weights, each a map, without parameters for Adam."""
    rest = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=0.0)
    return Muon({weight: (len(weight),) for weight in weights}, rest, **settings)


def steps(optimizer, parameters, gradients, rate=0.02):
    for each in gradients:
        for parameter, gradient in zip(parameters, each, strict=True):
            parameter.grad = gradient.clone()
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (7, 7)])
def test_what_is_left_of_a_matrix_are_its_directions(shape, dtype):
    given, directions = with_singular_values(3.0, 1.0, 0.3, 0.1, rows=shape[0], columns=shape[1])
    found = orthogonal(torch.stack([given, 100 * given]), dtype)
    assert (found - directions).norm(dim=(1, 2)).max() < (0.3 if dtype == torch.float32 else 0.6)  # of a norm of 2
    values = torch.linalg.svdvals(found)
    assert values[:, :4].min() > 0.85
    assert values[:, :4].max() < 1.15
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0.02)  # the length of a gradient does not matter


def test_large_singular_values_become_1_and_small_ones_stay_small():
    sizes = (0.9, 0.3, 0.1, 0.03, 0.02, 0.003, 1e-4)
    given, _ = with_singular_values(*sizes, rows=40, columns=60)
    found = torch.linalg.svdvals(orthogonal(given[None]).double())[0][: len(sizes)].tolist()
    norm = float(given.norm())
    for size, value in zip(sizes, sorted(found[:5]) + found[5:], strict=True):  # the order of the large ones may change
        assert value < 54 * size / norm
        assert size < 0.02 * norm or abs(value - 1) < 0.12


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_squares_of_a_gradient_may_underflow_or_overflow(dtype, plain, monkeypatch):
    """A momentum without further gradients decays for long; its step stays orthogonal, or smaller after underflow."""
    if plain:
        monkeypatch.setattr(muon, "library_for", lambda *_: None)
    given, _ = with_singular_values(3.0, 1.0, 0.3, 0.1, rows=40, columns=60)
    (wanted,) = orthogonal(given[None], dtype)
    for length in (1e-28, 1e-22, 1e-12, 1e12, 1e25):
        torch.testing.assert_close(orthogonal(length * given[None], dtype)[0], wanted, rtol=0, atol=0.02)
    for length in (1e-35, 1e-40, 1e-45):
        assert torch.linalg.svdvals(orthogonal(length * given[None], dtype)[0]).max() < 1.15


def test_nothing_stays_nothing():
    assert torch.equal(orthogonal(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon to compare with")
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_equals_pytorchs_with_its_coefficients(monkeypatch, decay):
    monkeypatch.setattr(muon, "_COEFFICIENTS", ((3.4445, -4.7750, 2.0315),) * 5)
    monkeypatch.setattr(muon, "_SAFE", 1.0)
    torch.manual_seed(1)
    start = [torch.randn(8, 12), torch.randn(12, 8), torch.randn(8, 8)]
    gradients = [[torch.randn_like(weight) for weight in start] for _ in range(4)]
    ours, theirs = ([nn.Parameter(weight.clone()) for weight in start] for _ in range(2))
    steps(only_maps(ours, weight_decay=decay, dtype=torch.bfloat16), ours, gradients)
    reference = torch.optim.Muon(
        theirs, lr=0.0, weight_decay=decay, momentum=muon.MOMENTUM, adjust_lr_fn="match_rms_adamw"
    )
    steps(reference, theirs, gradients)
    for mine, other, before in zip(ours, theirs, start, strict=True):
        moved = (other - before).norm()
        assert moved > 0.02
        assert (mine - other).norm() < 0.03 * moved  # both round to bfloat16, in another order


def test_maps_in_one_matrix_move_as_if_they_were_apart():
    torch.manual_seed(2)
    packed = PackedLinear(8, (8, 4, 12))
    apart = [nn.Parameter(part.detach().clone()) for part in packed.weight.split_with_sizes([8, 4, 12])]
    gradient = torch.randn(24, 8)
    rest = torch.optim.AdamW([packed.bias], lr=0.0)
    steps(Muon({packed.weight: packed.sizes}, rest), [packed.weight], [[gradient]])
    steps(only_maps(apart), apart, [list(gradient.split_with_sizes([8, 4, 12]))])
    torch.testing.assert_close(packed.weight, torch.cat(apart), rtol=0, atol=1e-6)


def test_half_the_scale_moves_matrices_alone_by_half():
    config = TransformerConfig(
        source_vocab=20, target_vocab=20, padding_id=0, width=16, heads=2, inner=24, encoder_layers=1, decoder_layers=1
    )
    torch.manual_seed(3)
    start = build_network(config)
    gradients = [torch.randn_like(parameter) for parameter in start.parameters()]
    moved = []
    for scale in (0.2, 0.1):
        model = copy.deepcopy(start)
        optimizer = build_optimizer(model, TrainingConfig(updates=1, optimizer="muon", muon_scale=scale))
        steps(optimizer, list(model.parameters()), [gradients])
        moved.append([after - before for after, before in zip(model.parameters(), start.parameters(), strict=True)])
    maps = [parameter in linear_maps(start) for parameter in start.parameters()]
    assert any(maps)
    for is_map, whole, half in zip(maps, *moved, strict=True):
        assert whole.any()
        torch.testing.assert_close(half, whole / 2 if is_map else whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("tied", [True, False])
def test_the_vocabulary_and_vectors_are_left_to_adam(tied):
    sizes = {"width": 16, "heads": 2, "inner": 24, "encoder_layers": 2, "decoder_layers": 1}
    config = TransformerConfig(
        source_vocab=20, target_vocab=20, padding_id=0, tie_embeddings=tied, tie_output=tied, **sizes
    )
    model = build_network(config)
    maps = linear_maps(model)
    names = {name for name, parameter in model.named_parameters() if parameter in maps}
    inside = {name for name, parameter in model.named_parameters() if name[:2] in ("en", "de") and parameter.dim() == 2}
    assert names == inside
    assert {sum(rows) == len(weight) for weight, rows in maps.items()} == {True}
    optimizer = build_optimizer(model, TrainingConfig(updates=3, optimizer="muon"))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    optimizer.step()
    for name, parameter in model.named_parameters():
        assert set(optimizer.state[parameter]) == (
            {"momentum"} if name in inside else {"exp_avg", "exp_avg_sq", "step"}
        )


def test_what_has_no_gradient_does_not_move():
    weights = [nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(3, 4))]
    before = weights[1].detach().clone()
    optimizer = only_maps(weights)
    weights[0].grad = torch.randn(3, 4)
    optimizer.param_groups[0]["lr"] = 0.1
    optimizer.step()
    assert torch.equal(weights[1], before)
    assert weights[1] not in optimizer.state or not optimizer.state[weights[1]]


@pytest.mark.parametrize("shape", [(1, 5), (7, 300), (300, 7), (33, 70), (260, 270)])
def test_compiled_products_are_the_plain_ones(shape, monkeypatch):
    torch.manual_seed(3)
    given = torch.randn(3, *shape) * torch.tensor([1e-6, 1.0, 1e6])[:, None, None]
    kept = given.clone()
    compiled = orthogonal(given)
    assert torch.equal(given, kept)
    monkeypatch.setattr(muon, "library_for", lambda *_: None)
    plain = orthogonal(given)
    torch.testing.assert_close(compiled, plain, rtol=0, atol=5e-6)


@pytest.mark.parametrize("shape", [(1, 5), (7, 301), (300, 7), (33, 70), (130, 260), (530, 40)])
def test_compiled_products_of_bfloat16_lose_no_more_than_plain_ones(shape, monkeypatch):
    torch.manual_seed(3)
    given = torch.randn(3, *shape)
    compiled = orthogonal(given, torch.bfloat16)
    monkeypatch.setattr(muon, "library_for", lambda *_: None)
    exact, plain = orthogonal(given.double(), torch.float64), orthogonal(given, torch.bfloat16)
    lost = [float((found - exact).norm() / exact.norm()) for found in (compiled, plain)]
    assert lost[0] < 1.1 * lost[1] + 1e-3
    assert lost[0] < 0.05
