"""Marian's own files: made of a MarianMT model by the inverse of its documented conversion, and compared with it.

MarianMT differs from Marian in two numbers, which are set to Marian's here: the frequencies of positions, and the
epsilon of layer norms. It has an entry more, padding.
"""

import copy
import json
import math
import shutil

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from versions import tied_marian

from multihead.errors import ConfigurationError, FormatError
from multihead.interop.formats import opening
from multihead.interop.formats.parts import Languages

HEADS = "opus.spm32k-spm32k"
OPTIONS = {
    "type": "transformer",
    "dim-emb": 32,
    "transformer-heads": 4,
    "transformer-dim-ffn": 48,
    "transformer-decoder-dim-ffn": 0,
    "transformer-ffn-depth": 2,
    "transformer-ffn-activation": "swish",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-tied-layers": [],
    "transformer-no-projection": False,
    "right-left": False,
    "tied-embeddings-all": True,
    "tied-embeddings": False,
    "tied-embeddings-src": False,
}


def as_marian(model):
    """Marian's positions and epsilon in a MarianMT model, and padding whose embedding is zero."""
    places, half = torch.arange(128)[:, None], model.config.d_model // 2
    angles = places * torch.exp(torch.arange(half) * (-math.log(10000) / (half - 1)))
    with torch.no_grad():
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.copy_(torch.cat([angles.sin(), angles.cos()], 1))
            stack.embed_tokens.weight[-1] = 0
        model.lm_head.weight[-1] = 0
        model.final_logits_bias[0, -1] = 0
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6
    return model


def arrays_of(model):
    """The weights under Marian's names: matrices transposed, vectors as matrices of one row, no entry for padding."""
    found = {"decoder_ff_logit_out_b": model.final_logits_bias[:, :-1]}
    if model.config.share_encoder_decoder_embeddings:
        found["Wemb"] = model.model.encoder.embed_tokens.weight[:-1]
    else:
        found["encoder_Wemb"] = model.model.encoder.embed_tokens.weight[:-1]
        found["decoder_Wemb"] = model.model.decoder.embed_tokens.weight[:-1]
    for side in ("encoder", "decoder"):
        for number, layer in enumerate(getattr(model.model, side).layers, 1):
            prefix = f"{side}_l{number}"
            kinds = {"self": layer.self_attn} | ({"context": layer.encoder_attn} if side == "decoder" else {})
            norms = {"self": layer.self_attn_layer_norm}
            norms |= {"context": layer.encoder_attn_layer_norm} if side == "decoder" else {}
            for kind, attention in kinds.items():
                for part in "qkvo":
                    module = getattr(attention, "out_proj" if part == "o" else f"{part}_proj")
                    found[f"{prefix}_{kind}_W{part}"] = module.weight.T
                    found[f"{prefix}_{kind}_b{part}"] = module.bias[None]
                found[f"{prefix}_{kind}_Wo_ln_scale"] = norms[kind].weight[None]
                found[f"{prefix}_{kind}_Wo_ln_bias"] = norms[kind].bias[None]
            for number_of, module in ((1, layer.fc1), (2, layer.fc2)):
                found[f"{prefix}_ffn_W{number_of}"] = module.weight.T
                found[f"{prefix}_ffn_b{number_of}"] = module.bias[None]
            found[f"{prefix}_ffn_ffn_ln_scale"] = layer.final_layer_norm.weight[None]
            found[f"{prefix}_ffn_ffn_ln_bias"] = layer.final_layer_norm.bias[None]
    return {name: tensor.detach().numpy() for name, tensor in found.items()}


def write(folder, arrays, options):
    """The archive: Marian pads the text of the settings to blocks of 256 bytes, the last of which is zero."""
    text = yaml.safe_dump(options).encode() + b"\0"
    text += bytes(-len(text) % 256)
    special = np.frombuffer(text, dtype=np.int8)
    np.savez(folder / f"{HEADS}.npz", **arrays, **{"special:model.yml": special})


