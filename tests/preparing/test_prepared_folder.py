"""Text prepared ahead of training: equal runs, no copies, and refusal of files that have changed."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from multihead import work_folder
from multihead.data import store_writers
from multihead.errors import ConfigurationError, DataError, FormatError, Interrupted
from multihead.planning.settings import RunConfig
from multihead.preparing import journal, shards
from multihead.preparing import prepare as preparation
from multihead.preparing.prepare import prepare as prepare_text
from multihead.preparing.prepared import PreparedText

if TYPE_CHECKING:
    from tests.conftest import Numbers


SHORT = {"updates": 6, "validate_every": 3, "log_every": 3, "dropout": 0.2}
VARYING = ("timing.jsonl", "log.txt")


@pytest.fixture
def prepare() -> Callable[..., PreparedText]:
    """Prepare a small text without output."""

    def go(output=None, said=None, **wishes):
        return prepare_text(output=output, say=(said if said is not None else []).append, **wishes)

    return go


@pytest.fixture(scope="module")
def text(numbers: Numbers) -> dict[str, Any]:
    return {**numbers.train, "held_out": 20, "vocab_size": 320}


@pytest.fixture(scope="module")
def model(numbers: Numbers) -> dict[str, Any]:
    return {name: value for name, value in numbers.settings.items() if name != "vocab_size"} | SHORT


@pytest.fixture(scope="module")
def ready(text: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared text, shared by tests; copy it before changing it."""
    output = tmp_path_factory.mktemp("prepared") / "ready"
    prepare_text(output=output, say=lambda _: None, **text)
    return output


