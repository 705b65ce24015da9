"""Three real processes make the same updates as one and end together.

This file is also the program that each of the processes runs: see `main`.
"""

from __future__ import annotations

import copy
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes as warm
import pytest
import torch
from ports import reserved_port
from torch import nn

from multihead import configuration
from multihead.data.batching import BatchStream
from multihead.data.order import row_range
from multihead.data.store import ParallelStore
from multihead.errors import ConfigurationError, DivergenceError
from multihead.training import parallel, splitting
from multihead.training import step as step_module
from multihead.training.context import TrainerInputs, Validation
from multihead.training.optimizer import build_optimizer
from multihead.training.parallel import PeerEnded, join_processes
from multihead.training.progress import RunLog
from multihead.training.splitting import SINGLE_PROCESS, Processes, interleave, sequence_loss
from multihead.training.step import RejectedUpdateError, check_same_update, train_step
from multihead.training.trainer import Trainer

if TYPE_CHECKING:
    from tests.training.conftest import Toy


SIZE = 3
PATIENCE = 120.0
"""Timeout in seconds, long enough for a busy machine."""


# ------------------------------------------------------------------- what the processes do, and one alone as well


SETTINGS = {"usual": {}, "bare": {"clip": 0.0, "smoothing": 0.0, "seed": 4}, "muon": {"optimizer": "muon"}}


def updates(toy, processes, **changes):
    """Three updates with dropout: two batches, one with fewer rows than processes; one row; and in pieces."""
    model, config = toy.model(dropout=0.3), toy.config(**changes)
    optimizer, seen = build_optimizer(model, config), []
    for step, (groups, room) in enumerate((((range(9), (20, 21)), None), (((4,),), None), ((range(12),), 20)), start=1):
        batches = [toy.batch(*group) for group in groups]
        sums = train_step(model, optimizer, batches, config, step, 1e-2, max_cells=room, processes=processes)
        seen.append(tuple(sums))
    return seen, dict(model.state_dict())


def refused(toy, processes, monkeypatch):
    """An update whose third batch has an infinite loss in one process; returns the rejection and the changes."""
    model, config = toy.model(), toy.config()
    before, optimizer = copy.deepcopy(model), build_optimizer(model, config)
    batches = [toy.batch(*range(start, start + 5)) for start in (0, 5, 10)]

    def poisoned(model, batch, smoothing):
        found = sequence_loss(model, batch, smoothing)
        return found._replace(total=found.total * math.nan) if 14 in batch.indices else found

    with monkeypatch.context() as patch:
        patch.setattr(step_module, "sequence_loss", poisoned)
        try:
            train_step(model, optimizer, batches, config, 7, 1e-2, processes=processes)
        except RejectedUpdateError as error:
            same = all(map(torch.equal, model.parameters(), before.parameters()))
            return str(error), error.parts, same, len(optimizer.state)
    raise AssertionError("an update was made of what is no number")


class Partly(nn.Module):
    """Parameters that all rows use, that only the rows of the second process use, and that nothing uses."""

    def __init__(self, rank):
        super().__init__()
        self.all, self.some, self.none = (nn.Parameter(torch.full((2, 2), 1.0 + n)) for n in range(3))
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)
        loss = (self.all * (rank + 1)).sum() + (self.some.sum() if rank == 1 else 0.0)
        loss.backward()


def short_of_memory(processes, rank):
    """The error that all processes raise when one runs out of memory; they can continue after it."""

    def work():
        if processes.rank == rank:
            raise torch.OutOfMemoryError("tried to allocate more than there is")
        return processes.rank

    try:
        processes.attempt(work)
    except (RuntimeError, MemoryError) as error:
        return splitting.is_out_of_memory(error), processes.attempt(lambda: processes.rank)
    raise AssertionError("nobody noticed")


