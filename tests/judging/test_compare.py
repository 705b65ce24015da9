"""Comparisons find known damage; models and files are treated alike."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from multihead import Translator
from multihead.errors import ConfigurationError, DataError, FormatError
from multihead.judging.compare import compare, text_statistics
from multihead.metrics.scores import sentence_chrf
from multihead.metrics.significance import score_systems

pytestmark = pytest.mark.usefixtures("one_thread")

FEW: dict[str, Any] = {"resamples": 60, "trials": 200}


@pytest.fixture(scope="module")
def files(numbers: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The test set, its references as the output of one system, and the same with known damage."""
    folder = tmp_path_factory.mktemp("compare")
    found = dict(numbers.test)
    references = found["target"].read_text(encoding="utf-8").split("\n")[:-1]
    plans = {
        "right": references,
        "shuffled": [" ".join(reversed(line.split())) + " zero" for line in references],
        "looping": [
            *references[:3],
            "two two two two two",
            "",
            found["source"].read_text().split("\n")[5],
            *references[6:],
        ],
    }
    for name, lines in plans.items():
        found[name] = folder / f"{name}.en"
        found[name].write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return found


def read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def test_a_system_differs_in_nothing_from_itself(files: dict[str, Path], trained: Path) -> None:
    for one in (files["shuffled"], trained):
        found = compare(one, one, source=files["source"], target=files["target"], **FEW)
        assert [score.p for score in found.measured.systems[1]] == [1.0] * 3
        (contrast,) = found.contrasts
        assert (contrast.equal, contrast.better, contrast.worse, contrast.sentences) == (20, 0, 0, [])
        assert found.systems[0] == found.systems[1]
        assert "no sentence has another chrF" in str(found)


def test_known_damage_is_worse_in_every_way(files: dict[str, Path]) -> None:
    found = compare(files["right"], files["shuffled"], target=files["target"], **FEW, show=4)
    assert all(one.significant for one in found.measured.systems[1])
    (contrast,) = found.contrasts
    shuffled, references = read(files["shuffled"]), read(files["target"])
    scores = sentence_chrf(shuffled, references)
    assert (contrast.equal, contrast.better) == (0, 0)
    assert contrast.worse == sum(score < 100 for score in scores)
    assert [one.scores[1] for one in contrast.sentences] == sorted(scores)[:4]
    for one in contrast.sentences:
        place = one.line - 1
        assert (one.reference, one.source) == (references[place], None)
        assert one.outputs == (references[place], shuffled[place])
        assert one.scores == (pytest.approx(100), scores[place])
    assert found.measured == score_systems([references, shuffled], references, "en", **FEW)


def test_statistics_count_what_was_planted(files: dict[str, Path]) -> None:
    found = compare(files["right"], files["looping"], target=files["target"], source=files["source"], **FEW)
    clean, planted = (system.statistics for system in found.systems)
    assert clean == found.references
    assert clean.length_ratio == 1
    assert 4 in planted.loops
    assert set(planted.loops) - {4} <= set(clean.loops)
    assert (clean.empty, clean.copies) == ((), ())
    assert (planted.empty, planted.copies) == ((5,), (6,))
    lines = read(files["looping"])
    assert planted.words == sum(len(line.split()) for line in lines)
    assert planted.length_ratio == planted.words / clean.words
    assert text_statistics(lines, read(files["target"])).copies == ()


def test_repetition_is_the_mean_of_the_lines() -> None:
    lines = ["a b c a b c", "a b c d", "a", ""]
    assert text_statistics(lines, lines).repetition == pytest.approx((1 / 4 + 0 + 0 + 0) / 4)


