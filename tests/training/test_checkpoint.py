"""Checkpoints are restored bit for bit, and damaged ones are never loaded."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch

from multihead.errors import FormatError
from multihead.sealed import seal
from multihead.training import checkpoint as module
from multihead.training.checkpoint import Checkpoint, LogWindow, RunState, load_newest, save

FILES = ("model.safetensors", "average.safetensors", "optimizer.safetensors", "state.json", "manifest.json")


def made(step, seed=None, average=True):
    torch.manual_seed(step if seed is None else seed)
    model = {"a": torch.randn(3, 4), "b/c": torch.randn(2), "step": torch.tensor(float(step))}
    state = RunState(
        step=step,
        position=(step // 7, step % 7),
        validated_at=step - 1,
        best_step=step - 1,
        best_score=0.1 + step / 3,
        without_gain=2,
        window=LogWindow(tokens=11, loss=1 / 3, nll=1e-17, correct=4, gradient_norm=2 / 7, updates=3),
    )
    averaged = {name: tensor + 1 for name, tensor in model.items()} if average else {}
    return Checkpoint(state, model, averaged, {f"{name}/exp_avg": tensor * 2 for name, tensor in model.items()})


def same(one, other):
    return one.state == other.state and all(
        mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
        for mine, theirs in zip(one[1:], other[1:], strict=True)
    )


def refuse(sentence):
    raise AssertionError(f"warned: {sentence}")


@pytest.mark.parametrize("average", [True, False])
def test_round_trip(tmp_path, average):
    save(tmp_path / "checkpoints", made(12, average=average), keep=2)
    assert same(load_newest(tmp_path / "checkpoints", refuse), made(12, average=average))


def test_a_checkpoint_before_the_first_update_has_no_optimizer_state(tmp_path):
    empty = Checkpoint(RunState(), {"a": torch.zeros(2)}, {}, {})
    save(tmp_path, empty, keep=1)
    assert same(load_newest(tmp_path, refuse), empty)


def test_views_and_shared_memory_are_written_as_what_they_show(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    save(tmp_path, Checkpoint(RunState(), {"turned": base.t(), "row": base[1]}, {}, {}), keep=1)
    found = load_newest(tmp_path, refuse)
    assert torch.equal(found.model["turned"], base.t())
    assert torch.equal(found.model["row"], base[1])


def test_no_checkpoint_is_none(tmp_path):
    assert load_newest(tmp_path / "nowhere", refuse) is None
    assert load_newest(tmp_path, refuse) is None


def test_the_newest_is_by_number_and_only_so_many_are_kept(tmp_path):
    for step in (999_999_98, 999_999_99, 1_000_000_00, 1_000_000_01):
        save(tmp_path, made(step), keep=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["100000000", "100000001", "99999999"]
    assert load_newest(tmp_path, refuse).state.step == 100_000_001


def test_saving_a_step_again_replaces_it(tmp_path):
    save(tmp_path, made(5, seed=1), keep=2)
    save(tmp_path, made(5, seed=2), keep=2)
    assert same(load_newest(tmp_path, refuse), made(5, seed=2))
    assert [path.name for path in tmp_path.iterdir()] == ["00000005"]


# ------------------------------------------------------------------------------------------ damage


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    save(folder, made(5), keep=2)
    save(folder, made(10), keep=2)
    return folder


def goes_back(folder):
    """Load and expect the older one, with a warning that names the newer one."""
    warnings = []
    found = load_newest(folder, warnings.append)
    assert same(found, made(5))
    assert len(warnings) == 1
    assert str(folder / "00000010") in warnings[0]
    return warnings[0]


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_in_any_byte_of_any_file_is_seen(two, name):
    path = two / "00000010" / name
    intact = path.read_bytes()
    try:
        for place in range(0, len(intact), 1 if name == "manifest.json" else 3):
            damaged = bytearray(intact)
            damaged[place] ^= 0x20 if place % 2 else 0x01
            path.write_bytes(damaged)
            assert name in goes_back(two) or name == "manifest.json"
    finally:
        path.write_bytes(intact)
    assert same(load_newest(two, refuse), made(10))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["missing", "empty", "cut", "longer", "a folder", "another's"])
def test_a_file_that_is_not_the_one_written_is_seen(two, tmp_path, name, how):
    folder = tmp_path / "checkpoints"
    shutil.copytree(two, folder)
    path = folder / "00000010" / name
    content = path.read_bytes()
    path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how != "missing":
        other = (folder / "00000005" / name).read_bytes()
        path.write_bytes({"empty": b"", "cut": content[:-1], "longer": content + b"\0", "another's": other}[how])
    goes_back(folder)


@pytest.mark.parametrize("content", [b"[]", b"{}", b"null", b"1", b'"model.safetensors"', b"\xff", b"[" * 100_000])
def test_a_manifest_of_another_kind_is_seen(two, tmp_path, content):
    folder = tmp_path / "checkpoints"
    shutil.copytree(two, folder)
    (folder / "00000010" / "manifest.json").write_bytes(content)
    goes_back(folder)


def test_checkpoints_of_older_versions_are_read(two, tmp_path):
    """Their manifest has only the SHA-256 of each file; a flipped bit in the manifest is detected too."""
    folder = shutil.copytree(two, tmp_path / "old")
    for path in folder.iterdir():
        files = sorted(file for file in path.iterdir() if file.name != "manifest.json")
        hashes = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        (path / "manifest.json").write_text(json.dumps(hashes, indent=1))
    newest = max(folder.iterdir())
    before, found = load_newest(two, refuse), load_newest(folder, refuse)
    assert found.state == before.state
    assert all(torch.equal(found.model[name], tensor) for name, tensor in before.model.items())
    content = (newest / "manifest.json").read_bytes()
    for place in range(0, len(content), 17):
        changed = bytearray(content)
        changed[place] ^= 1
        (newest / "manifest.json").write_bytes(changed)
        warnings = []
        assert load_newest(folder, warnings.append).state.step < found.state.step
        assert len(warnings) == 1


def test_all_damaged_is_an_error_that_says_what_to_do(two, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(two, folder)
    for step in ("00000005", "00000010"):
        (folder / step / "model.safetensors").write_bytes(b"")
    warnings = []
    with pytest.raises(FormatError, match=r"none of 2 checkpoints is intact.*new folder"):
        load_newest(folder, warnings.append)
    assert len(warnings) == 2


def test_a_damaged_one_never_takes_the_place_of_a_good_one(two, tmp_path):
    """It has the highest number, but does not count as the newest when old checkpoints are removed."""
    folder = tmp_path / "checkpoints"
    shutil.copytree(two, folder)
    (folder / "00000010" / "state.json").write_bytes(b"")
    goes_back(folder)
    save(folder, made(7), keep=1)
    assert same(load_newest(folder, refuse), made(7))


def test_a_state_of_another_version_is_said_to_be(tmp_path, monkeypatch):
    path = save(tmp_path, made(3), keep=1)
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**state, "something_new": 1}))
    seal(path)
    with pytest.raises(FormatError, match="another version"):
        load_newest(tmp_path, refuse)


@pytest.mark.parametrize(
    "saved", [{}, {"a": torch.ones(3)}, {"b": torch.ones(2)}, {"a": torch.ones(2), "b": torch.ones(2)}]
)
def test_tensors_of_another_model_are_refused(saved):
    parameters = {"a": torch.zeros(2)}
    with pytest.raises(FormatError, match=r"run\.json"):
        module.copy_into(parameters, saved)
    module.copy_into(parameters, {"a": torch.ones(2)})
    assert parameters["a"].tolist() == [1, 1]


# ------------------------------------------------------------------------------------------ stopped while writing


def test_drafts_are_ignored_and_cleared_away(two, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(two, folder)
    shutil.copytree(two / "00000010", folder / ".00000015.unfinished-123")
    (folder / ".00000015.unfinished-123" / "manifest.json").unlink()
    assert load_newest(folder, refuse).state.step == 10
    shutil.copytree(two / "00000010", folder / ".00000015.unfinished-4567")
    save(folder, made(11), keep=5)
    assert sorted(path.name for path in folder.iterdir()) == ["00000005", "00000010", "00000011"]


def test_an_exchange_that_was_cut_short_is_undone(two, tmp_path):
    """A checkpoint that was moved aside and not yet replaced is restored."""
    folder = tmp_path / "checkpoints"
    shutil.copytree(two, folder)
    (folder / "00000010").rename(folder / ".00000010.replaced")
    assert same(load_newest(folder, refuse), made(10))
