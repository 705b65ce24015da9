"""Folders for transformers: its classes give our logits, translations and token ids."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from versions import SURPLUS_TOKENS, searched_vocabulary

from multihead.decoding.search import Search
from multihead.interop.certificate import Terms, certify
from multihead.interop.formats import onnx
from multihead.interop.formats import transformers as format_
from multihead.interop.formats.opening import read_foreign
from multihead.interop.formats.parts import Languages, TranslatorParts
from multihead.interop.lines import Lines
from multihead.interop.our_side import OurSide
from multihead.interop.runtimes import Rules
from multihead.interop.runtimes.transformers import TransformersRuntime, open_folder

MakeParts = Callable[..., TranslatorParts]

LINES = Lines(("Ein Hund rennt.", "Zwei Hunde rennen!", "12 Bälle im Park", "日本 </s>"), "four lines")

NETWORKS: dict[str, dict[str, Any]] = {
    "marian": {"norm": "post", "output_bias": True},
    "marian, untied": {"norm": "post", "tie_output": False, "feed_forward": "silu"},
    "marian, two vocabularies": {"norm": "post", "shared": False, "sinusoid": "halves"},
    "marian, two vocabularies, untied": {"norm": "post", "shared": False, "tie_output": False},
    "bart": {"norm": "post", "embedding_norm": True, "embedding_scale": "projection", "attention_bias": False},
    "bart, learned": {"norm": "post", "embedding_norm": True, "positions": "learned", "max_positions": 40},
    "pegasus": {"norm": "pre", "sinusoid": "fairseq"},
    "pegasus, untied": {"norm": "pre", "tie_output": False, "attention_bias": False, "decoder_layers": 1},
    "pegasus, two vocabularies": {"norm": "pre", "shared": False, "feed_forward": "gelu", "output_bias": True},
    "pegasus, learned": {"norm": "pre", "positions": "learned", "max_positions": 40, "embedding_scale": "none"},
    "mbart": {"norm": "pre", "embedding_norm": True, "embedding_scale": "projection"},
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=searched_vocabulary if name.startswith("marian, two") else ()) for name in NETWORKS],
)
def test_equal_logits_and_translations(tmp_path: Path, make_parts: MakeParts, name: str) -> None:
    parts = make_parts(**NETWORKS[name])
    assert format_.refusals(parts) == []
    format_.write(parts, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == name.split(",")[0]
    certificate = certify(parts, open_folder(tmp_path, parts, ""), Terms("transformers", LINES, beam=3, allowed=1e-4))
    assert certificate.state == "passed", certificate.reason


@pytest.mark.parametrize("quantization", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["marian", "pegasus, two vocabularies"])
def test_half_the_size(tmp_path: Path, make_parts: MakeParts, name: str, quantization: str) -> None:
    parts = make_parts(**NETWORKS[name])
    format_.write(parts, tmp_path, quantization)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert model.lm_head.weight.dtype == getattr(torch, quantization)
    runtime, rounded = open_folder(tmp_path, parts, quantization), format_.represented(parts, quantization)
    certificate = certify(rounded, runtime, Terms("transformers", LINES, beam=3, allowed=1e-4))
    assert certificate.state == "passed", certificate.reason


@pytest.mark.parametrize("name", ["marian", "bart", "pegasus", "mbart", "pegasus, two vocabularies"])
def test_every_weight_is_used_and_saved_again(tmp_path: Path, make_parts: MakeParts, name: str) -> None:
    parts = make_parts(**NETWORKS[name])
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    format_.write(parts, first)
    model, info = AutoModelForSeq2SeqLM.from_pretrained(first, output_loading_info=True)
    positions = {f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")}
    assert set(info["missing_keys"]) <= positions, info
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    model.save_pretrained(second)
    pair = [TransformersRuntime(folder, parts, with_tokenizers=False) for folder in (first, second)]
    scores = [runtime.score([[270, 280, 3]], [[265, 275, 3]]) for runtime in pair]
    assert scores[0] == scores[1]


def test_ids_of_every_text(tmp_path: Path, make_parts: MakeParts, hard_texts: list[str]) -> None:
    parts = make_parts(shared=False)
    format_.write(parts, tmp_path)
    for folder, tokenizer in (
        (tmp_path, parts.source_tokenizer),
        (tmp_path / "target_tokenizer", parts.target_tokenizer),
    ):
        theirs = AutoTokenizer.from_pretrained(folder)
        ids = tokenizer.encode_batch(hard_texts)
        assert theirs(hard_texts)["input_ids"] == [[*row, tokenizer.eos_id] for row in ids]
        assert theirs.batch_decode([[2, *row, 3, 0] for row in ids], skip_special_tokens=True) == hard_texts
        specials = (theirs.pad_token_id, theirs.unk_token_id, theirs.bos_token_id, theirs.eos_token_id)
        assert specials == (0, 1, 2, 3)


@pytest.mark.parametrize("shared", [True, pytest.param(False, marks=searched_vocabulary)])
def test_the_code_of_the_card(
    tmp_path: Path,
    make_parts: MakeParts,
    shared: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    parts = replace(make_parts(shared=shared), generation=Search(beam=3, max_length=8))
    format_.write(parts, tmp_path)
    code = re.findall(r"```python\n(.*?)```", (tmp_path / "README.md").read_text(), re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    exec(code.replace("...", LINES.texts[0]))
    runtime = open_folder(tmp_path, parts, "")
    source = [*parts.source_tokenizer.encode(LINES.texts[0]), 3]
    search = parts.generation.model_copy(update={"max_length": 8 + SURPLUS_TOKENS})
    ids = runtime.translate([source], search)[0]
    assert capsys.readouterr().out.strip() == str([parts.target_tokenizer.decode(ids)])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"kv_heads": 1}, "grouped queries"),
        ({"positions": "rotary"}, "rotary positions"),
        ({"positions": "alibi"}, "linear positions, ALiBi"),
        ({"norm": "pre", "block": "parallel"}, "parallel blocks"),
        ({"positions": "shaw"}, "relative positions of keys and values"),
        ({"query_key_norm": "rms"}, "norms of queries and keys"),
        ({"encoder_window": 9}, "encoder_window 9"),
        ({"positions": "none", "norm": "post"}, "no positions with post-norm"),
        ({"key_dim": 4}, "key_dim 4"),
        ({"feed_forward": "swiglu"}, "swiglu"),
        ({"norm": "post", "final_norm": True}, "final_norm True"),
        ({"norm": "post", "positions": "learned"}, "learned positions"),
        ({"norm": "post", "sinusoid": "marian"}, "'marian'"),
        ({"source_end": False}, "the end symbol of a source"),
    ],
)
def test_what_no_class_carries_is_named(make_parts: MakeParts, settings: dict[str, Any], reason: str) -> None:
    (found,) = format_.refusals(make_parts(**settings))
    assert reason in found


def test_another_length_penalty_is_refused_where_it_matters(make_parts: MakeParts) -> None:
    parts = make_parts()
    for alpha, reasons in ((0.6, ["divides by ((5 + |y|) / 6)^0.6"]), (0.0, [])):
        other = replace(parts, generation=Search(alpha=alpha, length_penalty="wu"))
        for found in (format_.refusals(other), onnx.refusals(other)):
            assert len(found) == len(reasons)
            assert all(reason in one for reason, one in zip(reasons, found, strict=True))


def test_the_search_comes_back(tmp_path: Path, make_parts: MakeParts) -> None:
    """Lengths there count the begin symbol, too."""
    for place, lengths in enumerate(((0, 2), (1, 9), (5, 30))):
        search = Search(beam=2, alpha=0.6, min_length=lengths[0], max_length=lengths[1])
        folder = tmp_path / str(place)
        folder.mkdir()
        format_.write(replace(make_parts(), generation=search), folder)
        assert read_foreign(folder, Languages()).generation == search


def test_the_shortest_translation_is_ours(tmp_path: Path, make_parts: MakeParts) -> None:
    """Of a model that would end at once."""
    parts = make_parts(norm="post", output_bias=True)
    bias = parts.weights["output.bias"].detach().clone()
    bias[parts.target_tokenizer.eos_id] = 100.0
    search = Search(beam=1, min_length=3, max_length=9)
    parts = replace(parts, weights={**parts.weights, "output.bias": bias}, generation=search)
    format_.write(parts, tmp_path)
    (row,) = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).generate(torch.tensor([[270, 280, 3]])).tolist()
    expected = OurSide(parts).translate([[270, 280, 3]], Rules(search, parts.target_tokenizer.forbidden_in_output))
    assert [row[1:]] == expected
    assert len(expected[0]) == 3 + 1


def test_the_output_bias_of_entries_that_do_not_exist(tmp_path: Path, make_parts: MakeParts) -> None:
    """With one size for two vocabularies, the surplus outputs have no probability."""
    parts = make_parts(norm="pre", shared=False)
    format_.write(parts, tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    logits = model(input_ids=torch.tensor([[270, 3]]), decoder_input_ids=torch.tensor([[2]])).logits
    assert logits.shape[-1] > len(parts.target_tokenizer)
    assert not logits.softmax(-1)[..., len(parts.target_tokenizer) :].any()
