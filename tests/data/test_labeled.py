"""Labeled documents: every fault named with its line; parts of a text; nested batches of what was stored."""

from __future__ import annotations

import gzip
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multihead.data.labeled import LabeledDocument, check_labels, count_labels, labels_of, read_labeled
from multihead.data.nested import (
    DocumentStream,
    StoredDocument,
    collate_nested,
    collate_segmented,
    encode_parts,
    flatten_document,
    lengths_read,
    read_documents,
    restore_document,
)
from multihead.data.store import ParallelStore
from multihead.errors import DataError
from multihead.text.bert_words import BERT_SPECIALS, BpeWords, Symbols
from multihead.text.sentences import split_at_marks, split_paragraphs, split_sentences
from multihead.text.tokenizer import Tokenizer

SYMBOLS = Symbols(pad=0, first=2, end=3, hidden=1)

# --------------------------------------------------------------------------- files


def written(folder, content):
    path = folder / "data.tsv"
    path.write_bytes(content)
    return path


def test_labels_and_texts_come_as_they_stand(tmp_path: Path) -> None:
    content = "\ufeffgood\tOne two. Three.\r\nvery bad\t first \tsecond, “x”\ngood\t#,;\n"
    path = written(tmp_path, content.encode())
    found = read_labeled(path)
    assert found == [
        LabeledDocument(1, "good", "One two. Three."),
        LabeledDocument(2, "very bad", " first \tsecond, “x”"),
        LabeledDocument(3, "good", "#,;"),
    ]
    assert labels_of(found, path) == ("good", "very bad")
    assert count_labels(found) == {"good": 2, "very bad": 1}
    packed = tmp_path / "data.tsv.gz"
    packed.write_bytes(gzip.compress(content.encode()))
    assert read_labeled(packed) == found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"no tab here", "no tab; expected label TAB text, got 'no tab here'"),
        (b"x" * 50, r"no tab.*\.\.\.'"),
        (b"", "an empty line"),
        (b" \t ", "an empty line"),
        (b"\ttext", "not a label: it is empty"),
        (b" a\ttext", "not a label: got ' a'"),
        (b"a\x1b[1m\ttext", "not a label"),
        (b"a\t", "the text is empty"),
        (b"a\tone\t\tthree", r"paragraph 2 \(tabs end paragraphs\) is empty"),
        (b"a\tone\t", "paragraph 2 .* is empty; .*remove the tab"),
        (b"a\tcaf\xe9", "not valid UTF-8"),
    ],
)
def test_every_fault_is_named_with_its_line(tmp_path: Path, line: bytes | int, words: str) -> None:
    path = written(tmp_path, b"a\tgood text\n" + line + b"\na\tmore\n")
    with pytest.raises(DataError, match=rf"data.tsv:2: .*{words}"):
        read_labeled(path)


def test_a_table_with_commas_is_named(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("good,a text\n")
    with pytest.raises(DataError, match=r"data.csv:1: no tab; .*; a \.csv is not read: save it with tabs"):
        read_labeled(tmp_path / "data.csv")


def test_what_is_no_file_of_documents(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_labeled(tmp_path / "none.tsv")
    with pytest.raises(DataError, match="empty"):
        read_labeled(written(tmp_path, b""))
    one = read_labeled(written(tmp_path, b"a\tx\na\ty\n"))
    with pytest.raises(DataError, match="expected two labels"):
        labels_of(one, "data.tsv")
    with pytest.raises(DataError, match=r"data.tsv:1: 'a' is not a label .*did you mean 'aa'"):
        check_labels(one, ["aa", "b"], "data.tsv")


# --------------------------------------------------------------------------- parts of a text


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One. Two! Three? four", [["One.", "Two!", "Three? four"]]),
        (
            "He said “Stop.” Then he left (at 3.5 p.m. or so.) Fine",
            [["He said “Stop.”", "Then he left (at 3.5 p.m. or so.)", "Fine"]],
        ),
        ("我来了。你好吗？“好。”再见", [["我来了。", "你好吗？", "“好。”", "再见"]]),
        ("Wait... What?! 5. No", [["Wait...", "What?!", "5.", "No"]]),
        ("First. Second.\tThird.", [["First.", "Second."], ["Third."]]),
        ("  one  ", [["one"]]),
        (" \t ", []),
        ("", []),
        ("...", [["..."]]),
    ],
)
def test_sentences_end_at_marks(text: str, parts: list[list[str]] | list[Any]) -> None:
    assert split_paragraphs(text, split_at_marks) == parts


