"""Gradients summed at the end, by DDP and by FSDP2 make the same updates, in 1, 2 and 4 processes.

This file is also the program that each of the processes runs: see `main`.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes as warm
import pytest
import torch
from ports import reserved_port

from multihead import configuration
from multihead.data.batching import BatchStream
from multihead.data.store import ParallelStore
from multihead.errors import ConfigurationError, Interrupted, SurroundingsError
from multihead.training import step as step_module
from multihead.training.checkpoint import intact_checkpoints, load_newest, read_weights
from multihead.training.context import TrainerInputs, Validation
from multihead.training.optimizer import Average, Muon, build_optimizer
from multihead.training.parallel import InGroup, ProcessGroup, can_shard, choose_combination
from multihead.training.progress import RunLog, SilentLog
from multihead.training.splitting import SINGLE_PROCESS, sequence_loss
from multihead.training.step import RejectedUpdateError, train_step
from multihead.training.trainer import Trainer

if TYPE_CHECKING:
    from tests.training.conftest import Toy

PATIENCE = 240.0
MODEL = {"encoder_layers": 2, "decoder_layers": 1, "dropout": 0.3}
MODES = ("sum", "replicated", "sharded") if can_shard() else ("sum", "replicated")
DIVIDING = pytest.mark.skipif(not can_shard(), reason="this PyTorch cannot divide parameters as we need it")
CASES = {
    "adam": ({"average": 0.9}, {}),
    "muon": ({"optimizer": "muon", "weight_decay": 0.1, "gradient_checkpointing": True}, {}),
    "compiled": ({"clip": 0.0}, {"dtype": torch.float32, "norm": "post", "tie_output": False}),
}
"""Settings of training and of the network. In float64, weights can be compared, although there are no compiled kernels:
in float32, Adam moves weights with zero gradients by the learning rate because of rounding."""
UPDATES = (((range(9), (20, 21)), None), (((4,),), None), ((range(12),), 20), ((range(20),), None))
"""Two batches; one row, so that other processes have none; a different number of pieces per process; a whole batch."""


def parts(group, mode, model, config):
    """The processes, the Muon class and the average for one way to combine gradients."""
    if mode == "sharded":
        from multihead.training.sharded import Sharded, ShardedAverage, ShardedMuon

        average = ShardedAverage(model, config.average)
        processes = Sharded(group, model, config)
        average.follow(dict(model.named_parameters()))
        return processes, ShardedMuon, average
    if mode == "replicated":
        from multihead.training.replicated import Replicated

        return Replicated(group, model), Muon, Average(model, config.average)
    return group, Muon, Average(model, config.average)


def updates(toy, group, mode, case):
    """Losses, norms, and at the end all weights and averages."""
    changes, sizes = CASES[case]
    model, config = toy.model(**MODEL | sizes), toy.config(**changes)
    model.checkpointing = config.gradient_checkpointing
    processes, muon, average = parts(group, mode, model, config)
    optimizer, seen = build_optimizer(model, config, muon), []
    for step, (groups, room) in enumerate(UPDATES, start=1):
        batches = [toy.batch(*group) for group in groups]
        sums = train_step(model, optimizer, batches, config, step, 1e-2, max_cells=room, processes=processes)
        average.update(step)
        seen.append((sums.loss / sums.tokens, sums.gradient_norm))
    size = measure(model, optimizer, average, mode)
    if mode == "sharded":
        from multihead.training.sharded import whole

        weights = {name: whole(weight.detach()) for name, weight in model.named_parameters()}
        with average.gathered() as gathered:
            loss = sequence_loss(gathered.eval(), toy.batch(*range(6)), 0.0).nll.item()
            averages = {name: weight.clone() for name, weight in gathered.named_parameters()}
    else:
        weights = {name: weight.detach() for name, weight in model.named_parameters()}
        averages = dict(average.model.named_parameters())
        loss = sequence_loss(average.model.eval(), toy.batch(*range(6)), 0.0).nll.item()
    return {"seen": seen, "weights": weights, "averages": averages, "loss": loss, "bytes": size}


def measure(model, optimizer, average, mode):
    """Bytes of weights, gradients, state and average that this process has."""
    tensors = [tensor for p in model.parameters() for tensor in (p, p.grad, *optimizer.state[p].values())]
    if mode == "sharded":
        from multihead.training.sharded import own_rows

        tensors += average.tensors.values() if average.decay else ()
        return sum(own_rows(tensor).nbytes for tensor in tensors)
    tensors += average.model.parameters() if average.decay else ()
    return sum(tensor.nbytes for tensor in tensors)


def rejected(toy, group, mode):
    """All processes reject an update whose loss is NaN in one of them, and can continue."""
    model, config = toy.model(**MODEL), toy.config()
    processes, muon, _ = parts(group, mode, model, config)
    optimizer = build_optimizer(model, config, muon)

    def poisoned(model, batch, smoothing):
        found = sequence_loss(model, batch, smoothing)
        return found._replace(total=found.total * math.nan, labels=None) if 8 in batch.indices else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module, "sequence_loss", poisoned)
        try:
            train_step(model, optimizer, [toy.batch(*range(9))], config, 1, 1e-2, processes=processes)
        except RejectedUpdateError as error:
            reason = error.reason.split()[:4], len(optimizer.state)
        else:
            raise AssertionError("an update was made of what is no number")
    sums = train_step(model, optimizer, [toy.batch(*range(9))], config, 1, 1e-2, processes=processes)
    return reason, sums.loss / sums.tokens


def main(folder, port, size, going_on=False):
    import torch._dynamo  # imports of the first optimizer and of the sharded ones, once for all processes

    import multihead.training.replicated
    import multihead.training.sharded_trainer  # noqa: F401
    from conftest import Toy

    toy = Toy(ParallelStore.from_lists(*torch.load(folder / "store.pt")))
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
            os.environ |= {name: str(value) for name, value in (names | {"MASTER_PORT": port}).items()}
            os.environ |= {"TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "127.0.0.1"}
            with ProcessGroup(configuration.get_launch()) as group:
                if going_on:
                    from multihead.training.sharded_trainer import ShardedTrainer

                    run(toy, folder / f"by {size}", ShardedTrainer, group, None)
                    os._exit(0)
                torch.save({mode: results(toy, group, mode) for mode in MODES}, folder / f"{rank}.pt")
                saved(toy, group, folder)
            os._exit(0)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


def results(toy, group, mode):
    return {case: updates(toy, group, mode, case) for case in CASES} | {"rejected": rejected(toy, group, mode)}


def run(toy, folder, trainer_class, processes, until):
    """Train to update ``until`` or, if a checkpoint says so, from there; returns the final state."""
    log = (RunLog if processes.is_first else SilentLog)(folder, lambda _: None)
    config = toy.config(updates=8, validate_every=4, average=0.8, optimizer="muon")
    checkpoint = trainer_class.newest_checkpoint(folder, pytest.fail, processes)
    own = {"width": 8, "folder": folder, "log": log, "checkpoint": checkpoint, "processes": processes}
    trainer = trainer_class(toy.model(**MODEL), config, **own)
    ids = {"pad_id": 0, "bos_id": 2, "eos_id": 3}
    stream = BatchStream(toy.store, 60, config.seed, **ids, position=trainer.state.position)
    best = []

    def judge(model):
        return Validation(0.0, sequence_loss(model, toy.batch(1, 2), 0.0).nll.item(), {}, "")

    def keep(model, values):
        best.append({name: weight.clone() for name, weight in model.named_parameters()})

    def stop():
        return 15 if trainer.state.step == until else None

    with contextlib.suppress(Interrupted):
        trainer.run(TrainerInputs(stream.take, lambda: stream.position, judge, keep, stop))
    return trainer.state, best


def saved(toy, group, folder):
    """Runs of sharded models: one to its end, one stopped after update 6, one resumed from an unsharded model."""
    if not can_shard():
        return
    from multihead.training.sharded_trainer import ShardedTrainer

    found = {}
    for name, until in (("whole", None), ("stopped", 6), ("begun alone", None)):
        (folder / name).mkdir(exist_ok=True)
        group.all_gather("made")
        found[name] = run(toy, folder / name, ShardedTrainer, group, until)
    torch.save(found, folder / f"runs{group.rank}.pt")


def launch(folder, size, *more):
    """Run `main` in processes."""
    with reserved_port() as port:
        command = [sys.executable, "-W", "error", __file__, str(folder), str(port), str(size), *more]
        warm.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=PATIENCE, check=True)


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.proof)])
def together(request: pytest.FixtureRequest, toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The folder with the results of some processes, and their number."""
    folder, size = tmp_path_factory.mktemp("found"), request.param
    (folder / "begun alone").mkdir()
    run(toy, folder / "begun alone", Trainer, SINGLE_PROCESS, 5)
    sides = toy.store.source, toy.store.target
    torch.save([[list(map(int, side[pair])) for pair in range(30)] for side in sides], folder / "store.pt")
    launch(folder, size)
    return folder, size


