"""Documents round-trip through the store; rows contain every sentence; half of the pairs are continuations."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from multihead.data.bert.batches import Batches, Corruption, MaskedStream
from multihead.data.bert.documents import Document, DocumentStore, read_documents, write_documents
from multihead.data.bert.sentence_pairs import SentencePairs
from multihead.data.corpus import Report
from multihead.errors import DataError, FormatError, InputError
from multihead.text.bert_words import Symbols

SYMBOLS = Symbols(0, 2, 3, 1)
VOCAB = 50
LONGEST = 24
"""Tokens per row; a sentence has at most 10 tokens."""


def documents(seed, count, longest=10, most=9):
    """Documents of up to nine sentences, all different."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, most, count, endpoint=True)
    return [
        [random.integers(4, VOCAB, random.integers(1, longest, endpoint=True)).tolist() for _ in range(size)]
        for size in sizes
    ]


CORRUPTION = Corruption(SYMBOLS.hidden, tuple(SYMBOLS), np.ones(VOCAB, np.bool_), 1)


def pairs_of(store, longest=LONGEST, **options):
    return SentencePairs(store, SYMBOLS, longest, 1, **options)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.inputs, other.inputs, strict=True)) and (
        one.indices.tolist(),
        one.target_tokens,
    ) == (other.indices.tolist(), other.target_tokens)


# --------------------------------------------------------------------------- reading and storing

TEXT = b"\n\nOne.\r\nTwo \xe2\x80\xa8 two.\n \t\n\nThree.\n\xff\xfe\nFour."


