"""Imported models can be exported again: to the class that they came from, and as ONNX graphs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from multihead.interop.certificate import Terms, certify
from multihead.interop.formats import onnx, transformers
from multihead.interop.formats.opening import read_foreign
from multihead.interop.formats.parts import Languages, TranslatorParts
from multihead.interop.lines import Lines
from multihead.interop.runtimes import onnxruntime
from multihead.interop.runtimes import transformers as library

KINDS = {
    "m2m100": ("m2m_100", Languages("de", "en")),
    "nllb": ("m2m_100", Languages("deu_Latn", "eng_Latn")),
    "mbart50": ("mbart", Languages("de_DE", "en_XX")),
    "marian": ("marian", Languages()),
}


@pytest.fixture(scope="module", params=list(KINDS))
def imported(request: pytest.FixtureRequest, foreign: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    kind, languages = KINDS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    getattr(foreign, request.param)(folder)
    parts = read_foreign(folder, languages)
    short = parts.generation.model_copy(update={"length_factor": 1.0, "length_margin": 3})
    return replace(parts, generation=short), kind


def test_the_class_that_it_came_from(imported: tuple[TranslatorParts, str], foreign: Any, tmp_path: Path) -> None:
    parts, kind = imported
    assert transformers.refusals(parts) == []
    transformers.write(parts, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == kind
    lines = Lines(tuple(foreign.sentences(3)), "three lines")
    runtime = library.open_folder(tmp_path, parts, "")
    certificate = certify(parts, runtime, Terms("transformers", lines, beam=2, allowed=1e-4))
    assert certificate.state == "passed", certificate.reason


def test_onnx(imported: tuple[TranslatorParts, str], foreign: Any, tmp_path: Path) -> None:
    parts, _ = imported
    assert onnx.refusals(parts) == []
    onnx.write(parts, tmp_path)
    lines = Lines(tuple(foreign.sentences(3)), "three lines")
    runtime = onnxruntime.open_folder(tmp_path, parts, "float32")
    certificate = certify(parts, runtime, Terms("onnx", lines, beam=2, allowed=1e-4))
    assert certificate.state == "passed", certificate.reason