def cut(toy, processes):
    """An update whose rows fit into one process's memory only in pieces."""
    model, config = toy.model(dropout=0.3), toy.config()
    optimizer, batches = build_optimizer(model, config), [toy.batch(*range(18))]

    def hungry(model, batch, smoothing):
        if processes.rank == 2 and batch.cells > 20:
            raise torch.OutOfMemoryError("tried to allocate more than there is")
        return sequence_loss(model, batch, smoothing)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module, "sequence_loss", hungry)
        sums, room = splitting.retry_in_pieces(
            lambda room: train_step(model, optimizer, batches, config, 1, 1e-2, max_cells=room, processes=processes),
            batches,
            None,
            lambda batch: "a pair",
            processes,
        )
    return tuple(sums), room, list(model.parameters())


def together(toy, processes):
    """Results of a process without faults."""
    long = "é" * 5000 if processes.rank == 1 else "short"
    model = Partly(processes.rank)
    processes.sum_gradients(model.parameters())
    tensors = {"scalar": torch.tensor(3.0), "half": torch.arange(6).bfloat16().view(2, 3).T, "none": torch.empty(0)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "_BUCKET_NUMEL", 100)  # several buckets even here
        found = {name: updates(toy, processes, **changes) for name, changes in SETTINGS.items()}
    return found | {
        "exchanged": processes.all_gather((processes.rank, long, 0.1)),
        "first": processes.broadcast("mine" if processes.is_first else None),
        "gradients": {name: parameter.grad for name, parameter in model.named_parameters()},
        "copied": processes.broadcast_tensors(tensors if processes.is_first else None),
        "memory": short_of_memory(processes, 2),
        "cut": cut(toy, processes),
        "refused": refused(toy, processes, pytest.MonkeyPatch()),
        "threads": [processes.threads_per_process(count) for count in (1, 2, 6, 7)],
    }


def main(folder, port):
    """Each process saves its results in ``folder``; at the end the second one fails on purpose."""
    import torch._dynamo  # imports of the first optimizer, once for all processes

    from conftest import Toy

    toy = Toy(ParallelStore.from_lists(*torch.load(folder / "store.pt")))
    children = []
    for rank in range(SIZE):
        child = os.fork()
        if child == 0:
            os.environ |= environment(rank, SIZE, port)
            save_what_one_finds(toy, folder / f"{rank}.pt")
            os._exit(0)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


def save_what_one_finds(toy, path):
    processes = join_processes()
    try:
        with processes:
            found = together(toy, processes)
            if processes.rank == 1:
                raise ConfigurationError("no longer wanted")
            processes.all_gather("the others wait")
    except (ConfigurationError, PeerEnded) as error:
        found["end"] = type(error).__name__, str(error), error.exit_status, processes.announced
    torch.save(found, path)


# ------------------------------------------------------------------------------------------------- what is asked of it


def environment(rank, size, port):
    """The environment that torchrun sets for a process."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    return {"TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "127.0.0.1"} | {name: str(names[name]) for name in names}


@pytest.fixture(scope="module")
def found(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The results of each process."""
    folder = tmp_path_factory.mktemp("found")
    sides = toy.store.source, toy.store.target
    torch.save([[list(map(int, side[pair])) for pair in range(30)] for side in sides], folder / "store.pt")
    with reserved_port() as port:
        command = [sys.executable, "-W", "error", __file__, str(folder), str(port)]
        warm.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=PATIENCE, check=True)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(SIZE)]


class Half(splitting.SingleProcess):
    """One of two processes; the second one receives the gradients of the first."""

    def __init__(self, rank, received=None):
        super().__init__(configuration.Launch(rank=rank, size=2))
        self.received, self.sent = received or [], []

    def sum_gradients(self, parameters):
        parameters = list(parameters)
        self.sent.append([None if p.grad is None else p.grad.clone() for p in parameters])
        if self.rank == 1:
            for parameter, other in zip(parameters, self.received.pop(0), strict=True):
                if parameter.grad is not None or other is not None:
                    one, two = (torch.zeros_like(parameter) if g is None else g for g in (other, parameter.grad))
                    parameter.grad = one + two


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_one_process_makes_the_updates_of_two_bit_for_bit(toy, changes):
    groups = [(range(9), (20, 21)), (range(12),), ((4,),)]

    def train(processes):
        model, config = toy.model(dropout=0.3), toy.config(**changes)
        optimizer = build_optimizer(model, config)
        for step, own in enumerate(groups, start=1):
            train_step(
                model, optimizer, [toy.batch(*g) for g in own], config, step, 1e-2, processes=processes[step - 1]
            )
        return model.state_dict()

    gradients = []
    for _ in groups:  # the first of the two goes ahead by one update at a time
        first = Half(0)
        train([*(Half(1, [g]) for g in gradients), first, *([first] * 3)][: len(groups)])
        gradients.append(first.sent[0])
    weights = train([Half(1, [g]) for g in gradients])
    both = splitting.with_shares(SINGLE_PROCESS, 2)
    assert both.own_shares == (0, 1)
    for name, weight in train([both] * 3).items():
        assert torch.equal(weight, weights[name]), name
    assert splitting.with_shares(SINGLE_PROCESS, 3) is splitting.with_shares(SINGLE_PROCESS, 0) is SINGLE_PROCESS


