"""Models of other programs in the commands that analyze translations: align, explain, score, guard, phrases."""

import pytest
import torch

from multihead.bundle import load_bundle
from multihead.decoding.search import Search
from multihead.interop.formats.parts import Languages
from multihead.judging.align import align, span_matrix
from multihead.judging.explain import explain
from multihead.judging.score import score
from multihead.translating.request import TranslationRequest
from multihead.translating.translator import Translator


@pytest.fixture(scope="module", params=["marian", "nllb"])
def translator(request, opus_mt, nllb_200):
    if request.param == "marian":
        return Translator(load_bundle(opus_mt[1]))
    return Translator(load_bundle(nllb_200[1], languages=Languages("de", "en")))


def test_words_are_aligned_whatever_the_tokenizer_changes(foreign, translator):
    sources = [*foreign.sentences(4), "ﬁnden  zwei\u00a0漢字 </s> Hund", *foreign.hostile]
    targets = [*foreign.sentences(4, english=True), "find  ﬁve 漢字 dogs", *foreign.hostile]
    for links, source, target in zip(align(translator, sources, targets), sources, targets, strict=True):
        assert all(place < len(source.split()) and word < len(target.split()) for place, word in links)
    assert all(align(translator, sources[:4], targets[:4]))


def test_a_word_has_the_tokens_of_its_characters(translator):
    tokenizer = translator.bundle.source_tokenizer
    text = "Ein ﬁx 漢字 Hund"
    spans = tokenizer.spans(text)
    words = span_matrix(spans, text, len(tokenizer.prefix))
    assert words.shape == (len(tokenizer.encode(text)), 4)
    assert torch.equal(words.sum(1)[len(tokenizer.prefix) :] > 0, torch.ones(len(words) - len(tokenizer.prefix)) > 0)
    for word, (first, last) in enumerate([(0, 3), (3, 6), (6, 9), (9, 14)]):
        own = [place for place, one in enumerate(words[:, word].tolist()) if one]
        assert all(spans[place][0] >= first and spans[place][1] <= last for place in own)


def test_probabilities_and_explanations(foreign, translator):
    lines = foreign.sentences(3)
    found = translator.translate(lines)
    assert all(len(scored.tokens) == len(scored.log_probabilities) for scored in score(translator, lines, found))
    assert explain(translator, lines[0]).translation == found[0]


def test_prefixes_and_phrases_are_in_the_translation(foreign, translator):
    lines, search = foreign.sentences(1), Search(beam=2, max_length=30)
    (row,) = translator.run(TranslationRequest(search, lines, prefixes=["The girl"]))
    assert row[0].text.startswith("The girl")
    (row,) = translator.run(TranslationRequest(search, lines, phrases=[["bridges"]]))
    assert "bridges" in row[0].text
    (row,) = translator.run(TranslationRequest(search.model_copy(update={"without": ("the",)}), lines))
    assert "the" not in row[0].text.split()