@pytest.mark.parametrize("pack", [bytes, lzma.compress])
def test_reading(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path, report = tmp_path / "text", Report()
    path.write_bytes(pack(TEXT))
    assert list(read_documents(path, report)) == [
        Document(("One.", "Two \u2028 two."), (3, 4)),
        Document(("Three.", "Four."), (7, 9)),
    ]
    assert [(fault.line, fault.reason) for fault in report.faults] == [(8, "not valid UTF-8")]


@pytest.mark.parametrize("text", [b"\n \n", b"\xff\n"])
def test_a_text_without_sentences_is_refused(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(text)
    with pytest.raises(DataError, match="no sentence in it"):
        list(read_documents(tmp_path / "text", Report()))


def test_storing(tmp_path: Path) -> None:
    """Ids are letters; sentences of more than four are split, on the same line."""
    given = [Document(("abc", "defghijkl", ""), (1, 2, 3)), Document(("",), (5,)), Document(("m",), (8,))]
    store = write_documents(
        tmp_path / "store", given, lambda texts: [[ord(c) - 90 for c in text] for text in texts], VOCAB, 4
    )
    rows = ["".join(chr(i + 90) for i in store.sentences[place].tolist()) for place in range(len(store.sentences))]
    assert rows == ["abc", "defg", "hijk", "l", "m"]
    assert store.bounds.tolist() == [0, 4, 5]
    assert store.lines_of(np.array([4, 1, 3, 0])) == [1, 2, 8]
    again = DocumentStore.open(tmp_path / "store")
    assert [again.lines[place].tolist() for place in range(len(again))] == [[1, 2, 2, 2], [8]]


def test_parts_of_two_stores_are_refused() -> None:
    one, other = (DocumentStore.from_lists(documents(seed, 5)) for seed in (0, 1))
    with pytest.raises(FormatError, match="sentences are stored, but the documents have"):
        DocumentStore.of(one.sentences, other.lines)


# --------------------------------------------------------------------------- passages


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("longest", [LONGEST, 60])
def test_pairs(seed: int, longest: int) -> None:
    store = DocumentStore.from_lists(documents(seed, 60))
    pairs = pairs_of(store, longest=longest)
    seen = np.zeros(len(store.sentences), np.int64)
    document = np.repeat(np.arange(len(store)), np.diff(store.bounds))
    for example in pairs.examples(epoch=3):
        (start, stop), (begin, end), follows = example
        assert start < stop
        assert document[start] == document[stop - 1]
        assert len(pairs.row(example)[0]) == pairs.length(example) <= longest
        seen[start:stop] += 1
        if follows == 1:
            assert begin == stop < end
            assert document[start] == document[end - 1]
            seen[begin:end] += 1
        elif follows == 0:
            assert begin < end
            assert document[begin] == document[end - 1] != document[start]
        else:
            assert begin == end
            assert (document == document[start]).sum() == 1
    assert seen.min() == 1  # every sentence, and few of them twice
    assert (seen > 1).sum() <= len(store)


def test_half_of_the_pairs_go_on_and_lengths_do_not_tell_which() -> None:
    store = DocumentStore.from_lists(documents(0, 3000, longest=8, most=12))
    pairs = pairs_of(store, longest=48)
    examples = [example for example in pairs.examples(0) if example.follows >= 0]
    follows = np.array([example.follows for example in examples])
    lengths = np.array([pairs.length(example) for example in examples])
    assert follows.mean() == pytest.approx(0.5, abs=0.02)
    best = max(abs((follows == (lengths < limit)).mean() - 0.5) for limit in range(4, 49))
    assert best < 0.1  # no threshold on the length guesses much better than a coin


def test_what_comes_from_elsewhere_is_drawn_among_all_sentences() -> None:
    store = DocumentStore.from_lists(documents(0, 40))
    pairs, begins = pairs_of(store), set()
    for epoch in range(60):
        begins |= {example.second[0] for example in pairs.examples(epoch) if example.follows == 0}
    assert begins == set(range(len(store.sentences)))


@pytest.mark.parametrize("seed", range(4))
def test_passages_without_pairs(seed: int) -> None:
    """Each sentence once, in order, as many per row as fit."""
    store = DocumentStore.from_lists(documents(seed, 30, longest=LONGEST - 2))
    pairs = pairs_of(store, paired=False)
    examples = pairs.examples(0)
    covered = [place for example in examples for place in range(*example.first)]
    assert covered == list(range(len(store.sentences)))
    for one, other in pairwise(examples):
        ids, front = pairs.row(one)
        assert (one.follows, front, ids[0], ids[-1]) == (-1, len(ids), SYMBOLS.first, SYMBOLS.end)
        if other.first[0] not in store.bounds:
            assert len(ids) + len(store.sentences[other.first[0]]) > LONGEST


def test_one_document_has_no_elsewhere() -> None:
    store = DocumentStore.from_lists([[[5, 6], [7]]])
    with pytest.raises(DataError, match="only one document"):
        pairs_of(store)
    assert len(pairs_of(store, paired=False).examples(0)) == 1


def test_sentences_that_are_too_long_are_refused() -> None:
    store = DocumentStore.from_lists([[[5] * 11], [[6]]])
    with pytest.raises(InputError, match="a sentence of 11 tokens for rows of 24; expected 10 at most"):
        pairs_of(store)


# --------------------------------------------------------------------------- batches


def test_a_batch_is_its_rows() -> None:
    store = DocumentStore.from_lists(documents(0, 60))
    pairs = pairs_of(store)
    batches, examples = Batches(pairs, CORRUPTION, 2, 300), pairs.examples(2)
    assert sum(len(batches[place]) for place in range(len(batches))) == len(examples)
    assert batches.largest.cells == max(batches[place].cells for place in range(len(batches)))
    by_first = {}
    for number, example in enumerate(examples):
        by_first.setdefault(example.first[0], []).append((number, example))
    for place in range(len(batches)):
        batch = batches[place]
        assert batch.cells <= 300
        assert batch.target_tokens == batch.chosen.sum()
        assert batch.source_tokens == batch.lengths.sum()
        for row, start in enumerate(batch.indices.tolist()):
            length = int(batch.lengths[row])
            ids = batch.originals[row, :length].tolist()
            (number, example), *_ = [found for found in by_first[start] if pairs.row(found[1])[0].tolist() == ids]
            front = pairs.row(example)[1]
            shown, chosen = CORRUPTION.corrupt(np.array(ids), 2, number)
            assert batch.tokens[row].tolist() == [*shown.tolist(), *[0] * (batch.tokens.shape[1] - length)]
            assert batch.chosen[row].nonzero().flatten().tolist() == chosen.nonzero()[0].tolist()
            assert batch.segments[row, :length].tolist() == [0] * front + [1] * (length - front)
            assert int(batch.follows[row]) == example.follows


def test_a_stream_goes_on_from_any_position() -> None:
    pairs = pairs_of(DocumentStore.from_lists(documents(0, 40)))
    stream, taken = MaskedStream(pairs, CORRUPTION, 300), []
    while stream.position < (2, 2):
        taken.append((stream.position, stream.take()))
    assert len({position[0] for position, _ in taken}) == 3
    for position, batch in taken:
        assert same(MaskedStream(pairs, CORRUPTION, 300, position).take(), batch)
    epochs = [[batch.tokens.tolist() for (epoch, _), batch in taken if epoch == wanted] for wanted in (0, 1)]
    assert epochs[0] != epochs[1]
    with pytest.raises(InputError, match="no batch 99"):
        MaskedStream(pairs, CORRUPTION, 300, (0, 99))


def test_parts_of_a_batch_are_its_rows() -> None:
    pairs = pairs_of(DocumentStore.from_lists(documents(0, 40)))
    batch = Batches(pairs, CORRUPTION, 0, 400)[0]
    assert same(batch.part(0, len(batch)), batch)
    middle = len(batch) // 2
    parts = [batch.part(0, middle), batch.part(middle, len(batch)).to("cpu")]
    assert sum(part.target_tokens for part in parts) == batch.target_tokens
    for part, rows in zip(parts, (slice(0, middle), slice(middle, None)), strict=True):
        width = part.tokens.shape[1]
        assert width == part.lengths.max()
        for one, other in zip(part.inputs, batch.inputs, strict=True):
            assert torch.equal(one, other[rows, :width] if other.dim() == 2 else other[rows])
