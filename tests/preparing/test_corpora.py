"""Several corpora: one store with a share for each, validation from all, messages with file names."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multihead.errors import ConfigurationError, DataError
from multihead.planning.settings import Choices, PrepareSettings
from multihead.preparing import shards, subwords
from multihead.preparing.corpora import apportion, scan_files
from multihead.preparing.prepare import write_data
from multihead.training.context import RunContext

if TYPE_CHECKING:
    from tests.conftest import Numbers


def prepared(folder, said=None, **wishes):
    folder.mkdir(exist_ok=True)
    settings = PrepareSettings(**{"vocab_size": 320, **wishes})
    return write_data(
        Choices(settings), scan_files(settings), folder, RunContext(say=(said if said is not None else []).append)
    )


def corpus(files, **more):
    return {**files, **more}


def texts(prepared, part="train"):
    store = getattr(prepared, part)
    sides = ((store.source, prepared.source_tokenizer), (store.target, prepared.target_tokenizer))
    return list(zip(*([t.decode(s[i].tolist()) for i in range(len(s))] for s, t in sides), strict=True))


@pytest.fixture
def two(tmp_path: Path, numbers: Numbers) -> list[tuple[dict[str, Path], list[tuple[str, str]]]]:
    """Two corpora without equal lines."""
    found = []
    for name, count in (("large", 90), ("small", 20)):
        pairs = [
            (f"{source} {name} {n}", f"{target} {n}") for n, (source, target) in enumerate(numbers.pairs(count, 3))
        ]
        found.append((numbers.write(tmp_path, name, pairs), pairs))
    return found


# ------------------------------------------------------------------------------------------ one store


def test_corpora_stand_one_after_the_other_in_the_store(two, tmp_path):
    (large, first), (small, second) = two
    found = prepared(tmp_path / "run", corpus=[corpus(large, weight=0.5), corpus(small, weight=2)], held_out=10)
    shares = found.shares
    assert [(share.start, share.weight) for share in shares] == [(0, 0.5), (shares[0].stop, 2.0)]
    assert shares[1].stop == len(found.train) == found.config.pairs == 100
    kept, held = texts(found), list(zip(found.valid_sources, found.valid_targets, strict=True))
    for pairs, share, record in (
        (first, shares[0], found.config.corpora[0]),
        (second, shares[1], found.config.corpora[1]),
    ):
        mine = kept[share.start : share.stop]
        assert sorted(mine + [pair for pair in held if pair in pairs]) == sorted(pairs)
        assert (record.pairs, record.weight) == (share.stop - share.start, share.weight)
        assert record.held_out == len(pairs) - len(mine)


def test_validation_is_made_up_like_an_epoch(two, tmp_path):
    """90 pairs of weight 0.5 and 20 of weight 2: 45 and 40 of 85."""
    (large, _), (small, _) = two
    found = prepared(tmp_path / "run", corpus=[corpus(large, weight=0.5), corpus(small, weight=2)], held_out=17)
    assert [record.held_out for record in found.config.corpora] == [9, 8]
    assert found.config.held_out == len(found.valid) == 17


def test_one_corpus_is_the_pair_of_files(two, tmp_path, numbers):
    (large, _), _ = two
    one = prepared(tmp_path / "one", **large)
    other = prepared(tmp_path / "other", corpus=[corpus(large)])
    assert numbers.contents(tmp_path / "one") == numbers.contents(tmp_path / "other")
    assert one.config == other.config
    assert one.shares == ()


def test_equal_weights_are_no_shares(two, tmp_path):
    """With equal weights all pairs are mixed like those of one corpus."""
    (large, _), (small, _) = two
    assert prepared(tmp_path / "run", corpus=[corpus(large), corpus(small)]).shares == ()


def test_doing_it_again_gives_the_same_bytes(two, tmp_path, numbers):
    (large, _), (small, _) = two
    for name in ("one", "two"):
        prepared(tmp_path / name, corpus=[corpus(small), corpus(large, weight=0.1)], held_out=9)
    assert numbers.contents(tmp_path / "one") == numbers.contents(tmp_path / "two")


def test_a_corpus_of_which_nothing_can_be_used_for_its_length(two, tmp_path, numbers):
    """A corpus without usable pairs has no share; the others are trained on."""
    (large, _), _ = two
    long = numbers.write(tmp_path, "long", [("eins " * 60, "one " * 60)] * 4)
    found = prepared(tmp_path / "run", corpus=[corpus(long, weight=3), corpus(large)], held_out=1, max_tokens=40)
    assert [(record.pairs, record.left_out) for record in found.config.corpora] in (
        [(0, 3), (90, 0)],
        [(0, 4), (89, 0)],
    )
    assert [(share.start, share.stop) for share in found.shares] == [(0, len(found.train))]


def test_of_very_many_pairs_a_part_is_enough_for_the_vocabulary(two, tmp_path, monkeypatch):
    monkeypatch.setattr(subwords, "_SAMPLE", 40)
    (large, _), (small, _) = two
    said = []
    prepared(tmp_path / "run", said, corpus=[corpus(large), corpus(small, weight=9)], held_out=2)
    pairs = int(said[0].removeprefix("learning a vocabulary of 320 subwords from ").removesuffix(" pairs"))
    assert 38 <= pairs <= 40  # of the 40, only the 2 held-out pairs may be missing


def test_the_size_of_a_shard_changes_nothing(two, tmp_path, monkeypatch, numbers):
    (large, _), (small, _) = two
    for name, size in (("one", 10_000), ("two", 7)):
        monkeypatch.setattr(shards, "SHARD", size)
        prepared(tmp_path / name, corpus=[corpus(large), corpus(small)], held_out=5, max_tokens=12)
    assert numbers.contents(tmp_path / "one") == numbers.contents(tmp_path / "two")


# ------------------------------------------------------------------------------------------ files of pairs


@pytest.mark.parametrize("form", ["tsv", "jsonl", "tsv.gz", "tmx"])
def test_a_file_of_pairs_is_as_good_as_two_files(two, tmp_path, form):
    (large, pairs), _ = two
    path = tmp_path / f"pairs.{form}"
    if form == "tmx":
        units = "".join(
            f'<tu><tuv xml:lang="de"><seg>{a}</seg></tuv><tuv xml:lang="en"><seg>{b}</seg></tuv></tu>\n'
            for a, b in pairs
        )
        path.write_text(f'<tmx version="1.4"><header srclang="de"/><body>{units}</body></tmx>', encoding="utf-8")
    elif form == "jsonl":
        path.write_text("".join(json.dumps({"de": a, "en": b}) + "\n" for a, b in pairs), encoding="utf-8")
    else:
        content = "".join(f"{a}\t{b}\n" for a, b in pairs).encode()
        path.write_bytes(gzip.compress(content) if form.endswith("gz") else content)
    codes = {"source_language": "de", "target_language": "en"} if form == "jsonl" else {}
    one, other = prepared(tmp_path / "one", **large), prepared(tmp_path / "other", source=path, **codes)
    assert texts(one) == texts(other)
    assert (one.valid_sources, one.valid_targets) == (other.valid_sources, other.valid_targets)
    assert one.source_tokenizer.digest == other.source_tokenizer.digest
    assert [file.path for file in other.config.corpora[0].files] == [str(path)]
    if form == "tmx":
        assert (other.config.source_language, other.config.target_language) == ("de", "en")


def test_validation_pairs_in_one_file(two, tmp_path, numbers):
    (large, _), _ = two
    path = tmp_path / "valid.tsv"
    path.write_text("eins\tone\nzwei\ttwo\n", encoding="utf-8")
    found = prepared(tmp_path / "run", valid_source=path, **large)
    assert (found.valid_sources, found.valid_targets) == (["eins", "zwei"], ["one", "two"])
    with pytest.raises(ValueError, match="validation needs both sides, or a file of pairs"):
        PrepareSettings(valid_source="valid.de")


def test_a_source_alone_has_to_hold_pairs(two):
    (large, _), _ = two
    with pytest.raises(ConfigurationError, match=r"target missing .* or a file of pairs: --source FILE\.tsv"):
        scan_files(PrepareSettings(source=large["source"]))
    with pytest.raises(DataError, match="not an ending of files of pairs"):
        scan_files(PrepareSettings(corpus=[{"source": large["source"]}]))


# ------------------------------------------------------------------------------------------ left out


def test_what_is_left_out_is_counted_and_named_for_each_corpus_and_reason(two, tmp_path, numbers):
    (large, _), _ = two
    odd = numbers.write(tmp_path, "odd", [("", "one"), ("9", "9"), ("eins " * 100, "one " * 100), ("drei", "")])
    said = []
    wishes = {"corpus": [corpus(large), corpus(odd)], "min_tokens": 3, "max_tokens": 80, **numbers.valid}
    found = prepared(tmp_path / "run", said, **wishes)
    rows = [row.split("\t") for row in (tmp_path / "run" / "left-out.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    reasons = {(row[0], row[1]): row[2] for row in rows}
    source, target = str(odd["source"]), str(odd["target"])
    assert reasons == {
        (source, "1"): "empty or only white space",
        (source, "2"): "fewer than 3 subwords",
        (source, "3"): "more than 80 subwords",
        (target, "4"): "empty or only white space",
    }
    assert [record.left_out for record in found.config.corpora] == [0, 4]
    assert (found.config.corpora[1].pairs, found.config.left_out) == (0, 4)
    text = "\n".join(said)
    assert "4 pairs left out" in text
    for place in (f"{source}:1", f"{source}:2", f"{source}:3", f"{target}:4"):
        assert place in text


# ------------------------------------------------------------------------------------------ how it is divided

PARTS = st.lists(st.tuples(st.floats(0.01, 1e6), st.integers(0, 1000)), min_size=1, max_size=6)


@given(parts=PARTS, draw=st.data())
def test_apportioning(parts, draw):
    """The parts add up, none exceeds its limit, and without limits each is within 1 of its exact share."""
    shares, limits = [share for share, _ in parts], [limit for _, limit in parts]
    total = draw.draw(st.integers(0, sum(limits)))
    found = apportion(total, shares, limits)
    assert sum(found) == total
    assert all(0 <= part <= limit for part, limit in zip(found, limits, strict=True))
    due = [total * share / sum(shares) for share in shares]
    if all(limit >= part + 1 for limit, part in zip(limits, due, strict=True)):
        assert all(abs(part - wanted) < 1 + 1e-6 for part, wanted in zip(found, due, strict=True))


def test_apportioning_among_many_files_takes_time_for_each_once():
    class Counted(list):
        read = 0

        def __getitem__(self, place):
            Counted.read += 1
            return super().__getitem__(place)

    assert sum(apportion(1000, Counted([1.5] * 500), [10] * 500)) == 1000
    assert Counted.read <= 4 * 500


def test_apportioning_by_hand():
    assert apportion(17, [45, 40], [89, 19]) == [9, 8]
    assert apportion(10, [1, 1, 1], [100, 2, 100]) == [4, 2, 4]
    assert apportion(5, [7], [5]) == [5]
    assert apportion(3, [1, 1], [3, 3]) == [2, 1]
