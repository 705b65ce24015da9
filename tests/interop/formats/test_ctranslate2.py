"""CTranslate2 folders: the same probabilities and translations as ours, for every network that it carries."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from multihead.decoding.search import Search
from multihead.errors import MissingDependencyError
from multihead.interop.certificate import Terms, certify
from multihead.interop.formats import ctranslate2 as format
from multihead.interop.formats.ctranslate2_card import readme
from multihead.interop.formats.parts import TranslatorParts
from multihead.interop.lines import Lines
from multihead.interop.our_side import OurSide
from multihead.interop.runtimes import Rules
from multihead.interop.runtimes.ctranslate2 import open_folder
from multihead.text.foreign import SpecialIds
from multihead.text.word_pieces import WordPieceTokenizer

pytest.importorskip("ctranslate2")

LINES = Lines(("Ein Hund rennt.", "Zwei Hunde und drei", "spielt im Park mit 12 Hunden"), "three lines")

NETWORKS: dict[str, dict[str, Any]] = {
    "the paper's": {"norm_eps": 1e-3},
    "pre-norm, no norm at the end": {"norm": "pre", "final_norm": False, "feed_forward": "gelu", "sinusoid": "fairseq"},
    "SwiGLU, one key head": {"norm": "pre", "feed_forward": "swiglu", "kv_heads": 1, "attention_bias": False},
    "GEGLU, shared key heads": {"feed_forward": "geglu", "kv_heads": 2, "heads": 4, "embedding_scale": "none"},
    "ReGLU, wide heads": {"feed_forward": "reglu", "key_dim": 12, "value_dim": 12, "embedding_scale": "projection"},
    "Marian's": {"feed_forward": "silu", "output_bias": True, "sinusoid": "halves", "decoder_layers": 1},
    "learned positions": {"positions": "learned", "max_positions": 8, "embedding_norm": True, "final_norm": True},
    "no positions": {"positions": "none"},
    "rotary positions": {"positions": "rotary", "norm": "pre"},
    "rotary positions, one key head": {"positions": "rotary", "kv_heads": 1, "key_dim": 12, "value_dim": 12},
    "two vocabularies, nothing tied": {"shared": False, "tie_output": False, "norm": "pre"},
}

MakeParts = Callable[..., TranslatorParts]


@pytest.mark.parametrize("name", NETWORKS)
def test_both_sides_agree(make_parts: MakeParts, tmp_path: Path, name: str) -> None:
    parts = make_parts(**NETWORKS[name])
    assert format.refusals(parts) == []
    format.write(parts, tmp_path, "float32")
    found = certify(parts, open_folder(tmp_path, parts, "float32"), Terms("ctranslate2", LINES, 3, allowed=2e-4))
    assert found.state == "passed", found.reason


@pytest.mark.parametrize("quantization", ["int8", "int8_float16", "bfloat16"])
def test_rounded_weights_are_what_we_say(make_parts: MakeParts, tmp_path: Path, quantization: str) -> None:
    parts = make_parts(norm="pre", shared=False)
    format.write(parts, tmp_path, quantization)
    runtime, rounded = open_folder(tmp_path, parts, quantization), format.represented(parts, quantization)
    terms = Terms("ctranslate2", LINES, 3, allowed=3e-5, quantization=quantization)
    assert certify(rounded, runtime, terms).state == "passed"
    assert certify(parts, runtime, terms).state == "failed", "rounding can be measured"
    again = format.represented(rounded, quantization)
    for weight, twice in zip(rounded.weights.values(), again.weights.values(), strict=True):
        torch.testing.assert_close(weight, twice, rtol=1e-5, atol=1e-6)


def test_the_searches_of_both_sides_by_default_differ_as_stated(make_parts: MakeParts, tmp_path: Path) -> None:
    """Without a length penalty, both stop when the best translation is certain."""
    parts = make_parts()
    format.write(parts, tmp_path, "float32")
    runtime, ours = open_folder(tmp_path, parts, "float32"), OurSide(parts)
    sources = [[*ids, parts.source_tokenizer.eos_id] for ids in ours.encode(LINES.texts)]
    for alpha, stopping in ((0.0, "exact"), (1.0, "patience"), (0.6, "patience")):
        search = Search(beam=4, alpha=alpha, max_length=12)
        rules = runtime.rules(search)
        assert (rules.search.stopping, rules.unfinished_compete) == (stopping, True)
        assert ours.translate(sources, rules) == runtime.translate(sources, search)
    assert ours.translate(sources, Rules(Search(beam=1, max_length=12))) == runtime.translate(
        sources, Search(beam=1, max_length=12)
    )


def test_what_it_cannot_carry_is_named(make_parts: MakeParts) -> None:
    (reason,) = format.refusals(make_parts(key_dim=8, value_dim=12))
    assert "key_dim 8, value_dim 12" in reason
    words = WordPieceTokenizer(["<s>", "<pad>", "</s>", "<unk>", "a"], SpecialIds(1, 3, 2, 2))
    (reason,) = format.refusals(replace(make_parts(), source_tokenizer=words))
    assert reason == "a source tokenizer of the kind WordPieceTokenizer"


def test_the_settings_tell_ctranslate2_of_the_special_symbols(make_parts: MakeParts, tmp_path: Path) -> None:
    parts = make_parts(norm_eps=1e-3)
    format.write(parts, tmp_path, "float32")
    settings = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    expected = {"unk_token": "<unk>", "decoder_start_token": "<s>", "eos_token": "</s>", "layer_norm_epsilon": 1e-3}
    assert expected.items() <= settings.items()
    assert settings["add_source_eos"]
    names = json.loads((tmp_path / "shared_vocabulary.json").read_text(encoding="utf-8"))
    assert tuple(names) == parts.target_tokenizer.vocabulary


@pytest.mark.parametrize("shared", [True, False])
def test_the_example_of_the_card_translates_as_we_do(
    make_parts: MakeParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    parts = replace(make_parts(shared=shared), generation=Search(beam=2, alpha=0.5))
    format.write(parts, tmp_path, "float32")
    (example,) = re.findall(r"```python\n(.*?)```", (tmp_path / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(example.replace('["..."]', repr(list(LINES.texts))), {})
    ours, search = OurSide(parts), Search(beam=2, alpha=0.5, max_length=256, min_length=1, stopping="patience")
    sources = [[*ids, parts.source_tokenizer.eos_id] for ids in ours.encode(LINES.texts)]
    rules = Rules(search, parts.target_tokenizer.forbidden_in_output, unfinished_compete=True)
    assert printed.getvalue().count("\n") == 3
    assert printed.getvalue().splitlines() == ours.decode(ours.translate(sources, rules))


def test_another_length_penalty_is_not_given_out_as_theirs(make_parts: MakeParts, tmp_path: Path) -> None:
    def card(**search: Any) -> str:
        return readme(replace(make_parts(), generation=Search(**search)), "float32", format.POSITIONS)

    assert card(alpha=0.0, length_penalty="wu") == card(alpha=0.0)
    assert "length_penalty=0.6," in card(alpha=0.6)
    assert "length_penalty=" not in card(alpha=0.6, length_penalty="wu")
    assert "divides by ((5 + |y|) / 6)^0.6" in card(alpha=0.6, length_penalty="wu")
    format.write(make_parts(), tmp_path, "float32")
    runtime = open_folder(tmp_path, make_parts(), "float32")
    usual, other = (runtime.rules(Search(alpha=0.6, length_penalty=form)) for form in ("power", "wu"))
    assert usual.search == other.search
    assert "((5 + |y|) / 6)^alpha" in other.differences[0]
    assert other.differences[1:] == usual.differences


def test_without_the_package_the_error_names_it(
    make_parts: MakeParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(MissingDependencyError, match=r"multihead\[ctranslate2\]"):
        format.write(make_parts(), tmp_path, "float32")
