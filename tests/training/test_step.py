"""The loss of a batch and one update: padding, splits, rejections."""

import copy
import itertools
import math
import sys

import processes
import pytest
import torch
import torch.nn.functional as F
from versions import AUTOCAST_IS_NOT_COMPILED

from multihead.errors import DivergenceError
from multihead.kernels import random
from multihead.training import step as step_module
from multihead.training.optimizer import build_optimizer
from multihead.training.splitting import sequence_loss
from multihead.training.step import RejectedUpdateError, step_seed, train_step


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def close(got, want, tolerance=1e-10):
    assert got.keys() == want.keys()
    for name in got:
        torch.testing.assert_close(
            got[name], want[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n} {m}"
        )


# ---------------------------------------------------------------------------------------------- loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_the_loss_is_the_cross_entropy_with_a_smoothed_target(toy, smoothing):
    """Szegedy et al. 2016: minus the sum of q log p with q = (1 - s) one-hot + s / V, over real tokens only."""
    model, batch = toy.model(), toy.batch(0, 1, 2, 3)
    sums = sequence_loss(model, batch, smoothing)
    logits = model.output(model.hidden(batch.source, batch.source_lengths, batch.target_input)).detach()
    log_p = logits.log_softmax(-1)
    total = nll = correct = 0.0
    for row, length in enumerate(batch.target_lengths):
        for place in range(int(length)):
            target = batch.target_output[row, place]
            q = (1 - smoothing) * F.one_hot(target, 20).double() + smoothing / 20
            total -= float((q * log_p[row, place]).sum())
            nll -= float(log_p[row, place, target])
            correct += float(logits[row, place].argmax() == target)
    assert sums.total.item() == pytest.approx(total, rel=1e-10)
    assert sums.nll.item() == pytest.approx(nll, rel=1e-10)
    assert int(sums.correct) == correct


def test_padding_never_changes_the_loss_or_its_gradient(toy):
    short, long = sorted(range(30), key=lambda i: len(toy.store.source[i]) + len(toy.store.target[i]))[::29]
    sums, grads = [], []
    for batches in ([(short, long)], [(short,), (long,)]):
        model = toy.model()
        found = [sequence_loss(model, toy.batch(*indices), 0.1) for indices in batches]
        sum(s.total for s in found).backward()
        sums.append(tuple(sum(s[k].item() for s in found) for k in range(3)))
        grads.append(gradients(model))
    assert sums[0] == pytest.approx(sums[1], rel=1e-10)
    close(*grads)


# ---------------------------------------------------------------------------------------------- step


def one_step(toy, model, groups, step=1, rate=1e-2, **changes):
    """Make an update on a copy; return its sums, the new weights and the gradients."""
    model, config = copy.deepcopy(model), toy.config(**changes)
    sums = train_step(model, build_optimizer(model, config), groups, config, step, rate)
    return sums, dict(model.state_dict()), gradients(model)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_accumulated_batches_are_one_large_batch(toy, smoothing):
    """The batches have unequal sizes, so a mean of means would differ."""
    model = toy.model()
    whole = one_step(toy, model, [toy.batch(*range(12))], smoothing=smoothing)
    parts = [toy.batch(0), toy.batch(*range(1, 8)), toy.batch(*range(8, 12))]
    split = one_step(toy, model, parts, smoothing=smoothing)
    assert whole[0] == pytest.approx(split[0], rel=1e-10)
    close(whole[2], split[2])
    close(whole[1], split[1], 1e-8)


def test_the_gradient_is_of_the_mean_over_the_real_tokens(toy):
    model, batch = toy.model(), toy.batch(4, 5, 6)
    sums, _, found = one_step(toy, model, [batch], clip=0, smoothing=0.1)
    loss = sequence_loss(model, batch, 0.1)
    (loss.total / batch.target_tokens).backward()
    close(found, gradients(model))
    assert sums.tokens == batch.target_tokens == sum(len(toy.store.target[i]) + 1 for i in (4, 5, 6))
    assert sums.source_tokens == sum(len(toy.store.source[i]) + 1 for i in (4, 5, 6))
    assert sums.loss == pytest.approx(loss.total.item())


def norm_of(grads):
    return math.sqrt(sum(float(g.square().sum()) for g in grads.values()))


def test_clipping_scales_the_whole_gradient_to_its_largest_norm(toy):
    model, batch = toy.model(), toy.batch(*range(6))
    sums, _, free = one_step(toy, model, [batch], clip=0)
    assert sums.gradient_norm == pytest.approx(norm_of(free))
    half = sums.gradient_norm / 2
    clipped_sums, _, clipped = one_step(toy, model, [batch], clip=half)
    assert clipped_sums.gradient_norm == pytest.approx(sums.gradient_norm)  # what it was before
    close(clipped, {name: g / 2 for name, g in free.items()}, 1e-5)
    _, _, untouched = one_step(toy, model, [batch], clip=2 * sums.gradient_norm)
    close(untouched, free)