@pytest.fixture(params=MODES)
def found(request: pytest.FixtureRequest, together: tuple[Path, int]) -> list[Any]:
    """The results of each process with one way to combine gradients."""
    folder, size = together
    return [torch.load(folder / f"{rank}.pt", weights_only=False)[request.param] for rank in range(size)]


@pytest.fixture(scope="module")
def alone(toy: Toy) -> dict[str, Any]:
    """The results of one process."""
    return results(toy, SINGLE_PROCESS, "sum")


def test_losses_norms_weights_and_averages_are_those_of_one_process(found, alone):
    """The losses within 1e-6 a token; equal in all processes, bit for bit."""
    for case in CASES:
        for of_process in found:
            assert of_process[case]["seen"] == found[0][case]["seen"]
            for got, want in zip(of_process[case]["seen"], alone[case]["seen"], strict=True):
                assert got[0] == pytest.approx(want[0], abs=1e-6)
                assert got[1] == pytest.approx(want[1], rel=1e-5)
            assert of_process[case]["loss"] == pytest.approx(alone[case]["loss"], rel=1e-5)
            for kind in ("weights", "averages"):
                for name, want in alone[case][kind].items():
                    got = of_process[case][kind][name]
                    assert torch.equal(got, found[0][case][kind][name])
                    if want.dtype == torch.float64:
                        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


