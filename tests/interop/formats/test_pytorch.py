"""Translators around ``torch.nn.Transformer``: PyTorch's own module computes what we compute."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from multihead.errors import FormatError
from multihead.interop.formats.opening import read_foreign
from multihead.interop.formats.parts import Languages

WIDTH, VOCAB = 8, 11
PIECES = ["<unk>", "<pad>", "<bos>", "<eos>", "the", "low@@", "er", "l@@", "house", "o@@", "w"]


class TokenEmbedding(nn.Module):
    """As in the tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens) * math.sqrt(WIDTH)


class PositionalEncoding(nn.Module):
    """As in the tutorial, with a buffer; or trained."""

    def __init__(self, trained: bool, length: int = 20) -> None:
        super().__init__()
        angles = torch.arange(length)[:, None] * torch.exp(-torch.arange(0, WIDTH, 2) * math.log(10000) / WIDTH)
        table = torch.zeros(length, WIDTH)
        table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
        if trained:
            self.pos_embedding = nn.Parameter(torch.randn(length, 1, WIDTH))
        else:
            self.register_buffer("pos_embedding", table[:, None])

    def forward(self, embedded: Tensor) -> Tensor:
        return embedded + self.pos_embedding[: embedded.size(0)]


class Seq2SeqTransformer(nn.Module):
    """The tutorial's network."""

    def __init__(self, trained: bool = False, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on speed
            self.transformer = nn.Transformer(WIDTH, 2, 2, 1, 12, dropout=0.0, **options)
        self.generator = nn.Linear(WIDTH, VOCAB)
        self.src_tok_emb, self.tgt_tok_emb = TokenEmbedding(), TokenEmbedding()
        self.positional_encoding = PositionalEncoding(trained)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))

    def forward(self, source: list[int], target: list[int]) -> Tensor:
        read, written = (torch.tensor(ids)[:, None] for ids in (source, target))
        states = self.transformer(
            self.positional_encoding(self.src_tok_emb(read)),
            self.positional_encoding(self.tgt_tok_emb(written)),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(len(target)),
        )
        return self.generator(states)[:, 0]


def write(folder: Path, weights: Any, pieces: list[str] = PIECES, **settings: Any) -> None:
    """A folder of such a translator."""
    content = {"format": "torch.nn.Transformer", "nhead": 2} | settings
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    torch.save(weights, folder / "model.pt")
    for side in ("source", "target"):
        (folder / f"{side}.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "settings", "positions"),
    [
        ({}, {}, "sinusoidal"),
        ({"norm_first": True, "activation": "gelu"}, {"norm_first": True, "activation": "gelu"}, "sinusoidal"),
        ({"bias": False, "layer_norm_eps": 1e-3}, {"layer_norm_eps": 1e-3}, "sinusoidal"),
        ({"trained": True}, {}, "learned"),
    ],
    ids=["the tutorial's", "pre-norm", "without biases", "trained positions"],
)
def test_the_network_is_pytorchs(
    tmp_path: Path, foreigners: Any, options: dict[str, Any], settings: dict[str, Any], positions: str
) -> None:
    model = Seq2SeqTransformer(**options)
    write(tmp_path, model.state_dict(), **settings)
    with torch.no_grad():
        parts = foreigners.compare(tmp_path, model)
    assert parts.config.positions == positions
    assert parts.config.final_norm


def test_checkpoints_prefixes_and_safetensors_are_read(tmp_path: Path, foreigners: Any) -> None:
    model = Seq2SeqTransformer()
    weights = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    write(tmp_path, {"epoch": 3, "model_state_dict": weights, "optimizer_state_dict": {}})
    foreigners.compare(tmp_path, model)
    (tmp_path / "model.pt").unlink()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    foreigners.compare(tmp_path, model)


