"""Files of tensors: read equal, in shards too; damaged or dangerous ones are refused, and nothing in them runs."""

import io
import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from multihead.errors import FormatError
from multihead.interop.formats.tensors import read_arrays, read_checkpoint, read_tensors, read_weights

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.float16)}


def same(found):
    return found.keys() == TENSORS.keys() and all(torch.equal(found[name], TENSORS[name]) for name in found)


def test_every_kind_of_file_gives_the_same_tensors(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    torch.save(TENSORS, tmp_path / "new.bin")
    torch.save(TENSORS, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    assert same(read_weights(tmp_path))
    assert same(read_tensors(tmp_path / "new.bin"))
    assert same(read_tensors(tmp_path / "old.bin"))


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_shards_are_one_set(tmp_path, name):
    places = {}
    for number, (key, tensor) in enumerate(TENSORS.items()):
        shard = f"{number}-{name}"
        (save_file if name.endswith("safetensors") else torch.save)({key: tensor}, tmp_path / shard)
        places[key] = shard
    index = tmp_path / f"{name}.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert same(read_weights(tmp_path))
    for bad in ("../elsewhere.bin", "missing.bin"):
        index.write_text(json.dumps({"weight_map": places | {"a": bad}}))
        with pytest.raises(FormatError, match=r"no file of this folder|there is no such file"):
            read_weights(tmp_path)


class Dangerous:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("new", [True, False])
def test_code_in_a_pickle_does_not_run(tmp_path, new):
    trace = tmp_path / "it ran"
    torch.save({"a": Dangerous(trace)}, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=new)
    with pytest.raises(FormatError, match="loading would run code"):
        read_weights(tmp_path)
    assert not trace.exists()


def test_sizes_larger_than_the_file_are_refused(tmp_path):
    header = json.dumps(
        {"a": {"dtype": "F32", "shape": [25_000_000_000], "data_offsets": [0, 100_000_000_000]}}
    ).encode()
    (tmp_path / "large.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
    (tmp_path / "header.safetensors").write_bytes(struct.pack("<Q", 100_000_000_000) + b"{}")
    for name in ("large", "header"):
        with pytest.raises(FormatError, match=rf"{name}\.safetensors: damaged or unreadable"):
            read_tensors(tmp_path / f"{name}.safetensors")
    with zipfile.ZipFile(tmp_path / "bomb.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"")
        archive.writestr("archive/data/0", bytes(10_000_000))
    with pytest.raises(FormatError, match=r"bomb\.bin: damaged: its parts claim 10,000,000 bytes"):
        read_tensors(tmp_path / "bomb.bin")


def test_damaged_files_are_refused(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    torch.save(TENSORS, tmp_path / "new.bin")
    torch.save(TENSORS, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    for name in ("model.safetensors", "new.bin", "old.bin"):
        path = tmp_path / name
        content = path.read_bytes()
        for cut in (0, 5, len(content) // 3, len(content) - 1):
            path.write_bytes(content[:cut])
            with pytest.raises(FormatError, match=r"damaged or unreadable|holds"):
                read_tensors(path)
    with pytest.raises(FormatError, match=r"there are no weights; expected model\.safetensors"):
        read_weights(tmp_path / "none")
    torch.save([1], tmp_path / "list.bin")
    with pytest.raises(FormatError, match="holds a list; expected tensors by name"):
        read_checkpoint(tmp_path / "list.bin")
    torch.save({"step": 3}, tmp_path / "plain.bin")
    with pytest.raises(FormatError, match="holds no tensors by name"):
        read_tensors(tmp_path / "plain.bin")


def test_archives_of_numpy(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3), "special:model.yml": np.frombuffer(b"type: transformer", np.int8)}
    for name, save in (("plain.npz", np.savez), ("compressed.npz", np.savez_compressed)):
        save(tmp_path / name, **arrays)
        found = read_arrays(tmp_path / name)
        assert found.keys() == arrays.keys()
        assert all(np.array_equal(found[name], arrays[name]) for name in arrays)


def test_dangerous_archives_of_numpy_are_refused(tmp_path):
    trace = tmp_path / "it ran"
    np.savez(tmp_path / "objects.npz", a=np.array([Dangerous(trace)], dtype=object))
    with pytest.raises(FormatError, match="an array holds Python objects"):
        read_arrays(tmp_path / "objects.npz")
    assert not trace.exists()
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (25000000000,), }\n"
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(64)
    with zipfile.ZipFile(tmp_path / "large.npz", "w") as archive:
        archive.writestr("a.npy", content)
    with pytest.raises(FormatError, match=r"a\.npy claims 100,000,000,"):
        read_arrays(tmp_path / "large.npz")
    part = io.BytesIO()
    np.save(part, np.zeros(100_000, np.float32))
    with zipfile.ZipFile(tmp_path / "many.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(100):
            archive.writestr(f"{number}.npy", part.getvalue())
    with pytest.raises(FormatError, match=r"many\.npz: .*its parts claim 40,012,800 bytes"):
        read_arrays(tmp_path / "many.npz")
    for name, bad in (("text.npz", b"no archive"), ("empty.npz", b"")):
        (tmp_path / name).write_bytes(bad)
        with pytest.raises(FormatError, match="damaged or unreadable"):
            read_arrays(tmp_path / name)
