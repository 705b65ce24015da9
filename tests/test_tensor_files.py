"""Tensors equal those that the library reads, and wrong headers are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from multihead.errors import FormatError
from multihead.files import write_tensors
from multihead.sealed import open_folder
from multihead.tensor_files import read_tensors, tensor_places

REMEDY = "copy it again"

TENSORS = {
    "bytes": torch.tensor([1, 2, 3], dtype=torch.int8),
    "empty": torch.zeros(0, 4),
    "flags": torch.tensor([[True], [False]]),
    "matrix": torch.arange(6.0).view(2, 3),
    "scalar": torch.tensor(7, dtype=torch.int64),
    "short": torch.tensor([1.5, 2.5]).bfloat16(),
}


def test_tensors_are_read_as_the_library_reads_them(tmp_path: Path) -> None:
    write_tensors(tmp_path / "ours", TENSORS)
    save_file(TENSORS, tmp_path / "theirs", {"format": "pt"})
    (tmp_path / "odd").write_bytes(
        b"\x3f\0\0\0\0\0\0\0" + b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}         ' + bytes(8)
    )
    with open_folder(tmp_path, REMEDY) as folder:
        for name in ("ours", "theirs"):
            found, expected = read_tensors(folder, name), load_file(tmp_path / name)
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[key], expected[key]) for key in expected)
            assert all(found[key].dtype == expected[key].dtype for key in expected)
            assert {key: place.shape for key, place in tensor_places(folder, name).items()} == {
                key: tuple(tensor.shape) for key, tensor in expected.items()
            }
        assert torch.equal(read_tensors(folder, "odd")["x"], torch.zeros(2))


@pytest.mark.parametrize(
    "described",
    [
        {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 17]},
        {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]},
        {"dtype": "F32", "shape": [4], "data_offsets": [16, 32]},
        {"dtype": "F99", "shape": [4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [True, 4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [0] + [10**12] * 12, "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": 4, "data_offsets": [0, 16]},
        7,
    ],
)
def test_a_header_that_lies_is_refused_before_anything_is_allocated(tmp_path: Path, described: object) -> None:
    header = json.dumps({"x": described}).encode()
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    with open_folder(tmp_path, REMEDY) as folder:
        for read in (tensor_places, read_tensors):
            with pytest.raises(FormatError, match="x: damaged: its"):
                read(folder, "x")


@pytest.mark.parametrize("content", [b"", b"\1", b"\xff" * 8, b"\xff\xff\xff\3\0\0\0\0{}", b"\2\0\0\0\0\0\0\0{}x"])
def test_a_header_longer_than_the_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with open_folder(tmp_path, REMEDY) as folder, pytest.raises(FormatError, match="x: damaged"):
        read_tensors(folder, "x")
