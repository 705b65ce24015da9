"""The translator: lines stay in order, batches do not matter, and incomplete translations are reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from multihead import Translator, evaluate
from multihead.data.batching import collate_source
from multihead.decoding.scoring import force
from multihead.errors import ConfigurationError, DataError, FormatError, InputError
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer
from multihead.translating import translator as module
from multihead.translating.searching import symbols_of

if TYPE_CHECKING:
    from tests.conftest import Numbers


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return Translator.load(trained)


@pytest.fixture(scope="module")
def sources(numbers: Numbers) -> list[str]:
    """Texts of every length, in random order, some with unknown words."""
    odd = ["", "   ", "</s>", "Xylophon ▁ <0x41>", "\0", "eins\u2028zwei", "🎉", "eins " * 9]
    return [source for source, _ in numbers.pairs(12, 11)] + odd


@pytest.fixture(scope="module")
def few(sources: list[str]) -> list[str]:
    """Five words, an empty text, and unknown text."""
    return [*sources[:5], "", "🎉"]


def close(one, other):
    """Equal texts; scores equal up to rounding."""
    assert [t.text for t in one] == [t.text for t in other]
    assert [t.finished for t in one] == [t.finished for t in other]
    assert [t.score for t in one] == pytest.approx([t.score for t in other], abs=1e-4)


@pytest.mark.parametrize("beam", [1, 3])
def test_what_is_in_the_batch_never_matters(translator, sources, beam):
    """One by one, in batches of any size, in any order: the same."""
    alone = [translator.translations([source], beam=beam)[0] for source in sources]
    for batch_tokens in (40, 4096):
        close(translator.translations(sources, beam=beam, batch_tokens=batch_tokens), alone)
    close(translator.translations(sources[::-1], beam=beam), alone[::-1])


def test_as_many_come_out_in_order_and_empty_ones_stay(translator, sources):
    found = translator.translate(sources)
    assert len(found) == len(sources)
    for source, text in zip(sources, found, strict=True):
        assert "\n" not in text
        if not source.strip():
            assert text == ""
    assert translator.translate([]) == []
    assert translator.translate(["", ""]) == ["", ""]


def test_what_reaches_the_limit_is_said_not_to_be_whole(translator, monkeypatch):
    """The limit is what one word needs."""
    margin = len(translator.bundle.target_tokenizer.encode("one")) + 1
    generation = translator.bundle.generation.model_copy(update={"length_factor": 1e-9, "length_margin": margin})
    monkeypatch.setattr(translator, "bundle", module.Bundle(**{**vars(translator.bundle), "generation": generation}))
    for beam in (1, 3):
        found = translator.translations(["eins zwei drei vier", "eins", ""], beam=beam)
        assert [t.finished for t in found] == [False, True, True]
        assert found[1].text == "one"


def test_progress_tells_of_every_sentence_once(translator, sources):
    told = []
    translator.translate(sources, batch_tokens=100, progress=told.append)
    assert sum(told) == len(sources)
    assert len(told) > 3


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_the_score_is_the_definition(translator, sources, alpha, beam):
    """log p(y | x) / |y|^alpha, with p of the finished translation, symbol by symbol."""
    sources, bundle = sources[:12], translator.bundle
    found = translator.translations(sources, beam=beam, alpha=alpha)
    written = [bundle.target_tokenizer.encode(translation.text) for translation in found]
    encoded = [bundle.source_tokenizer.encode(source) for source in sources]
    source, lengths = collate_source(encoded, BytePairTokenizer.pad_id, BytePairTokenizer.eos_id)
    forced = force(bundle.model, source, lengths, written, symbols_of(bundle.target_tokenizer))
    expected = [sum(row) / len(row) ** alpha for row in forced]
    assert [translation.score for translation in found] == pytest.approx(expected, abs=1e-4)


def test_what_the_model_says_is_the_default(translator, sources):
    generation = translator.bundle.generation
    close(
        translator.translations(sources),
        translator.translations(sources, beam=generation.beam, alpha=generation.alpha),
    )


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"texts": "eins"}, InputError, r"translate\(\[text\]\)"),
        ({"texts": ["eins"], "beam": 0}, ConfigurationError, "beam: .* greater than or equal to 1, got 0"),
        ({"texts": ["eins"], "alpha": -1.0}, ConfigurationError, "alpha"),
        ({"texts": ["eins"], "alpha": float("nan")}, ConfigurationError, "alpha"),
        ({"texts": ["eins"], "batch_tokens": 0}, ConfigurationError, "batch_tokens"),
        ({"texts": ["eins"], "min_length": -1}, ConfigurationError, "min_length"),
        ({"texts": ["eins"], "min_length": 5, "max_length": 5}, ConfigurationError, "max_length .* above min_length"),
        ({"texts": ["eins", "\ud800"]}, DataError, "text 2 of 2"),
    ],
)
def test_what_cannot_be_asked(translator, given, error, said):
    with pytest.raises(error, match=said):
        translator.translations(**given)
    with pytest.raises(ConfigurationError, match="n_best: expected 1 to the beam, which is 2, got 3"):
        translator.n_best([], 3, beam=2)


def test_attention_has_a_row_for_each_subword(translator):
    seen = translator.attention("eins zwei drei")
    assert seen.translation == translator.translate(["eins zwei drei"])[0]
    assert len(seen.source) == seen.weights.cross[-1].shape[-1]
    assert len(seen.target) == seen.weights.cross[-1].shape[-2]
    assert seen.source[-1] == seen.target[-1] == "</s>"
    assert seen.given == ["<s>", *seen.target[:-1]]
    sums = seen.weights.cross[-1].sum(-1)
    assert sums.flatten().tolist() == pytest.approx([1.0] * sums.numel(), abs=1e-5)
    other = translator.attention("eins zwei drei", "two")
    tokenizer = translator.bundle.target_tokenizer
    assert other.target == tokenizer.pieces([*tokenizer.encode("two"), tokenizer.eos_id])
    with pytest.raises(InputError, match="empty"):
        translator.attention(" ")


def test_a_view_is_the_part_of_the_weights_that_it_names(translator):
    seen = translator.attention("eins zwei drei")
    for kind, rows, columns in (
        ("cross", seen.target, seen.source),
        ("encoder", seen.source, seen.source),
        ("decoder", seen.target, seen.given),
    ):
        (weights,) = getattr(seen.weights, kind)[-1]
        whole = seen.view(kind)
        assert (whole.rows, whole.columns, whole.panels) == (rows, columns, ["head 1", "head 2"])
        assert torch.equal(whole.weights, weights)
        one, mean = seen.view(kind, 1, 2), seen.view(kind, heads="mean")
        assert torch.equal(one.weights, weights[1:2])
        assert torch.equal(mean.weights, weights.mean(0, keepdim=True))
        assert (one.panels, mean.panels) == (["head 2"], ["mean of 2 heads"])
        assert "layer 1 of 1, head 2" in one.title
    wrong = {"layer: there are 1, .* got 2": {"layer": 2}, "heads: there are 2, .* got 3": {"heads": 3}}
    for said, asked in {**wrong, "layer: .* got 0": {"layer": 0}, "heads: .* got 0": {"heads": 0}}.items():
        with pytest.raises(ConfigurationError, match=said):
            seen.view(**asked)


def test_no_search_may_emit_what_ends_a_line(translator):
    tokenizer = translator.bundle.target_tokenizer
    forbidden = symbols_of(tokenizer).forbidden
    assert {tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id} <= set(forbidden)
    assert all("\n" not in tokenizer.decode([i]) for i in range(len(tokenizer)) if i not in forbidden)


@pytest.mark.parametrize("beam", [1, 3])
def test_lengths_hold_for_every_sentence(translator, few, beam):
    """In subwords; a minimum above the limit from the source raises that limit, an exact one leaves a single length."""
    tokens = translator.bundle.target_tokenizer.encode
    free = translator.translations(few, beam=beam)
    for least, most in ((4, None), (None, 6), (7, 8), (60, None)):
        found = translator.translations(few, beam=beam, min_length=least, max_length=most)
        for source, translation, without in zip(few, found, free, strict=True):
            if not source.strip():
                assert (translation.text, translation.finished) == ("", True)
                continue
            length = len(tokens(translation.text))
            assert length <= (most or 10**9)
            if least is None and len(tokens(without.text)) < most and without.finished:
                assert translation.text == without.text
    alone = [translator.translations([source], beam=beam, min_length=4, max_length=9)[0] for source in few]
    close(translator.translations(few, beam=beam, min_length=4, max_length=9), alone)


def test_a_minimum_is_in_the_models_own_subwords(translator, few, monkeypatch):
    """Tokens are counted in the search, since a text can have other segmentations than the model's."""
    lengths = []
    decode = Tokenizer.decode
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids: lengths.append(len(ids)) or decode(self, ids))
    for beam in (1, 4):
        translator.translate(few, beam=beam, min_length=9, max_length=12)
        words = sum(bool(source.strip()) for source in few)
        assert len(lengths) == words
        assert all(9 <= length <= 12 for length in lengths)
        lengths.clear()


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_the_n_best_of_each_sentence(translator, few, alpha):
    several = translator.n_best(few, 4, beam=4, alpha=alpha)
    only = translator.translations(few, beam=4, alpha=alpha)
    for source, found, best in zip(few, several, only, strict=True):
        assert len(found) == (4 if source.strip() else 1)
        assert found == sorted(found, key=lambda t: (not t.finished, -t.score))
        assert found[0].score >= best.score - 1e-4
        if alpha == 0.0:
            close([found[0]], [best])
    alone = [translator.n_best([source], 4, beam=4, alpha=alpha)[0] for source in few]
    for together, each in zip(several, alone, strict=True):
        close(together, each)
    assert translator.n_best([], 2) == []


