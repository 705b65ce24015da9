"""Placeholders from training to translation: each text appears as often as in the source, whatever the model does."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multihead.bundle import Bundle
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.once import Once
from multihead.decoding.restrictions import Rows
from multihead.decoding.search import Search
from multihead.decoding.sharpening import Sharpening
from multihead.errors import ConfigurationError, ShapeError
from multihead.interop.exporting import FORMATS, find_format
from multihead.interop.formats.parts import TranslatorParts
from multihead.judging.align import align
from multihead.judging.analysis import analyze_pairs
from multihead.judging.explain import explain
from multihead.judging.guard import translate_guarded
from multihead.judging.score import score
from multihead.lines.translate_shards import threads_matter
from multihead.lines.windows import LineOptions
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.runs.translator.train import train
from multihead.text.placeholders import learn_with_placeholders, parse_rules
from multihead.translating import copying
from multihead.translating.request import TranslationRequest
from multihead.translating.searching import Constraints
from multihead.translating.translator import Translator

RULES = parse_rules(["numbers,urls,emails,markup"])
VALUES = ["48213", "907.55", "ada@site.org", "https://a.example/x?y=1", '<a href="x y">', "</a>", "&amp;"]


def untrained(shared: bool) -> Translator:
    lines = ["Ein Hund rennt 5 km.", "A dog runs; see <b> www.a.example!"] * 5
    source = learn_with_placeholders(lines, 330, rules=RULES)
    target = source if shared else learn_with_placeholders(lines[:1] * 5, 320, rules=RULES)
    config = TransformerConfig(
        source_vocab=len(source), target_vocab=len(target), padding_id=0, tie_embeddings=shared,
        width=16, heads=2, inner=16, encoder_layers=1, decoder_layers=1,
    )  # fmt: skip
    torch.manual_seed(3)
    search = Search(beam=2, length_factor=0.5, length_margin=14)
    return Translator(Bundle(Transformer(config).eval(), source, target, search, "de", "en"))


UNTRAINED = {shared: untrained(shared) for shared in (True, False)}
SOURCES = st.lists(
    st.lists(st.sampled_from([*VALUES, "Hund", "rennt", "."]), min_size=1, max_size=7).map(" ".join),
    min_size=1,
    max_size=4,
)


def copied(source: str, translation: str) -> bool:
    return all(translation.count(value) == source.count(value) for value in VALUES)


@settings(max_examples=4)
@given(SOURCES, st.booleans(), st.sampled_from([1, 3]))
def test_every_text_appears_as_often_as_in_the_source(texts: list[str], shared: bool, beam: int) -> None:
    translator = UNTRAINED[shared]
    for source, text in zip(texts, translator.translate(texts, beam=beam), strict=True):
        assert copied(source, text)
    rows = translator.n_best(texts, 3, beam=3)
    assert all(copied(source, one.text) for source, row in zip(texts, rows, strict=True) for one in row)


def test_samples_prefixes_phrases_and_groups_copy_too() -> None:
    translator, texts = UNTRAINED[False], [" ".join(VALUES[:4]), "Hund 48213 48213", "Hund"]
    for rows in (
        translator.sample(texts, 3, seed=2, sharpening=Sharpening(top_k=40)),
        [[one] for one in translator.translations(texts, prefixes=["A 907.55", "48213", "A"])],
        [[one] for one in translator.translations(texts, phrases=[["dog"], ["48213 dog"], []])],
        [[one] for one in translator.searching(groups=2, beam=4, without=["dog"]).translations(texts)],
        [[one] for one in translator.translations(texts, max_length=4)],
        [[one] for one in translator.translations(texts, max_length=8, phrases=[["A dog"], ["A dog"], []])],
        [[one] for one in translator.translations(texts, max_length=8, prefixes=["A dog", "A dog", ""])],
        [[one.translation] for one in translate_guarded(translator, texts, mode="retry")],
    ):
        assert all(copied(source, one.text) for source, row in zip(texts, rows, strict=True) for one in row)
    (many,) = translator.translations([" ".join(map(str, range(12)))])
    assert many.warning is not None
    assert many.warning.startswith("it has 2 numbers, addresses or the like beyond those that are copied")
    begun = translator.translate(texts, prefixes=["A 907.55", "48213", "A"])
    assert begun[1].startswith("48213")
    assert begun[0].startswith("A 907.55")
    assert "48213 dog" in translator.translate(texts, phrases=[[], ["48213 dog"], []])[1]


def test_what_lacks_nothing_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second search needs PyTorch, and the number of threads can decide near ties in it."""
    translator, text = UNTRAINED[True], "Hund 48213"
    tokenizer = translator.bundle.target_tokenizer
    options = LineOptions(TranslationRequest(translator.search_settings()))
    assert threads_matter(translator, options, None)
    monkeypatch.setattr(copying, "with_placeholders", lambda *_: [])
    whole = Hypothesis((*tokenizer.encode("dog"), *tokenizer.copies(text)), -1.0, -1.0, True)
    for tokens, kept in ((whole.tokens, True), (whole.tokens[:-1], False)):
        found = [[replace(whole, tokens=tokens)]]
        got = translator._copied(found, [[5]], [text], options.request, Constraints())
        assert got == (found if kept else [])


def test_a_copied_text_breaks_no_line() -> None:
    """Only LF ends a line, so a CR can be in one; no translation has it."""
    for text in UNTRAINED[True].translate(['<a\rhref="x y"> Hund', 'Hund <a href="x\ry">'], beam=1):
        assert '<a href="x y">' in text
        assert "\r" not in text


