"""MPS, tested without a device: no operation needs float64, and requests beyond its limits are refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from multihead import configuration, platforms
from multihead.configuration import inspect_machine, memory_of, require_device
from multihead.data.batching import collate
from multihead.data.store import ParallelStore
from multihead.decoding.beam import beam_search
from multihead.decoding.greedy import greedy_search
from multihead.decoding.sampling import Sharpening, sample
from multihead.decoding.search import Search, Symbols
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError
from multihead.kernels.native import VARIABLE, clear_loaded
from multihead.models import layers
from multihead.models.config import TransformerConfig
from multihead.models.layers import sinusoid
from multihead.models.transformer import Transformer
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import build_optimizer
from multihead.training.splitting import is_out_of_memory
from multihead.training.step import train_step

VOCAB = 40
SYMBOLS = Symbols(begin=2, end=3, forbidden=(0, 1, 2))
ROWS = ([7, 8, 9], [4], [5, 6, 11, 12, 13], [30, 21])


class WithoutFloat64(TorchDispatchMode):
    """No operation takes or makes float64, as on MPS; only tensors that the host made may be converted."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.lift_fresh.default:  # what NumPy made, on the host
            return found
        held = (found,) if func is torch.ops.aten._to_copy.default else (args, kwargs, found)
        wide = [leaf for leaf in tree_leaves(held) if isinstance(leaf, Tensor) and leaf.dtype is torch.float64]
        if wide:
            raise TypeError(f"{func}: MPS has no float64")
        return found


def model_of(**changes: Any) -> Transformer:
    torch.manual_seed(1)
    sizes = {"width": 32, "heads": 2, "inner": 48, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.1, **changes}
    return Transformer(TransformerConfig(source_vocab=VOCAB, target_vocab=VOCAB, padding_id=0, **sizes))


def batch() -> Any:
    store = ParallelStore.from_lists(ROWS, ROWS[::-1])
    return collate(store, np.arange(len(ROWS)), pad_id=0, bos_id=2, eos_id=3)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch, without_checks: Any) -> Any:
    """The plain forms, on a processor that has no float64; the checks of signatures make some."""
    monkeypatch.setenv(VARIABLE, "0")
    clear_loaded()
    monkeypatch.setattr(platforms, "WITHOUT_FLOAT64", frozenset({"cpu"}))
    with without_checks():
        yield
    clear_loaded()


def test_the_watch_works() -> None:
    with WithoutFloat64():
        torch.ones(2, dtype=torch.float32).mul(0.5).sum()
        with pytest.raises(TypeError, match="MPS has no float64"):
            torch.ones(2).double()


@pytest.mark.parametrize("changes", [{}, {"positions": "rotary", "norm_kind": "rms"}], ids=str)
def test_an_update_needs_no_float64(plain: None, changes: dict[str, Any]) -> None:
    model, config, pairs = model_of(**changes), TrainingConfig(updates=10), batch()
    optimizer = build_optimizer(model, config)
    with WithoutFloat64():
        sums = train_step(model, optimizer, [pairs], config, 1, 1e-3)
    assert np.isfinite(sums.loss)


def searches(source: Tensor, lengths: Tensor, model: Transformer) -> list[Sequence[Any]]:
    """The results of every search: the ids of the best hypotheses."""
    task, several = SearchTask(SYMBOLS, max_lengths=12), SearchTask(SYMBOLS, max_lengths=12, n_best=3)
    options = Sharpening(temperature=1.3, top_k=20, top_p=0.95, min_p=0.001, epsilon=1e-6)
    found = [
        greedy_search(model, source, lengths, task),
        *beam_search(model, source, lengths, several, Search(beam=4, alpha=0.6)),
        *beam_search(model, source, lengths, several, Search(beam=4, coverage=0.2)),
        *sample(model, source, lengths, several, seed=3, sharpening=options),
    ]
    return [hypothesis.tokens for row in found for hypothesis in (row if isinstance(row, list) else [row])]


def test_searches_need_no_float64_and_find_the_same(plain: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, pairs = model_of().eval(), batch()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        with WithoutFloat64():
            narrow = searches(pairs.source, pairs.source_lengths, model)
        monkeypatch.setattr(platforms, "WITHOUT_FLOAT64", frozenset())
        assert searches(pairs.source, pairs.source_lengths, model) == narrow


def test_a_number_below_one_stays_below_one() -> None:
    """The largest number that is drawn becomes 1 in float32; a sample then would be the symbol after the last."""
    from multihead.decoding import sampling

    q = torch.full((1, 1, 5), 0.2).log()
    largest = torch.tensor([[1 - 2.0**-53]], dtype=torch.float64)
    below_one = 1 - torch.finfo(torch.float32).eps / 2
    assert largest.float() == 1
    assert sampling._draw(q, largest.float().clamp_(max=below_one)).tolist() == [[4]]
    assert largest.clamp(max=1 - torch.finfo(torch.float64).eps / 2) == largest


def test_positions_are_the_same_where_they_are_computed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    positions = torch.arange(700)
    expected = sinusoid(positions, 16)
    moved: list[bool] = []
    monkeypatch.setattr(layers, "WITHOUT_FLOAT64", frozenset({"cpu"}))
    monkeypatch.setattr(Tensor, "cpu", lambda self: moved.append(True) or self)
    assert torch.equal(sinusoid(positions, 16), expected)
    assert moved


@pytest.mark.parametrize("device", [None, "cuda", "cuda:1", "cpu"])
def test_the_requested_device_is_inspected(device: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor beside a GPU is the one without it, and each GPU computes as the first one does."""
    alone = inspect_machine("cpu")
    assert (alone.device, alone.threads) == ("cpu", torch.get_num_threads())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: not alone.fast_bfloat16)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    found = inspect_machine(device)
    if device == "cpu":
        assert found == alone
    else:
        assert (found.device, found.name) == (device or "cuda", "a GPU")
        assert found.fast_bfloat16 is not alone.fast_bfloat16


def test_it_is_chosen_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 10 << 30)
    machine = inspect_machine()
    assert (machine.device, machine.fast_bfloat16) == ("mps", False)
    assert memory_of("mps") == 10 << 30
    require_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert inspect_machine().device == "cpu"
    with pytest.raises(ConfigurationError, match="PyTorch finds no MPS on this machine; use cpu"):
        require_device("mps")
    assert configuration.memory_by_windows is platforms.memory_by_windows


def test_what_it_cannot_is_refused(monkeypatch: pytest.MonkeyPatch, numbers: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    for wish, what in (({"precision": "bfloat16"}, "--precision bfloat16"), ({"compile": True}, "--compile")):
        with pytest.raises(ConfigurationError, match=f"{what}: mps trains in float32, and uncompiled"):
            numbers.learn(tmp_path / "run", **numbers.train, device="mps", **wish)
    assert list(tmp_path.iterdir()) == []
    assert TrainingConfig(updates=1, device="mps").precision == "float32"
    assert is_out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 9.00 GB)"))