def test_nothing_of_a_text_is_lost_but_white_space() -> None:
    draw = random.Random(0)
    for _ in range(300):
        text = "".join(draw.choices("aB.!? …。”)\t", k=draw.randint(0, 25)))
        joined = "".join(sentence for paragraph in split_paragraphs(text, split_sentences) for sentence in paragraph)
        assert "".join(joined.split()) == "".join(text.split())


def test_a_separator_is_the_only_one() -> None:
    assert split_paragraphs("One. Two || three||\t|| four", lambda text: text.split("||")) == [
        ["One. Two", "three"],
        ["four"],
    ]


# --------------------------------------------------------------------------- numbers


def test_long_sentences_become_several_between_words() -> None:
    texts = ["aa bb cc dd", "Extraordinarily so", "“Ünïcödé” 😀😀 here."]
    words = BpeWords(Tokenizer.learn(["aa bb cc dd here"] * 3, 300, specials=BERT_SPECIALS))
    for most in (1, 2, 3, 5, 8, 30, 100):
        (pieces,) = encode_parts([texts], words, most)
        ids = words.encode(texts)
        assert [token for piece in pieces for token in piece] == [token for own in ids for token in own]
        assert all(0 < len(piece) <= most for piece in pieces)
        starts = {sum(map(len, ids[:place])) for place in range(4)}
        flat, start = [token for own in ids for token in own], 0
        for piece in pieces:
            start += len(piece)
            inside = any(words.begins_word[token] for token in piece[1:])
            assert start in starts or words.begins_word[flat[start]] or not inside  # else there was no place to cut
    assert encode_parts([["aa bb", "cc"], ["dd"]], words, 1) == [
        [[token] for text in ("aa bb", "cc") for token in words.encode([text])[0]],
        [words.encode(["dd"])[0]],
    ]


def test_a_hidden_word_is_its_symbol() -> None:
    words = BpeWords(Tokenizer.learn(["aa bb cc"] * 3, 300, specials=BERT_SPECIALS))
    ((ids,),) = encode_parts([["aa bb cc"]], words, 64)
    expected = [ids[0], words.symbols.hidden, ids[2]]
    assert len(ids) == 3
    assert encode_parts([["aa [MASK] cc", "bb"]], words, 64) == [[expected, [ids[1]]]]


def drawn(draw):
    return [
        [[draw.randint(4, 50) for _ in range(draw.randint(1, 5))] for _ in range(draw.randint(1, 4))]
        for _ in range(draw.randint(1, 3))
    ]


@pytest.fixture
def some() -> list[StoredDocument]:
    draw = random.Random(3)
    return [StoredDocument(draw.randrange(4), drawn(draw)) for _ in range(12)]


