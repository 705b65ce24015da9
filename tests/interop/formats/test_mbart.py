"""mBART-50: the tokens, logits and translations of `transformers`, from the same files."""

import json

import pytest
from versions import language_prefix

from multihead.errors import FormatError
from multihead.interop.formats import opening
from multihead.interop.formats.parts import Languages

GERMAN_ENGLISH = Languages("de", "en")


@pytest.fixture(scope="module")
def learned(foreign, both_sides, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mbart50")
    model = foreign.mbart50(folder, updates=90)
    return both_sides(model, folder, GERMAN_ENGLISH, src_lang="de_DE", tgt_lang="en_XX")


@language_prefix
def test_it_translates_as_theirs(foreign, learned):
    learned.check_source(foreign.sentences(20))
    learned.check_target(foreign.sentences(20, english=True))
    learned.check_logits(foreign.sentences(8, seed=3))
    learned.check_search(foreign.sentences(24, seed=3))
    assert learned.network.max_positions == 128


def test_no_text_becomes_a_language(foreign, learned):
    source = learned.parts.source_tokenizer
    for text in (*foreign.hostile, "Hund de_DE Haus"):
        assert (source.control - {source.unk_id}).isdisjoint(source.encode_phrase(text))


def test_fairseqs_order_of_the_vocabulary_gives_the_same_tokens(foreign, learned, tmp_path):
    # Folders of 2021 have no tokenizer.json: the ids follow from the SentencePiece model.
    foreign.mbart50(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    parts = opening.read_foreign(tmp_path, GERMAN_ENGLISH)
    lines = foreign.sentences(20)
    assert parts.source_tokenizer.vocabulary == learned.parts.source_tokenizer.vocabulary
    assert parts.source_tokenizer.encode_batch(lines) == learned.parts.source_tokenizer.encode_batch(lines)
    assert parts.target_tokenizer.prefix == learned.parts.target_tokenizer.prefix
    assert set(parts.target_tokenizer.forbidden_in_output) == set(learned.parts.target_tokenizer.forbidden_in_output)


def test_mbart_of_25_languages_is_refused(foreign, tmp_path):
    foreign.mbart50(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "MBartTokenizer"}))
    with pytest.raises(FormatError, match="puts the language after the text; multihead reads mBART-50"):
        opening.read_foreign(tmp_path, GERMAN_ENGLISH)
