"""Stored predictions of teachers: reading returns what was written, and a writer resumes where another stopped."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from multihead.data import soft_store
from multihead.data.soft_store import SoftDescription, SoftStore, SoftStoreWriter
from multihead.errors import FormatError

LENGTHS = np.array([3, 1, 4, 2, 5], np.int64)
PARTS = ((0, 2), (2, 3), (3, 5))


def description(vocabulary: int = 50, teachers: tuple[str, ...] = ("a", "b")) -> SoftDescription:
    return SoftDescription.of(teachers, 4, vocabulary, LENGTHS)


def content(vocabulary: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    best = torch.randn(int(LENGTHS.sum()), vocabulary, generator=draw).softmax(-1).topk(4)
    return best.indices, best.values


def write(run: Path, parts: tuple[tuple[int, int], ...], vocabulary: int = 50) -> SoftStoreWriter:
    """Write some of the pairs with a new writer."""
    run.mkdir(exist_ok=True)
    ids, probabilities = content(vocabulary)
    writer, ends = SoftStoreWriter(run, description(vocabulary)), np.cumsum(LENGTHS)
    for start, stop in parts:
        place = slice(int(ends[start] - LENGTHS[start]), int(ends[stop - 1]))
        writer.append(ids[place], probabilities[place], stop - start)
    return writer


@pytest.mark.parametrize("vocabulary", [50, 70_000])
def test_what_was_written_is_read(tmp_path: Path, vocabulary: int) -> None:
    write(tmp_path, PARTS, vocabulary).finish()
    ids, probabilities = content(vocabulary)
    store = SoftStore.open(tmp_path, description(vocabulary), LENGTHS, vocabulary)
    found = store.gather(np.arange(len(LENGTHS)), 0.25)
    assert found.weight == 0.25
    assert torch.equal(found.ids, ids)
    below = probabilities - found.probabilities
    assert (below > -1e-7).all()
    assert (below < 1 / 65_535 + 1e-7).all()
    assert store.gather(np.array([], np.int64), 0.5).ids.shape == (0, 4)


def test_probabilities_never_add_up_to_more_than_one(tmp_path: Path) -> None:
    """Thirds and sevenths, which would all round up; and a teacher that is certain, which stays certain."""
    rows = torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0.0], [1.0, 0.0, 0.0, 0.0], [2 / 7, 2 / 7, 2 / 7, 1 / 7]])
    probabilities = rows[torch.arange(int(LENGTHS.sum())) % 3]
    writer = SoftStoreWriter(tmp_path, description())
    writer.append(torch.arange(4).expand(len(probabilities), 4), probabilities, len(LENGTHS))
    writer.finish()
    found = SoftStore.open(tmp_path, description(), LENGTHS, 50).gather(np.arange(len(LENGTHS)), 0.5)
    assert (found.probabilities.double().sum(-1) <= 1 + 1e-7).all()
    assert found.probabilities[1].tolist() == [1.0, 0.0, 0.0, 0.0]


def test_a_writer_goes_on_where_another_was_stopped(tmp_path: Path, numbers) -> None:
    write(tmp_path / "whole", PARTS).finish()
    write(tmp_path / "run", PARTS[:1])
    with (tmp_path / "run" / "teachers.part" / "ids.bin").open("ab") as stream:
        stream.write(b"what the stopped one was still writing")
    writer = write(tmp_path / "run", PARTS[1:2])
    assert writer.pairs == 3
    write(tmp_path / "run", PARTS[2:]).finish()
    assert numbers.contents(tmp_path / "run") == numbers.contents(tmp_path / "whole")


def test_what_was_killed_at_its_end_is_not_computed_again(
    tmp_path: Path, numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "whole", PARTS).finish()
    for name in ("manifest_of", "replace"):
        writer = write(tmp_path / name, PARTS)
        with monkeypatch.context() as patch:
            patch.setattr(soft_store, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                writer.finish()
        writer = SoftStoreWriter(tmp_path / name, description())
        assert writer.pairs == len(LENGTHS)
        writer.finish()
        assert numbers.contents(tmp_path / name) == numbers.contents(tmp_path / "whole")


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("damage", ["other teachers", "no progress", "too short"])
def test_pieces_that_do_not_fit_are_made_again(tmp_path: Path, damage: str) -> None:
    write(tmp_path, PARTS[:2])
    part = tmp_path / "teachers.part"
    if damage == "no progress":
        (part / "progress.json").write_text("{", encoding="utf-8")
    elif damage == "too short":
        (part / "ids.bin").write_bytes(b"")
    wanted = description(teachers=("c",)) if damage == "other teachers" else description()
    assert SoftStoreWriter(tmp_path, wanted).pairs == 0
    assert (part / "probabilities.bin").stat().st_size == 0


def test_other_teachers_text_or_vocabulary_are_refused(tmp_path: Path, numbers) -> None:
    write(tmp_path, PARTS).finish()
    for other in (description(teachers=("b", "a")), SoftDescription.of(("a", "b"), 4, 50, LENGTHS[:-1])):
        with pytest.raises(FormatError, match=r"teachers\.json: not made from the teachers and the text"):
            SoftStore.open(tmp_path, other, LENGTHS, 50)
    with pytest.raises(FormatError, match=r"ids\.bin: symbols that are not in the vocabulary"):
        SoftStore.open(tmp_path, description(), LENGTHS, 10)
    path = tmp_path / "teachers" / "teachers.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), "version": 2}), encoding="utf-8")
    numbers.seal_again(tmp_path / "teachers")
    with pytest.raises(FormatError, match="not made from"):
        SoftStore.open(tmp_path, description(), LENGTHS, 50)
