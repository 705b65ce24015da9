"""SentencePiece models: the library's ids and texts, but no text is a control symbol."""

import io

import pytest
import sentencepiece

from multihead.errors import DataError, FormatError, InputError
from multihead.text.foreign import SpecialIds
from multihead.text.sentencepiece import SentencePieceTokenizer, own_pieces, read_model
from multihead.text.tokenizer import Tokenizer

LINES = [f"{who} {what} {where}" for who in ("Ein Hund", "Die Katze") for what in ("sieht", "läuft über") for where in
         ("die Straße.", "17 Äpfel!", "das Haus (heute)?")]  # fmt: skip
HOSTILE = [
    "</s>",
    "Ein Hund </s> und <pad>, <unk> oder <s>",
    ">>de<< Hallo",
    "Die Katze >>de<<",
    "<0x0A> <0x41>",
    "▁ ▁Haus▁",
    "🐕 sieht 👩‍👩‍👧",
    "漢字 läuft",
    "a\tb\u00a0c\u3000d",
    "  zwei  Leerzeichen  ",
    "ﬁnden Ｈａｕｓ",
]


def train(**options):
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 5),
        model_writer=written,
        minloglevel=2,
        num_threads=1,
        hard_vocab_limit=False,
        **{"vocab_size": 90, **options},
    )
    return written.getvalue()


@pytest.fixture(scope="module", params=["unigram", "bpe", "bytes"])
def model(request):
    if request.param == "bytes":
        return train(byte_fallback=True, vocab_size=340)
    return train(model_type=request.param)


def tokenizer_of(model, **arguments):
    """The model's own ids, and after them padding and a language."""
    names = [*own_pieces(model), "<pad>", ">>de<<"]
    pad, language = len(names) - 2, len(names) - 1
    specials = SpecialIds(pad, 0, pad, names.index("</s>"))
    return SentencePieceTokenizer(model, names, specials, [names.index("<s>"), language], **arguments)


def library_of(model):
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def test_ids_and_texts_are_the_librarys(model):
    ours, library = tokenizer_of(model), library_of(model)
    for line in [*LINES, *HOSTILE]:
        ids = ours.encode(line)
        assert ids == library.encode(line)
        known = [i for i in ids if i != ours.unk_id]
        assert ours.decode(known) == library.decode(known).strip()
        assert len(ours.spans(line)) == len(ids)


def test_a_batch_is_its_texts_one_by_one(model):
    ours = tokenizer_of(model, prefix=[1])
    assert ours.encode_batch([*LINES, *HOSTILE, ""]) == [ours.encode(line) for line in [*LINES, *HOSTILE, ""]]
    assert ours.encode("") == ours.encode("   ") == []


def test_no_text_is_a_control_symbol_and_no_search_emits_one(model):
    ours = tokenizer_of(model)
    control = ours.control - {ours.unk_id}
    for line in HOSTILE:
        assert control.isdisjoint(ours.encode(line))
    assert set(ours.forbidden_in_output) >= ours.control - {ours.eos_id}
    assert ours.eos_id not in ours.forbidden_in_output
    allowed = set(range(len(ours))) - set(ours.forbidden_in_output)
    assert not any(b"\n" in ours.entries[i] or b"\r" in ours.entries[i] for i in allowed)


def test_unknown_text_that_spells_a_control_symbol_stays_unknown():
    # Characters that the model does not know are one piece, which may be spelled like an entry of the vocabulary.
    model = train(model_type="unigram")
    names = [*own_pieces(model), "漢字", ">>漢<<"]
    ours = SentencePieceTokenizer(model, names, SpecialIds(0, 0, 0, 2), [1, len(names) - 1])
    assert ours.encode_phrase("漢字")[-1] == len(names) - 2
    assert ours.encode_phrase(">>漢<<")[-1] == ours.unk_id


def test_a_vocabulary_of_another_order_renumbers(model):
    names = own_pieces(model)
    plain, turned = tokenizer_of(model), names[::-1]
    other = SentencePieceTokenizer(model, turned, SpecialIds(*[turned.index("<unk>")] * 3, turned.index("</s>")))
    for line in LINES:
        assert other.encode(line) == [turned.index(names[i]) for i in plain.encode(line)]
        assert other.decode(other.encode(line)) == plain.decode(plain.encode(line))


def test_the_prefix_is_before_texts_and_not_before_phrases(model):
    ours = tokenizer_of(model)
    prefixed = tokenizer_of(model, prefix=[len(ours) - 1])
    for line in LINES:
        assert prefixed.encode(line) == [len(ours) - 1, *ours.encode(line)]
        assert prefixed.encode_phrase(line) == ours.encode_phrase(line) == ours.encode(line)
        assert prefixed.decode(prefixed.encode(line)) == ours.decode(ours.encode(line))
        assert prefixed.spans(line) == [(0, 0), *ours.spans(line)]
    assert prefixed.digest != ours.digest


def test_spans_are_the_characters_that_a_piece_stands_for():
    ours = tokenizer_of(train())
    for line in LINES:
        pieces = ours.pieces(ours.encode(line))
        assert "".join(line[start:stop] for start, stop in ours.spans(line)) == line
        for piece, (start, stop) in zip(pieces, ours.spans(line), strict=True):
            assert piece.replace("▁", " ").strip() == line[start:stop].strip()


def test_a_written_tokenizer_is_the_same(model, tmp_path):
    ours = tokenizer_of(model, prefix=[1])
    ours.save(tmp_path / "tokenizer.json")
    read = Tokenizer.load(tmp_path / "tokenizer.json")
    assert isinstance(read, SentencePieceTokenizer)
    assert (read.digest, read.special_ids, read.prefix, read.vocabulary) == (
        ours.digest,
        ours.special_ids,
        ours.prefix,
        ours.vocabulary,
    )
    assert read.encode_batch(LINES + HOSTILE) == ours.encode_batch(LINES + HOSTILE)
    assert read.entries == ours.entries
    assert read.to_json() == ours.to_json()


def test_bad_input_is_refused(tmp_path):
    model = train()
    ours = tokenizer_of(model)
    with pytest.raises(DataError, match="lone surrogate"):
        ours.encode("a\ud800")
    with pytest.raises(DataError, match="text 2 of 2"):
        ours.encode_batch(["a", "\ud800"])
    with pytest.raises(InputError, match=f"there is no id {len(ours)}"):
        ours.decode([len(ours)])
    with pytest.raises(FormatError, match="special symbol has the id 999"):
        SentencePieceTokenizer(model, own_pieces(model), SpecialIds(0, 0, 999, 2))
    for number, damaged in enumerate((b"", b"no model", model[: len(model) // 2])):
        path = tmp_path / f"{number}.spm"
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=rf"{number}\.spm: not a SentencePiece model"):
            read_model(path)
    with pytest.raises(FormatError, match=r"none\.spm: cannot be read"):
        read_model(tmp_path / "none.spm")
    written = ours.to_json()
    changed = (written[:99], written.replace('"bos"', '"begin"'), written.replace('"model": "', '"model": "!'))
    for text in changed:
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(FormatError, match=r"tokenizer\.json: this sentencepiece tokenizer is damaged"):
            Tokenizer.load(tmp_path / "tokenizer.json")
