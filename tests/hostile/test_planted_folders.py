"""Hostile shortlists, prepared text, pointer networks, classifiers and BERTs cause a one-line error, or no change.

As in `test_sizes.py` for translators, each case plants one fault in a copy of a good folder and seals it again, as an
attacker can do.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load

from folders import GOOD, SHORTLIST, shortlist_of
from multihead.bundle import load_bundle
from multihead.errors import MultiheadError
from multihead.files import write_tensors
from multihead.model_folder import LARGEST, WEIGHTS
from multihead.preparing.prepared import data_digests
from multihead.sealed import MANIFEST, seal
from multihead.work_folder import PREPARED
from planting import (
    HANGS,
    KINDS,
    Plant,
    alarm,
    change_fields,
    content,
    edit,
    header,
    little_memory,
    one_line,
    replaced,
    tensor,
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A good folder of a kind."""
    place = tmp_path_factory.mktemp("good")

    def made(kind: str) -> Path:
        if not (place / kind).exists():
            GOOD[kind][0](place / kind)
        return place / kind

    return made


def planted(folder: Path, plant: Plant) -> None:
    """Plant a fault in a folder, and update every digest in it."""
    plant(folder)
    config = folder / "config.json"
    if (folder / WEIGHTS).is_file() and config.is_file() and '"weights"' in config.read_text(encoding="utf-8"):
        with contextlib.suppress(ValueError, TypeError):  # the fault is not JSON, or not an object
            edit("config.json", "weights", value=None)(folder)
    if (folder / PREPARED).is_file() and '"files"' in (folder / PREPARED).read_text(encoding="utf-8"):
        with contextlib.suppress(ValueError, TypeError):
            edit(PREPARED, "files", value=data_digests(folder))(folder)
    if (folder / MANIFEST).exists():
        (folder / MANIFEST).unlink()
        seal(folder)


# --------------------------------------------------------------------------- what is planted


def shortlist(**changed: Any) -> Plant:
    """Other tensors in a shortlist; None leaves one out."""

    def plant(folder: Path) -> None:
        tensors = shortlist_of(load_bundle(folder).source_tokenizer, **changed)
        write_tensors(folder / SHORTLIST, {name: value for name, value in tensors.items() if value is not None})

    return plant


def starts(change: Callable[[torch.Tensor], object]) -> Plant:
    def plant(folder: Path) -> None:
        tensors = shortlist_of(load_bundle(folder).source_tokenizer)
        change(tensors["starts"])
        write_tensors(folder / SHORTLIST, tensors)

    return plant


def wrapping(numbers: Any) -> None:
    """Steps of 64 bits that are not negative and end correctly, but pass the most negative number by overflow."""
    numbers[1], numbers[2], numbers[3] = (1 << 63) - 1, -(1 << 63), -1


def rounded_vector(name: str) -> Plant:
    """A vector in eight bits, which only matrices may have."""

    def plant(folder: Path) -> None:
        tensors = load((folder / WEIGHTS).read_bytes())
        size = len(tensors[name])
        write_tensors(
            folder / WEIGHTS, {**tensors, name: torch.ones(size, dtype=torch.int8), name + LARGEST: torch.ones(size)}
        )

    return plant


def reshaped(name: str, *shape: int) -> Plant:
    def plant(folder: Path) -> None:
        write_tensors(folder / WEIGHTS, {**load((folder / WEIGHTS).read_bytes()), name: torch.zeros(shape)})

    return plant


def array(name: str, change: Callable[[Any], object], dtype: str) -> Plant:
    """Change numbers in a file of a store."""

    def plant(folder: Path) -> None:
        numbers = np.fromfile(folder / name, dtype)
        change(numbers)
        numbers.tofile(folder / name)

    return plant


def put(place: int, value: int) -> Callable[[Any], None]:
    def change(numbers: Any) -> None:
        numbers[place] = value

    return change


