"""Tokenizer: exact round trips, no text that becomes a control symbol, deterministic learning."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from multihead.errors import DataError, InputError
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer
from multihead.text.vocabulary import BYTE_TOKENS, FIRST_BYTE, FIRST_CHARACTER, MARK, Parts, Specials

PLAIN = [
    "A man in an orange hat, starring at something.",
    "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.",
    "Two young, white males are outside near many bushes in 2016 and 2017.",
    "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche, um 12:30 Uhr.",
    "我们在北京吃饭。 我们在上海吃饭。",
    "می‌خواهم به خانه بروم",
] * 3
HOSTILE_TRAINING = [
    "</s> </s></s> <s> the </s> end <s>",
    "<0x41> <0x41><0x41> <0xE2><0x96><0x81> 0x41 x41",
    f"{MARK} {MARK}{MARK} a{MARK}b {MARK}the {MARK}",
    "<blank> <unk> <blank><unk> blank unk",
    "the end \r a \n b",
    "12 1212 12 the12",
] * 20
SPECIALS_IN_WORDS = Specials(pad="PAD", unk="UNKNOWN", bos="ab", eos="12")

HOSTILE = [
    " ",
    "  ",
    "     ",
    " leading",
    "trailing ",
    "  two   runs    of spaces  ",
    MARK,
    MARK * 2,
    MARK * 5,
    f" {MARK}",
    f"{MARK} ",
    f" {MARK} ",
    f"{MARK} {MARK}",
    f"{MARK}word",
    f"word{MARK}",
    f"a{MARK}b {MARK}c{MARK} d {MARK} e",
    f"  {MARK}{MARK}  {MARK}  ",
    f"{MARK}\n{MARK}\t{MARK}</s>{MARK}7",
    "\t",
    "\ttabs\t\tand\tmore\t",
    "\n",
    "two\nlines\n",
    "\r",
    "windows\r\n",
    "\x00",
    "a\x00b \x00",
    "".join(map(chr, range(32))) + "\x7f" + "".join(map(chr, range(0x80, 0xA0))),
    "\u00a0",
    " \u00a0 no-break \u00a0",
    "".join(chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) in ("Zs", "Zl", "Zp")),
    "\u200b\u200c\u200d\u2060\ufeff",
    "\ufeffbyte order mark",
    "line\u2028paragraph\u2029end",
    "\ufffd",
    "\ufffd\ufffd broken \ufffd",
    "\ufffe\uffff\U0010ffff",
    "</s>",
    "<s>",
    "<blank>",
    "<unk>",
    "<pad>",
    "a </s> b</s>c <s></s>",
    "<0x41>",
    "<0xE2>",
    "<0xE2><0x96><0x81>",
    "<0x0A>",
    " <0x0A> ",
    "👨‍👩‍👧‍👦 family 👩🏽‍🚀",
    "🇩🇪🇬🇧 flags 🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "1️⃣ keycap ❤️love",
    "e\u0301 é a\u0308\u0323 \u0301alone",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘",
    "Ελληνικά Русский Հայերեն ქართული",
    "עברית עם נִקּוּד",
    "العربية مَعَ حَرَكَات ـــ",
    "\u202bright\u202c \u200fmarks\u200e \u2067isolates\u2069",
    "می‌خواهم اردو ہے",
    "हिन्दी क्षत्रिय বাংলা ਪੰਜਾਬੀ ગુજરાતી ଓଡ଼ିଆ தமிழ் తెలుగు ಕನ್ನಡ മലയാളം සිංහල",
    "ไทยไม่มีช่องว่าง ລາວ မြန်မာ ខ្មែរ བོད་ཡིག",
    "አማርኛ ᏣᎳᎩ ᐃᓄᒃᑎᑐᑦ ᠮᠣᠩᠭᠣᠯ",
    "中文沒有空格，標點。 日本語のかな・カタカナ 한국어 ㄱㅏ",
    "𝕄𝕒𝕥𝕙 𠀀𪚥 𐍈𐎀 𓀀 🂡 𝄞",
    "½ ² Ⅷ ٣٤ ४५ 一二 ⓬ 3.14 1,000,000 -5 x2y",
    'don\'t  --  ---- ... !!! "quoted" `tick` \\ back\\slash \\n \\u2581',
]


@pytest.fixture(scope="module", params=["plain", "hostile", "words"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Learned from ordinary text, from text full of markup, and with special symbols that are words."""
    if request.param == "plain":
        return Tokenizer.learn(PLAIN, 700)
    if request.param == "hostile":
        return Tokenizer.learn(HOSTILE_TRAINING, 400)
    words = ["PAD PADDING ab abc 12 UNKNOWN UNKNOWNS"] * 30
    return Tokenizer.learn(HOSTILE_TRAINING + words, 500, specials=SPECIALS_IN_WORDS)