def convert(model, theirs, ours, **options):
    """A folder as OPUS-MT-train publishes it, from a folder of MarianMT."""
    layers = {"enc-depth": len(model.model.encoder.layers), "dec-depth": len(model.model.decoder.layers)}
    settings = {**OPTIONS, **layers, **options}
    write(ours, arrays_of(model), settings)
    separate = not model.config.share_encoder_decoder_embeddings
    names = [f"{HEADS}.{kind}.vocab.yml" for kind in ("src", "trg")] if separate else [f"{HEADS}.vocab.yml"] * 2
    for name, source in zip(names, ("vocab.json", "target_vocab.json"), strict=True):
        if (theirs / source).exists():
            ids = json.loads((theirs / source).read_text())
            ids.pop("<pad>")
            (ours / name).write_text(yaml.safe_dump(ids, allow_unicode=True))
    for name in ("source.spm", "target.spm"):
        shutil.copy(theirs / name, ours)
    decoder = {"models": [f"/elsewhere/{HEADS}.npz"], "vocabs": names, "beam-size": 6, "normalize": 1}
    (ours / "decoder.yml").write_text(yaml.safe_dump(decoder))
    return ours


@pytest.fixture(scope="module")
def learned(opus_mt, tmp_path_factory):
    """A trained model on both sides: the one of `transformers`, its folder, and Marian's folder."""
    model = as_marian(copy.deepcopy(opus_mt[0]))
    return model, opus_mt[1], convert(model, opus_mt[1], tmp_path_factory.mktemp("marian"))


def check_equal(model, theirs, ours, lines, languages=None):
    """Equal tokens, and equal logits after Marian's own entries."""
    expected = opening.read_foreign(theirs, languages or Languages())
    parts = opening.read_foreign(ours, languages or Languages())
    network = parts.build(ours)
    tokenizer = parts.source_tokenizer
    ids = [[*row, tokenizer.eos_id] for row in tokenizer.encode_batch(lines)]
    assert tokenizer.encode_batch(lines) == expected.source_tokenizer.encode_batch(lines)
    target = torch.randint(0, parts.config.target_vocab - 1, (1, 9), generator=torch.Generator().manual_seed(0))
    target[:, 0] = parts.target_tokenizer.bos_id
    for row in ids:
        source = torch.tensor([row])
        with torch.no_grad():
            logits = network(source, torch.tensor([len(row)]), target).logits
            wanted = model(input_ids=source, decoder_input_ids=target).logits
        assert (logits - wanted)[..., :-1].abs().max() < 1e-4
        assert logits.softmax(-1)[..., -1].max() < 1e-30
    return parts, network


def test_a_model_of_opus_mt_train_is_the_marianmt_model(foreign, learned):
    parts, network = check_equal(*learned, foreign.sentences(8, seed=3))
    assert parts.generation.beam == 6
    assert parts.generation.alpha == 1.0
    assert network.max_positions is None


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"activation_function": "relu"}, {"transformer-ffn-activation": "relu"}),
        ({"encoder_layers": 4, "decoder_layers": 1}, {}),
        ({"languages": ["deu", "fra"]}, {}),
        pytest.param({"separate": True}, {"tied-embeddings-all": False, "tied-embeddings": True}, marks=tied_marian),
    ],
    ids=["relu", "deep-shallow", "languages", "separate"],
)
def test_variants_are_the_marianmt_models(foreign, tmp_path, settings, options):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    model = as_marian(foreign.marian(theirs, **settings))
    convert(model, theirs, ours, **options)
    check_equal(model, theirs, ours, foreign.sentences(4), Languages(target="fr"))


def test_pre_norm_and_untied_models_compute_marians_equations(foreign, learned, tmp_path):
    # MarianMT has neither, so the network is compared with one of ours that was given the same weights otherwise.
    model, _, folder = learned
    arrays = {name: array.copy() for name, array in arrays_of(model).items()}
    plain = opening.read_foreign(folder, Languages())
    for name in [name for name in arrays if "_ln_" in name]:
        arrays[f"{name}_pre"] = arrays.pop(name)
    for side in ("encoder", "decoder"):
        for kind in ("scale", "bias"):
            arrays[f"{side}_top_ln_{kind}"] = np.full((1, 32), 1.5, np.float32)
    arrays["decoder_ff_logit_out_Wt"] = arrays["Wemb"] * 2
    del arrays["decoder_ff_logit_out_b"]
    ours = tmp_path / "pre"
    shutil.copytree(folder, ours)
    pre = {"transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n"}
    tied = {"tied-embeddings-all": False, "tied-embeddings-src": True}
    write(ours, arrays, {**OPTIONS, "enc-depth": 2, "dec-depth": 2, **pre, **tied})
    parts = opening.read_foreign(ours, Languages())
    assert (parts.config.norm, parts.config.has_final_norm, parts.config.tie_output) == ("pre", True, False)
    assert torch.equal(parts.weights["output.weight"][:-1], 2 * plain.weights["source_embedding.table.weight"][:-1])
    assert torch.equal(parts.weights["decoder_norm.weight"], torch.full((32,), 1.5))
    same = [name for name in parts.weights if not name.startswith(("output", "encoder_norm", "decoder_norm"))]
    assert all(torch.equal(parts.weights[name], plain.weights[name]) for name in same)
    parts.build(ours)


