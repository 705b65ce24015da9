"""Sources with context: the text before a line, and its encoding."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multihead.errors import ConfigurationError, FormatError
from multihead.text.context import BREAK, ContextTokenizer, Documents, in_context, learn_with_context, own_text
from multihead.text.language_tokens import LanguageTokenizer
from multihead.text.segment import Segmenter
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer

LINES = ["Die Katze schläft.", "Sie ist müde.", "The cat sleeps. It is tired."] * 6
PLAIN = Tokenizer.learn(LINES, 330)


def learned() -> ContextTokenizer:
    made = learn_with_context(LINES, 331, 2, 40)
    assert isinstance(made, ContextTokenizer)
    return made


READS = learned()
TEXTS = st.text(st.sampled_from("abK ä.▁⟨"), max_size=9).filter(lambda text: bool(text.strip()))


def test_a_line_has_the_lines_before_it_in_its_document() -> None:
    lines = ["a", "b", "c", "d", "", "e", "f", "  ", "", "g"]
    assert in_context(READS, lines) == [
        *("a", f"a{BREAK} b", f"a{BREAK} b{BREAK} c", f"b{BREAK} c{BREAK} d"),
        *("", "e", f"e{BREAK} f", "  ", "", "g"),
    ]
    assert in_context(PLAIN, lines) == lines
    assert [own_text(text) for text in in_context(READS, lines)] == lines
    assert own_text(" a") == " a"


def test_parts_of_a_line_have_those_before_them_and_the_next_line_has_the_whole() -> None:
    documents = Documents(2)
    assert [documents.add("a"), *documents.add_parts("b. c.", ["b.", "c."]), documents.add("d")] == [
        *("a", f"a{BREAK} b.", f"a{BREAK} b.{BREAK} c.", f"a{BREAK} b. c.{BREAK} d")
    ]


@settings(max_examples=80)
@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_a_text_is_its_sentences_and_breaks(lines: list[str]) -> None:
    """encode(a <break> b) = encode(a), break, encode(b); of too long a text without the first sentences."""
    text, rows = in_context(READS, lines)[-1], [PLAIN.encode(line) for line in lines[-3:]]
    while len(rows) > 1 and sum(map(len, rows)) + len(rows) - 1 > READS.longest:
        del rows[0]
    wanted = rows[0] + [i for row in rows[1:] for i in (READS.id_of(BREAK), *row)]
    ids = READS.encode(text)
    assert ids == wanted
    assert READS.encode_batch([text, lines[0]]) == [ids, PLAIN.encode(lines[0])]
    (pieces,) = READS.encode_pieces([text])
    assert pieces[0] == ids
    assert pieces[1][0] == 0
    assert text.endswith(READS.decode(ids))
    places = READS.spans(text)
    assert len(places) == len(ids)
    full = [(READS.entries[i], *place) for i, place in zip(ids, places, strict=True) if READS.entries[i].isalpha()]
    assert all(text[start:stop].encode() == raw for raw, start, stop in full)


def test_context_is_left_out_whole_and_a_sentence_alone_never() -> None:
    small = ContextTokenizer(READS.pairs, (), 2, len(PLAIN.encode(LINES[1])) + 3)
    assert small.encode(in_context(small, LINES[:2])[1]) == PLAIN.encode(LINES[1])
    assert small.encode(LINES[2]) == PLAIN.encode(LINES[2])
    assert small.spans(in_context(small, LINES[:2])[1])[-1][1] == len(LINES[0] + BREAK + " " + LINES[1])
    assert small.encode(f"{LINES[2]}{BREAK}")[-1] == small.id_of(BREAK)


def test_the_file_and_what_is_never_written() -> None:
    own = learn_with_context(LINES, 332, 3, 50, symbols=["<b>"])
    again = Tokenizer.from_json(own.to_json())
    assert isinstance(again, ContextTokenizer)
    assert (again.digest, again.context, again.longest, again.symbols) == (own.digest, 3, 50, ("<b>", BREAK))
    others = [ContextTokenizer(again.pairs, ["<b>"], *numbers).digest for numbers in ((2, 50), (3, 51))]
    assert len({own.digest, *others}) == 3
    assert READS.id_of(BREAK) in READS.forbidden_in_output
    assert set(READS.forbidden_in_output) >= set(READS.pairs.forbidden_in_output)
    directed = LanguageTokenizer(READS, ["de"], "de")
    assert (directed.context, PLAIN.context, directed.toward(None).context) == (2, 0, 2)
    with pytest.raises(FormatError, match="tokenizer with context is damaged"):
        Tokenizer.from_json(json.dumps({**json.loads(own.to_json()), "sentences": 0}))
    with pytest.raises(ConfigurationError, match="expected 1 to 20 sentences"):
        ContextTokenizer(again.pairs, (), 21, 50)
    assert type(learn_with_context(LINES, 330, 0, 50)) is BytePairTokenizer


def test_dropout_keeps_breaks() -> None:
    ids = READS.encode(in_context(READS, LINES)[-1])
    (drawn,) = Segmenter(READS, 0.5, 1).segment([ids], [0], 0, 0)
    assert drawn != ids
    assert READS.decode(drawn) == READS.decode(ids)
    assert drawn.count(READS.id_of(BREAK)) == ids.count(READS.id_of(BREAK)) > 0
