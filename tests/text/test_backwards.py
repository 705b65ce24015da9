"""Targets from right to left: the ids of the plain tokenizer reversed, and the same texts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multihead.errors import ConfigurationError, FormatError
from multihead.text.backwards import BackwardsTokenizer, forwards, require_forwards
from multihead.text.language_tokens import LanguageTokenizer
from multihead.text.placeholders import learn_with_placeholders, parse_rules
from multihead.text.segment import Segmenter, has_merges
from multihead.text.tokenizer import Tokenizer
from multihead.text.user_symbols import learn_with_symbols

LINES = ["der hund rennt", "eine große straße, 12 häuser", "die maus am haus"] * 6
INNER = Tokenizer.learn(LINES, 330)
TURNED = BackwardsTokenizer(INNER)
TEXTS = st.text(st.sampled_from("abdhru ä1.,ß▁鼠"), max_size=12)


@given(TEXTS, TEXTS)
def test_ids_are_turned_and_texts_are_not(text: str, other: str) -> None:
    ids = INNER.encode(text)
    assert TURNED.encode(text) == ids[::-1]
    assert TURNED.encode_batch([text, other]) == [ids[::-1], INNER.encode(other)[::-1]]
    assert TURNED.encode_phrase(text) == ids[::-1]
    assert TURNED.answers([text], [other]) == [ids[::-1]]
    assert TURNED.spans(text) == TURNED.answer_spans(text, other) == INNER.spans(text)[::-1]
    assert TURNED.decode(ids[::-1]) == text
    assert TURNED.spell(ids[::-1]) == INNER.spell(ids)
    assert TURNED.pieces(ids) == INNER.pieces(ids)


def test_its_file_and_its_digest() -> None:
    again = Tokenizer.from_json(TURNED.to_json())
    assert isinstance(again, BackwardsTokenizer)
    assert again.digest == TURNED.digest != INNER.digest
    assert again.encode("der hund") == TURNED.encode("der hund")
    assert (again.special_ids, again.forbidden_in_output) == (INNER.special_ids, INNER.forbidden_in_output)
    assert (again.vocabulary, again.entries, again.backwards) == (INNER.vocabulary, INNER.entries, True)
    assert forwards(again).digest == forwards(INNER).digest == INNER.digest
    broken = json.loads(TURNED.to_json())
    del broken["inner"]
    with pytest.raises(FormatError, match="this tokenizer from right to left is damaged"):
        Tokenizer.from_json(json.dumps(broken))


def test_who_asks_for_the_first_word_is_refused() -> None:
    require_forwards(INNER, "prefixes")
    with pytest.raises(ConfigurationError, match="writes from right to left: prefixes need one"):
        require_forwards(TURNED, "prefixes")


def test_placeholders_are_those_of_the_source() -> None:
    inner = learn_with_placeholders(LINES, 340, rules=parse_rules(["numbers"]))
    turned, source, target = BackwardsTokenizer(inner), "12 hunde und 7", "7 und 12 häuser"
    assert turned.answers([target], [source]) == [inner.answers([target], [source])[0][::-1]]
    assert turned.answer_spans(target, source) == inner.answer_spans(target, source)[::-1]
    assert turned.filled(turned.decode(turned.answers([target], [source])[0]), source) == target
    assert (turned.copied, turned.copies(source)) == (inner.copied, inner.copies(source))
    assert turned.plain.backwards
    assert turned.training_pairs([source], [target]) == inner.training_pairs([source], [target])


@pytest.mark.parametrize("kind", ["pairs", "symbols", "languages"])
def test_other_subwords_are_those_of_the_text_turned(kind: str) -> None:
    """BPE-dropout draws the same segmentation of a text as from left to right."""
    inner: Tokenizer = learn_with_symbols(LINES, 330, ("<b>",)) if kind == "symbols" else INNER
    inner = LanguageTokenizer(inner, ["de", "en"]) if kind == "languages" else inner
    turned, texts = BackwardsTokenizer(inner), ["der hund rennt", "", "häuser am haus"]
    assert has_merges(turned)
    keys = list(range(len(texts)))
    for dropout in (0, 0.5):
        ours, theirs = (
            Segmenter(one, dropout, seed=3).segment(one.encode_batch(texts), keys, epoch=2, side=1)
            for one in (turned, inner)
        )
        assert ours == [row[::-1] for row in theirs]
        assert turned.decode_batch(ours) == texts
    assert ours != turned.encode_batch(texts)