SPECIAL = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"
HULL = {"problem": "hull", "smallest": 5, "largest": 6}
DEEP = b"[" * 200_000
TRAIN = "data/train"
QUERY = "bert.encoder.layer.0.attention.self.query.weight"

CASES: dict[str, dict[str, tuple[Plant, str]]] = {
    "shortlist": {
        "1e9 rows": (header({"starts": tensor(0, 64, 10**9, dtype="I64")}, name=SHORTLIST), "damaged"),
        "no candidates": (shortlist(candidates=None), "damaged"),
        "no digest": (shortlist(source=None), "damaged"),
        "a long digest": (shortlist(source=torch.zeros(1 << 24, dtype=torch.uint8)), "other subwords|damaged"),
        "real starts": (shortlist(starts=torch.full((331,), torch.nan)), "damaged"),
        "halves": (shortlist(always=torch.arange(20).bfloat16()), "damaged"),
        "a negative symbol": (shortlist(always=torch.arange(-5, 20)), "damaged"),
        "symbols beyond": (shortlist(always=torch.tensor([2, 3, 10**6])), "damaged"),
        "symbols far beyond": (shortlist(always=torch.tensor([3, (1 << 63) - 1])), "damaged"),
        "starts that decrease": (starts(put(5, 400)), "damaged"),
        "starts that overflow": (starts(wrapping), "damaged"),
        "no starts": (shortlist(starts=torch.empty(0, dtype=torch.int64)), "damaged"),
        "a number": (shortlist(starts=torch.tensor(0)), "damaged"),
        "deep": (content(SHORTLIST, struct.pack("<Q", len(DEEP)) + DEEP), "damaged"),
        "empty": (content(SHORTLIST, b""), "damaged"),
    },
    "pointer": {
        "another problem": (
            edit("config.json", "task", value={"problem": "hull", "smallest": 5, "largest": 6}),
            "hull",
        ),
        "no task": (edit("config.json", "task", value=None), "config.json"),
        "width 40000": (edit("config.json", "model", "width", value=40_000), "model.safetensors"),
        "layers 1e9": (edit("config.json", "model", "layers", value=10**9), "layers"),
        "largest 1e18": (edit("config.json", "task", "largest", value=10**18), "largest"),
        "features 50000": (edit("config.json", "model", "features", value=50_000), "model.safetensors|config.json"),
        "a rounded vector": (rounded_vector("begin"), "model.safetensors"),
        "deep": (content("config.json", DEEP), "config.json"),
    },
    "classifier": {
        "more labels": (edit("config.json", "reading", "labels", value=["a", "b", "c"]), "3 labels"),
        "a label twice": (edit("config.json", "reading", "labels", value=["a", "a"]), "labels"),
        "1e5 labels": (edit("config.json", "reading", "labels", value=["x" * 20] * 100_000), "labels"),
        "an empty separator": (edit("config.json", "reading", "separator", value=""), "separator"),
        "max_words 1e18": (edit("config.json", "reading", "max_words", value=10**18), "max_words"),
        "fewer words": (lambda folder: shrink(folder, "encoder.embedding.weight"), "words"),
        "classes 1e9": (edit("config.json", "model", "classes", value=10**9), "classes"),
        "depth 3": (edit("config.json", "model", "depth", value=3), "model.safetensors"),
        "deep words": (content("tokenizer.json", DEEP), "tokenizer.json"),
    },
    "BERT classifier": {
        "longer rows": (edit("config.json", "reading", "max_tokens", value=100_000), "max_tokens"),
        "more labels": (edit("config.json", "reading", "labels", value=["a", "b", "c"]), "3 labels"),
    },
    "BERT": {
        "positions 1e6": (edit("config.json", "model", "max_positions", value=10**6), "model.safetensors"),
        "vocabulary 1e9": (edit("config.json", "model", "vocab", value=10**9), "vocab"),
        "other words": (edit("config.json", "words", value=None), "not the words"),
        "deep": (content("config.json", b'{"a":' * 200_000), "config.json"),
        "rounded": (rounded_vector("embedding.norm.weight"), "model.safetensors"),
    },
    "published BERT": {
        "layers 500": (edit("config.json", "num_hidden_layers", value=500), "config.json: 500 layers"),
        "vocabulary 1e7": (edit("config.json", "vocab_size", value=10**7), "model.safetensors"),
        "fewer keys": (reshaped(QUERY, 16, 3), "model.safetensors"),
        "a number as keys": (reshaped(QUERY), "model.safetensors"),
        "a long kind": (edit("config.json", "model_type", value="x" * 10**6), "1,000,002 characters"),
        "a long activation": (edit("config.json", "hidden_act", value="x" * 10**6), "1,000,002 characters"),
        "more words": (
            content("vocab.txt", SPECIAL + b"".join(b"%d\n" % n for n in range(26))),
            "31 words",
        ),
        "no words": (content("vocab.txt", b""), "vocab.txt"),
        "a word twice": (content("vocab.txt", SPECIAL + b"a\na\n"), "vocab.txt"),
        "not text": (content("vocab.txt", b"\xff\xfe"), "vocab.txt"),
        "a list": (content("tokenizer_config.json", b"[]"), "tokenizer_config.json"),
        **{
            f"ids {number}": (lambda folder, ids=ids: pieces(folder, ids), "tokenizer.json")
            for number, ids in enumerate(
                ([None, 1], ["x", 1], [10**18, 1], [0, 7], [-1, 0], [[], 0], [0.5, 1], [True, False])
            )
        },
        "a normalizer": (lambda folder: pieces(folder, [0, 1], normalizer=[1]), "tokenizer.json"),
    },
    "prepared text": {
        "count 1e9": (edit(f"{TRAIN}/source/store.json", "count", value=10**9), "offsets.bin"),
        "count 1e18": (edit(f"{TRAIN}/source/store.json", "count", value=10**18), "offsets.bin"),
        "tokens 1e18": (edit(f"{TRAIN}/source/store.json", "tokens", value=10**18), "offsets.bin"),
        "a long type": (edit(f"{TRAIN}/source/store.json", "dtype", value="x" * 10**6), "store.json"),
        "a long version": (edit(f"{TRAIN}/store.json", "version", value="x" * 10**6), "store.json"),
        "an id beyond": (array(f"{TRAIN}/source/ids.bin", put(3, 60_000), "<u2"), "ids.bin"),
        "a target beyond": (array("data/valid/target/ids.bin", put(0, 60_000), "<u2"), "ids.bin"),
        "offsets that decrease": (array(f"{TRAIN}/target/offsets.bin", put(3, 30), "<i8"), "offsets.bin"),
        "offsets that overflow": (array(f"{TRAIN}/target/offsets.bin", wrapping, "<i8"), "offsets.bin"),
        "corpus 1e12": (edit(PREPARED, "data", "corpora", 0, "pairs", value=10**12), "train: 36 pairs"),
        "corpus -1": (edit(PREPARED, "data", "corpora", 0, "pairs", value=-1), "prepared.json"),
        "weight 1e300": (edit(PREPARED, "data", "corpora", 0, "weight", value=1e300), "prepared.json"),
        "weight -1": (edit(PREPARED, "data", "corpora", 0, "weight", value=-1), "prepared.json"),
        "weight 0": (edit(PREPARED, "data", "corpora", 0, "weight", value=0), "prepared.json"),
        "fewer lines of text": (content("data/valid.source.txt", b"a\n"), "valid.source.txt"),
        "deep": (content(PREPARED, b'{"a":' * 200_000), "prepared.json"),
        "deep store": (content(f"{TRAIN}/store.json", DEEP), "store.json"),
    },
}
"""For each kind of folder: the fault, and the text of the error."""


