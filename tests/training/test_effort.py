"""Model FLOPs utilization: operations per token, and the machine's peak."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from multihead.training import progress
from multihead.training.progress import ModelFlops, measure_flops, peak_flops
from multihead.training.splitting import sequence_loss


def test_a_share_is_of_the_time():
    effort = ModelFlops(source=2.0, target=3.0, peak_flops=10.0)
    assert effort.utilization(5, 10, 2.0) == (10 + 30) / 20


def test_operations_are_about_those_of_the_products_that_are_made(toy):
    """PyTorch counts the same in an update of a wide model without padding, where attention is a small part."""
    model = toy.model(width=64, inner=256, encoder_layers=2)  # in float64, which is not packed: no rest behind it
    effort = measure_flops(model, model.output, "cpu", "float32")
    pairs = [i for i in range(30) if len(toy.store.source[i]) == len(toy.store.target[i])][:1]
    batch = toy.batch(*pairs)
    with FlopCounterMode(display=False) as counter:
        sequence_loss(model, batch, 0.1).total.backward()
    expected = effort.source * int(batch.source_lengths.sum()) + effort.target * batch.target_tokens
    assert 0.8 < counter.get_total_flops() / expected < 1.2


def test_a_peak_is_a_rate_of_products():
    for precision in ("float32", "bfloat16"):
        assert peak_flops("cpu", precision) > 1e8


@pytest.mark.parametrize("rate", [1e8, 1e9, 1e12])
def test_a_peak_is_measured_in_a_fraction_of_a_second_on_any_processor(rate, monkeypatch):
    """A clock that only products advance; a processor without bfloat16 would need seconds for a large one."""
    clock, sizes = [0.0], []

    def product(a, b):
        sizes.append(len(a))
        clock[0] += 1e-6 + 2.0 * len(a) ** 3 / rate

    monkeypatch.setattr(progress, "_PEAK_SECONDS", 0.15)
    monkeypatch.setattr(torch, "mm", product)
    monkeypatch.setattr(progress.time, "perf_counter", lambda: clock[0])
    found = peak_flops("cpu", "bfloat16")
    assert clock[0] < 0.5
    assert found == pytest.approx(2.0 * max(sizes) ** 3 / (1e-6 + 2.0 * max(sizes) ** 3 / rate))
    assert (max(sizes) == 1024) == (rate > 1e11)