def test_the_padding_row_stays_zero(found):
    for of_process in found:
        assert torch.equal(of_process["adam"]["weights"]["source_embedding.table.weight"][0], torch.zeros(8))


def test_what_one_process_cannot_compute_all_reject(found, alone):
    for of_process in found:
        assert of_process["rejected"][0] == alone["rejected"][0]
        assert of_process["rejected"][1] == pytest.approx(alone["rejected"][1], abs=1e-6)


@DIVIDING
def test_memory_is_divided_where_parameters_are(together, alone):
    """All processes together store what a single one stores, and no process more than its share, rounded up."""
    folder, size = together
    ranks = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]
    for case in CASES:
        whole = alone[case]["bytes"]
        for mode in ("sum", "replicated"):
            assert [of_process[mode][case]["bytes"] for of_process in ranks] == [whole] * size
        own = [of_process["sharded"][case]["bytes"] for of_process in ranks]
        steps = 4 * len(alone[case]["weights"])  # Adam's counters, which each process has
        assert whole <= sum(own) <= whole + size * steps
        assert max(own) <= 1.3 * whole / size + steps


@DIVIDING
def test_a_divided_run_is_that_of_one_process_stopped_or_not(toy, together, tmp_path):
    """Its checkpoints are read by one process, and those of one process by it."""
    folder, size = together
    state, (*_, best) = run(toy, tmp_path, Trainer, SINGLE_PROCESS, None)
    want = load_newest(tmp_path / "checkpoints", pytest.fail)
    runs = [torch.load(folder / f"runs{rank}.pt", weights_only=False) for rank in range(size)]
    assert {path.name for path in (folder / "stopped" / "checkpoints").iterdir()} == {"00000004", "00000006"}
    names = sorted(path.name for path in (folder / "stopped" / "checkpoints" / "00000006").iterdir())
    shards = [f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors" for rank in range(size)]
    assert names == ["manifest.json", *shards, "state.json"]
    by_fewer = [2, 3] if size == 4 else []
    for fewer in by_fewer:
        shutil.copytree(folder / "stopped", folder / f"by {fewer}")
        launch(folder, fewer, "go on")
    run(toy, folder / "stopped", Trainer, SINGLE_PROCESS, None)
    for name in ("whole", "begun alone", "stopped", *(f"by {fewer}" for fewer in by_fewer)):
        got = load_newest(folder / name / "checkpoints", pytest.fail)
        assert (got.state.step, got.state.position) == (8, state.position)
        assert got.state.best_loss == pytest.approx(state.best_loss, rel=1e-5)
        for part in ("model", "average", "optimizer"):
            tensors, others = getattr(got, part), getattr(want, part)
            assert tensors.keys() == others.keys()
            for key, tensor in tensors.items():
                torch.testing.assert_close(tensor, others[key], rtol=1e-5, atol=1e-6)
    *_, first = runs[0]["whole"][1]
    for key, tensor in best.items():
        torch.testing.assert_close(first[key], tensor, rtol=1e-5, atol=1e-6)
    assert all(of_process["whole"][1] == [] for of_process in runs[1:])


@DIVIDING
def test_a_damaged_shard_is_noticed_and_the_one_before_is_used(toy, together, tmp_path):
    folder, _ = together
    shutil.copytree(folder / "whole" / "checkpoints", tmp_path / "checkpoints")
    (shard, *_) = (tmp_path / "checkpoints" / "00000008").glob("shard-00002*")
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(bytes(content))
    said = []
    assert load_newest(tmp_path / "checkpoints", said.append).state.step == 4
    assert shard.name in said[0]
    assert [path.name for path in intact_checkpoints(tmp_path / "checkpoints")] == ["00000004"]
    weights = read_weights(tmp_path / "checkpoints" / "00000004", "average")
    assert weights.keys() == dict(toy.model(**MODEL).named_parameters()).keys()


@DIVIDING
def test_the_choice_is_a_rule_with_a_reason():
    gb = 2**30
    assert choose_combination(None, 1, "cuda", 90 * gb, 80 * gb) == ("sum", "one process")
    assert choose_combination("sharded", 4, "cpu", 1, None) == ("sharded", "as asked")
    assert choose_combination(None, 4, "cpu", 90 * gb, 80 * gb)[0] == "sum"
    assert choose_combination(None, 4, "cuda", 10 * gb, 80 * gb)[0] == "replicated"
    chosen, reason = choose_combination(None, 4, "cuda", 60 * gb, 80 * gb)
    assert chosen == "sharded"
    assert "60 of 80 GB" in reason


@DIVIDING
def test_an_old_pytorch_is_named_and_divides_nothing(together, monkeypatch):
    """As a PyTorch without the module that reads and writes such checkpoints."""
    folder, _ = together
    monkeypatch.setitem(sys.modules, "torch.distributed.checkpoint.hf_storage", None)
    with pytest.raises(ConfigurationError, match=r"newer PyTorch than .* checkpoints can have parts; install one, or"):
        choose_combination("sharded", 2, "cpu", 1, None)
    with pytest.raises(SurroundingsError, match=r"00000008: each process wrote a part .* install a newer PyTorch"):
        read_weights(folder / "whole" / "checkpoints" / "00000008", "model")


def test_a_lack_of_memory_while_others_wait_ends_the_run():
    """It is not retried in pieces: the others would wait for gradients that never come."""
    group = ProcessGroup(configuration.Launch(0, 2, 0, 2))

    class Summing(InGroup):
        def sum_gradients(self, parameters):
            raise AssertionError("there are none")

    def work():
        raise MemoryError("tried to allocate more than there is")

    with pytest.raises(SurroundingsError, match=r"rank 0 ran out of memory, while the others wait .* --parallel sum"):
        Summing(group).attempt(work)
    assert group._ended


def test_a_parameter_without_gradient_is_an_error_of_ddp_only(toy):
    from multihead.training.replicated import Replicated

    model = toy.model()
    with pytest.raises(ConfigurationError, match="go on with --parallel sum"):
        Replicated.sum_gradients(None, model.parameters())  # type: ignore[arg-type]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), going_on=len(sys.argv) > 4)
