"""Runs that fine-tune low-rank adapters: stopping and resuming, files, and further uses."""

from __future__ import annotations

import itertools
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from multihead import Translator, average
from multihead.bundle import build_network, load_bundle, weights_digest
from multihead.errors import ConfigurationError, FormatError, Interrupted
from multihead.files import serialize_tensors
from multihead.planning.settings import read_run
from multihead.runs.run import state_bytes
from multihead.runs.translator.begin import new_network
from multihead.training.progress import measure_flops

if TYPE_CHECKING:
    from tests.conftest import Numbers

RANK, ALPHA = 2, 6.0


@pytest.fixture(scope="module")
def base(numbers: Numbers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has seen a few updates."""
    output = tmp_path_factory.mktemp("base") / "run"
    numbers.learn(output, **{**numbers.settings, "updates": 3}, **numbers.train, **numbers.valid)
    return output / "best"


@pytest.fixture(scope="module")
def wishes(base: Path, numbers: Numbers) -> dict[str, Any]:
    tuned = {"updates": 6, "validate_every": 3, "log_every": 2, "dropout": 0.2, "seed": 3, "threads": 1}
    return {**numbers.test, **numbers.valid, **tuned, "from_model": base, "lora": RANK, "lora_alpha": ALPHA}


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def whole(wishes: dict[str, Any], numbers: Numbers, said: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    output = tmp_path_factory.mktemp("whole") / "run"
    numbers.learn(output, **wishes, say=said.append)
    return output


def checkpoint(run: Path, part: str, step: int = 6) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"{step:08d}" / f"{part}.safetensors")


def test_stopped_and_resumed_it_ends_as_the_uninterrupted_run(
    whole: Path, wishes: dict[str, Any], numbers: Numbers, tmp_path: Path
) -> None:
    """Weights, average, optimizer and model folder, byte for byte, with dropout."""
    polls = itertools.count(1)
    with pytest.raises(Interrupted, match="after update 4"):
        numbers.learn(tmp_path / "run", **wishes, stop_signal=lambda: signal.SIGINT if next(polls) == 6 else None)
    numbers.learn(tmp_path / "run", **wishes)
    one, other = (
        {
            name: digest
            for name, digest in numbers.contents(folder, without=("timing.jsonl", "log.txt")).items()
            if "00000004" not in name and "00000003" not in name
        }
        for folder in (whole, tmp_path / "run")
    )
    assert one == other
    assert "best/adapter.safetensors" in one


def test_only_adapters_are_trained_averaged_and_kept_by_the_optimizer(whole: Path, base: Path, said: list[str]) -> None:
    given, last = load_file(base / "model.safetensors"), checkpoint(whole, "model")
    adapters = {name for name in last if name.endswith((".a", ".b"))}
    for name in last.keys() - adapters:
        assert torch.equal(last[name], given[f"{name.removesuffix('base')}weight" if name.endswith(".base") else name])
    assert all(bool(last[name].any()) for name in adapters)
    assert checkpoint(whole, "average").keys() == adapters
    assert {name.rpartition("/")[0] for name in checkpoint(whole, "optimizer")} == adapters
    trained = sum(last[name].numel() for name in adapters)
    weights = sum(tensor.numel() for tensor in given.values())
    (line,) = (line for line in said if line.startswith("fine-tuning"))
    assert f"frozen are its {weights:,} weights, trained are {trained:,} of adapters" in line
    assert any(line.startswith("  lora           2  (as asked)") for line in said)


def test_the_best_model_is_plain_and_its_adapter_is_beside_it(whole: Path, base: Path) -> None:
    """The weights in the folder are base + (alpha / r) B A, with the file's A and B."""
    given, best = (load_file(folder / "model.safetensors") for folder in (base, whole / "best"))
    assert best.keys() == given.keys()
    with safe_open(whole / "best" / "adapter.safetensors", "pt") as file:
        facts = {**file.metadata()}
        adapter = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    assert facts.pop("format") == "pt"
    assert facts == {"multihead": "low-rank adapter", "rank": "2", "alpha": "6", "base": weights_digest(base)}
    name = "decoder.0.self_attention.in_projection"
    parts = zip(adapter[f"{name}.b"].chunk(3), adapter[f"{name}.a"].chunk(3), strict=True)
    expected = given[f"{name}.weight"] + ALPHA / RANK * torch.cat([b @ a for b, a in parts])
    torch.testing.assert_close(best[f"{name}.weight"], expected, rtol=1e-6, atol=1e-7)
    changed = {name for name in best if not torch.equal(best[name], given[name])}
    assert changed == {f"{name.removesuffix('.a')}.weight" for name in adapter if name.endswith(".a")}
    assert "by low-rank adapters of rank 2, which are merged" in (whole / "best" / "README.md").read_text()


def test_applied_to_the_given_model_the_adapter_is_the_best_model(
    whole: Path, base: Path, tmp_path: Path, call: Any
) -> None:
    """Byte for byte; from the file anywhere, from its folder or from the run."""
    copied = tmp_path / "tuned.safetensors"
    shutil.copy(whole / "best" / "adapter.safetensors", copied)
    for number, adapter in enumerate((copied, whole / "best", whole)):
        ended = call("adapt", str(base), str(adapter), "--output", str(tmp_path / str(number)))
        assert ended.status == 0, ended.err
        assert "with an adapter of rank 2" in ended.err
    wanted = (whole / "best" / "model.safetensors").read_bytes()
    for number in range(3):
        assert (tmp_path / str(number) / "model.safetensors").read_bytes() == wanted
    best, found = (Translator.load(folder) for folder in (whole, tmp_path / "0"))
    assert found.translate(["eins", "zwei drei"]) == best.translate(["eins", "zwei drei"])


def test_what_is_no_adapter_of_the_model_is_refused(whole: Path, base: Path, tmp_path: Path, call: Any) -> None:
    """One line, status 2, and nothing is written."""
    given = (whole / "best" / "adapter.safetensors").read_bytes()
    with safe_open(whole / "best" / "adapter.safetensors", "pt") as file:
        facts = {**file.metadata()}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    path, name = tmp_path / "adapter", "encoder.0.feed_forward.contract.b"

    def made(facts: dict[str, str], tensors: dict[str, torch.Tensor]) -> bytes:
        return b"".join(serialize_tensors(tensors, facts))

    infinite = {**tensors, name: tensors[name] * torch.inf}
    cases = [
        (given[:-5], "cannot be read as an adapter"),
        (b"text", "cannot be read as an adapter"),
        (made({}, tensors), "not an adapter; `multihead train --lora` writes adapter.safetensors"),
        (made({**facts, "rank": "0"}, tensors), "damaged"),
        (made({**facts, "alpha": "much"}, tensors), "damaged"),
        (made({**facts, "base": "1" * 64}, tensors), "made for the weights 111111111111..., and those of"),
        (made(facts, infinite), "damaged"),
        (
            made({**facts, "rank": "3"}, tensors),
            "encoder.0.self_attention.in_projection.a is [6, 32], expected [9, 32]",
        ),
        (made(facts, {key: tensors[key] for key in tensors if key != name}), f"{name} is missing, expected"),
        (made(facts, {**tensors, "more": torch.ones(2)}), "more is [2], expected missing"),
    ]
    for content, message in cases:
        path.write_bytes(content)
        ended = call("adapt", str(base), str(path), "--output", str(tmp_path / "new"))
        assert (ended.status, ended.err.count("\n")) == (2, 1), ended.err
        assert message in ended.err
        assert not (tmp_path / "new").exists()
    for adapter, message in ((tmp_path / "none", "cannot be read"), (base, "`multihead train --lora` writes it")):
        ended = call("adapt", str(base), str(adapter), "--output", str(tmp_path / "new"))
        assert (ended.status, ended.err.count("\n")) == (2, 1), ended.err
        assert message in ended.err


def test_its_checkpoints_have_a_mean_and_its_model_is_tuned_again(
    whole: Path, wishes: dict[str, Any], numbers: Numbers, tmp_path: Path
) -> None:
    for part in ("trained", "average"):
        mean = load_bundle(average(whole, last=2, weights=part, output=tmp_path / part, say=lambda _: None))
        name, merged = "encoder.0.feed_forward.contract", []
        for step in (3, 6):
            tensors = checkpoint(whole, "model", step) | (checkpoint(whole, part, step) if part == "average" else {})
            merged.append(tensors[f"{name}.base"] + ALPHA / RANK * tensors[f"{name}.b"] @ tensors[f"{name}.a"])
        found = mean.model.get_parameter(f"{name}.weight")
        torch.testing.assert_close(found, (merged[0] + merged[1]) / 2, rtol=1e-5, atol=1e-7)
    again = numbers.learn(tmp_path / "again", **{**wishes, "from_model": whole, "updates": 1, "lora": 4})
    config = read_run(again.folder)
    assert config is not None
    assert config.from_model is not None
    assert config.from_model.weights == weights_digest(whole)
    assert config.training.learning_rate == pytest.approx(0.64 / config.model.width)
    assert Translator.load(tmp_path / "again").translate(["eins"])


def test_what_is_frozen_needs_neither_gradient_nor_optimizer_nor_average(whole: Path, base: Path) -> None:
    """In the required memory, and in the operations that determine the speed."""
    config = read_run(whole)
    assert config is not None
    network = new_network(config.model, config.training)
    given = sum(tensor.numel() for tensor in load_file(base / "model.safetensors").values())
    trained = sum(tensor.numel() for tensor in checkpoint(whole, "average").values())
    needed, parameters = state_bytes(lambda: new_network(config.model, config.training), config.training)
    assert (needed, parameters) == (4 * given + 4 * 5 * trained, given + trained)
    plain = build_network(config.model)
    learns, all_learn = (measure_flops(model, model.output, "cpu", "float32") for model in (network, plain))
    maps = sum(p.numel() for name, p in network.named_parameters() if name.endswith(".base"))
    expected = 4 * (maps + plain.output.weight.numel()) + 6 * trained
    assert learns.source + learns.target == expected
    assert all_learn.source + all_learn.target == 6 * (maps + plain.output.weight.numel())


def test_a_run_that_goes_on_is_not_divided_either(whole: Path, numbers: Numbers) -> None:
    with pytest.raises(ConfigurationError, match="--parallel sharded: this run trains adapters"):
        numbers.learn(whole, parallel="sharded")


def test_a_rank_above_a_matrix_is_refused_before_anything_is_written(
    wishes: dict[str, Any], numbers: Numbers, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="--lora 999: a rank is at most the smaller side of each matrix"):
        numbers.learn(tmp_path / "run", **{**wishes, "lora": 999})
    assert not (tmp_path / "run").exists()


def test_a_given_model_that_is_the_best_so_far_and_is_lost_is_not_taken_for_the_result(
    wishes: dict[str, Any], numbers: Numbers, tmp_path: Path
) -> None:
    output, lines = tmp_path / "run", list[str]()
    with pytest.raises(Interrupted):  # after the validation of the given model
        numbers.learn(output, **wishes, stop_signal=lambda: 2 if (output / "run.json").exists() else None)
    shutil.rmtree(output / "best")
    result = numbers.learn(output, say=lines.append)
    assert "best is missing: the next validated model counts as the best so far" in lines[0]
    assert result.best_step > 0
    shutil.rmtree(output / "best")
    with pytest.raises(FormatError, match="best: is missing, and the run is finished; copy it back"):
        numbers.learn(output)
