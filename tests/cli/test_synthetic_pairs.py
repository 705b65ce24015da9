"""``multihead backtranslate`` and ``multihead distill``: the pairs are what `translate` writes, beside the lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from multihead import Translator
from multihead.data.corpus import Report
from multihead.data.readers import scan_corpus
from multihead.lines import translate_file, windows
from multihead.lines.growing_file import part_of

if TYPE_CHECKING:
    from tests.conftest import Numbers

LINES = ["eins zwei", "", "drei\tvier", "sieben acht neun", "null", "zwei zwei", "vier"]
WORDS = [line for line in LINES if line]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


def pairs(path: Path) -> list[tuple[str, str]]:
    """As training reads them."""
    report = Report()
    found = [(pair.source, pair.target) for pair in scan_corpus(path).read(report)]
    assert not report.left_out
    return found


def test_the_line_is_the_target_or_the_source(call: Any, trained: Path, text: Path, tmp_path: Path) -> None:
    made = Translator.load(trained).translate(WORDS)
    lines = [line.replace("\t", " ") for line in WORDS]
    flags = ("--no-guard", "--output")
    ended = call("backtranslate", trained, "--monolingual", text, *flags, tmp_path / "back.tsv")
    assert ended.status == 0, ended.err
    assert ended.err.endswith(f"6 pairs from 7 lines are in {tmp_path / 'back.tsv'}\n")
    assert pairs(tmp_path / "back.tsv") == [(f"<bt> {one}", line) for one, line in zip(made, lines, strict=True)]
    assert not call("backtranslate", trained, "--monolingual", text, "--tag", "", *flags, tmp_path / "bare.tsv").status
    assert pairs(tmp_path / "bare.tsv") == list(zip(made, lines, strict=True))
    assert not call("distill", trained, "--source", text, *flags, tmp_path / "student.tsv").status
    assert pairs(tmp_path / "student.tsv") == list(zip(lines, made, strict=True))


def test_a_line_can_have_several_translations(call: Any, trained: Path, text: Path, tmp_path: Path) -> None:
    """Only distinct translations: equal texts are one pair."""
    translator = Translator.load(trained)
    found = [[one.text for one in row] for row in translator.n_best(WORDS, 3, beam=4)]
    found_samples = [[one.text for one in row] for row in translator.sample(WORDS, 4, seed=5)]
    for flags, rows in (
        (("--n-best", 3, "--beam", 4), found),
        (("--sample", 4, "--seed", 5), found_samples),
    ):
        output = tmp_path / f"{flags[0]}.tsv"
        ended = call("distill", trained, "--source", text, "--no-guard", "--output", output, *flags)
        assert ended.status == 0, ended.err
        expected = [(line, one) for line, row in zip(WORDS, rows, strict=True) for one in dict.fromkeys(row) if one]
        assert pairs(output) == [(line.replace("\t", " "), one) for line, one in expected]


def test_translations_that_would_teach_errors_are_left_out(
    call: Any, trained: Path, text: Path, tmp_path: Path
) -> None:
    """Leaves out translations that were cut, and those that the guard marks."""
    command = ("distill", trained, "--source", text, "--output")
    assert not call(*command, tmp_path / "cut.tsv", "--no-guard", "--max-length", 3).status
    whole = [one.finished for one in Translator.load(trained).translations(WORDS, max_length=3)]
    assert len(pairs(tmp_path / "cut.tsv")) == sum(whole) < len(WORDS)
    rows = call("translate", trained, "--scores", "--guard", "mark", "--input", text).text.splitlines()
    marks = [float(row.split("\t", 3)[2]) for row, line in zip(rows, LINES, strict=True) if line]
    threshold = sorted(marks)[len(marks) // 2] + 0.005
    ended = call(*command, tmp_path / "guarded.tsv", "--guard-threshold", threshold)
    assert ended.status == 0, ended.err
    good = [line.replace("\t", " ") for line, mark in zip(WORDS, marks, strict=True) if mark < threshold]
    assert [source for source, _ in pairs(tmp_path / "guarded.tsv")] == good


def test_what_was_stopped_goes_on(
    call: Any, trained: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "WINDOW", 2)
    command = ("backtranslate", trained, "--monolingual", text, "--no-guard", "--output")
    assert not call(*command, tmp_path / "whole.tsv").status
    translated, output = windows.translated, tmp_path / "stopped.tsv"

    def stopping(*arguments: Any, **more: Any) -> Any:
        for count, window in enumerate(translated(*arguments, **more)):
            if count == 2:
                raise KeyboardInterrupt
            yield window

    with monkeypatch.context() as patched:
        patched.setattr(translate_file, "translated", stopping)
        ended = call(*command, output)
    assert ended.status == 130
    assert "after line 4 of 7; run the same command again to continue" in ended.err
    refused = call(*command, output, "--tag", "<synthetic>")
    assert refused.status == 2
    assert "pairs" in refused.err
    assert part_of(output).exists()
    assert not call(*command, output).status
    assert output.read_bytes() == (tmp_path / "whole.tsv").read_bytes()


def test_training_reads_the_pairs(call: Any, trained: Path, numbers: Numbers, text: Path, tmp_path: Path) -> None:
    synthetic, valid = tmp_path / "synthetic.tsv", numbers.valid
    assert not call("distill", trained, "--source", text, "--no-guard", "--output", synthetic).status
    own = numbers.train
    ended = call(
        *("prepare", "--corpus", f"{own['source']} {own['target']}", "--corpus", f"{synthetic} weight=2"),
        *("--valid-source", valid["valid_source"], "--valid-target", valid["valid_target"]),
        *("--vocab-size", 320, "--output", tmp_path / "prepared"),
    )
    assert ended.status == 0, ended.err
    assert "606" in ended.err + ended.text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--output", "pairs.txt"), "expected a name that ends in .tsv or .parquet"),
        (("--output", "pairs.tsv", "--tag", "a b"), "one word without blanks"),
        (
            ("--output", "pairs.tsv", "--no-guard", "--guard-threshold", 0.3),
            "--guard-threshold does nothing with --no-guard",
        ),
        (("--output", "pairs.tsv", "--mean", "probabilities"), "--with"),
    ],
)
def test_bad_flags_are_refused(call: Any, trained: Path, text: Path, flags: tuple[Any, ...], words: str) -> None:
    ended = call("backtranslate", trained, "--monolingual", text, *flags)
    assert ended.status == 2
    assert words in ended.err
    assert ended.err.count("\n") == 1
    assert not list(Path().glob("pairs*"))


def test_a_tag_is_checked_before_the_model_is_opened(call: Any, text: Path, tmp_path: Path) -> None:
    flags = ("--monolingual", text, "--output", tmp_path / "pairs.tsv", "--tag", "a b")
    ended = call("backtranslate", tmp_path / "no model", *flags)
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert "the tag is one word without blanks, such as <bt>, got 'a b'" in ended.err
