"""`multihead doctor` on a run reports text that has changed since."""

from __future__ import annotations

import gzip
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from multihead.data.readers import scan_corpus
from multihead.diagnosis.doctor import doctor
from multihead.diagnosis.findings import FilePair
from multihead.diagnosis.inputs import DiagnosisInputs, check_unchanged, collect_inputs, inputs_from_data
from multihead.errors import DataError
from multihead.planning.settings import CorpusRecord, DataConfig, TextFile, TrainSettings
from multihead.preparing.derived import derive
from multihead.preparing.prepare import prepare
from multihead.training.context import RunContext

ROWS = [(f"ein Satz {n}", f"a sentence {n}") for n in range(30)]

if TYPE_CHECKING:
    from tests.conftest import Numbers


def recorded(*paths: Path) -> CorpusRecord:
    """The records of two files, as in a run description."""
    scan = scan_corpus(paths[0], paths[1] if len(paths) > 1 else None)
    files = tuple(TextFile(path=str(one.path), sha256=one.sha256, lines=one.lines) for one in scan.files)
    return CorpusRecord(files=files, pairs=scan.lines)


def found_in(record: CorpusRecord) -> list[str]:
    """The message of the finding; there is at most one."""
    findings = check_unchanged([record], "run")
    assert all((one.code, one.severity, one.total) == ("changed", "warning", len(record.files)) for one in findings)
    assert len(findings) <= 1
    return [one.what for one in findings]


def test_what_corpora_name_is_what_is_read(tmp_path: Path) -> None:
    for name in ("a-1.csv", "a-2.csv", "v.tsv", "w-1.tsv", "w-2.tsv"):
        (tmp_path / name).write_text("x,y\n", encoding="utf-8")
    corpus = {"source": tmp_path / "a-*.csv", "columns": ("1", "2"), "source_language": "de", "both_ways": True}
    valid = {"source": tmp_path / "v.tsv", "target_language": "en"}, {"source": tmp_path / "w-*.tsv"}
    settings = TrainSettings(corpus=(corpus,), valid=valid)
    found = collect_inputs(None, settings, (None, None))
    assert [(one.source.name, one.languages, one.columns) for one in found.corpora] == [
        (f"a-{number}.csv", ("de", None), ("1", "2")) for number in (1, 2)
    ]
    assert [(one.source.name, one.languages) for one in found.valid] == [
        ("v.tsv", (None, "en")),
        ("w-1.tsv", (None, None)),
        ("w-2.tsv", (None, None)),
    ]


def test_validation_files_are_found_as_by_training(tmp_path: Path) -> None:
    """A pattern or a folder stands for its files."""
    names = [f"v-{number}.{ending}" for number in (1, 2) for ending in ("de", "en", "tsv")]
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "t.tsv", *(tmp_path / name for name in names), tmp_path / "folder" / "v.tsv"):
        path.write_text("x\ty\n", encoding="utf-8")

    def found(source: str, target: str | None = None) -> list[tuple[str, ...]]:
        named = {"valid_source": tmp_path / source, "valid_target": target and tmp_path / target}
        inputs = collect_inputs(None, TrainSettings(source=tmp_path / "t.tsv", **named), (None, None))
        return [tuple(path.name for path in files.files) for files in inputs.valid]

    assert found("v-*.tsv") == [("v-1.tsv",), ("v-2.tsv",)]
    assert found("v-*.de", "v-*.en") == [("v-1.de", "v-1.en"), ("v-2.de", "v-2.en")]
    assert found("folder") == [("v.tsv",)]
    with pytest.raises(DataError, match=r"w-\*\.tsv: no file has such a name"):
        found("w-*.tsv")


def test_every_validation_file_of_a_run_is_one_of_its_text(tmp_path: Path) -> None:
    """Leaves out missing files, and names each file once although it is read both ways."""
    for name in ("t.tsv", "v.tsv", "w.tsv", "x.tsv"):
        (tmp_path / name).write_text("x\ty\n", encoding="utf-8")
    train, *valid = (recorded(tmp_path / name) for name in ("t.tsv", "v.tsv", "w.tsv", "x.tsv"))
    both = [one.model_copy(update={"source_language": "de", "target_language": "en"}) for one in valid]
    data = DataConfig(
        corpora=(train,), valid=both[0], valid_more=(both[0].exchanged(), *both[1:]), source_language="de",
        target_language="en", vocab_size=9, shared_vocabulary=True, max_tokens=9, held_out=0, pairs=1, left_out=0,
    )  # fmt: skip
    (tmp_path / "x.tsv").unlink()
    found = inputs_from_data(data, TrainSettings())
    assert [files.source.name for files in found.valid] == ["v.tsv", "w.tsv"]
    assert found.missing_files == (str(tmp_path / "x.tsv"),)
    assert found.records == (train, *both)
    assert {files.languages for files in (*found.corpora, *found.valid)} == {("de", "en")}


