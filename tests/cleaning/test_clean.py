"""Cleaning: nothing is lost, the order is kept, formats give equal results, and interrupted work resumes."""

from __future__ import annotations

import csv
import gzip
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest
from faulty_pairs import faulty, sentences, write_sides

from multihead.cleaning import candidates, copies
from multihead.cleaning import clean as module
from multihead.cleaning.clean import Outputs, clean
from multihead.cleaning.settings import CleanSettings
from multihead.data.corpus import Report
from multihead.data.readers import scan_corpus
from multihead.diagnosis.doctor import doctor
from multihead.diagnosis.findings import FilePair, clean_commands, make_finding
from multihead.errors import ConfigurationError, DataError, SurroundingsError
from multihead.lines.growing_file import GrowingFile, part_of, record_of
from multihead.workers import LocalWorkers

Row = tuple[str, str]


def outputs(folder: Path, *names: str) -> Outputs:
    """Files of kept pairs, and the others beside them."""
    folder.mkdir(exist_ok=True)
    kept = [folder / name for name in names or ("kept.de", "kept.en")]
    return Outputs.named(kept[0], kept[1] if len(kept) > 1 else None, None, None)


def removed_rows(made: Outputs) -> list[list[str]]:
    with made.removed.open(encoding="utf-8", newline="\n") as stream:
        return list(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]


def kept_rows(made: Outputs) -> list[Row]:
    return [pair[1:] for pair in scan_corpus(made.kept, made.kept_target).read(Report())]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "CHUNK", 8)
    monkeypatch.setattr(copies, "ROWS", 64)
    monkeypatch.setattr(copies, "PAIRS", 50)


def test_every_fault_is_removed_and_nothing_else(text: tuple[Path, Path], held_out: list[str]) -> None:
    rows, reasons = faulty()
    made = outputs(text[0].parent / "out")
    found = clean(*text, made, held_out=held_out)
    removed = removed_rows(made)
    assert {int(line): reason for line, reason, *_ in removed} == reasons
    assert kept_rows(made) == [row for line, row in enumerate(rows, 1) if line not in reasons]
    assert found.kept + found.removed == found.read == 300
    assert found.kept == len(kept_rows(made))
    assert [tuple(row[4:]) for row in removed[1:]] == [rows[int(row[0]) - 1] for row in removed[1:]]
    details = {reason: (score, detail) for _, reason, score, detail, *_ in removed}
    assert details["duplicate"] == ("2", "line 3")
    assert details["near-duplicate"] == ("2", "line 4")
    assert details["unusable"] == ("", "empty or only white space")
    assert details["numbers"][1] == "1984 against 1985"
    assert sorted(contents(made.kept.parent)) == ["kept.de", "kept.de.removed.tsv", "kept.de.report.html", "kept.en"]


@pytest.mark.usefixtures("small_chunks")
def test_small_chunks_give_the_same_bytes(text: tuple[Path, Path], held_out: list[str]) -> None:
    made = outputs(text[0].parent / "small")
    clean(*text, made, held_out=held_out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "CHUNK", 1 << 13)
        patch.setattr(copies, "ROWS", 1 << 18)
        large = outputs(text[0].parent / "large")
        clean(*text, large, held_out=held_out)
    assert contents(made.kept.parent) == contents(large.kept.parent)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("change", ["more", "fewer", "moved"])
def test_a_file_that_changes_meanwhile_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """While the pairs are judged, which may take hours."""
    units = [
        f'<tu><tuv xml:lang="de"><seg>Satz {n}</seg></tuv><tuv xml:lang="en"><seg>One {n}</seg></tuv></tu>\n'
        for n in range(16)
    ]
    changed = {"more": [*units, *units], "fewer": units[:8], "moved": ["\n", *units]}[change]
    path, write = tmp_path / "a.tmx", module._write

    def save(lines: list[str]) -> None:
        path.write_text(f'<tmx version="1.4"><body>\n{"".join(lines)}</body></tmx>\n', encoding="utf-8", newline="\n")

    def written(*given: Any) -> Any:
        save(changed)
        return write(*given)

    save(units)
    monkeypatch.setattr(module, "_write", written)
    with pytest.raises(DataError, match=r"a\.tmx: has changed"):
        clean(path, None, outputs(tmp_path / "out", "kept.tsv"), settings=CleanSettings(skip=("language",)))
    assert not (tmp_path / "out" / "kept.tsv").exists()