def test_the_rate_is_the_one_that_is_handed_in(toy):
    """The first update of Adam moves each weight by the rate (its mean and its scale are equal)."""
    model = toy.model()
    before = dict(copy.deepcopy(model).named_parameters())
    _, after, grads = one_step(toy, model, [toy.batch(0, 1)], rate=3e-3)
    moved = 0
    for name, parameter in before.items():
        sure = grads[name].abs() > 1e-4
        moved += int(sure.sum())
        torch.testing.assert_close((after[name] - parameter)[sure], -3e-3 * grads[name][sure].sign(), rtol=1e-3, atol=0)
    assert moved > 100


def test_an_update_is_a_function_of_weights_batch_seed_and_step(toy):
    """Also with dropout: neither the generator's state nor the model's mode has an effect."""
    model, batches = toy.model(dropout=0.3), [toy.batch(0, 1), toy.batch(2, 3)]
    first = one_step(toy, model, batches, step=5)
    torch.manual_seed(999)
    model.eval()
    torch.rand(77)
    second = one_step(toy, model, batches, step=5)
    assert first[0] == second[0]
    assert all(torch.equal(first[1][name], second[1][name]) for name in first[1])
    assert one_step(toy, model, batches, step=6)[0].loss != first[0].loss
    assert one_step(toy, model, batches, step=5, seed=2)[0].loss != first[0].loss
    assert one_step(toy, toy.model(), batches, step=5)[0] == one_step(toy, toy.model(), batches, step=6, seed=2)[0]


def test_left_over_gradients_do_not_count(toy):
    model = toy.model()
    clean = one_step(toy, model, [toy.batch(0)])
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    config, other = toy.config(), model
    train_step(other, build_optimizer(other, config), [toy.batch(0)], config, 1, 1e-2)
    close(dict(other.state_dict()), clean[1])


def test_parts_of_an_update_draw_different_dropout(toy):
    """Two equal batches in one update draw different masks."""
    model = toy.model(dropout=0.5)
    once = one_step(toy, model, [toy.batch(0, 1, 2)])
    twice = one_step(toy, model, [toy.batch(0, 1, 2)] * 2)
    assert twice[0].loss != pytest.approx(2 * once[0].loss, rel=1e-6)


def test_step_seeds_differ_wherever_an_argument_does():
    seeds = [step_seed(*place) for place in itertools.product(range(12), range(40), range(5))]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert step_seed(1, 11, 1) != step_seed(11, 1, 1) != step_seed(1, 1, 11)
    assert step_seed(3, 4, 5) == step_seed(3, 4, 5)


def test_neighbouring_steps_draw_unrelated_masks():
    masks = []
    for step in (1, 2, 3):
        with random.step(step_seed(1, step, 0)):
            masks.append(random.keep_mask(random.next_key(), torch.Size([20, 1000]), 128))
    for one, other in itertools.combinations(masks, 2):
        assert float((one == other).double().mean()) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_stops_before_the_weights_are_touched(toy, value):
    model, config = toy.model(), toy.config()
    with torch.no_grad():
        model.output.weight[5, 0] = value
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(DivergenceError, match=r"update 7.*learning rate") as caught:
        train_step(model, build_optimizer(model, config), [toy.batch(0, 1)], config, 7, 1e-2)
    assert caught.value.exit_status == 1
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("part", [0, 2])
def test_a_refused_update_names_the_batches_to_blame(toy, monkeypatch, part):
    """Names the batch whose own loss is not finite; all batches if only the summed gradient is too large."""
    model, config = toy.model(), toy.config()
    batches = [toy.batch(0, 1), toy.batch(2, 3), toy.batch(4, 5)]
    loss = sequence_loss

    def poisoned(model, batch, smoothing):
        found = loss(model, batch, smoothing)
        return found._replace(total=found.total * math.nan) if batch is batches[part] else found

    with monkeypatch.context() as patch:
        patch.setattr(step_module, "sequence_loss", poisoned)
        with pytest.raises(RejectedUpdateError, match="the loss is nan") as caught:
            train_step(model, build_optimizer(model, config), batches, config, 7, 1e-2)
    assert caught.value.parts == (part,)
    with pytest.raises(RejectedUpdateError, match=r"the norm of its gradient is .*, and may be 0\.001") as caught:
        train_step(model, build_optimizer(model, config), batches, config, 7, 1e-2, max_norm=1e-3)
    assert caught.value.parts == (0, 1, 2)
    assert caught.value.norm > 1e-3


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("scale", [1e-30, 1e10, 1e18, 1e19, 1e25, 1e38])
def test_an_update_that_is_made_leaves_finite_numbers(toy, monkeypatch, scale, clip):
    """Either an update is rejected, or weights and optimizer state stay finite."""
    model = toy.model(dtype=torch.float32)
    config = toy.config(clip=clip)
    optimizer = build_optimizer(model, config)
    loss = sequence_loss
    scaled = lambda *args: loss(*args)._replace(total=loss(*args).total * scale)  # noqa: E731
    monkeypatch.setattr(step_module, "sequence_loss", scaled)
    made = 0
    for step in range(1, 6):
        try:
            train_step(model, optimizer, [toy.batch(step, 9)], config, step, 1.0)
            made += 1
        except RejectedUpdateError:
            optimizer.zero_grad()
        for tensor in (*model.parameters(), *(t for state in optimizer.state.values() for t in state.values())):
            assert bool(torch.isfinite(tensor).all())
    assert (made == 5) == (scale < 1e19)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("room", [1000, 40, 13, 1])
