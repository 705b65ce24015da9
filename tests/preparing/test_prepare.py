"""Preparing text: which pairs train, which validate, and which are left out and reported."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from multihead.data.corpus import Report
from multihead.errors import ConfigurationError, DataError, FormatError, InputError
from multihead.planning import choices as choices_module
from multihead.planning.settings import Choices, PrepareSettings
from multihead.preparing.corpora import file_records, scan_files
from multihead.preparing.prepare import _report_left_out, write_data
from multihead.preparing.prepared import open_prepared
from multihead.text.tokenizer import Tokenizer
from multihead.text.vocabulary import Specials
from multihead.training.context import RunContext

if TYPE_CHECKING:
    from tests.conftest import Numbers


def prepared(folder, said=None, **wishes):
    """The prepared text and the choices with their reasons."""
    folder.mkdir(exist_ok=True)
    settings = PrepareSettings(**{"vocab_size": 320, **wishes})
    choices = Choices(settings)
    return write_data(
        choices, scan_files(settings), folder, RunContext(say=(said if said is not None else []).append)
    ), choices


def texts(store, tokenizer):
    return [tokenizer.decode(store[index].tolist()) for index in range(len(store))]


def pairs_of(prepared, part):
    store = getattr(prepared, part)
    sources = texts(store.source, prepared.source_tokenizer)
    return list(zip(store.lines.tolist(), sources, texts(store.target, prepared.target_tokenizer), strict=True))


def left_out(folder):
    rows = (folder / "left-out.tsv").read_text(encoding="utf-8").splitlines()
    assert rows[0] == "file\tline\treason\tdetail"
    return [row.split("\t") for row in rows[1:]]


# ------------------------------------------------------------------------------------------ held out


@pytest.fixture
def unique(tmp_path: Path, numbers: Numbers) -> tuple[dict[str, Path], list[tuple[str, str]]]:
    """200 pairs without equal lines."""
    pairs = [(f"{source} {n}", f"{target} {n}") for n, (source, target) in enumerate(numbers.pairs(200, 3))]
    return numbers.write(tmp_path, "unique", pairs), pairs


def test_every_pair_either_trains_or_validates(unique, tmp_path):
    files, pairs = unique
    found, choices = prepared(tmp_path / "run", held_out=30, **files)
    train, valid = pairs_of(found, "train"), pairs_of(found, "valid")
    assert (len(train), len(valid)) == (170, 30)
    assert not {line for line, *_ in train} & {line for line, *_ in valid}
    assert sorted(train + valid) == [(line, *pair) for line, pair in enumerate(pairs, start=1)]
    assert (found.config.pairs, found.config.held_out, found.config.left_out) == (170, 30, 0)
    assert choices.reasons["held_out"] == "as asked"


def test_held_out_text_is_that_of_the_lines(unique, tmp_path):
    files, pairs = unique
    found, _ = prepared(tmp_path / "run", held_out=30, **files)
    lines = found.valid.lines.tolist()
    assert found.valid_sources == [pairs[line - 1][0] for line in lines]
    assert found.valid_targets == [pairs[line - 1][1] for line in lines]


def test_the_vocabulary_is_learned_without_what_is_held_out(tmp_path, numbers):
    """A word that occurs only in a held-out line is spelled out."""
    pairs = numbers.pairs(50, 1)
    files = numbers.write(tmp_path, "a", pairs)
    first, _ = prepared(tmp_path / "first", held_out=1, **files)
    (line,) = first.valid.lines.tolist()
    marked = [*pairs[: line - 1], ("xylophonxylophon " * 9, "xylophonxylophon " * 9), *pairs[line:]]
    second, _ = prepared(tmp_path / "second", held_out=1, **numbers.write(tmp_path, "b", marked))
    assert second.valid.lines.tolist() == [line]
    assert second.source_tokenizer.digest == first.source_tokenizer.digest


def test_what_is_held_out_depends_on_the_seed_alone(unique, tmp_path):
    files, _ = unique
    lines = [
        prepared(tmp_path / str(run), held_out=20, seed=seed, **files)[0].valid.lines.tolist()
        for run, seed in enumerate((1, 1, 2))
    ]
    assert lines[0] == lines[1] != lines[2]


@pytest.mark.parametrize(("count", "expected"), [(2, 1), (60, 1), (250, 5)])
def test_how_much_is_held_out_and_why_is_said(tmp_path, numbers, count, expected):
    found, choices = prepared(tmp_path / "run", **numbers.write(tmp_path, "a", numbers.pairs(count, 1)))
    assert found.config.held_out == len(found.valid) == expected
    assert choices.reasons["held_out"] == f"no validation files: {expected} of {count} pairs are kept apart"


@pytest.mark.parametrize(("count", "wishes"), [(1, {}), (5, {"held_out": 5}), (5, {"held_out": 600})])
def test_something_must_be_left_to_train_on(tmp_path, numbers, count, wishes):
    with pytest.raises(DataError, match=r"nothing would be left to train on.*validation files") as caught:
        prepared(tmp_path / "run", **wishes, **numbers.write(tmp_path, "a", numbers.pairs(count, 1)))
    assert caught.value.path == tmp_path / "a.de"


def test_empty_lines_are_not_held_out(tmp_path, numbers):
    pairs = [("", ""), ("eins", "one"), ("  ", "two"), ("drei", "three"), ("vier", "four")] * 5
    found, _ = prepared(tmp_path / "run", held_out=14, **numbers.write(tmp_path, "a", pairs))
    assert len(found.train) == 1
    assert all(
        source.strip() and target.strip()
        for source, target in zip(found.valid_sources, found.valid_targets, strict=True)
    )


# ------------------------------------------------------------------------------------------ validation files


def test_validation_files_are_used_whole(tmp_path, numbers):
    """Too long pairs stay in the validation set."""
    long = [("eins " * 50, "one " * 50)]
    valid = numbers.write(tmp_path, "valid", numbers.pairs(20, 5) + long)
    names = {f"valid_{side}": path for side, path in valid.items()}
    found, choices = prepared(tmp_path / "run", max_tokens=10, **numbers.train, **names)
    assert len(found.valid) == len(found.valid_sources) == 21
    assert [(source, target) for _, source, target in pairs_of(found, "valid")] == numbers.pairs(20, 5) + long
    assert found.config.held_out == 0
    assert choices.reasons["held_out"] == "there are validation files"
    assert [file.path for file in found.config.valid.files] == [str(path) for path in names.values()]
    assert (found.config.valid.pairs, found.config.valid.left_out) == (21, 0)


def test_validation_text_is_kept_as_it_is(tmp_path, numbers):
    odd = [("eins \u2028 zwei", "one\x0ctwo"), ("  drei\t", "three \u2581"), ("a\rb", "\0c"), ("\ufeffd", "e\x85")]
    valid = numbers.write(tmp_path, "valid", odd)
    found, _ = prepared(tmp_path / "run", **numbers.train, **{f"valid_{side}": path for side, path in valid.items()})
    assert list(zip(found.valid_sources, found.valid_targets, strict=True)) == odd
    again = open_prepared(tmp_path / "run", found.config)
    assert (again.valid_sources, again.valid_targets) == (found.valid_sources, found.valid_targets)


# ------------------------------------------------------------------------------------------ left out


def test_every_pair_that_is_left_out_is_named_with_its_reason(tmp_path, numbers):
    pairs = [*numbers.pairs(120, 1), ("eins " * 30, "one"), ("zwei", "two " * 40), ("", "three"), ("vier", " \t")]
    files = numbers.write(tmp_path, "a", pairs)
    with files["source"].open("ab") as stream, files["target"].open("ab") as other:
        stream.write(b"f\xfcnf\n")
        other.write(b"five\n")
    said = []
    found, _ = prepared(tmp_path / "run", said, max_tokens=25, **files, **numbers.valid)
    rows = {int(row[1]): (row[0], *row[2:]) for row in left_out(tmp_path / "run")}
    source, target = str(files["source"]), str(files["target"])
    assert rows[121][:2] == (source, "more than 25 subwords")
    assert int(rows[121][2]) > 25
    assert rows[122][:2] == (target, "more than 25 subwords")
    assert rows[123][:2] == (source, "empty or only white space")
    assert rows[124][:2] == (target, "empty or only white space")
    assert rows[125][:2] == (source, "not valid UTF-8")
    assert "0xfc" in rows[125][2]
    assert sorted(rows) == [121, 122, 123, 124, 125] or set(rows) == {*range(121, 126)} - set(
        found.valid.lines.tolist()
    )
    assert found.config.left_out == len(rows)
    assert found.config.pairs + found.config.held_out + found.config.left_out == len(pairs) + 1
    text = "\n".join(said)
    assert f"{len(rows)} pairs left out" in text
    assert f"{source}:125: not valid UTF-8" in text


def test_every_fault_has_one_row_of_four_cells(tmp_path):
    report = Report()
    report.add(tmp_path / "a.po", 3, "not gettext's syntax", "a\tb\nc\r\nd")
    _report_left_out(tmp_path, [report], lambda _: None)
    assert left_out(tmp_path) == [[str(tmp_path / "a.po"), "3", "not gettext's syntax", "a b c d"]]


def test_nothing_is_said_where_nothing_is_left_out(tmp_path, numbers):
    said = []
    prepared(tmp_path / "run", said, **numbers.train)
    assert left_out(tmp_path / "run") == []
    assert len(said) == 1
    assert "vocabulary" in said[0]


def test_a_list_that_is_cut_says_so(tmp_path, numbers):
    pairs = [*numbers.pairs(20, 1), *[("", "")] * 10_007]
    prepared(tmp_path / "run", held_out=2, **numbers.write(tmp_path, "a", pairs))
    rows = left_out(tmp_path / "run")
    assert len(rows) == 10_001
    assert rows[-1] == ["", "", "and 7 more", ""]


def test_where_all_pairs_are_too_long(tmp_path, numbers):
    files = numbers.write(tmp_path, "a", [("eins zwei drei", "one two three")] * 20)
    with pytest.raises(DataError, match=r"no training pair is left.*more than 2 subwords"):
        prepared(tmp_path / "run", max_tokens=2, **files)


# ------------------------------------------------------------------------------------------ what is written


def test_a_pair_that_is_too_long_for_any_vocabulary_teaches_none(tmp_path, numbers):
    pairs = numbers.pairs(300, 7)
    plain, _ = prepared(tmp_path / "plain", **numbers.write(tmp_path, "plain", pairs), seed=1)
    word = "abcdefghijkl" * 10_000  # its pieces would be the most frequent
    ours, _ = prepared(tmp_path / "long", **numbers.write(tmp_path, "long", [*pairs, (word, "x")]), seed=1)
    assert ours.source_tokenizer.digest == plain.source_tokenizer.digest
    assert [row[1:3] for row in left_out(tmp_path / "long")] == [["301", "more than 256 subwords"]]


@pytest.mark.parametrize("shared", [True, False])
def test_one_vocabulary_or_two(tmp_path, numbers, shared):
    found, choices = prepared(tmp_path / "run", shared_vocabulary=shared, **numbers.train)
    assert (found.source_tokenizer.digest == found.target_tokenizer.digest) is shared
    assert found.config.shared_vocabulary is shared
    assert choices.reasons["shared_vocabulary"] == "as asked"
    for pair in numbers.pairs(5, 9):
        for tokenizer, text in zip((found.source_tokenizer, found.target_tokenizer), pair, strict=True):
            assert tokenizer.decode(tokenizer.encode(text)) == text
    wider = len(found.target_tokenizer.encode("eins zwei drei")) - len(found.source_tokenizer.encode("eins zwei drei"))
    assert wider == 0 if shared else wider > 0  # a separate target vocabulary has no German words


def test_two_vocabularies_for_few_pairs_of_two_languages(tmp_path, numbers, monkeypatch):
    """Both sides of a text in one language, such as corrections, share theirs."""
    pairs = numbers.pairs(300, 7)
    monkeypatch.setattr(choices_module, "_TWO_VOCABULARIES", range(len(pairs), 5_000))
    texts = {"two": pairs, "one": [(source, f"{source} !") for source, _ in pairs], "few": pairs[1:]}
    for name, text in texts.items():
        found, choices = prepared(tmp_path / name, **numbers.write(tmp_path, name, text), **numbers.valid)
        assert found.config.shared_vocabulary is (name != "two")
        assert (found.source_tokenizer.digest == found.target_tokenizer.digest) is (name != "two")
        assert ("300 pairs" in choices.reasons["shared_vocabulary"]) is (name == "two")


def test_how_the_vocabulary_is_learned(tmp_path, numbers):
    """Each setting reaches the learning and is recorded; without it the default is."""
    usual, choices = prepared(tmp_path / "usual", **numbers.train)
    assert (usual.config.min_frequency, usual.config.coverage) == (2, 0.9999)
    assert usual.source_tokenizer.digest == Tokenizer.learn(both_sides(usual), 320).digest
    wishes = {"min_frequency": 40, "coverage": 0.9, "symbols": "<pad> <unknown> <begin> <end>"}
    found, choices = prepared(tmp_path / "asked", **wishes, **numbers.train)
    expected = Tokenizer.learn(
        both_sides(usual), 320, specials=Specials(*wishes["symbols"].split()), min_frequency=40, coverage=0.9
    )
    assert found.source_tokenizer.digest == expected.digest != usual.source_tokenizer.digest
    assert found.source_tokenizer.specials.strings == ("<pad>", "<unknown>", "<begin>", "<end>")
    assert (found.config.min_frequency, found.config.coverage) == (40, 0.9)
    assert [choices.reasons[name] for name in wishes] == ["as asked"] * 3


def both_sides(prepared):
    """The training text in the order of learning: pair by pair, source first."""
    for _, *pair in pairs_of(prepared, "train"):
        yield from pair


def test_gzip_is_the_same_as_plain(tmp_path, numbers):
    packed = {}
    for side, path in numbers.train.items():
        packed[side] = tmp_path / f"{path.name}.gz"
        packed[side].write_bytes(gzip.compress(path.read_bytes()))
    plain, _ = prepared(tmp_path / "plain", **numbers.train)
    found, _ = prepared(tmp_path / "packed", **packed)
    assert pairs_of(found, "train") == pairs_of(plain, "train")
    assert pairs_of(found, "valid") == pairs_of(plain, "valid")
    assert found.source_tokenizer.digest == plain.source_tokenizer.digest
    for one, other in zip(found.config.corpora[0].files, plain.config.corpora[0].files, strict=True):
        assert one.sha256 == other.sha256
        assert one.lines == 600
    assert (found.config.source_language, found.config.target_language) == ("de", "en")


def test_doing_it_again_gives_the_same_bytes(tmp_path, numbers):
    for name in ("one", "two"):
        prepared(tmp_path / name, **numbers.train)
    assert numbers.contents(tmp_path / "one") == numbers.contents(tmp_path / "two")


def test_languages_are_read_from_names_unless_given(tmp_path, numbers):
    _, choices = prepared(tmp_path / "a", **numbers.train)
    assert choices.reasons["target_language"] == "from the file or its name"
    found, choices = prepared(tmp_path / "b", target_language="zh", **numbers.train)
    assert (found.config.source_language, found.config.target_language) == ("de", "zh")
    assert choices.reasons["target_language"] == "as asked"


def test_a_vocabulary_that_is_too_small_says_so(tmp_path, numbers):
    with pytest.raises(InputError, match=r"\d+"):
        prepared(tmp_path / "run", vocab_size=100, **numbers.train)


@pytest.mark.parametrize("name", ["valid.source.txt", "source.tokenizer.json", "train/store.json", "valid/lines.bin"])
def test_damage_is_seen_when_it_is_read_again(tmp_path, numbers, name):
    found, _ = prepared(tmp_path / "run", **numbers.train)
    path = tmp_path / "run" / "data" / name
    for damage in (lambda: path.write_bytes(b"\xff\xff"), path.unlink):
        damage()
        with pytest.raises(FormatError, match=path.name.removesuffix(".json")):
            open_prepared(tmp_path / "run", found.config)


# ------------------------------------------------------------------------------------------ files that cannot be


def test_files_have_to_be_named(numbers):
    for given, missing in (({}, "source and target"), ({"source": numbers.train["source"]}, "target")):
        with pytest.raises(ConfigurationError, match=f"{missing} missing"):
            scan_files(PrepareSettings(**given))


def test_looking_through_checks_all_four_files(tmp_path, numbers):
    short = numbers.write(tmp_path, "short", numbers.pairs(3, 1))
    with pytest.raises(DataError, match=r"has 600 lines but .* has 3"):
        scan_files(PrepareSettings(source=numbers.train["source"], target=short["target"]))
    with pytest.raises(DataError, match=r"has 8 lines but .* has 3"):
        scan_files(
            PrepareSettings(**numbers.train, valid_source=numbers.valid["valid_source"], valid_target=short["target"])
        )
    files = scan_files(PrepareSettings(**numbers.train, **numbers.valid))
    assert [file.lines for file in file_records(files.train[0].scan)] == [600, 600]
    assert [file.lines for file in file_records(files.valid)] == [8, 8]