@pytest.fixture(scope="module")
def whole(
    numbers: Numbers, text: dict[str, Any], model: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run that prepared its own text."""
    output = tmp_path_factory.mktemp("own") / "run"
    numbers.learn(output, **text, **model)
    return output


# ------------------------------------------------------------------------------------------ the same


def test_its_text_is_that_of_a_run(ready, whole, numbers):
    """Both ways write the same bytes."""
    assert numbers.contents(ready / "data") == numbers.contents(whole / "data")
    assert (ready / "left-out.tsv").read_bytes() == (whole / "left-out.tsv").read_bytes()
    assert {path.name for path in ready.iterdir()} == {"prepared.json", "data", "left-out.tsv", "manifest.json"}


def test_a_run_from_it_is_the_run_from_the_text(ready, whole, numbers, model, tmp_path):
    before = numbers.contents(ready)
    numbers.learn(tmp_path / "run", data=ready, **model)
    own = {"run.json", "run.copy.json", "left-out.tsv", "manifest.json", *VARYING}
    found = numbers.contents(tmp_path / "run", without=tuple(own))
    expected = {k: v for k, v in numbers.contents(whole, without=tuple(own)).items() if k.split("/")[0] != "data"}
    assert found == expected
    assert not (tmp_path / "run" / "data").exists()
    assert numbers.contents(ready) == before
    configs = [RunConfig.model_validate_json((path / "run.json").read_text()) for path in (tmp_path / "run", whole)]
    assert configs[0].data.prepared.path == str(ready)
    assert configs[0].data.model_copy(update={"prepared": None}) == configs[1].data
    for name in ("vocab_size", "held_out", "max_tokens"):
        assert configs[0].reasons[name] == configs[1].reasons[name]


def test_the_same_wishes_may_be_repeated(ready, numbers, text, model, tmp_path):
    """For example, a TOML file for both commands."""
    numbers.learn(tmp_path / "run", data=ready, max_tokens=256, **text, **{**model, "updates": 1})


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"vocab_size": 300}, "vocab_size is 320 there, not 300"),
        ({"held_out": 21}, "held_out is 20 there, not 21"),
        (
            {"max_tokens": 99, "min_frequency": 5},
            "min_frequency is 2 there.*max_tokens is 256|max_tokens is 256.*min_fr",
        ),
        ({"source": "other.de"}, "not other.de"),
        ({"corpus": ["a b"]}, "corpus is not given there"),
    ],
)
def test_wishes_that_contradict_it_are_refused_by_name(ready, numbers, model, tmp_path, wish, said):
    with pytest.raises(ConfigurationError, match=said) as caught:
        numbers.learn(tmp_path / "run", data=ready, **wish, **model)
    assert str(ready) in str(caught.value)
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------------------------------ what has changed


def damage(folder, name):
    if name == "left out":
        return shutil.rmtree(folder / "data" / "train")
    path = folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    return path.write_bytes(bytes(content))


DAMAGES = ["data/train/source/ids.bin", "data/valid.target.txt", "data/source.tokenizer.json", "left out"]


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(ready, numbers, model, tmp_path, name):
    """Even if the file can still be read: one changed bit in the ids."""
    folder = shutil.copytree(ready, tmp_path / "ready")
    damage(folder, name)
    expected = "data/train/.*is missing" if name == "left out" else f"{name}: damaged, or changed since it was written"
    with pytest.raises(FormatError, match=expected):
        numbers.learn(tmp_path / "run", data=folder, **model)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def stopped_once(
    ready: Path, numbers: Numbers, model: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    output, polls = tmp_path_factory.mktemp("stopped") / "run", iter([None] * 5 + [signal.SIGINT])
    with pytest.raises(Interrupted):
        numbers.learn(output, data=ready, stop_signal=lambda: next(polls), **model)
    return output


@pytest.fixture
def stopped(stopped_once: Path, ready: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A run stopped after update 4, and a copy of its text, which may be changed."""
    return shutil.copytree(stopped_once, tmp_path / "run"), shutil.copytree(ready, tmp_path / "ready")


@pytest.mark.parametrize("name", [*DAMAGES, "prepared.json"])
def test_resume_looks_again(stopped, numbers, name):
    run, folder = stopped
    damage(folder, name)
    with pytest.raises(FormatError, match=r"has changed|is missing|damaged"):
        numbers.learn(run, data=folder)


def test_resume_ends_as_the_run_that_was_not_stopped_even_if_the_text_has_moved(stopped, whole, numbers):
    run, folder = stopped
    with pytest.raises(FormatError, match="no such folder; give as --data"):
        numbers.learn(run, data=folder.with_name("moved"))
    numbers.learn(run, data=folder.rename(folder.with_name("moved")))
    newest = "checkpoints/00000006"
    assert numbers.contents(run / newest) == numbers.contents(whole / newest)
    assert (run / "log.jsonl").read_bytes() == (whole / "log.jsonl").read_bytes()


def test_resume_finds_the_text_where_it_was(stopped_once, whole, numbers, tmp_path):
    run = shutil.copytree(stopped_once, tmp_path / "run")
    numbers.learn(run)
    assert (run / "log.jsonl").read_bytes() == (whole / "log.jsonl").read_bytes()


def test_resume_refuses_other_text_that_is_whole(stopped, prepare, numbers, text):
    run, folder = stopped
    prepare(folder.with_name("other"), **{**text, "seed": 5})
    with pytest.raises(FormatError, match="not the text that this run was begun with"):
        numbers.learn(run, data=folder.with_name("other"))


def test_a_run_with_its_own_text_does_not_take_another(whole, ready, numbers):
    with pytest.raises(ConfigurationError, match="data was not given, now"):
        numbers.learn(whole, data=ready)


def test_a_folder_of_version_1_is_read(numbers, model, tmp_path):
    """It has no manifest, but the SHA-256 of each file in prepared.json."""
    folder = shutil.copytree(Path(__file__).parent.parent / "run_folders" / "prepared-v1", tmp_path / "ready")
    assert numbers.learn(tmp_path / "run", data=folder, **model).updates == SHORT["updates"]
    damage(folder, "data/train/source/ids.bin")
    with pytest.raises(FormatError, match=r"ids\.bin: has changed since it was written"):
        numbers.learn(tmp_path / "other", data=folder, **model)


def test_a_folder_without_its_manifest_is_refused(ready, numbers, model, tmp_path):
    folder = shutil.copytree(ready, tmp_path / "ready")
    (folder / "manifest.json").unlink()
    with pytest.raises(FormatError, match=r"manifest\.json: is missing or damaged"):
        numbers.learn(tmp_path / "run", data=folder, **model)


# ------------------------------------------------------------------------------------------ making it


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"format_version": 9}'])
def test_a_manifest_that_is_none(ready, prepare, numbers, model, text, tmp_path, content):
    folder = shutil.copytree(ready, tmp_path / "ready")
    (folder / "prepared.json").write_bytes(content)
    for work in (lambda: numbers.learn(tmp_path / "run", data=folder, **model), lambda: prepare(folder, **text)):
        with pytest.raises(FormatError, match=r"prepared\.json: damaged.*prepare the text again"):
            work()