@pytest.mark.parametrize(("name", "changes"), SETTINGS.items())
def test_three_processes_make_the_updates_of_one(toy, found, name, changes):
    """Loss, hits, norm and weights with dropout; bitwise equal among the processes."""
    sums, weights = updates(toy, SINGLE_PROCESS, **changes)
    for of_process in found:
        assert of_process[name][0] == found[0][name][0]
        for got, want in zip(of_process[name][0], sums, strict=True):
            assert got == pytest.approx(want, rel=1e-10)
        for key, want in weights.items():
            assert torch.equal(of_process[name][1][key], found[0][name][1][key])
            torch.testing.assert_close(of_process[name][1][key], want, rtol=1e-8, atol=1e-8)


def test_a_gradient_is_the_sum_of_all_and_one_that_is_nowhere_stays_none(found):
    for of_process in found:
        gradients = of_process["gradients"]
        assert torch.equal(gradients["all"], torch.full((2, 2), 6.0))
        assert torch.equal(gradients["some"], torch.ones(2, 2))
        assert gradients["none"] is gradients["frozen"] is None


def test_what_is_exchanged_comes_in_order_whole_and_everywhere(found):
    for of_process in found:
        assert of_process["exchanged"] == [(0, "short", 0.1), (1, "é" * 5000, 0.1), (2, "short", 0.1)]
        assert of_process["first"] == "mine"


def test_tensors_of_the_first_process_are_copied_to_the_others(found):
    for of_process in found:
        copied = of_process["copied"]
        assert torch.equal(copied["scalar"], torch.tensor(3.0))
        assert torch.equal(copied["half"], torch.arange(6).bfloat16().view(2, 3).T)
        assert copied["none"].shape == (0,)


def test_all_know_when_one_runs_out_of_memory_and_go_on(found):
    assert [of_process["memory"] for of_process in found] == [(True, [0, 1, 2])] * SIZE


def test_all_cut_their_batches_where_one_has_too_little_memory(toy, found):
    """Afterwards, all make the same update."""
    sums, room, weights = cut(toy, SINGLE_PROCESS)
    assert room is None
    for of_process in found:
        got, smaller, parameters = of_process["cut"]
        assert got == pytest.approx(sums, rel=1e-10)
        assert smaller == found[0]["cut"][1] <= 20
        for parameter, want in zip(parameters, weights, strict=True):
            torch.testing.assert_close(parameter, want, rtol=1e-8, atol=1e-8)


def test_what_one_process_cannot_compute_all_refuse(toy, found, monkeypatch):
    message, parts, same, moments = refused(toy, SINGLE_PROCESS, monkeypatch)
    assert (parts, same, moments) == ((2,), True, 0)
    assert [of_process["refused"] for of_process in found] == [(message, parts, same, moments)] * SIZE


def test_who_leaves_says_why_and_the_others_leave_too(found):
    ends = [of_process["end"] for of_process in found]
    told = "the process of rank 1 of 3 has ended: no longer wanted"
    assert ends == [("PeerEnded", told, 2, True), ("ConfigurationError", "no longer wanted", 2, True), ends[0]]


