"""AdamW, its state as named tensors, and the moving average."""

import copy

import pytest
import torch
from torch import nn

from multihead.training.adam import Optimizer
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import Average, build_optimizer, optimizer_tensors, restore_optimizer


class Network(nn.Module):
    """A minimal `Trainable` with matrices and vectors."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(5, 7), nn.LayerNorm(7)
        self.output = nn.Linear(7, 3, bias=False)

    def forward(self, x):
        return self.output(self.norm(self.inner(x)))

    def loss(self, source, source_lengths, target_input, target_output, *, smoothing):
        raise AssertionError("not asked for here")


def network(seed=0):
    torch.manual_seed(seed)
    return Network().double()


def some_updates(model, optimizer, first, last, rate=1e-2):
    for step in range(first, last):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(4, 5, dtype=torch.float64)).square().sum().backward()
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()


def config(**changes):
    return TrainingConfig(updates=10, **changes)


def adamw_by_hand(parameters, gradients, steps, rate, decay, beta1, beta2, eps=1e-9):
    """Loshchilov & Hutter 2019, algorithm 2, written out; ``gradients(step, parameters)``."""
    first = [torch.zeros_like(p) for p in parameters]
    second = [torch.zeros_like(p) for p in parameters]
    for step in range(1, steps + 1):
        for index, (parameter, gradient) in enumerate(zip(parameters, gradients(step, parameters), strict=True)):
            if parameter.dim() > 1:
                parameter *= 1 - rate * decay
            first[index] = beta1 * first[index] + (1 - beta1) * gradient
            second[index] = beta2 * second[index] + (1 - beta2) * gradient**2
            mean = first[index] / (1 - beta1**step)
            scale = (second[index] / (1 - beta2**step)).sqrt() + eps
            parameter -= rate * mean / scale
    return parameters


def test_equals_the_algorithm_written_out_and_vectors_do_not_decay():
    settings = config(weight_decay=0.1, beta1=0.8, beta2=0.95)
    model = network()
    ours, start = list(model.parameters()), [p.detach().clone() for p in model.parameters()]
    optimizer = build_optimizer(model, settings)

    def gradients(step, parameters):
        torch.manual_seed(step)
        return [torch.randn_like(p) for p in parameters]

    for step in range(1, 6):
        for parameter, gradient in zip(ours, gradients(step, ours), strict=True):
            parameter.grad = gradient
        for group in optimizer.param_groups:
            group["lr"] = 0.01
        optimizer.step()
    expected = adamw_by_hand(start, gradients, 5, 0.01, 0.1, 0.8, 0.95)
    for got, want in zip(ours, expected, strict=True):
        torch.testing.assert_close(got.detach(), want, rtol=1e-12, atol=1e-12)


def test_equals_torch_adamw_with_the_same_settings():
    settings = config(weight_decay=0.05)
    ours, theirs = network(), network()
    matrices = [p for p in theirs.parameters() if p.dim() > 1]
    vectors = [p for p in theirs.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.98), eps=1e-9, fused=False, foreach=False)
    some_updates(ours, build_optimizer(ours, settings), 0, 20)
    some_updates(theirs, reference, 0, 20)
    for got, want in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_is_none_of_pytorchs_classes_whose_first_object_imports_its_compiler():
    for kind in ("adam", "muon"):
        assert not isinstance(build_optimizer(network(), config(optimizer=kind)), torch.optim.Optimizer)
    assert isinstance(torch.optim.SGD(network().parameters()), Optimizer)  # users may bring theirs


def test_frozen_parameters_stay():
    model = network()
    model.inner.weight.requires_grad_(False)
    before = model.inner.weight.clone()
    some_updates(model, build_optimizer(model, config(weight_decay=0.5)), 0, 3)
    assert torch.equal(model.inner.weight, before)
    assert not torch.equal(model.output.weight, network().output.weight)


@pytest.mark.parametrize("kind", ["adam", "muon"])
def test_state_put_into_another_optimizer_goes_on_bit_for_bit(kind):
    settings = config(weight_decay=0.01, optimizer=kind)
    whole = network()
    some_updates(whole, build_optimizer(whole, settings), 0, 8)
    first = network()
    optimizer = build_optimizer(first, settings)
    some_updates(first, optimizer, 0, 3)
    saved = {name: tensor.clone() for name, tensor in optimizer_tensors(first, optimizer).items()}
    second = copy.deepcopy(first)
    fresh = build_optimizer(second, settings)
    restore_optimizer(second, fresh, saved)
    some_updates(second, fresh, 3, 8)
    for got, want in zip(second.parameters(), whole.parameters(), strict=True):
        assert torch.equal(got, want)


def test_a_restored_state_is_not_shared_with_what_it_was_restored_from():
    model = network()
    optimizer = build_optimizer(model, config())
    some_updates(model, optimizer, 0, 1)
    saved = {name: tensor.clone() for name, tensor in optimizer_tensors(model, optimizer).items()}
    kept = {name: tensor.clone() for name, tensor in saved.items()}
    restore_optimizer(model, optimizer, saved)
    some_updates(model, optimizer, 1, 2)
    assert all(torch.equal(saved[name], kept[name]) for name in saved)


def test_a_restored_state_lies_where_its_parameter_does():
    """A checkpoint is read on the host, and its tensors are moved to the model's device."""
    model, elsewhere = network(), network().to("meta")
    optimizer = build_optimizer(model, config(optimizer="muon"))
    some_updates(model, optimizer, 0, 1)
    restored = torch.optim.SGD(elsewhere.parameters(), lr=0.1)  # whichever it is
    restore_optimizer(elsewhere, restored, optimizer_tensors(model, optimizer))
    found = [tensor for state in restored.state.values() for tensor in state.values()]
    assert len(found) == len(optimizer_tensors(model, optimizer)) > 5
    assert all(tensor.device.type == "meta" for tensor in found)


def test_state_has_a_name_for_everything():
    model = network()
    optimizer = build_optimizer(model, config())
    assert optimizer_tensors(model, optimizer) == {}
    some_updates(model, optimizer, 0, 1)
    expected = {f"{name}/{part}" for name, _ in model.named_parameters() for part in ("exp_avg", "exp_avg_sq", "step")}
    assert set(optimizer_tensors(model, optimizer)) == expected


def test_average_follows_its_formula():
    model = network()
    average = Average(model, 0.7)
    expected = [p.detach().clone() for p in model.parameters()]
    for step in range(1, 30):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter)
        average.update(step)
        decay = min(0.7, (1 + step) / (10 + step))
        expected = [decay * e + (1 - decay) * p.detach() for e, p in zip(expected, model.parameters(), strict=True)]
    for got, want in zip(average.model.parameters(), expected, strict=True):
        torch.testing.assert_close(got.detach(), want, rtol=1e-12, atol=1e-12)


def test_no_average_is_the_model_itself():
    model = network()
    average = Average(model, 0.0)
    assert average.model is model
    before = [p.clone() for p in model.parameters()]
    average.update(3)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def test_average_leaves_the_model_alone():
    model = network()
    average = Average(model, 0.5)
    before = [p.clone() for p in model.parameters()]
    average.update(1)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert not {id(p) for p in model.parameters()} & {id(p) for p in average.model.parameters()}