@pytest.mark.usefixtures("small_chunks", "warm_processes")
def test_several_processes_give_the_same_bytes(text: tuple[Path, Path], held_out: list[str]) -> None:
    one, several = (outputs(text[0].parent / name) for name in ("one", "several"))
    clean(*text, one, held_out=held_out)
    clean(*text, several, held_out=held_out, engine=LocalWorkers(2))
    assert contents(one.kept.parent) == contents(several.kept.parent)


class StoppedError(Exception):
    """Simulates a kill: no code catches this exception."""


def _failing(function: Any, after: int) -> Any:
    calls = iter(range(after))

    def failing(*words: Any, **options: Any) -> Any:
        if next(calls, None) is None:
            raise StoppedError
        return function(*words, **options)

    return failing


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("name", "after"), [("judge", 3), ("judge", 20), ("judge", 37), ("find_copies", 0), ("explain", 5)]
)
def test_stopped_work_goes_on(
    text: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, name: str, after: int, held_out: list[str]
) -> None:
    whole, made = (outputs(text[0].parent / folder) for folder in ("whole", "stopped"))
    clean(*text, whole, held_out=held_out)
    judged: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(module, name, _failing(getattr(module, name), after))
        with pytest.raises(StoppedError):
            clean(*text, made, held_out=held_out)
    left = contents(made.kept.parent)
    done = 0 if (name, after) == ("judge", 3) else after // 8 * 64 if name == "judge" else 300
    assert set(left) == ({"kept.de.verdicts.part", "kept.de.verdicts.part.json"} if done else set())

    def counting(rules: Any, chunk: Any) -> Any:
        judged.append(len(chunk.lines))
        return judge(rules, chunk)

    judge = module.judge
    monkeypatch.setattr(module, "judge", counting)
    clean(*text, made, held_out=held_out)
    assert sum(judged) == 300 - done
    assert contents(made.kept.parent) == contents(whole.kept.parent)


