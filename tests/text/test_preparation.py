"""Steps before a tokenizer: they equal those of the programs that the models come from."""

from __future__ import annotations

import sys

import pytest

from multihead.errors import DataError, FormatError, MissingDependencyError
from multihead.text.foreign import SpecialIds
from multihead.text.preparation import Preparation, PreparedTokenizer
from multihead.text.tokenizer import Tokenizer
from multihead.text.word_pieces import WordPieceTokenizer

WORDS = ["<s>", "<pad>", "</s>", "<unk>", "mr.", "o", "&apos;neil", "said", ":", "well", "-", "known", ".", "@-@", ","]


def prepared(steps: Preparation) -> PreparedTokenizer:
    return PreparedTokenizer(WordPieceTokenizer(WORDS, SpecialIds(1, 3, 2, 2), prefix=[0]), steps)


def test_moses_is_the_library() -> None:
    import sacremoses

    text = "Mr. O'Neil said: well-known."
    for split in (False, True):
        steps = Preparation(moses="en", split_dashes=split, lowercase=True)
        expected = sacremoses.MosesTokenizer("en").tokenize(text, aggressive_dash_splits=split, return_str=True)
        assert steps.apply(text) == expected.lower()
        assert ("@-@" in expected) == split
    tokenizer = prepared(Preparation(moses="en", lowercase=True))
    words = ["mr.", "o", "&apos;neil", "said", ":", "<unk>", "."]
    assert tokenizer.pieces(tokenizer.encode(text)) == ["<s>", *words]
    assert tokenizer.decode([WORDS.index(word) for word in (*words[:5], "known", ".")]) == "mr. o'neil said: known."


def test_normalizing_is_what_joeynmt_does() -> None:
    """NFKC, plain quotes, single spaces, none before punctuation: before encoding, and the last two after decoding."""
    import sacremoses

    steps = Preparation(normalize=True)
    assert steps.apply(" “ﬁne”  \u200b’x’\u3000! ") == "\"fine\" 'x'!"
    assert steps.undo("well  known .") == "well known."
    punctuation = Preparation(normalize=True, moses="de", moses_punctuation="en")
    assert punctuation.apply("„gut“ …") == Preparation(moses="de").apply(
        sacremoses.MosesPunctNormalizer().normalize('„gut"...')
    )


def test_without_steps_nothing_changes() -> None:
    tokenizer, inner = prepared(Preparation()), prepared(Preparation()).inner
    for text in ("said : well", "", "  known "):
        assert tokenizer.encode(text) == inner.encode(text)
        assert tokenizer.encode_phrase(text) == inner.encode_phrase(text)
        assert tokenizer.decode(inner.encode(text)) == inner.decode(inner.encode(text))
        assert tokenizer.spell(inner.encode(text)) == inner.spell(inner.encode(text))
    assert tokenizer.entries == inner.entries
    assert tokenizer.forbidden_in_output == inner.forbidden_in_output
    assert len(tokenizer) == len(inner)


def test_the_file_gives_the_tokenizer_back() -> None:
    tokenizer = prepared(Preparation(lowercase=True, moses="de", escape=False))
    again = Tokenizer.from_json(tokenizer.to_json())
    assert isinstance(again, PreparedTokenizer)
    assert again.preparation == tokenizer.preparation
    assert again.digest == tokenizer.digest != tokenizer.inner.digest
    assert again.encode_batch(["Said", "WELL"]) == tokenizer.encode_batch(["said", "well"])
    for damage in (('"lowercase"', '"uppercase"'), ('"inner"', '"outer"')):
        with pytest.raises(FormatError, match="this prepared tokenizer is damaged"):
            Tokenizer.from_json(tokenizer.to_json().replace(*damage))


def test_faults_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="text 2 of 2"):
        prepared(Preparation(lowercase=True)).encode_batch(["x", "\udfff"])
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(MissingDependencyError, match=r"needs sacremoses, which is not installed: .*interop"):
        prepared(Preparation(moses="en")).encode("said")
