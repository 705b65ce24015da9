"""Training batches: corpus weights and BPE-dropout, independent of the rest of a batch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from multihead.data import block_order, order
from multihead.planning.settings import Choices, PrepareSettings
from multihead.preparing.corpora import scan_files
from multihead.preparing.prepare import prepare, write_data
from multihead.preparing.prepared import PreparedText, Resegmentation
from multihead.text.segment import Segmenter
from multihead.training.config import TrainingConfig
from multihead.training.context import RunContext

if TYPE_CHECKING:
    from tests.conftest import Numbers


@pytest.fixture(scope="module")
def prepared(numbers: Numbers, tmp_path_factory: pytest.TempPathFactory) -> PreparedText:
    folder = tmp_path_factory.mktemp("batches")
    corpora = [{**numbers.train, "weight": 0.25}, {**numbers.test, "weight": 3.0}]
    choices = Choices(PrepareSettings(corpus=corpora, vocab_size=320, shared_vocabulary=False, **numbers.valid))
    return write_data(choices, scan_files(choices.settings), folder, RunContext(say=lambda _: None))


def config(**changes):
    return TrainingConfig(**{"updates": 1, "batch_tokens": 512, "seed": 3, "bpe_dropout": 0.4, **changes})


def rows(batch, side):
    """The ids of each pair of a batch, without the end symbol and padding."""
    ids = batch.source if side == 0 else batch.target_output
    lengths = batch.source_lengths if side == 0 else batch.target_lengths
    return {int(pair): ids[row, : lengths[row] - 1].tolist() for row, pair in enumerate(batch.indices)}


def test_each_side_has_its_subwords_and_each_pair_its_random_numbers(prepared):
    cut = Resegmentation(prepared, config())
    tokenizers = (prepared.source_tokenizer, prepared.target_tokenizer)
    stores = (prepared.train.source, prepared.train.target)
    for side, (tokenizer, store) in enumerate(zip(tokenizers, stores, strict=True)):
        pairs = [5, 600, 17]
        ids = [store[pair].tolist() for pair in pairs]
        found = cut(side, ids, pairs, 2)
        assert found == Segmenter(tokenizer, 0.4, 3).segment(ids, pairs, 2, side)
        assert [tokenizer.decode(new) for new in found] == [tokenizer.decode(old) for old in ids]
        assert cut(side, ids[1:2], pairs[1:2], 2) == found[1:2]


def test_every_batch_says_what_the_store_says_in_other_subwords(prepared):
    plain, cut = (prepared.batches(config(bpe_dropout=p), (0, 0)) for p in (0.0, 0.4))
    changed = 0
    for stream in (plain, cut):
        for _ in range(stream.batches_in_epoch):
            batch = stream.take()
            for side, tokenizer in enumerate((prepared.source_tokenizer, prepared.target_tokenizer)):
                store = (prepared.train.source, prepared.train.target)[side]
                for pair, ids in rows(batch, side).items():
                    assert tokenizer.decode(ids) == tokenizer.decode(store[pair].tolist())
                    changed += ids != store[pair].tolist()
        assert (changed > 0) is (stream is cut)


def test_with_teachers_the_source_alone_is_cut_anew(prepared):
    """What teachers predict belongs to the target's subwords as they are stored."""
    plain, taught = (config(teacher_weight=weight) for weight in (0.0, 0.5))
    free, bound = (Resegmentation(prepared, each) for each in (plain, taught))
    pairs = list(range(40))
    for side, store in enumerate((prepared.train.source, prepared.train.target)):
        ids = [store[pair].tolist() for pair in pairs]
        assert free(side, ids, pairs, 1) != ids
        assert bound(side, ids, pairs, 1) == (free(side, ids, pairs, 1) if side == 0 else ids)
    stream, changed = prepared.batches(taught, (0, 0)), 0
    for _ in range(stream.batches_in_epoch):
        batch = stream.take()
        changed += sum(ids != prepared.train.source[pair].tolist() for pair, ids in rows(batch, 0).items())
        assert all(ids == prepared.train.target[pair].tolist() for pair, ids in rows(batch, 1).items())
    assert changed > 0


