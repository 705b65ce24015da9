"""Checkpoints that a thread writes: content, order and errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from multihead.errors import SurroundingsError
from multihead.training import checkpoint as module
from multihead.training.checkpoint import Checkpoint, CheckpointWriter, RunState, load_newest, save


def made(step, **tensors):
    return Checkpoint(RunState(step=step), tensors, {}, {})


def refuse(sentence):
    raise AssertionError(f"warned: {sentence}")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Writing blocks until it is released; `entered` is set when it starts."""

    class Gate:
        entered, opened = threading.Event(), threading.Event()

    def slow(*arguments):
        Gate.entered.set()
        assert Gate.opened.wait(30)
        return save(*arguments)

    monkeypatch.setattr(module, "save", slow)
    yield Gate
    Gate.opened.set()


def test_training_goes_on_while_it_is_written_and_what_is_written_is_of_before(tmp_path, gate):
    weight = torch.arange(6.0).reshape(2, 3)
    kinds = {"turned": weight.t(), "single": torch.tensor(2.0), "low": weight.bfloat16(), "none": torch.empty(0, 2)}
    expected = {name: tensor.clone() for name, tensor in kinds.items()}
    with CheckpointWriter(tmp_path, keep=2) as saver:
        saver.save(made(1, **kinds))
        assert gate.entered.wait(30)
        for tensor in kinds.values():
            tensor.fill_(7.0)
        assert load_newest(tmp_path, refuse) is None
        gate.opened.set()
    found = load_newest(tmp_path, refuse)
    assert found.model.keys() == expected.keys()
    assert all(torch.equal(found.model[name], expected[name]) for name in expected)


def test_the_next_one_waits_for_it_and_takes_its_memory(tmp_path, gate):
    with CheckpointWriter(tmp_path, keep=5) as saver:
        saver.save(made(1, a=torch.ones(2), gone=torch.ones(1)))
        place = saver._copies[0]["a"].data_ptr()
        second = threading.Thread(target=saver.save, args=(made(2, a=torch.zeros(2), b=torch.ones(3)),))
        second.start()
        second.join(0.05)
        assert second.is_alive()
        gate.opened.set()
        second.join()
        assert saver._copies[0]["a"].data_ptr() == place
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000001", "00000002"]
    assert {name: tensor.tolist() for name, tensor in load_newest(tmp_path, refuse).model.items()} == {
        "a": [0.0, 0.0],
        "b": [1.0, 1.0, 1.0],
    }


def test_what_has_to_be_there_before_is_done_first(tmp_path):
    """It is called with the copy, and there is no checkpoint before it returns."""
    seen = []

    def before(copied):
        seen.append((copied.state.step, copied.model["a"].tolist(), load_newest(tmp_path, refuse)))
        if copied.state.step == 2:
            raise SurroundingsError("no space")

    saver = CheckpointWriter(tmp_path, keep=5)
    with saver:
        saver.save(made(1, a=torch.ones(2)), before)
    with pytest.raises(SurroundingsError), saver:
        saver.save(made(2, a=torch.zeros(2)), before)
    assert seen[0] == (1, [1.0, 1.0], None)
    assert [path.name for path in tmp_path.iterdir()] == ["00000001"]


@pytest.mark.parametrize("how", ["check", "wait", "save", "leave"])
def test_a_fault_is_raised_where_the_run_can_see_it(tmp_path, monkeypatch, how):
    def fails(*_):
        raise SurroundingsError("no space")

    monkeypatch.setattr(module, "save", fails)
    saver = CheckpointWriter(tmp_path, keep=1)

    def work():
        with saver:
            saver.save(made(1))
            saver._thread.join()
            match how:
                case "check":
                    saver.check()
                case "wait":
                    saver.wait()
                case "save":
                    saver.save(made(2))

    with pytest.raises(SurroundingsError, match="no space"):
        work()
    saver.check()  # once is enough


def test_an_exception_waits_for_it_too_and_is_the_one_to_report(tmp_path, gate):
    saver = CheckpointWriter(tmp_path, keep=1)

    def work():
        with saver:
            saver.save(made(1, a=torch.ones(1)))
            threading.Timer(0.05, gate.opened.set).start()
            raise KeyError("the loop's")

    with pytest.raises(KeyError):
        work()
    assert load_newest(tmp_path, refuse).state.step == 1