def test_one_best_of_greedy_search(translator, few):
    close([best for (best,) in translator.n_best(few, 1, beam=1)], translator.translations(few, beam=1))


def test_a_sentence_beyond_the_learned_positions_is_named(translator):
    from multihead.models.transformer import Transformer

    bundle = translator.bundle
    torch.manual_seed(1)
    config = bundle.model.config.model_copy(update={"positions": "learned", "max_positions": 6})
    learned = Translator(replace(bundle, model=Transformer(config)))
    short, long = learned.translations(["eins", "eins zwei drei vier fünf"], max_length=5)
    assert short.warning is None
    tokens = len(bundle.source_tokenizer.encode("eins zwei drei vier fünf")) + 1
    assert f"the source has {tokens} tokens, but the model learned 6 positions" in long.warning
    (written,) = learned.translations(["eins"], min_length=8, max_length=9)
    assert "the translation has" in written.warning
    assert all(t.warning is None for t in translator.translations(["eins " * 40], max_length=3))


def test_settings_of_the_search_are_the_models_where_none_are_given(translator):
    own = translator.bundle.generation
    assert translator.search_settings() == own
    assert translator.search_settings(beam=2, max_length=9) == own.model_copy(update={"beam": 2, "max_length": 9})


# ------------------------------------------------------------------------------------------ evaluate


