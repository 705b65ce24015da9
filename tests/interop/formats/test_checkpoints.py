"""Checkpoints: data is read, code is never run, damage is reported."""

from __future__ import annotations

import argparse
import collections
import enum
import sys
import types
import zipfile
from pathlib import Path, PosixPath
from typing import Any

import pytest
import torch

from multihead.errors import FormatError
from multihead.interop.formats.checkpoints import Inert, load_checkpoint, options, section

ZIPPED = [True, False]


@pytest.mark.parametrize("zipped", ZIPPED)
def test_tensors_and_options_are_read(tmp_path: Path, zipped: bool) -> None:
    tensor = torch.randn(3, 4, dtype=torch.float16)
    content = {
        "model": {"a": tensor, "steps": 3},
        "args": argparse.Namespace(heads=4, path=PosixPath("/x")),
        "counts": collections.Counter("aab"),
    }
    path = tmp_path / "checkpoint.pt"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    found = load_checkpoint(path)
    assert torch.equal(section(found, "model", path)["a"], tensor.float())
    assert section(found, "model", path).keys() == {"a"}
    assert options(found["args"])["heads"] == 4
    assert isinstance(options(found["args"])["path"], Inert)
    assert found["counts"] == {"a": 2, "b": 1}
    assert options(None) == {}
    with pytest.raises(FormatError, match="expected the weights under 'ema', found only model, args, counts"):
        section(found, "ema", path)


def test_objects_of_toolkits_are_inert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their code need not be installed, and is not run if it is."""
    ran: list[str] = []

    class Options:
        def __init__(self) -> None:
            self.layers = 6

        def __setstate__(self, state: dict[str, Any]) -> None:
            ran.append("state")

    class Kind(enum.Enum):
        RELU = "relu"

    module = types.ModuleType("fairseq.settings")
    for cls in (Options, Kind):
        cls.__module__, cls.__qualname__ = module.__name__, cls.__name__
        setattr(module, cls.__name__, cls)
    monkeypatch.setitem(sys.modules, "fairseq", types.ModuleType("fairseq"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    path = tmp_path / "checkpoint.pt"
    torch.save({"cfg": Options(), "kind": Kind.RELU}, path)
    found = load_checkpoint(path)
    assert options(found["cfg"]) == {"layers": 6}
    assert isinstance(found["kind"], Inert)
    assert not ran


@pytest.mark.parametrize("zipped", ZIPPED)
def test_code_is_not_run(tmp_path: Path, evil: Any, zipped: bool) -> None:
    """The fixture checks that nothing was run."""

    class Evaluated:
        def __reduce__(self) -> tuple[Any, ...]:
            return eval, (f"open({str(evil.made)!r}, 'w')",)

    class Called:  # a function of a package whose classes are inert
        def __reduce__(self) -> tuple[Any, ...]:
            return torch.hub.load, (str(evil.made), "x")

    path = tmp_path / "checkpoint.pt"
    for harm in (evil, Evaluated()):
        torch.save({"model": {}, "more": [harm]}, path, _use_new_zipfile_serialization=zipped)
        with pytest.raises(FormatError, match=r"refused: it names '[\w.]+', which is code and not data"):
            load_checkpoint(path)
    torch.save({"more": Called()}, path, _use_new_zipfile_serialization=zipped)
    assert isinstance(load_checkpoint(path)["more"], Inert)


@pytest.mark.parametrize("zipped", ZIPPED)
def test_damage_is_one_line(tmp_path: Path, zipped: bool) -> None:
    path, cut = tmp_path / "whole.pt", tmp_path / "cut.pt"
    torch.save({"model": {"a": torch.randn(50, 50)}}, path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    for length in (0, 1, 9, 100, 400, len(whole) // 2, len(whole) - 20):
        cut.write_bytes(whole[:length])
        with pytest.raises(FormatError, match="not a checkpoint of PyTorch, or damaged") as caught:
            load_checkpoint(cut)
        assert "\n" not in str(caught.value)
    with pytest.raises(FormatError, match="there is no such file"):
        load_checkpoint(tmp_path / "none.pt")
    torch.save([1], path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(FormatError, match="expected a checkpoint with a dictionary, got list"):
        load_checkpoint(path)


def test_parts_larger_than_the_file_are_refused(tmp_path: Path) -> None:
    """A small file that would unpack to a huge amount of data."""
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/data.pkl", bytes(10_000_000))
    assert path.stat().st_size < 100_000
    with pytest.raises(FormatError, match="its parts claim 10,000,000 bytes"):
        load_checkpoint(path)


def test_a_tensor_larger_than_its_numbers_is_refused(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.zeros(1).expand(1 << 40)}}, tmp_path / "wide.pt")
    checkpoint = load_checkpoint(tmp_path / "wide.pt")
    with pytest.raises(FormatError, match="larger than its numbers"):
        section(checkpoint, "model", tmp_path / "wide.pt")
