"""Hidden words keep their places; published word pieces segment texts as the original package does."""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from multihead.errors import DataError, FormatError
from multihead.sealed import open_folder
from multihead.text.bert_words import BERT_SPECIALS, HIDDEN, BertWords, BpeWords, WordPieces, read_words
from multihead.text.tokenizer import Tokenizer

LINES = ["A dog runs in the grass.", "The dogs run, don't they?", 'He said: "It\'s 25 ▁ pages, naïve!"', "x  y   z "]
PEERS = Path(os.environ.get("MULTIHEAD_PEERS", Path(__file__).resolve().parents[2] / "peers"))
ENTRIES = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "dogs", "##s", "run", "##ning", "."]
ENTRIES += [",", "'", "[", "]", "cafe", "中", "##e", "naive", "Ü", "##ber", "ber", "Cafe", "mask"]


@pytest.fixture(scope="module")
def subwords() -> BpeWords:
    return BpeWords(Tokenizer.learn(LINES * 3, 330, specials=BERT_SPECIALS))


def test_a_text_is_what_it_was(subwords: BpeWords) -> None:
    for text, ids in zip(LINES, subwords.encode(LINES), strict=True):
        assert subwords.decode(ids) == text
        assert not set(ids) & set(subwords.special)
        assert subwords.encode_with_hidden(text) == ids


def test_symbols_in_a_text_are_text(subwords: BpeWords) -> None:
    text = " ".join(name for name in BERT_SPECIALS.strings if name != HIDDEN)
    (ids,) = subwords.encode([text])
    assert not set(ids) & set(subwords.special)
    assert subwords.decode(ids) == text


@pytest.mark.parametrize("seed", range(8))
def test_whole_words_can_be_hidden_by_people(seed: int, subwords: BpeWords) -> None:
    """Writing [MASK] for a word of one piece gives the ids of the text with that piece hidden."""
    draw = random.Random(seed)
    words = ["A", "dog", "runs", "in", "the", "The", "run", "y", "z"]
    pieces = {word: subwords.encode([word])[0] for word in words}
    single = [word for word in words if len(pieces[word]) == 1]
    assert len(single) > 4
    row = [draw.choice(single) for _ in range(6)]
    places = set(draw.sample(range(6), draw.randint(1, 6)))
    (ids,) = subwords.encode([" ".join(row)])
    expected = [subwords.symbols.hidden if place in places else index for place, index in enumerate(ids)]
    text = " ".join(HIDDEN if place in places else word for place, word in enumerate(row))
    assert subwords.encode_with_hidden(text) == expected


def test_what_touches_a_hidden_word_is_not_a_new_one(subwords: BpeWords) -> None:
    mask = subwords.symbols.hidden
    (dot,) = subwords.encode(["grass."])[0][-1:]
    grass = subwords.encode(["grass"])[0]
    assert subwords.encode_with_hidden("grass[MASK]") == [*grass, mask]
    assert subwords.encode_with_hidden("grass [MASK].") == [*grass, mask, dot]
    assert subwords.encode_with_hidden("[MASK][MASK] grass") == [mask, mask, *grass]
    assert subwords.encode_with_hidden("[MASK]") == [mask]


def test_where_words_begin(subwords: BpeWords) -> None:
    begins = subwords.begins_word
    for text, words in (("A dog runs", 3), ("grass.", 2), ("The dogs run, don't they?", 8), ("25", 1)):
        (ids,) = subwords.encode([text])
        assert sum(begins[ids]) == words, (text, subwords.tokenizer.pieces(ids))
    assert not begins[list(subwords.special)].any()


def test_how_entries_are_shown(subwords: BpeWords) -> None:
    (dog, dot) = subwords.encode(["dog."])[0]
    assert (subwords.show(dog), subwords.show(dot), subwords.show(subwords.encode([" "])[0][0])) == ("dog", ".", "▁")
    inside = next(i for i in range(300, len(subwords)) if not subwords.begins_word[i])
    assert subwords.show(inside).startswith("##")