def test_a_sentencepiece_vocabulary_has_its_own_ids(foreign, learned, tmp_path):
    import io

    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(  # as Marian trains them
        sentence_iterator=iter(foreign.sentences(100) + foreign.sentences(100, english=True)),
        model_writer=written, bos_id=-1, eos_id=0, unk_id=1, vocab_size=120, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    library = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    size = library.get_piece_size()
    arrays = {name: array.copy() for name, array in arrays_of(learned[0]).items()}
    arrays["Wemb"] = np.resize(arrays["Wemb"], (size, 32))
    arrays["decoder_ff_logit_out_b"] = np.resize(arrays["decoder_ff_logit_out_b"], (1, size))
    write(tmp_path, arrays, {**OPTIONS, "enc-depth": 2, "dec-depth": 2})
    (tmp_path / "model.vocab.spm").write_bytes(written.getvalue())
    parts = opening.read_foreign(tmp_path, Languages())
    tokenizer = parts.source_tokenizer
    assert (tokenizer.eos_id, tokenizer.unk_id, tokenizer.pad_id, tokenizer.bos_id) == (0, 1, size, size)
    for line in foreign.sentences(10):
        assert tokenizer.encode(line) == library.encode(line)
    parts.build(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "s2s"}, "type is 's2s'; multihead reads models with transformer"),
        ({"transformer-decoder-autoreg": "rnn"}, "transformer-decoder-autoreg is 'rnn'"),
        ({"transformer-tied-layers": [1, 1]}, "transformer-tied-layers is set"),
        ({"transformer-postprocess": "danr"}, "transformer-postprocess 'danr'; multihead reads"),
        ({"transformer-preprocess": "n"}, "multihead reads '' with 'dan', and 'n' with 'da'"),
        ({"transformer-postprocess-top": "a"}, "transformer-postprocess-top is 'a'"),
        ({"transformer-decoder-dim-ffn": 96}, "transformer-decoder-dim-ffn is 96 and transformer-dim-ffn 48"),
        ({"right-left": True}, "right-left is 'true'"),
        ({"enc-depth": 3}, "has no encoder_l3_self_Wq"),
        ({"enc-depth": 1}, "16 arrays that such a model does not have"),
        ({"transformer-heads": "many"}, "the settings of the network are incomplete"),
    ],
)
def test_unsupported_options_are_refused_by_name(learned, tmp_path, options, message):
    model, theirs, _ = learned
    folder = convert(model, theirs, tmp_path, **options)
    with pytest.raises(FormatError, match=message):
        opening.read_foreign(folder, Languages())


def test_damaged_folders_are_refused(learned, tmp_path):
    folder = convert(*learned[:2], tmp_path)
    archive = folder / f"{HEADS}.npz"
    content = archive.read_bytes()

    def refused(message):
        with pytest.raises(FormatError, match=message) as caught:
            opening.read_foreign(folder, Languages())
        assert "\n" not in str(caught.value)

    archive.write_bytes(content[:-100])
    refused("damaged or unreadable")
    archive.write_bytes(content)
    (folder / "source.spm").unlink()
    refused(r"there is no source\.spm: text was tokenized and cut by other tools")
    shutil.copy(learned[1] / "source.spm", folder)
    vocabulary = folder / f"{HEADS}.vocab.yml"
    vocabulary.write_text("no: [yaml")
    refused(r"vocab\.yml: damaged: not YAML")
    vocabulary.write_text("Haus: many")
    refused(r"vocab\.yml: damaged: an id is no number")
    shutil.copy(archive, folder / "second.npz")
    (folder / "decoder.yml").unlink()
    refused("several models")


def test_a_model_of_several_languages_needs_one(foreign, tmp_path):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    convert(foreign.marian(theirs, languages=["deu", "fra"]), theirs, ours)
    with pytest.raises(ConfigurationError, match="2 target languages"):
        opening.read_foreign(ours, Languages())
    parts = opening.read_foreign(ours, Languages(target="de"))
    assert parts.target_language == "deu"
    assert parts.source_tokenizer.vocabulary[parts.source_tokenizer.prefix[0]] == ">>deu<<"
