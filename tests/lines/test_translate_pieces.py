"""Evaluation on engines: the scores and the bytes of one process."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from multihead import Translator
from multihead.errors import ConfigurationError
from multihead.lines import translate_pieces
from multihead.lines.translate_pieces import TranslatedPiece
from multihead.lines.translate_shards import Models, decides
from multihead.lines.windows import LineOptions
from multihead.translating.request import TranslationRequest

if TYPE_CHECKING:
    from tests.conftest import Numbers

pytestmark = pytest.mark.usefixtures("one_thread")


def evaluated(call: Any, model: Path, numbers: Numbers, saved: Path, *flags: object) -> tuple[dict[str, Any], bytes]:
    """Everything that an evaluation prints and writes, except the time."""
    words = (*numbers.flags(numbers.test), "--json", "--resamples", 40, "--threads", 1, "--save", saved)
    ended = call("evaluate", model, *words, *flags)
    assert ended.status == 0, ended.err
    return {**json.loads(ended.out), "seconds": 0, "err": ended.err}, saved.read_bytes()


@pytest.mark.parametrize("flags", [(), ("--beam", 3, "--mbr", "chrf"), ("--max-length", 3)])
def test_the_scores_and_the_bytes_of_one_process(
    call: Any, trained: Path, numbers: Numbers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[Any, ...]
) -> None:
    monkeypatch.setattr(translate_pieces, "PIECE", 7)
    one = evaluated(call, trained, numbers, tmp_path / "one", *flags)
    assert evaluated(call, trained, numbers, tmp_path / "engine", *flags, "--engine", "local:1") == one


@pytest.mark.proof
@pytest.mark.parametrize("flags", [(), ("--sample", 4, "--mbr", "chrf"), ("--no-repeat", 2)])
def test_processes_give_the_same(
    call: Any, trained: Path, numbers: Numbers, tmp_path: Path, flags: tuple[Any, ...]
) -> None:
    """Also of samples and of searches that are not compiled, on any engine."""
    one = evaluated(call, trained, numbers, tmp_path / "one", *flags, "--engine", "local:1")
    assert evaluated(call, trained, numbers, tmp_path / "three", *flags, "--engine", "local:3") == one


def test_a_piece_is_translated_by_the_models_that_began(trained: Path) -> None:
    models = Models(trained, threads=1)
    translator = models.load()
    options = LineOptions(TranslationRequest(translator.search_settings(beam=2)))
    decided, texts = decides(models, translator, options), ["eins zwei", "", "drei"]
    piece = pickle.loads(pickle.dumps(TranslatedPiece(models, options, decided)))
    found = [row[0].text for row in piece(texts)]
    assert found == Translator.load(trained).translate(texts, beam=2)
    with pytest.raises(ConfigurationError, match="would not translate as the machine that began the work"):
        TranslatedPiece(models, options, {**decided, "compiled": "otherwise"})(texts)


def test_an_engine_that_does_not_exist_is_refused_first(call: Any, tmp_path: Path) -> None:
    ended = call("evaluate", tmp_path / "none", "--source", "a", "--target", "b", "--engine", "local:0")
    assert ended.status == 2
    assert "--engine: expected local:N" in ended.err