def shrink(folder: Path, name: str, rows: int = 300) -> None:
    """Give a table fewer rows, in the weights and in the settings."""
    tensors = load((folder / WEIGHTS).read_bytes())
    write_tensors(folder / WEIGHTS, {**tensors, name: tensors[name][:rows].clone()})
    place = ("model", "vocab") if "segments" not in name else ("model", "encoder", "segments")
    edit("config.json", *place, value=rows)(folder)


def pieces(folder: Path, ids: list[Any], normalizer: Any = None) -> None:
    """The words of a published model in the other format, two of them with these ids."""
    entries = (folder / "vocab.txt").read_text(encoding="utf-8").split()
    (folder / "vocab.txt").unlink()
    vocabulary = {entry: number for number, entry in enumerate(entries)} | dict(zip(entries[-2:], ids, strict=True))
    described = {"model": {"type": "WordPiece", "vocab": vocabulary}, "normalizer": normalizer}
    (folder / "tokenizer.json").write_text(json.dumps(described), encoding="utf-8")


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, cases in CASES.items() for name in cases])
def test_what_is_planted_is_refused_in_one_line(
    good: Callable[[str], Path], tmp_path: Path, kind: str, name: str
) -> None:
    plant, says = CASES[kind][name]
    folder = Path(shutil.copytree(good(kind), tmp_path / "folder"))
    planted(folder, plant)
    with little_memory(), alarm(HANGS), pytest.raises(MultiheadError) as raised:
        GOOD[kind][1](folder)
    one_line(raised.value, says)