def test_a_model_is_its_output(files: dict[str, Path], trained: Path, tmp_path: Path) -> None:
    translator = Translator.load(trained).searching(beam=1, max_length=4)
    outputs = translator.translations(read(files["source"]))
    saved = tmp_path / "saved"
    saved.write_text("".join(one.text + "\n" for one in outputs), encoding="utf-8")
    told: list[int] = []
    sides: dict[str, Any] = {"source": files["source"], "target": files["target"], **FEW}
    model = compare(files["right"], translator, **sides, progress=told.append)
    loaded = compare(files["right"], trained, **sides, load=lambda _: translator)
    file = compare(files["right"], saved, **sides)
    assert sum(told) == 20
    assert model.measured == file.measured == loaded.measured
    assert model.contrasts == file.contrasts == loaded.contrasts
    assert [one.systems[1].name for one in (model, loaded, file)] == ["system 2", str(trained), str(saved)]
    assert model.systems[1].cut == [number for number, one in enumerate(outputs, 1) if not one.finished] != []
    assert file.systems[1].cut == []
    assert (model.language, file.language) == ("en", "en")


def test_a_file_that_is_not_text_is_refused_before_a_model_is_loaded(numbers: Any, tmp_path: Path) -> None:
    """If the model were loaded first, it would translate for hours; elsewhere, one bad line of 200 is acceptable."""
    sides = numbers.write(tmp_path, "test", numbers.pairs(200, 93))
    theirs = tmp_path / "theirs.en"
    theirs.write_bytes(b"one\n" * 149 + b"f\xfcnf\n" + b"one\n" * 50)
    (no_model := tmp_path / "model").mkdir()
    with pytest.raises(DataError, match=r"theirs\.en:150: not valid UTF-8"):
        compare(no_model, theirs, **sides, **FEW)


def test_what_is_shown_is_for_people(tmp_path: Path) -> None:
    """No text can control the terminal, and equal names do not hide a text."""
    texts = {"reference": "One two three.", "source": "One \x1b[31mtwo three.", "target": "Two\u2028three."}
    paths = {}
    for name, text in texts.items():
        paths[name] = Path(name)
        (tmp_path / name).write_text(text + "\n" + "four\n" * 9, encoding="utf-8")
    with chdir(tmp_path):
        files = {"target": paths["reference"], **FEW}
        shown = str(compare(paths["source"], paths["target"], **files))
        none = str(compare(paths["source"], paths["target"], **files, show=0))
    assert shown.split("\n")[-3:] == [
        "  reference  One two three.",
        "  source     One \\x1b[31mtwo three.",
        "  target     Two\\u2028three.",
    ]
    assert none == shown[: shown.index("\n\nsource and target: the sentences")]


def test_the_first_of_several_is_what_all_are_compared_with(files: dict[str, Path]) -> None:
    names = ["looping", "right", "shuffled"]
    found = compare(*(files[name] for name in names), target=files["target"], **FEW)
    for place in (1, 2):
        pair = compare(files[names[0]], files[names[place]], target=files["target"], **FEW)
        assert found.contrasts[place - 1] == pair.contrasts[0]
        assert found.measured.systems[place] == pair.measured.systems[1]


def test_what_cannot_be_compared(files: dict[str, Path], trained: Path, tmp_path: Path) -> None:
    target, empty = files["target"], tmp_path / "empty"
    empty.write_text("\n" * 20, encoding="utf-8")
    with pytest.raises(ConfigurationError, match="expected two or more systems to compare, got 1"):
        compare(files["right"], target=target)
    with pytest.raises(ConfigurationError, match="source: required, because a system is a model"):
        compare(files["right"], trained, target=target)
    with pytest.raises(DataError, match="no: there is no such file"):
        compare(files["right"], tmp_path / "no", target=target)
    with pytest.raises(FormatError):
        compare(files["right"], tmp_path, source=files["source"], target=target)
    (tmp_path / "long").write_text("x\n" * 21)
    with pytest.raises(DataError, match="has 21 lines but"):
        compare(files["right"], tmp_path / "long", target=target)
    with pytest.raises(DataError, match="every line is empty"):
        compare(files["right"], files["right"], target=empty)
    with pytest.raises(ConfigurationError, match="show"):
        compare(files["right"], files["right"], target=target, show=-1)
    nothing = compare(empty, files["right"], target=target, **FEW)
    assert [one.score for one in nothing.measured.systems[0]] == [0, 0, 100]
    assert nothing.systems[0].statistics.empty == tuple(range(1, 21))