def test_other_names_can_be_named(tmp_path: Path, foreigners: Any) -> None:
    model = Seq2SeqTransformer()
    renamed = {"src_tok_emb.embedding": "one", "tgt_tok_emb.embedding": "two", "generator": "three"}
    weights = {}
    for name, tensor in model.state_dict().items():
        old = next((old for old in renamed if name.startswith(old)), None)
        weights[name.replace(old, renamed[old]) if old else name] = tensor
    write(tmp_path, weights)
    with pytest.raises(
        FormatError, match=r"no weight may be the source embedding .*name it in config.json under names"
    ):
        read_foreign(tmp_path, Languages())
    names = {"source_embedding": "one", "target_embedding": "two.weight", "output": "three"}
    write(tmp_path, weights, names=names)
    foreigners.compare(tmp_path, model)
    write(tmp_path, weights, names=names | {"output": "four"})
    with pytest.raises(FormatError, match=r"has no weight 'four', which names.output names"):
        read_foreign(tmp_path, Languages())


def test_one_embedding_serves_both_sides(tmp_path: Path, foreigners: Any) -> None:
    model = Seq2SeqTransformer()
    model.tgt_tok_emb = model.src_tok_emb
    model.generator.weight = model.src_tok_emb.embedding.weight
    weights = model.state_dict()
    weights["embedding.weight"] = weights.pop("src_tok_emb.embedding.weight")
    del weights["tgt_tok_emb.embedding.weight"]
    write(tmp_path, weights)
    parts = foreigners.compare(tmp_path, model)
    assert (parts.config.tie_embeddings, parts.config.tie_output) == (True, True)


def test_sources_begin_as_in_the_tutorial(tmp_path: Path) -> None:
    write(tmp_path, Seq2SeqTransformer().state_dict(), source_language="de")
    parts = read_foreign(tmp_path, Languages())
    source, target = parts.source_tokenizer, parts.target_tokenizer
    assert source.pieces(source.encode("the house")) == ["<bos>", "the", "house"]
    assert target.pieces(target.encode("the house")) == ["the", "house"]
    assert (target.bos_id, target.eos_id, target.pad_id, target.unk_id) == (2, 3, 1, 0)
    (tmp_path / "bpe.codes").write_text("#version: 0.2\nl o\ne r</w>\nlo w\n", encoding="utf-8")
    write(tmp_path, Seq2SeqTransformer().state_dict(), codes=["bpe.codes"], lowercase=True, source_begin=False)
    source = read_foreign(tmp_path, Languages()).source_tokenizer
    assert source.pieces(source.encode("LOWER")) == ["low@@", "er"]


def test_faults_are_one_line(tmp_path: Path, evil: Any) -> None:
    weights = Seq2SeqTransformer().state_dict()
    faults: list[tuple[dict[str, Any], str]] = [
        ({"nhead": 3}, "width must be a multiple of heads"),
        ({"nhead": "many"}, "nhead"),
        ({"heads": 2}, "there is no setting 'heads'"),
        ({"activation": "tanh"}, "activation: .*'relu' or 'gelu'"),
        ({"symbols": {"pad": "PAD"}}, "has no entry 'PAD': name the special symbols in config.json"),
        ({"source_vocabulary": "words.txt"}, "words.txt: the vocabulary is missing"),
        ({"codes": ["x.codes"]}, "the codes is missing: expected x.codes"),
    ]
    for settings, message in faults:
        write(tmp_path, weights, **settings)
        with pytest.raises(FormatError, match=message):
            read_foreign(tmp_path, Languages())
    write(tmp_path, weights, pieces=PIECES[:-1])
    with pytest.raises(FormatError, match="the source vocabulary has 10 entries, but the network has 11"):
        read_foreign(tmp_path, Languages()).build(tmp_path)
    write(tmp_path, {name: tensor for name, tensor in weights.items() if "encoder" not in name})
    with pytest.raises(FormatError, match=r"has no torch.nn.Transformer with an encoder"):
        read_foreign(tmp_path, Languages())
    write(tmp_path, weights | {"adapter.weight": torch.zeros(2, 2)})
    with pytest.raises(FormatError, match=r"has the weight 'unplaced.adapter.weight'"):
        read_foreign(tmp_path, Languages())
    write(tmp_path, {"model": weights, "args": evil})
    with pytest.raises(FormatError, match="which is code and not data"):
        read_foreign(tmp_path, Languages())