def test_a_translator_s_tokenizer_is_refused() -> None:
    with pytest.raises(FormatError, match=r"</s>, not \[PAD\] \[MASK\] \[CLS\] \[SEP\]"):
        BpeWords(Tokenizer.learn(LINES, 330))


# --------------------------------------------------------------------------- word pieces


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_pieces(lowercase: bool) -> None:
    words = WordPieces(ENTRIES, lowercase=lowercase)
    (ids,) = words.encode(["dogs running. Café"])
    last = "cafe" if lowercase else "[UNK]"
    assert [words.show(i) for i in ids] == ["dogs", "run", "##ning", ".", last]
    assert words.begins_word[ids].tolist() == [True, True, False, True, True]
    assert words.decode(ids[:4]) == "dogs running."
    hidden = words.encode_with_hidden("a [MASK] run.")
    assert [words.show(i) for i in hidden] == ["a", "[MASK]", "run", "."]


def words_in(folder: Path) -> BertWords:
    with open_folder(folder, "copy it again") as opened:
        return read_words(opened)


@pytest.mark.parametrize("kind", ["subwords", "pieces"])
def test_words_on_disk(kind: str, subwords: BpeWords, tmp_path: Path) -> None:
    words = subwords if kind == "subwords" else WordPieces(ENTRIES, lowercase=False)
    words.save(tmp_path)
    again = words_in(tmp_path)
    assert (type(again), again.digest, again.symbols) == (type(words), words.digest, words.symbols)
    assert again.encode(LINES) == words.encode(LINES)


def test_line_ends_of_windows_change_nothing(tmp_path: Path) -> None:
    words = WordPieces(ENTRIES, lowercase=True)
    words.save(tmp_path)
    content = (tmp_path / "vocab.txt").read_bytes()
    (tmp_path / "vocab.txt").write_bytes(content.replace(b"\n", b"\r\n"))
    assert words_in(tmp_path).digest == words.digest


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"tokenizer\.json: is missing"):
        words_in(tmp_path)
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(FormatError, match=r"vocab.txt: the vocabulary has no \[PAD\], \[UNK\]"):
        words_in(tmp_path)
    with pytest.raises(FormatError, match="an entry twice"):
        WordPieces([*ENTRIES, "dog"], lowercase=True)
    with pytest.raises(DataError, match="text 2 of 2 has a lone surrogate"):
        WordPieces(ENTRIES, lowercase=True).encode(["a", "\ud800"])


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The transformers package."""
    if (PEERS / "transformers").is_dir():
        monkeypatch.syspath_prepend(str(PEERS))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    try:
        return importlib.import_module("transformers")
    except ImportError:
        pytest.skip(f"no transformers in {PEERS}: set MULTIHEAD_PEERS to the folder that holds it")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lowercase", [True, False])
def test_their_package_cuts_alike(lowercase: bool, transformers: Any, tmp_path: Path) -> None:
    """The files that it saves can be read."""
    words = WordPieces(ENTRIES, lowercase=lowercase)
    words.save(tmp_path)
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    texts = ["A dog, DOGS running.", "Café naïve Über 中a\tdog \u200b", "don't [x] a [MASK] mask.", ""]
    for text in texts:
        assert words.encode_with_hidden(text) == theirs.encode(text, add_special_tokens=False), text
    theirs.save_pretrained(tmp_path / "again")
    (tmp_path / "again" / "vocab.txt").unlink(missing_ok=True)
    assert json.loads((tmp_path / "again" / "tokenizer.json").read_text())["model"]["type"] == "WordPiece"
    assert words_in(tmp_path / "again").digest == words.digest


@pytest.mark.filterwarnings("ignore")
def test_their_package_cuts_as_our_subwords_do(subwords: BpeWords, transformers: Any, tmp_path: Path) -> None:
    subwords.save(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    names = ("pad_token_id", "cls_token_id", "sep_token_id", "mask_token_id")
    assert tuple(getattr(theirs, name) for name in names) == tuple(subwords.symbols)
    for text in (*LINES[:2], "A dog [MASK] in the grass.", "[MASK] dogs"):
        assert subwords.encode_with_hidden(text) == theirs.encode(text, add_special_tokens=False), text