def check_round_trip(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(FIRST_BYTE <= i < len(tokenizer) for i in ids), "a text became a special symbol"


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_lines_come_back_exactly(tokenizer: Tokenizer, text: str) -> None:
    check_round_trip(tokenizer, text)
    check_round_trip(tokenizer, f"{text} {text}")
    check_round_trip(tokenizer, f"word{text}word")


CHARACTERS = st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(f" {MARK}\t\n\r<>/s0x41é中1"))


@settings(max_examples=150)
@given(text=st.text(CHARACTERS))
@example(text="")
def test_any_text_comes_back_exactly(tokenizer: Tokenizer, text: str) -> None:
    check_round_trip(tokenizer, text)


@settings(max_examples=100)
@given(fragments=st.lists(st.sampled_from([*HOSTILE, "PAD", "ab", "12", "UNKNOWN", "the", " ", MARK])))
def test_mixtures_of_hostile_lines_come_back_exactly(tokenizer: Tokenizer, fragments: list[str]) -> None:
    check_round_trip(tokenizer, "".join(fragments))


@settings(max_examples=50)
@given(texts=st.lists(st.text(CHARACTERS)))
def test_a_batch_equals_its_texts_one_by_one(tokenizer: Tokenizer, texts: list[str]) -> None:
    batch = tokenizer.encode_batch(texts)
    assert batch == [tokenizer.encode(text) for text in texts]
    assert tokenizer.decode_batch(batch) == texts


@settings(max_examples=50)
@given(texts=st.lists(st.one_of(st.text(CHARACTERS), st.sampled_from(HOSTILE))))
def test_pieces_are_what_the_pattern_cuts(tokenizer: Tokenizer, texts: list[str]) -> None:
    for text, (ids, numbers) in zip(texts, tokenizer.encode_pieces(texts), strict=True):
        assert ids == tokenizer.encode(text)
        assert numbers == sorted(numbers)
        pieces = [[i for i, n in zip(ids, numbers, strict=True) if n == piece] for piece in dict.fromkeys(numbers)]
        wanted = []
        for number, part in enumerate(f" {text}".split(MARK) if text else []):
            wanted += [MARK] if number else []
            marked = part.replace(" ", MARK)
            wanted += [piece for piece, _ in tokenizer._backend.pre_tokenizer.pre_tokenize_str(marked)]
        raw = [b"".join(tokenizer._bytes[i] for i in piece) for piece in pieces]
        literal = MARK.encode()
        assert raw == [
            p.encode() if p == MARK and r == literal else p.replace(MARK, " ").encode()
            for p, r in zip(wanted, raw, strict=True)
        ]


def test_empty_text_has_no_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.encode_batch(["", MARK, ""])[::2] == [[], []]


def test_names_of_special_symbols_in_text_are_text(tokenizer: Tokenizer) -> None:
    for string in (*tokenizer.specials.strings, *BYTE_TOKENS):
        ids = tokenizer.encode_batch([string])[0]
        assert min(ids) >= FIRST_BYTE, "the name became the symbol"
        assert tokenizer.decode(ids) == string, "the name became the byte"


@pytest.mark.parametrize("text", ["2016", "12 1212", "a1b22", " 7", "  00 ", f"{MARK}3{MARK}4", "1.000,5"])
def test_every_digit_is_a_token_of_its_own(tokenizer: Tokenizer, text: str) -> None:
    digits = [character for character in text if character.isdigit()]
    texts = [tokenizer.decode([i]) for i in tokenizer.encode(text)]
    assert [part for part in texts if any(character.isdigit() for character in part)] == digits


def test_no_entry_joins_a_digit_or_a_line_break_to_anything(tokenizer: Tokenizer) -> None:
    for entry in tokenizer._parts.vocabulary[FIRST_CHARACTER:]:
        assert len(entry) == 1 or not any(unicodedata.category(c).startswith("N") for c in entry)
        assert "\n" not in entry
        assert "\r" not in entry