def test_what_is_stored_comes_back(some: list[StoredDocument]) -> None:
    sources, targets = zip(*(flatten_document(*document) for document in some), strict=True)
    assert [restore_document(*pair) for pair in zip(sources, targets, strict=True)] == some
    store = ParallelStore.from_lists(sources, targets)
    assert read_documents(store, np.array([5, 0])) == [some[5], some[0]]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_batch_says_what_the_documents_say(some: list[StoredDocument], depth: int) -> None:
    batch = collate_nested(some, depth, padding_id=0)
    assert batch.tokens.dim() == depth + 1
    assert batch.labels.tolist() == [document.label for document in some]
    for row, (_, parts) in enumerate(some):
        paragraphs = parts if depth == 3 else [[ids for paragraph in parts for ids in paragraph]]
        if depth == 1:
            paragraphs = [[[token for ids in paragraphs[0] for token in ids]]]
        tokens, lengths = batch.tokens[row], batch.lengths[row]
        tokens, lengths = (x.reshape(*[1] * (3 - depth), *x.shape) for x in (tokens, lengths))
        for p, s in np.ndindex(*lengths.shape):
            there = p < len(paragraphs) and s < len(paragraphs[p])
            expected = paragraphs[p][s] if there else []
            assert tokens[p, s, : lengths[p, s]].tolist() == expected
            assert not tokens[p, s, lengths[p, s] :].any()
    assert batch.source_tokens == sum(len(flatten_document(*document)[0]) for document in some)


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_parts_of_a_batch_are_batches_of_parts(some: list[StoredDocument], depth: int) -> None:
    made = (lambda d: collate_segmented(d, 30, SYMBOLS)) if depth == 0 else (lambda d: collate_nested(d, depth, 0))
    batch = made(some)
    for start, stop in pairwise([0, 1, 5, 12]):
        part, alone = batch.part(start, stop), made(some[start:stop])
        assert len(part) == part.target_tokens == stop - start
        assert part.indices.tolist() == list(range(start, stop))
        for one, other in zip(part.inputs, alone.inputs, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("most", [8, 9, 12, 100])
def test_a_row_of_a_bert_is_cut_where_it_is_longest(some: list[StoredDocument], most: int) -> None:
    batch = collate_segmented(some, most, SYMBOLS)
    for row, (_, parts) in enumerate(some):
        first, *others = [[token for ids in paragraph for token in ids] for paragraph in parts]
        second = [token for ids in others for token in ids]
        length = int(batch.lengths[row])
        ids, segments = batch.tokens[row, :length].tolist(), batch.segments[row, :length].tolist()
        assert length <= most
        ends = [place for place, token in enumerate(ids) if token == SYMBOLS.end]
        assert ids[0] == SYMBOLS.first
        kept = ids[1 : ends[0]], ids[ends[0] + 1 : -1]
        assert segments == [0] * (ends[0] + 1) + [1] * (length - ends[0] - 1)
        assert (kept[0], kept[1]) == (first[: len(kept[0])], second[: len(kept[1])])
        room = most - 2 - bool(second)
        assert len(kept[0]) + len(kept[1]) == min(len(first) + len(second), room)
        for own, all_, other in ((kept[0], first, kept[1]), (kept[1], second, kept[0])):
            assert len(own) == len(all_) or len(own) >= len(other) - 1  # only the longer one loses


@pytest.mark.parametrize("most", [8, 9, 12, 100])
def test_what_a_row_of_a_bert_holds_is_counted_without_making_it(some: list[StoredDocument], most: int) -> None:
    store = ParallelStore.from_lists(*zip(*(flatten_document(*document) for document in some), strict=True))
    symbols = [3 if len(document.parts) > 1 else 2 for document in some]
    held = collate_segmented(some, most, SYMBOLS).lengths - torch.tensor(symbols)
    assert lengths_read(store, most).tolist() == held.tolist()


def test_what_a_bert_does_not_read_does_not_change_its_batches() -> None:
    """Documents that differ beyond the end of their rows only."""
    draw = random.Random(3)
    lengths = [draw.randint(1, 30) for _ in range(40)]

    def batches(longer: int) -> list[list[int]]:
        documents = [StoredDocument(0, [[[5] * (length if length < 14 else longer)]]) for length in lengths]
        store = ParallelStore.from_lists(*zip(*(flatten_document(*document) for document in documents), strict=True))
        stream = DocumentStream(
            store, 64, 7, lambda some, indices: collate_segmented(some, 16, SYMBOLS, indices), most=16
        )
        return [stream.take().indices.tolist() for _ in range(stream.batches_in_epoch)]

    assert batches(14) == batches(3000)


def test_a_stream_that_goes_on_gives_what_it_would_have_given(some: list[StoredDocument]) -> None:
    store = ParallelStore.from_lists(*zip(*(flatten_document(*document) for document in some), strict=True))

    def made(position=(0, 0)):
        return DocumentStream(
            store, 60, 7, lambda documents, indices: collate_nested(documents, 2, 0, indices), position
        )

    stream = made()
    batches = [stream.take() for _ in range(3 * stream.batches_in_epoch)]
    first = [i for batch in batches[: made().batches_in_epoch] for i in batch.indices.tolist()]
    assert sorted(first) == list(range(len(some)))
    again = made()
    for _ in range(4):
        again.take()
    resumed = made(again.position)
    for batch in batches[4:6]:
        found = resumed.take()
        assert found.indices.tolist() == batch.indices.tolist()
        assert all(torch.equal(*pair) for pair in zip(found.inputs, batch.inputs, strict=True))
        assert batch.labels.tolist() == [some[i].label for i in batch.indices]