def test_evaluation_is_the_score_of_the_translations(translator, numbers):
    from multihead.metrics.scores import score

    found = evaluate(translator, **numbers.test)
    pairs = numbers.pairs(20, 2)
    references = [target for _, target in pairs]
    assert found.hypotheses == translator.translate([source for source, _ in pairs])
    assert found.scores == score(found.hypotheses, references, "en")
    assert found.sentences == 20
    assert found.scores.chrf > 2 * score(found.hypotheses, [*references[1:], references[0]], "en").chrf


def test_lengths_reach_the_evaluation(translator, numbers):
    sources = [source for source, _ in numbers.pairs(20, 2)]
    for lengths in ({"max_length": 4}, {"min_length": 12, "max_length": 14}):
        expected = translator.translations(sources, beam=1, **lengths)
        found = evaluate(translator, **numbers.test, beam=1, **lengths)
        assert found.hypotheses == [translation.text for translation in expected]
        assert found.cut == [number for number, t in enumerate(expected, start=1) if not t.finished]


def test_a_reference_against_itself_is_100(translator, numbers, tmp_path):
    first = evaluate(translator, **numbers.test)
    path = tmp_path / "own.en"
    path.write_text("".join(text + "\n" for text in first.hypotheses), encoding="utf-8")
    assert evaluate(translator, numbers.test["source"], path).scores.bleu == pytest.approx(100)


def test_evaluation_of_what_cannot_be(translator, trained, numbers, tmp_path):
    (tmp_path / "empty.de").write_text("\n\n")
    (tmp_path / "empty.en").write_text("a\nb\n")
    with pytest.raises(DataError, match="nothing to evaluate"):
        evaluate(translator, tmp_path / "empty.de", tmp_path / "empty.en")
    with pytest.raises(DataError, match="has 20 lines but"):
        evaluate(translator, numbers.test["source"], numbers.train["target"])
    with pytest.raises(FormatError, match="no such folder"):
        evaluate(tmp_path / "nowhere", **numbers.test)
