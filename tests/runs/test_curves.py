"""Curves of runs show what was logged, for any runs, even while they train."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from multihead.errors import ConfigurationError, InputError
from multihead.inspection import curves as drawing
from multihead.inspection.curves import Line, Panel
from multihead.runs import curves as module
from multihead.runs.curves import panels_of, plot, read_curves


def records(folder, kind, key):
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [(r["step"], r[key]) for r in map(json.loads, lines) if r["kind"] == kind and key in r]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """Write a log as a run does; returns its folder."""

    def write(name, factor=1.0, extra=""):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        rows = [
            {"kind": "train", "step": step, "loss": factor / step, "learning_rate": 0.01 * step} for step in range(1, 9)
        ]
        rows.insert(4, {"kind": "skipped", "step": 4, "loss": None, "gradient_norm": 1e9, "lines": {"a": [1]}})
        rows += [{"kind": "validation", "step": step, "loss": 2.0 / step, "bleu": 3.0 * step} for step in (4, 8)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "log.jsonl").write_text(text + extra, encoding="utf-8")
        return folder

    return write


def test_every_logged_number_is_a_point(run):
    folder = run("one")
    losses, bleu, exact, rates = panels_of(read_curves([folder]))
    expected = [records(folder, kind, "loss") for kind in ("train", "validation")]
    assert [line.points for line in losses.lines] == expected
    assert [line.judged for line in losses.lines] == [False, True]
    assert [line.points for line in bleu.lines] == [records(folder, "validation", "bleu")]
    assert [line.points for line in exact.lines] == [[]]
    assert [line.points for line in rates.lines] == [records(folder, "train", "learning_rate")]


def test_over_time_the_starts_of_a_run_add_up(run):
    """Current logs keep counting after a restart; older ones started again at 0, so a smaller time is a restart."""
    folder = run("one")
    assert [line.points for line in panels_of(read_curves([folder]), "seconds")[1].lines] == [[]]
    rows = [{"kind": "validation", "step": step, "elapsed": seconds} for step, seconds in ((4, 90.0), (8, 30.0))]
    (folder / "timing.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    losses, bleu, *_ = panels_of(read_curves([folder]), "seconds")
    assert [line.points for line in bleu.lines] == [[(1.5, 12.0), (2.0, 24.0)]]
    assert losses.lines[1].points == [(1.5, 0.5), (2.0, 0.25)]


def test_a_resumed_log_counts_on(tmp_path):
    from multihead.training.progress import RunLog

    def record(step):
        log = RunLog(tmp_path, lambda _: None)
        log.rewind(step - 1)
        log._started -= 50
        log.record("validation", step, {"loss": 1.0}, {})
        return read_curves([tmp_path])[tmp_path.name][-1]["seconds"]

    first, second, third, again = record(1), record(2), record(3), record(3)
    assert first == pytest.approx(50, abs=1)
    assert second == pytest.approx(first + 50, abs=1)
    assert third == pytest.approx(second + 50, abs=1)
    assert again == pytest.approx(third, abs=1)


def test_a_real_run_can_be_drawn(trained, tmp_path, call):
    ended = call("plot", trained, "-o", tmp_path / "curves.svg")
    assert ended.status == 0, ended.err
    assert (tmp_path / "curves.svg").read_text(encoding="utf-8").count("<path") > 20
    assert [line.points for line in panels_of(read_curves([trained]))[1].lines] == [
        records(trained, "validation", "bleu")
    ]


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["a/run", "b/run"], ["a/run", "b/run"]),
        (["a/x", "b/y"], ["x", "y"]),
        (["a/x/run", "b/x/run"], ["a/x/run", "b/x/run"]),
    ],
)
def test_runs_are_named_by_what_tells_them_apart(run, folders, names):
    found = [run(folder) for folder in folders]
    assert [line.name for line in panels_of(read_curves(found))[-1].lines] == names


def test_a_line_that_is_being_written_is_passed_over(run):
    whole = panels_of(read_curves([run("whole")]))
    for place, cut in enumerate(('{"kind": "tr', "\xff", '{"kind": "train", "step": null}\n', "[1]\n")):
        found = panels_of(read_curves([run(f"{place}/whole", extra=cut)]))
        assert [panel.lines for panel in found] == [panel.lines for panel in whole]


def test_several_runs_in_one_picture(run, tmp_path):
    """Another run adds a color and a name in the legend; equal pictures are equal files."""
    one, other = run("one"), run("other", 2.0)
    for name, folders in (("1.svg", [one]), ("2.svg", [one, other]), ("again.svg", [one, other]), ("1.png", [one])):
        plot(folders, tmp_path / name)
    pictures = {name: (tmp_path / f"{name}.svg").read_text(encoding="utf-8") for name in ("1", "2", "again")}
    first, second = drawing._COLORS[:2]
    assert first in pictures["1"]
    assert second not in pictures["1"]
    assert first in pictures["2"]
    assert second in pictures["2"]
    assert pictures["2"] == pictures["again"]
    assert (tmp_path / "1.png").read_bytes().startswith(b"\x89PNG")


def test_panels_over_the_same_have_the_same_scale(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    found = []
    drawn = drawing.render_figure
    monkeypatch.setattr(drawing, "render_figure", lambda *words: (found.append(words[0]), drawn(*words))[1])
    lines = [[Line("a", [(0, 1.0), (stop, 2.0)])] for stop in (5, 9, 7, 30)]
    axes = ("update", "update", "minutes", "minutes")
    drawing.draw_curves([Panel("p", *both) for both in zip(lines, axes, strict=True)], tmp_path / "x.svg")
    assert isinstance(found[0], Figure)
    limits = [one.get_xlim() for one in found[0].axes]
    assert limits[0] == limits[1] != limits[2] == limits[3]
    assert [one.get_xlabel() for one in found[0].axes] == list(axes)


def test_what_cannot_be_drawn_is_refused(run, tmp_path):
    folder = run("one")
    (tmp_path / "there.png").write_text("x")
    (tmp_path / "empty").mkdir()
    shutil.copytree(folder, tmp_path / "begun")
    (tmp_path / "begun" / "log.jsonl").write_text("")
    cases = [
        ([folder], "there.png", ConfigurationError, "exists already"),
        ([folder], "x.jpg", InputError, "PNG, SVG or PDF"),
        ([folder], "nowhere/x.png", InputError, "there is no folder"),
        ([tmp_path / "nothing"], "x.png", ConfigurationError, "no run that has begun to train"),
        ([tmp_path / "empty"], "x.png", ConfigurationError, "no run that has begun to train"),
        ([tmp_path / "begun"], "x.png", InputError, "nothing has been logged yet"),
        ([folder, folder], "x.png", ConfigurationError, "named twice"),
    ]
    for folders, name, error, said in cases:
        with pytest.raises(error, match=said):
            plot(folders, tmp_path / name)
    assert (tmp_path / "there.png").read_text() == "x"
    with pytest.raises(InputError, match="no curve has a point"):
        drawing.draw_curves([Panel("nothing", [Line("a", [])])], tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()


def test_without_matplotlib_it_says_what_to_install(run, tmp_path, monkeypatch):
    import sys

    from multihead.errors import MissingDependencyError

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"multihead\[plot\]"):
        module.plot([run("one")], tmp_path / "x.png")