def test_threads_are_shared_out(found):
    assert [of_process["threads"] for of_process in found] == [[1, 1, 2, 2]] * SIZE
    assert SINGLE_PROCESS.threads_per_process(7) == 7


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 100])
def test_the_parts_of_a_batch_are_all_its_rows_in_order(rows, size):
    places = [row_range(rows, rank, size) for rank in range(size)]
    assert [row for start, stop in places for row in range(start, stop)] == list(range(rows))
    sizes = [stop - start for start, stop in places]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 4, 11])
def test_shares_are_put_together_again(count, size):
    whole = [f"item {number}" for number in range(count)]
    assert interleave([whole[rank::size] for rank in range(size)]) == whole


def test_processes_that_come_apart_are_noticed():
    check_same_update(5, [0.0, 0.0])
    check_same_update(5, [1.0, 1.0 + 1e-6])
    with pytest.raises(DivergenceError, match=r"update 5: .* no longer have the same weights .*1, 1\.5"):
        check_same_update(5, [1.0, 1.5])


def test_one_process_takes_the_batch_as_it_is(toy):
    batch = toy.batch(1, 2, 3)
    assert SINGLE_PROCESS.own_rows(batch) == (batch, 0)
    assert SINGLE_PROCESS.held_rows([batch]) == [batch]
    assert SINGLE_PROCESS.own_rows(batch)[0] is batch


def test_who_is_alone_does_not_import_what_joins_processes(monkeypatch):
    """Only torchrun starts a process group."""
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert configuration.get_launch() == (0, 1, 0, 1)
    with join_processes() as processes:
        assert processes is SINGLE_PROCESS


class Leaving(Processes):
    """A process whose peer ends at a given gather."""

    def __init__(self, exchanges):
        super().__init__(configuration.Launch())
        self.left = exchanges

    def all_gather(self, value):
        self.left -= 1
        if self.left < 0:
            raise PeerEnded("the process of rank 1 of 2 has ended: bad luck", 7)
        return [value]

    def attempt(self, work):
        return self.all_gather(work())

    def sum_gradients(self, parameters):
        pass

    def broadcast_tensors(self, tensors):
        return tensors

    def require_devices(self, device):
        pass


def run(toy, folder, processes):
    """Make eight updates; return the final state."""
    log, said = RunLog(folder, lambda _: None), []
    checkpoint = Trainer.newest_checkpoint(folder, said.append)
    config = toy.config(updates=8, validate_every=4, average=0.8)
    model = toy.model(dropout=0.3)
    own = {"width": 8, "folder": folder, "log": log, "checkpoint": checkpoint, "processes": processes}
    trainer = Trainer(model, config, **own)
    position = trainer.state.position
    stream = BatchStream(toy.store, 24, config.seed, pad_id=0, bos_id=2, eos_id=3, position=position)
    judge = lambda model: Validation(0.0, sequence_loss(model, toy.batch(1), 0.0).nll.item(), {}, "")  # noqa: E731
    return trainer.run(TrainerInputs(stream.take, lambda: stream.position, judge, lambda *_: None, lambda: None))


@pytest.mark.parametrize("exchanges", [0, 1, 6, 7, 15])
def test_who_is_left_alone_saves_what_all_have_done(toy, tmp_path, exchanges):
    """There are two gathers per update: before it and in it. The resumed run ends like an uninterrupted one."""
    for name in ("whole", "left"):
        (tmp_path / name).mkdir()
    whole = run(toy, tmp_path / "whole", SINGLE_PROCESS)
    done = exchanges // 2
    message = rf"rank 1 of 2 has ended: bad luck \(saved after update {done}; run the same command again to continue\)"
    with pytest.raises(PeerEnded, match=message) as caught:
        run(toy, tmp_path / "left", Leaving(exchanges))
    assert caught.value.exit_status == 7
    assert max(path.name for path in (tmp_path / "left" / "checkpoints").iterdir()) == f"{done:08d}"
    assert run(toy, tmp_path / "left", SINGLE_PROCESS) == whole
    weights = [(tmp_path / name / "checkpoints/00000008/model.safetensors").read_bytes() for name in ("whole", "left")]
    assert weights[0] == weights[1]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