def test_a_batch_in_pieces_is_the_same_update(toy, room, dropout):
    """Loss, gradient and weights are equal with dropout: masks depend on the row's number in the batch."""
    model, batches = toy.model(dropout=dropout), [toy.batch(*range(9)), toy.batch(20, 21)]
    whole = one_step(toy, model, batches)
    config, cut = toy.config(), copy.deepcopy(model)
    sums = train_step(cut, build_optimizer(cut, config), batches, config, 1, 1e-2, max_cells=room)
    assert sums == pytest.approx(whole[0], rel=1e-10)
    close(gradients(cut), whole[2])
    close(dict(cut.state_dict()), whole[1], 1e-8)


def test_bfloat16_keeps_weights_and_sums_in_float32(toy):
    model = toy.model(dtype=torch.float32)
    batch = toy.batch(*range(8))
    low, weights, _ = one_step(toy, model, [batch], precision="bfloat16")
    full, _, _ = one_step(toy, model, [batch])
    assert all(tensor.dtype == torch.float32 for tensor in weights.values())
    assert low.loss != full.loss
    assert low.loss == pytest.approx(full.loss, rel=0.02)


COMPILED = """
import copy, sys
import torch
from multihead.data.batching import collate
from multihead.data.store import ParallelStore
from multihead.models import transformer
from multihead.models.config import TransformerConfig
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import build_optimizer
from multihead.training.step import train_step
import numpy as np

transformer.COMPILER = "aot_eager"
draw = np.random.default_rng(0)
rows = [draw.integers(4, 20, draw.integers(1, 9)).tolist() for _ in range(40)]
store = ParallelStore.from_lists(rows[:20], rows[20:])
config = TrainingConfig(updates=20, warmup=2, batch_tokens=24)
sizes = dict(width=8, heads=2, inner=12, encoder_layers=1, decoder_layers=1, dropout=0.0, norm="pre")
model = transformer.Transformer(TransformerConfig(source_vocab=20, target_vocab=20, **sizes)).double()
copied = copy.deepcopy(model)
copied.compiled = True
compiled = copy.deepcopy(copied)
optimizers = [build_optimizer(one, config) for one in (model, compiled)]
for step, numbers in enumerate((range(10, 20), range(13, 20), range(3, 9)), start=1):
    batch = collate(store, np.array(numbers, np.int64), pad_id=0, bos_id=2, eos_id=3)
    sums = [
        train_step(one, optimizer, [batch], config, step, 1e-2)
        for one, optimizer in zip((model, compiled), optimizers)
    ]
    torch.testing.assert_close(torch.tensor(sums[0]), torch.tensor(sums[1]))
for one, other in zip(model.parameters(), compiled.parameters()):
    torch.testing.assert_close(one, other, atol=1e-9, rtol=0)
frames, graphs = (torch._dynamo.utils.counters[name] for name in ("frames", "stats"))
print(frames["ok"], frames["total"], graphs["unique_graphs"])
"""


def test_what_pytorch_compiles_learns_the_same():
    """For batches of several sizes and a copy of the model; traced by PyTorch, without generated code.

    Numbers of rows, source and target tokens differ in each batch: PyTorch takes equal ones for the same size, and
    traces again when they differ. In a fresh interpreter: shape checks cannot be compiled.
    """
    result = processes.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    compiled, frames, graphs = map(int, result.stdout.split())
    assert 0 < compiled <= frames
    assert graphs == 1 or AUTOCAST_IS_NOT_COMPILED
    assert compiled == frames or AUTOCAST_IS_NOT_COMPILED