def test_what_is_said_of_a_pair_has_its_texts() -> None:
    translator, text = UNTRAINED[True], 'Hund <a href="x y">48213</a> rennt'
    found = explain(translator, text, alternatives=0)
    assert found.translation == translator.translate([text])[0] == found.found[0].text
    assert copied(text, found.translation)
    assert not any("⟨" in word for word in (*found.analysis.source_words, *(w.text for w in found.analysis.words)))
    assert found.texts[0] is None or "⟨" not in found.texts[0]
    given = "dog </a> 48213 x"
    (analysis,) = analyze_pairs(translator, [text], [given], 0)
    assert [word.text for word in analysis.words] == given.split()
    (links,) = align(translator, [text], [given])
    assert all(source < len(text.split()) and target < 4 for source, target in links)
    (scored,) = score(translator, [text], [given])
    assert [token for token in scored.tokens if token.startswith("⟨")] == ["⟨tag2⟩", "⟨num1⟩"]
    ids = translator.bundle.target_tokenizer.answers([given], [text])[0]
    assert len(translator.attention(text, given).target) == len(ids) + 1


def test_a_symbol_appears_once_and_in_time() -> None:
    """The restriction against all continuations: what may follow is what can still be completed."""
    once = Once([[5, 6], [], [7]], [5, 6, 7], [4, 4, 2], end=1)
    permitted = torch.zeros(3, 9)

    def allowed(sentence: int, written: list[int]) -> list[int]:
        rows = Rows(torch.tensor([written], dtype=torch.long).view(1, -1), torch.tensor([sentence]), permitted[:1])
        return (once.restrict(permitted[:1], rows)[0] > -torch.inf).nonzero().flatten().tolist()

    assert allowed(0, []) == [0, 2, 3, 4, 5, 6, 8]  # 5 and 6, then the end: one position is free
    assert allowed(0, [4]) == [5, 6]
    assert allowed(0, [5]) == [0, 2, 3, 4, 6, 8]
    assert allowed(0, [5, 4]) == [6]
    assert allowed(0, [5, 6]) == [0, 1, 2, 3, 4, 8]
    assert allowed(1, []) == allowed(1, [4, 4]) == [0, 1, 2, 3, 4, 8]
    assert allowed(2, []) == [7]
    with pytest.raises(ConfigurationError, match="sentence 1: its 2 symbols and the end symbol do not fit"):
        Once([[5, 6]], [5, 6], [2], end=1)
    with pytest.raises(ShapeError):
        Once([[5]], [5], [2, 3], end=1)


def test_exports_refuse_placeholders_by_name() -> None:
    pytest.importorskip("ctranslate2")
    bundle = UNTRAINED[True].bundle
    assert isinstance(bundle.model, Transformer)
    parts = TranslatorParts(
        bundle.model.config, {}, bundle.source_tokenizer, bundle.target_tokenizer, Search(), "de", "en"
    )
    for name in FORMATS:
        assert any("placeholders, which only multihead copies" in r for r in find_format(name).refusals(parts)), name


NAMES = {"der Hund": "the dog", "die Katze": "the cat", "ein Mann": "a man", "das Haus": "the house"}
VERBS = {"kostet": "costs", "wiegt": "weighs", "hat": "has"}


def priced(count: int, digits: range, seed: int) -> list[tuple[str, str]]:
    """Pairs such as ``der Hund kostet 4821``, with numbers of so many digits."""
    draw = random.Random(seed)
    pairs = []
    for _ in range(count):
        name, verb, length = draw.choice([*NAMES]), draw.choice([*VERBS]), draw.choice(digits)
        number = draw.randrange(10 ** (length - 1), 10**length)
        pairs.append((f"{name} {verb} {number}", f"{NAMES[name]} {VERBS[verb]} {number}"))
    return pairs


@pytest.fixture(scope="module")
def priced_text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, files = tmp_path_factory.mktemp("priced"), {}
    for name, pairs in (("", priced(600, range(2, 4), 1)), ("valid_", priced(20, range(2, 4), 2))):
        for side, place in (("source", 0), ("target", 1)):
            files[name + side] = folder / f"{name}{side}.txt"
            files[name + side].write_text("".join(f"{pair[place]}\n" for pair in pairs), encoding="utf-8")
    return files


def test_numbers_that_were_never_seen_are_copied(
    priced_text: dict[str, Path], tmp_path: Path, without_checks: Any
) -> None:
    """Without placeholders, a small model copies few long numbers; with them, it copies all, with its usual search."""
    tiny: dict[str, Any] = {
        "width": 32, "heads": 2, "inner": 64, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 330,
        "batch_tokens": 256, "learning_rate": 0.01, "warmup": 20, "average": 0.9, "precision": "float32", "threads": 1,
        "updates": 60, "validate_every": 60, "seed": 1,
    }  # fmt: skip
    test = priced(40, range(5, 7), 3)
    sources = [source for source, _ in test]
    share = {}
    for kinds in (None, ("numbers",)):
        run = tmp_path / str(kinds)
        with without_checks():
            train(**priced_text, **tiny, placeholders=kinds, output=run, say=lambda _: None)
        translator = Translator.load(run)
        found = translator.translate(sources)
        ends = [
            text.rpartition(" ")[2] == source.rpartition(" ")[2] for source, text in zip(sources, found, strict=True)
        ]
        share[kinds] = sum(ends) / len(ends)
    assert share[None] < 0.5
    assert share["numbers",] == 1.0
    # The network reads and writes the symbol, also with its usual search.
    shown = translator.attention(sources[0])
    assert (shown.source.count("⟨num1⟩"), shown.target.count("⟨num1⟩")) == (1, 1)
