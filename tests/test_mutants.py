"""The list of mutants is complete and up to date, and the tool distinguishes killed mutants from survivors.

`make mutants` runs all of them; these tests run a sample.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = "heads are interleaved"


def load_tool() -> Any:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tools" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


mutants = load_tool()


def test_every_row_has_a_mutant() -> None:
    """Which rows there are is checked in `test_coverage`."""
    rows = list(mutants.named_tests())
    found = [one.row for one in mutants.mutants()]
    assert set(found) == set(rows)
    assert found == sorted(found, key=rows.index)


def test_every_mutant_has_a_name_of_its_own() -> None:
    names = [one.name for one in mutants.mutants()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", [one.name for one in mutants.mutants()])
def test_a_mutant_is_a_change_of_code(name: str) -> None:
    """The file has the piece exactly once, and is Python with the fault."""
    (mutant,) = [one for one in mutants.mutants() if one.name == name]
    text = (mutants.PACKAGE / mutant.file).read_text(encoding="utf-8")
    faulty = mutant.apply(text)
    assert faulty != text
    compile(faulty, mutant.file, "exec")


def test_a_piece_that_is_not_there_once_is_an_error() -> None:
    mutant = mutants.Mutant("A1", "none", "none.py", "x", "y")
    for text in ("", "x x"):
        with pytest.raises(ValueError, match=r"A1, none: none.py has 'x' [02] times, not once"):
            mutant.apply(text)


def test_a_fault_is_found_and_a_change_without_effect_survives(tmp_path: Path) -> None:
    (fault,) = [one for one in mutants.mutants() if one.name == SAMPLE]
    copy = tmp_path / "multihead"
    shutil.copytree(mutants.PACKAGE, copy)  # with compiled modules, which are valid except for the changed file
    tests = ["attention/test_attention_multihead.py::test_equals_pytorch"]
    text = (copy / fault.file).read_text(encoding="utf-8")
    outcome = mutants.run(fault, tests, tmp_path)
    assert outcome.killed, outcome.said
    assert outcome.said.startswith("tests/attention/test_attention_multihead.py::test_equals_pytorch")
    assert (copy / fault.file).read_text(encoding="utf-8") == text
    words = '"""Multi-head attention: projections'
    harmless = mutants.Mutant("A8", "", fault.file, words, words.replace("Multi-head", "Many-headed"))
    outcome = mutants.run(harmless, tests, tmp_path)
    assert not outcome.killed
    assert " passed" in outcome.said


def test_mutants_whose_tests_fail_without_a_fault_are_neither_killed_nor_survivors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tests that fail for another reason, such as a missing package, would kill every mutant."""
    sound = mutants.named_tests()["A8"]
    faults = mutants.mutants(["A8"])

    def run_tests(tests: list[str], source: Path) -> Any:
        """Tests of A8 fail if a file is changed; all others always."""
        changed = any(
            (source / "multihead" / one.file).read_bytes() != (mutants.PACKAGE / one.file).read_bytes()
            for one in faults
        )
        return mutants.Ended(0 if tests == sound and not changed else mutants.FAILED, 0.0, "tests/some.py::test")

    monkeypatch.setattr(mutants, "run_tests", run_tests)
    assert mutants.main(["A8", "--jobs", "1"]) == 0
    assert f"{len(faults)} of {len(faults)} mutants are killed" in capsys.readouterr().out
    others = len(mutants.mutants(["A3"]))
    assert mutants.main(["A8", "A3", "--jobs", "1"]) == others
    printed = capsys.readouterr().out
    assert "A3 is skipped: its tests fail even without a fault (tests/some.py::test)" in printed
    assert "tests of 1 of 2 rows pass without a fault" in printed
    assert f"{len(faults)} of {len(faults) + others} mutants are killed" in printed


def test_a_row_without_mutants_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Also beside rows that have mutants."""
    with pytest.raises(SystemExit):
        mutants.main(["A8", "Z1", "Z2"])
    assert "has no mutant of Z1, Z2" in capsys.readouterr().err
