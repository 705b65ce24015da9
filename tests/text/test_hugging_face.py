"""Tokenizers of the ``tokenizers`` library: its ids and texts, but no text is a control symbol."""

import json

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from multihead.errors import DataError, FormatError, InputError
from multihead.text.foreign import SpecialIds
from multihead.text.hugging_face import HuggingFaceTokenizer
from multihead.text.tokenizer import Tokenizer

LINES = [f"{who} {what} {where}" for who in ("Ein Hund", "Die Katze") for what in ("sieht", "läuft über") for where in
         ("die Straße.", "17 Äpfel!", "das Haus (heute)?")]  # fmt: skip
HOSTILE = [
    "</s>",
    "Ein Hund </s> <pad> <unk> de_DE",
    "de_DE Hund",
    "▁ ▁Haus▁",
    "🐕 sieht 👩‍👧",
    "漢字",
    "a\tb\nc",
    "  x  y ",
]
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "de_DE", "en_XX"]


def unigram():
    """As transformers makes mBART's: the special symbols are among the pieces."""
    trained = tokenizers.Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(LINES, trainers.UnigramTrainer(vocab_size=80, unk_token="<unk>", show_progress=False))
    pieces = [(piece, score) for piece, score in json.loads(trained.to_str())["model"]["vocab"] if piece != "<unk>"]
    made = tokenizers.Tokenizer(models.Unigram([(one, 0.0) for one in SPECIALS] + pieces, unk_id=3))
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return made


def byte_pairs():
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=90, special_tokens=SPECIALS, show_progress=False))
    return made


def word_ends():
    """As CLIP and the first GPT have it: an entry says that its word ends."""
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.WhitespaceSplit(), decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=120, special_tokens=SPECIALS, end_of_word_suffix="</w>", show_progress=False
    )
    made.train_from_iterator(LINES, trainer)
    return made


def byte_level():
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(LINES, trainer)
    return made


@pytest.fixture(scope="module", params=[unigram, byte_pairs, word_ends, byte_level], ids=lambda make: make.__name__)
def library(request):
    made = request.param()
    made.add_special_tokens(SPECIALS)
    made.post_processor = processors.TemplateProcessing(
        single="de_DE $A </s>", special_tokens=[("de_DE", 4), ("</s>", 2)]
    )
    made.enable_truncation(3)
    made.enable_padding()
    return made


def tokenizer_of(library, **arguments):
    return HuggingFaceTokenizer(json.loads(library.to_str()), SpecialIds(1, 3, 2, 2), **arguments)


def test_ids_and_texts_are_the_librarys(library):
    ours, plain = tokenizer_of(library), tokenizers.Tokenizer.from_str(library.to_str())
    plain.no_truncation()
    plain.no_padding()
    for line in LINES:
        ids = plain.encode(line, add_special_tokens=False).ids
        assert ours.encode(line) == ids
        assert ours.decode(ids) == plain.decode(ids)
        assert len(ours.spans(line)) == len(ids)
        assert b"".join(ours.entries[i] for i in ids).decode().strip() == ours.decode(ids).strip()


def test_no_text_is_a_control_symbol_and_no_search_emits_one(library):
    ours = tokenizer_of(library)
    assert ours.control == {SPECIALS.index(one) for one in SPECIALS}
    for line in HOSTILE:
        assert (ours.control - {ours.unk_id}).isdisjoint(ours.encode(line))
    assert set(ours.forbidden_in_output) >= ours.control - {ours.eos_id}
    assert ours.eos_id not in ours.forbidden_in_output
    allowed = set(range(len(ours))) - set(ours.forbidden_in_output)
    assert not any(b"\n" in ours.entries[i] or b"\r" in ours.entries[i] for i in allowed)


def test_bytes_spell_any_text():
    ours = tokenizer_of(byte_level())
    for line in [*LINES, *HOSTILE]:
        ids = ours.encode(line)
        if ours.unk_id not in ids:
            assert b"".join(ours.entries[i] for i in ids).decode() == line == ours.decode(ids)


def test_a_batch_is_its_texts_one_by_one(library):
    ours = tokenizer_of(library, prefix=[4])
    texts = [*LINES, *HOSTILE, ""]
    assert ours.encode_batch(texts) == [ours.encode(line) for line in texts]
    assert ours.encode("") == []
    assert all(ours.encode(line)[0] == 4 and ours.encode_phrase(line) == ours.encode(line)[1:] for line in LINES)


def test_rows_without_an_entry_are_control_symbols(library):
    ours = tokenizer_of(library, size=len(tokenizer_of(library)) + 5)
    assert len(ours) == len(tokenizer_of(library)) + 5
    assert {*range(len(ours) - 5, len(ours))} <= set(ours.forbidden_in_output)
    assert ours.decode([len(ours) - 1]) == ""


def test_a_written_tokenizer_is_the_same(library, tmp_path):
    ours = tokenizer_of(library, control=[10], prefix=[4], size=500)
    ours.save(tmp_path / "tokenizer.json")
    read = Tokenizer.load(tmp_path / "tokenizer.json")
    assert isinstance(read, HuggingFaceTokenizer)
    assert (read.digest, read.special_ids, read.prefix) == (ours.digest, ours.special_ids, ours.prefix)
    assert (read.vocabulary, read.entries) == (ours.vocabulary, ours.entries)
    assert read.encode_batch(LINES + HOSTILE) == ours.encode_batch(LINES + HOSTILE)


def test_bad_input_is_refused(library, tmp_path):
    ours = tokenizer_of(library)
    with pytest.raises(DataError, match="lone surrogate"):
        ours.encode("a\ud800")
    with pytest.raises(InputError, match=f"there is no id {len(ours)}"):
        ours.decode([len(ours)])
    with pytest.raises(FormatError, match="the tokenizers library cannot read"):
        HuggingFaceTokenizer({"model": {"type": "BPE", "vocab": 3}}, SpecialIds(1, 3, 2, 2))
    with pytest.raises(FormatError, match="special symbol has the id 999"):
        HuggingFaceTokenizer(json.loads(library.to_str()), SpecialIds(999, 3, 2, 2))
    (tmp_path / "tokenizer.json").write_text(ours.to_json().replace('"size"', '"count"'))
    with pytest.raises(FormatError, match=r"tokenizer\.json: this hugging-face tokenizer is damaged"):
        Tokenizer.load(tmp_path / "tokenizer.json")
