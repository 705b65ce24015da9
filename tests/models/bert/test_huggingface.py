"""Reading and writing Hugging Face's files; equality with their network.

Tests that need their package look for it in the folder that MULTIHEAD_PEERS names and on Python's path; they are
skipped if it is not installed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file, save_file

from multihead.errors import FormatError
from multihead.model_folder import COPY_AGAIN
from multihead.models.bert import huggingface as bert_exchange
from multihead.models.bert.config import BertConfig
from multihead.models.bert.network import Bert
from multihead.sealed import open_folder

CONFIG = BertConfig(vocab=60, width=24, layers=2, heads=3, inner=40, max_positions=16, dropout=0.2)
PEERS = Path(os.environ.get("MULTIHEAD_PEERS", Path(__file__).resolve().parents[3] / "peers"))
LENGTHS = torch.tensor([11, 4, 1, 7])


def ours(seed=0):
    torch.manual_seed(seed)
    model = Bert(CONFIG).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def read_by(model):
    """Input of both networks: tokens, lengths, segments."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, model.config.vocab, (4, 11), generator=generator)
    return tokens, LENGTHS, torch.randint(0, 2, tokens.shape, generator=generator)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    bert_exchange.write(tmp_path, ours())
    return tmp_path


def change(folder, change_tensors=lambda _: None, **fields):
    """Other tensors, or other settings."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    tensors = load_file(folder / "model.safetensors")
    change_tensors(tensors)
    save_file(tensors, folder / "model.safetensors")


def same(one, other):
    return {n: t.tolist() for n, t in one.named_parameters()} == {n: t.tolist() for n, t in other.named_parameters()}


def read(folder: Path) -> bert_exchange.Imported:
    with open_folder(folder, COPY_AGAIN) as opened:
        return bert_exchange.read(opened)


def test_there_and_back(written):
    again, missing = read(written)
    assert (again.config, missing) == (CONFIG, ())
    assert same(again, ours())


def test_an_encoder_alone_and_names_of_old(written):
    def encoder_only(tensors):
        kept = {n.removeprefix("bert."): t for n, t in tensors.items() if n.startswith("bert.") and "pooler" not in n}
        tensors.clear()
        tensors.update({n.replace("LayerNorm.weight", "LayerNorm.gamma"): t for n, t in kept.items()})

    change(written, encoder_only, architectures=["BertModel"])
    again, missing = read(written)
    assert missing == ("pooler", "words", "follows")
    with torch.no_grad():
        found, expected = (model.eval().encode(*read_by(model)).states for model in (again, ours()))
    assert torch.equal(found[0], expected[0])


def test_copies_of_what_is_tied_may_stand_there(written):
    def copied(tensors):
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
        tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")

    change(written, copied)
    assert same(read(written).model, ours())


@pytest.mark.parametrize(
    ("fields", "tensors", "words"),
    [
        ({"model_type": "roberta"}, {}, "a model of the type 'roberta'; expected 'bert'"),
        ({"hidden_act": "gelu_new"}, {}, "hidden_act is 'gelu_new'"),
        ({"hidden_size": 25}, {}, "multiple of heads"),
        ({"num_hidden_layers": 3}, {}, r"has no bert.encoder.layer.2"),
        ({"num_hidden_layers": 1}, {}, "16 tensors that no BERT has"),
        ({"vocab_size": 61}, {}, r"has the shape \[60, 24\], but config.json means \[61, 24\]"),
        ({}, {"classifier.weight": torch.ones(2)}, "1 tensors that no BERT has, among them .'classifier.weight'"),
        ({}, {"cls.predictions.decoder.weight": torch.ones(60, 24)}, "trained without tying"),
    ],
)
def test_what_cannot_be_read(written, fields, tensors, words):
    change(written, lambda found: found.update(tensors), **fields)
    with pytest.raises(FormatError, match=words):
        read(written)


def test_damaged_weights_are_named(written):
    (written / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(FormatError, match=r"model.safetensors: damaged"):
        read(written)


# --------------------------------------------------------------------------- their package


@pytest.fixture(scope="module")
def transformers() -> Iterator[ModuleType]:
    """Their package; changes to this process are undone afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        if (PEERS / "transformers").is_dir():
            patch.syspath_prepend(str(PEERS))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        patch.setattr(sys, "dont_write_bytecode", True)
        try:
            package = importlib.import_module("transformers")
        except ImportError:
            pytest.skip(f"no transformers in {PEERS}: set MULTIHEAD_PEERS to the folder that holds it")
        package.utils.logging.disable_progress_bar()
        yield package


def logits_of(theirs, read):
    tokens, lengths, segments = read
    mask = (torch.arange(tokens.shape[1]) < lengths[:, None]).long()
    with torch.no_grad():
        found = theirs(input_ids=tokens, attention_mask=mask, token_type_ids=segments)
    return found.prediction_logits[mask.bool()], found.seq_relationship_logits


def assert_equal_logits(model, theirs):
    read = read_by(model)
    with torch.no_grad():
        words, follows = model.eval()(*read)
    real = torch.arange(words.shape[1]) < read[1][:, None]
    for found, expected in zip((words[real], follows), logits_of(theirs.eval(), read), strict=True):
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.filterwarnings("ignore")
def test_their_model_is_ours_with_their_weights(transformers, tmp_path):
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    theirs = transformers.BertForPreTraining(
        transformers.BertConfig(**sizes, intermediate_size=40, max_position_embeddings=16)
    )
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path)
    model, missing = read(tmp_path)
    assert missing == ()
    assert_equal_logits(model, theirs)


@pytest.mark.filterwarnings("ignore")
def test_ours_is_theirs_with_our_weights(transformers, written):
    assert_equal_logits(ours(), transformers.BertForPreTraining.from_pretrained(written))