@pytest.mark.parametrize("place", ["nowhere", "."])
def test_data_that_are_none(numbers, model, tmp_path, place):
    with pytest.raises(FormatError, match="what `multihead prepare --output` made"):
        numbers.learn(tmp_path / "run", data=tmp_path / place, **model)


def test_doing_it_again_says_that_it_is_done(ready, prepare, numbers, text):
    before, said = numbers.contents(ready), []
    assert len(prepare(ready, said, **text).train) == 580
    assert said == [f"{ready}: is prepared, with 580 training pairs"]
    with pytest.raises(ConfigurationError, match="held_out was 20, now 30"):
        prepare(ready, **{**text, "held_out": 30})
    assert numbers.contents(ready) == before


def test_a_setting_that_is_left_out_is_another_one(ready, prepare, numbers, text):
    before, said = numbers.contents(ready), []
    with pytest.raises(ConfigurationError, match="held_out was 20, now not given"):
        prepare(ready, **{name: value for name, value in text.items() if name != "held_out"})
    prepare(ready, said)  # the output alone
    assert said == [f"{ready}: is prepared, with 580 training pairs"]
    assert numbers.contents(ready) == before


@pytest.mark.parametrize("side", ["target", "valid_source"])
def test_text_that_has_changed_since_is_named(prepare, numbers, tmp_path, side):
    files = {name: Path(shutil.copy(path, tmp_path)) for name, path in {**numbers.train, **numbers.valid}.items()}
    wishes = {**files, "vocab_size": 320}
    prepare(tmp_path / "ready", **wishes)
    before, content, said = numbers.contents(tmp_path / "ready"), files[side].read_bytes(), []
    files[side].write_bytes(b"X" + content[1:])
    with pytest.raises(ConfigurationError, match=rf"prepared from .*{files[side].name}, and that file has changed"):
        prepare(tmp_path / "ready", **wishes)
    assert numbers.contents(tmp_path / "ready") == before
    files[side].unlink()  # missing files cannot be compared
    prepare(tmp_path / "ready", said, **wishes)
    assert said[-1].endswith(" training pairs")


@pytest.fixture
def tables(tmp_path) -> dict[str, Any]:
    """Settings for two small files of pairs, named by a pattern, and a file of terms."""
    for name in ("a", "b"):
        rows = (f"ein Hund {n} aus {name}\ta dog {n} of {name}\n" for n in range(60))
        (tmp_path / f"{name}.tsv").write_text("".join(rows), encoding="utf-8", newline="\n")
    (tmp_path / "terms.txt").write_text("Hund\tdog\n", encoding="utf-8", newline="\n")
    return {"source": tmp_path / "?.tsv", "terms": tmp_path / "terms.txt", "vocab_size": 320, "held_out": 5}


def test_terms_that_have_changed_since_are_named(prepare, tables, tmp_path):
    said = []
    prepare(tmp_path / "ready", **tables)
    tables["terms"].write_text("Hund\thound\n", encoding="utf-8", newline="\n")
    with pytest.raises(ConfigurationError, match=r"prepared from .*terms\.txt, and that file has changed"):
        prepare(tmp_path / "ready", **tables)
    tables["terms"].unlink()
    prepare(tmp_path / "ready", said, **tables)
    assert said[-1].endswith("is prepared, with 115 training pairs")
    with pytest.raises(DataError, match=r"terms\.txt.*there is no such file"):
        prepare(tmp_path / "new", **tables)