def test_line_breaks_and_control_symbols_are_forbidden_in_output(tokenizer: Tokenizer) -> None:
    forbidden = tokenizer.forbidden_in_output
    assert forbidden[:3] == (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id) == (0, 1, 2)
    assert tokenizer.eos_id not in forbidden
    for i in range(len(tokenizer)):
        breaks = bool(set("\r\n") & set(tokenizer.decode([i])))
        assert breaks == (i in forbidden[3:])


def test_forbidden_ids_cover_merges_of_another_vocabulary(tokenizer: Tokenizer) -> None:
    parts = tokenizer._parts
    added = ("\n", "\u2fff", "\u2fff\n")
    merged = BytePairTokenizer(Parts((*parts.vocabulary, *added), (*parts.merges, ("\u2fff", "\n")), r"[\s\S]+"))
    ids = merged.encode("\u2fff\n")
    assert ids[-1] == len(merged) - 1, "the pattern lets this merge happen"
    assert merged.forbidden_in_output == (*tokenizer.forbidden_in_output, len(tokenizer), len(merged) - 1)


def test_decoding_skips_special_symbols() -> None:
    tokenizer = Tokenizer.learn(PLAIN, 700)
    text = " A man, 2016 "
    ids = tokenizer.encode(text)
    wrapped = [tokenizer.bos_id, *ids[:2], tokenizer.unk_id, *ids[2:], tokenizer.eos_id, tokenizer.pad_id]
    assert tokenizer.decode(wrapped) == text


def test_bytes_that_are_no_text_become_replacement_characters(tokenizer: Tokenizer) -> None:
    stray = FIRST_BYTE + 0xE2
    assert tokenizer.decode([stray]) == "\ufffd"
    assert tokenizer.decode([FIRST_BYTE + ord("a"), stray, FIRST_BYTE + ord("b")]) == "a\ufffdb"


@pytest.mark.parametrize("bad", [-1, 10**9])
def test_an_id_out_of_range_is_refused(tokenizer: Tokenizer, bad: int) -> None:
    with pytest.raises(InputError, match=f"no id {bad}.*0 to {len(tokenizer) - 1}"):
        tokenizer.decode([5, bad])
    with pytest.raises(InputError, match="no id"):
        tokenizer.pieces([bad])


@pytest.mark.parametrize("text", ["broken \ud800", "\udc80", f"{MARK}\udfff"])
def test_a_lone_surrogate_is_refused(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(DataError, match="lone surrogate"):
        tokenizer.encode(text)
    with pytest.raises(DataError, match="lone surrogate"):
        tokenizer.encode_batch([text])
    with pytest.raises(DataError, match=r"line 2 has a lone surrogate .* position"):
        Tokenizer.learn(["fine", text], 300)


def test_a_lone_surrogate_in_a_batch_is_located(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="text 3 of 4"):
        tokenizer.encode_batch(["a", MARK, "\ud800", "b"])


def test_pieces_are_readable_and_name_every_id(tokenizer: Tokenizer) -> None:
    pieces = tokenizer.pieces(range(len(tokenizer)))
    assert pieces[:4] == list(tokenizer.specials.strings)
    assert pieces[FIRST_BYTE:FIRST_CHARACTER] == list(BYTE_TOKENS)
    assert all(piece and piece.isprintable() for piece in pieces)


def test_pieces_of_a_text_spell_it_with_word_marks() -> None:
    tokenizer = Tokenizer.learn(PLAIN, 700)
    pieces = tokenizer.pieces(tokenizer.encode("A man and a hat, 2016."))
    assert "".join(pieces) == f"{MARK}A{MARK}man{MARK}and{MARK}a{MARK}hat,{MARK}2016."


def test_invisible_characters_are_escaped_in_pieces() -> None:
    tokenizer = Tokenizer.learn(["a\u00a0b\u200d \x00"], 300, coverage=1.0)
    shown = tokenizer.pieces(tokenizer.encode("\u00a0\u200d\x00"))
    assert "".join(shown) == f"{MARK}\\xa0\\u200d\\x00"


def test_words_keep_their_mark_and_runs_of_spaces_stay_apart() -> None:
    tokenizer = Tokenizer.learn(["the end (the end) the  end"] * 10, 300)
    the, end = tokenizer.encode("the end")
    assert tokenizer.pieces([the, end]) == [f"{MARK}the", f"{MARK}end"]
    spaced = tokenizer.encode("the    end")
    assert (spaced[0], spaced[-1]) == (the, end), "spaces between words do not change the words"
    assert tokenizer.encode("the") == [the]
