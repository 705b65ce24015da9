"""``multihead attention``: the picture, the table and the numbers equal those of the Python call."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from multihead import Translator
from multihead.inspection.plots import attention_map, attention_panels
from multihead.translating.attention import AttentionMap

SENTENCE = "eins zwei drei"


@pytest.fixture(scope="module")
def seen(trained: Path) -> AttentionMap:
    return Translator.load(trained).attention(SENTENCE)


def test_the_picture_of_every_head_and_of_one(call, trained, seen, tmp_path):
    view = seen.view()
    attention_panels(view.weights, seen.source, seen.target, tmp_path / "expected.png", title=view.title)
    ended = call("attention", trained, SENTENCE, "-o", tmp_path / "all.png")
    assert (ended.status, ended.out, ended.err) == (0, b"", "")
    assert (tmp_path / "all.png").read_bytes() == (tmp_path / "expected.png").read_bytes()
    one = seen.view("decoder", 1, 2)
    attention_map(one.weights, seen.given, seen.target, tmp_path / "expected.svg", title=one.title)
    flags = ("--kind", "decoder", "--layer", 1, "--heads", 2)
    assert call("attention", trained, SENTENCE, *flags, "--output", tmp_path / "one.svg").status == 0
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "expected.svg").read_bytes()


def test_numbers_for_programs(call, trained, seen):
    found = json.loads(call("attention", trained, SENTENCE, "--json", "--heads", "mean").text)
    assert found["source"] == SENTENCE
    assert found["translation"] == seen.translation
    assert (found["rows"], found["columns"]) == (seen.target, seen.source)
    assert torch.equal(torch.tensor(found["weights"]), seen.weights.cross[-1].mean(1))
    given = json.loads(call("attention", trained, SENTENCE, "--json", "--translation", "two").text)
    assert given["translation"] == "two"
    assert len(given["weights"][0]) == len(given["rows"]) < len(found["rows"])


def test_a_table_for_the_terminal_needs_no_package(call, trained, seen, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    lines = call("attention", trained, SENTENCE, "--text", "--kind", "encoder").text.splitlines()
    assert lines[0] == seen.translation
    assert lines[1] == "within the source, layer 1 of 1, 2 heads, in percent"
    assert [line for line in lines if line.startswith("head")] == ["head 1", "head 2"]
    assert lines[4].split() == seen.source
    ended = call("attention", trained, SENTENCE, "-o", tmp_path / "map.png")
    assert ended.status == 1
    assert 'pip install "multihead[plot]"' in ended.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "give -o FILE for a picture, --text or --json"),
        (("--text", "--json"), "give one of them"),
        (("-o", "map.jpg"), "ends in .png, .svg or .pdf"),
        (("--text", "--layer", 2), "layer: there are 1"),
        (("--text", "--heads", 3), "heads: there are 2"),
        (("--text", "--heads", "some"), "--heads: expected all, mean or the number of a head, got some"),
    ],
)
def test_what_cannot_be_shown(call, trained, flags, said):
    ended = call("attention", trained, SENTENCE, *flags)
    assert ended.status == 2
    assert said in ended.err
    assert ended.err.count("\n") == 1


def test_no_picture_is_overwritten_and_no_empty_sentence_is_shown(call, trained, tmp_path):
    (tmp_path / "map.png").write_text("mine")
    ended = call("attention", trained, SENTENCE, "-o", tmp_path / "map.png")
    assert ended.status == 2
    assert "exists already" in ended.err
    assert (tmp_path / "map.png").read_text() == "mine"
    assert "empty sentence" in call("attention", trained, " ", "--text").err
