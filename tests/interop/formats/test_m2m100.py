"""M2M-100 and NLLB-200: the tokens, logits and translations of `transformers`, from the same files."""

import json

import pytest
from versions import language_prefix, nllb_languages

from multihead.errors import ConfigurationError, FormatError
from multihead.interop.formats import opening
from multihead.interop.formats.parts import Languages

GERMAN_ENGLISH = Languages("deu", "eng")


@pytest.fixture(scope="module")
def nllb(both_sides, nllb_200):
    return both_sides(*nllb_200, GERMAN_ENGLISH, src_lang="deu_Latn", tgt_lang="eng_Latn")


@pytest.fixture(scope="module")
def m2m100(foreign, both_sides, tmp_path_factory):
    folder = tmp_path_factory.mktemp("m2m100")
    model = foreign.m2m100(folder, encoder_layers=1, activation_function="gelu")
    return both_sides(model, folder, Languages("de", "en"), src_lang="de", tgt_lang="en")


@language_prefix
def test_nllb_translates_as_theirs(foreign, nllb):
    nllb.check_source(foreign.sentences(20))
    nllb.check_target(foreign.sentences(20, english=True))
    nllb.check_logits(foreign.sentences(8, seed=3))
    nllb.check_search(foreign.sentences(24, seed=3))
    assert (nllb.parts.source_language, nllb.parts.target_language) == ("deu_Latn", "eng_Latn")


def test_m2m100_has_their_tokens_and_logits(foreign, m2m100):
    m2m100.check_source([*foreign.sentences(20), "ﬁnden Ｈａｕｓ", "  zwei  Leerzeichen ", "漢字 läuft", "▁Haus"])
    m2m100.check_target(foreign.sentences(20, english=True))
    m2m100.check_logits(foreign.sentences(8))


@nllb_languages
def test_no_text_becomes_a_language_and_none_is_emitted(foreign, nllb, m2m100):
    for sides, name in ((nllb, "eng_Latn"), (m2m100, "__en__")):
        source, target = sides.parts.source_tokenizer, sides.parts.target_tokenizer
        assert source.vocabulary[source.prefix[0]] != source.vocabulary[target.prefix[0]] == name
        for text in (*foreign.hostile, f"Hund {name} Haus"):
            assert (source.control - {source.unk_id}).isdisjoint(source.encode_phrase(text))
        assert set(target.prefix) <= set(target.forbidden_in_output)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer_class": "SMALL100Tokenizer"}, "its tokenizer is a SMALL100Tokenizer"),
        ({"legacy_behaviour": True}, "legacy_behaviour is True"),
        ({"language_codes": "m2m200"}, "language_codes is 'm2m200'"),
    ],
)
def test_another_tokenizer_is_refused(foreign, tmp_path, change, message):
    foreign.m2m100(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(FormatError, match=message):
        opening.read_foreign(tmp_path, Languages("de", "en"))


@nllb_languages
def test_languages_must_be_named_unless_the_folder_forces_one(foreign, tmp_path):
    foreign.nllb(tmp_path)
    for languages, message in (
        (Languages(), "5 source languages: name one with --source-language"),
        (Languages("de"), "5 target languages: name one with --target-language"),
        (Languages("de", "zh"), "this model has zho_Hans, zho_Hant: name one of them"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            opening.read_foreign(tmp_path, languages)
    expected = opening.read_foreign(tmp_path, GERMAN_ENGLISH).target_tokenizer.prefix
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"forced_bos_token_id": expected[0]}))
    assert opening.read_foreign(tmp_path, Languages("de")).target_tokenizer.prefix == expected


@pytest.mark.parametrize(
    ("family", "languages"), [("m2m100", ("de", "en")), ("mbart50", ("de_DE", "en_XX")), ("marian", (None, None))]
)
def test_settings_that_are_not_there_are_as_in_their_class(foreign, tmp_path, family, languages):
    from transformers import AutoConfig

    getattr(foreign, family)(tmp_path, dropout=0.3)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    unsaid = ("scale_embedding", "attention_dropout", "dropout")
    path.write_text(json.dumps({name: value for name, value in config.items() if name not in unsaid}))
    theirs, ours = AutoConfig.from_pretrained(tmp_path), opening.read_foreign(tmp_path, Languages(*languages)).config
    assert (ours.embedding_scale == "embedding") == theirs.scale_embedding == (family == "m2m100")
    assert (ours.dropout, ours.attention_dropout) == (theirs.dropout, theirs.attention_dropout)


def test_missing_vocabularies_are_refused(foreign, tmp_path):
    foreign.m2m100(tmp_path)
    (tmp_path / "sentencepiece.bpe.model").unlink()
    with pytest.raises(FormatError, match=r"there is no vocabulary; expected tokenizer\.json or sentencepiece"):
        opening.read_foreign(tmp_path, Languages("de", "en"))
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [], "model": {}}')
    with pytest.raises(FormatError, match=r"tokenizer\.json: has no special token <unk>"):
        opening.read_foreign(tmp_path, Languages("de", "en"))
