"""The translator: lines in order, batches that do not matter, and what is not whole is said to be."""

import pytest

from multihead import Translator, evaluate
from multihead.data.batching import collate_source
from multihead.decoding.scoring import force
from multihead.errors import ConfigurationError, DataError, FormatError, InputError
from multihead.text.tokenizer import Tokenizer
from multihead.workflows import translate as module
from multihead.workflows.translate import in_chunks, symbols_of


@pytest.fixture(scope="module")
def translator(trained):
    return Translator.load(trained)


@pytest.fixture(scope="module")
def sources(numbers):
    """Of every length, in no order, with some that have never been seen."""
    odd = ["", "   ", "</s>", "Xylophon ▁ <0x41>", "\0", "eins\u2028zwei", "🎉", "eins " * 9]
    return [source for source, _ in numbers.pairs(12, 11)] + odd


def close(one, other):
    """Equal texts; scores equal but for rounding."""
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
    source, lengths = collate_source(encoded, Tokenizer.pad_id, Tokenizer.eos_id)
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
        ({"texts": ["eins"], "beam": 0}, ConfigurationError, "beam must be a number of at least 1, got 0"),
        ({"texts": ["eins"], "alpha": -1.0}, ConfigurationError, "alpha"),
        ({"texts": ["eins"], "alpha": float("nan")}, ConfigurationError, "alpha"),
        ({"texts": ["eins"], "batch_tokens": 0}, ConfigurationError, "batch_tokens"),
        ({"texts": ["eins", "\ud800"]}, DataError, "text 2 of 2"),
    ],
)
def test_what_cannot_be_asked(translator, given, error, said):
    with pytest.raises(error, match=said):
        translator.translations(**given)


def test_attention_has_a_row_for_each_subword(translator):
    seen = translator.attention("eins zwei drei")
    assert len(seen.source) == seen.weights.cross[-1].shape[-1]
    assert len(seen.target) == seen.weights.cross[-1].shape[-2]
    assert seen.source[-1] == seen.target[-1] == "</s>"
    sums = seen.weights.cross[-1].sum(-1)
    assert sums.flatten().tolist() == pytest.approx([1.0] * sums.numel(), abs=1e-5)
    with pytest.raises(InputError, match="empty"):
        translator.attention(" ")


def test_no_search_may_emit_what_ends_a_line(translator):
    tokenizer = translator.bundle.target_tokenizer
    forbidden = symbols_of(tokenizer).forbidden
    assert {tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id} <= set(forbidden)
    assert all("\n" not in tokenizer.decode([i]) for i in range(len(tokenizer)) if i not in forbidden)


@pytest.mark.parametrize(("count", "sizes"), [(0, []), (1, [1]), (3, [3]), (7, [3, 3, 1]), (9, [3, 3, 3])])
def test_chunks_hold_all_lines_in_order(count, sizes):
    chunks = list(in_chunks(iter(map(str, range(count))), 3))
    assert [len(chunk) for chunk in chunks] == sizes
    assert [line for chunk in chunks for line in chunk] == list(map(str, range(count)))


# ------------------------------------------------------------------------------------------ evaluate


def test_evaluation_is_the_score_of_the_translations(translator, numbers):
    from multihead.metrics.scores import score

    found = evaluate(translator, **numbers.test)
    pairs = numbers.pairs(20, 2)
    assert found.hypotheses == translator.translate([source for source, _ in pairs])
    assert found.scores == score(found.hypotheses, [target for _, target in pairs], "en")
    assert found.sentences == 20
    assert found.scores.bleu > 50


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
