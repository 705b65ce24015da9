"""Removing a head equals setting its output to zero, in every search; changes are differences of two scores."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from multihead import Translator, explain
from multihead.errors import ConfigurationError, InputError
from multihead.inspection.capture import attentions, capture
from multihead.inspection.explanation import explanation_text
from multihead.inspection.replacements import zero_heads
from multihead.judging.heads import Head, all_heads, head_importance, parse_head, without_heads, work
from multihead.judging.score import Perplexity, score
from multihead.metrics.scores import score as bleu_of
from multihead.models.config import RecurrentConfig
from multihead.models.recurrent.network import RecurrentTranslator

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = ["encoder.1.head.1", "encoder.1.head.2", "decoder.1.head.1", "decoder.1.head.2", "cross.1.head.1",
         "cross.1.head.2"]  # fmt: skip


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return Translator.load(trained)


@pytest.fixture(scope="module")
def texts(numbers: Any) -> tuple[list[str], list[str]]:
    sources, targets = zip(*numbers.pairs(12, 31), strict=True)
    return [*sources, "", "eins"], [*targets, "", "two"]


def test_heads_have_names(translator: Translator) -> None:
    heads = all_heads(translator.bundle.model)
    assert [str(head) for head in heads] == NAMES
    assert [parse_head(name) for name in NAMES] == heads
    assert list(dict.fromkeys(head.module for head in heads)) == list(attentions(translator.bundle.model))


@pytest.mark.parametrize("name", NAMES)
def test_left_out_is_captured_as_zero(translator: Translator, texts: Any, name: str) -> None:
    """Scores and step-by-step search under `capture`, the compiled search of the copy."""
    head, model = parse_head(name), translator.bundle.model
    before = {key: value.clone() for key, value in model.state_dict().items()}
    copied = without_heads(translator, [head])
    assert copied.compiled
    with capture(model, heads={head.module: zero_heads(head.head - 1)}):
        assert not translator.compiled
        expected = translator.translate(texts[0][:4])
        scores = [one.log_probability for one in score(translator, *texts)]
    assert copied.translate(texts[0][:4]) == expected
    found = [one.log_probability for one in score(copied, *texts)]
    assert found == pytest.approx(scores, abs=1e-4)
    assert found != pytest.approx([one.log_probability for one in score(translator, *texts)], abs=1e-4)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in before.items())


def test_a_table_of_all_heads(translator: Translator, texts: Any) -> None:
    counted: list[int] = []
    searched = translator.searching(beam=2)
    found = head_importance(searched, *texts, bleu=2, language="en", progress=counted.append)
    assert sum(counted) == work(len(texts[0]), 6, 2) == 10 * len(texts[0])
    assert sorted(one.head for one in found.heads) == sorted(NAMES)
    changes = [one.loss_change for one in found.heads]
    assert changes == sorted(changes, reverse=True)
    whole = Perplexity()
    whole.add(score(translator, *texts))
    assert (found.loss, found.tokens) == (whole.loss, whole.tokens)
    for place, one in enumerate(found.heads):
        copied = without_heads(searched, [parse_head(one.head)])
        total = Perplexity()
        total.add(score(copied, *texts))
        assert (one.loss, one.loss_change) == (total.loss, total.loss - whole.loss)
        assert (one.bleu is None) == (place >= 2)
    first, references = found.heads[0], texts[1]
    best = bleu_of(searched.translate(texts[0]), references, "en")
    cut = bleu_of(without_heads(searched, [parse_head(first.head)]).translate(texts[0]), references, "en").bleu
    assert (found.bleu, found.signature) == (best.bleu, best.bleu_signature)
    assert (first.bleu, first.bleu_change) == (cut, cut - best.bleu)
    assert str(found).splitlines()[0].split() == ["without", "loss", "change", "BLEU", "change"]


def test_the_command_prints_the_table(call: Any, trained: Path, translator: Translator, numbers: Any) -> None:
    files = numbers.test
    flags = ["heads", trained, "--source", files["source"], "--target", files["target"], "--quiet"]
    chosen = ["--head", NAMES[4], "--head", NAMES[1], "--lines", 6]
    sources, targets = (files[side].read_text(encoding="utf-8").splitlines()[:6] for side in ("source", "target"))
    heads = [parse_head(NAMES[4]), parse_head(NAMES[1])]
    expected = head_importance(translator.searching(beam=1), sources, targets, heads, bleu=2, language="en")
    ended = call(*flags, *chosen, "--bleu", "all", "--beam", 1, "--json")
    assert (ended.status, ended.err) == (0, "")
    assert json.loads(ended.text) == {"model": str(trained), **expected.as_dict()}
    plain = head_importance(translator, sources, targets)
    assert call(*flags, "--lines", 6).text == f"{plain}\n"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--head", "encoder.2.5"), "expected a head as encoder.2.head.5"),
        (("--head", "cross.1.head.3"), "cross.1.head.3: there are layers 1 to 1 with heads 1 to 2"),
        (("--bleu", "few"), "--bleu: expected a number of heads or all, got few"),
        (("--lines", "0"), "--lines: expected at least 1, got 0"),
    ],
)
def test_what_the_command_refuses(call: Any, trained: Path, numbers: Any, flags: Any, said: str) -> None:
    files = numbers.test
    ended = call("heads", trained, "--source", files["source"], "--target", files["target"], "--quiet", *flags)
    assert (ended.status, ended.out) == (2, b"")
    assert said in ended.err
    assert ended.err.count("\n") == 1


def test_what_has_no_heads(translator: Translator) -> None:
    size = len(translator.bundle.target_tokenizer)
    recurrent = RecurrentTranslator(RecurrentConfig(source_vocab=size, target_vocab=size, width=8))
    with pytest.raises(ConfigurationError, match="RecurrentTranslator has no heads"):
        all_heads(recurrent)
    with pytest.raises(ConfigurationError, match="this is an ensemble"):
        without_heads(translator.ensemble([translator]), [Head("cross", 1, 1)])
    with pytest.raises(InputError, match="got none"):
        head_importance(translator, [], [])
    with pytest.raises(InputError, match="every line is empty"):
        head_importance(translator, [""], [""])
    with pytest.raises(ConfigurationError, match="at least 0, got -1"):
        head_importance(translator, ["eins"], ["one"], bleu=-1)


def test_an_explanation_without_a_head(call: Any, trained: Path, translator: Translator) -> None:
    head, sentence = parse_head("cross.1.head.2"), "eins sieben"
    copied = without_heads(translator, [head])
    explained = explain(translator, sentence, left_out=[head, head])
    content, plain = explained.content(), explain(copied, sentence).content()
    whole = content.pop("whole")
    given = score(translator, [sentence], [explained.translation])[0]
    assert whole["translation"] == translator.translate([sentence])[0]
    assert math.isclose(whole["log_probability"], given.log_probability, abs_tol=1e-4)
    assert content.pop("left_out") == [str(head)]
    assert content.pop("model") == f"{plain.pop('model')}, without {head}"
    assert (plain.pop("whole"), plain.pop("left_out")) == (None, [])
    assert content == plain
    ended = call("explain", trained, sentence, "--without-head", head)
    assert ended.text == explanation_text(explained.content()) + "\n"
    assert f"without {head}: log p {explained.log_probability:.2f}" in ended.text
    assert f"without {head}: log p {explained.log_probability:.2f}" in explained.page()