def test_a_file_that_the_pattern_matches_by_now_is_named(prepare, tables, tmp_path):
    said = []
    prepare(tmp_path / "ready", **tables)
    shutil.copy(tmp_path / "a.tsv", tmp_path / "c.tsv")
    with pytest.raises(ConfigurationError, match=r"prepared without .*c\.tsv, which the settings name now"):
        prepare(tmp_path / "ready", **tables)
    for name in "abc":
        (tmp_path / f"{name}.tsv").unlink()
    prepare(tmp_path / "ready", said, **tables)
    assert said[-1].endswith("is prepared, with 115 training pairs")


def test_the_list_of_what_was_left_out_is_no_new_text(prepare, tables, tmp_path):
    tables["source"] = tmp_path / "**" / "*.tsv"
    prepare(tmp_path / "ready", **tables)
    assert prepare(tmp_path / "ready", **tables).config.pairs == 115


def test_folders_are_not_confused(ready, whole, prepare, numbers, text, model):
    with pytest.raises(ConfigurationError, match=r"holds what `multihead prepare` wrote, not a run.*--data"):
        numbers.learn(ready, **text, **model)
    with pytest.raises(ConfigurationError, match="holds a run, not what `multihead prepare` wrote"):
        prepare(whole, **text)


class Killed(BaseException):
    """Simulates a killed process: nothing is done afterwards."""


@pytest.mark.parametrize("place", ["open_prepared", "_report_left_out", "write_text"])
def test_killed_anywhere_it_is_made_anew(ready, prepare, numbers, text, model, tmp_path, monkeypatch, place):
    def dies(*_, **__):
        for victim, method in ((work_folder, "_empty"), (work_folder.Path, "unlink"), (work_folder.Path, "rmdir")):
            patch.setattr(victim, method, lambda *_, **__: None)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(preparation, place, dies)
        with pytest.raises(Killed):
            prepare(tmp_path / "ready", **text)
    assert (tmp_path / "ready").is_dir()
    with pytest.raises(FormatError, match="nothing was prepared here to the end"):
        numbers.learn(tmp_path / "run", data=tmp_path / "ready", **model)
    prepare(tmp_path / "ready", **text)
    assert numbers.contents(tmp_path / "ready") == numbers.contents(ready)


@pytest.mark.parametrize("moment", [(3, 1, 2, 9), (5, 7, 4, 3, 5, 8)])
def test_killed_again_and_again_it_ends_as_if_it_had_not_been(
    ready, prepare, numbers, text, tmp_path, monkeypatch, moment
):
    """Between any two steps of storing: shards joined, the journal written, stores renamed, the manifest written."""
    monkeypatch.setattr(shards, "SHARD", 100)
    monkeypatch.setattr(journal, "_SECONDS", -1.0)
    steps = [(shards.Joiner, "append"), (journal.Journal, "sync"), (store_writers, "_commit"), (work_folder, "write")]

    def count(place, name):
        work = getattr(place, name)

        def counted(*given, **named):
            left[0] -= 1
            if not left[0]:
                patch.setattr(work_folder, "_empty", lambda *_: None)
                patch.setattr(work_folder.Path, "unlink", lambda *_, **__: None)
                patch.setattr(shutil, "rmtree", lambda *_, **__: None)
                raise Killed
            return work(*given, **named)

        patch.setattr(place, name, counted)

    for number in moment:
        left = [number]
        with monkeypatch.context() as patch:
            for place, name in steps:
                count(place, name)
            with pytest.raises(Killed):
                prepare(tmp_path / "ready", **text)
    prepare(tmp_path / "ready", **text)
    assert numbers.contents(tmp_path / "ready") == numbers.contents(ready)


