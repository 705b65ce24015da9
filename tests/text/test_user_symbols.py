"""User-defined symbols: one id each, exact texts, in Python, JavaScript and SentencePiece alike."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from multihead.decoding.search import Search
from multihead.errors import ConfigurationError, DataError, FormatError
from multihead.interop.exporting import FORMATS, find_format
from multihead.interop.formats import sentencepiece as pieces
from multihead.interop.formats import web_vocabulary
from multihead.interop.formats.parts import TranslatorParts
from multihead.models.config import TransformerConfig
from multihead.text.language_tokens import LanguageTokenizer
from multihead.text.segment import Segmenter
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer
from multihead.text.user_symbols import SymbolTokenizer, learn_with_symbols
from multihead.text.vocabulary import MARK, read_spelled

SYMBOLS = ("<b>", "</b>", "⟨num1⟩", "<b", "XML", "€", "{{name}}", ".*", "🙂🙂")
LINES = ["Ein <b>Hund</b> rennt, XML 12 €.", "XMLs cost 5€ and <bold> {{name}}!", "a<b>c, aXb MLX 🙂"] * 6
OWN = learn_with_symbols(LINES, 400, SYMBOLS)
TEXTS = st.lists(
    st.sampled_from([*SYMBOLS, " ", "  ", MARK, "a", "Ein Hund", "XM", "ML", "<", ">", "b", "12", "\t", "🙂", "</s>"])
    | st.text(max_size=3),
    max_size=8,
).map("".join)


def cut(text: str) -> list[str]:
    """The symbols and what is between them, at each place the longest: the definition, one character at a time."""
    found, place = [""], 0
    while place < len(text):
        here = max((symbol for symbol in SYMBOLS if text.startswith(symbol, place)), key=len, default="")
        found[-1:] = [found[-1], here, ""] if here else [found[-1] + text[place]]
        place += max(len(here), 1)
    return found


@settings(max_examples=150)
@given(TEXTS, TEXTS)
@example("a<b>c", " <b> c ")
@example("<b>", "XML XML  ")
def test_texts_come_back_and_each_symbol_is_one_id(one: str, other: str) -> None:
    assert isinstance(OWN, SymbolTokenizer)
    inner = OWN.pairs
    for text, ids in zip((one, other), OWN.encode_batch([one, other]), strict=True):
        assert ids == OWN.encode(text)
        assert OWN.decode(ids) == text == read_spelled(OWN.spell(ids))
        parts = cut(text)
        first = inner.encode(parts[0]) if len(parts) == 1 else inner.encode_rest(f" {parts[0]}")
        rest = [
            [OWN.id_of(part)] if place % 2 else inner.encode_rest(part) for place, part in enumerate(parts[1:], start=1)
        ]
        assert ids == [i for part in (first, *rest) for i in part]
        assert len(OWN.spans(text)) == len(ids)


@settings(max_examples=40)
@given(st.lists(TEXTS, min_size=1, max_size=3), st.sampled_from([0.0, 0.3, 1.0]), st.booleans())
def test_dropout_keeps_symbols_whole(rows: list[str], dropout: float, marked: bool) -> None:
    tokenizer = LanguageTokenizer(OWN, ["de", "en"], "en") if marked else OWN
    ids = tokenizer.encode_batch(rows)
    found = Segmenter(tokenizer, dropout, seed=3).segment(ids, range(len(rows)), epoch=1, side=0)
    assert tokenizer.decode_batch(found) == rows
    symbols = range(len(OWN) - len(SYMBOLS), len(OWN))
    assert [[i for i in row if i in symbols] for row in found] == [[i for i in row if i in symbols] for row in ids]
    if dropout == 1.0 and not marked:
        assert isinstance(OWN, SymbolTokenizer)
        assert all(len(OWN.vocabulary[i]) == 1 for row in found for i in row if 260 <= i < len(OWN.pairs))


def test_nothing_is_learned_across_a_symbol() -> None:
    assert isinstance(OWN, SymbolTokenizer)
    assert OWN.vocabulary[-len(SYMBOLS) :] == SYMBOLS
    assert not any(symbol in entry for symbol in SYMBOLS for entry in OWN.pairs.vocabulary[260:])
    plain = learn_with_symbols(LINES, 400, ())
    assert isinstance(plain, BytePairTokenizer)
    assert plain.digest == Tokenizer.learn(LINES, 400).digest
    # The number of entries includes the symbols.
    assert len(learn_with_symbols(["a b c d " * 9], 280, SYMBOLS)) <= 280
    with pytest.raises(ConfigurationError, match=r"vocab_size is 270, but 269 special and user-defined symbols"):
        learn_with_symbols(LINES, 270, SYMBOLS)


def test_the_file(tmp_path: Path) -> None:
    OWN.save(tmp_path / "t.json")
    loaded = Tokenizer.load(tmp_path / "t.json")
    assert isinstance(loaded, SymbolTokenizer)
    assert isinstance(OWN, SymbolTokenizer)
    assert (loaded.symbols, loaded.digest, loaded.vocabulary) == (SYMBOLS, OWN.digest, OWN.vocabulary)
    assert OWN.digest != OWN.pairs.digest != SymbolTokenizer(OWN.pairs, SYMBOLS[1:]).digest != OWN.digest
    damages: list[dict[str, object]] = [
        *({"symbols": wrong} for wrong in ("a", [], [1], ["a b"])),
        {"inner": 3},
    ]
    for damage in damages:
        with pytest.raises(FormatError):
            Tokenizer.from_json(json.dumps(json.loads(OWN.to_json()) | damage))
    outer = json.dumps({"multihead_tokenizer": "symbols", "symbols": ["a"], "inner": json.loads(OWN.to_json())})
    with pytest.raises(FormatError, match="its inner one is a SymbolTokenizer"):
        Tokenizer.from_json(outer)


@pytest.mark.parametrize("symbol", ["", "a b", "a\tb", MARK, "\u200b", "x" * 101, "\ud800", "<unk>", "<0x41>"])
def test_what_is_no_symbol(symbol: str) -> None:
    inner = Tokenizer.learn(LINES, 300)
    with pytest.raises(ConfigurationError, match="cannot be a user-defined symbol"):
        SymbolTokenizer(inner, ["<b>", symbol])


def test_what_else_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'<b>' is given twice"):
        learn_with_symbols(LINES, 300, ["<b>", "x", "<b>"])
    with pytest.raises(ConfigurationError, match="got 10,001"):
        learn_with_symbols(LINES, 300, list(map(str, range(10_001))))
    for text in ("\ud800", "<b>\ud800"):
        with pytest.raises(DataError, match=r"text 2 of 2 .*lone surrogate"):
            OWN.encode_batch(["a", text])


HOSTILE = [
    *("", "a<b>c", " <b> c ", "<b>", "<bold>", "5€ €", f"{MARK}<b>{MARK} x", "XMLXML  ML", ".* a.*"),
    "🙂🙂🙂 12⟨num1⟩3",
]


@pytest.mark.skipif(shutil.which("node") is None, reason="JavaScript is run by node")
def test_javascript_gives_the_same_ids(tmp_path: Path) -> None:
    site = Path(web_vocabulary.__file__).parent / "site"
    shutil.copyfile(site / "tokenizer.js", tmp_path / "tokenizer.mjs")
    assert web_vocabulary.refusal(OWN) is None
    texts = [*HOSTILE, *LINES[:3]]
    given = {"parts": web_vocabulary.describe(OWN), "texts": texts}
    (tmp_path / "given.json").write_text(json.dumps(given), encoding="utf-8")
    program = (
        'import { readFileSync } from "node:fs"; import { BytePairTokenizer } from "./tokenizer.mjs";'
        'const { parts, texts } = JSON.parse(readFileSync("given.json")); const own = new BytePairTokenizer(parts);'
        "const ids = texts.map((text) => own.encode(text));"
        "console.log(JSON.stringify({ ids, texts: ids.map((row) => own.decode(row)) }));"
    )
    ended = subprocess.run(
        ["node", "--input-type=module", "-e", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(ended.stdout) == {"ids": OWN.encode_batch(texts), "texts": texts}


def test_sentencepiece_gives_the_same_ids() -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    ordinary = [text for text in (*HOSTILE, *LINES[:3]) if MARK not in text]
    assert pieces.differing(OWN, ordinary) == []
    theirs = sentencepiece.SentencePieceProcessor(model_proto=pieces.model_of(OWN))
    assert [theirs.id_to_piece(i) for i in range(theirs.get_piece_size())] == list(OWN.vocabulary)
    kinds = [one.type for one in pieces.parse_model(pieces.model_of(OWN)).pieces]
    assert kinds[-len(SYMBOLS) - 1 :] == [1, *[4] * len(SYMBOLS)]  # 4: USER_DEFINED
    assert [theirs.decode(ids) for ids in OWN.encode_batch(ordinary)] == ordinary


def test_other_formats_refuse_by_name() -> None:
    pytest.importorskip("ctranslate2")
    config = TransformerConfig(
        source_vocab=len(OWN), target_vocab=len(OWN), padding_id=0, width=8, heads=1, encoder_layers=1, decoder_layers=1
    )
    parts = TranslatorParts(config, {}, OWN, OWN, Search(), "de", "en")
    for name in FORMATS:
        reasons = find_format(name).refusals(parts)
        assert ("tokenizers with user-defined symbols" in reasons) == (name not in ("web", "sentencepiece")), name