def plain_files(folder: Path, *suffixes: str) -> list[str]:
    """The names of the files that a command reads, without those of the translator beside a shortlist."""
    unread = {MANIFEST, "README.md", "metrics.json", "left-out.tsv", "generation.json"}
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    unread |= {"tokenizer_config.json"} if "tokenizer.json" in names else set()
    read = [SHORTLIST] if SHORTLIST in names else [name for name in names if name.split("/")[-1] not in unread]
    return sorted(name for name in read if not suffixes or name.endswith(suffixes))


def refused(kind: str, folder: Path) -> bool:
    """Whether a folder is refused; any error other than one of our one-line errors fails the test."""
    try:
        with alarm(HANGS):
            GOOD[kind][1](folder)
    except MultiheadError as error:
        one_line(error, "")
        return True
    return False


@pytest.mark.parametrize("kind", GOOD)
def test_only_regular_files_are_read(good: Callable[[str], Path], tmp_path: Path, kind: str) -> None:
    names = plain_files(good(kind))
    for number, name in enumerate(names):
        folder = Path(shutil.copytree(good(kind), tmp_path / str(number)))
        replaced(name, list(KINDS.values())[number % len(KINDS)])(folder)
        assert refused(kind, folder), name


def change(good: Path, folder: Path, seed: int) -> None:
    """A copy with some fields of one file changed."""
    draw = random.Random(seed)
    shutil.copytree(good, folder)
    name = draw.choice(plain_files(good, ".json", ".safetensors"))
    planted(folder, lambda folder: change_fields(folder / name, draw))


@pytest.mark.parametrize("kind", GOOD)
def test_fields_changed_at_random(good: Callable[[str], Path], tmp_path: Path, kind: str) -> None:
    found = 0
    for seed in range(8):
        change(good(kind), tmp_path / str(seed), seed)
        found += refused(kind, tmp_path / str(seed))
    assert found


@pytest.mark.hostile
@pytest.mark.parametrize("kind", GOOD)
def test_fields_changed_at_random_for_long(good: Callable[[str], Path], tmp_path: Path, kind: str) -> None:
    found = 0
    for seed in range(1000, 2000):
        change(good(kind), tmp_path / "folder", seed)
        found += refused(kind, tmp_path / "folder")
        shutil.rmtree(tmp_path / "folder")
    assert 0 < found < 1000