@pytest.mark.parametrize("there", [False, True])
def test_what_cannot_be_leaves_nothing_behind(prepare, numbers, tmp_path, there):
    output = tmp_path / "deep" / "ready"
    if there:
        output.mkdir(parents=True)
    before = numbers.contents(tmp_path)
    for wishes, error in (({"vocab_size": 100}, ConfigurationError), ({"source": "nowhere"}, DataError)):
        with pytest.raises(error):
            prepare(output, **{**numbers.train, **wishes})
    with pytest.raises(ConfigurationError, match="output missing"):
        prepare(**numbers.train)
    assert numbers.contents(tmp_path) == before


def test_a_signal_between_two_shards_stops_it_and_the_same_command_goes_on(
    ready, prepare, numbers, text, tmp_path, monkeypatch
):
    monkeypatch.setattr(shards, "SHARD", 100)
    polls, said = iter([None, None, signal.SIGTERM]), []
    with pytest.raises(
        Interrupted, match=r"3\d\d of 600 pairs are done; run the same command again to continue"
    ) as stop:
        prepare(tmp_path / "ready", stop_signal=lambda: next(polls), **text)
    assert stop.value.exit_status == 143
    read = [record.number for record in shards_read(monkeypatch, lambda: prepare(tmp_path / "ready", said, **text))]
    assert read == [3, 4, 5]
    assert re.match(r"going on after 3\d\d of 600 pairs", said[0])
    assert numbers.contents(tmp_path / "ready") == numbers.contents(ready)


def shards_read(monkeypatch, work):
    """The shards that are encoded while some work is done."""
    seen, encode = [], shards.Encoder.__call__
    with monkeypatch.context() as patch:
        patch.setattr(shards.Encoder, "__call__", lambda self, shard: (seen.append(shard), encode(self, shard))[1])
        work()
    return seen


@pytest.mark.parametrize("change", [{"held_out": 21}, {"max_tokens": 9}, "text", "journal"])
def test_what_was_begun_otherwise_is_begun_anew(ready, prepare, numbers, text, tmp_path, monkeypatch, change):
    monkeypatch.setattr(shards, "SHARD", 100)
    files = {side: shutil.copy(path, tmp_path) for side, path in numbers.train.items()}
    polls, said, wishes = iter([None, signal.SIGTERM]), [], {**text, **files}
    with pytest.raises(Interrupted):
        prepare(tmp_path / "ready", stop_signal=lambda: next(polls), **wishes)
    if change == "text":
        with Path(files["source"]).open("r+b") as stream:
            stream.write(b"EINS")
    elif change == "journal":
        (tmp_path / "ready" / work_folder.JOURNAL).write_bytes(b"{")
    else:
        wishes |= change
    prepare(tmp_path / "ready", said, **wishes)
    assert said[0].startswith("learning a vocabulary")
    prepare(tmp_path / "anew", **wishes)
    one, other = (
        numbers.contents(tmp_path / name, without=("prepared.json", "manifest.json")) for name in ("ready", "anew")
    )
    assert one == other


def test_a_store_that_lost_its_end_is_refused_and_the_next_call_begins_anew(prepare, text, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "SHARD", 100)
    polls = iter([None, signal.SIGTERM])
    with pytest.raises(Interrupted):
        prepare(tmp_path / "ready", stop_signal=lambda: next(polls), **text)
    (ids,) = (tmp_path / "ready").rglob(".source.partial/ids.bin")
    ids.write_bytes(ids.read_bytes()[:-2])
    with pytest.raises(FormatError, match=r"ids\.bin: has fewer than .* begin again"):
        prepare(tmp_path / "ready", **text)
    assert list((tmp_path / "ready").iterdir()) == []


def test_the_manifest_has_every_file(ready):
    manifest = json.loads((ready / "prepared.json").read_text(encoding="utf-8"))
    files = {path.relative_to(ready).as_posix() for path in (ready / "data").rglob("*") if path.is_file()}
    assert manifest["files"].keys() == files
    assert manifest["asked"]["held_out"] == 20
    assert all(manifest["reasons"].values())
