"""Texts of language models: lines, windows, batches."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from multihead.data.batching import CollatedStream
from multihead.data.corpus import Report
from multihead.data.texts import Text, TextBatch, collate_windows, read_texts, windows, write_windows
from multihead.text.tokenizer import Tokenizer
from multihead.training.splitting import Examples

LINES = ["a b c", "bb cc dd ee", "", "  ", "a", "dd " * 9]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn(LINES, 280)


def test_every_line_with_text_is_one_and_faults_are_reported(tmp_path: Path) -> None:
    (path := tmp_path / "text.gz").write_bytes(gzip.compress(b"one\n\n \t\ntwo \xff\n three \r\nfour"))
    report = Report()
    assert list(read_texts(path, report)) == [Text(1, "one"), Text(5, " three "), Text(6, "four")]
    assert [(fault.line, fault.reason) for fault in report.faults] == [(4, "not valid UTF-8")]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 100])
def test_every_token_is_predicted_once_after_those_before_it(tokenizer: Tokenizer, size: int) -> None:
    begin, end = tokenizer.bos_id, tokenizer.eos_id
    for length in range(7):
        ids = list(range(10, 10 + length))
        found = windows(ids, tokenizer, size)
        assert [token for row in found for token in row[1:]] == [*ids, end]
        assert [row[0] for row in found] == [begin, *(row[-1] for row in found[:-1])]
        assert all(len(row) - 1 == size for row in found[:-1])


def test_a_stream_has_every_window_of_a_stored_text_once_an_epoch(tokenizer: Tokenizer, tmp_path: Path) -> None:
    texts = [Text(number, line) for number, line in enumerate(LINES, 1) if line.strip()]
    store = write_windows(tmp_path / "store", iter(texts), tokenizer, 4)
    expected = [(one.line, row) for one in texts for row in windows(tokenizer.encode(one.text), tokenizer, 4)]
    assert [(int(line), store.source[i].tolist()) for i, line in enumerate(store.lines)] == expected
    collate = lambda rows: collate_windows(store.source, rows, tokenizer.pad_id)  # noqa: E731
    stream = CollatedStream(store, 16, 1, collate)
    seen: list[int] = []
    while stream.position[0] == 0:
        batch = stream.take()
        assert isinstance(batch, TextBatch)
        assert isinstance(batch, Examples)
        given, following = batch.inputs
        assert batch.cells == given.numel()
        assert batch.target_tokens == int((following != tokenizer.pad_id).sum()) == int(batch.lengths.sum())
        for row, index in enumerate(batch.indices.tolist()):
            own = expected[index][1]
            assert given[row, : len(own) - 1].tolist() == own[:-1]
            assert following[row, : len(own) - 1].tolist() == own[1:]
        seen += batch.indices.tolist()
    assert sorted(seen) == list(range(len(expected)))
    again = CollatedStream(store, 16, 1, collate, (0, 1))
    first = CollatedStream(store, 16, 1, collate)
    first.take()
    assert torch.equal(again.take().tokens, first.take().tokens)


def test_a_part_of_a_batch_is_the_batch_of_its_rows(tokenizer: Tokenizer, tmp_path: Path) -> None:
    store = write_windows(tmp_path / "store", [Text(1, "a b"), Text(2, "bb cc dd"), Text(3, "a")], tokenizer, 9)
    batch = collate_windows(store.source, np.array([1, 0, 2]), tokenizer.pad_id)
    part, alone = batch.part(1, 3), collate_windows(store.source, np.array([0, 2]), tokenizer.pad_id)
    assert torch.equal(part.tokens, alone.tokens)
    assert torch.equal(part.lengths, alone.lengths)
    assert part.indices.tolist() == [0, 2]
    assert (part.target_tokens, len(part)) == (alone.target_tokens, 2)
    assert batch.part(0, 1).tokens.shape[1] == len(store.source[1])
