"""MarianMT folders: the tokens, logits and translations of `transformers`, from the same files."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from multihead.errors import ConfigurationError, FormatError
from multihead.interop.formats import opening
from multihead.interop.formats.parts import Languages

PUNCTUATED = [
    "Ein Hund, der (heute) 17 Äpfel sieht: viel Brot!",
    "ﬁnden Ｈａｕｓ",
    "  zwei  Leerzeichen  ",
    "漢字 läuft",
    "🐕",
]


@pytest.fixture(scope="module")
def learned(both_sides, opus_mt):
    return both_sides(*opus_mt)


def test_tokens_are_theirs(foreign, learned):
    learned.check_source([*foreign.sentences(20), *PUNCTUATED])
    learned.check_target(foreign.sentences(20, english=True) + PUNCTUATED)


def test_no_text_becomes_a_control_symbol(foreign, learned):
    for tokenizer in (learned.parts.source_tokenizer, learned.parts.target_tokenizer):
        control = tokenizer.control - {tokenizer.unk_id}
        for ids in tokenizer.encode_batch(foreign.hostile):
            assert control.isdisjoint(ids)
            assert "\n" not in tokenizer.decode(ids)


def test_translations_are_theirs(foreign, learned):
    learned.check_logits(foreign.sentences(8, seed=3))
    learned.check_search(foreign.sentences(24, seed=3))


@pytest.mark.parametrize(
    "settings",
    [
        {"activation_function": "relu", "decoder_layers": 1, "encoder_layers": 3},
        {"activation_function": "gelu", "scale_embedding": False},
        {"tie_word_embeddings": False},
        {"separate": True, "languages": ["de", "fr"]},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_every_variant_has_their_logits(foreign, both_sides, tmp_path, settings):
    model = foreign.marian(tmp_path, **settings)
    sides = both_sides(model, tmp_path, Languages(target="fr"))
    sides.check_logits(foreign.sentences(6))
    if "languages" in settings:
        assert sides.parts.target_language == "fr"
        sides.check_source(foreign.sentences(6), before=">>fr<< ")
        sides.check_target(foreign.sentences(6, english=True))


def test_a_pickled_file_reads_as_safetensors_do(foreign, tmp_path):
    theirs = foreign.marian(tmp_path)
    expected = opening.read_foreign(tmp_path, Languages())
    (tmp_path / "model.safetensors").unlink()
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")  # with positions and every copy of the embedding
    found = opening.read_foreign(tmp_path, Languages())
    assert found.config == expected.config
    assert found.weights.keys() == expected.weights.keys()
    assert all(torch.equal(found.weights[name], tensor) for name, tensor in expected.weights.items())


def test_positions_that_are_no_sinusoids_are_learned_ones(foreign, both_sides, tmp_path):
    model = foreign.marian(tmp_path)
    with torch.no_grad():
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.normal_()
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    sides = both_sides(model, tmp_path)
    assert sides.parts.config.positions == "learned"
    sides.check_logits(foreign.sentences(6))


def test_search_settings_are_read(foreign, tmp_path):
    foreign.marian(tmp_path)
    path = tmp_path / "generation_config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"num_beams": 6, "length_penalty": 0.6, "max_length": 200})
    )
    search = opening.read_foreign(tmp_path, Languages()).generation
    assert (search.beam, search.alpha, search.min_length, search.max_length) == (6, 0.6, 0, 199)


def test_lengths_count_the_begin_symbol_unless_they_are_of_new_tokens(foreign, tmp_path):
    foreign.marian(tmp_path)
    path = tmp_path / "generation_config.json"
    written = json.loads(path.read_text())
    for lengths, expected in (
        ({"min_length": 0, "max_length": 30}, (0, 29)),
        ({"min_length": 1, "max_length": 30}, (0, 29)),
        ({"min_length": 3, "max_length": 30}, (2, 29)),
        ({"min_length": 3, "max_length": 30, "min_new_tokens": 5, "max_new_tokens": 50}, (5, 50)),
    ):
        path.write_text(json.dumps(written | lengths))
        search = opening.read_foreign(tmp_path, Languages()).generation
        assert (search.min_length, search.max_length) == expected


def test_search_settings_in_config_json_are_read_as_older_folders_have_them(foreign, tmp_path):
    foreign.marian(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    old = {  # of OPUS-MT, 2020
        "add_bias_logits": False,
        "add_final_layer_norm": False,
        "bad_words_ids": [[config["pad_token_id"]], [7]],
        "normalize_before": False,
        "normalize_embedding": False,
        "num_beams": 6,
        "max_length": 512,
        "static_position_embeddings": True,
    }
    path.write_text(json.dumps(config | old))
    parts = opening.read_foreign(tmp_path, Languages())
    assert (parts.generation.beam, parts.generation.max_length) == (6, 511)
    assert 7 in parts.target_tokenizer.forbidden_in_output
    assert 7 not in parts.source_tokenizer.forbidden_in_output
    assert (parts.source_language, parts.target_language) == ("de", "en")


@pytest.fixture
def folder(foreign, tmp_path):
    foreign.marian(tmp_path, languages=["de", "fr"])
    return tmp_path


def changed(name, **fields):
    def change(folder):
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def without(name):
    return lambda folder: (folder / name).unlink()


def cut(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-100])


def tensors(change):
    def write(folder):
        found = load_file(folder / "model.safetensors")
        change(found)
        save_file(found, folder / "model.safetensors")

    return write


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without("source.spm"), r"source\.spm: cannot be read"),
        (without("vocab.json"), r"vocab\.json: cannot be read"),
        (without("model.safetensors"), "there are no weights"),
        (cut("model.safetensors"), r"model\.safetensors: damaged or unreadable"),
        (cut("target.spm"), r"target\.spm: not a SentencePiece model"),
        (cut("vocab.json"), r"vocab\.json: damaged: not JSON"),
        (changed("config.json", d_model=64), "of another shape"),
        (changed("config.json", d_model="wide"), r"config\.json: .*width"),
        (changed("config.json", decoder_start_token_id=None), "decoder_start_token_id is None"),
        (
            changed("config.json", decoder_attention_heads=2),
            "encoder_attention_heads is 4 and decoder_attention_heads 2",
        ),
        (changed("config.json", activation_function="gelu_new"), "activation_function is 'gelu_new'"),
        (changed("config.json", normalize_before=True), "normalize_before is True"),
        (changed("vocab.json", Haus=999), "'Haus' has the id 999"),
        (changed("vocab.json", Haus=4), "have the same id 4"),
        (
            tensors(lambda found: found.pop("model.encoder.layers.0.fc1.weight")),
            "weights of model.encoder.layers.0.fc1",
        ),
        (tensors(lambda found: found.update(extra=torch.zeros(2))), r"1 tensors that no such model has.*'extra'"),
    ],
)
def test_a_damaged_or_unsupported_folder_is_refused(folder, damage, message):
    damage(folder)
    with pytest.raises(FormatError, match=message) as caught:
        opening.read_foreign(folder, Languages(target="de")).build(folder)
    assert "\n" not in str(caught.value)


def test_a_model_of_several_languages_needs_one(folder):
    with pytest.raises(ConfigurationError, match="this model has 2 target languages: name one with --target-language"):
        opening.read_foreign(folder, Languages())
    with pytest.raises(ConfigurationError, match="does not have it; it has de, fr"):
        opening.read_foreign(folder, Languages(target="it"))
    assert opening.read_foreign(folder, Languages(target="deu")).target_language == "de"