@pytest.mark.usefixtures("small_chunks")
def test_stopped_work_does_not_go_on_with_other_settings(
    text: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = outputs(text[0].parent / "out")
    with monkeypatch.context() as patch:
        patch.setattr(module, "find_copies", _failing(None, 0))
        with pytest.raises(StoppedError):
            clean(*text, made)
    with pytest.raises(ConfigurationError, match="settings was"):
        clean(*text, made, settings=CleanSettings(max_ratio=3))
    write_sides(text[0].parent, sentences(300, 4))
    with pytest.raises(ConfigurationError, match="input was"):
        clean(*text, made)


def test_stopped_work_does_not_go_on_with_other_languages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has three languages, so its rows and its hash stay the same."""
    rows = [{"translation": {"de": f"Hund {n} rennt", "en": f"dog {n} runs", "fr": f"chien {n}"}} for n in range(60)]
    source = tmp_path / "all.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    made, settings = outputs(tmp_path / "out"), CleanSettings(skip=("language",))
    with monkeypatch.context() as patch:
        patch.setattr(module, "find_copies", _failing(None, 0))
        with pytest.raises(StoppedError):
            clean(source, None, made, settings=settings, languages=("de", "en"))
    with pytest.raises(ConfigurationError, match="read was"):
        clean(source, None, made, settings=settings, languages=("de", "fr"))


def _tmx(rows: list[Row]) -> str:
    units = "".join(
        f'<tu><tuv xml:lang="de"><seg>{escape(a)}</seg></tuv><tuv xml:lang="en"><seg>{escape(b)}</seg></tuv></tu>\n'
        for a, b in rows
    )
    return f'<tmx version="1.4"><header srclang="de"/><body>\n{units}</body></tmx>\n'


FORMATS = {
    "train.tsv": lambda rows: "".join(f"{a}\t{b}\n" for a, b in rows),
    "train.jsonl": lambda rows: "".join(json.dumps({"translation": {"de": a, "en": b}}) + "\n" for a, b in rows),
    "train.csv": lambda rows: "source,target\n" + "".join(f'"{a}","{b}"\n' for a, b in rows),
    "train.tmx": _tmx,
}


@pytest.mark.parametrize(
    ("name", "packed", "kept"),
    [
        ("train.tsv", True, "kept.tsv"),
        ("train.jsonl", False, "kept.jsonl.gz"),
        ("train.csv", False, "kept.tsv.xz"),
        ("train.tmx", True, "kept.ndjson"),
    ],
)
def test_all_formats_give_the_same_pairs(
    tmp_path: Path, text: tuple[Path, Path], held_out: list[str], name: str, packed: bool, kept: str
) -> None:
    made = outputs(tmp_path / "two")
    clean(*text, made, held_out=held_out)
    raw = FORMATS[name](faulty()[0]).encode()
    path = tmp_path / (name + ".gz" * packed)
    path.write_bytes(gzip.compress(raw) if packed else raw)
    one = outputs(tmp_path / "one", kept)
    found = clean(path, None, one, held_out=held_out, languages=("de", "en"))
    assert kept_rows(one) == kept_rows(made)
    assert [row[1:3] for row in removed_rows(one)] == [row[1:3] for row in removed_rows(made)]
    assert found.kept + found.removed == found.read == 300


# ------------------------------------------------------------------------------------------ other programs


def test_what_mtdata_has_fetched(tmp_path: Path, held_out: list[str]) -> None:
    """``mtdata get -l deu-eng --train A B --test T --merge -o folder``: ISO 639-3 codes, parts, merged files."""
    rows = faulty()[0]
    parts = {"Statmt-europarl-10-deu-eng": rows[:150], "Statmt-news_commentary-16-deu-eng": rows[150:]}
    for place in ("train-parts", "tests"):
        (tmp_path / "mtdata" / place).mkdir(parents=True)
    folder = tmp_path / "mtdata"
    for side, code in enumerate(("deu", "eng")):
        for name, part in parts.items():
            (folder / "train-parts" / f"{name}.{code}").write_text("".join(r[side] + "\n" for r in part), "utf-8")
        (folder / f"train.{code}").write_text("".join(row[side] + "\n" for row in rows), "utf-8")
        test = Path(held_out[0].split()[side]).read_bytes()
        (folder / "tests" / f"Statmt-newstest_deen-2019-deu-eng.{code}").write_bytes(test)
    tests = " ".join(str(folder / "tests" / f"Statmt-newstest_deen-2019-deu-eng.{code}") for code in ("deu", "eng"))
    made = outputs(tmp_path / "out")
    found = clean(folder / "train.deu", folder / "train.eng", made, held_out=[tests], languages=("de", "en"))
    assert {int(row[0]): row[1] for row in removed_rows(made)} == faulty()[1]
    unknown = clean(folder / "train.deu", folder / "train.eng", outputs(tmp_path / "no codes"), held_out=[tests])
    assert set(unknown.idle) == {"language", "alignment"}
    assert unknown.kept > found.kept


def test_what_opuscleaner_has_written(tmp_path: Path) -> None:
    """``opuscleaner-clean train-parts/NAME.filters.json | gzip > NAME.de-en.tsv.gz``: source TAB target."""
    rows = [row for row in faulty()[0] if row[0]]
    path = tmp_path / "ParaCrawl-v9.de-en.tsv.gz"
    path.write_bytes(gzip.compress("".join(f"{a}\t{b}\n" for a, b in rows).encode()))
    made = outputs(tmp_path / "out", "clean.de-en.tsv.gz")
    clean(path, None, made, languages=("de", "en"))
    wanted = {reason for reason in faulty()[1].values() if reason not in ("unusable", "leak")}
    assert {row[1] for row in removed_rows(made)} == wanted


def test_what_opusfilter_has_written(tmp_path: Path) -> None:
    """A ``filter`` step with ``outputs: [filtered.de.gz, filtered.en.gz]``, and the ``filterfalse`` one beside it."""
    rows, reasons = faulty()
    for side, code in enumerate(("de", "en")):
        packed = gzip.compress("".join(row[side] + "\n" for row in rows).encode())
        (tmp_path / f"filtered.{code}.gz").write_bytes(packed)
    made = outputs(tmp_path / "out", "clean.de.gz", "clean.en.gz")
    found = clean(tmp_path / "filtered.de.gz", tmp_path / "filtered.en.gz", made)
    assert {int(row[0]): row[1] for row in removed_rows(made)} == {n: r for n, r in reasons.items() if r != "leak"}
    assert "language" not in found.idle  # the names have the codes


# ------------------------------------------------------------------------------------------ what cannot be


def test_files_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    paths = write_sides(tmp_path, sentences(5))
    paths[1].write_text("one\n", "utf-8")
    with pytest.raises(DataError, match="5 lines but"):
        clean(*paths, outputs(tmp_path / "out"))
    assert contents(tmp_path / "out") == {}


@pytest.mark.parametrize("taken", ["kept.de", "kept.en", "kept.de.removed.tsv", "kept.de.report.html"])
def test_nothing_is_overwritten(text: tuple[Path, Path], taken: str) -> None:
    made = outputs(text[0].parent / "out")
    (made.kept.parent / taken).write_text("mine")
    with pytest.raises(ConfigurationError, match="exists already"):
        clean(*text, made)
    assert contents(made.kept.parent) == {taken: b"mine"}


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("name", "after", "replaced"), [("judge", 20, False), ("Statistics", 0, True)])
def test_only_files_of_finished_work_are_replaced(
    text: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, name: str, after: int, replaced: bool
) -> None:
    made = outputs(text[0].parent / "out")
    with monkeypatch.context() as patch:
        patch.setattr(module, name, _failing(getattr(module, name), after))
        with pytest.raises(StoppedError):
            clean(*text, made)
    made.kept.write_text("there")
    if replaced:
        assert clean(*text, made).kept == len(kept_rows(made))
        return
    with pytest.raises(ConfigurationError, match="exists already"):
        clean(*text, made)
    assert made.kept.read_text() == "there"


def test_work_that_ended_while_its_part_was_removed_is_finished(
    text: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = outputs(text[0].parent / "out")

    def discard(file: GrowingFile) -> None:
        file._stream.close()
        part_of(made.work).unlink()
        raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr(GrowingFile, "discard", discard)
        with pytest.raises(StoppedError):
            clean(*text, made)
    assert record_of(made.work).exists()
    finished = {path: path.read_bytes() for path in made.every}
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="exists already"):
            clean(*text, made)
        assert {path: path.read_bytes() for path in made.kept.parent.iterdir()} == finished


def test_names_that_cannot_be(text: tuple[Path, Path]) -> None:
    folder = text[0].parent
    for made, what in (
        (Outputs.named(folder / "a", None, None, None), "the extension decides how pairs are written"),
        (Outputs.named(folder / "a", folder / "a", None, None), "different names"),
        (Outputs.named(folder / "a", folder / "b", folder / "c.txt", None), "removed pairs are written"),
        (Outputs.named(folder / "no" / "a", folder / "b", None, None), "there is no folder"),
    ):
        with pytest.raises(ConfigurationError, match=what):
            clean(*text, made)
    for words, what in (("a b c", "expected FILE"), ("'a", "cannot be read")):
        with pytest.raises(ConfigurationError, match=what):
            clean(*text, outputs(folder / "out"), held_out=[words])


def test_a_full_disk_leaves_nothing(text: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    made = outputs(text[0].parent / "out")

    def full(_texts: Any, _begun: bool) -> Iterator[str]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("multihead.cleaning.outputs._lines", full)
    with pytest.raises(SurroundingsError, match="no space left"):
        clean(*text, made)
    assert set(contents(made.kept.parent)) == {"kept.de.verdicts.part", "kept.de.verdicts.part.json"}


def test_a_small_corpus_has_no_usual_lengths(tmp_path: Path) -> None:
    paths = write_sides(tmp_path, [*sentences(20), sentences(20)[3]])
    found = clean(*paths, outputs(tmp_path / "out"))
    assert {"ratio", "swapped"} < set(found.idle)
    assert (found.kept, found.counts["duplicate"]) == (20, 1)


# ------------------------------------------------------------------------------------------ the doctor's command


def test_the_doctor_names_the_command_that_removes_what_it_found(
    call: Any, text: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(text[0].parent)
    files = {"source": "train.de", "target": "train.en", "valid_source": "test.de", "valid_target": "test.en"}
    first = doctor(**files, quick=True, preset="tiny")
    (command,) = first.commands
    assert command in str(first)
    assert first.as_dict()["commands"] == [command]
    program, *words = shlex.split(command)
    assert program == "multihead"
    ended = call(*words)
    assert ended.status == 0, ended.err
    rows, reasons = faulty()
    assert ended.err.splitlines()[-1] == f"{300 - len(reasons)} of 300 pairs kept, {len(reasons)} removed"
    kept = [path.read_text("utf-8").splitlines() for path in (Path("train.clean.de"), Path("train.clean.en"))]
    assert list(zip(*kept, strict=True)) == [row for line, row in enumerate(rows, 1) if line not in reasons]
    second = doctor(**{**files, "source": "train.clean.de", "target": "train.clean.en"}, quick=True, preset="tiny")
    assert second.commands == []
    found = {one.code for one in first.findings} - {one.code for one in second.findings}
    assert {"empty", "equal-sides", "swapped-pairs", "length-ratio", "duplicates", "leaked-pairs"} <= found


def test_what_has_to_be_mended_first_has_no_command(tmp_path: Path) -> None:
    paths = write_sides(tmp_path, [*sentences(120), sentences(1)[0]])
    with paths[0].open("a") as stream:
        stream.write("noch ein Satz\n")
    found = doctor(source=paths[0], target=paths[1], quick=True, preset="tiny")
    assert {"unequal-lines", "duplicates"} <= {one.code for one in found.findings}
    assert found.commands == []


@pytest.mark.parametrize(
    ("files", "held_out", "languages", "words"),
    [
        (("a b.de", "a.en"), [], ("de", "en"), "--source 'a b.de' --target a.en --output 'a b.clean.de'"),
        (("x.tsv.gz", None), [], ("de", "en"), "--source x.tsv.gz --source-language de --target-language en --output"),
        (("x.tmx", None), [("v w.tmx", None)], (None, None), "--held-out \"'v w.tmx'\" --output x.clean.tsv"),
    ],
)
def test_the_command_is_quoted_as_for_a_shell(files: Any, held_out: Any, languages: Any, words: str) -> None:
    corpus, others = (
        FilePair(Path(a), b and Path(b)) for a, b in (files, held_out[0] if held_out else ("v.tsv", None))
    )
    where = " + ".join(map(str, corpus.files))
    findings = [make_finding("duplicates", where, 1, 2, ""), make_finding("leaked-pairs", "v", 1, 2, "")]
    (command,) = clean_commands(findings[: 1 + len(held_out)], [corpus], [others], languages)
    split = shlex.split(command)
    assert split[:2] == ["multihead", "clean"]
    assert " ".join(shlex.split(words)) in " ".join(split)


def test_nothing_but_the_model_needs_torch() -> None:
    program = "import sys, multihead.cleaning.clean; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
