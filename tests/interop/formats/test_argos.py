"""Argos Translate packages: installed and translated with by Argos Translate itself, without a network."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from multihead.interop.certificate import Terms, certify
from multihead.interop.formats import argos
from multihead.interop.formats.parts import TranslatorParts
from multihead.interop.lines import Lines
from multihead.interop.runtimes import TextRuntime
from multihead.interop.runtimes.argos import open_folder

for package in ("argostranslate", "onnx", "sentencepiece"):
    pytest.importorskip(package)

MakeParts = Callable[..., TranslatorParts]


LINES = Lines(("Ein Hund rennt. Zwei Hunde rennen!", "Ein Mädchen spielt mit 12 Bällen", "drei"), "three lines")


def test_argos_translate_installs_the_package_and_translates_as_we_do(make_parts: MakeParts, tmp_path: Path) -> None:
    parts = make_parts(norm="pre")
    assert argos.refusals(parts) == []
    argos.write(parts, tmp_path, "float32")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "translate-de_en-1_0.argosmodel"]
    runtime = open_folder(tmp_path, parts, "float32")
    assert isinstance(runtime, TextRuntime)
    found = certify(parts, runtime, Terms("argos", LINES, 2, inexact_tokenizer=argos.inexact(parts)))
    assert found.state == "passed", found.reason
    assert found.texts is not None
    assert found.texts.equal + found.texts.near_ties == 3
    assert found.tokenizer is not None
    assert found.tokenizer.equal_ids == 3


def test_model_and_tokenizer_of_the_package_are_ours(make_parts: MakeParts, tmp_path: Path) -> None:
    parts = make_parts(norm="pre")
    argos.write(parts, tmp_path, "float32")
    whole = open_folder(tmp_path, parts, "float32")

    class WithoutTexts:
        name, version, positions = whole.name, whole.version, whole.positions
        rules, encode, decode, score, translate = whole.rules, whole.encode, whole.decode, whole.score, whole.translate

    found = certify(parts, WithoutTexts(), Terms("argos", LINES, 2))
    assert found.state == "passed", found.reason
    assert found.scores is not None
    assert found.texts is None


def test_the_package_has_what_argos_translate_looks_for(make_parts: MakeParts, tmp_path: Path) -> None:
    argos.write(make_parts(), tmp_path, "int8")
    with zipfile.ZipFile(tmp_path / "translate-de_en-1_0.argosmodel") as package:
        names = {name.partition("/")[2] for name in package.namelist()}
        metadata = json.loads(package.read("translate-de_en-1_0/metadata.json"))
    assert names >= {"metadata.json", "sentencepiece.model", "minisbd/de.onnx", "model/model.bin", "model/config.json"}
    assert (metadata["from_code"], metadata["to_code"]) == ("de", "en")


def test_what_a_package_cannot_carry_is_named(make_parts: MakeParts) -> None:
    assert "a tokenizer for each language" in argos.refusals(make_parts(shared=False))[0]
    (reason,) = argos.refusals(replace(make_parts(), target_language=None))
    assert "give --source-language and --target-language" in reason