def test_an_epoch_sees_each_corpus_as_often_as_it_weighs(prepared):
    stream = prepared.batches(config(bpe_dropout=0.0), (0, 0))
    seen = np.concatenate([stream.take().indices for _ in range(stream.batches_in_epoch)])
    first, second = prepared.config.corpora
    counts = np.bincount(seen, minlength=len(prepared.train))
    assert counts[: first.pairs].sum() == first.pairs // 4
    assert set(counts[: first.pairs]) == {0, 1}
    assert set(counts[first.pairs :]) == {3}
    assert len(counts) == first.pairs + second.pairs


def test_pairs_are_named_by_file_and_line(numbers, tmp_path):
    """With two corpora, the first of which has an unusable line, each line number leads to the text of the pair."""
    pairs = {name: numbers.pairs(count, count) for name, count in (("many", 40), ("few", 15))}
    pairs["many"][3] = ("", "empty")
    corpora = [numbers.write(tmp_path, name, found) for name, found in pairs.items()]
    output = tmp_path / "prepared"
    prepared = prepare(output=output, corpus=corpora, vocab_size=320, held_out=5, say=lambda _: None)
    found = prepared.lines(np.arange(len(prepared.train)))
    names = {name: f"{corpus['source']} + {corpus['target']}" for name, corpus in zip(pairs, corpora, strict=True)}
    assert [*found] == [*names.values()]
    assert 4 not in found[names["many"]]
    assert sum(map(len, found.values())) == len(prepared.train)
    for index in range(len(prepared.train)):
        ((name, (line,)),) = prepared.lines(np.array([index])).items()
        own = next(key for key, value in names.items() if value == name)
        ids = prepared.train.source[index].tolist()
        assert prepared.source_tokenizer.decode(ids) == pairs[own][line - 1][0]


def test_the_largest_batches_are_the_largest_of_the_epoch(numbers, tmp_path):
    output = tmp_path / "prepared"
    prepared = prepare(output=output, **numbers.train, vocab_size=320, held_out=5, say=lambda _: None)
    training = TrainingConfig(updates=1, batch_tokens=256)
    stream = prepared.batches(training, (0, 0))
    batches = [stream.take() for _ in range(stream.batches_in_epoch)]
    found = prepared.largest(training)

    def size(batch, power):
        rows, widths = len(batch.source_lengths), (batch.source.shape[1], batch.target_output.shape[1])
        return sum(rows * width**power for width in widths)

    for power in (1, 2):
        assert max(size(batch, power) for batch in found) == max(size(batch, power) for batch in batches)


def test_much_text_is_ordered_in_blocks_and_a_run_of_it_resumes_exactly(numbers, tmp_path, monkeypatch):
    text = {**numbers.train, "vocab_size": 320, "say": lambda _: None}
    whole = prepare(output=tmp_path / "whole", **text)
    monkeypatch.setattr(order, "MOST_WHOLE", 500)
    monkeypatch.setattr(block_order, "POOL", 256)
    monkeypatch.setattr(block_order, "BLOCK", 16)
    blocks = prepare(output=tmp_path / "blocks", **text)
    assert numbers.contents(tmp_path / "blocks" / "data") == numbers.contents(tmp_path / "whole" / "data")
    said = [json.loads((tmp_path / name / "prepared.json").read_text())["data"] for name in ("whole", "blocks")]
    assert [data.pop("order", None) for data in said] == [None, "blocks"]
    assert said[0] == said[1]
    assert (whole.config.order, blocks.config.order) == ("whole", "blocks")
    stream, taken = blocks.batches(config(), (0, 0)), []
    while stream.position < (2, 0):
        taken.append((stream.position, stream.take().indices.tolist()))
    for start in (1, len(taken) // 2, len(taken) - 2):
        resumed = blocks.batches(config(), taken[start][0])
        assert [(resumed.position, resumed.take().indices.tolist()) for _ in taken[start:]] == taken[start:]
    seen = sorted(pair for (epoch, _), batch in taken if epoch == 0 for pair in batch)
    assert seen == list(range(len(blocks.train)))
    pairs_of_tokens = [[len(b) * b.source.shape[1] ** 2 for b in text.largest(config())] for text in (blocks, whole)]
    assert max(pairs_of_tokens[0]) >= max(pairs_of_tokens[1])