def test_languages_are_those_by_which_training_reads(tmp_path: Path) -> None:
    corpora = tuple(FilePair(Path(one), Path(other)) for one, other in (("a.de", "a.en"), ("b.en", "b.de"), ("c", "d")))
    inputs = DiagnosisInputs(TrainSettings(), corpora, languages=("de", "en"))
    assert [inputs.corpus_languages(files) for files in corpora] == [("de", "en"), ("en", "de"), ("de", "en")]
    turned, french = FilePair(Path("v.en"), Path("v.de")), FilePair(Path("v.fr"), Path("v.en"))
    assert inputs.held_out_languages(turned) == ("en", "de")
    # No text is of this direction: the two files are named in the wrong order, or are others than their names say.
    assert inputs.held_out_languages(french) == ("de", "en")
    assert replace(inputs, corpora=corpora[:1]).held_out_languages(turned) == ("de", "en")
    named = FilePair(Path("v.en"), Path("v.de"), ("fr", None))
    assert inputs.corpus_languages(named) == ("fr", "de")
    assert inputs.held_out_languages(named) == ("fr", "en")


@pytest.mark.parametrize(
    ("form", "direction", "expected"),
    [
        ("files", "reverse", [("train.en", "train.de", None)]),
        ("files", "both", [("train.de", "train.en", None)]),
        ("columns", "reverse", [("all.csv", None, ("2", "1"))]),
        ("pairs", "reverse", []),  # nothing says that the second column is the source
        ("pairs", "both", [("all.csv", None, None)]),
    ],
)
def test_exchanged_text_is_read_in_its_own_order(
    form: str, direction: Literal["reverse", "both"], expected: list[Any], numbers: Numbers, tmp_path: Path
) -> None:
    """The text of the reverse models of `train --best`, and of its models of both ways."""
    rows = [f"{source},{target}\n" for source, target in numbers.pairs(300, seed=5)]
    (tmp_path / "all.csv").write_text("".join(rows), encoding="utf-8")
    pairs = {"source": tmp_path / "all.csv", "source_language": "de", "target_language": "en"}
    if form == "columns":
        pairs["columns"] = ("1", "2")
    named: dict[str, Any] = {**numbers.train} if form == "files" else {"corpus": (pairs,)}
    text = prepare(**named, **numbers.valid, vocab_size=320, output=tmp_path / "text", say=lambda _: None)
    derive(text, tmp_path / "new", RunContext(lambda _: None), direction=direction)
    found = collect_inputs(None, TrainSettings(data=tmp_path / "new"), (None, None))
    names = [(one.source.name, one.target and one.target.name, one.columns) for one in found.corpora]
    assert names == expected
    languages = ("de", "en") if direction == "both" else ("en", "de")
    assert found.languages == languages
    (valid,) = found.valid
    assert (valid.source.suffix[1:], valid.target and valid.target.suffix[1:]) == languages


@pytest.mark.parametrize("form", ["two files", "pairs"])
def test_other_text_is_told_from_the_same(form: str, tmp_path: Path) -> None:
    paths = [tmp_path / "a.de", tmp_path / "a.en"] if form == "two files" else [tmp_path / "a.tsv"]
    lines = [[row[side] for row in ROWS] for side in (0, 1)] if form == "two files" else [list(map("\t".join, ROWS))]

    def write(place: int = 0, more: str = "") -> None:
        for number, (path, rows) in enumerate(zip(paths, lines, strict=True)):
            path.write_text("\n".join(rows) + "\n" + (more if number == place else ""), encoding="utf-8")

    write()
    record = recorded(*paths)
    assert found_in(record) == []
    write(more=lines[0][0] + "\n")
    assert found_in(record) == [
        f"1 of {len(paths)} files are not what it was made from: {paths[0]} has 31 lines and had 30"
    ]
    write()
    assert found_in(record) == []
    paths[-1].write_text(paths[-1].read_text(encoding="utf-8").replace("sentence 7", "sentence 8"), encoding="utf-8")
    assert found_in(record)[0].endswith(f"{paths[-1]} has as many lines, but not the same")
    paths[0].write_bytes(b"")
    assert "is empty" in found_in(record)[0]


def test_the_same_text_compressed_is_the_same(tmp_path: Path) -> None:
    paths = tmp_path / "a.de.gz", tmp_path / "a.en"
    for path, side in zip(paths, (0, 1), strict=True):
        path.write_text("".join(f"{row[side]}\n" for row in ROWS), encoding="utf-8")
    record = recorded(*paths)
    paths[0].write_bytes(gzip.compress(paths[0].read_bytes()))
    assert found_in(record) == []


def test_a_run_knows_its_text_and_named_text_is_another(trained: Path, numbers: Any) -> None:
    settings, nothing = TrainSettings(), (None, None)
    subject = collect_inputs(trained, settings, nothing)
    assert {file.path for record in subject.records for file in record.files} == {
        str(path) for path in (*numbers.train.values(), *numbers.valid.values())
    }
    assert check_unchanged(subject.records, "run") == []
    swapped = TrainSettings(source=numbers.train["target"], target=numbers.train["source"])
    others = collect_inputs(trained, swapped, nothing).records
    assert [record.pairs for record in others] == [record.pairs for record in subject.records[1:]]


def test_a_run_whose_text_is_another_says_so(trained: Path, tmp_path: Path, numbers: Numbers) -> None:
    """The quick check does not read all text, so it does not compare it."""
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    ((training, *_), *_) = [record.files for record in collect_inputs(run, TrainSettings(), (None, None)).records]
    description = (run / "run.json").read_text(encoding="utf-8")
    (run / "run.json").write_text(description.replace(training.sha256, "0" * 64), encoding="utf-8")
    numbers.seal_again(run)
    (one,) = doctor(run).of("changed")
    assert (one.where, one.count, one.total, training.path in one.what) == (str(run), 1, 4, True)
    assert doctor(run, quick=True).of("changed") == []
