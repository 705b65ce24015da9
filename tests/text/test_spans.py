"""Characters of tokens, found by comparing."""

from itertools import pairwise

import pytest

from multihead.text.spans import find_spans
from multihead.text.tokenizer import Tokenizer


def test_tokens_that_spell_the_text_cover_it():
    text = "Ein Hund  rennt, zwei schlafen."
    tokenizer = Tokenizer.learn([text] * 3, 300)
    spans = tokenizer.spans(text)
    assert len(spans) == len(tokenizer.encode(text))
    assert "".join(text[start:stop] for start, stop in spans) == text.replace(" ", "")
    assert all(first[1] <= second[0] for first, second in pairwise(spans))


@pytest.mark.parametrize(
    ("entries", "text", "spans"),
    [
        ([" ein", " hund"], "Ein  Hund", [(0, 3), (5, 9)]),
        ([" a", "", " b"], "a 漢 b", [(0, 1), (1, 1), (4, 5)]),
        ([" &quot;", " x"], '" x', [(0, 0), (2, 3)]),
        ([" İx"], "İx", [(0, 2)]),
        ([], "", []),
    ],
    ids=["case", "dropped", "changed", "longer-in-lower-case", "empty"],
)
def test_changed_text_is_found_where_it_was(entries, text, spans):
    assert find_spans([entry.encode() for entry in entries], text) == spans
